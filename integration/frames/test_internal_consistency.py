"""The totals of a bank are 0 at every moment, with any batches, partitions and kills.

The job and its transfers come from a post of 2021 (`bank_transfers`), which shows systems with
other totals. Its two reads of the topic judge the same transfers late, since a partition's CTIs are
a function of its records (semantics 10.1), and a second is emitted once both have all of it.
"""

from __future__ import annotations

from pathlib import Path

import bank_job
import pytest
from bank_transfers import BEGIN_MS, SECONDS, fill, in_time, transfers
from broker import Broker
from harness import InBatch, Job, run_killed
from lengths import repetitions
from pyspark.sql import SparkSession

from pyspark_tseries import TimeSeries

pytestmark = pytest.mark.timeout(400)

COUNT = repetitions(2_000, 40_000)
HARMLESS_S, SHORT_S = 10, 6
"""Delays that make no transfer late, and some."""


def check(store: Path, expected: dict[int, int]) -> None:
    """Every total is 0, and each second's is of all its transfers that are not late."""
    totals = TimeSeries.open(str(store)).range_query().select_from("total")
    rows = totals.to_arrow().to_pylist()
    assert {row["total"] for row in rows} == {0}
    seconds = [round(row["timestamp"].timestamp() - BEGIN_MS / 1000) for row in rows]
    assert dict(zip(seconds, (row["moved"] for row in rows), strict=True)) == expected
    assert len(seconds) == len(expected)


@pytest.mark.parametrize("lag_s", [0, 30])
def test_bank_transfers_are_out_of_order_by_up_to_ten_seconds(lag_s: int) -> None:
    given = transfers(COUNT, 4, lag_s)
    assert sum(in_time(given, HARMLESS_S).values()) == COUNT
    assert sorted(in_time(given, HARMLESS_S)) == list(range(SECONDS))
    assert 0.7 * COUNT < sum(in_time(given, SHORT_S).values()) < 0.9 * COUNT


@pytest.mark.soak
def test_bank_totals_are_zero_though_killed_and_late(broker: Broker, tmp_path: Path) -> None:
    given = transfers(COUNT, 4)
    place, store = tmp_path / "checkpoint", tmp_path / "store"
    fixed = (broker.bootstrap, fill(broker, given), str(SHORT_S), str(COUNT // 2))
    job = Job(bank_job.__file__, (*fixed, str(store), str(place)), tmp_path / "log")
    found = run_killed(job, InBatch(place), kills=repetitions(1, 8))
    assert found.hits == repetitions(1, 8)
    check(store, in_time(given, SHORT_S))


@pytest.mark.soak
@pytest.mark.parametrize("delay_s", [SHORT_S, HARMLESS_S])
@pytest.mark.parametrize("parts", [1, 3, 17])
@pytest.mark.parametrize(("partitions", "lag_s"), [(1, 0), (4, 30), (8, 0)])
def test_bank_totals_are_zero_at_any_split(
    spark: SparkSession, broker: Broker, tmp_path: Path,
    partitions: int, lag_s: int, parts: int, delay_s: int,
) -> None:  # fmt: skip
    given = transfers(COUNT, partitions, lag_s)
    place, store = str(tmp_path / "checkpoint"), str(tmp_path / "store")
    fixed = (broker.bootstrap, fill(broker, given), delay_s, -(-COUNT // parts))
    bank_job.start(spark, *fixed, store, place).awaitTermination()
    check(Path(store), in_time(given, delay_s))
