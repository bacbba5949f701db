"""An edit is an event at the end of its series that carries what it overrides, judged once."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tseries.builders import batch, new_store, stored
from tseries.meetings import Meeting, rival

from pyspark_tseries import describe
from pyspark_tseries.errors import NoSuchEvent, UpdateFailed

TESTS = str(Path(__file__).parents[2] / "lib")
ORIGINAL = ("original_sequence", "original_timestamp", "original_author")


def edits(path):
    """Sequence -> (what it edits, the original's time and author), of the edits in the table."""
    rows = stored(path, "series", "sequence", *ORIGINAL, "kind")
    assert all((row[2] is None) == (row[5] == "event") for row in rows)
    return {row[:2]: row[2:5] for row in rows if row[5] == "edit"}


# -- what an edit carries ------------------------------------------------------------------------


def test_edit_is_the_next_event_and_carries_its_original(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(
        batch(("a", 5), ("b", 6), ("a", 7), authors=["ann", "bob", "cid"]), clock=lambda: 9
    )
    rows = batch(edits=[("a", 1, 9.5), ("b", 0)])
    store.append(rows, clock=lambda: 100)
    assert edits(tmp_path / "s") == {("a", 2): (1, 7, "cid"), ("b", 1): (0, 6, "bob")}
    assert stored(tmp_path / "s", "sequence", "value", "timestamp", "author")[2] == (
        *(2, 9.5, 100, "me"),
    )


def test_edits_follow_the_appends_of_their_batch_in_input_order(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1), ("b", 1)))
    store.append(batch(("a", 9), ("a", None), edits=[("a", 1), ("b", 0), ("a", 0)]))
    assert {name: row[0] for name, row in edits(tmp_path / "s").items()} == {
        **{("a", 3): 1, ("a", 4): 0},
        **{("b", 1): 0},
    }


def test_an_original_of_the_same_batch_can_be_edited(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 1})
    store.append(
        batch(("b", 3), ("a", 5), ("a", 4), authors=["x", "y", None, None], edits=[("a", 1)])
    )
    assert edits(tmp_path / "s") == {("a", 2): (1, 5, "y")}


@pytest.mark.parametrize(("clock", "expected"), [("wall", 100), ("event", 7)])
def test_an_edit_is_stamped_by_the_commit_or_by_its_series(tmp_path, clock, expected):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 5), ("a", 7)), clock=lambda: 50)
    store.append(batch(edits=[("a", 0)], clock=clock), clock=lambda: 100)
    assert stored(tmp_path / "s")[2] == ("a", 2, expected)


def test_event_clock_gives_untimed_rows_the_newest_time_of_the_series(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 5), ("a", None), clock="event"))
    assert [row[2] for row in stored(tmp_path / "s")] == [5, 5]
    with pytest.raises(UpdateFailed, match=r"'b'.*first event has no timestamp.*'event'"):
        store.append(batch(("b", None), ("c", 1), clock="event"))


def test_an_edit_stamped_now_blocks_no_backfill(tmp_path):
    """W14, otherwise than Diffusion: `outOfOrder` looks at originals."""
    store = new_store(tmp_path / "s", {"last_us": 1000})
    store.append(batch(("a", 1)))
    store.append(batch(edits=[("a", 0)]), clock=lambda: 10**15)
    store.append(batch(("a", 2), edits=[("a", 0)]))
    assert [row[0] for row in edits(tmp_path / "s").values()] == [0, 0]


# -- what may not be edited ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (("a", 9), r"'a'.*no original 9.*no such event.*newest event is sequence 4"),
        (("a", -1), "no original -1"),
        (("nobody", 0), "'nobody'.*it is empty"),
        (("a", 3), "no original 3.*itself an edit"),
        (("a", 0), "no original 0.*discarded by the retained range"),
        (("a", 5), "no original 5.*no such event"),
    ],
)
def test_an_edit_without_an_original_stores_nothing_of_its_batch(tmp_path, target, said):
    store = new_store(tmp_path / "s", {"limit": 3})
    store.append(batch(("a", 1), ("a", 2), ("a", 3)))
    store.append(batch(edits=[("a", 2)]))
    with pytest.raises(NoSuchEvent, match=said) as failure:
        store.append(batch(("b", 1), ("a", 4), edits=[target]))
    assert "missingOriginal" in str(failure.value)
    assert len(stored(tmp_path / "s")) == 4


def test_edits_without_an_original_are_dropped_and_counted_for_good(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    store.append(batch(edits=[("a", 7), ("a", 0), ("c", 0)], missing="drop"))
    store.append(batch(edits=[("c", 3)], missing="drop"))
    assert edits(tmp_path / "s") == {("a", 1): (0, 1, "me")}
    facts = describe(str(tmp_path / "s"))
    assert (facts["dropped"], facts["last_dropped"]["series"]) == (3, "c")
    assert facts["last_dropped"]["edit_of"] == 3


def test_edits_are_judged_before_the_retention_of_their_batch(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 2})
    store.append(batch(("a", 1), ("a", 2)))
    store.append(batch(("a", 3), ("a", 4), edits=[("a", 0)]))
    assert edits(tmp_path / "s") == {("a", 4): (0, 1, "me")}


# -- against the rules, row by row ---------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ü"])
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(NAMES, st.none() | st.integers(0, 20)), max_size=4),
        st.lists(st.tuples(NAMES, st.integers(-1, 8)), max_size=4),
    ).filter(any),
    min_size=1,
    max_size=5,
)


def oracle(model, rows, targets, limit):
    """Semantics 18, edit by edit: `model` is series -> events (time, original or None)."""
    before = {name: len(events) for name, events in model.items()}
    for name, us in sorted(rows, key=lambda row: (row[1] is None, row[1] or 0)):
        events = model.setdefault(name, [])
        newest = max((event[0] for event in events), default=-1)
        events.append((max(newest, 1000) if us is None else us, None))
    for name, target in targets:
        events = model.get(name, [])
        gone = target < before.get(name, 0) - limit or target < 0
        if not gone and target < len(events) and events[target][1] is None:
            events.append((max(1000, max(event[0] for event in events)), target))


@given(BATCHES, st.sampled_from([1, 3, 100]))
def test_random_batches_of_appends_and_edits_equal_the_model(tmp_path_factory, batches, limit):
    path, model = tmp_path_factory.mktemp("edits") / "s", {}
    store = new_store(path, {"limit": limit})
    for rows, targets in batches:
        policy = {"policy": "adjust", "missing": "drop"}
        rows = [row for row in rows if row[1] is None or late_free(model, row)]
        if rows or targets:
            store.append(batch(*rows, edits=targets, **policy), clock=lambda: 1000)
            oracle(model, rows, targets, limit)
    expected = [
        (name, sequence, us, original, None if original is None else events[original][0])
        for name, events in sorted(model.items(), key=lambda item: item[0].encode())
        for sequence, (us, original) in enumerate(events)
    ]
    assert stored(path, "series", "sequence", "timestamp", *ORIGINAL[:2]) == expected


def late_free(model, row):
    originals = [us for us, original in model.get(row[0], []) if original is None]
    return not originals or row[1] >= originals[-1]


# -- writers that race ---------------------------------------------------------------------------


def test_an_edit_that_lost_its_race_is_judged_again(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 1})
    store.append(batch(("a", 1)))
    editing = Meeting(store, before=[lambda: rival(store).append(batch(("a", 2)))])
    with pytest.raises(NoSuchEvent, match="discarded"):
        editing.append(batch(edits=[("a", 0)]))
    assert edits(tmp_path / "s") == {}


WRITER = """
import sys; sys.path.insert(0, sys.argv[1])
from pyspark_tseries.storage import location as host_locks
from pyspark_tseries.store import store as storage
from tseries.builders import batch
host_locks.try_lock = lambda _: True
store = storage.Store.open(sys.argv[2])
for n in range(10):
    store.append(batch(("b", None), edits=[("a", 0, float(sys.argv[3])), ("a", 1)]))
"""


@pytest.mark.thorough
def test_processes_that_edit_one_original_lose_and_double_nothing(tmp_path):
    new_store(tmp_path / "s", {"limit": 1000}).append(batch(("a", 1), ("a", 2)))
    command = [sys.executable, "-c", WRITER, TESTS, str(tmp_path / "s")]
    writers = [subprocess.Popen([*command, str(n)]) for n in range(3)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 3
    rows = stored(tmp_path / "s", "series", "sequence", "original_sequence")
    assert [row[1] for row in rows if row[0] == "a"] == list(range(62))
    assert [row[2] for row in rows if row[0] == "a"][2:].count(0) == 30
    assert [row[1] for row in rows if row[0] == "b"] == list(range(30))
