"""The README's first paragraph on Spark's own watermark, by Spark's own Kafka source."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable

import pytest
from both_sources import Source
from broker import Broker, Record
from kafka_query import DAY_MS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(300)

Topic = Callable[..., str]
HOUR = 60


def every_ten_minutes(begin: int, end: int, partition: int) -> list[Record]:
    """Records from minute `begin` to `end`, exclusive, of the day."""
    minutes = range(begin, end, 10)
    return [Record(str(m), None, partition, DAY_MS + 60_000 * m) for m in minutes]


def timed(spark: Source, topic: str) -> DataFrame:
    """The records with Spark's watermark, five minutes behind the greatest time."""
    rows = spark.stream(subscribe=topic, startingOffsets="earliest")
    return rows.withWatermark("timestamp", "5 minutes")


def start(spark: Source, rows: DataFrame) -> StreamingQuery:
    """Count them by the hour, into a table in memory."""
    counted = rows.groupBy(F.window("timestamp", "1 hour").alias("hour")).count()
    writer = counted.selectExpr("hour.start AS hour", "count").writeStream.format("memory")
    writer = writer.option("checkpointLocation", str(spark.place / "watermark"))
    return writer.queryName("counted_by_the_hour").start()


def hours(query: StreamingQuery, spark: Source, after: Iterable[Callable[[], object]]) -> dict:
    """Hour -> count, for the hours that Spark has released after each step."""
    try:
        for deed in after:
            deed()
            query.processAllAvailable()
        rows = spark.spark.table("counted_by_the_hour").collect()
        return {row.hour.hour: row["count"] for row in rows}
    finally:
        query.stop()


def test_partition_that_lags_loses_its_rows(
    both: tuple[Source, Source], broker: Broker, topic: Topic
) -> None:
    spark, name = both[0], topic(2)

    def produce(begin: int, end: int, partition: int) -> Callable[[], object]:
        return lambda: broker.produce(name, every_ten_minutes(begin, end, partition))

    query = start(spark, timed(spark, name))
    # Each has six records an hour for six hours; the second one comes later.
    deeds = [produce(0, 6 * HOUR, 0), produce(0, 6 * HOUR, 1), produce(6 * HOUR, 8 * HOUR, 0)]
    counted = hours(query, spark, deeds)
    assert counted == {**dict.fromkeys(range(5), 6), 5: 12, 6: 6}
    assert 36 - (sum(counted[hour] for hour in range(6)) - 36) == 30


def test_partition_that_is_quiet_alone_stalls_nothing_and_quiet_everywhere_stalls_the_end(
    both: tuple[Source, Source], broker: Broker, topic: Topic
) -> None:
    spark, name = both[0], topic(2)
    query = start(spark, timed(spark, name))
    records = [*every_ten_minutes(0, 10, 1), *every_ten_minutes(0, 8 * HOUR, 0)]
    counted = hours(query, spark, [lambda: broker.produce(name, records), lambda: None])
    # Partition 1 has been quiet since midnight; the last hour waits for ever.
    assert counted == {0: 7, **dict.fromkeys(range(1, 7), 6)}


def test_slowest_of_two_sources_holds_back_both(
    both: tuple[Source, Source], broker: Broker, topic: Topic
) -> None:
    spark, fast, slow = both[0], topic(), topic()
    broker.produce(slow, every_ten_minutes(0, 10, 0))
    query = start(spark, timed(spark, fast).unionByName(timed(spark, slow)))
    deeds = [
        lambda: broker.produce(fast, every_ten_minutes(0, 8 * HOUR, 0)),
        lambda: broker.produce(fast, every_ten_minutes(8 * HOUR, 9 * HOUR, 0)),
    ]
    assert hours(query, spark, deeds) == {}


@pytest.mark.soak
def test_what_is_late_depends_on_the_batches(
    both: tuple[Source, Source], broker: Broker, topic: Topic
) -> None:
    spark = both[0]
    records = [*every_ten_minutes(0, 4 * HOUR, 0), *every_ten_minutes(0, HOUR, 0)]
    found = []
    for cut in (len(records), 24):
        name = topic()
        query = start(spark, timed(spark, name))
        parts = [records[:cut], records[cut:], every_ten_minutes(4 * HOUR, 6 * HOUR, 0)]
        deeds = [lambda part=part, to=name: broker.produce(to, part) for part in parts if part]
        found.append(hours(query, spark, deeds)[0])
        shutil.rmtree(spark.place)
    assert found == [12, 6]
