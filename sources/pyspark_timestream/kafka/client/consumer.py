"""Taking records from confluent-kafka's messages: the path that needs no compiler.

`MessageConsumer` and `kafka_native.NativeConsumer` do the same work behind the same methods.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.config import let_go, logged_client
from pyspark_timestream.kafka.decode.columns import METADATA
from pyspark_timestream.kafka.decode.records import Needs, RecordBlock
from pyspark_timestream.kafka.ranges import Partition, Range

__all__ = [
    "BLOCK_RECORDS",
    "ColumnConsumer",
    "MessageConsumer",
    "Problem",
    "Taken",
    "at_rest",
    "block_of_messages",
    "inside",
]

BLOCK_RECORDS: Final = 20_000
_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""A block is about so large: its messages, and the copy of them, are in memory at once."""

_AT_ONCE: Final = 256
"""Messages are taken so many at a time, fewer where they are large."""

_COMMIT_TIMEOUT_S: Final = 10.0
_SWEPT: Final = 1_000
"""Above the number of errors that may be in the queue; what is out of date does not count."""


class Problem(NamedTuple):
    """An error among the records; `topic` is None, the numbers negative, where it has none."""

    error: KafkaError
    topic: str | None
    partition: int
    offset: int


class Taken(NamedTuple):
    """What a consumer had for a range.

    Attributes:
        block: records in offset order, none of them at the range's end or later; None: none.
        reached: every record of the range below it was delivered or does not exist.
        problems: errors other than the end of a partition, in order.
        records: how many records came, also of other ranges.
        inflated: the bytes of their keys and values, as far as they are known.
    """

    block: RecordBlock | None
    reached: int
    problems: tuple[Problem, ...]
    records: int = 0
    inflated: int = 0


class ColumnConsumer(Protocol):
    """What reads ranges and commits offsets; errors of its own are KafkaExceptions."""

    @property
    def received(self) -> int:
        """The bytes that brokers have sent in answer to fetches so far; 0 where nobody counts."""

    def aim(self, partition: Partition, offset: int) -> None:
        """Fetch this partition from `offset`, and forget what was fetched before."""

    def rest(self) -> None:
        """Stop fetching, and free what was fetched."""

    def take(self, span: Range, position: int, needs: Needs, wait_s: float) -> Taken:
        """Records of `span`, aimed at, from `position` on; waits at most `wait_s`."""

    def existing(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """The first offset that the broker has, and the one after the last."""

    def is_connected(self, timeout_s: float) -> bool:
        """Whether any broker has ever answered."""

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        """Commit (offset, metadata) to the group; the partitions that were refused, and why."""

    def close(self) -> None:
        """Release connections and memory."""


class MessageConsumer:
    """A `ColumnConsumer` over confluent-kafka's consumer.

    Args:
        config: librdkafka's configuration.
        log: hears the client's errors and log lines.

    Raises:
        KafkaException: librdkafka refuses `config`.
    """

    def __init__(self, config: Mapping[str, Any], log: ClientLog) -> None:
        self._answers: dict[frozenset[tuple[Partition, int]], dict[Partition, KafkaError]] = {}
        self._at_once = 1
        own = {**config, "on_commit": self._on_commit}
        self._consumer = logged_client(Consumer, own, log)

    @property
    def received(self) -> int:
        """See `ColumnConsumer`."""
        return 0

    def aim(self, partition: Partition, offset: int) -> None:
        """See `ColumnConsumer`; a new assignment discards what was fetched for the one before."""
        self._consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def rest(self) -> None:
        """See `ColumnConsumer`."""
        at_rest(self._consumer)

    def take(self, span: Range, position: int, needs: Needs, wait_s: float) -> Taken:
        """See `ColumnConsumer`."""
        wanted = min(BLOCK_RECORDS, span.end_exclusive - position)
        polled, inflated = self._poll(wanted, wait_s)
        records, others = _sorted_out(polled)
        reached = records[-1].offset() + 1 if records else position
        for other in others:
            if _is_end(other) and (other.topic, other.partition) == span.partition:
                reached = max(reached, other.offset)
        block = inside(block_of_messages(records, needs), span.end_exclusive) if records else None
        problems = tuple(other for other in others if not _is_end(other))
        return Taken(block, reached, problems, len(records), inflated)

    def _poll(self, most: int, wait_s: float) -> tuple[list[Message], int]:
        """At most so many messages, of about a block's bytes, and how many bytes they are.

        What is there is taken, and then one is waited for: what comes while many are waited for may
        be of any size.
        """
        deadline_s = time.monotonic() + wait_s
        polled: list[Message] = []
        inflated = 0
        while len(polled) < most and inflated < _BLOCK_BYTES:
            some = self._consumer.consume(min(most - len(polled), self._at_once), timeout=0)
            left_s = deadline_s - time.monotonic()
            if not some and left_s > 0:
                some = self._consumer.consume(1, timeout=left_s)
            if not some:
                break
            size = sum(map(len, some))
            polled += some
            inflated += size
            self._at_once = min(max(_BLOCK_BYTES * len(some) // max(size, 1), 1), _AT_ONCE)
        return polled, inflated

    def existing(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """See `ColumnConsumer`."""
        part = TopicPartition(partition.topic, partition.number)
        earliest, end = self._consumer.get_watermark_offsets(part, timeout=timeout_s)
        return int(earliest), int(end)

    def is_connected(self, timeout_s: float) -> bool:
        """See `ColumnConsumer`."""
        try:
            return bool(self._consumer.list_topics(timeout=timeout_s).brokers)
        except KafkaException:
            return False

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        """See `ColumnConsumer`."""
        self._answers.clear()
        wanted = [
            TopicPartition(part.topic, part.number, offset, metadata)
            for part, (offset, metadata) in offsets.items()
        ]
        try:
            self._consumer.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            return dict.fromkeys(offsets, error.args[0])
        deadline = time.monotonic() + _COMMIT_TIMEOUT_S
        # An answer that came too late must not pass for that of the next commit.
        key = frozenset((part, offset) for part, (offset, _) in offsets.items())
        while key not in self._answers and time.monotonic() < deadline:
            self._consumer.poll(0.001)
        late = KafkaError(KafkaError._TIMED_OUT, f"no answer in {_COMMIT_TIMEOUT_S:.0f} s")
        return self._answers.get(key, dict.fromkeys(offsets, late))

    def close(self) -> None:
        """See `ColumnConsumer`."""
        let_go(self._consumer.close)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        refusals = {Partition(p.topic, p.partition): p.error or error for p in partitions}
        key = frozenset((Partition(p.topic, p.partition), p.offset) for p in partitions)
        self._answers[key] = {part: each for part, each in refusals.items() if each is not None}


def at_rest(consumer: Consumer) -> None:
    """Assign nothing to `consumer`, and free what it has fetched.

    An assignment's end makes that out of date, but librdkafka keeps it until somebody takes from
    the queue: up to `queued.max.messages.kbytes`, for as long as the consumer rests.
    """
    consumer.unassign()
    consumer.consume(_SWEPT, timeout=0)


def _sorted_out(polled: list[Message]) -> tuple[list[Message], list[Problem]]:
    """The records and the errors among what a consumer gave."""
    errors = _each(polled, "error")
    # Compared with None, an error would leave a TypeError behind for whatever is called next.
    if not any(errors):
        return polled, []
    records = [message for message, error in zip(polled, errors, strict=True) if error is None]
    return records, [_problem(message) for message in polled if message.error() is not None]


def _each(messages: Sequence[Message], field: str) -> list[Any]:
    """A field of every message; one lookup for all of them is a fifth of a read's speed."""
    return list(map(getattr(type(messages[0]), field), messages)) if messages else []


def _problem(message: Message) -> Problem:
    partition, offset = message.partition(), message.offset()
    return Problem(
        message.error(),
        message.topic(),
        -1 if partition is None else partition,
        -1 if offset is None else offset,
    )


def _is_end(problem: Problem) -> bool:
    return bool(problem.error.code() == KafkaError._PARTITION_EOF)


def inside(block: RecordBlock, end_exclusive: int) -> RecordBlock | None:
    """The part of `block` before `end_exclusive`: a range's last records may be missing."""
    count = int(np.searchsorted(block.offsets.to_numpy(), end_exclusive))
    if count == len(block.offsets):
        return block
    return RecordBlock(*(c if c is None else c.slice(0, count) for c in block)) if count else None


def block_of_messages(records: Sequence[Message], needs: Needs) -> RecordBlock:
    """The needed fields of confluent-kafka's messages, of one partition, as columns."""
    stamps = types = None
    if needs.timestamps:
        flat = itertools.chain.from_iterable(_each(records, "timestamp"))
        pairs = np.fromiter(flat, np.int64, 2 * len(records)).reshape(-1, 2)
        # librdkafka counts the types from 0 = none, Spark's timestampType from -1.
        types = pa.array((pairs[:, 0] - 1).astype(np.int32))
        stamps = pa.array(np.where(pairs[:, 0] > 0, pairs[:, 1], -1))
    return RecordBlock(
        offsets=_offsets(records),
        timestamps_ms=stamps,
        timestamp_types=types,
        keys=pa.array(_each(records, "key"), pa.binary()) if needs.keys else None,
        values=pa.array(_each(records, "value"), pa.binary()) if needs.values else None,
        headers=pa.array(_each(records, "headers"), METADATA["headers"]) if needs.headers else None,
    )


def _offsets(records: Sequence[Message]) -> pa.Array:
    """They only grow: where there are as many as from the first to the last, there is no gap."""
    first, last = (records[end].offset() for end in (0, -1))
    if last - first + 1 == len(records):
        return pa.array(np.arange(first, last + 1))
    return pa.array(_each(records, "offset"), pa.int64())
