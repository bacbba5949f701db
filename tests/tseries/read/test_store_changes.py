"""A running subscription ends by name where the store's columns or its policy change under it."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tseries.builders import VALUE, batch, new_store

from pyspark_timestream.core.adapters import RefusedReader
from pyspark_timestream.errors import OptionError
from pyspark_tseries import IncompatibleValue, PermissionDenied, TimeSeries
from pyspark_tseries.model.columns import find_later_columns, result_schema
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.write.batch import Batch

pytestmark = pytest.mark.spark

NOTE = pa.field("note", pa.string())


class Query:
    """A streaming query over a store, as Spark runs it: each batch from the last one's offset."""

    def __init__(self, path, offset=None, schema=None, **options):
        source = DefaultSource({"path": str(path), "subscriptionRange": "none", **options})
        self.schema = schema or source.schema()
        self.reader = source.streamReader(self.schema)
        self.offset = offset or self.reader.initialOffset()

    def run(self):
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        tasks = [] if end == self.offset else self.reader.partitions(self.offset, end)
        rows = [
            row for task in tasks for part in self.reader.read(task) for row in part.to_pylist()
        ]
        self.offset = end
        return rows


def with_note(rows, note):
    return Batch(rows.rows.append_column(NOTE, pa.array([note] * len(rows.rows))), "fail", "me")


def add_note(store):
    add_columns(store, [VALUE, NOTE])


def chosen(*names):
    """A schema of the user's."""
    kinds = {"sequence": "long", "value": "double", "note": "string", "timestamp": "timestamp"}
    schema = StructType()
    for name in names:
        schema.add(name, kinds.get(name, "string"))
    return schema


def test_columns_added_under_a_running_subscription_end_it_and_come_after_a_restart(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    query = Query(tmp_path / "s")
    query.run()
    store.append(batch(("a", 2)))
    assert [row["sequence"] for row in query.run()] == [1]
    add_note(store)
    store.append(with_note(batch(("a", 3)), "x"))
    for _ in range(2):  # Not only at the first look.
        with pytest.raises(IncompatibleValue, match=r"'note' string.*next step: start it again"):
            query.run()
    again = Query(tmp_path / "s", query.offset)
    assert [(row["sequence"], row["note"]) for row in again.run()] == [(2, "x")]


def test_query_loaded_before_columns_were_added_is_refused_at_its_start(tmp_path):
    store = new_store(tmp_path / "s")
    before = DefaultSource({"path": str(tmp_path / "s")}).schema()
    add_note(store)
    reader = DefaultSource({"path": str(tmp_path / "s")}).streamReader(before)
    assert isinstance(reader, RefusedReader)
    with pytest.raises(IncompatibleValue, match="'note' string"):
        reader.latestOffset(None, None)


@pytest.mark.parametrize("names", [("series", "value"), ("series", "sequence", "timestamp")])
def test_query_with_a_schema_of_its_own_goes_on_without_columns_that_are_added(tmp_path, names):
    store = new_store(tmp_path / "s")
    query = Query(tmp_path / "s", schema=chosen(*names))
    query.run()
    add_note(store)
    store.append(with_note(batch(("a", 3)), "x"))
    (row,) = query.run()
    assert set(row) == set(names)


def test_added_column_with_the_name_of_the_ctis_ends_the_subscription(tmp_path):
    store = new_store(tmp_path / "s")
    query = Query(tmp_path / "s", cti="mark")
    query.run()
    add_columns(store, [VALUE, pa.field("mark", pa.string())])
    with pytest.raises(IncompatibleValue, match="'mark' string"):
        query.run()
    with pytest.raises(OptionError, match="the store has a column 'mark'"):
        Query(tmp_path / "s", cti="mark")


def test_column_whose_type_another_tool_has_changed_ends_the_subscription(tmp_path, monkeypatch):
    new_store(tmp_path / "s").append(batch(("a", 1)))
    query = Query(tmp_path / "s")
    query.run()
    from pyspark_tseries.store import store

    wider = [pa.field("value", pa.decimal128(9, 2))]
    TimeSeries.open(tmp_path / "s", auto_compact=False)._store.append(batch(("a", 2)))
    monkeypatch.setattr(store, "value_fields", lambda _: wider)
    with pytest.raises(IncompatibleValue, match="column 'value' is asked for as double"):
        query.run()


def test_right_that_is_withdrawn_ends_a_running_subscription(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    owner = TimeSeries.open(tmp_path / "s", "boss", auto_compact=False)
    rights = ["read", "query_obsolete"]
    owner.set_policy({"boss": ["own", "update", "edit"], "ann": rights, "bob": ["read"]})
    ann, bob = (Query(tmp_path / "s", principal=name) for name in ("ann", "bob"))
    starts = Query(tmp_path / "s", principal="ann", startingSequence='{"a": 0}')
    assert [query.run() != [] for query in (ann, bob, starts)] == [False, False, True]
    owner.set_policy({"boss": ["own", "update", "edit"], "ann": ["read"]})
    owner.append("a", 2.0)
    assert [row["value"] for row in ann.run()] == [2.0]
    with pytest.raises(PermissionDenied, match="'bob' may not subscribe"):
        bob.run()
    with pytest.raises(PermissionDenied, match="'ann' may not set startingSequence"):
        starts.run()
    owner.set_policy({"boss": ["own"]})
    with pytest.raises(PermissionDenied, match="'ann' may not subscribe"):
        ann.run()  # Although nothing new has been appended.


def test_only_a_schema_of_all_earlier_columns_counts_as_loaded_earlier():
    values = [pa.field(name, pa.int8()) for name in "abc"]
    metadata = result_schema([]).names

    def later(*names):
        return [field.name for field in find_later_columns(set(names), values)]

    assert later(*metadata, "a") == ["b", "c"]
    assert later(*metadata, "b", "a") == ["c"]
    assert later(*metadata, "a", "b", "c") == []
    assert later(*metadata, "b") == []
    assert later(*metadata[1:], "a", "b") == []
    assert later("a") == []
