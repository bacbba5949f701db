"""The possible diagnoses of a stream: the kinds, with causes and fixes, and the warnings given.

The offset and its counters determine which diagnoses hold. The offset also keeps the warnings, so a
diagnosis that still holds, or holds again, is repeated only if its level has risen. The progress
report lists the warnings that hold; the log gets only new ones.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from pyspark_timestream.errors import compose_message
from pyspark_timestream.kafka.offsets.offset import (
    GivenWarning,
    Warnings,
)
from pyspark_timestream.kafka.ranges import Partition

_MAX_NAMED: Final = 3
"""A sentence names this many partitions, and counts the others."""

_MAX_COUNTED: Final = 10
"""This many partitions are listed with their counts; the others are summed up."""

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
    NO_TOPIC = (
        "no topic",
        "correct the pattern, which has to match a topic's whole name, and start with a new "
        "checkpoint; a running query finds topics that come later",
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
    NO_SUCH_FIELD = (
        "a column without a field",
        "name the column in .schema(...) as its field is named, letter by letter; this checkpoint "
        "goes on with it for the records to come, a new one has the earlier ones too",
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


HEALTHY_KINDS: Final = (Kind.ENDED, Kind.CAUGHT_UP)
"""Diagnoses which say that nothing is wrong."""


_KNOWN: Final = {str(kind): kind for kind in Kind}
"""The kinds by name, since a newer release may have given warnings of kinds unknown here."""

_FRAMING: Final = (
    "compare '{side}Framing' with the producer's serializer: 'confluent' and 'header' expect a "
    "schema id, 'none' expects only the payload"
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

FINAL_CTI_ADVICE: Final = (
    "option 'finalCti' acts at the end of a bounded run: use .trigger(availableNow=True), or call "
    "end_stream(query) when no more records will come"
)
"""The fix of results that wait for the final CTI in a run that has no end."""

WRITER_CLOCK_ADVICE: Final = (
    "let it send events, and correct its clock if that is behind; option 'writerTimeout', beside "
    "'changeFrom' or on a new checkpoint, forgets writers that send nothing"
)
"""The fix of a silent writer in a stream where its own events move its clock."""


@dataclass(frozen=True, slots=True)
class Diagnosis(GivenWarning):
    """Something that is wrong, or that holds results back: a warning with more facts.

    Attributes:
        since_us: the wall clock since when it holds, within the history; None: unknown.
        partitions: the partitions concerned.
        writers: the (partition, writer's name) concerned.
        scope: the records that it is about, such as `lately`; empty: all.
        share: the fraction of its partitions' events that it is about.
        healthy: its partitions that count as healthy, because it is about few of their events.
    """

    kind: Kind
    since_us: int | None = None
    partitions: frozenset[Partition] = frozenset()
    writers: frozenset[tuple[Partition, str]] = frozenset()
    scope: str = ""
    share: float = 1.0
    healthy: frozenset[Partition] = frozenset()

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


def report_no_topic(settings: Mapping[str, str]) -> Diagnosis:
    """Report that no topic is there; only a pattern may have none."""
    pattern = settings.get("subscribePattern", "")
    return Diagnosis(
        Kind.NO_TOPIC, f"option 'subscribePattern' = '{pattern}'", "no topic matches it"
    )


def name_partitions(partitions: Sequence[Partition]) -> str:
    """Name the first few partitions, and count the others.

    >>> name_partitions([Partition("t", number) for number in range(5)])
    "topic 't' partition 0, topic 't' partition 1, topic 't' partition 2 and 2 more"
    """
    names = ", ".join(str(partition) for partition in partitions[:_MAX_NAMED])
    return (
        names
        if len(partitions) <= _MAX_NAMED
        else f"{names} and {len(partitions) - _MAX_NAMED} more"
    )


def list_counts(counts: Mapping[Partition, int]) -> str:
    """List the partitions with the greatest counts, and sum up the others.

    >>> list_counts({Partition("t", 0): 2, Partition("t", 1): 7})
    "7 of topic 't' partition 1, 2 of topic 't' partition 0"
    """
    partitions = sort_by_count(counts)
    entries = [f"{counts[partition]} of {partition}" for partition in partitions[:_MAX_COUNTED]]
    remainder = sum(counts[partition] for partition in partitions[_MAX_COUNTED:])
    if remainder:
        entries.append(f"{remainder} of {len(partitions) - _MAX_COUNTED} more partitions")
    return ", ".join(entries)


def sort_by_count(counts: Mapping[Partition, int]) -> list[Partition]:
    """Return the partitions, those with the greatest counts first."""
    return sorted(counts, key=lambda partition: (-counts[partition], partition))


def update_warnings(
    before: Warnings,
    diagnoses: Iterable[Diagnosis],
    detail: Callable[[Diagnosis], str] = lambda _: "",
) -> Warnings:
    """Return the warnings after an update, in the order of kinds.

    `diagnoses` hold now; the first of each kind counts. A warning takes the newest text, with the
    present counts. `detail` describes it again by its records if it holds again, has another cause,
    or has risen in level. Texts depend on the stream and not on the wall clock, so that an
    unchanged stream has equal offsets.
    """
    by_kind = {warning.kind: warning for warning in before}
    after = {kind: dataclasses.replace(warning, holds=False) for kind, warning in by_kind.items()}
    for kind, diagnosis in {
        str(diagnosis.kind): diagnosis for diagnosis in reversed(list(diagnoses))
    }.items():
        earlier, description = by_kind.get(kind), diagnosis.detail
        level = max(diagnosis.level, earlier.level if earlier else 0)
        now = True, level, diagnosis.cause
        if not description and earlier and (earlier.holds, earlier.level, earlier.cause) == now:
            description = earlier.detail
        else:
            description = description or detail(diagnosis)
        scoped = dataclasses.replace(diagnosis, detail="").full_text
        after[kind] = GivenWarning(
            kind=kind,
            cause=diagnosis.cause,
            text=scoped,
            detail=description,
            advice=diagnosis.advice,
            level=level,
        )
    return tuple(after[kind] for kind in Kind if kind in after)


def find_new_warnings(before: Warnings, after: Warnings) -> list[Diagnosis]:
    """Return what to log: kinds that are new in `after`, or that have risen in level."""
    levels = {warning.kind: warning.level for warning in before}
    fresh = (warning for warning in after if warning.level > levels.get(warning.kind, -1))
    return [_recall_diagnosis(warning) for warning in fresh if warning.kind in _KNOWN]


def recall_warnings(warnings: Warnings) -> list[Diagnosis]:
    """Return the diagnoses of the warnings that hold."""
    return [
        _recall_diagnosis(warning)
        for warning in warnings
        if warning.holds and warning.kind in _KNOWN
    ]


def _recall_diagnosis(warning: GivenWarning) -> Diagnosis:
    return Diagnosis(**{**dataclasses.asdict(warning), "kind": _KNOWN[warning.kind]})


def add_details(diagnoses: Iterable[Diagnosis], warnings: Warnings) -> list[Diagnosis]:
    """Add to each diagnosis the detail and advice of its warning."""
    by_kind = {warning.kind: warning for warning in warnings}
    detailed = []
    for diagnosis in diagnoses:
        warning = by_kind.get(diagnosis.kind)
        if warning is not None:
            advice = (warning.holds and warning.advice) or diagnosis.advice
            diagnosis = dataclasses.replace(
                diagnosis, detail=diagnosis.detail or warning.detail, advice=advice
            )
        detailed.append(diagnosis)
    return detailed
