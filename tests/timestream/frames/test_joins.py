"""A canary: a window behind a join of two streams counts each of its rows once, and in time."""

import json
import os
from collections import Counter

import pytest
from lengths import outside_ci
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pyspark_timestream import advance_time

pytestmark = pytest.mark.spark

CANARY = (
    "this Spark treats the event time behind a join of two streams in another way than 4.2 and 4.3 "
    "do: read its migration guide (Structured Streaming; Spark PRs 56043 and 58238 changed "
    "neighbours of it), then semantics 11.6 and docs/how-to/slow-and-fast.md, which promise that "
    "a window behind a join has all its rows, and frames/transforms.py, which makes the event time"
)

SCHEMA = "station string, start_time timestamp, cti timestamp"
WITHIN, WINDOW = 10, 20
NOON_S = 1_767_268_800
"""2026-01-01T12:00:00Z."""

LEFT = [[1, 11, "15"], [19, 15, 28, "40"], [45, "60"], ["90"], ["90"], ["90"]]
RIGHT = [[5, 3, "12"], [12, 25, "40"], [44, 47, "60"], ["90"], ["90"], ["90"]]
"""Batches of minutes after noon: events, and CTIs in quotes. 28 and 44 have no partner."""


@pytest.fixture
def stream(spark, tmp_path):
    """Make a stream with CTIs of one side's batches."""

    def make(name, batches):
        place = tmp_path / name
        place.mkdir()
        for number, batch in enumerate(batches):
            path = place / f"{number}.json"
            path.write_text("\n".join(json.dumps(row_of(minute)) for minute in batch))
            os.utime(path, (number, number))
        read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return advance_time(read.json(str(place)), releases="rows").alias(name)

    return make


def row_of(minute):
    time = f"2026-01-01T{12 + int(minute) // 60}:{int(minute) % 60:02}:00Z"
    return {"cti": time} if isinstance(minute, str) else {"station": "a", "start_time": time}


def events(batches):
    return [minute for batch in batches for minute in batch if isinstance(minute, int)]


def expected(how, side):
    """The rows of each window over the times of one side, by the definition of the join."""
    lefts, rights = events(LEFT), events(RIGHT)
    pairs = [(left, right) for left in lefts for right in rights if 0 <= right - left <= WITHIN]
    if how in ("leftOuter", "fullOuter"):
        pairs += [(left, None) for left in lefts if left not in {pair[0] for pair in pairs}]
    if how in ("rightOuter", "fullOuter"):
        pairs += [(None, right) for right in rights if right not in {pair[1] for pair in pairs}]
    times = [left if side == "left" else right for left, right in pairs]
    return Counter(time // WINDOW * WINDOW for time in times if time is not None)


@pytest.mark.parametrize(
    ("how", "side"),
    [
        ("leftOuter", "left"),
        *outside_ci(("inner", "left"), ("inner", "right")),
        *outside_ci(("rightOuter", "right"), ("fullOuter", "left")),
    ],
)
def test_window_behind_a_join_of_streams_counts_each_of_its_rows_once(
    spark, stream, tmp_path, how, side
):
    within = F.expr(
        "left.station = right.station AND right.start_time BETWEEN left.start_time "
        f"AND left.start_time + INTERVAL {WITHIN} MINUTES"
    )
    found, batches = Counter(), {}

    def keep(batch, number):
        for row in batch.collect():
            found[row.minute] += row["count"]
            batches[row.minute] = number

    try:
        joined = stream("left", LEFT).join(stream("right", RIGHT), within, how)
        windows = joined.groupBy(F.window(f"{side}.start_time", f"{WINDOW} minutes").alias("w"))
        minute = (F.unix_timestamp("w.start") - NOON_S) / 60
        query = (
            windows.count().select(minute.cast("int").alias("minute"), "count")
            .writeStream.outputMode("append").foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
    except PySparkException as refusal:
        raise AssertionError(CANARY) from refusal
    times = [field for field in joined.schema if field.name == "start_time"]
    assert all(field.metadata.get("spark.watermarkDelayMs") == 0 for field in times), CANARY
    assert found == expected(how, side), CANARY
    # A window comes as soon as the CTIs of both sides allow it, not only with the last ones.
    assert batches[0] < max(batches.values()), CANARY
