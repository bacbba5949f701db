"""Findings about a stream: kinds, causes and fixes; each is warned of once.

The offset and its counters determine which findings hold (`mistakes`). The offset also keeps the
warnings given, so that a finding that still holds, or holds again, is not repeated unless its level
has risen. The progress report lists active warnings; only new ones are logged.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pyspark_timestream.errors import compose_message
from pyspark_timestream.kafka.ranges import Partition

_MAX_NAMED: Final = 3
"""Partitions that a sentence names; it counts the others."""

_MOST: Final = 0.5
_FEW: Final = 0.01
"""Partitions with fewer late or malformed events are well."""

_MAX_COUNTED: Final = 10
"""Partitions that are listed with their counts; the rest is summed up."""


class Kind(StrEnum):
    """Kinds of findings, in the order of reports; docs/how-to/troubleshooting.md lists each."""

    MALFORMED = "malformed events"
    TOMBSTONES = "tombstones"
    IMPROBABLE_TIMES = "improbable times"
    MALFORMED_VALUES = "malformed values"
    OWN_WATERMARK = "a watermark beside the CTIs"
    NO_ADVANCE_TIME = "state without advance_time"
    LOST_CTIS = "CTIs that are lost before advance_time"
    START_AT_END = "a start at the end"
    SESSION_SETTING = "a setting of the session"
    FAR_FUTURE = "a clock ahead"
    FUTURE_EVENTS = "events in the future"
    IDLE_PARTITION = "an idle partition"
    SILENT_WRITER = "a silent writer"
    LATE_IMPORT = "a late import"
    NO_CTI = "no CTI yet"
    EVERYTHING_DROPPED = "everything dropped"
    LATE_ROWS = "rows dropped as late"
    UNCOUNTED = "records that are not counted"
    LARGE_CLOCK = "a clock too large for the group"
    SHARED_GROUP = "a shared group"
    BACKLOG = "a backlog"
    UNUSED_UNIT = "a unit without effect"
    TWO_TIMESTAMPS = "two timestamps"
    IMPROBABLE_BOUND = "a bound in another unit"
    ONE_BATCH = "a run of one batch"
    SHORT_REPLAY = "a replay that ends early"
    FINAL_CTI = "a final CTI already sent"
    ENDED = "the stream has ended"
    CAUGHT_UP = "nothing holds it back"


FIXES: Final[Mapping[Kind, str]] = {
    Kind.MALFORMED: (
        "name the field that holds the time in 'startTime' ('endTime', 'edge'), and the unit of "
        "its numbers in 'timeUnit', and start with a new checkpoint; 'violationPolicy' = 'flag' "
        "shows such events"
    ),
    Kind.TOMBSTONES: (
        "nothing to fix if a deletion means nothing to the query; to read deletions as rows, take "
        "'startTime' = 'timestamp' or a header, or 'violationPolicy' = 'flag', with a new "
        "checkpoint"
    ),
    Kind.IMPROBABLE_TIMES: (
        "set 'timeUnit' to the unit of the numbers, or name another field in 'startTime', and "
        "start with a new checkpoint"
    ),
    Kind.MALFORMED_VALUES: (
        "compare 'valueFormat', 'valueFraming' and the types in .schema(...) with what the "
        "producer writes; 'columnNameOfCorruptRecord' shows such values and their reasons"
    ),
    Kind.OWN_WATERMARK: (
        "call advance_time(df) in place of withWatermark: it makes the CTIs Spark's watermark"
    ),
    Kind.NO_ADVANCE_TIME: ("call advance_time(df) before the aggregation, join or deduplication"),
    Kind.LOST_CTIS: (
        "call advance_time(df) on what the source delivers, and let filters, joins and functions "
        "follow"
    ),
    Kind.START_AT_END: (
        "to read what is there, set 'startingOffsets' to 'earliest' and start with a new checkpoint"
    ),
    Kind.SESSION_SETTING: (
        "give it Spark's default before the query is built, and start with a new checkpoint, which "
        "may keep the value that it began with"
    ),
    Kind.IDLE_PARTITION: (
        "set option 'idleTimeout', so that a partition without new records stops counting; or "
        "make sure that every partition gets records"
    ),
    Kind.SILENT_WRITER: (
        "let the writer note the time, or close it (PunctuatedProducer.close()); option "
        "'writerTimeout', on a new checkpoint, forgets writers that stay silent"
    ),
    Kind.FAR_FUTURE: (
        "correct that clock; a CTI never goes back, so start with a new checkpoint and with "
        "'maxFuture', at most as long as 'ctiDelay', so that events further ahead of their records "
        "drive no clock, or with 'writerFrom', so that each device has a clock of its own"
    ),
    Kind.FUTURE_EVENTS: (
        "correct the clocks of the devices: such events drive no clock, so they make no other late"
    ),
    Kind.BACKLOG: (
        "wait, or raise 'maxOffsetsPerTrigger' or leave it out; more partitions and cores read "
        "faster"
    ),
    Kind.NO_CTI: (
        "make sure that records arrive, from where 'startingOffsets' points, and reach "
        "'ctiFrequency' or carry 'ctiHeader'; a smaller 'ctiFrequency' needs a new checkpoint"
    ),
    Kind.LATE_IMPORT: (
        "make sure that the imported topic gets records, and that its CTIs advance: it is read "
        "from its earliest offset with the settings in 'ctiImport'; with option 'idleTimeout' a "
        "quiet partition of it stops counting"
    ),
    Kind.EVERYTHING_DROPPED: (
        "start with a new checkpoint and a larger 'ctiDelay', or with 'violationPolicy' = 'flag' "
        "to see the late rows; where events are malformed, correct 'startTime' and 'timeUnit'"
    ),
    Kind.LATE_ROWS: (
        "if there are too many, start with a new checkpoint and a larger 'ctiDelay', or with "
        "'violationPolicy' = 'flag' to keep them as rows"
    ),
    Kind.UNCOUNTED: (
        "let the query read and commit the offsets of its group; no row depends on this"
    ),
    Kind.LARGE_CLOCK: (
        "raise the broker's setting 'offset.metadata.max.bytes', or let fewer writers mark a "
        "partition; 'writerTimeout' forgets those that are gone"
    ),
    Kind.SHARED_GROUP: "give each query a 'kafka.group.id' of its own, or leave that option out",
    Kind.UNUSED_UNIT: (
        "leave 'timeUnit' out, with a new checkpoint; if the times are wrong, correct the producer"
    ),
    Kind.TWO_TIMESTAMPS: (
        "to read the field, set 'startTime' to 'field:timestamp' and start with a new checkpoint; "
        "to keep the record's, say 'record:timestamp'"
    ),
    Kind.IMPROBABLE_BOUND: "write milliseconds, and start with a new checkpoint",
    Kind.ONE_BATCH: (
        "use .trigger(availableNow=True): it reads everything in as many batches as that takes, "
        "and ends with the closing batch, which carries the last CTI"
    ),
    Kind.SHORT_REPLAY: (
        "compare 'startingCti' and 'endingCti' with the CTI that was reached; run again on this "
        "checkpoint once there are more records, or, if there will be none, set 'finalCti' to "
        "'true' to release everything"
    ),
    Kind.FINAL_CTI: (
        "start with a new checkpoint; for a job that runs again set 'finalCti' to 'false' from "
        "the beginning"
    ),
    Kind.ENDED: (
        "nothing to fix: every result is out; for a job that runs again with new records set "
        "'finalCti' to 'false' and start with a new checkpoint"
    ),
    Kind.CAUGHT_UP: (
        "nothing to fix: a result appears once the CTI has passed it, one batch later; new "
        "records move the CTI on"
    ),
}


BOUNDED_RUN_ADVICE: Final = (
    "make sure that every partition gets records; if this run is the end of the stream, set "
    "option 'finalCti' to 'true' from the beginning"
)
"""The fix of an idle partition in a bounded run, which does not wait."""

REPEATED_RUN_ADVICE: Final = (
    "run again: a run that finds it at rest for as long as option 'idleTimeout' says goes on "
    "without it; if this run is the end of the stream, set option 'finalCti' to 'true' from the "
    "beginning"
)
"""The same if quiet time counts across runs."""


WRITER_CLOCK_ADVICE: Final = (
    "let it send events, and correct its clock if that is behind; option 'writerTimeout', on a new "
    "checkpoint, forgets writers that send nothing"
)
"""The fix of a silent writer whose own events move its clock."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: what it is.
        culprit: the cause: partitions, a writer, a topic, an option.
        text: what was seen, one sentence or two.
        since_us: the wall clock since when, as far as the history reaches; None: it does not say.
        partitions: the partitions concerned.
        writers: the (partition, writer's name) concerned.
        detail: what a look at the records adds; empty: nothing.
        level: the severity; a warning is repeated when it rises.
        advice: the fix, where it is not that of the kind.
        share: the share of the events of its partitions that it is about.
        well: those of its partitions in which it is about so few events that they are well.
    """

    kind: Kind
    culprit: str
    text: str
    since_us: int | None = None
    partitions: frozenset[Partition] = frozenset()
    writers: frozenset[tuple[Partition, str]] = frozenset()
    detail: str = ""
    level: int = 0
    advice: str = ""
    share: float = 1.0
    well: frozenset[Partition] = frozenset()

    @property
    def is_partial(self) -> bool:
        """True if it is about less than half of the events, so that it holds nothing back."""
        return self.share < _MOST

    @property
    def fix(self) -> str:
        """The advice of this finding, or else of its kind."""
        return self.advice or FIXES[self.kind]

    @property
    def full_text(self) -> str:
        """The text with the detail."""
        return f"{self.text}; {self.detail}" if self.detail else self.text

    @property
    def line(self) -> str:
        """The finding in one line, as a log and a query's progress show it."""
        return compose_message(f"{self.kind}: {self.culprit}: {self.full_text}", next_step=self.fix)


def find_well(counts: Mapping[Partition, int], events: Mapping[Partition, int]) -> set[Partition]:
    """Find the partitions that have few counted events among theirs."""
    return {part for part, count in counts.items() if count < _FEW * events[part]}


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
    parts = sorted(counts, key=lambda part: (-counts[part], part))
    listed = [f"{counts[part]} of {part}" for part in parts[:_MAX_COUNTED]]
    rest = sum(counts[part] for part in parts[_MAX_COUNTED:])
    if rest:
        listed.append(f"{rest} of {len(parts) - _MAX_COUNTED} more partitions")
    return ", ".join(listed)


@dataclass(frozen=True, slots=True)
class GivenWarning:
    """A warning that was given.

    Attributes:
        finding: the finding, reduced to its texts and level.
        holds: the finding still holds.
    """

    finding: Finding
    holds: bool = True


Warnings = Mapping[Kind, GivenWarning]
"""The warnings that a stream has given, at most one of a kind, in the order of kinds."""

_OLDER_NAMES: Final = {"values of another type": Kind.MALFORMED_VALUES}
"""Names of kinds that earlier versions wrote."""


def find_no_detail(finding: Finding) -> str:
    """Return no detail: the records are not examined."""
    return ""


def update_warnings(
    before: Warnings, found: Iterable[Finding], detail: Callable[[Finding], str] = find_no_detail
) -> dict[Kind, GivenWarning]:
    """Return the warnings after an update.

    A warning has the newest text, with the counts of now. What its records showed is described anew
    if it holds again, for another culprit, or at a higher level.

    Args:
        before: the warnings so far.
        found: the current findings; the first of each kind counts. Their texts depend on the
            stream alone, not on the wall clock, so that an unchanged stream has equal offsets.
        detail: describes a finding by its records; called for findings that are new.
    """
    after = {kind: dataclasses.replace(given, holds=False) for kind, given in before.items()}
    for kind, finding in {each.kind: each for each in reversed(list(found))}.items():
        given = before.get(kind)
        level = max(finding.level, given.finding.level if given else 0)
        if given is not None and _is_same(given, finding, level):
            known = finding.detail or given.finding.detail
            after[kind] = GivenWarning(_strip(finding, known, level))
        else:
            after[kind] = GivenWarning(_strip(finding, finding.detail or detail(finding), level))
    return _sort_by_kind(after)


def find_new_warnings(before: Warnings, after: Warnings) -> list[Finding]:
    """Return the findings to log: kinds that are new in `after`, or whose level has risen."""
    return [
        given.finding
        for kind, given in after.items()
        if kind not in before or given.finding.level > before[kind].finding.level
    ]


def active_warnings(warnings: Warnings) -> list[Finding]:
    """Return the findings of the warnings that hold."""
    return [given.finding for given in warnings.values() if given.holds]


def add_details(findings: Iterable[Finding], warnings: Warnings) -> list[Finding]:
    """Add to `findings` the details and advice that their warnings were given with."""
    details = {kind: given.finding.detail for kind, given in warnings.items()}
    advice = {kind: given.finding.advice for kind, given in warnings.items() if given.holds}
    return [
        dataclasses.replace(
            finding,
            detail=finding.detail or details.get(finding.kind, ""),
            advice=advice.get(finding.kind) or finding.advice,
        )
        for finding in findings
    ]


def warnings_to_json(warnings: Warnings) -> dict[str, dict[str, Any]]:
    """Return a JSON object with sorted keys; empty values are left out."""
    return {
        str(kind): {
            name: value
            for name, value in (
                ("advice", given.finding.advice),
                ("culprit", given.finding.culprit),
                ("detail", given.finding.detail),
                ("holds", given.holds),
                ("level", given.finding.level),
                ("text", given.finding.text),
            )
            if value
        }
        for kind, given in sorted(warnings.items())
    }


def warnings_from_json(value: Mapping[str, Mapping[str, Any]]) -> dict[Kind, GivenWarning]:
    """Read what `warnings_to_json` wrote, without kinds unknown to this release."""
    known = {**_OLDER_NAMES, **{str(kind): kind for kind in Kind}}
    read = {
        known[name]: GivenWarning(
            Finding(
                known[name],
                entry.get("culprit", ""),
                entry.get("text", ""),
                detail=entry.get("detail", ""),
                level=entry.get("level", 0),
                advice=entry.get("advice", ""),
            ),
            entry.get("holds", False),
        )
        for name, entry in value.items()
        if name in known
    }
    return _sort_by_kind(read)


def _sort_by_kind(warnings: Warnings) -> dict[Kind, GivenWarning]:
    return {kind: warnings[kind] for kind in Kind if kind in warnings}


def _is_same(given: GivenWarning, finding: Finding, level: int) -> bool:
    entry = given.finding
    return given.holds and entry.level == level and entry.culprit == finding.culprit


def _strip(finding: Finding, detail: str, level: int) -> Finding:
    """Reduce a finding to what an offset keeps."""
    return Finding(
        finding.kind,
        finding.culprit,
        finding.text,
        detail=detail,
        level=level,
        advice=finding.advice,
    )
