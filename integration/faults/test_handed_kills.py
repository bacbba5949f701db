"""Kills while Spark runs a batch that it got with its partitions (semantics 8.9)."""

from __future__ import annotations

import os
from pathlib import Path

import handed_job
import pytest
from broker import Broker
from harness import InBatch, Job, run_killed
from kafka_query import Stream, ctis, event
from lengths import repetitions
from pyspark.sql import SparkSession

KILLS = repetitions(1, 6)
EVENTS = 36 * KILLS + 108
"""A batch takes twelve: on a loaded machine few moments are seen in time for a kill."""

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.environ.get("HAND_OVER") == "off", reason="tasks read every batch"),
]


@pytest.mark.outside_ci
@pytest.mark.parametrize("is_written", [True, False], ids=["written", "planned"])
def test_a_kill_in_a_handed_batch_loses_and_doubles_nothing(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path, is_written: bool
) -> None:
    name, place = topic(3), tmp_path / "killed"
    broker.produce(name, [event(n - 9 * (n % 7 == 6), n % 3) for n in range(EVENTS)])
    by_task = Stream(spark, broker, name, tmp_path / "tasks", handed_job.OPTIONS)
    expected = by_task.run(maxDriverRecords=0)

    def has_written(batch: int) -> bool:
        return (place / f"handed/{batch}").exists()

    point = InBatch(place / "checkpoint", then=lambda each: each > 0 and (
        has_written(each) if is_written else has_written(each - 1) and not has_written(each)
    ))  # fmt: skip
    job = Job(handed_job.__file__, [broker.bootstrap, name, str(place)], log=tmp_path / "log")
    result = run_killed(job, point, kills=KILLS)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    handed = [int(each.read_text()) for each in (place / "handed").iterdir()]
    assert sum(map(bool, handed)) > KILLS
    killed = Stream(spark, broker, name, place)
    rows = killed.rows()

    def data(found):
        return sorted(
            (row.partition, row.offset, row.violation) for row in found if row.cti is None
        )

    assert data(rows) == data(expected)
    assert ctis(rows) == sorted(ctis(rows))
    assert ctis(rows)[-1] == ctis(expected)[-1]
