"""Diffusion's conformance cases of subscriptions, by number, as queries of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tseries.cases import build

from pyspark_tseries import TimeSeries

pytestmark = pytest.mark.timeout(600)

INITIAL = {
    "B1": {},
    "B2": {"subscriptionRange": "none", "maxEventsPerTrigger": "2"},
    "B3": {"subscriptionRange": "limit 3"},
    "B4": {"subscriptionRange": "last 0MS"},
    "B13": {"subscriptionRange": "limit 50"},
}


def start(spark: SparkSession, store: Path, out: Path, **options: str) -> Any:
    """A query that adds to `out` what there is, and goes on there when it is started again."""
    rows = spark.readStream.format("tseries").options(**options).load(str(store))
    writer = rows.select("sequence", "original_sequence", "original_author").writeStream
    writer = writer.format("json").option("checkpointLocation", f"{out}-checkpoint")
    return writer.trigger(availableNow=True).start(str(out))


def got(out: Path) -> list[tuple[int, int | None, str | None]]:
    """The rows of the query's batches, in their order."""
    log = out / "_spark_metadata"
    batches = sorted(
        (path for path in log.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    rows = []
    for batch in batches:
        for entry in batch.read_text().splitlines()[1:]:
            part = Path(json.loads(entry)["path"].removeprefix("file://"))
            rows += [json.loads(line) for line in part.read_text().splitlines()]
    return [
        (row["sequence"], row.get("original_sequence"), row.get("original_author")) for row in rows
    ]


def test_b1_b2_b3_b4_b6_b7_b9_b10_b11_b13_r15_the_range_first_then_every_event_once_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = filled(tmp_path / "s")
    build(tmp_path)
    queries = [
        start(spark, tmp_path / "s", tmp_path / name, **asked) for name, asked in INITIAL.items()
    ]
    queries.append(start(spark, tmp_path / "S1", tmp_path / "B6", subscriptionRange="limit 3"))
    for query in queries:
        query.awaitTermination()
    first = {name: [row[0] for row in got(tmp_path / name)] for name in (*INITIAL, "B6")}
    assert first == {
        "B1": [24],
        "B2": [],
        "B3": [22, 23, 24],
        "B4": [24],
        "B6": [0, 1, 3],
        "B13": list(range(1, 25)),
    }
    comes_back(spark, store, tmp_path)


def filled(path: Path) -> TimeSeries:
    """25 originals of the series `s`; 24 of them are kept."""
    store = TimeSeries.create(path, {"value": pa.int64()}, "limit 24", author="me")
    stamps = pa.array([1000 * n for n in range(25)]).cast(pa.timestamp("us", "UTC"))
    values = pa.array(range(25), pa.int64())
    store.append_many(pa.table({"series": ["s"] * 25, "timestamp": stamps, "value": values}))
    return store


def comes_back(spark: SparkSession, store: TimeSeries, directory: Path) -> None:
    """B7, B9, B10, B11, R15: of who comes back after edits, an append and a compaction."""
    before = len(got(directory / "B1"))
    for _ in range(2):
        store.edit("s", 24, 0)
    store.append("s", 1)
    store.edit("s", 23, 0)
    store.compact()
    queries = [start(spark, directory / "s", directory / n, **INITIAL[n]) for n in ("B1", "B2")]
    for query in queries:
        query.awaitTermination()
    # Once more: there is nothing new, though events were discarded.
    start(spark, directory / "s", directory / "B1").awaitTermination()
    live = [(25, 24, "me"), (26, 24, "me"), (27, None, None), (28, 23, "me")]
    assert got(directory / "B1")[before:] == live
    assert got(directory / "B2") == live
