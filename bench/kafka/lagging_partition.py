"""Spark's watermark and CTIs over a topic with one partition behind: `make picture`.

The topic is the demo's. Both queries read it in batches of 2,000 records and count trips by station
and hour, with a delay of five minutes; Spark's own Kafka source has Spark's own watermark. Every
trip that no window has counted in the end is lost. The results are kept in
`bench/results/lagging_partition.json`, and drawn as `docs/pictures/lagging-partition.svg`.
"""

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from broker import Broker, Record, broker
from lagging_picture import draw
from peers import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from side_by_side import versions
from spark_session import local_spark

from pyspark_timestream import advance_time
from pyspark_timestream.demo.data import (
    DEMO_TOPIC,
    LAG_HOURS,
    LAGGING,
    STATIONS,
    DemoRecord,
    make_trips,
)

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "bench" / "results" / "lagging_partition.json"
PICTURE = ROOT / "docs" / "pictures" / "lagging-partition.svg"
DELAY = "5 minutes"
RECORDS_PER_BATCH = 2_000
NEXT_DAY_MS = 1_767_312_000_000
"""2026-01-02T00:00:00Z: a trip at this time releases the last windows of the day before."""


def measure(spark: SparkSession, kafka: Broker, place: Path) -> dict[str, Any]:
    """What each query counted, and its time after each batch."""
    given = make_trips()
    kafka.create_topic(DEMO_TOPIC, len(STATIONS))
    kafka.produce(DEMO_TOPIC, map(record, given))
    ours, ours_progress = run(by_ctis(spark, kafka), place / "timestream")
    _, watermarks = run(by_watermark(spark, kafka), place / "spark")
    last = DemoRecord(json.dumps({"station": "-", "departed": "2026-01-02"}), 0, NEXT_DAY_MS)
    kafka.produce(DEMO_TOPIC, [record(last)])
    theirs, after = run(by_watermark(spark, kafka), place / "spark")
    instants = [each["eventTime"]["watermark"] for each in (*watermarks, *after)]
    ctis = [each["sources"][0]["latestOffset"]["cti"] for each in ours_progress]
    return {
        "versions": versions(),
        "trips": len(given),
        "delay": DELAY,
        "lagging": STATIONS[LAGGING],
        "lag_hours": LAG_HOURS,
        "counted": {"spark": theirs, "timestream": ours},
        "lost": {
            "spark": len(given) - sum(theirs.values()),
            "timestream": len(given) - sum(ours.values()),
        },
        "batches": list(lines(given, after_each(instants), after_each(ctis))),
    }


def record(trip: DemoRecord) -> Record:
    """A trip as it lies in the topic."""
    return Record(trip.value, None, trip.partition, trip.timestamp_ms)


def by_watermark(spark: SparkSession, kafka: Broker) -> DataFrame:
    """Trips by Spark's source, under its watermark."""
    rows = spark.readStream.format("kafka").options(**common(kafka)).load()
    fields = F.from_json(F.col("value").cast("string"), "station string, departed timestamp")
    return by_hour(
        rows.select(fields.alias("trip")).select("trip.*").withWatermark("departed", DELAY)
    )


def by_ctis(spark: SparkSession, kafka: Broker) -> DataFrame:
    """Trips by our source, under its CTIs."""
    options = {"transport": "kafka", "valueFormat": "json", "startTime": "departed"}
    options |= {"ctiFrequency": "10", "ctiDelay": DELAY, "finalCti": "true"}
    reader = spark.readStream.format("timestream").options(**common(kafka), **options)
    reader = reader.schema("station string, start_time timestamp, cti timestamp")
    return by_hour(advance_time(reader.load()).withColumnRenamed("start_time", "departed"))


def common(kafka: Broker) -> dict[str, str]:
    """Options that both have."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": DEMO_TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(RECORDS_PER_BATCH),
    }


def by_hour(rows: DataFrame) -> DataFrame:
    """Trips by station and hour."""
    return rows.groupBy("station", F.window("departed", "1 hour").alias("hour")).count()


def run(counts: DataFrame, place: Path) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """To the end of the topic: trips by station in all windows so far, and the progress."""

    def keep(batch: DataFrame, number: int) -> None:
        batch.select("station", "count").write.mode("overwrite").parquet(f"{place}/rows/{number}")

    writer = counts.writeStream.foreachBatch(keep).option("checkpointLocation", f"{place}/state")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found: Counter[str] = Counter()
    for rows in place.glob("rows/*"):
        for row in counts.sparkSession.read.parquet(str(rows)).collect():
            found[row["station"]] += row["count"]
    progress = [json.loads(each.json) for each in query.recentProgress]
    return dict(sorted(found.items())), [each for each in progress if each["numInputRows"]]


def after_each(reported: Sequence[str | None]) -> list[str | None]:
    """The time after each batch, as the next one reports it; None at the end of time."""
    ends = (*reported[1:], None)
    return [None if each is None or each.startswith("9999") else each for each in ends]


def lines(
    given: Sequence[DemoRecord], watermarks: Sequence[str | None], ctis: Sequence[str | None]
) -> Iterable[dict[str, Any]]:
    """After each batch: records read, each station's newest departure, watermark and CTI."""
    newest = [
        list(itertools.accumulate((departed_ms(t) for t in given if t.partition == number), max))
        for number in range(len(STATIONS))
    ]
    for number, records in enumerate(range(RECORDS_PER_BATCH, len(given) + 1, RECORDS_PER_BATCH)):
        of_each = records // len(STATIONS)
        yield {
            "records": records,
            "newest": {
                station: iso(newest[partition][of_each - 1])
                for partition, station in enumerate(STATIONS)
            },
            "watermark": watermarks[number],
            "cti": ctis[number],
        }


def departed_ms(trip: DemoRecord) -> int:
    """When a trip departed, in milliseconds since 1970."""
    return round(datetime.fromisoformat(json.loads(trip.value)["departed"]).timestamp() * 1000)


def iso(instant_ms: int) -> str:
    """ISO-8601 in UTC."""
    return datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat(timespec="milliseconds")


def main() -> None:
    """Measure, keep and draw."""
    spark = local_spark("lagging partition", spark_jars=kafka_jars())
    with broker() as kafka, tempfile.TemporaryDirectory() as place:
        found = measure(spark, kafka, Path(place))
    spark.stop()
    RESULT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(found))
    print(found["lost"], "of", found["trips"], "trips lost")


if __name__ == "__main__":
    main()
