"""The work of a reading task apart from its rows."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from pyspark.sql.datasource import InputPartition
from timestream.builders import at, options

from pyspark_timestream.kafka import reader as kafka_reader
from pyspark_timestream.kafka.batch import ReadSlice
from pyspark_timestream.kafka.decode.columns import default_schema, project
from pyspark_timestream.kafka.offsets.tasks import TaskPlan, TaskRange
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Range
from pyspark_timestream.kafka.reader import (
    BatchTask,
    KafkaBatchReader,
    KafkaStreamReader,
    KafkaTask,
)
from pyspark_timestream.rules.state import PartitionState

pytestmark = pytest.mark.spark

EMPTY = TaskPlan((TaskRange(Range(at(0), 7, 7), PartitionState()),))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens: a consumer is borrowed and given back, and the process settles."""
    happened: list[str] = []

    @contextmanager
    def borrowed(*_: object):
        happened.append("borrowed")
        yield SimpleNamespace(read=lambda span, needs: iter(()))
        happened.append("given back")

    nothing = SimpleNamespace(partitions=list, ends=dict, earliest=dict, offsets_at=dict)
    monkeypatch.setattr(kafka_reader, "acquire_broker", lambda *_: nullcontext(nothing))
    monkeypatch.setattr(kafka_reader, "acquire_reader", borrowed)
    monkeypatch.setattr(kafka_reader, "freeze_objects", lambda: happened.append("settled"))
    return happened


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        (KafkaStreamReader, KafkaTask(EMPTY, "group")),
        (KafkaBatchReader, BatchTask(ReadSlice(0, 1, (), 0))),
    ],
)
def test_a_task_settles_when_its_consumer_is_back(
    kind: type, task: InputPartition, done: list[str]
) -> None:
    # Spark's worker collects garbage after each task; unsettled that takes longer than a small one.
    given = options(subscribe=None, subscribePattern="none")
    reader = kind(given, project(given, default_schema(given)))
    assert list(reader.read(task)) == []
    assert done == ["borrowed", "given back", "settled"]


def test_a_task_that_failed_does_not_settle(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an error holds on to would stay for good.
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(kafka_reader, "run_task", fails)
    given = options()
    reader = KafkaStreamReader(given, project(given, default_schema(given)))
    with pytest.raises(ZeroDivisionError):
        list(reader.read(KafkaTask(EMPTY, "group")))
    assert done == ["borrowed"]


def test_a_streams_task_waits_for_a_broker_as_long_as_for_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_ms: list[int] = []

    def borrowed(options: KafkaOptions, _: str) -> nullcontext[SimpleNamespace]:
        waited_ms.append(options.connect_timeout_ms)
        return nullcontext(SimpleNamespace(read=lambda span, needs: iter(())))

    monkeypatch.setattr(kafka_reader, "acquire_reader", borrowed)
    limits = {"kafkaConsumer.connectTimeoutMs": "2000", "kafkaConsumer.pollTimeoutMs": "90000"}
    given = options(**limits)
    reader = KafkaStreamReader(given, project(given, default_schema(given)))
    assert list(reader.read(KafkaTask(EMPTY, "group"))) == []
    # The driver was answered when it planned the batch: a broker that is away now may come back.
    assert waited_ms == [90_000]
