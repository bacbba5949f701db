"""A read gives the events inside the retained range, from the files that may hold them."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tseries.builders import batch, new_store
from tseries.limits import set_limits
from tseries.spark_calls import EVERYTHING, read

from pyspark_timestream.errors import OptionError
from pyspark_tseries import describe
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.spark.readers import RangeQueryReader
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.storage import snapshot as heads
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch

pytestmark = pytest.mark.spark

V1 = Path(__file__).parents[1] / "formats" / "v1"
HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("retained", "expected"),
    [
        ({"limit": 2}, [("a", 2), ("a", 3), ("b", 0)]),
        ({"last_us": 5000}, [("a", 1), ("a", 2), ("a", 3), ("b", 0)]),
        ({"last_us": 5000, "limit": 2}, [("a", 2), ("a", 3), ("b", 0)]),
        ({"last_us": 0, "limit": 2}, [("a", 3), ("b", 0)]),
        (None, [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]),
    ],
)
def test_only_the_retained_range_is_read_and_the_smaller_clause_wins(tmp_path, retained, expected):
    store = new_store(tmp_path / "s", retained)
    store.append(batch(("a", 0), ("a", 5000), ("b", 0)))
    store.append(batch(("a", 6000), ("a", 10_000)))
    assert read(tmp_path / "s") == expected


def test_an_unknown_series_is_empty_and_an_empty_store_too(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 0), ("c", 0)))
    assert read(tmp_path / "s", ["b"]) == []
    assert read(tmp_path / "s", []) == []
    new_store(tmp_path / "empty")
    assert read(tmp_path / "empty") == []


def test_worker_loads_parts_of_the_head_and_after_some_queries_all(tmp_path, monkeypatch):
    store = new_store(tmp_path / "s", {"limit": 2})
    for n in range(3):
        store.append(batch(*((name, 10 * n) for name in "abc"), clock="event"))
    store.append(batch(edits=[("b", 2)]))
    whole = read(tmp_path / "s")
    set_limits(monkeypatch, index_rows=1)
    location = store.location
    kept = heads.LAST_INDEXES.pop(location)
    for _ in range(heads.MAX_PARTIAL_LOADS):
        for names in (["a"], ["b", "nobody"], ["c", "a"], []):
            assert read(tmp_path / "s", names) == [row for row in whole if row[0] in names]
    assert heads.LAST_INDEXES[location].head_id == kept.head_id
    assert len(heads.LAST_INDEXES[location].index.ids) == 3
    heads.LAST_INDEXES.clear()
    assert read(tmp_path / "s") == whole == [("a", 1), ("a", 2), ("b", 3), ("c", 1), ("c", 2)]


def test_files_without_a_wanted_series_are_not_opened(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 0), ("b", 0)))
    store.append(batch(("c", 0), ("d", 0)))
    (tmp_path / "s" / store.snapshot().files[0].path).unlink()
    assert read(tmp_path / "s", ["d", "nobody"]) == [("d", 0)]


def test_a_read_sees_the_store_as_it_was_when_planned(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 1})
    store.append(batch(("a", 0)))
    schema = DefaultSource({"path": str(tmp_path / "s")}).schema()
    reader = RangeQueryReader(store.snapshot(), EVERYTHING, None, schema, principal="me")
    store.append(batch(("a", 1)))
    got = [part["sequence"].to_pylist() for p in reader.partitions() for part in reader.read(p)]
    assert got == [[0]]


def test_a_schema_of_the_user_may_be_a_part_of_the_columns(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 3)))
    some = StructType([StructField("sequence", LongType()), StructField("author", StringType())])
    assert read(tmp_path / "s", None, some, ("sequence", "author")) == [(0, "me")]
    other = StructType([StructField("sequence", StringType())])
    with pytest.raises(IncompatibleValue, match=r"'sequence'.*string.*bigint"):
        read(tmp_path / "s", None, other)
    nowhere = StructType([StructField("nope", StringType())])
    with pytest.raises(IncompatibleValue, match=r"'nope'.*series, sequence"):
        read(tmp_path / "s", None, nowhere)


def test_columns_option_leaves_out_the_others_from_schema_and_rows(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 0)))
    options = {"path": str(tmp_path / "s"), "columns": "timestamp, series,value"}
    source = DefaultSource(options)
    assert source.schema().names == ["timestamp", "series", "value"]
    reader = source.reader(source.schema())
    (got,) = (rows for part in reader.partitions() for rows in reader.read(part))
    assert got.schema.names == ["timestamp", "series", "value"]


def test_columns_option_with_a_column_that_is_not_there_is_refused_by_name(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 0)))
    options = {"path": str(tmp_path / "s"), "columns": "series, pascal"}
    with pytest.raises(InvalidQuery, match="'pascal' is not in the store; accepted: series, seq"):
        DefaultSource(options).schema()
    wanted = DefaultSource({"path": str(tmp_path / "s")}).schema()
    with pytest.raises(IncompatibleValue, match="'sequence' is not in the store"):
        DefaultSource({**options, "columns": "series"}).reader(wanted)


def test_columns_option_of_a_subscription_is_refused_as_one_of_reads(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 0)))
    source = DefaultSource({"path": str(tmp_path / "s"), "columns": "series"})
    with pytest.raises(OptionError, match=r"belongs to spark\.read"):
        source.streamReader(source.schema()).initialOffset()


def test_columns_with_dots_spaces_and_signs_in_their_names_come_back(tmp_path):
    inner = pa.struct([pa.field("y", pa.float64())])
    kinds = {"x.y": pa.float64(), "x": inner, "a b": pa.string(), "p=q/ü": pa.int64()}
    store = new_store(tmp_path / "s", values=[pa.field(*kind) for kind in kinds.items()])
    rows = batch(("a", 1)).rows.drop_columns(["value"])
    values = (1.5, {"y": 2.5}, "z", 3)
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        rows = rows.append_column(name, pa.array([value], kind))
    store.append(Batch(rows, "fail", "me"))
    assert read(tmp_path / "s", columns=tuple(kinds)) == [values]


def test_a_store_of_format_1_reads_the_same_rows_for_ever(tmp_path):
    shutil.copytree(V1, tmp_path / "v1")
    columns = ("series", "sequence", "timestamp", "author", "value")
    at = {us: pa.scalar(us, pa.timestamp("us", "UTC")).as_py() for us in (1, 2, 20, 2 * HOUR_US)}
    assert read(tmp_path / "v1", columns=columns) == [
        ("a", 1, at[1], "me", 1.5),
        ("a", 2, at[2], "ann", None),
        ("a", 3, at[2], "me", 4.5),
        ("b", 1, at[2 * HOUR_US], "me", 5.5),
        ("b", 2, at[2 * HOUR_US], "me", 7.5),
        ("c", 0, at[20], "me", 3.5),
    ]
    facts = describe(str(tmp_path / "v1"))
    assert (facts["retained_range"], facts["events"]) == ("limit 3 last 1H", 8)
    assert (facts["adjusted"], facts["dropped"], facts["last_commit"]) == (1, 1, 3)


def test_a_store_of_format_1_is_continued_where_it_ended(tmp_path):
    shutil.copytree(V1, tmp_path / "v1")
    store = Store.open(str(tmp_path / "v1"))
    store.append(batch(("a", 9), token=("q", 0)))
    store.append(batch(("a", 9), ("z", 1), token=("q", 1)), clock=lambda: 1)
    assert read(tmp_path / "v1", ["a", "z"]) == [("a", 2), ("a", 3), ("a", 4), ("z", 0)]
    assert describe(str(tmp_path / "v1"))["last_commit_time"] == "1970-01-01T00:00:00.000030Z"
