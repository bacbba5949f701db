"""Nexmark's events as records of a topic: re-based, out of order, and with a partition that lags.

The crate `nexmark` writes a line of JSON an event, in order, from now on at 10,000 events a second.
Two changes make a line a record's value. Times count from 2026-01-01, and are stretched if the
events would be over in less than LEAST_SPAN_S; and the time inside each kind of event is repeated
in front, since a topic has one event time. Then a seeded delay below DISORDER_MS moves events
within a partition. The last ones are CLOSING: one of each kind an hour later, so every window of
the others is over, for every contender alike.

In the variant `lagging` the other partitions begin LAG_S later than the last one, so that at any
place in the topic it is that far behind them.
"""

import functools
import heapq
import io
import json
import lzma
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import fastavro

__all__ = [
    "AVRO",
    "DISORDER_MS",
    "FORMATS",
    "LAG_S",
    "PARTITIONS",
    "VARIANTS",
    "Load",
    "arrivals",
    "interleave",
    "rebase",
    "sample_lines",
    "write_avro",
]

PARTITIONS: Final = 4
START_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""
EVENTS_PER_S: Final = 10_000
"""The generator's own rate."""
LEAST_SPAN_S: Final = 200
BATCH_S: Final = 20
DISORDER_MS: Final = 4_000
LAG_S: Final = 60
CLOSING_MS: Final = 3_600_000
FORMATS: Final = ("json", "avro")
VARIANTS: Final = ("ordinary", "lagging")
SAMPLE: Final = Path(__file__).parent / "sample.jsonl.xz"

_TIMES: Final = re.compile(rb'"(date_time|expires)":(\d+)')
_FIRST_TIME: Final = re.compile(rb'"date_time":(\d+)')

Event = tuple[int, bytes]
"""Its time in ms, and its JSON with the time in front."""


@dataclass(frozen=True)
class Load:
    """A number of events, and a variant of them.

    Attributes:
        events: over all partitions, without the closing ones; a multiple of PARTITIONS.
        variant: one of VARIANTS.
    """

    events: int
    variant: str = "ordinary"

    def __post_init__(self) -> None:
        if self.events < 1_000 or self.events % PARTITIONS or self.variant not in VARIANTS:
            raise SystemExit(
                f"NEXMARK_EVENTS={self.events}, variant {self.variant}: accepted is a multiple of "
                f"{PARTITIONS} from 1,000 on, and one of {', '.join(VARIANTS)}"
            )

    @property
    def stretch(self) -> int:
        """A second of the generator's is that many seconds here."""
        return max(1, -(-LEAST_SPAN_S * EVENTS_PER_S // self.events))

    @property
    def closes_ms(self) -> int:
        """The time of the closing events; all others are before it by an hour or more."""
        return START_MS + (self.span_s + LAG_S) * 1_000 + CLOSING_MS

    @property
    def span_s(self) -> int:
        """The seconds of event time from the first event to the last."""
        return self.events * self.stretch // EVENTS_PER_S

    @property
    def batch(self) -> int:
        """The records of a batch, which are BATCH_S of event time."""
        return -(-self.records * BATCH_S // self.span_s)

    @property
    def records(self) -> int:
        """The records of the topic."""
        return self.events + PARTITIONS * len(_closing(0))

    def first_line(self, partition: int) -> int:
        """The number of the partition's first line among all its lines of the generator."""
        is_ahead = self.variant == "lagging" and partition != PARTITIONS - 1
        return LAG_S * EVENTS_PER_S // (self.stretch * PARTITIONS) if is_ahead else 0

    def start_ms(self, partition: int) -> int:
        """The time of the first event of a partition."""
        before = self.first_line(partition) * PARTITIONS
        return START_MS + before * self.stretch * 1_000 // EVENTS_PER_S


def rebase(lines: Iterable[bytes], start_ms: int, stretch: int) -> Iterator[Event]:
    """The generator's lines with times from `start_ms` on.

    Args:
        lines: of one generator.
        start_ms: the time of the first event.
        stretch: the factor between the times.
    """
    first_ms: int | None = None
    for line in lines:
        if first_ms is None:
            first_ms = _time_of(line)
        base_ms = first_ms

        def moved(found: re.Match[bytes], base_ms: int = base_ms) -> bytes:
            time_ms = start_ms + (int(found[2]) - base_ms) * stretch
            return b'"%s":%d' % (found[1], time_ms)

        time_ms = start_ms + (_time_of(line) - base_ms) * stretch
        yield time_ms, b'{"date_time":%d,%s' % (time_ms, _TIMES.sub(moved, line.strip())[1:])


def _time_of(line: bytes) -> int:
    found = _FIRST_TIME.search(line)
    if found is None:
        raise SystemExit(f"the generator wrote a line that is not an event: {line[:200]!r}")
    return int(found[1])


def arrivals(events: Iterable[Event], partition: int, closes_ms: int) -> Iterator[bytes]:
    """A partition's values in the order of its log.

    Args:
        events: in the order of time.
        partition: which; it seeds the delays.
        closes_ms: the time of the closing events, which come last.
    """
    chance = random.Random(partition)
    waiting: list[tuple[float, int, bytes]] = []
    numbers = count()
    for time_ms, value in events:
        while waiting and waiting[0][0] <= time_ms:
            yield heapq.heappop(waiting)[2]
        delayed_ms = time_ms + chance.random() * DISORDER_MS
        heapq.heappush(waiting, (delayed_ms, next(numbers), value))
    while waiting:
        yield heapq.heappop(waiting)[2]
    yield from _closing(closes_ms)


def _closing(time_ms: int) -> list[bytes]:
    texts = dict.fromkeys(("channel", "url", "item_name", "description", "name", "email_address"))
    texts |= dict.fromkeys(("credit_card", "city", "state", "extra"))
    blank = dict.fromkeys(texts, "")
    numbers = dict.fromkeys(("id", "auction", "bidder", "price", "initial_bid", "reserve"), 0)
    numbers |= {"seller": 0, "category": 0, "date_time": time_ms, "expires": time_ms}
    every = blank | numbers
    return [
        json.dumps(
            {
                "date_time": time_ms,
                kind: {field["name"]: every[field["name"]] for field in _RECORDS[kind]},
            },
            separators=(",", ":"),
        ).encode()
        for kind in _RECORDS
    ]


def interleave(partitions: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The values of partitions of equal length in turns, so that number modulo partitions leads."""
    for values in zip(*partitions, strict=True):
        yield from values


# -- Avro -----------------------------------------------------------------------------------------


def _fields(longs: str, texts: str) -> list[dict[str, Any]]:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [{"name": name, "type": "long"} for name in longs.split()]
    fields += [{"name": name, "type": "string"} for name in texts.split()]
    fields.append({"name": "date_time", "type": time})
    if "seller" in longs:
        fields.append({"name": "expires", "type": time})
    return fields


_RECORDS: Final[Mapping[str, list[dict[str, Any]]]] = {
    "Person": _fields("id", "name email_address credit_card city state extra"),
    "Auction": _fields("id initial_bid reserve seller category", "item_name description extra"),
    "Bid": _fields("auction bidder price", "channel url extra"),
}
AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "date_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            *(
                {
                    "name": kind,
                    "type": ["null", {"type": "record", "name": f"{kind}Event", "fields": fields}],
                    "default": None,
                }
                for kind, fields in _RECORDS.items()
            ),
        ],
    }
)
"""The schema of a value, which no frame precedes."""


def write_avro(values: Iterable[bytes]) -> Iterator[bytes]:
    """JSON values as Avro of the schema AVRO."""
    schema = fastavro.parse_schema(json.loads(AVRO))
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, json.loads(value))
        yield out.getvalue()


# -- the sample -----------------------------------------------------------------------------------


@functools.cache
def sample_lines() -> list[bytes]:
    """The generator's first 26,000 lines, in one partition; texts are cut to a letter.

    Times begin at 0. For tests, which run without the generator.
    """
    return lzma.decompress(SAMPLE.read_bytes()).splitlines()
