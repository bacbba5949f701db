"""A chain has the hops that checkpoints and stores tell of, and how far each is behind."""

import json
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pages import NAMES
from timestream.commands_watch import look, view_of
from timestream.histories import NOON, SECOND, share, state

from pyspark_timestream.commands.watch.command import StoreReader, format_text, to_json
from pyspark_timestream.commands.watch.follow import (
    ChainStore,
    CheckpointFollower,
    QueryLinks,
    build_chain,
)
from pyspark_timestream.commands.watch.page import render_chain, render_sections
from pyspark_timestream.core.checkpoint import note_written_topic, read_written_topic
from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.report import cell_width

MINUTE = 60 * SECOND


def first(second=50, newest=60, **links):
    """A query, at `second`, that reads a topic with its newest event at `newest`."""
    clock = replace(state(second), last_us=NOON + newest * SECOND)
    return replace(view_of([share(clock)], topic="trips", query="/a"), links=QueryLinks(**links))


def second(cti_us, **links):
    subscribed = (("id1", cti_us),)
    plain = view_of([share(state(1))], query="/b")
    return replace(plain, streams=(), links=QueryLinks(subscribed, **links))


def hops_of(views, stores=()):
    chain = build_chain(views, stores)
    return {(hop.source.name, hop.target.name): hop.behind_us for hop in chain.hops}


HOURS = ChainStore("id1", "/hours", NOON + 20 * SECOND)
DAYS = ChainStore("id2", "/days", NOON - MINUTE)


def test_each_hop_is_as_far_behind_as_its_clocks_are_apart():
    views = [
        first(store=("id1", "/hours")),
        second(NOON + 5 * SECOND, store=("id2", "/days")),
    ]
    assert hops_of(views, [HOURS, DAYS]) == {
        ("trips", "/a"): 10 * SECOND,
        ("/a", "/hours"): 30 * SECOND,
        ("/hours", "/b"): 15 * SECOND,
        ("/b", "/days"): 65 * SECOND,
    }
    levels = {node.name: node.level for node in build_chain(views, [HOURS, DAYS]).nodes}
    assert levels == {"trips": 0, "/a": 1, "/hours": 2, "/b": 3, "/days": 4}


def test_without_the_stores_the_hops_are_known_and_their_distance_is_not():
    views = [first(store=("id1", "/hours")), second(NOON)]
    assert hops_of(views) == {
        ("trips", "/a"): 10 * SECOND, ("/a", "/hours"): None, ("/hours", "/b"): None,
    }  # fmt: skip


def test_a_query_that_writes_a_topic_is_before_those_that_read_it():
    back = replace(view_of([share(state(3))], topic="hourly", query="/c"))
    found = hops_of([back, first(topic="hourly")])
    assert found["/a", "hourly"] is None
    assert found["hourly", "/c"] == 0


def test_one_query_that_writes_nothing_is_no_chain():
    assert build_chain([first()], ()) is None
    assert list(render_sections([first()])) == ["q0"]


def test_what_has_ended_is_not_behind():
    ended = replace(HOURS, cti_us=FINAL_US)
    assert hops_of([first(store=("id1", "/hours")), second(FINAL_US)], [ended]) == {
        ("trips", "/a"): 10 * SECOND, ("/a", "/hours"): 0, ("/hours", "/b"): 0,
    }  # fmt: skip
    assert hops_of([second(NOON)], [ended]) == {("/hours", "/b"): None}


def test_queries_in_a_circle_are_shown_as_well():
    views = [first(topic="trips"), second(NOON, store=("id1", "/hours"))]
    chain = build_chain(views, [HOURS])
    assert all(0 <= node.level <= len(chain.nodes) for node in chain.nodes)
    assert render_chain(chain).count('class="hop"') == len(chain.hops) == 4


def test_a_box_says_how_far_it_is_behind_each_of_its_sources():
    both = replace(second(NOON), name="/e", links=QueryLinks((("id1", NOON), ("id2", NOON))))
    views = [first(store=("id1", "/hours")), both, replace(first(topic="more"), name="/c")]
    levels = render_chain(build_chain(views, [HOURS, DAYS])).split("<li>")[1:]
    distances = [re.findall('<p class="hop">(.*?)</p>', level) for level in levels]
    assert [[re.sub("<.*?>", "", text) for text in level] for level in distances] == [
        [],
        ["10 s behind topic trips", "10 s behind topic trips"],
        ["30 s behind query /a", "? behind query /c"],
        ["level with store /days", "20 s behind store /hours"],
    ]


@given(NAMES, st.integers(20, 120))
def test_hostile_names_are_text_on_the_page_and_in_the_terminal(name, width):
    views = [replace(first(store=("id1", name)), name=name), second(NOON)]
    chain = build_chain(views, [replace(HOURS, location=name)])
    html = render_chain(chain)
    assert "<script" not in html
    assert html.count("<b>") == len(chain.nodes) + len(chain.hops)
    assert "\x1b" not in html
    lines = format_text(views, NOON, width, [HOURS])
    assert all(cell_width(line) <= width for line in lines)


def test_text_and_json_have_the_hops():
    views = [first(store=("id1", "/hours")), second(NOON + 5 * SECOND)]
    text = "\n".join(format_text(views, NOON, 200, [HOURS]))
    assert "query /a to store /hours: 30 s behind" in text
    shown = to_json(views, [HOURS])
    assert shown[1]["hops"] == [["store", "/hours", "query", "/b", 15 * SECOND]]


def test_a_checkpoint_tells_what_its_query_reads_and_writes(tmp_path):
    for name in ("offsets", "commits", "sinks"):
        (tmp_path / name).mkdir()
    note = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": NOON // 1000})
    position = {"store": "id1", "commit": 3, "cti": NOON, "began": 0, "version": 1}
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", note, json.dumps(position)]))
    follower = CheckpointFollower(str(tmp_path))
    assert look(follower, NOON).links == QueryLinks((("id1", NOON),))
    assert look(follower, NOON).notes == ()
    noted = {"id": "id2", "location": "/days", "batches": [], "version": 1}
    (tmp_path / "sinks" / "tseries.json").write_text(json.dumps(noted))
    note_written_topic(tmp_path, "daily")
    links = look(follower, NOON).links
    assert (links.store, links.topic) == (("id2", "/days"), "daily")
    (tmp_path / "sinks" / "tseries.json").write_text('{"id": ')
    (tmp_path / "sinks" / "timestream.json").write_text("[]")
    links = look(follower, NOON).links
    assert (links.store, links.topic) == (None, None)


def test_a_topic_is_noted_once_and_nothing_fails_without_a_place(tmp_path):
    note_written_topic(tmp_path, "a")
    stamp = (tmp_path / "sinks" / "timestream.json").stat().st_mtime_ns
    note_written_topic(tmp_path, "a")
    assert (tmp_path / "sinks" / "timestream.json").stat().st_mtime_ns == stamp
    note_written_topic(tmp_path, "b")
    assert read_written_topic(tmp_path) == "b"
    note_written_topic(tmp_path / "absent", "a")
    assert read_written_topic(tmp_path / "absent") is None


def test_a_store_is_read_by_its_public_door_and_one_that_is_gone_is_told(tmp_path):
    from pyspark_tseries import TimeSeries

    reader = StoreReader(str(tmp_path / "s"))
    reader.read()
    assert "there is no store" in reader.facts.trouble
    TimeSeries.create(str(tmp_path / "s"), {"v": "int64"}, "unlimited")
    reader.read()
    assert (reader.facts.trouble, reader.facts.cti_us) == ("", None)
    assert reader.facts.location == str(tmp_path / "s")
