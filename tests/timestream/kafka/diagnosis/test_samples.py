"""Sample records in warnings: the field, a value's beginning, the fitting unit."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from timestream.builders import block, options, projection

from pyspark_timestream.kafka.diagnosis.samples import (
    describe_malformed,
    describe_unit,
    describe_values,
)


def values(*objects):
    return block(*[each if isinstance(each, bytes) else json.dumps(each).encode()
                   for each in objects])  # fmt: skip


def malformed(*objects, **raw):
    given_options = options(valueFormat="json", **{"startTime": "at", **raw})
    return describe_malformed(given_options, None, values(*objects))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"when": 5, "who": "x"}, "there is no field 'at', but 'when', 'who'"),
        ({}, "there is no field 'at', nor any field"),
        ({"at": "13/01/2024 05:00"},
         "one value in 'at' is a text of 16 characters that begins '13/0' and ends '5:00': a date "
         "that begins with its day or month"),
        ({"at": True}, "one value in 'at' is a boolean"),
        ({"at": None}, "one value in 'at' is null"),
        ({"at": {"t": 1}}, "one value in 'at' is an object"),
        ({"at": [1]}, "one value in 'at' is an array"),
        ({"at": ""}, "one value in 'at' is an empty text"),
        (b"a,b,c", "one value is not a JSON object, but a text of 5 characters that begins 'a,': "
                   "no JSON"),
        (b"\0\0\0\0\7abc", "the values are not JSON: they begin with a zero byte, as those of a "
                           "schema registry"),
    ],
)  # fmt: skip
def test_description_names_the_field_and_its_value(value, said):
    assert malformed(value) == said


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("ts_ms", {"op": "u", "payload": {"ts_ms": 5}},
         "there is no field 'ts_ms', but 'payload.ts_ms' is there: name it 'field:payload.ts_ms'"),
        ("payload.ts_ms", {"payload": {"after": {"ts_ms": 5}, "op": "u"}},
         "there is no field 'payload.ts_ms', but 'payload.after.ts_ms' is there: name it "
         "'field:payload.after.ts_ms'"),
        ("payload.ts_ms", {"payload": {"op": 1}, "ts_ms": 5},
         "there is no field 'payload.ts_ms', but 'ts_ms' is there: name it 'ts_ms'"),
        ("payload.timestamp", {"payload": {}, "timestamp": 5},
         "there is no field 'payload.timestamp', but 'timestamp' is there: name it "
         "'field:timestamp'"),
        ("event.created", {"event.created": 5, "event": {}},
         "there is no field 'event.created', but '`event.created`' is there: name it "
         "'field:`event.created`'"),
        ("payload.at", {"payload": {"op": 1, "a.b": 2}},
         "there is no field 'payload.at', but 'payload.op', 'payload.`a.b`'"),
        ("payload.at", {"payload": {}}, "there is no field 'payload.at', nor any field"),
        ("payload.at", {"pay": {"x": 1}}, "there is no field 'payload.at', but 'pay'"),
        ("payload.at", {"payload": None}, "one value in 'payload' is null, not an object"),
        ("payload.after.at", {"payload": {"after": [1]}},
         "one value in 'payload.after' is an array, not an object"),
        ("payload.at", {"payload": "at noon"},
         "one value in 'payload' is a text of 7 characters that begins 'at ', not an object"),
        ("secret.at", {"secret": "hunter2"}, "one value in 'secret' is a text, not an object"),
        ("token.at", {"token": {"at": "hunter2"}}, "one value in 'field:token.at' is a text"),
        ("payload.at", {"payload": {"at": "noon"}},
         "one value in 'field:payload.at' is a text of 4 characters that begins 'no'"),
        ("x", {"a'b": {"x": 5}}, "there is no field 'x', but 'a?b'"),
    ],
)  # fmt: skip
def test_a_nested_field_is_named_by_its_path_and_found_elsewhere(path, value, said):
    assert malformed(value, startTime=f"field:{path}") == said


def test_the_last_malformed_event_is_shown_and_none_where_all_are_well():
    assert malformed({"at": 1}, {"at": "z"}, {"at": "x y"}).endswith("begins 'x'")
    assert malformed({"at": 1}) == ""


def test_a_number_that_another_unit_would_make_a_time_names_the_unit():
    told = malformed({"at": 1_357_017_420_123}, timeUnit="s")
    assert told.endswith("'timeUnit' = 'ms' would fit: it is of 2013-01-01 then")
    assert "'timeUnit' = 'ns' would fit" in malformed(
        {"at": str(1_357_017_420_123_000_000)}, timeUnit="us"
    )
    assert "would fit" not in malformed({"at": 10**17}, timeUnit="s")


def test_ends_edges_headers_and_timestamps_are_named_too():
    lasting = {"eventShape": "interval", "endTime": "to"}
    assert malformed({"at": 1}, **lasting) == "there is no field 'to', but 'at'"
    assert malformed({"at": 5, "to": 5}, **lasting) == "the end, in 'to', is not after the start"
    edges = {"eventShape": "edge", "endTime": "to", "edge": "kind"}
    told = malformed({"at": 1, "kind": "begin"}, **edges)
    assert told == "one value in 'kind' is a text of 5 characters that begins 'be'"
    headed = options(startTime="header:at")
    given_headers = [[{"key": "when", "value": b"5"}]]
    assert describe_malformed(headed, None, block(b"v", headers=given_headers)) == (
        "there is no header 'at', but 'when'"
    )
    broken = block(b"v", headers=[[{"key": "at", "value": b"noon"}]])
    assert describe_malformed(headed, None, broken).endswith("that begins 'no'")
    untimed = block(b"v", timestamps_ms=[-1])
    assert describe_malformed(options(), None, untimed) == "the record has no timestamp"


@pytest.mark.parametrize("name", ["password", "apiToken", "card_number", "authKey", "userPin"])
def test_nothing_is_shown_of_a_field_whose_name_speaks_of_a_secret(name):
    told = malformed({name: "hunter2 and more"}, startTime=name)
    assert told == f"one value in '{name}' is a text"


@given(st.text(min_size=1, max_size=60))
@settings(deadline=None)
@example("0\x1f")
def test_description_masks_half_the_value_and_control_characters(text):
    told = malformed({"at": text})
    assert told.isprintable()
    beginning = told.partition("begins '")[2].partition("'")[0]
    end = told.partition("and ends '")[2].partition("'")[0]
    assert len(beginning) + len(end) <= min(len(text) // 2, 12)


@pytest.mark.parametrize(
    ("value", "unit", "day"),
    [
        (1_357_017_420, "s", "2013-01-01"),
        (1_357_017_420.5, "s", "2013-01-01"),
        ("1357017420123456", "us", "2013-01-01"),
    ],
)
def test_the_unit_that_makes_a_time_probable_is_named_with_its_day(value, unit, day):
    told = describe_unit(
        options(valueFormat="json", startTime="at"), None, values({}, {"at": value})
    )
    assert told == f"'timeUnit' = '{unit}' would fit: it is of {day} then"


def test_no_unit_is_named_where_none_fits():
    fields = options(valueFormat="json", startTime="at")
    for value in (0, "1970-01-01T00:00:00Z", None, 10**17, float("inf"), True):
        assert describe_unit(fields, None, values({"at": value})) == ""
    assert "not in milliseconds" in describe_unit(
        options(), None, block(b"v", timestamps_ms=[1_357_017_420])
    )
    assert describe_unit(options(), None, block(b"v", timestamps_ms=[0])) == ""


COLUMNS = [("minutes", pa.float64()), ("id", pa.int64()), ("pin", pa.int32())]


def wrong(*objects, columns=COLUMNS):
    given_options = options(valueFormat="json")
    return describe_values(given_options, projection(given_options, *columns), values(*objects))


def test_a_field_that_mostly_is_of_another_type_is_named_with_both_types():
    assert wrong({"minutes": "12,5", "id": 1}, {"minutes": 3.0, "id": 1}) == (
        "field 'minutes' is double in .schema(...), and one value there is a text of 4 characters "
        "that begins '12'"
    )
    assert wrong({"id": 1.5, "pin": "0000"}) == (
        "field 'id' is long in .schema(...), and one value there is a number of 3 characters that "
        "begins '1'; field 'pin' is int in .schema(...), and one value there is a text"
    )


def test_a_nested_field_of_another_type_is_named_by_its_path():
    columns = [("p.id", pa.int64()), ("p.`a.b`", pa.string())]
    assert wrong({"p": {"id": "one"}}, columns=columns) == (
        "field 'p.id' is long in .schema(...), and one value there is a text of 3 characters that "
        "begins 'o'"
    )
    assert wrong({"p": [{"id": 1}]}, columns=columns[1:]) == (
        "field 'p.`a.b`' of .schema(...) is inside another, and one value in 'p' is an array, not "
        "an object"
    )
    assert wrong({"p": None}, {}, {"p": {"x": 1}}, columns=columns) == ""


def test_a_field_that_is_of_another_type_in_one_value_of_many_is_named():
    assert wrong({"id": "x"}, {"id": 1}, {"id": 2}).startswith("field 'id' is long in .schema(...)")
    assert wrong({"id": 1}) == ""
    assert wrong() == ""


def test_values_that_are_not_json_are_described_by_one_of_them():
    assert wrong(b"a;b", {"id": 1}).startswith("one value is not a JSON object, but a text of 3")
    assert wrong(b"a;b", {"id": 1}, {"id": 2}).endswith("begins 'a': no JSON")


WELL = {"at": "2026-11-26T12:00:00Z", "id": 1}


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2026-11-26T12:00:00+01:00[Europe/Berlin]", "a time with a zone's name in brackets"),
        ("2026-11-26T12:00:00Z[UTC]", "a time with a zone's name in brackets"),
        ("2026-11-26T12:00:00 Europe/Berlin", "a time with a zone's name"),
        ("2026-11-26 12:00:00 CET", "a time with a zone's abbreviation"),
        ("2026-11-26T12:00:00 GMT", "a time with a zone's abbreviation"),
        ("2026-11-26T12:00:00+1", "a time with an offset of one digit"),
        ("Thu, 26 Nov 2026 12:00:00 GMT", "a time as of mails or HTTP (RFC 1123)"),
        ("26.11.2026 12:00", "a date that begins with its day or month"),
        ("11/26/2026 12:00:00 PM", "a date that begins with its day or month"),
        ("2026/11/26 12:00:00", "a date with slashes or points"),
        ("2026-11-26 01:00 PM", "a time with AM or PM"),
        ("2026-W48-4", "a date by its week"),
        ("2026-11-26T24:00:00Z", "a time with hour 24"),
        ("20261126T240000Z", "a time with hour 24"),
        ("2026-06-30T23:59:60Z", "a time with a leap second"),
        ("20260630T235960Z", "a time with a leap second"),
        ("2026-11-26T12Z", "a time without minutes"),
        ("12:00:00", "a time without a date"),
        ("1795694400.5", "a number with decimals, as a text"),
        ("N/A", "a word for no time"),
        ([2026, 11, 26, 12, 0], "year, month, day and so on in an array, as Jackson writes times"),
        ({"$date": 5}, "MongoDB's extended JSON"),
        ({"seconds": 5, "nanos": 0}, "seconds and nanoseconds in fields of their own"),
    ],
)
def test_a_time_that_cannot_be_read_among_good_ones_is_named_by_its_form(text, form):
    told = malformed(*[WELL] * 9, {"at": text}, *[WELL] * 9)
    assert told.endswith(f": {form}")
    if isinstance(text, str) and len(text) >= 12:
        assert f"and ends '{text[-3:]}'" in told or told.count("'") >= 6


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"\xef\xbb\xbf" + json.dumps(WELL).encode(), "a byte order mark before the text"),
        (json.dumps(WELL).encode("utf-16"), "UTF-16 with a byte order mark"),
        (b"\x1f\x8b\x08\0\0", "compressed with gzip"),
        (b"Obj\x01\x04", "an Avro file"),
        (
            json.dumps([WELL, WELL]).encode(),
            "a JSON array of objects: several events in one record",
        ),
        (json.dumps(json.dumps(WELL)).encode(), "JSON within a JSON text"),
        (b'"noon"', "a JSON text"),
        (b"17", "a JSON number or word"),
        (b"null", "a JSON number or word"),
        (b'{"at": 1}\n{"at": 2}', "several JSON texts in one record"),
        (json.dumps(WELL).encode()[:-4], "JSON that is cut off"),
        (b"{'at': 1}", "JSON with single quotes"),
        (b'{"at": 1, what: 2}', "no JSON from character 11 on"),
        (b"<event at='1'/>", "XML"),
        (b"\xc3(", "not text in UTF-8"),
        (b"", "empty"),
    ],
)
def test_a_value_that_is_no_object_among_good_ones_is_named_by_what_it_is(value, form):
    told = malformed(*[WELL] * 9, value, *[WELL] * 9)
    assert told.endswith(f": {form}")
    assert wrong(*[{"id": 1}] * 9, value).endswith(f": {form}")


def test_events_of_another_type_are_told_from_a_wrong_option():
    told = malformed(*[WELL] * 8, {"type": "Cancelled", "order": 7}, {"type": "x"})
    assert (
        told
        == "there is no field 'at', but 'type'; 8 of 10 records have it: events of another type"
    )


def test_tombstones_are_no_example_of_a_malformed_event():
    given_options = options(valueFormat="json", startTime="at")
    records = block(json.dumps(WELL).encode(), b'{"at": "noon"}', None)
    assert "begins 'no'" in describe_malformed(given_options, None, records)
    assert describe_malformed(given_options, None, block(None, None)) == ""


@pytest.mark.parametrize("value", [b'{"at": 1, "password": "hunter2', b'{"apiKey": "hunter2"} x'])
def test_nothing_is_shown_of_a_broken_value_that_names_a_secret(value):
    told = malformed(value)
    assert "hunter" not in told
    assert "begins" not in told
