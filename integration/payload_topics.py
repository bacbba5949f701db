"""The topics of the pages on Avro, Protobuf and dead letters, and the registry that knows them.

The records are written by fastavro and by Google's library.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
from broker import Record
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from kafka_query import DAY_MS
from schema_registry import SchemaRegistryStub, serve_schema_registry

__all__ = ["PAYLOAD_TOPICS", "serve_page_registry", "write_descriptor_set"]

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MINUTE_MS = 60_000


def record(name: str, **fields: Any) -> dict[str, Any]:
    listed = [{"name": each, "type": kind} for each, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


JOURNEY = record("Journey", station="string", minutes="double", departed=MILLIS)
ELECTRIC = {"name": "electric", "type": "boolean", "default": False}
JOURNEY_2 = {**JOURNEY, "fields": [*JOURNEY["fields"], ELECTRIC]}
DELIVERY = record("Delivery", parcel="string", grams="long", shipped=MILLIS)
METER = record("Meter", room="string", celsius="double", at=MILLIS)

PLACED = record("OrderPlaced", id="long", amount="double") | {"namespace": "shop"}
CANCELLED = record("OrderCancelled", id="long") | {"namespace": "shop"}

SUBJECTS = (
    ("journeys-value", JOURNEY),
    ("journeys-value", JOURNEY_2),
    ("deliveries-value", DELIVERY),
    ("order-events-shop.OrderPlaced", PLACED),
    ("order-events-shop.OrderCancelled", CANCELLED),
)
"""In the order of their ids, from 1; the schema of `stops` is the next one."""

STOPS_ID = len(SUBJECTS) + 1

STOPS_PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Stop { string station = 1; int32 boarded = 2; google.protobuf.Timestamp at = 3; }
"""


def describe_stops() -> descriptor_pb2.FileDescriptorProto:
    """`STOPS_PROTO`, compiled."""
    file = descriptor_pb2.FileDescriptorProto(name="stops.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    field = descriptor_pb2.FieldDescriptorProto
    stop = file.message_type.add(name="Stop")
    stop.field.add(name="station", number=1, type=field.TYPE_STRING, label=1)
    stop.field.add(name="boarded", number=2, type=field.TYPE_INT32, label=1)
    time = ".google.protobuf.Timestamp"
    stop.field.add(name="at", number=3, type=field.TYPE_MESSAGE, type_name=time, label=1)
    return file


def write_descriptor_set(path: Path) -> None:
    """Write what protoc --include_imports --descriptor_set_out writes of `STOPS_PROTO`."""
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    files.file.append(describe_stops())
    path.write_bytes(files.SerializeToString())


def at_ms(minute: int) -> int:
    return DAY_MS + MINUTE_MS * minute


def encode(
    schema: Mapping[str, Any], values: Mapping[str, Any], number: int | None = None
) -> bytes:
    """An Avro payload, behind the frame of schema `number` if there is one."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, dict(schema), dict(values))
    return (b"" if number is None else struct.pack(">bI", 0, number)) + out.getvalue()


def journey(minute: int, station: str, minutes: float, electric: bool | None = None) -> Record:
    values = {"station": station, "minutes": minutes, "departed": at_ms(minute)}
    if electric is None:
        return Record(encode(JOURNEY, values, 1))
    return Record(encode(JOURNEY_2, {**values, "electric": electric}, 2))


def delivery(minute: int, parcel: str, grams: int) -> bytes:
    return encode(DELIVERY, {"parcel": parcel, "grams": grams, "shipped": at_ms(minute)}, 3)


def meter(minute: int, room: str, celsius: float) -> Record:
    return Record(encode(METER, {"room": room, "celsius": celsius, "at": at_ms(minute)}))


def stop(minute: int, station: str, boarded: int) -> Record:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(describe_stops())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Stop"))()
    message.station, message.boarded = station, boarded
    message.at.FromMilliseconds(at_ms(minute))
    return Record(struct.pack(">bIb", 0, STOPS_ID, 0) + message.SerializeToString())


PAYLOAD_TOPICS = {
    "journeys": [
        journey(10, "Central", 7.5),
        journey(40, "Park", 5.0),
        journey(70, "Central", 6.5, electric=True),
    ],
    "stops": [stop(10, "Central", 12), stop(15, "Park", 3)],
    "meters": [meter(0, "kitchen", 21.5), meter(1, "attic", 14.0)],
    "deliveries": [
        Record(delivery(0, "A1", 300)),
        Record(b'{"parcel": "A2"}'),
        Record(delivery(2, "A3", 450)[:-1]),
        Record(delivery(3, "A4", 5_000_000_000)),
    ],
    "deliveries-dead": [],
    "order-events": [
        Record(encode(PLACED, {"id": 1, "amount": 19.5}, 4)),
        Record(encode(CANCELLED, {"id": 1}, 5)),
        Record(encode(PLACED, {"id": 2, "amount": 7.0}, 4)),
    ],
}


@contextmanager
def serve_page_registry() -> Iterator[SchemaRegistryStub]:
    """A registry with the schemas of these topics, until the block ends."""
    with serve_schema_registry() as registry:
        for number, (subject, schema) in enumerate(SUBJECTS, 1):
            assert registry.register(subject, json.dumps(schema)) == number
        serialized = describe_stops().SerializeToString()
        assert registry.register("stops-value", STOPS_PROTO, "PROTOBUF", (), serialized) == STOPS_ID
        yield registry
