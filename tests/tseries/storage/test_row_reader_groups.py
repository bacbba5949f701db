"""A query reads the row groups that may hold what it needs, and little of these."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import data_file
from tseries.limits import set_limits
from tseries.sieves import ROWS, SIEVES, passes

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.arrays import MIN_NUMBER, KeyRange
from pyspark_tseries.model.columns import INSTANT, ORIGINAL_FIELDS, query_schema
from pyspark_tseries.read.states import Folding
from pyspark_tseries.storage import row_reader
from pyspark_tseries.storage.data_files import write_events
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.storage.row_reader import FooterCache, RowFilter, read_rows, scan_file
from pyspark_tseries.store.store import Store

SCHEMA = query_schema([pa.field("value", pa.float64()), pa.field("later", pa.string())])


def events(rows, authors, edited):
    """Rows of `test_sieve` as a file has them, without the column `later`."""
    size = len(rows)
    originals = [0 if edited and row[1] > 0 else None for row in rows]
    us = pa.array([row[1] for row in rows], pa.int64())
    return pa.table(
        {
            "series": pa.array([row[0][0] for row in rows], pa.string()),
            "sequence": pa.array([row[0][1] for row in rows], pa.int64()),
            "timestamp": us.cast(INSTANT),
            "author": pa.array((authors * size)[:size], pa.string()),
            "value": pa.array([float(i) if i % 3 else None for i in range(size)]),
            "original_sequence": pa.array(originals, pa.int64()),
            "original_timestamp": pa.array(originals, pa.int64()).cast(INSTANT),
            "original_author": pa.array(
                [None if o is None else "me" for o in originals], pa.string()
            ),
            "commit": pa.array([row[2] for row in rows], pa.int64()),
        }
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ROWS.filter(bool), max_size=3),
    SIEVES,
    st.integers(1, 7),
    st.integers(1, 9),
    st.sampled_from([["me"], ["me", "you"]]),
    st.booleans(),
)
def test_what_is_read_is_what_passes(
    tmp_path_factory, parts, row_filter, group, piece, authors, edited
):
    location = parse_location(str(tmp_path_factory.mktemp("s")))
    data, expected = [], [SCHEMA.empty_table()]
    for number, part in enumerate(parts):
        rows = sorted(part, key=lambda row: row[0])
        table = events(rows, authors, edited)
        written = write_events(location, f"kind=event/{number}.parquet", table, group)
        data.append(data_file(written.path, written.size))
        wanted = table.filter(pa.array([passes(row, row_filter) for row in rows], pa.bool_()))
        wanted = wanted.append_column("later", pa.nulls(wanted.num_rows, pa.string()))
        expected.append(wanted.select(SCHEMA.names).cast(SCHEMA))
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, piece_rows=piece)
        found = read_rows(location, data, SCHEMA, row_filter)
        streamed = [one for file in data for one in scan_file(location, file, SCHEMA, row_filter)]
    assert found.to_pylist() == pa.concat_tables(expected).to_pylist()
    assert pa.concat_tables([SCHEMA.empty_table(), *streamed]).to_pylist() == found.to_pylist()
    assert found.schema == SCHEMA


REAL = pq.ParquetFile


@pytest.fixture
def watched(monkeypatch):
    """Reads: file, row groups, columns."""
    seen = []

    class Watched(REAL):
        def read_row_groups(self, groups, columns, **options):
            seen.append((id(self._known), tuple(groups), tuple(columns)))
            return super().read_row_groups(groups, columns=columns, **options)

        def __init__(self, file, metadata, **options):
            super().__init__(file, metadata=metadata, **options)
            self._known = metadata

    monkeypatch.setattr(pq, "ParquetFile", Watched)
    return seen


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """25,000 series with an event in each of three commits, and a fourth commit without `s1`."""
    path = str(tmp_path_factory.mktemp("large") / "s")
    store = TimeSeries.create(path, {"value": pa.int64()}, "unlimited", auto_compact=False)
    names = [f"s{number}" for number in range(25_000)]
    for commit in range(4):
        there = [name for name in names if commit < 3 or name != "s1"]
        store.append_many(pa.table({"series": there, "value": [commit] * len(there)}))
    return path


def groups_of(path):
    """Row groups of each file of the store."""
    return [
        pq.read_metadata(f"{path}/{file.path}").num_row_groups
        for file in Store.open(path).snapshot().files
    ]


def test_a_query_of_one_series_reads_at_most_one_row_group_of_each_file(large, watched):
    store = TimeSeries.open(large)
    assert groups_of(large) == [3, 3, 3, 3]
    for name in ("s0", "s1", "s12345", "s9999"):
        watched.clear()
        found = store.range_query().select_from(name)
        assert [event.value for event in found.events] == [0, 1, 2, 3][: 3 + (name != "s1")]
        groups = {(file, group) for file, some, _ in watched for group in some}
        assert len(groups) == len({file for file, _ in groups}) == 4
    watched.clear()
    assert not store.range_query().select_from("s99999").events
    assert not watched


def test_where_a_series_has_no_row_only_its_column_is_read(large, watched):
    TimeSeries.open(large).range_query().select_from("s1")
    columns = {}
    for file, _, names in watched:
        columns.setdefault(file, []).extend(names)
    read_of = sorted(columns.values(), key=len)
    assert read_of == [["series"], *[["series", "sequence", "timestamp", "value"]] * 3]


def test_after_compaction_a_query_of_one_series_reads_one_row_group(large, watched, tmp_path):
    path = str(tmp_path / "compacted")
    shutil.copytree(large, path)
    store = TimeSeries.open(path)
    store.compact()
    assert groups_of(path) == [5]
    watched.clear()
    found = store.range_query().select_from("s12345")
    assert [event.value for event in found.events] == [0, 1, 2, 3]
    assert len({some for _, some, _ in watched}) == 1
    assert all(len(some) == 1 for _, some, _ in watched)


def test_names_of_more_than_arrow_keeps_bounds_of_are_found(tmp_path):
    store = TimeSeries.create(str(tmp_path / "s"), {"value": pa.int64()}, "unlimited")
    long = ["a" * 5000, "b" * 5000]
    store.append_many(pa.table({"series": long, "value": [1, 2]}))
    for number, name in enumerate(long):
        (event,) = store.range_query().select_from(name).events
        assert event.value == number + 1


def test_a_column_that_looks_like_a_field_of_another_is_read_as_itself(tmp_path):
    kinds = {"a": pa.struct([("b", pa.int64())]), "a.b": pa.string()}
    store = TimeSeries.create(str(tmp_path / "s"), kinds, "unlimited")
    for value in ({"a": {"b": 1}, "a.b": "x"}, {"a": {"b": None}, "a.b": "y"}, {"a.b": None}):
        store.append("s", value)
    found = store.range_query().select_from("s").to_arrow().select(["a", "a.b"]).to_pylist()
    assert found == [
        {"a": {"b": 1}, "a.b": "x"},
        {"a": {"b": None}, "a.b": "y"},
        {"a": None, "a.b": None},
    ]


def test_a_file_that_is_gone_is_an_error_and_no_gap(tmp_path):
    store = TimeSeries.create(str(tmp_path / "s"), {"value": pa.int64()}, "unlimited")
    for value in range(3):
        store.append("a", value)
    assert len(store.range_query().select_from("a").events) == 3
    (tmp_path / "s" / Store.open(str(tmp_path / "s")).snapshot().files[1].path).unlink()
    with pytest.raises(UnusableStore, match="verify"):
        store.range_query().select_from("a")


def test_footers_are_kept_up_to_a_bound(tmp_path):
    location = parse_location(str(tmp_path))
    rows = [(("a", number), number, 0) for number in range(6)]
    data = []
    for number in range(8):
        written = write_events(
            location, f"kind=event/{number}.parquet", events(rows, ["me"], False)
        )
        data.append(data_file(written.path, written.size))
    one = FooterCache()
    one.get(location, data[0])
    room = int(3.5 * one._bytes)
    kept = FooterCache(room)
    for _turn in range(3):
        for file in data:
            assert kept.get(location, file).bounds("sequence") == [(0, 5)]
            assert (location, file) in kept
            assert kept._bytes <= room
    assert [(location, file) in kept for file in data] == [False] * 5 + [True] * 3
    assert kept.get(location, data[5]) is kept.get(location, data[5])
    kept.get(location, data[0])
    assert (location, data[5]) in kept, "what was used last goes last"
    tiny = FooterCache(1)
    assert tiny.get(location, data[0]).group_count == 1


def test_parts_of_a_series_are_read_apart(large):
    snapshot = Store.open(large).snapshot()
    for part in (KeyRange(None, ("s5", 2)), KeyRange(("s5", 2), None)):
        row_filter = RowFilter(["s5"], part)
        found = read_rows(
            snapshot.location, snapshot.files, query_schema(snapshot.values), row_filter
        )
        assert found["sequence"].to_pylist() == ([0, 1] if part.end else [2, 3])


def test_the_metadata_of_originals_needs_no_reading(large, watched):
    found = TimeSeries.open(large).range_query().select_from("s7").to_arrow()
    assert (
        found.select([field.name for field in ORIGINAL_FIELDS]).to_pylist()
        == [dict.fromkeys(field.name for field in ORIGINAL_FIELDS)] * 4
    )
    read_columns = {name for _, _, names in watched for name in names}
    assert read_columns == {"series", "sequence", "timestamp", "value"}


def test_columns_of_one_value_alone_are_as_long_as_the_rows(large):
    snapshot = Store.open(large).snapshot()
    schema = query_schema(snapshot.values)
    wanted = pa.schema([schema.field("author"), schema.field("original_author")])
    for row_filter, rows in (
        (RowFilter(), 99_999),
        (RowFilter(["s1"]), 3),
        (RowFilter(commits=(MIN_NUMBER, 0)), 25_000),
    ):
        found = read_rows(snapshot.location, snapshot.files, wanted, row_filter)
        assert found.num_rows == rows
        assert found["original_author"].null_count == rows
        assert len(found["author"].unique()) == 1


def test_of_a_time_slice_other_columns_are_read_from_groups_that_have_rows(
    tmp_path, watched, monkeypatch
):
    monkeypatch.setattr("pyspark_tseries.storage.row_reader.SMALL_PIECE_ROWS", 0)
    location = parse_location(str(tmp_path))
    times = {"a": (0, 100), "b": (0, 50), "c": (50, 100), "d": (0, 90)}
    rows = [((name, n), us, 0) for name, both in times.items() for n, us in enumerate(both)]
    written = write_events(location, "kind=event/0.parquet", events(rows, ["me"], False), 2)
    file = data_file(written.path, written.size)
    found = read_rows(location, [file], SCHEMA, RowFilter(times=(40, 60)))
    assert found["series"].to_pylist() == ["b", "c"]
    assert found["sequence"].to_pylist() == [1, 0]
    read = [(groups, names) for _, groups, names in watched]
    assert read[0] == ((0, 1, 2, 3), ("timestamp",))
    assert [groups for groups, _ in read[1:]] == [(1, 2)]


def test_a_file_is_opened_once_for_many_pieces(tmp_path, watched, monkeypatch):
    set_limits(monkeypatch, piece_rows=1, jobs_per_thread=1, cpus=2)
    location = parse_location(str(tmp_path))
    rows = [((f"{number:02}", 0), number, 0) for number in range(40)]
    written = write_events(location, "kind=event/0.parquet", events(rows, ["me"], False), 1)
    opened = []
    real = row_reader.OpenFile
    monkeypatch.setattr(row_reader, "OpenFile", lambda *a: opened.append(a) or real(*a))
    found = read_rows(location, [data_file(written.path, written.size)], SCHEMA, RowFilter())
    assert found["timestamp"].cast(pa.int64()).to_pylist() == list(range(40))
    assert len(opened) == 2


def test_the_rows_of_small_files_are_folded_together(tmp_path, monkeypatch):
    """A fold of a few rows takes the same time as one of thousands."""
    store = TimeSeries.create(tmp_path, {"x": pa.int64()}, "unlimited", auto_compact=False)
    for number in range(40):
        at = pa.array([number] * 2, pa.timestamp("us", "UTC"))
        store.append_many(pa.table({"series": ["a", "b"], "timestamp": at, "x": [number, -number]}))
    monkeypatch.setattr(row_reader, "CPU_COUNT", 1)
    folded = []
    fold = Folding.fold
    monkeypatch.setattr(
        Folding, "fold", lambda self, *given: folded.append(given) or fold(self, *given)
    )
    found = store.range_query().every("1 hour").aggregate(x="sum", n=("x", "last")).select_from()
    assert [row["n"] for row in found.to_arrow().to_pylist()] == [39, -39]
    assert [row["x"] for row in found.to_arrow().to_pylist()] == [780, -780]
    assert len(folded) == row_reader.JOBS_PER_THREAD
