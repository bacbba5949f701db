"""The records that Kafka benchmarks read, and how a topic gets many of them quickly."""

from collections.abc import Callable, Iterator
from typing import Final

from broker import Broker
from confluent_kafka import Producer

__all__ = ["START_MS", "Values", "filled", "reading", "values"]

START_MS: Final = 1_700_000_000_000
_BLOCK: Final = 20_000
_READINGS: Final = [f"{i / 7:.6f}".encode() for i in range(977)]
_KEYS: Final = [b"%02d" % i for i in range(100)]
_VALUE: Final = b'{"device":%d,"ts":%d,"reading":%s,"unit":"C","site":"north-hall"}'


def reading(number: int) -> float:
    """The reading of a record, as its JSON says it."""
    return float(_READINGS[number % 977])


def values(first: int, end: int) -> Iterator[bytes]:
    """JSON of about 83 bytes, a millisecond of event time apart; a key has 2 more."""
    for number in range(first, end):
        yield _VALUE % (number % 100, START_MS + number, _READINGS[number % 977])


Values = Callable[[int, int], Iterator[bytes]]


def filled(
    kafka: Broker, count: int, partitions: int, make: Values = values, topic: str | None = None
) -> str:
    """A topic with `count` records, timestamps like event times, over the partitions in turn.

    Args:
        kafka: the broker.
        count: how many records.
        partitions: how many partitions.
        make: the values of the records from a number to another.
        topic: its name; None for a new one.

    Raises:
        OSError: the broker did not take them all.
    """
    topic = kafka.create_topic(topic, partitions)
    producer = kafka.producer(
        enable_idempotence=True,
        linger_ms=50,
        batch_size=1_000_000,
        queue_buffering_max_messages=1_000_000,
        delivery_report_only_error=True,
    )
    for first in range(0, count, _BLOCK):
        _send(producer, topic, partitions, make(first, min(first + _BLOCK, count)), first)
    left = producer.flush(120)
    there = sum(kafka.end_offsets(topic).values())
    if left or there != count:
        raise OSError(f"{topic}: {there} of {count} records are there, {left} were not sent")
    return topic


def _send(
    producer: Producer, topic: str, partitions: int, made: Iterator[bytes], first: int
) -> None:
    for number, value in enumerate(made, first):
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    _KEYS[number % 100],
                    number % partitions,
                    timestamp=START_MS + number,
                )
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)
