"""A follower gives each event once, in order, and goes on exactly at any of its positions."""

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import forget_stores
from tseries.compaction_model import RANGES, STEPS, Model, run
from tseries.object_store import bucket  # noqa: F401 a fixture
from tseries.subscriber import make

from pyspark_tseries import (
    HistoryChanged,
    IncompatibleValue,
    InvalidQuery,
    NoSuchStore,
    PermissionDenied,
    TimeSeries,
    UnusableStore,
)
from pyspark_tseries.client import follow as following
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.store.store import Store


@pytest.fixture
def store(tmp_path):
    return TimeSeries.create(tmp_path / "s", {"x": pa.int64()}, "unlimited", "me")


def drain(follower):
    return [(event.series, event.sequence) for event in follower]


def follow(store, *series, **named):
    return store.follow(*series, **{"timeout": 0, **named})


def test_initial_events_come_first_and_then_every_event_in_order_of_commits(store):
    for n in range(3):
        store.append("b", n)
        store.append("a", n)
    follower = follow(store, start="limit 2")
    store.append_many([{"series": name, "x": 7} for name in ("b", "a", "b")])
    store.edit("a", 0, 70)
    expected = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3), ("b", 3), ("b", 4), ("a", 4)]
    events = list(follower)
    assert [(event.series, event.sequence) for event in events] == expected
    assert (events[-1].value, events[-1].is_edit, events[-1].original.sequence) == (70, True, 0)
    assert drain(follower) == []
    store.append("c", 1)
    assert drain(follower) == [("c", 0)]


def test_default_start_is_the_stores_and_none_for_values(tmp_path):
    store = TimeSeries.create(
        tmp_path / "s", {"x": pa.int64()}, "unlimited", "me", subscription_range="limit 2"
    )
    for n in range(3):
        store.append("a", n)
    values = follow(store, values=True)
    assert drain(follow(store)) == [("a", 1), ("a", 2)]
    store.edit("a", 0, 9)
    assert list(values) == [("a", 9)]
    assert list(follow(store, values=True, start="limit 1")) == [("a", 9)]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"series": "a/1"}, ["a/1"]),
        ({"series": ["b", "a/2", "new"]}, ["a/2", "b", "new"]),
        ({"prefix": "a/"}, ["a/1", "a/2"]),
        ({"pattern": "*[2w]"}, ["a/2", "new"]),
        ({}, ["a/1", "a/2", "b", "new"]),
        ({"series": []}, []),
    ],
)
def test_only_chosen_series_are_followed_also_those_that_begin_later(store, chosen, expected):
    for name in ("a/1", "a/2", "b"):
        store.append(name, 0)
    follower = follow(store, **chosen, start="unlimited")
    assert drain(follower) == [(name, 0) for name in expected if name != "new"]
    store.append_many([{"series": name, "x": 1} for name in ("a/1", "a/2", "b", "new")])
    assert [series for series, _ in drain(follower)] == expected
    assert drain(follow(store, position=follower.position)) == []
    assert drain(follow(store, **chosen, position=follower.position)) == []


STARTS = ["limit 1", "limit 3", "last 1MS", "none", "unlimited"]
CHOICES = [{}, {"series": "a"}, {"prefix": "b"}, {"pattern": "[ab]"}]


@pytest.mark.outside_ci
@pytest.mark.thorough
@settings(max_examples=40)
@given(
    st.sampled_from(RANGES),
    st.sampled_from(STARTS),
    st.sampled_from(CHOICES),
    st.lists(STEPS, max_size=6),
    st.lists(st.one_of(STEPS, st.just(("take", 1))), max_size=12),
    st.integers(1, 4),
)
def test_follower_restarted_after_any_event_gives_all_once_or_counts_them_as_missed(
    tmp_path_factory, retained, start, chosen, before, steps, most
):
    path = tmp_path_factory.mktemp("program") / "s"
    model = Model(retained)
    make(path, retained)
    for kind, what in before:
        model.now += 1000
        run(path, Store.open(str(path)), model, kind, what)
    names = [name for name in "ab" if name in ("a" if "series" in chosen else "ab")]
    names = ["b"] if "prefix" in chosen else names
    there = {name: len(model.series.get(name, [])) for name in names}
    client = TimeSeries.open(path, auto_compact=False)
    first = drain(follow(client, **chosen, start=start))
    position = follow(client, **chosen, start=start).position
    got, compacted = [], False
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(following, "MAX_HELD_EVENTS", most)
        limits.setattr(following, "CONVERTED_AT_ONCE", 2)
        for kind, what in [*steps, *[("take", 1)] * (len(first) + 60)]:
            model.now += 1000
            if kind != "take":
                run(path, Store.open(str(path)), model, kind, what)
                compacted |= kind in ("compact", "merge")
                continue
            client = TimeSeries.open(path, auto_compact=False)
            follower = follow(client, position=position)
            event = next(follower, None)
            got += [] if event is None else [(event.series, event.sequence)]
            position, missed = follower.position, follower.missed
    added = [(n, i) for n in names for i in range(there[n], len(model.series.get(n, [])))]
    live = [key for key in got if key in added]
    assert len(set(got)) == len(got)
    assert set(got) <= {*first, *added}
    assert len(got) + missed == len(first) + len(added)
    assert compacted or not missed
    assert [key for key in got if key not in added] == [key for key in first if key in got]
    for name in names:
        mine = [key for key in live if key[0] == name]
        assert mine == sorted(mine)


def test_a_start_at_a_sequence_gives_every_event_from_it(store):
    for n in range(4):
        store.append("a", n)
        store.append("b", n)
    store.edit("a", 0, 9)
    follower = follow(store, starting_sequence={"a": 2, "new": 0})
    expected = [("a", 2), ("a", 3), ("a", 4)]
    assert drain(follow(store, "a", starting_sequence={"a": 2}, start="limit 1")) == expected
    mixed = drain(follow(store, starting_sequence={"a": 2}, start="limit 1"))
    assert mixed == [*expected, ("b", 3)]
    got = [next(follower)]
    store.append("new", 1)
    store.append("a", 5)
    again = follow(store, position=follower.position)
    got += again
    keys = [(event.series, event.sequence) for event in got]
    assert keys == [*expected, ("new", 0), ("a", 5)]
    assert got[2].original.sequence == 0
    assert drain(follow(store, position=again.position)) == []


def test_events_before_a_known_sequence_that_are_gone_are_missed(tmp_path):
    path = tmp_path / "s"
    store = TimeSeries.create(
        path, {"x": pa.int64()}, "limit 2", "me", min_retention_age=timedelta(0)
    )
    store.append_many([{"series": "a", "x": n} for n in range(6)])
    store.compact()
    follower = follow(store, starting_sequence={"a": 1})
    assert (drain(follower), follower.missed) == ([("a", 4), ("a", 5)], 3)


def test_initial_events_that_go_before_the_first_one_is_given_are_missed(tmp_path):
    path = tmp_path / "s"
    store = TimeSeries.create(
        path, {"x": pa.int64()}, "limit 2", "me", min_retention_age=timedelta(0)
    )
    store.append_many([{"series": name, "x": n} for name in "ab" for n in range(2)])
    position = follow(store, start="unlimited").position
    store.append_many([{"series": "a", "x": n} for n in (2, 3)])
    store.compact()
    late = follow(store, position=position)
    assert drain(late) == [("b", 0), ("b", 1), ("a", 2), ("a", 3)]
    assert late.missed == 2


@pytest.mark.parametrize(
    ("starts", "problem"),
    [
        ({"b": 0}, "names series 'b', which is not followed"),
        ({"a": -1}, "-1 is negative"),
        ({"a": 10**30}, "is too large"),
        ({"a": "x"}, "'x' is not a whole number"),
        ({7: 1}, "7 is not the name of a series"),
        ("a", "'a' is not a mapping"),
    ],
)
def test_wrong_known_sequences_are_refused(store, starts, problem):
    with pytest.raises(InvalidQuery, match=problem):
        store.follow("a", starting_sequence=starts)


def test_known_sequences_need_the_right_to_see_the_past(tmp_path):
    policy = {"boss": ["own"], "reader": ["read"]}
    TimeSeries.create(tmp_path / "s", {}, "unlimited", "boss", policy=policy)
    with pytest.raises(PermissionDenied, match="query_obsolete"):
        TimeSeries.open(tmp_path / "s", "reader").follow(starting_sequence={"a": 0})


def test_a_follower_that_catches_up_reads_few_batches(store, monkeypatch):
    monkeypatch.setattr(following, "MAX_HELD_EVENTS", 10)
    follower = follow(store)
    for _ in range(4):
        store.append_many([{"series": f"s{n % 7}", "x": n} for n in range(50)])
    sizes = {
        id(follower._progress.batch): follower._progress.batch.table.num_rows for _ in follower
    }
    assert list(sizes.values()) == [10, 190]


@pytest.mark.outside_ci
def test_a_follower_of_an_object_store_gives_all_once(bucket):  # noqa: F811 the fixture
    options = {"storage_options": bucket.options}
    store = TimeSeries.create(bucket.uri("follow"), {"x": pa.int64()}, "unlimited", **options)
    store.append("a", 0)
    follower = store.follow(poll=0.01, timeout=30)
    assert next(follower).value == 0
    other = TimeSeries.open(bucket.uri("follow"), **options)
    other.append_many([{"series": name, "x": 1} for name in "ab"])
    assert [next(follower).series for _ in "ab"] == ["a", "b"]
    saved = follower.position
    other.edit("b", 0, 2)
    assert [next(one).value for one in (follower, store.follow(position=saved))] == [2, 2]
    assert follow(store)._poll_s == following.REMOTE_POLL_S


def test_position_between_events_of_one_commit_is_exact(store, monkeypatch):
    monkeypatch.setattr(following, "CONVERTED_AT_ONCE", 2)
    follower = follow(store)
    rows = [(name, n) for name in "abc" for n in range(4)]
    store.append_many([{"series": name, "x": n} for name, n in rows])
    store.append("a", 4)
    for i in range(14):
        rest = drain(follow(store, position=follower.position))
        assert rest == [*rows, ("a", 4)][i:]
        next(follower, None)


def test_follower_far_behind_holds_few_events(store, monkeypatch):
    monkeypatch.setattr(following, "MAX_HELD_EVENTS", 10)
    monkeypatch.setattr(following, "CATCH_UP_BYTES", 1)
    follower = follow(store)
    store.append_many([{"series": f"s{n % 7}", "x": n} for n in range(35)])
    held = [follower._progress.batch.table.num_rows for _ in follower]
    assert (len(held), max(held)) == (35, 10)


def test_every_commit_gets_through_while_another_thread_appends(store):
    follower = store.follow("a", timeout=10, poll=0.001)
    writer = threading.Thread(target=lambda: [store.append("a", n) for n in range(40)])
    writer.start()
    assert [next(follower).value for _ in range(40)] == list(range(40))
    writer.join()


def test_close_ends_an_iteration_that_waits_in_another_thread(store):
    got = []
    follower = store.follow("a", poll=60)
    waiting = threading.Thread(target=lambda: got.extend(follower))
    waiting.start()
    time.sleep(0.05)
    follower.close()
    waiting.join(10)
    assert not waiting.is_alive()
    store.append("a", 1)
    assert (got, list(follower)) == ([], [])


def test_a_with_block_closes_its_follower(store):
    store.append("a", 1)
    with store.follow("a") as follower:
        assert next(follower).value == 1
    store.append("a", 2)
    assert list(follower) == []


def test_timeout_is_from_the_last_event(store):
    began = time.monotonic()
    assert list(store.follow("a", timeout=0.2, poll=0.01)) == []
    assert 0.19 < time.monotonic() - began < 5


def test_waiting_costs_little(store):
    store.append("a", 1)
    follower = store.follow("a", timeout=0)
    list(follower)
    began = time.process_time()
    for _ in range(200):
        assert next(follower, None) is None
    # Ten seconds of waiting take 200 looks; they take less than a twentieth of a core.
    assert time.process_time() - began < 0.5


def test_async_loop_gets_the_same_and_may_be_cancelled(store):
    async def main():
        follower = store.follow("a", start="none", timeout=5, poll=0.005)
        waiting = asyncio.create_task(anext(follower))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(store.append, "a", 0)
        await asyncio.to_thread(store.append, "a", 1)
        got = []
        async for event in follower:
            got.append(event.value)
            if len(got) == 2:
                follower.close()
        return got

    assert asyncio.run(main()) == [0, 1]


def test_position_is_json_and_tells_its_series(store):
    saved = json.loads(follow(store, prefix="a").position)
    assert (saved["version"], saved["prefix"], saved["start"]) == (1, "a", "limit 1")


@pytest.mark.parametrize("text", ["", "7", "{}", "null", '{"version": 1}', "[1]", 7, b"x"])
def test_a_text_that_is_no_position_is_refused(store, text):
    with pytest.raises(InvalidQuery, match="is not a valid position"):
        store.follow(position=text)


def test_a_position_of_a_later_version_is_refused(store):
    saved = json.loads(follow(store).position)
    with pytest.raises(InvalidQuery, match="format version 2"):
        store.follow(position=json.dumps({**saved, "version": 2}))


def test_a_position_of_other_series_or_another_store_is_refused(store, tmp_path):
    saved = follow(store, "a").position
    with pytest.raises(InvalidQuery, match=r"follower of \{'series': \['a'\]\}.*'b'"):
        store.follow("b", position=saved)
    other = TimeSeries.create(tmp_path / "t", {"x": pa.int64()}, "unlimited")
    with pytest.raises(UnusableStore, match="the position belongs to another store"):
        other.follow("a", position=saved)


@pytest.mark.parametrize(
    ("argument", "value", "least"),
    [
        *(
            ("timeout", value, "0")
            for value in (-1, "1", True, timedelta(seconds=-1), float("nan"))
        ),
        *(("poll", value, "0.001") for value in (0, "1", True, [])),
    ],
)
def test_a_wrong_time_to_wait_is_refused_with_its_name_value_and_what_is_accepted(
    store, argument, value, least
):
    with pytest.raises(InvalidQuery) as caught:
        store.follow(**{argument: value})
    error = caught.value
    assert error.problem == f"{argument} {value!r} is not a time to wait"
    assert error.accepts == f"seconds or a timedelta, at least {least}"
    assert error.next_step == "correct it, or leave it out"


def test_a_wrong_start_is_refused(store):
    with pytest.raises(InvalidQuery, match=r"start 'limit 0' is not .*limit N, last DURATION"):
        store.follow(start="limit 0")
    with pytest.raises(InvalidQuery, match="series and prefix choose series"):
        store.follow("a", prefix="b")


def test_a_column_that_is_added_ends_a_follower_and_the_next_one_gives_it(store):
    follower = follow(store)
    store.append("a", 1)
    next(follower)
    spark_adds_column(store)
    with pytest.raises(IncompatibleValue, match=r"'y' double.*position=") as refused:
        next(follower)
    assert "begun since" in str(refused.value)
    again = TimeSeries.open(store._store.root).follow(position=follower.position, timeout=0)
    assert [event.value for event in again] == [{"x": 2, "y": 0.5}]


def spark_adds_column(store):
    store._store.log.add_columns(pa.schema([pa.field("y", pa.float64())]))
    TimeSeries.open(store._store.root).append("a", {"x": 2, "y": 0.5})


def test_a_right_that_is_withdrawn_ends_a_follower(tmp_path):
    policy = {"boss": ["own", "update"], "reader": ["read"]}
    boss = TimeSeries.create(tmp_path / "s", {}, "unlimited", "boss", policy=policy)
    reader = TimeSeries.open(tmp_path / "s", "reader")
    follower = reader.follow(timeout=0)
    boss.append("a", {})
    assert drain(follower) == [("a", 0)]
    boss.set_policy({"boss": ["own", "update"]})
    with pytest.raises(PermissionDenied, match="may not follow the store"):
        next(follower)
    with pytest.raises(PermissionDenied, match="may not follow the store"):
        reader.follow()


def test_a_store_that_was_put_back_is_refused_at_a_position_behind_the_copy(store, tmp_path):
    from pyspark_tseries.maintain.backup import backup

    store.append("a", 1)
    backup(store._store.location, str(tmp_path / "old"))
    follower = follow(store)
    before = follower.position
    store.append("a", 2)
    assert drain(follower) == [("a", 0), ("a", 1)]
    path = Path(store._store.root)
    path.rename(tmp_path / "gone")
    (tmp_path / "old").rename(path)
    forget_stores()
    old = TimeSeries.open(path)
    with pytest.raises(HistoryChanged, match="this position has seen"):
        old.follow(position=follower.position)
    assert drain(old.follow(position=before, timeout=0)) == [("a", 0)]
    with pytest.raises((HistoryChanged, NoSuchStore)):
        next(follower)


def test_an_erased_value_that_was_not_given_yet_is_null(store):
    follower = follow(store, "a", start="none")
    store.append("a", 1)
    store.append("a", 2)
    store.erase("a", 0, "wrong")
    assert [event.value for event in follower] == [None, 2]


def test_a_huge_series_of_initial_events_resumes_within(store, monkeypatch):
    store.append_many([{"series": name, "x": n} for name in "ab" for n in range(30)])
    monkeypatch.setattr(following, "MAX_HELD_EVENTS", 10)
    follower = follow(store, start="unlimited")
    for _ in range(37):
        next(follower)
    saved = follower.position
    compact(store._store.root)
    assert drain(follow(store, position=saved)) == [("b", n) for n in range(7, 30)]


FOLLOW = textwrap.dedent("""
    import json, os, sys
    from pyspark_tseries import TimeSeries
    from pyspark_tseries.client import follow
    follow.MAX_HELD_EVENTS, follow.CONVERTED_AT_ONCE = 7, 3
    path, saved, last = sys.argv[1:]
    try:
        state = json.load(open(saved))
    except FileNotFoundError:
        state = {"position": None, "got": []}
    store = TimeSeries.open(path, auto_compact=False)
    follower = store.follow(pattern="[ab]", start="unlimited", position=state["position"])
    if state["position"] is None:
        state["position"] = follower.position
    for event in follower:
        state["got"].append([event.series, event.sequence])
        state["position"] = follower.position
        with open(saved + ".new", "w") as file:
            json.dump(state, file)
        os.replace(saved + ".new", saved)
        if event.value == int(last):
            break
""")


APPEND = textwrap.dedent("""
    import sys, time
    from pyspark_tseries import TimeSeries
    store = TimeSeries.open(sys.argv[1], "me", auto_compact=False)
    for n in range(40, 1_000_000):
        rows = [{"series": name, "x": n} for name in "ab" for _ in range(1 + n % 4)]
        store.append_many(rows)
        if n % 7 == 0:
            store.edit("a", n // 2, n)
        if n % 20 == 0:
            store.compact()
        time.sleep(0.02)
""")


def kill_after_progress(command, progress, chance):
    """Starts a process, and kills it some time after `progress()` has changed."""
    before, until = progress(), time.monotonic() + 90
    child = subprocess.Popen(command)
    try:
        while progress() == before:
            assert time.monotonic() < until
            assert child.poll() is None
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def run_with_kills(store, tmp_path, kills, chance):
    """A follower and an appender in other processes, each killed `kills` times."""
    path, saved = store._store.root, tmp_path / "saved.json"
    for n in range(40):
        store.append_many([{"series": name, "x": n} for name in "abc"])
    last = 1_000_000
    followed = [sys.executable, "-c", FOLLOW, path, str(saved), str(last)]
    appended = [sys.executable, "-c", APPEND, path]

    def size():
        return saved.stat().st_size if saved.exists() else 0

    def commit():
        return Store.open(path).snapshot().metadata.commit

    enough = threading.Event()

    def append_until_enough():
        # A follower makes no progress without new events, so these end only after its kills.
        for n in itertools.count():
            kill_after_progress(appended, commit, random.Random(n))
            if enough.is_set() and n + 1 >= kills:
                return

    appender = threading.Thread(target=append_until_enough)
    appender.start()
    try:
        for _ in range(kills):
            kill_after_progress(followed, size, chance)
    finally:
        enough.set()
        appender.join()
    store.append("b", last)
    subprocess.run(followed, check=True, timeout=120)
    got = [tuple(key) for key in json.loads(saved.read_text())["got"]]
    table = store.range_query().for_edits().select_from(["a", "b"]).to_arrow()
    pairs = zip(*(table[name].to_pylist() for name in ("series", "sequence")), strict=True)
    stored = list(pairs)
    assert len(stored) > 82
    assert len(got) == len(set(got))
    assert set(got) == set(stored)
    for name in "ab":
        mine = [key for key in got if key[0] == name]
        assert mine == sorted(mine)
    assert store.verify() == []


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_follower_and_appender_that_are_killed_lose_and_double_nothing(store, tmp_path):
    run_with_kills(store, tmp_path, 2, random.Random(7))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_follower_and_appender_that_are_killed_often_lose_and_double_nothing(store, tmp_path):
    run_with_kills(store, tmp_path, 20, random.Random(11))


def test_a_follower_of_a_store_that_is_away_says_so_wherever_it_looks(tmp_path, store):
    for number in range(3):
        store.append("a", number)
    follower = follow(store, start="unlimited")
    next(follower)
    for number in range(3):
        store.append("a", number)
    # Its position is inside a batch, so the commit of it is looked up.
    assert len(list(itertools.islice(follower, 3))) == 3
    position = follower.position
    (tmp_path / "s").rename(tmp_path / "away")
    for ask in (lambda: follower.position, lambda: follow(store, position=position)):
        with pytest.raises(NoSuchStore, match="its mount is away"):
            ask()
    (tmp_path / "away").rename(tmp_path / "s")
    assert follower.position == position
    assert drain(follow(store, position=position)) == [("a", 4), ("a", 5)]
