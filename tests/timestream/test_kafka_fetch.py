"""What becomes of the errors that a consumer reports among the records of a range."""

import contextlib
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import KafkaError

from pyspark_timestream import kafka_fetch
from pyspark_timestream.errors import BrokerUnreachable, DataLost
from pyspark_timestream.kafka_fetch import RangeReader
from pyspark_timestream.kafka_messages import Problem, Taken
from pyspark_timestream.kafka_options import read_kafka_options
from pyspark_timestream.option_fields import OptionError
from pyspark_timestream.ranges import Partition, Range
from pyspark_timestream.records import Needs
from pyspark_timestream.stock import Stock

SPAN = Range(Partition("t", 0), 10, 20)


class Scripted:
    """A consumer that takes what a script says, of a partition whose offsets 15 to 30 exist."""

    def __init__(self, script: Iterator[Taken]) -> None:
        self._script = script
        self.aims: list[int] = []
        self.closed = 0

    def aim(self, partition: Partition, offset: int) -> None:
        self.aims.append(offset)

    def rest(self) -> None:
        pass

    def take(self, span: Range, position: int, needs: Needs, wait_s: float) -> Taken:
        return next(self._script)

    def existing(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        return 15, 30

    def commit_offsets(self, offsets: Mapping[Partition, tuple[int, str]]) -> str | None:
        return None

    def close(self) -> None:
        self.closed += 1


def lost(offset: int, partition: int = 0) -> Problem:
    return Problem(KafkaError(KafkaError._AUTO_OFFSET_RESET), "t", partition, offset)


def read(monkeypatch, takes: list[Taken], *, fail: bool) -> list[int]:
    """Reads SPAN; where the consumer was aimed at."""
    options = read_kafka_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "subscribe": "t",
            "failondataloss": str(fail).lower(),
        }
    )
    consumer = Scripted(iter(takes))
    monkeypatch.setattr(RangeReader, "_new_consumer", lambda reader: consumer)
    assert list(kafka_fetch.RangeReader(options, "g").read(SPAN, Needs())) == []
    return consumer.aims


def test_a_loss_that_is_reported_twice_is_passed_over_once(monkeypatch) -> None:
    takes = [Taken(None, 10, (lost(10),)), Taken(None, 15, (lost(10),)), Taken(None, 20, ())]
    assert read(monkeypatch, takes, fail=False) == [10, 15]


def test_a_loss_fails_the_query_that_says_so(monkeypatch) -> None:
    with pytest.raises(DataLost, match="offset 10 can no longer be read"):
        read(monkeypatch, [Taken(None, 10, (lost(10),))], fail=True)


def test_an_error_of_a_position_long_passed_loses_nothing(monkeypatch) -> None:
    takes = [Taken(None, 16, ()), Taken(None, 16, (lost(12),)), Taken(None, 20, ())]
    assert read(monkeypatch, takes, fail=True) == [10]


def test_an_error_of_another_partition_is_not_this_ones(monkeypatch) -> None:
    takes = [Taken(None, 10, (lost(10, partition=1),)), Taken(None, 20, ())]
    assert read(monkeypatch, takes, fail=True) == [10]


def test_missing_rights_are_an_error(monkeypatch) -> None:
    denied = Problem(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "t", 0, -1)
    with pytest.raises(BrokerUnreachable, match=r"topic .t. partition 0: .*authorization failed"):
        read(monkeypatch, [Taken(None, 10, (denied,))], fail=True)


def test_the_tasks_of_a_worker_share_one_consumer_until_one_of_them_fails(monkeypatch) -> None:
    options = read_kafka_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"})
    stock: Stock[RangeReader] = Stock(most=4, idle_s=300)
    monkeypatch.setattr(kafka_fetch, "_STOCK", stock)
    made: list[Scripted] = []

    def new_consumer(reader: RangeReader) -> Scripted:
        made.append(Scripted(iter([Taken(None, 20, ()), Taken(None, 30, ()), Taken(None, 20, ())])))
        return made[-1]

    monkeypatch.setattr(RangeReader, "_new_consumer", new_consumer)
    later = Range(SPAN.partition, 20, 30)
    for span in (SPAN, later, SPAN):
        with kafka_fetch.borrowed_reader(options, "g") as reader:
            assert list(reader.read(span, Needs())) == []
    assert [consumer.aims for consumer in made] == [[10, 20, 10]]
    with pytest.raises(ZeroDivisionError), kafka_fetch.borrowed_reader(options, "g"):
        raise ZeroDivisionError
    with kafka_fetch.borrowed_reader(options, "g") as reader:
        assert list(reader.read(SPAN, Needs())) == []
    assert [consumer.aims for consumer in made] == [[10, 20, 10], [10]]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_consumer_that_is_replaced_is_closed_once(monkeypatch, is_refused: bool) -> None:
    options = read_kafka_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"})
    stock: Stock[RangeReader] = Stock(most=4, idle_s=300)
    monkeypatch.setattr(kafka_fetch, "_STOCK", stock)
    # A refusal of offset 18, which exists, is out of date.
    made: list[Scripted] = []
    scripts = [[Taken(None, 18, (lost(18),))], [Taken(None, 20, ())]]

    def new_consumer(reader: RangeReader) -> Scripted:
        if made and is_refused:
            raise OptionError("kafka.*", "no", "librdkafka's", "correct it")
        made.append(Scripted(iter(scripts[len(made)])))
        return made[-1]

    monkeypatch.setattr(RangeReader, "_new_consumer", new_consumer)
    refused = pytest.raises(OptionError) if is_refused else contextlib.nullcontext()
    with refused, kafka_fetch.borrowed_reader(options, "g") as reader:
        assert list(reader.read(SPAN, Needs())) == []
    assert [consumer.closed for consumer in made] == ([1] if is_refused else [1, 0])
