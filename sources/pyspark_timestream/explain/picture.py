"""An explanation as HTML for notebooks: a picture of event times and CTIs, then the table.

The picture has one row per partition over an axis of application time: a bar up to its CTI, a dot
at its last event, and a dashed line through all rows at the stream's CTI. Culprits are coloured
*and* named. It is plain SVG inside HTML, without scripts or fonts; all text is escaped.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

from pyspark_timestream.explain.report import PartitionFacts, StreamExplanation
from pyspark_timestream.explain.text import (
    COLUMNS,
    MAX_ROWS,
    describe_malformed,
    describe_stream,
    format_time,
    make_rows,
)
from pyspark_timestream.kafka.plan.findings import Finding

__all__ = ["draw_stream", "render_stream"]

_LABEL_WIDTH: Final = 190
_PLOT_WIDTH: Final = 470
_ROW_HEIGHT: Final = 22
_TOP_MARGIN: Final = 26
_CULPRIT_COLOUR: Final = "#d33"
_CTI_COLOUR: Final = "#4a86c5"


def render_stream(stream: StreamExplanation) -> str:
    """One stream's explanation as an HTML fragment."""
    head = _render_lines(describe_stream(stream))
    findings = "".join(_render_finding(finding) for finding in stream.findings)
    shown = stream.partitions[:MAX_ROWS]
    rows = "".join(_render_row(row) for fact in shown for row in make_rows(fact))
    columns = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    hidden = len(stream.partitions) - len(shown)
    more = f"<p>... and {hidden} more partitions</p>" if hidden else ""
    malformed = "".join(_render_lines(describe_malformed(each)) for each in stream.malformed)
    return (
        f"<div>{head}{findings}{draw_stream(stream)}"
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
    colour = _CULPRIT_COLOUR if fact.culprit else _CTI_COLOUR
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
            "culprit" if fact.culprit else "",
            "idle" if fact.idle else "",
            "no CTI" if fact.cti_us is None else "",
        )
        if word
    )
    if note:
        fill = f' fill="{_CULPRIT_COLOUR}"' if fact.culprit else ""
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


def _render_finding(finding: Finding) -> str:
    since = f" (since {format_time(finding.since_us)})" if finding.since_us is not None else ""
    return (
        f"<p><b>{escape(finding.kind)}: {escape(finding.culprit)}</b>{escape(since)}<br/>"
        f"{escape(finding.full_text)}.<br/>Fix: {escape(finding.fix)}.</p>"
    )


def _render_lines(lines: Sequence[str]) -> str:
    return "<p>" + "<br/>".join(escape(line.strip()) for line in lines) + "</p>"


def _render_row(row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
