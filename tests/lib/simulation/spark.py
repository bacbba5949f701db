"""Spark's micro-batch engine, as far as a source and a sink see it.

The order of the calls and of the log's entries is that of `MicroBatchExecution` in Spark 4.3: plan,
report, write the offset log, commit the batch before, ask for the partitions, run the tasks, commit
the sink, write the commit log. The log outlives the driver; nothing else does. A driver is a
generator that stops where another driver may go on.
"""

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from simulation.chance import Chance, Killed, Process

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


class Checkpoint:
    """The offset log and the commit log; entries are texts, and none is ever overwritten."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.offsets: dict[int, str] = {}
        self.commits: dict[int, str] = {}

    def write_offset(self, batch: int, text: str) -> None:
        """Write an entry of the offset log."""
        self._write(self.offsets, batch, text)

    def write_commit(self, batch: int) -> None:
        """Write an entry of the commit log."""
        self._write(self.commits, batch, "{}")

    def _write(self, entries: dict[int, str], batch: int, text: str) -> None:
        self._chance.point("log entry")
        if batch in entries:
            raise ConcurrentUpdate(f"batch {batch}")
        entries[batch] = text
        self._chance.point("log entry written")


class MemorySink:
    """A sink that is idempotent by batch: it keeps the rows of each, and compares a repetition.

    A row is (partition, offset, violation) or, if it is a CTI, its microseconds.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.batches: dict[int, list[list[Any]]] = {}

    def stage(self, number: int, batches: Iterator[pa.RecordBatch]) -> list[Any]:
        """Take the rows of a task."""
        return [row for batch in batches for row in to_rows(batch)]

    def commit(self, batch: int, tasks: list[list[Any]]) -> None:
        """Keep a batch."""
        self._chance.point("sink commit")
        kept = self.batches.setdefault(batch, tasks)
        assert kept == tasks, f"batch {batch} was {kept}, and is {tasks} when it runs again"
        self._chance.point("sink committed")

    def abort(self, batch: int, tasks: list[list[Any]]) -> None:
        """Nothing of a batch is kept before its commit."""


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
        open_sink: makes the sink anew, as Spark does in each batch.
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
        self.batch = 0
        self.steps = self._run()

    def _open_reader(self) -> Any:
        has_violations = self._options["violationPolicy"] == "flag"
        schema = build_schema(with_violations=has_violations)
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
        last = max(log.offsets, default=-1)
        begun = initial if last < 1 else json.loads(log.offsets[last - 1])
        start, end = begun, None if last < 0 else json.loads(log.offsets[last])
        self.batch = max(last, 0)
        if last in log.commits:
            start, end, self.batch = end, None, last + 1
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
                log.write_offset(self.batch, planned)
                if self.batch > 0:
                    reader.commit(json.loads(log.offsets[self.batch - 1]))
                end = json.loads(planned)
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
                self._leave_attempt(partition)
        raise failure or TasksKilled(f"task {number}")

    def _read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None:
            return
        shipped = pickle.loads(pickle.dumps(partition))
        for batch in self._task_reader.read(shipped):
            yield batch
            self._chance.point("rows of a task")

    def _leave_attempt(self, partition: InputPartition | None) -> None:
        """Leave an attempt that ends some time later; nobody takes its rows, but it commits."""
        executor = Process("lost executor", self)
        with self._chance.running(executor):
            self._chance.later(lambda: list(self._read(partition)))
