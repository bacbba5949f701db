"""`kafka.group.protocol=consumer` (KIP-848): no client joins a group, so nothing changes."""

import json
from pathlib import Path

import pytest
from broker import Broker, unique_name
from confluent_kafka import TopicPartition
from harness import forget_batches
from kafka_query import DAY_MS, Stream, event
from pyspark.sql import SparkSession
from writing import Mark, TopicJob, passed_on

from pyspark_timestream import PunctuatedProducer
from pyspark_timestream.core.instants import format_instant

pytestmark = pytest.mark.timeout(400)

NEW = {"kafka.group.protocol": "consumer"}
TIMEOUT_S = 30


def in_group(broker: Broker, group: str, topic: str) -> TopicPartition:
    """A group's entry for partition 0 of a topic."""
    consumer = broker.consumer(group_id=group)
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
        return found
    finally:
        consumer.close()


def test_source_reads_on_and_keeps_states_in_its_group_by_the_new_protocol(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    name, group = topic(), unique_name("new")
    given = {**NEW, "kafka.group.id": group, "ctiFrequency": "1", "finalCti": "false"}
    made = Stream(spark, broker, name, tmp_path / name, given)
    broker.produce(name, [event(second) for second in range(5)])
    assert [row.offset for row in made.run(maxOffsetsPerTrigger=2) if row.cti is None] == [
        *range(5)
    ]
    left = in_group(broker, group, name)
    assert left.offset == 5
    assert json.loads(left.metadata)
    broker.produce(name, [event(second) for second in range(5, 8)])
    assert [row.offset for row in made.run() if row.cti is None] == [*range(8)]
    # The second run found the first one's states in the group: it has counted all events.
    assert made.report()["events"] == 8
    assert made.report()["warnings"] == []
    assert in_group(broker, group, name).offset == 8


@pytest.mark.outside_ci
def test_sink_writes_each_row_once_also_when_a_batch_comes_again_by_the_new_protocol(
    spark: SparkSession, broker: Broker, topic, tmp_path: Path
) -> None:
    source, target = topic(), topic()
    broker.produce(source, [event(second, station="a") for second in range(6)])
    made = TopicJob(spark, broker, source, target, tmp_path / target, NEW)
    made.run(passed_on(made.load(kafka__group__protocol="consumer")))
    before = made.read()
    assert len([each for each in before if not isinstance(each, Mark)]) == 6
    assert before[-1] == Mark(5, "job", False)
    forget_batches(made.place / "checkpoint" / "commits", -1)
    made.run(passed_on(made.load(kafka__group__protocol="consumer")))
    assert made.read() == before
    rows = spark.range(20).selectExpr("string(id) AS value").write.format("timestream")
    options = {"transport": "kafka", "kafka.bootstrap.servers": broker.bootstrap, **NEW}
    rows.options(**options, topic=target).mode("append").save()
    assert len(made.values()) == 26


def test_producer_marks_and_transactions_work_by_the_new_protocol(broker: Broker, topic) -> None:
    name = topic(2)
    config = {"bootstrap.servers": broker.bootstrap, "group.protocol": "consumer"}
    config["transactional.id"] = unique_name("new")
    with PunctuatedProducer(config, name, "w") as one:
        one.produce("gone", partition=0)
        one.flush()
        one.abort()
        one.produce("kept", partition=0)
        one.commit(format_instant(DAY_MS * 1000))
    found = [message.value() for message in broker.read(name)]
    # The mark and the close, in both partitions.
    assert sorted(found, key=str) == [None, None, None, None, b"kept"]
