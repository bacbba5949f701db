"""Streaming cases of Spark's own suite (KafkaMicroBatchSourceSuite), by both sources side by side.

Facts, not code, of its tests. We leave out the internals of Spark's source (its initial offset
file, V1 and V2, its pool of consumers) and features of only its newest version (offsets of whole
topics). Long tests, and further ones of a kind, run only under `make beside-spark`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from both_sources import (
    REFUSED,
    Both,
    Running,
    Source,
    Topic,
    alike,
    differ,
    flat,
    numbers,
    outcome,
    per_partition,
    send,
    transactional,
    values,
)
from broker import Broker, Record
from kafka_query import DAY_MS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

pytestmark = pytest.mark.timeout(600)


def of_topic(topic: str, **options: Any) -> dict[str, Any]:
    return {"subscribe": topic, "startingOffsets": "earliest", **options}


# -- starts ----------------------------------------------------------------------------------------


@pytest.mark.outside_ci
def test_start_at_the_latest_goes_on_from_there_after_a_restart(
    both: Both, broker: Broker, topic: Topic
) -> None:
    def case(source: Source) -> list[int]:
        name = topic(2)
        broker.produce(name, numbers([-1], 0))
        with source.start(subscribe=name):
            pass
        # Nothing has been read yet; where it began was kept all the same.
        broker.produce(name, numbers([1, 2], 0) + numbers([3], 1))
        with source.start(subscribe=name) as query:
            first = query.all()
            broker.add_partitions(name, 4)
            broker.produce(name, numbers([4], 0) + numbers([5], 3))
            return first + wait_for(query, 5)

    alike(both, case, [1, 2, 3, 1, 2, 3, 4, 5])


def wait_for(query: Running, count: int) -> list[int]:
    """The values when there are this many: partitions and commits are noticed a moment later."""
    deadline = time.monotonic() + 60
    while len(query.all()) < count and time.monotonic() < deadline:
        time.sleep(0.2)
    return query.all()


@pytest.mark.soak
def test_start_at_offsets_of_partitions(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(5)
    for part in range(5):
        broker.produce(name, numbers([10 * part + n for n in range(3)], part))
    begin = {"startingOffsets": per_partition(name, [-2, -1, 0, 1, 2])}
    expected = [0, 1, 2, 20, 21, 22, 31, 32, 42]
    alike(both, lambda s: flat(s.run(subscribe=name, **begin)), expected)
    broker.produce(name, numbers([50, 51], 1))
    alike(both, lambda s: flat(s.run(subscribe=name, **begin)), [50, 51])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "expected"), [("latest", [10, 11, 20, 30]), ("error", REFUSED)]
)
def test_start_at_a_timestamp_that_a_partition_has_no_record_for(
    both: Both, broker: Broker, topic: Topic, strategy: str, expected: Any
) -> None:
    def case(source: Source) -> list[int]:
        name = topic(3)
        broker.produce(name, [Record(str(n), None, n % 3, DAY_MS) for n in range(6)])
        broker.produce(name, [Record(str(10 + n), None, n, DAY_MS + 1_000) for n in (0, 1)])
        options = {"startingTimestamp": DAY_MS + 1_000}
        options["startingOffsetsByTimestampStrategy"] = strategy
        with source.start(subscribe=name, **options) as query:
            broker.produce(name, numbers([20], 2) + numbers([30], 0))
            return query.all()

    alike(both, case, expected)


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.difference("a batch without records")
def test_limit_cuts_a_bounded_run_into_batches(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(5)
    broker.produce(name, numbers(range(15), 0))

    def case(source: Source) -> tuple[list[list[int]], int]:
        query = Running(
            source, source.stream(**of_topic(name, maxOffsetsPerTrigger=5)), bounded=True
        )
        query.query.awaitTermination()
        return query.batches, 1 + query.query.lastProgress.batchId

    batches = [list(range(5)), list(range(5, 10)), list(range(10, 15))]
    differ(both, case, (batches, 3), (batches, 4))


@pytest.mark.soak
def test_limit_is_shared_in_proportion(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(3)
    broker.produce(name, numbers(range(100, 201), 0))
    broker.produce(name, numbers(range(10, 21), 1))
    broker.produce(name, numbers([1], 2))
    batches = {s.name: s.run(**of_topic(name, maxOffsetsPerTrigger=10))[:3] for s in both}
    assert batches["kafka"][0] == [1, 10, *range(100, 108)]
    assert batches["kafka"] == batches["timestream"]


@pytest.mark.soak
def test_limit_of_the_greatest_number_is_no_limit(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic()
    broker.produce(name, numbers(range(10), 0))
    options = {"startingOffsets": per_partition(name, [5]), "maxOffsetsPerTrigger": 2**63 - 1}
    alike(both, lambda s: s.run(subscribe=name, **options), [list(range(5, 10))])


@pytest.mark.soak
def test_more_tasks_than_partitions_read_the_same(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(3)
    broker.produce(name, numbers(range(10), 0) + numbers(range(10, 20), 1) + numbers([20], 2))

    def case(source: Source) -> tuple[bool, list[int]]:
        tasks: list[int] = []
        found: list[int] = []

        def keep(batch: DataFrame, _: int) -> None:
            if rows := values(batch):
                tasks.append(batch.rdd.getNumPartitions())
                found.extend(rows)

        writer = source.stream(**of_topic(name, minPartitions=6)).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(source.place / "tasks"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return max(tasks) >= 6, sorted(found)

    alike(both, case, (True, list(range(21))))


# -- transactions ----------------------------------------------------------------------------------


@pytest.mark.soak
def test_batches_of_transactions_end_at_positions(both: Both, broker: Broker, topic: Topic) -> None:
    """Values are offsets; in between are markers and what was aborted."""
    name = topic()
    producer = transactional(broker)
    for numbered, end in (
        (range(5), "commit"), (range(6, 11), "abort"), (range(12, 17), "commit"),
        (range(18, 19), "commit"), (range(20, 21), "commit"), (range(22, 24), "commit"),
    ):  # fmt: skip
        producer.begin_transaction()
        send(producer, name, numbered)
        getattr(producer, f"{end}_transaction")()
    broker.wait_for_markers(name)

    def case(isolation: str) -> Callable[[Source], Any]:
        options = of_topic(name, maxOffsetsPerTrigger=3, kafka__isolation__level=isolation)
        # A batch without visible records makes Spark's source wait for that long.
        options["kafkaConsumer.pollTimeoutMs"] = "5000"
        return lambda source: source.run(checkpoint=isolation, **options)

    committed = [[0, 1, 2], [3, 4], [12, 13, 14], [15, 16], [18, 20], [22, 23]]
    alike(both, case("read_committed"), committed)
    everything = sorted([*committed, [6, 7, 8], [9, 10]])
    alike(both, case("read_uncommitted"), everything)


@pytest.mark.soak
def test_records_of_an_open_transaction_come_when_it_is_committed(
    both: Both, broker: Broker, topic: Topic
) -> None:
    def case(source: Source) -> tuple[list[int], list[int]]:
        name, producer = topic(), transactional(broker)
        producer.begin_transaction()
        send(producer, name, range(5))
        options = of_topic(name, kafka__isolation__level="read_committed")
        with source.start(**options) as query:
            before = query.all()
            producer.commit_transaction()
            broker.wait_for_markers(name)
            return before, wait_for(query, 5)

    alike(both, case, ([], list(range(5))))


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_null_keys_and_values_are_rows(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic()
    pairs = [(None, None), ("k", None), (None, "1"), ("k", "2")]
    broker.produce(name, [Record(value, key) for key, value in pairs])
    alike(both, lambda s: s.run(**of_topic(name)), [[-1, -1, 1, 2]])


@pytest.mark.difference("lags in the progress")
def test_rows_read_are_counted_and_lags_are_told(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(5)
    broker.produce(name, numbers(range(3), 1))

    def case(source: Source) -> tuple[int, Any, Any]:
        query = Running(
            source, source.stream(**of_topic(name, maxOffsetsPerTrigger=2)), bounded=True
        )
        query.query.awaitTermination()
        progress = [each for each in query.query.recentProgress if each.numInputRows]
        first = progress[0].sources[0]
        partitions = json.loads(first.latestOffset).get("partitions")
        return (
            sum(each.numInputRows for each in progress),
            (first.metrics or {}).get("maxOffsetsBehindLatest"),
            partitions and partitions[name]["1"]["lag"],
        )

    # As the batch ends, and as it begins.
    differ(both, case, (3, "1", None), (3, None, 3))


@pytest.mark.soak
def test_self_join_plans_one_source(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(2)
    broker.produce(name, numbers([1, 2], 0) + numbers([6, 3], 1))

    def case(source: Source) -> tuple[list[int], int]:
        rows = source.stream(**of_topic(name)).selectExpr(
            "CAST(value AS STRING) AS value", "CAST(CAST(value AS STRING) AS INT) % 5 AS key"
        )
        joined = rows.join(rows.withColumnRenamed("value", "other"), "key")
        query = Running(source, joined, "join", bounded=True)
        query.query.awaitTermination()
        sources = max(len(progress.sources) for progress in query.query.recentProgress)
        return flat(query.batches), sources

    alike(both, case, ([1, 1, 2, 3, 6, 6], 1))


@pytest.mark.soak
def test_union_with_limits_goes_on_where_one_side_is_empty(
    both: Both, broker: Broker, topic: Topic
) -> None:
    small, large = topic(), topic()
    broker.produce(small, numbers(range(10), 0))
    broker.produce(large, numbers(range(100, 120), 0))

    def case(source: Source) -> list[list[int]]:
        limited = [source.stream(**of_topic(n, maxOffsetsPerTrigger=5)) for n in (small, large)]
        return source.run(limited[0].union(limited[1]))

    batches = [[*range(n, n + 5), *range(100 + n, 105 + n)] for n in (0, 5)]
    alike(both, case, [*batches, list(range(110, 115)), list(range(115, 120))])


# -- loss ------------------------------------------------------------------------------------------


def recreate(broker: Broker, name: str, partitions: int, count: int) -> None:
    broker.delete_topic(name)
    broker.create_topic(name, partitions)
    broker.produce(name, numbers(range(100, 100 + count), 0))


@pytest.mark.soak
@pytest.mark.parametrize(("partitions", "count"), [(1, 5), (1, 1)])
@pytest.mark.difference("a topic that is recreated, and longer")
def test_topic_recreated_between_runs(
    both: Both, broker: Broker, topic: Topic, partitions: int, count: int
) -> None:
    def case(source: Source) -> Any:
        name = topic(partitions)
        broker.produce(name, numbers([2, 4], 0))
        first = source.run(**of_topic(name), checkpoint=name)
        assert first == [[2, 4]]
        recreate(broker, name, partitions, count)
        return source.run(**of_topic(name), checkpoint=name)

    # Offsets do not tell a longer topic from the old one: its first records are lost.
    differ(both, case, REFUSED if count < 2 else [[102, 103, 104]], REFUSED)


@pytest.mark.soak
@pytest.mark.parametrize(("partitions", "count"), [(3, 15), (5, 10)])
def test_topic_recreated_during_a_bounded_run_fails_it(
    both: Both, broker: Broker, topic: Topic, partitions: int, count: int
) -> None:
    def case(source: Source) -> None:
        name = topic(5)
        broker.produce(name, numbers(range(15), 0))
        done: list[int] = []

        def remake(_: DataFrame, number: int) -> None:
            if not done:
                done.append(number)
                recreate(broker, name, partitions, count)

        frame = source.stream(**of_topic(name, maxOffsetsPerTrigger=5))
        writer = frame.writeStream.foreachBatch(remake).trigger(availableNow=True)
        writer.option("checkpointLocation", str(source.place / name)).start().awaitTermination()

    alike(both, case, REFUSED)


@pytest.mark.soak
def test_topic_deleted_under_a_pattern_is_no_failure_where_loss_is_allowed(
    both: Both, broker: Broker, topic: Topic
) -> None:
    def case(source: Source) -> list[int]:
        name = topic(5)
        broker.produce(name, numbers([-1], 0))
        options = {"subscribePattern": f"{name}.*", "failOnDataLoss": "false"}
        with source.start(**options, kafka__metadata__max__age__ms="1000") as query:
            broker.produce(name, numbers([1, 2, 3], 0))
            wait_for(query, 3)
            broker.delete_topic(name)
            later = broker.create_topic(f"{name}-later", 5)
            broker.produce(later, numbers([4, 5, 6], 1))
            return wait_for(query, 6)

    alike(both, case, [1, 2, 3, 4, 5, 6])


@pytest.mark.soak
def test_partition_added_between_failing_runs_fails_none(
    both: Both, broker: Broker, topic: Topic
) -> None:
    def case(source: Source) -> list[bool]:
        name = topic()
        broker.produce(name, numbers(range(1, 8), 0))
        fails = F.when(F.col("number") == 7, F.raise_error(F.lit("seven"))).otherwise(1)

        def run() -> bool:
            number = F.col("value").cast("string").cast("int").alias("number")
            frame = source.stream(**of_topic(name)).select(number).select(fails)
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(source.place / name))
            query = writer.start()
            assert outcome(query.awaitTermination) == REFUSED
            return "seven" in str(query.exception())

        first = run()
        broker.add_partitions(name, 2)
        return [first, run()]

    alike(both, case, [True, True])


# -- the consumer group ----------------------------------------------------------------------------


@pytest.mark.difference("the consumer group")
def test_offsets_are_committed_to_the_group_by_one_of_them(
    both: Both, broker: Broker, topic: Topic
) -> None:
    name = topic()
    broker.produce(name, numbers(range(3), 0))

    def case(source: Source) -> int:
        group = f"{source.name}-{name}"
        source.run(**of_topic(name, kafka__group__id=group))
        return committed(broker, group, name)

    differ(both, case, -1001, 3)


def committed(broker: Broker, group: str, topic: str) -> int:
    """The offset that a group has committed; -1001: none."""
    from confluent_kafka import TopicPartition

    consumer = broker.consumer(group_id=group)
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()
