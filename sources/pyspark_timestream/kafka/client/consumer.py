"""The protocol of consumers, and its implementation with confluent-kafka's messages.

`MessageConsumer` needs no compiled code. `native.consumer.NativeConsumer` implements the same
protocol and is faster.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pyspark_timestream.kafka.client.bounded import (
    close_with_timeout,
)
from pyspark_timestream.kafka.client.config import new_logged_client
from pyspark_timestream.kafka.client.errors import ClientLog
from pyspark_timestream.kafka.decode.records import METADATA, ColumnSet, RecordBlock
from pyspark_timestream.kafka.ranges import Partition, Range

MAX_BLOCK_RECORDS: Final = 20_000
_MAX_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""Approximate limit, because the messages and their copy are in memory at the same time."""

_MAX_MESSAGES_PER_CALL: Final = 256
"""Maximum per call; with large messages a call takes fewer."""

COMMIT_TIMEOUT_S: Final = 10.0
_MAX_DISCARDED_MESSAGES: Final = 1_000
"""More than the errors that the queue can hold; outdated messages do not count."""


class ConsumerError(NamedTuple):
    """An error among the records; without a place, `topic` is None and the numbers are negative."""

    error: KafkaError
    topic: str | None
    partition: int
    offset: int


class PollResult(NamedTuple):
    """The result of one poll for a range.

    Attributes:
        block: records in offset order, before the end of the range; None if there are none.
        reached: an offset; every record of the range below it was delivered or does not exist.
        errors: errors other than the end of a partition, in order.
        records: number of records received, including those of other ranges.
        inflated: decompressed bytes of their keys and values, if known.
    """

    block: RecordBlock | None
    reached: int
    errors: tuple[ConsumerError, ...]
    records: int = 0
    inflated: int = 0


class ColumnConsumer(Protocol):
    """Reads ranges as columns and commits offsets; raises KafkaException."""

    @property
    def received_bytes(self) -> int:
        """Bytes of all fetch answers so far; 0 if they are not counted."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Fetch this partition from `offset` on, and discard records fetched before."""

    def pause(self) -> None:
        """Stop fetching, and free fetched records."""

    def poll(self, span: Range, position: int, needs: ColumnSet, wait_s: float) -> PollResult:
        """Return records of `span` from `position` on; wait at most `wait_s` for them."""

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """Return the first existing offset, and the one after the last."""

    def is_connected(self, timeout_s: float) -> bool:
        """Return whether a broker has ever answered."""

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        """Commit (offset, metadata) to the group; return the errors of refused partitions."""

    def close(self) -> None:
        """Release connections and memory."""

    def abandon(self) -> None:
        """Prepare for a call that never returns: do not release anything when the process ends."""


class MessageConsumer:
    """A `ColumnConsumer` over confluent-kafka's consumer, which `create` makes."""

    def __init__(
        self,
        config: Mapping[str, Any],
        log: ClientLog,
        create: Callable[..., Any] = Consumer,
    ) -> None:
        self._answers: dict[frozenset[tuple[Partition, int]], dict[Partition, KafkaError]] = {}
        self._messages_per_call = 1
        settings = {**config, "on_commit": self._on_commit}
        self._consumer = new_logged_client(create, settings, log)

    @property
    def received_bytes(self) -> int:
        """See `ColumnConsumer`."""
        return 0

    def seek(self, partition: Partition, offset: int) -> None:
        """See `ColumnConsumer`; a new assignment discards records fetched before."""
        self._consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def pause(self) -> None:
        """See `ColumnConsumer`."""
        discard_fetched(self._consumer)

    def poll(self, span: Range, position: int, needs: ColumnSet, wait_s: float) -> PollResult:
        """See `ColumnConsumer`."""
        most = min(MAX_BLOCK_RECORDS, span.end_exclusive - position)
        polled, inflated = self._consume(most, wait_s)
        records, others = _split_errors(polled)
        reached = records[-1].offset() + 1 if records else position
        for other in others:
            if _is_partition_end(other) and (other.topic, other.partition) == span.partition:
                reached = max(reached, other.offset)
        block = clip(build_block(records, needs), span.end_exclusive) if records else None
        problems = tuple(other for other in others if not _is_partition_end(other))
        return PollResult(block, reached, problems, len(records), inflated)

    def _consume(self, most: int, wait_s: float) -> tuple[list[Message], int]:
        """Return at most `most` messages, with about a block's bytes, and the number of bytes."""
        # Take the messages that have arrived, and wait only for a single one: a call that waits for
        # many could return any number of bytes.
        deadline_s = time.monotonic() + wait_s
        polled: list[Message] = []
        inflated = 0
        while len(polled) < most and inflated < _MAX_BLOCK_BYTES:
            some = self._consumer.consume(
                min(most - len(polled), self._messages_per_call), timeout=0
            )
            left_s = deadline_s - time.monotonic()
            if not some and left_s > 0:
                some = self._consumer.consume(1, timeout=left_s)
            if not some:
                break
            size = sum(map(len, some))
            polled += some
            inflated += size
            self._messages_per_call = min(
                max(_MAX_BLOCK_BYTES * len(some) // max(size, 1), 1), _MAX_MESSAGES_PER_CALL
            )
        return polled, inflated

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
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
        positions = [
            TopicPartition(partition.topic, partition.number, offset, metadata)
            for partition, (offset, metadata) in offsets.items()
        ]
        try:
            self._consumer.commit(offsets=positions, asynchronous=True)
        except KafkaException as error:
            return dict.fromkeys(offsets, error.args[0])
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        # Match the answer by partitions and offsets: a late one must not be taken for this one.
        key = frozenset((partition, offset) for partition, (offset, _) in offsets.items())
        while key not in self._answers and time.monotonic() < deadline:
            self._consumer.poll(0.001)
        late = KafkaError(KafkaError._TIMED_OUT, f"no answer in {COMMIT_TIMEOUT_S:.0f} s")
        return self._answers.get(key, dict.fromkeys(offsets, late))

    def close(self) -> None:
        """See `ColumnConsumer`."""
        close_with_timeout(self._consumer.close)

    def abandon(self) -> None:
        """See `ColumnConsumer`; the thread of the call keeps the client."""

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        refusals = {Partition(p.topic, p.partition): p.error or error for p in partitions}
        key = frozenset((Partition(p.topic, p.partition), p.offset) for p in partitions)
        self._answers[key] = {
            partition: each for partition, each in refusals.items() if each is not None
        }


def discard_fetched(consumer: Consumer) -> None:
    """Assign nothing to `consumer`, and free the messages that it has fetched."""
    consumer.unassign()
    # They are outdated now, but librdkafka keeps up to `queued.max.messages.kbytes` of them until
    # the queue is read.
    consumer.consume(_MAX_DISCARDED_MESSAGES, timeout=0)


def _split_errors(polled: list[Message]) -> tuple[list[Message], list[ConsumerError]]:
    errors = _read_field(polled, "error")
    # Do not compare with None: that leaves a TypeError behind, which the next call would raise.
    if not any(errors):
        return polled, []
    records = [message for message, error in zip(polled, errors, strict=True) if error is None]
    return records, [_to_error(message) for message in polled if message.error() is not None]


def _read_field(messages: Sequence[Message], field: str) -> list[Any]:
    """Read a field of every message; looking the method up once makes this a fifth faster."""
    return list(map(getattr(type(messages[0]), field), messages)) if messages else []


def _to_error(message: Message) -> ConsumerError:
    partition, offset = message.partition(), message.offset()
    return ConsumerError(
        message.error(),
        message.topic(),
        -1 if partition is None else partition,
        -1 if offset is None else offset,
    )


def _is_partition_end(problem: ConsumerError) -> bool:
    return bool(problem.error.code() == KafkaError._PARTITION_EOF)


def clip(block: RecordBlock, end_exclusive: int) -> RecordBlock | None:
    """Return the part of `block` before `end_exclusive`; None if it is empty."""
    count = int(np.searchsorted(block.offsets.to_numpy(), end_exclusive))
    if count == len(block.offsets):
        return block
    return RecordBlock(*(c if c is None else c.slice(0, count) for c in block)) if count else None


def build_block(records: Sequence[Message], needs: ColumnSet) -> RecordBlock:
    """Build columns from the requested fields of one partition's messages."""
    stamps = types = None
    if needs.timestamps:
        flat = itertools.chain.from_iterable(_read_field(records, "timestamp"))
        pairs = np.fromiter(flat, np.int64, 2 * len(records)).reshape(-1, 2)
        # librdkafka counts the types from 0 = none, Spark's timestampType from -1.
        types = pa.array((pairs[:, 0] - 1).astype(np.int32))
        stamps = pa.array(np.where(pairs[:, 0] > 0, pairs[:, 1], -1))
    return RecordBlock(
        offsets=_build_offsets(records),
        timestamps_ms=stamps,
        timestamp_types=types,
        keys=pa.array(_read_field(records, "key"), pa.binary()) if needs.keys else None,
        values=pa.array(_read_field(records, "value"), pa.binary()) if needs.values else None,
        headers=pa.array(_read_field(records, "headers"), METADATA["headers"])
        if needs.headers
        else None,
    )


def _build_offsets(records: Sequence[Message]) -> pa.Array:
    """Build the offset column; since offsets increase, a full count means that there is no gap."""
    first, last = (records[end].offset() for end in (0, -1))
    if last - first + 1 == len(records):
        return pa.array(np.arange(first, last + 1))
    return pa.array(_read_field(records, "offset"), pa.int64())
