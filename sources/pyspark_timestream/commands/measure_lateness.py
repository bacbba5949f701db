"""The function `measure_lateness`: reads a topic once, and measures the effect of each delay.

It reads the same records as a batch read with the same options, commits nothing to a group, and
does not need Spark. The unchanged rules of a query run over the records once for each delay
(`advance_trial`). So an event is late here exactly if it is late in a query with this delay that
begins at the same records, however these are divided into blocks.

An event that is not late *waits* until a record raises the CTI of its partition above its time;
from then on no event at or before its time can come. Its wait is the difference of the two records'
timestamps, or 0 if that is negative. Every waiting event takes memory, so waits may be measured
only on each N-th record; late events are counted on all.

Waits are counted in classes, so the memory does not depend on their number. Each wait below 128 ms
has its own class; above, each doubling has 128 classes, so a quantile is at most 0.8 % too high.
The greatest wait is exact.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import Integers, Mask
from pyspark_timestream.core.declarations import NEEDED_ADVICE
from pyspark_timestream.core.instants import (
    MILLISECOND_US,
    NEVER,
    Instants,
    format_duration,
    instant_or_none,
    instant_or_sentinel,
    parse_duration,
    read_record_times,
)
from pyspark_timestream.core.policies import KEEP_ALL
from pyspark_timestream.errors import OptionError, name_topics
from pyspark_timestream.kafka.decode.payload import list_required_columns, read_payload
from pyspark_timestream.kafka.decode.records import ColumnSet, ReadRange, RecordBlock
from pyspark_timestream.kafka.offsets.positions import (
    make_end_bound,
    make_start_bound,
)
from pyspark_timestream.kafka.options.checks import adapt_to_batch, read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import CTI_DELAY
from pyspark_timestream.kafka.ranges import OffsetRange, Partition
from pyspark_timestream.kafka.reader_schemas import load_schemas
from pyspark_timestream.rules.clocks import Events, PartitionClock, TimeRules, max_known
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import LATE, check_times, step

_BITS: Final = 7
_CLASSES_PER_DOUBLING: Final = 1 << _BITS
"""The number of one-millisecond classes, and of the classes in each doubling above them."""

_CLASSES: Final = (64 - _BITS) * _CLASSES_PER_DOUBLING


@dataclass(frozen=True, slots=True)
class Waits:
    """The number of waits in each class, and the greatest wait."""

    counts: Integers = field(default_factory=lambda: np.zeros(_CLASSES, dtype=np.int64))
    greatest_ms: int | None = None

    def add(self, ms: Integers) -> "Waits":
        """Count n more waits, none of them negative."""
        if not len(ms):
            return self
        more = np.bincount(_find_classes(ms), minlength=_CLASSES)
        return Waits(self.counts + more, max(int(ms.max()), self.greatest_ms or 0))

    def merge(self, other: "Waits") -> "Waits":
        """Return the waits of both."""
        greatest_ms = max_known(self.greatest_ms, other.greatest_ms)
        return Waits(self.counts + other.counts, greatest_ms)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def summarize_us(self) -> tuple[int | None, int | None, int | None]:
        """Return the waits that 50 %, 95 % and 100 % do not exceed; None without any."""
        values_ms = self.find_quantile(0.5), self.find_quantile(0.95), self.greatest_ms
        median_us, p95_us, all_us = (
            None if ms is None else ms * MILLISECOND_US for ms in values_ms
        )
        return median_us, p95_us, all_us

    def find_quantile(self, share: float) -> int | None:
        """Return the least wait, in ms and rounded up, that `share` of all waits do not exceed."""
        if self.greatest_ms is None:
            return None
        reached = np.cumsum(self.counts)
        number = int(np.searchsorted(reached, max(share * reached[-1], 1)))
        return min(_find_last_of_class(number), self.greatest_ms)


def _find_classes(ms: Integers) -> Integers:
    doublings = np.maximum(np.frexp(ms.astype(np.float64))[1] - 1 - _BITS, 0).astype(np.int64)
    # As a double, a number just below a power of two may be rounded up to it: a doubling too many.
    doublings -= (ms >> doublings) < np.where(doublings > 0, _CLASSES_PER_DOUBLING, 0)
    classes: Integers = doublings * _CLASSES_PER_DOUBLING + (ms >> doublings)
    return classes


def _find_last_of_class(number: int) -> int:
    """Return the greatest wait of a class.

    >>> [_find_last_of_class(each) for each in (3, 127, 128, 255, 256, 257)]
    [3, 127, 128, 255, 257, 259]
    """
    doublings = max(number // _CLASSES_PER_DOUBLING - 1, 0)
    return ((number - doublings * _CLASSES_PER_DOUBLING + 1) << doublings) - 1


_NOTHING: Final = np.empty(0, dtype=np.int64)


class SampledBlock(NamedTuple):
    """n consecutive records of a partition, decoded; the same for all delays.

    `times` decide whether they are late. `record_us` are the records' timestamps, NEVER where a
    record has none, and `sampled` is true where an event is well-formed and its wait is measured.
    """

    events: Events
    marks: Marks
    times: Instants
    record_us: Instants
    sampled: Mask


class _Waiting(NamedTuple):
    """Events of a block that wait for a CTI; `first_us` is the earliest of their times."""

    times: Instants
    record_us: Instants
    first_us: int


@dataclass(frozen=True, slots=True)
class DelayTrial:
    """One delay tried on a partition: its clock, and measurements; late events are flagged.

    `record_us` is the timestamp of the last record, and `most_late_us` the greatest distance of the
    CTI past the time of a late event.
    """

    clock: PartitionClock = field(default_factory=PartitionClock)
    most_late_us: int | None = None
    waits: Waits = field(default_factory=Waits)
    waiting: tuple[_Waiting, ...] = ()
    record_us: int | None = None

    def count_waiting(self) -> int:
        """Count the measured events that no CTI has passed yet."""
        return sum(len(block.times) for block in self.waiting)


def make_block(
    events: Events, marks: Marks, record_us: Instants, first_record: int, sampled_every: int
) -> SampledBlock:
    """Prepare a block that begins at record `first_record`; measure waits on each N-th record."""
    times, well_formed, _ = check_times(events)
    sampled = well_formed
    if sampled_every > 1:
        numbers = np.arange(first_record, first_record + len(times))
        sampled = well_formed & (numbers % sampled_every == 0)
    return SampledBlock(events, marks, times, record_us, sampled)


def advance_trial(rules: TimeRules, trial: DelayTrial, block: SampledBlock) -> DelayTrial:
    """Advance the clock over the block. The policy of the rules must be `flag`."""
    if not len(block.times):
        return trial
    clock, result = step(rules, trial.clock, block.events, block.marks)
    late = result.violation == LATE
    fresh = np.flatnonzero(block.sampled & ~late)
    waiting = trial.waiting
    if len(fresh):
        times = block.times[fresh]
        waiting = (*waiting, _Waiting(times, block.record_us[fresh], int(times.min())))
    # The timestamp of the record that each CTI directly follows.
    before_us = instant_or_sentinel(trial.record_us)
    stamps_us = np.concatenate(([before_us], block.record_us))[result.cti_index + 1]
    still_waiting, waits = _release_waiting(waiting, result.cti_us, stamps_us)
    late_rows = np.flatnonzero(late)
    most_late_us = trial.most_late_us
    if len(late_rows):
        late_by_us = result.in_force_us[late_rows] - block.times[late_rows]
        most_late_us = max(int(late_by_us.max()), most_late_us or 0)
    return replace(
        trial,
        clock=clock,
        most_late_us=most_late_us,
        waits=trial.waits.add(waits),
        waiting=still_waiting,
        record_us=instant_or_none(block.record_us[-1]),
    )


def _release_waiting(
    waiting: tuple[_Waiting, ...], ctis_us: Instants, stamps_us: Instants
) -> tuple[tuple[_Waiting, ...], Instants]:
    """Return the events that still wait after these CTIs, and the waits of the others in ms.

    `stamps_us` are the timestamps of the records that the CTIs follow. Only events that are not
    late wait, so every CTI above an event's time came after the event.
    """
    if not len(ctis_us):
        return waiting, _NOTHING
    still_waiting: list[_Waiting] = []
    waits: list[Instants] = []
    for events in waiting:
        if events.first_us >= ctis_us[-1]:
            still_waiting.append(events)
            continue
        passed_by = np.searchsorted(ctis_us, events.times, side="right")
        waits_on = passed_by == len(ctis_us)
        event_us, cti_us = events.record_us[~waits_on], stamps_us[passed_by[~waits_on]]
        has_both = (event_us != NEVER) & (cti_us != NEVER)
        waits.append(np.maximum(cti_us[has_both] - event_us[has_both], 0) // MILLISECOND_US)
        if waits_on.any():
            times = events.times[waits_on]
            still_waiting.append(_Waiting(times, events.record_us[waits_on], int(times.min())))
    return tuple(still_waiting), np.concatenate(waits) if waits else _NOTHING


_MAX_SAMPLED: Final = 500_000
"""Measure the waits of about this many events: each delay keeps some of them in memory."""


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """One partition at its end: its clock by each delay, and the bounds of timestamps."""

    trials: tuple[DelayTrial, ...]
    first_us: int | None
    last_us: int | None


def _choose_sampling(offsets: int) -> int:
    """Return N such that the waits of each N-th record are measured.

    N is odd, so that the sample includes all phases of an alternation, such as of two producers.

    >>> _choose_sampling(999_999), _choose_sampling(1_000_000), _choose_sampling(100_000_000)
    (1, 3, 201)
    """
    return offsets // _MAX_SAMPLED | 1


def follow_partition(
    options: KafkaOptions,
    delays_us: Sequence[int],
    sampled_every: int,
    blocks: Iterable[RecordBlock],
) -> FollowedPartition:
    """Follow a partition through all its blocks; the delay and policy of options do not matter."""
    # Only late events are flagged, so they can be counted; no policy moves a clock (semantics 2.5).
    rules = [
        replace(options.rules, delay_us=delay_us, policy=KEEP_ALL, time_window=False)
        for delay_us in delays_us
    ]
    trials = tuple(DelayTrial() for _ in delays_us)
    records, stamps_us = 0, list[int]()
    for block in blocks:
        payload = read_payload(options, None, block)
        us, has_time = read_record_times(block.timestamps_ms)
        record_us = np.where(has_time, us, NEVER)
        shared = make_block(payload.events, payload.marks, record_us, records, sampled_every)
        trials = tuple(map(advance_trial, rules, trials, repeat(shared)))
        records += len(block.offsets)
        if has_time.any():
            stamps_us += [int(us[has_time].min()), int(us[has_time].max())]
    return FollowedPartition(trials, min(stamps_us, default=None), max(stamps_us, default=None))


LADDER_US: Final = tuple(
    map(
        parse_duration,
        (
            *("0 seconds", "100 ms", "1 second", "2 seconds", "5 seconds", "10 seconds"),
            *("20 seconds", "1 minute", "2 minutes", "5 minutes", "10 minutes", "20 minutes"),
            *("1 hour", "2 hours", "6 hours", "12 hours", "1 day"),
        ),
    )
)
"""The delays to try unless the user names some; they are fixed, so that one pass is enough."""

if TYPE_CHECKING:
    from pyspark_timestream.kafka.client.broker import Broker

_MAX_DELAYS: Final = 50


def parse_delays(texts: Sequence[str]) -> tuple[int, ...]:
    """Return the distinct delays in increasing order, beginning with 0; at most 50."""
    accepts = "durations that are not negative, such as '20 seconds,5 minutes'"
    if not texts:
        raise OptionError("delays", "there is none", accepts, "name one, or leave it out")
    delays_us = {0}
    for text in texts:
        us = _parse("delays", text, accepts)
        if us < 0:
            raise OptionError(
                "delays",
                f"'{text}' is negative: with it each event makes the next of its time late",
                accepts,
                "leave it out; 0 is always tried",
            )
        delays_us.add(us)
    if len(delays_us) > _MAX_DELAYS:
        raise OptionError(
            "delays", f"there are {len(delays_us)}", f"at most {_MAX_DELAYS}", "leave some out"
        )
    return tuple(sorted(delays_us))


def parse_last(text: str) -> int:
    """Return how much of a topic to read, in microseconds."""
    accepts = "a duration above 0, such as '6 hours'"
    us = _parse("last", text, accepts)
    if us <= 0:
        problem = f"'{text}' ({format_duration(us)}) leaves nothing to read"
        raise OptionError("last", problem, accepts, "correct it, or leave it out")
    return us


def _parse(option: str, text: str, accepts: str) -> int:
    try:
        return CTI_DELAY.parse(text)
    except ValueError as error:
        problem = f"cannot read '{text}' ({error})"
        raise OptionError(option, problem, accepts, "correct it") from error


_SMALL_LATE_SHARE: Final = 0.001
"""The second recommendation allows a smaller share of late events than this."""

_DURATION: Final = pa.duration("us")
DURATIONS: Final = ("delay", "most_late", "wait_median", "wait_p95", "wait_max")


@dataclass(frozen=True, slots=True)
class DelayResult:
    """All partitions by one delay: their clocks at the end, in which late events are flagged.

    `waiting` is the number of measured events that no CTI had passed by then.
    """

    delay_us: int
    partitions: Mapping[Partition, PartitionClock] = field(default_factory=dict)
    most_late_us: int | None = None
    waits: Waits = field(default_factory=Waits)
    waiting: int = 0

    @property
    def events(self) -> int:
        """The number of events, including malformed ones."""
        return sum(clock.events for clock in self.partitions.values())

    @property
    def malformed(self) -> int:
        """The number of events without a readable time."""
        return sum(map(_count_unreadable, self.partitions.values()))

    @property
    def late(self) -> int:
        """The number of late events."""
        return sum(clock.flagged for clock in self.partitions.values())

    @property
    def late_share(self) -> float:
        """The share of late events, from 0 to 1."""
        return self.late / self.events if self.events else 0.0

    def add(self, partition: Partition, trial: DelayTrial) -> "DelayResult":
        """Return the result with another partition, read to its end."""
        return replace(
            self,
            partitions={**self.partitions, partition: trial.clock},
            most_late_us=max_known(self.most_late_us, trial.most_late_us),
            waits=self.waits.merge(trial.waits),
            waiting=self.waiting + trial.count_waiting(),
        )


@dataclass(frozen=True, slots=True)
class Lateness:
    """The results of a pass over a topic, one for each delay in order; the first delay is 0.

    Waits were measured on each N-th record; the timestamps are the least and the greatest.
    """

    topics: tuple[str, ...]
    delays: tuple[DelayResult, ...]
    sampled_every: int
    first_us: int | None = None
    last_us: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def largest_lateness_us(self) -> int:
        """The most that an event was behind the CTI without a delay; 0 without late events."""
        return self.delays[0].most_late_us or 0

    def find_lossless(self) -> DelayResult | None:
        """Return the smallest delay without late events; None if each has some."""
        return next((delay for delay in self.delays if not delay.late), None)

    def find_nearly_lossless(self) -> DelayResult | None:
        """Return the smallest delay with late events, but fewer than 0.1 %; None without one."""
        return next(
            (delay for delay in self.delays if 0 < delay.late_share < _SMALL_LATE_SHARE), None
        )


def _count_unreadable(clock: PartitionClock) -> int:
    """Count the events without a readable time; those without a value are among them."""
    return clock.malformed + clock.tombstones


def build_table(report: Lateness) -> pa.Table:
    """Build the table that `measure_lateness` returns: one row for each delay, in order."""
    rows = [build_row(delay, report.sampled_every) for delay in report.delays]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_PARTITION: Final = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        *((name, pa.int64()) for name in ("events", "malformed", "late", "ctis")),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        ("delay", _DURATION),
        *((name, pa.int64()) for name in ("events", "malformed", "late")),
        ("late_percent", pa.float64()),
        *((name, _DURATION) for name in DURATIONS[1:]),
        *((name, pa.int64()) for name in ("waiting", "sampled_every")),
        ("partitions", pa.list_(_PARTITION)),
    ]
)


def build_row(result: DelayResult, sampled_every: int) -> dict[str, Any]:
    """Build one delay's row; durations are in microseconds."""
    median_us, p95_us, max_us = result.waits.summarize_us()
    return {
        "delay": result.delay_us,
        "events": result.events,
        "malformed": result.malformed,
        "late": result.late,
        "late_percent": 100 * result.late_share,
        "most_late": result.most_late_us,
        "wait_median": median_us,
        "wait_p95": p95_us,
        "wait_max": max_us,
        "waiting": result.waiting * sampled_every,
        "sampled_every": sampled_every,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.number,
                "events": clock.events,
                "malformed": _count_unreadable(clock),
                "late": clock.flagged,
                "ctis": clock.ctis,
            }
            for partition, clock in result.partitions.items()
        ],
    }


_LONG_US: Final = parse_duration("1 day")
"""A greater lateness is more often due to a wrong clock than to a slow network."""


def check_readable(options: KafkaOptions, report: Lateness) -> None:
    """Refuse a topic without any event that has a readable time."""
    least = report.delays[0]
    if least.events == least.malformed:
        where = f"'{options.start_time}'" + (
            f" or '{options.end_time}'" if options.end_time else ""
        )
        raise OptionError(
            "startTime",
            f"none of {least.events:,} events has a readable time in {where}"
            if least.events
            else "no record is an event: all are marks",
            "where the event's time is, and with 'timeUnit' its unit if it is a number",
            "look at some records: python -m pyspark_timestream peek --topic "
            f"{shlex.quote(report.topics[0])} --bootstrap-servers ...",
        )


def list_notes(options: KafkaOptions, report: Lateness, whole_us: int | None) -> Iterator[str]:
    """Yield sentences about problems and unknowns.

    `whole_us` is the time that the user asked for, if the topic has less; else None.
    """
    least = report.delays[0]
    if whole_us is not None:
        yield (f"the records are of less than {format_duration(whole_us)}: all of them were read")
    if least.malformed:
        yield (
            f"{least.malformed:,} of {least.events:,} events have no readable time and are not "
            "counted as late: python -m pyspark_timestream peek shows some"
        )
    silent = [
        partition
        for partition, clock in least.partitions.items()
        if clock.events > _count_unreadable(clock) and not clock.ctis
    ]
    if silent:
        why = f"they hold less than option 'ctiFrequency' ('{options.frequency}') asks for"
        if (
            options.writer_from is not None
            or options.writers
            or options.writer_grace_us is not None
        ):
            why += ", or a writer that is waited for has not come as far"
        yield (
            f"{len(silent)} of {len(least.partitions)} partitions have no CTI, since {why}, so "
            "nothing in them can be late"
        )
    if report.largest_lateness_us > _LONG_US and options.max_future_us is None:
        yield (
            f"one event was {format_duration(report.largest_lateness_us)} behind an earlier one: "
            "if that one's time is wrong, try 'maxFuture', or 'writerFrom' if its record's "
            "timestamp is as wrong"
        )
    if report.sampled_every > 1:
        yield f"waits were measured on one in {report.sampled_every} records, late rows on all"


_GROUP: Final = "timestream-lateness"
"""A consumer must name a group; this one never joins it and commits nothing to it."""

_TAIL_OFFSETS: Final = (20, 2_000)
"""Look for a record in this many offsets at a partition's end, since markers and compaction leave
gaps."""

_TIMESTAMPS: Final = ColumnSet(timestamps=True)


def read_topic(options: KafkaOptions, delays_us: Sequence[int], last_us: int | None) -> Lateness:
    """Read the records that the options select, once; the first delay is 0.

    With `last_us`, begin that long before the newest record.
    """
    from pyspark_timestream.kafka.client.broker import Broker
    from pyspark_timestream.kafka.client.range_reader import RangeReader

    broker, reader = Broker(options, _GROUP), RangeReader(options, _GROUP)
    try:
        ranges, is_limited = _find_ranges(options, broker, reader.read, last_us)
        report = _follow_ranges(options, delays_us, ranges, reader.read)
    finally:
        reader.close()
        broker.close()
    check_readable(options, report)
    whole_us = None if is_limited else last_us
    return replace(report, notes=tuple(list_notes(options, report, whole_us)))


def _describe_topics(options: KafkaOptions) -> str:
    if options.subscribe_pattern is not None:
        return f"topics that match '{options.subscribe_pattern}'"
    topics = {partition.topic for partition in options.assign or ()} or set(options.subscribe or ())
    return name_topics(topics)


def _find_ranges(
    options: KafkaOptions, broker: "Broker", read_range: ReadRange, last_us: int | None
) -> tuple[tuple[OffsetRange, ...], bool]:
    """Return the ranges of a batch read, cut to `last_us`, and whether that cut any of them."""
    from pyspark_timestream.kafka.client.broker import find_every_range

    earliest, ends = find_every_range(broker, broker.partitions)
    if not ends:
        brokers = options.client["bootstrap.servers"]
        raise OptionError(
            "subscribe",
            f"no partition of {_describe_topics(options)} exists at {brokers}",
            "a topic that exists",
            "check its name",
        )
    starts = make_start_bound(options).resolve(earliest, ends, broker.offsets_at)
    stops = make_end_bound(options).resolve(earliest, ends, broker.offsets_at)
    later_starts: Mapping[Partition, int] = starts
    if last_us is not None:
        later_starts = _find_later_starts(broker, read_range, starts, stops, last_us)
    ranges = tuple(
        OffsetRange(partition, start, stops[partition])
        for partition, start in sorted(later_starts.items())
    )
    if not any(offset_range.size > 0 for offset_range in ranges):
        raise OptionError(
            "subscribe",
            f"{_describe_topics(options)} holds no records to measure",
            "a topic with records",
            "write some, or read from an earlier place",
        )
    return ranges, later_starts != starts


def _find_later_starts(
    broker: "Broker",
    read_range: ReadRange,
    starts: Mapping[Partition, int],
    stops: Mapping[Partition, int],
    last_us: int,
) -> Mapping[Partition, int]:
    """Return the starts, none of them more than `last_us` before the newest record."""
    each_newest_ms = (
        _find_newest_ms(read_range, partition, starts[partition], stops[partition])
        for partition in sorted(starts)
    )
    newest_ms = max_known(*each_newest_ms)
    if newest_ms is None:
        return starts
    since_ms = max(newest_ms - -(-last_us // 1_000), 0)
    offsets = broker.offsets_at(dict.fromkeys(starts, since_ms))
    later_starts = {}
    for partition, start in starts.items():
        offset, stop = offsets.get(partition), stops[partition]
        later_starts[partition] = max(start, stop if offset is None else min(offset, stop))
    return later_starts


def _find_newest_ms(
    read_range: ReadRange, partition: Partition, start: int, stop: int
) -> int | None:
    """Return the greatest timestamp among the last records of a partition; None without any."""
    for offsets in _TAIL_OFFSETS:
        tail = OffsetRange(partition, max(start, stop - offsets), stop)
        if tail.size <= 0:
            return None
        blocks = read_range(tail, _TIMESTAMPS)
        newest_ms = [pc.max(block.timestamps_ms).as_py() for block in blocks if len(block.offsets)]
        if newest_ms:
            return int(max(newest_ms))
    return None


def _follow_ranges(
    options: KafkaOptions,
    delays_us: Sequence[int],
    ranges: Sequence[OffsetRange],
    read_range: ReadRange,
) -> Lateness:
    sampled_every = _choose_sampling(sum(max(offset_range.size, 0) for offset_range in ranges))
    columns = list_required_columns(options, None)._replace(timestamps=True)
    results = tuple(DelayResult(delay_us) for delay_us in delays_us)
    stamps_us: list[int] = []
    for offset_range in ranges:
        blocks = read_range(offset_range, columns) if offset_range.size > 0 else ()
        followed = follow_partition(options, delays_us, sampled_every, blocks)
        pairs = zip(results, followed.trials, strict=True)
        results = tuple(result.add(offset_range.partition, trial) for result, trial in pairs)
        stamps_us += [us for us in (followed.first_us, followed.last_us) if us is not None]
    return Lateness(
        topics=tuple(sorted({offset_range.partition.topic for offset_range in ranges})),
        delays=results,
        sampled_every=sampled_every,
        first_us=min(stamps_us, default=None),
        last_us=max(stamps_us, default=None),
    )


_REFUSED: Final = {
    "ctiDelay": ("the delays are what is tried here", "name some as 'delays'"),
    "advanceTime": (
        "a preset fixes the delay",
        "set 'ctiFrequency' to '1', which is what each preset stands for",
    ),
    "ctiImport": (
        "when a CTI of another topic takes effect depends on when a query reads it",
        "leave it out",
    ),
    "idleTimeout": ("it depends on the wall clock of a query", "leave it out"),
    "timeSettings": (
        "a description may hold the delay, which is what is tried here",
        "set what else it holds as options",
    ),
}
"""Options that affect CTIs but cannot be followed here -> reason, next step."""

_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def measure_lateness(
    options: Mapping[str, str],
    delays: str | Sequence[str] | None = None,
    last: str | None = None,
) -> pa.Table:
    """Count the rows of a topic that would be late by each of several delays, in one pass.

    A row is late exactly if it is late in a query that starts at the same records with `ctiDelay`
    set to the delay (semantics 3.1), since the same rules judge both. The records are read from
    Kafka up to the present ends of their partitions; Spark is not needed.

    How long results wait is measured by the records' timestamps. An event that is not late waits
    from its own record to the record that raises its partition's CTI above its time; its wait is
    the difference of the two timestamps, or 0 if that is negative. A stream of several partitions
    may wait longer: its CTI is the least of theirs (semantics 5.1).

    Args:
        options: the stream's, by their names, such as `kafka.bootstrap.servers`, `subscribe`,
            `startTime` and `ctiFrequency`; `startingOffsets` and other options of batch reads
            choose the records, by default all. `ctiDelay`, `advanceTime`, `ctiImport`,
            `idleTimeout` and `timeSettings` are refused, and `violationPolicy` changes nothing.
        delays: durations, separated by commas or as a list, none of them negative; 0 is always
            among them. None: a ladder from 0 to 1 day.
        last: read only what lies at most this long, inclusive, before the newest record by the
            timestamps of the records. None: everything.

    Returns:
        One row for each delay, in increasing order. `events` and `malformed` (without a readable
        time) are the same in all rows. `late` and `late_percent` are exact, and `most_late` is how
        far the CTI was past a late event, at most. `wait_median` and `wait_p95` are at most 0.8 %
        too high; `waiting` events were passed by no CTI by the end. Waits are of one in
        `sampled_every` records: of each record up to a million. `partitions` has the counts of
        each partition: `topic`, `partition`, `events`, `malformed`, `late`, `ctis`. Durations are
        in microseconds.

    Raises:
        OptionError: an option is wrong or missing, the topic does not exist or holds no records,
            or none of its events has a readable time.
        BrokerUnreachable: no broker answers, or it refuses.
        DataLost: records were deleted while they were read.
        SchemaRefused: a schema does not fit.
        SchemaRegistryError: the registry does not give a schema.
        MissingExtra: a library for the format is not installed.
    """
    return build_table(load_lateness(options, delays, last))


def load_lateness(
    raw: Mapping[str, str], delays: str | Sequence[str] | None, last: str | None
) -> Lateness:
    """Measure what `measure_lateness` returns as a table."""
    if delays is None:
        delays_us = LADDER_US
    elif isinstance(delays, str):
        delays_us = parse_delays(delays.split(","))
    else:
        # Take options as Spark does: a number stands for its text.
        delays_us = parse_delays([*map(str, delays if isinstance(delays, Sequence) else [delays])])
    last_us = None if last is None else parse_last(str(last))
    options = _read_options(raw, last)
    # Imported late: the rest of this module needs no Kafka client.
    from pyspark_timestream.kafka.reader_schemas import pin_reader_schemas

    return read_topic(pin_reader_schemas(load_schemas(options), {}), delays_us, last_us)


def _read_options(raw: Mapping[str, str], last: str | None) -> KafkaOptions:
    texts = {name.lower(): str(text) for name, text in raw.items()}
    for name, (problem, next_step) in _REFUSED.items():
        if name.lower() in texts:
            raise OptionError(name, f"it has no place here: {problem}", "its absence", next_step)
    for name in _STARTS:
        if last is not None and name.lower() in texts:
            raise OptionError(
                name, f"it conflicts with 'last' ('{last}')", "one of both", "leave one out"
            )
    try:
        kafka_options = read_kafka_options({**texts, "transport": "kafka"})
    except OptionError as error:
        if error.name not in ("startTime", "ctiFrequency"):
            raise
        # A stream may leave it out, and the command needs it.
        raise OptionError(error.name, error.problem, error.accepts, NEEDED_ADVICE) from None
    options = adapt_to_batch(kafka_options, texts.keys())
    if options.frequency is None:
        raise OptionError(
            "ctiFrequency",
            "it is missing, and a delay belongs to generated CTIs",
            "a count of events such as '10', or a timespan such as '5 seconds'",
            "set it, to '1' for a CTI at every event",
        )
    return replace(options, final_cti=False)
