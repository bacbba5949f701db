"""The same columns of a topic of Nexmark's, by our source and by Spark's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from nexmark.events import AVRO
from nexmark.queries import FIELDS, QUERIES, hottest

__all__ = ["DELAY", "FOLDED", "SOURCES", "Topic", "frame"]

FOLDED: Final = "folded"
"""Ours, with the counts of q5 folded in the source."""

DELAY: Final = "4 seconds"


@dataclass(frozen=True)
class Topic:
    """A topic, and how to read it.

    Attributes:
        bootstrap: the broker's address.
        name: the topic's.
        form: "json" or "avro".
        batch: the records of a batch.
    """

    bootstrap: str
    name: str
    form: str
    batch: int

    @property
    def options(self) -> dict[str, str]:
        """Those that both sources have."""
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch),
        }


def frame(source: str, query: str, spark: SparkSession, topic: Topic) -> DataFrame:
    """A query's rows, by a source of SOURCES."""
    asked = QUERIES[query]
    if source == FOLDED:
        return _folded(query, spark, topic)

    def read(*columns: str) -> DataFrame:
        kind = FIELDS[columns[0]][0]
        return SOURCES[source](spark, topic, kind, columns, asked.releases)

    return asked.build(read)


def timestream(
    spark: SparkSession, topic: Topic, kind: str, columns: tuple[str, ...], releases: str | None
) -> DataFrame:
    """Ours, with CTIs, which release the rows of queries with state; it leaves out other kinds."""
    from pyspark_timestream import advance_time

    rows = _reader(spark, topic, kind, columns).load()
    rows = advance_time(rows, releases=releases) if releases else rows.where("cti IS NULL")
    named = {name: F.col(f"`{kind}.{FIELDS[name][1]}`") for name in columns}
    return _of_kind(rows, named, F.col("start_time"))


def _reader(
    spark: SparkSession, topic: Topic, kind: str, columns: tuple[str, ...]
) -> DataStreamReader:
    options = {
        "transport": "kafka",
        "valueFormat": topic.form,
        "startTime": "date_time",
        "ctiFrequency": "1 second",
        "ctiDelay": DELAY,
        "where": f"`{kind}.{FIELDS[columns[0]][1]}` is not null",
    }
    if topic.form == "avro":
        options["valueSchema"] = AVRO
    fields = [f"`{kind}.{FIELDS[name][1]}` {FIELDS[name][2]}" for name in columns]
    schema = ", ".join([*fields, "start_time timestamp", "cti timestamp"])
    reader = spark.readStream.format("timestream").options(**topic.options, **options)
    return reader.schema(schema)


def _folded(query: str, spark: SparkSession, topic: Topic) -> DataFrame:
    """q5, the one query that begins with a window that the source can fold.

    Its windows overlap, and it has many auctions: so the bids are counted in two seconds first, and
    in ten from these counts, as docs/how-to/fold-windows.md has it.
    """
    from pyspark_timestream import aggregate_windows

    assert query == "q5"
    reader = _reader(spark, topic, "Bid", ("auction",))
    panes = aggregate_windows(reader, "2 seconds", {"bids": "count"}, by="Bid.auction")
    panes = panes.withColumnRenamed("Bid.auction", "auction")
    period = F.window("window", "10 seconds", "2 seconds").alias("period")
    return hottest(panes.groupBy("auction", period).agg(F.sum("bids").alias("bids")))


def spark_kafka(
    spark: SparkSession, topic: Topic, kind: str, columns: tuple[str, ...], releases: str | None
) -> DataFrame:
    """Spark's own, under its own watermark in queries with state."""
    rows = spark.readStream.format("kafka").options(**topic.options).load()
    rows = rows.select(_parsed(topic.form, kind, columns).alias("v"))
    rows = rows.select("v.*").withColumn("start_time", _time(topic.form))
    if releases:
        rows = rows.withWatermark("start_time", DELAY)
    named = {name: F.col(f"{kind}.{FIELDS[name][1]}") for name in columns}
    return _of_kind(rows, named, F.col("start_time"))


def _parsed(form: str, kind: str, columns: tuple[str, ...]) -> Column:
    if form == "avro":
        from pyspark.sql.avro.functions import from_avro

        return from_avro(F.col("value"), AVRO)
    fields = ", ".join(f"{FIELDS[name][1]}: {FIELDS[name][2]}" for name in columns)
    return F.from_json(F.col("value").cast("string"), f"date_time long, {kind} struct<{fields}>")


def _time(form: str) -> Column:
    return F.col("date_time") if form == "avro" else F.timestamp_millis("date_time")


def _of_kind(rows: DataFrame, named: Mapping[str, Column], time: Column) -> DataFrame:
    """The events that have the first of the columns."""
    found = rows.select(
        *[column.alias(name) for name, column in named.items()], time.alias("event_time")
    )
    return found.where(F.col(next(iter(named))).isNotNull())


SOURCES: Final[Mapping[str, Callable[..., Any]]] = {
    "spark": spark_kafka,
    "timestream": timestream,
}
