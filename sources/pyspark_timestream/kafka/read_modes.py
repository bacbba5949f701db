"""The options as a stream and as a batch read use them.

A batch read, a stream with an ending option and a replay start at earliest by default. A batch read
ignores the options of streams.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pyspark_timestream.connector.options import OptionError, option_specs
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.plan.tasks import TaskPlan, TaskRange, plan_tasks
from pyspark_timestream.kafka.ranges import cut_ranges

__all__ = ["adapt_to_batch", "adapt_to_stream", "ignored_in_batch", "plan_stream_tasks"]

_CUTS: Final = ("minPartitions", "maxRecordsPerPartition")
_SPAN: Final = frozenset({"startingcti", "endingcti"})


def adapt_to_stream(options: KafkaOptions, given: Collection[str]) -> KafkaOptions:
    """`options` as a stream uses them; `given` are the lower-cased names that were set.

    Raises:
        OptionError: an end that it would start at, or an option that cuts partitions whose order
            matters.
    """
    if not options.ends_by_default:
        options = _start_before_end(options, given, "stream with an end")
    elif "startingoffsets" not in given and not _SPAN.isdisjoint(given):
        options = replace(options, starting_offsets=EARLIEST)
    for name in _CUTS:
        if name.lower() in given and options.has_ctis:
            raise OptionError(
                name,
                "it was given to a stream with a column 'cti'",
                "it in batch reads and in streams without a source of CTIs",
                "leave it out: a partition is one ordered stream there, which one task reads",
            )
    return options


def adapt_to_batch(options: KafkaOptions, given: Collection[str]) -> KafkaOptions:
    """`options` as a batch read uses them; `given` are the lower-cased names that were set.

    Raises:
        OptionError: it would start where it ends.
    """
    return _start_before_end(options, given, "batch read")


def _start_before_end(options: KafkaOptions, given: Collection[str], kind: str) -> KafkaOptions:
    """Let what ends start at the earliest offsets by default; refuse the latest ones."""
    if "startingoffsets" not in given:
        return replace(options, starting_offsets=EARLIEST)
    starts = options.starting_offsets
    has_latest = starts == LATEST or (isinstance(starts, Mapping) and LATEST in starts.values())
    by_time = (options.starting_timestamp_ms, options.starting_timestamps_ms) != (None, None)
    if has_latest and not by_time:
        raise OptionError(
            "startingOffsets",
            f"'latest' (-1) was given to a {kind}, which would always be empty",
            "'earliest', or JSON with offsets or -2",
            "name where to start, or leave it out",
        )
    return options


def ignored_in_batch(given: Collection[str]) -> list[str]:
    """The options among `given`, lower-cased names, that have no effect in a batch read."""
    names = (spec.name for spec in option_specs(KafkaOptions).values() if spec.effect == "stream")
    return [name for name in names if name.lower() in given]


def plan_stream_tasks(options: KafkaOptions, offset: StreamOffset) -> list[TaskPlan]:
    """The tasks of the batch that `offset` describes, cut as the options say."""
    if not options.is_cut:
        return plan_tasks(offset)
    parts = cut_ranges(offset.ranges(), options.min_partitions, options.max_records)
    return [TaskPlan((TaskRange(part, PartitionState()),)) for part in parts]
