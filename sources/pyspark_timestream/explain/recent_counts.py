"""What a stream has counted lately: data that goes wrong after years shows in no sum of all years.

A fold over the offsets of a run. Once a partition has had ten more events, what was counted of them
is told until the next ten.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.explain.history import Moment
from pyspark_timestream.explain.mistakes import malformed_events, wrong_types
from pyspark_timestream.kafka.plan.findings import Finding
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["Recent", "counted_on", "recent_mistakes"]

_ENOUGH: Final = 10
"""Fewer events say little about those that come next."""

Shares = Mapping[Partition, PartitionOffset]


@dataclass(frozen=True, slots=True)
class Recent:
    """What a run has counted lately.

    Attributes:
        since: each partition where its counting began anew.
        counts: each partition that had enough events, with the counts of the last ones alone.
    """

    since: Shares = field(default_factory=dict)
    counts: Shares = field(default_factory=dict)


def counted_on(recent: Recent, before: Shares, now: Shares) -> Recent:
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
        more = _counted(began, share)
        is_enough = more.state.events >= _ENOUGH
        # A partition that was made anew has counted less.
        since[part] = share if is_enough or more.state.events < 0 else began
        if is_enough or part in recent.counts:
            counts[part] = more if is_enough else recent.counts[part]
    return Recent(since, counts)


def recent_mistakes(recent: Recent, now: StreamOffset) -> list[Finding]:
    """What the last events of the stream that stands at `now` show, whatever came before."""
    moment = Moment(0, dataclasses.replace(now, partitions=recent.counts))
    found = [*malformed_events((moment,)), *wrong_types((moment,))]
    return [dataclasses.replace(each, text=f"lately, {each.text}") for each in found]


def _counted(before: PartitionOffset, after: PartitionOffset) -> PartitionOffset:
    """`after` with what was counted since `before` alone."""
    state = dataclasses.replace(
        after.state,
        events=after.state.events - before.state.events,
        malformed=after.state.malformed - before.state.malformed,
    )
    return dataclasses.replace(after, state=state, unfit=after.unfit - before.unfit)
