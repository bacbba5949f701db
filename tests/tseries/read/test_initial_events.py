"""A new subscriber gets the initial events of the moment when it began, once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import batch
from tseries.compaction_model import RANGES, STEPS, Model, run
from tseries.limits import set_limits
from tseries.subscriber import Client, make

from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model.ranges import (
    NO_EVENTS,
    format_initial,
    parse_initial,
    parse_range,
)
from pyspark_tseries.storage import snapshot as heads
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.store import Store


@pytest.fixture
def edited(tmp_path):
    """0:A, 1:B, 2 edits 0, 3 edits 0, 4:C at 10 ms; and another series."""
    store = make(tmp_path / "s")
    store.append(batch(("a", 0), ("a", 0), ("b", 5)), clock=lambda: 1000)
    store.append(batch(edits=[("a", 0), ("a", 0)]), clock=lambda: 1000)
    store.append(batch(("a", 10_000)), clock=lambda: 1000)
    return tmp_path / "s"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("limit 1", [4]),
        ("limit 3", [1, 3, 4]),
        ("limit 9", [0, 1, 3, 4]),
        ("unlimited", [0, 1, 3, 4]),
        ("last 9MS", [3, 4]),
        ("last 9MS limit 1", [4]),
        ("none", []),
    ],
)
def test_first_come_the_last_entries_of_the_latest_edits(edited, text, expected):
    got = Client(edited, parse_initial(text)).poll()
    assert [row[1] for row in got if row[0] == "a"] == expected
    assert parse_initial(format_initial(parse_initial(text))) == parse_initial(text)


def test_known_position_gets_all_later_events_and_others_the_range(edited):
    got = Client(edited, parse_initial("limit 2"), {"a": 2}).poll()
    assert got == [("a", 2), ("a", 3), ("a", 4), ("b", 0)]
    assert Client(edited, NO_EVENTS, {"a": 5}).poll() == []


def test_known_position_counts_events_that_are_gone_as_missed(tmp_path):
    store = make(tmp_path / "s", "limit 2")
    store.append(batch(*(("a", n) for n in range(9))))
    compact(str(tmp_path / "s"))
    client = Client(tmp_path / "s", NO_EVENTS, {"a": 4, "unknown": 3})
    assert (client.poll(), client.position.missed) == ([("a", 7), ("a", 8)], 3)


def test_retention_hides_events_from_the_initial_range_only(tmp_path):
    store = make(tmp_path / "s", "limit 2")
    store.append(batch(*(("a", n) for n in range(9))))
    client = Client(tmp_path / "s", parse_initial("unlimited"))
    assert client.poll() == [("a", 7), ("a", 8)]
    store.append(batch(*(("a", 9 + n) for n in range(5))))
    assert client.poll() == [("a", n) for n in range(9, 14)]


def test_a_task_needs_of_the_head_only_what_its_series_may_show(tmp_path, monkeypatch):
    store = make(tmp_path / "s", "limit 2")
    for number in range(4):
        store.append(batch(*((name, 10 * number) for name in "abc")))
    set_retained_range(store, parse_range("limit 3"), 50, "me")
    store.append(batch(("c", 60)))
    set_limits(monkeypatch, batch_rows=2, task_rows=4)
    everything = [*(("a", n) for n in (2, 3)), *(("b", n) for n in (2, 3))]
    everything += [("c", n) for n in (2, 3, 4)]
    for few in (heads.SMALL_INDEX_ROWS, 0):
        set_limits(monkeypatch, index_rows=few)
        assert sorted(Client(tmp_path / "s", parse_range("unlimited")).drain()) == everything


def test_initial_events_in_many_batches_are_those_of_the_start(tmp_path):
    store = make(tmp_path / "s")
    store.append(batch(*((f"s{n}", n) for n in range(7)), ("s3", 9)))
    client = Client(tmp_path / "s", parse_initial("limit 2"))
    assert client.poll(3) == [("s0", 0), ("s1", 0), ("s2", 0)]
    store.append(batch(("s3", 9), ("s9", 9)))
    compact(str(tmp_path / "s"))
    assert client.poll(1) == [("s3", 0), ("s3", 1)]
    assert client.drain(2)[5:] == [("s4", 0), ("s5", 0), ("s6", 0), ("s3", 2), ("s9", 0)]


def five_series(path, retained):
    store = make(path, retained)
    for n in range(5):
        store.append(batch(*((name, 10 * n + n) for name in "abcde")))
    return store


@pytest.mark.thorough
@pytest.mark.parametrize("retained", ["unlimited", "limit 4", "last 30MS"])
@pytest.mark.parametrize("narrower", ["limit 1", "last 0MS", "limit 2 last 5MS"])
def test_initial_events_stay_the_same_if_the_range_gets_smaller(tmp_path, retained, narrower):
    store = five_series(tmp_path / "s", retained)
    expected = Client(tmp_path / "s", parse_range("unlimited")).drain()
    client = Client(tmp_path / "s", parse_range("unlimited"))
    client.poll(1)
    set_retained_range(store, parse_range(narrower), 100, "me")
    assert client.drain(1) == expected
    assert client.position.missed == 0


def test_initial_events_that_compaction_removes_count_as_missed(tmp_path):
    store = five_series(tmp_path / "s", "limit 4")
    client = Client(tmp_path / "s", parse_range("unlimited"))
    assert client.poll(1) == [("a", n) for n in range(1, 5)]
    set_retained_range(store, parse_range("limit 1"), 100, "me")
    assert client.poll(1) == [("b", n) for n in range(1, 5)]
    assert compact(str(tmp_path / "s")).removed_events == 20
    assert client.drain(1)[8:] == [("c", 4), ("d", 4), ("e", 4)]
    assert client.position.missed == 9
    store.append(batch(("a", 99)))
    assert client.drain(1)[-1] == ("a", 5)
    assert client.position.missed == 9


def test_initial_events_stay_the_same_if_the_range_gets_larger(tmp_path):
    store = five_series(tmp_path / "s", "limit 2")
    client = Client(tmp_path / "s", parse_range("unlimited"))
    client.poll(1)
    set_retained_range(store, parse_range("unlimited"), 100, "me")
    assert client.drain(1) == [(name, n) for name in "abcde" for n in (3, 4)]


@settings(max_examples=60)
@given(
    st.sampled_from(RANGES),
    st.lists(STEPS, min_size=1, max_size=6),
    st.lists(STEPS, max_size=5),
    st.sampled_from(["unlimited", "limit 2", "last 1MS"]),
)
def test_initial_events_are_delivered_or_counted_as_missed(
    tmp_path_factory, retained, before, meanwhile, asked
):
    path = tmp_path_factory.mktemp("program") / "s"
    make(path, retained)
    model = Model(retained)
    for kind, what in before:
        model.now += 1000
        run(path, Store.open(str(path)), model, kind, what)
    expected = Client(path, parse_range(asked)).poll() or []
    client, steps = Client(path, parse_range(asked)), iter(meanwhile)
    while client.position.initial:
        client.poll(1)
        kind, what = next(steps, ("reopen", 0))
        model.now += 1000
        run(path, Store.open(str(path)), model, kind, what)
    assert len(client.got) + client.position.missed == len(expected)
    assert set(client.got) <= set(expected)
    assert len(set(client.got)) == len(client.got)


def test_a_store_that_was_empty_has_no_initial_events(tmp_path):
    store = make(tmp_path / "s")
    client = Client(tmp_path / "s")
    assert client.poll() is None
    store.append(batch(("a", 1), ("a", 2)))
    start = client.position
    assert client.poll() == [("a", 0), ("a", 1)]
    assert client.position.beginning() == start
