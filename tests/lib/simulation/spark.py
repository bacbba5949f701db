"""Spark's micro-batch engine, as a source and a sink see it.

It makes the calls and log entries in the order of `MicroBatchExecution` in Spark 4.3: plan, report,
write the offset log, commit the batch before, ask for the partitions, run the tasks, commit the
sink, write the commit log. The log outlives the driver; nothing else does. A driver is a generator
that stops where another driver may go on.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from simulation.chance import Chance, Killed, Process
from timestream.builders import late_word

from pyspark_timestream.errors import TimestreamError
from pyspark_timestream.kafka.reader import KafkaTransport

_WRAPPER = datasource_internal._SimpleStreamReaderWrapper
_MAX_FAILURES = 4
"""Attempts of a task, Spark's `spark.task.maxFailures`."""

COLUMNS = {
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "violation": "string",
    "cti": "timestamp",
}


def build_schema(*, with_violations: bool) -> StructType:
    """The columns that a query reads."""
    schema = StructType()
    for name, kind in COLUMNS.items():
        if name != "violation" or with_violations:
            schema.add(name, kind)
    return schema


class ConcurrentUpdate(Exception):
    """Another driver has written this entry of the checkpoint: Spark ends the query."""


class TasksKilled(Exception):
    """A task was killed as often as Spark tries one: Spark ends the query."""


class Owner(NamedTuple):
    """Where a run begins.

    Attributes:
        begun: the offset before the last entry of the log, as text; None if there is none.
        end: the last entry; None if its batch is done, so that `begun` is the last entry itself.
        batch: the number of the next batch.
        first: the first batch that it joins; itself if it joins none.
    """

    begun: str | None
    end: str | None
    batch: int
    first: int


class Checkpoint:
    """The offset log and the commit log; entries are texts, and none is ever overwritten."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.offsets: dict[int, str] = {}
        self.commits: dict[int, str] = {}

    def find_place(self) -> Owner:
        """Find where a run of the query begins."""
        last = max(self.offsets, default=-1)
        if last in self.commits:
            return Owner(self.offsets[last], None, last + 1, last + 1)
        return Owner(self.offsets.get(last - 1), self.offsets.get(last), max(last, 0), max(last, 0))

    def write_offset(self, batch: int, text: str) -> str | None:
        """Write an entry of the offset log; return the offset that sources may commit."""
        self._write(self.offsets, batch, text)
        return self.offsets[batch - 1] if batch > 0 else None

    def write_commit(self, batch: int) -> None:
        """Write an entry of the commit log."""
        self._write(self.commits, batch, "{}")

    def _write(self, entries: dict[int, str], batch: int, text: str) -> None:
        self._chance.point("log entry")
        if batch in entries:
            raise ConcurrentUpdate(f"batch {batch}")
        entries[batch] = text
        self._chance.point("log entry written")


class AsyncCheckpoint(Checkpoint):
    """A checkpoint with asynchronous progress tracking: the log has only some of the batches.

    As in `AsyncProgressTrackingMicroBatchExecution`, a run begins at the last entry but one, and
    runs all batches from there to the last one as a single batch, unless that is committed. Batches
    after the last entry are forgotten; `on_forget` is told. `offsets` has all batches all the same,
    for the oracle.
    """

    def __init__(self, chance: Chance, on_forget: Callable[[int], object]) -> None:
        super().__init__(chance)
        self.logged: list[int] = []
        self._on_forget = on_forget

    def find_place(self) -> Owner:
        """See `Checkpoint`."""
        last = self.logged[-1] if self.logged else -1
        for batch in [each for each in self.offsets if each > last]:
            del self.offsets[batch]
            self._chance.hits["batch forgotten"] += 1
        self._on_forget(last)
        if last in self.commits:
            return Owner(self.offsets[last], None, last + 1, last + 1)
        before = self.logged[-2] if len(self.logged) > 1 else -1
        self._chance.hits["batches joined"] += last > before + 1
        return Owner(
            self.offsets.get(before), self.offsets.get(last), max(last, 0), max(before + 1, 0)
        )

    def write_offset(self, batch: int, text: str) -> str | None:
        """See `Checkpoint`."""
        is_logged = not self.logged or self._chance.happens(0.4) or self._chance.is_quiet
        if not is_logged:
            assert batch not in self.offsets
            self.offsets[batch] = text
            return None
        self._write(self.offsets, batch, text)
        self.logged.append(batch)
        return self.offsets[self.logged[-2]] if len(self.logged) > 1 else None

    def write_commit(self, batch: int) -> None:
        """See `Checkpoint`; the entry may get lost."""
        if batch in self.logged and (self._chance.is_quiet or self._chance.happens(0.6)):
            super().write_commit(batch)


class MemorySink:
    """A sink that is idempotent by batch: it keeps the rows of each, and compares a repetition.

    A row is (partition, offset, violation) or, if it is a CTI, its microseconds.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.batches: dict[int, list[list[Any]]] = {}
        self.joined: set[int] = set()
        """Batches that were only delivered joined with those before: their CTI rows are missing."""

    def stage(self, number: int, batches: Iterator[pa.RecordBatch]) -> list[Any]:
        """Take the rows of a task."""
        return [row for batch in batches for row in to_rows(batch)]

    def commit(self, batch: int, tasks: list[list[Any]]) -> None:
        """Keep a batch."""
        self._chance.point("sink commit")
        kept = self.batches.setdefault(batch, tasks)
        assert kept == tasks, f"batch {batch} was {kept}, and is {tasks} when it runs again"
        self._chance.point("sink committed")

    def commit_joined(self, first: int, batch: int, tasks: list[list[Any]]) -> None:
        """Compare the rows of data of joined batches with those of each (semantics 8.6)."""
        self._chance.point("sink commit")
        parts = [self.batches[each] for each in range(first, batch + 1) if each in self.batches]
        found, kept = of_partitions(tasks), of_partitions(task for part in parts for task in part)
        rest = {}
        for partition in found.keys() | kept.keys():
            rows, before = found.get(partition, []), kept.get(partition, [])
            assert rows[: len(before)] == before, f"{first} to {batch} were {before}, now {rows}"
            rest[partition] = rows[len(before) :]
        if batch in self.batches:
            assert not any(rest.values()), f"{first} to {batch} have more rows: {rest}"
        else:
            self.batches[batch] = [[row for rows in rest.values() for row in rows]]
            self.joined.add(batch)
        self._chance.point("sink committed")

    def forget_after(self, last: int) -> None:
        """Forget the batches after this one: the query makes others of their numbers."""
        for batch in [each for each in self.batches if each > last]:
            del self.batches[batch]
            self.joined.discard(batch)

    def abort(self, batch: int, tasks: list[list[Any]]) -> None:
        """Nothing of a batch is kept before its commit."""


def of_partitions(tasks: Iterable[list[Any]]) -> dict[int, list[Any]]:
    """The rows of data of each partition."""
    rows: dict[int, list[Any]] = {}
    for row in (row for task in tasks for row in task if not isinstance(row, int)):
        rows.setdefault(row[0], []).append(row)
    return rows


def to_rows(batch: pa.RecordBatch) -> list[Any]:
    """The rows as `MemorySink` keeps them."""
    marks = batch["cti"].cast(pa.int64()).to_pylist()
    nothing = [None] * batch.num_rows
    has_violations = "violation" in batch.schema.names
    violations = batch["violation"].to_pylist() if has_violations else nothing
    rows = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), violations, strict=True)
    return [row if mark is None else mark for row, mark in zip(rows, marks, strict=True)]


class Driver(Process):
    """One run of the query.

    Args:
        chance: the seed's decisions.
        options: the options of the source.
        checkpoint: outlives the run.
        open_sink: makes a new sink, as Spark does in each batch.
        is_bounded: whether the trigger is AvailableNow.
    """

    def __init__(
        self,
        chance: Chance,
        options: dict[str, str],
        checkpoint: Checkpoint,
        open_sink: Callable[[], Any],
        *,
        is_bounded: bool,
    ) -> None:
        super().__init__("driver")
        self._chance, self._checkpoint, self._options = chance, checkpoint, options
        self._open_sink, self.is_bounded = open_sink, is_bounded
        self.batch, self.phase = 0, ""
        self.leaves_rows = False
        """Whether a lost attempt writes its rows all the same."""
        self.committing, self.run_id = 0, ""
        self.steps = self._run()

    def _open_reader(self) -> Any:
        word = late_word(self._options["violationPolicy"])
        schema = build_schema(with_violations=bool(word) or "changeFrom" in self._options)
        return KafkaTransport(self._options).stream_reader(schema)

    def _run(self) -> Iterator[str]:
        log, chance = self._checkpoint, self._chance
        reader = self._open_reader()
        self._task_reader = pickle.loads(pickle.dumps(self._open_reader()))
        limit = reader.getDefaultReadLimit()
        initial = reader.initialOffset()
        yield "start"
        if self.is_bounded:
            reader.prepareForTriggerAvailableNow()
            yield "bounded"
        place = log.find_place()
        start = initial if place.begun is None else json.loads(place.begun)
        end = None if place.end is None else json.loads(place.end)
        self.batch, first = place.batch, place.first
        while True:
            if end is None:
                planned = json.dumps(reader.latestOffset(start, limit))
                json.dumps(reader.reportLatestOffset())
                yield "planned"
                if planned == json.dumps(start):
                    if self.is_bounded:
                        return
                    chance.advance(chance.random.uniform(0.01, 1))
                    yield "idle"
                    continue
                committed = log.write_offset(self.batch, planned)
                if committed is not None:
                    reader.commit(json.loads(committed))
                end, first = json.loads(planned), self.batch
                yield "logged"
            partitions = reader.partitions(start, end)
            handed = self._take_handed(reader, start, end)
            yield "tasks"
            sink = self._open_sink()
            tasks: list[Any] = []
            try:
                # Spark writes no partitions at all as one that is empty.
                for number, partition in enumerate(partitions or [None]):
                    tasks.append(self._run_task(number, partition, handed))
                    yield "task"
                if first < self.batch:
                    sink.commit_joined(first, self.batch, tasks)
                else:
                    sink.commit(self.batch, tasks)
            except TimestreamError:
                sink.abort(self.batch, tasks)
                raise
            yield "stored"
            log.write_commit(self.batch)
            start, end, self.batch = end, None, self.batch + 1
            yield "committed"

    def _take_handed(self, reader: Any, start: Any, end: Any) -> list[pa.RecordBatch] | None:
        """Take the rows that the reader hands over with its partitions, as Spark does."""
        if not isinstance(reader, _WRAPPER):
            return None
        rows = list(reader.getCache(start, end))
        self._chance.hits["rows handed over"] += 1
        # Spark may lose the block that has them.
        return None if self._chance.fails("handed rows are lost") else rows

    def _run_task(
        self, number: int, partition: InputPartition | None, handed: Sequence[Any] | None
    ) -> Any:
        """Run attempts of a task until one ends well."""
        chance, failure = self._chance, None
        for _ in range(_MAX_FAILURES):
            executor = Process("executor", self)
            self.executors.append(executor)
            try:
                with chance.running(executor):
                    rows = iter(handed) if handed is not None else self._read(partition)
                    return pickle.loads(pickle.dumps(self._open_sink().stage(number, rows)))
            except Killed:
                if self.is_dead:
                    raise
                chance.hits["task killed"] += 1
            except TimestreamError as error:
                failure = error
            if self._chance.fails("an attempt goes on after it was given up", 3):
                self._leave_attempt(number, partition)
        raise failure or TasksKilled(f"task {number}")

    def _read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None:
            return
        shipped = pickle.loads(pickle.dumps(partition))
        for batch in self._task_reader.read(shipped):
            yield batch
            self._chance.point("rows of a task")

    def _leave_attempt(self, number: int, partition: InputPartition | None) -> None:
        """Leave an attempt that ends some time later; nobody takes its rows, but it commits."""
        executor, sink = Process("lost executor", self), self._open_sink()

        def run() -> object:
            rows = self._read(partition)
            return sink.stage(number, rows) if self.leaves_rows else list(rows)

        with self._chance.running(executor):
            self._chance.later(run)
