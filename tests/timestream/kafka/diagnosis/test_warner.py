"""Warnings from samples of uncounted partitions and of batch reads."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from timestream.builders import at, block, options, projection

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.diagnosis.causes import diagnose
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind, find_new_warnings, recall_warnings
from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.diagnosis.warner import (
    Warner,
    find_improbable_bounds,
    warn_about_read,
)
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import Clues, PartitionClock

JSON = {"valueFormat": "json", "startTime": "at", "ctiFrequency": "1"}
COLUMNS = [("price", pa.float64())]


class Records:
    """A reader over one partition's values, which notes what it is asked for."""

    def __init__(self, *values):
        self.values = [json.dumps(value).encode() for value in values]
        self.asked = []

    def __call__(self, given, group):
        self.options = given
        return self

    def read(self, span, needs):
        self.asked.append((span.start_inclusive, span.end_exclusive))
        yield block(*self.values[span.start_inclusive : span.end_exclusive])

    def close(self):
        pass


def offset(end=0, number=0, **share):
    part = PartitionOffset(0, end, PartitionClock(), **share)
    return StreamOffset("me", options(**JSON).settings(), 1, {at(0): part}, number)


def stands(at_offset, **share):
    part = PartitionOffset(at_offset, at_offset, **{"clock": PartitionClock(), **share})
    return StreamOffset("me", options(**JSON).settings(), 1, {at(0): part})


def warner(records, *columns):
    given = options(**JSON)
    return Warner(given, projection(given, *(columns or COLUMNS)), records)


def test_uncounted_partition_is_sampled_once_per_run():
    records = Records(*[{"when": 1, "price": "1,5"}] * 250)
    look = warner(records)
    for number in range(3):
        warnings = look.update(offset(250, number), stands(250), {at(0): 250}, number * 10**7)
        malformed, wrong = recall_warnings(warnings)
        assert (malformed.kind, wrong.kind) == (Kind.MALFORMED, Kind.MALFORMED_VALUES)
        assert malformed.text.startswith("of its newest records, 100 of 100 events have no time")
        assert "there is no field 'at', but 'when', 'price'" in malformed.detail
        assert "100 of 100 records have a malformed value or key (reasons: 100 type)" in wrong.text
        assert "field 'price' is double" in wrong.detail
    # One look at all of them, one at their fields, and one for each example.
    assert records.asked == [(150, 250)] * 4


def test_where_events_were_counted_or_nothing_was_read_no_record_is_asked_for():
    records = Records(*[{"when": 1}] * 9)
    given = options(**JSON)
    look = Warner(given, None, records)
    counted = stands(9, clock=PartitionClock(events=9))
    assert look.update(offset(9), counted, {at(0): 9}, 0) == ()
    assert look.update(offset(0), stands(0), {at(0): 0}, 10**7) == ()
    assert records.asked == []


def test_records_that_cannot_be_had_are_no_reason_to_fail():
    def refuse(given, group):
        raise BrokerUnreachable("nobody is there")

    assert warner(refuse).update(offset(9), stands(9), {at(0): 9}, 0) == ()
    told = warner(refuse).update(
        offset(9), stands(9, clock=PartitionClock(events=9, malformed=9)), {at(0): 9}, 0
    )
    assert [(each.kind, each.detail) for each in told] == [(Kind.MALFORMED, "")]


def test_sample_is_read_with_short_timeouts_and_fails_on_loss():
    records = Records(*[{"when": 1}] * 9)
    look = Warner(options(**JSON, failOnDataLoss="false"), None, records)
    look.update(offset(9), stands(9), {at(0): 9}, 0)
    assert records.options.fail_on_data_loss
    assert records.options.poll_timeout_ms <= 5_000


def test_task_of_a_batch_read_warns_about_its_records(caplog):
    records = Records(*[{"at": "noon", "price": 1.5}] * 4)
    given = options(**JSON)
    told = {at(0): (4, PartitionClock(events=4, malformed=4), NO_MALFORMED_PAYLOADS)}
    warn_about_read(given, projection(given, *COLUMNS), records, told)
    assert caplog.text.count("malformed events: topic 'topic' partition 0: 4 of 4 events") == 1
    assert "begins 'no'" in caplog.text
    caplog.clear()
    wrong = MalformedPayloads.from_reasons({"syntax": 3})
    told = {at(0): (4, PartitionClock(events=4), wrong)}
    warn_about_read(given, projection(given, *COLUMNS), records, told)
    assert "3 of 4 records have a malformed value or key (reasons: 3 syntax)" in caplog.text
    caplog.clear()
    well = {at(0): (4, PartitionClock(events=4), NO_MALFORMED_PAYLOADS)}
    warn_about_read(given, projection(given, *COLUMNS), records, well)
    assert caplog.text == ""


def test_data_that_goes_wrong_late_is_warned_about_at_once():
    years, records = 10**6, Records(*[{"when": 1, "price": 2.5}] * 20)

    def at_event(events, malformed):
        clock = PartitionClock(events=events, malformed=malformed)
        part = PartitionOffset(20, 20, clock)
        return StreamOffset("me", options(**JSON).settings(), 1, {at(0): part}, events)

    look = warner(records)
    first = look.update(at_event(years, 0), at_event(years + 9, 9), {at(0): 20}, 0)
    assert recall_warnings(first)[0].text.startswith("9 of 1000009 events have no time")
    batch = at_event(years + 9, 9)
    warnings = look.update(batch, at_event(years + 11, 11), {at(0): 20}, 10**7)
    (diagnosis,) = recall_warnings(warnings)
    assert diagnosis.full_text.startswith("lately, 11 of 11 events have no time that can be read")
    assert diagnosis.detail == "there is no field 'at', but 'when', 'price'"
    restarted = replace(at_event(years + 11, 11), warnings=warnings)
    later = warner(records).update(restarted, at_event(years + 11, 11), {at(0): 20}, 2 * 10**7)
    assert find_new_warnings(warnings, later) == []
    well = warner(records).update(restarted, at_event(years + 40, 11), {at(0): 20}, 3 * 10**7)
    assert recall_warnings(well)[0].text.startswith("11 of 1000040 events")


def test_one_malformed_record_in_a_long_batch_is_the_example_wherever_it_lies():
    """The task has noted its offset, so that the sample is not the newest records."""
    good = {"at": 1_704_110_400_000, "price": 1.5}
    records = Records(
        *[good] * 50, {"at": "2026-11-26T12:00:00Z[UTC]", "price": "x"}, *[good] * 450
    )
    noted = MalformedPayloads((("type", 1),), malformed_payload_at=50, malformed_event_at=50)
    now = stands(501, clock=PartitionClock(events=501, malformed=1), malformed_payloads=noted)
    warnings = warner(records).update(offset(501), now, {at(0): 501}, 0)
    event, value = recall_warnings(warnings)
    assert event.detail.endswith(": a time with a zone's name in brackets")
    assert "field 'price' is double" in value.detail
    assert records.asked[1:] == [(0, 51), (0, 51)]


def test_an_event_in_another_unit_is_the_example_with_the_unit_that_fits_it():
    right, wrong = {"at": 1_704_110_400_000, "price": 1.5}, {"at": 1_704_110_400, "price": 1.5}
    records = Records(*[right] * 30, wrong, *[right] * 300)
    clues = Clues(early=1, old=1)
    noted = MalformedPayloads(early_event_at=30)
    now = stands(331, clock=PartitionClock(events=331, clues=clues), malformed_payloads=noted)
    (diagnosis,) = recall_warnings(warner(records).update(offset(331), now, {at(0): 331}, 0))
    assert diagnosis.kind is Kind.IMPROBABLE_TIMES
    assert diagnosis.detail == "'timeUnit' = 's' would fit: it is of 2024-01-01 then"


@pytest.mark.parametrize(
    ("start_time", "value", "is_told"),
    [
        ("timestamp", {"timestamp": 5, "price": 1.5}, True),
        ("Timestamp", {"Timestamp": 5}, True),
        ("timestamp", {"at": 5}, False),
        ("timestamp", {"inner": {"timestamp": 5}}, False),
        ("record:timestamp", {"timestamp": 5}, False),
        (None, {"timestamp": 5}, False),
    ],
)
def test_which_of_two_timestamps_is_read_is_said_once_where_the_option_could_mean_both(
    start_time, value, is_told, caplog
):
    records = Records(*[value] * 9)
    given = options(**{**JSON, "startTime": start_time})
    look = Warner(given, projection(given, *COLUMNS), records)
    clock = PartitionClock(events=9)
    share = PartitionOffset(9, 9, clock)
    now = StreamOffset("me", given.settings(), 1, {at(0): share})
    told = look.update(offset(9), now, {at(0): 9}, 0)
    assert [each.kind for each in told] == [Kind.TWO_TIMESTAMPS] * is_told
    asked = len(records.asked)
    again = look.update(replace(offset(9, 1), warnings=told), now, {at(0): 9}, 10**7)
    assert len(records.asked) == asked
    assert find_new_warnings(told, again) == []
    if is_told:
        assert "the record's timestamp is read" in told[0].text


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1704110400", "seconds, of 2024-01-01"),
        ("1704110400000000", "microseconds, of 2024-01-01"),
        ("1704110400000000000", "nanoseconds, of 2024-01-01"),
        ("1704110400000", None),
        ("0", None),
        ("1000", None),
    ],
)
def test_a_bound_in_another_unit_than_milliseconds_is_named_with_its_day(name, text, says):
    given = options(**JSON, **{name: text})
    found = find_improbable_bounds(given)
    assert [each.kind for each in found] == ([Kind.IMPROBABLE_BOUND] if says else [])
    if says:
        assert says in found[0].text
        assert found[0].cause == f"option '{name}'"
    look = Warner(given, projection(given, *COLUMNS), Records())
    warned = look.update(offset(0), stands(0), {at(0): 0}, 0)
    assert [each.kind for each in warned] == [Kind.IMPROBABLE_BOUND] * bool(says)


def test_a_bound_of_one_partition_in_another_unit_is_named_too():
    given = options(**JSON, startingOffsetsByTimestamp='{"topic": {"0": 1704110400}}')
    (diagnosis,) = find_improbable_bounds(given)
    assert "seconds, of 2024-01-01" in diagnosis.text


EVENT = {
    "at": 1,
    "degrees": 2.5,
    "topic": "x",
    "Place": {"name": "x", "lat": 1.5},
    "hits": [{"ms": 5}],
}
PLACE = pa.struct([("nmae", pa.string()), ("lat", pa.float64())])
HITS = pa.list_(pa.struct([("us", pa.int64())]))
OWN = "(a column of that name is the record's own, unless 'metadataPrefix' is set)"


@pytest.mark.parametrize(
    ("column", "data_type", "text"),
    [
        ("degeers", pa.float64(), "there is no field 'degeers': did you mean 'degrees'?"),
        ("De_grees", pa.float64(), "there is no field 'De_grees': did you mean 'degrees'?"),
        ("deg", pa.float64(), "there is no field 'deg': did you mean 'degrees'?"),
        ("Place", PLACE, "there is no field 'Place.nmae': did you mean 'Place.name'?"),
        ("Place.nam", pa.string(), "there is no field 'Place.nam': did you mean 'Place.name'?"),
        ("lat", pa.float64(), "there is no field 'lat', but 'Place.lat' is there"),
        ("hits", HITS, "there is no field 'hits.us', but 'hits.ms'"),
        (
            "speed",
            pa.float64(),
            "there is no field 'speed', but 'degrees', 'topic', 'Place', 'hits'",
        ),
        ("degrees", pa.float64(), None),
        ("degrees", pa.string(), None),
        ("topci", pa.string(), f"there is no field 'topci': did you mean 'topic'? {OWN}"),
        ("Place", pa.string(), None),
        ("Place.name", pa.string(), None),
    ],
)
def test_a_column_that_no_json_value_has_is_named_once_with_the_near_name(column, data_type, text):
    records = Records(*[EVENT] * 20)
    look = warner(records, (column, data_type))
    now = stands(20, clock=PartitionClock(events=20))
    told = look.update(offset(20), now, {at(0): 20}, 0)
    assert [each.kind for each in told] == [Kind.NO_SUCH_FIELD] * (text is not None)
    if text is not None:
        assert told[0].text == f"null in the 20 newest records: {text}"
    assert records.asked == [(0, 20)]
    again = look.update(replace(offset(20, 1), warnings=told), now, {at(0): 20}, 10**7)
    assert records.asked == [(0, 20)]
    assert find_new_warnings(told, again) == []


@pytest.mark.parametrize(
    "values",
    [
        [{"at": 1, "error": "x"}] * 9,  # too few to tell
        [{"at": 1, "error": "x"}] * 19 + [{"at": 1}],  # fields are optional
        [{"at": 1}] * 20,  # nothing is left unread
        [{"at": 1, "error": "x"}] * 19 + [{"at": 1, "speed": None}],
        ["text"] * 20,
        [],
    ],
)
def test_a_field_that_may_be_optional_is_not_told(values):
    look = warner(Records(*values), ("speed", pa.float64()))
    now = stands(len(values), clock=PartitionClock(events=20))
    assert look.update(offset(len(values)), now, {at(0): len(values)}, 0) == ()


def test_fields_of_keys_are_compared_too_and_those_of_another_topic():
    given = options(**JSON, keyFormat="json", subscribe="topic,other")
    columns = [("key.devcie", pa.string()), ("degrees", pa.float64()), ("speed", pa.float64())]

    def read(span, _):
        value = {"at": 1, "degrees": 1.5} if span.partition.topic == "topic" else {"speed": 2.5}
        count = span.end_exclusive - span.start_inclusive
        rows = block(*[json.dumps(value).encode()] * count)
        yield rows._replace(keys=pa.array([b'{"device": "a"}'] * count, pa.binary()))

    records = Records()
    records.read = read
    look = Warner(given, projection(given, *columns), records)
    partitions = {
        Partition(topic, 0): PartitionOffset(0, 20, PartitionClock(events=20))
        for topic in ("topic", "other")
    }
    before = StreamOffset("me", given.settings(), 1, partitions)
    after = replace(
        before,
        partitions={
            partition: replace(entry, start_inclusive=20) for partition, entry in partitions.items()
        },
    )
    warnings = recall_warnings(look.update(before, after, {}, 0))
    (told,) = (warning for warning in warnings if warning.kind is Kind.NO_SUCH_FIELD)
    assert told.cause == "column 'key.devcie'"
    assert told.text.endswith("there is no field 'devcie': did you mean 'device'?")


def test_a_task_of_a_batch_read_asks_only_for_columns_of_nulls(caplog):
    records = Records(*[EVENT] * 20)
    given = options(**JSON)
    columns = projection(given, ("degeers", pa.float64()), ("speed", pa.float64()))
    told = {at(0): (20, PartitionClock(events=20), NO_MALFORMED_PAYLOADS)}
    warn_about_read(given, columns, records, told)
    assert records.asked == []
    warn_about_read(given, columns, records, told, {"degeers"})
    assert "a column without a field: column 'degeers': null in the 20 newest" in caplog.text
    assert "speed" not in caplog.text


def test_a_pattern_that_matches_no_topic_is_named_until_one_comes():
    given = options(subscribe=None, subscribePattern="tirps.*", ctiFrequency="1")
    look = Warner(given, None, Records())
    (told,) = look.warn_at_start({}, {}, bounded=False)
    assert (told.kind, told.cause) == (Kind.NO_TOPIC, "option 'subscribePattern' = 'tirps.*'")
    none = StreamOffset("me", given.settings(), 1, {}, 0, warnings=(told,))
    (waiting,) = recall_warnings(look.update(none, none, {}, 0))
    assert waiting.kind is Kind.NO_TOPIC
    (diagnosis,) = diagnose((BatchRecord(0, replace(none, warnings=())),))
    assert diagnosis.kind is Kind.NO_TOPIC
    found = replace(none, partitions=stands(9, clock=PartitionClock(events=9)).partitions)
    look = Warner(given, None, Records())
    assert recall_warnings(look.update(none, found, {at(0): 9}, 0)) == []
