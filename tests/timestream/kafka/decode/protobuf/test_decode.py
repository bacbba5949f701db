"""Protobuf payloads as columns: bytes and their values."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from timestream.protobuf_schemas import (
    INSTANT,
    Schema,
    field,
    file,
    map_field,
    message,
)
from timestream.protobuf_wire import delimited, tag, varint

from pyspark_timestream.kafka.decode.protobuf.decode import read_protobuf
from pyspark_timestream.kafka.decode.records import FINE, FRAMING, SYNTAX, TYPE, RequestedFields

UTC = datetime.UTC
COLORS = {0: "RED", 1: "GREEN"}
LABELS, LABELS_ENTRY = map_field(".m.M", "labels", 12, "string", "int32")
PLACES, PLACES_ENTRY = map_field(".m.M", "places", 13, "int32", ".m.Place")
SCHEMA = Schema(
    file(
        message("Place", field("x", 1, "int32"), field("name", 2, "string")),
        message(
            "M",
            field("id", 1, "string"),
            field("i", 2, "int64"),
            field("small", 3, "int32", optional=True),
            field("big", 4, "uint64"),
            field("d", 5, "double"),
            field("place", 6, ".m.Place"),
            field("at", 7, ".google.protobuf.Timestamp"),
            field("count", 8, ".google.protobuf.Int64Value"),
            field("color", 9, "enum .m.Color"),
            field("ns", 10, "int32", repeated=True),
            field("raw", 11, "bytes"),
            LABELS,
            PLACES,
            field("a", 14, "int32", oneof=0),
            field("b", 15, "int32", oneof=0),
            field("parent", 16, ".m.M"),
            field("times", 17, ".google.protobuf.Timestamp", repeated=True),
            field("on", 18, ".google.type.Date"),
            field("took", 19, ".google.protobuf.Duration"),
            field("flag", 20, "bool"),
            field("f", 21, "float"),
            field("last", 2**29 - 1, "int32"),
            nested=[LABELS_ENTRY, PLACES_ENTRY],
            oneofs=["o"],
        ),
        enums=[("Color", COLORS)],
    )
)

PLACES_TYPE = pa.map_(pa.int32(), pa.struct([("x", pa.int32())]))


def read(payloads, *columns, raw=(), schema=SCHEMA, reasons=None):
    wanted = RequestedFields(pa.schema(list(columns)), raw)
    block = read_protobuf(schema.reader, wanted, pa.array(payloads, pa.binary()), reasons)
    for column, (_, kind) in zip(block.columns, columns, strict=True):
        column.validate(full=True)
        assert column.type == kind
    return block


def read_one(payload, name, kind, schema=SCHEMA):
    """The value of one column of one payload, and the reason why it is malformed."""
    block = read([payload], (name, kind), schema=schema)
    return block.columns[0][0].as_py(), int(block.reasons[0])


def read_raw(payloads, name):
    block = read(payloads, raw=(name,))
    (piece,) = block.raw[name]
    assert not block.malformed.any()
    return piece.type, piece.to_pylist()


def write(**values):
    return SCHEMA.Message(**values).SerializeToString()


def test_an_empty_payload_has_every_default():
    defaults = [
        *[("id", pa.string(), ""), ("i", pa.int64(), 0), ("d", pa.float64(), 0.0)],
        *[("flag", pa.bool_(), False), ("raw", pa.binary(), b""), ("color", pa.string(), "RED")],
        *[("ns", pa.list_(pa.int32()), []), ("labels", pa.map_(pa.string(), pa.int32()), [])],
    ]
    for name, kind, value in defaults:
        assert read_one(b"", name, kind) == (value, FINE)


def test_a_field_that_tells_absence_apart_is_null_where_it_is_absent():
    absent = [
        *[("small", pa.int32()), ("a", pa.int32()), ("at", INSTANT), ("count", pa.int64())],
        *[("place", pa.struct([("x", pa.int32())])), ("place.x", pa.int32())],
    ]
    for name, kind in absent:
        assert read_one(b"", name, kind) == (None, FINE)
    present = write(small=0, a=0, at={}, count={"value": 0}, place={})
    zeros = [0, 0, datetime.datetime(1970, 1, 1, tzinfo=UTC), 0, {"x": 0}, 0]
    for (name, kind), value in zip(absent, zeros, strict=True):
        assert read_one(present, name, kind) == (value, FINE)


def test_a_null_payload_is_a_row_of_nulls_and_not_malformed():
    block = read([None, b"\x10\5"], ("id", pa.string()), ("i", pa.int64()), raw=("i",))
    assert [column.to_pylist() for column in block.columns] == [[None, ""], [None, 5]]
    assert block.raw["i"][0].to_pylist() == [None, 5]
    assert block.reasons.tolist() == [FINE, FINE]


def test_a_malformed_payload_is_a_row_of_nulls_among_its_neighbours():
    block = read([b"\x10\5", b"\x10", b"\x10\6"], ("i", pa.int64()), raw=("i",))
    assert block.columns[0].to_pylist() == [5, None, 6]
    assert block.raw["i"][0].to_pylist() == [5, None, 6]
    assert block.reasons.tolist() == [FINE, SYNTAX, FINE]


def test_a_payload_that_is_malformed_already_stays_unread():
    reasons = np.array([FRAMING, FINE], dtype=np.uint8)
    block = read([b"\x10\5", b"\x10\6"], ("i", pa.int64()), reasons=reasons)
    assert block.columns[0].to_pylist() == [None, 6]
    assert block.reasons.tolist() == [FRAMING, FINE]
    assert reasons.tolist() == [FRAMING, FINE]


def test_no_payloads_are_no_rows():
    block = read([], ("i", pa.int64()), ("labels", pa.map_(pa.string(), pa.int32())), raw=("at",))
    assert [len(column) for column in block.columns] == [0, 0]
    assert [len(piece) for piece in block.raw["at"]] == [0]
    assert len(block.reasons) == 0


def test_without_wanted_fields_payloads_are_still_judged():
    assert read([b"\x10\5", b"\x10", None]).reasons.tolist() == [FINE, SYNTAX, FINE]


def test_payloads_that_are_all_malformed_are_rows_of_nulls():
    block = read([b"\x10", b"\x07"], ("ns", pa.list_(pa.int32())), raw=("at",))
    assert block.columns[0].to_pylist() == [None, None]
    assert block.reasons.tolist() == [SYNTAX, SYNTAX]


def test_unknown_fields_and_groups_are_skipped():
    unknown = tag(900, 0) + b"\1" + tag(901, 3) + tag(1, 2) + delimited(b"x") + tag(901, 4)
    assert read_one(b"\x10\5" + unknown, "i", pa.int64()) == (5, FINE)
    assert read_one(unknown + b"\x70\5", "a", pa.int32()) == (5, FINE)


def test_a_field_of_another_wire_type_is_unknown():
    assert read_one(tag(2, 2) + delimited(b"5"), "i", pa.int64()) == (0, FINE)


def test_the_last_of_a_repeated_scalar_counts_and_messages_merge():
    assert read_one(b"\x10\5\x10\6", "i", pa.int64()) == (6, FINE)
    twice = write(place={"x": 1, "name": "a"}) + write(place={"name": "b"})
    kind = pa.struct([("x", pa.int32()), ("name", pa.string())])
    assert read_one(twice, "place", kind) == ({"x": 1, "name": "b"}, FINE)
    halves = tag(7, 2) + delimited(b"\x08\5") + tag(7, 2) + delimited(b"\x10" + varint(7_000))
    expected = datetime.datetime(1970, 1, 1, 0, 0, 5, 7, tzinfo=UTC)
    assert read_one(halves, "at", INSTANT) == (expected, FINE)


def test_the_last_member_of_a_oneof_counts():
    both = write(a=1) + write(b=2)
    assert read_one(both, "a", pa.int32()) == (None, FINE)
    assert read_one(both, "b", pa.int32()) == (2, FINE)


def test_the_last_of_equal_keys_counts_and_keys_are_sorted():
    twice = write(labels={"b": 1, "c": 7}) + write(labels={"b": 2}) + write(labels={"a": 3})
    kind = pa.map_(pa.string(), pa.int32())
    assert read_one(twice, "labels", kind) == ([("a", 3), ("b", 2), ("c", 7)], FINE)
    keys = [-1, 300, 0, 2, -(2**31)]
    found, _ = read_one(write(places={key: {} for key in keys}), "places", PLACES_TYPE)
    assert [key for key, _ in found] == sorted(keys)
    no_value = tag(13, 2) + delimited(b"\x08\5")
    assert read_one(no_value, "places", PLACES_TYPE) == ([(5, {"x": 0})], FINE)


def test_packed_and_unpacked_numbers_are_read_in_order():
    mixed = tag(10, 0) + b"\1" + tag(10, 2) + delimited(b"\2\3") + tag(10, 0) + b"\4"
    assert read_one(mixed, "ns", pa.list_(pa.int64())) == ([1, 2, 3, 4], FINE)


def test_negative_and_unsigned_numbers_keep_their_sign():
    assert read_one(write(small=-1), "small", pa.int32()) == (-1, FINE)
    assert read_one(write(big=2**64 - 1), "big", pa.decimal128(20, 0))[1] == FINE
    assert str(read_one(write(big=2**64 - 1), "big", pa.decimal128(20, 0))[0]) == str(2**64 - 1)


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        ({"i": 128}, "i", pa.int8()),
        ({"i": -129}, "i", pa.int8()),
        ({"i": 2**31}, "i", pa.int32()),
        ({"big": 2**63}, "big", pa.int64()),
        ({"i": 1000}, "i", pa.decimal128(5, 2)),
        ({"d": 1e39}, "d", pa.float32()),
        ({"at": {"seconds": 253402300800}}, "at", INSTANT),
        ({"at": {"seconds": 2**62}}, "at", INSTANT),
        ({"at": {"nanos": -1}}, "at", INSTANT),
        ({"at": {"nanos": 10**9}}, "at", INSTANT),
        ({"took": {"seconds": 1, "nanos": -1}}, "took", pa.duration("us")),
        ({"took": {"seconds": 2**62}}, "took", pa.duration("us")),
        ({"took": {"seconds": 315_576_000_001}}, "took", pa.duration("us")),
        ({"took": {"seconds": -315_576_000_001}}, "took", pa.duration("us")),
        ({"took": {"seconds": -(2**63)}}, "took", pa.duration("us")),
        ({"took": {"nanos": -(2**31)}}, "took", pa.duration("us")),
        ({"at": {"seconds": -(2**63)}}, "at", INSTANT),
        ({"on": {"year": -(2**31), "month": 1, "day": 1}}, "on", pa.date32()),
        ({"on": {"year": 2023, "month": 2, "day": 29}}, "on", pa.date32()),
        ({"on": {"year": 2023}}, "on", pa.date32()),
        ({"ns": [1, 300]}, "ns", pa.list_(pa.int8())),
        ({"labels": {"a": 1, "b": 300}}, "labels", pa.map_(pa.string(), pa.int8())),
        ({"places": {300: {}}}, "places", pa.map_(pa.int8(), pa.binary())),
        ({"times": [{}, {"nanos": -1}]}, "times", pa.list_(INSTANT)),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_null_and_malformed_by_type(values, name, kind):
    assert read_one(write(**values), name, kind) == (None, TYPE)


@pytest.mark.parametrize(
    ("values", "name", "kind", "expected"),
    [
        ({"i": 127}, "i", pa.int8(), 127),
        ({"i": -128}, "i", pa.int8(), -128),
        ({"i": 2**53}, "i", pa.float64(), 2.0**53),
        ({"i": -5}, "i", pa.string(), "-5"),
        ({"f": 1.5}, "f", pa.float64(), 1.5),
        ({"d": float("-inf")}, "d", pa.float32(), float("-inf")),
        ({"last": 5}, "last", pa.int32(), 5),
        ({"color": 1}, "color", pa.string(), "GREEN"),
        ({"color": 1}, "color", pa.int32(), 1),
        ({"color": 7}, "color", pa.string(), "7"),
        ({"id": "é"}, "id", pa.binary(), "é".encode()),
        ({"took": {"seconds": -1, "nanos": -1500}}, "took", pa.duration("us"), -1_000_002),
        ({"on": {"year": 2024, "month": 2, "day": 29}}, "on", pa.date32(), (2024, 2, 29)),
        ({"on": {"year": 1, "month": 1, "day": 1}}, "on", pa.date32(), (1, 1, 1)),
        ({"on": {"year": 9999, "month": 12, "day": 31}}, "on", pa.date32(), (9999, 12, 31)),
        ({"count": {"value": 5}}, "count", pa.int64(), 5),
        ({"count": {"value": 5}}, "count", pa.struct([("value", pa.int64())]), {"value": 5}),
        ({"on": {"year": 5}}, "on", pa.struct([("year", pa.int32())]), {"year": 5}),
        ({"place": {"x": 5}}, "place", pa.binary(), b"\x08\5"),
        ({"parent": {"parent": {"i": 5}}}, "parent.parent.i", pa.int64(), 5),
        ({"parent": {}}, "parent.parent.i", pa.int64(), None),
        ({"parent": {"ns": [1]}}, "parent.ns", pa.list_(pa.int32()), [1]),
        ({}, "parent.ns", pa.list_(pa.int32()), None),
    ],
)
def test_a_field_is_read_as_each_type_that_fits(values, name, kind, expected):
    if pa.types.is_duration(kind):
        expected = datetime.timedelta(microseconds=expected)
    elif pa.types.is_date(kind):
        expected = datetime.date(*expected)
    assert read_one(write(**values), name, kind) == (expected, FINE)


@pytest.mark.parametrize(
    ("seconds", "nanos", "expected"),
    [
        (0, 999, "1970-01-01T00:00:00+00:00"),
        (-1, 999_999_999, "1969-12-31T23:59:59.999999+00:00"),
        (-62_135_596_800, 0, "0001-01-01T00:00:00+00:00"),
        (253_402_300_799, 999_999_999, "9999-12-31T23:59:59.999999+00:00"),
    ],
)
def test_timestamps_are_rounded_down_to_the_microsecond(seconds, nanos, expected):
    found, reason = read_one(write(at={"seconds": seconds, "nanos": nanos}), "at", INSTANT)
    assert (found.isoformat(), reason) == (expected, FINE)
    assert read_raw([write(at={"seconds": seconds, "nanos": nanos})], "at") == (INSTANT, [found])


def test_a_struct_keeps_its_readable_fields():
    kind = pa.struct([("x", pa.int8()), ("name", pa.string())])
    payload = write(place={"x": 300, "name": "a"})
    assert read_one(payload, "place", kind) == ({"x": None, "name": "a"}, TYPE)
    maps = pa.map_(pa.int32(), kind)
    payload = write(places={1: {"x": 300}, 2: {"x": 3}})
    expected = [(1, {"x": None, "name": ""}), (2, {"x": 3, "name": ""})]
    assert read_one(payload, "places", maps) == (expected, TYPE)


def test_a_recursive_message_is_read_as_deep_as_its_column_is():
    kind = pa.struct([("i", pa.int64())])
    for _ in range(3):
        kind = pa.struct([("i", pa.int64()), ("parent", kind)])
    payload = write(
        i=1, parent={"i": 2, "parent": {"i": 3, "parent": {"i": 4, "parent": {"i": 5}}}}
    )
    expected = {"i": 5}
    for i in (4, 3, 2):
        expected = {"i": i, "parent": expected}
    assert read_one(payload, "parent", kind) == (expected, FINE)


def nest(levels):
    payload = b"\x10\5"
    for _ in range(levels):
        payload = tag(16, 2) + delimited(payload)
    return payload


def test_messages_nest_99_levels_and_no_deeper():
    block = read([nest(99), nest(100), nest(5_000)], ("parent.parent.i", pa.int64()))
    assert block.reasons.tolist() == [FINE, SYNTAX, SYNTAX]


def test_raw_fields_are_texts_numbers_and_times():
    payloads = [write(id="a", i=5, d=1.5, color=1, count={"value": 6}), None, b""]
    assert read_raw(payloads, "id") == (pa.string(), ["a", None, ""])
    assert read_raw(payloads, "i") == (pa.int64(), [5, None, 0])
    assert read_raw(payloads, "d") == (pa.float64(), [1.5, None, 0.0])
    assert read_raw(payloads, "color") == (pa.string(), ["GREEN", None, "RED"])
    assert read_raw(payloads, "count") == (pa.int64(), [6, None, None])
    assert read_raw(payloads, "at") == (INSTANT, [None] * 3)
    day = datetime.date(2024, 2, 29)
    assert read_raw([write(on={"year": 2024, "month": 2, "day": 29})], "on") == (pa.date32(), [day])


def test_a_raw_field_that_is_unreadable_is_null_and_not_malformed():
    assert read_raw([write(at={"nanos": -1}), write(at={"seconds": 2**63 - 1})], "at") == (
        INSTANT,
        [None, None],
    )
    assert read_raw([write(big=2**63), write(big=1)], "big") == (pa.int64(), [None, 1])


def test_one_field_can_be_a_column_and_raw_and_parts_of_a_column():
    kind = pa.struct([("name", pa.string())])
    payload = write(place={"x": 5, "name": "a"}, at={"seconds": 1})
    columns = (("place", kind), ("place.x", pa.int8()), ("at", INSTANT))
    block = read([payload], *columns, raw=("at", "place.x"))
    assert block.columns[0].to_pylist() == [{"name": "a"}]
    assert block.columns[1].to_pylist() == [5]
    assert block.raw["at"][0].equals(block.columns[2])
    assert block.raw["place.x"][0].to_pylist() == [5]


def test_a_text_that_is_not_utf8_is_malformed_whether_it_is_wanted_or_not():
    payload = tag(1, 2) + delimited(b"\xff") + b"\x10\5"
    assert read_one(payload, "id", pa.string()) == (None, SYNTAX)
    assert read_one(payload, "i", pa.int64()) == (None, SYNTAX)
