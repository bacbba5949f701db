"""Small batches that are handed over with their partitions (semantics 8.9)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broker import Broker, Record
from handed_blocks import block_manager, list_blocks
from harness import JOBS
from kafka_query import Stream, event, write_rows
from lengths import outside_ci
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.skipif(
    os.environ.get("HAND_OVER") == "off", reason="tasks read every batch"
)
MOST_MB = 200

CTIS = {"ctiFrequency": "1", "ctiDelay": "2 seconds", "violationPolicy": "flag"}


def run_and_count(made: Stream, **options: Any) -> int:
    """Run to the end, keep the rows, and count the batches that were handed over."""
    handed: set[str] = set()

    def keep(batch: DataFrame, number: int) -> None:
        write_rows(batch, made.place / f"rows/batch={number:06d}")
        handed.update(str(block) for block in list_blocks(made.spark))

    before = {str(block) for block in list_blocks(made.spark)}
    writer = made.load(**options).writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(made.place / "checkpoint"))
    made.query = writer.start()
    made.query.awaitTermination()
    return len(handed - before)


@pytest.fixture
def stream(spark: SparkSession, topic, broker: Broker, tmp_path: Path):
    """Make a `Stream` over a topic of three partitions."""
    name = topic(3)

    def make(called: str, **options: Any) -> Stream:
        given = {**CTIS, **{key: str(value) for key, value in options.items()}}
        return Stream(spark, broker, name, tmp_path / called, given)

    return make


def fill(made: Stream, first: int, last: int) -> None:
    """Produce events, every seventh of them late."""
    records = [event(n - 9 * (n % 7 == 6), n % 3) for n in range(first, last)]
    made.broker.produce(made.topic, records)


def read_offsets(made: Stream) -> list[dict[str, Any]]:
    """The offsets in the checkpoint, without the stream's id and readings of the wall clock."""

    def drop(value: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in value.items() if k not in ("stream", "unpinned", "caught_up")}

    places = (made.place / "checkpoint/offsets").glob("[0-9]*")
    texts = [path.read_text() for path in sorted(places, key=lambda path: int(path.name))]
    return [drop(json.loads(text.splitlines()[-1], object_hook=drop)) for text in texts]


@pytest.mark.outside_ci
def test_handed_batches_have_the_rows_ctis_and_offsets_of_tasks(stream) -> None:
    by_task = stream("tasks", maxOffsetsPerTrigger=12, maxDriverRecords=0)
    handed = stream("handed", maxOffsetsPerTrigger=12)
    for first in (0, 60, 120):
        fill(by_task, first, first + 60)
        assert run_and_count(by_task) == 0
        # A task reads the first of five batches with records.
        assert run_and_count(handed) >= 4
    assert handed.rows() == by_task.rows()
    assert read_offsets(handed) == read_offsets(by_task)
    assert handed.report() == by_task.report()
    assert handed.report()["flagged"] > 0


@pytest.mark.outside_ci
def test_a_batch_that_runs_again_is_the_same_whether_it_is_handed_over_or_not(stream) -> None:
    made = stream("again", maxOffsetsPerTrigger=12)
    fill(made, 0, 60)
    rows = made.run()
    for most in ("10000", "0", "10000"):
        commits = sorted(
            (made.place / "checkpoint/commits").glob("[0-9]*"), key=lambda p: int(p.name)
        )
        for commit in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
            commit.unlink(missing_ok=True)
        again = made.run(maxDriverRecords=most)
        assert again[: len(rows)] == rows
        rows = again


def test_rows_that_spark_has_lost_are_read_again_by_a_task(stream, spark) -> None:
    made = stream("lost", maxOffsetsPerTrigger=12)
    fill(made, 0, 60)
    manager = block_manager(spark)
    seen: list[tuple[int, list[Any], list[Any]]] = []

    def read_twice(batch: DataFrame, _number: int) -> None:
        first, blocks = batch.collect(), list_blocks(spark)
        for block in blocks:
            manager.removeBlock(block, True)
        seen.append((len(blocks), first, batch.collect()))

    query = made.load().writeStream.foreachBatch(read_twice).trigger(availableNow=True)
    query.option("checkpointLocation", str(made.place / "checkpoint")).start().awaitTermination()
    assert sum(blocks for blocks, _, _ in seen) >= 3
    assert all(first == second for _, first, second in seen)
    assert sum(len(first) for _, first, _ in seen) > 60


@pytest.mark.outside_ci
def test_a_batch_of_large_records_goes_to_its_task(stream) -> None:
    made = stream("large", maxOffsetsPerTrigger=48)
    records = [Record(bytes(900_000), None, 0, 1_000 * n) for n in range(144)]
    made.broker.produce(made.topic, records)
    # Only the closing batch, which has no record, is handed over.
    assert run_and_count(made) <= 1
    assert [len(row.value) for row in made.rows() if row.value] == [900_000] * 144


@pytest.mark.parametrize(
    ("records", "size", "offsets", "expected"),
    [
        (120, 900_000, 30, 4),
        (60_000, 85, 9_000, 7),
        *outside_ci((300, 100_000, 200, 2), (120, 900_000, 60, 0)),
    ],
)
def test_batches_that_are_handed_over_fill_no_memory(
    broker: Broker, topic, records: int, size: int, offsets: int, expected: int
) -> None:
    name = topic(1)
    broker.produce(name, [Record(bytes(size), None, 0, 1_000) for _ in range(records)])
    script = JOBS / "handed_memory.py"
    done = subprocess.run(
        [sys.executable, str(script), broker.bootstrap, name, str(offsets)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    batches, handed, grown_mb = map(int, done.stdout.split()[-3:])
    print(f"{records} records of {size} bytes: {batches} batches, {handed} handed, {grown_mb} MB")
    assert handed == expected
    assert grown_mb < MOST_MB


def test_the_first_batch_without_ctis_is_handed_over(stream) -> None:
    made = stream("plain")
    made.options = {}
    fill(made, 0, 30)
    assert run_and_count(made) >= 1
    assert len(made.rows()) == made.report()["events"] == 30


def test_a_violation_in_a_handed_batch_ends_the_query_by_its_name(stream) -> None:
    made = stream("fails", violationPolicy="fail", maxOffsetsPerTrigger=12)
    made.broker.produce(made.topic, [event(n, n % 3) for n in range(60)])
    made.broker.produce(made.topic, [event(1, 0)])
    for _ in range(2):
        with pytest.raises(Exception, match="option 'violationPolicy' is 'fail'"):
            made.run()
    assert len(list((made.place / "checkpoint/commits").glob("[0-9]*"))) >= 4
