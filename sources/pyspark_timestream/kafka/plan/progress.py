"""What a query's progress says of a Kafka stream (semantics 13.5)."""

from collections.abc import Mapping
from typing import Any

from pyspark_timestream.connector.instants import format_instant
from pyspark_timestream.cti.step import COUNTERS
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.plan.warnings import standing_warnings
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["progress"]


def progress(offset: StreamOffset, log_ends: Mapping[Partition, int]) -> dict[str, Any]:
    """The progress entry of the batch `offset`: everything as of the batch's start.

    `offset` and `lag` of a partition are where the batch begins, and how many offsets the log
    had from there; counters are per partition, and summed over those that still exist; `warnings`
    are those that hold, a text each.
    """
    topics: dict[str, dict[str, Any]] = {}
    totals = dict.fromkeys(COUNTERS, 0)
    for part, share in sorted(offset.partitions.items()):
        topics.setdefault(part.topic, {})[str(part.number)] = _partition(
            share, log_ends.get(part, share.end_exclusive)
        )
        for name, count in share.state.counters().items():
            totals[name] += count
    return {
        "cti": _text(offset.cti_us),
        "endOfStream": offset.closing,
        "partitions": topics,
        "warnings": [finding.line for finding in standing_warnings(offset.warnings)],
        **totals,
    }


def _partition(share: PartitionOffset, log_end: int) -> dict[str, Any]:
    return {
        "cti": _text(share.state.cti_us),
        "idle": share.idle,
        "lag": max(log_end - share.start_inclusive, 0),
        "offset": share.start_inclusive,
        **share.state.counters(),
    }


def _text(cti_us: int | None) -> str | None:
    return None if cti_us is None else format_instant(cti_us)
