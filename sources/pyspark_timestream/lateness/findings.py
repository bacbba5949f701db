"""Findings of a pass over a topic: what each delay would have done, and which to recommend."""

from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.lateness.clock import DelayClock
from pyspark_timestream.lateness.waits import Waits

__all__ = ["DelayFindings", "Findings", "PartitionFindings", "build_table"]

_FEW: Final = 0.001
"""The share of late events of the second recommendation."""

_DURATION: Final = pa.duration("us")
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class PartitionFindings:
    """One partition by one delay.

    Attributes:
        partition: its topic and number.
        state: its state at the end of the read; `flagged` is the number of late events.
    """

    partition: Partition
    state: PartitionState

    @property
    def late(self) -> int:
        """The number of late events."""
        return self.state.flagged


@dataclass(frozen=True, slots=True)
class DelayFindings:
    """All partitions by one delay.

    Attributes:
        delay_us: the delay.
        partitions: each of them, in order.
        most_late_us: how far the CTI was past the time of a late event, at most; None without any.
        waits: the waits of the measured events that a CTI passed.
        waiting: how many of the measured events no CTI passed by the end.
    """

    delay_us: int
    partitions: tuple[PartitionFindings, ...] = ()
    most_late_us: int | None = None
    waits: Waits = field(default_factory=Waits)
    waiting: int = 0

    @property
    def events(self) -> int:
        """The number of events, malformed ones included."""
        return sum(each.state.events for each in self.partitions)

    @property
    def malformed(self) -> int:
        """The number of events without a readable time."""
        return sum(each.state.malformed for each in self.partitions)

    @property
    def late(self) -> int:
        """The number of late events."""
        return sum(each.late for each in self.partitions)

    @property
    def late_share(self) -> float:
        """Late events among all, from 0 to 1."""
        return self.late / self.events if self.events else 0.0

    def add(self, partition: Partition, clock: DelayClock) -> "DelayFindings":
        """Add a partition, read to its end."""
        late = [each for each in (self.most_late_us, clock.most_late_us) if each is not None]
        return replace(
            self,
            partitions=(*self.partitions, PartitionFindings(partition, clock.state)),
            most_late_us=max(late, default=None),
            waits=self.waits.merge(clock.waits),
            waiting=self.waiting + clock.count_waiting(),
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a pass over a topic.

    Attributes:
        topics: the topics, in order of their names.
        delays: each delay, in order; the first is 0.
        sampled_every: waits were measured on each N-th record; 1: on all.
        first_us: the least timestamp of a record that was read; None without any.
        last_us: the greatest.
        notes: sentences about what is wrong or unknown.
    """

    topics: tuple[str, ...]
    delays: tuple[DelayFindings, ...]
    sampled_every: int
    first_us: int | None = None
    last_us: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def largest_lateness_us(self) -> int:
        """How far an event was behind the CTI without any delay, at most; 0 without late events."""
        return self.delays[0].most_late_us or 0

    def find_lossless(self) -> DelayFindings | None:
        """Return the smallest delay without late events; None if each has some."""
        return next((each for each in self.delays if not each.late), None)

    def find_nearly_lossless(self) -> DelayFindings | None:
        """Return the smallest delay with late events, but less than 0.1 % of all; None without."""
        return next((each for each in self.delays if 0 < each.late_share < _FEW), None)


def build_table(findings: Findings) -> pa.Table:
    """Build the table that `measure_lateness` returns: one row for each delay, in order."""
    rows = [_build_row(each, findings.sampled_every) for each in findings.delays]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA: Final = pa.schema(
    [
        ("delay", _DURATION),
        ("events", pa.int64()),
        ("malformed", pa.int64()),
        ("late", pa.int64()),
        ("late_percent", pa.float64()),
        ("most_late", _DURATION),
        ("wait_median", _DURATION),
        ("wait_p95", _DURATION),
        ("wait_max", _DURATION),
        ("waiting", pa.int64()),
        ("sampled_every", pa.int64()),
        (
            "partitions",
            pa.list_(
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("partition", pa.int32()),
                        ("events", pa.int64()),
                        ("malformed", pa.int64()),
                        ("late", pa.int64()),
                        ("ctis", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)


def _build_row(found: DelayFindings, sampled_every: int) -> dict[str, object]:
    waits = (found.waits.find_quantile(0.5), found.waits.find_quantile(0.95))
    median_us, p95_us, max_us = (
        None if ms is None else ms * _US_PER_MS for ms in (*waits, found.waits.greatest_ms)
    )
    return {
        "delay": found.delay_us,
        "events": found.events,
        "malformed": found.malformed,
        "late": found.late,
        "late_percent": 100 * found.late_share,
        "most_late": found.most_late_us,
        "wait_median": median_us,
        "wait_p95": p95_us,
        "wait_max": max_us,
        "waiting": found.waiting * sampled_every,
        "sampled_every": sampled_every,
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.number,
                "events": each.state.events,
                "malformed": each.state.malformed,
                "late": each.late,
                "ctis": each.state.ctis,
            }
            for each in found.partitions
        ],
    }
