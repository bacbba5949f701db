"""`TimeMetrics` beside real queries: after a run the page has the counts that are known."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import Broker, Record
from kafka_query import DAY_MS, Stream, event
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from timestream.progress_events import parse_page, values

from pyspark_timestream import TimeMetrics, advance_time, explain_time
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind

pytestmark = pytest.mark.timeout(300)

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def metrics(spark: SparkSession) -> Iterator[tuple[TimeMetrics, InMemoryMetricReader]]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    listener = TimeMetrics(port=0, opentelemetry=provider)
    spark.streams.addListener(listener)
    yield listener, reader
    spark.streams.removeListener(listener)
    listener.close()
    provider.shutdown()


def fetch(listener: TimeMetrics) -> Page:
    """The page, as Prometheus scrapes it."""
    url = f"http://127.0.0.1:{listener.port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return dict(parse_page(answer.read().decode()))


def wait_for(listener: TimeMetrics, condition: Callable[[Page], Any], seconds: float = 120) -> Page:
    """The first page that is as wanted: Spark tells its listeners in a thread of its own."""
    deadline = time.monotonic() + seconds
    while not condition(page := fetch(listener)):
        assert time.monotonic() < deadline, listener.text()
        time.sleep(0.1)
    assert values(page, "timestream_listener_failures_total") == [0]
    return page


def has_ended(page: Page) -> bool:
    return values(page, "timestream_query_active") == [0]


# Seconds of events by partition; with ctiFrequency=1 an event below an earlier one is late.
EVENTS = {0: [1, 2, 3, 9, 4, 5], 1: [1, 2]}


def test_page_after_a_run_has_the_known_counts_and_who_holds_back(
    spark: SparkSession, broker: Broker, topic, metrics, tmp_path: Path
) -> None:
    listener, reader = metrics
    name = topic(2)
    records = [event(at, part) for part, seconds in EVENTS.items() for at in seconds]
    broker.produce(name, [*records, Record('{"second": "noon"}', None, 1, DAY_MS + 2000)])
    schema = "second int, _corrupt_record string, start_time timestamp, cti timestamp"
    options = {"ctiFrequency": "1", "violationPolicy": "drop", "valueFormat": "json"}
    options["columnNameOfCorruptRecord"] = "_corrupt_record"
    stream = Stream(spark, broker, name, tmp_path, options, schema)
    stream.run()
    page = wait_for(listener, has_ended)
    wanted = {
        "timestream_partition_events_total": [6, 3],
        "timestream_partition_events_malformed_total": [0, 0],
        "timestream_partition_ctis_total": [4, 2],
        "timestream_partition_values_malformed_total": [0, 1],
        "timestream_partition_lag": [0, 0],
        "timestream_partition_blocking": [0, 1],
        "timestream_partition_cti_time_seconds": [DAY_MS / 1000 + at for at in (9, 2)],
    }
    for metric, expected in wanted.items():
        found = [values(page, metric, topic=name, partition=number) for number in "01"]
        assert found == [[each] for each in expected], metric
    late = "timestream_partition_events_late_total"
    assert values(page, late, partition="0", outcome="dropped") == [2]
    malformed = "timestream_stream_values_malformed_total"
    assert values(page, malformed, reason="type") == [1]
    assert values(page, malformed, reason="syntax") == [0]
    assert values(page, "timestream_stream_cti_spread_seconds") == [7]
    named = {"partition": "1", "reason": str(Kind.IDLE_PARTITION)}
    assert values(page, "timestream_stream_finding", **named) == [1]
    # A restart goes on with the checkpoint's counters.
    broker.produce(name, [event(at, 1) for at in (10, 11)])
    stream.run()
    page = wait_for(
        listener,
        lambda page: (
            has_ended(page)
            and values(page, "timestream_partition_events_total", partition="1") == [5]
        ),
    )
    assert values(page, "timestream_partition_blocking") == [1, 0]
    data = reader.get_metrics_data()
    assert data is not None
    collected = {
        metric.name: {
            (point.attributes["partition"], point.value) for point in metric.data.data_points
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name in ("timestream.partition.events", "timestream.partition.ctis")
    }
    assert collected == {
        "timestream.partition.events": {("0", 6), ("1", 5)},
        "timestream.partition.ctis": {("0", 4), ("1", 4)},
    }


def test_running_windows_show_the_rows_that_wait_and_the_age_of_the_cti(
    spark: SparkSession, broker: Broker, topic, metrics, tmp_path: Path
) -> None:
    listener, _ = metrics
    name = topic(1)
    broker.produce(name, [event(at) for at in (1, 2, 61, 121)])
    stream = Stream(spark, broker, name, tmp_path, {"ctiFrequency": "1"})
    counts = advance_time(stream.load()).groupBy(F.window("start_time", "1 minute")).count()
    query = stream.start(counts.select("count"), once=False)
    try:
        rows, time_of = "timestream_query_state_rows", "timestream_stream_cti_time_seconds"
        page = wait_for(listener, lambda page: values(page, time_of) and values(page, rows) == [1])
        (cti,) = values(page, time_of)
        (age,) = values(page, "timestream_stream_cti_age_seconds")
        assert cti == DAY_MS / 1000 + 121
        assert abs(time.time() - age - cti) < 60
        assert values(page, "timestream_query_active") == [1]
        assert values(page, "timestream_query_watermark_time_seconds") == [cti]
        assert explain_time(query).streams
    finally:
        query.stop()
    wait_for(listener, has_ended)
