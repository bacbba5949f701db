"""The next offset: what the stream does after what it did, given what the broker has.

Pure: the broker's answers and the run's circumstances are arguments, the offset is the state.

The rules are semantics 5 to 8.
"""

import dataclasses
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from pyspark_timestream.connector.instants import FINAL_US
from pyspark_timestream.cti.step import PartitionState, raised
from pyspark_timestream.cti.stream_cti import greatest, proven_by_tasks, stream_cti
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.plan.idleness import idle_partitions
from pyspark_timestream.kafka.plan.imported_ctis import Imported, Pending, taken, waiting
from pyspark_timestream.kafka.plan.joined_batches import remember_beginning, remember_raise
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.plan.warnings import Warnings
from pyspark_timestream.kafka.ranges import Partition, limit_ranges, task_count

__all__ = [
    "Circumstances",
    "Sight",
    "emitted_cti",
    "first_offset",
    "imports_news",
    "next_offset",
    "standing",
]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run adds to the options.

    Attributes:
        max_offsets: at most about so many offsets in this batch; None: no limit.
        min_offsets: no records while fewer offsets than this are there; None: whatever is there.
        max_tasks: at most so many tasks; None: no limit.
        bounded: the run ends once the ends that it was given are read.
        new_start: this is the first offset that this run makes.
        lost: the positions jump over something that is gone, or something is there again: the next
            offset must say so.
        final_cti: a bounded run ends with the final CTI.
        idle_timeout_us: how long a partition at rest still holds the stream's CTI back; None: for
            ever.
        noted: the number of the last batch that no restart goes back before; -1: none.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_tasks: int | None = None
    bounded: bool = False
    new_start: bool = False
    lost: bool = False
    final_cti: bool = False
    idle_timeout_us: int | None = None
    noted: int = -1


@dataclass(frozen=True, slots=True)
class Sight:
    """What the driver has seen besides positions and ends: of clocks, ids and another topic.

    Attributes:
        now_us: the wall clock.
        since_us: the partitions at rest (everything read, no open transaction), and the wall clock
            at which each was first seen so.
        settled: for about a second there has been nothing to do.
        topic_ids: the ids of topics, as far as they could be learnt.
        imported: how far the topic of `ctiImport` was read; the ends that the plan gets were asked
            for after that. None: nothing is imported.
        written: how far the logs went then, what open transactions have written included; where
            it is not known, the ends count.
        warnings: what was warned of up to now; None: what the last offset says.
        unfit: how many values of each partition were no JSON of the schema up to now.
    """

    now_us: int = 0
    since_us: Mapping[Partition, int] = field(default_factory=dict)
    settled: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    imported: Imported | None = None
    written: Mapping[Partition, int] = field(default_factory=dict)
    warnings: Warnings | None = None
    unfit: Mapping[Partition, int] = field(default_factory=dict)


NOTHING_SEEN: Final = Sight()

_FORGET_US: Final = 7 * 86_400_000_000
"""For how long a partition that is gone may come back: as long as Kafka keeps a group's offsets."""

Start = tuple[PartitionState, Pending]
"""A partition's clock at a batch's start, and the imported CTIs that still wait on it."""


def first_offset(
    stream: str,
    settings: Mapping[str, str],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: Circumstances,
    sight: Sight = NOTHING_SEEN,
) -> StreamOffset:
    """The offset of a new query's first batch, from `starts` towards `ends`."""
    blank = StreamOffset(stream, settings, 1, {}, topic_ids=sight.topic_ids)
    begun = _starts(blank, {}, starts, ends, sight)
    cti_us = _stream_cti(begun, begun, set(), set(), None)
    planned = dataclasses.replace(
        blank,
        partitions=_shares(blank, {}, starts, ends, begun, run, sight),
        cti_us=cti_us,
        imported=sight.imported,
        bounded=run.bounded,
        warnings=sight.warnings or {},
    )
    return _finished(planned, None, run)


def standing(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    run: Circumstances,
    sight: Sight = NOTHING_SEEN,
) -> StreamOffset:
    """Where the stream stands after `previous`, as an offset that reads nothing.

    For the arguments see `next_offset`.
    """
    known = previous.partitions
    shares = {
        part: PartitionOffset(
            position,
            position,
            ended.get(part, PartitionState()),
            part in known and known[part].idle,
            sight.since_us.get(part),
            known[part].pending if part in known else (),
            unfit=sight.unfit.get(part, 0),
        )
        for part, position in positions.items()
    }
    return dataclasses.replace(
        previous, partitions=shares, imported=sight.imported, bounded=run.bounded
    )


def next_offset(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    run: Circumstances,
    sight: Sight = NOTHING_SEEN,
) -> StreamOffset:
    """The offset after `previous`; `previous` itself where there is nothing to do.

    Args:
        previous: the last batch's offset.
        ended: the state of each partition of `previous` after it.
        positions: where to read on, of every partition that there is now.
        ends: how far there are records to read now (for a bounded run: at its start).
        run: the circumstances.
        sight: what else was seen.

    Raises:
        CheckpointMismatch: there are new records, but the final CTI has been emitted.
    """
    emitted_us = emitted_cti(previous, ended)
    ended = {**{part: share.state for part, share in previous.hidden.items()}, **ended}
    was_idle = {part for part, share in previous.partitions.items() if share.idle}
    closed = run.bounded and previous.closing and not run.new_start
    idle = idle_partitions(sight.since_us, was_idle, run.idle_timeout_us, sight.now_us)
    if closed:
        # The closing offset was the run's last word.
        idle = frozenset(was_idle & positions.keys())
    starts = _starts(previous, ended, positions, ends, sight)
    cti_us = _stream_cti(starts, previous.partitions, was_idle, idle, emitted_us)
    for part in starts:
        if cti_us is not None and (part not in previous.partitions or part in was_idle - idle):
            state, pending = starts[part]
            starts[part] = raised(state, cti_us), pending
    following = dataclasses.replace(previous, number=previous.number + 1)
    topic_ids = {**previous.topic_ids, **sight.topic_ids}
    hidden = _hidden(previous, ended, positions, topic_ids, sight)
    imported = sight.imported.partitions if sight.imported else {}
    topics = {part.topic for part in (*positions, *hidden, *imported)} | sight.topic_ids.keys()
    planned = dataclasses.replace(
        following,
        partitions=_shares(following, ended, positions, ends, starts, run, sight, idle),
        cti_us=cti_us,
        starts=previous.starts + run.new_start,
        topic_ids={topic: topic_ids[topic] for topic in topics & topic_ids.keys()},
        imported=sight.imported,
        hidden=hidden,
        bounded=run.bounded,
        warnings=previous.warnings if sight.warnings is None else sight.warnings,
    )
    planned = _finished(planned, emitted_us, run)
    has_records = any(span.size for span in planned.ranges())
    if has_records and previous.final:
        raise CheckpointMismatch(
            "this checkpoint's stream has ended: its final CTI promised that nothing changes any "
            "more, and now there are new records; start with a new checkpoint, or run with option "
            "'finalCti' = 'false' from the beginning"
        )
    news = has_records or planned.opening_us is not None or run.new_start or run.lost
    # What was decided by a clock or another topic counts from the offset that says so.
    decided = idle != was_idle & positions.keys() or imports_news(previous, sight.imported)
    unsaid = planned.warnings != previous.warnings
    settled = sight.settled and (unsaid or any(span.size for span in previous.ranges()))
    if news or decided or settled:
        return planned
    return planned if run.bounded and not closed else previous


def imports_news(previous: StreamOffset, imported: Imported | None) -> bool:
    """Whether the imported topic has said more than `previous` knows."""
    before_us = None if previous.imported is None else previous.imported.cti_us
    now_us = None if imported is None else imported.cti_us
    return now_us is not None and now_us != before_us and not previous.final


def _starts(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    sight: Sight,
) -> dict[Partition, Start]:
    """Every partition's state at the batch's start, with imported CTIs that take effect there."""
    starts = {}
    for part, position in positions.items():
        share = previous.partitions.get(part) or previous.hidden.get(part)
        pending = share.pending if share else ()
        if share and position != share.end_exclusive and pending:
            # The offsets that the CTIs wait for are those of records that are gone.
            pending = ((ends.get(part, position), pending[-1][1]),)
        read_us = None if sight.imported is None else sight.imported.cti_us
        is_new = part not in previous.partitions
        if read_us is not None and (is_new or imports_news(previous, sight.imported)):
            end = sight.written.get(part, ends.get(part, position))
            pending = waiting(pending, end, read_us)
        cti_us, pending = taken(pending, position)
        state = ended.get(part, PartitionState())
        starts[part] = (state if cti_us is None else raised(state, cti_us)), pending
    return starts


def _stream_cti(
    starts: Mapping[Partition, Start],
    known: Collection[Partition],
    was_idle: Set[Partition],
    idle: Set[Partition],
    emitted_us: int | None,
) -> int | None:
    """The stream's CTI at the batch's start, of the states before any is raised to it.

    What was emitted already is a floor: it never goes back, not even behind what a task proved
    with a partition that is gone by now.
    """
    holding, joining, resting = [], [], []
    for part, (state, _) in starts.items():
        if part in idle:
            resting.append(state.cti_us)
        elif part in known and part not in was_idle:
            holding.append(state.cti_us)
        else:
            joining.append(state.cti_us)
    return stream_cti(holding, joining, resting, emitted_us)


def _shares(
    offset: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    starts: Mapping[Partition, Start],
    run: Circumstances,
    sight: Sight,
    idle: Set[Partition] = frozenset(),
) -> dict[Partition, PartitionOffset]:
    """The shares of the batch `offset`, whose partitions are still those of the one before."""
    # A partition found after a bounded run began has no end in it yet: it waits for the next run.
    reachable = {part: max(ends.get(part, at), at) for part, at in positions.items()}
    limited = limit_ranges(positions, reachable, run.max_offsets, run.min_offsets)
    shares = {}
    for part, position in positions.items():
        state, pending = starts[part]
        before = offset.partitions.get(part) or offset.hidden.get(part)
        place = offset.number, position, run.noted
        is_raised = state.cti_us != ended.get(part, PartitionState()).cti_us
        shares[part] = PartitionOffset(
            position,
            limited[part],
            state,
            part in idle,
            sight.since_us.get(part),
            pending,
            remember_beginning(before, *place),
            remember_raise(before, *place, state.cti_us if is_raised else None),
            sight.unfit.get(part, 0),
        )
    return shares


def _hidden(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    positions: Mapping[Partition, int],
    topic_ids: Mapping[str, str],
    sight: Sight,
) -> dict[Partition, PartitionOffset]:
    """The partitions that are not there, and that their topic's id would prove to be the same."""
    gone = {
        part: dataclasses.replace(
            share,
            start_inclusive=share.end_exclusive,
            state=ended[part],
            idle=False,
            quiet_since_us=sight.now_us,
        )
        for part, share in previous.partitions.items()
        if part not in positions and part in ended
    }
    return {
        part: share
        for part, share in {**previous.hidden, **gone}.items()
        if part not in positions
        and previous.topic_ids.get(part.topic, "") == topic_ids.get(part.topic)
        and sight.now_us - (share.quiet_since_us or 0) < _FORGET_US
    }


def _finished(planned: StreamOffset, emitted_us: int | None, run: Circumstances) -> StreamOffset:
    """`planned` with what follows from its ranges: tasks, the opening CTI, the end."""
    ranges = planned.ranges()
    closing = run.bounded and not any(span.size for span in ranges)
    final = planned.final or (closing and run.final_cti)
    cti_us = FINAL_US if final else planned.cti_us
    news = cti_us is not None and (run.new_start or emitted_us is None or cti_us > emitted_us)
    return dataclasses.replace(
        planned,
        cti_us=cti_us,
        opening_us=cti_us if news else None,
        tasks=task_count(ranges, run.max_tasks),
        closing=closing,
        final=final,
    )


def emitted_cti(previous: StreamOffset, ended: Mapping[Partition, PartitionState]) -> int | None:
    """The greatest CTI row that has appeared up to the end of the batch `previous`.

    Every batch opens with its own stream CTI unless that had appeared already, so only what its
    tasks have proven can be greater.
    """
    spans = [span for span in previous.ranges() if not previous.partitions[span.partition].idle]
    place = {span.partition: index for index, span in enumerate(spans)}
    start_us = [previous.partitions[span.partition].state.cti_us for span in spans]
    # A partition that is gone by now has no end state; its task may have proven less than this.
    end_us = [
        ended[span.partition].cti_us if span.partition in ended else start
        for span, start in zip(spans, start_us, strict=True)
    ]
    groups = [[place[span.partition] for span in group] for group in previous.groups()]
    proven = proven_by_tasks(start_us, end_us, groups)
    return greatest(proven, previous.cti_us)
