"""The clocks of partitions between two records, and the stream's CTI over all partitions.

A `PartitionClock` has a JSON form, because each Spark offset holds one per partition. Its `Clues`
serve diagnosis: no rule reads them. Like the clock they are a fold, so any split into blocks gives
the same clues.

A stream can promise no more than each of its partitions, so its CTI is the minimum of theirs
(semantics 5.1). A partition without a CTI holds it back; an idle one (5.2) does not count, unless
all are idle. The stream's CTI never goes back.

Within a batch, tasks read different partitions at the same time and cannot see each other's
progress. Each task knows its own partitions up to the last record read, and the others only as they
were at the start of the batch. CTIs never go back, so the minimum of both already holds: the task
emits its increases as CTI rows (5.7). If no task can prove the stream's CTI at the end of a
batch, one more batch carries it.

When a restart changes the rules of a clock (8.10), state that the new rules cannot use starts
again; every promised CTI stays.
"""

import dataclasses
import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.arrow import Integers, Mask
from pyspark_timestream.core.checkpoint import build_frozen
from pyspark_timestream.core.instants import (
    NEVER,
    PROBABLE_US,
    Instants,
    instant_or_sentinel,
    parse_instant,
)
from pyspark_timestream.core.policies import DEFAULT_FUTURE_POLICY, DEFAULT_POLICY

MAX_LEAD_US: Final = 60_000_000
"""Clock skew does not explain a time further after its record's timestamp or the wall clock."""

_NO_PARTITION: Final = int(np.iinfo(np.int64).max)
"""The minimum of no CTIs."""

OLD_US, FAR_US = PROBABLE_US
"""Event times before the first or from the second on are improbable."""

EARLY_US: Final = parse_instant("1969-12-31T00:00:00Z"), parse_instant("1970-04-01T00:00:00Z")
"""From the first (inclusive) to the second (exclusive), times hint at a wrong unit.

Seconds up to the year 2100, read as milliseconds, lie there, and so do 0, -1 and the times of a
clock that was never set.
"""


class Clues(NamedTuple):
    """Notes about one partition, for diagnosis.

    Attributes:
        lead_us: the distance from the record's timestamp forward to its event's time, for the event
            that made the CTI in force. None: it is small or unknown, or no event made the CTI.
        ahead: late events that came after a CTI with a lead.
        behind_us: the greatest time of a late event; None if none was late.
        misplaced: late events that are further than the delay before an earlier late event.
        most_late_us: the greatest distance of a late event before a CTI without a lead.
        old: events before 1990.
        early: the old events in `EARLY_US`, where a wrong unit puts times. The clues about late
            events leave them out.
    """

    lead_us: int | None = None
    ahead: int = 0
    behind_us: int | None = None
    misplaced: int = 0
    most_late_us: int = 0
    old: int = 0
    early: int = 0

    @property
    def has_other_unit(self) -> bool:
        """Whether times seem to be in a wrong unit; an archive of 1970 also has later times."""
        return 2 * self.early > self.old

    def to_json(self) -> dict[str, int]:
        """Return a JSON object with sorted keys, without defaults."""
        values, defaults = self._asdict(), Clues._field_defaults
        return {name: values[name] for name in sorted(values) if values[name] != defaults[name]}

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> "Clues":
        """Return the clues that `to_json` wrote."""
        return cls(**value)


def find_early(times: Instants) -> Mask:
    """Find the times that lie in `EARLY_US`."""
    is_early: Mask = (times >= EARLY_US[0]) & (times < EARLY_US[1])
    return is_early


def has_reached(cti_us: int | None, until_us: int | None) -> bool:
    """Return whether a CTI has reached `until_us`, the end of the stream; None means no end."""
    return cti_us is not None and until_us is not None and cti_us >= until_us


COUNTERS: Final = (
    "events",
    "dropped",
    "adjusted",
    "flagged",
    "malformed",
    "tombstones",
    "future",
    "ctis",
    "ignoredCtis",
    "outside",
)
"""The public names of a partition's counters."""


class WriterState(NamedTuple):
    """One writer of in-band CTIs (semantics 4.2), or one with its own clock (4.8).

    Attributes:
        mark_us: its greatest mark, or its CTI; None: it has none yet.
        seen_us: the partition's greatest record timestamp at this writer's last mark or event, or
            at the first record if a listed writer has not come yet. None: no record had a timestamp
            yet, or no timeout is set.
        counted: its counted events since its counter last restarted; only with its own clock.
        base_us: its timespan starts here; None before the first event, or without a timespan.
    """

    mark_us: int | None = None
    seen_us: int | None = None
    counted: int = 0
    base_us: int | None = None

    def to_json(self) -> list[int | None]:
        """Return a short list; it holds the base, if any, as the distance from the mark (or 0)."""
        if self.base_us is not None:
            return [*self[:3], self.base_us - (self.mark_us or 0)]
        return [*self[:3]] if self.counted else [*self[:2]]

    @classmethod
    def from_json(
        cls,
        mark_us: int | None,
        seen_us: int | None,
        counted: int = 0,
        base_us: int | None = None,
    ) -> "WriterState":
        """Return the state that `to_json` wrote."""
        base_us = None if base_us is None else base_us + (mark_us or 0)
        return cls(mark_us, seen_us, counted, base_us)


@dataclass(frozen=True, slots=True)
class TimeRules:
    """The options that decide CTIs and violations.

    Attributes:
        shape: `point`, `interval` or `edge`.
        policy: one of `POLICIES`.
        every_events: a CTI at every N-th counted event; None: not by count.
        every_us: a CTI when application time has advanced by this; None: not by timespan.
        delay_us: subtracted from the triggering event's time; may be negative.
        max_future_us: an event further than this after its record's timestamp is in the future and
            does not drive the clock; None: unlimited.
        writers: the partition waits for these writers from the start.
        writer_timeout_us: longest silence of a writer, in record timestamps; None: unlimited.
        time_window: the rows get time windows.
        writer_grace_us: no CTI of the writers takes effect until the record timestamps have
            advanced by this; None: at once.
        future_policy: `keep`, `drop` or `fail`, for events in the future.
        from_us: only rows at or after this instant; None: no start.
        until_us: only rows before this instant, and the partition ends where its CTI reaches it;
            None: no end.
    """

    shape: str = "point"
    policy: str = DEFAULT_POLICY
    every_events: int | None = None
    every_us: int | None = None
    delay_us: int = 0
    max_future_us: int | None = None
    writers: tuple[str, ...] = ()
    writer_timeout_us: int | None = None
    time_window: bool = False
    future_policy: str = DEFAULT_FUTURE_POLICY
    writer_grace_us: int | None = None
    from_us: int | None = None
    until_us: int | None = None

    @property
    def follows_writers(self) -> bool:
        """Whether a block without marks may change which writers count."""
        return bool(self.writers) or self.time_window or self.needs_record_times

    @property
    def needs_record_times(self) -> bool:
        """Whether silence or grace of writers is measured in record timestamps."""
        return self.writer_timeout_us is not None or self.writer_grace_us is not None

    def is_at_end(self, cti_us: int | None) -> bool:
        """Return whether `cti_us`, of a partition or of the stream, has reached the end."""
        return has_reached(cti_us, self.until_us)


@dataclass(frozen=True, slots=True)
class Events:
    """A block of n consecutive records of one partition, in offset order, as events.

    Attributes:
        start_us: n instants: the start time (for an end edge: the start of the event it ends).
        readable: n booleans; False where a time is missing or unreadable or the edge unknown.
            The times of unreadable events are arbitrary.
        end_us: n instants for intervals and edges; None for points.
        is_end: n booleans for edges: this is an end edge; None for points and intervals.
        present: n booleans: the record is an event; None: all are. A punctuation without a value
            is not an event.
        record_us: n instants: the record timestamps, NEVER where there is none; None if no rule
            needs them.
        valueless: n booleans: the record lacks the value that would contain its time; None: no
            record does.
        writers: n texts: the writer of each record, "" where there is none; each writer has its own
            clock. None: the partition has one clock.
    """

    start_us: Instants
    readable: Mask
    end_us: Instants | None = None
    is_end: Mask | None = None
    present: Mask | None = None
    record_us: Instants | None = None
    writers: pa.Array | None = None
    valueless: Mask | None = None


@dataclass(frozen=True)
class PartitionClock:
    """A partition's clock between two records, with its counters.

    Attributes:
        cti_us: the CTI in force; None before the first.
        count: counted events since the counter last restarted.
        base_us: the timespan starts here; None before the first counted event.
        events: received events, malformed ones included.
        dropped: late events that the policy dropped.
        adjusted: late events whose start or end was moved.
        flagged: late events that became rows with a flag.
        malformed: malformed events that have a value, under every policy.
        future: events in the future, under every policy.
        ctis: CTIs that took effect.
        ignored_ctis: marks that moved no CTI: not above the one in force, or unreadable.
        last_us: the time of the last well-formed event; None before the first.
        writers: the writers that are live or awaited, in the order of their names; the name ""
            stands for the partition's own marks.
        noted_us: the greatest mark that any named writer ever noted; None before the first.
        record_us: the greatest record timestamp so far; only kept with `writerTimeout` or
            `writerGrace`.
        first_us: the first record timestamp; only kept with `writerGrace`.
        begun: `writers` already contains the listed writers.
        outside: events that became no row because they are outside the replay window.
        tombstones: malformed events without a value, under every policy.
        clues: notes for diagnosis; no rule reads them.
    """

    cti_us: int | None = None
    count: int = 0
    base_us: int | None = None
    events: int = 0
    dropped: int = 0
    adjusted: int = 0
    flagged: int = 0
    malformed: int = 0
    ctis: int = 0
    ignored_ctis: int = 0
    last_us: int | None = None
    writers: tuple[tuple[str, WriterState], ...] = ()
    noted_us: int | None = None
    record_us: int | None = None
    begun: bool = False
    future: int = 0
    first_us: int | None = None
    outside: int = 0
    tombstones: int = 0
    clues: Clues = Clues()

    @property
    def unusable(self) -> int:
        """The number of events that a counter names as driving no clock."""
        return self.malformed + self.tombstones + self.future

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without the counters and fields that have their start value."""
        defaults = PartitionClock()
        names = (field.name for field in dataclasses.fields(self))
        values = {name: getattr(self, name) for name in names}
        fields = {
            name: value
            for name, value in sorted(values.items())
            if value != getattr(defaults, name)
        }
        if self.writers:
            fields["writers"] = [[name, *writer.to_json()] for name, writer in self.writers]
        if "clues" in fields:
            fields["clues"] = self.clues.to_json()
        return fields

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PartitionClock":
        """Return the clock that `to_json` wrote."""
        if "writers" not in value and "clues" not in value:
            return build_frozen(cls, value)
        parsed: Any = value.get("writers", ())
        writers = tuple((name, WriterState.from_json(*values)) for name, *values in parsed)
        clues = Clues.from_json(value.get("clues", {}))
        return cls(**{**value, "writers": writers, "clues": clues})

    def counters(self) -> dict[str, int]:
        """Return the counters by their public names, in the order of `COUNTERS`."""
        return {
            name: self.ignored_ctis if name == "ignoredCtis" else getattr(self, name)
            for name in COUNTERS
        }


def accumulate_record_times(clock: PartitionClock, record_us: Instants) -> Instants:
    """Return the greatest record timestamp so far at each of n records; NEVER before the first."""
    earlier_us = instant_or_sentinel(clock.record_us)
    return np.maximum.accumulate(np.concatenate(([earlier_us], record_us)))[1:]


def raise_cti(clock: PartitionClock, cti_us: int) -> PartitionClock:
    """Put `cti_us` in force if it is greater than the CTI of `clock`; counter and base stay."""
    if clock.cti_us is not None and clock.cti_us >= cti_us:
        return clock
    return dataclasses.replace(clock, cti_us=cti_us, clues=clock.clues._replace(lead_us=None))


def min_cti(ctis_us: Iterable[int | None]) -> int | None:
    """Return the minimum of the partitions' CTIs; None if one of them is None, or there are none.

    >>> min_cti([7, 5]), min_cti([7, None]), min_cti([])
    (5, None, None)
    """
    all_us = list(ctis_us)
    present = [cti_us for cti_us in all_us if cti_us is not None]
    return min(present) if present and len(present) == len(all_us) else None


MinOfOthers: TypeAlias = tuple[int | None, ...]
"""The minimum of the CTIs of other partitions: `(us,)`; `(None,)` if one of them has no CTI; `()`
if there are no others."""


def compute_min_of_others(
    ctis_us: Sequence[int | None], groups: Iterable[Collection[int]]
) -> list[MinOfOthers]:
    """Return for each group of indices the minimum of all other CTIs.

    Sorts once for all groups, since a batch may have thousands of partitions and as many tasks.

    >>> compute_min_of_others([5, 3, 4], [[1], [0, 2], [0, 1, 2]])
    [(4,), (3,), ()]
    """
    # A partition without a CTI comes first, since it holds back all others.
    ascending = sorted(range(len(ctis_us)), key=lambda i: (ctis_us[i] is not None, ctis_us[i] or 0))
    minima: list[MinOfOthers] = []
    for group in groups:
        members = set(group)
        outsider = next((i for i in ascending if i not in members), None)
        minima.append(() if outsider is None else (ctis_us[outsider],))
    return minima


def max_known(*instants: int | None) -> int | None:
    """Return the greatest of the CTIs or other numbers that are not None; None if all are."""
    return max((instant for instant in instants if instant is not None), default=None)


def compute_stream_cti(
    active_us: Sequence[int | None],
    new_us: Sequence[int | None],
    idle_us: Sequence[int | None],
    floor_us: int | None,
) -> int | None:
    """Return the stream's CTI between two batches.

    Args:
        active_us: the CTIs of the partitions that are active and were active before.
        new_us: the CTIs of partitions that come back from idleness or are new. The driver
            raises them to the result (5.4, 5.5), so they count only if no other one is active.
        idle_us: the CTIs of the idle partitions. If all are idle, the greatest counts.
        floor_us: the stream's CTI so far: it never goes back.
    """
    counted_us = active_us or new_us
    return max_known(min_cti(counted_us) if counted_us else max_known(*idle_us), floor_us)


class TaskWatermark:
    """The CTI that one task has proven so far: a fold over its partitions in reading order.

    A heap has the CTIs of all its partitions but the one that is read, so that a block of records
    takes as long with a thousand partitions as with one. An entry that is outdated stays there
    until it is the least.

    Attributes:
        emitted_us: the greatest CTI row of the stream before this point; None: none.

    Args:
        own_us: the CTIs of the task's partitions at the start of the batch, in reading order.
        others_us: the CTIs of all other partitions at that time, or their minimum.
        emitted_us: the greatest CTI row of the stream before the task.
    """

    def __init__(
        self,
        own_us: Sequence[int | None],
        others_us: Sequence[int | None],
        emitted_us: int | None,
    ) -> None:
        self.emitted_us = emitted_us
        # A partition without a CTI holds back all others, like one with a CTI below all others.
        self._own_us = [instant_or_sentinel(us) for us in own_us]
        self._others_us = min(map(instant_or_sentinel, others_us), default=_NO_PARTITION)
        self._heap = [(us, position) for position, us in enumerate(self._own_us)]
        heapq.heapify(self._heap)
        self._read: int | None = None

    def advance(self, position: int, ctis_us: Instants) -> tuple[Integers, Instants]:
        """Add the increasing `ctis_us` of the partition at `position`.

        Returns:
            The indexes in `ctis_us` that are followed by a CTI row; the values of these rows,
            increasing and above all emitted before.
        """
        none = np.empty(0, dtype=np.int64)
        if not len(ctis_us):
            return none, none
        floor_us = self._find_floor(position)
        self._own_us[position] = int(ctis_us[-1])
        if floor_us == NEVER:
            return none, none
        proven = np.minimum(ctis_us, floor_us)
        before = np.concatenate(([NEVER], proven[:-1]))
        news = proven > before
        if self.emitted_us is not None:
            news &= proven > self.emitted_us
        risen = np.flatnonzero(news)
        if len(risen):
            self.emitted_us = int(proven[risen[-1]])
        return risen, proven[risen]

    def _find_floor(self, position: int) -> int:
        """Return the minimum of all other partitions, which `position` cannot change."""
        if self._read is not None and self._read != position:
            # The partition that was read until now counts among the others again.
            heapq.heappush(self._heap, (self._own_us[self._read], self._read))
        self._read = position
        while self._heap:
            us, least = self._heap[0]
            if least != position and us == self._own_us[least]:
                return min(us, self._others_us)
            heapq.heappop(self._heap)
        return self._others_us


def find_max_proven(
    start_us: Sequence[int | None],
    end_us: Sequence[int | None],
    tasks: Iterable[Sequence[int]],
) -> int | None:
    """Return the greatest CTI that any task of a batch can have proven; None: none.

    `start_us` and `end_us` are the CTIs of the batch's partitions before and after it. `tasks` has
    for each task the indices of its own partitions: it knows only the starts of the others.
    """
    groups = list(tasks)
    proven = (
        min_cti([*(end_us[i] for i in members), *others])
        for members, others in zip(groups, compute_min_of_others(start_us, groups), strict=True)
    )
    return max_known(*proven)


def change_rules(
    clock: PartitionClock, before: TimeRules, after: TimeRules, *, forgets_marks: bool = False
) -> PartitionClock:
    """Return the clock for going on by the rules `after` where the rules `before` have stopped.

    A CTI in force stays, and may rise if a writer is no longer waited for, or a grace is over.
    Counters stay. Clues about late events are dropped, because they were about the old rules. With
    `forgets_marks`, marks now come from another header or none, so the writers are forgotten.
    """
    if forgets_marks:
        clock = replace(clock, writers=(), noted_us=None, begun=False)
    elif replace(before, policy=after.policy, future_policy=after.future_policy) == after:
        # The policy for late events moves no clock.
        return clock
    clock, has_left = _change_writers(clock, before, after)
    clock = _change_silence(clock, before, after)
    if has_left or before.writer_grace_us != after.writer_grace_us:
        clock = _raise_to_minimum(clock, after)
    if (before.every_events, before.every_us) != (after.every_events, after.every_us):
        writers = (
            (name, writer._replace(counted=0, base_us=None)) for name, writer in clock.writers
        )
        clock = replace(clock, count=0, base_us=None, writers=tuple(writers))
    return replace(clock, clues=Clues(old=clock.clues.old, early=clock.clues.early))


def _change_writers(
    clock: PartitionClock, before: TimeRules, after: TimeRules
) -> tuple[PartitionClock, bool]:
    """Wait for the writers that are new in the list, and no more for those that have left it.

    Return the clock, and whether it waits for fewer writers now.
    """
    if before.writers == after.writers:
        return clock, False
    was_listed = before.writers if clock.begun else ()
    removed = set(was_listed) - set(after.writers)
    # A writer that has left the list but has sent something goes on like any unlisted one.
    live = {
        name: writer
        for name, writer in clock.writers
        if name not in removed or not _has_only_been_waited_for(writer)
    }
    has_left = len(live) < len(clock.writers)
    new = [name for name in after.writers if name not in was_listed and name not in live]
    live |= dict.fromkeys(new, WriterState())
    clock = replace(
        clock, writers=tuple(sorted(live.items())), begun=clock.begun or bool(after.writers)
    )
    return clock, has_left


def _raise_to_minimum(clock: PartitionClock, rules: TimeRules) -> PartitionClock:
    if _is_in_grace(clock, rules):
        return clock
    least_us = min_cti(writer.mark_us for _, writer in clock.writers)
    if least_us is None:
        return clock
    # A partition that reaches the end of a replay has that CTI exactly (7.7).
    return raise_cti(clock, least_us if rules.until_us is None else min(least_us, rules.until_us))


def _has_only_been_waited_for(writer: WriterState) -> bool:
    return writer.mark_us is None and not writer.counted and writer.base_us is None


def _is_in_grace(clock: PartitionClock, rules: TimeRules) -> bool:
    if rules.writer_grace_us is None:
        return False
    if clock.record_us is None or clock.first_us is None:
        return True
    return clock.record_us - clock.first_us < rules.writer_grace_us


def _change_silence(clock: PartitionClock, before: TimeRules, after: TimeRules) -> PartitionClock:
    """Begin to measure silence and grace at the next record, if they were not, or end it."""
    begins_grace = before.writer_grace_us is None and after.writer_grace_us is not None
    if begins_grace or after.writer_grace_us is None:
        clock = replace(clock, first_us=None)
    if begins_grace or before.needs_record_times != after.needs_record_times:
        clock = replace(clock, record_us=None)
    is_kept = (before.writer_timeout_us is None) == (after.writer_timeout_us is None)
    if is_kept and not begins_grace:
        return clock
    writers = ((name, writer._replace(seen_us=None)) for name, writer in clock.writers)
    return replace(clock, writers=tuple(writers))
