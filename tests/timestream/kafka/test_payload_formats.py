"""The rows of one task are the same in every payload format, and malformed payloads say why."""

import base64
import io
import json
import struct
from dataclasses import replace

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from timestream.builders import INSTANT, at, block, options, projection

from pyspark_timestream.errors import (
    CheckpointMismatch,
    SchemaRefused,
    SchemaRegistryError,
    ViolationFound,
)
from pyspark_timestream.kafka.decode.payload import check_schemas
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, TaskPlan, TaskRange
from pyspark_timestream.kafka.reader_schemas import (
    check_recorded,
    load_schemas,
    pin_reader_schemas,
    read_registered,
)
from pyspark_timestream.kafka.schemas import RegisteredSchema
from pyspark_timestream.kafka.task import follow_clock, run_task
from pyspark_timestream.rules.clocks import PartitionClock

COLUMNS = [("origin", pa.string()), ("delay", pa.float64()), ("start_time", INSTANT)]
CTI = ("cti", INSTANT)
TRIPS = [("JFK", 2.5, 5_000), ("LGA", None, 1_000), ("EWR", -1.0, 9_000)]

AVRO = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "origin", "type": "string"},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "departed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def trip_file():
    """The same message in Protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="trip.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Trip")
    message.field.add(name="origin", number=1, type=9, label=1)
    message.field.add(name="delay", number=2, type=1, label=1, proto3_optional=True, oneof_index=0)
    message.oneof_decl.add(name="_delay")
    message.field.add(
        name="departed", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp"
    )
    return file


def as_json(origin, delay, ms):
    return json.dumps({"origin": origin, "delay": delay, "departed": ms}).encode()


def as_avro(origin, delay, ms):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, {"origin": origin, "delay": delay, "departed": ms})
    return out.getvalue()


def as_protobuf(origin, delay, ms):
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(trip_file())
    trip = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Trip"))(origin=origin)
    if delay is not None:
        trip.delay = delay
    trip.departed.FromMilliseconds(ms)
    return trip.SerializeToString()


SCHEMAS = {
    7: RegisteredSchema(7, "AVRO", json.dumps(AVRO)),
    8: RegisteredSchema(8, "PROTOBUF", base64.b64encode(trip_file().SerializeToString()).decode()),
    9: RegisteredSchema(9, "JSON", "{}"),
}


class Source:
    """A registry in memory."""

    def fetch_schema(self, key, format, subject=None):
        if key not in SCHEMAS:
            raise SchemaRegistryError(f"there is no schema {key}")
        return SCHEMAS[key]


@pytest.fixture
def descriptor_set(tmp_path):
    from google.protobuf import timestamp_pb2

    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    files.file.append(trip_file())
    path = tmp_path / "trips.desc"
    path.write_bytes(files.SerializeToString())
    return str(path)


def fixed(raw, **more) -> KafkaOptions:
    """Options with the readers' schemas, as the driver fixes them."""
    return replace(pin_reader_schemas(load_schemas(options(**raw)), {}), **more)


def delivered(given, columns, *values, counted=None, **more):
    """The rows of a task over one partition with these values from offset 0."""
    wanted = projection(given, *columns)
    plan = TaskPlan((TaskRange(OffsetRange(at(0), 0, len(values)), PartitionClock()),))
    records = [block(*values, **more)]
    ended = {}
    tables = list(run_task(given, wanted, plan, lambda *_: records, ended.__setitem__))
    if counted is not None:
        counted.update({part: end.malformed_payloads for part, end in ended.items()})
    return pa.Table.from_batches(tables, wanted.schema).to_pylist()


BY_FIELD = {"startTime": "departed", "ctiFrequency": "1"}


def test_the_rows_of_a_task_are_the_same_in_json_avro_and_protobuf(descriptor_set):
    plain = fixed({"valueFormat": "json", **BY_FIELD})
    rows = delivered(plain, [*COLUMNS, CTI], *(as_json(*trip) for trip in TRIPS))
    assert [row["origin"] for row in rows if row["cti"] is None] == ["JFK", "EWR"]
    avro = fixed({"valueFormat": "avro", "valueSchema": json.dumps(AVRO), **BY_FIELD})
    assert delivered(avro, [*COLUMNS, CTI], *(as_avro(*trip) for trip in TRIPS)) == rows
    described = {"valueSchema": descriptor_set, "valueMessage": "shop.Trip"}
    protobuf = fixed({"valueFormat": "protobuf", **described, **BY_FIELD})
    assert delivered(protobuf, [*COLUMNS, CTI], *(as_protobuf(*trip) for trip in TRIPS)) == rows


def registered(form, **more):
    """Options with a registry: the reader's schema is the writer's."""
    raw = {"valueFormat": form, "schemaRegistry.url": "http://none:1", **more}
    number = {"avro": 7, "protobuf": 8, "json": None}[form]
    reader_schemas = {}
    if number is not None:
        given = options(**raw)
        reader_schemas = {"value": read_registered(given.value_rules, SCHEMAS[number])}
    return replace(options(**raw), reader_schemas=reader_schemas, source=Source())


def framed(number, body, index=b""):
    return struct.pack(">bI", 0, number) + index + body


LETTERS = [
    ("_corrupt_record", pa.binary()),
    ("_corrupt_record_reason", pa.string()),
    ("_corrupt_record_schema_id", pa.int32()),
]


def test_malformed_values_are_dead_letters_with_their_bytes_reason_and_schema_id():
    good, cut = framed(7, as_avro("JFK", 1.0, 5_000)), framed(7, as_avro("JFK", 1.0, 5_000)[:-1])
    columns = [("origin", pa.string()), *LETTERS]
    counted = {}
    rows = delivered(registered("avro"), columns, good, cut, b"\x07", None, counted=counted)
    assert dict(counted[at(0)].by_reason) == {"framing": 1, "syntax": 1}
    assert [tuple(row.values()) for row in rows] == [
        ("JFK", None, None, None),
        (None, cut, "syntax", 7),
        (None, b"\x07", "framing", None),
        (None, None, None, None),
    ]


def test_malformed_messages_are_dead_letters_with_their_bytes_reason_and_schema_id():
    good, cut = as_protobuf("JFK", 1.0, 5_000), as_protobuf("JFK", 1.0, 5_000)[:-1]
    values = [framed(8, good, b"\0"), framed(8, cut, b"\0"), framed(8, good, b"\x02\x08")]
    rows = delivered(registered("protobuf"), [("origin", pa.string()), *LETTERS], *values)
    assert [tuple(row.values()) for row in rows] == [
        ("JFK", None, None, None),
        (None, values[1], "syntax", 8),
        (None, values[2], "framing", 8),
    ]


def test_values_in_the_framing_of_json_schema_are_read_as_json():
    columns = [("origin", pa.string()), ("_corrupt_record", pa.string()), *LETTERS[1:]]
    text = as_json("JFK", 1.0, 5_000)
    rows = delivered(registered("json"), columns, framed(9, text), text, framed(9, b"{"))
    assert [tuple(row.values()) for row in rows] == [
        ("JFK", None, None, None),
        (None, text.decode(), "framing", None),
        (None, "\0\0\0\0\t{", "syntax", 9),
    ]


@pytest.mark.parametrize("form", ["avro", "protobuf", "json"])
def test_a_value_of_an_unknown_schema_fails_the_task_and_is_never_malformed(form):
    given = registered(form, parseMode="DROPMALFORMED")
    with pytest.raises(SchemaRegistryError, match="no schema 99"):
        delivered(given, COLUMNS[:1], framed(99, b"", b"\0" if form == "protobuf" else b""))


def test_drop_leaves_malformed_values_out_and_failfast_names_the_record():
    values = [framed(7, as_avro(*trip)) for trip in TRIPS] + [framed(7, b"")]
    rows = delivered(registered("avro", parseMode="DROPMALFORMED"), COLUMNS[:1], *values)
    assert [row["origin"] for row in rows] == ["JFK", "LGA", "EWR"]
    with pytest.raises(
        ViolationFound, match=r"offset 3: the value is not Avro of the schema \(reason: syntax\)"
    ):
        delivered(registered("avro", parseMode="FAILFAST"), COLUMNS[:1], *values)


def test_keys_have_fields_under_their_prefix_in_a_format_of_their_own():
    given = fixed({"valueFormat": "json", "keyFormat": "avro", "keySchema": json.dumps(AVRO)})
    columns = [("origin", pa.string()), ("key.origin", pa.string()), LETTERS[1]]
    keys = [as_avro("JFK", 1.0, 5_000), b"\x07", None, b"\x07"]
    values, counted = [b'{"origin": "LGA"}', b"{}", b"{}", b""], {}
    rows = delivered(given, columns, *values, keys=keys, counted=counted)
    assert [tuple(row.values()) for row in rows] == [
        ("LGA", "JFK", None),
        (None, None, "key syntax"),
        (None, None, None),
        (None, None, "syntax"),
    ]
    # A record counts once, for the reason that its column shows.
    assert dict(counted[at(0)].by_reason) == {"key syntax": 1, "syntax": 1}
    strict = replace(given, parse_mode="FAILFAST")
    with pytest.raises(ViolationFound, match=r"1: the key is not Avro .* \(reason: key syntax\)"):
        delivered(strict, columns, *values, keys=keys)


def test_keys_alone_can_have_fields_under_a_prefix_of_the_users_choice():
    given = fixed({"keyFormat": "json", "keyPrefix": "k_"})
    columns = [("value", pa.binary()), ("k_a.b", pa.int64())]
    rows = delivered(given, columns, b"x", keys=[b'{"a": {"b": 3}}'])
    assert rows == [{"value": b"x", "k_a.b": 3}]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_column_that_the_reader_s_schema_lacks_is_refused_before_a_task_runs(form):
    given = registered(form)
    check_schemas(given, projection(given, *COLUMNS[:2]))
    for bad in ("lost", pa.string()), ("origin", pa.date32()):
        with pytest.raises(SchemaRefused, match=f"'{bad[0]}'"):
            check_schemas(given, projection(given, bad))


def test_a_key_s_column_that_its_schema_lacks_is_refused_with_the_prefix():
    given = fixed({"keyFormat": "avro", "keySchema": json.dumps(AVRO), "keyPrefix": "k_"})
    with pytest.raises(SchemaRefused, match=r"of the key, .* prefix 'k_': column 'lost'"):
        check_schemas(given, projection(given, ("k_lost", pa.string())))


@pytest.mark.parametrize("form", ["avro", "protobuf", "json"])
def test_a_schema_of_another_format_than_the_option_fails_the_task(form):
    number, index = (8 if form == "avro" else 7), (b"\0" if form == "protobuf" else b"")
    with pytest.raises(SchemaRefused, match=f"'valueFormat' is '{form}'"):
        delivered(registered(form), COLUMNS[:1], framed(number, b"", index))


def test_frames_in_a_header_leave_the_value_alone():
    given = registered("avro", valueFraming="header")
    headers = [[{"key": "__value_schema_id", "value": framed(7, b"")}], []]
    values = [as_avro("JFK", 1.0, 5_000), as_avro("LGA", 1.0, 5_000)]
    rows = delivered(given, [COLUMNS[0], LETTERS[1]], *values, headers=headers)
    assert [tuple(row.values()) for row in rows] == [("JFK", None), (None, "framing")]


def test_a_registry_with_another_schema_under_the_recorded_id_is_refused():
    given = registered("avro")
    recorded = replace(given.reader_schemas["value"], schema_id=7, subject="topic-value", version=3)
    check_recorded(given.value_rules, given.reader_schemas["value"], recorded)
    other = replace(recorded, fingerprint="sha256:0")
    with pytest.raises(CheckpointMismatch, match=r"schema 7 \(version 3 of 'topic-value'\)"):
        check_recorded(given.value_rules, given.reader_schemas["value"], other)


# -- schemas that differ, and several record types in one topic ------------------------------------


def avro_record(name, *fields, **more):
    found = [dict(zip(("name", "type"), field, strict=True)) for field in fields]
    return {"type": "record", "name": name, "fields": found, **more}


def written_as(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def known(**schemas):
    """A source that has these schemas, `s7` under the id 7."""
    found = {int(name[1:]): schema for name, schema in schemas.items()}

    class Known:
        def fetch_schema(self, key, format, subject=None):
            if key not in found:
                raise SchemaRegistryError(f"there is no schema {key}")
            return RegisteredSchema(key, "AVRO", json.dumps(found[key]))

    return Known()


def read_by(schema, source, *, newer=None, **more):
    """Options that read by schema 7 of a registry, and by schema 8 what it cannot read."""
    given = options(valueFormat="avro", **{"schemaRegistry.url": "http://none:1"}, **more)

    def place(number, text, version):
        found = read_registered(
            given.value_rules, RegisteredSchema(number, "AVRO", json.dumps(text))
        )
        return replace(found, schema_id=number, subject="t-value", version=version)

    reader = place(7, schema, 1)
    if newer is not None:
        reader = replace(reader, newer=place(8, newer, 2))
    return replace(given, reader_schemas={"value": reader}, source=source)


TEXT = avro_record("A", ("x", "string"))
NUMBER = avro_record("A", ("x", "long"))


def test_a_refused_schema_names_topic_partition_offset_both_ids_and_the_way_on():
    given = read_by(NUMBER, known(s7=NUMBER, s9=TEXT))
    values = [framed(7, written_as(NUMBER, {"x": 1})), framed(9, written_as(TEXT, {"x": "a"}))]
    with pytest.raises(SchemaRefused) as raised:
        delivered(given, [("x", pa.int64())], *values)
    text = str(raised.value)
    assert text.startswith(f"{at(0)} offset 1: the value was written with schema 9 and is read by ")
    assert "schema 7 (version 1 of 't-value'): field 'x' was written as Avro type string" in text
    assert "next step: start the query again: it then reads such values by the latest " in text
    # For only the clock, too.
    timed = read_by(NUMBER, known(s7=NUMBER, s9=TEXT), startTime="x")
    whole = TaskRange(OffsetRange(at(0), 0, 2), PartitionClock())
    with pytest.raises(SchemaRefused, match=r"offset 1: .*schema 9"):
        list(follow_clock(timed, whole, lambda *_: [block(*values)]))


def test_a_refused_schema_of_an_option_names_the_option():
    given = read_by(NUMBER, known(s9=TEXT))
    reader = replace(given.reader_schemas["value"], schema_id=None, subject=None, version=None)
    given = replace(given, reader_schemas={"value": reader})
    with pytest.raises(SchemaRefused, match=r"read by option 'readerSchema': .*correct 'readerSch"):
        delivered(given, [("x", pa.int64())], framed(9, written_as(TEXT, {"x": "a"})))


def test_an_unknown_id_and_a_text_that_is_no_schema_name_the_record():
    given = read_by(NUMBER, known(s7=NUMBER, s9={"type": "nothing"}))
    good = framed(7, written_as(NUMBER, {"x": 1}))
    with pytest.raises(SchemaRegistryError, match=rf"^{at(0)} offset 1: there is no schema 8"):
        delivered(given, [("x", pa.int64())], good, framed(8, b""))
    with pytest.raises(SchemaRefused, match=r"offset 2: .*schema 9 .*not an Avro schema"):
        delivered(given, [("x", pa.int64())], good, good, framed(9, b""))


def test_records_that_the_first_schema_cannot_read_are_read_by_the_newer_and_others_are_not():
    old = avro_record("A", ("x", "string"), ("n", "int"))
    symbols = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
    new = avro_record("A", ("x", symbols))
    new["fields"].append({"name": "n", "type": "int", "default": 5})
    source = known(s7=old, s8=new)
    values = [framed(7, written_as(old, {"x": "q", "n": 1})), framed(8, b"\2\6")]
    columns = [("x", pa.string()), ("n", pa.int64())]
    with pytest.raises(SchemaRefused):
        delivered(read_by(old, source), columns, *values)
    rows = delivered(read_by(old, source, newer=new), columns, *values)
    assert rows == [{"x": "q", "n": 1}, {"x": "b", "n": 3}]


PLACED = avro_record("Placed", ("id", "long"), ("sum", "double"), namespace="shop")
CANCELLED = avro_record("Cancelled", ("id", "long"), namespace="shop")
NAMES = [("value_schema_name", pa.string()), ("value_schema_id", pa.int32())]


def orders():
    return [
        framed(7, written_as(PLACED, {"id": 1, "sum": 2.5})),
        framed(8, written_as(CANCELLED, {"id": 1})),
        None,
        b"{}",
    ]


def test_columns_have_the_full_name_and_id_of_each_records_schema():
    given = read_by(PLACED, known(s7=PLACED, s8=CANCELLED))
    rows = delivered(given, [("id", pa.int64()), *NAMES], *orders())
    assert [tuple(row.values()) for row in rows] == [
        (1, "shop.Placed", 7),
        (1, "shop.Cancelled", 8),
        (None, None, None),
        (None, None, None),
    ]
    # Without any field of the value, and under another prefix.
    given = read_by(PLACED, known(s7=PLACED, s8=CANCELLED), metadataPrefix="m_")
    rows = delivered(given, [(f"m_{name}", kind) for name, kind in NAMES], *orders())
    assert [tuple(row.values()) for row in rows][:2] == [
        ("shop.Placed", 7),
        ("shop.Cancelled", 8),
    ]


def test_a_record_of_another_name_is_malformed_by_its_name_where_one_is_asked_for():
    given = read_by(PLACED, known(s7=PLACED, s8=CANCELLED), valueMessage="shop.Placed")
    counted = {}
    rows = delivered(given, [("id", pa.int64()), *NAMES, LETTERS[1]], *orders(), counted=counted)
    assert [tuple(row.values()) for row in rows] == [
        (1, "shop.Placed", 7, None),
        (None, "shop.Cancelled", 8, "name"),
        (None, None, None, None),
        (None, None, None, "framing"),
    ]
    assert dict(counted[at(0)].by_reason) == {"name": 1, "framing": 1}
    only = replace(given, parse_mode="DROPMALFORMED")
    assert [row["id"] for row in delivered(only, [("id", pa.int64())], *orders())] == [1, None]
    many = orders()[:2] * 60
    rows = delivered(given, [("id", pa.int64()), *NAMES[:1]], *many)
    assert [row["id"] for row in rows] == [1, None] * 60


def test_an_alias_of_the_reader_is_the_record_of_that_name():
    reader = {**PLACED, "name": "Bought", "aliases": ["Placed"]}
    given = read_by(reader, known(s7=PLACED, s8=CANCELLED), valueMessage="shop.Bought")
    rows = delivered(given, [("id", pa.int64()), LETTERS[1]], *orders()[:2])
    assert [tuple(row.values()) for row in rows] == [(1, None), (None, "name")]


@pytest.mark.parametrize("copies", [1, 60])
def test_one_record_is_read_out_of_a_union_of_several(copies):
    union = [PLACED, CANCELLED, "null"]
    given = read_by(union, known(s7=union), valueMessage="shop.Cancelled")
    check_schemas(given, projection(given, ("id", pa.int64())))
    placed, cancelled = written_as(PLACED, {"id": 1, "sum": 2.5}), written_as(CANCELLED, {"id": 2})
    values = [
        *(framed(7, body) for body in (b"\0" + placed, b"\2" + cancelled, b"\4")),
        *(framed(7, body) for body in (b"\6", b"", b"\2" + cancelled[:-1])),
    ]
    columns = [("id", pa.int64()), NAMES[0], LETTERS[1]]
    rows = delivered(given, columns, *values * copies)
    assert [tuple(row.values()) for row in rows] == [
        (None, "shop.Placed", "name"),
        (2, "shop.Cancelled", None),
        (None, None, "name"),
        (None, None, "syntax"),
        (None, None, "syntax"),
        (None, "shop.Cancelled", "syntax"),
    ] * copies


def test_a_name_that_the_readers_schema_lacks_is_refused_with_the_names_that_it_has():
    given = read_by([PLACED, CANCELLED], known(), valueMessage="shop.Lost")
    with pytest.raises(SchemaRefused, match=r"'shop.Lost'.*accepted: shop.Placed, shop.Cancelled"):
        check_schemas(given, projection(given, ("id", pa.int64())))
    given = read_by([PLACED, CANCELLED], known())
    with pytest.raises(SchemaRefused, match=r"'valueMessage' or 'keyMessage' names the one"):
        check_schemas(given, projection(given, ("id", pa.int64())))


def test_a_message_of_another_name_is_malformed_by_its_name_in_protobuf_too():
    given = registered("protobuf")
    given = replace(
        given, reader_schemas={"value": replace(given.reader_schemas["value"], message="shop.Trip")}
    )
    other = trip_file()
    other.message_type.add(name="Stop")
    SCHEMAS[18] = RegisteredSchema(
        18, "PROTOBUF", base64.b64encode(other.SerializeToString()).decode()
    )
    values = [framed(18, b"", b"\0"), framed(18, b"", b"\2\2"), framed(18, b"", b"\2\4")]
    rows = delivered(given, [*NAMES, LETTERS[1]], *values)
    assert [tuple(row.values()) for row in rows] == [
        ("shop.Trip", 18, None),
        ("shop.Stop", 18, "name"),
        (None, 18, "framing"),
    ]


def test_a_json_schema_s_title_is_its_name():
    SCHEMAS[19] = RegisteredSchema(19, "JSON", '{"title": "Trip"}')
    rows = delivered(registered("json"), NAMES, framed(19, b"{}"), framed(9, b"{}"))
    assert [tuple(row.values()) for row in rows] == [("Trip", 19), (None, 9)]


@pytest.mark.parametrize("text", ["true", "[]", '{"title": 5}', '{"title": ' + "[" * 100_000])
def test_a_json_schema_without_a_title_names_no_record(text):
    """True is a schema too: every value is valid."""
    SCHEMAS[20] = RegisteredSchema(20, "JSON", text)
    rows = delivered(registered("json"), NAMES, framed(20, b"{}"))
    assert [tuple(row.values()) for row in rows] == [(None, 20)]


@pytest.mark.parametrize("name", ["value_schema_id", "value_schema_name"])
def test_a_column_about_schemas_that_nothing_fills_is_refused(name):
    given = fixed({"valueFormat": "json"})
    kind = dict(NAMES)[name]
    with pytest.raises(SchemaRefused, match=f"'{name}' would be empty"):
        projection(given, (name, kind))
