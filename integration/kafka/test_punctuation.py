"""Semantics 3 and 4 on a real broker: shapes, policies, marks, writers, windows."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from broker import Broker, Record
from harness import JOBS, Job, between_files_and_checkpoint, run_until
from kafka_query import DAY_MS, Stream, event, marks, seconds
from pyspark.sql import SparkSession
from timestream.builders import PASSING
from timestream.oracle import Event, run

from pyspark_timestream.core.policies import POLICIES

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, topic, tmp_path: Path):
    """Make a `Stream` over a fresh topic of one partition filled with records."""

    def make(*records: Record, **options) -> Stream:
        name = topic(1)
        broker.produce(name, list(records))
        return Stream(spark, broker, name, tmp_path / name, options)

    return make


def mark(second=None, writer=None, *, close=False, stamp=0, value=None) -> Record:
    """A punctuation; its own record timestamp is `stamp` seconds into the day."""
    said = [] if second is None else [("cti", str(DAY_MS + int(second * 1000)).encode())]
    said += [] if writer is None else [("cti-writer", writer.encode())]
    said += [("cti-close", b"")] if close else []
    return Record(value, None, 0, DAY_MS + int(stamp * 1000), said)


def shaped(start=None, end=None, kind=None) -> Record:
    """A record with times in its value, in seconds into the day."""
    times = {
        name: DAY_MS + 1000 * t if isinstance(t, int) else t
        for name, t in (("s", start), ("e", end))
        if t is not None
    }
    return Record(json.dumps({**times, "k": kind}), None, 0, DAY_MS)


INTERVAL = {"eventShape": "interval", "startTime": "s", "endTime": "e"}
EDGE = {"eventShape": "edge", "startTime": "s", "endTime": "e", "edge": "k"}
TIMES = ("start_time", "end_time", "violation", "original_start_time", "original_end_time")


def said(rows):
    """Each data row's times, its violation and its received times, if it has them; CTIs."""
    found = []
    for row in rows:
        if row.cti is not None:
            found.append(f"c{seconds(row.cti):g}")
            continue
        values = [row[name] for name in TIMES if name in row]
        found.append(tuple(seconds(v) if hasattr(v, "timestamp") else v for v in values))
    return found


def words(stream: Stream, **options) -> list[str]:
    """A batch read of `stream`: events as `e5`, CTIs as `c5`, in order."""
    return marks(stream.load_batch(ctiHeader="cti", **options).collect())


# -- 3.4: shapes and policies ---------------------------------------------------------------------


def judged(policy: str, shape: str, events: Sequence[Event]) -> list[str | tuple[object, ...]]:
    """As `said`: what the oracle says of the events."""
    shown = {*TIMES[:2], *POLICIES[policy].columns(shape)}
    found: list[str | tuple[object, ...]] = []
    for what, first, *more in run(events, policy, every=1)[0]:
        if what == "cti":
            found.append(f"c{first}")
            continue
        received = events[first][1:] if more[-1] == "adjusted" else (None, None)
        values = zip(TIMES, (*more, *received), strict=True)
        found.append(tuple(value for name, value in values if name in shown))
    return found


@pytest.mark.parametrize(
    ("shape", "times"),
    [
        (INTERVAL, [(10, 20), (5, 15), (4, 10), (12, 12), (12, None), ("?", 30), (10, 11)]),
        (EDGE, [(10, None, "start"), (5, None, "start"), (5, 8, "end"), (5, 10, "end"),
                (30, 30, "end"), (30, None, "middle"), (30, None, "end")]),
    ],
)  # fmt: skip
def test_the_policy_table_for_events_that_last(stream, shape, times) -> None:
    made = stream(*(shaped(*each) for each in times), **shape, ctiFrequency=1)
    events = [Event(*[*kind, "interval"][:1], None if start == "?" else start, end)
              for start, end, *kind in times]  # fmt: skip
    for policy in PASSING:
        rows = made.load_batch(violationPolicy=policy).collect()
        assert said(rows) == judged(policy, shape["eventShape"], events)


@pytest.mark.parametrize(
    ("shape", "record", "fault"),
    [
        (INTERVAL, shaped(4, 20), "has event time 2024-01-01T00:00:04Z, before"),
        (EDGE, shaped(5, kind="start"), "has event time 2024-01-01T00:00:05Z, before"),
        (EDGE, shaped(5, 8, "end"), "has event time 2024-01-01T00:00:08Z, before"),
        (EDGE, shaped(20, 20, "end"), "is malformed"),
    ],
)
def test_fail_names_topic_partition_offset_event_time_and_cti(stream, shape, record, fault) -> None:
    made = stream(shaped(10, 20, "start"), record, **shape, ctiFrequency=1)
    with pytest.raises(Exception, match=f"offset 1: the event {fault}") as failed:
        made.load_batch(violationPolicy="fail").collect()
    message = str(failed.value)
    assert f"topic '{made.topic}' partition 0 offset 1: the event {fault}" in message
    assert "the CTI in force is 2024-01-01T00:00:10Z" in message


def test_end_edges_never_count_toward_the_frequency_nor_toward_its_timespan(stream) -> None:
    made = stream(
        shaped(1, kind="start"), shaped(1, 90, "end"), shaped(1, 91, "end"),
        shaped(3, kind="start"),
        shaped(7, kind="start"), **EDGE,
    )  # fmt: skip
    assert [w for w in said(made.load_batch(ctiFrequency=2).collect()) if w[0] == "c"] == ["c3"]
    spans = said(made.load_batch(ctiFrequency="5 seconds").collect())
    assert [w for w in spans if w[0] == "c"] == ["c7"]


# -- 3.4: in-band CTIs ----------------------------------------------------------------------------


def test_an_in_band_cti_restarts_counter_and_base(stream) -> None:
    made = stream(event(1), mark(2), event(3), event(8), event(9))
    assert words(made, ctiFrequency=2) == ["e1", "c2", "e3", "e8", "c8", "e9"]
    assert words(made, ctiFrequency="7 seconds") == ["e1", "c2", "e3", "e8", "e9", "c9"]


def test_marks_that_do_not_move_the_cti_are_ignored_and_counted(stream) -> None:
    unreadable = Record(None, None, 0, DAY_MS, [("cti", b"soon")])
    repeated = mark(30)._replace(headers=[*mark(30).headers, *mark(6).headers])
    made = stream(
        event(1), mark(5), mark(4), unreadable, event(4), repeated, event(5), ctiHeader="cti"
    )
    assert marks(made.run()) == ["e1", "c5", "c6"]
    report = made.report()
    # The mark at 4 and the unreadable one; of the repeated headers the last, 6, took effect.
    assert (report["ignoredCtis"], report["ctis"]) == (2, 2)
    # Punctuations without a value are no events.
    assert (report["events"], report["dropped"], report["malformed"]) == (3, 2, 0)
    bad = stream(event(1), unreadable, ctiHeader="cti")
    with pytest.raises(Exception, match="offset 1: the mark in header 'cti' cannot be read"):
        bad.load_batch(violationPolicy="fail").collect()


def test_a_value_with_a_mark_comes_before_its_punctuation(stream) -> None:
    both = mark(9, "a", stamp=3, value="commit")
    made = stream(both, event(8), Record(None, None, 0, DAY_MS + 9000))
    # A null value without a mark is an event like any other.
    assert words(made) == ["e3", "c9", "e9"]


# -- 3.6: writers ---------------------------------------------------------------------------------


def test_the_in_band_cti_is_the_minimum_of_the_live_writers_marks(stream) -> None:
    made = stream(
        mark(5, "a"), mark(3, "b"), mark(9, "a"), mark(7, "a"), mark(7, "b"), event(6), event(7),
        mark(None, "b", close=True), event(8), event(9), mark(8, "b"), mark(20, "a"), mark(12, "b"),
        mark(None, "a", close=True), mark(None, "b", close=True), event(12),
    )  # fmt: skip
    # b joins below the CTI and holds it; a's lower mark says nothing; b's close lets a's 9 out; b
    # rejoins below it and holds a's 20 back; the closes raise it no more than the marks say.
    assert words(made) == ["c5", "c7", "e7", "c9", "e9", "c12", "e12"]
    assert words(made, writers="a,b,c") == ["e6", "e7", "e8", "e9", "e12"]


def test_listed_writers_are_waited_for_and_a_close_ends_the_waiting(stream) -> None:
    made = stream(mark(5, "a"), event(1), mark(3, "b"), event(4), mark(None, "c", close=True))
    assert words(made) == ["c5"]
    assert words(made, writers="a,b") == ["e1", "c3", "e4"]
    assert words(made, writers="b, a,c") == ["e1", "e4", "c3"]


def test_a_silent_writer_is_forgotten_in_record_time_and_may_rejoin(stream) -> None:
    made = stream(
        mark(1, "a", stamp=0), mark(1, "b", stamp=0), mark(15, "a", stamp=9), event(10), event(11),
        mark(2, "b", stamp=12), event(13), mark(20, "a", stamp=14), mark(16, "b", stamp=15),
        event(15),
    )  # fmt: skip
    # At 10 b is silent for just ten seconds, at 11 for more: a's 15 comes before that event, which
    # is late. b rejoins below the CTI, then holds a's 20 back.
    assert words(made, writerTimeout="10 seconds") == ["c1", "e10", "c15", "c16"]
    assert words(made) == ["c1", "e10", "e11", "c2", "e13", "c16"]
    # A listed writer that never marks counts from the partition's first record.
    assert words(made, writers="a,b,c", writerTimeout="10 seconds") == ["e10", "c15", "c16"]


def test_a_time_window_has_its_bounds_at_every_position(stream) -> None:
    made = stream(
        event(30), mark(5, "a"), event(30), mark(3, "b"), event(30),
        mark(9, "a", stamp=30, value="x"), event(30), mark(None, "b", close=True), event(30),
        mark(None, "a", close=True), event(30), mark(4, "b"), event(30), timeWindow="true",
    )  # fmt: skip
    rows = made.load_batch(ctiHeader="cti").collect()
    bounds = [(seconds(r.time_lower), seconds(r.time_upper)) for r in rows if r.cti is None]
    none = (None, None)
    assert bounds == [none, (5, 5), (3, 5), (3, 5), (3, 9), (9, 9), none, (4, 9)]
    assert all(r.time_lower is r.time_upper is None for r in rows if r.cti is not None)


def test_max_future_holds_for_events_and_not_for_in_band_ctis(stream) -> None:
    far = Record(json.dumps({"s": DAY_MS + 900_000}), None, 0, DAY_MS + 10_000)
    near = Record(json.dumps({"s": DAY_MS + 20_000}), None, 0, DAY_MS + 20_000)
    made = stream(far, near, mark(500), startTime="s")
    options = {"ctiFrequency": 1, "ctiDelay": "2 seconds"}
    assert words(made, **options) == ["e900", "c898"]
    assert words(made, **options, maxFuture="5 seconds") == ["e900", "e20", "c18", "c500"]


def test_events_in_the_future_are_flagged_or_left_out_and_counted(stream) -> None:
    told = [(10, 10), (16, 10), (15, 10), (11, 12), (900, 13), (14, 14)]
    records = [
        Record(json.dumps({"s": DAY_MS + 1000 * at}), None, 0, DAY_MS + 1000 * stamp)
        for at, stamp in told
    ]
    made = stream(*records, startTime="s", maxFuture="5 seconds", ctiFrequency=1,
                  ctiDelay="4 seconds", violationPolicy="flag")  # fmt: skip
    rows = [(seconds(r.start_time), r.violation) for r in made.run() if r.cti is None]
    # 16 lies six seconds after its record and drives no clock; 15 lies just five, and makes it 11.
    assert rows == [
        (10, None), (16, "future"), (15, None), (11, None), (900, "future"), (14, None)
    ]  # fmt: skip
    report = made.report()
    assert (report["events"], report["future"], report["flagged"]) == (6, 2, 0)
    assert any("events in the future" in line for line in report["warnings"])
    left = made.load_batch(futurePolicy="drop").where("cti IS NULL").collect()
    assert [seconds(row.start_time) for row in left] == [10, 15, 11, 14]


def device(name, at, stamp=0, key="w") -> Record:
    """An event of a device at `at` seconds into the day; its record's timestamp is `stamp`."""
    named = [] if name is None else [(key, name.encode())]
    return Record(json.dumps({"s": DAY_MS + 1000 * at, "device": name}), None, 0,
                  DAY_MS + 1000 * stamp, named)  # fmt: skip


WRONG = [device("a", 5, 1), device("b", 4, 2), device("b", 90_000, 3), device("a", 8, 4),
         device("a", 3, 5), device(None, 6, 6), device("b", 90_002, 7), device(None, 7, 8),
         device("a", 12, 9), device("a", 13, 20), device("b", 90_003, 21)]  # fmt: skip


def test_a_device_with_a_wrong_clock_moves_only_itself_over_every_restart(stream) -> None:
    options = {"startTime": "s", "ctiFrequency": 1, "writerFrom": "header:w"}
    made = stream(*WRONG[:6], **options)
    # a's 5, then b holds it; 4 and 3 are late; the record without a name is a writer as well.
    expected = ["e5", "c5", "e90000", "e8", "c8"]
    found = marks(made.run(maxOffsetsPerTrigger=2))
    assert found == expected
    made.broker.produce(made.topic, WRONG[6:])
    made.run(maxOffsetsPerTrigger=3)
    last = ["e90002", "e12", "e13", "e90003"]
    data = [word for word in marks(made.rows()) if word.startswith("e")]
    assert data == [word for word in expected if word.startswith("e")] + last
    assert marks(made.load_batch().collect()) == [*expected, *last]
    timed = marks(made.load_batch(writerTimeout="10 seconds").collect())
    assert timed == [*expected, "e90002", "e12", "e13", "c13", "e90003"]


@pytest.mark.soak
def test_a_killed_query_goes_on_with_every_writers_clock(stream) -> None:
    options = {"startTime": "s", "ctiFrequency": 1, "writerFrom": "field:device"}
    made = stream(*WRONG, **options, maxOffsetsPerTrigger=3)
    given = {name: str(value) for name, value in made.options.items()}
    job = Job(
        JOBS / "cti_job.py",
        [made.broker.bootstrap, made.topic, str(made.place), json.dumps(given)],
        log=made.place.with_suffix(".log"),
    )
    rows = made.place / "rows"

    def is_written(batch: int) -> bool:
        return batch > 0 and (rows / f"batch={batch:06d}" / "_SUCCESS").exists()

    point = between_files_and_checkpoint(made.place / "checkpoint", is_written)
    assert run_until(job, point, timeout=240).hit
    found = marks(made.run())
    assert [word for word in found if word.startswith("e")] == [
        "e5", "e90000", "e8", "e90002", "e12", "e13", "e90003"
    ]  # fmt: skip
    # The start after the kill repeats the CTI.
    assert list(dict.fromkeys(word for word in found if word.startswith("c"))) == ["c5", "c8"]


def test_any_split_and_any_run_give_the_same_rows_ctis_and_counters(stream) -> None:
    records = [
        mark(n // 2, "ab"[n % 4 // 2], close=n % 11 == 5, stamp=n, value="x" if n % 3 else None)
        if n % 2
        else event((n * 7) % 19)
        for n in range(24)
    ]
    options = {
        "ctiHeader": "cti", "ctiFrequency": 3, "ctiDelay": "8 seconds", "maxFuture": "1 second",
        "writers": "a,b", "writerTimeout": "6 seconds", "timeWindow": "true",
        "violationPolicy": "flag",
    }  # fmt: skip
    whole, cut = (stream(*records, **options) for _ in range(2))
    first = content(whole.run())
    assert content(cut.run(maxOffsetsPerTrigger=5)) == first
    assert content(whole.load_batch().collect()) == first
    assert len({row.batch for row in cut.rows()}) >= 5
    names = ("events", "flagged", "ctis", "ignoredCtis", "cti")
    counters = [[made.report()[name] for name in names] for made in (whole, cut)]
    assert counters[0] == counters[1]
    assert all(counters[0])


def content(rows):
    return [
        (r.offset, r.violation, seconds(r.time_lower), seconds(r.time_upper), seconds(r.cti))
        for r in rows
    ]


def test_marks_of_aborted_transactions_are_none_however_the_records_are_split(stream) -> None:
    made = stream(ctiHeader="cti", writers="a,b")
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions(30)
    for records, commits in (
        ([event(1), mark(3, "a"), mark(2, "b")], True),
        ([event(2), mark(50, "a"), mark(50, "b"), mark(None, "a", close=True)], False),
        ([event(4), mark(9, "a", stamp=5, value="x")], True),
        ([mark(40, "b")], False),
        ([mark(7, "b"), event(8)], True),
    ):
        producer.begin_transaction()
        for value, _, partition, stamp, headers in records:
            producer.produce(
                made.topic, value, partition=partition, timestamp=stamp, headers=list(headers)
            )
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    made.broker.wait_for_markers(made.topic)
    expected = ["e1", "c2", "e4", "e5", "c7", "e8"]
    assert words(made) == expected
    assert marks(made.run(maxOffsetsPerTrigger=2)) == expected
    assert made.report()["ignoredCtis"] == 2
