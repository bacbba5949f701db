"""`make run-flights`: a year of flights through a real Kafka broker, hour by hour into a store.

Without arguments it does everything itself under `.work/flights`: a broker, a topic with the
flights in the order of their reports, the query, a look at the result. With `--bootstrap` and
`--topic` it runs the query on what is there and says little: the job that other tests kill,
restart, cut into small batches and put on a cluster. The same arguments resume it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from broker import Broker, Record, broker
from flights_data import FLIGHTS, HARMLESS_DELAY, PARTITIONS, flights
from flights_payloads import ENCODINGS, encode_flights, register_flight
from harness import Job
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from schema_registry import SchemaRegistryStub, serve_schema_registry
from spark_session import local_spark, read_back

from pyspark_timestream.demo.progress import show_progress

PLACE = Path(__file__).parents[3] / ".work" / "flights"
SCHEMA = "origin string, dep_delay double, start_time timestamp, cti timestamp"
BROKER_SECONDS, SPARK_SECONDS = 15, 10
COUNTERS = ("events", "dropped", "adjusted", "flagged", "malformed", "ctis")


# -- the flights in a topic -----------------------------------------------------------------------


def produce_flights(
    kafka: Broker,
    topic: str | None = None,
    count: int | None = None,
    tell: Callable[[float], None] = lambda _: None,
    encoding: str = "json",
    registry: SchemaRegistryStub | None = None,
) -> str:
    """Produce the flights, or the first `count`, to a topic of four partitions; return its name.

    `tell` hears how much has been produced, from 0 to 1. All encodings but JSON need a registry.
    """
    name = kafka.create_topic(topic, PARTITIONS)
    number = register_flight(registry, f"{name}-value", encoding) if registry else 0
    kafka.produce(name, _told(flight_records(count, encoding, number), count or FLIGHTS, tell))
    return name


def _told(records: Iterator[Record], count: int, tell: Callable[[float], None]) -> Iterator[Record]:
    for number, record in enumerate(records):
        if number % 1_000 == 0:
            tell(number / count)
        yield record


def flight_records(
    count: int | None = None, encoding: str = "json", number: int = 0
) -> Iterator[Record]:
    """The flights as records, stamped with the time of their report.

    Their values are framed with the schema's id, which is `number`, except those in JSON.
    """
    table = flights(count)
    keys = table["tailnum"].to_pylist()
    partitions = table["partition"].to_pylist()
    reports = table["report_us"].to_pylist()
    values = encode_flights(table, encoding, number)
    rows = zip(values, keys, partitions, reports, strict=True)
    for value, key, partition, report_us in rows:
        yield Record(value, key, partition, report_us // 1_000)


# -- the query ------------------------------------------------------------------------------------


def flights_job(
    bootstrap: str, topic: str, store: Path, checkpoint: Path, **options: str | int
) -> Job:
    """The query as a job for the harness: `flights_job(..., max_offsets_per_trigger=9973)`."""
    fixed = {"bootstrap": bootstrap, "topic": topic, "store": store, "checkpoint": checkpoint}
    arguments = []
    for name, each in {**fixed, **options}.items():
        arguments.append(f"--{name.replace('_', '-')}={each}")
    return Job(Path(__file__), arguments, log=store.parent / f"{store.name}.log")


def read_flights(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """The departures as they were reported, with CTIs."""
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": given.bootstrap,
        "subscribe": given.topic,
        "startingOffsets": "earliest",
        "valueFormat": given.value_format,
        "schemaRegistry.url": given.schema_registry,
        "startTime": "departure",
        "ctiFrequency": given.cti_frequency,
        "ctiDelay": given.cti_delay,
        "violationPolicy": given.violation_policy,
        "finalCti": "true",
        "maxOffsetsPerTrigger": given.max_offsets_per_trigger,
        "maxTasks": given.max_tasks,
        "maxSkew": given.max_skew,
    }
    reader = spark.readStream.format("timestream").schema(SCHEMA)
    for name, each in options.items():
        if each is not None:
            reader = reader.option(name, each)
    return reader.load()


def hours(departures: DataFrame) -> DataFrame:
    """One event per airport and hour, complete and final when the CTIs pass the hour's end."""
    from pyspark_timestream import advance_time

    hour = F.window("start_time", "1 hour").alias("hour")
    counted = advance_time(departures).groupBy(hour, "origin")
    return counted.agg(
        F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay")
    ).select(
        F.col("origin").alias("series"),
        F.col("hour.start").alias("timestamp"),
        "flights",
        "mean_delay",
    )


def start_query(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Everything that is in the topic now, exactly once, into the store."""
    return (
        hours(read_flights(spark, given))
        .writeStream.format("tseries")
        .option("retainedRange", "unlimited")
        .option("checkpointLocation", str(given.checkpoint))
        .trigger(availableNow=True)
        .start(str(given.store))
    )


def source_counters(query: StreamingQuery) -> dict[str, int]:
    """The source's counters over all partitions, as of the last batch."""
    progress = query.lastProgress
    if progress is None:
        return {}
    report = progress["sources"][0]["latestOffset"]
    found = list(_partitions(json.loads(report) if isinstance(report, str) else report))
    return {name: sum(each.get(name, 0) for each in found) for name in COUNTERS}


def _partitions(report: Any) -> Iterator[dict[str, Any]]:
    """The partitions' entries, however deep the progress keeps them."""
    if isinstance(report, dict) and "events" in report:
        yield report
    elif isinstance(report, dict):
        for each in report.values():
            yield from _partitions(each)


# -- what people see ------------------------------------------------------------------------------


def show(spark: SparkSession, store: Path, counters: dict[str, int]) -> None:
    """The busiest hours, the day of an airport, what the source dropped, how to look further."""
    rows = spark.read.format("tseries").load(str(store))
    rows.createOrReplaceTempView("flights")
    print("\nThe busiest hours of 2013:")
    busiest = """
        SELECT series AS airport, date_format(timestamp, 'yyyy-MM-dd HH:mm') AS hour,
               flights, round(mean_delay, 1) AS mean_delay
        FROM flights ORDER BY flights DESC, timestamp LIMIT 8"""
    spark.sql(busiest).show(truncate=False)
    by_hour = """
        SELECT hour(timestamp) AS hour, sum(flights) AS flights,
               sum(flights * mean_delay) / sum(flights) AS delay
        FROM flights GROUP BY 1 ORDER BY 1"""
    print("A day of departures, and how late they were on average:")
    print(chart([tuple(row) for row in spark.sql(by_hour).collect()]))
    total = spark.sql("SELECT count(*), sum(flights) FROM flights").first()
    assert total is not None
    print(f"\n{total[0]:,} hours with {total[1]:,} flights. The source:", end=" ")
    print(", ".join(f"{name} {each:,}" for name, each in counters.items()))


def chart(rows: Sequence[tuple[int, int, float]], width: int = 48) -> str:
    """A bar per hour of the day.

    >>> print(chart([(5, 10, 1.5), (6, 5, -2.0)], width=4))
    05:00 ████        10    +1.5 min
    06:00 ██           5    -2.0 min
    """
    most = max((flights for _, flights, _ in rows), default=1)
    lines = []
    for hour, count, delay in rows:
        bar = "█" * round(width * count / most)
        lines.append(f"{hour:02d}:00 {bar:<{width}} {count:>9,} {delay:>+7.1f} min")
    return "\n".join(lines)


# -- the command ----------------------------------------------------------------------------------


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", help="run the query on this broker; needs --topic")
    parser.add_argument("--topic", help="where the flights are")
    parser.add_argument("--value-format", default="json", choices=sorted(set(ENCODINGS.values())))
    parser.add_argument("--schema-registry", help="where the flights' schema is; not for JSON")
    parser.add_argument("--place", type=Path, default=PLACE, help="where everything is kept")
    parser.add_argument("--store", type=Path, help="by default in the place")
    parser.add_argument("--checkpoint", type=Path, help="by default in the place")
    parser.add_argument("--max-offsets-per-trigger", type=int)
    parser.add_argument("--max-tasks", type=int)
    parser.add_argument("--max-skew", help="a duration, as option 'maxSkew' has it")
    parser.add_argument("--cti-frequency", default="1 hour", help="events, or a duration")
    parser.add_argument("--cti-delay", default=HARMLESS_DELAY)
    parser.add_argument("--violation-policy", default="drop")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--records", type=int, help="produce only this many flights")
    parser.add_argument("--report", type=Path, help="write the source's counters here, as JSON")
    parsed = parser.parse_args(given)
    if (parsed.bootstrap is None) != (parsed.topic is None):
        parser.error("--bootstrap and --topic go together")
    if parsed.schema_registry and not parsed.topic:
        parser.error("--schema-registry needs --topic: without it, a registry is started too")
    parsed.store = parsed.store or parsed.place / "store"
    parsed.checkpoint = parsed.checkpoint or parsed.place / "checkpoint"
    return parsed


def run(given: argparse.Namespace) -> None:
    """Run the query to the end of the topic, and say little."""
    spark = local_spark("flights", given.master)
    try:
        query = start_query(spark, given)
        query.awaitTermination()
        if given.report is not None:
            given.report.write_text(json.dumps(source_counters(query)))
    finally:
        spark.stop()


def run_alone(given: argparse.Namespace) -> None:
    """Everything, from the broker to the chart; it replaces the files of an earlier run."""
    for left in (given.store, given.checkpoint):
        shutil.rmtree(left, ignore_errors=True)
    given.place.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    with ExitStack() as running:
        with show_progress("Starting a Kafka broker, fetched once", BROKER_SECONDS):
            kafka = running.enter_context(broker(said.append))
        print("\n".join(said))
        registry = None
        if given.value_format != "json":
            registry = running.enter_context(serve_schema_registry())
            given.schema_registry = registry.url
        count = given.records or FLIGHTS
        with show_progress(f"Producing {count:,} flights", 15) as doing:
            tell = partial(setattr, doing, "done")
            given.topic = produce_flights(kafka, None, count, tell, given.value_format, registry)
        given.bootstrap = kafka.bootstrap
        with show_progress("Starting Spark", SPARK_SECONDS):
            spark = local_spark("flights", given.master, log=given.place / "spark.log")
            running.callback(spark.stop)
        # In several batches, so that there is something to be seen.
        given.max_offsets_per_trigger = given.max_offsets_per_trigger or 1 + count // 6
        with show_progress("Counting them by airport and hour", 30) as doing:
            query = start_query(spark, given)
            while not query.awaitTermination(0.2):
                doing.done = source_counters(query).get("events", 0) / count or None
        show(spark, given.store, source_counters(query))
        print(f"\nRead it back, as any Delta table or with\n\n{read_back(given.store)}")


def main() -> None:
    """Decide by the arguments who brings the broker."""
    given = arguments(sys.argv[1:])
    if given.bootstrap is not None:
        run(given)
        return
    try:
        run_alone(given)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the broker has ended, too") from None


if __name__ == "__main__":
    main()
