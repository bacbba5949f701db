"""The flights as Avro and as Protobuf, in front of each the frame of Confluent's serializers.

The values say the same as `flights_data.json_values`, and are written by fastavro and by Google's
Protobuf. A flight that was cancelled has no departure here either.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import fastavro
import pyarrow as pa
from flights_data import json_values
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from schema_registry import SchemaRegistryStub

__all__ = ["ENCODINGS", "avro_schema", "encode_flights", "register_flight"]

ENCODINGS: Final = {"json": "json", "avro": "avro", "avro-millis": "avro", "protobuf": "protobuf"}
"""Encoding -> `valueFormat`; plain `avro` has microseconds."""

_AVRO_TYPES: Final = {
    "origin": "string",
    "dest": "string",
    "carrier": "string",
    "flight": "long",
    "tailnum": ["null", "string"],
    "dep_delay": ["null", "double"],
    "arr_delay": ["null", "double"],
}
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_PROTOBUF_TYPES: Final = {
    "departure": _FIELD.TYPE_MESSAGE,
    "scheduled": _FIELD.TYPE_MESSAGE,
    "origin": _FIELD.TYPE_STRING,
    "dest": _FIELD.TYPE_STRING,
    "carrier": _FIELD.TYPE_STRING,
    "flight": _FIELD.TYPE_INT64,
    "tailnum": _FIELD.TYPE_STRING,
    "dep_delay": _FIELD.TYPE_DOUBLE,
    "arr_delay": _FIELD.TYPE_DOUBLE,
}
_OPTIONAL: Final = ("tailnum", "dep_delay", "arr_delay")
_PROTO: Final = """\
syntax = "proto3";
package flights;
import "google/protobuf/timestamp.proto";
message Flight {
  google.protobuf.Timestamp departure = 1;
  google.protobuf.Timestamp scheduled = 2;
  string origin = 3;
  string dest = 4;
  string carrier = 5;
  int64 flight = 6;
  optional string tailnum = 7;
  optional double dep_delay = 8;
  optional double arr_delay = 9;
}
"""


def register_flight(registry: SchemaRegistryStub, subject: str, encoding: str) -> int:
    """Register the schema of a flight, and return its id."""
    if encoding == "protobuf":
        serialized = protobuf_file().SerializeToString()
        return registry.register(subject, _PROTO, "PROTOBUF", serialized=serialized)
    return registry.register(subject, json.dumps(avro_schema(encoding)))


def encode_flights(table: pa.Table, encoding: str, number: int = 0) -> Iterator[bytes | str]:
    """The values of `flights`, in frames with a schema's id; JSON comes without."""
    if encoding == "json":
        return json_values(table)
    write = _write_protobuf if encoding == "protobuf" else _write_avro
    return write(table, encoding, struct.pack(">bI", 0, number))


# -- Avro -----------------------------------------------------------------------------------------


def avro_schema(encoding: str = "avro") -> dict[str, Any]:
    """A flight's schema; the scheduled time has always milliseconds."""
    unit = "timestamp-millis" if encoding == "avro-millis" else "timestamp-micros"
    departure = {"type": "long", "logicalType": unit}
    scheduled = {"type": "long", "logicalType": "timestamp-millis"}
    types = {"departure": ["null", departure], "scheduled": scheduled, **_AVRO_TYPES}
    fields = [{"name": name, "type": each} for name, each in types.items()]
    return {"type": "record", "name": "Flight", "namespace": "flights", "fields": fields}


def _write_avro(table: pa.Table, encoding: str, frame: bytes) -> Iterator[bytes]:
    schema = fastavro.parse_schema(avro_schema(encoding))
    divisor = 1_000 if encoding == "avro-millis" else 1
    times = {
        "departure": (_scale(each, divisor) for each in table["departure_us"].to_pylist()),
        "scheduled": (_scale(each, 1_000) for each in table["scheduled_us"].to_pylist()),
    }
    for row in _rows(table, times):
        out = io.BytesIO()
        out.write(frame)
        fastavro.schemaless_writer(out, schema, row)
        yield out.getvalue()


def _scale(time_us: int | None, divisor: int) -> int | None:
    return None if time_us is None else time_us // divisor


# -- Protobuf -------------------------------------------------------------------------------------


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """The file that a compiler makes of the `.proto` text."""
    file = descriptor_pb2.FileDescriptorProto(
        name="flight.proto", package="flights", syntax="proto3"
    )
    file.dependency.append("google/protobuf/timestamp.proto")
    flight = file.message_type.add(name="Flight")
    for number, (name, type_) in enumerate(_PROTOBUF_TYPES.items(), 1):
        field = flight.field.add(name=name, number=number, type=type_, label=1)
        if type_ == _FIELD.TYPE_MESSAGE:
            field.type_name = ".google.protobuf.Timestamp"
        if name in _OPTIONAL:
            field.proto3_optional, field.oneof_index = True, len(flight.oneof_decl)
            flight.oneof_decl.add(name=f"_{name}")
    return file


def _message_class() -> Callable[..., Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(protobuf_file().SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("flights.Flight"))


def _write_protobuf(table: pa.Table, encoding: str, frame: bytes) -> Iterator[bytes]:
    flight = _message_class()
    # The message is the first of its file.
    frame += b"\0"
    times = {name: map(_seconds, table[f"{name}_us"].to_pylist()) for name in _PROTOBUF_TYPES
             if _PROTOBUF_TYPES[name] == _FIELD.TYPE_MESSAGE}  # fmt: skip
    for row in _rows(table, times):
        yield frame + flight(**row).SerializeToString()


def _seconds(time_us: int | None) -> dict[str, int] | None:
    if time_us is None:
        return None
    seconds, rest = divmod(time_us, 1_000_000)
    return {"seconds": seconds, "nanos": rest * 1_000}


def _rows(table: pa.Table, times: dict[str, Iterator[Any]]) -> Iterator[dict[str, Any]]:
    columns = [*times.values(), *(table[name].to_pylist() for name in _AVRO_TYPES)]
    names = (*times, *_AVRO_TYPES)
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))
