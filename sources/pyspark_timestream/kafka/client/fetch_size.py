"""Fetch sizes that follow a topic's compression ratio.

librdkafka decompresses a whole answer at once, before this package sees any of it: 2 MB of zstd may
become gigabytes. So each topic is fetched in small answers until its compression ratio is known,
and for as long as that is high. Large answers are only for topics that compress moderately.
"""

import functools
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["SMALL_FETCHES", "CompressionStats", "get_compression_stats"]

SMALL_FETCHES: Final[dict[str, Any]] = {
    # One or two record batches of moderate compression; a larger batch comes alone.
    "fetch.message.max.bytes": 8 * 1024,
    # Fetch the next answer only when this one has been consumed.
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1,
}
"""librdkafka's settings for a topic that may inflate much."""

_MIN_SAMPLE_BYTES: Final = 32 * 1024
"""Received bytes before the first decision about a topic."""

_RECHECK_BYTES: Final = 1024 * 1024
"""Received bytes between later decisions about a topic that allows large fetches."""

_MAX_RATIO_TO_ALLOW: Final = 16
"""Compression ratio up to which large fetches become allowed."""

_MAX_RATIO_TO_KEEP: Final = 64
"""Compression ratio above which large fetches are no longer allowed."""

_MAX_AVERAGED_RECORDS: Final = 100_000
"""Records over which the mean size is taken, approximately."""


@dataclass(slots=True)
class _Topic:
    received: int = 0
    inflated: int = 0
    allows_large_fetches: bool = False
    records: float = 0
    record_bytes: float = 0


class CompressionStats:
    """Compression ratios and record sizes of the topics of one cluster."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def allows_large_fetches(self, topic: str) -> bool:
        """Check whether `topic` may be fetched in large answers."""
        known = self._topics.get(topic)
        return known is not None and known.allows_large_fetches

    def mean_record_bytes(self, topic: str) -> float | None:
        """Return the mean bytes of a record's key and value; None before the first record."""
        known = self._topics.get(topic)
        return known.record_bytes / known.records if known is not None and known.records else None

    def note(self, topic: str, received: int, inflated: int, records: int) -> None:
        """Count the records that a read returned.

        Args:
            topic: the topic of all records.
            received: compressed bytes of the answers.
            inflated: bytes of the records' keys and values.
            records: number of records.
        """
        known = self._topics.setdefault(topic, _Topic())
        known.records, known.record_bytes = known.records + records, known.record_bytes + inflated
        if known.records > _MAX_AVERAGED_RECORDS:
            known.records, known.record_bytes = known.records / 2, known.record_bytes / 2
        known.received, known.inflated = known.received + received, known.inflated + inflated
        if known.received >= (_RECHECK_BYTES if known.allows_large_fetches else _MIN_SAMPLE_BYTES):
            most = _MAX_RATIO_TO_KEEP if known.allows_large_fetches else _MAX_RATIO_TO_ALLOW
            known.allows_large_fetches = known.inflated <= most * known.received
            known.received = known.inflated = 0


@functools.cache
def get_compression_stats(servers: str) -> CompressionStats:
    """Return this process's statistics of the cluster at `servers`."""
    return CompressionStats()
