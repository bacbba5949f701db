"""Imported CTIs (semantics 6): another topic's time becomes this stream's.

The driver reads the topic of option `ctiImport` and folds what it says into an `Imported`, which
is part of every offset. A CTI takes effect on a partition once that partition has been read up to
the end it had when the CTI was read: until then it waits, as a pair (offset, CTI).

A final CTI is not imported: a partition of the topic that has ended no longer holds the others
back, and when all have ended the last CTI before the final ones stays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pyspark_timestream.connector.instants import FINAL_US
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.cti.stream_cti import stream_cti
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "Imported",
    "ImportedPartition",
    "Pending",
    "heard",
    "taken",
    "topic_cti",
    "waiting",
]

Pending = tuple[tuple[int, int], ...]
"""Pairs (offset, CTI in us), both strictly increasing."""

MOST_PENDING: Final = 16
"""How many CTIs wait on one partition: more would make every offset of a long backlog longer."""


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """How far one partition of the imported topic was read.

    Attributes:
        position: the next offset to read.
        state: the partition's clock before it.
        cti_us: its greatest CTI below the final one; None before the first.
        ended: it has had its final CTI.
        idle: it does not hold the topic's CTI back.
        quiet_since_us: the wall clock at which its log's end was first seen at rest; None: it is
            not at rest.
    """

    position: int
    state: PartitionState = PartitionState()
    cti_us: int | None = None
    ended: bool = False
    idle: bool = False
    quiet_since_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with sorted keys."""
        quiet = {} if self.quiet_since_us is None else {"quiet": self.quiet_since_us}
        return {
            "at": self.position,
            "cti": self.cti_us,
            "ended": self.ended,
            **({"idle": True} if self.idle else {}),
            **quiet,
            "state": self.state.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ImportedPartition":
        """What `to_json` wrote, in this version or before."""
        return cls(
            value["at"],
            PartitionState.from_json(value["state"]),
            value["cti"],
            value["ended"],
            value.get("idle", False),
            value.get("quiet"),
        )


@dataclass(frozen=True, slots=True)
class Imported:
    """How far the imported topic was read, and what it has said.

    Attributes:
        partitions: each of its partitions.
        cti_us: the topic's CTI, the least of its partitions'; None: none yet. It never goes back.
    """

    partitions: Mapping[Partition, ImportedPartition] = field(default_factory=dict)
    cti_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with sorted keys."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, number), part in sorted(self.partitions.items()):
            topics.setdefault(topic, {})[str(number)] = part.to_json()
        return {"cti": self.cti_us, "partitions": topics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Imported":
        """What `to_json` wrote."""
        partitions = {
            Partition(topic, int(number)): ImportedPartition.from_json(part)
            for topic, parts in value["partitions"].items()
            for number, part in parts.items()
        }
        return cls(partitions, value["cti"])


def heard(
    part: ImportedPartition, state: PartitionState, ctis_us: npt.NDArray[np.int64]
) -> ImportedPartition:
    """`part` after a block of records: its new clock, and the CTIs (increasing) in the block."""
    told = ctis_us[ctis_us < FINAL_US]
    return replace(
        part,
        state=state,
        cti_us=int(told[-1]) if len(told) else part.cti_us,
        ended=part.ended or len(told) < len(ctis_us),
    )


def topic_cti(partitions: Iterable[ImportedPartition], floor_us: int | None) -> int | None:
    """The topic's CTI: the least over partitions that have neither ended nor are idle.

    Where there are none, the greatest of all.
    """
    parts = list(partitions)
    running = [part.cti_us for part in parts if not (part.ended or part.idle)]
    resting = [part.cti_us for part in parts if part.ended or part.idle]
    return stream_cti(running, (), resting, floor_us)


def waiting(pending: Pending, end: int, cti_us: int) -> Pending:
    """`pending` and a CTI that was read when the partition ended at offset `end`.

    Too many pairs become fewer by letting the last ones wait for the newest end: later than they
    might, never earlier.

    >>> waiting(((5, 100),), 9, 200)
    ((5, 100), (9, 200))
    >>> waiting(((5, 100),), 5, 200), waiting(((5, 100),), 9, 100)
    (((5, 200),), ((5, 100),))
    """
    if pending and pending[-1][1] >= cti_us:
        return pending
    kept = tuple(pair for pair in pending if pair[0] < end)
    return (*kept[: MOST_PENDING - 1], (end, cti_us))


def taken(pending: Pending, position: int) -> tuple[int | None, Pending]:
    """The greatest CTI that takes effect once `position` is reached, and what still waits.

    >>> taken(((5, 100), (9, 200), (12, 300)), 9)
    (200, ((12, 300),))
    """
    due = [cti_us for end, cti_us in pending if end <= position]
    return (due[-1] if due else None), pending[len(due) :]
