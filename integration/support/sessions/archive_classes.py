"""Let Java keep Spark's loaded classes in a file, so that sessions start sooner.

`archive_classes.py FILE` runs a few queries in a session of Spark. Its JVM writes the classes that
it has loaded into FILE (class data sharing, JEP 350). A Java with `-XX:SharedArchiveFile=FILE` and
the same class path does not read, parse and verify them again. One that cannot use the file, such
as another version, does without it.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_session import local_spark

WRITE_SECONDS = 120
"""Seconds for Java to write the file and to end."""


def main(file: Path) -> None:
    """Write the file, or say why there is none: tests pass without it, in more time."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    flags = os.environ.get("JVM_FLAGS", "")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{flags} -XX:ArchiveClassesAtExit={new} -Xlog:cds*=off"
    with tempfile.TemporaryDirectory() as place:
        # Workers complain of the sudden end, which helps only if something else fails.
        log = Path(place) / "spark.log"
        try:
            run_session(log, Path(place))
        except BaseException:
            sys.stderr.write(log.read_text() if log.exists() else "")
            raise
    if new.exists():
        new.replace(file)
        print(f"Java keeps Spark's classes in {file}, {file.stat().st_size / 1e6:.0f} MB")
    else:
        print("this Java keeps no classes in a file, so each session of a test reads its jars")


def run_session(log: Path, place: Path) -> None:
    """A session that runs queries, and ends."""
    spark = local_spark("archive classes", log=log)
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    run_batches(spark, place)
    run_stream(spark, place)
    spark.stop()
    # Java ends with its input, and writes the file before it does.
    java.stdin.close()
    java.wait(WRITE_SECONDS)


def run_batches(spark: SparkSession, place: Path) -> None:
    """JSON, an aggregate, a join, a sort, a function in Python, and Parquet files."""
    text = F.to_json(F.struct("id", (F.col("id") % 7).alias("key")))
    rows = spark.range(1000).select(F.from_json(text, "id bigint, key int").alias("read"))
    rows = rows.select("read.*", F.timestamp_seconds("read.id").alias("at"))
    rows.write.parquet(str(place / "rows"))
    read = spark.read.parquet(str(place / "rows"))
    counts = read.groupBy("key", F.window("at", "1 minute")).agg(F.count("*"), F.max("id"))
    joined = read.join(counts, "key").orderBy("id")
    joined.selectExpr("*", "row_number() over (order by id)").collect()
    plus_one = F.udf(lambda key: key + 1, "int")
    spark.createDataFrame([(1, "a")], "key int, name string").select(plus_one("key")).toPandas()
    read.createOrReplaceTempView("rows")
    spark.sql("select key, count(distinct id) from rows where key > 2 group by key").show()


def run_stream(spark: SparkSession, place: Path) -> None:
    """The clock, windows in a state store, and the sink of time series."""
    clock = spark.readStream.format("timestream").option("timeZero", "2026-01-01T00:00:00Z")
    ticks = clock.option("rate", 100_000).option("maxCount", 10_000).load()
    windows = ticks.withWatermark("timestamp", "0 seconds").groupBy(
        (F.col("value") % 3).cast("string").alias("sensor"), F.window("timestamp", "1 hour")
    )
    counts = windows.count().select("sensor", F.col("window.start").alias("timestamp"), "count")
    sink = counts.writeStream.format("tseries").option("seriesColumn", "sensor")
    sink = sink.option("retainedRange", "limit 48")
    query = sink.option("checkpointLocation", str(place / "checkpoint")).start(str(place / "store"))
    query.processAllAvailable()
    query.stop()
    spark.read.format("tseries").load(str(place / "store")).orderBy("series", "timestamp").show()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
