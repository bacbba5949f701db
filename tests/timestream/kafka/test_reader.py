"""The work of a reading task apart from its rows."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from timestream.builders import at, options

from pyspark_timestream.core.window_fold import Partial, WindowFold
from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka.decode.columns import default_schema, project
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Range, TaskPlan, TaskRange
from pyspark_timestream.kafka.reader import KafkaTask, KafkaTransport, read_task
from pyspark_timestream.rules.state import PartitionState

pytestmark = pytest.mark.spark

EMPTY = TaskPlan((TaskRange(Range(at(0), 7, 7), PartitionState()),))


Acquire = Callable[[KafkaOptions, str], AbstractContextManager[Any]]


def lending(happened: list[str], read: Callable[..., Iterator[Any]]) -> Acquire:
    """Lends a consumer that reads so, and notes when it is borrowed and given back."""

    @contextmanager
    def acquire(*_: object) -> Iterator[Any]:
        happened.append("borrowed")
        yield SimpleNamespace(read=read, commit_state=dict)
        happened.append("given back")

    return acquire


def run(
    plan: TaskPlan, done: list[str], read: Callable[..., Iterator[Any]], *, is_batch: bool = False
) -> list[Any]:
    given = options()
    projection = project(given, default_schema(given))
    settle = partial(done.append, "settled")
    task, acquire = KafkaTask(plan, "group"), lending(done, read)
    return list(
        read_task(given, projection, task, is_batch=is_batch, acquire=acquire, settle=settle)
    )


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_task_settles_when_its_consumer_is_back(is_batch: bool) -> None:
    # Spark's worker collects garbage after each task; unsettled that takes longer than a small one.
    done: list[str] = []
    assert run(EMPTY, done, lambda span, needs: iter(()), is_batch=is_batch) == []
    assert done == ["borrowed", "given back", "settled"]


def test_a_task_that_failed_does_not_settle() -> None:
    # What an error holds on to would stay for good.
    def fails(*_: object) -> Iterator[Any]:
        raise ZeroDivisionError

    done: list[str] = []
    full = TaskPlan((TaskRange(Range(at(0), 7, 9), PartitionState()),))
    with pytest.raises(ZeroDivisionError):
        run(full, done, fails)
    assert done == ["borrowed"]


def test_a_streams_task_waits_for_a_broker_as_long_as_for_progress() -> None:
    waited_ms: list[int] = []

    def acquire(options: KafkaOptions, _: str) -> nullcontext[Any]:
        waited_ms.append(options.connect_timeout_ms)
        return nullcontext(SimpleNamespace(read=lambda span, needs: iter(())))

    limits = {"kafkaConsumer.connectTimeoutMs": "2000", "kafkaConsumer.pollTimeoutMs": "90000"}
    given = options(**limits)
    projection = project(given, default_schema(given))
    task = KafkaTask(EMPTY, "group")
    assert list(read_task(given, projection, task, acquire=acquire, settle=list)) == []
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
