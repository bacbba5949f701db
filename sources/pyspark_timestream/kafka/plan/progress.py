"""The progress report of a Kafka stream (semantics 13.5)."""

from collections.abc import Mapping
from typing import Any

from pyspark_timestream.connector.instants import format_instant
from pyspark_timestream.cti.step import COUNTERS
from pyspark_timestream.kafka.plan.malformed_values import NO_MALFORMED_VALUES, MalformedValues
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.plan.positions import find_ended, limit_ends
from pyspark_timestream.kafka.plan.warnings import active_warnings
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["build_progress"]


def build_progress(
    offset: StreamOffset,
    log_ends: Mapping[Partition, int],
    until_us: int | None = None,
    described: tuple[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Build the progress report of the batch `offset`, as of the batch's start.

    `offset` and `lag` of a partition are the batch's start and the number of offsets from there to
    the end of the log, or to the stream's own end (`until_us` is that of `endingCti`). Counters are
    per partition, and summed over existing partitions; `malformedValues` counts by reason as well.
    `warnings` holds the texts of the active ones. `described`, the option `timeSettings` and what
    was taken from there, is `timeSettings`.
    """
    ends = limit_ends(log_ends, offset.fixed_ends, find_ended(offset, {}, until_us))
    topics: dict[str, dict[str, Any]] = {}
    totals, malformed = dict.fromkeys(COUNTERS, 0), NO_MALFORMED_VALUES
    for part, share in sorted(offset.partitions.items()):
        topics.setdefault(part.topic, {})[str(part.number)] = _build_partition(
            share, ends.get(part, share.end_exclusive)
        )
        for name, count in share.state.counters().items():
            totals[name] += count
        malformed += share.malformed_values
    return {
        "cti": _format_cti(offset.cti_us),
        "endOfStream": offset.closing,
        "partitions": topics,
        "warnings": [finding.line for finding in active_warnings(offset.warnings)],
        **totals,
        "malformedValues": _report_malformed(malformed),
        "timeSettings": described and {"from": described[0], "taken": dict(described[1])},
    }


def _build_partition(share: PartitionOffset, log_end: int) -> dict[str, Any]:
    return {
        "cti": _format_cti(share.state.cti_us),
        "idle": share.idle,
        "lag": max(log_end - share.start_inclusive, 0),
        "offset": share.start_inclusive,
        **share.state.counters(),
        "malformedValues": _report_malformed(share.malformed_values),
        "waits": share.waits,
    }


def _report_malformed(found: MalformedValues) -> dict[str, int]:
    return {"total": found.total, **dict(found.by_reason)}


def _format_cti(cti_us: int | None) -> str | None:
    return None if cti_us is None else format_instant(cti_us)
