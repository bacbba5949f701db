"""The page is small, safe from hostile names, and sends changes only to this machine."""

import argparse
import json
import re
import socket
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import NAMES, SCRIPTED, parse, request
from timestream.commands_watch import view_of
from timestream.histories import NOON, SECOND, history, share, state

from pyspark_timestream.__main__ import main
from pyspark_timestream.commands.watch import command, live
from pyspark_timestream.commands.watch.command import add_arguments, format_text, to_json
from pyspark_timestream.commands.watch.follow import CtiPoint, QueryLog
from pyspark_timestream.commands.watch.live import LivePage
from pyspark_timestream.commands.watch.page import draw_curve, render_sections
from pyspark_timestream.errors import escape_controls
from pyspark_timestream.kafka.diagnosis.history import BatchReport
from pyspark_timestream.kafka.offsets.changes import ClockChange
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.report import cell_width
from pyspark_timestream.serving import ONLY_PAGE, PageServer, digest, render_shell

MAX_PAGE = 300_000


@given(NAMES)
def test_hostile_names_are_text_and_nothing_else(name):
    view = view_of([share(state(5)), share(state(1))], topic=name, query=name)
    (html,) = render_sections([view]).values()
    tags = parse(html)
    assert SCRIPTED.isdisjoint(tags.tags)
    assert not [each for each in tags.attributes if each.startswith("on") or each == "style"]
    assert escape_controls(name) in "".join(tags.text)


def test_a_thousand_partitions_are_one_small_page():
    shares = [share(state(50 if n != 7 else 1)) for n in range(1_000)]
    (html,) = render_sections([view_of(shares)]).values()
    shell = len(render_shell("t", "/", "watch.css"))
    page = LivePage("t", lambda: 0, list)
    static = sum(
        len(page.answer(f"/{name}", "").text) for name in ("page.js", "page.css", "watch.css")
    )
    assert len(html) + shell + static < MAX_PAGE
    assert html.index("topic 7") < html.index("topic 0<")
    assert "50 of 1,000 partitions" in html


def test_page_text_and_json_show_the_changes_of_a_clock_and_one_that_waits():
    """Old and new values, escaped, and the CTI of the change."""
    change = ClockChange(0, NOON, {"ctiDelay": "1 s"}, {"ctiDelay": "2 s", "writers": "<b>"})
    waiting = "2024-01-01T13:00:00Z: 'ctiDelay' from '2 s' to '9 s'"
    view = view_of([share(state(5))], changes=(change,), unpinned={"changeFrom": waiting})
    line = (
        "Changed from batch 0 on, at CTI 2024-01-01T12:00:00Z: "
        "'ctiDelay' from '1 s' to '2 s', 'writers' from not set to '<b>'"
    )
    (html,) = render_sections([view]).values()
    shown = parse(html)
    assert "b" not in shown.attributes
    for text in (line, f"A change waits for the CTI {waiting}"):
        assert text in "".join(shown.text)
        assert text in format_text([view], NOON, 400)
    (stream,) = to_json([view])[0]["streams"]
    assert stream["changes"] == [change.to_json()]
    assert stream["waiting_change"] == waiting
    assert json.dumps(stream["changes"])


def test_one_partition_without_a_time_is_shown():
    (html,) = render_sections([view_of([share(state(None, events=0))])]).values()
    assert "no CTI yet" in html
    parse(html)


def test_what_holds_back_is_said_in_words_and_not_in_colour_alone():
    (html,) = render_sections([view_of([share(state(5)), share(state(1))])]).values()
    assert re.search(r'class="cause"><th scope="row">topic 1 <small>holds back', html)


def test_a_lane_has_the_time_of_day_and_the_table_has_the_day_and_each_time_in_full_on_hover():
    late = state(5, last_us=NOON + 7 * SECOND)
    late = replace(late, cti_us=late.cti_us + 120_400)
    (html,) = render_sections([view_of([share(late), share(state(-90_000))])]).values()
    assert "CTI <small>2023-12-31</small>" in html
    assert '<td><span title="2024-01-01T12:00:05.120400Z">2024-01-01 12:00:05.12</span>' in html
    assert '<td><span title="2023-12-31T11:00:00Z">11:00:00</span>' in html


def test_a_time_that_grows_older_is_not_said_again_by_a_screen_reader():
    (html,) = render_sections([view_of([share(state(5))], query="<q>")]).values()
    assert 'role="status"' not in html
    assert 'data-say="&lt;q&gt;: runs"' in html
    shell = render_shell("t", "/", "watch.css")
    assert '<p id="said" class="unseen" role="status"></p>' in shell


def test_nothing_on_a_page_moves_by_itself():
    page = LivePage("t", lambda: 0, list)
    for name in ("page.css", "watch.css"):
        assert not re.search("animation|transition|smooth", page.answer(f"/{name}", "").text)


def test_a_diagnosis_is_a_sentence_and_its_fix_is_named():
    (html,) = render_sections([view_of([share(state(5)), share(state(1))])]).values()
    text = re.search('<div class="finding"><p><b>[^<]*</b>: (.*?)</p>(.*?)</div>', html, re.DOTALL)
    assert re.search(r"\. [A-Z][^.]*\.$", text[1])
    assert '<p class="fix">Fix: <span' in text[2]


def test_a_change_of_options_is_marked_on_the_curve_where_its_cti_was():
    points = [CtiPoint(NOON + n * SECOND, NOON + (n - 5) * SECOND) for n in range(11)]
    change = ClockChange(5, NOON, {"ctiDelay": "5 seconds"}, {"ctiDelay": "1 minute"})
    html = draw_curve(points, [change])
    (mark,) = re.findall('<line class="change" x1="([0-9.]+)"', html)
    assert float(mark) == 500
    assert "changed from batch 5 on: " in html
    assert "upright: options changed" in html
    before = ClockChange(0, NOON - 60 * SECOND, {}, {"ctiDelay": "1 minute"})
    assert "change" not in draw_curve(points, [before])


class Shown:
    """A page, and the views that it shows."""

    def __init__(self, wait_s=0.2):
        self.views, self.taken = (), 0
        self.page = LivePage("t", lambda: NOON, self.take, wait_s=wait_s)
        self.answer = self.page.answer

    def take(self):
        self.taken += 1
        return self.views

    def publish(self, views):
        self.views = tuple(views)
        self.page.note_news()


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(live, "_PAUSES", 0)
    return Shown()


def ask(page, seen=None):
    query = "" if seen is None else "seen=" + json.dumps(seen)
    return json.loads(page.answer("/sections", query).text)


def test_only_what_has_changed_is_sent(page):
    views = [view_of([share(state(5))], query=name) for name in "ab"]
    page.publish(views)
    first = ask(page)
    assert list(first["sections"]) == ["q0", "q1"]
    assert first["digests"] == {name: digest(html) for name, html in first["sections"].items()}
    assert ask(page, first["digests"])["sections"] == {}
    page.publish([views[0], view_of([share(state(6))], query="b")])
    assert list(ask(page, first["digests"])["sections"]) == ["q1"]
    page.publish(views[:1])
    assert list(ask(page, first["digests"])["digests"]) == ["q0"]


@pytest.mark.parametrize("seen", ["", "seen=", "seen=[1]", "seen=%7B", "seen=" + "[" * 5_000])
def test_a_question_that_makes_no_sense_is_answered_with_all(page, seen):
    page.publish([view_of([share(state(5))])])
    assert list(json.loads(page.answer("/sections", seen).text)["sections"]) == ["q0"]


def test_a_change_is_sent_at_once_to_who_waits(monkeypatch):
    monkeypatch.setattr(live, "_PAUSES", 0)
    page = Shown(wait_s=60)
    page.publish([view_of([share(state(5))])])
    seen, answers = ask(page)["digests"], []
    waiting = threading.Thread(target=lambda: answers.append(ask(page, seen)))
    waiting.start()
    time.sleep(0.1)
    page.publish([view_of([share(state(6))])])
    waiting.join(10)
    assert list(answers[0]["sections"]) == ["q0"]


def test_nothing_is_drawn_for_nobody_and_once_for_all_who_ask(page):
    for second in range(50):
        page.publish([view_of([share(state(second))])])
    assert page.taken == 0
    first = ask(page)
    assert [ask(page) for _ in range(20)] == [first] * 20
    assert page.taken == 1


def test_a_page_that_is_dear_to_draw_is_drawn_seldom(monkeypatch):
    monkeypatch.setattr(live, "_PAUSES", 10_000)
    page = Shown()
    page.publish([view_of([share(state(5))])])
    first = ask(page)
    page.publish([view_of([share(state(6))])])
    assert ask(page, first["digests"])["sections"] == {}
    assert page.taken == 1


@pytest.fixture
def server(page):
    page.publish([view_of([share(state(5))])])
    server = PageServer("127.0.0.1", 0, page.answer, ONLY_PAGE, "--port")
    yield server
    server.close()


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/watch.css", "/sections"])
def test_every_page_forbids_whatever_is_not_its_own(server, path):
    answer = request(server, path)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:4050", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_page_of_this_machine_answers_to_no_other_name(server, host, status):
    assert request(server, host=host).status == status


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/page.py", "//page.js/..", "/x"])
def test_there_is_nothing_else_to_get(server, path):
    assert request(server, path).status == 404


@pytest.mark.parametrize("path", ["/", "/sections", "/watch.js", "/x"])
@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND"]
)
def test_nothing_can_be_written(server, method, path):
    assert request(server, path, method=method).status == 501


@pytest.mark.parametrize(
    ("path", "host", "method", "status"),
    [("/x", None, "GET", 404), ("/", "evil.example", "GET", 403), ("/", None, "POST", 501)],
)
def test_an_error_forbids_what_a_page_forbids(server, path, host, method, status):
    answer = request(server, path, host, method)
    assert answer.status == status
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "Python" not in answer.headers["Server"]


def test_a_second_name_of_the_host_is_looked_at_as_the_first_is(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in raw.recv(100)


def test_the_shell_has_a_language_a_title_and_no_inline_script():
    shell = parse(render_shell("a <b>", "/watch/", "watch.css"))
    assert "style" not in shell.tags
    assert shell.text.count("a <b>") == 2
    assert 'src="/watch/page.js"' in render_shell("t", "/watch/", "watch.css")
    assert '<html lang="en">' in render_shell("t", "/", "watch.css")


@given(NAMES, st.integers(30, 200))
def test_text_fits_the_terminal_and_has_no_control_characters(name, width):
    view = view_of([share(state(5)), share(state(1))], topic=name, query=name)
    lines = format_text([view], NOON + 10 * SECOND, width)
    assert [escape_controls(line) for line in lines] == lines
    assert all(cell_width(line) <= width for line in lines)


@pytest.mark.parametrize("width", [40, 80])
def test_a_thousand_partitions_fit_a_terminal_and_the_one_that_holds_back_is_named(width):
    shares = [share(state(50 if n != 7 else 1)) for n in range(1_000)]
    views = [view_of(shares, topic="a-long-topic-name.of.some-company", query="/data/trips")]
    lines = format_text(views, NOON + 60 * SECOND, width)
    assert all(cell_width(line) <= width for line in lines)
    assert len(lines) < 50
    (row,) = [line for line in lines if line.startswith("*")]
    assert row.split()[:4] == ["*", "7", "49", "s"]
    assert "... and 988 more partitions" in lines


def test_partitions_of_several_topics_keep_their_numbers_in_a_narrow_terminal():
    topics = {f"{name}-of-a-very-long-name-indeed": name for name in ("first", "second")}
    log = QueryLog("q")
    (moment,) = history([share(state(5)), share(state(1))])
    parts = dict(zip(topics, moment.offset.partitions.values(), strict=True))
    split = {Partition(topic, 31): each for topic, each in parts.items()}
    offset = replace(moment.offset, partitions=split)
    log.add(0, BatchReport(NOON, (offset.to_json(),)), NOON)
    lines = format_text([log.view(NOON)], NOON, 40)
    assert sum(" 31 " in line for line in lines) == 2
    assert all(cell_width(line) <= 40 for line in lines)


def test_json_has_what_is_shown():
    (shown,) = to_json([view_of([share(state(5)), share(state(1))])])
    (stream,) = shown["streams"]
    assert json.loads(json.dumps(shown)) == shown
    assert [each["holds_back"] for each in stream["partitions"]] == [True, False]
    assert stream["findings"][0]["fix"]
    assert stream["cti_us"] == NOON + SECOND


def test_a_partition_that_the_broker_no_longer_lists_is_named_missing_everywhere():
    missing = {Partition("topic", 7): share(state(3))}
    view = view_of([share(state(5))], missing=missing)
    (html,) = render_sections([view]).values()
    assert "topic 7 missing: the broker no longer lists it" in " ".join(parse(html).text)
    assert any(re.search(r"\* +7 .*missing", line) for line in format_text([view], NOON, 100))
    assert to_json([view])[0]["streams"][0]["missing"] == [["topic", 7]]


def test_the_text_is_refreshed_in_place_as_high_as_the_terminal_and_only_if_it_changed(
    monkeypatch, capsys
):
    class Watched:
        def __init__(self):
            self.views = [view_of([share(state(5)) for _ in range(9)])]

        def read(self):
            pass

        def take_views(self):
            return self.views

        def take_stores(self):
            return []

    watched, screens = Watched(), []

    def look_four_times(show, least_s):
        for views in (watched.views, watched.views, [], []):
            watched.views = views
            show()
            screens.append(capsys.readouterr().out)

    monkeypatch.setattr(command, "_repeat", look_four_times)
    monkeypatch.setattr(command, "read_wall_clock", lambda: NOON)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "9")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    command._show_text(watched)
    first, again, emptied, empty = screens
    assert first.startswith("\x1b[H\x1b[2J")
    assert len(first.splitlines()) == 8
    assert emptied.startswith("\x1b[H\x1b[2J")
    assert "topic" in first
    assert "topic" not in emptied
    assert (again, empty) == ("", "")


def test_a_port_that_is_taken_is_refused_by_its_option(server, capsys, tmp_path):
    assert main(["watch", str(tmp_path), "--port", str(server.port)]) == 1
    error = capsys.readouterr().err
    assert "cannot be listened on" in error
    assert "--port" in error


@pytest.mark.parametrize(
    ("host", "step"),
    [("no.such.host.invalid", "correct the host"), ("192.0.2.1", "correct the host")],
)
def test_a_host_that_is_not_this_machine_is_refused_by_its_name(capsys, tmp_path, host, step):
    assert main(["watch", str(tmp_path), "--host", host, "--port", "0"]) == 1
    error = capsys.readouterr().err
    assert host in error
    assert f"next step: {step}" in error
    assert "--port" not in error


def test_options_of_brokers_are_checked_before_anything_is_shown(capsys, tmp_path):
    given = ["watch", str(tmp_path), "--json", "--bootstrap-servers", "h:1"]
    assert main([*given, "--option", "noSuchThing=1"]) == 1
    assert "nosuchthing" in capsys.readouterr().err.lower()
    assert main([*given, "--option", "secret"]) == 1
    assert "secret" not in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--json", "--option", "a=b"]) == 1
    assert "--option is about brokers, and --bootstrap-servers is" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--json", "--bootstrap-servers", ""]) == 1
    assert "option 'kafka.bootstrap.servers': it must be specified" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["watch", "", "--json"], ["explain", "--checkpoint", ""]])
def test_an_empty_text_is_no_checkpoint(capsys, given):
    """It was the directory of the process, as where a variable of a shell is not set."""
    assert main(given) == 1
    assert "an empty text does not name a checkpoint; accepted: " in capsys.readouterr().err


def test_the_default_is_this_machine_alone():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["checkpoint"]).host == "127.0.0.1"
