"""The driver's warnings: it looks for mistakes after each batch, and reports each of them once."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from pyspark_timestream.core.instants import SECOND_US
from pyspark_timestream.kafka.decode.payload import find_unused_unit, read_payload
from pyspark_timestream.kafka.decode.records import ColumnSet, Projection, RecordBlock
from pyspark_timestream.kafka.diagnosis.causes import find_warnings
from pyspark_timestream.kafka.diagnosis.diagnoses import (
    MOST,
    REPEATED_RUN_ADVICE,
    Diagnosis,
    Kind,
    find_new_warnings,
    recall_warnings,
    report_no_topic,
    update_warnings,
)
from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.diagnosis.mistakes import (
    find_malformed_events,
    find_malformed_values,
    find_short_replays,
)
from pyspark_timestream.kafka.diagnosis.samples import (
    describe_malformed,
    describe_unit,
    describe_values,
    find_absent_fields,
    has_field_timestamp,
)
from pyspark_timestream.kafka.offsets.group_metadata import group_name
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
    Warnings,
)
from pyspark_timestream.kafka.offsets.positions import name_other_unit
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_timestream.rules.step import step

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_SAMPLE_RECORDS: Final = 100
"""Examine at most this many of a partition's newest records for an example."""

_MAX_SAMPLE_WAIT_MS: Final = 5_000
_MAX_TOPICS: Final = 8
"""The fields of at most so many topics are compared with the schema."""

_MAX_COLUMNS: Final = 3
"""A warning names this many columns, and counts the others."""

_MIN_UPDATE_INTERVAL_US: Final = SECOND_US
"""Update this often at most between batches, when only time can add a diagnosis."""


class SampleReader(Protocol):
    """Reads records; the client's `RangeReader` does."""

    def read(self, range_: OffsetRange, columns: ColumnSet, /) -> Iterator[RecordBlock]:
        """Read a range in blocks."""

    def close(self) -> None:
        """End the connections."""


CreateReader = Callable[[KafkaOptions, str], SampleReader]
"""Creates a reader from options and a consumer group."""

DescribeBlock = Callable[[KafkaOptions, Projection | None, RecordBlock], str]
"""Describes a mistake in a block of records; empty if it shows none."""


class Warner:
    """Keeps the warnings of one run up to date.

    Args:
        options: the query's options.
        projection: the columns that the query requests; None if unknown.
        create_reader: creates a reader for a few sample records.
        null_columns: the columns of fields that may have no value in any row; None: all.
    """

    def __init__(
        self,
        options: KafkaOptions,
        projection: Projection | None,
        create_reader: CreateReader,
        null_columns: Set[str] | None = None,
    ) -> None:
        self._options = options
        self._null_columns = null_columns
        self._projection = projection
        self._create_reader = create_reader
        self._details: dict[tuple[Kind, int], str] = {}
        self._sample_diagnoses: list[Diagnosis] | None = None
        self._option_diagnoses = [*_find_unused_unit(options), *find_improbable_bounds(options)]
        self._value_diagnoses: list[Diagnosis] | None = None
        self._recent = RecentCounts()
        self._last_update: tuple[tuple[str, int], int, Warnings] | None = None

    def warn_at_start(
        self, earliest: Mapping[Partition, int], starts: Mapping[Partition, int], *, bounded: bool
    ) -> Warnings:
        """Return the warnings of a new query that starts reading at `starts`."""
        if not starts and self._options.subscribe_pattern is not None:
            return update_warnings((), [report_no_topic(self._options.settings())])
        passed_over = sum(
            start - earliest.get(partition, start) for partition, start in starts.items()
        )
        if not bounded or not self._options.starts_by_default or not passed_over:
            return ()
        text = (
            "it was not given, so this new query starts at the latest offsets, and a bounded run "
            f"ends there as well: {passed_over} records that are in the topics are not read"
        )
        start_at_end = Diagnosis(Kind.START_AT_END, "option 'startingOffsets'", text)
        return update_warnings((), [start_at_end])

    def update(
        self,
        previous: StreamOffset,
        now: StreamOffset,
        readable_ends: Mapping[Partition, int],
        now_us: int,
        batch_diagnoses: Iterable[Diagnosis] = (),
    ) -> Warnings:
        """Return the warnings after the batch `previous`.

        Args:
            previous: the last batch, with the warnings up to it.
            now: the stream's positions and clocks after it.
            readable_ends: for each partition the end of the readable records.
            now_us: the wall clock.
            batch_diagnoses: diagnoses about the batch `previous` itself.
        """
        batch = previous.stream, previous.number
        if self._last_update is not None:
            last_batch, last_us, warnings = self._last_update
            if last_batch == batch and now_us - last_us < _MIN_UPDATE_INTERVAL_US:
                return warnings
        self._recent = update_counts(self._recent, previous.partitions, now.partitions)
        read_partitions = [range_.partition for range_ in previous.ranges() if range_.size]
        history = (BatchRecord(now_us, now, readable_ends),)
        recalled = recall_warnings(previous.warnings)
        diagnoses = [
            *find_recent_mistakes(self._recent, now),
            *find_warnings(history, now_us),
            *find_short_replays(history),
            # The warning of a start at the end of the log holds until something is read.
            *(
                warning
                for warning in recalled
                if warning.kind is Kind.START_AT_END and not read_partitions
            ),
            *self._find_uncounted(read_partitions, previous, now),
            *self._option_diagnoses,
            *(
                warning
                for warning in recalled
                if warning.kind is Kind.NO_TOPIC and not now.partitions
            ),
            *batch_diagnoses,
            *self._examine_values(read_partitions, now),
        ]
        warnings = update_warnings(
            previous.warnings,
            [
                adapted
                for diagnosis in diagnoses
                if (adapted := self._adapt(diagnosis, bounded=now.bounded))
            ],
            lambda diagnosis: self._get_detail(diagnosis, now),
        )
        self._last_update = batch, now_us, warnings
        return warnings

    def _find_uncounted(
        self, partitions: Sequence[Partition], previous: StreamOffset, now: StreamOffset
    ) -> list[Diagnosis]:
        """Examine a sample of a partition that was read without counting, once per run.

        Records are not counted if several tasks read one partition, or if the group is forbidden
        and the clocks do not need the records.
        """
        if self._sample_diagnoses is None:
            before, after = previous.partitions, now.partitions
            for partition in partitions:
                if (
                    partition in after
                    and after[partition].clock.events == before[partition].clock.events
                ):
                    self._sample_diagnoses = self._try(self._examine_sample, partition, now) or []
                    break
        return self._sample_diagnoses or []

    def _examine_values(self, partitions: list[Partition], now: StreamOffset) -> list[Diagnosis]:
        """Compare once per run the fields of JSON values and keys with those that are read."""
        if self._value_diagnoses is None and self._reads_json:
            entries = now.partitions.items()
            read = partitions or [partition for partition, entry in entries if entry.clock.events]
            by_topic = {partition.topic: partition for partition in reversed(read)}
            if by_topic:
                first, *others = by_topic.values()
                compare = partial(self._compare_fields, others)
                self._value_diagnoses = self._try(compare, first, now) or []
        return self._value_diagnoses or []

    @property
    def _reads_json(self) -> bool:
        """Whether fields of JSON values or keys are read, or the record's timestamp beside them."""
        if "json" not in (self._options.value_format, self._options.key_format):
            return False
        has_columns = self._projection is not None and self._null_columns != frozenset()
        return has_columns or bool(self._options.start_time.ambiguous_text)

    def _compare_fields(
        self, others: Sequence[Partition], first: Partition, now: StreamOffset
    ) -> list[Diagnosis]:
        """Compare the newest records of `first`, and of a partition of each other topic."""
        diagnoses, options, blocks = [], self._options, self._read_newest(first, now)
        is_ambiguous = options.start_time.ambiguous_text and options.value_format == "json"
        if is_ambiguous and any(map(has_field_timestamp, blocks)):
            text = (
                "the record's timestamp is read, and the values have a field 'timestamp', which is "
                "not"
            )
            cause = "option 'startTime' = 'timestamp'"
            diagnoses.append(Diagnosis(Kind.TWO_TIMESTAMPS, cause, text))
        # With very many topics it would take long to see what each of them has.
        if self._projection is not None and len(others) < _MAX_TOPICS:
            blocks += [block for other in others for block in self._read_newest(other, now)]
            absent = find_absent_fields(options, self._projection, blocks, self._null_columns)
            records = sum(len(block.offsets) for block in blocks)
            if absent:
                names = [f"column '{name}'" for name in absent][:_MAX_COLUMNS]
                texts = [*absent.values()][:_MAX_COLUMNS]
                if len(absent) > _MAX_COLUMNS:
                    names.append(f"{len(absent) - _MAX_COLUMNS} more")
                text = f"null in the {records} newest records: {'; '.join(texts)}"
                diagnoses.append(Diagnosis(Kind.NO_SUCH_FIELD, ", ".join(names), text))
        return diagnoses

    def _examine_sample(self, partition: Partition, now: StreamOffset) -> list[Diagnosis]:
        clock, malformed = PartitionClock(), NO_MALFORMED_PAYLOADS
        for block in self._read_newest(partition, now):
            payload = read_payload(self._options, self._projection, block)
            clock, _ = step(self._options.rules, clock, payload.events, payload.marks)
            malformed += MalformedPayloads.from_reasons(payload.count_malformed())
        position = now.partitions[partition].start_inclusive
        partition_offset = PartitionOffset(position, position, clock, malformed_payloads=malformed)
        sampled = replace(now, partitions={partition: partition_offset})
        diagnoses = find_warnings((BatchRecord(0, sampled),), 0)
        return [replace(diagnosis, scope="of its newest records") for diagnosis in diagnoses]

    def _adapt(self, diagnosis: Diagnosis, *, bounded: bool) -> Diagnosis | None:
        """Adapt a diagnosis to options that offsets do not contain; None: give no warning.

        Warn of an idle partition only if it may delay results for longer than the options allow.
        """
        has_timeout = self._options.idle_timeout_us is not None
        if diagnosis.kind is not Kind.IDLE_PARTITION:
            return diagnosis
        if self._options.final_cti if bounded else has_timeout:
            return None
        advice = REPEATED_RUN_ADVICE if bounded and has_timeout else diagnosis.advice
        return replace(diagnosis, advice=advice)

    def _get_detail(self, diagnosis: Diagnosis, now: StreamOffset) -> str:
        """Describe `diagnosis` by the partition's newest records, if they can be read."""
        describe = _DESCRIPTIONS.get(diagnosis.kind)
        if describe is None or not diagnosis.partitions:
            return ""
        key = diagnosis.kind, diagnosis.level
        if key not in self._details:
            partition, offset = _choose_example(diagnosis, now)
            examine = partial(self._describe_newest, describe, offset)
            self._details[key] = self._try(examine, partition, now) or ""
        return self._details[key]

    def _describe_newest(
        self, describe: DescribeBlock, offset: int | None, partition: Partition, now: StreamOffset
    ) -> str:
        blocks = self._read_newest(partition, now, offset)
        descriptions = (describe(self._options, self._projection, block) for block in blocks)
        return next(filter(None, descriptions), "")

    def _try(
        self,
        examine: Callable[[Partition, StreamOffset], T],
        partition: Partition,
        now: StreamOffset,
    ) -> T | None:
        """Call `examine`; unexpected records and broker errors must not fail the query."""
        try:
            return examine(partition, now)
        except Exception:
            _LOG.debug("%s: cannot describe its records", partition, exc_info=True)
            return None

    def _read_newest(
        self, partition: Partition, now: StreamOffset, offset: int | None = None
    ) -> list[RecordBlock]:
        """Read the newest records, or those up to `offset`."""
        position = now.partitions[partition].start_inclusive if offset is None else offset + 1
        newest = OffsetRange(partition, max(position - _SAMPLE_RECORDS, 0), position)
        patience_ms = min(self._options.poll_timeout_ms, _MAX_SAMPLE_WAIT_MS)
        options = replace(self._options, poll_timeout_ms=patience_ms, fail_on_data_loss=True)
        reader = self._create_reader(options, group_name(options.group_prefix, now.stream))
        try:
            keys = options.key_format != "binary"
            return list(reader.read(newest, ColumnSet(True, keys, values=True, headers=True)))
        finally:
            reader.close()


def _choose_example(diagnosis: Diagnosis, now: StreamOffset) -> tuple[Partition, int | None]:
    """Return the partition to sample, and the offset of a malformed record if a task noted one."""
    for partition in sorted(diagnosis.partitions):
        if partition in now.partitions:
            malformed = now.partitions[partition].malformed_payloads
            offset = {
                Kind.MALFORMED: malformed.malformed_event_at,
                Kind.IMPROBABLE_TIMES: malformed.early_event_at,
            }.get(diagnosis.kind, malformed.malformed_payload_at)
            if offset is not None:
                return partition, offset
    return min(diagnosis.partitions), None


_DESCRIPTIONS: Final[Mapping[Kind, DescribeBlock]] = {
    Kind.MALFORMED: describe_malformed,
    Kind.IMPROBABLE_TIMES: describe_unit,
    Kind.MALFORMED_VALUES: describe_values,
}


def warn_about_read(
    options: KafkaOptions,
    projection: Projection,
    create_reader: CreateReader,
    ended: Mapping[Partition, tuple[int, PartitionClock, MalformedPayloads]],
    null_columns: Set[str] = frozenset(),
) -> None:
    """Log the mistakes in the records that a task of a batch read has read.

    Args:
        options: the options of the read.
        projection: the columns that the read requests.
        create_reader: creates a reader for a few sample records.
        ended: partition -> its end offset, the clock there, and its malformed values and keys.
        null_columns: the columns that may have had only nulls in the task.
    """
    partition_offsets = {
        partition: PartitionOffset(end, end, clock, malformed_payloads=malformed)
        for partition, (end, clock, malformed) in ended.items()
    }
    blank = StreamOffset("", options.settings(), 1, {})
    now = replace(blank, partitions=partition_offsets)
    # If a partition is cut into several tasks, the end of a task is not the end of its partition.
    history = () if options.cuts_partitions else (BatchRecord(0, replace(now, bounded=True)),)
    short = find_short_replays(history) if history else ()
    warner = Warner(options, projection, create_reader, null_columns)
    log_new_warnings((), warner.update(blank, now, {}, 0, short))


def log_new_warnings(before: Warnings, after: Warnings) -> None:
    """Log the warnings that the previous offset did not have."""
    for diagnosis in find_new_warnings(before, after):
        _LOG.warning("%s", diagnosis.line)


def _find_unused_unit(options: KafkaOptions) -> Iterator[Diagnosis]:
    """Yield a diagnosis of a `timeUnit` without effect, because the schema gives the unit."""
    fields = find_unused_unit(options)
    if fields:
        names = " and ".join(f"'{name}'" for name in fields)
        yield Diagnosis(
            Kind.UNUSED_UNIT,
            f"option 'timeUnit' = '{options.time_unit}'",
            f"it has no effect: the Avro schema says the unit of {names}",
        )


def find_improbable_bounds(options: KafkaOptions) -> list[Diagnosis]:
    """Diagnose the first starting or ending timestamp that is in another unit."""
    for name, timestamps in (
        ("startingTimestamp", options.starting_timestamp_ms),
        ("startingOffsetsByTimestamp", options.starting_timestamps_ms),
        ("endingTimestamp", options.ending_timestamp_ms),
        ("endingOffsetsByTimestamp", options.ending_timestamps_ms),
    ):
        for ms in timestamps.values() if isinstance(timestamps, Mapping) else [timestamps]:
            unit = None if ms is None else name_other_unit(ms)
            if unit:
                text = f"{ms} counts milliseconds since 1970, but it looks like {unit}"
                return [Diagnosis(Kind.IMPROBABLE_BOUND, f"option '{name}'", text)]
    return []


# -- what the last events show ---------------------------------------------------------------------

_MIN_EVENTS: Final = 10
"""Counts of fewer events are too random to report."""

_NOTHING: Final = PartitionOffset(0, 0, PartitionClock())

PartitionOffsets = Mapping[Partition, PartitionOffset]


@dataclass(frozen=True, slots=True)
class RecentCounts:
    """The recent counts of a run.

    `since` has each partition as it was when its present count began; `counts` has the partitions
    with enough events, and counts only the last ones.
    """

    since: PartitionOffsets = field(default_factory=dict)
    counts: PartitionOffsets = field(default_factory=dict)


def update_counts(
    recent: RecentCounts, before: PartitionOffsets, now: PartitionOffsets
) -> RecentCounts:
    """Return `recent` after a batch that began with partitions `before` and ended with `now`."""
    since, counts = dict[Partition, PartitionOffset](), dict[Partition, PartitionOffset]()
    for partition, partition_offset in now.items():
        began = recent.since.get(partition) or before.get(partition) or _NOTHING
        more = _subtract_counts(began, partition_offset)
        is_enough = more.clock.events >= _MIN_EVENTS
        # A recreated partition begins to count again, so its difference is negative.
        since[partition] = partition_offset if is_enough or more.clock.events < 0 else began
        if is_enough or partition in recent.counts:
            counts[partition] = more if is_enough else recent.counts[partition]
    return RecentCounts(since, counts)


def find_recent_mistakes(recent: RecentCounts, now: StreamOffset) -> list[Diagnosis]:
    """Find the mistakes that the last events of the stream show, without regard to earlier ones."""
    latest, complete = BatchRecord(0, replace(now, partitions=recent.counts)), BatchRecord(0, now)
    mistakes = [*find_malformed_events((latest,), MOST), *find_malformed_values((latest,), MOST)]
    ever = [*find_malformed_events((complete,)), *find_malformed_values((complete,))]
    levels = {diagnosis.kind: diagnosis.level for diagnosis in ever}
    return [
        replace(mistake, scope="lately", level=levels.get(mistake.kind, 0)) for mistake in mistakes
    ]


def _subtract_counts(before: PartitionOffset, after: PartitionOffset) -> PartitionOffset:
    """Return `after` with only the counts since `before`."""
    clock = replace(
        after.clock,
        events=after.clock.events - before.clock.events,
        malformed=after.clock.malformed - before.clock.malformed,
    )
    return replace(
        after, clock=clock, malformed_payloads=after.malformed_payloads - before.malformed_payloads
    )
