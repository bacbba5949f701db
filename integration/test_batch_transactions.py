"""Transactions of one place on a real broker (semantics 29.3): fencing, repetition, refusals."""

import pytest
from broker import Broker, unique_name
from confluent_kafka.admin import ResourceType

from pyspark_timestream import DeliveryFailed, OptionError
from pyspark_timestream.producer.batch_transaction import BatchTransaction


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
    zombie.send([{"value": b"zombie"}])
    after = place()
    assert after.read_entry()[0] < 0
    after.begin()
    after.send([{"value": b"row"}])
    after.commit(1, "{}")
    with pytest.raises(DeliveryFailed, match="no other query uses the same 'writer'"):
        zombie.commit(1, "{}")
    zombie.abort()
    assert [each.value() for each in broker.read(place.topic)] == [b"row"]
    assert place().read_entry() == (1, "{}")


def test_an_aborted_transaction_leaves_neither_rows_nor_entry(place, broker: Broker) -> None:
    first = place()
    first.begin()
    first.send([{"value": b"lost"}] * 3)
    first.abort()
    first.begin()
    first.send([{"key": "k", "value": None, "partition": 1, "headers": [("h", b"x")]}])
    first.send_marks([("cti", b"2024-01-01T00:00:00Z")])
    first.commit(4, "text")
    found = [(each.partition(), each.key(), each.headers()) for each in broker.read(place.topic)]
    mark = [("cti", b"2024-01-01T00:00:00Z")]
    row = (1, b"k", [("h", b"x")])
    assert sorted(found, key=str) == sorted([(0, None, mark), row, (1, None, mark)], key=str)
    assert place().read_entry() == (4, "text")


def test_many_records_go_through_a_queue_that_holds_few(place, broker: Broker) -> None:
    small = place(queue_buffering_max_messages="10")
    small.begin()
    small.send([{"key": b"k", "value": str(number)} for number in range(95)])
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
        transaction.send([message])
    transaction.abort()
    assert transaction.read_entry()[0] < 0


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
