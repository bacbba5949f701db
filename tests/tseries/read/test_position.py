"""A subscriber gets every later event once, in order, or counts it as missed."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import batch, forget_stores
from tseries.compaction_model import RANGES, STEPS, Model, run
from tseries.limits import set_limits
from tseries.subscriber import Client, make, rows_of

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model.ranges import (
    DEFAULT_INITIAL,
    NO_EVENTS,
    RetainedRange,
    parse_initial,
    parse_start_sequences,
)
from pyspark_tseries.read import delivery as deliveries
from pyspark_tseries.read.delivery import Position
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.store.store import Store

# -- live events ---------------------------------------------------------------------------------


def test_batch_ends_inside_a_commit_larger_than_its_maximum(tmp_path):
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
    set_limits(monkeypatch, task_rows=10, batch_rows=4)
    store = make(tmp_path / "s")
    store.append(batch(("a", 0)))
    client = Client(tmp_path / "s", NO_EVENTS)
    client.poll()
    for n in range(4):
        store.append(batch(*((f"s{i:02}", n) for i in range(20))))
    follows = Subscription(client.path, client.initial)
    end = follows.find_end(client.position, None)
    tasks = follows.plan_tasks(client.position, end)
    parts = [rows_of([task]) for task in tasks]
    assert len([part for part in parts if part]) > 4
    assert [row for part in parts for row in part] == [
        (f"s{i:02}", n) for i in range(20) for n in range(4)
    ]


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_subscriber_after_many_commits_gets_each_event_once(tmp_path):
    from pyspark_tseries.maintain.background import remove_obsolete_files

    store = make(tmp_path / "s")
    store.append(batch(("a", 0)))
    client = Client(tmp_path / "s")
    client.poll()
    for n in range(120):
        store.append(batch(("a", n), (f"b{n % 3}", n)))
        if n in (40, 80, 110):
            compact(str(tmp_path / "s"))
    remove_obsolete_files(store, 2**60)
    forget_stores()
    got = client.drain(7)[1:]
    assert sorted(got) == sorted(
        [("a", n) for n in range(1, 121)] + [(f"b{k}", n) for k in range(3) for n in range(40)]
    )
    for name in ("a", "b0", "b1", "b2"):
        mine = [row[1] for row in got if row[0] == name]
        assert mine == sorted(mine)
    assert client.position.missed == 0


def test_subscriber_after_a_compaction_counts_removed_events_as_missed(tmp_path):
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


def test_a_position_of_version_1_is_read_for_ever():
    sample = Path(__file__).parents[1] / "formats/position-v1.json"
    read = json.loads(sample.read_text())
    position = Position.from_json(read)
    assert position.to_json() == read
    assert (position.commit, position.after, position.commit_id.number) == (5, ("b", 2), 5)
    assert (position.retained, position.cti, position.missed) == ("limit 3 last 1H", 7, 1)


def test_a_position_of_another_store_or_version_is_refused(tmp_path):
    make(tmp_path / "s").append(batch(("a", 0)))
    client = Client(tmp_path / "s")
    client.position = replace(client.position, store="another")
    with pytest.raises(UnusableStore, match="belongs to another store"):
        client.poll()
    with pytest.raises(UnusableStore, match="format version 2"):
        Position.from_json({"version": 2, "store": ""})


@pytest.mark.parametrize("offset", [5, {"trips": {"0": 5}}, {"version": 1, "settings": {}}])
def test_an_offset_of_another_source_is_refused_by_name(offset):
    """Of the sources `rate`, `kafka` and `timestream`."""
    with pytest.raises(UnusableStore, match=r"another source wrote .* with a new checkpoint"):
        Position.from_json(offset)


@pytest.mark.parametrize(
    "text",
    ["[1]", '{"a": -1}', '{"a": true}', '{"a": "1"}', '{"a": 9223372036854775808}', "{", "7"],
)
def test_invalid_starting_sequence_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_start_sequences(text)


def test_known_position_beyond_the_end_gets_later_events(tmp_path):
    store = make(tmp_path / "s")
    store.append(batch(("a", 1)))
    client = Client(tmp_path / "s", NO_EVENTS, parse_start_sequences('{"a": 4611686018427387903}'))
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
        position = Position("s", 0, False, 0, 0, 0, "limit 1", after=after)
        early, late = (
            table.filter(rule(position))
            for rule in (deliveries.filter_up_to, deliveries.filter_after)
        )
        assert early.num_rows + late.num_rows == len(rows)
        assert early.num_rows == 4 + (
            0 if after is None else "ab".index(after[0]) * 2 + after[1] + 1
        )


def test_the_default_initial_range_is_the_last_event():
    assert RetainedRange(limit=1) == DEFAULT_INITIAL


@pytest.mark.parametrize(
    "changed",
    [{"commit": "5"}, {"after": ["a"]}, {"after": 7}, {"commit_id": [1]}, {"seen": 2**70},
     {"initial": 1}, {"other": 1}, {"store": None}],
    ids=str,
)  # fmt: skip
def test_a_damaged_position_is_refused_by_name(changed):
    position = Position("id", 1, True, 4, 9, 0, "limit 3", 2, "a", ("b", 4), 7).to_json()
    assert Position.from_json(position).after == ("b", 4)
    with pytest.raises(UnusableStore, match="offset is damaged"):
        Position.from_json({**position, **changed})
    del position["commit"]
    with pytest.raises(UnusableStore, match="offset is damaged"):
        Position.from_json(position)
