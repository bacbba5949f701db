"""An explanation as text for a terminal: first the findings, then a table of partitions."""

from collections.abc import Sequence
from typing import Final

from pyspark_timestream.connector.instants import FINAL_US, format_duration, format_instant
from pyspark_timestream.explain.report import PartitionFacts, StreamExplanation, WriterFacts
from pyspark_timestream.explain.row_losses import MalformedReason
from pyspark_timestream.kafka.plan.findings import Finding, list_counts

__all__ = [
    "COLUMNS",
    "MAX_ROWS",
    "describe_malformed",
    "describe_stream",
    "escape_controls",
    "format_stream",
    "format_time",
    "make_rows",
]

MAX_ROWS: Final = 20
"""The partitions that a table shows, culprits first; the rest is counted."""

MAX_WRITERS: Final = 10
"""The writers of a partition that a table shows: culprits first, then those furthest behind."""

COUNTER_COLUMNS: Final = (
    "events",
    "dropped",
    "adjusted",
    "flagged",
    "malformed",
    "tombstones",
    "future",
)
COLUMNS: Final = (
    "",
    "partition",
    "offset",
    "lag",
    "CTI",
    "behind",
    "last event",
    "idle",
    *COUNTER_COLUMNS,
)
_MAX_FINDINGS: Final = 5
"""Findings that a text shows unless all details are wanted: the first in full, a line of others."""


def format_stream(stream: StreamExplanation, details: bool = True) -> str:
    """One stream's explanation, lines of a terminal; topic and writer names are made printable.

    Without `details` the findings after the first have a line each, and only five are shown.
    """
    lines = [*describe_stream(stream), ""]
    for place, finding in enumerate(
        stream.findings if details else stream.findings[:_MAX_FINDINGS]
    ):
        lines += _format_finding(finding) if details or not place else [_format_head(finding)]
    if not details and len(stream.findings) > 1:
        more = len(stream.findings) - _MAX_FINDINGS
        lines += [f"... and {more} more"] if more > 0 else []
        lines += ["(texts and fixes of all: details=True, or --details)", ""]
    rows = [row for fact in stream.partitions[:MAX_ROWS] for row in make_rows(fact)]
    lines += _format_table([COLUMNS, *rows])
    if len(stream.partitions) > MAX_ROWS:
        lines.append(f"... and {len(stream.partitions) - MAX_ROWS} more partitions")
    for each in stream.malformed:
        lines += ["", *describe_malformed(each)]
    return "\n".join(escape_controls(line).rstrip() for line in lines)


def describe_stream(stream: StreamExplanation) -> list[str]:
    """The head of a stream's text: topics, last batch, CTI and since when, described settings."""
    topics = ", ".join(f"'{topic}'" for topic in stream.topics) or "no topic"
    since = f", since {format_time(stream.since_us)}" if stream.since_us is not None else ""
    lines = [
        f"Stream of {topics}, before batch {stream.batch} of {format_time(stream.planned_us)}",
        f"CTI: {format_time(stream.cti_us)}{since}",
    ]
    if stream.described is not None:
        place, taken = stream.described
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in taken.items())
        lines.append(f"From 'timeSettings' = '{place}': {listed or 'nothing'}")
    return lines


def make_rows(fact: PartitionFacts) -> list[tuple[str, ...]]:
    """The table's rows of one partition: itself, then its writers."""
    own = (
        "*" if fact.culprit else "",
        f"{fact.partition.topic} {fact.partition.number}",
        str(fact.offset),
        "?" if fact.lag is None else str(fact.lag),
        format_time(fact.cti_us),
        _format_distance(fact.behind_us),
        format_time(fact.last_us),
        "yes" if fact.idle else "no",
        *(str(fact.counters[name]) for name in COUNTER_COLUMNS),
    )
    blank = ("",) * (len(COLUMNS) - 5)
    shown = sorted(fact.writers, key=_rank_writer)[:MAX_WRITERS]
    more = len(fact.writers) - len(shown)
    rest = [("", f"  ... and {more} more writers", "", "", "", *blank)] if more else []
    return (
        [own]
        + [
            (
                "*" if writer.culprit else "",
                f"  writer {writer.name!r}" if writer.name else "  marks without a writer",
                "",
                "",
                format_time(writer.mark_us),
                *blank,
            )
            for writer in (shown if more else fact.writers)
        ]
        + rest
    )


def _format_distance(us: int | None) -> str:
    if us is None:
        return ""
    return format_duration(us) if us else "0"


def _rank_writer(writer: WriterFacts) -> tuple[bool, bool, int]:
    return not writer.culprit, writer.mark_us is not None, writer.mark_us or 0


def describe_malformed(found: MalformedReason) -> list[str]:
    """The lines of one reason why values and keys are malformed: counts, and the next step."""
    reason = f"'{found.reason}'" if found.reason else "not noted by an earlier version"
    return [
        f"Malformed values, reason {reason}: {found.total} ({list_counts(found.partitions)})",
        f"   Next step: {found.next_step}.",
    ]


def format_time(us: int | None) -> str:
    """An instant for people."""
    if us is None:
        return "none"
    return f"{format_instant(us)} (final)" if us >= FINAL_US else format_instant(us)


def _format_finding(finding: Finding) -> list[str]:
    return [
        _format_head(finding),
        f"   {finding.full_text}.",
        f"   Fix: {finding.fix}.",
        "",
    ]


def _format_head(finding: Finding) -> str:
    since = f" (since {format_time(finding.since_us)})" if finding.since_us is not None else ""
    return f"=> {finding.kind}: {finding.culprit}{since}"


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def escape_controls(line: str) -> str:
    """Escape control characters: names come from the broker and the records."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
