"""The command `browse`: a page of a store on this machine, or its facts as JSON.

Names, authors and values are whatever was written to the store, so everything is escaped on the
page, and no section has a script or an inline style. Whatever can be clicked is a link or a field.
"""

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock
from typing import Any, Final

import pyarrow as pa

from pyspark_timestream.core.instants import MINUTE_US, SECOND_US, format_instant, parse_instant
from pyspark_timestream.core.report import (
    age_html,
    cut_text,
    format_count,
    shorten_duration,
    svg,
    to_html,
)
from pyspark_timestream.core.serving import (
    Answer,
    PageServer,
    address_arguments,
    announce,
    answer_file,
    answer_sections,
    digest,
    read_seen,
    render_shell,
)
from pyspark_tseries.chart.figure import show_number
from pyspark_tseries.chart.svg import draw_svg
from pyspark_tseries.client.results import LOCAL, find_zone, format_cell
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
)
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.background import MaintenancePlan
from pyspark_tseries.maintain.compactor import MIN_GROUPS_TO_MERGE
from pyspark_tseries.model.columns import find_unit
from pyspark_tseries.options import author_or_user
from pyspark_tseries.read.view import View
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.store import Store, now_us

_MAX_CELL: Final = 120
_LONG: Final = 30
"""A cell of more letters may have several lines."""

_BAR: Final = 10


def render_search(asked: PageRequest) -> str:
    """Return the form that searches for series."""
    return (
        '<form role="search" method="get"><label for="q">Series</label> '
        f'<input id="q" name="q" type="search" value="{to_html(asked.search)}" autocomplete="off" '
        'placeholder="part of a name, or a pattern such as room/*" spellcheck="false"></form>'
    )


def render_trouble(told: str) -> str:
    """Return the section of a store that cannot be read."""
    return (
        '<header><h2>Store</h2><p class="status stopped" data-say="not readable"><b>not readable'
        f"</b>: {to_html(told)}</p></header><p>What else is on this page is as of earlier.</p>"
    )


def render_refusal(heading: str, told: str) -> str:
    """Return a section whose question the store refuses."""
    return f'{_head(to_html(heading))}<p class="finding">{to_html(told)}</p>'


def _head(html: str) -> str:
    """Return the heading of a section, where a reader is led to."""
    return f'<h2 tabindex="-1" data-key="head">{html}</h2>'


# -- the store -------------------------------------------------------------------------------------


def render_facts(facts: StoreFacts) -> str:
    """Return the section of the store as a whole."""
    told = facts.described
    last = "no commit yet"
    if told["last_commit"] is not None:
        commit_us = parse_instant(told["last_commit_time"])
        last = f"commit {told['last_commit']:,}, {age_html(commit_us)} ago"
    retained = to_html(told["retained_range"])
    if told["retained_default"]:
        retained += " (nobody chose it)"
    boxes = {
        "series": f"{told['series']:,}",
        "events ever": f"{told['events']:,}",
        "stored": f"{told['stored_events']:,}",
        "files": f"{told['files']:,}",
        "": format_bytes(told["bytes"]),
    }
    for name, what in (("dropped", "dropped"), ("adjusted", "adjusted"), ("future", "too early"),
                       ("erasures", "erasures")):  # fmt: skip
        if told[name]:
            boxes[what] = f"{told[name]:,}"
    counts = "".join(f"<li><b>{number}</b> {name}</li>" for name, number in boxes.items())
    cti = f", CTI {to_html(told['cti'])}" if told["cti"] else ""
    columns = ", ".join(f"{name} {kind}" for name, kind in told["value_columns"].items())
    return (
        '<header><h2>Store</h2><p class="status ok" data-say="readable"><b>readable</b>: '
        f"{last}{cti}</p></header>"
        f'<ul class="counts" aria-label="what the store has">{counts}</ul>'
        f"<p>Keeps <b>{retained}</b>. Columns: {to_html(_cut(columns))}</p>"
        f"{draw_commits(facts.commits)}{_render_plan(facts.plan, told)}"
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
    most = max(count for _, count in commits)
    bars = [
        svg("rect", "", svg("title", f"{format_instant(minute * MINUTE_US)}: {count:,}"),
            class_="done", x=place * _BAR, y=44 - height, width=_BAR - 2, height=height)
        for place, (minute, count) in enumerate(commits)
        if (height := -(-40 * count // max(most, 1)))
    ]  # fmt: skip
    total = sum(count for _, count in commits)
    label = (
        f"{format_count(total, 'commit')} in the last {format_count(len(commits), 'minute')}, "
        f"{total / len(commits):.3g} a minute, {most:,} at most"
    )
    width = _BAR * max(len(commits), 30)
    picture = svg("svg", "", svg("title", label), *bars, viewBox=f"0 0 {width} 46", role="img",
        class_="strip", preserveAspectRatio="none")  # fmt: skip
    return f"<figure>{picture}<figcaption>{to_html(label)}</figcaption></figure>"


def _render_plan(plan: MaintenancePlan | None, told: Mapping[str, Any]) -> str:
    parts = []
    if plan is None:
        parts.append("what it would do now cannot be told")
    else:
        if plan.merged_files:
            merged = format_count(plan.merged_files, "file")
            parts.append(f"would merge {merged} of {format_bytes(plan.merged_bytes)}")
        else:
            parts.append(
                f"has nothing to merge: {plan.single_commits:,} of {MIN_GROUPS_TO_MERGE} commits "
                "with files of their own"
            )
        if plan.removed_files:
            removed = format_count(plan.removed_files, "file")
            parts.append(f"would remove {removed} that nothing refers to any more")
        parts.append(f"writers with autoCompact start it after commit {plan.next_commit:,}")
    if told["erasure_files"]:
        erased = format_count(len(told["erasure_files"]), "file")
        parts.append(f"{erased} still with erased values, until ten minutes after the act")
    text = to_html("; ".join(parts))
    failed = told["maintenance_error"]
    error = (
        f'<p class="finding">The last maintenance failed: {to_html(failed)}</p>' if failed else ""
    )
    return f"<p>Maintenance {text}.</p>{error}"


# -- series ----------------------------------------------------------------------------------------


def render_list(listed: SeriesList, asked: PageRequest, zone: str | None) -> str:
    """Return the section of the series that were found."""
    rows = "".join(
        _render_series({name: listed.rows[name][row] for name in listed.rows.column_names}, row,
            asked, zone)
        for row in range(len(listed.rows))
    )  # fmt: skip
    head = "".join(f'<th scope="col">{name}</th>' for name in ("series", "events", "newest"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    pages = []
    last = listed.start + len(listed.rows)
    if listed.start:
        back = asked.link(start=max(listed.start - PAGE_ROWS, 0))
        pages.append(_link(back, "previous", "previous", show="series"))
    if last < listed.found:
        pages.append(_link(asked.link(start=last), "next", "next", show="series"))
    where = f"{listed.start + 1:,} to {last:,} of {listed.found:,}"
    if listed.found < listed.known:
        where += f" that fit, of {listed.known:,}"
    if not rows:
        where = f"none of {listed.known:,} fits" if listed.known else "no series has events yet"
    return (
        f'{_head("Series")}<p class="note" data-say="{where}">{where}</p>{table}'
        f'<p class="pages">{" ".join(pages)}</p>'
    )


def _render_series(row: Cells, place: int, asked: PageRequest, zone: str | None) -> str:
    name = row["series"].as_py()
    shown = to_html(_cut(name)) or "<i>(no name)</i>"
    if len(name) <= MAX_NAME:
        address = asked.link(series=name, event=None, column="")
        is_chosen = name == asked.series
        shown = _link(address, shown, f"series{place}", show="drawn", is_on=is_chosen)
    edits = row["edits"].as_py()
    more = f" <small>{format_count(edits, 'edit')}</small>" if edits else ""
    events = "?" if row["events"].as_py() is None else f"{row['events'].as_py():,}"
    newest = to_html(format_cell(_whole_second(row["newest"]), zone)) or "none"
    return f'<tr><th scope="row">{shown}</th><td>{events}{more}</td><td>{newest}</td></tr>'


def _whole_second(time: pa.Scalar) -> pa.Scalar:
    return pa.scalar(time.value // SECOND_US * SECOND_US, time.type) if time.is_valid else time


def _link(address: str, html: str, key: str, *, show: str = "", is_on: bool = False) -> str:
    """Return a link within the page; `show` is the section that it leads to."""
    more = f' data-show="{show}"' if show else ""
    more += ' aria-current="true"' if is_on else ""
    return f'<a href="{to_html(address)}" data-key="{key}"{more}>{html}</a>'


# -- one series ------------------------------------------------------------------------------------


def render_drawn(
    drawn: SeriesView, asked: PageRequest, values: Sequence[pa.Field], zone: str | None
) -> str:
    """Return the section of one series: its picture, edits and newest events."""
    name = str(asked.series)
    head = _head(to_html(_cut(name)) or "<i>(no name)</i>")
    if drawn.known is None:
        return f"{head}<p>It has no events.</p>"
    facts = [f"{format_count(drawn.known['events'].as_py() or 0, 'event')} ever"]
    facts += [format_count(drawn.known["edits"].as_py() or 0, "edit")]
    first = format_cell(drawn.known["first"], zone)
    if first:
        newest = format_cell(drawn.known["newest"], zone) or "none"
        facts.append(f"from {first} to {newest}, {zone or 'UTC'}")
    ranges = [
        _link(asked.link(last=str(most)), f"last {most:,}", f"last{most}",
            is_on=asked.last == str(most))
        for most in COUNTS
    ]  # fmt: skip
    ranges.append(_link(asked.link(last=ALL), "all", "all", is_on=asked.last == ALL))
    chips = f'<p class="chips">Events: {" ".join(ranges)}</p>'
    if len(drawn.columns) > 1:
        columns = [_link(asked.link(column=""), "first four", "column", is_on=not asked.column)]
        columns += [
            _link(asked.link(column=each), to_html(_cut(each)), f"column{place}",
                is_on=asked.column == each)
            for place, each in enumerate(drawn.columns)
        ]  # fmt: skip
        chips += f'<p class="chips">Columns: {" ".join(columns)}</p>'
    if drawn.bucket_us is not None:
        width = shorten_duration(drawn.bucket_us)
        chips += (
            f'<p class="note">Buckets of {width}: the mean of numbers, and the area from the '
            "lowest to the highest; the last of others. Edits count, and have no marks.</p>"
        )

    def link(sequence: int) -> str:
        return asked.link(event=sequence)

    if drawn.chart is None:
        picture = f'<p class="finding">{to_html(drawn.why)}</p>'
    else:
        chart = drawn.chart
        picture = draw_svg(chart.figure, chart.width, chart.height, None, link)
    return (
        f'{head}<p class="note">{to_html("; ".join(facts))}</p>{chips}'
        f'<div class="chart" data-room="">{picture}</div>'
        f"{_render_edits(drawn, link, values, zone)}{_render_events(drawn, link, values, zone)}"
    )


def _render_edits(
    drawn: SeriesView, link: Callable[[int], str], values: Sequence[pa.Field], zone: str | None
) -> str:
    if not drawn.edits:
        return ""
    rows = []
    for place, (edit, replaced) in enumerate(drawn.edits):
        original = edit["original_sequence"].as_py()
        audit = _link(link(original), f"{original:,}", f"edit{place}", show="event")
        rows.append(
            [
                audit,
                to_html(_tell_change(edit, replaced, values)),
                to_html(_cut(format_cell(edit["author"], zone))),
                to_html(format_cell(edit["edit_timestamp"], zone)),
                to_html(format_cell(edit["original_timestamp"], zone)),
            ]
        )
    head = ("event", "what", "who", "when", "time of the event")
    more = f"; and {drawn.more_edits:,} earlier ones" if drawn.more_edits else ""
    return f"<h3>Edits, newest first{more}</h3>{_scroll(head, rows, 'edits')}"


def _tell_change(edit: Cells, replaced: Cells | None, values: Sequence[pa.Field]) -> str:
    told = []
    for field in values:
        new = _show(edit[field.name])
        old = None if replaced is None else _show(replaced[field.name])
        if old is None:
            told.append(f"{field.name} {new}")
        elif old != new:
            told.append(f"{field.name} {old} \N{RIGHTWARDS ARROW} {new}")
    return ", ".join(told) or "the same values"


def _render_events(
    drawn: SeriesView, link: Callable[[int], str], values: Sequence[pa.Field], zone: str | None
) -> str:
    if not len(drawn.events):
        return "<p>No event is in the retained range.</p>"
    rows = []
    for row in reversed(range(len(drawn.events))):
        cells = {name: drawn.events[name][row] for name in drawn.events.column_names}
        original = cells["original_sequence"].as_py()
        sequence = cells["sequence"].as_py() if original is None else original
        mark = "" if original is None else " edited"
        rows.append(
            [
                _link(link(sequence), f"{sequence:,}", f"event{sequence}", show="event") + mark,
                to_html(format_cell(cells["timestamp"], zone)),
                *(to_html(_show(cells[field.name])) for field in values),
                to_html(_cut(format_cell(cells["author"], zone))),
            ]
        )
    head = ("event", "time", *map(_name_column, values), "author")
    return f"<h3>Newest events</h3>{_scroll(head, rows, 'events')}"


def _name_column(field: pa.Field) -> str:
    unit = find_unit(field)
    return f"{field.name} ({unit})" if unit else str(field.name)


def _scroll(head: Sequence[str], rows: Sequence[Sequence[str]], key: str) -> str:
    """Return a table, of cells that are HTML, which scrolls where it has no room."""
    columns = "".join(f'<th scope="col">{to_html(_cut(name))}</th>' for name in head)
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
    versions: pa.Table, asked: PageRequest, values: Sequence[pa.Field], zone: str | None
) -> str:
    """Return the section of an event: who wrote and edited it, when and what."""
    rows = []
    for row in range(len(versions)):
        cells = {name: versions[name][row] for name in versions.column_names}
        erased = ""
        if cells["erased_by"].is_valid or cells["erased_at"].is_valid:
            by, because = format_cell(cells["erased_by"], zone), _show(cells["erased_because"])
            erased = f"by {by}, {format_cell(cells['erased_at'], zone)}: {because}"
        rows.append(
            [
                to_html(f"{cells['sequence'].as_py():,}"),
                "edit" if cells["original_sequence"].is_valid else "original",
                to_html(_cut(format_cell(cells["author"], zone))),
                to_html(format_cell(cells["timestamp"], zone)),
                *(to_html(_show(cells[field.name])) for field in values),
                to_html(f"{cells['commit'].as_py():,}"),
                to_html(format_cell(cells["commit_time"], zone)),
                to_html(_cut(erased)),
            ]
        )
    head = ["sequence", "what", "who", "time", *map(_name_column, values), "commit", "stored"]
    head.append("erased")
    if not any(cells[-1] for cells in rows):
        head, rows = head[:-1], [cells[:-1] for cells in rows]
    close = _link(asked.link(event=None), "close", "close", show="drawn")
    return (
        f"{_head(f'Event {asked.event:,} of {to_html(_cut(str(asked.series)))}')}"
        f"{_scroll(head, rows, 'versions')}<p>{close}</p>"
    )


def _show(cell: pa.Scalar) -> str:
    if pa.types.is_floating(cell.type) and cell.is_valid:
        return show_number(cell.as_py())
    return _cut(format_cell(cell, None)) if cell.is_valid else "\N{EN DASH}"


def _cut(text: str) -> str:
    return cut_text(text, _MAX_CELL)


_LOG: Final = logging.getLogger(__name__)

PAGES: Final = "the page is at /"
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    **address_arguments(4051),
    "--timezone": {
        "default": LOCAL,
        "metavar": "ZONE",
        "help": "an IANA name, or UTC; default: that of this machine",
    },
    "--json": {"action": "store_true", "help": "print what the store has once, as JSON"},
    "--principal": {"help": "who asks, if the store has a policy; default: the OS user"},
}
"""The arguments of the command."""

_PAUSE_MS: Final = 2_000
_KEPT: Final = 16
"""So many pages that were asked for last are kept, until the store has another commit."""


def browse(location: Location, asked: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or print JSON.

    Raises:
        NoSuchStore, UnusableStore, PermissionDenied: as `TimeSeries.open` and its queries.
        InvalidQuery: an unknown time zone.
        OSError: the port is not free.
    """
    look = StoreViewer(location, author_or_user(asked.principal), find_zone(asked.timezone))
    store, view = look.open()
    listed = look.list_series(view, "", 0)
    if asked.json:
        facts = look.facts(store, now_us())
        told = {
            "store": facts.described,
            "commits": [
                [format_instant(minute * MINUTE_US), count] for minute, count in facts.commits
            ],
            "maintenance": facts.plan and dataclasses.asdict(facts.plan),
            "series": listed.rows.to_pylist(),
        }
        print(json.dumps(told, indent=2, default=lambda moment: moment.isoformat()))
        return 0
    server = PageServer(asked.host, asked.port, StorePage(look, now_us).answer, PAGES, "--port")
    print(announce(asked.host, server.port), flush=True)
    try:
        Event().wait()
    finally:
        server.close()
    return 0


class StorePage:
    """Answers requests for the page of a store, from any thread, and writes nothing.

    Args:
        look: what looks at the store.
        read_clock: returns the wall clock in microseconds.
    """

    def __init__(self, look: StoreViewer, read_clock: Callable[[], int]) -> None:
        self._look, self._read_clock = look, read_clock
        self._lock = Lock()
        self._facts: tuple[Any, str] = (None, "")
        self._kept: dict[Any, dict[str, str]] = {}

    def answer(self, path: str, query: str) -> Answer | None:
        """Answer a request; None: there is no such page."""
        if path == "/":
            asked, (_, sections) = PageRequest.parse(query), self._render(query)
            within = "".join(
                f'<article id="{name}">{html}</article>' for name, html in sections.items()
            )
            shell = render_shell(
                f"Store {self._look.location.root}", "/", "browse.css", render_search(asked), within
            )
            return Answer("text/html; charset=utf-8", shell)
        if path == "/sections":
            return self._answer_sections(query)
        return answer_file(__package__, path.removeprefix("/"))

    def _answer_sections(self, query: str) -> Answer:
        seen, (is_whole, sections) = read_seen(query), self._render(query)
        digests = {name: digest(html) for name, html in sections.items()}
        if not is_whole:
            # What a client has stays, as long as the store cannot be read.
            digests = {name: seen[name] for name in _SECTIONS if name in seen} | digests
        return answer_sections(sections, digests, seen, self._read_clock(), _PAUSE_MS)

    def _render(self, query: str) -> tuple[bool, dict[str, str]]:
        """Return the sections, and whether these are all."""
        asked, width = PageRequest.parse(query), parse_width(query)
        with self._lock:
            try:
                store, view = self._look.open()
                now = self._read_clock()
                moment = store.id, store.version(), now // MINUTE_US
                if self._facts[0] != moment:
                    self._facts = moment, render_facts(self._look.facts(store, now))
                    self._kept.clear()
            except Exception as error:
                return False, {"store": render_trouble(self._tell(error))}
            sections = self._kept.get((asked, width))
            if sections is None:
                while len(self._kept) >= _KEPT:
                    del self._kept[next(iter(self._kept))]
                sections = self._kept[asked, width] = self._render_asked(store, view, asked, width)
            return True, {"store": self._facts[1], **sections}

    def _render_asked(
        self, store: Store, view: View, asked: PageRequest, width: int
    ) -> dict[str, str]:
        look, values = self._look, view.snapshot.values

        def list_series() -> str:
            return render_list(look.list_series(view, asked.search, asked.start), asked, look.zone)

        def draw() -> str:
            return render_drawn(look.draw(view, asked, width), asked, values, look.zone)

        def tell_event() -> str:
            return render_event(look.versions(view, asked), asked, values, look.zone)

        sections = {"series": self._try("Series", list_series)}
        if asked.series is not None:
            sections["drawn"] = self._try(asked.series, draw)
            if asked.event is not None:
                sections["event"] = self._try(f"Event {asked.event:,}", tell_event)
        return sections

    def _try(self, heading: str, render: Callable[[], str]) -> str:
        try:
            return render()
        except Exception as error:
            return render_refusal(heading, self._tell(error))

    def _tell(self, error: Exception) -> str:
        if not isinstance(error, TseriesError):
            _LOG.debug("the page cannot show this", exc_info=error)
            return self._look.location.redact(f"{type(error).__name__}: {error}")
        return self._look.location.redact(str(error))


_SECTIONS: Final = ("store", "series", "drawn", "event")
"""The sections of the page, by their ids."""
