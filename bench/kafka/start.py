"""From `start()` to the first committed batch, beside Spark's own Kafka source.

A bounded query over 1,000 records into `noop`, started again and again: in a session that has run
such queries before (warm), and as the first query of a session whose JVM is up (cold). Spark's
source runs with its defaults, and again told to wait no longer than ours for what a fetch has not
found: by default its tasks wait half a second for records that do not exist. Ours runs with the
session of `configure_spark`, and with Spark's own home, where Python compiles `pyspark.zip` again
in every process. The last is a source in Python that has its rows at hand and imports nothing: it
shows what Spark takes to start any source. BENCH_STARTS says how many starts.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from broker import Broker, broker
from kafka_records import filled
from kafka_source import WAITS_LESS, here, spark_source, timestream, use_spark_as_installed
from peers import kafka_jars
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from sessions import Apart, Fresh
from side_by_side import Comparison, Contender, Done, compare, pair, report
from sizes import WARM_UP, size

STARTS: Final = int(os.environ.get("BENCH_STARTS", size(20, 2)))
RECORDS: Final = 1_000
ZIPPED: Final = "timestream, PySpark as a zip"
ANY: Final = "any source in Python"
AT_ONCE: Final = "spark, no waits"
PEERS: Final = ("spark", AT_ONCE)
OURS: Final = size(("timestream", ZIPPED, ANY), ("timestream",))
WAYS: Final = (*PEERS, *OURS)
LIMIT_S: Final = 120
PARTITIONS: Final = 4


class RowSource(DataSource):
    """A bounded stream of numbers."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "rows"

    def schema(self) -> str:
        """The columns."""
        return "number long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader."""
        return RowReader()


class RowReader(DataSourceStreamReader):
    """RECORDS rows in PARTITIONS partitions."""

    def initialOffset(self) -> dict[str, Any]:
        """Before all rows."""
        return {"rows": 0}

    def latestOffset(self) -> dict[str, Any]:
        """Behind all rows."""
        return {"rows": RECORDS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """As many as the topic has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """The rows of a partition."""
        return zip(range(RECORDS // PARTITIONS))


def rows(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """The stream of numbers; it reads no topic."""
    # Spark's processes cannot import the main module of a contender's.
    cloudpickle.register_pickle_by_value(sys.modules[RowSource.__module__])
    spark.dataSource.register(RowSource)
    return spark.readStream.format("rows").load()


def spark_at_once(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """Spark's source, told to wait no longer than ours."""
    return spark_source(spark, kafka, topic, **WAITS_LESS)


SOURCES: Final = {"spark": spark_source, AT_ONCE: spark_at_once, ANY: rows}


def time_first_commit(way: str, bootstrap: str, topic: str) -> Done:
    """Return the milliseconds from `start()` until Spark has written the first batch's commit."""
    if way == ZIPPED:
        use_spark_as_installed()
    spark, kafka = here(bootstrap)
    # A JVM that has done nothing loads classes that are not part of a query's start.
    spark.range(1).count()
    frame = SOURCES.get(way, timestream)(spark, kafka, topic)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        commit = Path(checkpoint) / "commits" / "0"
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        while not commit.exists():
            time.sleep(0.001)
            if query.exception() is not None or time.perf_counter() - began > LIMIT_S:
                raise SystemExit(f"{way}: no batch was committed: {query.exception()}")
        took_s = time.perf_counter() - began
        query.awaitTermination()
    return Done(took_s * 1000)


def measure() -> Iterator[Comparison]:
    """Ours against Spark's, cold and warm."""
    kafka_jars()
    with ExitStack() as open_:
        kafka = open_.enter_context(broker(say=lambda _: None))
        given = (kafka.bootstrap, filled(kafka, RECORDS, PARTITIONS))
        first = {way: open_.enter_context(Fresh(time_first_commit, way, *given)) for way in WAYS}
        yield from compare_starts("cold session", first, warm_up=0)
        apart = {way: open_.enter_context(Apart()) for way in WAYS}
        again = {way: each.contender(time_first_commit, way, *given) for way, each in apart.items()}
        yield from compare_starts("warm session", again, warm_up=WARM_UP)


def compare_starts(session: str, ways: Mapping[str, Contender], warm_up: int) -> list[Comparison]:
    """Return the starts in turns, as a row for each way of ours and of Spark's."""
    job = f"start to first commit, {session}, "
    found = compare(job, ways, unit="ms", rounds=STARTS, warm_up=warm_up)
    return [pair(found, peer, ours, f"{ours} beside {peer}") for peer in PEERS for ours in OURS]


if __name__ == "__main__":
    # The session's settings name a contender's Spark home.
    os.environ.pop("SPARK_HOME", None)
    report(__file__, measure())
