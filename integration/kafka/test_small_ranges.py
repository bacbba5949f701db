"""Small ranges read at once, against the same ranges read in turn, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from broker import Broker, Record

from pyspark_timestream.kafka.client.range_reader import Prefetcher, RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

pytestmark = pytest.mark.timeout(300)
ALL = ColumnSet(timestamps=True, keys=True, values=True, headers=True)
PARTITIONS = 30


def options(broker: Broker, topic: str, **others: str) -> KafkaOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    return read_kafka_options({**given, **others})


def all_of(
    reader: Prefetcher, spans: Sequence[OffsetRange]
) -> dict[OffsetRange, list[RecordBlock]]:
    """The records of `spans` once these come whole.

    On a slow machine a connection may take longer than a reader waits, which is no fault: in a task
    the ranges would then be read in turn.
    """
    deadline_s = time.monotonic() + 120
    while (found := reader.read(spans, ALL)).keys() != set(spans):
        assert time.monotonic() < deadline_s, f"{set(spans) - found.keys()} never came whole"
    return found


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
    at_once, in_turn = Prefetcher(given, "small"), RangeReader(given, "small")
    try:
        # Once for the first connection, and then as a worker does: batch after batch.
        for start, before_end in ((0, 0), (3, 0), (1, 1), (0, 3)):
            spans = [
                OffsetRange(Partition(topic, part), start, end - before_end)
                for part, end in ends.items()
            ]
            found = all_of(at_once, spans)
            for span in spans:
                expected = [block for block in in_turn.read(span, ALL) if len(block.offsets)]
                assert found[span] == expected, span
    finally:
        at_once.close()
        in_turn.close()


def test_what_is_gone_is_not_whole_and_the_rest_is(broker: Broker) -> None:
    topic = broker.create_topic(partitions=4)
    broker.produce(topic, [Record(b"x", None, part) for part in range(4) for _ in range(6)])
    reader = Prefetcher(options(broker, topic), "small")
    spans = [OffsetRange(Partition(topic, part), 1, 6) for part in range(4)]
    try:
        all_of(reader, spans)
        broker.delete_records(topic, {2: 4})
        assert spans[2] not in reader.read(spans, ALL)
        all_of(reader, [spans[0], spans[1], spans[3]])
        beyond = OffsetRange(Partition(topic, 0), 4, 9)
        assert beyond not in reader.read([beyond, spans[1]], ALL)
    finally:
        reader.close()


def test_a_topic_made_anew_under_the_same_name_is_read_anew(broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    reader = Prefetcher(options(broker, topic), "small")
    spans = [OffsetRange(Partition(topic, part), 0, 3) for part in range(2)]
    try:
        for text in ("old", "new"):
            broker.produce(topic, [Record(text, None, part) for part in range(2) for _ in "123"])
            found = all_of(reader, spans) if text == "old" else reader.read(spans, ALL)
            # The first reading after the change may find nothing, but never what is gone.
            for blocks in found.values():
                assert [block.values.to_pylist() for block in blocks] == [[text.encode()] * 3]
            if text == "old":
                broker.delete_topic(topic)
                broker.create_topic(topic, partitions=2)
        for blocks in all_of(reader, spans).values():
            assert [block.values.to_pylist() for block in blocks] == [[b"new"] * 3]
    finally:
        reader.close()
