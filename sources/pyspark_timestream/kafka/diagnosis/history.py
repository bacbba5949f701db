"""The history of a stream: its batches, and when each was planned.

It has two sources: the offset log in Spark's checkpoint (all recent batches, without log ends), and
a query's progress (this run's batches, with log ends). Both become the same `Batch`es, and these
one history per stream. Files of the log that are half-written are skipped with a note.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.core.checkpoint import check_offset, parse_offset, read_entry
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_timestream.kafka.offsets.offset import (
    PartitionOffset,
    StreamOffset,
    read_recorded_offset,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import PartitionState, min_cti

_NEXT_STEP: Final = "pass the directory that the query had as option 'checkpointLocation'"
_OFFSET_KEYS: Final = {"partitions", "settings", "stream", "version"}


@dataclass(frozen=True)
class Batch:
    """One batch of a query: when it was planned, and what its sources reported, in order.

    An offset is parsed JSON, and None or empty for a source that had none; a report is a
    source's own progress.
    """

    planned_us: int
    offsets: tuple[Any, ...]
    reports: tuple[Any, ...] = ()

    @cached_property
    def records(self) -> "tuple[BatchRecord, ...]":
        """The batch of each Kafka stream of this package, read once for all who ask.

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
        """The id and the CTI of each Kafka stream, without all that is known of its partitions."""
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
        offset: its offset: ranges, and the state before them.
        readable_ends: for each partition the offset after its last readable record then, if known.
        topic_settings: the option `timeSettings`, and what was taken from the topic; None without
            the option, and if only the offset log is known.
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
    def states(self) -> Mapping[Partition, PartitionState]:
        """The clock of each partition."""
        return {part: each.state for part, each in self.offset.partitions.items()}


History = tuple[BatchRecord, ...]
"""The batches of one stream in order; at least one."""


def read_offset_log(root: Path) -> tuple[dict[int, Batch], list[str]]:
    """Return the batches of the checkpoint `root` by number, and notes on what was left out."""
    log = root / "offsets"
    if not log.is_dir():
        raise CheckpointUnreadable(
            f"'{root}' is not a checkpoint of a Spark stream: it has no directory 'offsets'",
            "a local directory",
            _NEXT_STEP,
        )
    numbers = sorted(int(file.name) for file in log.iterdir() if file.name.isdecimal())
    batches, unreadable = read_batches(root, numbers)
    notes = [f"offsets/{number} was passed over: {why}" for number, why in unreadable.items()]
    if not batches:
        reason = notes[-1] if notes else "the query has planned no batch yet"
        raise CheckpointUnreadable(
            f"nothing in '{root}' can be explained: {reason}", next_step=_NEXT_STEP
        )
    kept = drop_skipped(batches)
    notes += [
        f"batch {number} was never finished: a forced repartition of the state skipped it"
        for number in batches.keys() - kept.keys()
    ]
    return kept, notes


def read_batches(root: Path, numbers: Iterable[int]) -> tuple[dict[int, Batch], dict[int, str]]:
    """Return the batches of these entries of an offset log, and why others cannot be read."""
    batches: dict[int, Batch] = {}
    unreadable: dict[int, str] = {}
    for number in numbers:
        try:
            entry = read_entry(root, number)
            batches[number] = Batch(offsets=entry.offsets, planned_us=entry.planned_us)
        except (OSError, ValueError, RecursionError) as error:
            unreadable[number] = str(error)
    return batches, unreadable


def drop_skipped(batches: Mapping[int, Batch]) -> dict[int, Batch]:
    """Leave out the batches of a checkpoint that its query will never finish.

    A forced repartition of the state skips a failed batch: the next batch begins where the failed
    one began, so the stream's own batch number goes back.
    """
    kept = {}
    least: dict[str, int] = {}
    for number in sorted(batches, reverse=True):
        remaining = {
            value["stream"]: int(value["number"])
            for value in batches[number].offsets
            if _is_stream(value)
            and isinstance(value["stream"], str)
            and isinstance(value.get("number"), int)
        }
        if all(at <= least.get(stream, at) for stream, at in remaining.items()):
            kept[number] = batches[number]
            least.update(remaining)
    return dict(sorted(kept.items()))


def read_progress(progress: Mapping[str, Any]) -> Batch:
    """Return the batch that a query's progress, as parsed JSON, reports."""
    sources = progress.get("sources") or []
    return Batch(
        parse_instant(progress["timestamp"]),
        tuple(parse_offset(source.get("endOffset")) for source in sources),
        tuple(parse_offset(source.get("latestOffset")) for source in sources),
    )


def build_histories(batches: Iterable[Batch]) -> dict[str, History]:
    """Return the history of each Kafka stream in `batches`, which come in any order, by its id."""
    by_source: dict[str, dict[int, BatchRecord]] = {}
    for batch in batches:
        for record in batch.records:
            moments = by_source.setdefault(record.offset.stream, {})
            seen = moments.get(record.offset.number)
            moments[record.offset.number] = record if seen is None else _merge(seen, record)
    return {
        stream: tuple(moment for _, moment in sorted(moments.items()))
        for stream, moments in by_source.items()
    }


def find_silent_writers(state: PartitionState) -> list[str]:
    """Return the writers whose marks are the minimum while other marks or events go on."""
    marks = {name: writer.mark_us for name, writer in state.writers}
    if None in marks.values():
        return [name for name, mark_us in marks.items() if mark_us is None]
    noted_us = [mark_us for mark_us in marks.values() if mark_us is not None]
    times_us = [*noted_us, *([] if state.last_us is None else [state.last_us])]
    if not noted_us or max(times_us) == min(noted_us):
        return []
    return [name for name, mark_us in marks.items() if mark_us == min(noted_us)]


def find_unchanged_since(history: History, same: Callable[[BatchRecord], bool]) -> int | None:
    """Return when the first batch was planned since which `same` holds; None if it does not now."""
    start = None
    for moment in reversed(history):
        if not same(moment):
            break
        start = moment.planned_us
    return start


def find_since(
    history: History, parts: Iterable[Partition], holds: Callable[[PartitionOffset], bool]
) -> int | None:
    """Return when the first batch was planned since which `holds` is true of one of `parts`."""
    named = frozenset(parts)
    return find_unchanged_since(
        history,
        lambda moment: any(
            part in named and holds(partition_offset)
            for part, partition_offset in moment.offset.partitions.items()
        ),
    )


def find_blocking_partitions(moment: BatchRecord) -> frozenset[Partition]:
    """Return the partitions at the stream's CTI or without one, except idle ones."""
    clocks = {
        part: partition_offset.state.cti_us
        for part, partition_offset in moment.offset.partitions.items()
        if not partition_offset.idle
    }
    least = min_cti(clocks.values())
    return frozenset(part for part, cti_us in clocks.items() if cti_us == least)


def count_remaining(history: History) -> dict[Partition, int]:
    """Return how many offsets of each partition are left after the last batch, where known.

    Log ends come from the last progress that has them, so the log may be longer by now.
    """
    ends: dict[Partition, int] = {}
    for moment in history:
        ends.update(moment.readable_ends)
    partition_offsets = history[-1].offset.partitions
    return {
        part: max(ends[part] - partition_offset.end_exclusive, 0)
        for part, partition_offset in partition_offsets.items()
        if part in ends
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
    given = report.get("timeSettings")
    return BatchRecord(planned_us, offset, ends, (given["from"], given["taken"]) if given else None)


def _merge(seen: BatchRecord, record: BatchRecord) -> BatchRecord:
    """Merge a batch from two sources; their times agree within milliseconds, so keep the first."""
    ends = {**seen.readable_ends, **record.readable_ends}
    settings = record.topic_settings or seen.topic_settings
    return BatchRecord(seen.planned_us, record.offset, ends, settings)
