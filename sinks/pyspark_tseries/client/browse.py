"""The command `browse`: a page of a store on this machine, or its facts as JSON.

Names, authors and values may be any text, so the page escapes everything, and no section has a
script or an inline style. Only links and fields can be clicked.
"""

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event, Lock
from typing import Any, Final

import pyarrow as pa

from pyspark_timestream.core.instants import MINUTE_US, SECOND_US, format_instant, parse_instant
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.report import (
    age_html,
    cut_text,
    format_count,
    shorten_duration,
    svg,
    to_html,
)
from pyspark_timestream.serving import (
    ONLY_PAGE,
    PageServer,
    Response,
    address_arguments,
    announce,
    answer_file,
    answer_sections,
    digest,
    read_seen,
    render_shell,
)
from pyspark_tseries.chart.svg import draw_svg
from pyspark_tseries.client.results import ZONE_ARGUMENT, find_zone, format_briefly, format_cell
from pyspark_tseries.client.viewer import (
    ALL,
    COUNTS,
    MAX_NAME,
    PAGE_ROWS,
    Cells,
    PageRequest,
    SeriesList,
    SeriesView,
    StoreFacts,
    StoreViewer,
    parse_width,
    read_row,
)
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.background import MaintenancePlan
from pyspark_tseries.maintain.compactor import MIN_GROUPS_TO_MERGE
from pyspark_tseries.model.columns import label_column
from pyspark_tseries.options import author_or_user
from pyspark_tseries.read.view import View
from pyspark_tseries.storage.location import Location

_LOG: Final = logging.getLogger(__name__)

_MAX_CELL: Final = 120
_LONG: Final = 30
"""A cell of more letters may have several lines."""

_BAR: Final = 10


def render_search(request: PageRequest) -> str:
    """Return the form that searches for series."""
    return (
        '<form role="search" method="get"><label for="q">Series</label> '
        f'<input id="q" name="q" type="search" value="{to_html(request.search)}" '
        'autocomplete="off" placeholder="part of a name, or a pattern such as room/*" '
        'spellcheck="false"></form>'
    )


def render_trouble(problem: str) -> str:
    """Return the section that says why the store cannot be read."""
    return (
        '<header><h2>Store</h2><p class="status stopped" data-say="not readable"><b>not readable'
        f"</b>: {to_html(problem)}</p></header><p>What else is on this page is as of earlier.</p>"
    )


def _head(html: str) -> str:
    """Return the heading of a section; links lead to it."""
    return f'<h2 tabindex="-1" data-key="head">{html}</h2>'


# -- the store -------------------------------------------------------------------------------------


def render_facts(facts: StoreFacts) -> str:
    """Return the section of the store as a whole."""
    description = facts.described
    last_commit = "no commit yet"
    if description["last_commit"] is not None:
        commit_us = parse_instant(description["last_commit_time"])
        last_commit = f"commit {description['last_commit']:,}, {age_html(commit_us)} ago"
    retained = to_html(description["retained_range"])
    if description["retained_default"]:
        retained += " (nobody chose it)"
    boxes = {
        "series": f"{description['series']:,}",
        "events ever": f"{description['events']:,}",
        "stored": f"{description['stored_events']:,}",
        "files": f"{description['files']:,}",
        "": format_bytes(description["bytes"]),
    }
    for name, label in (("dropped", "dropped"), ("adjusted", "adjusted"), ("future", "too early"),
                       ("erasures", "erasures")):  # fmt: skip
        if description[name]:
            boxes[label] = f"{description[name]:,}"
    counts = "".join(f"<li><b>{number}</b> {name}</li>" for name, number in boxes.items())
    cti = f", CTI {to_html(description['cti'])}" if description["cti"] else ""
    columns = ", ".join(
        f"{name} {type_text}" for name, type_text in description["value_columns"].items()
    )
    return (
        '<header><h2>Store</h2><p class="status ok" data-say="readable"><b>readable</b>: '
        f"{last_commit}{cti}</p></header>"
        f'<ul class="counts" aria-label="what the store has">{counts}</ul>'
        f"<p>Keeps <b>{retained}</b>. Columns: {to_html(_cut_cell(columns))}</p>"
        f"{draw_commits(facts.commits)}{_render_plan(facts.plan, description)}"
    )


def format_bytes(size: int) -> str:
    """Return a size for people.

    >>> format_bytes(999), format_bytes(25_257), format_bytes(7_000_000_000)
    ('999 bytes', '25.3 kB', '7 GB')
    """
    if size < 1_000:
        return f"{size} bytes"
    for unit in ("kB", "MB", "GB"):
        if (number := size / 1_000) < 1_000:
            return f"{number:.3g} {unit}"
        size = int(number)
    return f"{size / 1_000:,.3g} TB"


def draw_commits(commits: Sequence[tuple[int, int]]) -> str:
    """Draw how many commits each minute had."""
    if not commits:
        return ""
    max_count = max(count for _, count in commits)
    bars = [
        svg("rect", "", svg("title", f"{format_instant(minute * MINUTE_US)}: {count:,}"),
            class_="done", x=i * _BAR, y=44 - height, width=_BAR - 2, height=height)
        for i, (minute, count) in enumerate(commits)
        if (height := -(-40 * count // max(max_count, 1)))
    ]  # fmt: skip
    total = sum(count for _, count in commits)
    label = (
        f"{format_count(total, 'commit')} in the last {format_count(len(commits), 'minute')}, "
        f"{total / len(commits):.3g} a minute, {max_count:,} at most"
    )
    width = _BAR * max(len(commits), 30)
    picture = svg("svg", "", svg("title", label), *bars, viewBox=f"0 0 {width} 46", role="img",
        class_="strip", preserveAspectRatio="none")  # fmt: skip
    return f"<figure>{picture}<figcaption>{to_html(label)}</figcaption></figure>"


def _render_plan(plan: MaintenancePlan | None, description: Mapping[str, Any]) -> str:
    sentences = []
    if plan is None:
        sentences.append("what it would do now cannot be told")
    else:
        if plan.merged_files:
            merged = format_count(plan.merged_files, "file")
            sentences.append(f"would merge {merged} of {format_bytes(plan.merged_bytes)}")
        else:
            sentences.append(
                f"has nothing to merge: {plan.single_commits:,} of {MIN_GROUPS_TO_MERGE} commits "
                "with files of their own"
            )
        if plan.removed_files:
            removed = format_count(plan.removed_files, "file")
            sentences.append(f"would remove {removed} that nothing refers to any more")
        sentences.append(f"writers with autoCompact start it after commit {plan.next_commit:,}")
    if description["erasure_files"]:
        erased = format_count(len(description["erasure_files"]), "file")
        sentences.append(f"{erased} still with erased values, until ten minutes after the act")
    text = to_html("; ".join(sentences))
    failed = description["maintenance_error"]
    error = (
        f'<p class="finding">The last maintenance failed: {to_html(failed)}</p>' if failed else ""
    )
    return f"<p>Maintenance {text}.</p>{error}"


# -- series ----------------------------------------------------------------------------------------


def render_list(listed: SeriesList, request: PageRequest, zone: str | None) -> str:
    """Return the section of the series that were found."""
    rows = "".join(
        _render_series(read_row(listed.rows, row), row, request, zone)
        for row in range(len(listed.rows))
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("series", "events", "newest"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    pages = []
    end = listed.start + len(listed.rows)
    if listed.start:
        back = request.link(start=max(listed.start - PAGE_ROWS, 0))
        pages.append(_link(back, "previous", "previous", show="series"))
    if end < listed.found:
        pages.append(_link(request.link(start=end), "next", "next", show="series"))
    where = f"{listed.start + 1:,} to {end:,} of {listed.found:,}"
    if listed.found < listed.known:
        where += f" that fit, of {listed.known:,}"
    if not rows:
        where = f"none of {listed.known:,} fits" if listed.known else "no series has events yet"
    return (
        f'{_head("Series")}<p class="note" data-say="{where}">{where}</p>{table}'
        f'<p class="pages">{" ".join(pages)}</p>'
    )


def _render_series(row: Cells, i: int, request: PageRequest, zone: str | None) -> str:
    name = row["series"].as_py()
    label = to_html(_cut_cell(name)) or "<i>(no name)</i>"
    if len(name) <= MAX_NAME:
        address = request.link(series=name, event=None, column="")
        is_chosen = name == request.series
        label = _link(address, label, f"series{i}", show="drawn", is_on=is_chosen)
    edits = row["edits"].as_py()
    more = f" <small>{format_count(edits, 'edit')}</small>" if edits else ""
    events = "?" if row["events"].as_py() is None else f"{row['events'].as_py():,}"
    newest = to_html(format_cell(_whole_second(row["newest"]), zone)) or "none"
    return f'<tr><th scope="row">{label}</th><td>{events}{more}</td><td>{newest}</td></tr>'


def _whole_second(time: pa.Scalar) -> pa.Scalar:
    return pa.scalar(time.value // SECOND_US * SECOND_US, time.type) if time.is_valid else time


def _link(address: str, html: str, key: str, *, show: str = "", is_on: bool = False) -> str:
    """Return a link within the page; `show` is the section that it leads to."""
    more = f' data-show="{show}"' if show else ""
    more += ' aria-current="true"' if is_on else ""
    return f'<a href="{to_html(address)}" data-key="{key}"{more}>{html}</a>'


# -- one series ------------------------------------------------------------------------------------


def render_drawn(
    drawn: SeriesView, request: PageRequest, values: Sequence[pa.Field], zone: str | None
) -> str:
    """Return the section of one series: its picture, edits and newest events."""
    name = str(request.series)
    head = _head(to_html(_cut_cell(name)) or "<i>(no name)</i>")
    if drawn.known is None:
        return f"{head}<p>It has no events.</p>"
    facts = [f"{format_count(drawn.known['events'].as_py() or 0, 'event')} ever"]
    facts += [format_count(drawn.known["edits"].as_py() or 0, "edit")]
    oldest = format_cell(drawn.known["first"], zone)
    if oldest:
        newest = format_cell(drawn.known["newest"], zone) or "none"
        facts.append(f"from {oldest} to {newest}, {zone or 'UTC'}")

    def link(sequence: int) -> str:
        return request.link(event=sequence)

    if drawn.chart is None:
        picture = f'<p class="finding">{to_html(drawn.why)}</p>'
    else:
        chart = drawn.chart
        picture = draw_svg(chart.figure, chart.width, chart.height, None, link)
    return (
        f'{head}<p class="note">{to_html("; ".join(facts))}</p>{_render_choices(drawn, request)}'
        f'<div class="chart" data-room="">{picture}</div>'
        f"{_render_edits(drawn, link, values, zone)}{_render_events(drawn, link, values, zone)}"
    )


def _render_choices(drawn: SeriesView, request: PageRequest) -> str:
    """Return the links to other numbers of events and other columns."""
    ranges = [
        _link(request.link(last=str(count)), f"last {count:,}", f"last{count}",
            is_on=request.last == str(count))
        for count in COUNTS
    ]  # fmt: skip
    ranges.append(_link(request.link(last=ALL), "all", "all", is_on=request.last == ALL))
    choices = f'<p class="chips">Events: {" ".join(ranges)}</p>'
    if len(drawn.columns) > 1:
        columns = [_link(request.link(column=""), "first four", "column", is_on=not request.column)]
        columns += [
            _link(request.link(column=column), to_html(_cut_cell(column)), f"column{number}",
                is_on=request.column == column)
            for number, column in enumerate(drawn.columns)
        ]  # fmt: skip
        choices += f'<p class="chips">Columns: {" ".join(columns)}</p>'
    if drawn.bucket_us is not None:
        width = shorten_duration(drawn.bucket_us)
        choices += (
            f'<p class="note">Buckets of {width}: the mean of numbers, and the area from the '
            "lowest to the highest; the last of others. Edits count, and have no marks.</p>"
        )
    return choices


def _render_edits(
    drawn: SeriesView, link: Callable[[int], str], values: Sequence[pa.Field], zone: str | None
) -> str:
    if not drawn.edits:
        return ""
    rows = []
    for i, (edit, replaced) in enumerate(drawn.edits):
        original = edit["original_sequence"].as_py()
        audit = _link(link(original), f"{original:,}", f"edit{i}", show="event")
        rows.append(
            [
                audit,
                to_html(_describe_change(edit, replaced, values, zone)),
                to_html(_cut_cell(format_cell(edit["author"], zone))),
                to_html(format_cell(edit["edit_timestamp"], zone)),
                to_html(format_cell(edit["original_timestamp"], zone)),
            ]
        )
    head = ("event", "what", "who", "when", "time of the event")
    more = f"; and {drawn.more_edits:,} earlier ones" if drawn.more_edits else ""
    return f"<h3>Edits, newest first{more}</h3>{_scrolling_table(head, rows, 'edits')}"


def _describe_change(
    edit: Cells, replaced: Cells | None, values: Sequence[pa.Field], zone: str | None
) -> str:
    changes = []
    for field in values:
        new = edit[field.name]
        if replaced is None:
            changes.append(f"{field.name} {_show_cell(new, zone)}")
        elif _format_exactly(new, zone) != _format_exactly(old := replaced[field.name], zone):
            texts = _show_cell(old, zone), _show_cell(new, zone)
            if texts[0] == texts[1]:  # They differ in digits that are not shown elsewhere.
                texts = _cut_cell(_format_exactly(old, zone)), _cut_cell(_format_exactly(new, zone))
            changes.append(f"{field.name} {texts[0]} \N{RIGHTWARDS ARROW} {texts[1]}")
    return ", ".join(changes) or "the same values"


def _format_exactly(cell: pa.Scalar, zone: str | None) -> str:
    return format_cell(cell, zone) if cell.is_valid else "\N{EN DASH}"


def _render_events(
    drawn: SeriesView, link: Callable[[int], str], values: Sequence[pa.Field], zone: str | None
) -> str:
    if not len(drawn.events):
        return "<p>No event is in the retained range.</p>"
    rows = []
    for row in reversed(range(len(drawn.events))):
        cells = read_row(drawn.events, row)
        original = cells["original_sequence"].as_py()
        sequence = cells["sequence"].as_py() if original is None else original
        mark = "" if original is None else " edited"
        rows.append(
            [
                _link(link(sequence), f"{sequence:,}", f"event{sequence}", show="event") + mark,
                to_html(format_cell(cells["timestamp"], zone)),
                *(to_html(_show_cell(cells[field.name], zone)) for field in values),
                to_html(_cut_cell(format_cell(cells["author"], zone))),
            ]
        )
    head = ("event", "time", *map(label_column, values), "author")
    return f"<h3>Newest events</h3>{_scrolling_table(head, rows, 'events')}"


def _scrolling_table(head: Sequence[str], rows: Sequence[Sequence[str]], key: str) -> str:
    """Return a table that scrolls if it is too wide; its cells are HTML."""
    columns = "".join(f'<th scope="col">{to_html(_cut_cell(name))}</th>' for name in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{key}" data-key="{key}">'
        f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(html: str) -> str:
    is_long = len(html) > _LONG and not html.startswith("<a")
    return f'<td class="long">{html}</td>' if is_long else f"<td>{html}</td>"


# -- one event -------------------------------------------------------------------------------------


def render_event(
    versions: pa.Table, request: PageRequest, values: Sequence[pa.Field], zone: str | None
) -> str:
    """Return the section of an event: who wrote and edited it, when and what."""
    rows = []
    for row in range(len(versions)):
        cells = read_row(versions, row)
        rows.append(
            [
                to_html(f"{cells['sequence'].as_py():,}"),
                "edit" if cells["original_sequence"].is_valid else "original",
                to_html(_cut_cell(format_cell(cells["author"], zone))),
                to_html(format_cell(cells["timestamp"], zone)),
                *(to_html(_show_cell(cells[field.name], zone)) for field in values),
                to_html(f"{cells['commit'].as_py():,}"),
                to_html(format_cell(cells["commit_time"], zone)),
                to_html(_cut_cell(_describe_erasure(cells, zone))),
            ]
        )
    head = ["sequence", "what", "who", "time", *map(label_column, values), "commit", "stored"]
    if any(texts[-1] for texts in rows):
        head.append("erased")
    else:
        rows = [texts[:-1] for texts in rows]
    close = _link(request.link(event=None), "close", "close", show="drawn")
    return (
        f"{_head(f'Event {request.event:,} of {to_html(_cut_cell(str(request.series)))}')}"
        f"{_scrolling_table(head, rows, 'versions')}<p>{close}</p>"
    )


def _describe_erasure(cells: Cells, zone: str | None) -> str:
    """Say who erased a version, when and why; nothing if nobody did."""
    if not (cells["erased_by"].is_valid or cells["erased_at"].is_valid):
        return ""
    by, at = (format_cell(cells[name], zone) for name in ("erased_by", "erased_at"))
    return f"by {by}, {at}: {_show_cell(cells['erased_because'], zone)}"


def _show_cell(cell: pa.Scalar, zone: str | None) -> str:
    return _cut_cell(format_briefly(cell, zone)) if cell.is_valid else "\N{EN DASH}"


def _cut_cell(text: str) -> str:
    return cut_text(text, _MAX_CELL)


BROWSE_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    **address_arguments(4051),
    **ZONE_ARGUMENT,
    "--json": {"action": "store_true", "help": "print what the store has once, as JSON"},
}
"""The arguments of the command."""

_PAUSE_MS: Final = 2_000
_MAX_RENDERED: Final = 16
"""Keep this many of the last pages, until the store has another commit."""


def browse(location: Location, arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or print JSON.

    Raises:
        NoSuchStore, UnusableStore, PermissionDenied: as `TimeSeries.open` and its queries.
        InvalidQuery: an unknown time zone.
        OSError: the port is not free.
    """
    viewer = StoreViewer(
        location, author_or_user(arguments.principal), find_zone(arguments.timezone)
    )
    store, view = viewer.open()
    listed = viewer.list_series(view, "", 0)
    if arguments.json:
        facts = viewer.facts(store, read_wall_clock())
        contents = {
            "store": facts.described,
            "commits": [
                [format_instant(minute * MINUTE_US), count] for minute, count in facts.commits
            ],
            "maintenance": facts.plan and dataclasses.asdict(facts.plan),
            "series": listed.rows.to_pylist(),
        }
        print(json.dumps(contents, indent=2, default=lambda moment: moment.isoformat()))
        return 0
    server = PageServer(
        arguments.host,
        arguments.port,
        StorePage(viewer, read_wall_clock).answer,
        ONLY_PAGE,
        "--port",
    )
    print(announce(arguments.host, server.port), flush=True)
    try:
        Event().wait()
    finally:
        server.close()
    return 0


class StorePage:
    """Answers requests for the page of a store, from any thread, and writes nothing.

    Args:
        viewer: reads the store.
        read_clock: returns the wall clock in microseconds.
    """

    def __init__(self, viewer: StoreViewer, read_clock: Callable[[], int]) -> None:
        self._viewer = viewer
        self._read_clock = read_clock
        self._lock = Lock()
        self._facts: tuple[Any, str] = (None, "")
        self._rendered: dict[Any, dict[str, str]] = {}

    def answer(self, path: str, query: str) -> Response | None:
        """Answer a request; None if there is no such page."""
        if path == "/":
            request, (_, sections) = PageRequest.parse(query), self._render(query)
            within = "".join(
                f'<article id="{name}">{html}</article>' for name, html in sections.items()
            )
            shell = render_shell(
                f"Store {self._viewer.location.root}",
                "/",
                "browse.css",
                render_search(request),
                within,
            )
            return Response("text/html; charset=utf-8", shell)
        if path == "/sections":
            return self._answer_sections(query)
        return answer_file(__package__, path.removeprefix("/"))

    def _answer_sections(self, query: str) -> Response:
        seen_digests, (is_whole, sections) = read_seen(query), self._render(query)
        digests = {name: digest(html) for name, html in sections.items()}
        if not is_whole:
            # While the store cannot be read, the client keeps the sections that it has.
            digests = {
                name: seen_digests[name] for name in _SECTIONS if name in seen_digests
            } | digests
        return answer_sections(sections, digests, seen_digests, self._read_clock(), _PAUSE_MS)

    def _render(self, query: str) -> tuple[bool, dict[str, str]]:
        """Return the sections, and whether they are all sections."""
        request, width = PageRequest.parse(query), parse_width(query)
        with self._lock:
            try:
                store, view = self._viewer.open()
                now = self._read_clock()
                moment = store.id, store.log.state, now // MINUTE_US
                if self._facts[0] != moment:
                    self._facts = moment, render_facts(self._viewer.facts(store, now))
                    self._rendered.clear()
            except Exception as error:
                return False, {"store": render_trouble(self._describe_error(error))}
            sections = self._rendered.get((request, width))
            if sections is None:
                while len(self._rendered) >= _MAX_RENDERED:
                    del self._rendered[next(iter(self._rendered))]
                sections = self._rendered[request, width] = self._render_request(
                    view, request, width
                )
            return True, {"store": self._facts[1], **sections}

    def _render_request(self, view: View, request: PageRequest, width: int) -> dict[str, str]:
        viewer = self._viewer
        values = view.snapshot.values

        def list_series() -> str:
            return render_list(
                viewer.list_series(view, request.search, request.start), request, viewer.zone
            )

        def draw() -> str:
            return render_drawn(viewer.draw(view, request, width), request, values, viewer.zone)

        def list_versions(series: str, event: int) -> str:
            versions = view.versions(series, event)
            return render_event(versions, request, values, viewer.zone)

        sections = {"series": self._try("Series", list_series)}
        if request.series is not None:
            sections["drawn"] = self._try(request.series, draw)
            if request.event is not None:
                versions = partial(list_versions, request.series, request.event)
                sections["event"] = self._try(f"Event {request.event:,}", versions)
        return sections

    def _try(self, heading: str, render: Callable[[], str]) -> str:
        """Return a section, or why the store refuses its question."""
        try:
            return render()
        except Exception as error:
            problem = to_html(self._describe_error(error))
            return f'{_head(to_html(heading))}<p class="finding">{problem}</p>'

    def _describe_error(self, error: Exception) -> str:
        if not isinstance(error, TseriesError):
            _LOG.debug("the page cannot show this", exc_info=error)
            return self._viewer.location.redact(f"{type(error).__name__}: {error}")
        return self._viewer.location.redact(str(error))


_SECTIONS: Final = ("store", "series", "drawn", "event")
"""The sections of the page, by their ids."""
