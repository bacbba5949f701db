"""The stream's CTI over partitions (contract 3.5, 3.7) on a real broker, a test a rule.

Late events are flagged: a row that meets the policy is seen, one that was judged by another CTI
than it should be is seen as well.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from confluent_kafka import Producer
from kafka_query import DAY_MS, Stream, ctis, event, seconds
from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

FLAGGED = {"ctiFrequency": "1", "violationPolicy": "flag", "idleTimeout": "1 second"}


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, topic, tmp_path: Path):
    """Make a `Stream` over a fresh topic filled with records."""

    def make(records=(), partitions: int = 1, **options) -> Stream:
        name = topic(partitions)
        broker.produce(name, list(records))
        given = {key: str(value) for key, value in {**FLAGGED, **options}.items() if value}
        return Stream(spark, broker, name, tmp_path / name, given)

    return make


@contextmanager
def running(made: Stream, **options: Any) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run the stream; the function given waits until something holds."""
    query = made.query = made.start(once=False, **options)

    def until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not holds():
            if not query.isActive:
                raise AssertionError(f"the query has ended: {query.exception()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within two minutes; rows: {found(made)}")
            time.sleep(0.1)

    try:
        yield until
    finally:
        query.stop()


def offset_of(made: Stream) -> dict[str, Any]:
    """The newest offset in the checkpoint; empty before the first."""
    places = (made.place / "checkpoint" / "offsets").glob("[0-9]*")
    newest = max(places, key=lambda place: int(place.name), default=None)
    return json.loads(newest.read_text().splitlines()[-1]) if newest else {}


def is_idle(made: Stream) -> set[int]:
    """The partitions that the newest offset says are idle."""
    shares = offset_of(made).get("partitions", {}).get(made.topic, {})
    return {int(number) for number, share in shares.items() if share.get("idle")}


def found(made: Stream) -> list[tuple[int, float | None, str | None]]:
    """(partition, second, violation) of every data row so far, by partition and offset."""
    rows = [row for row in made.rows() if row["cti"] is None]
    rows.sort(key=lambda row: (row.topic, row.partition, row.offset))
    return [(row.partition, seconds(row.start_time), row.violation) for row in rows]


def told(made: Stream) -> list[float | None]:
    """The stream's CTI rows so far."""
    return ctis(made.rows())


# -- idle partitions ------------------------------------------------------------------------------


def test_an_idle_partition_no_longer_holds_back_and_its_late_rows_meet_the_policy(stream) -> None:
    made = stream([event(5, 0), event(9, 0)], partitions=2)
    with running(made) as until:
        until(lambda: told(made) == [9])
        made.broker.produce(made.topic, [event(3, 1), event(12, 1)])
        until(lambda: len(found(made)) == 4)
        assert found(made)[2:] == [(1, 3, "late"), (1, 12, None)]
        # Partition 0 is idle at 9, so the one that came back decides alone.
        until(lambda: told(made)[-1] == 12)
        assert told(made) == sorted(told(made))
        until(lambda: is_idle(made) == {0, 1})
        report = made.report()
    assert {part["idle"] for part in report["partitions"][made.topic].values()} <= {True, False}


def test_when_all_are_idle_the_greatest_partition_cti_counts(stream) -> None:
    made = stream([event(9, 0), event(5, 1)], partitions=2)
    with running(made) as until:
        until(lambda: told(made)[-1:] == [9])
        assert is_idle(made) == {0, 1}
        assert told(made) in ([5, 9], [9])


def test_an_open_transaction_is_not_idle(stream) -> None:
    made = stream([event(9, 0), event(5, 1)], partitions=2)
    producer = transaction(made, 6)
    with running(made) as until:
        until(lambda: is_idle(made) == {0})
        time.sleep(3)  # three times the timeout: a wrong rule would have time to be wrong
        assert told(made) == [5]
        producer.commit_transaction()
        until(lambda: len(found(made)) == 3)
        # Were the partition idle, the stream's CTI would be 9, and this row late.
        assert found(made)[-1] == (1, 6, None)


def transaction(made: Stream, second: float) -> Producer:
    """A transaction that stays open, with one event in partition 1."""
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(made.topic, b"{}", partition=1, timestamp=DAY_MS + int(second * 1000))
    producer.flush()
    return producer


def test_a_partition_held_back_by_a_rate_limit_is_not_idle(stream) -> None:
    backlog = [event(s, 1) for s in range(1, 31)]
    made = stream([event(100, 0), *backlog], partitions=2, maxOffsetsPerTrigger=2)
    with running(made) as until:
        until(lambda: len(found(made)) == 31)
        assert [row[2] for row in found(made)] == [None] * 31
        until(lambda: told(made)[-1] == 100)


def test_an_empty_partition_holds_back_and_a_bounded_run_waits_for_nobody(stream) -> None:
    made = stream([event(5, 0), event(9, 0)], partitions=2)
    made.run()
    assert told(made) == []
    with running(made) as until:
        until(lambda: told(made) == [9])
    made.broker.produce(made.topic, [event(12, 0)])
    # Partition 1 is recorded as idle: the bounded run leaves it out, and waits for no timeout.
    made.run()
    assert told(made)[-1] == 12
    assert 1 in is_idle(made)
    assert 0 not in is_idle(made)


# -- partitions that come and go ------------------------------------------------------------------


def test_a_partition_found_while_running_is_raised_to_the_streams_cti(stream) -> None:
    made = stream([event(9, 0)], idleTimeout=None)
    with running(made) as until:
        until(lambda: told(made) == [9])
        made.broker.add_partitions(made.topic, 2)
        made.broker.produce(made.topic, [event(3, 1), event(12, 1)])
        until(lambda: len(found(made)) == 3)
        assert found(made)[1:] == [(1, 3, "late"), (1, 12, None)]
        assert told(made) == [9]
        made.broker.produce(made.topic, [event(20, 0)])
        until(lambda: told(made) == [9, 12])


def test_a_deleted_partition_fails_or_leaves_the_minimum(stream) -> None:
    made, other = stream([event(9)], idleTimeout=None), stream([event(5)])
    both = f"{made.topic},{other.topic}"
    made.run(subscribe=both)
    assert told(made) == [5]
    other.broker.delete_topic(other.topic)
    with pytest.raises(Exception, match=f"topic '{other.topic}' partition 0 is gone"):
        made.run(subscribe=both)
    made.run(subscribe=both, failOnDataLoss="false")
    assert told(made)[-1] == 9


def test_a_topic_made_anew_is_recognised_though_it_is_longer_than_before(stream) -> None:
    made = stream([event(1)], idleTimeout=None)
    made.run()
    made.broker.delete_topic(made.topic)
    made.broker.create_topic(made.topic)
    made.broker.produce(made.topic, [event(s) for s in (2, 3, 4)])
    with pytest.raises(Exception, match="has been deleted and created anew since"):
        made.run()
    made.run(failOnDataLoss="false")
    assert sorted(row[1] for row in found(made)) == [1, 2, 3, 4]
