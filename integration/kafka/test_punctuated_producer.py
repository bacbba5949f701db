"""`PunctuatedProducer` on a real broker: where marks land, and what is seen of a transaction."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest
from broker import Broker, unique_name
from confluent_kafka import Message
from kafka_query import DAY_MS, Stream, marks

from pyspark_timestream import PunctuatedProducer
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.errors import BrokerUnreachable, DeliveryFailed, OptionError
from pyspark_timestream.producer.producer import ProducerLimits

T1, T2 = "2024-01-01T00:00:01Z", "2024-01-01T00:00:02Z"


@pytest.fixture
def producer(broker: Broker):
    """Make a producer of this broker: `producer(topic, "w", transactional_id="x")`."""

    def make(topic: str, writer: str = "w", auto=None, **settings) -> PunctuatedProducer:
        config = {name.replace("_", "."): each for name, each in settings.items()}
        config = {"bootstrap.servers": broker.bootstrap, "log_level": 0, **config}
        return PunctuatedProducer(config, topic, writer, auto_note_time=auto)

    return make


def by_partition(messages: list[Message]) -> dict[int, list[str]]:
    """A partition's records in order: a value as it is, a mark as `cti`, its writer, `close`."""
    found: dict[int, list[str]] = defaultdict(list)
    for message in messages:
        found[message.partition()].append(label(message))
    return dict(found)


def label(message: Message) -> str:
    if message.value() is not None:
        return str(message.value().decode())
    headers = dict(message.headers())
    ended = " close" if "cti-close" in headers else ""
    return f"{headers.get('cti', b'-').decode()} {headers['cti-writer'].decode()}{ended}"


def test_a_mark_goes_to_every_partition_behind_what_was_produced(broker, topic, producer) -> None:
    name = topic(3)
    with producer(name) as one:
        for number in range(300):
            one.produce(f"a{number}", key=str(number))
        one.note_time(T1)
        one.produce("b", partition=0)
    found = by_partition(broker.read(name))
    assert sorted(found) == [0, 1, 2]
    assert sum(len(rows) for rows in found.values()) == 300 + 1 + 3 + 3
    for partition, rows in found.items():
        place = rows.index(f"{T1} w")
        assert all(row.startswith("a") for row in rows[:place])
        assert rows[place + 1 :] == ["b"] * (partition == 0) + [f"{T1} w close"]


@pytest.mark.timeout(300)
def test_threads_that_never_pause_get_nothing_behind_a_mark(broker, topic, producer) -> None:
    name = topic(2)
    one = producer(name, linger_ms=5)
    stop, returned = threading.Event(), [0] * 4

    def work(thread: int) -> None:
        while not stop.is_set():
            one.produce(f"{thread}:{returned[thread]}")
            returned[thread] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    before = {}
    for second in range(10, 20):
        mark = f"2024-01-01T00:00:{second}Z"
        before[mark] = returned[:]
        one.note_time(mark)
    stop.set()
    for thread in threads:
        thread.join()
    one.close()
    rows = by_partition(broker.read(name))
    for mark, counts in before.items():
        behind = [row for part in rows.values() for row in part[part.index(f"{mark} w") :]]
        numbers = [row.split(":") for row in behind if not row.startswith("2024")]
        assert all(int(number) >= counts[int(thread)] for thread, number in numbers)
    assert all(counts != [0] * 4 for counts in list(before.values())[1:])


@pytest.mark.timeout(400)
def test_a_stream_follows_what_its_writers_note(spark, broker, topic, producer, tmp_path) -> None:
    name = topic()
    one, two = producer(name, "one"), producer(name, "two")
    for second, writer in ((10, one), (12, two), (20, one)):
        writer.produce("row", timestamp=DAY_MS + second * 1_000)
        writer.note_time(f"2024-01-01T00:00:{second}Z")
    two.produce("late", timestamp=DAY_MS + 11_000)
    two.close()
    one.produce("on time", timestamp=DAY_MS + 20_000)
    one.close()
    options = {"ctiHeader": "cti", "writers": "one,two", "violationPolicy": "flag"}
    rows = Stream(spark, broker, name, tmp_path, options).run()
    assert marks(rows) == ["e10", "e12", "c10", "e20", "c12", "e11", "c20", "e20"]
    late = [row.violation for row in rows if row.value == b"late"]
    assert late == ["late"]


def test_rows_and_time_of_a_transaction_are_seen_together_or_not_at_all(
    broker, topic, producer
) -> None:
    name = topic(2)
    with producer(name, transactional_id=unique_name("tx")) as one:
        one.produce("gone", partition=0)
        one.flush()
        one.abort()
        one.produce("kept", partition=0)
        one.commit(T1)
        one.produce("open", partition=1)
        one.flush()
        assert by_partition(broker.read(name)) == {0: ["kept", f"{T1} w"], 1: [f"{T1} w"]}
        one.commit()
        one.commit(T2)
    broker.wait_for_markers(name)
    assert by_partition(broker.read(name)) == {
        0: ["kept", f"{T1} w", f"{T2} w", f"{T2} w close"],
        1: [f"{T1} w", "open", f"{T2} w", f"{T2} w close"],
    }


def test_a_block_that_fails_leaves_neither_rows_nor_marks_of_its_transaction(
    broker, topic, producer
) -> None:
    name = topic()
    one = producer(name, transactional_id=unique_name("tx"))
    one.produce("row")
    one.flush()
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError
    assert broker.read(name) == []


def test_the_wall_clock_is_noted_and_records_of_the_moment_are_never_late(
    broker, topic, producer
) -> None:
    name = topic()
    produced = 0
    with producer(name, auto=0.05) as one:
        deadline = time.monotonic() + 60
        while broker.end_offsets(name)[0] < produced + 5:
            assert time.monotonic() < deadline
            for _ in range(50):
                one.produce("row")
                time.sleep(0.001)
            one.flush()
            produced += 50
    mark = 0
    messages = broker.read(name)
    assert len(messages) >= produced + 6
    for message in messages:
        headers = dict(message.headers() or [])
        if "cti" in headers:
            mark = max(mark, parse_instant(headers["cti"].decode()))
        else:
            assert message.timestamp()[1] * 1000 >= mark


def test_a_record_that_the_broker_refuses_is_told_and_nothing_is_noted(
    broker, topic, producer
) -> None:
    name = topic(max_message_bytes=1_000)
    one = producer(name)
    one.produce("x" * 10_000)
    with pytest.raises(DeliveryFailed, match=r"'w' could not deliver .* partition 0.*too large"):
        one.note_time(T1)
    one.note_time(T2)
    assert by_partition(broker.read(name)) == {0: [f"{T2} w"]}
    one.close()


def test_what_cannot_work_is_said_without_secrets(broker, topic, producer) -> None:
    with pytest.raises(OptionError, match=r"no\.such\.property"):
        producer("t", **{"no.such.property": "1"})
    with pytest.raises(OptionError, match="hidden") as refused:
        producer("t", **{"sasl.password": "pa55word", "security.protocol": "pa55word"})
    assert "pa55word" not in str(refused.value)
    missing = producer(unique_name("missing"), **{"allow.auto.create.topics": False})
    with pytest.raises((LookupError, BrokerUnreachable), match="missing"):
        missing.note_time(T1)

    class Hurried(PunctuatedProducer):
        limits = ProducerLimits(request_s=0.5)

    nowhere = Hurried({"bootstrap.servers": "127.0.0.1:1"}, "t", "w")
    with pytest.raises(BrokerUnreachable, match=r"check 'bootstrap.servers'"):
        nowhere.note_time(T1)
