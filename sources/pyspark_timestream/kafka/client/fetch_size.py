"""How much what brokers send inflates, and how carefully it is asked for because of that.

librdkafka decompresses an answer as a whole, at once, before anybody can look at it: 2 MB of zstd
may be gigabytes. So a topic is asked for in small answers until it is known how much they inflate,
and for as long as they inflate much. The answers of a topic that hardly inflates may be large.
"""

import functools
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CAREFUL", "Inflation", "inflation_of"]

CAREFUL: Final[dict[str, Any]] = {
    # Of batches that inflate little it is one or two; a larger one comes alone.
    "fetch.message.max.bytes": 8 * 1024,
    # The next answer is asked for when this one has been taken.
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1,
}
"""librdkafka's settings for a topic that may inflate much."""

_KNOWN_BYTES: Final = 32 * 1024
"""So much of a topic must have been received to judge it."""

_LOOKED_AT_BYTES: Final = 1024 * 1024
"""So much is judged again, each time, of a topic that is known to be harmless."""

_HARMLESS: Final = 16
"""A topic that inflates so many times at most is asked for in large answers."""

_HARMFUL: Final = 64
"""A topic that inflates more often than that no longer is."""

_REMEMBERED: Final = 100_000
"""Sizes of records are means over some so many of them."""


@dataclass(slots=True)
class _Topic:
    received: int = 0
    inflated: int = 0
    is_harmless: bool = False
    records: float = 0
    record_bytes: float = 0


class Inflation:
    """What is known of the topics of one cluster."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def is_harmless(self, topic: str) -> bool:
        """Whether large answers about `topic` may be asked for."""
        known = self._topics.get(topic)
        return known is not None and known.is_harmless

    def record_bytes(self, topic: str) -> float | None:
        """The mean size of a record, key and value; None where none has been seen."""
        known = self._topics.get(topic)
        return known.record_bytes / known.records if known is not None and known.records else None

    def note(self, topic: str, received: int, inflated: int, records: int) -> None:
        """Note what a read has brought.

        Args:
            topic: of all records.
            received: bytes of the answers, as they came.
            inflated: bytes of the records' keys and values.
            records: how many there were.
        """
        known = self._topics.setdefault(topic, _Topic())
        known.records, known.record_bytes = known.records + records, known.record_bytes + inflated
        if known.records > _REMEMBERED:
            known.records, known.record_bytes = known.records / 2, known.record_bytes / 2
        known.received, known.inflated = known.received + received, known.inflated + inflated
        if known.received >= (_LOOKED_AT_BYTES if known.is_harmless else _KNOWN_BYTES):
            most = _HARMFUL if known.is_harmless else _HARMLESS
            known.is_harmless = known.inflated <= most * known.received
            known.received = known.inflated = 0


@functools.cache
def inflation_of(servers: str) -> Inflation:
    """What this process knows of the topics of the cluster at `servers`."""
    return Inflation()
