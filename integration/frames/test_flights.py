"""The main job on real, out-of-order input: right, and the same under all faults.

The truth is computed apart from the product: the rules (semantics 2 and 3) as a plain loop over the
flights (`flights_data.judge`), and DuckDB's counts and means over the rows that it keeps. That
holds for the flights in JSON; in Avro and Protobuf, read with a registry, they give the same store.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from cluster import cluster
from flights import arguments, flights_job, produce_flights, source_counters, start_query
from flights_data import FLIGHTS, expected_hours, flights, judge_flights, kept_rows
from flights_payloads import ENCODINGS
from harness import InBatch, between_sink_and_checkpoint, run_killed, run_to_end, run_until
from lengths import choices, outside_ci, repetitions
from pyspark.sql import SparkSession
from schema_registry import SchemaRegistryStub, serve_schema_registry

DROPPING = {"cti_frequency": "20", "cti_delay": "2 hours"}
"""CTIs often enough, and close enough behind, that thousands of flights come too late."""

PART = 20_000
KILLED = choices([PART], [None])[0]
"""The flights of the runs that are killed, or are on a cluster; None: all of them."""

KILLS = repetitions(1, 5)
SMALL_BATCH = repetitions(2_500, 1_000)
ALIGNED = {"max_skew": choices(["2 days"], ["30 days"])[0]}
"""The partitions side by side in a dozen batches, which the aligned store must equal, too."""


ALL = tuple(ENCODINGS)
TYPED = ALL[1:]


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistryStub]:
    with serve_schema_registry() as serving:
        yield serving


Topics = Callable[..., tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def topics(broker: Broker, registry: SchemaRegistryStub) -> Topics:
    """A topic of flights, produced once, and the job's arguments: `topics("avro", count=9)`."""

    @functools.cache
    def produced(encoding: str, count: int | None = None) -> tuple[str, dict[str, str]]:
        if encoding == "json":
            return produce_flights(broker, count=count), {}
        name = produce_flights(broker, count=count, encoding=encoding, registry=registry)
        return name, {"value_format": ENCODINGS[encoding], "schema_registry": registry.url}

    return produced


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    return topics("json", count=None)[0]


@pytest.fixture(scope="module")
def part(topics: Topics) -> str:
    return topics("json", count=PART)[0]


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
    """The results of a run: the store's rows, the source's counters, the number of batches."""

    def __init__(self, rows: list[tuple], counters: dict[str, int], batches: int) -> None:
        self.rows, self.counters, self.batches = rows, counters, batches


def stored(spark: SparkSession, store: Path) -> list[tuple]:
    """All columns of a store, sequences included, as sorted rows."""
    frame = spark.read.format("tseries").load(str(store))
    return sorted(tuple(row) for row in frame.collect())


@pytest.fixture(scope="module")
def whole(spark: SparkSession, broker: Broker, topic: str, tmp_path_factory) -> list[tuple]:
    """The store that all other ways must equal."""
    return run_whole(spark, broker, topic, tmp_path_factory.mktemp("whole"))


def run_whole(spark: SparkSession, broker: Broker, topic: str, place: Path) -> list[tuple]:
    job = flights_job(broker.bootstrap, topic, place / "store", place / "ck", **DROPPING)
    start_query(spark, arguments(list(job.arguments))).awaitTermination()
    return stored(spark, place / "store")


@pytest.fixture(scope="module")
def expected(
    spark: SparkSession, broker: Broker, topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple]:
    """The same of the flights of runs that are killed."""
    place = tmp_path_factory.mktemp("expected")
    topic, _ = topics("json", count=KILLED)
    return run_whole(spark, broker, topic, place)


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


@pytest.mark.outside_ci
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


@pytest.mark.soak
@pytest.mark.parametrize("encoding", ALL)
def test_with_a_large_delay_nothing_is_dropped_and_the_totals_are_known(
    ran, topics, encoding
) -> None:
    topic, options = topics(encoding, count=None)
    done = ran(topic, **options)
    assert sum(row[4] for row in done.rows) == 328_521
    assert (done.counters["dropped"], done.counters["malformed"]) == (0, 8_255)
    assert done.counters["events"] == 336_776


@pytest.mark.parametrize(
    "options",
    [
        *outside_ci({"max_tasks": 2}, {"max_tasks": 1}, {"max_offsets_per_trigger": 50_000}),
        pytest.param(ALIGNED, marks=pytest.mark.soak),
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_tasks_and_batch_sizes_change_nothing(ran, topic, whole, options) -> None:
    assert ran(topic, **DROPPING, **options).rows == whole


# tests/timestream/kafka/decode/avro reads the same values from milliseconds as from microseconds.
@pytest.mark.outside_ci
@pytest.mark.parametrize("encoding", TYPED)
def test_the_same_flights_in_any_format_give_the_same_store(ran, topics, part, encoding) -> None:
    topic, options = topics(encoding, count=PART)
    plain, typed = ran(part, **DROPPING), ran(topic, **DROPPING, **options)
    assert (typed.rows, typed.counters) == (plain.rows, plain.counters)
    assert min(typed.counters["dropped"], typed.counters["malformed"]) > 100


@pytest.mark.soak
def test_small_batches_change_nothing(ran, part) -> None:
    fine = ran(part, **DROPPING, max_offsets_per_trigger=SMALL_BATCH)
    assert fine.batches >= PART / SMALL_BATCH
    assert fine.rows == ran(part, **DROPPING).rows


# In CI their hours are killed while they are corrected: test_correct_late.py.
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("encoding", ALL)
def test_kills_in_flight_and_between_sink_and_checkpoint_change_nothing(
    spark, broker, topics, expected, tmp_path, encoding
) -> None:
    store, checkpoint = tmp_path / "store", tmp_path / "ck"
    topic, options = topics(encoding, count=KILLED)
    job = flights_job(
        broker.bootstrap, topic, store, checkpoint,
        max_offsets_per_trigger=repetitions(6_000, 40_000), **ALIGNED, **DROPPING, **options,
    )  # fmt: skip
    stored_only = between_sink_and_checkpoint(checkpoint, store, app_id="tseries:q:")
    assert all(run_until(job, stored_only).hit for _ in range(2))
    killed = run_killed(job, InBatch(checkpoint), kills=KILLS, timeout=800)
    assert (killed.hits, killed.exit_code) == (KILLS, 0)
    assert stored(spark, store) == expected


# The jobs of `test_clusters.py` run on one in CI.
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("encoding", ALL)
def test_two_executors_of_a_cluster_give_the_same_store(
    spark, broker, topics, expected, tmp_path, encoding
) -> None:
    topic, options = topics(encoding, count=KILLED)
    with cluster(tmp_path / "cluster") as running:
        job = flights_job(
            broker.bootstrap, topic, tmp_path / "store", tmp_path / "ck", master=running.url,
            report=tmp_path / "counters.json", **ALIGNED, **DROPPING, **options,
        )  # fmt: skip
        assert run_to_end(job, timeout=400).exit_code == 0
    assert stored(spark, tmp_path / "store") == expected
    counters = json.loads((tmp_path / "counters.json").read_text())
    assert counters["events"] == (KILLED or FLIGHTS)
