"""Recent counts of a stream: data that goes wrong after years does not show in the total.

A fold over the offsets of a run. Once a partition has had ten more events, their counts stand until
the next ten.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.explain.history import BatchRecord
from pyspark_timestream.explain.mistakes import (
    MOST,
    find_malformed_events,
    find_malformed_values,
)
from pyspark_timestream.kafka.plan.findings import Finding
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["RecentCounts", "find_recent_mistakes", "update_counts"]

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


def find_recent_mistakes(recent: RecentCounts, now: StreamOffset) -> list[Finding]:
    """The mistakes that the last events of the stream at `now` show, whatever came before."""
    moment = BatchRecord(0, dataclasses.replace(now, partitions=recent.counts))
    whole = BatchRecord(0, now)
    found = [
        *find_malformed_events((moment,), MOST),
        *find_malformed_values((moment,), MOST),
    ]
    levels = {
        each.kind: each.level
        for each in (*find_malformed_events((whole,)), *find_malformed_values((whole,)))
    }
    return [
        dataclasses.replace(each, text=f"lately, {each.text}", level=levels.get(each.kind, 0))
        for each in found
    ]


def _subtract_counts(before: PartitionOffset, after: PartitionOffset) -> PartitionOffset:
    """`after` with only the counts since `before`."""
    state = dataclasses.replace(
        after.state,
        events=after.state.events - before.state.events,
        malformed=after.state.malformed - before.state.malformed,
    )
    return dataclasses.replace(
        after, state=state, malformed_values=after.malformed_values - before.malformed_values
    )
