"""Options that Spark's own Kafka source has as well, on a real broker: one promise a test."""

import hashlib
import json
import time

import pytest
from broker import Record, unique_name
from confluent_kafka import TopicPartition
from kafka_query import DAY_MS, Stream, event, read_rows, seconds, times
from pyspark.sql import Row

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.options.checks import read_kafka_options

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 120.0


def until(condition, what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.1)


def written(made: Stream) -> list[Row]:
    """The rows of the batches that a running query has written whole."""
    places = sorted(mark.parent for mark in (made.place / "rows").glob("batch=*/_SUCCESS"))
    return [row for place in places for row in read_rows(place)]


def offsets(rows) -> list[tuple[int, int]]:
    """Partition and offset of each row, in order of these."""
    return sorted((row.partition, row.offset) for row in rows)


def millis(second: float) -> str:
    """The timestamp of `event(second)` as an option takes it."""
    return str(DAY_MS + int(second * 1000))


# -- which topics ---------------------------------------------------------------------------------


def test_a_pattern_reads_every_topic_whose_whole_name_matches(stream) -> None:
    made = stream([event(1)])
    for name in (f"{made.topic}-a", f"{made.topic}-b", f"x{made.topic}"):
        made.broker.create_topic(name)
        made.broker.produce(name, [event(2)])
    rows = made.load_batch(subscribe=None, subscribePattern=f"{made.topic}(-a)?").collect()
    assert sorted(row.topic for row in rows) == [made.topic, f"{made.topic}-a"]


def test_a_topic_that_appears_later_is_read_from_its_start(stream) -> None:
    made = stream([event(1)])
    later = f"{made.topic}-later"
    query = made.query = made.start(
        once=False, subscribe=None, subscribePattern=f"{made.topic}.*", startingOffsets="latest"
    )
    try:
        query.processAllAvailable()
        made.broker.create_topic(later, 2)
        made.broker.produce(later, [event(2), event(3, 1)])
        until(lambda: len(written(made)) >= 2, "the records of the new topic")
        rows = written(made)
        found = sorted((row.topic, row.partition, seconds(row.start_time)) for row in rows)
        assert found == [(later, 0, 2), (later, 1, 3)]
    finally:
        query.stop()
    with pytest.raises(Exception, match=r"option 'subscribe' was 'not set' when"):
        made.run()


def test_a_pattern_may_match_nothing_at_first(stream) -> None:
    made = stream()
    late = unique_name("unborn")
    options = {"subscribe": None, "subscribePattern": late}
    assert made.run(**options) == []
    made.broker.create_topic(late)
    made.broker.produce(late, [event(5)])
    # A bounded run reads what was there when it began: the topic was.
    assert times(with_cti(made.run(**options))) == [5]


def with_cti(rows):
    """Rows of a stream without CTIs, for helpers that look at the column."""
    return [{**row.asDict(), "cti": None} for row in rows]


# -- where to start and to end --------------------------------------------------------------------


@pytest.fixture
def ten(stream) -> Stream:
    """Ten seconds of events in two partitions: even ones in 0, odd ones in 1."""
    return stream([event(s, s % 2) for s in range(10)], partitions=2)


def read(made: Stream, **options) -> list[float | None]:
    """The events of a batch read, in order of time."""
    given = {"startingOffsets": None, **options}
    return sorted(times(with_cti(made.load_batch(**given).collect())))


def test_a_read_starts_at_the_first_record_at_or_after_a_timestamp(ten) -> None:
    assert read(ten, startingTimestamp=millis(6)) == [6, 7, 8, 9]
    by_partition = json.dumps({ten.topic: {"0": int(millis(3)), "1": int(millis(8))}})
    assert read(ten, startingOffsetsByTimestamp=by_partition) == [4, 6, 8, 9]
    # Each goes before those that follow it.
    assert read(ten, startingOffsetsByTimestamp=by_partition, startingOffsets="latest") == [
        4, 6, 8, 9,
    ]  # fmt: skip
    assert read(
        ten, startingTimestamp=millis(6), startingOffsetsByTimestamp=by_partition
    ) == [6, 7, 8, 9]  # fmt: skip


def test_a_timestamp_after_the_last_record_fails_or_is_the_latest(ten) -> None:
    with pytest.raises(Exception, match=r"'startingTimestamp': .* partition 0 has no record at or"):
        read(ten, startingTimestamp=millis(8.5))
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(ten, startingTimestamp=millis(8.5), **latest) == [9]
    by_partition = json.dumps({ten.topic: {"0": int(millis(50)), "1": int(millis(0))}})
    assert read(ten, startingOffsetsByTimestamp=by_partition, **latest) == [1, 3, 5, 7, 9]


@pytest.mark.outside_ci
def test_a_stream_starts_at_a_timestamp_and_goes_on_from_its_checkpoint(ten) -> None:
    options = {"startingTimestamp": millis(8.5), "startingOffsetsByTimestampStrategy": "latest"}
    assert times(with_cti(ten.run(**options))) == [9]
    ten.broker.produce(ten.topic, [event(4), event(5, 1)])
    assert sorted(times(with_cti(ten.run(**options)))) == [4, 5, 9]


def test_a_read_ends_where_the_ending_options_say(ten) -> None:
    ends = json.dumps({ten.topic: {"0": 2, "1": -1}})
    assert read(ten, endingOffsets=ends) == [0, 1, 2, 3, 5, 7, 9]
    assert read(ten, endingTimestamp=millis(3), endingOffsets=ends) == [0, 1, 2]
    assert read(ten, endingTimestamp=millis(8.5)) == list(range(9))
    by_partition = json.dumps({ten.topic: {"0": int(millis(1)), "1": int(millis(90))}})
    assert read(ten, endingOffsetsByTimestamp=by_partition) == [0, 1, 3, 5, 7, 9]
    assert read(ten, startingTimestamp=millis(2), endingTimestamp=millis(5)) == [2, 3, 4]
    with pytest.raises(Exception, match=r"option 'startingTimestamp': .* starts at offset 3,"):
        read(ten, startingTimestamp=millis(5), endingTimestamp=millis(2))


def test_a_stream_with_ctis_refuses_to_cut_partitions_as_a_batch_read_can(stream) -> None:
    with pytest.raises(Exception, match="'minPartitions': it was given to a stream with"):
        stream().run(minPartitions=4, ctiFrequency=1)


# -- how much at a time ---------------------------------------------------------------------------


def test_a_batch_waits_until_enough_offsets_are_new(broker, topic) -> None:
    name = topic()
    broker.produce(name, [event(s) for s in range(3)])
    given = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "1 hour",
    }
    driver = StreamDriver(read_kafka_options(given))

    def planned(start):
        offset = driver.plan(start, None)
        (span,) = StreamOffset.from_json(offset).ranges()
        return offset, (span.start_inclusive, span.end_exclusive)

    first, span = planned(INITIAL_OFFSET)
    assert span == (0, 3)
    broker.produce(name, [event(3), event(4)])
    # There may be an offset without records, which tells that the stream has fallen quiet.
    waiting, span = planned(first)
    assert span in [(0, 3), (3, 3)]
    broker.produce(name, [event(s) for s in (5, 6, 7)])
    second, span = planned(waiting)
    assert span == (3, 8)
    broker.produce(name, [event(8)])
    waiting, span = planned(second)
    assert span in [(3, 8), (8, 8)]
    # A bounded run waits for nothing.
    driver.limit_to_current_ends()
    assert planned(waiting)[1] == (8, 9)


def test_a_batch_waits_no_longer_than_its_delay(stream) -> None:
    made = stream([event(0)])
    query = made.start(once=False, minOffsetsPerTrigger=1000, maxTriggerDelay="2s")
    try:
        until(lambda: len(written(made)) == 1, "the first batch")
        made.broker.produce(made.topic, [event(1)])
        until(lambda: len(written(made)) == 2, "the batch that waited long enough")
    finally:
        query.stop()


def test_a_batch_read_is_cut_into_parts_and_no_row_changes(stream) -> None:
    records = [event((7 * n) % 23, n % 2) for n in range(40)]
    made = stream(records, partitions=2, ctiFrequency=3, violationPolicy="flag")
    whole = made.load_batch()
    expected = sorted((row.partition, row.offset, row.violation) for row in whole.collect())
    assert {violation for *_, violation in expected} == {None, "late"}
    for options, tasks in (
        ({"minPartitions": 5}, 6),
        ({"maxRecordsPerPartition": 7}, 6),
        ({"maxRecordsPerPartition": 20, "minPartitions": 2}, 2),
    ):
        cut = made.load_batch(**options)
        assert cut.rdd.getNumPartitions() == tasks
        rows = cut.collect()
        assert sorted((row.partition, row.offset, row.violation) for row in rows) == expected
    (last,) = [row for row in made.load_batch(minPartitions=4, finalCti="true").collect()
               if row.cti is not None]  # fmt: skip
    assert last.cti.year == 9999


@pytest.mark.outside_ci
def test_a_stream_without_ctis_is_cut_into_parts(stream) -> None:
    made = stream([event(s) for s in range(10)], kafka__group__id=unique_name("cut"))
    options = {"maxRecordsPerPartition": 3}
    assert offsets(made.run(**options)) == [(0, n) for n in range(10)]
    made.broker.produce(made.topic, [event(s) for s in range(5)])
    rows = made.run(**options)
    assert offsets(rows) == [(0, n) for n in range(15)]
    assert committed(made, made.options["kafka.group.id"]) == 15
    # The same checkpoint goes on without the option.
    made.broker.produce(made.topic, [event(1)])
    assert offsets(made.run()) == [(0, n) for n in range(16)]


def committed(made: Stream, group: str) -> int:
    """A lag tool's answer for partition 0."""
    consumer = made.broker.consumer(group_id=group)
    try:
        (part,) = consumer.committed([TopicPartition(made.topic, 0)], timeout=30)
        return int(part.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("named", ["groupIdPrefix", "kafka.group.id"])
def test_the_group_is_the_prefix_and_the_streams_id_unless_it_is_named(stream, named: str) -> None:
    group = unique_name("mine")
    made = stream([event(1)])
    made.run(**{named: group})
    if named == "groupIdPrefix":
        (offset, *_) = sorted((made.place / "checkpoint" / "offsets").glob("[0-9]*"))
        group += "-" + json.loads(offset.read_text().splitlines()[-1])["stream"]
    assert committed(made, group) == 1


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ssl.truststore.location", "use kafka.ssl.ca.location (a PEM file"),
        ("ssl.keystore.key", "use kafka.ssl.key.pem"),
        ("sasl.login.callback.handler.class", "use kafka.sasl.oauthbearer.method=oidc"),
        ("ssl.engine.factory.class", "use kafka.ssl.ca.location"),
    ],
)
def test_a_java_only_security_option_names_librdkafkas(stream, key: str, said: str) -> None:
    with pytest.raises(Exception, match="PYTHON") as failure:
        stream().load_batch(**{f"kafka.{key}": "s3cret"}).collect()
    assert f"option 'kafka.{key}': it is not supported here" in str(failure.value)
    assert said in str(failure.value)
    assert "s3cret" not in str(failure.value)


# -- what topics hold -----------------------------------------------------------------------------


def transact(made: Stream, *transactions: tuple[str, list[Record]]) -> None:
    """Transactions that are committed or aborted."""
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions(60)
    for end, records in transactions:
        producer.begin_transaction()
        for each in records:
            producer.produce(made.topic, each.value, partition=0, timestamp=each.timestamp_ms)
        producer.flush(60)
        getattr(producer, f"{end}_transaction")(60)
    made.broker.wait_for_markers(made.topic)


def test_aborted_records_are_read_only_uncommitted(stream) -> None:
    made = stream([event(0)])
    transact(
        made,
        ("abort", [event(1), event(2)]),
        ("commit", [event(3), event(4)]),
        ("abort", [event(5)]),
    )
    assert read(made) == [0, 3, 4]
    assert read(made, kafka__isolation__level="read_uncommitted") == [0, 1, 2, 3, 4, 5]
    # The log ends with an aborted record and a marker; parts may begin and end within gaps.
    assert read(made, maxRecordsPerPartition=2) == [0, 3, 4]
    assert times(with_cti(made.run(maxOffsetsPerTrigger=1))) == [0, 3, 4]
    transact(made, ("commit", [event(6)]))
    assert times(with_cti(made.run())) == [0, 3, 4, 6]


def test_an_open_transaction_is_not_read_until_it_is_committed(stream) -> None:
    made = stream([event(0)])
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(made.topic, b"{}", partition=0, timestamp=DAY_MS + 1000)
    producer.flush(60)
    made.broker.produce(made.topic, [event(2)])
    assert read(made) == [0]
    assert times(with_cti(made.run())) == [0]
    producer.commit_transaction(60)
    made.broker.wait_for_markers(made.topic)
    assert times(with_cti(made.run())) == [0, 1, 2]


def test_a_compacted_topic_has_gaps_tombstones_and_the_last_value_of_each_key(stream) -> None:
    made = stream(
        [Record(f"old {n}", f"k{n % 3}", 0, DAY_MS + n) for n in range(30)],
        config={
            "cleanup_policy": "compact",
            "segment_ms": 100,
            "min_cleanable_dirty_ratio": 0.01,
            "max_compaction_lag_ms": 200,
        },
    )
    last = [
        Record("new 0", "k0", 0, DAY_MS + 100),
        Record(None, "k1", 0, DAY_MS + 101),
        Record("new 2", "k2", 0, DAY_MS + 102),
    ]
    made.broker.produce(made.topic, last)

    def compacted() -> bool:
        # The segment that is written to is never compacted: a record closes the one before it.
        made.broker.produce(made.topic, [Record("tick", "tick", 0)])
        return len([m for m in made.broker.read(made.topic) if m.key() != b"tick"]) == 3

    until(compacted, "the broker's log cleaner")
    expected = [(30, b"k0", b"new 0"), (31, b"k1", None), (32, b"k2", b"new 2")]

    def kept(rows):
        return [(row.offset, row.key, row.value) for row in rows if row.key != b"tick"]

    assert kept(made.load_batch().collect()) == expected
    # A part of the range may hold nothing but a gap.
    cut = sorted(made.load_batch(maxRecordsPerPartition=10).collect(), key=lambda row: row.offset)
    assert kept(cut) == expected
    assert kept(made.run(maxOffsetsPerTrigger=10)) == expected


def test_null_keys_and_tombstones_are_rows(stream) -> None:
    records = [
        Record("v", None, 0, DAY_MS),
        Record(None, "k", 0, DAY_MS),
        Record("", "", 0, DAY_MS),
    ]
    rows = stream(records).load_batch().collect()
    assert [(row.key, row.value) for row in rows] == [(None, b"v"), (b"k", None), (b"", b"")]


def test_an_empty_topic_gives_no_rows(stream) -> None:
    assert stream().load_batch().collect() == []


@pytest.mark.outside_ci
def test_values_of_a_mebibyte_arrive_whole(stream) -> None:
    made = stream(config={"max_message_bytes": 4 * 1024 * 1024})
    values = [bytes([n]) * (1024 * 1024 + n) for n in range(8)]
    producer = made.broker.producer(message_max_bytes=2 * 1024 * 1024)
    for value in values:
        producer.produce(made.topic, value, partition=0)
    assert producer.flush(60) == 0
    expected = [hashlib.sha256(value).hexdigest() for value in values]
    found = made.load_batch().selectExpr("offset", "sha2(value, 256) AS hash").collect()
    assert [row.hash for row in found] == expected
    assert [hashlib.sha256(row.value).hexdigest() for row in made.run()] == expected
