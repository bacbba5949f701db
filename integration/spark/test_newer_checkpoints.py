"""Checkpoints of newer Spark: sources with names and offset log 2, and repartitioned state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Broker
from harness import forget_batches, latest
from kafka_query import Stream, event, marks, seconds
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, order_by_time
from pyspark_timestream.__main__ import main
from pyspark_timestream.commands.explanation import Explanation, explain_checkpoint

pytestmark = pytest.mark.timeout(300)

NAMED = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FIRST = [event(second, number % 2) for number, second in enumerate([1, 2, 5, 3, 12, 11, 17, 14])]
SECOND = [event(second, number % 2) for number, second in enumerate([16, 19, 25, 23, 31])]


class NamedStream(Stream):
    """A stream with a named source, so that its checkpoint has an offset log of version 2."""

    def load(self, **options: str) -> DataFrame:
        return self.configure(self.spark.readStream.name("trips"), **options).load()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session with settings of only one test, which can repartition state."""
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    return own


@pytest.fixture
def made(session: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path):
    """Make a stream over a topic of two partitions, with offset log 1 or 2."""

    def make(version: int, name: str = "q") -> Stream:
        for setting, value in NAMED.items() if version == 2 else ():
            session.conf.set(setting, value)
        options = {"ctiFrequency": "1", "ctiDelay": "5 seconds", "maxOffsetsPerTrigger": "4"}
        kind = NamedStream if version == 2 else Stream
        return kind(session, broker, place, tmp_path / f"{name}{version}", options)

    place = topic(2)
    broker.produce(place, FIRST)
    return make


def log_versions(stream: Stream) -> set[str]:
    files = (stream.place / "checkpoint" / "offsets").glob("[0-9]*")
    return {file.read_text().splitlines()[0] for file in files}


def explained(stream: Stream) -> Explanation:
    return explain_checkpoint(str(stream.place / "checkpoint"))


def facts(explanation: Explanation) -> tuple[object, ...]:
    (only,) = explanation.streams
    # Each query has a group of its own.
    notes = re.sub(r"timestream-[0-9a-f]{32}", "GROUP", str(explanation.notes))
    return only.batch, only.cti_us, only.partitions, notes


@pytest.mark.outside_ci
def test_named_source_gives_the_rows_of_an_unnamed_one_and_replays_them(
    made: Callable[..., Stream], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = made(1)
    wanted = marks(plain.run())
    named = made(2)
    rows = named.run()
    assert marks(rows) == wanted
    assert (log_versions(plain), log_versions(named)) == ({"v1"}, {"v2"})
    assert facts(explained(named)) == facts(explained(plain))
    commits = named.place / "checkpoint" / "commits"
    forget_batches(commits, latest(commits) - 1)
    assert "was planned and not finished" in str(explained(named))
    again = named.run()
    # The first batch after every start repeats the CTI (semantics 8.4).
    assert again[: len(rows)] == rows
    assert marks(again[len(rows) :]) == marks(rows)[-1:]
    assert main(["explain", "--checkpoint", str(named.place / "checkpoint")]) == 0
    assert "passed over" not in capsys.readouterr().out


def count(rows: DataFrame) -> DataFrame:
    windows = advance_time(rows).groupBy(F.window("start_time", "10 seconds"))
    return windows.count().select(F.col("window.start").alias("start_time"), "count")


def order(rows: DataFrame) -> DataFrame:
    return order_by_time(rows, "partition").select("partition", "start_time")


@pytest.mark.soak
@pytest.mark.parametrize(("version", "operator"), [(2, count), (1, order)])
def test_repartitioned_checkpoint_goes_on_with_the_same_rows_and_ctis(
    made: Callable[..., Stream], version: int, operator: Callable[[DataFrame], DataFrame]
) -> None:
    stream = made(version)
    stream.run(operator(stream.load()))
    before = explained(stream)
    checkpoint = str(stream.place / "checkpoint")
    stream.spark._streamingCheckpointManager.repartition(checkpoint, 3)
    assert log_versions(stream) == {f"v{version}"}
    assert facts(explained(stream)) == facts(before)
    assert explain_checkpoint(checkpoint, stream.spark).state
    stream.broker.produce(stream.topic, SECOND)
    rows = stream.run(operator(stream.load(finalCti="true")))
    times = [[1, 5, 12, 17], [2, 3, 11, 14]]
    for number, each in enumerate([16, 19, 25, 23, 31]):
        times[number % 2].append(each)
    if operator is count:
        found = Counter({seconds(row["start_time"]): row["count"] for row in rows})
        assert found == Counter(time // 10 * 10 for part in times for time in part)
        assert len(rows) == len(found)
    else:
        for number, part in enumerate(times):
            got = [seconds(row["start_time"]) for row in rows if row["partition"] == number]
            assert got == sorted(part)


@pytest.mark.soak
def test_forced_repartition_skips_a_failed_batch_and_explains_it(
    made: Callable[..., Stream],
) -> None:
    stream = made(1)
    stream.run(count(stream.load()))
    before = explained(stream)
    stream.broker.produce(stream.topic, SECOND)

    def fail(batch: DataFrame, number: int) -> None:
        raise ValueError(f"batch {number} fails")

    checkpoint = str(stream.place / "checkpoint")
    writer = count(stream.load()).writeStream.foreachBatch(fail)
    failing = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="fails"):
        failing.awaitTermination()
    manager = stream.spark._streamingCheckpointManager
    with pytest.raises(Py4JJavaError, match="LAST_BATCH_FAILED"):
        manager.repartition(checkpoint, 3)
    manager.repartition(checkpoint, 3, enforce_exactly_once_sink=False)
    after = explained(stream)
    assert after.streams[0].cti_us == before.streams[0].cti_us
    assert "a forced repartition of the state skipped it" in str(after)
    rows = stream.run(count(stream.load(finalCti="true")))
    assert sum(row["count"] for row in rows) == len(FIRST) + len(SECOND)
