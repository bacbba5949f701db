"""The page of `watch` as HTML: a section for each query, drawn here; the browser only inserts it.

`render_sections` returns the sections by id; `serving` sends those that have changed. Names
come from topics and records, so everything is escaped, and no section has a script or an inline
style. A time that grows older has the attribute `data-age-us`, and the page's script counts it up.

The first section shows the chain of the queries (`follow.Chain`).
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Final
from urllib.parse import quote

from pyspark_timestream.commands.explanation import (
    SHOWN_COUNTERS,
    PartitionFacts,
    describe_changes,
    describe_operator,
)
from pyspark_timestream.commands.watch.case_records import CASE_COLUMNS, CaseRecords
from pyspark_timestream.commands.watch.follow import (
    CASE_COUNTERS,
    BatchTiming,
    Case,
    Chain,
    ChainNode,
    ChainStore,
    CtiPoint,
    Hop,
    QueryView,
    StreamView,
    build_chain,
    list_remarks,
    rank_partitions,
    thin_curve,
)
from pyspark_timestream.core.instants import FINAL_US, SECOND_US, format_instant
from pyspark_timestream.kafka.diagnosis.diagnoses import HEALTHY_KINDS, Diagnosis
from pyspark_timestream.kafka.offsets.changes import ClockChange
from pyspark_timestream.report import (
    TimeScale,
    age_html,
    begin_sentence,
    draw_lane,
    format_count,
    format_time,
    shorten_duration,
    svg,
    to_html,
)
from pyspark_timestream.serving import render_html

# -- the chain -------------------------------------------------------------------------------------


def render_chain(chain: Chain) -> str:
    """Return the section of a chain: its levels side by side, or one below another on a phone."""
    trouble = _render_notes(f"{node.name}: {node.trouble}" for node in chain.nodes if node.trouble)
    levels = "".join(
        f"<li>{''.join(_render_node(node, chain.hops) for node in nodes)}</li>"
        for _, nodes in groupby(chain.nodes, attrgetter("level"))
    )
    return (
        "<header><h2>Chain</h2></header>"
        '<div class="scroll" tabindex="0" role="region" aria-label="chain" data-key="chain">'
        f'<ol class="chain">{levels}</ol></div>{trouble}'
    )


def _render_node(node: ChainNode, hops: Iterable[Hop]) -> str:
    """Return the box of a node; it says how far the node is behind each of its sources."""
    clock = "newest event" if node.kind == "topic" else "CTI"
    time = "none" if node.cti_us is None else format_time(node.cti_us)[:19]
    if node.cti_us is not None and node.cti_us >= FINAL_US:
        time = "final"
    distances = "".join(
        f'<p class="hop">{_tell_distance(hop.behind_us)} '
        f"{to_html(f'{hop.source.kind} {hop.source.name}')}</p>"
        for hop in hops
        if hop.target is node
    )
    return (
        f'<div class="{node.kind}"><small>{node.kind}, {clock}</small><b>{to_html(node.name)}</b>'
        f"<small>{time}</small>{distances}</div>"
    )


def _tell_distance(behind_us: int | None) -> str:
    if behind_us == 0:
        return "<b>level</b> with"
    return f"<b>{'?' if behind_us is None else shorten_duration(behind_us)}</b> behind"


MAX_LANES: Final = 50
"""This many partitions have a lane: those that hold back first, then those furthest behind."""

MAX_STRIP: Final = 60
_CURVE_POINTS: Final = 400
_WIDTH: Final = 1_000
_HEIGHT: Final = 150
_LANE: Final = 16
_CELL: Final = 10
_CELLS_A_ROW: Final = 100
NEEDS_SCRIPT: Final = (
    "<noscript>This page needs JavaScript to stay up to date: "
    "<code>python -m pyspark_timestream watch CHECKPOINT --text</code> does not.</noscript>"
)
_NO_CASES: Final = "nothing late, early or malformed in the last batches"

_SIGNS: Final = {
    "runs": ("runs", "ok"),
    "works": ("at work", "ok"),
    "quiet": ("quiet", "quiet"),
    "stopped": ("stopped", "stopped"),
    "unknown": ("not readable", "stopped"),
}


def render_sections(
    views: Sequence[QueryView], has_samples: bool = False, stores: Sequence[ChainStore] = ()
) -> dict[str, str]:
    """Return the HTML of the chain, if there is one, and of each query, by the section's id.

    `has_samples`: each case has a page with its records.
    """
    queries = {
        f"q{number}": _render_query(view, number if has_samples else None)
        for number, view in enumerate(views)
    }
    chain = build_chain(views, stores)
    return queries if chain is None else {"chain": render_chain(chain), **queries}


def _render_query(view: QueryView, samples_of: int | None) -> str:
    word, css_class = _SIGNS[view.status]
    age = f", last batch {age_html(view.changed_us)} ago" if view.changed_us is not None else ""
    why = f": {to_html(view.detail)}" if view.detail else ""
    head = (
        f"<header><h2>{to_html(view.name)}</h2>"
        f'<p class="status {css_class}" data-say="{to_html(view.name)}: {word}"><b>{word}</b>{why}'
        f"{age}</p></header>"
    )
    streams = "".join(
        _render_stream(stream, n, samples_of) for n, stream in enumerate(view.streams)
    )
    return (
        f"{head}{_render_notes(view.notes)}{streams}{_render_state(view)}"
        f"{_render_strip(view.triggers)}"
    )


def _render_stream(stream: StreamView, number: int, samples_of: int | None) -> str:
    explanation = stream.explanation
    topics = ", ".join(explanation.topics) or "no topic"
    return (
        f'<section class="stream"><h3>{to_html(topics)}</h3>'
        f"{_render_clock(stream)}{_render_notes(describe_changes(explanation))}"
        f"{_render_diagnoses(explanation.diagnoses, number)}"
        f"{draw_curve(stream.curve, explanation.changes)}"
        f"{_render_counts(stream, number, samples_of)}{_render_lanes(stream, number)}</section>"
    )


def _render_clock(stream: StreamView) -> str:
    explanation = stream.explanation
    if stream.is_final:
        return '<p class="clock"><b>final CTI</b>: the stream has ended</p>'
    if explanation.cti_us is None:
        return '<p class="clock"><b>no CTI yet</b></p>'
    since = f", for {age_html(explanation.since_us)}" if explanation.since_us is not None else ""
    return (
        f'<p class="clock">CTI <b>{to_html(format_time(explanation.cti_us))}</b>, '
        f"{age_html(explanation.cti_us)} behind the wall clock{since}</p>"
    )


def _render_notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{to_html(note)}</p>' for note in notes)


def _render_diagnoses(diagnoses: Sequence[Diagnosis], number: int) -> str:
    first, *others = diagnoses
    blocks = [_render_diagnosis(first, f"first{number}")]
    if others:
        others_html = "".join(
            _render_diagnosis(diagnosis, f"d{number}-{n}") for n, diagnosis in enumerate(others)
        )
        more = format_count(len(others), "more finding")
        blocks.append(
            f'<details data-key="others{number}"><summary>{more}</summary>{others_html}</details>'
        )
    return "".join(blocks)


def _render_diagnosis(diagnosis: Diagnosis, key: str) -> str:
    css_class = "fine" if diagnosis.kind in HEALTHY_KINDS else "finding"
    since = f", for {age_html(diagnosis.since_us)}" if diagnosis.since_us is not None else ""
    fix = to_html(diagnosis.fix)
    return (
        f'<div class="{css_class}"><p><b>{to_html(diagnosis.kind)}</b>: '
        f"{to_html(diagnosis.cause)}{since}. {to_html(begin_sentence(diagnosis.full_text))}.</p>"
        f'<p class="fix">Fix: <span id="{key}">{fix}</span> '
        f'<button type="button" data-copy="{key}">copy</button></p></div>'
    )


def _shorten_time(us: int | None, near_us: int | None) -> str:
    """Return an instant as HTML, without its date if `near_us` is of the same date."""
    text = format_time(us)
    if us is None or us >= FINAL_US:
        return f"<span>{to_html(text)}</span>"
    date, _, clock = text.removesuffix("Z").partition("T")
    short = clock[:12].rstrip("0").rstrip(".") if "." in clock else clock
    if near_us is None or format_time(near_us)[: len(date)] != date:
        short = f"{date} {short}"
    return f'<span title="{to_html(text)}">{to_html(short)}</span>'


# -- the curve -------------------------------------------------------------------------------------


def draw_curve(points: Sequence[CtiPoint], changes: Sequence[ClockChange]) -> str:
    """Draw the CTI over the wall clock; empty with fewer than two points.

    If the CTI is near the wall clock, a dashed line shows the wall clock, and the gap is the delay.
    An upright line shows that options changed.
    """
    curve = [
        (point.planned_us, point.cti_us)
        for point in thin_curve(points, _CURVE_POINTS)
        if point.cti_us is not None and point.cti_us < FINAL_US
    ]
    if len(curve) < 2 or curve[0][0] == curve[-1][0]:
        return ""
    first_us, last_us = curve[0][0], curve[-1][0]
    ctis = [cti for _, cti in curve]
    low, high = min(ctis), max(ctis)
    is_near = abs(last_us - high) < 10 * max(last_us - first_us, high - low, SECOND_US)
    if is_near:
        low, high = min(low, first_us), max(high, last_us)
    span_us, height = max(high - low, 1), _HEIGHT

    def to_x(planned_us: int) -> float:
        return round((planned_us - first_us) * _WIDTH / (last_us - first_us), 1)

    def to_y(cti_us: int) -> float:
        return round(height - 4 - (cti_us - low) * (height - 8) / span_us, 1)

    # The CTI keeps its value until the batch that raises it was planned.
    steps = [f"M{to_x(curve[0][0])} {to_y(curve[0][1])}"]
    steps += [f"H{to_x(planned_us)}V{to_y(cti_us)}" for planned_us, cti_us in curve[1:]]
    wall = ""
    if is_near:
        ends = {
            "x1": to_x(first_us),
            "y1": to_y(first_us),
            "x2": to_x(last_us),
            "y2": to_y(last_us),
        }
        wall = svg("line", "", svg("title", "the wall clock"), class_="wall", **ends)
    marks = [
        _mark_change(change, to_x(planned_us), height)
        for change in changes
        if (planned_us := _find_reached(curve, change.cti_us)) is not None and planned_us > first_us
    ]
    title = (
        f"CTI from {format_instant(curve[0][1])} to {format_instant(curve[-1][1])}, by the wall "
        f"clock from {format_instant(first_us)} to {format_instant(last_us)}"
    )
    picture = svg(
        "svg", "", svg("title", title), wall,
        svg("path", "", class_="cti", d="".join(steps)), *marks,
        viewBox=f"0 0 {_WIDTH} {height}", preserveAspectRatio="none", role="img", class_="curve",
    )  # fmt: skip
    dashed = "; dashed: the wall clock" if is_near else ""
    dashed += "; upright: options changed" if marks else ""
    return (
        f"<figure>{picture}<figcaption>{_shorten_time(first_us, None)}"
        f"<span>the CTI as the wall clock went on{dashed}</span>"
        f"{_shorten_time(last_us, first_us)}</figcaption></figure>"
    )


def _find_reached(curve: Sequence[tuple[int, int]], cti_us: int | None) -> int | None:
    """Return the wall clock of the first point with at least this CTI; None without one."""
    if cti_us is None:
        return None
    return next((planned_us for planned_us, reached_us in curve if reached_us >= cti_us), None)


def _mark_change(change: ClockChange, x: float, height: int) -> str:
    label = svg("title", f"changed from batch {change.number} on: {change.describe()}")
    return svg("line", "", label, class_="change", x1=x, x2=x, y1=0, y2=height)


# -- counts ----------------------------------------------------------------------------------------


def _render_counts(stream: StreamView, number: int, samples_of: int | None) -> str:
    boxes = "".join(
        f'<li class="{"some" if name != "events" and stream.counts[name] else ""}">'
        f"<b>{stream.counts[name]:,}</b> {name}</li>"
        for name in SHOWN_COUNTERS
    )
    explanation = stream.explanation
    reasons = "".join(
        f"<li>{to_html(bad.reason)}: {bad.total:,}. {to_html(bad.next_step)}.</li>"
        for bad in explanation.malformed
    )
    reasons = f"<p>Malformed values since the start:</p><ul>{reasons}</ul>" if reasons else ""
    cases = "".join(f"<li>{_describe_case(case, samples_of)}</li>" for case in stream.cases)
    where = f"<ul>{cases}</ul>" if cases else f"<p>{_NO_CASES}</p>"
    return (
        f'<ul class="counts" aria-label="counted in the last minute of batches">{boxes}</ul>'
        f'<details data-key="cases{number}"><summary>where: '
        f"{', '.join(CASE_COUNTERS)}</summary>{where}{reasons}</details>"
    )


def _describe_case(case: Case, samples_of: int | None) -> str:
    topic, last_offset = to_html(case.partition.topic), case.end - 1
    where = (
        f"{case.counted:,} {case.counter} in {topic} {case.partition.number}, offsets "
        f"{case.start} to {last_offset} (batch {case.batch})"
    )
    if samples_of is None:
        return (
            f"{where}: <code>kafka-console-consumer.sh --topic {topic} --partition "
            f"{case.partition.number} --offset {case.start} --max-messages "
            f"{case.end - case.start}</code>"
        )
    address = to_html(f"sample?query={samples_of}&case={quote(case.key, safe='')}")
    return f'{where}: <a href="{address}" target="_blank">show records</a>'


# -- lanes -----------------------------------------------------------------------------------------


def _render_lanes(stream: StreamView, number: int) -> str:
    facts = rank_partitions(stream.explanation.partitions)
    lane_facts = facts[:MAX_LANES]
    times = [
        us
        for fact in facts
        for us in (fact.cti_us, fact.last_us)
        if us is not None and us < FINAL_US
    ]
    stream_us = stream.explanation.cti_us
    has_day = stream_us is not None and stream_us < FINAL_US
    scale = TimeScale(times, 0, 100)
    low, high = scale.low, scale.high
    rows = "".join(_render_lane(stream, fact, scale) for fact in lane_facts)
    day = format_time(stream.explanation.cti_us)[:10] if has_day else "UTC"
    head = ["partition", "clock", "behind", *(["waiting"] if stream.waiting else [])]
    head.append(f"CTI <small>{day}</small>")
    rows += "".join(
        f'<tr class="missing"><th scope="row">{to_html(partition.topic)} {partition.number}</th>'
        f'<td colspan="{len(head) - 1}">missing: the broker no longer lists it</td></tr>'
        for partition in stream.missing[:MAX_LANES]
    )
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    more = ""
    if len(facts) > len(lane_facts):
        more = (
            f"<p>{len(lane_facts)} of {len(facts):,} partitions have a lane, those that hold back "
            "first. All of them, dark where the clock is behind:</p>"
            f"{_draw_cells(facts, low, high)}"
        )
    ends = (
        f"<p class='legend'>bar: CTI of the partition, circle: its newest event, line: CTI of the "
        f"stream; from {_shorten_time(low, None)} to {_shorten_time(high, low)}</p>"
        if times
        else ""
    )
    return (
        f'<div class="lanes scroll" tabindex="0" role="region" aria-label="partitions" '
        f'data-key="lanes{number}"><table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody>'
        f"</table></div>{ends}{more}"
    )


def _render_lane(stream: StreamView, fact: PartitionFacts, scale: TimeScale) -> str:
    cells = [
        _draw_lane(fact, stream.explanation.cti_us, scale),
        "" if fact.behind_us is None else shorten_duration(fact.behind_us),
        _shorten_time(fact.cti_us, stream.explanation.cti_us),
    ]
    if stream.waiting:
        waiting = stream.waiting.get(fact.partition)
        cells.insert(2, "" if waiting is None else f"{waiting:,}")
    class_attribute = ' class="idle"' if fact.idle else ""
    if fact.is_cause:
        class_attribute = ' class="cause"'
    remarks = to_html(", ".join(list_remarks(fact)))
    small = f" <small>{remarks}</small>" if remarks else ""
    return (
        f'<tr{class_attribute}><th scope="row">{to_html(fact.name)}{small}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _draw_lane(fact: PartitionFacts, stream_us: int | None, scale: TimeScale) -> str:
    lane = draw_lane(
        fact.cti_us, fact.last_us, stream_us, is_cause=fact.is_cause,
        to_x=lambda us: f"{scale.at(us)}%", ends=("0%", "100%"),
    )  # fmt: skip
    title = f"CTI {format_time(fact.cti_us)}, newest event {format_time(fact.last_us)}"
    return svg("svg", "", svg("title", title), lane, class_="lane", height=_LANE, role="img")


def _draw_cells(facts: Sequence[PartitionFacts], low: int, high: int) -> str:
    """Draw a cell for each partition, in the order of partitions.

    Formatting the times of a thousand cells is most of the work, so equal times are formatted once.
    """
    write_time, span = cache(format_time), max(high - low, 1)
    topics = {topic: to_html(topic) for topic in {fact.partition.topic for fact in facts}}
    cells = []
    for index, fact in enumerate(sorted(facts, key=lambda fact: fact.partition)):
        share = 1.0 if fact.cti_us is None else 1 - (min(fact.cti_us, high) - low) / span
        row, column = divmod(index, _CELLS_A_ROW)
        css_class = "cause" if fact.is_cause else f"b{min(int(share * 5), 4)}"
        cells.append(
            f'<rect class="{css_class}" x="{column * _CELL}" y="{row * _CELL}" width="{_CELL - 1}" '
            f'height="{_CELL - 1}"><title>{topics[fact.partition.topic]} {fact.partition.number}: '
            f"{write_time(fact.cti_us)}</title></rect>"
        )
    rows = -(-len(facts) // _CELLS_A_ROW)
    return svg(
        "svg", "", svg("title", "all partitions"), *cells, class_="cells", role="img",
        viewBox=f"0 0 {_CELL * _CELLS_A_ROW} {_CELL * rows}",
    )  # fmt: skip


# -- batches and state -----------------------------------------------------------------------------


def _render_strip(triggers: Sequence[BatchTiming]) -> str:
    batches = triggers[-MAX_STRIP:]
    if not batches:
        return ""
    lengths = [
        max(batch.finished_us - batch.planned_us, 0) if batch.finished_us is not None else 0
        for batch in batches
    ]
    longest_us = max(max(lengths), 1)
    bars = []
    for index, (batch, length) in enumerate(zip(batches, lengths, strict=True)):
        if batch.finished_us is None:
            css_class, height, outcome = "open", 40, "planned, not finished"
        else:
            css_class, height = "done", max(round(36 * length / longest_us), 2)
            outcome = f"finished after {shorten_duration(length)}"
        title = (
            f"batch {batch.number}, planned {format_instant(batch.planned_us)}: {outcome}, "
            f"{format_count(batch.records, 'offset')}"
        )
        bars.append(
            svg("rect", "", svg("title", title), class_=css_class, x=index * 10, y=44 - height,
                width=8, height=height)
        )  # fmt: skip
    newest = batches[-1]
    longest = shorten_duration(longest_us)
    label = f"batches {batches[0].number} to {newest.number}; the highest took {longest}"
    picture = svg(
        "svg", "", svg("title", label), *bars, viewBox=f"0 0 {MAX_STRIP * 10} 46", role="img",
        class_="strip", preserveAspectRatio="none",
    )  # fmt: skip
    return f"<figure>{picture}<figcaption>{to_html(label)}</figcaption></figure>"


def _render_state(view: QueryView) -> str:
    rows = "".join(f"<li>{to_html(describe_operator(operator))}</li>" for operator in view.state)
    when = "" if view.state_batch is None else f", after batch {view.state_batch:,}"
    head = f"<p>State that waits for a CTI{when}:</p>"
    return f'{head}<ul class="state">{rows}</ul>' if rows else ""


# -- the page of a sample --------------------------------------------------------------------------


def _render_records(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of records; each cell names its column, for phones, which show no head."""
    head = "".join(f'<th scope="col">{to_html(name)}</th>' for name in CASE_COLUMNS)
    body = "".join(f"<tr>{''.join(map(_render_cell, CASE_COLUMNS, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _render_cell(name: str, text: str) -> str:
    return f'<td data-name="{to_html(name)}">{to_html(text)}</td>'


def render_case(case: Case, sample: CaseRecords | str, root: str) -> str:
    """Return a page with the records of a case, or with the reason why they cannot be read."""
    partition = case.partition
    name = f"{partition.topic} {partition.number}"
    title = f"{case.counted:,} {case.counter} in {name}, batch {case.batch}"
    if isinstance(sample, str):
        body = f'<p class="finding">{to_html(sample)}</p>'
    else:
        notes = _render_notes(f"Note: {note}." for note in sample.notes)
        table = _render_records(sample.rows) if sample.rows else "<p>No record was found.</p>"
        body = f'{notes}<div class="lanes scroll" tabindex="0" role="region" aria-label="records">'
        body += f"{table}</div>"
    main = (
        f'<main class="sample"><h1>{to_html(title)}</h1>'
        f"<p>Offsets {case.start} to {case.end - 1}; possible secrets are not shown.</p>"
        f"{body}</main>"
    )
    return render_html(title, root, "watch.css", main)
