"""Schemas, descriptors, records and headers: rows that do not depend on the cut, or a refusal."""

from __future__ import annotations

import io
import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
from timestream.builders import INSTANT, PASSING, at, block, options, projection
from timestream.protobuf_schemas import IMPORTED, map_field
from timestream.protobuf_schemas import field as pb_field
from timestream.protobuf_schemas import file as pb_file
from timestream.protobuf_schemas import message as pb_message
from timestream.protobuf_wire import message as wire_message

from fuzz.engine import Chance, Target
from fuzz.mutations import TEXTS, damage_bytes, damage_json_text
from pyspark_timestream.kafka.decode.payload import check_schemas
from pyspark_timestream.kafka.ranges import OffsetRange, TaskPlan, TaskRange
from pyspark_timestream.kafka.reader_schemas import load_schemas, pin_reader_schemas
from pyspark_timestream.kafka.task import run_task
from pyspark_timestream.rules.clocks import PartitionClock

NOON_MS: Final = 1_704_110_400_000
AVRO: Final = {
    "type": "record",
    "name": "shop.Trip",
    "fields": [
        {"name": "s", "type": "string"},
        {"name": "i", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "xs", "type": {"type": "array", "items": "double"}},
        {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "r", "type": ["null", {"type": "record", "name": "R", "fields": [
            {"name": "x", "type": "int"}, {"name": "next", "type": ["null", "R"]}]}]},
    ],
}  # fmt: skip
COLUMNS: Final = {
    "s": pa.string(), "i": pa.int64(), "xs": pa.list_(pa.float64()),
    "m": pa.map_(pa.string(), pa.int32()),
}  # fmt: skip
MORE: Final = {"avro": {"e": pa.string(), "d": pa.decimal128(9, 0), "r.x": pa.int32()}}
TIMED: Final = [("start_time", INSTANT), ("cti", INSTANT), ("offset", pa.int64())]


@dataclass(frozen=True)
class Records:
    """Records of one partition, and the options to read them with."""

    raw: dict[str, str]
    schema: bytes
    values: list[bytes | None]
    headers: list[Any]
    stamps: list[int]
    cuts: list[int]


def proto_file() -> Any:
    """The descriptor of the records in Protobuf."""
    entry = map_field(".shop.Trip", "m", 5, "string", "int32")
    return pb_file(
        pb_message(
            "Trip", pb_field("s", 1, "string"), pb_field("i", 2, "int64", optional=True),
            pb_field("at", 3, ".google.protobuf.Timestamp"),
            pb_field("xs", 4, "double", repeated=True), entry[0], nested=[entry[1]],
        ),
        name="trip.proto", package="shop",
    )  # fmt: skip


def proto_set() -> bytes:
    """The descriptor set that protoc would write, with what it imports."""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet()
    for each in IMPORTED:
        files.file.add().ParseFromString(each.serialized_pb)
    files.file.append(proto_file())
    return files.SerializeToString()


def make_json(chance: Chance, ms: int) -> bytes:
    """A value in JSON, sound or damaged."""
    value = {"s": chance.choice(TEXTS), "i": chance.choice([None, 5, -(2**63)]), "at": ms,
             "xs": [1.5] * chance.randrange(4), "m": {"a": 1, chance.choice(TEXTS): 2}}  # fmt: skip
    text = damage_json_text(value, chance) if chance.random() < 0.4 else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


def make_avro(chance: Chance, ms: int) -> bytes:
    """A value in Avro, sound."""
    nested = {"x": 1, "next": {"x": 2, "next": None}}
    value = {
        "s": chance.choice([text for text in TEXTS if "\ud800" not in text]),
        "i": chance.choice([None, 5, -(2**63)]), "at": ms, "xs": [0.5] * chance.randrange(4),
        "m": {"a": 1}, "e": "B", "d": b"\x05", "r": chance.choice([None, nested]),
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return out.getvalue()


def make_protobuf(descriptor: Any, chance: Chance, _: int) -> bytes:
    """A value in Protobuf, odd in some of its fields."""
    return bytes(wire_message(chance, descriptor))


def make_headers(chance: Chance) -> Any:
    """Headers with marks, writers and other things of these names."""
    if chance.random() < 0.3:
        return None
    texts = (str(NOON_MS), "2024-01-01T12:00:01Z", *TEXTS)
    return [
        {
            "key": chance.choice(["cti", "writer", "cti", "x", ""]),
            "value": None
            if chance.random() < 0.1
            else chance.choice(texts).encode("utf-8", "surrogatepass"),
        }
        for _ in range(chance.randrange(4))
    ]


def choose_rules(chance: Chance) -> dict[str, str]:
    """Options of event time."""
    raw = {"startTime": "field:at"} if chance.random() < 0.8 else {}
    kind = chance.randrange(4)
    if kind == 0:
        raw |= {"ctiFrequency": "2", "ctiDelay": "1 second"}
    elif kind == 1:
        raw |= {"ctiHeader": "cti", "writerFrom": "header:writer"}
    elif kind == 2:
        raw |= {"ctiHeader": "cti"}
    if kind != 3 and chance.random() < 0.5:
        raw |= {"violationPolicy": chance.choice(PASSING)}
    if chance.random() < 0.3:
        raw |= {"where": chance.choice(["i > 3", "s = 'x' OR i IS NULL", "s LIKE '%a%'"])}
    if chance.random() < 0.3:
        raw |= {"timeUnit": chance.choice(["s", "ms", "us"])}
    return raw


def make_records(form: str, make: Callable[[Chance, int], bytes], schema: bytes) -> Any:
    """A maker of records in a format; some of their values are damaged."""

    def made(chance: Chance) -> Records:
        values: list[bytes | None] = []
        for _ in range(chance.choice([1, 3, 12, 40])):
            ms = NOON_MS + chance.choice([0, 1, 5_000, -9_000, 2**40, -(2**62), 2**62])
            value = make(chance, ms)
            odd = chance.random()
            values.append(
                None if odd < 0.05 else damage_bytes(value, chance) if odd < 0.4 else value
            )
        number = len(values)
        stamps = [chance.choice([NOON_MS, NOON_MS + 7, -1, 0, 2**62]) for _ in range(number)]
        cuts = sorted(chance.randrange(number + 1) for _ in range(3))
        headers = [make_headers(chance) for _ in range(number)]
        raw = {"valueFormat": form, **choose_rules(chance)}
        return Records(raw, schema, values, headers, stamps, cuts)

    return made


def read_records(case: Records, cuts: list[int]) -> Any:
    """The rows of a task, and the clock after them."""
    raw = dict(case.raw)
    with tempfile.NamedTemporaryFile(suffix=".desc") as file:
        if raw["valueFormat"] == "protobuf":
            Path(file.name).write_bytes(case.schema)
            raw |= {"valueSchema": file.name, "valueMessage": "shop.Trip"}
        elif raw["valueFormat"] == "avro":
            raw |= {"valueSchema": case.schema.decode("utf-8", "surrogateescape")}
        given = replace(pin_reader_schemas(load_schemas(options(**raw)), {}))
    columns = {**COLUMNS, **MORE.get(raw["valueFormat"], {})}
    timed = TIMED if "cti" in {name for name, _ in TIMED} and given.has_ctis else TIMED[::2]
    wanted = projection(given, *columns.items(), *timed)
    check_schemas(given, wanted)
    number, ended = len(case.values), {}
    edges = [0, *cuts, number]
    pieces = [
        block(
            *case.values[begin:end], first=begin, headers=case.headers[begin:end],
            timestamps_ms=case.stamps[begin:end],
        )
        for begin, end in itertools.pairwise(edges)
        if end > begin
    ]  # fmt: skip
    plan = TaskPlan((TaskRange(OffsetRange(at(0), 0, number), PartitionClock()),))
    tables = list(run_task(given, wanted, plan, lambda *_: pieces, ended.__setitem__))
    rows = pa.Table.from_batches(tables, wanted.schema)
    rows.validate(full=True)
    return rows.to_pydict(), ended


def run_records(case: Records) -> str:
    """Read them whole and in pieces: the same rows, clocks and counts."""
    whole, in_pieces = (read_records(case, cuts) for cuts in ([], case.cuts))
    assert repr(whole) == repr(in_pieces), (whole, in_pieces)
    return "read"


def json_records() -> Target:
    """Records in JSON."""
    return Target(make_records("json", make_json, b""), run_records)


def avro_records() -> Target:
    """Records in Avro."""
    return Target(make_records("avro", make_avro, json.dumps(AVRO).encode()), run_records)


def protobuf_records() -> Target:
    """Records in Protobuf."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for each in IMPORTED:
        pool.AddSerializedFile(each.serialized_pb)
    pool.Add(proto_file())
    make = partial(make_protobuf, pool.FindMessageTypeByName("shop.Trip"))
    return Target(make_records("protobuf", make, proto_set()), run_records)


def schemas() -> Target:
    """Damaged schemas and descriptor sets, and sound records read by them."""
    avro, protobuf = avro_records(), protobuf_records()

    def make(chance: Chance) -> Records:
        if chance.random() < 0.5:
            case = avro.make(chance)
            schema = damage_json_text(AVRO, chance).encode("utf-8", "surrogatepass")
        else:
            case = protobuf.make(chance)
            schema = damage_bytes(case.schema, chance)
        return replace(case, schema=schema, values=case.values[:3], headers=case.headers[:3],
                       stamps=case.stamps[:3], cuts=[])  # fmt: skip

    def run(case: Records) -> str:
        read_records(case, [])
        return "read"

    return Target(make, run)


TARGETS: Final = {
    "json_records": json_records,
    "avro_records": avro_records,
    "protobuf_records": protobuf_records,
    "schemas": schemas,
}
