"""Follows a partition's clock by each of several delays, from blocks of records.

Each block is decoded once, whatever the number of delays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

import numpy as np

from pyspark_timestream.connector.columns import NEVER, Instants
from pyspark_timestream.connector.event_time import read_record_times
from pyspark_timestream.kafka.decode.payload import read_payload, required_columns
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.lateness.clock import DelayClock, advance, make_block

__all__ = ["FollowedPartition", "choose_sampling", "follow_partition", "list_needs"]


_MAX_SAMPLED: Final = 500_000
"""Events whose waits are measured, about: by each delay some of them wait at the same time."""


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """One partition after some of its records.

    Attributes:
        clocks: its clock by each delay.
        records: how many records there were.
        first_us: the least of their timestamps; None if none has one.
        last_us: the greatest.
    """

    clocks: tuple[DelayClock, ...]
    records: int = 0
    first_us: int | None = None
    last_us: int | None = None


def choose_sampling(offsets: int) -> int:
    """Return N such that the waits of each N-th record are measured.

    It is odd, so that it meets all phases of what alternates, such as two producers.

    >>> choose_sampling(999_999), choose_sampling(1_000_000), choose_sampling(100_000_000)
    (1, 3, 201)
    """
    return offsets // _MAX_SAMPLED | 1


def list_needs(options: KafkaOptions) -> ColumnSet:
    """Return the columns to read of each record: those of the clock, and the timestamps."""
    return required_columns(options, None)._replace(timestamps=True)


def follow_partition(
    options: KafkaOptions,
    delays_us: Sequence[int],
    sampled_every: int,
    blocks: Iterable[RecordBlock],
) -> FollowedPartition:
    """Follow a partition from its first block to its last.

    Args:
        options: the options of a query; its delay and policy do not count.
        delays_us: the delays.
        sampled_every: waits are measured on each N-th record.
        blocks: consecutive records, with the columns of `list_needs`.
    """
    # Flagged events are counted apart from all others; no policy moves a clock (semantics 2.5).
    rules = [
        replace(options.rules, delay_us=each, policy="flag", time_window=False)
        for each in delays_us
    ]
    found = FollowedPartition(tuple(DelayClock() for _ in delays_us))
    for block in blocks:
        payload = read_payload(options, None, block)
        us, known = read_record_times(block.timestamps_ms)
        shared = make_block(
            payload.events,
            payload.marks,
            np.where(known, us, NEVER),
            found.records,
            sampled_every,
        )
        first_us, last_us = _widen(found, us[known])
        found = FollowedPartition(
            tuple(map(advance, rules, found.clocks, repeat(shared))),
            found.records + len(block.offsets),
            first_us,
            last_us,
        )
    return found


def _widen(found: FollowedPartition, stamps_us: Instants) -> tuple[int | None, int | None]:
    """Return the least and the greatest timestamp with those of another block."""
    if not len(stamps_us):
        return found.first_us, found.last_us
    first_us, last_us = int(stamps_us.min()), int(stamps_us.max())
    if found.first_us is None or found.last_us is None:
        return first_us, last_us
    return min(first_us, found.first_us), max(last_us, found.last_us)
