"""`failOnDataLoss` = `false` on a topic that is certainly the same: what is left is read once.

A log that lost its end, as after an unclean leader election, and a topic that was hidden for some
seconds, as when rights are withdrawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from broker import Broker
from broker import started as broker_started
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType
from kafka_process import KafkaProcess
from kafka_query import Stream, event
from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.timeout(400)

FLAGGED = {"ctiFrequency": "1", "violationPolicy": "flag", "failOnDataLoss": "false"}


@contextmanager
def hidden(broker: Broker, topic: str) -> Iterator[None]:
    """Nobody may even know of the topic, until the broker has forgotten the rule."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    try:
        with broker.deny(ResourceType.TOPIC, topic, AclOperation.DESCRIBE):
            yield
    finally:
        wait_for(lambda: topic in admin.list_topics(timeout=10).topics)


def wait_for(holds: Callable[[], bool]) -> None:
    """Return when the broker has come to that."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def found(rows: list[Row]) -> list[tuple[str, int, str | None]]:
    """Topic, offset and violation of the data rows, in order."""
    return sorted((row.topic, row.offset, row.violation) for row in rows if row.cti is None)


@pytest.mark.outside_ci
def test_a_topic_that_was_hidden_is_read_on_where_it_was_and_no_row_comes_twice(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    other = broker.create_topic(f"{name}-other")
    for each, second in ((name, 10), (other, 20)):
        broker.produce(each, [event(second), event(second + 1)])
    options = {**FLAGGED, "subscribePattern": f"{name}.*"}
    made = Stream(spark, broker, name, tmp_path, options)
    made.run(subscribe=None)
    with hidden(broker, other):
        broker.produce(name, [event(50)])
        made.run(subscribe=None)
    assert list(made.report()["partitions"]) == [name]
    broker.produce(other, [event(30), event(60)])
    rows = made.run(subscribe=None)
    assert found(rows) == [
        (name, 0, None),
        (name, 1, None),
        (name, 2, None),
        (other, 0, None),
        (other, 1, None),
        # Meanwhile the stream has gone on to 50 without it.
        (other, 2, "late"),
        (other, 3, None),
    ]


@pytest.mark.outside_ci
def test_a_log_that_lost_its_last_record_is_read_on_from_its_new_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    server = KafkaProcess()
    with closing(server):
        broker = broker_started("process", lambda: server)
        name = broker.create_topic()
        for second in (10, 11, 12):
            broker.produce(name, [event(second)])
        made = Stream(spark, broker, name, tmp_path, FLAGGED)
        assert len(found(made.run())) == 3
        broker.stop()
        server.cut_log(name, 0)
        broker.start()
        assert broker.end_offsets(name) == {0: 2}
        with pytest.raises(Exception, match="ends at offset 2, but was read up to 3"):
            made.run(failOnDataLoss="true")
        made.run()
        broker.produce(name, [event(20), event(21)])
        rows = made.run()
        offsets = [(offset, violation) for _, offset, violation in found(rows)]
        assert offsets == [(0, None), (1, None), (2, None), (2, None), (3, None)]
