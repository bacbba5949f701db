"""Small batches of a subscription that are read on the driver (semantics 23.8)."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from tseries.spark_calls import Query as Writer

from pyspark_timestream.core import adapters
from pyspark_tseries import TimeSeries, UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.spark import readers
from pyspark_tseries.spark.source import DefaultSource

pytestmark = pytest.mark.spark

VALUE = {"value": pa.int64()}


def new_store(path: Path) -> TimeSeries:
    return TimeSeries.create(path, VALUE, retained_range="unlimited")


def append(store: TimeSeries, *rows: tuple[str, int]) -> None:
    names, values = zip(*rows, strict=True)
    store.append_many(pa.table({"series": names, "value": pa.array(values, pa.int64())}))


class Query:
    """A subscription as Spark runs it: `handed` are the rows that its batch came with, or None."""

    def __init__(self, path: Path, offset: Any = None, **options: str) -> None:
        given = {"path": str(path), "subscriptionRange": "unlimited", **options}
        source = DefaultSource(given)
        self.reader: Any = source.streamReader(source.schema())
        self.offset = offset or self.reader.initialOffset()
        self.handed: list[dict[str, Any]] | None = None

    def plan(self) -> list[Any] | None:
        """The tasks of the next batch, or None if there is none."""
        start, limit = self.offset, self.reader.getDefaultReadLimit()
        self.offset = self.reader.latestOffset(start, limit)
        if self.offset == start:
            return None
        tasks: list[Any] = self.reader.partitions(start, self.offset)
        is_handed = self.reader.__class__ is not type(self.reader)
        found = self.reader.getCache(start, self.offset)
        self.handed = [row for part in found for row in part.to_pylist()] if is_handed else None
        return tasks

    def run(self) -> list[dict[str, Any]] | None:
        """The rows that the tasks of the next batch read."""
        tasks = self.plan()
        if tasks is None:
            return None
        return [
            row for task in tasks for part in self.reader.read(task) for row in part.to_pylist()
        ]


steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=6),
        st.sampled_from(["edit", "compact"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=6, deadline=None)
@given(steps, st.integers(1, 4), st.sampled_from(["", "mark"]), st.integers(0, 8))
def test_a_handed_batch_has_the_rows_and_the_offset_of_tasks(
    tmp_path_factory: pytest.TempPathFactory, history: list[Any], most: int, cti: str, few: int
) -> None:
    """Each step of the history is a query's batch, which moves the store's CTI, or an act."""
    writer = Writer(tmp_path_factory.mktemp("s"), ctiDelay="0 seconds")
    writer.commit(0, ("a", 0, 0), watermark_ms=1)
    path = Path(writer.store)
    options = {"maxEventsPerTrigger": str(most), "cti": cti or "false"}
    by_task = Query(path, maxDriverEvents="0", **options)
    handed = Query(path, **options)
    some = Query(path, maxDriverEvents=str(few), **options)
    for number, step in enumerate(history, start=1):
        if step == "compact":
            compact(str(path))
        elif step == "edit":
            TimeSeries.open(path).edit("a", 0, -1.0)
        else:
            rows = [(name, 10_000_000 * number, value) for name, value in step]
            writer.commit(number, *rows, watermark_ms=1_000 * number)
        while (expected := by_task.run()) is not None:
            assert handed.run() == (handed.handed or []) == expected
            assert some.run() == expected
            assert some.handed in (None, expected)
            assert some.handed is None or len(expected) <= few + bool(cti)
            assert handed.offset == by_task.offset == some.offset
            # The next batches as after a restart.
            handed = Query(path, handed.offset, **options)
        assert handed.plan() is None


def test_a_batch_with_a_cti_alone_and_one_with_events_are_one_task(tmp_path: Path) -> None:
    series = TimeSeries.create(tmp_path / "s", {"value": pa.int64()}, retained_range="unlimited")
    series.append("a", 1)
    query = Query(tmp_path / "s", cti="mark")
    tasks = query.plan()
    assert tasks is not None
    assert len(tasks) == 1
    assert query.handed is not None
    assert [row["value"] for row in query.handed] == [1]


def test_a_batch_with_many_events_or_large_files_is_left_to_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "s")
    append(store, *[("a", value) for value in range(30)])
    for options, is_handed in (
        ({"maxDriverEvents": "30"}, True),
        ({"maxDriverEvents": "29"}, False),
    ):
        query = Query(tmp_path / "s", **options)
        assert len(query.run() or ()) == 30
        assert (query.handed is not None) == is_handed
    monkeypatch.setattr(readers, "MAX_HANDED_BYTES", 100)
    query = Query(tmp_path / "s")
    assert len(query.run() or ()) == 30
    assert query.handed is None


def test_after_a_batch_that_was_too_large_half_as_many_events_are_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "s")
    query = Query(tmp_path / "s")
    monkeypatch.setattr(
        readers, "collect_rows", lambda rows: adapters.collect_rows(rows, max_bytes=1_500)
    )
    found = []
    for events in (2, 30, 16, 15, 2):
        append(store, *[("a", value) for value in range(events)])
        assert len(query.run() or ()) == events
        found.append(query.handed is not None)
    assert found == [True, False, False, True, True]


def test_what_cannot_be_read_here_is_left_to_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "s")
    append(store, ("a", 1))
    query = Query(tmp_path / "s")
    with monkeypatch.context() as broken:
        broken.setattr(readers, "read_delivery", lambda _: [][0])
        tasks = query.plan()
    assert query.handed is None
    assert tasks is not None
    assert [row["value"] for part in query.reader.read(tasks[0]) for row in part.to_pylist()] == [1]


def test_handed_rows_have_the_units_of_their_columns(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    store.set_units({"value": "km"})
    store.append("a", 1)
    query = Query(tmp_path / "s")
    schema = DefaultSource({"path": str(tmp_path / "s"), "subscriptionRange": "none"}).schema()
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    query.reader.partitions(query.offset, end)
    [rows] = query.reader.getCache(query.offset, end)
    assert from_arrow_schema(rows.schema) == schema


def test_a_checkpoint_of_another_source_is_refused_by_name(tmp_path: Path) -> None:
    """Spark's source `rate` writes a number: it was not a mapping, and a task's traceback."""
    append(new_store(tmp_path / "s"), ("a", 1))
    query = Query(tmp_path / "s", 5)
    with pytest.raises(UnusableStore, match="another source wrote the checkpoint's offset 5"):
        query.plan()
    with pytest.raises(UnusableStore, match="another source wrote the checkpoint's offset 6"):
        query.reader.partitions(5, 6)
