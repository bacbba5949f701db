"""Follows the time of a query: a fold over its batches, and what is worth showing of them.

`QueryLog` takes batches one by one, from a checkpoint (`CheckpointFollower`) or from a query's
progress, and keeps what a page shows: the last batches in full, for the diagnoses, and of older
ones a curve. It is bounded however long the query runs. Nothing here knows how it is shown.
"""

import dataclasses
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_timestream.commands.explanation import (
    COUNTERS,
    OperatorState,
    PartitionFacts,
    StreamExplanation,
    explain_stream,
    name_remarks,
)
from pyspark_timestream.commands.watch.state_files import StateFiles, StateFound
from pyspark_timestream.core.checkpoint import read_entry, read_written_topic, resolve_directory
from pyspark_timestream.core.instants import FINAL_US, MINUTE_US, SECOND_US
from pyspark_timestream.errors import CheckpointUnreadable, TimestreamError
from pyspark_timestream.kafka.diagnosis.history import (
    Batch,
    BatchRecord,
    History,
    drop_skipped,
    read_batches,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import PartitionState

MAX_BATCHES: Final = 100
"""Keep this many batches in full; Spark's checkpoint has as many by default."""

MAX_RECORDS: Final = 20_000
"""Keep fewer of them if their partitions are many: at most about so many partitions in all."""

MAX_POINTS: Final = 1_000
"""Keep at most twice this many points of a curve, whatever time they span."""

MAX_BYTES: Final = 4_000_000
"""Read fewer of them in full if their entries are large: a thousand partitions take 100 kB each."""

MAX_RECALLED: Final = 200
"""Of older batches read this many, evenly spread, for the curve alone."""

_LEAST_BATCHES: Final = 20
_MANY: Final = 1_000
_LIST_AGAIN_S: Final = 60.0

MAX_CASES: Final = 20
_MAX_SLOW: Final = 3

WINDOW_US: Final = MINUTE_US
"""Counts are of about the last minute of batches."""

_QUIET_US: Final = 10 * SECOND_US
"""A query that has finished its last batch is quiet after this long."""

SHOWS_CASES: Final = COUNTERS[1:]
"""Counters with cases on the page: all but that of events."""

_READ_COUNTERS: Final = attrgetter(*COUNTERS)
_READ_CASES: Final = attrgetter(*SHOWS_CASES)
_NOTHING: Final = (0,) * len(COUNTERS)


class Point(NamedTuple):
    """A point of a curve: the CTI of a stream at the start of a batch; None before the first."""

    planned_us: int
    cti_us: int | None


class Case(NamedTuple):
    """Records that a counter of a partition has counted: offsets of a batch, end exclusive.

    `clock` is the partition's before them, and `settings` are those that define time.
    """

    counter: str
    counted: int
    partition: Partition
    start: int
    end: int
    batch: int
    clock: PartitionState
    settings: Mapping[str, str]

    @property
    def key(self) -> str:
        """Its name in an address; it has only letters, digits, dots and lines."""
        return f"{self.batch}-{self.counter}-{self.partition.number}-{self.partition.topic}"


class BatchTiming(NamedTuple):
    """A batch of a query: when it was planned and finished, and how many offsets it reads.

    `finished_us` is None until it is; `records` counts offsets, of which markers may be some.
    """

    number: int
    planned_us: int
    finished_us: int | None
    records: int


@dataclass(frozen=True, slots=True)
class StreamView:
    """What is shown of one stream.

    Attributes:
        explanation: its state and diagnoses, most important first.
        curve: its CTIs, from old to new.
        counts: by counter, how many in the last minute of batches.
        cases: where rare counters have counted lately, newest first.
        missing: partitions that are gone and may come back.
        waiting: the number of records after the last batch, by partition, where it is known.
        is_final: True after the final CTI.
    """

    explanation: StreamExplanation
    curve: tuple[Point, ...]
    counts: Mapping[str, int]
    cases: tuple[Case, ...]
    missing: tuple[Partition, ...]
    waiting: Mapping[Partition, int]
    is_final: bool


@dataclass(frozen=True, slots=True)
class QueryEnds:
    """What a query reads and writes beside topics that it reads, as far as its checkpoint tells.

    Attributes:
        subscriptions: the id of each store that it reads, and the last CTI that it got from there.
        store: the id and location of the store that it writes; None: none, or unknown.
        topic: the topic that it writes; None: none, or unknown.
    """

    subscriptions: tuple[tuple[str, int | None], ...] = ()
    store: tuple[str, str] | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class QueryView:
    """What is shown of a query.

    Attributes:
        name: what the user calls it: the checkpoint, or the query's name.
        status: one of `runs`, `works`, `quiet`, `stopped`, `unknown`.
        detail: why it has this status, in a few words; empty if that is plain.
        changed_us: the wall clock of the last sign of life; None without any.
        streams: its streams of Kafka topics.
        triggers: its last batches, from old to new.
        notes: remarks, a sentence each.
        state: the rows that operators keep, where they are known.
        state_batch: the batch after which that is so; None: the last one.
        links: what it reads and writes beside the topics of its streams.
    """

    name: str
    status: str
    detail: str = ""
    changed_us: int | None = None
    streams: tuple[StreamView, ...] = ()
    triggers: tuple[BatchTiming, ...] = ()
    notes: tuple[str, ...] = ()
    state: tuple[OperatorState, ...] = ()
    links: QueryEnds = QueryEnds()
    state_batch: int | None = None


def rank_partitions(facts: Iterable[PartitionFacts]) -> list[PartitionFacts]:
    """Sort partitions: those that hold back first, then those furthest behind, idle ones last."""
    return sorted(
        facts,
        key=lambda fact: (not fact.is_cause, fact.idle, -(fact.behind_us or 0), fact.partition),
    )


def list_remarks(fact: PartitionFacts) -> list[str]:
    """Return what is to be said of a partition beside its numbers, and its slow writers."""
    slow = [f"writer {each.name or 'without a name'}" for each in fact.writers if each.is_cause]
    return [*name_remarks(fact), *slow[:_MAX_SLOW]]


class _StreamLog:
    """One stream: its last batches, its curve, and where its counters have counted."""

    def __init__(self, curve: list[Point]) -> None:
        self.history: History = ()
        self.curve = curve
        self.cases: deque[Case] = deque(maxlen=MAX_CASES)
        self._made: tuple[History, StreamExplanation, dict[str, int]] | None = None

    def add(self, record: BatchRecord) -> None:
        number = record.offset.number
        while self.history and self.history[-1].offset.number >= number:
            # It is reported again, or a forced repartition of the state skipped what came after.
            self.history = self.history[:-1]
            del self.curve[-1:]
        kept = self.history
        if kept and kept[-1].offset.number == number - 1:
            self.cases.extend(_find_cases(kept[-1], record))
        most = max(2, min(MAX_BATCHES, MAX_RECORDS // max(len(record.offset.partitions), 1)))
        self.history = (*kept, record)[-most:]
        self.curve.append(Point(record.planned_us, record.offset.cti_us))
        if len(self.curve) > 2 * MAX_POINTS:
            self.curve = thin_curve(self.curve, MAX_POINTS)

    def view(self, ends: Mapping[Partition, int]) -> StreamView:
        if self._made is None or self._made[0] is not self.history:
            told = explain_stream(self.history)
            self._made = self.history, told, _count_lately(self.history)
        _, explanation, counts = self._made
        last = self.history[-1]
        waiting = {
            part: max(ends[part] - each.end_exclusive, 0)
            for part, each in last.offset.partitions.items()
            if part in ends
        }
        return StreamView(
            explanation,
            tuple(self.curve),
            counts,
            tuple(reversed(self.cases)),
            tuple(sorted(last.offset.missing)),
            waiting,
            last.offset.final or (last.offset.cti_us or 0) >= FINAL_US,
        )


def thin_curve(points: Sequence[Point], most: int) -> list[Point]:
    """Return about `most` of the points, spread evenly in time; the first and last stay."""
    if len(points) <= most:
        return list(points)
    first, length = points[0].planned_us, max(points[-1].planned_us - points[0].planned_us, 1)
    cells = {(each.planned_us - first) * (most - 2) // length: each for each in points}
    thinned = [points[0], *cells.values()]
    return thinned if cells and points[0] not in cells.values() else thinned[1:]


def _find_cases(before: BatchRecord, after: BatchRecord) -> list[Case]:
    """Return where the counters of a batch, which `after` has the result of, have counted."""
    cases = []
    for part, offset in before.offset.partitions.items():
        now = after.offset.partitions.get(part)
        if now is None or not offset.size:
            continue
        if _READ_CASES(offset.state) == _READ_CASES(now.state):
            continue
        old, new = offset.state.counters(), now.state.counters()
        cases += [
            Case(name, new[name] - old[name], part, offset.start_inclusive, offset.end_exclusive,
                 before.offset.number, offset.state, before.settings)
            for name in SHOWS_CASES
            if new[name] > old[name]
        ]  # fmt: skip
    return cases


def _count_lately(history: History) -> dict[str, int]:
    last = history[-1]
    since_us = last.planned_us - WINDOW_US
    early = [each for each in history if each.planned_us <= since_us]
    before = (early[-1] if early else history[0]).offset.partitions
    totals = [0] * len(COUNTERS)
    for part, offset in last.offset.partitions.items():
        new = _READ_COUNTERS(offset.state)
        old = _READ_COUNTERS(before[part].state) if part in before else _NOTHING
        if new != old:
            totals = [
                sum_ + max(now - then, 0) for sum_, now, then in zip(totals, new, old, strict=True)
            ]
    return dict(zip(COUNTERS, totals, strict=True))


def _list_subscriptions(batch: Batch) -> Iterable[tuple[str, int | None]]:
    """Yield the id of each store that a batch reads, and the last CTI from there."""
    for value in batch.offsets:
        if isinstance(value, dict) and value.keys() >= {"store", "commit", "cti"}:
            cti_us = value["cti"]
            yield str(value["store"]), cti_us if isinstance(cti_us, int) else None


class QueryLog:
    """A query's batches as they come, in the order of their numbers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._streams: dict[str, _StreamLog] = {}
        self._recalled: dict[str, list[Point]] = {}
        self._triggers: dict[int, BatchTiming] = {}
        self.state = StateFound()
        self.links = QueryEnds()
        self.ends: dict[Partition, int] = {}

    def add(self, number: int, batch: Batch, finished_us: int | None) -> None:
        """Take a batch; one that is known already is finished now, or planned anew.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: an offset of another version, or a damaged
                one.
        """
        records = 0
        for record in batch.records:
            records += sum(each.size for each in record.offset.partitions.values())
            stream = record.offset.stream
            if stream not in self._streams:
                self._streams[stream] = _StreamLog(self._recalled.pop(stream, []))
            self._streams[stream].add(record)
            self.ends.update(record.readable_ends)
        subscribed = tuple(_list_subscriptions(batch))
        self.links = dataclasses.replace(self.links, subscriptions=subscribed)
        self._triggers[number] = BatchTiming(number, batch.planned_us, finished_us, records)
        while len(self._triggers) > MAX_BATCHES:
            del self._triggers[min(self._triggers)]

    def recall(self, batch: Batch) -> None:
        """Take the curve of a batch before all that `add` takes, and nothing else of it."""
        for stream, cti_us in batch.ctis:
            self._recalled.setdefault(stream, []).append(Point(batch.planned_us, cti_us))

    def finish(self, number: int, finished_us: int) -> None:
        """Note that a batch is finished."""
        if number in self._triggers:
            self._triggers[number] = self._triggers[number]._replace(finished_us=finished_us)

    def unfinished(self) -> list[int]:
        """Return the numbers of the batches that are not finished."""
        return [each.number for each in self._triggers.values() if each.finished_us is None]

    @property
    def last_finished(self) -> int | None:
        """The last batch that is finished; None before the first."""
        done = [each.number for each in self._triggers.values() if each.finished_us is not None]
        return max(done, default=None)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that its streams read."""
        found = {part for log in self._streams.values() for part in log.history[-1].states}
        return sorted(found)

    def view(
        self, now_us: int, notes: Sequence[str] = (), *, runs: bool | None = None
    ) -> QueryView:
        """Return what is shown at `now_us`; `runs` says if the query runs, where that is known."""
        triggers = tuple(self._triggers[number] for number in sorted(self._triggers))
        streams = tuple(log.view(self.ends) for log in self._streams.values())
        status, detail = self._find_status(triggers, streams, now_us, runs)
        times = [us for each in triggers for us in (each.planned_us, each.finished_us) if us]
        if not streams and not self.links.subscriptions:
            notes = (*notes, "none of its sources is a Kafka stream of format 'timestream'")
        if self.state.note:
            notes = (*notes, self.state.note)
        changed_us = max(times, default=None)
        return QueryView(
            self.name,
            status,
            detail,
            changed_us,
            streams,
            triggers,
            tuple(notes),
            self.state.operators,
            self.links,
            self.state.batch,
        )

    def _find_status(
        self,
        triggers: Sequence[BatchTiming],
        streams: Sequence[StreamView],
        now_us: int,
        runs: bool | None,
    ) -> tuple[str, str]:
        if runs is False:
            return "stopped", ""
        if not triggers:
            return "unknown", "it has planned no batch yet"
        last = triggers[-1]
        if last.finished_us is None:
            if runs or now_us - last.planned_us < _QUIET_US:
                return "works", f"on batch {last.number}"
            return "works", f"on batch {last.number}, or was stopped or killed within it"
        if streams and all(each.is_final for each in streams):
            return "stopped", "its streams have ended"
        if runs or now_us - last.finished_us < _QUIET_US:
            return "runs", ""
        if any(count for each in streams for count in each.waiting.values()):
            return "stopped", "records wait, and it plans no batch"
        return "quiet", "it has nothing to read, or has stopped"


class CheckpointFollower:
    """Reads what is new in a checkpoint each time it is asked; it only reads.

    Args:
        location: a local path or `file:` URI.

    Raises:
        CheckpointUnreadable: the location is not on this machine.
    """

    def __init__(self, location: str) -> None:
        self.root = resolve_directory(location)
        self._log = QueryLog(str(self.root))
        self._seen: dict[int, int] = {}
        self._numbers: list[int] = []
        self._listed_ns, self._next_list_s = 0, 0.0
        self._torn: dict[int, str] = {}
        self._trouble = ""
        self._state = StateFiles(self.root)

    @property
    def log(self) -> QueryLog:
        """What was read so far."""
        return self._log

    def look(self, now_us: int) -> QueryView:
        """Return what is shown now; whatever is wrong with the checkpoint is said there."""
        self.read()
        return self.view(now_us)

    def read(self) -> bool:
        """Read what is new, and return whether there was something.

        What is wrong with the checkpoint is in the views from then on.
        """
        before = self._trouble
        try:
            is_new = self._read()
            self._trouble = ""
        except (TimestreamError, OSError) as error:
            is_new, self._trouble = False, str(error)
        return is_new or self._trouble != before

    def read_state(self) -> bool:
        """Read the rows of state after the last finished batch; return whether they have changed.

        What is not known, and why, is in the views from then on.
        """
        batch = self._log.last_finished
        if batch is None:
            return False
        try:
            settings = read_entry(self.root, batch).settings
        except (OSError, ValueError, AttributeError, RecursionError):
            return False  # It was removed, or is torn: what was known stays.
        is_new = self._state.read(batch, settings)
        self._log.state = self._state.found
        return is_new

    def view(self, now_us: int) -> QueryView:
        """Return what is shown at `now_us` of what was read."""
        if not self._trouble:
            torn = sorted(self._torn.items())
            notes = [f"offsets/{number} cannot be read: {why}" for number, why in torn]
            return self._log.view(now_us, notes)
        known = self._log.view(now_us)
        if not known.streams:
            return QueryView(self._log.name, "unknown", self._trouble)
        return dataclasses.replace(known, status="unknown", detail=self._trouble, notes=())

    def _read(self) -> bool:
        numbers = self._list_numbers()
        if numbers is None:
            raise CheckpointUnreadable(
                f"'{self.root}' is not a checkpoint of a Spark stream: it has no directory "
                "'offsets'",
                "the directory that the query has as option 'checkpointLocation'",
                "start the query, or correct the path; this page looks again every second",
            )
        known, torn = self._log, self._torn
        stamps = _read_stamps(self.root, numbers)
        changed = [n for n, stamp in stamps.items() if self._seen.get(n, stamp) != stamp]
        newest = max(self._seen, default=-1)
        if changed or (numbers and numbers[-1] < newest):
            # It was restored from a copy, or begun anew: what is known is of another history.
            newest = self._forget()
        entries = self._read_new(stamps, newest)
        if any(number < newest for number in entries):
            # An entry between others is whole now: what followed it was read without it.
            entries = self._read_new(stamps, self._forget())
        if not self._seen and entries:
            self._recall([n for n in numbers if n < min(entries)])
        for number, batch in drop_skipped(entries).items():
            self._log.add(number, batch, _modified_us(self.root / "commits" / str(number)))
        if stamps:  # Of a log that is away for a moment, what was seen is known.
            self._seen = {n: at for n, at in stamps.items() if n in self._seen or n in entries}
        links = dataclasses.replace(
            self._log.links,
            store=_read_store(self.root),
            topic=read_written_topic(self.root),
        )
        is_new = bool(entries) or torn != self._torn or known is not self._log
        is_new, self._log.links = is_new or links != self._log.links, links
        for number in self._log.unfinished():
            finished_us = _modified_us(self.root / "commits" / str(number))
            if finished_us is not None:
                self._log.finish(number, finished_us)
                is_new = True
        return is_new

    def _forget(self) -> int:
        self._log, self._seen, self._torn = QueryLog(self._log.name), {}, {}
        self._state, self._next_list_s = StateFiles(self.root), 0.0
        return -1

    def _read_new(self, stamps: Iterable[int], newest: int) -> dict[int, Batch]:
        new = sorted(n for n in stamps if n > newest or n in self._torn)
        entries, self._torn = read_batches(self.root, new)
        return entries

    def _list_numbers(self) -> list[int] | None:
        """Return the batches in the log, rising; None without a log.

        A log of a day has too many names to list them whenever Spark adds one or removes an old
        one. As long as the last one is there, the next ones are looked for, and all once a minute.
        """
        folder = self.root / "offsets"
        try:
            stamp = folder.stat().st_mtime_ns
            known = self._numbers
            if len(known) > _MANY and (folder / str(known[-1])).exists():
                while (folder / str(known[-1] + 1)).exists():
                    known.append(known[-1] + 1)
                if stamp == self._listed_ns or time.monotonic() < self._next_list_s:
                    return known
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            self._numbers = []
            return None
        self._listed_ns, self._next_list_s = stamp, time.monotonic() + _LIST_AGAIN_S
        self._numbers = sorted(int(name) for name in names if name.isdecimal())
        return self._numbers

    def _recall(self, older: Sequence[int]) -> None:
        """Take the curve of the batches before those that are read in full, at some of them."""
        step = max(len(older) // MAX_RECALLED, 1)
        entries, _ = read_batches(self.root, older[::step])
        for batch in drop_skipped(entries).values():
            self._log.recall(batch)


def _read_store(root: Path) -> tuple[str, str] | None:
    """Return the id and location of the store that the query writes, as its sink notes them."""
    try:
        noted = json.loads((root / "sinks" / "tseries.json").read_text(encoding="utf-8"))
        return str(noted["id"]), str(noted["location"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_stamps(root: Path, numbers: Sequence[int]) -> dict[int, int]:
    """Return when the newest entries were written, in ns: of fewer if they are large."""
    folder, stamps, left = root / "offsets", dict[int, int](), MAX_BYTES
    for number in reversed(numbers[-MAX_BATCHES:]):
        try:
            found = os.stat(f"{folder}/{number}")
        except OSError:
            continue  # Spark has just removed it: it is old.
        left -= found.st_size
        if left < 0 and len(stamps) >= _LEAST_BATCHES:
            break
        stamps[number] = found.st_mtime_ns
    return stamps


def _modified_us(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns // 1_000
    except OSError:
        return None
