"""Several batches that run as one after a crash: what offsets remember for that, and its tasks.

Under asynchronous progress tracking Spark notes the ends of some batches only. After a crash it
runs everything between two notes as one batch, of which it has two offsets: the one before and the
last one. The last one therefore says of each partition where reading began, or went back to, and
where its clock was raised by something else than a record. Both are forgotten once Spark has noted
a later batch: no restart goes back before it.

The rules are semantics 8.6.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.kafka.task import Share, TaskPlan

__all__ = ["join_batches", "remember_beginning", "remember_raise"]

Entry = TypeVar("Entry", tuple[int, int], tuple[int, int, int])


def remember_beginning(
    share: PartitionOffset | None, batch: int, position: int, noted: int
) -> tuple[tuple[int, int], ...]:
    """The beginnings of a partition that the offset of a new batch remembers.

    Args:
        share: the partition in the offset before; None: it was not there.
        batch: the number of the new batch.
        position: where the new batch reads on.
        noted: the number of the last batch that no restart goes back before; -1: none.
    """
    kept = _since(share.began if share else (), noted)
    if share is not None and position >= share.end_exclusive:
        return kept
    return (*kept, (batch, position))


def remember_raise(
    share: PartitionOffset | None, batch: int, position: int, noted: int, cti_us: int | None
) -> tuple[tuple[int, int, int], ...]:
    """The raises of a partition's clock that the offset of a new batch remembers.

    Args:
        share: as for `remember_beginning`, like the next three.
        batch: the number of the new batch.
        position: where the new batch reads on.
        noted: the number of the last batch that no restart goes back before; -1: none.
        cti_us: what the clock is raised to at `position`; None: it is not raised.
    """
    kept = _since(share.raises if share else (), noted)
    # Where reading goes back, a raise further ahead is in force as well.
    kept = tuple((number, min(at, position), us) for number, at, us in kept)
    if cti_us is None:
        return kept
    # Of two raises at one place the later one is the higher one.
    return (*(each for each in kept if each[1] < position), (batch, position, cti_us))


def join_batches(
    start: StreamOffset | None,
    states: Mapping[Partition, PartitionState],
    end: StreamOffset,
    emitted_us: int | None,
) -> list[TaskPlan]:
    """The tasks of all batches after `start` up to `end`, as one batch.

    Args:
        start: the offset of the last batch that was noted as done; None: not even the first was.
        states: the state of each partition of `start` after it.
        end: the offset of the last batch that was planned.
        emitted_us: the greatest CTI row up to the end of `start`; None: none.

    Raises:
        CheckpointMismatch: `end` is of a release that did not remember what is needed.
    """
    after = -1 if start is None else start.number
    hidden = {} if start is None else start.hidden
    known = {} if start is None else {**hidden, **start.partitions}
    states = {**{part: share.state for part, share in hidden.items()}, **states}
    whole: dict[Partition, PartitionOffset] = {}
    shares: dict[Partition, Share] = {}
    for part, share in {**end.hidden, **end.partitions}.items():
        begin = min(_beginning(part, share, known.get(part), after), share.end_exclusive)
        raises = [(max(at, begin), us) for number, at, us in share.raises if number > after]
        whole[part] = dataclasses.replace(share, start_inclusive=begin)
        shares[part] = Share(
            Range(part, begin, share.end_exclusive),
            states.get(part, PartitionState()),
            raises=tuple(raises),
        )
    joined = dataclasses.replace(end, partitions=whole, tasks=max(end.tasks, 1))
    # How far the others were at each moment is known to nobody any more; what the batches told in
    # all is true once everything has been read.
    others: tuple[None, ...] = (None,) * (len(shares) > 1)
    plans = [
        TaskPlan(tuple(shares[span.partition] for span in group), others, emitted_us)
        for group in joined.groups()
    ] or [TaskPlan(emitted_us=emitted_us)]
    return [*plans[:-1], dataclasses.replace(plans[-1], closing_us=end.cti_us)]


def _beginning(
    part: Partition, share: PartitionOffset, known: PartitionOffset | None, after: int
) -> int:
    """The first offset of a partition that the joined batch reads."""
    begins = [at for number, at in share.began if number > after]
    if known is not None:
        begins.append(known.end_exclusive)
    if not begins:
        raise CheckpointMismatch(
            f"{part} was found by a batch that was not noted as done (asynchronous progress "
            "tracking notes some only), and the release of timestream that planned it did not "
            "note where it began: start with a new checkpoint"
        )
    return min(begins)


def _since(entries: Sequence[Entry], noted: int) -> tuple[Entry, ...]:
    return tuple(each for each in entries if each[0] > noted)
