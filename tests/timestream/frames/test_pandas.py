"""Streams through pandas, in each way that Spark has, with the pandas that is installed."""

import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from pyspark_timestream import advance_time

pytestmark = pytest.mark.spark

SCHEMA = "station string, start_time timestamp, celsius double, cti timestamp"
NOON = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
EVENTS = [("a", NOON, 20.5), ("b", NOON + timedelta(minutes=1), None), (None, NOON, 21.0)]


@pytest.fixture
def rows(spark, tmp_path):
    """A stream of three events and a CTI, which pandas can hold."""
    lines = [
        {"station": station, "start_time": time.isoformat(), "celsius": celsius}
        for station, time, celsius in EVENTS
    ]
    lines.append({"cti": "2026-01-02T00:00:00Z"})
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/1.json").write_text("\n".join(json.dumps(line) for line in lines))
    return advance_time(spark.readStream.schema(SCHEMA).json(str(tmp_path / "rows")))


@pytest.fixture
def frames(tmp_path):
    """Run a frame; what each batch is as a frame of pandas, in one."""

    def run(frame):
        found = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, number: found.append(batch.toPandas()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return pd.concat([batch for batch in found if len(batch)], ignore_index=True)

    return run


def in_order(rows):
    return sorted(rows, key=lambda row: (row[0] or "", row[1]))


def plain(frame):
    """The rows of a frame as `EVENTS` has them, in any order."""
    rows = frame[["station", "start_time", "celsius"]].itertuples(index=False)
    # Spark gives pandas the time of the session's zone, which is UTC here.
    times = ((station, time.tz_localize("UTC"), celsius) for station, time, celsius in rows)
    found = [tuple(None if pd.isna(each) else each for each in row) for row in times]
    return in_order(found)


def test_rows_of_a_batch_are_the_same_in_a_frame_of_pandas(rows, frames):
    assert plain(frames(rows)) == in_order(EVENTS)


def test_rows_pass_functions_over_frames_of_pandas(rows, frames):
    same = rows.mapInPandas(lambda batches: batches, rows.schema)
    assert plain(frames(same)) == in_order(EVENTS)


def test_columns_pass_functions_over_series_of_pandas(rows, frames):
    later = F.pandas_udf(lambda times: times + pd.Timedelta("1h"), "timestamp")
    found = plain(frames(rows.withColumn("start_time", later("start_time"))))
    assert found == in_order((a, time + timedelta(hours=1), value) for a, time, value in EVENTS)


def test_functions_with_state_get_frames_of_pandas(rows, frames):
    def total(key, batches, state):
        yield pd.DataFrame({"station": [key[0]], "n": [sum(len(batch) for batch in batches)]})

    totals = rows.groupBy("station").applyInPandasWithState(
        total, "station string, n long", "n long", "append", GroupStateTimeout.NoTimeout
    )
    found = {(None if pd.isna(a) else a, n) for a, n in frames(totals).itertuples(index=False)}
    assert found == {("a", 1), ("b", 1), (None, 1)}


@pytest.mark.outside_ci
def test_a_store_is_read_into_frames_of_pandas_by_group_and_written_from_one(spark, tmp_path):
    frame = pd.DataFrame(
        {
            "series": ["a", "a", "b"],
            "timestamp": pd.to_datetime([NOON, NOON + timedelta(minutes=1), NOON]),
            "celsius": [20.5, None, 21.0],
        }
    )
    place = str(tmp_path / "store")
    written = spark.createDataFrame(frame)
    written.write.format("tseries").option("retainedRange", "unlimited").mode("append").save(place)
    read = spark.read.format("tseries").load(place).select("series", "timestamp", "celsius")
    newest = read.groupBy("series").applyInPandas(
        lambda rows: rows.sort_values("timestamp").tail(1), read.schema
    )
    found = newest.toPandas().sort_values("series")
    assert found["series"].tolist() == ["a", "b"]
    assert found["timestamp"].dt.tz_localize("UTC").tolist() == [
        NOON + timedelta(minutes=1),
        NOON,
    ]
    assert found["celsius"].isna().tolist() == [True, False]
