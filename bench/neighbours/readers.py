"""Readers of a topic from its beginning to its end, in the environment of this project.

Each reads offset, timestamp, key and value of every record, and tallies them. *A loop* looks at
records one by one, as programs with confluent-kafka do; *into pyarrow* makes columns of the records
of each call. Ours is the reader of a task (`RangeReader`), partition after partition; the process's
environment says whether it has the native reader.

All have the settings of librdkafka that the transport has (`settings`), CRC checks included, since
the readers are compared and not the settings: with the client's own defaults a consumer stops
fetching for a second whenever its queue is full, and each of the neighbours takes several times as
long.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from neighbours.tally import Tally
from pyspark_timestream.kafka.client.consumer import build_consumer_config
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

__all__ = [
    "READERS",
    "Topic",
    "read_as_columns",
    "read_one_by_one",
    "read_ranges",
    "settings",
]

_GROUP: Final = "neighbours"
_A_CALL: Final = 10_000
_PATIENCE_S: Final = 30.0


class Topic(NamedTuple):
    """A topic with the same number of records in each partition, without gaps.

    Attributes:
        bootstrap: the broker's address.
        name: the topic's name.
        partitions: how many it has.
        records: how many all partitions have together.
    """

    bootstrap: str
    name: str
    partitions: int
    records: int


def settings(topic: Topic) -> dict[str, Any]:
    """The transport's settings of librdkafka, for a consumer that is told its positions."""
    given = build_consumer_config(_options(topic), _GROUP)
    return given | {"enable.partition.eof": False, "auto.offset.reset": "earliest"}


def read_one_by_one(topic: Topic, contents: bool = False) -> Tally:
    """A loop over confluent-kafka's messages."""
    tally = Tally(contents)
    for messages in _consume(topic):
        for message in messages:
            tally.add_one(message.offset(), message.timestamp()[1], message.key(), message.value())
    return tally


def read_as_columns(topic: Topic, contents: bool = False) -> Tally:
    """confluent-kafka's messages, and pyarrow's arrays of them."""
    tally = Tally(contents)
    for messages in _consume(topic):
        tally.add(
            pa.array([message.offset() for message in messages], pa.int64()),
            pa.array([message.timestamp()[1] for message in messages], pa.int64()),
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
        )
    return tally


def read_ranges(topic: Topic, contents: bool = False) -> Tally:
    """Our reader's blocks."""
    tally, reader = Tally(contents), RangeReader(_options(topic), _GROUP)
    needs = ColumnSet(timestamps=True, keys=True, values=True)
    for number in range(topic.partitions):
        span = OffsetRange(Partition(topic.name, number), 0, topic.records // topic.partitions)
        for block in reader.read(span, needs):
            tally.add(block.offsets, block.timestamps_ms, block.keys, block.values)
    reader.close()
    return tally


def _options(topic: Topic) -> KafkaOptions:
    return read_kafka_options(
        {
            "transport": "kafka",
            "subscribe": topic.name,
            "kafka.bootstrap.servers": topic.bootstrap,
            "ctiFrequency": "10 seconds",
            "ctiDelay": "1 second",
        }
    )


def _consume(topic: Topic) -> Iterator[list[Message]]:
    """All messages, as many as a call gives at once.

    Raises:
        KafkaException: the broker's error.
        TimeoutError: the topic has fewer.
    """
    consumer = Consumer(settings(topic))
    parts = [TopicPartition(topic.name, number, 0) for number in range(topic.partitions)]
    consumer.assign(parts)
    left = topic.records
    while left:
        messages = consumer.consume(_A_CALL, _PATIENCE_S)
        if not messages:
            raise TimeoutError(f"{topic.name}: {left} records did not come in {_PATIENCE_S} s")
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
        yield messages
        left -= len(messages)
    consumer.close()


READERS: Final[Mapping[str, Callable[..., Tally]]] = {
    "confluent-kafka, a loop": read_one_by_one,
    "confluent-kafka into pyarrow": read_as_columns,
    "without native": read_ranges,
    "native": read_ranges,
}
"""Contender -> its reader; the last two are ours."""
