"""The registry of the tests, as confluent-kafka's own client sees it."""

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
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
