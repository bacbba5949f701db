"""Prefetches many small ranges at once, which saves a round trip per range.

This module handles no errors. It leaves out a range that did not arrive completely; `range_reader`
then reads that range separately and handles its errors.

The first range of a topic is read separately as well. It shows how large the topic's records are:
ranges that are too large for a task's memory are not prefetched.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pyspark_timestream.kafka.client.bounded import BoundedClient
from pyspark_timestream.kafka.client.consumer import (
    Pool,
    build_block,
    clip,
    consumer_config,
    discard_fetched,
    open_client,
)
from pyspark_timestream.kafka.client.errors import ClientLog
from pyspark_timestream.kafka.client.range_reader import CompressionStats, get_compression_stats
from pyspark_timestream.kafka.decode.records import ColumnSet, ReadRange, RecordBlock
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition, Range

_MAX_RECORDS: Final = 20_000
_MAX_BYTES: Final = 32 * 1024 * 1024
"""Limits for what a task holds before its first row; further ranges are read one by one."""

_POLL_TIMEOUT_S: Final = 0.02

_FETCH_SETTINGS: Final = {
    # A partition with a backlog must not send much more than the range.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.max.messages.kbytes": 64 * 1024,
    # This limits the bytes decompressed at once, over all partitions.
    "fetch.max.bytes": 1024 * 1024,
}


def choose_small_ranges(
    spans: Iterable[Range], record_bytes: Callable[[str], float | None]
) -> list[Range]:
    """Choose the ranges to read at once, smallest first; none if there would be only one.

    Topics whose mean size of records, `record_bytes`, is unknown are left out.
    """
    sized = [(span, record_bytes(span.partition.topic)) for span in spans if span.size]
    sizes = sorted((span.size, span, size) for span, size in sized if size is not None)
    records = itertools.accumulate(count for count, _, _ in sizes)
    volumes = itertools.accumulate(count * size for count, _, size in sizes)
    chosen = [
        span
        for (_, span, _), count, volume in zip(sizes, records, volumes, strict=True)
        if count <= _MAX_RECORDS and volume <= _MAX_BYTES
    ]
    # A consumer has one position in a partition, so two ranges of one cannot be read at once.
    is_once = len({span.partition for span in chosen}) == len(chosen)
    return chosen if len(chosen) > 1 and is_once else []


def prefetch_small_ranges(
    options: KafkaOptions,
    group: str,
    spans: Sequence[Range],
    needs: ColumnSet,
    read: ReadRange,
    *,
    known: CompressionStats | None = None,
    fetch: Callable[..., dict[Range, list[RecordBlock]]] | None = None,
) -> ReadRange:
    """Wrap `read` so that small ranges among `spans` are prefetched; each is delivered once.

    The first request for a small range fetches a group of them. The next group is fetched only
    after this one has been delivered completely.
    """
    known = known or get_compression_stats(options.client["bootstrap.servers"])
    fetch = fetch or fetch_ranges
    ahead: dict[Range, list[RecordBlock]] = {}
    later = list(spans)

    def read_ahead(span: Range, columns: ColumnSet) -> Iterator[RecordBlock]:
        if columns != needs:
            return read(span, columns)
        if span in later:
            small = [] if ahead else choose_small_ranges(later, known.mean_record_bytes)
            if span in small:
                ahead.update(fetch(options, group, small, needs))
            for tried in small if span in small else [span]:
                later.remove(tried)
        blocks = ahead.pop(span, None)
        return read(span, columns) if blocks is None else iter(blocks)

    return read_ahead


def fetch_ranges(
    options: KafkaOptions, group: str, spans: Sequence[Range], needs: ColumnSet
) -> dict[Range, list[RecordBlock]]:
    """Fetch `spans`, and return the records of the ranges that arrived completely."""
    key = (group, *options.client.items())
    with _POOL.acquire(key, lambda: Prefetcher(options, group)) as reader:
        return reader.read(spans, needs)


class Prefetcher:
    """Reads small ranges of different partitions with one consumer, kept from batch to batch.

    The consumer never joins its group. After `max_stall_s` without progress it gives up, and the
    remaining ranges are read one by one.
    """

    def __init__(
        self,
        options: KafkaOptions,
        group: str,
        *,
        create: Callable[..., Any] = Consumer,
        clock: Callable[[], float] = time.monotonic,
        max_stall_s: float = 1.0,
    ) -> None:
        self._options, self._create = options, create
        self._clock, self._max_stall_s = clock, max_stall_s
        fetch = {
            name: value for name, value in _FETCH_SETTINGS.items() if name not in options.client
        }
        self._config: dict[str, Any] = {**consumer_config(options, group), **fetch}
        self._consumer: BoundedClient | None = None

    def read(self, spans: Sequence[Range], needs: ColumnSet) -> dict[Range, list[RecordBlock]]:
        """Return the records of the ranges that arrived completely, as one block or none each."""
        fetch, is_new = PartialFetch(spans), self._consumer is None
        try:
            self._collect(spans, fetch)
        except KafkaException:
            fetch.failed = True
        is_late = fetch.missing_offsets and not is_new
        if fetch.failed or is_late or self._consumer is None:
            # Its view of the cluster may be outdated. A new consumer that is only late is kept: it
            # may be slow to connect, and another one would not be faster.
            self.close()
        else:
            try:
                self._consumer.run(discard_fetched, 0, "unassign")
            except KafkaException:
                self.close()
        return {
            span: _build_blocks(span, records, needs) for span, records in fetch.complete_ranges()
        }

    def _collect(self, spans: Sequence[Range], fetch: "PartialFetch") -> None:
        if self._consumer is None:
            log = ClientLog(self._options.client)
            self._consumer = open_client(self._create, self._config, log)
        self._consumer.assign(
            [TopicPartition(*span.partition, span.start_inclusive) for span in spans]
        )
        progress_s = self._clock()
        while fetch.missing_offsets and self._clock() - progress_s < self._max_stall_s:
            if fetch.add(self._consumer.consume(fetch.missing_offsets, timeout=_POLL_TIMEOUT_S)):
                progress_s = self._clock()

    def close(self) -> None:
        """Release the consumer."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None


class PartialFetch:
    """The records received so far for ranges of different partitions, until an error (`failed`)."""

    def __init__(self, spans: Iterable[Range]) -> None:
        self._spans: Mapping[Partition, Range] = {span.partition: span for span in spans}
        self._reached = {partition: span.start_inclusive for partition, span in self._spans.items()}
        self._records: dict[Partition, list[Message]] = {partition: [] for partition in self._spans}
        self._bytes = 0
        self._broken: set[Partition] = set()
        self.failed = False

    @property
    def missing_offsets(self) -> int:
        """Return the number of offsets that may still arrive; 0 if waiting is of no use."""
        if self._bytes > _MAX_BYTES or self.failed:
            return 0
        return sum(max(s.end_exclusive - self._reached[p], 0) for p, s in self._spans.items())

    def add(self, polled: Sequence[Message]) -> bool:
        """Add polled messages; return whether any range made progress."""
        moved = False
        for partition, run in itertools.groupby(polled, _partition_of):
            if partition in self._spans:
                moved |= self._add_run(partition, list(run))
            else:
                self.failed |= any(message.error() is not None for message in run)
        return moved

    def _add_run(self, partition: Partition, run: Sequence[Message]) -> bool:
        before, end = self._reached[partition], self._spans[partition].end_exclusive
        for message in run:
            error = message.error()
            if error is None:
                if self._reached[partition] < end:
                    self._records[partition].append(message)
                    self._bytes += len(message)
                self._reached[partition] = max(self._reached[partition], message.offset() + 1)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._reached[partition] = max(self._reached[partition], message.offset())
            else:
                self.failed = True
                if self._reached[partition] < end:
                    # librdkafka skips a batch that it cannot read, so the records after an error
                    # need not follow those before it.
                    self._broken.add(partition)
        return self._reached[partition] > before

    def complete_ranges(self) -> list[tuple[Range, list[Message]]]:
        """Return the ranges read to their ends, with their records and at most one more."""
        return [
            (span, self._records[partition])
            for partition, span in self._spans.items()
            if self._reached[partition] >= span.end_exclusive and partition not in self._broken
        ]


_POOL: Final[Pool[Prefetcher]] = Pool(most=2, idle_s=300)


def _build_blocks(span: Range, records: Sequence[Message], needs: ColumnSet) -> list[RecordBlock]:
    block = clip(build_block(records, needs), span.end_exclusive) if records else None
    return [] if block is None else [block]


def _partition_of(message: Message) -> Partition:
    return Partition(message.topic(), message.partition())
