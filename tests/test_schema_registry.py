"""The registry of the tests, as confluent-kafka's own client sees it."""

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from schema_registry import serve_schema_registry

LONG, TEXT = Schema('"long"'), Schema('"string"')


@pytest.fixture
def pair():
    with serve_schema_registry() as stub, SchemaRegistryClient({"url": stub.url}) as client:
        yield stub, client


def code_of(request):
    with pytest.raises(SchemaRegistryError) as raised:
        request()
    return raised.value.http_status_code, raised.value.error_code


def test_producer_registers_a_schema_once_under_one_id(pair):
    stub, client = pair
    first = client.register_schema("a-value", LONG)
    client.clear_caches()
    assert client.register_schema("a-value", LONG) == first
    assert client.register_schema("b-value", LONG) == first
    second = client.register_schema("a-value", TEXT)
    assert second != first
    assert stub.register("c-value", '"string"') == second
    assert client.get_versions("a-value") == [1, 2]
    assert client.get_versions("b-value") == [1]
    assert client.get_schema(second).schema_str == '"string"'


def test_producer_finds_what_is_registered(pair):
    _, client = pair
    number = client.register_schema("a-value", LONG)
    client.clear_caches()
    found = client.lookup_schema("a-value", LONG)
    assert (found.schema_id, found.version) == (number, 1)
    assert code_of(lambda: client.lookup_schema("a-value", TEXT)) == (404, 40403)
    assert code_of(lambda: client.lookup_schema("b-value", TEXT)) == (404, 40401)


def test_references_are_kept(pair):
    _, client = pair
    client.register_schema("b-value", LONG)
    schema = Schema('"B"', "AVRO", [SchemaReference("B", "b-value", 1)])
    number = client.register_schema("a-value", schema)
    client.clear_caches()
    (kept,) = client.get_schema(number).references
    assert (kept.name, kept.subject, kept.version) == ("B", "b-value", 1)


def test_deleted_versions_are_shown_to_those_who_ask(pair):
    stub, client = pair
    number = client.register_schema("a-value", LONG)
    stub.delete("a-value", 1)
    assert code_of(lambda: client.get_latest_version("a-value")) == (404, 40401)
    assert client.get_subjects() == []
    assert client.get_subjects(deleted=True) == ["a-value"]
    assert client.get_version("a-value", 1, deleted=True).schema_id == number
    client.clear_caches()
    assert client.get_schema(number).schema_str == '"long"'


def test_unknown_things_have_the_codes_of_confluents_registry(pair):
    _, client = pair
    client.register_schema("a-value", LONG)
    assert code_of(lambda: client.get_schema(9)) == (404, 40403)
    assert code_of(lambda: client.get_schema_by_guid("x")) == (404, 40403)
    assert code_of(lambda: client.get_latest_version("b-value")) == (404, 40401)
    assert code_of(lambda: client.get_version("a-value", 9)) == (404, 40402)
    assert client.get_schema_types() == ["AVRO", "JSON", "PROTOBUF"]


def test_requests_are_counted_by_path(pair):
    stub, client = pair
    number = client.register_schema("a-value", LONG)
    client.clear_caches()
    client.get_schema(number, fmt="serialized")
    client.get_schema(number, subject_name="a-value")
    assert stub.count(f"/schemas/ids/{number}") == 2
    assert stub.requests[f"/schemas/ids/{number}?format=serialized"] == 1
