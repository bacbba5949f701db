"""Where a batch read ends: the ending options against what the broker has (semantics 9.2).

As in Spark's own source `endingTimestamp` goes before `endingOffsetsByTimestamp`, which goes before
`endingOffsets`; a partition without a record at or after its timestamp ends at the latest offset.
"""

from collections.abc import Collection, Mapping

from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import LATEST
from pyspark_timestream.kafka.plan.positions import check_named, existing_offset
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["end_instants", "ending_positions"]


def end_instants(
    options: KafkaOptions,
    partitions: Collection[Partition],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """The timestamp, in milliseconds, before which each partition ends; empty: offsets decide.

    Args:
        options: the ending options.
        partitions: whose end is asked for.
        listed: all partitions that are read; None: `partitions`.

    Raises:
        OptionError: `endingOffsetsByTimestamp` names other partitions than exist.
    """
    if options.ending_timestamp_ms is not None:
        return dict.fromkeys(partitions, options.ending_timestamp_ms)
    if options.ending_timestamps_ms is None:
        return {}
    listed = partitions if listed is None else listed
    check_named("endingOffsetsByTimestamp", options.ending_timestamps_ms, listed)
    return {part: options.ending_timestamps_ms[part] for part in partitions}


def ending_positions(
    options: KafkaOptions,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    found: Mapping[Partition, int | None],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """The offset after the last one to read of each partition in `ends`.

    Args:
        options: the ending options.
        earliest: the first offset that each partition still has.
        ends: the offset after each partition's last readable record.
        found: the first offset at or after each of `end_instants`; None: there is none.
        listed: all partitions that are read; None: those in `ends`.

    Raises:
        OptionError: an option names other partitions than exist.
        DataLost: a named offset is not there (and option `failOnDataLoss`).
    """
    listed = ends if listed is None else listed
    if end_instants(options, ends, listed):
        at_or_after = {part: found.get(part) for part in ends}
        return {part: ends[part] if at is None else at for part, at in at_or_after.items()}
    wanted = options.ending_offsets
    if isinstance(wanted, int):
        return dict(ends)
    check_named("endingOffsets", wanted, listed)
    named = {part: wanted[part] for part in ends}
    stops = {part: ends[part] if at == LATEST else at for part, at in named.items()}
    return {
        part: existing_offset("endingOffsets", options, part, at, earliest, ends)
        for part, at in stops.items()
    }
