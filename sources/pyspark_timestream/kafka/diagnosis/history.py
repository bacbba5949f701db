"""The history of a stream: its batches, and when each was planned.

It has two sources: the offset log in Spark's checkpoint (all recent batches, without log ends), and
a query's progress (this run's batches, with log ends). Both become the same `Batch`es, and these
one history per stream. Files of the log that are half-written are skipped with a note.

What may be diagnosed in them is here too: the kinds, with causes and fixes. The offset and its
counters determine which diagnoses hold. The offset also keeps the warnings given, so a diagnosis
that still holds, or holds again, is repeated only if its level has risen. The progress report lists
the warnings that hold; the log gets only new ones.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from pyspark_timestream.core.checkpoint import check_offset, parse_offset, read_entry
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.errors import CheckpointUnreadable, compose_message
from pyspark_timestream.kafka.offsets.offset import (
    GivenWarning,
    PartitionOffset,
    StreamOffset,
    Warnings,
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


@dataclass(frozen=True, slots=True)
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

    @property
    def states(self) -> "States":
        """The clock of each partition."""
        return States(self.offset.partitions)


class States(Mapping[Partition, PartitionState]):
    """The clocks of partitions, without a copy: diagnoses ask for them for each of thousands."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        self._offsets = offsets

    def __getitem__(self, part: Partition) -> PartitionState:
        return self._offsets[part].state

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


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


_MAX_NAMED: Final = 3
"""A sentence names this many partitions, and counts the others."""

_MAX_COUNTED: Final = 10
"""This many partitions are listed with their counts; the rest is summed up."""

MOST: Final = 0.5
"""From this fraction of a partition's events on, the options are wrong and not the events."""


class Kind(StrEnum):
    """Kinds of diagnoses and their fixes, in the order of reports (docs/how-to/troubleshooting)."""

    fix: str

    def __new__(cls, name: str, fix: str) -> Self:
        """Make a kind from its name and its fix."""
        kind = str.__new__(cls, name)
        kind._value_, kind.fix = name, fix
        return kind

    MALFORMED = (
        "malformed events",
        "name the field that holds the time in 'startTime' ('endTime', 'edge'), and the unit "
        "of its numbers in 'timeUnit', and start with a new checkpoint; 'violationPolicy' = "
        "'flag' shows such events",
    )
    TOMBSTONES = (
        "tombstones",
        "nothing to fix if a deletion means nothing to the query; to read deletions as rows, "
        "take 'startTime' = 'timestamp' or a header, or 'violationPolicy' = 'flag', with a "
        "new checkpoint",
    )
    IMPROBABLE_TIMES = (
        "improbable times",
        "set 'timeUnit' to the unit of the numbers, or name another field in 'startTime', and "
        "start with a new checkpoint",
    )
    MALFORMED_VALUES = (
        "malformed values",
        "compare 'valueFormat', 'valueFraming' and the types in .schema(...) with what the "
        "producer writes; 'columnNameOfCorruptRecord' shows such values and their reasons",
    )
    OWN_WATERMARK = (
        "a watermark beside the CTIs",
        "call advance_time(df) in place of withWatermark: it makes the CTIs Spark's watermark",
    )
    NO_ADVANCE_TIME = (
        "state without advance_time",
        "call advance_time(df) before the aggregation, join or deduplication",
    )
    LOST_CTIS = (
        "CTIs that are lost before advance_time",
        "call advance_time(df) on what the source delivers, and let filters, joins and "
        "functions follow",
    )
    START_AT_END = (
        "a start at the end",
        "to read what is there, set 'startingOffsets' to 'earliest' and start with a new "
        "checkpoint",
    )
    SESSION_SETTING = (
        "a setting of the session",
        "give it Spark's default before the query is built, and start with a new checkpoint, "
        "which may keep the value that it began with",
    )
    FAR_FUTURE = (
        "a clock ahead",
        "correct that clock; a CTI never goes back, so start with a new checkpoint and with "
        "'maxFuture', at most as long as 'ctiDelay', so that events further ahead of their "
        "records drive no clock, or with 'writerFrom', so that each device has a clock of its "
        "own",
    )
    FUTURE_EVENTS = (
        "events in the future",
        "correct the clocks of the devices: such events drive no clock, so they make no other late",
    )
    IDLE_PARTITION = (
        "an idle partition",
        "set option 'idleTimeout', so that a partition without new records stops counting; or "
        "make sure that every partition gets records",
    )
    SILENT_WRITER = (
        "a silent writer",
        "let the writer note the time, or close it (PunctuatedProducer.close()); option "
        "'writerTimeout', beside 'changeFrom' or on a new checkpoint, forgets writers that stay "
        "silent",
    )
    LATE_IMPORT = (
        "a late import",
        "make sure that the imported topic gets records, and that its CTIs advance: it is "
        "read from its earliest offset with the settings in 'ctiImport'; with option "
        "'idleTimeout' a caught-up partition of it stops counting",
    )
    NO_CTI = (
        "no CTI yet",
        "make sure that records arrive, from where 'startingOffsets' points, and reach "
        "'ctiFrequency' or carry 'ctiHeader'; a smaller 'ctiFrequency' needs option 'changeFrom' "
        "or a new checkpoint",
    )
    EVERYTHING_DROPPED = (
        "everything dropped",
        "set a larger 'ctiDelay', or 'violationPolicy' = 'flag' to see the late rows: beside "
        "option 'changeFrom' for the events to come, or with a new checkpoint to have these too; "
        "where events are malformed, correct 'startTime' and 'timeUnit', with a new checkpoint",
    )
    LATE_ROWS = (
        "rows dropped as late",
        "if there are too many, set a larger 'ctiDelay', or 'violationPolicy' = 'flag' to keep "
        "them as rows: beside option 'changeFrom' for the events to come, or with a new "
        "checkpoint to have these too",
    )
    UNCOUNTED = (
        "records that are not counted",
        "let the query read and commit the offsets of its group; no row depends on this",
    )
    LARGE_CLOCK = (
        "a clock too large for the group",
        "raise the broker's setting 'offset.metadata.max.bytes', or let fewer writers mark a "
        "partition in a batch: fewer writers, more partitions or a smaller 'maxOffsetsPerTrigger'",
    )
    SHARED_GROUP = (
        "a shared group",
        "give each query a 'kafka.group.id' of its own, or leave that option out",
    )
    BACKLOG = (
        "a backlog",
        "wait, or raise 'maxOffsetsPerTrigger' or leave it out; more partitions and cores "
        "read faster",
    )
    UNUSED_UNIT = (
        "a unit without effect",
        "leave 'timeUnit' out, with a new checkpoint; if the times are wrong, correct the producer",
    )
    TWO_TIMESTAMPS = (
        "two timestamps",
        "to read the field, set 'startTime' to 'field:timestamp' and start with a new "
        "checkpoint; to keep the record's, say 'record:timestamp'",
    )
    IMPROBABLE_BOUND = (
        "a bound in another unit",
        "write milliseconds, and start with a new checkpoint",
    )
    ONE_BATCH = (
        "a run of one batch",
        "use .trigger(availableNow=True): it reads everything in as many batches as that "
        "takes, and ends with the end-of-run batch, which carries the last CTI",
    )
    SHORT_REPLAY = (
        "a replay that ends early",
        "compare 'startingCti' and 'endingCti' with the CTI that was reached; run again on "
        "this checkpoint once there are more records, or, if there will be none, set "
        "'finalCti' to 'true' to release everything",
    )
    FINAL_CTI = (
        "a final CTI already sent",
        "start with a new checkpoint; for a job that runs again set 'finalCti' to 'false' "
        "from the beginning",
    )
    ENDED = (
        "the stream has ended",
        "nothing to fix: every result is out; for a job that runs again with new records set "
        "'finalCti' to 'false' and start with a new checkpoint",
    )
    CAUGHT_UP = (
        "nothing holds it back",
        "nothing to fix: a result appears once the CTI has passed it, one batch later; new "
        "records move the CTI on",
    )


_KNOWN: Final = {str(kind): kind for kind in Kind}
"""The kinds by name, since a newer release may have given warnings of kinds unknown here."""

_FRAMING: Final = (
    "compare '{side}Framing' with the producer's serializer: 'confluent' and 'header' expect a "
    "schema id, 'none' expects the payload alone"
)

NEXT_STEPS: Final[Mapping[str, str]] = {
    "framing": _FRAMING.format(side="value"),
    "syntax": (
        "compare 'valueFormat' and the schema with what the producer writes; a column of "
        "'columnNameOfCorruptRecord' shows such values, so that they can go to a topic of their own"
    ),
    "type": (
        "correct the column's type in .schema(...), or declare it a string if the format allows"
    ),
    "name": (
        "nothing, if the topic has several record types: option 'valueMessage' names the one that "
        "is read, and a query of its own reads another"
    ),
    "key framing": _FRAMING.format(side="key"),
    "key syntax": (
        "compare 'keyFormat' and the key's schema with what the producer writes; read the column "
        "'key' beside them to see such keys"
    ),
    "key type": (
        "correct the type of the key's column in .schema(...), or declare it a string if the "
        "format allows"
    ),
    "key name": (
        "nothing, if the topic has keys of several types: option 'keyMessage' names the one that "
        "is read"
    ),
}
"""Reason -> the next step of a user."""

BOUNDED_RUN_ADVICE: Final = (
    "make sure that every partition gets records; if this run is the end of the stream, set "
    "option 'finalCti' to 'true' from the beginning"
)
"""The fix of an idle partition in a bounded run, which does not wait for it."""

REPEATED_RUN_ADVICE: Final = (
    "run again: a run that finds it caught up for as long as option 'idleTimeout' says goes on "
    "without it; if this run is the end of the stream, set option 'finalCti' to 'true' from the "
    "beginning"
)
"""The same fix if the time that a partition is caught up counts across runs."""

WRITER_CLOCK_ADVICE: Final = (
    "let it send events, and correct its clock if that is behind; option 'writerTimeout', beside "
    "'changeFrom' or on a new checkpoint, forgets writers that send nothing"
)
"""The fix of a silent writer in a stream where its own events move its clock."""


@dataclass(frozen=True, slots=True)
class Diagnosis(GivenWarning):
    """Something that is wrong, or that holds results back: a warning, and what is known beside it.

    Attributes:
        since_us: the wall clock since when it holds, within the history; None: unknown.
        partitions: the partitions concerned.
        writers: the (partition, writer's name) concerned.
        scope: the records that it is about, such as `lately`; empty: all.
        share: the fraction of its partitions' events that it is about.
        well: those of its partitions in which so few events are concerned that they are healthy.
    """

    kind: Kind
    since_us: int | None = None
    partitions: frozenset[Partition] = frozenset()
    writers: frozenset[tuple[Partition, str]] = frozenset()
    scope: str = ""
    share: float = 1.0
    well: frozenset[Partition] = frozenset()

    @property
    def is_partial(self) -> bool:
        """True if it is about less than half of the events, so that it holds nothing back."""
        return self.share < MOST

    @property
    def fix(self) -> str:
        """The advice of this diagnosis, or else the fix of its kind."""
        return self.advice or self.kind.fix

    @property
    def full_text(self) -> str:
        """The text with its scope and the detail."""
        scoped = f"{self.scope}, {self.text}" if self.scope else self.text
        return f"{scoped}; {self.detail}" if self.detail else scoped

    @property
    def line(self) -> str:
        """The diagnosis in one line, for a log and a query's progress."""
        return compose_message(f"{self.kind}: {self.cause}: {self.full_text}", next_step=self.fix)


def name_partitions(parts: Sequence[Partition]) -> str:
    """Name the first few partitions, and count the others.

    >>> name_partitions([Partition("t", number) for number in range(5)])
    "topic 't' partition 0, topic 't' partition 1, topic 't' partition 2 and 2 more"
    """
    shown = ", ".join(str(part) for part in parts[:_MAX_NAMED])
    return shown if len(parts) <= _MAX_NAMED else f"{shown} and {len(parts) - _MAX_NAMED} more"


def list_counts(counts: Mapping[Partition, int]) -> str:
    """List the partitions with the greatest counts, and sum up the others.

    >>> list_counts({Partition("t", 0): 2, Partition("t", 1): 7})
    "7 of topic 't' partition 1, 2 of topic 't' partition 0"
    """
    parts = sort_by_count(counts)
    listed = [f"{counts[part]} of {part}" for part in parts[:_MAX_COUNTED]]
    rest = sum(counts[part] for part in parts[_MAX_COUNTED:])
    if rest:
        listed.append(f"{rest} of {len(parts) - _MAX_COUNTED} more partitions")
    return ", ".join(listed)


def sort_by_count(counts: Mapping[Partition, int]) -> list[Partition]:
    """Return the partitions, those with the greatest counts first."""
    return sorted(counts, key=lambda part: (-counts[part], part))


def update_warnings(
    before: Warnings,
    diagnoses: Iterable[Diagnosis],
    detail: Callable[[Diagnosis], str] = lambda _: "",
) -> Warnings:
    """Return the warnings after an update, in the order of kinds.

    Of `diagnoses`, which hold now, the first of each kind counts. A warning takes the newest text,
    with the present counts; `detail` describes it anew by its records if it holds again, has
    another cause, or has risen in level. Texts depend on the stream and not on the wall clock, so
    that an unchanged stream has equal offsets.
    """
    by_kind = {each.kind: each for each in before}
    after = {kind: dataclasses.replace(each, holds=False) for kind, each in by_kind.items()}
    for kind, diagnosis in {str(each.kind): each for each in reversed(list(diagnoses))}.items():
        given, shown = by_kind.get(kind), diagnosis.detail
        level = max(diagnosis.level, given.level if given else 0)
        now = True, level, diagnosis.cause
        if not shown and given and (given.holds, given.level, given.cause) == now:
            shown = given.detail
        else:
            shown = shown or detail(diagnosis)
        scoped = dataclasses.replace(diagnosis, detail="").full_text
        after[kind] = GivenWarning(kind, diagnosis.cause, scoped, shown, diagnosis.advice, level)
    return tuple(after[kind] for kind in Kind if kind in after)


def find_new_warnings(before: Warnings, after: Warnings) -> list[Diagnosis]:
    """Return what to log: kinds that are new in `after`, or that have risen in level."""
    levels = {each.kind: each.level for each in before}
    fresh = (each for each in after if each.level > levels.get(each.kind, -1))
    return [_recall(each) for each in fresh if each.kind in _KNOWN]


def recall_warnings(warnings: Warnings) -> list[Diagnosis]:
    """Return the diagnoses of the warnings that hold."""
    return [_recall(warning) for warning in warnings if warning.holds and warning.kind in _KNOWN]


def _recall(given: GivenWarning) -> Diagnosis:
    return Diagnosis(**{**dataclasses.asdict(given), "kind": _KNOWN[given.kind]})


def add_details(diagnoses: Iterable[Diagnosis], warnings: Warnings) -> list[Diagnosis]:
    """Add to each diagnosis the detail and advice that its warning was given with."""
    by_kind = {warning.kind: warning for warning in warnings}
    told = []
    for each in diagnoses:
        given = by_kind.get(each.kind)
        if given is not None:
            advice = (given.holds and given.advice) or each.advice
            each = dataclasses.replace(each, detail=each.detail or given.detail, advice=advice)
        told.append(each)
    return told
