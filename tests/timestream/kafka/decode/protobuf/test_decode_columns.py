"""Columns that a Protobuf message cannot be read as are refused by name, with a way out."""

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

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.protobuf.decode import plan_fields

LABELS, LABELS_ENTRY = map_field(".m.M", "labels", 3, "string", "int32")
READER = Schema(
    file(
        message("Place", field("x", 1, "int32")),
        message(
            "M",
            field("i", 1, "int32"),
            field("s", 2, "string"),
            LABELS,
            field("place", 4, ".m.Place"),
            field("places", 5, ".m.Place", repeated=True),
            field("at", 6, ".google.protobuf.Timestamp"),
            field("color", 7, "enum .m.Color"),
            field("raw", 8, "bytes"),
            field("flag", 9, "bool"),
            field("d", 10, "double"),
            field("count", 11, ".google.protobuf.Int64Value"),
            field("on", 12, ".google.type.Date"),
            nested=[LABELS_ENTRY],
        ),
        enums=[("Color", {0: "RED"})],
    )
).reader


def refusal(name, kind):
    with pytest.raises(SchemaRefused) as caught:
        plan_fields(READER, pa.schema([("i", pa.int64()), (name, kind)]))
    return str(caught.value)


NUMBERS = "accepted: a number, a decimal or a string"


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        ("i", pa.date32(), ["'m.M.i' is int32, which is not read as date32[day]", NUMBERS]),
        ("i", INSTANT, ["'m.M.i' is int32", NUMBERS]),
        ("i", pa.bool_(), ["'m.M.i' is int32", NUMBERS]),
        ("s", pa.int32(), ["'m.M.s' is string", "accepted: a string or binary"]),
        ("raw", pa.string(), ["'m.M.raw' is bytes", "accepted: binary"]),
        ("flag", pa.int32(), ["'m.M.flag' is bool", "accepted: a boolean"]),
        ("d", pa.int64(), ["'m.M.d' is double", "accepted: a float or a double"]),
        ("color", pa.bool_(), ["'m.M.color' is m.Color", "a string, for its name, or a number"]),
        ("labels", pa.string(), ["'m.M.labels' is map<string, int32>", "accepted: a map"]),
        ("labels", pa.map_(pa.int32(), pa.int32()), ["LabelsEntry.key' is string"]),
        ("labels", pa.map_(pa.string(), pa.bool_()), ["LabelsEntry.value' is int32"]),
        ("place", pa.string(), ["'m.M.place' is m.Place", "accepted: a struct or binary"]),
        ("place", pa.struct([("y", pa.int32())]), ["'m.Place' lacks the field 'y'", "accepted: x"]),
        ("places", pa.struct([("x", pa.int32())]), ["is repeated m.Place", "accepted: an array"]),
        ("places", pa.list_(pa.struct([("x", INSTANT)])), ["'m.Place.x' is int32"]),
        ("at", pa.int64(), ["google.protobuf.Timestamp", "a timestamp, a struct or binary"]),
        ("at", pa.timestamp("us"), ["is not read as timestamp[us];"]),
        ("on", pa.int32(), ["google.type.Date", "accepted: a date, a struct or binary"]),
        ("count", pa.date32(), ["'m.M.count' is google.protobuf.Int64Value", NUMBERS]),
        ("nothing", pa.int32(), ["'m.M' lacks the field 'nothing'", "accepted: i, s, labels"]),
        ("place.y", pa.int32(), ["message 'm.Place' lacks the field 'y'"]),
        (
            "places.x",
            pa.int32(),
            ["'m.M.places' is repeated m.Place, which is not a single message"],
        ),
        ("labels.key", pa.string(), ["is map<string, int32>, which is not a single message"]),
        ("i.x", pa.int32(), ["'m.M.i' is int32, which is not a single message"]),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(name, kind, parts):
    text = refusal(name, kind)
    assert text.startswith(f"column '{name}' cannot be read: ")
    assert "; next step: " in text
    for part in parts:
        assert part in text


def test_columns_that_fit_are_accepted():
    columns = pa.schema(
        [
            ("i", pa.decimal128(10, 2)),
            ("s", pa.binary()),
            ("labels", pa.map_(pa.string(), pa.int64())),
            ("place.x", pa.int8()),
            ("places", pa.list_(pa.binary())),
            ("at", INSTANT),
            ("on", pa.struct([("day", pa.int32())])),
        ]
    )
    plan_fields(READER, columns, ("at", "on", "i", "color", "count", "place.x", "s"))


@pytest.mark.parametrize("name", ["raw", "flag", "place", "places", "labels", "nothing"])
def test_an_event_time_that_is_no_time_text_or_number_is_refused(name):
    with pytest.raises(SchemaRefused, match=f"field '{name}' cannot be read: "):
        plan_fields(READER, pa.schema([]), (name,))


def test_a_message_is_not_read_as_binary_and_by_its_fields_at_once():
    columns = pa.schema([("place", pa.binary()), ("place.x", pa.int32())])
    with pytest.raises(
        SchemaRefused, match="field 'place' is read as binary, and also as a struct"
    ):
        plan_fields(READER, columns)
