"""A batch's Spark offset, as JSON (semantics 8.1).

An offset describes its own batch completely, so that a replay needs nothing else. Decisions by a
wall clock or another topic (idle partitions, imported CTIs) are part of it for the same reason. The
end clock of a batch becomes the start clock in the next offset.

The JSON leaves out defaults. `waits` and `advanced` tell how the batch was planned (`maxSkew`,
`idleAdvance`); no later batch depends on them. A record with a malformed value or key counts once:
for its value's reason, else for its key's (semantics 13.5).

The driver folds the topic of option `ctiImport` into an `ImportedTopic`, a part of every offset. A
CTI takes effect on a partition of the stream once the partition is read up to the end that it had
when the driver read the CTI. Until then the CTI waits as a pair (offset, CTI). A final CTI is not
imported. A partition of the topic that has ended no longer holds the others back; after all have
ended, the last CTI before the final ones stays.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pyspark_timestream.core.checkpoint import (
    OFFSET_VERSION,
    build_frozen,
    check_offset,
    damaged_offset,
    find_mistake,
)
from pyspark_timestream.core.instants import FINAL_US, Instants
from pyspark_timestream.kafka.offsets.changes import ClockChange, find_bad_value, find_obstacle
from pyspark_timestream.kafka.ranges import (
    OffsetRange,
    Partition,
    assign_tasks,
    group_by_topic,
    list_by_partition,
)
from pyspark_timestream.kafka.schemas import ReaderSchema
from pyspark_timestream.rules.clocks import PartitionClock, compute_stream_cti

# -- imported CTIs (semantics 6) -------------------------------------------------------------------

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

    @property
    def idle(self) -> frozenset[Partition]:
        """The partitions that do not hold the topic's CTI back."""
        return frozenset(partition for partition, entry in self.partitions.items() if entry.idle)

    def change_partitions(
        self, change: Callable[[Partition, ImportedPartition], ImportedPartition]
    ) -> "ImportedTopic":
        """Return the topic with `change` applied to each partition."""
        changed = {
            partition: change(partition, entry) for partition, entry in self.partitions.items()
        }
        return replace(self, partitions=changed)

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
    # A CTI that waits for this end or a later one is smaller, so the new one overtakes it.
    earlier = tuple(pair for pair in pending if pair[0] < end)
    return (*earlier[: MAX_PENDING - 1], (end, cti_us))


def release(pending: Pending, position: int) -> tuple[int | None, Pending]:
    """Return the greatest CTI that takes effect at `position`, and the pairs that still wait.

    >>> release(((5, 100), (9, 200), (12, 300)), 9)
    (200, ((12, 300),))
    """
    due = [cti_us for end, cti_us in pending if end <= position]
    return (due[-1] if due else None), pending[len(due) :]


# -- offsets ---------------------------------------------------------------------------------------

_MALFORMED_KEYS: Final = frozenset(
    ("malformed", "malformed_at", "malformed_event_at", "malformed_time_at")
)


@dataclass(frozen=True, slots=True)
class MalformedPayloads:
    """Numbers of records with a malformed value or key, and offsets that warnings show.

    Attributes:
        by_reason: (reason, number) in the order of reasons, without zeros.
        malformed_payload_at: the offset of a record with a malformed value or key, or None.
        malformed_event_at: the offset of a malformed event that has a value, or None.
        early_event_at: the offset of an event of early 1970, or None.
    """

    by_reason: tuple[tuple[str, int], ...] = ()
    malformed_payload_at: int | None = None
    malformed_event_at: int | None = None
    early_event_at: int | None = None

    @classmethod
    def from_reasons(cls, counts: Mapping[str, int]) -> "MalformedPayloads":
        """Create from the number of malformed records for each reason."""
        return cls(_sort_counts(counts))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "MalformedPayloads":
        """Read the result of `to_json`."""
        if _MALFORMED_KEYS.isdisjoint(value):
            return NO_MALFORMED_PAYLOADS
        return cls(
            _sort_counts(value.get("malformed", {})),
            value.get("malformed_at"),
            value.get("malformed_event_at"),
            value.get("malformed_time_at"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entries that are not empty, for a JSON object, with sorted keys."""
        entries = {
            "malformed": dict(self.by_reason) or None,
            "malformed_at": self.malformed_payload_at,
            "malformed_event_at": self.malformed_event_at,
            "malformed_time_at": self.early_event_at,
        }
        return _leave_out_none(entries)

    @property
    def total(self) -> int:
        """The number of malformed records."""
        return sum(count for _, count in self.by_reason)

    def __add__(self, other: "MalformedPayloads") -> "MalformedPayloads":
        return MalformedPayloads(
            self._combine(other, 1),
            self.malformed_payload_at
            if other.malformed_payload_at is None
            else other.malformed_payload_at,
            self.malformed_event_at
            if other.malformed_event_at is None
            else other.malformed_event_at,
            self.early_event_at if other.early_event_at is None else other.early_event_at,
        )

    def __sub__(self, other: "MalformedPayloads") -> "MalformedPayloads":
        return replace(self, by_reason=self._combine(other, -1))

    def _combine(self, other: "MalformedPayloads", sign: int) -> tuple[tuple[str, int], ...]:
        counts = dict(self.by_reason)
        for reason, count in other.by_reason:
            counts[reason] = counts.get(reason, 0) + sign * count
        return _sort_counts(counts)


def _sort_counts(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((reason, count) for reason, count in counts.items() if count))


NO_MALFORMED_PAYLOADS: Final = MalformedPayloads()


def _leave_out_none(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with sorted keys: Spark compares offsets as text."""
    return {name: value for name, value in sorted(entries.items()) if value is not None}


@dataclass(frozen=True)
class PartitionOffset:
    """One partition in a batch.

    Attributes:
        start_inclusive: the first offset that the batch reads.
        end_exclusive: the offset after the last one.
        clock: the partition's clock before the record at `start_inclusive`.
        idle: True if it does not hold back the stream's CTI; the batch then reads none of it.
        caught_up_since_us: the wall clock when it was first seen caught up (everything read, no
            open transaction); None if it is not.
        pending: imported CTIs that wait, as (offset, CTI), both increasing. Each takes effect once
            the partition has been read up to the offset.
        restart_points: the places where reading began or went back to, as (batch, offset) in the
            order of batches.
        forced_ctis: raises of the clock by anything other than a record (idleness, discovery, an
            import), as (batch, offset, CTI): the clock is raised before the record at the offset.
            Like `restart_points`, they cover all batches that a restart may run again.
        change_points: where changed options take effect, as (batch, offset); they cover the same
            batches.
        malformed_payloads: the malformed values and keys before `start_inclusive` that tasks
            counted. They are not in the clock, which does not depend on the schema.
        waits: True if it is ahead of the slowest partition by `maxSkew`, and waits for that.
    """

    start_inclusive: int
    end_exclusive: int
    clock: PartitionClock
    idle: bool = False
    caught_up_since_us: int | None = None
    pending: tuple[tuple[int, int], ...] = ()
    restart_points: tuple[tuple[int, int], ...] = ()
    forced_ctis: tuple[tuple[int, int, int], ...] = ()
    change_points: tuple[tuple[int, int], ...] = ()
    malformed_payloads: MalformedPayloads = NO_MALFORMED_PAYLOADS
    waits: bool = False

    @property
    def end_cti_us(self) -> int | None:
        """The imported CTI that takes effect once the batch has read the partition."""
        return release(self.pending, self.end_exclusive)[0] if self.size else None

    @property
    def size(self) -> int:
        """The number of offsets that the batch reads."""
        return self.end_exclusive - self.start_inclusive

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with sorted keys, without defaults."""
        return _leave_out_none(
            {
                "caught_up": self.caught_up_since_us,
                "change_points": [list(entry) for entry in self.change_points] or None,
                "forced_ctis": [list(entry) for entry in self.forced_ctis] or None,
                "from": self.start_inclusive,
                "idle": self.idle or None,
                "pending": [list(pair) for pair in self.pending] or None,
                "restart_points": [list(pair) for pair in self.restart_points] or None,
                "state": self.clock.to_json(),
                "to": self.end_exclusive,
                "waits": self.waits or None,
                **self.malformed_payloads.to_json(),
            }
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PartitionOffset":
        """Read the result of `to_json`."""
        clock = PartitionClock.from_json(value["state"])
        if len(value) == 3:  # Most have no more.
            ends = {"start_inclusive": value["from"], "end_exclusive": value["to"]}
            return build_frozen(cls, {**ends, "clock": clock})
        return cls(
            start_inclusive=value["from"],
            end_exclusive=value["to"],
            clock=clock,
            idle=value.get("idle", False),
            caught_up_since_us=value.get("caught_up"),
            pending=_read_tuples(value, "pending", 2),
            restart_points=_read_tuples(value, "restart_points", 2),
            forced_ctis=_read_tuples(value, "forced_ctis", 3),
            change_points=_read_tuples(value, "change_points", 2),
            malformed_payloads=MalformedPayloads.from_json(value),
            waits=value.get("waits", False),
        )


def _read_tuples(value: Mapping[str, Any], name: str, size: int) -> Any:
    """Return an entry that is a list of lists of `size` numbers; most partitions have none."""
    if name not in value:
        return ()
    entries = tuple(map(tuple, value[name]))
    if any(len(entry) != size for entry in entries):
        raise ValueError(f"of {name}: not all have {size} numbers")
    return entries


@dataclass(frozen=True, slots=True)
class GivenWarning:
    """A warning that the stream has given, as plain values; `kafka/diagnosis` interprets it.

    Attributes:
        kind: the kind of problem; there is at most one warning of a kind.
        cause: partitions, a writer, a topic or an option.
        text: the observation.
        detail: evidence from the records; may be empty.
        advice: the fix, if it is not that of the kind.
        level: the severity; the warning is given again when it rises.
        holds: True while the problem persists.
    """

    kind: str
    cause: str
    text: str
    detail: str = ""
    advice: str = ""
    level: int = 0
    holds: bool = True


Warnings = tuple[GivenWarning, ...]
"""The warnings that a stream has given, in the order of reports."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One batch of the stream.

    Attributes:
        stream: the stream's id, created with its first offset; names the consumer group.
        settings: the options that define time in this batch, as text.
        changes: the changes of options up to this batch (semantics 8.10), in order.
        number: the batch's number in the stream, from 0, without gaps.
        starts: the number of starts of the query; each start makes a new offset.
        cti_us: the stream's CTI at the batch's start; None before the first.
        first_cti_us: a CTI row to emit before the batch's records; None for none.
        tasks: the number of tasks that read the records.
        end_of_run: True if a bounded run had read everything before this batch.
        final: True if this batch or an earlier one emits the final CTI.
        partitions: each partition's range and clock.
        topic_ids: the broker's id of each topic, which distinguishes a topic from a later one of
            the same name; topics with unknown ids are left out.
        imported: the state of the topic of `ctiImport`; None without an import.
        advanced_us: the CTI to which `idleAdvance` last moved the stream by the wall clock; None
            if it never did.
        missing: missing partitions that may return, with their positions; `caught_up_since_us` is
            the wall clock when each was first missed.
        bounded: True if a bounded run planned the batch.
        warnings: the warnings given up to this batch.
        schemas: `value` or `key` -> the schema that it is read by, without its text.
        fixed_ends: the offsets where the ending options end the partitions; None without such an
            option.
        unpinned: options that `explain` shows although they may change: `idleTimeout`, `finalCti`,
            `maxOffsetsPerTrigger` if they are set, the consumer `group`, and in `changeFrom` a
            change that waits for its instant, with its old and new values.
    """

    stream: str
    settings: Mapping[str, str]
    starts: int
    partitions: Mapping[Partition, PartitionOffset]
    number: int = 0
    cti_us: int | None = None
    first_cti_us: int | None = None
    tasks: int = 0
    end_of_run: bool = False
    final: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    imported: ImportedTopic | None = None
    advanced_us: int | None = None
    missing: Mapping[Partition, PartitionOffset] = field(default_factory=dict)
    bounded: bool = False
    warnings: Warnings = ()
    schemas: Mapping[str, ReaderSchema] = field(default_factory=dict)
    fixed_ends: Mapping[Partition, int] | None = None
    unpinned: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[ClockChange, ...] = ()

    @property
    def idle(self) -> frozenset[Partition]:
        """The partitions that do not hold back the stream's CTI."""
        return frozenset(partition for partition, entry in self.partitions.items() if entry.idle)

    @property
    def clocks(self) -> dict[Partition, PartitionClock]:
        """The clock of each partition at the batch's start."""
        return {partition: entry.clock for partition, entry in self.partitions.items()}

    @property
    def active_clocks(self) -> dict[Partition, PartitionClock]:
        """The clocks of the partitions that are not idle."""
        return {
            partition: entry.clock for partition, entry in self.partitions.items() if not entry.idle
        }

    @property
    def ends(self) -> dict[Partition, int]:
        """Where the batch ends in each partition."""
        return {partition: entry.end_exclusive for partition, entry in self.partitions.items()}

    @property
    def malformed_payloads(self) -> dict[Partition, MalformedPayloads]:
        """The malformed values and keys of each partition before the batch."""
        return {partition: entry.malformed_payloads for partition, entry in self.partitions.items()}

    def change_partitions(
        self,
        change: Callable[[Partition, PartitionOffset], PartitionOffset],
        *,
        with_missing: bool = False,
    ) -> "StreamOffset":
        """Return the offset with `change` applied to each partition, missing ones if wanted."""
        changed = {
            partition: change(partition, entry) for partition, entry in self.partitions.items()
        }
        missing = self.missing
        if with_missing:
            missing = {partition: change(partition, entry) for partition, entry in missing.items()}
        return replace(self, partitions=changed, missing=missing)

    def ranges(self) -> list[OffsetRange]:
        """Return the batch's ranges in the order of partitions, including empty ones."""
        return [
            OffsetRange(partition, partition_offset.start_inclusive, partition_offset.end_exclusive)
            for partition, partition_offset in sorted(self.partitions.items())
        ]

    @property
    def size(self) -> int:
        """The number of offsets that the batch reads."""
        return sum(partition.size for partition in self.partitions.values())

    @property
    def has_records(self) -> bool:
        """Whether the batch has offsets to read."""
        return any(partition.size > 0 for partition in self.partitions.values())

    def groups(self) -> list[list[OffsetRange]]:
        """Return the batch's non-empty ranges, one list per task."""
        return assign_tasks(self.ranges(), self.tasks)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with sorted keys, without empty entries."""
        always = {
            "cti": self.cti_us,
            "end_of_run": self.end_of_run,
            "final": self.final,
            "first_cti": self.first_cti_us,
            "number": self.number,
            "partitions": _partitions_to_json(self.partitions),
            "settings": dict(sorted(self.settings.items())),
            "starts": self.starts,
            "stream": self.stream,
            "tasks": self.tasks,
            "version": OFFSET_VERSION,
        }
        schemas = {side: schema.to_json() for side, schema in sorted(self.schemas.items())}
        sometimes = {
            "advanced": self.advanced_us,
            "bounded": self.bounded or None,
            "changes": [change.to_json() for change in self.changes] or None,
            "ends": None if self.fixed_ends is None else group_by_topic(self.fixed_ends),
            "import": None if self.imported is None else self.imported.to_json(),
            "missing": _partitions_to_json(self.missing) or None,
            "schemas": schemas or None,
            "topics": dict(sorted(self.topic_ids.items())) or None,
            "unpinned": dict(sorted(self.unpinned.items())) or None,
            "warnings": _warnings_to_json(self.warnings) or None,
        }
        return dict(sorted({**always, **_leave_out_none(sometimes)}.items()))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """Read the result of `to_json`."""
        imported = value.get("import")
        return cls(
            stream=value["stream"],
            settings=value["settings"],
            starts=value["starts"],
            partitions=_partitions_from_json(value["partitions"]),
            number=value["number"],
            cti_us=value["cti"],
            first_cti_us=value["first_cti"],
            tasks=value["tasks"],
            end_of_run=value["end_of_run"],
            final=value["final"],
            topic_ids=value.get("topics", {}),
            imported=None if imported is None else ImportedTopic.from_json(imported),
            advanced_us=value.get("advanced"),
            missing=_partitions_from_json(value.get("missing", {})),
            bounded=value.get("bounded", False),
            warnings=tuple(GivenWarning(**warning) for warning in value.get("warnings", ())),
            schemas={
                side: ReaderSchema.from_json(schema)
                for side, schema in value.get("schemas", {}).items()
            },
            fixed_ends=list_by_partition(value["ends"]) if "ends" in value else None,
            unpinned=value.get("unpinned", {}),
            changes=tuple(ClockChange.from_json(change) for change in value.get("changes", ())),
        )


def _warnings_to_json(warnings: Warnings) -> list[dict[str, Any]]:
    """Return JSON objects with sorted keys, without empty values."""
    return [
        {name: value for name, value in sorted(asdict(warning).items()) if value or name == "holds"}
        for warning in warnings
    ]


def _partitions_to_json(
    partitions: Mapping[Partition, PartitionOffset],
) -> dict[str, dict[str, Any]]:
    return group_by_topic({partition: offset.to_json() for partition, offset in partitions.items()})


def _partitions_from_json(topics: Mapping[str, Any]) -> dict[Partition, PartitionOffset]:
    partitions = list_by_partition(topics)
    return {partition: PartitionOffset.from_json(value) for partition, value in partitions.items()}


def read_recorded_offset(value: Mapping[str, Any]) -> StreamOffset:
    """Read an offset that another process wrote, and that a disk or a copy may have damaged.

    Raises:
        CheckpointUnreadable: it lacks an entry, or one has another type or is out of range.
    """
    stream = value.get("stream")
    try:
        offset = StreamOffset.from_json(value)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise damaged_offset(f"{type(error).__name__} {error}", stream) from error
    mistake = find_mistake(offset) or _find_bad_range(offset) or _find_bad_change(offset)
    if mistake is not None:
        raise damaged_offset(mistake, stream)
    return offset


def _find_bad_range(offset: StreamOffset) -> str | None:
    for partition, partition_offset in (*offset.partitions.items(), *offset.missing.items()):
        if not 0 <= partition_offset.start_inclusive <= partition_offset.end_exclusive:
            return (
                f"partition {partition.number} of '{partition.topic}' is read from "
                f"{partition_offset.start_inclusive} to {partition_offset.end_exclusive}"
            )
    return None if offset.number >= 0 and offset.tasks >= 0 else "a number is negative"


def _find_bad_change(offset: StreamOffset) -> str | None:
    """Find a change that this batch cannot know, or that has unreadable values."""
    numbers = [change.number for change in offset.changes]
    if numbers and (numbers != sorted({*numbers}) or numbers[0] < 0 or numbers[-1] > offset.number):
        return f"its changes are those of the batches {numbers}"
    for partition, partition_offset in (*offset.partitions.items(), *offset.missing.items()):
        points = partition_offset.change_points
        if not points:
            continue
        if points != tuple(sorted(points)) or any(
            number not in numbers or not 0 <= position <= partition_offset.end_exclusive
            for number, position in points
        ):
            return f"the changes of {partition} are at {list(points)}"
    return next(filter(None, map(find_bad_value, offset.changes)), None)


def check_stream_offset(
    offset: Mapping[str, Any],
    settings: Mapping[str, str],
    topic_settings: Mapping[str, str] | None = None,
    *,
    change_from: str | int | None = None,
) -> None:
    """Check that an offset has this format version and the pinned options `settings`.

    Args:
        offset: the offset in the checkpoint.
        settings: the pinned options of today.
        topic_settings: the options taken from the description of the topics, for the message.
        change_from: option `changeFrom`, which lets some options differ (8.10); None without it.

    Raises:
        CheckpointMismatch: the format version is another one, or the value of an option is.
    """

    def advise(name: str, stored: Mapping[str, str]) -> str | None:
        if change_from is None:
            is_possible = find_obstacle(name, stored, settings) is None
            advice = ", or set option 'changeFrom' to 'now' to change it from here on,"
            return advice if is_possible else ""
        obstacle = find_obstacle(name, stored, settings, change_from)
        return obstacle and f", since 'changeFrom' {obstacle},"

    # A preset is pinned as the options it sets.
    preset = ("ctiFrequency", "ctiDelay") if "advanceTime" in (topic_settings or {}) else ()
    check_offset(offset, settings, {*(topic_settings or {}), *preset}, advise)
