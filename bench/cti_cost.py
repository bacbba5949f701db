"""What CTIs and policies cost: the JSON read of the flights of 2013 with them on and off.

Both read the same topic in one batch into `noop`, in turns; CTIs come every hour, twelve hours
behind, so that no flight is late and both deliver the same flights.
"""

import os
import statistics
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))
from broker import Broker, broker
from flights import produce_flights
from flights_data import DEPARTED, HARMLESS_DELAY
from spark_session import local_spark

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
SCHEMA = "origin string, dest string, carrier string, dep_delay double, start_time timestamp"


def read(spark: SparkSession, kafka: Broker, topic: str, punctuated: bool) -> DataFrame:
    """The flights, with CTIs and the policy `drop` or without."""
    options = {
        "transport": "kafka",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "startTime": "departure",
    }
    schema = SCHEMA
    if punctuated:
        options |= {"ctiFrequency": "1 hour", "ctiDelay": HARMLESS_DELAY, "violationPolicy": "drop"}
        schema += ", cti timestamp"
    return spark.readStream.format("timestream").options(**options).schema(schema).load()


def flights_per_second(frame: DataFrame) -> float:
    """Flights over the time of the batch that reads them."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    batch = max(query.recentProgress, key=lambda p: p.numInputRows)
    if not DEPARTED <= batch.numInputRows <= DEPARTED * 1.2:
        raise SystemExit(f"{batch.numInputRows} rows were read, not {DEPARTED}")
    return 1000 * DEPARTED / batch.durationMs["addBatch"]


def main() -> None:
    """Print the ratio."""
    spark = local_spark("cti_cost")
    speeds: dict[bool, list[float]] = {True: [], False: []}
    with broker(say=lambda _: None) as kafka:
        topic = produce_flights(kafka)
        for turn in range(ROUNDS + 1):
            for punctuated in (False, True):
                speed = flights_per_second(read(spark, kafka, topic, punctuated))
                if turn:  # the first turn warms up
                    speeds[punctuated].append(speed)
    spark.stop()
    off, on = (statistics.median(speeds[punctuated]) for punctuated in (False, True))
    print(f"{'flights -> JSON -> noop':<26}{'off M/s':>12}{'on M/s':>12}{'ratio':>8}")
    print(f"{'CTIs and policies':<26}{off / 1e6:>12.2f}{on / 1e6:>12.2f}{on / off:>8.2f}")


if __name__ == "__main__":
    main()
