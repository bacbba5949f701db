"""How often the total of a bank is not 0 (`bank_transfers.py`), by both sources.

*Live*: a producer reports the minute of transfers as it passes, at most ten seconds out of order,
and in some runs one partition half a minute behind, while the queries run; then all is read to its
end. The job reads the topic twice. If the reads of a batch end at other records, a watermark that
has moved in between makes a transfer late for one of them only, and a total is not 0, which no set
of transfers can give.

*Backlog*: as many transfers as in the post (or BENCH_RECORDS), all there from the start, in eight
batches, over 1, 4 and 8 partitions.

A transfer is late if its second was emitted and no total has it. A CTI makes a transfer late that
its own partition has passed; Spark's watermark, one for all partitions, a transfer of a second that
it has emitted.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from bank_transfers import (
    BEGIN_MS,
    SECONDS,
    Transfers,
    by_ctis,
    by_watermark,
    totals,
    transfers,
    values,
)
from broker import Broker, broker
from peers import kafka_jars
from pyspark.sql import DataFrame, Row, SparkSession
from side_by_side import report_table
from sizes import records, size
from spark_session import local_spark

LIVE: Final = size(600_000, 40_000)
PACE: Final = size(1.0, 0.15)
"""Seconds in which a second of transfers is reported."""

BACKLOG: Final = records((10_000_000,), (50_000,))[0]
BATCHES: Final = 8
FIRST_LOOK_S: Final = 60
LIVE_RUNS: Final = size(((5, 0), (10, 0), (10, 30)), ((10, 30),))
"""The delay, and the lag of a partition, in seconds; ten cover the disorder of each partition."""

DELAY_S: Final = 10
PARTITIONS: Final = size((1, 4, 8), (4,))
SOURCES: Final = {"spark": by_watermark, "timestream": by_ctis}


class Bank(NamedTuple):
    """Where the transfers go, and how they arrive."""

    kafka: Broker
    partitions: int
    lag_s: int
    given: Transfers

    @classmethod
    def open(cls, kafka: Broker, count: int, partitions: int = 4, lag_s: int = 0) -> "Bank":
        """With this many transfers."""
        return cls(kafka, partitions, lag_s, transfers(count, partitions, lag_s))

    def report(self, topic: str, pace: float) -> None:
        """Produce them all; a second of transfers in `pace` seconds, 0: as fast as it can be."""
        producer = self.kafka.producer(linger_ms=5, queue_buffering_max_messages=1_000_000)
        took_s = pace * (SECONDS + self.lag_s)
        began = time.monotonic()
        each = zip(values(self.given), self.given.partitions.tolist(), strict=True)
        for number, (value, partition) in enumerate(each):
            if took_s and number % 100 == 0:
                due = began + took_s * number / self.given.count
                time.sleep(max(0.0, due - time.monotonic()))
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush(120)

    def judge(self, rows: list[Row]) -> dict[str, Any]:
        """The totals that are not 0, and the transfers of emitted seconds that are in none."""
        wrong = [row.total for row in rows if row.total]
        seconds = [round(row.timestamp.timestamp() - BEGIN_MS / 1000) for row in rows]
        there = int(np.isin(self.given.seconds, seconds).sum())
        moved = sum(row.moved for row in rows)
        return {
            "totals": len(rows),
            "not 0": len(wrong),
            "furthest from 0": max(map(abs, wrong), default=0),
            "transfers": there,
            "late": there - moved,
            "late in 100": round(100 * (there - moved) / there, 2),
        }


def emitted(found: DataFrame, until: Callable[[Any], None], once: bool) -> tuple[list[Row], float]:
    """The rows that a query emitted until it was told to stop, and the seconds it ran."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        writer = found.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        writer = writer.option("checkpointLocation", place)
        began = time.monotonic()
        query = (writer.trigger(availableNow=True) if once else writer).start()
        try:
            until(query)
        finally:
            query.stop()
    return rows, time.monotonic() - began


def live(spark: SparkSession, kafka: Broker) -> Iterator[dict[str, Any]]:
    """Each source, delay and lag, over a topic that is written to meanwhile."""
    for delay_s, lag_s in LIVE_RUNS:
        bank = Bank.open(kafka, LIVE, lag_s=lag_s)
        for name in SOURCES:
            topic = kafka.create_topic(None, bank.partitions)
            reporter = threading.Thread(target=bank.report, args=(topic, PACE))

            def until(query: Any, reporter: threading.Thread = reporter) -> None:
                # A session's first batches take seconds, in which the producer would be done.
                deadline = time.monotonic() + FIRST_LOOK_S
                while query.lastProgress is None and time.monotonic() < deadline:
                    time.sleep(0.1)
                reporter.start()
                reporter.join()
                query.processAllAvailable()

            read = reading(spark, bank, topic, name, delay_s)
            rows, took_s = emitted(totals(read), until, once=False)
            yield row("live", name, delay_s, bank, rows, took_s)


def backlog(spark: SparkSession, bank: Bank) -> Iterator[dict[str, Any]]:
    """Each source, over a topic that has everything."""
    topic = bank.kafka.create_topic(None, bank.partitions)
    bank.report(topic, 0)
    limit = str(-(-bank.given.count // BATCHES))
    for name in SOURCES:
        read = reading(spark, bank, topic, name, DELAY_S, maxOffsetsPerTrigger=limit)
        rows, took_s = emitted(totals(read), lambda query: query.awaitTermination(), once=True)
        yield row("backlog", name, DELAY_S, bank, rows, took_s)
    bank.kafka.delete_topic(topic)


def reading(
    spark: SparkSession, bank: Bank, topic: str, name: str, delay_s: int, **more: str
) -> Callable[[], DataFrame]:
    """A read of the topic by a source."""
    return lambda: SOURCES[name](spark, bank.kafka.bootstrap, topic, delay_s, **more)


def row(
    how: str, name: str, delay_s: int, bank: Bank, rows: list[Row], took_s: float
) -> dict[str, Any]:
    """The row of one run.

    Raises:
        SystemExit: ours has emitted a total that is not 0.
    """
    found = bank.judge(rows)
    if name == "timestream" and found["not 0"]:
        raise SystemExit(f"{how}, {bank.partitions} partitions: totals are not 0: {found}")
    fixed = {"run": how, "source": name, "delay s": delay_s, "lag s": bank.lag_s}
    fixed |= {"partitions": bank.partitions}
    return fixed | found | {"seconds": round(took_s, 1)}


def measure() -> Iterator[dict[str, Any]]:
    """All runs, as they come."""
    spark = local_spark("internal consistency", spark_jars=kafka_jars())
    with broker(say=lambda _: None) as kafka:
        # Not a row: it warms both up.
        list(backlog(spark, Bank.open(kafka, 1_000)))
        yield from live(spark, kafka)
        for partitions in PARTITIONS:
            yield from backlog(spark, Bank.open(kafka, BACKLOG, partitions))
    spark.stop()


if __name__ == "__main__":
    report_table(__file__, measure())
