"""`watch` reads as many rows of state from files as Spark itself counts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import pyspark.sql.functions as F
import pytest
from kafka_query import event
from pyspark.sql import SparkSession

from pyspark_timestream import advance_time
from pyspark_timestream.commands.explanation import read_state_store
from pyspark_timestream.commands.watch.follow import CheckpointFollower

pytestmark = pytest.mark.timeout(400)


def count(rows):
    return advance_time(rows).groupBy(F.window("start_time", "10 seconds"), "offset").count()


def distinct(rows):
    return advance_time(rows).dropDuplicates(["start_time", "offset"])


def join(rows):
    left = advance_time(rows).select("start_time", "offset")
    right = advance_time(rows).select(F.col("start_time").alias("at"), F.col("offset").alias("o"))
    near = "o = offset AND at BETWEEN start_time AND start_time + INTERVAL 20 SECONDS"
    return left.join(right, F.expr(near))


STORE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    f"{STORE}.minDeltasForSnapshot": "2",
}
CHANGELOGS = {**ROCKSDB, f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true"}


PROVIDERS = {"map": {}, "rocksdb": ROCKSDB, "changelogs": CHANGELOGS}
CASES = list(product(PROVIDERS, (count, distinct, join)))
"""CI has any changes, snapshots and changelogs of all providers, as they are written, in
tests/timestream/commands/watch/test_state_files.py."""


@pytest.fixture
def provider(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    settings = PROVIDERS[request.param]
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.outside_ci
@pytest.mark.parametrize(("provider", "operator"), CASES, indirect=["provider"])
@pytest.mark.usefixtures("provider")
def test_the_rows_of_state_are_those_that_spark_counts(
    spark: SparkSession, stream, operator
) -> None:
    made = stream(
        [event(second, 0) for second in range(0, 40, 3)], 1, ctiFrequency="1", ctiDelay="15 seconds"
    )
    checkpoint = str(made.place / "checkpoint")
    for second in (60, 61):
        query = operator(made.load()).writeStream.format("noop")
        query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        told = [
            each["numRowsTotal"] for each in json.loads(query.lastProgress.json)["stateOperators"]
        ]
        follower = CheckpointFollower(checkpoint)
        follower.read()
        assert follower.read_state()
        view = follower.view(0)
        assert [each.rows for each in view.state] == told
        assert sum(told) > 0
        for each in read_state_store(spark, checkpoint):
            (own,) = [mine for mine in view.state if mine.operator == each.operator]
            assert (own.rows, own.due, own.is_window) == (each.rows, each.due, each.is_window)
        made.broker.produce(made.topic, [event(second, 0)])
    command = [sys.executable, "-m", "pyspark_timestream", "watch", "--json", checkpoint]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    ((state, *_),) = [each["state"] for each in json.loads(shown.stdout)]
    assert state["rows"] == view.state[0].rows
