"""The registry's client and a schema registry that somebody else wrote: Apicurio's."""

import io
import json
import os

import pytest
from apicurio import NoRegistry, serve_apicurio
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from pyspark_timestream import SchemaRegistryError
from pyspark_timestream.kafka.decode.avro.schemas import inline_references
from pyspark_timestream.kafka.registry import SchemaRegistry

TRIP = '{"type": "record", "name": "Trip", "fields": [{"name": "at", "type": "long"}]}'


@pytest.fixture(scope="module")
def url():
    try:
        with serve_apicurio() as served:
            yield served
    except NoRegistry as missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(missing))


@pytest.fixture(scope="module")
def producer(url):
    with SchemaRegistryClient({"url": url, "timeout": 30}) as client:
        yield client


@pytest.fixture(scope="module")
def registry(url):
    return SchemaRegistry({"url": url})


def same(text, other):
    return json.loads(text) == json.loads(other)


def test_what_a_producer_registers_is_found_by_id_and_as_the_latest(producer, registry):
    first = producer.register_schema("trips-value", Schema(TRIP))
    found = registry.fetch_schema(first, "avro")
    assert (found.key, found.type, found.references) == (first, "AVRO", ())
    assert same(found.text, TRIP)
    assert registry.fetch_latest("trips-value", "avro").key == first
    newer = TRIP.replace('"long"', '["null", "long"]')
    second = producer.register_schema("trips-value", Schema(newer))
    latest = registry.fetch_latest("trips-value", "avro")
    assert (latest.key, latest.subject, latest.version) == (second, "trips-value", 2)
    assert same(latest.text, newer)


def test_references_are_put_in_place(producer, registry):
    unit = '{"type": "enum", "name": "Unit", "namespace": "x", "symbols": ["km"]}'
    leg = {"type": "record", "name": "Leg", "namespace": "x"}
    leg["fields"] = [{"name": "unit", "type": "Unit"}, {"name": "other", "type": "x.Unit"}]
    producer.register_schema("unit-value", Schema(unit))
    schema = Schema(json.dumps(leg), "AVRO", [SchemaReference("x.Unit", "unit-value", 1)])
    number = producer.register_schema("leg-value", schema)
    inlined = json.loads(inline_references(registry.fetch_schema(number, "avro")))
    assert [field["type"] for field in inlined["fields"]] == [json.loads(unit), "x.Unit"]


def test_framed_json_is_known_by_its_id(producer, registry):
    text = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
    number = producer.register_schema("json-value", Schema(text, "JSON"))
    assert registry.fetch_schema(number, "json").type == "JSON"


@pytest.mark.parametrize("number", [99_999, -1, 0, 2**31 - 1])
def test_an_unknown_id_is_said_to_be_one(registry, number):
    with pytest.raises(SchemaRegistryError, match=rf"id {number} .* it answered 404 .*producers"):
        registry.fetch_schema(number, "avro")


def test_an_unknown_subject_is_said_to_be_one(registry):
    with pytest.raises(SchemaRegistryError, match="'valueSubject'"):
        registry.fetch_latest("nothing-value", "avro")


def test_protobuf_without_compiled_schemas_says_what_to_do(producer, registry):
    text = 'syntax = "proto3"; package p; message Q { int64 at = 1; }'
    number = producer.register_schema("proto-value", Schema(text, "PROTOBUF"))
    with pytest.raises(SchemaRegistryError, match=r"it sent .proto text.*a descriptor set"):
        registry.fetch_schema(number, "protobuf")


def test_confluents_own_serializer_writes_what_the_id_stands_for(producer, registry):
    fastavro = pytest.importorskip("fastavro")
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
    from confluent_kafka.serialization import MessageField, SerializationContext

    write = avro.AvroSerializer(producer, TRIP)
    framed = write({"at": 5}, SerializationContext("rides", MessageField.VALUE))
    assert framed[0] == 0
    found = registry.fetch_schema(int.from_bytes(framed[1:5], "big"), "avro")
    parsed = fastavro.parse_schema(json.loads(found.text))
    assert fastavro.schemaless_reader(io.BytesIO(framed[5:]), parsed, None) == {"at": 5}
    # Its default subject is the source's.
    assert registry.fetch_latest("rides-value", "avro").key == found.key
