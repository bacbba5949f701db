"""mergeSchema adds value columns beside old files, rivals and compaction."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType
from tseries.builders import VALUE, batch, new_store, stored
from tseries.meetings import Meeting, rival

from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.options import WriteOptions, parse_options
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.rows import plan_rows

NOTE = pa.field("note", pa.string())


def write(path, schema, **options):
    """The driver's work before the tasks of a write."""
    source = DefaultSource({"path": str(path), **options})
    columns = StructType()
    for column in schema.split(", "):
        columns.add(*column.split())
    return source.writer(columns, False)


def with_note(rows, note):
    return Batch(rows.rows.append_column(NOTE, pa.array([note] * len(rows.rows))), "fail", "me")


def test_a_new_column_is_added_once_and_older_events_have_nulls(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    for _ in range(2):
        write(tmp_path / "s", "series string, value double, note string", mergeSchema="true")
    assert DeltaTable(tmp_path / "s").version() == 2
    assert [field.name for field in store.values] == ["value", "note"]
    store.append(with_note(batch(("a", 2)), "x"))
    store.append(batch(("a", 3)))  # From a writer that does not know the column.
    expected = [(0, None), (1, "x"), (2, None)]
    assert stored(tmp_path / "s", "sequence", "note") == expected
    compact(str(tmp_path / "s"))
    assert stored(tmp_path / "s", "sequence", "note") == expected
    assert verify(str(tmp_path / "s")) == []
    source = DefaultSource({"path": str(tmp_path / "s")})
    reader = source.reader(source.schema())
    rows = [row for p in reader.partitions() for part in reader.read(p) for row in part.to_pylist()]
    assert [(row["sequence"], row["note"]) for row in rows] == expected


def test_without_the_option_and_with_another_type_nothing_is_added(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 1)))
    with pytest.raises(IncompatibleValue, match="set mergeSchema to add it"):
        write(tmp_path / "s", "series string, note string")
    with pytest.raises(IncompatibleValue, match="in the store it is of type double"):
        write(tmp_path / "s", "series string, value string, note string", mergeSchema="true")
    with pytest.raises(IncompatibleValue, match="named like a metadata column"):
        write(tmp_path / "s", "series string, commit long", mergeSchema="true")
    assert DeltaTable(tmp_path / "s").version() == 1


def test_append_succeeds_while_another_writer_adds_a_column(tmp_path):
    store = new_store(tmp_path / "s")
    columns = [lambda: add_columns(rival(store), [VALUE, NOTE])]
    Meeting(store, before=columns).append(batch(("a", 1)))
    add_columns(store, [VALUE, NOTE])
    assert stored(tmp_path / "s", "sequence", "note") == [(0, None)]


def test_the_plan_of_a_merge_keeps_the_stores_columns_and_names(tmp_path):
    options = parse_options(WriteOptions, {"path": "/s", "mergeSchema": "true"})
    incoming = pa.schema([("series", pa.string()), ("Extra", pa.int32()), ("VALUE", pa.float64())])
    plan = plan_rows(incoming, options, [VALUE])
    assert plan.values == (("VALUE", VALUE), ("Extra", pa.field("Extra", pa.int32())))
