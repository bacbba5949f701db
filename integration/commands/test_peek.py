"""`peek` on a real broker: each format, what cannot be read, and the options that it prints."""

from __future__ import annotations

import ast
import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from broker import Broker, Record
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from schema_registry import Mode, SchemaRegistryStub, serve_schema_registry

from pyspark_timestream.commands.peek.detect import format_columns
from pyspark_timestream.kafka.options.checks import read_kafka_options

pytestmark = pytest.mark.timeout(300)

# No Spark: an import of it fails.
PEEK = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
from pyspark_timestream.__main__ import main
sys.exit(main(["peek", *sys.argv[1:]]))
"""
BEGAN_MS = 1_700_000_000_000
TRIP = {
    "type": "record",
    "name": "Trip",
    "namespace": "shop",
    "fields": [
        {"name": "origin", "type": "string"},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "departed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "card_number", "type": "string"},
    ],
}


def departed_ms(number: int) -> int:
    return BEGAN_MS + number * 60_000


def trip_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="trip.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Unused")
    message = file.message_type.add(name="Trip")
    message.field.add(name="origin", number=1, type=9, label=1)
    message.field.add(
        name="departed", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp"
    )
    message.field.add(name="card_number", number=3, type=9, label=1)
    return file


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + struct.pack(">I", schema_id) + body


def as_avro(number: int) -> bytes:
    out = io.BytesIO()
    trip = {"origin": f"A{number}", "delay": 1.5, "departed": departed_ms(number)}
    fastavro.schemaless_writer(out, TRIP, {**trip, "card_number": "4111-1111"})
    return out.getvalue()


def as_protobuf(number: int) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(trip_file())
    found = pool.FindMessageTypeByName("shop.Trip")
    trip = message_factory.GetMessageClass(found)(origin=f"A{number}", card_number="4111-1111")
    trip.departed.FromMilliseconds(departed_ms(number))
    # Index 1 of the file's messages, as zigzag: a count of one, then it.
    return b"\x02\x02" + trip.SerializeToString()


def as_json(number: int) -> bytes:
    payload = {"origin": f"A{number}", "departed": departed_ms(number) // 1_000}
    return json.dumps({"payload": payload, "card_number": "4111-1111"}).encode()


@pytest.fixture
def registry() -> Iterator[SchemaRegistryStub]:
    with serve_schema_registry() as served:
        yield served


@pytest.fixture
def filled(broker: Broker, topic: Callable[..., str]) -> Callable[..., str]:
    """A topic with these values, each written five seconds after its trip departed."""

    def fill(values: list[bytes | None], **more: Any) -> str:
        name = topic(partitions=2)
        broker.produce(
            name,
            [
                Record(value, partition=n % 2, timestamp_ms=departed_ms(n) + 5_000, **more)
                for n, value in enumerate(values)
            ],
        )
        return name

    return fill


@pytest.fixture
def peek(broker: Broker) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(topic: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        given = ["--topic", topic, "--bootstrap-servers", broker.bootstrap, *arguments]
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", PEEK, *given],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "COLUMNS": "160"},
        )

    return run


def shown(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    assert "4111" not in done.stdout
    assert "card" not in done.stdout
    return done.stdout


class Recorder:
    """The parts of Spark's reader that the snippet uses."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.columns = ""

    @property
    def readStream(self) -> Recorder:
        return self

    def format(self, name: str) -> Recorder:
        assert name == "timestream"
        return self

    def option(self, name: str, value: str) -> Recorder:
        self.options[name] = value
        return self

    def schema(self, columns: str) -> Recorder:
        self.columns = columns
        return self

    def load(self) -> Recorder:
        return self


def pasted(printed: str, spark: Any = None) -> Any:
    """The stream of the snippet at the end of what was printed."""
    code = printed[printed.index("stream = (") :]
    ast.parse(code)
    scope = {"spark": spark or Recorder()}
    exec(code, scope)
    return scope["stream"]


def read_as_pasted(printed: str, spark: SparkSession) -> list[Any]:
    """The rows of a batch read with the pasted options and schema."""
    found = pasted(printed)
    read_kafka_options(found.options)
    reader = spark.read.format("timestream").options(**found.options)
    return (reader.schema(found.columns) if found.columns else reader).load().collect()


def test_json_is_shown_with_its_nested_time_and_the_pasted_query_runs(
    filled, peek, spark: SparkSession
) -> None:
    name = filled([as_json(n) for n in range(12)])
    printed = shown(peek(name))
    assert f"Topic '{name}': 2 partitions, 12 offsets; below the newest 10 records" in printed
    assert "Values: json; 10 of 10 fit" in printed
    assert "A11" in printed
    assert "A1 " not in printed
    first = printed[printed.index("Candidates") :].splitlines()[2].split()
    assert first[:6] == ["field:payload.departed", "number", "s", "10", "of", "10"]
    assert first[6:9] == ["5", "s", "behind"]
    assert pasted(printed).options["timeUnit"] == "s"
    rows = read_as_pasted(printed, spark)
    assert sorted(row["payload.origin"] for row in rows) == sorted(f"A{n}" for n in range(12))
    stream = pasted(printed, spark)
    assert stream.isStreaming


def test_avro_is_read_by_the_subjects_schema(filled, peek, registry, spark) -> None:
    number = registry.register("unrelated", json.dumps(TRIP))
    name = filled([framed(number, as_avro(n)) for n in range(3)])
    registry.register(f"{name}-value", json.dumps(TRIP))
    printed = shown(peek(name, "--schema-registry", registry.url))
    assert f"Values: avro, each behind the id of its schema ({number}); 3 of 3 fit" in printed
    assert f"read by schema {number}, version 1 of '{name}-value'" in printed
    assert "field:departed" in printed
    found = pasted(printed)
    assert found.options["startTime"] == "field:departed"
    assert found.options["schemaRegistry.url"] == registry.url
    assert "valueFraming" not in found.options
    assert "timeUnit" not in found.options
    rows = read_as_pasted(printed, spark)
    assert sorted(row.origin for row in rows) == ["A0", "A1", "A2"]
    departures = {int(row.start_time.timestamp() * 1_000) for row in rows}
    assert departures == {departed_ms(n) for n in range(3)}


def test_avro_with_its_id_in_a_header_names_the_framing(filled, peek, registry) -> None:
    number = registry.register("shop.Trip", json.dumps(TRIP))
    frame = b"\0" + struct.pack(">I", number)
    name = filled([as_avro(n) for n in range(3)], headers=[("__value_schema_id", frame)])
    found = pasted(shown(peek(name, "--schema-registry", registry.url)))
    assert found.options["valueFraming"] == "header"
    assert found.options["valueSubject"] == "shop.Trip"
    read_kafka_options(found.options)


def test_protobuf_is_read_with_the_message_of_its_frame(filled, peek, registry, spark) -> None:
    file = trip_file()
    values = [as_protobuf(n) for n in range(3)]
    number = registry.register("other", "message", "PROTOBUF", (), file.SerializeToString())
    name = filled([framed(number, value) for value in values])
    registry.register(f"{name}-value", "message", "PROTOBUF", (), file.SerializeToString())
    printed = shown(
        peek(name, "--schema-registry", registry.url, "--option", "valueMessage=shop.Trip")
    )
    assert "Values: protobuf, each behind the id of its schema" in printed
    assert "message shop.Trip" in printed
    found = pasted(printed)
    assert found.options["startTime"] == "field:departed"
    rows = read_as_pasted(printed, spark)
    assert sorted(row.origin for row in rows) == ["A0", "A1", "A2"]


def test_the_message_of_protobuf_frames_is_named_where_it_is_not_the_first(
    filled, peek, registry
) -> None:
    file = trip_file().SerializeToString()
    number = registry.register("other", "message", "PROTOBUF", (), file)
    name = filled([framed(number, as_protobuf(n)) for n in range(3)])
    registry.register(f"{name}-value", "message", "PROTOBUF", (), file)
    found = pasted(shown(peek(name, "--schema-registry", registry.url)))
    assert found.options["valueMessage"] == "shop.Trip"


@pytest.mark.outside_ci
def test_json_schema_frames_are_json_with_framing(filled, peek, registry, spark) -> None:
    number = registry.register("any", '{"type": "object"}', "JSON")
    name = filled([framed(number, as_json(n)) for n in range(3)])
    printed = shown(peek(name, "--schema-registry", registry.url))
    assert f"Values: json, each behind the id of its schema ({number}); 3 of 3 fit" in printed
    rows = read_as_pasted(printed, spark)
    assert sorted(row["payload.origin"] for row in rows) == ["A0", "A1", "A2"]


@pytest.mark.outside_ci
def test_binary_rubbish_is_shown_as_its_first_bytes(filled, peek, registry, spark) -> None:
    values = [bytes([200 + n]) * 40 for n in range(3)]
    printed = shown(peek(name := filled(values), "--schema-registry", registry.url))
    assert "Values: binary; 3 of 3 fit" in printed
    assert "40 bytes: c8 c8 c8 c8 c8 c8 c8 c8..." in printed
    found = pasted(printed)
    assert found.columns == ""
    assert not [each for each in found.options if each.startswith("schemaRegistry")]
    assert len(read_as_pasted(printed, spark)) == 3
    assert json.loads(shown(peek(name, "--json")))["payloads"]["value"]["format"] == "binary"


def test_a_topic_without_records_says_so(peek, topic) -> None:
    printed = shown(peek(name := topic()))
    assert f"Topic '{name}': 1 partition, 0 offsets" in printed
    assert "It holds no records" in printed


def test_a_topic_that_does_not_exist_is_one_sentence(peek, broker) -> None:
    done = peek("nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"topic 'nowhere' does not exist at {broker.bootstrap}\n"


def test_a_registry_that_is_down_is_named_and_the_rest_is_shown(filled, peek, registry) -> None:
    name = filled([framed(7, as_avro(n)) for n in range(3)])
    registry.mode = Mode.FAILING
    retries = ["--option", "schemaRegistry.max.retries=0"]
    login = ["--option", "schemaRegistry.basic.auth.user.info=ada:hunter2"]
    done = peek(name, "--schema-registry", registry.url, *retries, *login)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Note: cannot get the schema with id 7 from the schema registry" in done.stdout
    assert "Values: binary, each behind the id of its schema (7); 3 of 3 fit" in done.stdout
    assert "name it with --schema-registry" not in done.stdout
    read_kafka_options(pasted(done.stdout).options)


def test_secrets_are_dots_in_the_query(filled, peek, registry) -> None:
    number = registry.register("shop.Trip", json.dumps(TRIP))
    registry.user_info = "ada:hunter2"
    name = filled([framed(number, as_avro(n)) for n in range(3)])
    login = ["--option", "schemaregistry.basic.auth.user.info=ada:hunter2"]
    printed = shown(peek(name, "--schema-registry", registry.url, *login))
    assert "hunter2" not in printed
    assert '.option("schemaRegistry.basic.auth.user.info", "...")' in printed


def test_a_broker_that_does_not_answer_is_one_sentence() -> None:
    given = ["--topic", "t", "--bootstrap-servers", "127.0.0.1:1"]
    patience = ["--option", "kafkaConsumer.connectTimeoutMs=1500"]
    done = subprocess.run(
        [sys.executable, "-c", PEEK, *given, *patience],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_columns_that_are_printed_are_what_spark_reads(spark) -> None:
    inner = pa.struct([("x y", pa.int32()), ("m", pa.map_(pa.string(), pa.binary()))])
    schema = pa.schema(
        [
            ("a.`b.c`", pa.list_(inner)),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("money", pa.decimal128(20, 0)),
            ("span", pa.duration("us")),
            ("day", pa.date32()),
            ("1", pa.float32()),
        ]
    )
    parsed = StructType.fromDDL(", ".join(format_columns(schema)))
    assert parsed == from_arrow_schema(schema)
