"""Reading many small ranges at once: asked for in turn, each would cost a task its own round trip.

What goes wrong here is nobody's loss: a range that did not come whole is simply not among the
results, and is then read by itself, by the code that knows what to do about it.

A topic's first range is read by itself as well: how large its records are is known from then on,
and what is too large to be held by a task is not read ahead.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.config import consumer_config, let_go, logged_client, made
from pyspark_timestream.kafka.client.consumer import at_rest, block_of_messages, inside
from pyspark_timestream.kafka.client.fetch_size import inflation_of
from pyspark_timestream.kafka.client.pool import Stock
from pyspark_timestream.kafka.decode.records import Needs, RecordBlock
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.kafka.task import ReadRange

__all__ = ["Arrivals", "SmallRanges", "small_ranges", "with_small_ranges"]

_MOST_RECORDS: Final = 20_000
_MOST_BYTES: Final = 32 * 1024 * 1024
"""What a task holds at most before its first row; what is above is read in turn."""

_WAIT_S: Final = 0.02
_PATIENCE_S: Final = 1.0
"""After so long without news the rest is read in turn, where errors and patience are at home."""

_FETCH: Final = {
    # Of a partition with a backlog little more than the range is wanted.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.max.messages.kbytes": 64 * 1024,
    # What is inflated at once, of however many partitions.
    "fetch.max.bytes": 1024 * 1024,
}


def small_ranges(
    spans: Iterable[Range], record_bytes: Callable[[str], float | None]
) -> list[Range]:
    """Those of `spans` to read at once, the smallest first; none where there would be just one.

    Args:
        spans: the ranges of a task.
        record_bytes: the mean size of a topic's records; None where it is not known: its ranges
            are not read at once.
    """
    known = [(span, record_bytes(span.partition.topic)) for span in spans if span.size]
    sizes = sorted((span.size, span, size) for span, size in known if size is not None)
    records = itertools.accumulate(count for count, _, _ in sizes)
    volumes = itertools.accumulate(count * size for count, _, size in sizes)
    chosen = [
        span
        for (_, span, _), count, volume in zip(sizes, records, volumes, strict=True)
        if count <= _MOST_RECORDS and volume <= _MOST_BYTES
    ]
    # A partition has one position at a time.
    is_once = len({span.partition for span in chosen}) == len(chosen)
    return chosen if len(chosen) > 1 and is_once else []


def with_small_ranges(
    options: KafkaOptions, group: str, spans: Sequence[Range], needs: Needs, read: ReadRange
) -> ReadRange:
    """`read`, with the small ones among `spans` read ahead; each is delivered once.

    What is read ahead is read when the first of it is asked for, and nothing more before all of it
    was taken.
    """
    known = inflation_of(options.client["bootstrap.servers"])
    ahead: dict[Range, list[RecordBlock]] = {}
    later = list(spans)

    def read_ahead(span: Range, wanted: Needs) -> Iterator[RecordBlock]:
        if wanted != needs:
            return read(span, wanted)
        if span in later:
            small = [] if ahead else small_ranges(later, known.record_bytes)
            if span in small:
                ahead.update(_read_at_once(options, group, small, needs))
            for tried in small if span in small else [span]:
                later.remove(tried)
        blocks = ahead.pop(span, None)
        return read(span, wanted) if blocks is None else iter(blocks)

    return read_ahead


def _read_at_once(
    options: KafkaOptions, group: str, spans: Sequence[Range], needs: Needs
) -> dict[Range, list[RecordBlock]]:
    """The records of those of `spans` that came whole."""
    key = (group, *options.client.items())
    with _STOCK.borrowed(key, lambda: SmallRanges(options, group)) as reader:
        return reader.read(spans, needs)


class SmallRanges:
    """Reads small ranges of different partitions with one consumer, kept from batch to batch.

    Args:
        options: the client configuration.
        group: a consumer group; it is never joined.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        fetch = {name: value for name, value in _FETCH.items() if name not in options.client}
        self._config: dict[str, Any] = {**consumer_config(options, group), **fetch}
        self._consumer: Consumer | None = None

    def read(self, spans: Sequence[Range], needs: Needs) -> dict[Range, list[RecordBlock]]:
        """The records of those of `spans` that came whole; no block where a range has none."""
        arrivals, is_new = Arrivals(spans), self._consumer is None
        try:
            self._collect(spans, arrivals)
        except KafkaException:
            arrivals.troubled = True
        is_late = arrivals.missing and not is_new
        if arrivals.troubled or is_late or self._consumer is None:
            # What it knows of the cluster may be out of date; a new one may be slow to connect, and
            # another would be no faster.
            self.close()
        else:
            at_rest(self._consumer)
        return {span: _blocks(span, records, needs) for span, records in arrivals.whole()}

    def _collect(self, spans: Sequence[Range], arrivals: "Arrivals") -> None:
        if self._consumer is None:
            log = ClientLog(self._options.client)
            self._consumer = made(self._options, lambda: logged_client(Consumer, self._config, log))
        self._consumer.assign(
            [TopicPartition(*span.partition, span.start_inclusive) for span in spans]
        )
        heard_s = time.monotonic()
        while arrivals.missing and time.monotonic() - heard_s < _PATIENCE_S:
            if arrivals.take(self._consumer.consume(arrivals.missing, timeout=_WAIT_S)):
                heard_s = time.monotonic()

    def close(self) -> None:
        """Release the consumer."""
        if self._consumer is not None:
            let_go(self._consumer.close)
        self._consumer = None


class Arrivals:
    """What has come of ranges of different partitions.

    Attributes:
        missing: how many offsets may still come; 0: there is nothing to wait for.
        troubled: an error has come.
    """

    def __init__(self, spans: Iterable[Range]) -> None:
        self._spans: Mapping[Partition, Range] = {span.partition: span for span in spans}
        self._reached = {part: span.start_inclusive for part, span in self._spans.items()}
        self._records: dict[Partition, list[Message]] = {part: [] for part in self._spans}
        self._bytes = 0
        self._broken: set[Partition] = set()
        self.troubled = False

    @property
    def missing(self) -> int:
        """How many offsets may still come."""
        if self._bytes > _MOST_BYTES or self.troubled:
            return 0
        return sum(max(s.end_exclusive - self._reached[p], 0) for p, s in self._spans.items())

    def take(self, polled: Sequence[Message]) -> bool:
        """Note what a consumer gave; whether any range has got on by it."""
        moved = False
        for part, run in itertools.groupby(polled, _partition_of):
            if part in self._spans:
                moved |= self._take_of(part, list(run))
            else:
                self.troubled |= any(message.error() is not None for message in run)
        return moved

    def _take_of(self, part: Partition, run: Sequence[Message]) -> bool:
        before, end = self._reached[part], self._spans[part].end_exclusive
        for message in run:
            error = message.error()
            if error is None:
                if self._reached[part] < end:
                    self._records[part].append(message)
                    self._bytes += len(message)
                self._reached[part] = max(self._reached[part], message.offset() + 1)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._reached[part] = max(self._reached[part], message.offset())
            else:
                self.troubled = True
                if self._reached[part] < end:
                    # What comes behind an error need not follow what came before it: librdkafka
                    # passes over a batch that it cannot read.
                    self._broken.add(part)
        return self._reached[part] > before

    def whole(self) -> list[tuple[Range, list[Message]]]:
        """The ranges that were read to their end, and their records (maybe one more)."""
        return [
            (span, self._records[part])
            for part, span in self._spans.items()
            if self._reached[part] >= span.end_exclusive and part not in self._broken
        ]


_STOCK: Final[Stock[SmallRanges]] = Stock(most=2, idle_s=300)


def _blocks(span: Range, records: Sequence[Message], needs: Needs) -> list[RecordBlock]:
    block = inside(block_of_messages(records, needs), span.end_exclusive) if records else None
    return [] if block is None else [block]


def _partition_of(message: Message) -> Partition:
    return Partition(message.topic(), message.partition())
