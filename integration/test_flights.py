"""The main job on real, out-of-order input: right, and the same whatever happens to it.

The truth is computed apart from the product: the rules (semantics 2 and 3) as a plain loop over the
flights (`flights_data.judge`), and DuckDB's counts and means over the rows that it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from cluster import cluster
from flights import arguments, flights_job, produce_flights, source_counters, start_query
from flights_data import expected_hours, flights, judge_flights, kept_rows
from harness import InBatch, between_sink_and_checkpoint, run_killed, run_to_end
from lengths import repetitions
from pyspark.sql import SparkSession

DROPPING = {"cti_frequency": "20", "cti_delay": "2 hours"}
"""CTIs often enough, and close enough behind, that thousands of flights come too late."""

PART = 20_000
KILLS = repetitions(2, 5)
SMALL_BATCH = repetitions(2_500, 1_000)


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    return produce_flights(broker)


@pytest.fixture(scope="module")
def part(broker: Broker) -> str:
    return produce_flights(broker, count=PART)


@pytest.fixture
def ran(spark: SparkSession, broker: Broker, tmp_path: Path) -> Callable[..., Ran]:
    """Run the job in this session: `ran(topic, max_tasks=1)`."""

    def go(topic: str, **options: Any) -> Ran:
        place = tmp_path / f"{topic}-{len(list(tmp_path.iterdir()))}"
        job = flights_job(broker.bootstrap, topic, place / "store", place / "ck", **options)
        query = start_query(spark, arguments(list(job.arguments)))
        query.awaitTermination()
        return Ran(
            stored(spark, place / "store"), source_counters(query), len(query.recentProgress)
        )

    return go


class Ran:
    """What a run left: the store's rows, the source's counters, how many batches it took."""

    def __init__(self, rows: list[tuple], counters: dict[str, int], batches: int) -> None:
        self.rows, self.counters, self.batches = rows, counters, batches


def stored(spark: SparkSession, store: Path) -> list[tuple]:
    """All columns of a store, sequences included, as sorted rows."""
    frame = spark.read.format("tseries").load(str(store))
    return sorted(tuple(row) for row in frame.collect())


@pytest.fixture(scope="module")
def whole(spark: SparkSession, broker: Broker, topic: str, tmp_path_factory) -> list[tuple]:
    """The store that all other ways must equal."""
    place = tmp_path_factory.mktemp("whole")
    job = flights_job(broker.bootstrap, topic, place / "store", place / "ck", **DROPPING)
    start_query(spark, arguments(list(job.arguments))).awaitTermination()
    return stored(spark, place / "store")


def hours_of(rows: list[tuple]) -> list[tuple]:
    """(origin, start of the hour in us, flights, mean delay) of stored rows."""
    return [(row[0], round(row[2].timestamp()) * 1_000_000, row[4], row[5]) for row in rows]


def truth(frequency: str, delay: str) -> tuple[list[tuple], dict[str, int]]:
    """The same from the plain loop and DuckDB, and the loop's counters."""
    table = flights()
    judged = judge_flights(table, frequency, delay)
    counters: dict[str, int] = {}
    for each in judged.values():
        for name, count in each.counters().items():
            counters[name] = counters.get(name, 0) + count
    expected = [tuple(hour) for hour in expected_hours(kept_rows(table, judged))]
    return expected, counters


def test_every_hour_equals_duckdb_over_the_rows_that_the_rules_keep(whole, ran, topic) -> None:
    expected, counters = truth(DROPPING["cti_frequency"], DROPPING["cti_delay"])
    assert counters["dropped"] > 1_000
    assert sorted(map(rounded, hours_of(whole))) == sorted(map(rounded, expected))
    again = ran(topic, **DROPPING)
    assert again.rows == whole
    assert {name: again.counters[name] for name in counters if name in again.counters} == {
        name: count for name, count in counters.items() if name in again.counters
    }


def rounded(hour: tuple) -> tuple:
    """An hour with its mean to nine digits: the engines add in different orders."""
    origin, start, count, mean = hour
    return origin, start, count, round(mean, 9)


def test_with_a_large_delay_nothing_is_dropped_and_the_totals_are_known(ran, topic) -> None:
    done = ran(topic)
    assert sum(row[4] for row in done.rows) == 328_521
    assert (done.counters["dropped"], done.counters["malformed"]) == (0, 8_255)
    assert done.counters["events"] == 336_776


@pytest.mark.parametrize(
    "options",
    [{"max_tasks": 1}, {"max_tasks": 2}, {"max_offsets_per_trigger": 50_000}],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_tasks_and_batch_sizes_change_nothing(ran, topic, whole, options) -> None:
    assert ran(topic, **DROPPING, **options).rows == whole


def test_small_batches_change_nothing(ran, part) -> None:
    fine = ran(part, **DROPPING, max_offsets_per_trigger=SMALL_BATCH)
    assert fine.batches >= PART / SMALL_BATCH
    assert fine.rows == ran(part, **DROPPING).rows


@pytest.mark.timeout(900)
def test_kills_in_flight_change_nothing(spark, broker, topic, whole, tmp_path) -> None:
    store, checkpoint = tmp_path / "store", tmp_path / "ck"
    job = flights_job(
        broker.bootstrap, topic, store, checkpoint, max_offsets_per_trigger=30_000, **DROPPING
    )
    killed = run_killed(job, InBatch(checkpoint), kills=KILLS, timeout=800)
    assert (killed.hits, killed.exit_code) == (KILLS, 0)
    assert stored(spark, store) == whole


@pytest.mark.timeout(600)
def test_kills_between_the_sinks_commit_and_the_checkpoint_double_nothing(
    spark, broker, topic, whole, tmp_path
) -> None:
    store, checkpoint = tmp_path / "store", tmp_path / "ck"
    job = flights_job(
        broker.bootstrap, topic, store, checkpoint, max_offsets_per_trigger=50_000, **DROPPING
    )
    point = between_sink_and_checkpoint(checkpoint, store, app_id="tseries:q:")
    killed = run_killed(job, point, kills=2, timeout=500)
    assert (killed.hits, killed.exit_code) == (2, 0)
    assert stored(spark, store) == whole


@pytest.mark.timeout(600)
def test_two_executors_of_a_cluster_give_the_same_store(
    spark, broker, topic, whole, tmp_path
) -> None:
    with cluster(tmp_path / "cluster") as master:
        job = flights_job(
            broker.bootstrap, topic, tmp_path / "store", tmp_path / "ck", master=master,
            report=tmp_path / "counters.json", **DROPPING,
        )  # fmt: skip
        assert run_to_end(job, timeout=400).exit_code == 0
    assert stored(spark, tmp_path / "store") == whole
    assert json.loads((tmp_path / "counters.json").read_text())["events"] == 336_776
