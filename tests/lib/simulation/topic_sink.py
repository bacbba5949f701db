"""A topic as the sink: transactions, fenced producers, and the known batches.

The packages' own writer sends rows and marks; the brokers below keep one state a transactional id,
as Kafka's coordinator does, and their answers may be lost after the act is done.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark import TaskContext
from pyspark.sql.types import StructType
from simulation.chance import Chance
from simulation.spark import Driver, MemorySink, to_rows
from simulation.world import World

from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.errors import BrokerUnreachable, DeliveryFailed, ReplayDiffers
from pyspark_timestream.kafka.writer import stream_writer
from pyspark_timestream.producer import transactions

OUT = "out"
_PARTITIONS = 2
_TIMEOUT_US = 300 * 1_000_000
"""The brokers end a transaction that takes longer."""

_OPTIONS = {"topic": OUT, "writer": "w", "kafka.bootstrap.servers": "broker:9092"}
_SCHEMA = StructType().add("value", "string").add("partition", "integer").add("cti", "timestamp")


@dataclass(slots=True)
class Coordinated:
    """The brokers' state of a transactional id."""

    epoch: int = 0
    records: list[tuple[int, str]] = field(default_factory=list)
    offsets: dict[str, tuple[int, str]] = field(default_factory=dict)
    since_us: int | None = None
    """When the open transaction began; None if none is open."""
    last_end: str = ""


class OutCluster:
    """The brokers of the second topic: the rows of a read_committed reader, and who may write."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.logs: dict[int, list[str]] = {each: [] for each in range(_PARTITIONS)}
        self.groups: dict[str, tuple[int, str]] = {}
        self.ids: dict[str, Coordinated] = {}

    def find(self, name: str) -> Coordinated:
        """The state of an id; ends a transaction after its timeout, fencing its producer."""
        found = self.ids.setdefault(name, Coordinated())
        now_us = self.chance.monotonic_us()
        if found.since_us is not None and now_us - found.since_us > _TIMEOUT_US:
            self.chance.hits["transaction timed out"] += 1
            self.end(found, commits=False)
            found.epoch += 1
        return found

    def end(self, found: Coordinated, *, commits: bool) -> None:
        """End the open transaction of an id."""
        if commits:
            for partition, value in found.records:
                self.logs[partition].append(value)
            self.groups.update(found.offsets)
        found.records, found.offsets, found.since_us = [], {}, None
        found.last_end = "committed" if commits else "aborted"

    def is_unstable(self, group: str) -> bool:
        """Whether an open transaction has an offset of the group."""
        return any(group in self.find(name).offsets for name in list(self.ids))


def _failure(code: int, *, retriable: bool = False, abort: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "simulated", False, retriable, abort))


class OutClient:
    """Producer, consumer and admin client in one, as `producer/transactions.py` uses them."""

    is_abandoned = False

    def __init__(self, cluster: OutCluster, config: Mapping[str, Any]) -> None:
        self._cluster, self._chance = cluster, cluster.chance
        self._id, self._group = config.get("transactional.id", ""), config.get("group.id", "")
        self._epoch = -1
        self._ended = ""

    def _ask(self, name: str) -> None:
        """A request, which may fail before it has an effect."""
        self._chance.point(name)
        if self._chance.fails(f"{name} fails", 0.5):
            self._chance.advance(self._chance.random.uniform(0, 10))
            raise _failure(KafkaError._TIMED_OUT, retriable=True)

    def _answer(self, name: str) -> None:
        """The answer to what is done, which may get lost."""
        self._chance.point(f"{name} done")
        if self._chance.fails(f"answer of {name} is lost", 0.5):
            self._chance.advance(10)
            raise _failure(KafkaError._TIMED_OUT, retriable=True)

    def _own(self) -> Coordinated:
        """The state of this producer's id, unless it is fenced."""
        found = self._cluster.find(self._id)
        if found.epoch != self._epoch:
            self._chance.hits["producer fenced"] += 1
            raise _failure(KafkaError._FENCED)
        return found

    # -- the producer

    def init_transactions(self, timeout: float) -> None:
        """End what is open under the id, and fence who opened it."""
        self._ask("init transactions")
        found = self._cluster.find(self._id)
        if found.since_us is not None:
            self._chance.hits["open transaction ended"] += 1
        self._cluster.end(found, commits=False)
        found.epoch += 1
        self._epoch = found.epoch
        self._answer("init transactions")

    def begin_transaction(self) -> None:
        """Begin a transaction; the brokers hear of it with the first record."""
        self._ended = ""

    def run(self, step: Callable[[Any], Any], timeout_s: float, name: str) -> Any:
        """Call a step with this client."""
        return step(self)

    def produce(self, topic: str, **message: Any) -> None:
        """Send a record; a fenced producer hears of it when the transaction ends."""
        assert topic == OUT
        self._chance.point("produce")
        found = self._cluster.find(self._id)
        if found.epoch != self._epoch:
            return
        if found.since_us is None:
            found.since_us = self._chance.monotonic_us()
        headers = dict(message.get("headers") or ())
        text = message.get("value") or f"mark {headers['cti'].decode()}"
        partition = message.get("partition", 0)
        found.records.append((partition, text if isinstance(text, str) else text.decode()))

    def flush(self, timeout: float) -> int:
        """Wait for the records."""
        self._chance.point("flush")
        return 0

    def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout: float) -> None:
        """Add a group's offset to the transaction."""
        self._ask("send offsets")
        found = self._own()
        (each,) = offsets
        if found.since_us is None:
            found.since_us = self._chance.monotonic_us()
        found.offsets[group] = each.offset, each.metadata
        self._answer("send offsets")

    def commit_transaction(self, timeout: float) -> None:
        """Commit; a repetition after a lost answer hears that it is done."""
        self._ask("commit transaction")
        if self._ended:
            return
        found = self._own()
        if self._chance.fails("transaction must be aborted", 0.3):
            raise _failure(KafkaError.INVALID_TXN_STATE, retriable=True, abort=True)
        self._cluster.end(found, commits=True)
        self._ended = "committed"
        self._answer("commit transaction")

    def abort_transaction(self, timeout: float) -> None:
        """Abort it."""
        self._ask("abort transaction")
        if not self._ended:
            self._cluster.end(self._own(), commits=False)
            self._ended = "aborted"
        self._answer("abort transaction")

    def list_topics(self, topic: str | None = None, timeout: float = 1) -> Any:
        """The partitions of the topic."""
        self._ask("list partitions")
        entry = SimpleNamespace(partitions=dict.fromkeys(range(_PARTITIONS)), error=None)
        return SimpleNamespace(topics={topic: entry})

    def poll(self, timeout: float) -> None:
        """Serve callbacks: there are none."""

    def close(self) -> None:
        """Release it; a transaction that is open stays so."""

    # -- groups

    def committed(self, asked: Sequence[Any], timeout: float) -> list[Any]:
        """The group's offset, once no open transaction has one."""
        self._ask("read the group")
        if self._cluster.is_unstable(self._group):
            raise _failure(KafkaError.UNSTABLE_OFFSET_COMMIT, retriable=True)
        offset, metadata = self._cluster.groups.get(self._group, (-1001, None))
        return [SimpleNamespace(offset=offset, metadata=metadata, error=None)]

    def consumer_group_metadata(self) -> str:
        """The group's name."""
        return str(self._group)

    def list_consumer_groups(self, request_timeout: float) -> Any:
        """All groups."""
        self._ask("list groups")
        names = sorted(
            {*self._cluster.groups} | {g for s in self._cluster.ids.values() for g in s.offsets}
        )
        return SimpleNamespace(errors=[], valid=[SimpleNamespace(group_id=each) for each in names])

    def list_consumer_group_offsets(
        self, asked: Sequence[Any], require_stable: bool, request_timeout: float
    ) -> dict[str, str]:
        """The groups to wait for."""
        return {each.group_id: each.group_id for each in asked}

    def wait(self, answer: Any, timeout_s: float, name: str) -> Any:
        """The answer of a request."""
        if not isinstance(answer, str):
            return answer
        self._ask("read a group")
        if self._cluster.is_unstable(answer):
            raise _failure(KafkaError.UNSTABLE_OFFSET_COMMIT, retriable=True)
        kept = self._cluster.groups.get(answer)
        told = (
            [] if kept is None else [SimpleNamespace(error=None, offset=kept[0], metadata=kept[1])]
        )
        return SimpleNamespace(topic_partitions=told)


class TopicSink:
    """The packages' writer, of a batch of a driver; a sink in memory compares repetitions."""

    def __init__(self, world: "TopicWorld", driver: Driver) -> None:
        self._world, self._driver, self._batch = world, driver, driver.batch

    def _open(self) -> Any:
        return stream_writer.open_stream_writer(_OPTIONS, _SCHEMA, False)

    def stage(self, number: int, batches: Iterator[pa.RecordBatch]) -> Any:
        """Write the rows of a task."""
        rows: list[Any] = []

        def convert() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows.extend(to_rows(batch))
                yield to_records(batch)

        before = TaskContext._taskContext
        TaskContext._setTaskContext(None)
        task = TaskContext._getOrCreate()
        task._partitionId, task._localProperties = (
            number,
            {
                "sql.streaming.queryId": "query",
                "streaming.sql.batchId": str(self._batch),
                "spark.jobGroup.id": self._driver.run_id,
            },
        )
        try:
            return rows, self._open().write(convert())
        finally:
            TaskContext._setTaskContext(before)

    def commit(self, batch: int, tasks: list[Any]) -> None:
        """Write the marks of a batch."""
        self._driver.committing = self._world.chance.pick((0, 1))
        self._world.sink.commit(batch, [rows for rows, _ in tasks])
        self._open().commit([written for _, written in tasks], batch)

    def abort(self, batch: int, tasks: list[Any]) -> None:
        """Nothing is taken back."""


def to_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as records of the second topic: where each was, and its time."""
    texts = [batch[name].cast(pa.string()) for name in ("partition", "offset")]
    times = batch["timestamp"].cast(pa.int64()).cast(pa.string())
    values = pc.binary_join_element_wise(*texts, times, "-")
    # Arrow has no remainder.
    numbers = [
        None if each is None else each % _PARTITIONS for each in batch["partition"].to_pylist()
    ]
    columns = [values, pa.array(numbers, pa.int32()), batch["cti"]]
    return pa.RecordBatch.from_arrays(columns, ["value", "partition", "cti"])


class TopicWorld(World):
    """A world with a topic as the sink."""

    def draw(self, **given: Any) -> None:
        """A query that drops late events: no row may lie below a mark."""
        super().draw(policy="drop", lengths=(40, 120), **given)

    def open_sink(self) -> Any:
        """The sink that compares repetitions."""
        return MemorySink(self.chance)

    def prepare(self, patch: pytest.MonkeyPatch) -> None:
        """Let the packages' writer reach these brokers."""
        self.out = OutCluster(self.chance)
        patch.setattr(
            transactions, "open_client", lambda kind, config, *_, **__: OutClient(self.out, config)
        )
        patch.setattr(stream_writer, "_MARK_WRITER", _Commits(self.chance))

    def start_driver(self, *, is_bounded: bool) -> Driver:
        """A new run, with commits of its own processes."""
        driver = super().start_driver(is_bounded=is_bounded)
        driver._open_sink = lambda: TopicSink(self, driver)
        driver.leaves_rows, driver.run_id = True, f"run {self.chance.hits['start']}"
        return driver

    def excuses(self, error: Exception) -> bool:
        """A broker that fails, and a rival that was faster."""
        if isinstance(error, DeliveryFailed | BrokerUnreachable):
            return bool(self.chance.fault_rate) or self.query.has_rival
        if isinstance(error, ReplayDiffers):
            return self.query.has_rival
        return super().excuses(error)

    def compare(self) -> None:
        """A read_committed reader sees each row and each mark once, and no row below a mark."""
        super().compare()
        tasks = [task for n in self.sink.batches for task in self.sink.batches[n]]
        rows = [row for task in tasks for row in task]
        ctis = [row for row in rows if isinstance(row, int)]
        expected = Counter((row[0], row[1]) for row in rows if not isinstance(row, int))
        found: Counter[tuple[int, int]] = Counter()
        for partition, log in self.out.logs.items():
            marks: list[int] = []
            for text in log:
                if text.startswith("mark "):
                    marks.append(parse_instant(text.removeprefix("mark ")))
                    continue
                number, offset, us = map(int, text.split("-"))
                assert number % _PARTITIONS == partition, f"{text} is in partition {partition}"
                assert not marks or us >= marks[-1], f"{text} comes after the mark {marks[-1]}"
                found[number, offset] += 1
            assert marks == sorted(set(marks)), f"partition {partition} has the marks {marks}"
            last = max(ctis, default=None)
            told = marks[-1] if marks else None
            due = None if last is None else last - last % 1_000
            assert told == due, f"the last mark is {told}, not {due}"
        twice = found - expected
        assert found == expected, f"missing {expected - found}, too often {twice}"


class _Commits:
    """The commits of all processes: a driver has two, each with its own producers."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def _find(self) -> Any:
        driver: Any = self._chance.current
        while driver.parent is not None:
            driver = driver.parent
        made = driver.__dict__.setdefault("commits", {})
        return made.setdefault(driver.committing, stream_writer.MarkWriter())

    def check_tasks(self, *given: Any) -> None:
        """See `MarkWriter`."""
        self._find().check_tasks(*given)

    def write_mark(self, *given: Any) -> None:
        """See `MarkWriter`."""
        self._find().write_mark(*given)
