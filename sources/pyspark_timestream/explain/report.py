"""The report on a stream: the facts of each partition, and the findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.cti.stream_cti import max_known
from pyspark_timestream.explain.diagnosis import diagnose
from pyspark_timestream.explain.history import History, count_remaining, find_unchanged_since
from pyspark_timestream.explain.row_losses import MalformedReason, count_malformed_reasons
from pyspark_timestream.kafka.plan.findings import Finding
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["PartitionFacts", "StreamExplanation", "WriterFacts", "explain_stream"]


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """One writer of a partition.

    Attributes:
        name: its name; empty: the partition's marks without a writer.
        mark_us: its greatest mark; None: waited for.
        culprit: a finding names it.
    """

    name: str
    mark_us: int | None
    culprit: bool


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition before the last batch.

    Attributes:
        partition: the partition.
        offset: the next record to read.
        lag: the number of offsets from there to the end of the log; None: unknown.
        cti_us: its CTI; None before the first.
        behind_us: how far it is behind the partition with the greatest CTI; None without a CTI.
        last_us: the time of the last well-formed event; None before the first.
        idle: it no longer counts, by `idleTimeout`.
        counters: its counters by their public names.
        writers: the live and the waited-for writers.
        culprit: a finding names it, for more than a few of its events.
    """

    partition: Partition
    offset: int
    lag: int | None
    cti_us: int | None
    last_us: int | None
    idle: bool
    counters: Mapping[str, int]
    writers: tuple[WriterFacts, ...]
    culprit: bool
    behind_us: int | None = None


@dataclass(frozen=True, slots=True)
class StreamExplanation:
    """One stream: its state, the beginning of that state, and the reasons.

    Attributes:
        topics: its topics, in order.
        batch: the number of the stream's last batch.
        planned_us: the wall clock when that was planned; everything is as of then.
        cti_us: the stream's CTI then.
        since_us: the beginning of that CTI, as far as the history goes back.
        findings: the findings, most important first; never empty.
        partitions: the facts, culprits first in the order of the findings, then in order.
        malformed: the malformed values and keys by reason, the most frequent first.
        described: the option `timeSettings`, and the settings that the stream takes from there;
            None: it has no such option, or no progress says so.
    """

    topics: tuple[str, ...]
    batch: int
    planned_us: int
    cti_us: int | None
    since_us: int | None
    findings: tuple[Finding, ...]
    partitions: tuple[PartitionFacts, ...]
    malformed: tuple[MalformedReason, ...] = ()
    described: tuple[str, Mapping[str, str]] | None = None


def explain_stream(
    history: History, failed: bool = False, known: Sequence[Finding] = ()
) -> StreamExplanation:
    """Report on `history`; see `diagnose` for the arguments."""
    last = history[-1]
    offset = last.offset
    findings = diagnose(history, failed, known)
    left = count_remaining(history)
    ahead_us = max_known(*(share.state.cti_us for share in offset.partitions.values()))
    facts = []
    for part, share in sorted(offset.partitions.items()):
        size = share.end_exclusive - share.start_inclusive
        lag = size + left[part] if part in left else None
        cti_us = share.state.cti_us
        facts.append(
            PartitionFacts(
                part,
                share.start_inclusive,
                lag,
                share.state.cti_us,
                share.state.last_us,
                share.idle,
                share.state.counters(),
                _list_writers(part, share.state, findings),
                any(part in each.partitions - each.well for each in findings),
                None if ahead_us is None or cti_us is None else ahead_us - cti_us,
            )
        )
    return StreamExplanation(
        tuple(sorted({part.topic for part in offset.partitions})),
        offset.number,
        last.planned_us,
        offset.cti_us,
        find_unchanged_since(history, lambda moment: moment.offset.cti_us == offset.cti_us),
        findings,
        tuple(sorted(facts, key=lambda fact: _find_rank(fact.partition, findings))),
        count_malformed_reasons(last),
        next((each.described for each in reversed(history) if each.described), None),
    )


def _find_rank(part: Partition, findings: tuple[Finding, ...]) -> int:
    """The index of the first finding that names `part`, for sorting."""
    named = (place for place, each in enumerate(findings) if part in each.partitions - each.well)
    return next(named, len(findings))


def _list_writers(
    part: Partition, state: PartitionState, findings: tuple[Finding, ...]
) -> tuple[WriterFacts, ...]:
    guilty = {pair for finding in findings for pair in finding.writers}
    return tuple(
        WriterFacts(name, writer.mark_us, (part, name) in guilty) for name, writer in state.writers
    )
