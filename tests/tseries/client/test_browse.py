"""The page of a store finds any series, shows edits and who made them, and never writes."""

import contextlib
import json
import math
import os
import re
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import NAMES, parse, request
from tseries.builders import forget_stores

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import escape_controls
from pyspark_timestream.serving import ONLY_PAGE, PageServer
from pyspark_tseries import TimeSeries
from pyspark_tseries.__main__ import main
from pyspark_tseries.client import viewer as look_module
from pyspark_tseries.client.browse import StorePage, draw_commits
from pyspark_tseries.client.viewer import ALL, COUNTS, PAGE_ROWS, PageRequest, StoreViewer
from pyspark_tseries.maintain.background import plan_maintenance
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.log_check import read_commit_us
from pyspark_tseries.store.store import Store

MAX_PAGE = 300_000
T0 = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("celsius", pa.float64(), metadata={"unit": "°C"}),
        pa.field("open", pa.bool_()),
        pa.field("mode", pa.string()),
        pa.field("place", pa.struct([("x", pa.int64())])),
    ]
)


def row(series, minute, celsius, **others):
    moment = T0 + timedelta(minutes=minute)
    return {"series": series, "timestamp": moment, "celsius": celsius, **others}


def fill(path, **others):
    series = TimeSeries.create(path, SCHEMA, "unlimited", "anna", auto_compact=False, **others)
    rows = [row("hall", n, 20 + n / 10, open=n % 20 < 9, mode="<i>", place=None) for n in range(60)]
    rows += [row("odd", 0, math.nan), row("odd", 1, math.inf), row("odd", 2, -math.inf)]
    rows += [row("one", 0, 5.0, place={"x": 1}), row("empty values", 0, None)]
    series.append_many(pa.Table.from_pylist(rows))
    editor = TimeSeries.open(path, "<b>eve</b>", auto_compact=False)
    editor.edit("hall", 30, {"celsius": 99.0, "open": True, "mode": "set", "place": None})
    editor.edit("hall", 30, {"celsius": 98.0, "open": True, "mode": "set", "place": None})
    editor.erase("hall", [40], "a <wrong> sensor")
    return series


def page_of(path, principal="anna", clock=read_wall_clock):
    return StorePage(StoreViewer(parse_location(str(path)), principal, None), clock)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("browsed") / "s"
    fill(path)
    return path


@pytest.fixture(scope="module")
def page(path):
    return page_of(path)


def ask(page, seen=None, **asked):
    query = urlencode({**asked, **({} if seen is None else {"seen": json.dumps(seen)})})
    return json.loads(page.answer("/sections", query).text)


def sections(page, **asked):
    found = ask(page, **asked)["sections"]
    for html in found.values():
        parse(html)
    return found


# -- what it shows ---------------------------------------------------------------------------------


def test_an_edit_is_marked_and_leads_to_who_made_it_when_and_what(page):
    drawn = sections(page, series="hall")["drawn"]
    marks = re.findall(r'<a href="([^"]*)" tabindex="-1">', drawn)
    assert marks == ["?series=hall&amp;event=30"] * 3  # The value of now, and the two before it.
    assert "celsius 99 → 98" in drawn
    assert "celsius 23 → 99, open false".lower() in drawn.lower()
    event = sections(page, series="hall", event=30)["event"]
    assert event.count("&lt;b&gt;eve&lt;/b&gt;") == 2
    assert event.count("<td>anna</td>") == 1
    assert [n for n in ("23", "99", "98") if f"<td>{n}</td>" in event] == ["23", "99", "98"]


def test_an_erased_event_says_who_erased_it_and_why(page):
    event = sections(page, series="hall", event=40)["event"]
    assert "by &lt;b&gt;eve&lt;/b&gt;" in event
    assert "a &lt;wrong&gt; sensor" in event


def test_the_store_says_what_it_keeps_and_what_maintenance_would_do(page):
    store = sections(page)["store"]
    assert "<b>unlimited</b>" in store
    assert "<b>4</b> series" in store
    assert re.search("[234] of 64 commits with files of their own", store)
    assert "after commit 31" in store
    assert "6 commits in the last" in store
    assert "still with erased values" in store


@pytest.mark.parametrize(
    ("series", "told"),
    [
        ("odd", "3 NaN or infinite values, not drawn"),
        ("one", "{&#x27;x&#x27;: 1}"),
        ("empty values", "no values"),
        ("never there", "It has no events."),
        ("", "It has no events."),
    ],
)
def test_every_series_is_shown_whatever_it_has(page, series, told):
    assert told in sections(page, series=series)["drawn"]


@pytest.mark.parametrize("column", ["celsius", "open", "mode", "place", "no such"])
@pytest.mark.parametrize("last", [*map(str, COUNTS), ALL, "-1", "x"])
def test_every_column_and_number_of_events_is_drawn_or_ignored(page, column, last):
    drawn = sections(page, series="hall", column=column, last=last)["drawn"]
    assert "<svg" in drawn
    assert "Edits, newest first" in drawn


def test_a_store_without_a_column_to_draw_lists_its_events(tmp_path):
    series = TimeSeries.create(tmp_path / "s", {"at": pa.list_(pa.int64())}, "unlimited")
    series.append("a", [1, 2])
    drawn = sections(page_of(tmp_path / "s"), series="a")["drawn"]
    assert "none of its columns" in drawn
    assert "[1, 2]" in drawn


def test_all_of_a_long_series_are_buckets_with_the_lowest_and_the_highest(tmp_path):
    series = TimeSeries.create(tmp_path / "s", SCHEMA, "unlimited")
    count = COUNTS[-1] + 1
    times = pa.array([T0 + timedelta(minutes=n) for n in range(count)])
    values = pa.array([float(n % 100) for n in range(count)])
    texts = pa.array(["a"] * count)
    series.append_many(pa.table({"series": texts, "timestamp": times, "celsius": values}))
    shown = sections(page_of(tmp_path / "s"), series="a", last=ALL)
    assert "Buckets of 1 h" in shown["drawn"]
    assert "celsius, min to max" in shown["drawn"]
    assert len("".join(shown.values())) < MAX_PAGE


@pytest.mark.parametrize("step", [timedelta(milliseconds=7), timedelta(days=7)])
def test_all_of_a_series_of_any_length_are_buckets_in_a_zone_too(tmp_path, step):
    series = TimeSeries.create(tmp_path / "s", SCHEMA, "unlimited")
    count = COUNTS[-1] + 1
    times = pa.array([T0 + (n - count) * step for n in range(count)])
    table = {"series": pa.array(["a"] * count), "timestamp": times}
    series.append_many(pa.table({**table, "celsius": pa.array([1.0] * count)}))
    viewer = StoreViewer(parse_location(str(tmp_path / "s")), "anna", "Europe/Berlin")
    drawn = sections(StorePage(viewer, read_wall_clock), series="a", last=ALL)["drawn"]
    assert "Buckets of" in drawn
    assert "celsius, min to max" in drawn


def test_an_edit_in_a_late_digit_is_no_edit_to_the_same_value(tmp_path):
    series = TimeSeries.create(tmp_path / "s", {"v": pa.float64()}, "unlimited")
    series.append("a", 1234567.1, T0)
    series.edit("a", 0, 1234567.2)
    drawn = sections(page_of(tmp_path / "s"), series="a")["drawn"]
    assert "v 1234567.1 → 1234567.2" in drawn


def test_times_among_the_values_are_by_the_clock_of_the_page(tmp_path):
    """They were in UTC, beside times of events by the page's clock."""
    seen = pa.timestamp("us", tz="UTC")
    schema = {"seen": seen, "inner": pa.struct([("at", seen), ("who", pa.list_(pa.string()))])}
    store = TimeSeries.create(tmp_path / "s", schema, "unlimited")
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    value = {"seen": noon, "inner": {"at": noon, "who": ["ann", None]}}
    store.append("a", value, noon)
    store.edit("a", 0, {**value, "seen": noon + timedelta(hours=1)})
    viewer = StoreViewer(parse_location(str(tmp_path / "s")), "root", "Asia/Tokyo")
    text = "".join(sections(StorePage(viewer, read_wall_clock), series="a", event=0).values())
    assert "seen 1 Jul 2026 21:00 \N{RIGHTWARDS ARROW} 1 Jul 2026 22:00" in text
    inner = "{'at': 1 Jul 2026 21:00, 'who': ['ann', null]}"
    assert inner.replace("'", "&#x27;") in text
    assert "1 Jul 2026 12:00" not in text


def test_an_empty_store_is_shown(tmp_path):
    TimeSeries.create(tmp_path / "s", SCHEMA, "unlimited")
    shown = sections(page_of(tmp_path / "s"), series="a", event=0)
    assert "no commit yet" in shown["store"]
    assert "no series has events yet" in shown["series"]
    assert "is not stored" in shown["event"]


def test_commits_are_counted_by_what_the_log_says_and_not_by_times_of_files(tmp_path, monkeypatch):
    fill(tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "copy", copy_function=shutil.copy)
    for entry in (tmp_path / "copy" / "_delta_log").iterdir():
        os.utime(entry, (0, 0))
    counts = []
    for place in ("s", "copy"):
        look = StoreViewer(parse_location(str(tmp_path / place)), "anna", None)
        store, _ = look.open()
        counts.append(look.facts(store, read_wall_clock()).commits)
    assert counts[0][-2:] == counts[1][-2:]
    assert sum(count for _, count in counts[0]) == 6


def test_an_entry_of_the_log_is_read_once_and_a_new_one_is_counted(tmp_path, monkeypatch):
    fill(tmp_path / "s")
    read = []
    inner = look_module.read_commit_us
    monkeypatch.setattr(
        look_module, "read_commit_us", lambda *given: read.append(given[1]) or inner(*given)
    )
    look = StoreViewer(parse_location(str(tmp_path / "s")), "anna", None)
    for _ in range(3):
        store, _ = look.open()
        look.facts(store, read_wall_clock())
    assert sorted(read) == list(range(6))
    TimeSeries.open(tmp_path / "s").append("hall", {"celsius": 5.0})
    store, _ = look.open()
    commits = look.facts(store, read_wall_clock() + 30 * 60_000_000).commits
    assert sorted(read) == list(range(7))
    assert sum(count for _, count in commits) == 7
    assert commits[-1][1] == 0
    assert look.facts(store, read_wall_clock() + 3 * 3_600_000_000).commits[0][1] == 0


def test_an_entry_that_cannot_be_read_for_a_while_leaves_none_counted_twice(tmp_path, monkeypatch):
    fill(tmp_path / "s")
    inner, fails = look_module.read_commit_us, [True]

    def read(location, version):
        if version == 2 and fails.pop():
            raise OSError("away")
        return inner(location, version)

    monkeypatch.setattr(look_module, "read_commit_us", read)
    look = StoreViewer(parse_location(str(tmp_path / "s")), "anna", None)
    store, _ = look.open()
    with pytest.raises(OSError, match="away"):
        look.facts(store, read_wall_clock())
    fails.append(False)
    assert sum(count for _, count in look.facts(store, read_wall_clock()).commits) == 6


def test_of_a_long_log_only_so_many_entries_are_read_and_whole_minutes_are_shown(
    tmp_path, monkeypatch
):
    fill(tmp_path / "s")
    monkeypatch.setattr(look_module, "MAX_ENTRIES", 3)
    moments = iter([n * 60_000_000 for n in (100, 99, 98, 98, 97)])
    monkeypatch.setattr(look_module, "read_commit_us", lambda *_: next(moments))
    look = StoreViewer(parse_location(str(tmp_path / "s")), "anna", None)
    store, _ = look.open()
    assert look.facts(store, 100 * 60_000_000).commits == ((99, 1), (100, 1))


@pytest.mark.parametrize("text", ["", "{", '{"commitInfo":[]}', '{"commitInfo":{"timestamp":"x"}}',
    '{"commitInfo":{"timestamp":1e300}}', "[" * 3_000])  # fmt: skip
def test_an_entry_that_does_not_tell_its_time_is_not_counted(tmp_path, text):
    fill(tmp_path / "s")
    place = parse_location(str(tmp_path / "s"))
    path = tmp_path / "s" / "_delta_log" / f"{3:020d}.json"
    path.write_text(text)
    assert read_commit_us(place, 3) is None
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_commit_us(place, 3)


def test_a_minute_without_commits_has_no_bar():
    parsed = parse(draw_commits([(0, 0), (1, 2), (2, 0)]))
    assert parsed.tags.count("rect") == 1
    assert draw_commits([]) == ""


# -- finding series --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "s"
    series = TimeSeries.create(path, {"value": pa.float64()}, "unlimited")
    names = [f"room/{n:06d}" for n in range(100_000)]
    texts = pa.array(names)
    times = pa.array([T0] * len(names))
    series.append_many(pa.table({"series": texts, "timestamp": times, "value": range(len(names))}))
    return page_of(path), names


def listed(page, **asked):
    html = sections(page, **asked)["series"]
    return re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', html), html


@pytest.mark.parametrize(
    ("search", "found"), [("0123", 120), ("ROOM/09999", 10), ("room/00000?", 10), ("*7", 10_000)]
)
def test_a_search_finds_what_fits_among_a_hundred_thousand(many, search, found):
    names, html = listed(many[0], q=search)
    assert f"of {found:,} that fit, of 100,000" in html
    assert len(names) == min(found, PAGE_ROWS)
    assert len(html) < 20_000


def test_pages_lead_through_all_that_was_found(many):
    page, names = many
    fitting = [name for name in names if "0999" in name]
    asked, found = {"q": "0999"}, []
    while asked:
        shown, html = listed(page, **asked)
        found += shown
        link = re.search(r'href="\?([^"]*)" data-key="next"', html)
        asked = link and dict(pair.split("=") for pair in link[1].split("&amp;"))
    assert found == fitting


def test_a_page_beyond_the_end_is_the_last_one(many):
    names, html = listed(many[0], **{"from": 10**9})
    assert names[-1] == "room/099999"
    assert 'data-key="next"' not in html


@settings(max_examples=20)
@given(st.text())
def test_no_address_ends_in_an_error(page, query):
    assert page.answer("/sections", query) is not None
    assert PageRequest.parse(PageRequest.parse(query).link()[1:]) == PageRequest.parse(query)


@given(NAMES, st.integers(0, 10**17))
def test_an_address_says_what_it_asks_for(name, number):
    asked = PageRequest(name, number, name, ALL, name, number)
    assert PageRequest.parse(asked.link()[1:]) == asked


# -- hostile names ---------------------------------------------------------------------------------

SCRIPTED = {"script", "style", "iframe", "img", "object", "embed", "form", "link", "base", "b"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "s"
    TimeSeries.create(path, {"mode": pa.string()}, "unlimited", durability="os")
    return path


@settings(max_examples=20)
@given(NAMES)
def test_hostile_names_authors_and_values_are_text_and_nothing_else(hostile, name):
    series = TimeSeries.open(hostile, name, durability="os", auto_compact=False)
    sequence = series.append(name, name).sequence
    series.edit(name, sequence, name + name)
    shown = ask(page_of(hostile), q=name, series=name, event=sequence)["sections"]
    assert set(shown) == {"store", "series", "drawn", "event"}
    for key in ("series", "drawn", "event"):
        tags = parse(shown[key])
        assert SCRIPTED.isdisjoint(tags.tags)
        assert not [each for each in tags.attributes if each.startswith("on") or each == "style"]
        assert escape_controls(name) in "".join(tags.text)


def test_a_page_is_small(page, path):
    shell = page.answer("/", "series=hall").text
    parse(shell)
    files = "page.js", "page.css", "browse.css"
    assert len(shell) + sum(len(page.answer(f"/{name}", "").text) for name in files) < MAX_PAGE


# -- what happens meanwhile ------------------------------------------------------------------------


def test_only_what_has_changed_is_sent(tmp_path):
    series = fill(tmp_path / "s")
    page = page_of(tmp_path / "s")
    first = ask(page, series="hall")
    assert ask(page, first["digests"], series="hall")["sections"] == {}
    series.append("kitchen", {"celsius": 1.0})
    assert set(ask(page, first["digests"], series="hall")["sections"]) == {"store", "series"}


def test_a_store_that_vanishes_leaves_what_was_shown_and_comes_back(tmp_path):
    path = tmp_path / "s"
    fill(path)
    page = page_of(path)
    first = ask(page, series="hall")
    path.rename(tmp_path / "away")
    gone = ask(page, first["digests"], series="hall")
    assert set(gone["digests"]) == set(first["digests"])
    assert "not readable" in gone["sections"]["store"]
    assert "not readable" in page.answer("/", "").text
    (tmp_path / "away").rename(path)
    assert "readable</b>" in ask(page, gone["digests"], series="hall")["sections"]["store"]
    shutil.rmtree(path)
    TimeSeries.create(path, {"value": pa.float64()}, "unlimited").append("new", 1.0)
    assert "new" in ask(page, q="")["sections"]["series"]


def test_an_older_state_that_was_put_back_and_grew_to_the_same_version_is_shown(tmp_path):
    """The page kept the lost series, and commits of both, because the version was the same."""
    path, copy = tmp_path / "s", tmp_path / "copy"
    series = fill(path)
    shutil.copytree(path, copy)
    now_us = read_wall_clock()
    page = page_of(path, clock=lambda: now_us)
    series.append("lost", {"celsius": 1.0})
    assert ">lost<" in ask(page)["sections"]["series"]
    commits = page._viewer._counted.minutes.total()
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    TimeSeries.open(path, "anna").append("later", {"celsius": 1.0})
    shown = ask(page)["sections"]["series"]
    assert ">lost<" not in shown
    assert ">later<" in shown
    assert page._viewer._counted.minutes.total() == commits


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_a_damaged_store_is_told_with_its_next_step(tmp_path, damage):
    path = tmp_path / "s"
    fill(path)
    log = sorted((path / "_delta_log").glob("*.json"))[-1]
    log.write_bytes(damage)
    forget_stores()
    assert "not readable" in ask(page_of(path))["sections"]["store"]


def test_it_is_read_while_others_append_compact_and_erase(tmp_path):
    series = fill(tmp_path / "s")
    page, over, faults = page_of(tmp_path / "s"), threading.Event(), []

    def look():
        while not over.is_set():
            shown = sections(page, series="hall", event=30).values()
            faults.extend(html for html in shown if "not readable" in html or "Error" in html)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for n in range(12):
            series.append("hall", {"celsius": float(n)})
            if n % 4 == 3:
                series.compact()
                series.erase("hall", [n], "wrong")
    finally:
        over.set()
        looking.join(60)
    assert faults == []


def files_of(path):
    """All that a change of the store would change."""
    stats = {each: each.stat() for each in sorted(Path(path).rglob("*"))}
    return {
        str(each): (stat.st_mtime_ns, stat.st_size, stat.st_ino) for each, stat in stats.items()
    }


def test_whatever_is_asked_nothing_is_written(tmp_path):
    fill(tmp_path / "s")
    before, page = files_of(tmp_path), page_of(tmp_path / "s")
    for asked in ({}, {"q": "a"}, {"series": "hall", "event": 30}, {"series": "hall", "last": ALL}):
        assert len(sections(page, **asked)) > 1
        page.answer("/", urlencode(asked))
    forget_stores()
    assert main(["browse", str(tmp_path / "s"), "--json"]) == 0
    assert files_of(tmp_path) == before


def test_the_plan_of_maintenance_is_what_maintenance_then_does(tmp_path):
    series = TimeSeries.create(tmp_path / "s", {"v": pa.int64()}, "unlimited", auto_compact=False)
    for n in range(70):
        series.append("a", n)
    store = Store.open(str(tmp_path / "s"))
    later = read_wall_clock() + 90_000_000_000
    plan = plan_maintenance(store, later)
    assert (plan.merged_files, plan.single_commits, plan.next_commit) == (70, 70, 95)
    assert plan.merged_bytes == sum(file.size for file in store.snapshot().files)
    series.compact()
    from pyspark_tseries.maintain.background import remove_obsolete_files

    before = files_of(tmp_path)
    promised = plan_maintenance(store, later).removed_files
    assert files_of(tmp_path) == before
    assert promised > 0
    assert remove_obsolete_files(store, later) == promised


def test_who_may_not_read_sees_no_series_and_who_may_not_see_the_past_no_old_values(tmp_path):
    policy = {"anna": ["own", "update", "edit", "read"], "bob": []}
    series = TimeSeries.create(tmp_path / "s", SCHEMA, "unlimited", "anna", policy=policy)
    series.append("secret name", {"celsius": 17.0})
    series.edit("secret name", 0, {"celsius": 18.0})
    shown = sections(page_of(tmp_path / "s", "bob"), series="secret name", event=0)
    assert "may not read" in shown["series"]
    assert "may not read" in shown["drawn"]
    assert not re.search(r"\b17\b", shown["drawn"] + shown["event"])
    assert main(["browse", str(tmp_path / "s"), "--principal", "bob", "--port", "0"]) == 1
    mine = sections(page_of(tmp_path / "s", "anna"), series="secret name", event=0)
    assert "celsius 18" in mine["drawn"]
    assert "<td>17</td>" not in mine["drawn"]
    assert "17 →" not in mine["drawn"]
    assert "overridden" not in mine["drawn"]
    assert "query_obsolete" in mine["event"]


# -- serving ---------------------------------------------------------------------------------------


@pytest.fixture
def server(page):
    server = PageServer("127.0.0.1", 0, page.answer, ONLY_PAGE, "--port")
    yield server
    server.close()


@pytest.mark.parametrize("at", ["/", "/page.js", "/page.css", "/browse.css", "/sections"])
def test_every_page_forbids_whatever_is_not_its_own(server, at):
    answer = request(server, at)
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(server, method):
    assert request(server, method=method).status == 501


@pytest.mark.parametrize("at", ["/look.py", "/../look.py", "/watch.css", "/x", "/."])
def test_there_is_nothing_else_to_get(server, at):
    assert request(server, at).status == 404


def test_it_answers_to_no_other_name(server):
    assert request(server, host="evil.example").status == 403


def test_json_has_what_is_shown(path, capsys):
    assert main(["browse", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["store"]["series"] == 4
    assert [each["series"] for each in told["series"]] == ["empty values", "hall", "odd", "one"]
    assert told["maintenance"]["next_commit"] == 31
    assert sum(count for _, count in told["commits"]) == 6  # And its creation.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no store"),
        (["--timezone", "Mars"], "Mars"),
        (["--port", "99999"], "cannot be listened on"),
    ],
)
def test_what_cannot_be_served_is_refused(path, tmp_path, capsys, arguments, told):
    where = str(tmp_path / "none") if arguments == ["nowhere"] else str(path)
    with contextlib.suppress(SystemExit):
        assert main(["browse", where, *arguments[arguments == ["nowhere"] :]]) == 1
    assert told in capsys.readouterr().err
