"""Joins several batches into one after a crash (semantics 8.6).

Under asynchronous progress tracking Spark commits only some batches. After a crash it runs
everything between two commits as one batch, and knows only two offsets: the one before and the last
one. The last offset therefore records, for each partition, where reading began or went back to, and
where its clock was raised by anything other than a record. Both are dropped once Spark has
committed a later batch, since no restart goes back before that.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.plan.tasks import TaskPlan, TaskRange
from pyspark_timestream.kafka.ranges import Partition, Range

__all__ = ["join_batches", "remember_beginning", "remember_raise"]

Entry = TypeVar("Entry", tuple[int, int], tuple[int, int, int])


def remember_beginning(
    share: PartitionOffset | None, batch: int, position: int, committed: int
) -> tuple[tuple[int, int], ...]:
    """Return the beginnings of a partition that the offset of a new batch records.

    Args:
        share: the partition in the previous offset; None if it is new.
        batch: the number of the new batch.
        position: the start of the new batch.
        committed: the last batch that no restart goes back before; -1 if none.
    """
    kept = _keep_after(share.beginnings if share else (), committed)
    if share is not None and position >= share.end_exclusive:
        return kept
    return (*kept, (batch, position))


def remember_raise(
    share: PartitionOffset | None, batch: int, position: int, committed: int, cti_us: int | None
) -> tuple[tuple[int, int, int], ...]:
    """Return the raises of a partition's clock that the offset of a new batch records.

    Args:
        share: the partition in the previous offset; None if it is new.
        batch: the number of the new batch.
        position: the start of the new batch.
        committed: the last batch that no restart goes back before; -1 if none.
        cti_us: the CTI to which the clock is raised at `position`; None if it is not.
    """
    kept = _keep_after(share.raises if share else (), committed)
    # If reading goes back, raises further ahead stay in force.
    kept = tuple((number, min(at, position), us) for number, at, us in kept)
    if cti_us is None:
        return kept
    # The later of two raises at one place is the higher.
    return (*(each for each in kept if each[1] < position), (batch, position, cti_us))


def join_batches(
    start: StreamOffset | None,
    states: Mapping[Partition, PartitionState],
    end: StreamOffset,
    emitted_us: int | None,
) -> list[TaskPlan]:
    """Plan the tasks of all batches after `start` up to `end`, as one batch.

    Args:
        start: the offset of the last committed batch; None if there is none.
        states: the end state of each partition of `start`.
        end: the offset of the last planned batch.
        emitted_us: the greatest CTI row up to the end of `start`; None if there is none.

    Raises:
        CheckpointMismatch: `end` is from a release that recorded too little.
    """
    after = -1 if start is None else start.number
    hidden = {} if start is None else start.hidden
    known = {} if start is None else {**hidden, **start.partitions}
    states = {**{part: share.state for part, share in hidden.items()}, **states}
    whole: dict[Partition, PartitionOffset] = {}
    shares: dict[Partition, TaskRange] = {}
    for part, share in {**end.hidden, **end.partitions}.items():
        begin = min(_find_beginning(part, share, known.get(part), after), share.end_exclusive)
        raises = [(max(at, begin), us) for number, at, us in share.raises if number > after]
        whole[part] = dataclasses.replace(share, start_inclusive=begin)
        shares[part] = TaskRange(
            Range(part, begin, share.end_exclusive),
            states.get(part, PartitionState()),
            raises=tuple(raises),
        )
    joined = dataclasses.replace(end, partitions=whole, tasks=max(end.tasks, 1))
    # The progress of the other partitions at each moment is lost; the final CTI of the batches
    # holds once everything has been read.
    others: tuple[None, ...] = (None,) * (len(shares) > 1)
    plans = [
        TaskPlan(tuple(shares[span.partition] for span in group), others, emitted_us)
        for group in joined.groups()
    ] or [TaskPlan(emitted_us=emitted_us)]
    return [*plans[:-1], dataclasses.replace(plans[-1], closing_us=end.cti_us)]


def _find_beginning(
    part: Partition, share: PartitionOffset, known: PartitionOffset | None, after: int
) -> int:
    """Find the first offset of a partition that the joined batch reads."""
    begins = [at for number, at in share.beginnings if number > after]
    if known is not None:
        begins.append(known.end_exclusive)
    if not begins:
        raise CheckpointMismatch(
            f"{part} was found by a batch that was not noted as done (asynchronous progress "
            "tracking notes some only), and the release of timestream that planned it did not "
            "note where it began: start with a new checkpoint"
        )
    return min(begins)


def _keep_after(entries: Sequence[Entry], committed: int) -> tuple[Entry, ...]:
    return tuple(each for each in entries if each[0] > committed)
