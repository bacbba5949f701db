"""The head of a store is a fold over its commits, written as snapshots or deltas."""

import dataclasses
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tseries.limits import set_limits

from pyspark_tseries.model import series_index as heads
from pyspark_tseries.model.arrays import NO_SEQUENCE
from pyspark_tseries.model.series_index import (
    SeriesIndex,
    advance_index,
    make_change,
    next_metadata,
)
from pyspark_tseries.storage import snapshot
from pyspark_tseries.storage.location import parse_location

COMMITS = st.lists(
    st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=5), min_size=1, max_size=12
)


def delta(series, value):
    columns = SeriesIndex().lookup([])
    standing = pa.array([value(name) for name in series], pa.int64()).to_numpy()
    return make_change(pa.array(list(series), pa.string()), dict.fromkeys(columns, standing))


@given(commits=COMMITS, most=st.integers(1, 4), known=st.integers(0, 11))
def test_the_head_loads_back_from_any_chain_and_any_known_ancestor(
    tmp_path_factory, commits, most, known
):
    location, limit = parse_location(str(tmp_path_factory.mktemp("store"))), heads.MAX_INDEX_CHANGES
    heads.MAX_INDEX_CHANGES = most
    try:
        index, expected, history = SeriesIndex(), {}, [(None, SeriesIndex())]
        for number, commit in enumerate(commits):
            expected |= commit
            note = next_metadata(index, history[-1][0], now_us=number, rows=len(commit))
            index, table = advance_index(index, delta(commit, commit.get), note)
            snapshot.write_head(location, number + 7, table)
            history.append((number + 7, index))
    finally:
        heads.MAX_INDEX_CHANGES = limit
    # A fresh process knows the empty head only; a warm one any earlier head.
    for known_id, old in (history[0], history[min(known, len(commits))]):
        loaded = snapshot.load_index(location, len(commits) + 6, known_id, old)
        names = [*expected, "never seen"]
        assert loaded.lookup(names)["last_sequence"].tolist() == [*expected.values(), NO_SEQUENCE]
        assert loaded.metadata == index.metadata


@pytest.mark.parametrize("names", [[], ["a"], ["", "\u00e9"], [str(n) for n in range(63)]])
def test_a_small_head_is_byte_for_byte_the_stream_that_arrow_writes(names):
    change = delta(names, len)
    note = next_metadata(SeriesIndex(), None, now_us=1, rows=len(names))
    _, table = advance_index(SeriesIndex(), change, note)
    written = io.BytesIO()
    with pa.ipc.new_stream(written, table.schema) as writer:
        writer.write_table(table)
    assert snapshot._format_head(table) == written.getvalue()


@given(
    commits=st.lists(
        st.tuples(
            st.dictionaries(st.text("abc", max_size=2), st.integers(0, 50), max_size=5),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    most=st.integers(1, 4),
    names=st.sets(st.text("abcd", max_size=2) | st.just("\ud800")).map(sorted),
    few=st.integers(-1, 12),
)
def test_partial_index_equals_the_whole_index_for_its_series(
    tmp_path_factory, commits, most, names, few
):
    location, id_ = parse_location(str(tmp_path_factory.mktemp("store"))), None
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, head_changes=most, index_rows=few)
        index = SeriesIndex()
        for number, (commit, floored) in enumerate(commits):
            table = delta(commit, commit.get)
            if floored:
                table = table.append_column("floor_sequence", table["last_sequence"])
                table = table.append_column("floor_us", table["last_sequence"])
            note = next_metadata(index, id_, now_us=number, rows=len(commit))
            index, table = advance_index(index, table, note)
            id_ = number + 7
            snapshot.write_head(location, id_, table)
        some, whole = snapshot.load_partial_index(location, id_, names)
    known = index.ids.names() if whole else names
    for say in (SeriesIndex.lookup, SeriesIndex.floors):
        columns = [{key: c.tolist() for key, c in say(h, known).items()} for h in (some, index)]
        assert columns[0] == columns[1]
    assert some.metadata == index.metadata
    assert set(some.columns) == set(index.columns)
    assert whole or set(some.ids.names()) <= set(names) | {"?"}


def test_an_older_head_is_not_changed_by_a_newer_one():
    old, _ = advance_index(
        SeriesIndex(),
        delta(["a"], lambda _: 3),
        next_metadata(SeriesIndex(), None, now_us=1, rows=1),
    )
    advance_index(old, delta(["a", "b"], lambda _: 9), next_metadata(old, 1, now_us=2, rows=2))
    assert old.lookup(["a", "b"])["last_sequence"].tolist() == [3, NO_SEQUENCE]


def test_commit_numbers_are_contiguous_and_commit_times_never_decrease():
    first = next_metadata(SeriesIndex(), None, now_us=100, rows=0)
    second = next_metadata(dataclasses.replace(SeriesIndex(), metadata=first), 1, now_us=90, rows=0)
    assert [(n.commit, n.commit_us) for n in (first, second)] == [(0, 100), (1, 100)]


def test_full_table_is_due_after_64_deltas_or_many_delta_rows():
    note = next_metadata(SeriesIndex(), None, now_us=0, rows=1)
    assert not heads.needs_full_table(dataclasses.replace(note, depth=64), 10)
    assert heads.needs_full_table(dataclasses.replace(note, depth=65), 10)
    assert heads.needs_full_table(dataclasses.replace(note, rows=30_001), 30_000)
    assert not heads.needs_full_table(dataclasses.replace(note, depth=500), 1_000_000)
    assert heads.needs_full_table(dataclasses.replace(note, depth=501), 1_000_000)


@given(commits=COMMITS, few=st.integers(0, 3), floored=st.sets(st.integers(0, 11)))
def test_merged_deltas_make_the_same_index_as_all(commits, few, floored):
    deltas = []
    for number, commit in enumerate(commits):
        table = delta(commit, commit.get)
        if number in floored:
            table = table.append_column("floor_sequence", table["last_sequence"])
            table = table.append_column("floor_us", table["last_sequence"])
        note = next_metadata(SeriesIndex(), None, now_us=number, rows=len(commit))
        deltas.append(heads.attach_metadata(table, note))
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, merged_rows=few)
        merged = heads.merge_changes(deltas)
    assert len(merged) <= len(deltas)
    some, every = SeriesIndex(), SeriesIndex()
    for table in merged:
        some = heads.apply_change(some, table)
    for table in deltas:
        every = heads.apply_change(every, table)
    assert some.ids.names() == every.ids.names()
    assert some.metadata == every.metadata
    assert set(some.columns) == set(every.columns)
    assert all((some.columns[name] == every.columns[name]).all() for name in every.columns)
