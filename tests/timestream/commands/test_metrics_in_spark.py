"""Spark itself tells the listener of a query, on every Spark that is supported."""

import json
import time

import pytest
from timestream.progress_events import parse_page, values

from pyspark_timestream import TimeMetrics

pytestmark = pytest.mark.spark


def test_page_has_the_clock_of_a_real_query_until_it_is_forgotten(spark):
    metrics = TimeMetrics(keep_ended="1 hour")
    spark.streams.addListener(metrics)
    try:
        clock = spark.readStream.format("timestream").option("maxCount", "3").load()
        writer = clock.writeStream.queryName("clock").format("noop")
        query = writer.trigger(availableNow=True).start()
        # Its start is told before `start` returns.
        active = values(parse_page(metrics.text()), "timestream_query_active", query_name="clock")
        assert len(active) == 1
        query.awaitTermination()
        deadline = time.monotonic() + 60
        while values(page := parse_page(metrics.text()), "timestream_query_active") != [0]:
            assert time.monotonic() < deadline, metrics.text()
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(metrics)
    of_query = {"query_name": "clock", "query_id": str(query.id), "source": "0"}
    report = json.loads(query.lastProgress.sources[0].latestOffset)
    assert values(page, "timestream_stream_ended", **of_query) == [report["endOfStream"]]
    assert values(page, "timestream_clock_ticks_behind", **of_query) == [report["ticksBehind"]]
    assert values(page, "timestream_listener_failures_total") == [0]
