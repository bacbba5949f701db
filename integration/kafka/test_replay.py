"""Streams with an end of their own, and replays by time, on a real broker (semantics 7.6, 7.7)."""

import json
import time
from random import Random

import pytest
from harness import JOBS, Job, between_files_and_checkpoint, run_until
from kafka_query import DAY_MS, Stream, ctis, event, seconds
from lengths import FULL_LENGTH, repetitions
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from timestream.oracle import run_writers

from pyspark_timestream import advance_time, await_end

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 120.0
DAY_S = 86_400
KILLS = repetitions(1, 5)
MARCH = (60 * DAY_S, 91 * DAY_S)
"""March 2024, in seconds from 2024-01-01."""
CLOCK = {"ctiFrequency": "1", "ctiDelay": "1 day"}


def again(made: Stream, name: str, **options) -> Stream:
    """Another query over the topic of `made`."""
    both = {**made.options, **options}
    return Stream(made.spark, made.broker, made.topic, made.place / name, both)


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.1)


def places(rows) -> list[tuple[int, int]]:
    """Partition and offset of each row of data, in order of these."""
    return sorted((row.partition, row.offset) for row in rows if row["cti"] is None)


def instant(second: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(DAY_MS / 1000 + second))


def half_year():
    """Two partitions from January to June, up to two days out of order; the second ends earlier."""
    chance = Random(16).random
    for partition, days in ((0, 180), (1, 170)):
        for hour in range(0, days * 24, 9):
            yield event(hour * 3600 - int(chance() * 2 * DAY_S) + 2 * DAY_S, partition)


def by_day(frame: DataFrame) -> DataFrame:
    days = advance_time(frame).groupBy(F.window("start_time", "1 day").alias("day"))
    return days.agg(F.count("*").alias("rows"), F.sum("offset").alias("offsets"))


def windows(rows: list[Row]) -> list[tuple[float, int, int]]:
    return sorted((seconds(row.day.start), row.rows, row.offsets) for row in rows)


@pytest.fixture
def trips(stream) -> Stream:
    return stream(half_year(), 2, **CLOCK)


def march_only(made: Stream, name: str, **options) -> Stream:
    first, end = MARCH
    span = {"startingCti": instant(first), "endingCti": instant(end)}
    return again(made, name, **span, **options)


def test_the_windows_of_march_are_those_of_the_full_run_and_it_stays_finished(trips) -> None:
    first, end = MARCH
    full = again(trips, "full")
    whole = windows(full.run(by_day(full.load())))
    march = [day for day in whole if first <= day[0] < end]
    assert len(march) == 31
    replay = march_only(trips, "march", maxOffsetsPerTrigger="400")
    assert windows(replay.run(by_day(replay.load()))) == march
    report = replay.report()
    assert (report["cti"], report["endOfStream"]) == (instant(end), True)
    assert report["outside"] > 0
    assert not any("replay" in warning for warning in report["warnings"])
    assert all(part["lag"] == 0 for part in report["partitions"][trips.topic].values())
    # Its topic gets and loses records: the deleted ones lie behind the end of the replay.
    trips.broker.produce(trips.topic, [event(first + 5, 0), event(end + 900 * DAY_S, 1)])
    trips.broker.delete_records(trips.topic, {0: 470, 1: 450})
    assert windows(replay.run(by_day(replay.load()))) == march
    assert replay.report()["endOfStream"]


@pytest.mark.soak
def test_a_replay_that_is_killed_goes_on_to_the_same_rows_and_the_same_last_cti(trips) -> None:
    expected = march_only(trips, "whole").run()
    killed = march_only(trips, "killed", maxOffsetsPerTrigger="60" if FULL_LENGTH else "250")
    options = {name: str(value) for name, value in killed.options.items()}
    job = Job(
        JOBS / "cti_job.py",
        [trips.broker.bootstrap, trips.topic, str(killed.place), json.dumps(options)],
        log=killed.place.with_suffix(".log"),
    )

    def is_written(batch: int) -> bool:
        return batch > 0 and (killed.place / "rows" / f"batch={batch:06d}" / "_SUCCESS").exists()

    point = between_files_and_checkpoint(killed.place / "checkpoint", is_written)
    for _ in range(KILLS):
        assert run_until(job, point, timeout=240).hit
    rows = killed.run()
    assert places(rows) == places(expected) != []
    assert (ctis(rows)[-1], ctis(expected)[-1]) == (MARCH[1], MARCH[1])
    assert min(ctis(rows)) >= MARCH[0]
    assert killed.report()["endOfStream"]


def test_a_replay_by_writers_clocks_is_the_same_in_aligned_batches(stream) -> None:
    """Each of two writers has a clock; that of the second one is a day ahead."""
    chance = Random(17).random
    told = [
        (("ab"[n % 2]), hour * 3600 + n % 2 * DAY_S - int(chance() * DAY_S / 2) + DAY_S)
        for n, hour in enumerate(range(0, 110 * 24, 6))
    ]
    records = [
        event(second, partition, who=who)
        for partition, count in ((0, 440), (1, 400))
        for who, second in told[:count]
    ]
    first, end = MARCH
    clock = {"ctiFrequency": "1", "ctiDelay": "6 hours"}
    made = stream(
        records, 2, **clock, writerFrom="field:who", writers="a,b",
        startingCti=instant(first), endingCti=instant(end),
    )  # fmt: skip
    aligned = again(made, "aligned", maxSkew="20 days")
    expected = []
    for partition, count in ((0, 440), (1, 400)):
        written = [(who, second, None) for who, second in told[:count]]
        known, late, _ = run_writers(written, every=1, delay=DAY_S // 4, writers=("a", "b"))
        stop = next(place for place, cti in known if cti >= end)
        expected += [
            (partition, place)
            for place, (_, second, _) in enumerate(written[: stop + 1])
            if place not in late and first <= second < end
        ]
    for run in (made, aligned):
        rows = run.run()
        assert places(rows) == expected != []
        assert ctis(rows)[-1] == end
        assert run.report()["endOfStream"]


@pytest.mark.outside_ci
def test_a_batch_read_has_the_rows_of_the_replay_however_it_is_cut(trips) -> None:
    made = march_only(trips, "batch", violationPolicy="flag")
    expected = places(made.run())
    whole = made.load_batch().collect()
    assert places(whole) == expected != []
    assert places(made.load_batch(minPartitions="7").collect()) == expected


@pytest.mark.outside_ci
def test_ends_are_fixed_at_the_first_start_under_every_trigger(stream) -> None:
    made = stream([event(second, second % 2) for second in range(8)], 2, ctiFrequency="1")
    made.options["endingTimestamp"] = str(DAY_MS + 6_000)
    query = made.start(once=False)
    until(lambda: query.lastProgress and report_of(query)["endOfStream"], "the end")
    made.broker.produce(made.topic, [event(2, 0), event(3, 1)])
    made.broker.add_partitions(made.topic, 3)
    made.broker.produce(made.topic, [event(4, 2)])
    time.sleep(2)
    await_end(query)
    expected = [(number, offset) for number in (0, 1) for offset in range(3)]
    assert places(made.rows()) == expected
    assert places(made.run()) == expected
    assert made.report()["endOfStream"]
    with pytest.raises(Exception, match=r"option 'endingTimestamp' was '1704067206000' when"):
        made.run(endingTimestamp=str(DAY_MS + 7_000))


def report_of(query) -> dict:
    return json.loads(query.lastProgress.sources[0].latestOffset)


def test_a_partition_that_never_reaches_the_end_is_told_and_waited_for(stream, caplog) -> None:
    made = stream([event(5, 0), event(20, 0), event(3, 1)], 2, ctiFrequency="1")
    made.options |= {"endingCti": instant(10)}
    rows = made.run()
    assert (places(rows), ctis(rows)) == ([(0, 0), (1, 0)], [3])
    (text,) = made.report()["warnings"]
    assert f"topic '{made.topic}' partition 1: everything is read" in text
    assert "it is 2024-01-01T00:00:03Z" in text
    made.broker.produce(made.topic, [event(9, 1), event(30, 1), event(8, 0)])
    assert places(made.run()) == [(0, 0), (1, 0), (1, 1)]
    assert ctis(made.rows())[-1] == 10
    assert made.report()["warnings"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingCti": "soon", "ctiFrequency": 1}, "option 'endingCti': cannot read 'soon'"),
        ({"endingOffsets": '{"other": {"0": 3}}'}, "option 'endingOffsets': it names other-0, but"),
    ],
    ids=str,
)
def test_a_wrong_end_is_refused_by_name(stream, options, said: str) -> None:
    with pytest.raises(Exception, match=said):
        stream([event(1)]).run(**options)
