"""From the state of `TimeMetrics` to samples: a metric, its attributes, a number."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from pyspark_timestream.connector.instants import FINAL_US
from pyspark_timestream.cti.stream_cti import max_known, min_cti
from pyspark_timestream.kafka.plan.malformed_values import NEXT_STEPS
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.metrics.catalogue import (
    CLOCK,
    COUNTER_METRICS,
    LISTENER,
    PARTITION,
    QUERY,
    STREAM,
    SUBSCRIPTION,
    Metric,
)
from pyspark_timestream.metrics.fold import Limits, MetricsState, QueryNumbers
from pyspark_timestream.metrics.numbers import (
    OTHERS,
    ClockNumbers,
    PartitionNumbers,
    StreamNumbers,
    SubscriptionNumbers,
)

__all__ = ["Sample", "list_samples"]

Attributes = tuple[tuple[str, str], ...]

_US: Final = 1_000_000
_NOT_NOTED: Final = "not noted"
"""The reason of malformed values that a version without reasons has counted."""


class Sample(NamedTuple):
    """One number at one moment.

    Attributes:
        metric: the metric.
        attributes: names and texts, in the order of the metric's declaration.
        value: in the metric's unit.
    """

    metric: Metric
    attributes: Attributes
    value: int | float


def list_samples(state: MetricsState, now_us: int, limits: Limits) -> Iterator[Sample]:
    """The samples of `state` at the wall clock `now_us`, each metric and attributes once."""
    yield Sample(LISTENER.FAILURES, (), state.failures)
    for query in state.queries.values():
        if query.ended_us is None or now_us - query.ended_us < limits.keep_ended_us:
            yield from _list_query(query, now_us)


def _list_query(query: QueryNumbers, now_us: int) -> Iterator[Sample]:
    of: Attributes = (
        *((("query.name", query.name),) if query.name else ()),
        ("query.id", query.query),
    )
    runs = query.ended_us is None
    yield Sample(QUERY.ACTIVE, of, int(runs))
    if runs:
        yield Sample(QUERY.REPORT_AGE, of, (now_us - query.reported_us) / _US)
    yield from _list_instant(QUERY.WATERMARK, of, query.watermark_us)
    for operator in query.operators:
        place: Attributes = (*of, ("operator", operator.operator))
        yield Sample(QUERY.STATE_ROWS, place, operator.rows)
        yield Sample(QUERY.STATE_MEMORY, place, operator.memory or 0)
    for number, numbers in sorted(query.sources.items()):
        source: Attributes = (*of, ("source", str(number)))
        # An ended query's CTI does not fall behind any more.
        clock_us = now_us if runs else None
        match numbers:
            case StreamNumbers():
                shown = query.shown.get(number, frozenset())
                yield from _list_stream(source, numbers, shown, clock_us)
            case ClockNumbers():
                yield from _list_cti(source, numbers.cti_us, clock_us)
                yield Sample(STREAM.ENDED, source, int(numbers.ended))
                yield Sample(CLOCK.BEHIND, source, numbers.behind)
                yield Sample(CLOCK.SKIPPED, source, numbers.skipped)
            case SubscriptionNumbers():
                if numbers.commit is not None:
                    yield Sample(SUBSCRIPTION.COMMIT, source, numbers.commit)
                yield Sample(SUBSCRIPTION.MISSED, source, numbers.missed)


def _list_stream(
    of: Attributes, stream: StreamNumbers, shown: frozenset[Partition], now_us: int | None
) -> Iterator[Sample]:
    yield from _list_cti(of, stream.cti_us, now_us)
    greatest = max_known(*(each.cti_us for each in stream.partitions.values()))
    if stream.cti_us is not None and greatest is not None and greatest < FINAL_US:
        yield Sample(STREAM.CTI_SPREAD, of, max(greatest - stream.cti_us, 0) / _US)
    yield Sample(STREAM.ENDED, of, int(stream.ended))
    yield Sample(STREAM.WARNINGS, of, stream.warnings)
    for each in stream.culprits:
        place = (("topic", each.topic), ("partition", each.partition)) if each.topic else ()
        writer = () if each.writer is None else (("writer", each.writer),)
        yield Sample(STREAM.FINDING, (*of, ("reason", each.reason), *place, *writer), 1)
    yield from _list_malformed_values(of, stream)
    others = [part for part in stream.partitions if part not in shown]
    yield Sample(STREAM.AGGREGATED, of, len(others))
    for part, numbers in stream.partitions.items():
        if part in shown:
            named = (*of, ("topic", part.topic), ("partition", str(part.number)))
            yield from _list_partition(named, numbers, stream.event_times_us.get(part), now_us)
    if others:
        named = (*of, ("topic", OTHERS), ("partition", OTHERS))
        times = [stream.event_times_us.get(part) for part in others]
        merged = _merge_partitions([stream.partitions[part] for part in others])
        yield from _list_partition(named, merged, min_cti(times), now_us)


def _list_malformed_values(of: Attributes, stream: StreamNumbers) -> Iterator[Sample]:
    """The malformed values by reason; with zeros, since an alert watches how a counter grows."""
    counts = Counter(dict.fromkeys(NEXT_STEPS, 0))
    for part in stream.partitions.values():
        counts.update(part.malformed_values)
    for reason, count in counts.items():
        named = (*of, ("reason", reason or _NOT_NOTED))
        yield Sample(STREAM.MALFORMED_VALUES, named, count)


def _merge_partitions(parts: list[PartitionNumbers]) -> PartitionNumbers:
    """Several partitions as one: sums, and the least CTI of those that are not idle."""
    holding = [part for part in parts if not part.idle] or parts
    counts, malformed = Counter[str](), Counter[str]()
    for part in parts:
        counts.update(part.counts)
        malformed.update(part.malformed_values)
    return PartitionNumbers(
        min_cti(part.cti_us for part in holding),
        sum(part.lag for part in parts),
        all(part.idle for part in parts),
        any(part.blocking for part in parts),
        {name: counts[name] for name in COUNTER_METRICS},
        malformed,
    )


def _list_partition(
    of: Attributes, part: PartitionNumbers, event_us: int | None, now_us: int | None
) -> Iterator[Sample]:
    yield from _list_instant(PARTITION.CTI, of, part.cti_us)
    yield from _list_age(PARTITION.CTI_AGE, of, part.cti_us, now_us)
    yield from _list_age(PARTITION.EVENT_AGE, of, event_us, now_us)
    yield Sample(PARTITION.LAG, of, part.lag)
    yield Sample(PARTITION.IDLE, of, int(part.idle))
    yield Sample(PARTITION.BLOCKING, of, int(part.blocking))
    for name, (metric, further) in COUNTER_METRICS.items():
        yield Sample(metric, (*of, *further), part.counts[name])
    yield Sample(PARTITION.MALFORMED_VALUES, of, sum(part.malformed_values.values()))


def _list_cti(of: Attributes, cti_us: int | None, now_us: int | None) -> Iterator[Sample]:
    yield from _list_instant(STREAM.CTI, of, cti_us)
    yield from _list_age(STREAM.CTI_AGE, of, cti_us, now_us)


def _list_instant(metric: Metric, of: Attributes, instant_us: int | None) -> Iterator[Sample]:
    """The sample of an instant; a final CTI is no time of a clock."""
    if instant_us is not None and instant_us < FINAL_US:
        yield Sample(metric, of, instant_us / _US)


def _list_age(
    metric: Metric, of: Attributes, instant_us: int | None, now_us: int | None
) -> Iterator[Sample]:
    if instant_us is not None and instant_us < FINAL_US and now_us is not None:
        yield Sample(metric, of, (now_us - instant_us) / _US)
