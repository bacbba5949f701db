"""Histories of a query, as its progress tells them."""

from timestream.builders import at

from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.offsets.offset import (
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.rules.clocks import PartitionClock, WriterState, min_cti

NOON = 1_704_110_400_000_000
"""2024-01-01T12:00:00Z, in application time and on the wall clock of batch 0."""

SECOND = 1_000_000

DAY = 86_400 * SECOND

COUNT = {"ctiFrequency": "10"}

MARKS = {"ctiHeader": "cti"}


def state(second=None, events=20, **more):
    """A clock at NOON plus this many seconds, with its last event at its CTI unless told."""
    cti_us = None if second is None else NOON + second * SECOND
    return PartitionClock(**{"cti_us": cti_us, "events": events, "last_us": cti_us, **more})


def share(clock, size=0, first=100, **more):
    return PartitionOffset(first, first + size, clock, **more)


def history(*batches, settings=COUNT, left=0, **more):
    """Moments a second apart; a batch is a list of shares, of partitions 0, 1, ...

    `left` is how much each partition has after the last batch; None: no progress said so.
    """
    moments = []
    for number, shares in enumerate(batches):
        partitions = {at(n): each for n, each in enumerate(shares)}
        ends = {} if left is None else {p: s.end_exclusive + left for p, s in partitions.items()}
        cti_us = min_cti(s.clock.cti_us for s in shares if not s.idle)
        offset = StreamOffset("me", settings, 1, partitions, number, cti_us, **more)
        moments.append(BatchRecord(NOON + number * SECOND, offset, ends))
    return tuple(moments)


def with_writers(second, last=0, **marks):
    writers = tuple(
        (n, WriterState(None if m is None else NOON + m * SECOND)) for n, m in marks.items()
    )
    return state(second, writers=writers, last_us=NOON + last * SECOND)
