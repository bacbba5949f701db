"""The driver's warnings: looks for mistakes after each batch, and reports each of them once."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark_timestream.diagnose.causes import find_warnings
from pyspark_timestream.diagnose.diagnosis import (
    REPEATED_RUN_ADVICE,
    Diagnosis,
    Kind,
    find_new_warnings,
    recall_warnings,
    update_warnings,
)
from pyspark_timestream.diagnose.history import BatchRecord
from pyspark_timestream.diagnose.mistakes import (
    MOST,
    find_malformed_events,
    find_malformed_values,
    find_short_replays,
)
from pyspark_timestream.diagnose.samples import (
    describe_malformed,
    describe_payloads,
    describe_unit,
    describe_values,
    has_field_timestamp,
)
from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.decode.payload import find_unused_unit, read_payload
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_VALUES,
    MalformedValues,
    PartitionOffset,
    StreamOffset,
    Warnings,
    group_name,
)
from pyspark_timestream.kafka.offsets.positions import name_other_unit
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.rules.state import PartitionState
from pyspark_timestream.rules.step import step

if TYPE_CHECKING:
    from pyspark_timestream.kafka.client.range_reader import RangeReader

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_SAMPLE_RECORDS: Final = 100
"""How many of a partition's newest records are examined for an example."""

_MAX_SAMPLE_WAIT_MS: Final = 5_000
_MIN_UPDATE_INTERVAL_US: Final = 1_000_000
"""Between batches only time can add a diagnosis, so this is often enough."""


DescribeBlock = Callable[[KafkaOptions, Projection | None, RecordBlock], str]
"""Describes a mistake that a block of records shows; empty if it shows none."""


class Warner:
    """Keeps the warnings of one run up to date.

    Args:
        options: the query's options.
        projection: the columns that it wants; None if not known.
        reader: creates the reader of a few sample records.
    """

    def __init__(
        self,
        options: KafkaOptions,
        projection: Projection | None,
        reader: "Callable[[KafkaOptions, str], RangeReader]",
    ) -> None:
        self._options, self._projection, self._reader = options, projection, reader
        self._details: dict[tuple[Kind, int], str] = {}
        self._sampled: list[Diagnosis] | None = None
        fields = find_unused_unit(options)
        self._of_options = [report_unused_unit(fields, options.time_unit)] if fields else []
        self._of_options += report_improbable_bounds(options)
        self._has_two_timestamps: bool | None = None
        self._recent = RecentCounts()
        self._last_update: tuple[tuple[str, int], int, Warnings] | None = None

    def warn_at_start(
        self, earliest: Mapping[Partition, int], starts: Mapping[Partition, int], bounded: bool
    ) -> Warnings:
        """Return the warnings of a new query that starts reading at `starts`."""
        passed_over = sum(at - earliest.get(part, at) for part, at in starts.items())
        if not bounded or not self._options.starts_by_default or not passed_over:
            return ()
        return update_warnings((), [report_start_at_end(passed_over)])

    def update(
        self,
        previous: StreamOffset,
        now: StreamOffset,
        log_ends: Mapping[Partition, int],
        now_us: int,
        found_before: Iterable[Diagnosis] = (),
    ) -> Warnings:
        """Return the warnings after the batch `previous`.

        Args:
            previous: the last batch, with the warnings up to it.
            now: the stream's positions and clocks after it.
            log_ends: the ends up to which records can be read.
            now_us: the wall clock.
            found_before: diagnoses about the batch `previous` itself.
        """
        batch = previous.stream, previous.number
        if self._last_update is not None:
            looked_at, looked_us, warnings = self._last_update
            if looked_at == batch and now_us - looked_us < _MIN_UPDATE_INTERVAL_US:
                return warnings
        found = self._find_recent(previous, now)
        found += find_warnings((BatchRecord(now_us, now, log_ends),), now_us)
        found += find_short_replays((BatchRecord(now_us, now, log_ends),))
        found += _repeat_start_at_end(previous)
        found += [*self._find_uncounted(previous, now), *self._of_options, *found_before]
        found += self._find_two_timestamps(previous, now)
        wanted = [
            self._add_advice(each, now)
            for each in found
            if each.kind is not Kind.IDLE_PARTITION or self._delays_results(now)
        ]
        warnings = update_warnings(
            previous.warnings, wanted, lambda each: self._get_detail(each, now)
        )
        self._last_update = batch, now_us, warnings
        return warnings

    def _find_recent(self, previous: StreamOffset, now: StreamOffset) -> list[Diagnosis]:
        """Find what most of the latest events have wrong, however many were well before."""
        self._recent = update_counts(self._recent, previous.partitions, now.partitions)
        return find_recent_mistakes(self._recent, now)

    def _find_uncounted(self, previous: StreamOffset, now: StreamOffset) -> list[Diagnosis]:
        """Examine a sample of a partition that was read without counting, once per run.

        Records are not counted when several tasks read one partition, or when the group is
        forbidden and the clocks do not need it.
        """
        if self._sampled is None:
            read = [span.partition for span in previous.ranges() if span.size]
            parts = [part for part in read if _has_same_events(part, previous, now)]
            if not parts:
                return []
            nothing: list[Diagnosis] = []
            self._sampled = self._try(self._examine_sample, parts[0], now, nothing)
        return self._sampled

    def _find_two_timestamps(self, previous: StreamOffset, now: StreamOffset) -> list[Diagnosis]:
        """Look once a run whether values have a field `timestamp` too, which is not read."""
        options = self._options
        if not options.start_time.given or options.value_format != "json":
            return []
        read = [span.partition for span in previous.ranges() if span.size] or [
            part for part, share in now.partitions.items() if share.state.events
        ]
        if self._has_two_timestamps is None and read:
            self._has_two_timestamps = self._try(self._has_field_timestamp, read[0], now, False)
        return [report_two_timestamps()] if self._has_two_timestamps else []

    def _has_field_timestamp(self, part: Partition, now: StreamOffset) -> bool:
        return any(has_field_timestamp(block) for block in self._read_newest(part, now))

    def _examine_sample(self, part: Partition, now: StreamOffset) -> list[Diagnosis]:
        state, malformed = PartitionState(), NO_MALFORMED_VALUES
        for block in self._read_newest(part, now):
            payload = read_payload(self._options, self._projection, block)
            state, _ = step(self._options.rules, state, payload.events, payload.marks)
            malformed += MalformedValues.from_reasons(payload.count_malformed())
        position = now.partitions[part].start_inclusive
        share = PartitionOffset(position, position, state, malformed_values=malformed)
        alone = replace(now, partitions={part: share})
        found = find_warnings((BatchRecord(0, alone),), 0)
        return [replace(each, scope="of its newest records") for each in found]

    def _delays_results(self, now: StreamOffset) -> bool:
        """Check whether a quiet partition may delay results for longer than the options allow."""
        if now.bounded:
            return not self._options.final_cti
        return self._options.idle_timeout_us is None

    def _add_advice(self, diagnosis: Diagnosis, now: StreamOffset) -> Diagnosis:
        """Set the advice that depends on options which are not in offsets."""
        comes_back = now.bounded and self._options.idle_timeout_us is not None
        if diagnosis.kind is Kind.IDLE_PARTITION and comes_back:
            return replace(diagnosis, advice=REPEATED_RUN_ADVICE)
        return diagnosis

    def _get_detail(self, diagnosis: Diagnosis, now: StreamOffset) -> str:
        """Describe `diagnosis` by a partition's newest records, if they can be read."""
        describe = _DESCRIPTIONS.get(diagnosis.kind)
        if describe is None or not diagnosis.partitions:
            return ""
        key = diagnosis.kind, diagnosis.level
        if key not in self._details:
            part, at = _choose_example(diagnosis, now)
            look = partial(self._describe, describe, at)
            self._details[key] = self._try(look, part, now, "")
        return self._details[key]

    def _describe(
        self, describe: DescribeBlock, at: int | None, part: Partition, now: StreamOffset
    ) -> str:
        blocks = self._read_newest(part, now, at)
        found = (describe(self._options, self._projection, block) for block in blocks)
        return next(filter(None, found), "")

    def _try(
        self,
        look: Callable[[Partition, StreamOffset], T],
        part: Partition,
        now: StreamOffset,
        no: T,
    ) -> T:
        """Call `look`; unexpected records or broker errors must not fail the query."""
        try:
            return look(part, now)
        except Exception:
            _LOG.debug("%s: cannot describe its records", part, exc_info=True)
            return no

    def _read_newest(
        self, part: Partition, now: StreamOffset, at: int | None = None
    ) -> list[RecordBlock]:
        """Read the newest records, or those up to offset `at`."""
        position = now.partitions[part].start_inclusive if at is None else at + 1
        span = Range(part, max(position - _SAMPLE_RECORDS, 0), position)
        patience_ms = min(self._options.poll_timeout_ms, _MAX_SAMPLE_WAIT_MS)
        options = replace(self._options, poll_timeout_ms=patience_ms, fail_on_data_loss=True)
        reader = self._reader(options, group_name(options.group_prefix, now.stream))
        try:
            keys = options.key_format != "binary"
            return list(reader.read(span, ColumnSet(True, keys, values=True, headers=True)))
        finally:
            reader.close()


def _choose_example(diagnosis: Diagnosis, now: StreamOffset) -> tuple[Partition, int | None]:
    """The partition to look at, and the offset of a malformed record where a task noted one."""
    for part in sorted(diagnosis.partitions):
        if part in now.partitions:
            noted = now.partitions[part].malformed_values
            at = {
                Kind.MALFORMED: noted.event_at,
                Kind.IMPROBABLE_TIMES: noted.time_at,
            }.get(diagnosis.kind, noted.value_at)
            if at is not None:
                return part, at
    return min(diagnosis.partitions), None


def _describe_malformed(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> str:
    if _is_plain_json(options):
        return describe_malformed(options, block)
    return describe_payloads(options, projection, block)


def _describe_unit(options: KafkaOptions, _: Projection | None, block: RecordBlock) -> str:
    return describe_unit(options, block) if _is_plain_json(options) else ""


def _describe_values(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> str:
    if projection is None or not _is_plain_json(options) or len(projection.key_fields):
        return describe_payloads(options, projection, block)
    return describe_values(projection, block)


def _is_plain_json(options: KafkaOptions) -> bool:
    """True if values are texts, as far as their fields are read."""
    return options.value_format in ("binary", "json") and options.value_rules.framing == "none"


_DESCRIPTIONS: Final[Mapping[Kind, DescribeBlock]] = {
    Kind.MALFORMED: _describe_malformed,
    Kind.IMPROBABLE_TIMES: _describe_unit,
    Kind.MALFORMED_VALUES: _describe_values,
}


def _has_same_events(part: Partition, previous: StreamOffset, now: StreamOffset) -> bool:
    after = now.partitions.get(part)
    return after is not None and after.state.events == previous.partitions[part].state.events


def _repeat_start_at_end(previous: StreamOffset) -> list[Diagnosis]:
    """Repeat the diagnosis that the stream began at its end, until it has read something."""
    if any(span.size for span in previous.ranges()):
        return []
    return [each for each in recall_warnings(previous.warnings) if each.kind is Kind.START_AT_END]


def warn_about_read(
    options: KafkaOptions,
    projection: Projection,
    reader: "Callable[[KafkaOptions, str], RangeReader]",
    ended: Mapping[Partition, tuple[int, PartitionState, MalformedValues]],
) -> None:
    """Log the mistakes in the records that a task of a batch read has read.

    Args:
        options: the options of the read.
        projection: the columns that it wants.
        reader: creates the reader of a few sample records.
        ended: partition -> its end offset, the clock there, and its malformed values and keys.
    """
    shares = {
        part: PartitionOffset(at, at, state, malformed_values=malformed)
        for part, (at, state, malformed) in ended.items()
    }
    blank = StreamOffset("", options.settings(), 1, {})
    now = replace(blank, partitions=shares)
    # The end of a part is not that of its partition.
    read = () if options.is_cut else (BatchRecord(0, replace(now, bounded=True)),)
    short = find_short_replays(read) if read else ()
    log_new_warnings((), Warner(options, projection, reader).update(blank, now, {}, 0, short))


def log_new_warnings(before: Warnings, after: Warnings) -> None:
    """Log the warnings that the previous offset did not have."""
    for diagnosis in find_new_warnings(before, after):
        _LOG.warning("%s", diagnosis.line)


# -- what the options alone show -------------------------------------------------------------------


def report_start_at_end(passed_over: int) -> Diagnosis:
    """A bounded run starts at its end and leaves out `passed_over` records."""
    return Diagnosis(
        Kind.START_AT_END,
        "option 'startingOffsets'",
        "it was not given, so this new query starts at the latest offsets, and a bounded run ends "
        f"there as well: {passed_over} records that are in the topics are not read",
    )


def report_unused_unit(fields: Sequence[str], unit: str) -> Diagnosis:
    """The diagnosis of a `timeUnit` beside times whose unit is in the schema."""
    listed = " and ".join(f"'{name}'" for name in fields)
    return Diagnosis(
        Kind.UNUSED_UNIT,
        f"option 'timeUnit' = '{unit}'",
        f"it has no effect: the Avro schema says the unit of {listed}",
    )


def report_two_timestamps() -> Diagnosis:
    """The diagnosis of a record's timestamp that is read beside a field of the same name."""
    return Diagnosis(
        Kind.TWO_TIMESTAMPS,
        "option 'startTime' = 'timestamp'",
        "the record's timestamp is read, and the values have a field 'timestamp', which is not",
    )


def report_improbable_bounds(options: KafkaOptions) -> list[Diagnosis]:
    """The diagnoses of starting and ending timestamps that are in another unit."""
    found = []
    for name, given in (
        ("startingTimestamp", options.starting_timestamp_ms),
        ("startingOffsetsByTimestamp", options.starting_timestamps_ms),
        ("endingTimestamp", options.ending_timestamp_ms),
        ("endingOffsetsByTimestamp", options.ending_timestamps_ms),
    ):
        instants = given.values() if isinstance(given, Mapping) else [given]
        wrong = [(ms, told) for ms in instants if ms is not None and (told := name_other_unit(ms))]
        if wrong:
            ms, told = wrong[0]
            text = f"{ms} counts milliseconds since 1970, but it looks like {told}"
            found.append(Diagnosis(Kind.IMPROBABLE_BOUND, f"option '{name}'", text))
    return found[:1]


# -- what the last events show ---------------------------------------------------------------------

_MIN_EVENTS: Final = 10
"""Counts of fewer events are too random to report."""

Shares = Mapping[Partition, PartitionOffset]


@dataclass(frozen=True, slots=True)
class RecentCounts:
    """The recent counts of a run.

    Attributes:
        since: each partition at the start of its present count.
        counts: each partition that had enough events, with the counts of the last ones only.
    """

    since: Shares = field(default_factory=dict)
    counts: Shares = field(default_factory=dict)


def update_counts(recent: RecentCounts, before: Shares, now: Shares) -> RecentCounts:
    """`recent` after a batch.

    Args:
        recent: up to the batch.
        before: the partitions at the batch's start.
        now: the partitions after it.
    """
    since, counts = dict[Partition, PartitionOffset](), dict[Partition, PartitionOffset]()
    for part, share in now.items():
        began = (
            recent.since.get(part) or before.get(part) or PartitionOffset(0, 0, PartitionState())
        )
        more = _subtract_counts(began, share)
        is_enough = more.state.events >= _MIN_EVENTS
        # A recreated partition has counted less.
        since[part] = share if is_enough or more.state.events < 0 else began
        if is_enough or part in recent.counts:
            counts[part] = more if is_enough else recent.counts[part]
    return RecentCounts(since, counts)


def find_recent_mistakes(recent: RecentCounts, now: StreamOffset) -> list[Diagnosis]:
    """The mistakes that the last events of the stream at `now` show, whatever came before."""
    moment = BatchRecord(0, replace(now, partitions=recent.counts))
    whole = BatchRecord(0, now)
    found = [
        *find_malformed_events((moment,), MOST),
        *find_malformed_values((moment,), MOST),
    ]
    levels = {
        each.kind: each.level
        for each in (*find_malformed_events((whole,)), *find_malformed_values((whole,)))
    }
    return [replace(each, scope="lately", level=levels.get(each.kind, 0)) for each in found]


def _subtract_counts(before: PartitionOffset, after: PartitionOffset) -> PartitionOffset:
    """`after` with only the counts since `before`."""
    state = replace(
        after.state,
        events=after.state.events - before.state.events,
        malformed=after.state.malformed - before.state.malformed,
    )
    return replace(
        after, state=state, malformed_values=after.malformed_values - before.malformed_values
    )
