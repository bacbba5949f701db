"""Reads ranges of one partition as columns, and commits clocks to the group's metadata.

`RangeReader` handles losses and errors; its consumer fetches the records as columns. A read ends
when its position reaches the range's end: transactions and compaction leave gaps, so records cannot
be counted. Without progress it waits for `kafkaConsumer.pollTimeoutMs`, or for
`kafkaConsumer.connectTimeoutMs` if no broker has ever answered. A position that the broker refuses
is lost only if the partition's bounds confirm it (semantics 9.1); outdated answers and changes of
leaders are retried.

librdkafka decompresses a whole answer before this package sees any of it: 2 MB of zstd may become
gigabytes. So a topic is fetched in small answers until its compression ratio is known to be
moderate.

`Prefetcher` reads many small ranges at once, which saves a round trip per range. It handles no
errors: it leaves out a range that did not arrive completely, which `RangeReader` then reads
separately. The first range of a topic is read separately as well. It shows how large the topic's
records are: ranges that are too large for a task's memory are not prefetched.
"""

import contextlib
import functools
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client.bounded import BoundedClient, CallAbandoned
from pyspark_timestream.kafka.client.consumer import (
    COMMIT_TIMEOUT_S,
    ColumnConsumer,
    ConsumerError,
    MessageConsumer,
    PollResult,
    Pool,
    UnboundedConsumer,
    build_consumer_config,
    build_record_block,
    clip,
    create_client,
    discard_fetched,
    open_client,
)
from pyspark_timestream.kafka.client.errors import (
    API_TIMEOUT_S,
    MISSING_CODES,
    BrokerFailure,
    ClientLog,
    FailureKind,
    RetryBudget,
    classify_failure,
    error_text,
    failed_request_error,
    is_login_refused,
    lasting_error,
    no_answer_error,
)
from pyspark_timestream.kafka.client.native_consumer import NativeConsumer, load_native_reader
from pyspark_timestream.kafka.decode.records import ColumnSet, ReadRange, RecordBlock
from pyspark_timestream.kafka.offsets.group_metadata import describe_missing_clocks, drop_clock
from pyspark_timestream.kafka.offsets.positions import LEADER_CHANGE_GRACE_S, report_losses
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

SMALL_FETCHES: Final[dict[str, Any]] = {
    # This fits one or two moderately compressed record batches; a larger batch comes on its own.
    "fetch.message.max.bytes": 8 * 1024,
    # Fetch the next answer only after this one has been consumed.
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1,
}
"""librdkafka's settings for a topic that may be highly compressed."""

_MIN_SAMPLE_BYTES: Final = 32 * 1024
"""Bytes to receive before the first decision about a topic."""

_RECHECK_BYTES: Final = 1024 * 1024
"""Bytes to receive between later decisions about a topic that allows large fetches."""

_MAX_RATIO_TO_ALLOW: Final = 16
"""Maximum compression ratio to allow large fetches."""

_MAX_RATIO_TO_KEEP: Final = 64
"""Maximum compression ratio to go on with large fetches."""

_MAX_AVERAGED_RECORDS: Final = 100_000
"""Approximate number of records that the mean size is taken over."""


@dataclass(slots=True)
class _Topic:
    """The size of a topic's fetches, as estimated from the records read so far."""

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
        """Return whether `topic` may be fetched in large answers."""
        stats = self._topics.get(topic)
        return stats is not None and stats.allows_large_fetches

    def mean_record_bytes(self, topic: str) -> float | None:
        """Return the mean bytes of a record's key and value; None before the first record."""
        stats = self._topics.get(topic)
        return stats.record_bytes / stats.records if stats is not None and stats.records else None

    def note(self, topic: str, received: int, inflated: int, records: int) -> None:
        """Count records; `received` are compressed bytes, `inflated` those of keys and values."""
        stats = self._topics.setdefault(topic, _Topic())
        stats.records += records
        stats.record_bytes += inflated
        if stats.records > _MAX_AVERAGED_RECORDS:
            # Halve both, so that the average follows records of another size.
            stats.records /= 2
            stats.record_bytes /= 2
        stats.received += received
        stats.inflated += inflated
        if stats.received >= (_RECHECK_BYTES if stats.allows_large_fetches else _MIN_SAMPLE_BYTES):
            max_ratio = _MAX_RATIO_TO_KEEP if stats.allows_large_fetches else _MAX_RATIO_TO_ALLOW
            stats.allows_large_fetches = stats.inflated <= max_ratio * stats.received
            stats.received = stats.inflated = 0


@functools.cache
def get_compression_stats(servers: str) -> CompressionStats:
    """Return this process's statistics of the cluster at `servers`."""
    return CompressionStats()


_POLL_TIMEOUT_S: Final = 0.05
"""How long a poll waits to fill a block; a range that ends in a gap costs this much."""

_METADATA_TOO_LARGE: Final = KafkaError.OFFSET_METADATA_TOO_LARGE
_COMMIT_RETRY_PAUSE_S: Final = 60.0
_CONNECTION_CHECK_S: Final = 1.0

_FETCH_SIZE_KEYS: Final = frozenset(("fetch.message.max.bytes", "max.partition.fetch.bytes"))
_UNCOUNTED_FETCHES: Final = {"fetch.message.max.bytes": 16 * 1024}
"""Used without the native reader: compression ratios are unknown, so all fetches are small."""


class _BoundedConsumer:
    """A `ColumnConsumer` with calls that return in time, even if the library's do not.

    After a call of the library that has not returned, all further calls raise `CallAbandoned` at
    once: create another consumer then. The caller must not keep `consumer`.
    """

    def __init__(self, consumer: UnboundedConsumer) -> None:
        self._client = BoundedClient(consumer)

    @property
    def received_bytes(self) -> int:
        return 0 if self._client.is_abandoned else int(self._client.direct.received_bytes)

    def seek(self, partition: Partition, offset: int) -> None:
        self._call(lambda consumer: consumer.seek(partition, offset), 0, "assign")

    def pause(self) -> None:
        self._call(lambda consumer: consumer.pause(), 0, "unassign")

    def poll(
        self, offset_range: OffsetRange, position: int, columns: ColumnSet, wait_s: float
    ) -> PollResult:
        return self._call(
            lambda consumer: consumer.poll(offset_range, position, columns, wait_s),
            wait_s,
            "consume",
        )

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        return self._call(
            lambda consumer: consumer.query_bounds(partition, timeout_s),
            timeout_s,
            "query_watermark_offsets",
        )

    def is_connected(self, timeout_s: float) -> bool:
        return self._call(
            lambda consumer: consumer.is_connected(timeout_s), timeout_s, "list_topics"
        )

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        try:
            return self._call(
                lambda consumer: consumer.commit_offsets(offsets), COMMIT_TIMEOUT_S, "commit"
            )
        except CallAbandoned as error:
            return dict.fromkeys(offsets, error.args[0])

    def close(self) -> None:
        if not self._client.is_abandoned:
            self._client.direct.close()

    def _call(self, function: Callable[[UnboundedConsumer], T], timeout_s: float, name: str) -> T:
        """Call `function`, which calls librdkafka's `name`; abandon a consumer that hangs."""
        consumer = self._client.direct
        try:
            return self._client.run(function, timeout_s, name)
        except CallAbandoned:
            if consumer is not None:
                consumer.abandon()
            raise


CreateConsumer = Callable[[KafkaOptions, Mapping[str, Any], ClientLog], ColumnConsumer]


def _create_column_consumer(
    options: KafkaOptions, config: Mapping[str, Any], log: ClientLog
) -> ColumnConsumer:
    """Create the native consumer if its library is available, else a `MessageConsumer`."""
    native_reader = load_native_reader()

    def make() -> ColumnConsumer:
        if native_reader is None:
            return _BoundedConsumer(MessageConsumer(config, log))
        return _BoundedConsumer(NativeConsumer(config, native_reader, log))

    return create_client(options.client, make)


class CommittedClock(NamedTuple):
    """What a task commits for a partition.

    Attributes:
        offset: where the task has read to.
        metadata: the partition's clock there as text.
    """

    offset: int
    metadata: str


@dataclass(slots=True)
class _Standstill:
    """The time in which a range makes no progress.

    Attributes:
        since_s: the last progress.
        trouble: the last error since then that may pass.
        loss_budget: limits the retries of a position that brokers refuse; None before the first.
    """

    since_s: float
    trouble: str | None = None
    loss_budget: RetryBudget | None = None


class RangeReader:
    """Reads ranges into columns with one consumer, kept from range to range.

    `group` is the consumer group that keeps the clocks in its metadata.
    """

    def __init__(
        self,
        options: KafkaOptions,
        group: str,
        *,
        create_consumer: CreateConsumer = _create_column_consumer,
        log: ClientLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        budget: Callable[[float], RetryBudget] = RetryBudget,
    ) -> None:
        self._options = options
        self._clock = clock
        self._budget = budget
        self._create_consumer = create_consumer
        self._config = build_consumer_config(options, group)
        self._compression = get_compression_stats(options.client["bootstrap.servers"])
        self._poll_timeout_s = options.poll_timeout_ms / 1_000
        self._log = log or ClientLog(options.client)
        self._is_connected = self._is_closed = False
        self._next_commit_s = float("-inf")
        self._next_long_s = float("-inf")
        self._length_limit = sys.maxsize
        # Keep fetch sizes that the user sets; without the native reader nothing is counted.
        self._adapts = load_native_reader() is not None and _FETCH_SIZE_KEYS.isdisjoint(
            options.client
        )
        self._noted_bytes = 0
        # A pattern names no topic: begin as for one whose records are not known yet.
        self._uses_small_fetches = any(map(self._needs_small_fetches, options.subscribe or [""]))
        self._consumer = self._make_consumer()
        self._spare: ColumnConsumer | None = None

    def read(self, offset_range: OffsetRange, columns: ColumnSet) -> Iterator[RecordBlock]:
        """Return the records of `offset_range` in blocks, in offset order.

        Raises:
            DataLost: records of the range are gone, and option `failOnDataLoss` is true.
            BrokerUnreachable: there was no progress in time, or a broker refused.
        """
        try:
            yield from self._read(offset_range, columns)
        except CallAbandoned as error:
            target = _describe_records(offset_range, offset_range.start_inclusive)
            raise failed_request_error(error, self._options.client, {}, 0, target) from error
        except GeneratorExit:
            # The caller stopped early: the partition reached `endingCti`, or something failed.
            if not self._is_closed:
                self._pause()
            raise
        # Records fetched past the range would occupy memory until the next read.
        self._pause()

    def _read(self, offset_range: OffsetRange, columns: ColumnSet) -> Iterator[RecordBlock]:
        partition, end = offset_range.partition, offset_range.end_exclusive
        position = offset_range.start_inclusive
        self._seek(partition, position)
        standstill = _Standstill(self._clock())
        while position < end:
            try:
                result = self._poll(offset_range, position, columns)
            except CallAbandoned as error:
                standstill.trouble = error_text(error)
                self._check_progress(offset_range, position, standstill)
                # The consumer may never return; the seek replaces it.
                self._seek(partition, position)
                continue
            if result.block is not None:
                yield result.block
            self._is_connected |= result.reached > position
            reached = self._handle_errors(offset_range, result, standstill)
            if reached <= position:
                self._check_progress(offset_range, position, standstill)
                continue
            position, standstill = reached, _Standstill(self._clock())
            is_compressed = self._needs_small_fetches(partition.topic)
            if position < end and is_compressed != self._uses_small_fetches:
                # The records read show how far the topic inflates: fetch accordingly.
                self._seek(partition, position)

    def _handle_errors(
        self, offset_range: OffsetRange, result: PollResult, standstill: _Standstill
    ) -> int:
        """Return where to continue after a poll; raise an error that ends the read."""
        reached = result.reached
        for problem in result.errors:
            if not _reports_loss(problem, offset_range):
                standstill.trouble = self._tolerate(problem, offset_range)
            # A queue may still hold errors of the previous range, or the same one twice.
            elif not 0 <= problem.offset < reached:
                if standstill.loss_budget is None:
                    standstill.loss_budget = self._budget(API_TIMEOUT_S)
                reached = self._resume_after_loss(
                    offset_range, reached, problem, standstill.loss_budget
                )
        return reached

    def commit_clocks(self, clocks: Mapping[Partition, CommittedClock]) -> None:
        """Commit the clocks of partitions to the group, with best effort.

        If the broker refuses a text as too long, commit its length in the clock's place. The driver
        restores missing clocks by reading the records again, which is slower but never wrong.
        """
        now_s = self._clock()
        if not clocks or now_s < self._next_commit_s:
            return
        # The broker's limit may have been raised, so now and then whole clocks are tried again.
        limit = self._length_limit if now_s < self._next_long_s else sys.maxsize
        short = {partition: _shorten(clock, limit) for partition, clock in clocks.items()}
        refusals = self._consumer.commit_offsets(short)
        too_long = [
            partition
            for partition, error in refusals.items()
            if error.code() == _METADATA_TOO_LARGE
        ]
        if too_long:
            self._length_limit = min(len(short[partition].metadata) for partition in too_long) - 1
            self._next_long_s = now_s + _COMMIT_RETRY_PAUSE_S
            again = {
                partition: _shorten(short[partition], self._length_limit) for partition in too_long
            }
            others = {partition: refusals[partition] for partition in refusals.keys() - again}
            refusals = {**others, **self._consumer.commit_offsets(again)}
        if refusals:
            # Asking again for a forbidden group would cost every batch the same wait.
            self._next_commit_s = self._clock() + _COMMIT_RETRY_PAUSE_S
            _LOG.warning(
                "offsets cannot be committed to group '%s' (%s): lag tools do not see this query, "
                "and %s",
                self._config["group.id"],
                next(iter(refusals.values())).str(),
                describe_missing_clocks(self._options.is_ordered),
            )

    def close(self) -> None:
        """Release the consumer."""
        self._is_closed = True
        self._consumer.close()
        if self._spare is not None:
            self._spare.close()

    def _needs_small_fetches(self, topic: str) -> bool:
        return self._adapts and not self._compression.allows_large_fetches(topic)

    def _seek(self, partition: Partition, position: int) -> None:
        """Continue at `position`, with the consumer that has the fetch size for the topic."""
        if self._needs_small_fetches(partition.topic) != self._uses_small_fetches:
            self._pause()
            self._uses_small_fetches = not self._uses_small_fetches
            suited = self._spare or self._make_consumer()
            self._consumer, self._spare = suited, self._consumer
        self._noted_bytes = self._consumer.received_bytes
        try:
            self._consumer.seek(partition, position)
        except CallAbandoned:
            # This call or an earlier one has not returned.
            self._replace_consumer()
            self._consumer.seek(partition, position)

    def _pause(self) -> None:
        """Stop fetching; the next seek replaces a consumer that does not return."""
        with contextlib.suppress(CallAbandoned):
            self._consumer.pause()

    def _replace_consumer(self) -> None:
        # Create before closing: if that fails, the old one must not be closed twice.
        old, self._consumer = self._consumer, self._make_consumer()
        old.close()

    def _poll(self, offset_range: OffsetRange, position: int, columns: ColumnSet) -> PollResult:
        result = self._consumer.poll(
            offset_range, position, columns, min(_POLL_TIMEOUT_S, self._poll_timeout_s)
        )
        received = self._consumer.received_bytes
        topic = offset_range.partition.topic
        self._compression.note(topic, received - self._noted_bytes, result.inflated, result.records)
        self._noted_bytes = received
        return result

    def _make_consumer(self) -> ColumnConsumer:
        user_config = self._options.client
        small: Mapping[str, Any] = {}
        if self._uses_small_fetches:
            small = SMALL_FETCHES
        elif load_native_reader() is None and _FETCH_SIZE_KEYS.isdisjoint(user_config):
            small = _UNCOUNTED_FETCHES
        config = self._config | {
            name: value for name, value in small.items() if name not in user_config
        }
        self._noted_bytes = 0
        return self._create_consumer(self._options, config, self._log)

    def _resume_after_loss(
        self, offset_range: OffsetRange, position: int, problem: ConsumerError, budget: RetryBudget
    ) -> int:
        """Return where to continue after the broker refused `position`, unless that is a loss."""
        bounds = self._confirm_bounds(offset_range, position)
        if bounds and bounds[0] <= position <= bounds[1] and budget.pause_before_retry():
            # The refusal is outdated: it concerns an earlier range or a deleted topic of the same
            # name, or comes from a broker that does not lead the partition.
            self._replace_consumer()
            self._consumer.seek(offset_range.partition, position)
            return position
        earliest, end = bounds or (0, 0)
        loss = (
            f"{offset_range.partition}: offset {position} can no longer be read: "
            f"{problem.error.str()}; offsets {earliest} to {end} exist"
        )
        # If the log begins after the range, nothing is left of it.
        resumed = (
            earliest
            if position < earliest < offset_range.end_exclusive
            else offset_range.end_exclusive
        )
        report_losses(self._options, loss, next_step=f"going on at offset {resumed}")
        self._consumer.seek(offset_range.partition, resumed)
        return resumed

    def _confirm_bounds(self, offset_range: OffsetRange, position: int) -> tuple[int, int] | None:
        """Return the partition's bounds once they are reliable."""
        # While its leader changes, a log may seem shorter than `position`, or missing. That counts
        # only if it persists after the first answer, which may have taken long.
        budget = None
        while True:
            bounds = self._query_bounds(offset_range, position)
            budget = budget or self._budget(LEADER_CHANGE_GRACE_S)
            if (bounds and position <= bounds[1]) or not budget.pause_before_retry():
                return bounds

    def _query_bounds(self, offset_range: OffsetRange, position: int) -> tuple[int, int] | None:
        """Return the first offset and the end offset; None if the partition does not exist."""
        budget = self._budget(API_TIMEOUT_S)

        def pause_or_raise(error: KafkaException) -> None:
            kind = classify_failure(error)
            if kind is FailureKind.MISSING:
                raise error
            if kind is FailureKind.ABANDONED:
                self._replace_consumer()
            if not kind.may_pass or not budget.pause_before_retry():
                spent_s = budget.elapsed_s
                target = _describe_records(offset_range, position)
                failures = self._recent_failures(spent_s)
                raise failed_request_error(
                    error, self._options.client, failures, spent_s, target
                ) from error

        try:
            return budget.call(
                lambda timeout_s: self._consumer.query_bounds(offset_range.partition, timeout_s),
                pause_or_raise,
            )
        except KafkaException:
            return None

    def _tolerate(self, problem: ConsumerError, offset_range: OffsetRange) -> str:
        """Return the text of an error that may pass or does not concern the range, or raise it."""
        error = problem.error
        if _concerns(problem, offset_range) and not classify_failure(error).may_pass:
            target = f"the records of {offset_range.partition}"
            raise failed_request_error(error, self._options.client, {}, 0, target)
        # Errors about the group, which only stores clocks, must not stop the read.
        return str(error.str())

    def _check_progress(
        self, offset_range: OffsetRange, position: int, standstill: _Standstill
    ) -> None:
        """Raise an error if waiting longer would not help."""
        spent_s = self._clock() - standstill.since_s
        # Before the first answer of a broker, wait no longer than for a connection or a login.
        is_over = spent_s >= self._options.connect_timeout_ms / 1_000
        if not self._is_connected and (
            is_over or is_login_refused(self._recent_failures(spent_s), spent_s)
        ):
            self._is_connected = self._consumer.is_connected(_CONNECTION_CHECK_S)
            if not self._is_connected:
                raise self._no_progress_error(offset_range, position, spent_s, None)
        if spent_s > self._poll_timeout_s:
            raise self._no_progress_error(offset_range, position, spent_s, standstill.trouble)

    def _recent_failures(self, spent_s: float) -> dict[str, BrokerFailure]:
        """Return the failures of the last `spent_s`, or all of them if no broker ever answered."""
        within_s = spent_s + 2 * _CONNECTION_CHECK_S if self._is_connected else float("inf")
        return self._log.recent_failures(within_s)

    def _no_progress_error(
        self, offset_range: OffsetRange, position: int, spent_s: float, answer: str | None
    ) -> BrokerUnreachable:
        target = _describe_records(offset_range, position)
        failures = self._recent_failures(spent_s)
        if answer is not None:
            return lasting_error(answer, failures, spent_s, target)
        if failures or not self._is_connected:
            return no_answer_error(self._options.client, failures, spent_s, target)
        return BrokerUnreachable(
            f"no progress with {target} for {spent_s:.0f} s, without an error",
            next_step="look at the brokers, or raise option 'kafkaConsumer.pollTimeoutMs'",
        )


_POOL: Final[Pool[RangeReader]] = Pool(max_idle=4, idle_s=300)
"""Keeps several readers, because queries of one application share Python workers."""


def acquire_reader(options: KafkaOptions, group: str) -> AbstractContextManager[RangeReader]:
    """Borrow a reader from this process's pool; if the block fails, the reader is closed."""
    limits = (options.poll_timeout_ms, options.connect_timeout_ms, options.fail_on_data_loss)
    key = (group, *limits, *options.client.items())
    return _POOL.acquire(key, lambda: RangeReader(options, group))


def _describe_records(offset_range: OffsetRange, position: int) -> str:
    partition, end = offset_range.partition, offset_range.end_exclusive
    return f"the records of {partition} from offset {position} to {end}"


def _concerns(problem: ConsumerError, offset_range: OffsetRange) -> bool:
    return (problem.topic, problem.partition) == offset_range.partition


def _reports_loss(problem: ConsumerError, offset_range: OffsetRange) -> bool:
    """Return whether an error means that an offset of the range's partition cannot be read."""
    lost = problem.error.code() in (KafkaError._AUTO_OFFSET_RESET, *MISSING_CODES)
    return lost and _concerns(problem, offset_range)


def _shorten(clock: CommittedClock, limit: int) -> CommittedClock:
    """Drop the clock itself from the metadata if these are longer than `limit`."""
    if len(clock.metadata) <= limit:
        return clock
    return clock._replace(metadata=drop_clock(clock.metadata))


_MAX_RECORDS: Final = 20_000
_MAX_BYTES: Final = 32 * 1024 * 1024
"""Limits of a task's data before its first row; further ranges are read one by one."""

_PREFETCH_POLL_S: Final = 0.02
_MAX_STALL_S: Final = 1.0

_FETCH_SETTINGS: Final = {
    # A partition with a backlog must not send much more than the range.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.max.messages.kbytes": 64 * 1024,
    # This limits the bytes decompressed at once, over all partitions.
    "fetch.max.bytes": 1024 * 1024,
}


def choose_small_ranges(
    ranges: Iterable[OffsetRange], record_bytes: Callable[[str], float | None]
) -> list[OffsetRange]:
    """Choose the ranges to read at once, smallest first; none if there would be only one.

    Topics are left out if the mean size of their records, `record_bytes`, is unknown.
    """
    sized = [
        (offset_range, record_bytes(offset_range.partition.topic))
        for offset_range in ranges
        if offset_range.size
    ]
    by_size = sorted(
        (offset_range.size, offset_range, size) for offset_range, size in sized if size is not None
    )
    total_records = itertools.accumulate(count for count, _, _ in by_size)
    total_bytes = itertools.accumulate(count * size for count, _, size in by_size)
    small_ranges = [
        offset_range
        for (_, offset_range, _), records, size in zip(
            by_size, total_records, total_bytes, strict=True
        )
        if records <= _MAX_RECORDS and size <= _MAX_BYTES
    ]
    # A consumer has one position in a partition, so two ranges of one cannot be read at once.
    is_once = len({offset_range.partition for offset_range in small_ranges}) == len(small_ranges)
    return small_ranges if len(small_ranges) > 1 and is_once else []


def prefetch_small_ranges(
    options: KafkaOptions,
    group: str,
    ranges: Sequence[OffsetRange],
    columns: ColumnSet,
    read_range: ReadRange,
) -> ReadRange:
    """Wrap `read_range` to prefetch small ranges among `ranges`; each is delivered once.

    The first request for a small range fetches a group of them. The next group is fetched only
    after this one has been delivered completely.
    """
    stats = get_compression_stats(options.client["bootstrap.servers"])
    ahead: dict[OffsetRange, list[RecordBlock]] = {}
    later = list(ranges)

    def read_ahead(offset_range: OffsetRange, requested: ColumnSet) -> Iterator[RecordBlock]:
        if requested != columns:
            # Blocks fetched ahead have only `columns`.
            return read_range(offset_range, requested)
        if offset_range in later:
            small = [] if ahead else choose_small_ranges(later, stats.mean_record_bytes)
            if offset_range in small:
                ahead.update(_fetch_ranges(options, group, small, columns))
            # Each range is tried once; one that did not arrive completely is read on its own.
            for tried in small if offset_range in small else [offset_range]:
                later.remove(tried)
        blocks = ahead.pop(offset_range, None)
        return read_range(offset_range, requested) if blocks is None else iter(blocks)

    return read_ahead


def _fetch_ranges(
    options: KafkaOptions, group: str, ranges: Sequence[OffsetRange], columns: ColumnSet
) -> dict[OffsetRange, list[RecordBlock]]:
    """Fetch `ranges`, and return the records of the ranges that arrived completely."""
    key = (group, *options.client.items())
    with _PREFETCHERS.acquire(key, lambda: Prefetcher(options, group)) as reader:
        return reader.read(ranges, columns)


class Prefetcher:
    """Reads small ranges of different partitions with one consumer, kept from batch to batch.

    The consumer never joins its group. After a second without progress it gives up, and the
    remaining ranges are read one by one.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        fetch = {
            name: value for name, value in _FETCH_SETTINGS.items() if name not in options.client
        }
        self._config: dict[str, Any] = {**build_consumer_config(options, group), **fetch}
        self._consumer: BoundedClient | None = None

    def read(
        self, ranges: Sequence[OffsetRange], columns: ColumnSet
    ) -> dict[OffsetRange, list[RecordBlock]]:
        """Return the records of the ranges that arrived completely, as one block or none each."""
        fetch = PartialFetch(ranges)
        is_new = self._consumer is None
        try:
            self._collect(ranges, fetch)
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
            offset_range: _build_blocks(offset_range, records, columns)
            for offset_range, records in fetch.complete_ranges()
        }

    def _collect(self, ranges: Sequence[OffsetRange], fetch: "PartialFetch") -> None:
        if self._consumer is None:
            log = ClientLog(self._options.client)
            self._consumer = open_client(Consumer, self._config, log)
        self._consumer.assign(
            [
                TopicPartition(*offset_range.partition, offset_range.start_inclusive)
                for offset_range in ranges
            ]
        )
        progress_s = time.monotonic()
        while fetch.missing_offsets and time.monotonic() - progress_s < _MAX_STALL_S:
            if fetch.add(self._consumer.consume(fetch.missing_offsets, timeout=_PREFETCH_POLL_S)):
                progress_s = time.monotonic()

    def close(self) -> None:
        """Release the consumer."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None


class PartialFetch:
    """The records received so far for ranges of different partitions, until an error (`failed`)."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._ranges: Mapping[Partition, OffsetRange] = {
            offset_range.partition: offset_range for offset_range in ranges
        }
        self._reached = {
            partition: offset_range.start_inclusive
            for partition, offset_range in self._ranges.items()
        }
        self._records: dict[Partition, list[Message]] = {
            partition: [] for partition in self._ranges
        }
        self._bytes = 0
        self._broken: set[Partition] = set()
        self.failed = False

    @property
    def missing_offsets(self) -> int:
        """The number of offsets that may still arrive; 0 if waiting is of no use."""
        if self._bytes > _MAX_BYTES or self.failed:
            return 0
        return sum(
            max(offset_range.end_exclusive - self._reached[partition], 0)
            for partition, offset_range in self._ranges.items()
        )

    def add(self, messages: Sequence[Message]) -> bool:
        """Add polled messages; return whether any range made progress."""
        has_progress = False
        for partition, run in itertools.groupby(
            messages, lambda message: Partition(message.topic(), message.partition())
        ):
            if partition in self._ranges:
                has_progress |= self._add_run(partition, list(run))
            else:
                self.failed |= any(message.error() is not None for message in run)
        return has_progress

    def _add_run(self, partition: Partition, run: Sequence[Message]) -> bool:
        before = self._reached[partition]
        end = self._ranges[partition].end_exclusive
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

    def complete_ranges(self) -> list[tuple[OffsetRange, list[Message]]]:
        """Return the ranges read to their ends, with their records and at most one more."""
        return [
            (offset_range, self._records[partition])
            for partition, offset_range in self._ranges.items()
            if self._reached[partition] >= offset_range.end_exclusive
            and partition not in self._broken
        ]


_PREFETCHERS: Final[Pool[Prefetcher]] = Pool(max_idle=2, idle_s=300)


def _build_blocks(
    offset_range: OffsetRange, records: Sequence[Message], columns: ColumnSet
) -> list[RecordBlock]:
    block = (
        clip(build_record_block(records, columns), offset_range.end_exclusive) if records else None
    )
    return [] if block is None else [block]
