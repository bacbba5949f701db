"""The history of a stream: its batches, and when each was planned; and the report of its progress.

It has two sources: the offset log in Spark's checkpoint (all recent batches, without log ends), and
a query's progress (this run's batches, with log ends). Both become the same batches, and these
one history per stream. Files of the log that are half-written are skipped with a note.
`build_progress` makes the report (13.5) that `read_progress` reads.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.core.checkpoint import check_offset, parse_offset, read_batch_entry
from pyspark_timestream.core.instants import format_instant, parse_instant
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
    read_recorded_offset,
)
from pyspark_timestream.kafka.offsets.positions import find_ended, limit_ends
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import COUNTERS, PartitionClock, min_cti

_NEXT_STEP: Final = "pass the directory that the query had as option 'checkpointLocation'"
_OFFSET_KEYS: Final = {"partitions", "settings", "stream", "version"}


@dataclass(frozen=True)
class BatchReport:
    """One batch of a query: when it was planned, and what its sources reported, in order.

    An offset is parsed JSON, and None or empty for a source that had none; a report is a
    source's own progress.
    """

    planned_us: int
    offsets: tuple[Any, ...]
    reports: tuple[Any, ...] = ()

    @cached_property
    def records(self) -> "tuple[BatchRecord, ...]":
        """The batch of each Kafka stream of this package, read once and then kept.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: an offset of another version, or a damaged
                one.
        """
        reports = self.reports or (None,) * len(self.offsets)
        return tuple(
            _read_record(self.planned_us, value, report)
            for value, report in zip(self.offsets, reports, strict=True)
            if _is_stream(value)
        )

    @property
    def ctis(self) -> list[tuple[str, int | None]]:
        """The id and the CTI of each Kafka stream, read without its partitions."""
        return [
            (str(value["stream"]), value["cti"])
            for value in self.offsets
            if _is_stream(value) and isinstance(value.get("cti"), int | None)
        ]


@dataclass(frozen=True)
class BatchRecord:
    """One batch of one stream.

    Attributes:
        planned_us: the wall clock when it was planned.
        offset: its offset: ranges, and the clocks before them.
        readable_ends: for each partition the offset after its last readable record then, if known.
        topic_settings: the option `timeSettings`, and the settings taken from the topic; None
            without the option, and if only the offset log is known.
    """

    planned_us: int
    offset: StreamOffset
    readable_ends: Mapping[Partition, int] = dataclasses.field(default_factory=dict)
    topic_settings: tuple[str, Mapping[str, str]] | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that the checkpoint pins."""
        return self.offset.settings

    @cached_property
    def clocks(self) -> Mapping[Partition, PartitionClock]:
        """The clock of each partition."""
        return self.offset.clocks


History = tuple[BatchRecord, ...]
"""The batches of one stream in order; at least one."""


def missing_log(root: Path, accepts: str, next_step: str) -> CheckpointUnreadable:
    """Build the error for a directory without a log of offsets."""
    problem = f"'{root}' is not a checkpoint of a Spark stream: it has no directory 'offsets'"
    return CheckpointUnreadable(problem, accepts, next_step)


def read_offset_log(root: Path) -> tuple[dict[int, BatchReport], list[str]]:
    """Return the batches of the checkpoint `root` by number, and notes on the ones left out."""
    log = root / "offsets"
    if not log.is_dir():
        raise missing_log(root, "a local directory", _NEXT_STEP)
    numbers = sorted(int(file.name) for file in log.iterdir() if file.name.isdecimal())
    batches, unreadable = read_batches(root, numbers)
    notes = [f"offsets/{number} was passed over: {why}" for number, why in unreadable.items()]
    if not batches:
        reason = notes[-1] if notes else "the query has planned no batch yet"
        raise CheckpointUnreadable(
            f"nothing in '{root}' can be explained: {reason}", next_step=_NEXT_STEP
        )
    finished = drop_skipped(batches)
    notes += [
        f"batch {number} was never finished: a forced repartition of the state skipped it"
        for number in batches.keys() - finished.keys()
    ]
    return finished, notes


def read_batches(
    root: Path, numbers: Iterable[int]
) -> tuple[dict[int, BatchReport], dict[int, str]]:
    """Return the batches of these entries of an offset log, and why others cannot be read."""
    batches: dict[int, BatchReport] = {}
    unreadable: dict[int, str] = {}
    for number in numbers:
        try:
            entry = read_batch_entry(root, number)
            batches[number] = BatchReport(offsets=entry.offsets, planned_us=entry.planned_us)
        except (OSError, ValueError, RecursionError) as error:
            unreadable[number] = str(error)
    return batches, unreadable


def drop_skipped(batches: Mapping[int, BatchReport]) -> dict[int, BatchReport]:
    """Leave out the batches of a checkpoint that its query will never finish.

    A forced repartition of the state skips a failed batch: the next batch begins where the failed
    one began, so the stream's own batch number goes back.
    """
    finished = {}
    least: dict[str, int] = {}
    for number in sorted(batches, reverse=True):
        remaining = {
            value["stream"]: int(value["number"])
            for value in batches[number].offsets
            if _is_stream(value)
            and isinstance(value["stream"], str)
            and isinstance(value.get("number"), int)
        }
        if all(position <= least.get(stream, position) for stream, position in remaining.items()):
            finished[number] = batches[number]
            least.update(remaining)
    return dict(sorted(finished.items()))


def read_progress(progress: Mapping[str, Any]) -> BatchReport:
    """Return the batch that a query's progress, as parsed JSON, reports."""
    sources = progress.get("sources") or []
    return BatchReport(
        parse_instant(progress["timestamp"]),
        tuple(parse_offset(source.get("endOffset")) for source in sources),
        tuple(parse_offset(source.get("latestOffset")) for source in sources),
    )


def build_histories(batches: Iterable[BatchReport]) -> dict[str, History]:
    """Return the history of each Kafka stream in `batches`, which come in any order, by its id."""
    by_source: dict[str, dict[int, BatchRecord]] = {}
    for batch in batches:
        for record in batch.records:
            numbered = by_source.setdefault(record.offset.stream, {})
            earlier = numbered.get(record.offset.number)
            numbered[record.offset.number] = (
                record if earlier is None else _merge_records(earlier, record)
            )
    return {
        stream: tuple(record for _, record in sorted(numbered.items()))
        for stream, numbered in by_source.items()
    }


def find_silent_writers(clock: PartitionClock) -> list[str]:
    """Return the writers with the lowest mark, if other marks or the events are ahead of it."""
    marks = {name: writer.mark_us for name, writer in clock.writers}
    if None in marks.values():
        return [name for name, mark_us in marks.items() if mark_us is None]
    noted_us = [mark_us for mark_us in marks.values() if mark_us is not None]
    times_us = [*noted_us, *([] if clock.last_us is None else [clock.last_us])]
    if not noted_us or max(times_us) == min(noted_us):
        return []
    return [name for name, mark_us in marks.items() if mark_us == min(noted_us)]


def find_unchanged_since(history: History, same: Callable[[BatchRecord], bool]) -> int | None:
    """Return since when `same` holds: when the first of the latest batches in a row was planned.

    None if it does not hold for the last batch.
    """
    start = None
    for batch in reversed(history):
        if not same(batch):
            break
        start = batch.planned_us
    return start


def find_since(
    history: History, partitions: Iterable[Partition], holds: Callable[[PartitionOffset], bool]
) -> int | None:
    """Return since when `holds` has been true, without a break, of one of `partitions`."""
    watched = frozenset(partitions)
    return find_unchanged_since(
        history,
        lambda batch: any(
            partition in watched and holds(partition_offset)
            for partition, partition_offset in batch.offset.partitions.items()
        ),
    )


def find_blocking_partitions(batch: BatchRecord) -> frozenset[Partition]:
    """Return the partitions at the stream's CTI or without one, except idle ones."""
    clocks = batch.offset.active_clocks
    least = min_cti(clock.cti_us for clock in clocks.values())
    return frozenset(partition for partition, clock in clocks.items() if clock.cti_us == least)


def count_remaining(history: History) -> dict[Partition, int]:
    """Return how many offsets of each partition are left after the last batch, where known.

    The ends come from the last progress that has them, so a log may be longer by now.
    """
    ends: dict[Partition, int] = {}
    for batch in history:
        ends.update(batch.readable_ends)
    partition_offsets = history[-1].offset.partitions
    return {
        partition: max(ends[partition] - partition_offset.end_exclusive, 0)
        for partition, partition_offset in partition_offsets.items()
        if partition in ends
    }


def _is_stream(value: Any) -> bool:
    """True for an offset of a Kafka stream of this package."""
    return isinstance(value, dict) and value.keys() >= _OFFSET_KEYS


def _read_record(planned_us: int, value: Mapping[str, Any], report: Any) -> BatchRecord:
    check_offset(value, value["settings"])
    offset = read_recorded_offset(value)
    if not isinstance(report, dict):
        return BatchRecord(planned_us, offset)
    ends = {
        Partition(topic, int(number)): entry["offset"] + entry["lag"]
        for topic, entries in (report.get("partitions") or {}).items()
        for number, entry in entries.items()
    }
    settings = report.get("timeSettings")
    return BatchRecord(
        planned_us, offset, ends, (settings["from"], settings["taken"]) if settings else None
    )


def _merge_records(earlier: BatchRecord, record: BatchRecord) -> BatchRecord:
    """Merge a batch from two sources; their times agree within milliseconds, so keep the first."""
    ends = {**earlier.readable_ends, **record.readable_ends}
    settings = record.topic_settings or earlier.topic_settings
    return BatchRecord(earlier.planned_us, record.offset, ends, settings)


# -- the report of progress ------------------------------------------------------------------------


def build_progress(
    offset: StreamOffset,
    readable_ends: Mapping[Partition, int],
    options: KafkaOptions,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Build the progress report of the batch `offset`, as of the batch's start.

    A partition's `offset` is the batch's start, and its `lag` is the number of offsets from there
    to the end of the log, or to the stream's own end. Counters are per partition, and summed over
    existing partitions; `malformedValues` counts by reason as well.
    `warnings` are the texts of the warnings that hold.
    """
    ended = find_ended(offset, {}, options.ending_cti_us)
    ends = limit_ends(readable_ends, offset.fixed_ends, ended)
    topics: dict[str, dict[str, Any]] = {}
    totals = dict.fromkeys(COUNTERS, 0)
    malformed = NO_MALFORMED_PAYLOADS
    for partition, partition_offset in sorted(offset.partitions.items()):
        topics.setdefault(partition.topic, {})[str(partition.number)] = _build_partition(
            partition_offset, ends.get(partition, partition_offset.end_exclusive)
        )
        for name, count in partition_offset.clock.counters().items():
            totals[name] += count
        malformed += partition_offset.malformed_payloads
    return {
        "cti": _format_cti(offset.cti_us),
        "endOfStream": offset.end_of_run,
        "partitions": topics,
        "warnings": list(warnings),
        "changes": [
            {
                "batch": change.number,
                "cti": _format_cti(change.cti_us),
                "from": dict(change.old),
                "to": dict(change.new),
            }
            for change in offset.changes
        ],
        **totals,
        "malformedValues": _report_malformed(malformed),
        "timeSettings": options.time_settings
        and {"from": str(options.time_settings), "taken": dict(options.topic_settings)},
    }


def _build_partition(partition_offset: PartitionOffset, readable_end: int) -> dict[str, Any]:
    return {
        "cti": _format_cti(partition_offset.clock.cti_us),
        "idle": partition_offset.idle,
        "lag": max(readable_end - partition_offset.start_inclusive, 0),
        "offset": partition_offset.start_inclusive,
        **partition_offset.clock.counters(),
        "malformedValues": _report_malformed(partition_offset.malformed_payloads),
        "waits": partition_offset.waits,
    }


def _report_malformed(malformed: MalformedPayloads) -> dict[str, int]:
    return {"total": malformed.total, **dict(malformed.by_reason)}


def _format_cti(cti_us: int | None) -> str | None:
    return None if cti_us is None else format_instant(cti_us)
