"""Compaction changes files and nothing that a query may see; programs against a small model."""

import dataclasses
import itertools
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import outside_ci
from tseries.builders import VALUE, batch, forget_stores, stored
from tseries.compaction_model import RANGES, STEPS, Model, run
from tseries.limits import set_limits
from tseries.meetings import Meeting, rival

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.errors import StoreBusy
from pyspark_tseries.maintain import compactor
from pyspark_tseries.maintain.compactor import (
    MIN_GROUPS_TO_MERGE,
    CompactionResult,
    choose_files,
    compact,
    merge_file_groups,
)
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.arrays import ALL_KEYS, NEVER_US, split_keys
from pyspark_tseries.model.ranges import RetainedRange, min_retained, parse_range
from pyspark_tseries.storage.data_files import DataFile, compacted_path
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import FOOTER_CACHE
from pyspark_tseries.store.store import Store

ALL = ("series", "sequence", "timestamp", "author", "value", "commit", "commit_time")


def make(path, retained=None, age_us=0):
    bounds = None if retained is None else RetainedRange(**retained)
    return Store.create(str(path), [VALUE], bounds, min_retention_us=age_us)


def reopened(path):
    forget_stores()
    return Store.open(str(path))


def data_paths(path):
    return sorted(path.rglob("kind=*/*.parquet"))


def test_many_files_become_one_and_every_row_stays_as_it_was(tmp_path):
    store = make(tmp_path / "s", {"limit": 100})
    for n in range(5):
        store.append(batch(("a", n), (f"b{n}", n)), clock=lambda n=n: n)
    before = stored(tmp_path / "s", *ALL)
    assert compact(str(tmp_path / "s"), 10) == CompactionResult(5, 1, 0)
    assert stored(tmp_path / "s", *ALL) == before
    assert verify(str(tmp_path / "s")) == []
    store.append(batch(("a", 9)))
    assert stored(tmp_path / "s")[5] == ("a", 5, 9)


def test_a_compacted_store_is_left_alone_until_there_is_something_to_do(tmp_path):
    store = make(tmp_path / "s", {"limit": 1})
    assert compact(str(tmp_path / "s"), 10) == CompactionResult()
    store.append(batch(("a", 1), ("a", 2)), clock=lambda: 5)
    assert compact(str(tmp_path / "s"), 4) == CompactionResult(1, 1, 0)
    assert compact(str(tmp_path / "s"), 4) == CompactionResult(1, 1, 0)
    version = DeltaTable(tmp_path / "s").version()
    assert compact(str(tmp_path / "s"), 5) == CompactionResult(1, 1, 1)
    assert compact(str(tmp_path / "s"), 99) == CompactionResult(1, 1, 0)
    assert DeltaTable(tmp_path / "s").version() == version + 1


def test_what_is_younger_than_the_least_age_stays(tmp_path):
    store = make(tmp_path / "s", {"limit": 1}, age_us=100)
    for n in range(4):
        store.append(batch(("a", n)), clock=lambda n=n: 1000 + n)
    assert compact(str(tmp_path / "s"), 1102).removed_events == 2
    assert [row[1] for row in stored(tmp_path / "s")] == [2, 3]
    assert compact(str(tmp_path / "s"), 1102).removed_events == 0
    assert verify(str(tmp_path / "s")) == []


def test_a_pure_rewrite_is_no_change_of_data_and_a_trim_is(tmp_path):
    store = make(tmp_path / "s", {"limit": 2})
    for n in range(3):
        store.append(batch(("a", n)), clock=lambda n=n: n)
    compact(str(tmp_path / "s"), 0)
    compact(str(tmp_path / "s"), 10)
    changes = []
    for version in (4, 5):
        entry = tmp_path / "s" / "_delta_log" / f"{version:020d}.json"
        changes.append('"dataChange":true' in entry.read_text())
        assert ('"dataChange":false' in entry.read_text()) is not changes[-1]
    assert changes == [False, True]


def test_edits_count_toward_the_limit_and_the_newest_original_stays(tmp_path):
    store = make(tmp_path / "s", {"limit": 2})
    store.append(batch(("a", 1), ("a", 2)), clock=lambda: 5)
    store.append(batch(edits=[("a", 1)] * 4), clock=lambda: 9)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    compact(str(tmp_path / "s"), 10)
    assert [row[1] for row in stored(tmp_path / "s")] == [1, 4, 5]
    for path in (tmp_path / "s", tmp_path / "copy"):
        rebuild(str(path))
        assert verify(str(path)) == []
    heads = [reopened(tmp_path / name).index().lookup(["a"]) for name in ("s", "copy")]
    # A rebuilt head knows the counts of a series with all events still stored (31.3).
    counts = [(head.pop("first_us")[0], head.pop("edits")[0]) for head in heads]
    assert counts == [(NEVER_US, 2), (1, 4)]
    assert heads[0] == heads[1]


def test_a_large_store_is_compacted_by_slices_of_one_series_too(tmp_path, monkeypatch):
    set_limits(monkeypatch, range_bytes=200_000)
    store = make(tmp_path / "s", {})
    for n in range(6):
        rows = [("a", n * 1000 + i) for i in range(1000)] + [(f"s{i:03}", n) for i in range(400)]
        store.append(batch(*rows))
    before = stored(tmp_path / "s", *ALL)
    assert compact(str(tmp_path / "s")).files_after > 4
    assert stored(tmp_path / "s", *ALL) == before
    assert verify(str(tmp_path / "s")) == []
    files = store.snapshot().files
    ends = sorted((file.first, file.last) for file in files)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ends))
    assert max(ends[0][0] == end[0] for end in ends[1:])  # The series "a" fills files of its own.


@pytest.fixture
def texts(tmp_path):
    """A store of texts that repeat, that do not, and none; of series in all of its files."""
    values = {"place": pa.string(), "note": pa.string(), "none": pa.string(), "n": pa.int64()}
    path = tmp_path / "texts"
    store = TimeSeries.create(path, values, "unlimited", "me", auto_compact=False)
    for commit in range(6):
        rows = [
            {
                "series": f"s{number % 9}",
                "place": None if number % 7 == 1 else "north" if number % 2 else "",
                "note": f"{commit} {number} {'ä' * (number % 5)}",
                "n": number,
            }
            for number in range(80)
        ]
        store.append_many(rows)
        store.edit("s1", commit, {"place": "south", "n": commit})
    return path


def every_row(path):
    table = (
        DeltaTable(path)
        .to_pyarrow_table()
        .sort_by([("series", "ascending"), ("sequence", "ascending")])
    )
    return table.to_pylist()


@pytest.mark.thorough
@pytest.mark.parametrize("encoded", [1, 1000])
@pytest.mark.parametrize("held", [0, 5000, 2**27])
def test_rows_held_between_key_ranges_are_merged_once(texts, monkeypatch, held, encoded):
    set_limits(monkeypatch, range_bytes=20_000, held_bytes=held, encoded_texts=encoded)
    set_limits(monkeypatch, small_file_bytes=0)
    before, read = every_row(texts), []
    whole = compactor.read_pieces

    def record(location, pieces, *args):
        read.extend(piece.file.path for piece in pieces)
        return whole(location, pieces, *args)

    monkeypatch.setattr(compactor, "read_pieces", record)
    assert compact(str(texts)).files_after > 4
    assert every_row(texts) == before
    assert verify(str(texts)) == []
    assert (len(read) == len(set(read))) == (held == 2**27)
    for path in data_paths(texts):
        kinds = dict(zip(pq.read_schema(path).names, pq.read_schema(path).types, strict=True))
        assert kinds["series"] == kinds["place"] == kinds["note"] == pa.string()


@pytest.mark.thorough
@pytest.mark.parametrize("encoded", [1, 1000])
@pytest.mark.parametrize(("held", "read_small"), [(2**27, 12), (0, 5), (20_000, 5)])
def test_a_merge_opens_a_small_file_once_as_long_as_there_is_room(
    texts, monkeypatch, encoded, held, read_small
):
    set_limits(monkeypatch, range_bytes=8_000, held_bytes=held, encoded_texts=encoded)
    set_limits(monkeypatch, small_files=5)
    before, opened, whole = every_row(texts), [], Location.read
    small = {str(path) for path in data_paths(texts)}

    def record(location, path):
        opened.extend({path} & small)
        return whole(location, path)

    monkeypatch.setattr(Location, "read", record)
    FOOTER_CACHE.clear()
    assert compact(str(texts)).files_after > 2
    assert sum(opened.count(path) == 1 for path in small) == read_small
    monkeypatch.undo()
    assert every_row(texts) == before
    assert verify(str(texts)) == []
    for path in data_paths(texts):
        kinds = dict(zip(pq.read_schema(path).names, pq.read_schema(path).types, strict=True))
        assert kinds["series"] == kinds["place"] == kinds["note"] == pa.string()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("place", ["write_events", "_merge_range"])
def test_a_compaction_that_fails_at_any_file_or_range_leaves_no_file(
    texts, monkeypatch, place, number
):
    """The next key range is merged while a file is written: each of them may fail."""
    set_limits(monkeypatch, range_bytes=20_000, small_file_bytes=0)
    owner = compactor if place == "write_events" else compactor.Merge
    whole, calls = getattr(owner, place), itertools.count()

    def fail(*args):
        if next(calls) == number:
            raise OSError(28, "No space left on device")
        return whole(*args)

    before, files = every_row(texts), data_paths(texts)
    monkeypatch.setattr(owner, place, fail)
    with pytest.raises(OSError, match="No space left"):
        compact(str(texts))
    assert sorted(data_paths(texts)) == sorted(files)
    assert every_row(texts) == before
    monkeypatch.setattr(owner, place, whole)
    assert compact(str(texts)).files_after > 4
    assert every_row(texts) == before


# -- rivals --------------------------------------------------------------------------------------


def test_an_append_during_a_compaction_is_in_the_store_once(tmp_path):
    store = make(tmp_path / "s", {"limit": 1})
    for n in range(3):
        store.append(batch(("a", n)))
    compacting = Meeting(store, before_lock=[lambda: rival(store).append(batch(("a", 9)))])
    assert merge_file_groups(compacting, 2**60, everything=True).removed_events == 2
    assert [row[1] for row in stored(tmp_path / "s")] == [2, 3]
    assert verify(str(tmp_path / "s")) == []


def test_an_append_that_started_before_a_trim_comes_through(tmp_path):
    store = make(tmp_path / "s", {"limit": 1})
    store.append(batch(("a", 1), ("a", 2)))
    trims = []
    trim = lambda: trims.append(merge_file_groups(rival(store), 2**60, everything=True))  # noqa: E731
    Meeting(store, before=[trim]).append(batch(("a", 3)))
    assert [done.removed_events for done in trims] == [1]
    assert [row[1] for row in stored(tmp_path / "s")] == [1, 2]
    assert verify(str(tmp_path / "s")) == []


def test_of_two_compactions_one_wins_and_nothing_is_doubled(tmp_path):
    store = make(tmp_path / "s", {})
    for n in range(3):
        store.append(batch(("a", n)))
    compacting = Meeting(
        store, before_lock=[lambda: merge_file_groups(rival(store), 0, everything=True)]
    )
    merge_file_groups(compacting, 0, everything=True)
    assert [row[1] for row in stored(tmp_path / "s")] == [0, 1, 2]
    assert verify(str(tmp_path / "s")) == []


def test_a_compaction_whose_file_was_removed_before_its_commit_merges_again(
    tmp_path, monkeypatch, without_pauses
):
    """It stood still for a day, and maintenance took it for killed: a bare FileNotFoundError."""
    store = make(tmp_path / "s", {"limit": 100})
    for number in range(3):
        store.append(batch(("a", number)))
    replace_files = compactor.replace_files

    def replace_late(store, removed, new_files, *rest):
        monkeypatch.setattr(compactor, "replace_files", replace_files)
        store.location.remove(store.location.file(file.path) for file in new_files)
        return replace_files(store, removed, new_files, *rest)

    monkeypatch.setattr(compactor, "replace_files", replace_late)
    assert compact(store.root).files_after == 1
    assert verify(store.root) == []


def test_a_compaction_that_fails_leaves_the_store_and_no_files(tmp_path, monkeypatch):
    store = make(tmp_path / "s", {})
    for n in range(3):
        store.append(batch(("a", n)))
    before = data_paths(tmp_path / "s")

    def broken(*args):
        raise CommitFailedError("disk full")

    monkeypatch.setattr(compactor, "replace_files", broken)
    with pytest.raises(StoreBusy, match="nothing was changed"):
        compact(str(tmp_path / "s"))
    assert data_paths(tmp_path / "s") == before
    assert verify(str(tmp_path / "s")) == []


# -- rules ---------------------------------------------------------------------------------------


def file(number, size, merged=False):
    path = f"kind=event/{number:010}-{number:016x}.parquet"
    if merged:
        path = compacted_path("event", (number, number), 1, 0)
    return DataFile(path, size, "a", "b", "event", 1, 0, 0, 0, 0, number, number)


def test_maintenance_waits_for_small_files_and_spares_large_runs():
    few = [file(n, 10) for n in range(MIN_GROUPS_TO_MERGE - 1)]
    assert choose_files(few, everything=False) == []
    assert choose_files(few, everything=True) == few
    many = [file(100 + n, 10) for n in range(MIN_GROUPS_TO_MERGE)]
    large, small = (
        file(0, 24 * MIN_GROUPS_TO_MERGE + 1, True),
        file(1, 2 * MIN_GROUPS_TO_MERGE, True),
    )
    assert choose_files([large, *many], everything=False) == many
    assert choose_files([large, small, *many], everything=False) == [small, *many]
    assert (
        choose_files([file(0, 20 * MIN_GROUPS_TO_MERGE, True), *many], everything=False)[1:] == many
    )


def test_the_choice_of_files_looks_at_each_size_a_few_times_however_many_there_are():
    looks = []

    class Watched(DataFile):
        def __getattribute__(self, name):
            looks.extend([name] if name == "size" else [])
            return super().__getattribute__(name)

    many = [Watched(*dataclasses.astuple(file(n, 10))) for n in range(300)]
    looks.clear()
    assert choose_files(many, everything=False) == many
    assert len(looks) <= 3 * len(many)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 50))),
    st.integers(1, 100),
    st.booleans(),
)
def test_slices_cover_every_key_once_in_order(samples, budget, whole):
    parts = list(split_keys(samples, budget, whole_series=whole))
    assert (parts[0].first, parts[-1].end) == (None, None)
    assert all(one.end == other.first for one, other in itertools.pairwise(parts))
    keys = sorted({(name, n) for name in "abc" for n in range(10)})
    table = pa.table({"series": [k[0] for k in keys], "sequence": [k[1] for k in keys]})
    held = []
    for part in parts:
        chosen = table if part == ALL_KEYS else table.filter(part.expression())
        rows = list(zip(chosen["series"].to_pylist(), chosen["sequence"].to_pylist(), strict=True))
        assert not whole or not {row[0] for row in rows} & {row[0] for row in held}
        held += rows
        assert not rows or part.overlaps(rows[0][0], rows[-1][0])
    assert held == keys


# -- programs ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.sampled_from(RANGES), st.lists(STEPS, max_size=12))
def test_any_program_leaves_what_the_model_says(tmp_path_factory, retained, steps):
    path = tmp_path_factory.mktemp("program") / "s"
    bounds, model = parse_range(retained), Model(retained)
    store = Store.create(str(path), [VALUE], bounds, min_retention_us=0)
    for kind, what in steps:
        model.now += 1000
        run(path, store, model, kind, what)
        store = Store.open(str(path))
    assert verify(str(path)) == []
    for name, events in model.series.items():
        assert visible(path, name) == list(model.visible(name))
        kept = {row[1] for row in stored(path) if row[0] == name}
        assert kept >= set(model.visible(name)) | {len(events) - 1}
    assert describe(str(path))["events"] == sum(map(len, model.series.values()))


def visible(path, name):
    """The sequences inside the retained range by the head of the store."""
    snapshot = Store.open(str(path)).snapshot()
    index = snapshot.index()
    rows = [row for row in stored(path) if row[0] == name]
    sequence, us = (np.array([row[i] for row in rows], np.int64) for i in (1, 2))
    at = index.lookup([name])
    newest = at["last_sequence"], at["original_us"]
    low, low_us = min_retained(snapshot.settings.retained, *newest, index.floors([name]))
    return sequence[(sequence >= low) & (us >= low_us)].tolist()


def rows(generator, count, names):
    """Rows of four columns of doubles, of series by chance."""
    series = pa.array([f"s{number:03}" for number in np.sort(generator.integers(0, names, count))])
    return {"series": series} | {name: generator.random(count) for name in "vwxy"}


def spied_ranges(monkeypatch):
    """The memory of each key range, and the size of its rows, as they come."""
    read, seen = compactor.Merge._read_range, []

    def spy(merge, *given):
        before = pa.total_allocated_bytes()
        table = read(merge, *given)
        if table.num_rows:
            seen.append((pa.total_allocated_bytes() - before, table.nbytes))
        return table

    monkeypatch.setattr(compactor.Merge, "_read_range", spy)
    return seen


@pytest.mark.thorough
@pytest.mark.parametrize("held_bytes", [1_000_000, *outside_ci(0)])
def test_a_range_keeps_no_rows_of_earlier_ranges_in_memory(tmp_path, monkeypatch, held_bytes):
    """A slice of a decoded row group would keep all of it, in every file at once."""
    series = TimeSeries.create(
        tmp_path / "s", dict.fromkeys("vwxy", pa.float64()), "unlimited", "me", auto_compact=False
    )
    generator = np.random.default_rng(0)
    for _ in range(20):
        series.append_many(pa.table(rows(generator, 5_000, 300)))
    set_limits(monkeypatch, range_bytes=400_000, held_bytes=held_bytes)
    seen = spied_ranges(monkeypatch)
    series.compact()
    assert len(seen) > 8
    assert max(taken - 3 * size for taken, size in seen) < 1_000_000 + held_bytes


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_ranges_have_their_size_though_all_commits_have_the_same_series(tmp_path, monkeypatch):
    series = TimeSeries.create(
        tmp_path / "s", {"value": pa.float64()}, "unlimited", "me", auto_compact=False
    )
    names = [f"s{number:03}" for number in range(900)]
    for number in range(60):
        series.append_many(pa.table({"series": names, "value": [float(number)] * 900}))
    set_limits(monkeypatch, range_bytes=1_000_000)
    seen = spied_ranges(monkeypatch)
    series.compact()
    assert len(seen) > 3
    assert max(size for _, size in seen) < 2_000_000
