"""OpenTelemetry's own SDK collects what the page shows."""

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint, Sum
from timestream.histories import share, state
from timestream.progress_events import event, offset_of

from pyspark_timestream.commands.metrics import (
    METRICS,
    Instrument,
    MetricsState,
    list_samples,
    record_progress,
)
from pyspark_timestream.commands.metrics_export import register_instruments
from pyspark_timestream.errors import MissingExtra

NOW = 1_704_200_000_000_000


def samples_of(number):
    folded = record_progress(
        MetricsState(),
        event(offset_of([share(state(1, events=number)), share(state(5))], number), batch=number),
        NOW,
    )
    return list(list_samples(folded, NOW))


def collect(reader):
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(metric):
    return {
        (frozenset(point.attributes.items()), point.value)
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


@pytest.fixture
def reader():
    return InMemoryMetricReader()


def test_collection_has_every_sample_with_its_unit(reader):
    provider = MeterProvider([reader], shutdown_on_exit=False)
    register_instruments(lambda: samples_of(20), provider)
    found = collect(reader)
    expected = {}
    for sample in samples_of(20):
        pair = frozenset(sample.attributes), sample.value
        expected.setdefault(sample.metric.name, set()).add(pair)
    assert {name: points(metric) for name, metric in found.items()} == expected
    for metric in METRICS:
        if metric.name in found:
            collected = found[metric.name]
            assert (collected.unit, collected.description) == (metric.unit, metric.description)
            is_counter = metric.instrument is Instrument.COUNTER
            assert isinstance(collected.data, Sum) == is_counter
            assert not is_counter or collected.data.is_monotonic
    provider.shutdown()


def test_collection_shows_one_moment_and_the_next_a_later_one(reader):
    provider = MeterProvider([reader], shutdown_on_exit=False)
    taken = []

    def take():
        taken.append(len(taken))
        return samples_of(taken[-1])

    register_instruments(take, provider)
    for number in range(3):
        page = collect(reader)
        assert len(taken) == number + 1
        events = {value for _, value in points(page["timestream.partition.events"])}
        assert events == {number, 20}
    provider.shutdown()


def test_missing_library_is_told_with_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"pip install 'pyspark-timestream\[metrics\]'"):
        register_instruments(list)
