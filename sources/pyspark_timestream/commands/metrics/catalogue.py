"""The metrics that `TimeMetrics` exports: names, units and meanings, each declared once.

Names are OpenTelemetry's. A Prometheus page shows them as OpenTelemetry's own exporter would: dots
become underscores, a unit is appended unless it is an annotation such as `{event}`, and a counter
ends in `_total`. So the same dashboard fits both.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Instrument(StrEnum):
    """The kinds of metrics; the values are Prometheus' names of them."""

    COUNTER = "counter"
    GAUGE = "gauge"


_UNIT_WORDS: Final = {"s": "seconds", "By": "bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name and unit (in UCUM) are OpenTelemetry's, its attributes are in order."""

    name: str
    unit: str
    instrument: Instrument
    attributes: tuple[str, ...]
    description: str

    @property
    def prometheus_name(self) -> str:
        """The name on a Prometheus page.

        >>> Metric("a.b", "s", Instrument.COUNTER, (), "").prometheus_name
        'a_b_seconds_total'
        """
        parts = [self.name.replace(".", "_")]
        if self.unit in _UNIT_WORDS:
            parts.append(_UNIT_WORDS[self.unit])
        if self.instrument is Instrument.COUNTER:
            parts.append("total")
        return "_".join(parts)


_QUERY = ("query.name", "query.id")
_STREAM = (*_QUERY, "source")
_PARTITION = (*_STREAM, "topic", "partition")


def _gauge(name: str, unit: str, attributes: tuple[str, ...], description: str) -> Metric:
    return Metric(name, unit, Instrument.GAUGE, attributes, description)


def _count(name: str, unit: str, attributes: tuple[str, ...], description: str) -> Metric:
    return Metric(name, unit, Instrument.COUNTER, attributes, description)


class LISTENER:
    """Metrics of the listener itself."""

    FAILURES: Final = _count("timestream.listener.failures", "{failure}", (),
        "Events of Spark that the listener could not read; its log has the first")  # fmt: skip


class QUERY:
    """Metrics of a query."""

    ACTIVE: Final = _gauge("timestream.query.active", "{query}", _QUERY,
        "1 while the query runs, 0 for a while after its end")  # fmt: skip
    REPORT_AGE: Final = _gauge("timestream.query.report.age", "s", _QUERY,
        "Time since the query last reported a batch, or that it has nothing to do")  # fmt: skip
    WATERMARK: Final = _gauge("timestream.query.watermark.time", "s", _QUERY,
        "Spark's watermark as Unix time; absent before the first")  # fmt: skip
    STATE_ROWS: Final = _gauge("timestream.query.state.rows", "{row}", (*_QUERY, "operator"),
        "Rows in the state of an operator, which wait for a later CTI")  # fmt: skip
    STATE_MEMORY: Final = _gauge("timestream.query.state.memory", "By", (*_QUERY, "operator"),
        "Memory that the state of an operator uses")  # fmt: skip


class STREAM:
    """Metrics of one source of a query: a stream of a Kafka topic, or a clock."""

    CTI: Final = _gauge(
        "timestream.stream.cti.time", "s", _STREAM,
        "The CTI of the stream as Unix time; absent before the first and after a final one",
    )  # fmt: skip
    CTI_AGE: Final = _gauge("timestream.stream.cti.age", "s", _STREAM,
        "The wall clock minus the CTI of the stream; negative: the CTI is ahead")  # fmt: skip
    CTI_SPREAD: Final = _gauge("timestream.stream.cti.spread", "s", _STREAM,
        "The greatest CTI of a partition minus the CTI of the stream")  # fmt: skip
    ENDED: Final = _gauge("timestream.stream.ended", "{stream}", _STREAM,
        "1 if the stream has delivered its end, else 0")  # fmt: skip
    WARNINGS: Final = _gauge("timestream.stream.warnings", "{warning}", _STREAM,
        "Active warnings, of which explain_time has the texts")  # fmt: skip
    FINDING: Final = _gauge(
        "timestream.stream.finding", "{finding}",
        (*_STREAM, "reason", "topic", "partition", "writer"),
        "1 for each reason that explain_time gives, and each partition and writer that it names",
    )  # fmt: skip
    CHANGE: Final = _gauge(
        "timestream.stream.change", "{change}",
        (*_STREAM, "batch", "cti", "option", "from", "to"),
        "1 for each option of the last changes of a running clock: the first batch by the new "
        "value, the CTI of the stream there, and both values, empty where none was set",
    )  # fmt: skip
    MALFORMED_VALUES: Final = _count(
        "timestream.stream.values.malformed", "{record}", (*_STREAM, "reason"),
        "Records whose value or key cannot be read, by reason",
    )  # fmt: skip
    AGGREGATED: Final = _gauge("timestream.stream.partitions.aggregated", "{partition}", _STREAM,
        "Partitions past the limit, which are exported as one, '(others)'")  # fmt: skip


class PARTITION:
    """Metrics of one partition of a stream."""

    CTI: Final = _gauge(
        "timestream.partition.cti.time", "s", _PARTITION,
        "The CTI of the partition as Unix time; absent before the first and after a final one",
    )  # fmt: skip
    CTI_AGE: Final = _gauge("timestream.partition.cti.age", "s", _PARTITION,
        "The wall clock minus the CTI of the partition")  # fmt: skip
    EVENT_AGE: Final = _gauge("timestream.partition.event.age", "s", _PARTITION,
        "The wall clock minus the time of the last well-formed event that was read")  # fmt: skip
    LAG: Final = _gauge("timestream.partition.lag", "{record}", _PARTITION,
        "Offsets from the beginning of the last batch to the end of the log")  # fmt: skip
    IDLE: Final = _gauge("timestream.partition.idle", "{partition}", _PARTITION,
        "1 if the partition is idle and holds nothing back, else 0")  # fmt: skip
    BLOCKING: Final = _gauge(
        "timestream.partition.blocking", "{partition}", _PARTITION,
        "1 if the stream waits for the partition: it has no CTI, or others are ahead; else 0",
    )  # fmt: skip
    EVENTS: Final = _count("timestream.partition.events", "{event}", _PARTITION,
        "Events that were read")  # fmt: skip
    LATE: Final = _count("timestream.partition.events.late", "{event}", (*_PARTITION, "outcome"),
        "Late events, by outcome: dropped, adjusted or flagged")  # fmt: skip
    MALFORMED: Final = _count("timestream.partition.events.malformed", "{event}", _PARTITION,
        "Events whose time cannot be read, although they have a value")  # fmt: skip
    TOMBSTONES: Final = _count("timestream.partition.events.tombstones", "{event}", _PARTITION,
        "Events without the value in which their time would be")  # fmt: skip
    FUTURE: Final = _count("timestream.partition.events.future", "{event}", _PARTITION,
        "Events in the future of their record, by `maxFuture`")  # fmt: skip
    OUTSIDE: Final = _count("timestream.partition.events.outside", "{event}", _PARTITION,
        "Events left out since they lie outside the window of a replay")  # fmt: skip
    MALFORMED_VALUES: Final = _count(
        "timestream.partition.values.malformed", "{record}", _PARTITION,
        "Records whose value or key cannot be read",
    )  # fmt: skip
    CTIS: Final = _count("timestream.partition.ctis", "{cti}", _PARTITION,
        "CTIs that took effect")  # fmt: skip
    IGNORED_CTIS: Final = _count("timestream.partition.ctis.ignored", "{cti}", _PARTITION,
        "Marks that were ignored")  # fmt: skip


class CLOCK:
    """Metrics of a simulated clock."""

    BEHIND: Final = _gauge("timestream.clock.ticks.behind", "{tick}", _STREAM,
        "Ticks that are due and not delivered")  # fmt: skip
    SKIPPED: Final = _count("timestream.clock.ticks.skipped", "{tick}", _STREAM,
        "Ticks that overflow = skip left out")  # fmt: skip


class SUBSCRIPTION:
    """Metrics of a subscription to a store."""

    COMMIT: Final = _gauge("tseries.subscription.commit", "{commit}", _STREAM,
        "The commit up to which everything is delivered")  # fmt: skip
    MISSED: Final = _count("tseries.subscription.events.missed", "{event}", _STREAM,
        "Events that compaction had removed before they were delivered")  # fmt: skip


METRICS: Final[tuple[Metric, ...]] = tuple(
    metric
    for group in (LISTENER, QUERY, STREAM, PARTITION, CLOCK, SUBSCRIPTION)
    for metric in vars(group).values()
    if isinstance(metric, Metric)
)
"""All metrics, in the order of a page."""

COUNTER_METRICS: Final[dict[str, tuple[Metric, tuple[tuple[str, str], ...]]]] = {
    "events": (PARTITION.EVENTS, ()),
    "dropped": (PARTITION.LATE, (("outcome", "dropped"),)),
    "adjusted": (PARTITION.LATE, (("outcome", "adjusted"),)),
    "flagged": (PARTITION.LATE, (("outcome", "flagged"),)),
    "malformed": (PARTITION.MALFORMED, ()),
    "tombstones": (PARTITION.TOMBSTONES, ()),
    "future": (PARTITION.FUTURE, ()),
    "outside": (PARTITION.OUTSIDE, ()),
    "ctis": (PARTITION.CTIS, ()),
    "ignoredCtis": (PARTITION.IGNORED_CTIS, ()),
}
"""Each counter in a partition's progress -> its metric and that one's additional attributes."""
