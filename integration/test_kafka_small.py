"""Small ranges read at once, against the same ranges read in turn, on a real broker."""

from __future__ import annotations

import pytest
from broker import Broker, Record

from pyspark_timestream.kafka_fetch import RangeReader
from pyspark_timestream.kafka_options import KafkaOptions, read_kafka_options
from pyspark_timestream.kafka_small import SmallRanges
from pyspark_timestream.ranges import Partition, Range
from pyspark_timestream.records import Needs

pytestmark = pytest.mark.timeout(300)
ALL = Needs(timestamps=True, keys=True, values=True, headers=True)
PARTITIONS = 30


def options(broker: Broker, topic: str, **others: str) -> KafkaOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    return read_kafka_options({**given, **others})


def fill(broker: Broker, topic: str) -> None:
    """Five records a partition; every third partition has an aborted transaction among them."""

    def records(numbers: range) -> list[Record]:
        return [
            Record(f"{part}-{n}", None if n % 2 else str(n), part, 1_000 * n, [("n", str(n))])
            for part in range(PARTITIONS)
            for n in numbers
        ]

    broker.produce(topic, records(range(2)))
    producer = broker.producer(transactional_id=topic)
    producer.init_transactions(60)
    producer.begin_transaction()
    for part in range(0, PARTITIONS, 3):
        producer.produce(topic, b"gone", partition=part)
    producer.flush(60)
    producer.abort_transaction(60)
    broker.wait_for_markers(topic)
    broker.produce(topic, records(range(2, 5)))


def test_small_ranges_have_the_same_records_at_once_and_in_turn(broker: Broker) -> None:
    topic = broker.create_topic(partitions=PARTITIONS)
    fill(broker, topic)
    ends = broker.end_offsets(topic)
    given = options(broker, topic)
    at_once, in_turn = SmallRanges(given, "small"), RangeReader(given, "small")
    try:
        # Once for the first connection, and then as a worker does: batch after batch.
        for start, before_end in ((0, 0), (3, 0), (1, 1), (0, 3)):
            spans = [
                Range(Partition(topic, part), start, end - before_end) for part, end in ends.items()
            ]
            found = at_once.read(spans, ALL)
            assert found.keys() == set(spans)
            for span in spans:
                expected = [block for block in in_turn.read(span, ALL) if len(block.offsets)]
                assert found[span] == expected, span
    finally:
        at_once.close()
        in_turn.close()


def test_what_is_gone_is_not_whole_and_the_rest_is(broker: Broker) -> None:
    topic = broker.create_topic(partitions=4)
    broker.produce(topic, [Record(b"x", None, part) for part in range(4) for _ in range(6)])
    reader = SmallRanges(options(broker, topic), "small")
    spans = [Range(Partition(topic, part), 1, 6) for part in range(4)]
    try:
        assert reader.read(spans, ALL).keys() == set(spans)
        broker.delete_records(topic, {2: 4})
        assert spans[2] not in reader.read(spans, ALL)
        others = [spans[0], spans[1], spans[3]]
        assert reader.read(others, ALL).keys() == set(others)
        beyond = Range(Partition(topic, 0), 4, 9)
        assert beyond not in reader.read([beyond, spans[1]], ALL)
    finally:
        reader.close()


def test_a_topic_made_anew_under_the_same_name_is_read_anew(broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    reader = SmallRanges(options(broker, topic), "small")
    spans = [Range(Partition(topic, part), 0, 3) for part in range(2)]
    try:
        for text in ("old", "new"):
            broker.produce(topic, [Record(text, None, part) for part in range(2) for _ in "123"])
            found = reader.read(spans, ALL)
            # The first reading after the change may find nothing, but never what is gone.
            for blocks in found.values():
                assert [block.values.to_pylist() for block in blocks] == [[text.encode()] * 3]
            if text == "old":
                assert found.keys() == set(spans)
                broker.delete_topic(topic)
                broker.create_topic(topic, partitions=2)
        assert reader.read(spans, ALL).keys() == set(spans)
    finally:
        reader.close()
