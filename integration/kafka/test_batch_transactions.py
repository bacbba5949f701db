"""Transactions of one place on a real broker (semantics 29.3): fencing, repetition, refusals."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from broker import Broker, unique_name
from confluent_kafka.admin import ResourceType

from pyspark_timestream import DeliveryFailed, OptionError, ReplayDiffers
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.kafka.writer.ledger import LedgerEntry, Owner
from pyspark_timestream.kafka.writer.rows import TaskRows
from pyspark_timestream.kafka.writer.stream_writer import MarkWriter, QueryRun, _write
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions
from pyspark_timestream.producer.transactions import BatchTransaction, read_entries


@pytest.fixture
def place(broker: Broker, topic):
    """Open the transactions of one place; each call is a new attempt."""
    name, own = topic(2), unique_name("place")

    def attempt(target: str = name, **settings: str) -> BatchTransaction:
        client = {key.replace("_", "."): text for key, text in settings.items()}
        given = {"bootstrap.servers": broker.bootstrap, **client}
        return BatchTransaction(given, target, own, f"{own}/query")

    attempt.topic = name
    return attempt


def test_a_zombie_cannot_commit_after_the_next_attempt_began(place, broker: Broker) -> None:
    zombie = place()
    zombie.begin()
    zombie.send([{"value": b"zombie"}], 6)
    after = place()
    assert after.read_entry()[0] < 0
    after.begin()
    after.send([{"value": b"row"}], 3)
    after.commit(1, "{}")
    with pytest.raises(DeliveryFailed, match="no other query uses the same 'writer'"):
        zombie.commit(1, "{}")
    zombie.abort()
    assert [each.value() for each in broker.read(place.topic)] == [b"row"]
    assert place().read_entry() == (1, "{}")


def test_an_aborted_transaction_leaves_neither_rows_nor_entry(place, broker: Broker) -> None:
    first = place()
    first.begin()
    first.send([{"value": b"lost"}] * 3, 12)
    first.abort()
    first.begin()
    first.send([{"key": "k", "value": None, "partition": 1, "headers": [("h", b"x")]}], 3)
    first.send_marks([("cti", b"2024-01-01T00:00:00Z")])
    first.commit(4, "text")
    found = [(each.partition(), each.key(), each.headers()) for each in broker.read(place.topic)]
    mark = [("cti", b"2024-01-01T00:00:00Z")]
    row = (1, b"k", [("h", b"x")])
    assert sorted(found, key=str) == sorted([(0, None, mark), row, (1, None, mark)], key=str)
    assert place().read_entry() == (4, "text")


@pytest.mark.parametrize("most", ["10", "0"])
def test_many_records_go_through_a_queue_of_any_length(place, broker: Broker, most) -> None:
    small = place(queue_buffering_max_messages=most)
    small.begin()
    small.send([{"key": b"k", "value": str(number)} for number in range(95)], 300)
    small.commit(1, "{}")
    assert [int(each.value()) for each in broker.read(place.topic)] == list(range(95))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"value": b"x" * 2_000_000}, "too large; next step: raise 'kafka.message.max.bytes'"),
        ({"value": b"x", "partition": 17}, "correct the rows' column 'partition'"),
    ],
)
def test_a_record_that_cannot_be_sent_names_the_remedy(place, message, said) -> None:
    transaction = place()
    transaction.begin()
    with pytest.raises(DeliveryFailed, match=said):
        transaction.send([message], len(message["value"]))
    transaction.abort()
    assert transaction.read_entry()[0] < 0


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            {"value": os.urandom(5_000)},
            r"too large.*; next step: raise 'kafka\.message\.",
        ),
        ({"value": b"x", "timestamp": 253_402_300_799_000}, "correct the rows' column 'timestamp'"),
    ],
)
def test_a_record_that_the_broker_refuses_names_the_remedy_whenever_its_answer_comes(
    place, topic, message, said
) -> None:
    """It may come while the offset is sent, which fails without the cause then."""
    target = topic(1, max_message_bytes="1000")
    for _ in range(8):
        transaction = place(target)
        transaction.begin()
        transaction.send([dict(message)], len(message["value"]))
        with pytest.raises(DeliveryFailed, match=said):
            transaction.commit(1, "{}")
        transaction.abort()
        transaction.close()


def test_what_cannot_work_is_refused_when_it_is_opened(place, broker: Broker) -> None:
    with pytest.raises(DeliveryFailed, match="topic 'nowhere' does not exist; next step: create"):
        place("nowhere")
    with pytest.raises(DeliveryFailed, match=r"lower 'kafka\.transaction\.timeout\.ms'"):
        place(transaction_timeout_ms="3600000")
    with pytest.raises(OptionError, match="`acks` must be set to `all`"):
        place(acks="1")
    with (
        broker.deny(ResourceType.TOPIC, place.topic),
        pytest.raises(DeliveryFailed, match="let the user write to the topic"),
    ):
        place()


def test_a_place_that_cannot_be_opened_leaves_no_reader_behind(place) -> None:
    before = count_clients()
    with pytest.raises(DeliveryFailed, match="does not exist") as told:
        place("nowhere")
    assert count_clients() - before <= 1, told


def count_clients() -> int:
    """The clients of librdkafka in this process, by their main threads."""
    names = [each.read_text() for each in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("rdk:main") for name in names)


@pytest.fixture
def options(broker: Broker, topic) -> KafkaWriteOptions:
    return KafkaWriteOptions(topic(2), "job", client={"bootstrap.servers": broker.bootstrap})


def find_marks(options: KafkaWriteOptions, broker: Broker) -> list[int]:
    """The marks of the first partition, in order, as seconds."""
    found = [each for each in broker.read(options.topic) if each.partition() == 0]
    found.sort(key=lambda each: each.offset())
    return [parse_instant(dict(each.headers())["cti"].decode()) // 10**6 for each in found]


def test_batches_that_other_processes_of_the_driver_commit_have_each_mark_once(
    options, broker: Broker
) -> None:
    """Spark's driver commits in a pool of processes, and each keeps its producer."""
    run, processes = QueryRun("q", "run"), [MarkWriter() for _ in range(3)]
    # In batch 3 a process opens its producer for a mark that is not greater.
    times = [10, 20, 30, 30, 40, 35, 50, 60]
    for batch, (process, second) in enumerate(zip([0, 1, 0, 2, 0, 1, 1, 2], times, strict=True)):
        processes[process].write_mark(options, run, batch, second * 10**6)
    assert find_marks(options, broker) == [10, 20, 30, 40, 50, 60]
    processes[0].write_mark(options, QueryRun("q", "next"), 7, 60 * 10**6)
    processes[2].write_mark(options, QueryRun("q", "next"), 8, 70 * 10**6)
    assert find_marks(options, broker)[-2:] == [60, 70]


def test_another_query_under_the_same_writer_is_told(options, broker: Broker) -> None:
    ours, theirs = MarkWriter(), MarkWriter()
    ours.write_mark(options, QueryRun("q", "run"), 0, 10**6)
    theirs.write_mark(options, QueryRun("p", "run"), 0, 2 * 10**6)
    with pytest.raises(DeliveryFailed, match="no other query uses the same 'writer'"):
        ours.write_mark(options, QueryRun("q", "run"), 1, 3 * 10**6)
    assert find_marks(options, broker) == [1, 2]


def test_a_task_that_has_no_rows_any_more_is_found_in_the_first_batch_of_a_run(options) -> None:
    """Only one of eight tasks had committed, and the batch comes again in fewer."""
    own = Owner.of(options, "q", 5)
    task = BatchTransaction(options.client, options.topic, own.transactional_id, own.group)
    task.begin()
    task.send([{"value": b"row"}], 3)
    task.commit(*LedgerEntry(4, rows=1).encode())
    commits, run = MarkWriter(), QueryRun("q", "run")
    with pytest.raises(ReplayDiffers, match="written rows in task 5, which has none now"):
        commits.check_tasks(options, run, 4, range(4))
    with pytest.raises(ReplayDiffers, match=r"batch 3 .* batch 4 .*\(task 5\)"):
        commits.check_tasks(options, run, 3, range(4))
    commits.check_tasks(options, QueryRun("p", "run"), 4, range(4))
    commits.check_tasks(options, run, 4, range(6))
    # Only the first batch of a run can come again.
    commits.check_tasks(options, run, 4, range(4))
    with pytest.raises(ReplayDiffers):
        commits.check_tasks(options, QueryRun("q", "next"), 4, range(4))


def test_rows_that_name_their_topics_are_written_once_whatever_their_order_in_an_attempt(
    broker: Broker, topic
) -> None:
    first, second = topic(1), topic(1)
    options = KafkaWriteOptions(client={"bootstrap.servers": broker.bootstrap})
    own = Owner.of(options, unique_name("write"), 0)
    values = [(first, "1"), (second, "2"), (first, "3"), (second, "4")]
    for attempt in (values, values[::-1]):
        topics, texts = zip(*attempt, strict=True)
        block = pa.record_batch({"value": list(texts), "topic": list(topics)})
        _write(options, own, 0, TaskRows(None, iter([block]), by_topic=True))
    assert [each.value() for each in broker.read(first)] == [b"1", b"3"]
    assert [each.value() for each in broker.read(second)] == [b"2", b"4"]
    found = read_entries(options.client, None, {own.group: 5}.get)
    assert {task: LedgerEntry.decode(*entry) for task, entry in found.items()} == {
        5: LedgerEntry(0, rows=4)
    }


def test_a_row_for_a_topic_that_does_not_exist_leaves_none_of_its_task(
    broker: Broker, topic
) -> None:
    there = topic(1)
    options = KafkaWriteOptions(client={"bootstrap.servers": broker.bootstrap})
    block = pa.record_batch({"value": ["1", "2"], "topic": [there, "nowhere"]})
    rows = TaskRows(None, iter([block]), by_topic=True)
    with pytest.raises(
        DeliveryFailed, match=r"topic 'nowhere' does not exist.* the column 'topic'"
    ):
        _write(options, Owner.of(options, unique_name("write"), 0), 0, rows)
    assert broker.read(there) == []
