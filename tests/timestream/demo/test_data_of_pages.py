"""The topics of the pages: what libraries that know the formats read of them."""

import base64
import io
import json
import struct

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pyspark_timestream.demo.data import (
    STOPS_DESCRIPTORS,
    SUBJECTS,
    answer_get,
    make_topics_of_pages,
    name_missing,
)

DAY_MS = 1_704_067_200_000


def read_avro(value: bytes) -> dict:
    magic, number = struct.unpack(">bI", value[:5])
    assert magic == 0
    schema = json.loads(SUBJECTS[number - 1].text)
    rest = io.BytesIO(value[5:])
    found = fastavro.schemaless_reader(rest, fastavro.parse_schema(schema), None)
    assert not rest.read()
    return found


def test_the_avro_values_are_those_of_their_schemas() -> None:
    topics = make_topics_of_pages()
    journeys = [read_avro(each.value) for each in topics["journeys"]]
    assert [each["station"] for each in journeys] == ["Central", "Park", "Central"]
    assert [each.get("electric") for each in journeys] == [None, None, True]
    whole = [read_avro(topics["deliveries"][place].value) for place in (0, 3)]
    assert [each["grams"] for each in whole] == [300, 5_000_000_000]
    assert whole[0]["shipped"].timestamp() * 1000 == DAY_MS
    orders = [read_avro(each.value) for each in topics["order-events"]]
    assert orders == [{"id": 1, "amount": 19.5}, {"id": 1}, {"id": 2, "amount": 7.0}]


def test_the_stops_are_messages_of_their_descriptor_set() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(STOPS_DESCRIPTORS)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    assert files.file[1].SerializeToString() == base64.b64decode(SUBJECTS[5].serialized or "")
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Stop"))
    found = [kind.FromString(each.value[6:]) for each in make_topics_of_pages()["stops"]]
    assert [(each.station, each.boarded, each.at.seconds) for each in found] == [
        ("Central", 12, DAY_MS // 1000 + 600), ("Park", 3, DAY_MS // 1000 + 900),
    ]  # fmt: skip


def test_the_registry_answers_what_a_reader_asks() -> None:
    assert answer_get("/subjects/journeys-value/versions/latest")["id"] == 2
    assert answer_get("/subjects/journeys-value/versions") == [1, 2]
    assert json.loads(answer_get("/schemas/ids/3")["schema"])["name"] == "Delivery"
    stops = answer_get("/schemas/ids/6?format=serialized")
    assert (stops["schemaType"], stops["schema"]) == ("PROTOBUF", SUBJECTS[5].serialized)


@pytest.mark.parametrize(
    "path", ["/", "/schemas/ids/9", "/schemas/ids/x", "/subjects/nobody/versions/latest",
             "/subjects/journeys-value/versions/3"],
)  # fmt: skip
def test_what_the_registry_does_not_know_is_not_found(path: str) -> None:
    assert answer_get(path) is None


def test_the_registry_tells_a_missing_subject_from_a_missing_schema() -> None:
    missing = [
        name_missing(path) for path in ("/subjects/nobody/versions/latest", "/schemas/ids/9")
    ]
    assert [(each["error_code"], each["message"]) for each in missing] == [
        (40401, "Subject not found"), (40403, "Schema not found"),
    ]  # fmt: skip
