"""The report on a stream: as values, as text for a terminal, as a picture for notebooks.

The picture has one row per partition over an axis of application time: a bar up to its CTI, a dot
at its last event, and a dashed line through all rows at the stream's CTI. Causes are coloured
*and* named. It is plain SVG inside HTML, without scripts or fonts; all text is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from pyspark_timestream.core.instants import FINAL_US, format_duration, format_instant
from pyspark_timestream.diagnose.causes import MalformedReason, count_malformed_reasons, diagnose
from pyspark_timestream.diagnose.diagnosis import Diagnosis, list_counts
from pyspark_timestream.diagnose.history import (
    History,
    OperatorState,
    count_remaining,
    describe_state,
    find_unchanged_since,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import COUNTERS, PartitionState
from pyspark_timestream.rules.stream_cti import max_known


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """One writer of a partition.

    Attributes:
        name: its name; empty: the partition's marks without a writer.
        mark_us: its greatest mark; None: waited for.
        cause: a diagnosis names it.
    """

    name: str
    mark_us: int | None
    cause: bool


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition before the last batch.

    Attributes:
        partition: the partition.
        offset: the next record to read.
        lag: the number of offsets from there to the end of the log; None: unknown.
        cti_us: its CTI; None before the first.
        behind_us: how far it is behind the partition with the greatest CTI; None without a CTI.
        last_us: the time of the last well-formed event; None before the first.
        idle: it no longer counts, by `idleTimeout`.
        counters: its counters by their public names.
        writers: the live and the waited-for writers.
        cause: a diagnosis names it, for more than a few of its events.
    """

    partition: Partition
    offset: int
    lag: int | None
    cti_us: int | None
    last_us: int | None
    idle: bool
    counters: Mapping[str, int]
    writers: tuple[WriterFacts, ...]
    cause: bool
    behind_us: int | None = None


@dataclass(frozen=True, slots=True)
class StreamExplanation:
    """One stream: its state, the beginning of that state, and the reasons.

    Attributes:
        topics: its topics, in order.
        batch: the number of the stream's last batch.
        planned_us: the wall clock when that was planned; everything is as of then.
        cti_us: the stream's CTI then.
        since_us: the beginning of that CTI, as far as the history goes back.
        diagnoses: the diagnoses, most important first; never empty.
        partitions: the facts, causes first in the order of the diagnoses, then in order.
        malformed: the malformed values and keys by reason, the most frequent first.
        described: the option `timeSettings`, and the settings that the stream takes from there;
            None: it has no such option, or no progress says so.
    """

    topics: tuple[str, ...]
    batch: int
    planned_us: int
    cti_us: int | None
    since_us: int | None
    diagnoses: tuple[Diagnosis, ...]
    partitions: tuple[PartitionFacts, ...]
    malformed: tuple[MalformedReason, ...] = ()
    described: tuple[str, Mapping[str, str]] | None = None


def explain_stream(
    history: History, failed: bool = False, known: Sequence[Diagnosis] = ()
) -> StreamExplanation:
    """Report on `history`; see `diagnose` for the arguments."""
    last = history[-1]
    offset = last.offset
    diagnoses = diagnose(history, failed, known)
    left = count_remaining(history)
    ahead_us = max_known(*(share.state.cti_us for share in offset.partitions.values()))
    facts = []
    for part, share in sorted(offset.partitions.items()):
        size = share.end_exclusive - share.start_inclusive
        lag = size + left[part] if part in left else None
        cti_us = share.state.cti_us
        facts.append(
            PartitionFacts(
                part,
                share.start_inclusive,
                lag,
                share.state.cti_us,
                share.state.last_us,
                share.idle,
                share.state.counters(),
                _list_writers(part, share.state, diagnoses),
                any(part in each.partitions - each.well for each in diagnoses),
                None if ahead_us is None or cti_us is None else ahead_us - cti_us,
            )
        )
    return StreamExplanation(
        tuple(sorted({part.topic for part in offset.partitions})),
        offset.number,
        last.planned_us,
        offset.cti_us,
        find_unchanged_since(history, lambda moment: moment.offset.cti_us == offset.cti_us),
        diagnoses,
        tuple(sorted(facts, key=lambda fact: _find_rank(fact.partition, diagnoses))),
        count_malformed_reasons(last),
        next((each.described for each in reversed(history) if each.described), None),
    )


def _find_rank(part: Partition, diagnoses: tuple[Diagnosis, ...]) -> int:
    """The index of the first diagnosis that names `part`, for sorting."""
    named = (place for place, each in enumerate(diagnoses) if part in each.partitions - each.well)
    return next(named, len(diagnoses))


def _list_writers(
    part: Partition, state: PartitionState, diagnoses: tuple[Diagnosis, ...]
) -> tuple[WriterFacts, ...]:
    guilty = {pair for diagnosis in diagnoses for pair in diagnosis.writers}
    return tuple(
        WriterFacts(name, writer.mark_us, (part, name) in guilty) for name, writer in state.writers
    )


MAX_ROWS: Final = 20
"""The partitions that a table shows, causes first; the rest is counted."""

MAX_WRITERS: Final = 10
"""The writers of a partition that a table shows: causes first, then those furthest behind."""

COUNTER_COLUMNS: Final = tuple(
    name for name in COUNTERS if name not in ("ctis", "ignoredCtis", "outside")
)
"""Of events: a table has no room for all counters."""

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
_MAX_DIAGNOSES: Final = 5
"""How many a text shows unless all details are wanted: the first in full, a line of others."""


def format_stream(stream: StreamExplanation, details: bool = True) -> str:
    """One stream's explanation, lines of a terminal; topic and writer names are made printable.

    Without `details` the diagnoses after the first have a line each, and only five are shown.
    """
    lines = [*describe_stream(stream), ""]
    for place, diagnosis in enumerate(
        stream.diagnoses if details else stream.diagnoses[:_MAX_DIAGNOSES]
    ):
        lines += _format_finding(diagnosis) if details or not place else [_format_head(diagnosis)]
    if not details and len(stream.diagnoses) > 1:
        more = len(stream.diagnoses) - _MAX_DIAGNOSES
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
        "*" if fact.cause else "",
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
                "*" if writer.cause else "",
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
    return not writer.cause, writer.mark_us is not None, writer.mark_us or 0


def describe_malformed(found: MalformedReason) -> list[str]:
    """The lines of one reason why values and keys are malformed: counts, and the next step."""
    return [
        f"Malformed values, reason '{found.reason}': {found.total} "
        f"({list_counts(found.partitions)})",
        f"   Next step: {found.next_step}.",
    ]


def format_time(us: int | None) -> str:
    """An instant for people."""
    if us is None:
        return "none"
    return f"{format_instant(us)} (final)" if us >= FINAL_US else format_instant(us)


def _format_finding(diagnosis: Diagnosis) -> list[str]:
    return [
        _format_head(diagnosis),
        f"   {diagnosis.full_text}.",
        f"   Fix: {diagnosis.fix}.",
        "",
    ]


def _format_head(diagnosis: Diagnosis) -> str:
    since = f" (since {format_time(diagnosis.since_us)})" if diagnosis.since_us is not None else ""
    return f"=> {diagnosis.kind}: {diagnosis.cause}{since}"


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def escape_controls(line: str) -> str:
    """Escape control characters: names come from the broker and the records."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)


_LABEL_WIDTH: Final = 190
_PLOT_WIDTH: Final = 470
_ROW_HEIGHT: Final = 22
_TOP_MARGIN: Final = 26
_CULPRIT_COLOUR: Final = "#d33"
_CTI_COLOUR: Final = "#4a86c5"


def render_stream(stream: StreamExplanation) -> str:
    """One stream's explanation as an HTML fragment."""
    head = _render_lines(describe_stream(stream))
    diagnoses = "".join(_render_finding(diagnosis) for diagnosis in stream.diagnoses)
    shown = stream.partitions[:MAX_ROWS]
    rows = "".join(_render_row(row) for fact in shown for row in make_rows(fact))
    columns = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    hidden = len(stream.partitions) - len(shown)
    more = f"<p>... and {hidden} more partitions</p>" if hidden else ""
    malformed = "".join(_render_lines(describe_malformed(each)) for each in stream.malformed)
    return (
        f"<div>{head}{diagnoses}{draw_stream(stream)}"
        f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>{more}{malformed}"
        "</div>"
    )


def draw_stream(stream: StreamExplanation) -> str:
    """Draw the picture alone; empty if no partition has a time yet."""
    shown = stream.partitions[:MAX_ROWS]
    times = [us for fact in shown for us in (fact.cti_us, fact.last_us) if us is not None]
    if not times:
        return ""
    axis = _Axis(min(times), max(times))
    height = _TOP_MARGIN + _ROW_HEIGHT * len(shown) + 24
    lines = "".join(_draw_partition(axis, fact, place) for place, fact in enumerate(shown))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'width="{_LABEL_WIDTH + _PLOT_WIDTH + 110}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="currentColor">'
        "<title>event time against CTI of each partition</title>"
        f'<text x="{_LABEL_WIDTH}" y="14">bar: CTI &#160; dot: last event &#160; '
        "dashed: the stream's CTI</text>"
        f"{lines}{_draw_stream_cti(axis, stream.cti_us, height)}{axis.ends(height)}</svg>"
    )


class _Axis:
    """Application time to pixels: the earliest instant a little inside, the latest at the end."""

    def __init__(self, first_us: int, last_us: int) -> None:
        self._first_us, self._last_us = first_us, last_us

    def at(self, us: int) -> float:
        """The x of an instant."""
        span = self._last_us - self._first_us
        share = (us - self._first_us) / span if span else 1.0
        return round(_LABEL_WIDTH + _PLOT_WIDTH * (0.05 + 0.95 * min(max(share, 0.0), 1.0)), 1)

    def ends(self, height: int) -> str:
        """The labels of the axis."""
        last = f'<text x="{_LABEL_WIDTH + _PLOT_WIDTH}" y="{height - 6}" text-anchor="end">'
        return (
            f'<text x="{_LABEL_WIDTH}" y="{height - 6}">'
            f"{escape(format_time(self._first_us))}</text>"
            f"{last}{escape(format_time(self._last_us))}</text>"
        )


def _draw_partition(axis: _Axis, fact: PartitionFacts, place: int) -> str:
    top = _TOP_MARGIN + _ROW_HEIGHT * place
    colour = _CULPRIT_COLOUR if fact.cause else _CTI_COLOUR
    name = f"{fact.partition.topic} {fact.partition.number}"
    short = name if len(name) <= 26 else f"…{name[-25:]}"
    parts = [f'<text x="4" y="{top + 14}">{escape(short)}</text>']
    if fact.cti_us is not None:
        width = round(axis.at(fact.cti_us) - _LABEL_WIDTH, 1)
        parts.append(
            f'<rect x="{_LABEL_WIDTH}" y="{top + 5}" width="{width}" height="10" fill="{colour}">'
            f"<title>CTI {escape(format_time(fact.cti_us))}</title></rect>"
        )
    if fact.last_us is not None:
        parts.append(
            f'<circle cx="{axis.at(fact.last_us)}" cy="{top + 10}" r="4" fill="none" '
            f'stroke="currentColor" stroke-width="2"><title>last event '
            f"{escape(format_time(fact.last_us))}</title></circle>"
        )
    note = " ".join(
        word
        for word in (
            "cause" if fact.cause else "",
            "idle" if fact.idle else "",
            "no CTI" if fact.cti_us is None else "",
        )
        if word
    )
    if note:
        fill = f' fill="{_CULPRIT_COLOUR}"' if fact.cause else ""
        parts.append(
            f'<text x="{_LABEL_WIDTH + _PLOT_WIDTH + 8}" y="{top + 14}"{fill}>{note}</text>'
        )
    return "".join(parts)


def _draw_stream_cti(axis: _Axis, cti_us: int | None, height: int) -> str:
    if cti_us is None:
        return ""
    x = axis.at(cti_us)
    return (
        f'<line x1="{x}" x2="{x}" y1="{_TOP_MARGIN}" y2="{height - 22}" stroke="currentColor" '
        'stroke-dasharray="4 3"><title>the stream\'s CTI</title></line>'
    )


def _render_finding(diagnosis: Diagnosis) -> str:
    since = f" (since {format_time(diagnosis.since_us)})" if diagnosis.since_us is not None else ""
    return (
        f"<p><b>{escape(diagnosis.kind)}: {escape(diagnosis.cause)}</b>{escape(since)}<br/>"
        f"{escape(diagnosis.full_text)}.<br/>Fix: {escape(diagnosis.fix)}.</p>"
    )


def _render_lines(lines: Sequence[str]) -> str:
    return "<p>" + "<br/>".join(escape(line.strip()) for line in lines) + "</p>"


def _render_row(row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The state of the streams of a query, what holds their CTIs back, and the fixes.

    Attributes:
        subject: the explained query or checkpoint, in words.
        streams: one explanation per Kafka stream of this package, in the order of the sources.
        notes: further remarks, one sentence each.
        state: the state that waits for later CTIs, by operator.
        details: the text has all diagnoses in full; else the first one, and a line of four others.
    """

    subject: str
    streams: tuple[StreamExplanation, ...]
    notes: tuple[str, ...] = ()
    state: tuple[OperatorState, ...] = ()
    details: bool = False

    def __str__(self) -> str:
        head = "\n".join((self.subject, *(f"Note: {note}." for note in self.notes)))
        state = "\n".join(map(escape_controls, describe_state(self.state)))
        streams = (format_stream(stream, self.details) for stream in self.streams)
        parts = (head, *streams, *([state] if state else []))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The HTML for a notebook."""
        notes = "".join(f"<p>Note: {escape(note)}.</p>" for note in self.notes)
        streams = "".join(map(render_stream, self.streams))
        state = "".join(f"<p>{escape(line)}</p>" for line in describe_state(self.state))
        return f"<div><p><b>{escape(self.subject)}</b></p>{notes}{streams}{state}</div>"
