"""Follows the time of a query: folds its batches, and keeps the facts to show.

`QueryLog` takes batches one by one, from a checkpoint (`CheckpointFollower`) or from a query's
progress, and keeps what a page shows: the last batches in full, for the diagnoses, and a curve of
the older ones. Its size is bounded, however long the query runs. Nothing here draws anything.

A `Chain` shows how queries, topics and stores follow each other, and how far each hop is behind. A
checkpoint names the topics and stores that its query reads, and the store or topic that it writes.
A hop's distance is the time between the clocks at its two ends: a query is behind the newest event
of a topic, a store behind the query that writes it, a query behind the store that it reads. A store
of windows is behind by the length of a window as well.
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
    SHOWN_COUNTERS,
    OperatorState,
    PartitionFacts,
    StreamExplanation,
    explain_stream,
    name_remarks,
)
from pyspark_timestream.commands.watch.state_files import QueryState, StateFiles
from pyspark_timestream.core.checkpoint import (
    read_batch_entry,
    read_written_topic,
    resolve_directory,
)
from pyspark_timestream.core.instants import FINAL_US, MINUTE_US, SECOND_US
from pyspark_timestream.errors import TimestreamError
from pyspark_timestream.kafka.diagnosis.history import (
    BatchRecord,
    BatchReport,
    History,
    drop_skipped,
    missing_log,
    read_batches,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.report import shorten_duration
from pyspark_timestream.rules.clocks import PartitionClock, max_known, min_cti

MAX_FULL_BATCHES: Final = 100
"""Keep this many batches in full; Spark's checkpoint has as many by default."""

MAX_RECORDS: Final = 20_000
"""Keep fewer batches if they have many partitions: about this many partitions in all."""

MAX_POINTS: Final = 1_000
"""Keep at most twice this many points of a curve, however long it is."""

MAX_OFFSET_BYTES: Final = 4_000_000
"""Read fewer batches in full if their entries are large: a thousand partitions take 100 kB each."""

MAX_RECALLED: Final = 200
"""Read this many older batches, evenly spread, only for the curve."""

_LEAST_BATCHES: Final = 20
"""Read this many batches, however large their entries are."""

_MAX_LISTED_OFTEN: Final = 1_000
"""List a log of more entries than this only once in `_LIST_AGAIN_S`."""

_LIST_AGAIN_S: Final = 60.0

MAX_CASES: Final = 20
_MAX_SLOW: Final = 3

COUNTED_US: Final = MINUTE_US
"""Count over about the last minute of batches."""

_QUIET_US: Final = 10 * SECOND_US
"""A query that has finished its last batch is quiet after this long."""

CASE_COUNTERS: Final = SHOWN_COUNTERS[1:]
"""Counters with cases on the page: all but that of events."""

_get_counters: Final = attrgetter(*SHOWN_COUNTERS)
_get_case_counters: Final = attrgetter(*CASE_COUNTERS)
_NOTHING: Final = (0,) * len(SHOWN_COUNTERS)


class CtiPoint(NamedTuple):
    """A point of a curve: the CTI of a stream at the start of a batch; None before the first."""

    planned_us: int
    cti_us: int | None


class Case(NamedTuple):
    """Records that a counter of a partition has counted: offsets of a batch, end exclusive.

    `clock` is the partition's clock before them, and `settings` are the settings that define time.
    """

    counter: str
    counted: int
    partition: Partition
    start: int
    end: int
    batch: int
    clock: PartitionClock
    settings: Mapping[str, str]

    @property
    def key(self) -> str:
        """The name in an address, made of letters, digits, dots, hyphens and underscores only."""
        return f"{self.batch}-{self.counter}-{self.partition.number}-{self.partition.topic}"


class BatchTiming(NamedTuple):
    """A batch of a query: when it was planned and finished, and how many offsets it reads.

    `finished_us` is None until it is finished; `records` counts offsets, markers among them.
    """

    number: int
    planned_us: int
    finished_us: int | None
    records: int


@dataclass(frozen=True, slots=True)
class StreamView:
    """The view of one stream.

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
    curve: tuple[CtiPoint, ...]
    counts: Mapping[str, int]
    cases: tuple[Case, ...]
    missing: tuple[Partition, ...]
    waiting: Mapping[Partition, int]
    is_final: bool


@dataclass(frozen=True, slots=True)
class QueryLinks:
    """A query's inputs and outputs besides the topics that it reads, if its checkpoint shows them.

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
    """The view of a query.

    Attributes:
        name: what the user calls it: the checkpoint, or the query's name.
        status: one of `runs`, `works`, `quiet`, `stopped`, `unknown`.
        detail: why it has this status, in a few words; empty if that is plain.
        changed_us: the wall clock of the last sign of life; None without any.
        streams: its streams of Kafka topics.
        triggers: its last batches, from old to new.
        notes: remarks, a sentence each.
        state: the rows that operators keep, where they are known.
        state_batch: the state was counted after this batch; None: the last one.
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
    links: QueryLinks = QueryLinks()
    state_batch: int | None = None


def rank_partitions(facts: Iterable[PartitionFacts]) -> list[PartitionFacts]:
    """Sort partitions: those that hold back first, then those furthest behind, idle ones last."""
    return sorted(
        facts,
        key=lambda fact: (not fact.is_cause, fact.idle, -(fact.behind_us or 0), fact.partition),
    )


def list_remarks(fact: PartitionFacts) -> list[str]:
    """Return the remarks on a partition that its numbers do not show, and its slow writers."""
    slow = [
        f"writer {writer.name or 'without a name'}" for writer in fact.writers if writer.is_cause
    ]
    return [*name_remarks(fact), *slow[:_MAX_SLOW]]


class _StreamLog:
    """One stream: its last batches, its curve, and where its counters have counted."""

    def __init__(self, curve: list[CtiPoint]) -> None:
        self.history: History = ()
        self.curve = curve
        self.cases: deque[Case] = deque(maxlen=MAX_CASES)
        self._explained: tuple[History, StreamExplanation, dict[str, int]] | None = None

    def add(self, record: BatchRecord) -> None:
        number = record.offset.number
        while self.history and self.history[-1].offset.number >= number:
            # The batch is reported again, or a forced repartition of the state skipped later ones.
            self.history = self.history[:-1]
            del self.curve[-1:]
        history = self.history
        if history and history[-1].offset.number == number - 1:
            self.cases.extend(_find_cases(history[-1], record))
        max_batches = max(
            2, min(MAX_FULL_BATCHES, MAX_RECORDS // max(len(record.offset.partitions), 1))
        )
        self.history = (*history, record)[-max_batches:]
        self.curve.append(CtiPoint(record.planned_us, record.offset.cti_us))
        if len(self.curve) > 2 * MAX_POINTS:
            self.curve = thin_curve(self.curve, MAX_POINTS)

    def view(self, ends: Mapping[Partition, int]) -> StreamView:
        if self._explained is None or self._explained[0] is not self.history:
            explanation = explain_stream(self.history)
            self._explained = self.history, explanation, _count_lately(self.history)
        _, explanation, counts = self._explained
        last_batch = self.history[-1]
        waiting = {
            partition: max(ends[partition] - offset.end_exclusive, 0)
            for partition, offset in last_batch.offset.partitions.items()
            if partition in ends
        }
        return StreamView(
            explanation=explanation,
            curve=tuple(self.curve),
            counts=counts,
            cases=tuple(reversed(self.cases)),
            missing=tuple(sorted(last_batch.offset.missing)),
            waiting=waiting,
            is_final=last_batch.offset.final or (last_batch.offset.cti_us or 0) >= FINAL_US,
        )


def thin_curve(points: Sequence[CtiPoint], limit: int) -> list[CtiPoint]:
    """Return about `limit` of the points, spread evenly in time; the first and last stay."""
    if len(points) <= limit:
        return list(points)
    first_us = points[0].planned_us
    length_us = max(points[-1].planned_us - first_us, 1)
    cells = {(point.planned_us - first_us) * (limit - 2) // length_us: point for point in points}
    thinned = [points[0], *cells.values()]
    return thinned if cells and points[0] not in cells.values() else thinned[1:]


def _find_cases(before: BatchRecord, after: BatchRecord) -> list[Case]:
    """Return where the counters of batch `before` have counted; `after` has their results."""
    cases = []
    for partition, offset in before.offset.partitions.items():
        now = after.offset.partitions.get(partition)
        if now is None or not offset.size:
            continue
        if _get_case_counters(offset.clock) == _get_case_counters(now.clock):
            continue
        old, new = offset.clock.counters(), now.clock.counters()
        cases += [
            Case(
                counter=name,
                counted=new[name] - old[name],
                partition=partition,
                start=offset.start_inclusive,
                end=offset.end_exclusive,
                batch=before.offset.number,
                clock=offset.clock,
                settings=before.settings,
            )
            for name in CASE_COUNTERS
            if new[name] > old[name]
        ]
    return cases


def _count_lately(history: History) -> dict[str, int]:
    last_batch = history[-1]
    since_us = last_batch.planned_us - COUNTED_US
    early = [batch for batch in history if batch.planned_us <= since_us]
    before = (early[-1] if early else history[0]).offset.partitions
    totals = [0] * len(SHOWN_COUNTERS)
    for partition, offset in last_batch.offset.partitions.items():
        new = _get_counters(offset.clock)
        old = _get_counters(before[partition].clock) if partition in before else _NOTHING
        if new != old:
            totals = [
                total + max(after - earlier, 0)
                for total, after, earlier in zip(totals, new, old, strict=True)
            ]
    return dict(zip(SHOWN_COUNTERS, totals, strict=True))


def _list_subscriptions(batch: BatchReport) -> Iterable[tuple[str, int | None]]:
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
        self._recalled: dict[str, list[CtiPoint]] = {}
        self._triggers: dict[int, BatchTiming] = {}
        self.state = QueryState()
        self.links = QueryLinks()
        self.ends: dict[Partition, int] = {}

    def add(self, number: int, batch: BatchReport, finished_us: int | None) -> None:
        """Take a batch; if it came before, it is finished now or was planned again.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: an offset of another version, or a damaged
                one.
        """
        records = 0
        for record in batch.records:
            records += sum(offset.size for offset in record.offset.partitions.values())
            stream = record.offset.stream
            if stream not in self._streams:
                self._streams[stream] = _StreamLog(self._recalled.pop(stream, []))
            self._streams[stream].add(record)
            self.ends.update(record.readable_ends)
        subscribed = tuple(_list_subscriptions(batch))
        self.links = dataclasses.replace(self.links, subscriptions=subscribed)
        self._triggers[number] = BatchTiming(number, batch.planned_us, finished_us, records)
        while len(self._triggers) > MAX_FULL_BATCHES:
            del self._triggers[min(self._triggers)]

    def recall(self, batch: BatchReport) -> None:
        """Take only the curve's point of a batch that is older than all that `add` takes."""
        for stream, cti_us in batch.ctis:
            self._recalled.setdefault(stream, []).append(CtiPoint(batch.planned_us, cti_us))

    def finish(self, number: int, finished_us: int) -> None:
        """Note that a batch is finished."""
        if number in self._triggers:
            self._triggers[number] = self._triggers[number]._replace(finished_us=finished_us)

    def unfinished(self) -> list[int]:
        """Return the numbers of the batches that are not finished."""
        return [timing.number for timing in self._triggers.values() if timing.finished_us is None]

    @property
    def last_finished(self) -> int | None:
        """The last batch that is finished; None before the first."""
        done = [
            timing.number for timing in self._triggers.values() if timing.finished_us is not None
        ]
        return max(done, default=None)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that its streams read."""
        partitions = {
            partition for log in self._streams.values() for partition in log.history[-1].clocks
        }
        return sorted(partitions)

    def view(
        self, now_us: int, notes: Sequence[str] = (), *, runs: bool | None = None
    ) -> QueryView:
        """Return what is shown at `now_us`; `runs` says if the query runs, where that is known."""
        triggers = tuple(self._triggers[number] for number in sorted(self._triggers))
        streams = tuple(log.view(self.ends) for log in self._streams.values())
        status, detail = self._find_status(triggers, streams, now_us, runs)
        times = [us for timing in triggers for us in (timing.planned_us, timing.finished_us) if us]
        if not streams and not self.links.subscriptions:
            notes = (*notes, "none of its sources is a Kafka stream of format 'timestream'")
        if self.state.note:
            notes = (*notes, self.state.note)
        changed_us = max(times, default=None)
        return QueryView(
            name=self.name,
            status=status,
            detail=detail,
            changed_us=changed_us,
            streams=streams,
            triggers=triggers,
            notes=tuple(notes),
            state=self.state.operators,
            links=self.links,
            state_batch=self.state.batch,
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
        last_batch = triggers[-1]
        if last_batch.finished_us is None:
            if runs or now_us - last_batch.planned_us < _QUIET_US:
                return "works", f"on batch {last_batch.number}"
            return "works", f"on batch {last_batch.number}, or was stopped or killed within it"
        if streams and all(stream.is_final for stream in streams):
            return "stopped", "its streams have ended"
        if runs or now_us - last_batch.finished_us < _QUIET_US:
            return "runs", ""
        if any(count for stream in streams for count in stream.waiting.values()):
            return "stopped", "records wait, and it plans no batch"
        return "quiet", "it has nothing to read, or has stopped"


class CheckpointFollower:
    """Reads a checkpoint's news at each call of `read`; it writes nothing.

    Args:
        location: a local path or `file:` URI.

    Attributes:
        log: the batches that were read so far.

    Raises:
        CheckpointUnreadable: the location is not on this machine.
    """

    def __init__(self, location: str) -> None:
        self.root = resolve_directory(location)
        self.log = QueryLog(str(self.root))
        self._stamps: dict[int, int] = {}
        self._numbers: list[int] = []
        self._listed_ns = 0
        self._next_list_s = 0.0
        self._torn: dict[int, str] = {}
        self._trouble = ""
        self._state = StateFiles(self.root)

    def read(self) -> bool:
        """Read the news, and return whether there were any.

        From then on the views say what is wrong with the checkpoint.
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

        From then on the views say what is not known, and why.
        """
        batch = self.log.last_finished
        if batch is None:
            return False
        try:
            settings = read_batch_entry(self.root, batch).settings
        except (OSError, ValueError, AttributeError, RecursionError):
            return False  # The entry was removed, or is torn: keep the state as it was.
        is_new = self._state.read(batch, settings)
        self.log.state = self._state.state
        return is_new

    def view(self, now_us: int) -> QueryView:
        """Return the view at `now_us` of the entries that were read."""
        if not self._trouble:
            torn = sorted(self._torn.items())
            notes = [f"offsets/{number} cannot be read: {why}" for number, why in torn]
            return self.log.view(now_us, notes)
        view = self.log.view(now_us)
        if not view.streams:
            return QueryView(self.log.name, "unknown", self._trouble)
        return dataclasses.replace(view, status="unknown", detail=self._trouble, notes=())

    def _read(self) -> bool:
        numbers = self._list_numbers()
        if numbers is None:
            raise missing_log(
                self.root,
                "the directory that the query has as option 'checkpointLocation'",
                "start the query, or correct the path; this page looks again every second",
            )
        log_before, torn_before = self.log, self._torn
        stamps = _read_stamps(self.root, numbers)
        entries = self._read_entries(numbers, stamps)
        for number, batch in drop_skipped(entries).items():
            self.log.add(number, batch, _modified_us(self.root / "commits" / str(number)))
        if stamps:  # If the log is away for a moment, keep the known batches.
            known = self._stamps.keys() | entries.keys()
            self._stamps = {number: ns for number, ns in stamps.items() if number in known}
        is_read = bool(entries) or torn_before != self._torn or log_before is not self.log
        return any([is_read, self._read_links(), self._note_finished()])

    def _read_entries(
        self, numbers: Sequence[int], stamps: Mapping[int, int]
    ) -> dict[int, BatchReport]:
        """Read the entries that are new; begin again if those that were read no longer hold."""
        newest = max(self._stamps, default=-1)
        changed = any(self._stamps.get(number, stamp) != stamp for number, stamp in stamps.items())
        if changed or (numbers and numbers[-1] < newest):
            # The checkpoint was restored from a copy, or replaced: what we know is another history.
            newest = self._forget()
        entries = self._read_new(stamps, newest)
        if any(number < newest for number in entries):
            # An entry that was torn is whole now, but later ones were read without it: begin again.
            entries = self._read_new(stamps, self._forget())
        if not self._stamps and entries:
            self._recall([number for number in numbers if number < min(entries)])
        return entries

    def _read_links(self) -> bool:
        """Read the names of the query's outputs; return whether they have changed."""
        before = self.log.links
        self.log.links = dataclasses.replace(
            before, store=_read_store(self.root), topic=read_written_topic(self.root)
        )
        return self.log.links != before

    def _note_finished(self) -> bool:
        """Note the batches that have finished since the last time; return whether any has."""
        has_new = False
        for number in self.log.unfinished():
            finished_us = _modified_us(self.root / "commits" / str(number))
            if finished_us is not None:
                self.log.finish(number, finished_us)
                has_new = True
        return has_new

    def _forget(self) -> int:
        self.log = QueryLog(self.log.name)
        self._stamps = {}
        self._torn = {}
        self._state = StateFiles(self.root)
        self._next_list_s = 0.0
        return -1

    def _read_new(self, stamps: Iterable[int], newest: int) -> dict[int, BatchReport]:
        new = sorted(number for number in stamps if number > newest or number in self._torn)
        entries, self._torn = read_batches(self.root, new)
        return entries

    def _list_numbers(self) -> list[int] | None:
        """Return the batches in the log, rising; None without a log.

        After a day a log has too many names to list them each time that Spark adds or removes one.
        While the last one is there, look only for the next ones, and list all once a minute.
        """
        folder = self.root / "offsets"
        try:
            stamp = folder.stat().st_mtime_ns
            numbers = self._numbers
            if len(numbers) > _MAX_LISTED_OFTEN and (folder / str(numbers[-1])).exists():
                while (folder / str(numbers[-1] + 1)).exists():
                    numbers.append(numbers[-1] + 1)
                if stamp == self._listed_ns or time.monotonic() < self._next_list_s:
                    return numbers
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            self._numbers = []
            return None
        self._listed_ns = stamp
        self._next_list_s = time.monotonic() + _LIST_AGAIN_S
        self._numbers = sorted(int(name) for name in names if name.isdecimal())
        return self._numbers

    def _recall(self, older: Sequence[int]) -> None:
        """Take points of the curve from some of the batches before those that are read in full."""
        step = max(len(older) // MAX_RECALLED, 1)
        entries, _ = read_batches(self.root, older[::step])
        for batch in drop_skipped(entries).values():
            self.log.recall(batch)


def _read_store(root: Path) -> tuple[str, str] | None:
    """Return the id and location of the store that the query writes, as its sink notes them."""
    try:
        fields = json.loads((root / "sinks" / "tseries.json").read_text(encoding="utf-8"))
        return str(fields["id"]), str(fields["location"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_stamps(root: Path, numbers: Sequence[int]) -> dict[int, int]:
    """Return when the newest entries were written, in ns; of fewer entries if they are large."""
    folder, stamps, bytes_left = root / "offsets", dict[int, int](), MAX_OFFSET_BYTES
    for number in reversed(numbers[-MAX_FULL_BATCHES:]):
        try:
            status = os.stat(f"{folder}/{number}")
        except OSError:
            continue  # Spark has just removed it: it is old.
        bytes_left -= status.st_size
        if bytes_left < 0 and len(stamps) >= _LEAST_BATCHES:
            break
        stamps[number] = status.st_mtime_ns
    return stamps


def _modified_us(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns // 1_000
    except OSError:
        return None


# -- the chain of queries --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainStore:
    """A store as it is now.

    Attributes:
        id: its id, which subscriptions name.
        location: where it is.
        cti_us: its CTI; None: it has none, or the store could not be read.
        trouble: why it could not be read; empty if it could.
    """

    id: str
    location: str
    cti_us: int | None
    trouble: str = ""


class ChainNode(NamedTuple):
    """A topic, query or store, with its clock; `level` counts the hops to it."""

    kind: str
    name: str
    cti_us: int | None
    trouble: str = ""
    level: int = 0


class Hop(NamedTuple):
    """A hop from one node to the next; `behind_us` is None if a clock is not known."""

    source: ChainNode
    target: ChainNode
    behind_us: int | None

    def describe(self) -> str:
        """Say in words how far the hop is behind."""
        behind = "unknown"
        if self.behind_us is not None:
            behind = f"{shorten_duration(self.behind_us)} behind" if self.behind_us else "level"
        source, target = self.source, self.target
        return f"{source.kind} {source.name} to {target.kind} {target.name}: {behind}"


@dataclass(frozen=True, slots=True)
class Chain:
    """The nodes, level by level, and the hops between them in the same order."""

    nodes: tuple[ChainNode, ...]
    hops: tuple[Hop, ...]


_Key = tuple[str, str]
"""The kind of a node, and its name or id; a query's name is its place in the list of views."""

_Nodes = dict[_Key, ChainNode]
_Hops = dict[tuple[_Key, _Key], int | None]
"""(node, next node) -> how far the next node has followed the node: a clock, None if unknown."""


def build_chain(views: Sequence[QueryView], stores: Sequence[ChainStore]) -> Chain | None:
    """Return the chain of these queries; None if it has only the topics that they read."""
    if not stores and all(view.links == QueryLinks() for view in views):
        return None
    nodes: _Nodes = {
        ("store", store.id): ChainNode("store", store.location, store.cti_us, store.trouble)
        for store in stores
    }
    hops: _Hops = {}
    ids = {store.location: store.id for store in stores} | {
        view.links.store[1]: view.links.store[0] for view in views if view.links.store
    }
    for number, view in enumerate(views):
        query = "query", str(number)
        nodes[query] = ChainNode("query", view.name, _find_query_cti(view))
        _add_inputs(view, query, nodes, hops)
        _add_outputs(view, query, ids, nodes, hops)
    return _arrange(nodes, hops)


def _find_query_cti(view: QueryView) -> int | None:
    """Return the least clock of a query's inputs; None if one of these has none."""
    clocks = [stream.explanation.cti_us for stream in view.streams]
    clocks += [cti_us for _, cti_us in view.links.subscriptions]
    return min_cti(clocks)


def _add_inputs(view: QueryView, query: _Key, nodes: _Nodes, hops: _Hops) -> None:
    """Add the topics and stores that a query reads."""
    for stream in view.streams:
        for topic, newest_us in _find_newest(stream.explanation.partitions).items():
            key = "topic", topic
            known_us = nodes[key].cti_us if key in nodes else None
            nodes[key] = ChainNode("topic", topic, max_known(known_us, newest_us))
            hops[key, query] = stream.explanation.cti_us
    for store_id, subscribed_us in view.links.subscriptions:
        key = "store", store_id
        nodes.setdefault(key, ChainNode("store", f"id {store_id}", None))
        hops[key, query] = subscribed_us


def _add_outputs(
    view: QueryView, query: _Key, ids: Mapping[str, str], nodes: _Nodes, hops: _Hops
) -> None:
    """Add the store and the topic that a query writes; `ids` has the id of each location."""
    if view.links.store:
        store_id, location = view.links.store
        key = "store", ids.get(location, store_id)
        if key not in nodes or nodes[key].name.startswith("id "):
            nodes[key] = ChainNode("store", location, None)
        hops[query, key] = nodes[key].cti_us
    if view.links.topic:
        key = "topic", view.links.topic
        nodes.setdefault(key, ChainNode("topic", view.links.topic, None))
        hops[query, key] = None


def _find_newest(facts: Iterable[PartitionFacts]) -> dict[str, int | None]:
    newest: dict[str, int | None] = {}
    for fact in facts:
        topic = fact.partition.topic
        newest[topic] = max_known(newest.get(topic), fact.last_us)
    return newest


def _arrange(nodes: _Nodes, hops: _Hops) -> Chain:
    """Put each node on a level above its sources, and measure how far each hop is behind."""
    levels = dict.fromkeys(nodes, 0)
    for _ in nodes:  # A circle ends as well: no level is higher than the number of nodes.
        for source, target in hops:
            levels[target] = min(max(levels[target], levels[source] + 1), len(nodes))
    placed = {
        key: nodes[key]._replace(level=levels[key]) for key in sorted(nodes, key=levels.__getitem__)
    }
    order = {key: place for place, key in enumerate(placed)}
    arranged = [
        Hop(
            placed[source], placed[target], _measure_hop(nodes[source].cti_us, hops[source, target])
        )
        for source, target in sorted(hops, key=lambda ends: (order[ends[0]], order[ends[1]]))
    ]
    return Chain(tuple(placed.values()), tuple(arranged))


def _measure_hop(ahead_us: int | None, reached_us: int | None) -> int | None:
    """Return how far a clock is behind its source's; None if that is not known."""
    if ahead_us is None or reached_us is None:
        return None
    if reached_us >= FINAL_US or ahead_us <= reached_us:
        return 0
    # After a source's end it has no time to be behind.
    return None if ahead_us >= FINAL_US else ahead_us - reached_us
