"""What a stream and a batch read do with options that fit only one of the two, or both otherwise.

A stream ends with its query, so that it refuses the ending options as Spark's own source does. A
batch read starts at earliest unless told otherwise, and has no use for the pace of a stream.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.plan.tasks import plan_tasks
from pyspark_timestream.kafka.ranges import cut_ranges
from pyspark_timestream.kafka.task import Share, TaskPlan

__all__ = ["for_batch", "for_stream", "stream_tasks", "useless_in_batch"]

_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_CUTS: Final = ("minPartitions", "maxRecordsPerPartition")
_PACE: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxTasks",
    "idleTimeout",
    "ctiImport",
)


def for_stream(options: KafkaOptions, given: Collection[str]) -> KafkaOptions:
    """`options` as a stream takes them; `given` are the lower-cased names that were set.

    Raises:
        OptionError: an ending option, or one that cuts partitions whose order matters.
    """
    for name in _ENDS:
        if name.lower() in given:
            raise OptionError(
                name,
                "it was given to a stream, which has no end",
                "it in batch reads",
                "leave it out, or read with spark.read",
            )
    for name in _CUTS:
        if name.lower() in given and options.has_ctis:
            raise OptionError(
                name,
                "it was given to a stream with a column 'cti'",
                "it in batch reads and in streams without a source of CTIs",
                "leave it out: a partition is one ordered stream there, which one task reads",
            )
    return options


def for_batch(options: KafkaOptions, given: Collection[str]) -> KafkaOptions:
    """`options` as a batch read takes them; `given` are the lower-cased names that were set.

    Raises:
        OptionError: it would start where it ends.
    """
    if "startingoffsets" not in given:
        return replace(options, starting_offsets=EARLIEST)
    starts = options.starting_offsets
    has_latest = starts == LATEST or (isinstance(starts, Mapping) and LATEST in starts.values())
    by_time = (options.starting_timestamp_ms, options.starting_timestamps_ms) != (None, None)
    if has_latest and not by_time:
        raise OptionError(
            "startingOffsets",
            "'latest' (-1) was given to a batch read, which would always be empty",
            "'earliest', or JSON with offsets or -2",
            "name where to start, or leave it out",
        )
    return options


def useless_in_batch(given: Collection[str]) -> list[str]:
    """The options among `given`, lower-cased names, that a batch read passes over."""
    return [name for name in _PACE if name.lower() in given]


def stream_tasks(options: KafkaOptions, offset: StreamOffset) -> list[TaskPlan]:
    """The tasks of the batch that `offset` describes, cut as the options say."""
    if not options.is_cut:
        return plan_tasks(offset)
    parts = cut_ranges(offset.ranges(), options.min_partitions, options.max_records)
    return [TaskPlan((Share(part, PartitionState()),)) for part in parts]
