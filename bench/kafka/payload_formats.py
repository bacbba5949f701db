"""Kafka -> one-minute windows of the same records in JSON, Avro and Protobuf.

Ours reads Avro and Protobuf by the ids in front of them, from a registry. Each is compared with our
JSON, and with Spark's Kafka source: `from_json`, and `from_avro` behind a `substring` that cuts the
id off. `from_protobuf` is left out, since `spark-protobuf` cannot be had (`peers`).

Each job is measured by the batch's seconds, and by the core seconds that the whole query took in
all its processes.
"""

import functools
import io
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import fastavro
from broker import Broker, broker, unique_name
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from kafka_records import START_MS, Values, filled, reading, values
from kafka_source import FIELD_SUMS, PARTITIONS, RECORDS, WARM_UP, minutes, spark_parsed
from kafka_source import spark_source as read_by_spark
from peers import avro_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader
from schema_registry import SchemaRegistryStub, serve_schema_registry
from sessions import Apart
from side_by_side import Comparison, Done, by_core_seconds, by_figure, compare, pair, report
from sizes import size
from spark_session import local_spark
from streams import one_batch, summary

FRAME: Final = 5
"""Bytes of the magic byte and a schema's id."""

AVRO: Final = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "reading", "type": "double"},
        {"name": "unit", "type": "string"},
        {"name": "site", "type": "string"},
    ],
}
PROTO: Final = """\
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Reading {
  int64 device = 1;
  google.protobuf.Timestamp ts = 2;
  double reading = 3;
  string unit = 4;
  string site = 5;
}
"""
SCHEMA: Final = "device long, reading double, start_time timestamp, cti timestamp"


# -- the records ----------------------------------------------------------------------------------


def avro_values(number: int) -> Values:
    """The records as Avro, in frames with a schema's id."""
    schema, frame = fastavro.parse_schema(AVRO), struct.pack(">bI", 0, number)

    def make(first: int, end: int) -> Iterator[bytes]:
        for each in range(first, end):
            out = io.BytesIO()
            out.write(frame)
            fastavro.schemaless_writer(out, schema, fields(each) | {"ts": START_MS + each})
            yield out.getvalue()

    return make


def protobuf_values(number: int) -> Values:
    """The records as Protobuf, in frames with a schema's id and the place of the message."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(protobuf_file().SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Reading"))
    frame = struct.pack(">bIb", 0, number, 0)

    def make(first: int, end: int) -> Iterator[bytes]:
        for each in range(first, end):
            seconds, rest = divmod(START_MS + each, 1_000)
            time = {"seconds": seconds, "nanos": rest * 1_000_000}
            yield frame + message(ts=time, **fields(each)).SerializeToString()

    return make


def fields(number: int) -> dict[str, Any]:
    """The fields that a record has in all formats, besides its time."""
    return {
        "device": number % 100,
        "reading": reading(number),
        "unit": "C",
        "site": "north-hall",
    }


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """The file that a compiler makes of the `.proto` text."""
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Reading")
    types = {"device": 3, "ts": 11, "reading": 1, "unit": 9, "site": 9}
    for number, (name, type_) in enumerate(types.items(), 1):
        field = message.field.add(name=name, number=number, type=type_, label=1)
        if name == "ts":
            field.type_name = ".google.protobuf.Timestamp"
    return file


def fill_topics(kafka: Broker, registry: SchemaRegistryStub, count: int) -> dict[str, str]:
    """Format -> a topic with the records in it."""
    topics = {form: unique_name(form) for form in ("json", "avro", "protobuf")}
    serialized = protobuf_file().SerializeToString()
    avro = registry.register(f"{topics['avro']}-value", json.dumps(AVRO))
    subject = f"{topics['protobuf']}-value"
    protobuf = registry.register(subject, PROTO, "PROTOBUF", serialized=serialized)
    made = {"json": values, "avro": avro_values(avro), "protobuf": protobuf_values(protobuf)}
    for form, topic in topics.items():
        filled(kafka, count, PARTITIONS, made[form], topic)
    return topics


# -- the contenders -------------------------------------------------------------------------------


def reader_of(
    spark: SparkSession, kafka: Broker, topic: str, form: str, registry: str
) -> DataStreamReader:
    """Ours, with CTIs."""
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": form,
        "startTime": "ts",
        "ctiFrequency": "10 seconds",
        "ctiDelay": "1 second",
    }
    if form != "json":
        options["schemaRegistry.url"] = registry
    return spark.readStream.format("timestream").options(**options).schema(SCHEMA)


def spark_avro_parsed(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """`from_avro` behind the frame."""
    from pyspark.sql.avro.functions import from_avro

    body = F.expr(f"substring(value, {FRAME + 1})")
    rows = read_by_spark(spark, kafka, topic).select(from_avro(body, json.dumps(AVRO)).alias("v"))
    return rows.select("v.*").withColumnRenamed("ts", "start_time")


def parsed(way: str, bootstrap: str, topic: str, registry: str) -> DataFrame:
    """The fields and event times that a contender reads."""
    source, form = way.split()
    spark, kafka = here(bootstrap)
    if source == "timestream":
        return reader_of(spark, kafka, topic, form, registry).load()
    read = {"json": spark_parsed, "avro": spark_avro_parsed}[form]
    return read(spark, kafka, topic)


def windows(way: str, *given: str) -> DataFrame:
    """A one-minute average."""
    from pyspark_timestream import advance_time

    rows = parsed(way, *given)
    if way.startswith("timestream"):
        return minutes(advance_time(rows))
    return minutes(rows.withWatermark("start_time", "1 second"))


@functools.cache
def here(bootstrap: str) -> tuple[SparkSession, Broker]:
    """The session of this process, and the broker that another has started."""
    return local_spark("bench", spark_jars=avro_jars()), Broker(bootstrap, "given")


def run(way: str, count: int, *given: str) -> Done:
    """One run of a contender, in its process."""
    return one_batch(windows(way, *given), count, extra=0.01)


def check(way: str, *given: str) -> dict[str, Any]:
    """The sums of a contender's records."""
    rows = parsed(way, *given)
    return summary(rows.where("cti IS NULL") if "cti" in rows.columns else rows, FIELD_SUMS)


WAYS: Final = ("spark json", "spark avro", "timestream json", "timestream avro")
WAYS += ("timestream protobuf",)
WAYS = size(WAYS, ("spark json", "timestream json", "timestream avro"))
PAIRS: Final[Mapping[str, tuple[str, str]]] = {
    "Avro, our JSON": ("timestream json", "timestream avro"),
    "Protobuf, our JSON": ("timestream json", "timestream protobuf"),
    "JSON, Spark's": ("spark json", "timestream json"),
    "Avro, Spark's": ("spark avro", "timestream avro"),
}
"""Row -> the peer and ours, of those that take part."""


def measure(count: int = RECORDS) -> Iterator[Comparison]:
    """All contenders in turns, as a row for each pair."""
    avro_jars()
    with ExitStack() as open_:
        kafka = open_.enter_context(broker(say=lambda _: None))
        registry = open_.enter_context(serve_schema_registry())
        topics = fill_topics(kafka, registry, count)
        apart = {way: open_.enter_context(Apart()) for way in WAYS}
        given = {way: (kafka.bootstrap, topics[way.split()[1]], registry.url) for way in WAYS}
        checks = {
            way: functools.partial(each.call, check, way, *given[way])
            for way, each in apart.items()
        }
        runs = {way: each.contender(run, way, count, *given[way]) for way, each in apart.items()}
        found = compare("Kafka -> window", runs, count, warm_up=WARM_UP, checks=checks)
        cores = by_core_seconds(found)
        pairs = {name: two for name, two in PAIRS.items() if set(two) <= set(WAYS)}
        for name, (peer, ours) in pairs.items():
            yield from by_figure(pair(found, peer, ours, f", {name}"))
        for name, (peer, ours) in pairs.items():
            yield pair(cores, peer, ours, f", {name}, core s")


if __name__ == "__main__":
    report(__file__, measure())
