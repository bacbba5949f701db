"""Filters that Spark pushes down leave out reading, never events."""

import sys
import types

import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, In, IsNotNull, Not
from tseries.builders import batch, new_store

from pyspark_tseries.pushed_filters import FilteredReader, series_of
from pyspark_tseries.sink import DefaultSource

SERIES = ("series",)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], None),
        ([IsNotNull(SERIES), GreaterThan(SERIES, "a"), Not(EqualTo(SERIES, "a"))], None),
        ([EqualTo(("value",), "a"), EqualTo(("series", "x"), "a")], None),
        ([EqualTo(("Series",), "a")], ["a"]),
        ([EqualNullSafe(SERIES, None)], []),
        ([In(SERIES, ("c", "a", None))], ["a", "c"]),
        ([In(SERIES, ("c", "a")), EqualTo(SERIES, "c"), IsNotNull(SERIES)], ["c"]),
        ([EqualTo(SERIES, "a"), EqualTo(SERIES, "b")], []),
    ],
)
def test_the_series_that_filters_leave(filters, left):
    assert series_of(filters) == left


@pytest.mark.parametrize(("asked", "found"), [(None, ["a"]), ('["a", "b"]', ["a"]), ("b", [])])
def test_other_series_are_not_read_where_the_planner_takes_filters(
    tmp_path, monkeypatch, asked, found
):
    store = new_store(tmp_path / "s")
    for name in "ab":
        store.append(batch((name, 1)))
    sorted((tmp_path / "s" / "kind=event").iterdir())[1].unlink()
    planner = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, planner, types.ModuleType(planner))
    options = {"path": str(tmp_path / "s")} | ({} if asked is None else {"series": asked})
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteredReader)
    filters = [EqualTo(SERIES, "a"), GreaterThan(("value",), 1.0)]
    assert list(reader.pushFilters(filters)) == filters
    rows = [row for part in reader.partitions() for row in reader.read(part)]
    assert [name for row in rows for name in row["series"].to_pylist()] == found


def test_a_planner_without_filters_gets_a_reader_without_them(tmp_path, monkeypatch):
    planner = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.delitem(sys.modules, planner, raising=False)
    new_store(tmp_path / "s")
    source = DefaultSource({"path": str(tmp_path / "s")})
    assert not isinstance(source.reader(source.schema()), FilteredReader)
