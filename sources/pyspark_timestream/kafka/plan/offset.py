"""The Kafka transport's Spark offset: a batch's ranges, and where every clock stood at its start.

An offset describes its own batch completely, so that a replay needs nothing else. The end state
of a batch becomes the start state in the next offset. What was decided by a wall clock or by
another topic (who is idle, what was imported) is part of it for the same reason.

Format version 2 added `idle`, `quiet`, `pending`, `topics` and `import`; version 3 added `began`,
`raises`, `hidden`, `bounded`, `unfit` and `warnings`. An older offset is read as one without them.

The rules are semantics 8.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.plan.imported_ctis import Imported
from pyspark_timestream.kafka.plan.warnings import Warnings, warnings_from_json, warnings_to_json
from pyspark_timestream.kafka.ranges import Partition, Range, assign_tasks

__all__ = [
    "OFFSET_VERSION",
    "PartitionOffset",
    "StreamOffset",
    "group_name",
]

OFFSET_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """One partition's share of a batch.

    Attributes:
        start_inclusive: the first offset that the batch reads.
        end_exclusive: the offset after the last one.
        state: the partition's clock before the record at `start_inclusive`.
        idle: it does not hold the stream's CTI back; then the batch reads nothing of it.
        quiet_since_us: the wall clock at which its log's end was first seen at rest (everything
            read, nothing new, no open transaction); None: it is not at rest.
        pending: imported CTIs that wait, as (offset, CTI) with both increasing: each takes effect
            once the partition has been read up to the offset.
        began: where the reading of the partition began, or went back to, as (batch, offset) in the
            order of batches.
        raises: where the clock was raised by something else than a record (idleness, discovery, an
            import), as (batch, offset, CTI): before the record at the offset. `began` and `raises`
            reach back to the last batch that no restart goes back before.
        unfit: how many values before `start_inclusive` were no JSON of the schema, as far as tasks
            have told; no part of the clock, which does not depend on the schema.
    """

    start_inclusive: int
    end_exclusive: int
    state: PartitionState
    idle: bool = False
    quiet_since_us: int | None = None
    pending: tuple[tuple[int, int], ...] = ()
    began: tuple[tuple[int, int], ...] = ()
    raises: tuple[tuple[int, int, int], ...] = ()
    unfit: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object with sorted keys; what is at its default is left out."""
        found = {
            "began": [list(pair) for pair in self.began] or None,
            "from": self.start_inclusive,
            "idle": self.idle or None,
            "pending": [list(pair) for pair in self.pending] or None,
            "quiet": self.quiet_since_us,
            "raises": [list(each) for each in self.raises] or None,
            "state": self.state.to_json(),
            "to": self.end_exclusive,
            "unfit": self.unfit or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PartitionOffset":
        """The share that `to_json` wrote, in this version or before."""
        return cls(
            value["from"],
            value["to"],
            PartitionState.from_json(value["state"]),
            value.get("idle", False),
            value.get("quiet"),
            tuple((at, cti_us) for at, cti_us in value.get("pending", ())),
            tuple((batch, at) for batch, at in value.get("began", ())),
            tuple((batch, at, cti_us) for batch, at, cti_us in value.get("raises", ())),
            value.get("unfit", 0),
        )


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One batch of the stream.

    Attributes:
        stream: the stream's id, made by its first offset; names the consumer group.
        settings: the options that define time, as text; a restart may not change them.
        number: the batch's place in the stream, from 0, without a gap.
        starts: how often the query was started; a new start makes a new offset.
        cti_us: the stream's CTI at the batch's start; None before the first.
        opening_us: a CTI row to emit before the batch's records; None: none.
        tasks: over how many tasks the records are spread.
        closing: everything that a bounded run reads was read before this batch.
        final: the final CTI has been emitted, by this batch or before.
        partitions: each partition's range and state.
        topic_ids: the id of each topic as the broker knows it, to tell a topic from a later one
            of the same name; without topics whose id could not be learnt.
        imported: how far the topic of `ctiImport` was read; None: nothing is imported.
        hidden: partitions that are not there now, and may be again: where each is to be read on.
            `quiet_since_us` is the wall clock at which it was missed first.
        bounded: a bounded run planned the batch.
        warnings: what was warned of up to this batch.
    """

    stream: str
    settings: Mapping[str, str]
    starts: int
    partitions: Mapping[Partition, PartitionOffset]
    number: int = 0
    cti_us: int | None = None
    opening_us: int | None = None
    tasks: int = 0
    closing: bool = False
    final: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    imported: Imported | None = None
    hidden: Mapping[Partition, PartitionOffset] = field(default_factory=dict)
    bounded: bool = False
    warnings: Warnings = field(default_factory=dict)
    version: int = field(default=OFFSET_VERSION, init=False)

    def ranges(self) -> list[Range]:
        """The batch's ranges in the order of partitions, empty ones included."""
        return [
            Range(part, share.start_inclusive, share.end_exclusive)
            for part, share in sorted(self.partitions.items())
        ]

    def groups(self) -> list[list[Range]]:
        """The batch's non-empty ranges, a list a task."""
        return assign_tasks(self.ranges(), self.tasks)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with sorted keys: Spark compares offsets as text."""
        hidden = {"hidden": _shares_to_json(self.hidden)} if self.hidden else {}
        return {
            **({"bounded": True} if self.bounded else {}),
            "closing": self.closing,
            "cti": self.cti_us,
            "final": self.final,
            **hidden,
            "import": None if self.imported is None else self.imported.to_json(),
            "number": self.number,
            "opening": self.opening_us,
            "partitions": _shares_to_json(self.partitions),
            "settings": dict(sorted(self.settings.items())),
            "starts": self.starts,
            "stream": self.stream,
            "tasks": self.tasks,
            "topics": dict(sorted(self.topic_ids.items())),
            "version": self.version,
            **({"warnings": warnings_to_json(self.warnings)} if self.warnings else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """The offset that `to_json` wrote, in this format version or before."""
        imported = value.get("import")
        return cls(
            stream=value["stream"],
            settings=value["settings"],
            starts=value["starts"],
            partitions=_shares_from_json(value["partitions"]),
            number=value["number"],
            cti_us=value["cti"],
            opening_us=value["opening"],
            tasks=value["tasks"],
            closing=value["closing"],
            final=value["final"],
            topic_ids=value.get("topics", {}),
            imported=None if imported is None else Imported.from_json(imported),
            hidden=_shares_from_json(value.get("hidden", {})),
            # Before version 3 only the closing batch told that the run was bounded.
            bounded=value.get("bounded", value["version"] < 3 and value["closing"]),
            warnings=warnings_from_json(value.get("warnings", {})),
        )


def _shares_to_json(shares: Mapping[Partition, PartitionOffset]) -> dict[str, dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for (topic, number), share in sorted(shares.items()):
        topics.setdefault(topic, {})[str(number)] = share.to_json()
    return topics


def _shares_from_json(topics: Mapping[str, Any]) -> dict[Partition, PartitionOffset]:
    return {
        Partition(topic, int(number)): PartitionOffset.from_json(share)
        for topic, shares in topics.items()
        for number, share in shares.items()
    }


def group_name(prefix: str, stream: str) -> str:
    """The consumer group of the stream with that id."""
    return f"{prefix}-{stream}"
