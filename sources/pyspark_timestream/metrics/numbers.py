"""The numbers of one query: read from the progress that Spark reports of a batch.

A source of this package is recognized by the keys of its report; other sources have no numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_timestream.connector.instants import FINAL_US, parse_instant
from pyspark_timestream.cti.stream_cti import max_known, min_cti
from pyspark_timestream.explain.diagnosis import diagnose
from pyspark_timestream.explain.history import BatchRecord, History
from pyspark_timestream.kafka.plan.findings import Finding, Kind
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.metrics.catalogue import COUNTER_METRICS

__all__ = [
    "MAX_CULPRITS",
    "OTHERS",
    "ClockNumbers",
    "Culprit",
    "PartitionNumbers",
    "SourceNumbers",
    "StreamNumbers",
    "SubscriptionNumbers",
    "find_culprits",
    "read_event_times",
    "read_source",
]

MAX_CULPRITS: Final = 20
"""The partitions and writers that are named of each finding; the rest is one, `(others)`."""

OTHERS: Final = "(others)"
"""The topic, partition and writer that stand for several."""

_NOT_REPORTED: Final = (Kind.ENDED, Kind.CAUGHT_UP)
"""Findings that say that nothing is wrong."""

_KAFKA_KEYS: Final = {"cti", "endOfStream", "partitions"}
_CLOCK_KEYS: Final = {"cti", "endOfStream", "nextTick", "skipped", "ticksBehind"}
_SUBSCRIPTION_KEYS: Final = {"commit", "initial", "missed"}


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """One partition at the start of the last batch.

    Attributes:
        cti_us: its CTI; None: none yet.
        lag: offsets from there to the end of the log.
        idle: it holds nothing back.
        blocking: the stream waits for it.
        counts: its counters, by their names in the progress.
        malformed_values: records with a malformed value or key, by reason.
    """

    cti_us: int | None
    lag: int
    idle: bool
    blocking: bool
    counts: Mapping[str, int]
    malformed_values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A reason that `explain_time` gives, with a partition and a writer that it names.

    Attributes:
        reason: the kind of the finding.
        topic: empty: the finding names no partition.
        partition: as text; or `OTHERS`.
        writer: None: the finding names no writer.
    """

    reason: str
    topic: str = ""
    partition: str = ""
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class StreamNumbers:
    """A stream of a Kafka topic.

    Attributes:
        cti_us: its CTI; None: none yet.
        ended: it has delivered its end.
        warnings: the number of active warnings.
        partitions: the numbers of each.
        event_times_us: of each partition the time of the last well-formed event, where known.
        culprits: the findings about it.
    """

    cti_us: int | None
    ended: bool
    warnings: int
    partitions: Mapping[Partition, PartitionNumbers]
    event_times_us: Mapping[Partition, int] = field(default_factory=dict)
    culprits: tuple[Culprit, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockNumbers:
    """A simulated clock; see docs/reference/progress.md."""

    cti_us: int | None
    ended: bool
    behind: int
    skipped: int


@dataclass(frozen=True, slots=True)
class SubscriptionNumbers:
    """A subscription to a store; see docs/reference/progress.md."""

    commit: int | None
    missed: int


SourceNumbers = StreamNumbers | ClockNumbers | SubscriptionNumbers


def read_source(report: Any) -> SourceNumbers | None:
    """The numbers in `report`, a source's `latestOffset` as parsed JSON; None: it has none."""
    if not isinstance(report, Mapping):
        return None
    if report.keys() >= _CLOCK_KEYS:
        return ClockNumbers(
            _read_instant(report["cti"]),
            bool(report["endOfStream"]),
            int(report["ticksBehind"]),
            int(report["skipped"]),
        )
    if report.keys() >= _SUBSCRIPTION_KEYS:
        commit = report["commit"]
        return SubscriptionNumbers(
            None if commit is None else int(commit), int(report["missed"] or 0)
        )
    return _read_stream(report) if report.keys() >= _KAFKA_KEYS else None


def _read_stream(report: Mapping[str, Any]) -> StreamNumbers:
    entries = {
        Partition(topic, int(number)): entry
        for topic, numbers in report["partitions"].items()
        for number, entry in numbers.items()
    }
    ctis = {part: _read_instant(entry["cti"]) for part, entry in entries.items()}
    cti_us = _read_instant(report["cti"])
    holding = {part: ctis[part] for part, entry in entries.items() if not entry["idle"]}
    least, greatest = min_cti(holding.values()), max_known(*ctis.values())
    is_final = cti_us is not None and cti_us >= FINAL_US
    is_held = not is_final and (least is None or greatest is None or least < greatest)
    return StreamNumbers(
        cti_us,
        bool(report["endOfStream"]),
        len(report.get("warnings") or ()),
        {
            part: PartitionNumbers(
                ctis[part],
                int(entry["lag"]),
                bool(entry["idle"]),
                is_held and part in holding and holding[part] == least,
                {name: int(entry.get(name, 0)) for name in COUNTER_METRICS},
                _read_reasons(entry.get("malformedValues") or {}),
            )
            for part, entry in sorted(entries.items())
        },
    )


def _read_reasons(found: Mapping[str, int]) -> dict[str, int]:
    """Malformed values by reason; those that an earlier version counted have the reason ''."""
    reasons = {str(name): int(count) for name, count in found.items() if name != "total"}
    rest = int(found.get("total", 0)) - sum(reasons.values())
    return {**reasons, "": rest} if rest > 0 else reasons


def _read_instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


def find_culprits(history: History) -> tuple[Culprit, ...]:
    """The findings of `explain_time`, each with the partitions and writers that it names."""
    return tuple(
        culprit
        for finding in diagnose(history)
        if finding.kind not in _NOT_REPORTED
        for culprit in _limit_culprits(finding)
    )


def _limit_culprits(finding: Finding) -> Iterator[Culprit]:
    found = list(_list_culprits(finding))
    yield from found[:MAX_CULPRITS]
    if len(found) > MAX_CULPRITS:
        yield Culprit(str(finding.kind), OTHERS, OTHERS)


def _list_culprits(finding: Finding) -> Iterator[Culprit]:
    kind = str(finding.kind)
    writers = {part for part, _ in finding.writers}
    for part, writer in sorted(finding.writers):
        yield Culprit(kind, part.topic, str(part.number), writer)
    for part in sorted(finding.partitions - writers):
        yield Culprit(kind, part.topic, str(part.number))
    if not finding.partitions and not finding.writers:
        yield Culprit(kind)


def read_event_times(record: BatchRecord) -> dict[Partition, int]:
    """Of each partition the time of the last well-formed event before the batch, where known."""
    return {
        part: share.state.last_us
        for part, share in record.offset.partitions.items()
        if share.state.last_us is not None
    }
