"""A subscriber gets the initial events, then every event once, in order, whatever happens."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import VALUE, batch
from tseries.maintain.test_compaction import RANGES, STEPS, Model, run

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model.retention import RetainedRange, parse_range
from pyspark_tseries.storage import head_files
from pyspark_tseries.store import store as storage
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.store import Store
from pyspark_tseries.subscribe import delivery as deliveries
from pyspark_tseries.subscribe import follower
from pyspark_tseries.subscribe.delivery import deliver
from pyspark_tseries.subscribe.follower import Follower
from pyspark_tseries.subscribe.position import (
    INITIAL_DEFAULT,
    NO_EVENTS,
    Initial,
    Position,
    format_initial,
    parse_initial,
    parse_starts,
)


def make(path, retained="unlimited"):
    return Store.create(str(path), [VALUE], parse_range(retained), min_retention_us=0)


class Client:
    """A subscriber that is restarted before every batch."""

    def __init__(self, path, initial=INITIAL_DEFAULT, starts=None):
        self.path, self.initial = str(path), Initial(initial, starts or {})
        self.position = Follower(self.path, self.initial).begin()
        self.got = []

    def poll(self, most=None):
        """The events of the next batch, None where there is none; read twice, as on a retry."""
        follows = Follower(self.path, self.initial)
        end = follows.end(self.position, most)
        end = Position.from_json(json.loads(json.dumps(end.to_json(), sort_keys=True)))
        if end == self.position:
            return None
        rows = [rows_of(follows.tasks(self.position, end)) for _ in range(2)]
        assert rows[0] == rows[1]
        self.position = end
        self.got += rows[0]
        return rows[0]

    def drain(self, most=None):
        while self.poll(most) is not None:
            pass
        return self.got


def rows_of(tasks):
    rows = []
    for task in tasks:
        for part in deliver(task):
            columns = (part[name].to_pylist() for name in ("series", "sequence"))
            rows += zip(*columns, strict=True)
    return rows


# -- initial events ------------------------------------------------------------------------------


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


def test_a_known_position_gets_every_event_from_there_on_and_others_the_range(edited):
    got = Client(edited, parse_initial("limit 2"), {"a": 2}).poll()
    assert got == [("a", 2), ("a", 3), ("a", 4), ("b", 0)]
    assert Client(edited, NO_EVENTS, {"a": 5}).poll() == []


def test_what_a_known_position_asks_for_in_vain_is_counted_as_missed(tmp_path):
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
    set_retained_range(store, parse_range("limit 3"), 50)
    store.append(batch(("c", 60)))
    monkeypatch.setattr(deliveries, "ROWS_PER_BATCH", 2)
    monkeypatch.setattr(follower, "ROWS_PER_TASK", 4)
    everything = [*(("a", n) for n in (2, 3)), *(("b", n) for n in (2, 3))]
    everything += [("c", n) for n in (2, 3, 4)]
    for few in (head_files.FEW_SERIES, 0):
        monkeypatch.setattr(head_files, "FEW_SERIES", few)
        assert sorted(Client(tmp_path / "s", parse_range("unlimited")).drain()) == everything


def test_initial_events_are_those_of_the_start_however_many_batches_they_take(tmp_path):
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


@pytest.mark.parametrize("retained", ["unlimited", "limit 4", "last 30MS"])
@pytest.mark.parametrize("narrower", ["limit 1", "last 0MS", "limit 2 last 5MS"])
def test_initial_events_come_though_the_range_gets_smaller_meanwhile(tmp_path, retained, narrower):
    store = five_series(tmp_path / "s", retained)
    expected = Client(tmp_path / "s", parse_range("unlimited")).drain()
    client = Client(tmp_path / "s", parse_range("unlimited"))
    client.poll(1)
    set_retained_range(store, parse_range(narrower), 100)
    assert client.drain(1) == expected
    assert client.position.missed == 0


def test_initial_events_that_compaction_removes_meanwhile_are_missed_by_count(tmp_path):
    store = five_series(tmp_path / "s", "limit 4")
    client = Client(tmp_path / "s", parse_range("unlimited"))
    assert client.poll(1) == [("a", n) for n in range(1, 5)]
    set_retained_range(store, parse_range("limit 1"), 100)
    assert client.poll(1) == [("b", n) for n in range(1, 5)]
    assert compact(str(tmp_path / "s")).removed_events == 20
    assert client.drain(1)[8:] == [("c", 4), ("d", 4), ("e", 4)]
    assert client.position.missed == 9
    store.append(batch(("a", 99)))
    assert client.drain(1)[-1] == ("a", 5)
    assert client.position.missed == 9


def test_initial_events_are_no_more_where_the_range_gets_larger_meanwhile(tmp_path):
    store = five_series(tmp_path / "s", "limit 2")
    client = Client(tmp_path / "s", parse_range("unlimited"))
    client.poll(1)
    set_retained_range(store, parse_range("unlimited"), 100)
    assert client.drain(1) == [(name, n) for name in "abcde" for n in (3, 4)]


@settings(max_examples=60)
@given(
    st.sampled_from(RANGES),
    st.lists(STEPS, min_size=1, max_size=6),
    st.lists(STEPS, max_size=5),
    st.sampled_from(["unlimited", "limit 2", "last 1MS"]),
)
def test_initial_events_are_delivered_or_missed_whatever_happens_meanwhile(
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


V1_OFFSET = {
    **{"after": None, "began": 4, "commit": 4, "initial": True, "missed": 0, "seen": 25},
    **{"upto": "b", "version": 1},
}


def test_a_position_of_version_1_goes_on_where_it_was(tmp_path):
    store = five_series(tmp_path / "s", "limit 2")
    client = Client(tmp_path / "s", parse_range("unlimited"))
    client.position = Position.from_json({**V1_OFFSET, "store": store.id})
    assert client.poll(1) == [("c", 3), ("c", 4)]
    set_retained_range(store, parse_range("limit 1"), 100)
    assert client.drain(1)[2:] == [("d", 4), ("e", 4)]
    assert client.position.missed == 2


def test_a_store_that_was_empty_has_no_initial_events(tmp_path):
    store = make(tmp_path / "s")
    client = Client(tmp_path / "s")
    assert client.poll() is None
    store.append(batch(("a", 1), ("a", 2)))
    start = client.position
    assert client.poll() == [("a", 0), ("a", 1)]
    assert client.position.beginning() == start


# -- live events ---------------------------------------------------------------------------------


def test_a_batch_ends_inside_a_commit_where_that_is_larger_than_the_most(tmp_path):
    store = make(tmp_path / "s")
    client = Client(tmp_path / "s")
    client.poll()
    store.append(batch(("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2)))
    store.append(batch(("a", 3), ("d", 1)))
    assert client.poll(2) == [("a", 0), ("a", 1)]
    compact(str(tmp_path / "s"))
    assert client.poll(2) == [("b", 0), ("c", 0)]
    assert client.poll(2) == [("c", 1)]
    assert client.poll(2) == [("a", 2), ("d", 0)]
    assert client.poll(2) is None


def test_series_are_divided_among_tasks_and_each_comes_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "ROWS_PER_TASK", 10)
    monkeypatch.setattr(deliveries, "ROWS_PER_BATCH", 4)
    store = make(tmp_path / "s")
    store.append(batch(("a", 0)))
    client = Client(tmp_path / "s", NO_EVENTS)
    client.poll()
    for n in range(4):
        store.append(batch(*((f"s{i:02}", n) for i in range(20))))
    follows = Follower(client.path, client.initial)
    end = follows.end(client.position, None)
    tasks = follows.tasks(client.position, end)
    parts = [rows_of([task]) for task in tasks]
    assert len([part for part in parts if part]) > 4
    assert [row for part in parts for row in part] == [
        (f"s{i:02}", n) for i in range(20) for n in range(4)
    ]


def test_a_subscriber_that_was_away_for_many_commits_goes_on_without_gap_or_double(tmp_path):
    from pyspark_tseries.maintain.background import clean

    store = make(tmp_path / "s")
    store.append(batch(("a", 0)))
    client = Client(tmp_path / "s")
    client.poll()
    for n in range(120):
        store.append(batch(("a", n), (f"b{n % 3}", n)))
        if n in (40, 80, 110):
            compact(str(tmp_path / "s"))
    clean(store, 2**60)
    storage._OPEN.clear()
    got = client.drain(7)[1:]
    assert sorted(got) == sorted(
        [("a", n) for n in range(1, 121)] + [(f"b{k}", n) for k in range(3) for n in range(40)]
    )
    for name in ("a", "b0", "b1", "b2"):
        mine = [row[1] for row in got if row[0] == name]
        assert mine == sorted(mine)
    assert client.position.missed == 0


def test_what_compaction_removed_before_the_subscriber_came_is_missed_by_count(tmp_path):
    store = make(tmp_path / "s", "limit 2")
    store.append(batch(("a", 0)))
    client = Client(tmp_path / "s")
    client.poll()
    for n in range(6):
        store.append(batch(("a", n)))
    compact(str(tmp_path / "s"))
    store.append(batch(("a", 9)))
    assert client.poll(2) == [("a", 5), ("a", 6)]
    assert client.position.missed == 4
    assert client.drain()[1:] == [("a", 5), ("a", 6), ("a", 7)]
    assert client.position.missed == 4


def test_a_position_of_another_store_or_a_newer_version_is_refused(tmp_path):
    make(tmp_path / "s").append(batch(("a", 0)))
    client = Client(tmp_path / "s")
    client.position = replace(client.position, store="another")
    with pytest.raises(UnusableStore, match="of another store"):
        client.poll()
    with pytest.raises(UnusableStore, match="format version 3"):
        Position.from_json({"version": 3})


@pytest.mark.parametrize(
    "text",
    ["[1]", '{"a": -1}', '{"a": true}', '{"a": "1"}', '{"a": 9223372036854775808}', "{", "7"],
)
def test_what_is_no_starting_sequence_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_starts(text)


def test_who_starts_beyond_the_end_gets_what_comes_from_there_on(tmp_path):
    store = make(tmp_path / "s")
    store.append(batch(("a", 1)))
    client = Client(tmp_path / "s", NO_EVENTS, parse_starts('{"a": 4611686018427387903}'))
    assert client.poll() == []
    store.append(batch(("a", 2)))
    assert (client.poll(), client.position.missed) == ([("a", 1)], 0)


# -- programs ------------------------------------------------------------------------------------


def expected_initial(model, initial):
    """Written from semantics 23.2: per series the last entries of `latestEdits`."""
    found = []
    for name, events in sorted(model.series.items()):
        originals = [n for n in model.visible(name) if events[n][1] is None]
        edits = [
            max((n for n, e in enumerate(events) if e[1] == o), default=None) for o in originals
        ]
        entries = sorted([*originals, *(n for n in edits if n is not None)])
        if initial.last_us is not None:
            low = model.last_us(name) - initial.last_us
            entries = [n for n in entries if events[n][0] >= low]
        if initial.limit is not None:
            entries = entries[max(0, len(entries) - initial.limit) :]
        found += [(name, n) for n in entries]
    return found


POLLS = st.tuples(st.just("poll"), st.one_of(st.none(), st.integers(1, 4)))


@settings(max_examples=50)
@given(
    st.sampled_from(RANGES),
    st.sampled_from(["limit 1", "limit 3", "last 1MS", "none", "unlimited"]),
    st.lists(STEPS, max_size=5),
    st.lists(st.one_of(STEPS, POLLS), max_size=12),
)
def test_any_program_delivers_every_event_once_or_counts_it(
    tmp_path_factory, retained, initial, before, steps
):
    path = tmp_path_factory.mktemp("program") / "s"
    model = Model(retained)
    make(path, retained)
    for kind, what in before:
        model.now += 1000
        run(path, Store.open(str(path)), model, kind, what)
    client = Client(path, parse_initial(initial))
    first = expected_initial(model, parse_initial(initial))
    there = {name: len(events) for name, events in model.series.items()}
    assert (client.poll() or []) == first
    compactions = 0
    for kind, what in steps:
        model.now += 1000
        if kind == "poll":
            got = client.poll(what)
            assert what is None or got is None or len(got) <= what
        else:
            run(path, Store.open(str(path)), model, kind, what)
            compactions += kind in ("compact", "merge")
    got = client.drain(3)[len(first) :]
    added = [
        (name, n)
        for name, events in model.series.items()
        for n in range(there.get(name, 0), len(events))
    ]
    assert len(set(got)) == len(got)
    assert set(got) <= set(added)
    assert len(got) + client.position.missed == len(added)
    assert compactions or not client.position.missed
    for name in model.series:
        mine = [row[1] for row in got if row[0] == name]
        assert mine == sorted(mine)


def test_the_filters_of_a_position_divide_all_events_in_two():
    rows = [(c, name, n) for c in range(3) for name in "ab" for n in range(2)]
    names = ("commit", "series", "sequence")
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    for after in (None, ("a", 0), ("a", 1), ("b", 0)):
        position = Position("s", 0, None, False, 0, after, 0, 0)
        early, late = (
            table.filter(rule(position)) for rule in (deliveries.up_to, deliveries.after)
        )
        assert early.num_rows + late.num_rows == len(rows)
        assert early.num_rows == 4 + (
            0 if after is None else "ab".index(after[0]) * 2 + after[1] + 1
        )


def test_the_default_initial_range_is_the_last_event():
    assert RetainedRange(limit=1) == INITIAL_DEFAULT
