"""Filters of other readers find what is there, on every column: the log has bounds of three."""

import datetime
import decimal
import math

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from lengths import in_ci
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from tseries.builders import forget_stores

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store

UTC = datetime.UTC
VALUES = {
    "celsius": pa.float64(),
    "count": pa.int64(),
    "small": pa.float32(),
    "text": pa.string(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "amount": pa.decimal128(20, 3),
    "raw": pa.binary(),
    "nested": pa.struct([("inner", pa.int64())]),
}
COMPARED = [name for name in VALUES if name != "nested"] + [
    *("series", "sequence", "timestamp", "author", "kind", "commit", "commit_time"),
    *("original_sequence", "original_timestamp", "original_author"),
]
BOUNDED = ["series", "sequence", "timestamp"]
"""The log has bounds of these."""

OTHERS = [name for name in COMPARED if name not in BOUNDED]


def row(number):
    """Values of every type, now and then null; NaN, and texts beyond the length of bounds."""
    if number % 4 == 3:
        return dict.fromkeys(VALUES)
    day = datetime.datetime(2026, 1, 1, tzinfo=UTC) + datetime.timedelta(days=number)
    return {
        "celsius": math.nan if number == 5 else 20.0 + number / 2,
        "count": 2**53 + number,
        "small": number / 2,
        "text": f"{'ä' * 40}{number}\\U00020bb7",
        "flag": bool(number % 2),
        "day": day.date(),
        "at": day + datetime.timedelta(microseconds=999_999 - number),
        "amount": decimal.Decimal(number) / 8,
        "raw": bytes([255, number]),
        "nested": {"inner": number},
    }


def fill(path):
    """A file a commit; edits; a time with microseconds; a column that most files lack."""
    store = TimeSeries.create(path, VALUES, "unlimited", "me", auto_compact=False)
    begin = datetime.datetime(2026, 2, 3, 4, 5, 6, 789_001, UTC)
    for number in range(9):
        store.append("ab"[number % 2], row(number), begin + datetime.timedelta(microseconds=number))
    store.edit("a", 1, row(1))
    store.edit("b", 0, dict.fromkeys(VALUES))
    forget_stores()
    return path


def everything(path):
    """All rows, from the Parquet files themselves."""
    return ds.dataset(DeltaTable(path).file_uris(), partitioning=None).to_table()


def deltalakes(table, column, low):
    yield table.to_pyarrow_table(filters=[(column, ">=", low)]).num_rows
    yield len(table.to_pandas(filters=[(column, ">=", low)]))
    yield table.to_pyarrow_dataset().to_table(filter=pc.field(column) >= low).num_rows


def duckdbs(engine, condition, *given):
    for events in ("events", "dataset"):
        found = engine.execute(f"SELECT count(*) FROM {events} WHERE {condition}", list(given))
        yield found.fetchall()[0][0]


def polarss(path, condition):
    for options in ({}, {"use_pyarrow": True}):
        yield polars.scan_delta(str(path), **options).filter(condition).collect().height


def check_filters(path, names=COMPARED):
    table, rows = DeltaTable(path), everything(path)
    rows = rows.append_column("kind", kinds(path)).select(names)
    with duckdb.connect() as engine:
        # Arrow's own file system: DuckDB and one in Python may wait for each other for ever.
        disk = SubTreeFileSystem(str(path), LocalFileSystem())
        engine.register("dataset", table.to_pyarrow_dataset(filesystem=disk))
        engine.register("events", table.to_pyarrow_table())
        others = QueryBuilder().register("events", table)
        for name in names:
            nulls, there = rows[name].null_count, rows[name].drop_null().to_pylist()
            where = f'"{name}" is null'
            assert set(duckdbs(engine, where)) == {nulls}, name
            assert set(polarss(path, polars.col(name).is_null())) == {nulls}, name
            found = others.execute(f"SELECT count(*) AS n FROM events WHERE {where}").read_all()
            assert found["n"][0].as_py() == nulls, name
            dataset = table.to_pyarrow_dataset()
            assert dataset.to_table(filter=pc.field(name).is_null()).num_rows == nulls, name
            nan = sum(value != value for value in there)
            known = sorted(value for value in there if value == value)
            for low in {known[len(known) // 2], known[-1]}:
                right = sum(value >= low for value in known)
                assert set(deltalakes(table, name, low)) == {right}, (name, low)
                either = {right, right + nan}  # DuckDB takes NaN for the greatest, Polars at times.
                assert set(duckdbs(engine, f'"{name}" >= ?', low)) <= either, (name, low)
                assert set(polarss(path, polars.col(name) >= low)) <= either, (name, low)


def kinds(path):
    log = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    pairs = zip(log["partition.kind"].to_pylist(), log["num_records"].to_pylist(), strict=True)
    return pa.array([kind for kind, count in pairs for _ in range(count)])


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_filters_of_every_documented_reader_find_what_is_there_on_every_column(tmp_path):
    path = fill(tmp_path / "s")
    add_columns(Store.open(str(path)), [pa.field("more", pa.int64())])
    DeltaTable(path).create_checkpoint()
    check_filters(path)
    compact(str(path))
    check_filters(path, BOUNDED + in_ci(OTHERS[::2], OTHERS))
    TimeSeries.open(path, "me", auto_compact=False).append("a", row(1))
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    check_filters(path, BOUNDED + in_ci(OTHERS[1::2], OTHERS))
    assert verify(str(path)) == []


FLOATS = {
    "real": pa.float64(),
    "small": pa.float32(),
    "whole": pa.float64(),
    "pair": pa.struct([("real", pa.float64()), ("count", pa.int64())]),
    "many": pa.list_(pa.float32()),
}


def floats(rows):
    """Every third value is NaN, in the greatest place of its own order; the others are 1."""
    values = [math.nan if row % 3 == 1 else 1.0 for row in range(rows)]
    return {
        "real": values,
        "small": values,
        "whole": [1.0] * rows,
        "pair": [{"real": value, "count": 1} for value in values],
        "many": [[value] for value in values],
    }


def check_nan(path, rows):
    files = [str(uri) for uri in DeltaTable(path).file_uris()]
    nan = sum(row % 3 == 1 for row in range(rows))
    with duckdb.connect() as engine:
        for value in ("real", "small", "pair.real", "many[1]"):
            for condition, right in (("> 1", nan), (">= 2", nan), ("!= 1", nan), ("= 'nan'", nan)):
                found = engine.execute(
                    f"SELECT count(*) FROM read_parquet(?) WHERE {value} {condition}", [files]
                )
                assert found.fetchall()[0][0] == right, (value, condition)
    for uri in files:
        group = pq.ParquetFile(uri).metadata.row_group(0)
        bounds = {
            column.path_in_schema: column.statistics is not None and column.statistics.has_min_max
            for column in map(group.column, range(group.num_columns))
        }
        without = {name for name, has_bounds in bounds.items() if not has_bounds}
        assert without & {"real", "small", "pair.real"} == {"real", "small", "pair.real"}
        assert not without & {"series", "sequence", "timestamp", "pair.count", "whole"}


def test_filters_over_the_files_find_nan_which_other_readers_take_for_the_greatest(tmp_path):
    """Bounds that leave NaN out let them skip the row group it is in."""
    path = str(tmp_path / "s")
    store = TimeSeries.create(path, FLOATS, "unlimited", auto_compact=False)
    begin = datetime.datetime(2026, 1, 1, tzinfo=UTC)
    at = [begin + datetime.timedelta(seconds=row) for row in range(30)]
    events = pa.table({"series": ["a"] * 30, "timestamp": at, **floats(30)}, floats_schema())
    store.append_many(events)
    check_nan(path, 30)
    store.append_many(events.set_column(0, "series", pa.array(["b"] * 30)))
    compact(path)
    check_nan(path, 60)


def floats_schema():
    named = [pa.field(name, kind) for name, kind in FLOATS.items()]
    return pa.schema([("series", pa.string()), ("timestamp", pa.timestamp("us", "UTC")), *named])
