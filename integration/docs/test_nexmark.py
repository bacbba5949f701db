"""Nexmark's six queries over an unordered topic with a lagging partition: DuckDB's very rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from broker import Broker
from nexmark.answers import Differences, answer, differences, is_exact
from nexmark.events import PARTITIONS, Load, sample_lines
from nexmark.queries import QUERIES
from nexmark.runs import run
from nexmark.sources import Topic
from nexmark.topics import event_files, fill_topic, write_events

if TYPE_CHECKING:
    from both_sources import Source
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

EVENTS = 20_000
Fill = Callable[[str, str, int], tuple[Load, Topic]]


def sampled(partition: int, first: int, count: int) -> list[bytes]:
    return sample_lines()[partition::PARTITIONS][first : first + count]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("events")
    for variant in ("ordinary", "lagging"):
        write_events(Load(EVENTS, variant), place, sampled)
    return place


@pytest.fixture(scope="module")
def filled_topic(broker: Broker, events: Path) -> Fill:
    topics: dict[tuple[str, str], str] = {}

    def fill(variant: str, form: str, batches: int) -> tuple[Load, Topic]:
        load = Load(EVENTS, variant)
        if (variant, form) not in topics:
            topics[variant, form] = fill_topic(broker, load, form, event_files(load, events))
        batch = -(-load.records // batches)
        return load, Topic(broker.bootstrap, topics[variant, form], form, batch)

    return fill


@dataclass(frozen=True)
class Bench:
    """Compares a source's rows of a query with DuckDB's."""

    spark: SparkSession
    fill: Fill
    events: Path
    place: Path

    def compare(self, source: str, query: str, *of_topic: Any) -> Differences:
        load, topic = self.fill(*of_topic)
        run(source, query, self.spark, topic, self.place)
        wanted = answer(query, event_files(load, self.events))
        return differences(wanted, query, load, self.place)


@pytest.fixture
def bench(spark: SparkSession, filled_topic: Fill, events: Path, tmp_path: Path) -> Bench:
    return Bench(spark, filled_topic, events, tmp_path)


@pytest.mark.outside_ci
@pytest.mark.parametrize("topic", [("lagging", "json", 3), ("ordinary", "avro", 2)])
def test_nexmark_folded_in_the_source_is_exact(bench: Bench, topic: tuple[str, str, int]) -> None:
    found = bench.compare("folded", "q5", *topic)
    assert found.rows > 0
    assert is_exact(found)


@pytest.mark.outside_ci
@pytest.mark.parametrize("query", QUERIES)
def test_nexmark_with_a_lagging_partition_is_exact(bench: Bench, query: str) -> None:
    found = bench.compare("timestream", query, "lagging", "json", 3)
    assert found.rows > 0
    assert is_exact(found), found


@pytest.mark.soak
@pytest.mark.parametrize("batches", [1, 7, 40])
@pytest.mark.parametrize("form", ["json", "avro"])
@pytest.mark.parametrize("variant", ["ordinary", "lagging"])
@pytest.mark.parametrize("query", QUERIES)
def test_nexmark_is_exact_in_each_format_and_division(
    bench: Bench, query: str, variant: str, form: str, batches: int
) -> None:
    found = bench.compare("timestream", query, variant, form, batches)
    assert is_exact(found), found


@pytest.mark.soak
@pytest.mark.parametrize("query", ["q5", "q7", "q8", "q11"])
def test_nexmark_by_spark_s_watermark_is_exact_only_without_a_lag(
    both: tuple[Source, Source], bench: Bench, query: str
) -> None:
    assert is_exact(bench.compare("spark", query, "ordinary", "json", 3))
    shutil.rmtree(bench.place)
    assert not is_exact(bench.compare("spark", query, "lagging", "json", 7))
