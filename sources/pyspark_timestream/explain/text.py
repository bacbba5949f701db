"""An explanation as text for a terminal: what was found first, then a table of partitions."""

from collections.abc import Sequence
from typing import Final

from pyspark_timestream.connector.instants import FINAL_US, format_instant
from pyspark_timestream.explain.report import PartitionFacts, StreamExplanation
from pyspark_timestream.kafka.plan.findings import Finding

__all__ = ["COLUMNS", "MOST_ROWS", "cells", "described", "instant", "stream_text"]

MOST_ROWS: Final = 20
"""A table shows so many partitions, culprits first, and says how many more there are."""

COUNTED: Final = ("events", "dropped", "adjusted", "flagged", "malformed")
COLUMNS: Final = ("", "partition", "offset", "lag", "CTI", "last event", "idle", *COUNTED)


def stream_text(stream: StreamExplanation) -> str:
    """One stream's explanation, lines of a terminal; topic and writer names are made printable."""
    lines = [*described(stream), ""]
    for finding in stream.findings:
        lines += _finding(finding)
    rows = [row for fact in stream.partitions[:MOST_ROWS] for row in cells(fact)]
    lines += _table([COLUMNS, *rows])
    if len(stream.partitions) > MOST_ROWS:
        lines.append(f"... and {len(stream.partitions) - MOST_ROWS} more partitions")
    return "\n".join(_printable(line).rstrip() for line in lines)


def described(stream: StreamExplanation) -> list[str]:
    """The stream's head: its topics, its last batch, its CTI and since when."""
    topics = ", ".join(f"'{topic}'" for topic in stream.topics) or "no topic"
    since = f", since {instant(stream.since_us)}" if stream.since_us is not None else ""
    return [
        f"Stream of {topics}, before batch {stream.batch} of {instant(stream.planned_us)}",
        f"CTI: {instant(stream.cti_us)}{since}",
    ]


def cells(fact: PartitionFacts) -> list[tuple[str, ...]]:
    """The table's rows of one partition: itself, then its writers."""
    own = (
        "*" if fact.culprit else "",
        f"{fact.partition.topic} {fact.partition.number}",
        str(fact.offset),
        "?" if fact.lag is None else str(fact.lag),
        instant(fact.cti_us),
        instant(fact.last_us),
        "yes" if fact.idle else "no",
        *(str(fact.counters[name]) for name in COUNTED),
    )
    blank = ("",) * (len(COLUMNS) - 5)
    return [own] + [
        (
            "*" if writer.culprit else "",
            f"  writer {writer.name!r}" if writer.name else "  marks without a writer",
            "",
            "",
            instant(writer.mark_us),
            *blank,
        )
        for writer in fact.writers
    ]


def instant(us: int | None) -> str:
    """An instant as a person reads it."""
    if us is None:
        return "none"
    return f"{format_instant(us)} (final)" if us >= FINAL_US else format_instant(us)


def _finding(finding: Finding) -> list[str]:
    since = f" (since {instant(finding.since_us)})" if finding.since_us is not None else ""
    return [
        f"=> {finding.kind}: {finding.culprit}{since}",
        f"   {finding.whole_text}.",
        f"   Fix: {finding.fix}.",
        "",
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _printable(line: str) -> str:
    """Names come from the broker and the records: no control character reaches a terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
