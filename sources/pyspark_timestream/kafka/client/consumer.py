"""Configures and pools clients of librdkafka, and reads with confluent-kafka's messages.

`MessageConsumer` needs no compiled code. `native_consumer.NativeConsumer` implements the same
protocol and is faster.

Creating a client costs more than a small task. Spark reuses its Python workers and gives them tasks
of several queries in any order, so a pool keeps a few clients of each kind, under a key that holds
everything a client was created from.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pyspark_timestream.core.declarations import hide_secrets
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.client.bounded import (
    GRACE_S,
    BoundedClient,
    call_bounded,
    close_with_timeout,
)
from pyspark_timestream.kafka.client.errors import ClientLog, error_text
from pyspark_timestream.kafka.decode.records import METADATA, ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.keys import RECORD_KEYS
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

T = TypeVar("T")

_REQUIRED: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # A position that does not exist must be an error, never a silent jump.
    "auto.offset.reset": "error",
}
_DEFAULTS: Final[dict[str, Any]] = {
    "isolation.level": RECORD_KEYS["isolation.level"],
    # Kafka's Java client checks them too; the cost is not measurable.
    "check.crcs": True,
    # Fetch buffers that fit the CPU caches make a read 10 to 20 % faster, and a smaller first
    # answer brings the first records sooner.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 2 * 1024 * 1024,
    # By default librdkafka stops fetching for a second whenever a queue was full.
    "fetch.queue.backoff.ms": 5,
    # A fetch past a range's end finds nothing, and the next range waits for its answer. Ranges only
    # hold existing records, so a broker never needs to wait for new ones.
    "fetch.wait.max.ms": 5,
}
_RECONNECT_DEFAULTS: Final[dict[str, Any]] = {
    # The first connection may wait for half of this.
    "reconnect.backoff.ms": 20,
    # As in Kafka's Java client: a restarted broker is found after one second, not ten.
    "reconnect.backoff.max.ms": 1_000,
}
_CONSUMER_PREFIXES: Final = ("group.", "fetch.", "queued.", "isolation.", "session.", "heartbeat.")
_CONSUMER_KEYS: Final = ("max.poll.interval.ms", "check.crcs", "partition.assignment.strategy")


def build_consumer_config(options: KafkaOptions, group: str) -> dict[str, Any]:
    """Build a consumer's configuration, with `group` unless the user names another one."""
    settings = options.client
    return {
        "group.id": group,
        **_DEFAULTS,
        **_reconnect_settings(settings),
        **settings,
        **_REQUIRED,
    }


def build_admin_config(options: KafkaOptions) -> dict[str, Any]:
    """Build an admin client's configuration: the user's, without keys that cause warnings."""
    settings = {
        key: value
        for key, value in options.client.items()
        if not key.startswith(_CONSUMER_PREFIXES) and key not in _CONSUMER_KEYS
    }
    return {**_reconnect_settings(settings), **settings}


def _reconnect_settings(settings: Mapping[str, str]) -> Mapping[str, Any]:
    return {} if any(name in settings for name in _RECONNECT_DEFAULTS) else _RECONNECT_DEFAULTS


def create_client(settings: Mapping[str, Any], make: Callable[[], T], option: str = "kafka.*") -> T:
    """Call `make`, and turn the refusal of a configuration into an `OptionError` on `option`."""
    try:
        return make()
    except KafkaException as error:
        prefix = option.removesuffix("*")
        raise OptionError(
            option,
            hide_secrets(error_text(error), settings),
            "librdkafka's configuration" + (f", each name after '{prefix}'" * (prefix != option)),
            "correct the name or the value",
        ) from None


def _new_logged_client(kind: Callable[..., T], config: Mapping[str, Any], log: ClientLog) -> T:
    """Create a confluent-kafka client; polling it passes its errors and log lines to `log`.

    A program's own `error_cb` is called as well.
    """
    theirs = config.get("error_cb")

    def note_error(error: KafkaError) -> None:
        # "All brokers down" adds nothing to the reason of each broker.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            log.note_error(error.code(), error.str())
        if theirs is not None:
            theirs(error)

    logged = {**config, "error_cb": note_error}
    # A user who sets librdkafka's own debug or logger gets its output unchanged.
    log_argument = {} if "debug" in config or "logger" in config else {"logger": log}
    return call_bounded(
        lambda: kind(logged, **log_argument), 2 * GRACE_S, "the creation of a client"
    )


def open_client(
    kind: Callable[..., Any],
    config: Mapping[str, Any],
    log: ClientLog,
    option: str = "kafka.*",
) -> BoundedClient:
    """Create a client as both functions above do, and bound the time of its calls."""
    client = create_client(config, lambda: _new_logged_client(kind, config, log), option)
    return BoundedClient(client)


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class Pool(Generic[C]):
    """Lends items to one user at a time, and keeps some of those that are returned.

    It keeps at most `max_idle` idle items. A return closes the items returned first if there are
    more, and items idle for longer than `idle_s`. A forked child must neither use nor close its
    parent's items: it shares their connections but has none of their threads.
    """

    def __init__(self, max_idle: int, idle_s: float) -> None:
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: dict[Hashable, tuple[C, float]] = {}
        self._owner = os.getpid()
        self._inherited: list[object] = []

    @contextlib.contextmanager
    def acquire(self, key: Hashable, make: Callable[[], C]) -> Iterator[C]:
        """Lend the item of `key`, created by `make` if there is none; close it if the block fails.

        Two users of one key get an item each; the one returned last is kept.
        """
        self._abandon_inherited()
        pooled = self._idle.pop(key, None)
        item = make() if pooled is None else pooled[0]
        try:
            yield item
        except BaseException:
            item.close()
            raise
        self._abandon_inherited()
        now_s = time.monotonic()
        returned_before = self._idle.pop(key, None)
        self._idle[key] = (item, now_s)
        replaced = [] if returned_before is None else [returned_before[0]]
        for old in (*replaced, *self._take_expired(now_s)):
            old.close()

    def _take_expired(self, now_s: float) -> list[C]:
        """Remove and return the items idle for too long, and the oldest above `max_idle`."""
        extra = len(self._idle) - self._max_idle
        # The items are in the order of their return, the oldest first.
        expired = [
            key
            for index, (key, (_, since_s)) in enumerate(self._idle.items())
            if index < extra or now_s - since_s > self._idle_s
        ]
        return [self._idle.pop(key)[0] for key in expired]

    def _abandon_inherited(self) -> None:
        if os.getpid() != self._owner:
            # Keep them for ever: freeing one would wait for threads that this process lacks.
            self._inherited.append(self._idle)
            self._idle = {}
            self._owner = os.getpid()


MAX_BLOCK_RECORDS: Final = 20_000
_MAX_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""Approximate limit, because the messages and their copy are in memory at the same time."""

_MAX_MESSAGES_PER_CALL: Final = 256
"""Maximum per call; with large messages a call takes fewer."""

COMMIT_TIMEOUT_S: Final = 10.0
_MAX_DISCARDED_MESSAGES: Final = 1_000
"""More than the errors that the queue can hold; outdated messages do not count."""


class ConsumerError(NamedTuple):
    """An error among the records; if of no partition, `topic` is None and the numbers negative."""

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
        """The bytes of all fetch answers so far; 0 if they are not counted."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Fetch this partition from `offset` on, and discard records fetched before."""

    def pause(self) -> None:
        """Stop fetching, and free fetched records."""

    def poll(
        self, offset_range: OffsetRange, position: int, columns: ColumnSet, wait_s: float
    ) -> PollResult:
        """Return records of `offset_range` from `position` on; wait at most `wait_s` for them."""

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


class UnboundedConsumer(ColumnConsumer, Protocol):
    """A `ColumnConsumer` with calls of librdkafka that may never return."""

    def abandon(self) -> None:
        """Prepare for a call that never returns: do not release anything when the process ends."""


class MessageConsumer:
    """A `ColumnConsumer` over confluent-kafka's consumer."""

    def __init__(self, config: Mapping[str, Any], log: ClientLog) -> None:
        self._answers: dict[frozenset[tuple[Partition, int]], dict[Partition, KafkaError]] = {}
        self._messages_per_call = 1
        settings = {**config, "on_commit": self._on_commit}
        self._consumer = _new_logged_client(Consumer, settings, log)

    @property
    def received_bytes(self) -> int:
        """The bytes of all fetch answers so far; see `ColumnConsumer`."""
        return 0

    def seek(self, partition: Partition, offset: int) -> None:
        """See `ColumnConsumer`; a new assignment discards records fetched before."""
        self._consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def pause(self) -> None:
        """See `ColumnConsumer`."""
        discard_fetched(self._consumer)

    def poll(
        self, offset_range: OffsetRange, position: int, columns: ColumnSet, wait_s: float
    ) -> PollResult:
        """See `ColumnConsumer`."""
        max_records = min(MAX_BLOCK_RECORDS, offset_range.end_exclusive - position)
        messages, inflated = self._consume(max_records, wait_s)
        records, others = _split_errors(messages)
        reached = records[-1].offset() + 1 if records else position
        for problem in others:
            if (
                _is_partition_end(problem)
                and (problem.topic, problem.partition) == offset_range.partition
            ):
                reached = max(reached, problem.offset)
        block = (
            clip(build_record_block(records, columns), offset_range.end_exclusive)
            if records
            else None
        )
        problems = tuple(problem for problem in others if not _is_partition_end(problem))
        return PollResult(block, reached, problems, len(records), inflated)

    def _consume(self, max_records: int, wait_s: float) -> tuple[list[Message], int]:
        """Return at most `max_records` messages, of about a block's bytes, and their bytes."""
        # Take the messages that have arrived, and wait only for a single one: a call that waits for
        # many could return any number of bytes.
        deadline_s = time.monotonic() + wait_s
        messages: list[Message] = []
        inflated = 0
        while len(messages) < max_records and inflated < _MAX_BLOCK_BYTES:
            fetched = self._consumer.consume(
                min(max_records - len(messages), self._messages_per_call), timeout=0
            )
            left_s = deadline_s - time.monotonic()
            if not fetched and left_s > 0:
                fetched = self._consumer.consume(1, timeout=left_s)
            if not fetched:
                break
            size = sum(map(len, fetched))
            messages += fetched
            inflated += size
            self._messages_per_call = min(
                max(_MAX_BLOCK_BYTES * len(fetched) // max(size, 1), 1), _MAX_MESSAGES_PER_CALL
            )
        return messages, inflated

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """See `ColumnConsumer`."""
        topic_partition = TopicPartition(partition.topic, partition.number)
        earliest, end = self._consumer.get_watermark_offsets(topic_partition, timeout=timeout_s)
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
        answered = [(Partition(entry.topic, entry.partition), entry) for entry in partitions]
        key = frozenset((partition, entry.offset) for partition, entry in answered)
        self._answers[key] = {
            partition: refusal
            for partition, entry in answered
            if (refusal := entry.error or error) is not None
        }


def discard_fetched(consumer: Consumer) -> None:
    """Assign nothing to `consumer`, and free the messages that it has fetched."""
    consumer.unassign()
    # They are outdated now, but librdkafka keeps up to `queued.max.messages.kbytes` of them until
    # the queue is read.
    consumer.consume(_MAX_DISCARDED_MESSAGES, timeout=0)


def _split_errors(messages: list[Message]) -> tuple[list[Message], list[ConsumerError]]:
    errors = _read_field(messages, "error")
    # Do not compare with None: that leaves a TypeError behind, which the next call would raise.
    if not any(errors):
        return messages, []
    records = [message for message, error in zip(messages, errors, strict=True) if error is None]
    return records, [_to_error(message) for message in messages if message.error() is not None]


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
    if not count:
        return None
    return RecordBlock(*(column if column is None else column.slice(0, count) for column in block))


def build_record_block(records: Sequence[Message], columns: ColumnSet) -> RecordBlock:
    """Build columns from the requested fields of one partition's messages."""
    stamps = types = None
    if columns.timestamps:
        flat = itertools.chain.from_iterable(_read_field(records, "timestamp"))
        pairs = np.fromiter(flat, np.int64, 2 * len(records)).reshape(-1, 2)
        # librdkafka counts the types from 0 = none, Spark's timestampType from -1.
        types = pa.array((pairs[:, 0] - 1).astype(np.int32))
        stamps = pa.array(np.where(pairs[:, 0] > 0, pairs[:, 1], -1))
    return RecordBlock(
        offsets=_build_offsets(records),
        timestamps_ms=stamps,
        timestamp_types=types,
        keys=pa.array(_read_field(records, "key"), pa.binary()) if columns.keys else None,
        values=pa.array(_read_field(records, "value"), pa.binary()) if columns.values else None,
        headers=pa.array(_read_field(records, "headers"), METADATA["headers"])
        if columns.headers
        else None,
    )


def _build_offsets(records: Sequence[Message]) -> pa.Array:
    """Build the offset column; since offsets increase, a full count means that there is no gap."""
    first_offset, last_offset = (records[end].offset() for end in (0, -1))
    if last_offset - first_offset + 1 == len(records):
        return pa.array(np.arange(first_offset, last_offset + 1))
    return pa.array(_read_field(records, "offset"), pa.int64())
