"""Reads a topic once, and follows the clock of each partition by each delay.

The records are those of a batch read with the same options; nothing is committed to a group, and
Spark is not needed.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow.compute as pc

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.cti.stream_cti import max_known
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet, ReadRange
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.plan.positions import (
    ending_timestamps,
    resolve_ends,
    resolve_starts,
    starting_timestamps,
)
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.lateness.findings import DelayFindings, Findings
from pyspark_timestream.lateness.follow import choose_sampling, follow_partition, list_needs
from pyspark_timestream.lateness.notes import check_readable, list_notes

__all__ = ["read_topic"]

_GROUP: Final = "timestream-lateness"
"""A name that a consumer must have; nothing is committed to it, and nobody joins it."""

_TAIL_OFFSETS: Final = (20, 2_000)
"""Offsets at a partition's end in which a record is looked for; markers and compaction leave gaps.
"""

_TIMESTAMPS: Final = ColumnSet(timestamps=True)


class _Spans(NamedTuple):
    """The ranges to read of each partition, and whether `last` left something out."""

    ranges: tuple[Range, ...]
    is_limited: bool


def read_topic(options: KafkaOptions, delays_us: Sequence[int], last_us: int | None) -> Findings:
    """Read what the options name, once.

    Args:
        options: those of a batch read; `violationPolicy` is taken as `flag`.
        delays_us: the delays, increasing, the first 0.
        last_us: read from this long before the newest record; None: from where the options say.

    Raises:
        OptionError: the topic does not exist or holds no records, or no event has a readable time.
        BrokerUnreachable: no broker answers, or it refuses.
        DataLost: records were deleted while they were read.
    """
    broker, reader = Broker(options, _GROUP), RangeReader(options, _GROUP)
    try:
        partitions = broker.partitions()
        _check_exists(options, partitions)
        spans = _find_spans(options, broker, reader.read, partitions, last_us)
        findings = _follow(options, delays_us, spans.ranges, reader.read)
    finally:
        reader.close()
        broker.close()
    check_readable(options, findings)
    is_short = last_us is not None and not spans.is_limited
    return replace(
        findings, notes=tuple(list_notes(options, findings, last_us if is_short else None))
    )


def _check_exists(options: KafkaOptions, partitions: Collection[Partition]) -> None:
    if not partitions:
        brokers = options.client["bootstrap.servers"]
        raise OptionError(
            "subscribe",
            f"no partition of {_name_topics(options)} exists at {brokers}",
            "a topic that exists",
            "check its name",
        )


def _name_topics(options: KafkaOptions) -> str:
    if options.subscribe_pattern is not None:
        return f"topics that match '{options.subscribe_pattern}'"
    named = {part.topic for part in options.assign or ()} or set(options.subscribe or ())
    return ", ".join(f"topic '{each}'" for each in sorted(named))


def _find_spans(
    options: KafkaOptions,
    broker: Broker,
    read: ReadRange,
    partitions: Sequence[Partition],
    last_us: int | None,
) -> _Spans:
    """Find what to read: as a batch read does, or what `last` leaves of it."""
    ends = broker.ends(partitions)
    earliest = broker.earliest(ends)
    starting = broker.offsets_at(starting_timestamps(options, ends, partitions))
    ending = broker.offsets_at(ending_timestamps(options, ends, partitions))
    starts = resolve_starts(options, earliest, ends, starting, partitions)
    stops = resolve_ends(options, earliest, ends, ending, partitions)
    is_limited = False
    if last_us is not None:
        tails = (_find_newest_ms(read, part, starts[part], stops[part]) for part in sorted(starts))
        newest_ms = max((ms for ms in tails if ms is not None), default=None)
        if newest_ms is not None:
            since_ms = max(newest_ms - -(-last_us // 1_000), 0)
            found = broker.offsets_at(dict.fromkeys(starts, since_ms))
            for part, start in starts.items():
                at = found.get(part)
                later = max(start, stops[part] if at is None else min(at, stops[part]))
                is_limited |= later > start
                starts[part] = later
    ranges = tuple(Range(part, starts[part], stops[part]) for part in sorted(starts))
    if not any(span.size > 0 for span in ranges):
        raise OptionError(
            "subscribe",
            f"{_name_topics(options)} holds no records to measure",
            "a topic with records",
            "write some, or read from an earlier place",
        )
    return _Spans(ranges, is_limited)


def _find_newest_ms(read: ReadRange, partition: Partition, start: int, stop: int) -> int | None:
    """Find the greatest timestamp among the last records of a partition; None if there are none."""
    for offsets in _TAIL_OFFSETS:
        span = Range(partition, max(start, stop - offsets), stop)
        if span.size <= 0:
            return None
        blocks = read(span, _TIMESTAMPS)
        found = [pc.max(block.timestamps_ms).as_py() for block in blocks if len(block.offsets)]
        if found:
            return int(max(found))
    return None


def _follow(
    options: KafkaOptions, delays_us: Sequence[int], ranges: Sequence[Range], read: ReadRange
) -> Findings:
    sampled_every = choose_sampling(sum(max(span.size, 0) for span in ranges))
    needs = list_needs(options)
    found = tuple(DelayFindings(delay_us) for delay_us in delays_us)
    firsts_us: list[int | None] = []
    lasts_us: list[int | None] = []
    for span in ranges:
        blocks = read(span, needs) if span.size > 0 else ()
        followed = follow_partition(options, delays_us, sampled_every, blocks)
        each_clock = zip(found, followed.clocks, strict=True)
        found = tuple(each.add(span.partition, clock) for each, clock in each_clock)
        firsts_us.append(followed.first_us)
        lasts_us.append(followed.last_us)
    return Findings(
        topics=tuple(sorted({span.partition.topic for span in ranges})),
        delays=found,
        sampled_every=sampled_every,
        first_us=min((us for us in firsts_us if us is not None), default=None),
        last_us=max_known(*lasts_us),
    )
