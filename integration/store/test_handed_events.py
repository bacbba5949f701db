"""Small batches of a subscription that Spark gets with their tasks (semantics 23.8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from handed_blocks import block_manager, list_blocks
from harness import JOBS
from lengths import outside_ci
from pyspark.sql import DataFrame, SparkSession

from pyspark_tseries import DefaultSource, TimeSeries

pytestmark = pytest.mark.skipif(
    os.environ.get("HAND_OVER") == "off", reason="tasks read every batch"
)

OPTIONS = {"subscriptionRange": "unlimited", "maxEventsPerTrigger": "7"}
MOST_MB = 200


def new_store(path: Path, kind: pa.DataType) -> TimeSeries:
    return TimeSeries.create(path, {"value": kind}, retained_range="unlimited")


def append(store: TimeSeries, commits: int) -> None:
    for number in range(commits):
        names = ["a", "b", "c", "d", "e"]
        store.append_many(pa.table({"series": names, "value": pa.array([number] * 5, pa.int64())}))
    store.edit("a", 0, -1)


def run(
    spark: SparkSession, store: Path, checkpoint: Path, *, loses: bool = False, **options: str
) -> tuple[list[list[Any]], int]:
    """Run to the end; returns the rows of each batch, and how many came with their tasks."""
    batches: list[list[Any]] = []
    handed: set[str] = set()
    before = {str(block) for block in list_blocks(spark)}

    def keep(batch: DataFrame, _number: int) -> None:
        if loses:
            for block in list_blocks(spark):
                block_manager(spark).removeBlock(block, True)
        batches.append(batch.collect())
        handed.update(str(block) for block in list_blocks(spark))

    rows = spark.readStream.format("tseries").options(**{**OPTIONS, **options}).load(str(store))
    writer = rows.writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    return batches, len(handed - before)


def read_offsets(checkpoint: Path) -> list[dict[str, Any]]:
    found = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in found]


def forget_last_commit(checkpoint: Path) -> None:
    """As after a kill: the last batch was planned, and nobody knows of its end."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.outside_ci
def test_handed_batches_have_the_rows_and_offsets_of_tasks_across_restarts_and_lost_blocks(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    store = new_store(path, pa.int64())
    append(store, 2)
    store.append("a", 5)
    expected: list[list[Any]] = []
    for loses in (False, True):
        by_task, none = run(spark, path, tmp_path / "tasks", maxDriverEvents="0")
        handed, some = run(spark, path, tmp_path / "handed", loses=loses)
        assert none == 0
        assert loses or some >= len(handed) - 1 > 0
        assert handed == by_task
        expected += by_task
        append(store, 3)
    by_task, _ = run(spark, path, tmp_path / "tasks", maxDriverEvents="0")
    expected += by_task
    assert sum(map(len, expected)) == 5 * 8 + 4
    # A batch that was handed over is read by a task after a restart, and the other way round.
    handed, _ = run(spark, path, tmp_path / "handed")
    for most in ("0", "10000"):
        forget_last_commit(tmp_path / "handed")
        again, some = run(spark, path, tmp_path / "handed", maxDriverEvents=most)
        assert again == handed[-1:]
        assert bool(some) == (most != "0")
    assert read_offsets(tmp_path / "handed") == read_offsets(tmp_path / "tasks")


def read_past_initial_events(store: Path) -> dict[str, Any]:
    """The offset behind the first batch of a subscription."""
    source = DefaultSource({"path": str(store)})
    reader: Any = source.streamReader(source.schema())
    start: dict[str, Any] = reader.latestOffset(
        reader.initialOffset(), reader.getDefaultReadLimit()
    )
    return start


@pytest.mark.parametrize(
    ("events", "size", "most", "expected"),
    [(20_000, 100, 9_000, 3), (60, 900_000, 20, 3), *outside_ci((120, 900_000, 60, 0))],
)
def test_batches_of_a_store_that_are_handed_over_fill_no_memory(
    tmp_path: Path, events: int, size: int, most: int, expected: int
) -> None:
    store = new_store(tmp_path / "s", pa.binary())
    store.append("a", b"")
    start = read_past_initial_events(tmp_path / "s")
    chance = os.urandom(2 * size)
    for first in range(0, events, most):
        values = [chance[n % size : n % size + size] for n in range(min(most, events - first))]
        store.append_many(pa.table({"series": ["a"] * len(values), "value": values}))
    arguments = ["tseries", tmp_path / "s", most, json.dumps(start)]
    done = subprocess.run(
        [sys.executable, str(JOBS / "handed_memory.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    batches, handed, grown_mb = map(int, done.stdout.split()[-3:])
    print(f"{events} events of {size} bytes: {batches} batches, {handed} handed, {grown_mb} MB")
    assert handed == expected
    assert grown_mb < MOST_MB
