"""Writes to a topic on a real broker (semantics 29), a test a rule."""

import contextlib
import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from broker import Broker, Record
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import ResourcePatternType, ResourceType
from harness import InBatch, Job, run_killed
from kafka_query import DAY_MS, event, seconds
from lengths import repetitions
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from writing import Mark, TopicJob, counted, passed_on

from pyspark_timestream import advance_time
from pyspark_timestream.kafka.writer.ledger import MARKS, Place
from pyspark_timestream.kafka.writer.options import KafkaWriteOptions

pytestmark = pytest.mark.timeout(400)

FINAL = float("inf")
STATIONS = "abcde"


@pytest.fixture
def job(spark: SparkSession, broker: Broker, topic, tmp_path: Path):
    """Make a job between two fresh topics."""

    def make(*records, targets: int = 2) -> TopicJob:
        source, target = topic(), topic(targets)
        broker.produce(source, records)
        return TopicJob(spark, broker, source, target, tmp_path / target)

    return make


def trips(number: int, seed: int = 1) -> list[Record]:
    """Events of five stations, one a second, each up to ten seconds late."""
    chance = random.Random(seed)
    return [
        event(max(0, second - chance.uniform(0, 10)), station=chance.choice(STATIONS))
        for second in range(number)
    ]


def windows(records, length: int) -> Counter:
    """The number of events by station and end of the window, without Spark."""
    ends = [(r.timestamp_ms - DAY_MS) // 1000 // length * length + length for r in records]
    return Counter(
        (json.loads(r.value)["station"], end) for r, end in zip(records, ends, strict=True)
    )


def written(made: TopicJob) -> Counter:
    """How often each result is in the target."""
    return Counter((each["station"], each["second"], each["n"]) for each in made.values())


def once(expected: Counter) -> Counter:
    """Every result, once."""
    return Counter((station, end, n) for (station, end), n in expected.items())


def check_marks(made: TopicJob) -> None:
    """No row of a partition lies below a mark before it."""
    for partition in made.broker.end_offsets(made.target):
        mark = float("-inf")
        for each in made.read(partition):
            if isinstance(each, Mark):
                assert each.second > mark
                mark = each.second
            else:
                assert each["second"] >= mark


def read_on(made: TopicJob, length: int) -> Counter:
    """What the next job finds: coarser windows, released by the marks; a late row fails it."""
    next_job = TopicJob(made.spark, made.broker, made.target, "", made.place / "next")
    schema = "station string, n long, start_time timestamp, cti timestamp"
    frame = next_job.load(
        schema, ctiFrequency="", ctiHeader="cti", startTime="end",
        violationPolicy="fail", writers="job",
    )  # fmt: skip
    # The end of a window is the first moment behind it.
    data = frame.withColumn("start_time", F.expr("start_time - interval 1 microsecond"))
    sums = advance_time(data).groupBy(F.window("start_time", f"{length} seconds"), "station")
    name = f"sums_{time.time_ns()}"
    writer = sums.agg(F.sum("n").alias("n")).writeStream.format("memory").queryName(name)
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = made.spark.table(name).collect()
    return Counter((row.station, seconds(row.window.end), row.n) for row in rows)


def forget_commits(made: TopicJob) -> None:
    """Let the last batch with rows come again, as after a kill before Spark noted it."""
    with contextlib.closing(Progress(made)) as progress:
        batch = progress.last_batch_with_rows()
    for log, kept in (("offsets", batch), ("commits", batch - 1)):
        for each in (made.place / "checkpoint" / log).iterdir():
            number = each.name.strip(".").removesuffix(".crc")
            if not number.isdigit() or int(number) > kept:
                each.unlink()


def test_a_batch_that_comes_again_in_other_tasks_is_refused_before_its_mark(job) -> None:
    made = job(*[event(s, station="ab"[s % 2]) for s in range(7)])
    made.run(passed_on(made.load()).repartition(2))
    before = made.read(0), made.read(1)
    forget_commits(made)
    with pytest.raises(Exception, match=r"ReplayDiffers: batch \d was written with \d rows"):
        made.run(passed_on(made.load()).repartition(3))
    assert made.marks() == [each for each in before[0] if isinstance(each, Mark)]


def test_a_row_that_comes_again_in_another_task_is_refused_without_any_mark(job) -> None:
    made = job(event(0, station="a"))

    def placed(by: str):
        rows = made.load().where("cti IS NULL").select("station", F.lit("{}").alias("value"))
        return rows.repartition(2, F.expr(by)).select("value")

    places = {made.spark.range(1).select(F.expr(f"pmod(hash({by}), 2)")).head()[0]: by
              for by in ("concat('a', '')", "concat('a', '1')", "concat('a', '2')")}  # fmt: skip
    first, second = (places[number].replace("'a'", "station") for number in (0, 1))
    made.run(placed(first), ctiFrom="watermark")
    forget_commits(made)
    # In the same application, which has a driver's process from before.
    with pytest.raises(Exception, match=r"ReplayDiffers: batch 0 comes again .* in task 0, which"):
        made.run(placed(second), ctiFrom="watermark")
    assert not made.marks()


def test_cti_rows_become_marks_behind_their_rows_in_every_partition(job) -> None:
    made = job(*[event(s, station="ab"[s % 2]) for s in range(4)], targets=3)
    made.run(passed_on(made.load()))
    assert sorted(row["start_time"][17:19] for row in made.values()) == ["00", "01", "02", "03"]
    for partition in range(3):
        *_, last = made.read(partition)
        assert last == Mark(3, "job", False)
    before = [made.read(partition) for partition in range(3)]
    forget_commits(made)
    made.run(passed_on(made.load()))
    assert [made.read(partition) for partition in range(3)] == before


def test_windows_in_many_batches_are_never_below_a_mark_and_the_next_job_has_all(job) -> None:
    records = trips(120)
    made = job(*records)
    options = {"ctiDelay": "10 seconds", "finalCti": "true", "maxOffsetsPerTrigger": "40"}
    made.run(counted(made.load(**options)), ctiFrom="watermark")
    assert written(made) == once(windows(records, 10))
    check_marks(made)
    for partition in (0, 1):
        marks = made.marks(partition)
        assert len(marks) > 2
        assert marks[-1] == Mark(FINAL, "job", True)
    assert read_on(made, 30) == once(windows(records, 30))


@pytest.mark.soak
def test_starts_of_windows_need_a_delay_of_their_length(job) -> None:
    records = trips(100, seed=2)
    made = job(*records)
    options = {"ctiDelay": "10 seconds", "maxOffsetsPerTrigger": "20"}
    made.run(counted(made.load(**options), at="start"), ctiFrom="watermark", ctiDelay="10 seconds")
    check_marks(made)
    (*_, last) = made.marks()
    assert max(row["second"] for row in made.values()) + 10 <= last.second + 10


def test_rows_that_were_written_before_the_mark_failed_are_not_written_twice(job, broker) -> None:
    records = trips(60, seed=3)
    made = job(*records)
    frame = counted(made.load(ctiDelay="10 seconds", finalCti="true"))
    prefix = f"timestream-writer/{made.target}/marks/"
    with (
        broker.deny(ResourceType.TRANSACTIONAL_ID, prefix, pattern=ResourcePatternType.PREFIXED),
        pytest.raises(Exception, match="option 'transactionalIdPrefix'"),
    ):
        made.run(frame, ctiFrom="watermark")
    assert made.values()
    assert not made.marks()
    made.run(frame, ctiFrom="watermark")
    assert written(made) == once(windows(records, 10))
    check_marks(made)
    assert made.marks()[-1].second == FINAL


def check_killed(made: TopicJob, records, point, kills: int, log: Path) -> None:
    """Kill the job at the point, let it finish, and check that every result is there once."""
    arguments = [made.broker.bootstrap, made.source, made.target, str(made.place)]
    killed_job = Job(Path(__file__).with_name("topic_write_job.py"), arguments, log=log)
    result = run_killed(killed_job, point, kills=kills, timeout=350)
    assert (result.hits, result.exit_code) == (kills, 0)
    assert (made.place / "failed").exists()
    assert written(made) == once(windows(records, 10))
    check_marks(made)
    assert made.marks()[-1] == Mark(FINAL, "job", True)


def test_a_job_that_is_killed_between_rows_and_marks_writes_each_result_once(
    job, tmp_path: Path
) -> None:
    records = trips(repetitions(130, 1200), seed=4)
    made = job(*records)
    with contextlib.closing(Progress(made)) as progress:
        point = InBatch(made.place / "checkpoint", then=progress.is_half_written)
        check_killed(made, records, point, repetitions(1, 4), tmp_path / "job.log")


@pytest.mark.soak
def test_a_job_that_is_killed_anywhere_in_batches_writes_each_result_once(
    job, tmp_path: Path
) -> None:
    records = trips(repetitions(250, 1200), seed=5)
    made = job(*records)
    place, chance = made.place / "checkpoint", random.Random(5)
    waits = [chance.uniform(0, 0.4) for _ in range(50)]

    def is_due(batch: int) -> bool:
        planned = (place / "offsets" / str(batch)).stat().st_mtime
        return time.time() - planned > waits[batch % len(waits)]

    point = InBatch(place, then=is_due)
    check_killed(made, records, point, repetitions(2, 4), tmp_path / "job.log")


class Progress:
    """Which batches a job has written, from the groups in which it notes them."""

    def __init__(self, made: TopicJob) -> None:
        self._made = made
        self._readers: dict[int | str, Consumer] = {}

    def is_half_written(self, batch: int) -> bool:
        """True if rows of the batch are in the topic, and the mark is not."""
        rows = max(self._next_batch(0), self._next_batch(1))
        return rows == batch + 1 > self._next_batch(MARKS)

    def last_batch_with_rows(self) -> int:
        """The last batch of which a task has written rows."""
        return max(self._next_batch(0), self._next_batch(1)) - 1

    def _next_batch(self, name: int | str) -> int:
        if name not in self._readers:
            query = json.loads((self._made.place / "checkpoint/metadata").read_text())["id"]
            options = KafkaWriteOptions(self._made.target, "job")
            group = Place.of(options, query, name).group
            # What a frozen job has pending must not hold the look back.
            reader = self._made.broker.consumer(group_id=group, isolation_level="read_uncommitted")
            self._readers[name] = reader
        asked = [TopicPartition(self._made.target, 0)]
        return int(self._readers[name].committed(asked, timeout=10)[0].offset)

    def close(self) -> None:
        """Close the connections."""
        for each in self._readers.values():
            each.close()
