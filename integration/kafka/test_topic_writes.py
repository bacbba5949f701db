"""Writes to a topic on a real broker (semantics 29), a test a rule."""

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker import Broker, Record
from confluent_kafka.admin import ResourcePatternType, ResourceType
from harness import JOBS, InBatch, Job, forget_batches, run_killed
from kafka_query import DAY_MS, event, seconds
from lengths import repetitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from writing import Mark, TopicJob, counted, passed_on

from pyspark_timestream import advance_time

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
    """The next job's rows in the end."""
    next_job = TopicJob(made.spark, made.broker, made.target, "", made.place / "next")
    name = f"sums_{time.time_ns()}"
    writer = window_sums(next_job, length).writeStream.format("memory").queryName(name)
    writer.trigger(availableNow=True).start().awaitTermination()
    return counts_of(made.spark.table(name))


def window_sums(next_job: TopicJob, length: int, **options: str) -> DataFrame:
    """Coarser windows, released by the marks; a late row fails their query."""
    schema = "station string, n long, start_time timestamp, cti timestamp"
    given = {
        "ctiFrequency": "", "ctiHeader": "cti", "startTime": "end", "violationPolicy": "fail",
        "writers": "job", **options,
    }  # fmt: skip
    # The end of a window is the first moment behind it.
    data = next_job.load(schema, **given)
    data = data.withColumn("start_time", F.expr("start_time - interval 1 microsecond"))
    sums = advance_time(data).groupBy(F.window("start_time", f"{length} seconds"), "station")
    return sums.agg(F.sum("n").alias("n"))


def counts_of(sums: DataFrame) -> Counter:
    return Counter({(row.station, seconds(row.window.end)): row.n for row in sums.collect()})


@contextlib.contextmanager
def coarser(made: TopicJob, length: int, writers: str) -> Iterator[Callable[[], Counter]]:
    """The next job while others write; the function waits for what it has released by now."""
    next_job = TopicJob(made.spark, made.broker, made.target, "", made.place / "next")
    sums = window_sums(next_job, length, writers=writers, maxOffsetsPerTrigger="40")
    name = f"sums_{time.time_ns()}"
    query = sums.writeStream.format("memory").queryName(name).start()

    def released() -> Counter:
        query.processAllAvailable()
        return counts_of(made.spark.table(name))

    try:
        yield released
    finally:
        query.stop()


def forget_commits(made: TopicJob) -> None:
    """Let the last batch with rows come again, as after a kill before Spark noted it."""
    with contextlib.closing(made.progress()) as progress:
        batch = progress.last_batch_with_rows()
    for log, kept in (("offsets", batch), ("commits", batch - 1)):
        forget_batches(made.place / "checkpoint" / log, kept)


@pytest.mark.outside_ci
def test_a_batch_that_comes_again_in_other_tasks_is_refused_before_its_mark(job) -> None:
    made = job(*[event(s, station="ab"[s % 2]) for s in range(7)])
    made.run(passed_on(made.load()).repartition(2))
    before = made.read(0), made.read(1)
    forget_commits(made)
    with pytest.raises(Exception, match=r"ReplayDiffers: batch \d was written with \d rows"):
        made.run(passed_on(made.load()).repartition(3))
    assert made.marks() == [each for each in before[0] if isinstance(each, Mark)]


@pytest.mark.outside_ci
@pytest.mark.soak
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


@pytest.mark.outside_ci
def test_rows_without_marks_are_in_their_topics_once_also_when_their_batch_comes_again(
    job, topic
) -> None:
    """As Spark's own sink is called: no writer, and no CTIs."""
    made, other = job(*[event(second, station="a") for second in range(9)]), topic(1)
    names = F.when(F.second("start_time") % 2 == 0, made.target).otherwise(other)
    text = F.second("start_time").cast("string")

    def run(**options: str) -> None:
        rows = made.load("station string, start_time timestamp", ctiFrequency="")
        made.run(rows.select(text.alias("value"), names.alias("topic")), writer="", **options)

    run(topic="")
    for log, kept in (("offsets", 0), ("commits", -1)):
        forget_batches(made.place / "checkpoint" / log, kept)
    run(topic="")
    found = {
        name: sorted(int(each.value()) for each in made.broker.read(name))
        for name in (made.target, other)
    }
    assert found == {made.target: [0, 2, 4, 6, 8], other: [1, 3, 5, 7]}
    assert not any(each.headers() for each in made.broker.read(made.target))


def test_a_batch_write_has_each_row_once_and_another_one_adds_to_it(job) -> None:
    made = job()
    rows = made.spark.range(50).selectExpr("string(id) AS value").repartition(3).write
    options = {"transport": "kafka", "kafka.bootstrap.servers": made.broker.bootstrap}
    for _ in range(2):
        rows.format("timestream").options(**options, topic=made.target).mode("append").save()
    assert Counter(made.values()) == Counter([*range(50)] * 2)


@pytest.mark.soak
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
    assert read_on(made, 30) == windows(records, 30)


@pytest.mark.soak
def test_two_queries_that_write_one_topic_at_once_release_no_window_before_both(
    job, broker, topic
) -> None:
    """The second one begins behind the first one's marks; each of their stages overlaps."""
    left = job()
    right = TopicJob(left.spark, broker, topic(), left.target, left.place / "right")
    rides, tours, far = trips(120, seed=6), trips(120, seed=7), event(200, station="a")
    with (
        coarser(left, 30, "left,right") as released,
        writing_live(left, "left") as mark_of_left,
        writing_live(right, "right") as mark_of_right,
    ):
        broker.produce(left.source, rides[:80])
        until(lambda: mark_of_left() > 60)
        assert not released()
        broker.produce(right.source, tours[:40])
        until(lambda: mark_of_right() > 20)
        assert not released()
        broker.produce(left.source, [*rides[80:], far])
        broker.produce(right.source, [*tours[40:], far])
        until(lambda: min(mark_of_left(), mark_of_right()) > 130)
        assert released() == windows([*rides, *tours], 30)
    writers = [mark.writer for mark in left.marks()]
    assert writers[0] == "left"
    assert "left" in writers[writers.index("right") :]
    # Alone, either one's marks would make rows of the other late.
    with pytest.raises(AssertionError):
        check_marks(left)


@contextlib.contextmanager
def writing_live(made: TopicJob, writer: str) -> Iterator[Callable[[], float]]:
    """A query that writes what comes; the function gives its last mark."""
    rows = counted(made.load(ctiDelay="10 seconds", maxOffsetsPerTrigger="40"))
    query = made.write(rows, once=False, ctiFrom="watermark", writer=writer)

    def last_commit_id() -> float:
        assert query.isActive, query.exception()
        marks = [mark.second for mark in made.marks() if mark.writer == writer]
        return marks[-1] if marks else float("-inf")

    try:
        yield last_commit_id
    finally:
        query.stop()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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


def check_killed(made: TopicJob, records, point, *, kills: int, log: Path) -> None:
    """Kill the job at the point, let it finish, and check that every result is there once."""
    arguments = [made.broker.bootstrap, made.source, made.target, str(made.place)]
    killed_job = Job(JOBS / "topic_write_job.py", arguments, log=log)
    result = run_killed(killed_job, point, kills=kills, timeout=350)
    assert (result.hits, result.exit_code) == (kills, 0)
    assert (made.place / "failed").exists()
    assert written(made) == once(windows(records, 10))
    check_marks(made)
    assert made.marks()[-1] == Mark(FINAL, "job", True)


# A chain of jobs is killed there on a cluster in CI.
@pytest.mark.soak
def test_a_job_that_is_killed_between_rows_and_marks_writes_each_result_once(
    job, tmp_path: Path
) -> None:
    records = trips(repetitions(130, 1200), seed=4)
    made = job(*records)
    with contextlib.closing(made.progress()) as progress:
        point = InBatch(made.place / "checkpoint", then=progress.is_half_written)
        check_killed(made, records, point, kills=repetitions(1, 4), log=tmp_path / "job.log")


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
    check_killed(made, records, point, kills=repetitions(2, 4), log=tmp_path / "job.log")
