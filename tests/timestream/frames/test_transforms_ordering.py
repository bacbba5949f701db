"""Rows that leave are in the order of (event time, arrival), and are the rows that came."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.frames.transforms import ARRIVAL, add_arrival, order_by_time, sort_by_time

SCHEMA = pa.schema([
    pa.field("t", pa.timestamp("us", "UTC"), nullable=False), ("id", pa.int32()),
    ("more", pa.struct([("tags", pa.list_(pa.string()))])),
])  # fmt: skip
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def batch(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    """Rows of (second, id); every third `more` is null."""
    more = [None if id % 3 == 0 else {"tags": [str(id), None]} for _, id in rows]
    times = [EPOCH + timedelta(seconds=second) for second, _ in rows]
    columns = {"t": times, "id": [id for _, id in rows], "more": more}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def with_time(rows: pa.RecordBatch, batch_id: int) -> pa.RecordBatch:
    """The same with the time of their batch."""
    times = pa.array([EPOCH + timedelta(milliseconds=batch_id)] * rows.num_rows, SCHEMA[0].type)
    return rows.append_column("time", times)


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[list[list[int]]]]:
    """Seconds, by batch, task and Arrow batch."""
    blocks = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=3)
    return draw(st.lists(st.lists(blocks, min_size=1, max_size=3), min_size=1, max_size=3))


@settings(max_examples=100, deadline=None)
@given(arrivals(), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_the_state_hands_over_leaves_by_time_and_then_by_arrival(
    came, knows_number, random
) -> None:
    numbered, expected = [], []
    for batch_id, tasks in enumerate(came):
        for task, blocks in enumerate(tasks):
            parts = []
            for block in blocks:
                rows = [(second, len(expected) + n) for n, second in enumerate(block)]
                expected += rows
                parts.append(batch(rows))
            if not knows_number:
                parts = [with_time(part, batch_id) for part in parts]
            number = batch_id if knows_number else None
            numbered += list(add_arrival(parts, number, task, has_time=not knows_number))
    handed = [one.slice(n, 1) for one in numbered for n in range(one.num_rows)]
    random.shuffle(handed)
    left = list(sort_by_time(handed, "t"))
    rows = [row for each in left for row in each.to_pylist()]
    assert [row["id"] for row in rows] == [id for _, id in sorted(expected, key=lambda r: r[0])]
    assert all(each.schema == SCHEMA for each in left)
    assert rows == batch(sorted(expected, key=lambda r: r[0])).to_pylist()


def test_arrivals_number_the_rows_of_a_task_through_its_blocks() -> None:
    blocks = list(add_arrival([batch([(9, 0), (1, 1)]), batch([]), batch([(5, 2)])], 7, 3))
    rows = pa.Table.from_batches(blocks).select(list(ARRIVAL)).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(7, 3, 0), (7, 3, 1), (7, 3, 2)]
    assert [block.num_rows for block in blocks] == [2, 0, 1]


def test_arrivals_have_the_number_of_a_batch_rather_than_its_time() -> None:
    (block,) = add_arrival([with_time(batch([(9, 0)]), 4)], 7, 3, has_time=True)
    assert block.schema.names == [*SCHEMA.names, *ARRIVAL]
    assert block[ARRIVAL[0]].to_pylist() == [7]


def test_nothing_released_is_nothing() -> None:
    (stamp,) = add_arrival([batch([])], 0, 0)
    assert list(sort_by_time([stamp], "t")) == list(sort_by_time([], "t")) == []


def test_names_of_columns_may_have_dots(spark):
    """`mapInArrow` takes a dot for the way into a struct, and fields are named by their paths."""
    row = "SELECT '{}' AS `a.b`, timestamp_seconds({}) AS `at``.`, CAST(NULL AS timestamp) AS cti"
    came = [("x", 3), ("y", 2), ("x", 1)]
    df = spark.sql(" UNION ALL ".join(row.format(*cells) for cells in came))
    ordered = order_by_time(df, "a.b", event_time="at`.")
    assert ordered.columns == ["a.b", "at`."]
    rows = [(key, int(at.timestamp())) for key, at in ordered.collect()]
    assert [second for key, second in rows if key == "x"] == [1, 3]
    assert sorted(rows) == sorted(came)
