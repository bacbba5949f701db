"""Queries over Avro and Protobuf keep their schemas and rows, even if the registry goes."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import psutil
import pytest
from broker import Broker, Record
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from flights import flights_job, produce_flights
from harness import JobFailed, run_to_end
from kafka_query import Stream
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from running_stream import offset_of, rows, running
from schema_registry import Mode, SchemaRegistryStub, serve_schema_registry

PATIENCE = {"schemaRegistry.timeout": "2", "schemaRegistry.max.retries": "0"}
"""A registry that is down is known to be, soon."""


def trip(*more: dict[str, Any]) -> str:
    """The schema of a record with a number, and of `more` fields."""
    number = {"name": "number", "type": "long"}
    return json.dumps({"type": "record", "name": "Trip", "fields": [number, *more]})


def note(default: str) -> dict[str, Any]:
    return {"name": "note", "type": "string", "default": default}


def framed(schema_id: int, schema: str, /, **fields: Any) -> Record:
    """A record that fastavro has written by a schema, with the schema's id in front."""
    out = io.BytesIO()
    out.write(struct.pack(">bI", 0, schema_id))
    fastavro.schemaless_writer(out, json.loads(schema), fields)
    return Record(out.getvalue())


@pytest.fixture
def registry() -> Iterator[SchemaRegistryStub]:
    with serve_schema_registry() as serving:
        yield serving


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, topic, tmp_path: Path, registry):
    """Make a `Stream` over a fresh topic of Avro."""

    def make(schema: str = "number long", partitions: int = 1, **options: str) -> Stream:
        name = topic(partitions)
        given = {"valueFormat": "avro", "schemaRegistry.url": registry.url, **PATIENCE, **options}
        return Stream(spark, broker, name, tmp_path / name, given, schema)

    return make


def numbers(made: Stream) -> list[int]:
    """The numbers in the batches that are complete."""
    return sorted(row.number for row in rows(made))


# -- the registry while a query runs --------------------------------------------------------------


def test_a_worker_fetches_a_schema_once_however_many_batches_it_reads(stream, registry) -> None:
    partitions, batches = 6, 5
    made = stream(partitions=partitions, maxOffsetsPerTrigger="60")
    schemas = [trip(), trip(note("none"))]
    ids = [registry.register(f"{made.topic}-value", schema) for schema in schemas]
    records = [
        framed(ids[number % 2], schemas[number % 2], number=number, note="x")._replace(
            partition=number % partitions
        )
        for number in range(60 * batches)
    ]
    made.broker.produce(made.topic, records)
    made.run(maxTasks=str(partitions))
    assert numbers(made) == list(range(60 * batches))
    workers = len(python_workers())
    assert workers < partitions * batches
    # The reader's own schema, the latest, comes with the task.
    asked = [registry.count(f"/schemas/ids/{number}") for number in ids]
    assert 1 <= asked[0] <= workers
    assert asked[1] == 0
    assert registry.count(f"/subjects/{made.topic}-value/versions/latest") == 1


def python_workers() -> set[int]:
    """The processes of Python that this session's tasks have run in."""
    found = set()
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie, or gone
            if "pyspark.daemon" in " ".join(each.cmdline()):
                found.add(each.pid)
    return found


@pytest.mark.outside_ci
def test_a_query_outlives_its_registry_until_a_new_id_and_loses_nothing(stream) -> None:
    made, first, second = stream(), trip(), trip(note("none"))
    with ExitStack() as up:
        registry = up.enter_context(serve_schema_registry())
        made.options["schemaRegistry.url"] = registry.url
        known = registry.register(f"{made.topic}-value", first)
        made.broker.produce(made.topic, [framed(known, first, number=0)])
        with running(made) as until:
            until(lambda: numbers(made) == [0])
            up.close()
            for number in range(1, 6):
                made.broker.produce(made.topic, [framed(known, first, number=number)])
                until(lambda: numbers(made)[-1:] == [number])  # noqa: B023
            made.broker.produce(made.topic, [framed(known + 1, second, number=6, note="new")])
            with pytest.raises(StreamingQueryException) as raised:
                made.query.awaitTermination(60)
    for said in ("SchemaRegistryError", registry.url, f"the schema with id {known + 1}"):
        assert said in str(raised.value)
    with serve_schema_registry(port=urlsplit(registry.url).port or 0) as back:
        for schema in (first, second):
            back.register(f"{made.topic}-value", schema)
        made.run()
    assert numbers(made) == list(range(7))


# -- the reader's schema --------------------------------------------------------------------------


def test_a_restart_keeps_the_recorded_schema_though_the_subject_has_a_newer_one(
    stream, registry
) -> None:
    made, oldest = stream("number long, note string"), trip()
    subject = f"{made.topic}-value"
    first = registry.register(subject, oldest)
    second = registry.register(subject, trip(note("second")))
    made.broker.produce(made.topic, [framed(first, oldest, number=0)])
    made.run()
    recorded = offset_of(made)["schemas"]["value"]
    assert (recorded["id"], recorded["version"], recorded["subject"]) == (second, 2, subject)
    registry.register(subject, trip(note("third")))
    made.broker.produce(made.topic, [framed(first, oldest, number=1)])
    made.run()
    assert offset_of(made)["schemas"]["value"] == recorded
    assert [row.note for row in made.rows()] == ["second", "second"]
    fresh = stream("number long, note string")
    fresh.topic = made.topic
    assert [row.note for row in fresh.run()] == ["third", "third"]


@pytest.mark.outside_ci
def test_a_record_of_a_widened_number_does_not_end_a_query_and_one_of_another_kind_has_a_way_on(
    stream, registry
) -> None:
    made = stream("number long, note string, _corrupt_record_reason string")
    subject = f"{made.topic}-value"
    older = trip({"name": "note", "type": "string"})
    wide = older.replace('"long"', '"double"')
    kinds = {"type": "enum", "name": "Note", "symbols": ["a", "b"]}
    newer = trip({"name": "note", "type": kinds})
    first = registry.register(subject, older)
    made.broker.produce(made.topic, [framed(first, older, number=0, note="x")])
    made.run()
    second = registry.register(subject, wide)
    values = [framed(second, wide, number=each, note="y") for each in (1.0, 1.5)]
    made.broker.produce(made.topic, values)
    assert [tuple(row)[:3] for row in made.run()][1:] == [(1, "y", None), (None, "y", "type")]
    # A query that runs is refused, and nothing of its batch is written.
    with running(made) as until:
        made.broker.produce(made.topic, [framed(first, older, number=2, note="x")])
        until(lambda: len(rows(made)) == 4)
        third = registry.register(subject, newer)
        values = [
            framed(first, older, number=3, note="z"),
            framed(third, newer, number=4, note="b"),
        ]
        made.broker.produce(made.topic, values)
        with pytest.raises(StreamingQueryException) as raised:
            made.query.awaitTermination(60)
    for said in (
        f"topic '{made.topic}' partition 0 offset 5: the value was written with schema {third} ",
        f"and is read by schema {first} (version 1 of '{subject}')",
        "next step: start the query again",
    ):
        assert said in str(raised.value)
    # As the message says: the same batch again, and then new ones.
    assert [tuple(row)[:3] for row in made.run()][4:] == [(3, "z", None), (4, "b", None)]
    made.broker.produce(made.topic, [framed(third, newer, number=5, note="a")])
    assert [row.number for row in made.run()][6:] == [5]
    recorded = offset_of(made)["schemas"]["value"]
    assert (recorded["version"], recorded["newer"]["version"]) == (1, 3)


EVOLUTIONS = {
    # Compatibility -> the fields of the older and the newer schema, besides the number.
    "backward": ([{"name": "gone", "type": "string"}], [note("none")]),
    "forward": ([note("none")], [note("none"), {"name": "added", "type": "string"}]),
    "full": ([note("none")], [note("none"), {"name": "kept", "type": "int", "default": 3}]),
}


@pytest.mark.parametrize("reads_newer", [False, True], ids=["reads_older", "reads_newer"])
@pytest.mark.parametrize("compatibility", EVOLUTIONS)
def test_records_of_two_schemas_are_read_by_the_reader_s(
    stream, registry, compatibility, reads_newer
) -> None:
    if reads_newer == (compatibility == "forward"):
        pytest.skip("this compatibility does not promise that")
    older, newer = (trip(*fields) for fields in EVOLUTIONS[compatibility])
    made = stream("number long, note string", readerSchema=newer if reads_newer else older)
    with SchemaRegistryClient({"url": registry.url}) as client:
        values = [
            serialize(client, made.topic, older, number=0, gone="x", note="older"),
            serialize(client, made.topic, newer, number=1, note="newer", added="y", kept=4),
            serialize(client, made.topic, older, number=2, gone="x", note="older"),
        ]
    made.broker.produce(made.topic, [Record(each) for each in values])
    found = [(row.number, row.note) for row in made.run()]
    has_note = compatibility != "backward"
    notes = ["older" if has_note else "none", "newer", "older" if has_note else "none"]
    assert found == list(enumerate(notes))


def serialize(client: SchemaRegistryClient, topic: str, schema: str, **fields: Any) -> bytes:
    """Confluent's serializer's payload of the schema's fields; it registers the schema."""
    names = {field["name"] for field in json.loads(schema)["fields"]}
    place = SerializationContext(topic, MessageField.VALUE)
    value = AvroSerializer(client, schema)({k: v for k, v in fields.items() if k in names}, place)
    assert isinstance(value, bytes)
    return value


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_go_to_a_topic_with_reason_and_schema(
    stream, registry, topic, peer_jars, tmp_path
) -> None:
    if not peer_jars:
        pytest.skip("Spark's own Kafka sink could not be fetched from Maven Central")
    columns = "_corrupt_record binary, _corrupt_record_reason string, _corrupt_record_schema_id int"
    made, letters = stream(f"number long, {columns}"), topic()
    number = registry.register(f"{made.topic}-value", trip())
    good, cut = framed(number, trip(), number=1), framed(number, trip(), number=300).value[:-1]
    made.broker.produce(made.topic, [good, Record(cut), Record(b"no frame"), Record(None)])
    headers = """array(
        struct('reason' AS key, CAST(_corrupt_record_reason AS BINARY) AS value),
        struct('schema' AS key, CAST(CAST(_corrupt_record_schema_id AS STRING) AS BINARY) AS value)
    ) AS headers"""
    writer = made.load().where("_corrupt_record IS NOT NULL")
    writer = writer.selectExpr("_corrupt_record AS value", headers).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", made.broker.bootstrap)
    writer = writer.option("topic", letters).option("includeHeaders", "true")
    writer = writer.option("checkpointLocation", str(tmp_path / "letters"))
    writer.trigger(availableNow=True).start().awaitTermination()
    written = [(each.value(), dict(each.headers())) for each in made.broker.read(letters)]
    assert sorted(written, key=lambda letter: letter[0]) == [
        (cut, {"reason": b"syntax", "schema": b"%d" % number}),
        (b"no frame", {"reason": b"framing", "schema": None}),
    ]
    assert [row.number for row in made.run() if row._corrupt_record is None] == [1, None]


# -- logins ---------------------------------------------------------------------------------------

RIGHT, WRONG = "open-sesame", "open-barley"


@pytest.fixture
def locked(registry: SchemaRegistryStub) -> SchemaRegistryStub:
    """The registry asks for a login."""
    registry.user_info = f"reader:{RIGHT}"
    return registry


def test_a_login_is_in_no_plan_progress_or_checkpoint(stream, locked) -> None:
    made = stream(**{"schemaRegistry.basic.auth.user.info": f"reader:{RIGHT}"})
    number = locked.register(f"{made.topic}-value", trip())
    made.broker.produce(made.topic, [framed(number, trip(), number=1)])
    made.run()
    assert numbers(made) == [1]
    said = [str(each) for each in made.query.recentProgress]
    said.append(made.query._jsq.explainInternal(True))
    files = [each for each in (made.place / "checkpoint").rglob("*") if each.is_file()]
    assert len(files) > 2
    assert len(said) > 1
    for text in (*said, *(each.read_bytes().decode(errors="replace") for each in files)):
        assert RIGHT not in text


@pytest.mark.soak
def test_a_login_in_the_address_works_and_is_not_logged(broker, locked, tmp_path) -> None:
    topic = produce_flights(broker, count=100, encoding="avro", registry=locked)

    def job(password: str, name: str):
        url = locked.url.replace("//", f"//reader:{password}@")
        return flights_job(
            broker.bootstrap, topic, tmp_path / name, tmp_path / f"{name}-checkpoint",
            value_format="avro", schema_registry=url, report=tmp_path / f"{name}.json",
        )  # fmt: skip

    assert run_to_end(job(RIGHT, "right")).exit_code == 0
    assert json.loads((tmp_path / "right.json").read_text())["events"] == 100
    locked.mode = Mode.REFLECTING
    with pytest.raises(JobFailed, match="SchemaRegistryError"):
        run_to_end(job(WRONG, "wrong"))
    said = (tmp_path / "wrong.log").read_text()
    assert "401" in said
    assert locked.url in said
    for each in tmp_path.rglob("*"):
        if each.is_file():
            text = each.read_bytes().decode(errors="replace")
            assert RIGHT not in text, each
            assert WRONG not in text, each
