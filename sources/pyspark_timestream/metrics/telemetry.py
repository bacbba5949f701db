"""Exports samples as OpenTelemetry metrics, through its API alone (extra `metrics`).

OpenTelemetry asks for one instrument after the other. So that a collection shows numbers of one
moment, all instruments answer from one snapshot, until one of them is asked a second time.
"""

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from pyspark_timestream.errors import MissingExtra
from pyspark_timestream.metrics.catalogue import METRICS, Instrument, Metric
from pyspark_timestream.metrics.samples import Sample

__all__ = ["register_instruments"]

_SCOPE = "pyspark_timestream"


def register_instruments(
    take_samples: Callable[[], Iterable[Sample]], meter_provider: Any = None
) -> None:
    """Create an observable instrument for each metric.

    Args:
        take_samples: the samples of the present moment.
        meter_provider: OpenTelemetry's; None: the global one.

    Raises:
        MissingExtra: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "exporting OpenTelemetry metrics needs opentelemetry-api, which is not installed",
            next_step="pip install 'pyspark-timestream[metrics]' on the driver",
        ) from error
    meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
    snapshot = _Snapshot(take_samples)
    for metric in METRICS:
        create = (
            meter.create_observable_counter
            if metric.instrument is Instrument.COUNTER
            else meter.create_observable_gauge
        )
        create(
            metric.name,
            [_create_callback(metric, snapshot, metrics.Observation)],
            unit=metric.unit,
            description=metric.description,
        )


def _create_callback(metric: Metric, snapshot: "_Snapshot", observe: Any) -> Callable[[Any], Any]:
    def answer(options: object) -> list[Any]:
        return [observe(each.value, dict(each.attributes)) for each in snapshot.answer(metric)]

    return answer


class _Snapshot:
    """The samples of one collection."""

    def __init__(self, take_samples: Callable[[], Iterable[Sample]]) -> None:
        self._take_samples = take_samples
        self._lock = Lock()
        self._samples: dict[Metric, list[Sample]] = {}
        self._unasked: set[Metric] = set()

    def answer(self, metric: Metric) -> list[Sample]:
        """The samples of `metric`; a metric that is asked again begins a new collection."""
        with self._lock:
            if metric not in self._unasked:
                self._samples, self._unasked = {}, set(METRICS)
                for sample in self._take_samples():
                    self._samples.setdefault(sample.metric, []).append(sample)
            self._unasked.discard(metric)
            return self._samples.get(metric, [])
