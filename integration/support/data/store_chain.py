"""A chain of jobs through a store (`store_chain_job.py`): its input, its results, the truth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
from broker import Broker, Record
from deltalake import DeltaTable
from kafka_query import DAY_MS, seconds
from lengths import repetitions
from store_chain_job import STAGES
from writing import Mark, TopicJob

from pyspark_timestream.core.instants import parse_instant
from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.verify import verify

TICKS = repetitions(600, 1200)
"""One a minute, from 2024-01-01 on; tick `k` belongs to series `s<k % 7>` and has the value `k`."""

COLUMNS = ("series", "timestamp", "total", "rows")
PARTITIONS = 3


def chain_topics(broker: Broker) -> tuple[str, str]:
    """The topic of the ticks, in the order in which they come, and an empty one for results."""
    source = broker.create_topic(partitions=PARTITIONS)
    chance = Random(6)
    arrival = sorted(range(TICKS), key=lambda k: k + 30 * chance.random())
    broker.produce(source, [tick(k) for k in arrival])
    return source, broker.create_topic(partitions=2)


def tick(k: int) -> Record:
    value = json.dumps({"series": f"s{k % 7}", "total": k})
    return Record(value, None, k % PARTITIONS, DAY_MS + 60_000 * k)


def check_chain(broker: Broker, target: str, place: Path, stages: Sequence[str] = STAGES) -> None:
    """Every stage equals one query over all ticks, and says that it is complete."""
    for name in [each for each in stages if each != "topic"]:
        assert stored_sums(place / name) == computed_sums(600 if name == "fine" else 3_600)
        cti = TimeSeries.open(place / name).cti()
        assert cti is not None
        assert cti.year == 9999
        assert verify(str(place / name)) == []
    assert (place / "failed").exists()
    results = TopicJob(None, broker, "", target, place)
    assert sorted(map(hour_sums, results.values())) == computed_sums(3_600)
    for partition in broker.end_offsets(target):
        *records, last = results.read(partition)
        assert last == Mark(float("inf"), "job", True)
        mark = float("-inf")
        for each in records:
            if isinstance(each, Mark):
                assert each.second > mark
                mark = each.second
            else:
                assert second_of(each) >= mark
        assert mark > 0


def stored_sums(store: Path) -> list[Any]:
    """Rows of (series, start in seconds, total, rows) that a store has."""
    table = DeltaTable(store).to_pyarrow_table()
    columns = [table[name].to_pylist() for name in COLUMNS]
    return sorted((name, seconds(at), *sums) for name, at, *sums in zip(*columns, strict=True))


def hour_sums(value: Any) -> tuple[Any, ...]:
    """The same of a record."""
    return value["series"], second_of(value), value["total"], value["rows"]


def second_of(value: Any) -> float:
    return parse_instant(value["timestamp"]) / 1e6 - DAY_MS / 1e3


def computed_sums(length_s: int) -> list[Any]:
    """The same, in one query over all ticks."""
    return duckdb.sql(f"""
        SELECT 's' || k % 7, 60 * k // {length_s} * {length_s} AS start, sum(k)::BIGINT, count(*)
        FROM range({TICKS}) AS ticks(k) GROUP BY ALL ORDER BY ALL""").fetchall()
