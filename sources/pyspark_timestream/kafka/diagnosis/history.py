"""The history of a stream: its batches, when each was planned, and what state waits.

It has two sources: the offset log in Spark's checkpoint (all recent batches, without log ends), and
a query's progress (this run's batches, with log ends). Both become the same `Batch`es, and these
one history per stream. Files of the log that are half-written are skipped with a note.

A query's progress has the size of each operator's state. A Spark session can read the state itself
from the checkpoint: Spark marks the column whose time a watermark is compared with, so a window
waits for a CTI at its end, and a row for one after its time. Where Spark keeps that time elsewhere,
as for joins, only the number of rows is known.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.core.checkpoint import check_offset, parse_offset, read_entry
from pyspark_timestream.core.instants import FINAL_US, format_instant, parse_instant
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import PartitionState
from pyspark_timestream.rules.stream_cti import min_cti

_NEXT_STEP: Final = "pass the directory that the query had as option 'checkpointLocation'"
_OFFSET_KEYS: Final = {"partitions", "settings", "stream", "version"}


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a query: when it was planned, and what its sources reported, in order.

    An offset is parsed JSON, and None or empty for a source that had none; a report is a
    source's own progress.
    """

    planned_us: int
    offsets: tuple[Any, ...]
    reports: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch of one stream.

    Attributes:
        planned_us: the wall clock when it was planned.
        offset: its offset: ranges, and the state before them.
        log_ends: for each partition the offset after its last record at that time, where known.
        topic_settings: the option `timeSettings`, and what was taken from the topic; None without
            the option, and if only the offset log is known.
    """

    planned_us: int
    offset: StreamOffset
    log_ends: Mapping[Partition, int] = dataclasses.field(default_factory=dict)
    topic_settings: tuple[str, Mapping[str, str]] | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that the checkpoint pins."""
        return self.offset.settings

    @property
    def states(self) -> dict[Partition, PartitionState]:
        """The clock of each partition."""
        return {part: share.state for part, share in self.offset.partitions.items()}


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
    batches: dict[int, Batch] = {}
    notes = []
    for number in sorted(int(file.name) for file in log.iterdir() if file.name.isdecimal()):
        try:
            entry = read_entry(root, number)
            batches[number] = Batch(offsets=entry.offsets, planned_us=entry.planned_us)
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"offsets/{number} was passed over: {error}")
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


def drop_skipped(batches: Mapping[int, Batch]) -> dict[int, Batch]:
    """Leave out the batches of a checkpoint that its query will never finish.

    A forced repartition of the state skips a failed batch: the next batch begins where the failed
    one began, so the stream's own batch number goes back.
    """
    kept = {}
    least: dict[str, int] = {}
    for number in sorted(batches, reverse=True):
        found = {
            value["stream"]: int(value["number"])
            for value in batches[number].offsets
            if _is_stream(value) and isinstance(value.get("number"), int)
        }
        if all(at <= least.get(stream, at) for stream, at in found.items()):
            kept[number] = batches[number]
            least.update(found)
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
    found: dict[str, dict[int, BatchRecord]] = {}
    for batch in batches:
        reports = batch.reports or (None,) * len(batch.offsets)
        for value, report in zip(batch.offsets, reports, strict=True):
            if _is_stream(value):
                check_offset(value, value["settings"])
                offset = _read_offset(value)
                moments = found.setdefault(offset.stream, {})
                seen = moments.get(offset.number)
                moments[offset.number] = _merge_record(seen, batch.planned_us, offset, report)
    return {
        stream: tuple(moment for _, moment in sorted(moments.items()))
        for stream, moments in found.items()
    }


def find_silent_writers(state: PartitionState) -> list[str]:
    """Return the writers whose marks are the minimum while other marks or events go on."""
    marks = {name: writer.mark_us for name, writer in state.writers}
    if None in marks.values():
        return [name for name, mark_us in marks.items() if mark_us is None]
    known = [mark_us for mark_us in marks.values() if mark_us is not None]
    times_us = [*known, *([] if state.last_us is None else [state.last_us])]
    if not known or max(times_us) == min(known):
        return []
    return [name for name, mark_us in marks.items() if mark_us == min(known)]


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
            part in named and holds(share) for part, share in moment.offset.partitions.items()
        ),
    )


def find_blocking_partitions(moment: BatchRecord) -> frozenset[Partition]:
    """Return the partitions at the stream's CTI or without one, except idle ones."""
    clocks = {
        part: share.state.cti_us
        for part, share in moment.offset.partitions.items()
        if not share.idle
    }
    least = min_cti(clocks.values())
    return frozenset(part for part, cti_us in clocks.items() if cti_us == least)


def count_remaining(history: History) -> dict[Partition, int]:
    """Return how many offsets of each partition are left after the last batch, where known.

    Log ends come from the last progress that has them, so the log may be longer by now.
    """
    ends: dict[Partition, int] = {}
    for moment in history:
        ends.update(moment.log_ends)
    shares = history[-1].offset.partitions
    return {
        part: max(ends[part] - share.end_exclusive, 0)
        for part, share in shares.items()
        if part in ends
    }


def _is_stream(value: Any) -> bool:
    """True for an offset of a Kafka stream of this package."""
    return isinstance(value, dict) and value.keys() >= _OFFSET_KEYS


def _read_offset(value: Mapping[str, Any]) -> StreamOffset:
    try:
        return StreamOffset.from_json(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointUnreadable(
            f"an offset of stream {value['stream']!r} is damaged: {type(error).__name__} {error}",
            "offsets as timestream wrote them",
            "copy the checkpoint again",
        ) from error


def _merge_record(
    seen: BatchRecord | None, planned_us: int, offset: StreamOffset, report: Any
) -> BatchRecord:
    """Merge a batch from two sources; their times agree within milliseconds, so keep the first."""
    if not isinstance(report, dict):
        report = {}
    ends = {
        Partition(topic, int(number)): entry["offset"] + entry["lag"]
        for topic, entries in (report.get("partitions") or {}).items()
        for number, entry in entries.items()
    }
    given = report.get("timeSettings")
    settings = (given["from"], given["taken"]) if given else None
    if seen is None:
        return BatchRecord(planned_us, offset, ends, settings)
    settings = settings or seen.topic_settings
    return BatchRecord(seen.planned_us, offset, {**seen.log_ends, **ends}, settings)


MAX_TIMES: Final = 10
"""This many CTIs are listed for each operator, earliest first."""

_WATERMARK_KEY: Final = "spark.watermarkDelayMs"
"""The metadata key of a column that a watermark is compared with."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator.

    Attributes:
        operator: its number, and Spark's name for it.
        rows: the number of rows in its state; for an aggregation, of groups.
        memory: the bytes that it uses; None: unknown.
        due: the earliest times that the rows wait for, with the number of rows, in order; empty:
            unknown.
        is_window: True: a CTI at such a time releases the rows; False: only a later one does.
    """

    operator: str
    rows: int
    memory: int | None = None
    due: tuple[tuple[int, int], ...] = ()
    is_window: bool = False


def read_operators(progress: Mapping[str, Any]) -> tuple[OperatorState, ...]:
    """Return the state of a query's operators, from its progress as parsed JSON."""
    return tuple(
        OperatorState(
            f"{place} {each.get('operatorName', '')}".strip(),
            int(each.get("numRowsTotal", 0)),
            int(each.get("memoryUsedBytes", 0)),
        )
        for place, each in enumerate(progress.get("stateOperators") or ())
    )


def read_watermark(progress: Mapping[str, Any]) -> int | None:
    """Return Spark's watermark; None if there is none, or if it is still at its start, 1970."""
    text = (progress.get("eventTime") or {}).get("watermark")
    instant_us = parse_instant(text) if text else 0
    return instant_us if 0 < instant_us < FINAL_US else None


def describe_state(operators: Sequence[OperatorState]) -> Iterator[str]:
    """Yield the lines about the state of operators.

    State with unknown times may wait for no CTI at all, as without `advance_time`.
    """
    for each in operators:
        size = "1 row" if each.rows == 1 else f"{each.rows} rows"
        memory = "" if each.memory is None else f", {each.memory} bytes"
        yield f"State of operator {each.operator}: {size}{memory}"
        for time_us, rows in each.due[:MAX_TIMES]:
            when = "at" if each.is_window else "after"
            yield f"   {_count_rows(rows)} for a CTI {when} {format_instant(time_us)}"
        rest = each.rows - sum(rows for _, rows in each.due[:MAX_TIMES])
        if each.due and rest > 0:
            yield f"   {_count_rows(rest)} for later ones"


def _count_rows(rows: int) -> str:
    return "1 row waits" if rows == 1 else f"{rows} rows wait"


def read_state_store(spark: Any, location: str) -> tuple[OperatorState, ...]:
    """Read the state in the checkpoint at `location` after its last finished batch.

    This runs two Spark jobs per operator, and leaves out operators with a state that Spark hides.
    """
    stores: dict[tuple[int, str], list[str]] = {}
    for row in spark.read.format("state-metadata").load(location).collect():
        stores.setdefault((row.operatorId, row.operatorName), []).append(row.stateStoreName)
    found = []
    for (number, name), names in sorted(stores.items()):
        # A join has four stores, and some of them hold a row of one side twice.
        if names == ["default"]:
            try:
                reader = spark.read.format("statestore").option("operatorId", number)
                found.append(_read_store(reader.load(location), f"{number} {name}"))
            except Exception as error:
                if not _is_refused(error):
                    raise
    return tuple(found)


def _read_store(rows: Any, operator: str) -> OperatorState:
    total = rows.count()
    time = find_due_time(rows.schema.jsonValue())
    if time is None:
        return OperatorState(operator, total)
    column, is_window = time
    times = rows.selectExpr(f"unix_micros({column}) AS due").where("due IS NOT NULL")
    first = times.groupBy("due").count().orderBy("due").limit(MAX_TIMES).collect()
    due = tuple((int(row["due"]), int(row["count"])) for row in first)
    return OperatorState(operator, total, None, due, is_window)


def find_due_time(schema: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Return the time that a state's rows wait for: an SQL expression, and if it ends a window.

    None if the key, in the schema of what `statestore` reads, has no time to compare the watermark
    with.
    """
    (key,) = [field["type"] for field in schema["fields"] if field["name"] == "key"] or [{}]
    for field in key.get("fields", ()) if isinstance(key, Mapping) else ():
        # Only `advance_time` marks a column without a delay.
        if field.get("metadata", {}).get(_WATERMARK_KEY) != 0:
            continue
        name, kind = field["name"].replace("`", "``"), field["type"]
        if kind == "timestamp":
            return f"key.`{name}`", False
        if isinstance(kind, Mapping) and any(each["name"] == "end" for each in kind["fields"]):
            return f"key.`{name}`.`end`", True
    return None


def _is_refused(error: Exception) -> bool:
    """True if Spark does not show this state, as for `transformWithState`."""
    get_condition = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    condition = get_condition() if get_condition else None
    return str(condition or "").startswith(("STDS_", "UNSUPPORTED_FEATURE.STATE_STORE"))
