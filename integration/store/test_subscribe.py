"""Subscriptions through Spark: every event once, in order, across kills, compaction and cleaning.

Run as a script it is the query that is killed: `STORE COPY CHECKPOINT`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from harness import DeltaLog, InBatch, Job, run_killed
from lengths import repetitions
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import NO_EVENTS
from pyspark_tseries.read.delivery import InitialEvents, read_delivery
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.store.store import Store

SERIES = 20
COMMITS = repetitions(600, 2000)
KILLS = repetitions(1, 2)


def fill(store: TimeSeries, path: Path, first: int, commits: int) -> None:
    """Commits of one event of every series, its value the commit's number."""
    for number in range(first, first + commits):
        names = pa.array([f"s{i:02}" for i in range(SERIES)])
        values = pa.array([number] * SERIES, pa.int64())
        store.append_many(pa.table({"series": names, "value": values}))


def new_store(path: Path) -> TimeSeries:
    return TimeSeries.create(str(path), {"value": pa.int64()}, retained_range="unlimited")


def subscribe(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.readStream.format("tseries").options(**options).load(str(store))


def copy(frame: DataFrame, to: Path, checkpoint: Path) -> Any:
    """Writes the stream into another store until there is no more; returns its last progress."""
    rows = frame.select("series", frame.sequence.alias("origin"), "value")
    writer = rows.writeStream.format("tseries").option("retainedRange", "unlimited")
    query = (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(to))
    )
    query.awaitTermination()
    return query.lastProgress


def copied(store: Path) -> dict[str, list[int]]:
    """Per series the original sequences, in the order in which they arrived."""
    table = DeltaTable(store).to_pyarrow_table().sort_by("sequence")
    found: dict[str, list[int]] = {}
    for row in table.to_pylist():
        found.setdefault(row["series"], []).append(row["origin"])
    return found


def test_a_subscription_goes_on_where_it_was_across_compaction_and_cleaning(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, to, checkpoint = tmp_path / "store", tmp_path / "copy", tmp_path / "checkpoint"
    store = new_store(path)
    fill(store, path, 0, 3)
    store.edit("s00", 0, -1)
    copy(subscribe(spark, path, maxEventsPerTrigger="7"), to, checkpoint)
    assert copied(to) == {f"s{i:02}": [3 if i == 0 else 2] for i in range(SERIES)}
    fill(store, path, 3, 30)
    compact(str(path))
    fill(store, path, 33, 30)
    remove_obsolete_files(Store.open(str(path)), 2**60)
    progress = copy(subscribe(spark, path, maxEventsPerTrigger="333"), to, checkpoint)
    for name, sequences in copied(to).items():
        edits = int(name == "s00")
        assert sequences == list(range(2 + edits, 63 + edits))
    said = json.loads(progress["sources"][0]["latestOffset"])
    assert (said["missed"], said["initial"]) == (0, False)


def test_the_columns_are_those_of_a_query_and_edits_name_their_originals(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = new_store(tmp_path / "store")
    store.append("a", 1)
    store.edit("a", 0, 2)
    frame = subscribe(spark, tmp_path / "store", subscriptionRange="unlimited")
    assert frame.columns == spark.read.format("tseries").load(str(tmp_path / "store")).columns
    query = frame.writeStream.format("memory").queryName("live").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
    rows = spark.table("live").orderBy("sequence").collect()
    assert [(row.sequence, row.value, row.original_sequence) for row in rows] == [
        (0, 1, None),
        (1, 2, 0),
    ]
    assert rows[1].original_timestamp == rows[0].timestamp


@pytest.mark.outside_ci
def test_columns_added_under_a_running_query_end_it_and_come_after_its_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, to = tmp_path / "store", tmp_path / "copy"
    store = new_store(path)
    store.append("a", 1)
    frame = subscribe(spark, path, subscriptionRange="unlimited")

    def start(rows: DataFrame, **options: str) -> Any:
        writer = rows.drop("author", "sequence", "original_sequence", "original_timestamp")
        kept = writer.drop("original_author", "timestamp", "edit_timestamp").writeStream.format(
            "tseries"
        )
        kept = kept.options(retainedRange="unlimited", mergeSchema="true", **options)
        return kept.option("checkpointLocation", str(tmp_path / "c")).start(str(to))

    query = start(frame)
    query.processAllAvailable()
    added = spark.createDataFrame([("a", 2, "x")], "series string, value long, note string")
    added.write.format("tseries").option("mergeSchema", "true").mode("append").save(str(path))
    with pytest.raises(StreamingQueryException, match="'note' string"):
        query.awaitTermination(60)
    # The frame of before, and one that is loaded again, as the error says.
    with pytest.raises(PySparkException, match="'note' string"):
        start(frame).processAllAvailable()
    query = start(subscribe(spark, path, subscriptionRange="unlimited"))
    query.processAllAvailable()
    found = DeltaTable(to).to_pyarrow_table().sort_by("sequence")
    assert found["note"].to_pylist() == [None, "x"]
    store.set_policy({"nobody": ["own"]})
    with pytest.raises(StreamingQueryException, match="may not subscribe to the store"):
        query.awaitTermination(60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxEventsPerTrigger": "0"}, "option 'maxEventsPerTrigger': cannot read '0'"),
        ({"subscriptionRange": "limit 0"}, "option 'subscriptionRange': cannot read 'limit 0'"),
        ({"startingSequence": "[1]"}, "option 'startingSequence': cannot read"),
        ({"startingSequence": "{}", "query": "values"}, "belongs to spark.read"),
    ],
)
def test_what_cannot_be_subscribed_to_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    new_store(tmp_path / "store").append("a", 1)
    with pytest.raises(PySparkException) as error:
        subscribe(spark, tmp_path / "store", **options)
    assert said in str(error.value)


@pytest.mark.outside_ci
@pytest.mark.timeout(600)
def test_a_subscriber_that_was_away_for_many_commits_finds_them_all(tmp_path: Path) -> None:
    """The store looks after itself meanwhile: files, heads and log entries come and go."""
    path = tmp_path / "store"
    store = TimeSeries.create(
        str(path),
        {"value": pa.int64()},
        retained_range="limit 50",
        subscription_range="none",
    )
    store.append("a", -1)
    follower = Subscription(str(path), InitialEvents(NO_EVENTS, {}))
    start = follower.find_end(follower.find_start(), None)
    for number in range(COMMITS):
        store.append("ab"[number % 2], number)
    compact(str(path))
    remove_obsolete_files(Store.open(str(path)), time.time_ns() // 1000)
    got: list[tuple[str, int]] = []
    follower = Subscription(str(path), InitialEvents(NO_EVENTS, {}))
    while (end := follower.find_end(start, 300)) != start:
        for task in follower.plan_tasks(start, end):
            for part in read_delivery(task):
                names, values = (part[name].to_pylist() for name in ("series", "value"))
                got += zip(names, values, strict=True)
        start = end
    assert start.missed == 0
    for first, name in enumerate("ab"):
        assert [value for series, value in got if series == name] == list(range(first, COMMITS, 2))
    assert verify(str(path)) == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_killed_subscriber_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed between the sink's commit and Spark's note of it, while the store is rewritten."""
    path, to, checkpoint = tmp_path / "store", tmp_path / "copy", tmp_path / "checkpoint"
    store = new_store(path)
    fill(store, path, 0, 40)
    logs: dict[str, DeltaLog] = {}

    def has(batch: int) -> bool:
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        return logs.setdefault(query, DeltaLog(to, f"tseries:q:{query}")).has_batch(batch)

    arguments = [str(path), str(to), str(checkpoint)]
    job = Job(Path(__file__), arguments, log=tmp_path / "log")
    result = run_killed(job, InBatch(checkpoint, then=has), kills=KILLS, timeout=500)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    assert copied(to) == {f"s{i:02}": list(range(40)) for i in range(SERIES)}
    assert verify(str(to)) == []


def main() -> None:
    from spark_session import local_spark

    store, to, checkpoint = (Path(argument) for argument in sys.argv[1:])
    compact(str(store))
    spark = local_spark("tseries subscriber", spark_sql_adaptive_enabled="false")
    options = {"maxEventsPerTrigger": "100", "subscriptionRange": "unlimited"}
    copy(subscribe(spark, store, **options), to, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
