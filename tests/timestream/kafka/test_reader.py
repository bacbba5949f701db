"""The work of a reading task apart from its rows."""

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from timestream.builders import at, options
from timestream.driven import FakeBroker

from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka import reader as module
from pyspark_timestream.kafka.decode.columns import build_default_schema, project
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan, TaskRange
from pyspark_timestream.kafka.reader import (
    KafkaStreamReader,
    KafkaTask,
    KafkaTransport,
    read_task,
)
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_timestream.rules.window_fold import Partial, WindowFold

pytestmark = pytest.mark.spark

EMPTY = TaskPlan((TaskRange(OffsetRange(at(0), 7, 7), PartitionClock()),))


Acquire = Callable[[KafkaOptions, str], AbstractContextManager[Any]]


def lending(happened: list[str], read: Callable[..., Iterator[Any]]) -> Acquire:
    """Lends a consumer that reads so, and notes when it is borrowed and given back."""

    @contextmanager
    def acquire(*_: object) -> Iterator[Any]:
        happened.append("borrowed")
        yield SimpleNamespace(read=read, commit_clocks=dict)
        happened.append("given back")

    return acquire


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log of events: a consumer was borrowed or given back, or the task has settled."""
    happened: list[str] = []
    monkeypatch.setattr(module, "freeze_objects", lambda: happened.append("settled"))
    return happened


def run(
    plan: TaskPlan, done: list[str], read: Callable[..., Iterator[Any]], *, is_batch: bool = False
) -> list[Any]:
    given = options()
    projection = project(given, build_default_schema(given))
    task, acquire = KafkaTask(plan, "group"), lending(done, read)
    return list(read_task(given, projection, task, is_batch=is_batch, acquire=acquire))


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_task_settles_when_its_consumer_is_back(done: list[str], is_batch: bool) -> None:
    # Spark's worker collects garbage after each task; unsettled that takes longer than a small one.
    assert run(EMPTY, done, lambda span, needs: iter(()), is_batch=is_batch) == []
    assert done == ["borrowed", "given back", "settled"]


def test_a_task_that_failed_does_not_settle(done: list[str]) -> None:
    # Objects that an error holds would stay for good.
    def fails(*_: object) -> Iterator[Any]:
        raise ZeroDivisionError

    full = TaskPlan((TaskRange(OffsetRange(at(0), 7, 9), PartitionClock()),))
    with pytest.raises(ZeroDivisionError):
        run(full, done, fails)
    assert done == ["borrowed"]


def test_a_batch_that_cannot_be_read_on_the_driver_is_left_to_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = options(ctiFrequency="1")
    reader = KafkaStreamReader(given, project(given, build_default_schema(given)))
    reader._handing.needs_task = False
    partition = PartitionOffset(0, 7, PartitionClock())
    offset = StreamOffset("me", given.settings(), 1, {at(0): partition}, tasks=1)
    noted: list[StreamOffset] = []
    driver = SimpleNamespace(
        note_end=lambda each, *_: noted.append(each),
        read_offset=StreamOffset.from_json,
        pin_schemas=lambda recorded: recorded,
        find_recreated=lambda offset, ranges: (),
    )
    reader._driver = cast(Any, driver)
    outcomes: Iterator[Any] = iter([[], OSError("no route"), [], [too_large()], []])

    def read(*_: object, **__: object) -> Iterator[Any]:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        yield from outcome

    monkeypatch.setattr(module, "read_task", read)
    for is_handed in (True, False, True, False, False):
        [task] = reader.partitions({**offset.to_json(), "number": -1}, offset.to_json())
        assert task.plan.ranges[0].offsets == OffsetRange(at(0), 0, 7)
        assert (reader.__class__ is not KafkaStreamReader) == is_handed
        assert list(reader.getCache({}, {})) == []
    # After rows that were too large it does not try a batch of as many records again.
    assert (len(noted), len(list(outcomes))) == (2, 1)


@pytest.mark.parametrize("asked", ["the planned batch", "another batch"])
def test_a_batch_is_read_while_spark_writes_its_offset(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    given = options()
    reader = KafkaStreamReader(given, project(given, build_default_schema(given)))
    reader._handing.needs_task = False
    planned, other = (
        StreamOffset("me", given.settings(), 1, {at(0): PartitionOffset(0, end, PartitionClock())},
                     tasks=1)
        for end in (7, 9)
    )  # fmt: skip
    before = {**planned.to_json(), "number": -1}
    noted: list[StreamOffset] = []
    driver = SimpleNamespace(
        plan=lambda *_: planned.to_json(),
        planned=planned,
        note_end=lambda each, *_: noted.append(each),
        read_offset=StreamOffset.from_json,
        pin_schemas=lambda recorded: recorded,
        find_recreated=lambda offset, ranges: (),
    )
    reader._driver = cast(Any, driver)
    begun = threading.Event()
    ends: list[int] = []

    def read(_options: object, _projection: object, task: KafkaTask, **_: object) -> Iterator[Any]:
        [task_range] = task.plan.ranges
        ends.append(task_range.offsets.end_exclusive)
        begun.set()
        yield pa.RecordBatch.from_pydict({"end": [ends[-1]]})

    monkeypatch.setattr(module, "read_task", read)
    assert reader.latestOffset(before, ReadAllAvailable()) == planned.to_json()
    assert begun.wait(30)
    wanted = planned if asked == "the planned batch" else other
    reader.partitions(before, wanted.to_json())
    assert noted == [wanted]
    [rows] = reader.getCache({}, {})
    assert rows["end"].to_pylist() == [wanted.partitions[at(0)].end_exclusive]
    assert ends == ([7] if wanted is planned else [7, 9])
    assert pickle.loads(pickle.dumps(reader))._driver is None, "a task's copy connects to nothing"


def too_large() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(5_000_000), pa.int64())})


def test_a_streams_task_waits_for_a_broker_as_long_as_for_progress() -> None:
    waited_ms: list[int] = []

    def acquire(options: KafkaOptions, _: str) -> nullcontext[Any]:
        waited_ms.append(options.connect_timeout_ms)
        return nullcontext(SimpleNamespace(read=lambda span, needs: iter(())))

    limits = {"kafkaConsumer.connectTimeoutMs": "2000", "kafkaConsumer.pollTimeoutMs": "90000"}
    given = options(**limits)
    projection = project(given, build_default_schema(given))
    task = KafkaTask(EMPTY, "group")
    assert list(read_task(given, projection, task, acquire=acquire)) == []
    # The driver was answered when it planned the batch: a broker that is away now may come back.
    assert waited_ms == [90_000]


COLUMNS = StructType(
    [
        StructField("station", StringType()),
        StructField("start_time", TimestampType()),
        StructField("cti", TimestampType()),
    ]
)


def folding(partial: Partial, columns: str = COLUMNS.json()) -> KafkaTransport:
    fold = WindowFold("start_time", 60_000_000, ("station",), (partial,), columns)
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "trips", "ctiFrequency": "1"}
    return KafkaTransport({**given, "valueFormat": "json", "foldWindows": fold.to_text()})


def test_partial_rows_are_read_with_their_own_schema_alone() -> None:
    fold = WindowFold("start_time", 60_000_000, ("station",), (Partial("count"),), "")
    folded = fold.build_schema(to_arrow_schema(COLUMNS, timezone="UTC"))
    transport = folding(Partial("count"))
    for read in (transport.stream_reader, transport.reader):
        assert read(from_arrow_schema(folded)) is not None
        for other in (
            COLUMNS,
            StructType([]),
            from_arrow_schema(folded.append(pa.field("more", pa.int64()))),
            StructType([*from_arrow_schema(folded)[:3], StructField("count", LongType())]),
        ):
            with pytest.raises(SchemaRefused, match=r"foldWindows.*aggregate_windows"):
                read(other)


def test_a_fold_that_was_written_by_hand_is_checked_as_well() -> None:
    with pytest.raises(SchemaRefused, match="no column 'minutes'"):
        folding(Partial("sum", "minutes")).stream_reader(COLUMNS)
    for text in ("", "[]", "{}", '{"type": "long"}', "\0"):
        with pytest.raises((OptionError, SchemaRefused), match="foldWindows"):
            folding(Partial("count"), text).stream_reader(COLUMNS)


def test_a_batch_read_leaves_out_no_partition_whose_leader_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FakeBroker(p0=(0, 10), p1=(0, 20))
    told, untold = broker.ends, [at(1)]

    def ends(partitions: list[Partition]) -> dict[Partition, int]:
        lacks = untold.pop() if untold else None
        return {part: end for part, end in told(partitions).items() if part != lacks}

    monkeypatch.setattr(broker, "ends", ends)
    monkeypatch.setattr("pyspark_timestream.kafka.client.broker.LEADER_CHANGE_GRACE_S", 0.05)
    monkeypatch.setattr(module, "Broker", broker.connect)
    given = options(startingOffsets="earliest")
    reader = module.KafkaBatchReader(given, project(given, build_default_schema(given)))
    read = [
        open_range.partition
        for task in reader.partitions()
        for open_range in task.read_slice.ranges
    ]
    assert read == [at(0), at(1)]
