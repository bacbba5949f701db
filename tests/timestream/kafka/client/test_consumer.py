"""Commits and closing with both consumers, against librdkafka's mock broker."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from lengths import outside_ci
from timestream.builders import options

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client import consumer as client_consumer
from pyspark_timestream.kafka.client import native_consumer, range_reader
from pyspark_timestream.kafka.client.consumer import ColumnConsumer, MessageConsumer
from pyspark_timestream.kafka.client.errors import ClientLog
from pyspark_timestream.kafka.client.native_consumer import NativeConsumer, load_native_reader
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

THERE, NOT_THERE = Partition("t", 0), Partition("t", 99)


@pytest.fixture
def slow_broker() -> Iterator[str]:
    """The address of a broker that answers after a fifth of a second; it ends with its producer."""
    made_up = {"test.mock.num.brokers": 1, "test.mock.broker.rtt": 200, "log_level": 0}
    server = Producer({"bootstrap.servers": "none:1", **made_up})
    server.produce("t", b"0", partition=0)
    assert server.flush(60) == 0
    (where,) = server.list_topics(timeout=60).brokers.values()
    yield f"{where.host}:{where.port}"
    del server


def made(path: str, where: str) -> ColumnConsumer:
    config = {"bootstrap.servers": where, "group.id": "g", "log_level": 0}
    if path == "messages":
        return MessageConsumer(config, ClientLog(config))
    native_reader = load_native_reader()
    if native_reader is None:
        pytest.skip("the native reader is not built here, or not wanted")
    return NativeConsumer(config, native_reader, ClientLog(config))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", ["messages", "native"])
def test_an_answer_that_comes_too_late_is_not_that_of_the_next_commit(
    path: str, slow_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patience(seconds: float) -> None:
        monkeypatch.setattr(client_consumer, "COMMIT_TIMEOUT_S", seconds)
        monkeypatch.setattr(native_consumer, "_COMMIT_TIMEOUT_MS", round(seconds * 1000))

    consumer = made(path, slow_broker)
    try:
        patience(60)
        assert consumer.commit_offsets({THERE: (1, "")}) == {}
        patience(0)
        consumer.commit_offsets({THERE: (2, "")})
        patience(60)
        (refusal,) = consumer.commit_offsets({NOT_THERE: (3, "")}).items()
        assert (refusal[0], refusal[1].code()) == (NOT_THERE, KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert "Unknown topic or partition" in refusal[1].str()
        assert consumer.commit_offsets({THERE: (4, "")}) == {}
    finally:
        consumer.close()


@pytest.mark.parametrize("path", ["messages", "native"])
def test_a_consumer_that_was_closed_is_refused(path: str) -> None:
    consumer = made(path, "127.0.0.1:1")
    consumer.close()
    consumer.close()
    for use in (
        lambda: consumer.seek(THERE, 0),
        consumer.pause,
        lambda: consumer.poll(OffsetRange(THERE, 0, 1), 0, ColumnSet(), 0.01),
        lambda: consumer.query_bounds(THERE, 0.01),
        lambda: consumer.is_connected(0.01),
        lambda: consumer.commit_offsets({THERE: (1, "")}),
    ):
        with pytest.raises(RuntimeError, match=r"Consumer closed|Handle has been closed"):
            use()


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["messages", "native"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("127.0.0.1:1", "Connection refused"),
        *outside_ci(("no.such.host.invalid:9092", "Failed to resolve")),
    ],
)
def test_read_without_a_broker_fails_in_time_with_the_reason(
    path: str, where: str, reason: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    if path == "messages":
        monkeypatch.setattr(range_reader, "load_native_reader", lambda: None)
    elif load_native_reader() is None:
        pytest.skip("the native reader is not built here, or not wanted")
    # A name server may take seconds to say that there is no such name.
    given = {"kafka.bootstrap.servers": where, "kafkaConsumer.connectTimeoutMs": "5000"}
    reader, began_s = RangeReader(options(**given), "g"), time.monotonic()
    try:
        with pytest.raises(BrokerUnreachable) as failure:
            list(reader.read(OffsetRange(THERE, 0, 9), ColumnSet()))
    finally:
        reader.close()
    assert time.monotonic() - began_s < 15
    assert re.search(rf"{re.escape(where)} \([^()]*{reason}", str(failure.value))
    assert "offset 0 to 9" in str(failure.value)
    assert "FAIL" not in capfd.readouterr().err
