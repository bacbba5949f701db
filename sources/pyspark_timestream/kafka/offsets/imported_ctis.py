"""Imported CTIs (semantics 6): another topic's time becomes this stream's.

The driver folds the topic of option `ctiImport` into an `ImportedTopic`, a part of every offset. A
CTI takes effect on a partition of the stream once the partition is read up to the end that it had
when the driver read the CTI. Until then the CTI waits as a pair (offset, CTI).

A final CTI is not imported. A partition of the topic that has ended no longer holds the others
back; after all have ended, the last CTI before the final ones stays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark_timestream.core.instants import FINAL_US, Instants
from pyspark_timestream.kafka.ranges import Partition, group_by_topic, list_by_partition
from pyspark_timestream.rules.clocks import PartitionClock, compute_stream_cti

Pending = tuple[tuple[int, int], ...]
"""Pairs (offset, CTI in us), both strictly increasing."""

MAX_PENDING: Final = 16
"""Maximum number of waiting CTIs per partition, which bounds the size of the JSON offset."""


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """How far one partition of the imported topic has been read, and its time there.

    Attributes:
        position: the next offset to read.
        clock: the partition's clock before `position`.
        cti_us: its greatest CTI below the final one; None before the first.
        ended: True once its final CTI has been read.
        idle: True if it does not hold the topic's CTI back.
        caught_up_since_us: the wall clock when it was first seen caught up; None if it is not.
    """

    position: int
    clock: PartitionClock = PartitionClock()
    cti_us: int | None = None
    ended: bool = False
    idle: bool = False
    caught_up_since_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with sorted keys."""
        entries = {
            "at": self.position,
            "caught_up": self.caught_up_since_us,
            "cti": self.cti_us,
            "ended": self.ended,
            "idle": self.idle or None,
            "state": self.clock.to_json(),
        }
        return {name: value for name, value in entries.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ImportedPartition":
        """Read the result of `to_json`."""
        return cls(
            position=value["at"],
            clock=PartitionClock.from_json(value["state"]),
            cti_us=value.get("cti"),
            ended=value["ended"],
            idle=value.get("idle", False),
            caught_up_since_us=value.get("caught_up"),
        )


@dataclass(frozen=True, slots=True)
class ImportedTopic:
    """The state of the imported topic.

    Attributes:
        partitions: the progress of its partitions.
        cti_us: the topic's CTI, the least of its partitions'; None before the first. It never goes
            back.
    """

    partitions: Mapping[Partition, ImportedPartition] = field(default_factory=dict)
    cti_us: int | None = None

    @property
    def positions(self) -> dict[Partition, int]:
        """The next offset to read in each partition."""
        return {partition: progress.position for partition, progress in self.partitions.items()}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with sorted keys."""
        partitions = {
            partition: progress.to_json() for partition, progress in self.partitions.items()
        }
        return {"cti": self.cti_us, "partitions": group_by_topic(partitions)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ImportedTopic":
        """Read the result of `to_json`."""
        partitions = list_by_partition(value["partitions"])
        return cls(
            {
                partition: ImportedPartition.from_json(progress)
                for partition, progress in partitions.items()
            },
            value["cti"],
        )


def advance_partition(
    partition: ImportedPartition, clock: PartitionClock, ctis_us: Instants
) -> ImportedPartition:
    """Advance a partition over a block that gave the clock `clock` and increasing CTIs."""
    finite = ctis_us[ctis_us < FINAL_US]
    return replace(
        partition,
        clock=clock,
        cti_us=int(finite[-1]) if len(finite) else partition.cti_us,
        ended=partition.ended or len(finite) < len(ctis_us),
    )


def merge_topic_cti(partitions: Iterable[ImportedPartition], floor_us: int | None) -> int | None:
    """Return the topic's CTI: the least over partitions that are neither ended nor idle.

    If there is no such partition, return the greatest of all. Never go below `floor_us`.
    """
    running: list[int | None] = []
    resting: list[int | None] = []
    for partition in partitions:
        group = resting if partition.ended or partition.idle else running
        group.append(partition.cti_us)
    return compute_stream_cti(running, (), resting, floor_us)


def defer(pending: Pending, end: int, cti_us: int) -> Pending:
    """Add to `pending` a CTI that was read when the partition ended at offset `end`.

    Beyond `MAX_PENDING` pairs, the newest one replaces the one before: a CTI may then take effect
    later than it could, never earlier.

    >>> defer(((5, 100),), 9, 200)
    ((5, 100), (9, 200))
    >>> defer(((5, 100),), 5, 200), defer(((5, 100),), 9, 100)
    (((5, 200),), ((5, 100),))
    """
    if pending and pending[-1][1] >= cti_us:
        return pending
    earlier = tuple(pair for pair in pending if pair[0] < end)
    return (*earlier[: MAX_PENDING - 1], (end, cti_us))


def release(pending: Pending, position: int) -> tuple[int | None, Pending]:
    """Return the greatest CTI that takes effect at `position`, and the pairs that still wait.

    >>> release(((5, 100), (9, 200), (12, 300)), 9)
    (200, ((12, 300),))
    """
    due = [cti_us for end, cti_us in pending if end <= position]
    return (due[-1] if due else None), pending[len(due) :]
