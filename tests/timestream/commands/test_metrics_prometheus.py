"""The page is in text exposition format 0.0.4, with any names of topics, queries and writers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.progress_events import parse_page

from pyspark_timestream.commands.metrics import (
    METRICS,
    Instrument,
    ListenerMetrics,
    Metric,
    PartitionMetrics,
    Sample,
    StreamMetrics,
)
from pyspark_timestream.commands.metrics_export import render_page

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(st.characters(codec="utf-8"))


@given(st.dictionaries(st.tuples(NAMES, NAMES), NUMBERS))
def test_any_name_and_number_is_read_back(numbers):
    samples = [
        Sample(PartitionMetrics.LAG, (("topic", topic), ("query.name", query)), number)
        for (topic, query), number in numbers.items()
    ]
    found = parse_page(render_page(samples))
    assert found == {
        ("timestream_partition_lag", frozenset({("topic", topic), ("query_name", query)})): number
        for (topic, query), number in numbers.items()
    }


def test_page_is_as_the_format_shows_it():
    samples = [
        Sample(StreamMetrics.ENDED, (("query.id", 'a"b\\c\nd'),), 1),
        Sample(ListenerMetrics.FAILURES, (), 0),
    ]
    assert render_page(samples) == (
        "# HELP timestream_listener_failures_total Events of Spark that the listener could not "
        "read; its log has the first\n"
        "# TYPE timestream_listener_failures_total counter\n"
        "timestream_listener_failures_total 0\n"
        "# HELP timestream_stream_ended 1 if the stream has delivered its end, else 0\n"
        "# TYPE timestream_stream_ended gauge\n"
        'timestream_stream_ended{query_id="a\\"b\\\\c\\nd"} 1\n'
    )


def test_half_a_surrogate_pair_does_not_break_the_page():
    page = render_page([Sample(StreamMetrics.ENDED, (("query.name", "a\ud800b"),), 1)])
    assert 'query_name="a?b"' in page.encode("utf-8").decode("utf-8")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metric_is_named_as_opentelemetry_asks(metric: Metric):
    assert re.fullmatch(r"(timestream|tseries)(\.[a-z]+)+", metric.name)
    assert metric.unit in ("s", "By") or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    assert metric.prometheus_name.endswith("_total") == (metric.instrument is Instrument.COUNTER)
    assert not metric.description.endswith(".")
    # A name that is another's namespace cannot be both in a backend that nests them.
    others = [each.name for each in METRICS if each is not metric]
    assert metric.name not in others
