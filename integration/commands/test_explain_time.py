"""Queries that are stuck or lose rows, staged on a real broker: `explain_time` says who and why."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from broker import Record
from kafka_query import DAY_MS, Stream, event
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream import advance_time, explain_time
from pyspark_timestream.commands.explanation import PartitionFacts, StreamExplanation
from pyspark_timestream.frames import transforms
from pyspark_timestream.kafka.diagnosis.diagnoses import Diagnosis, Kind
from pyspark_timestream.kafka.ranges import Partition

pytestmark = pytest.mark.timeout(300)


def start(made: Stream, frame: DataFrame | None = None, once: bool = True, **options) -> None:
    """Start a query of the stream; what it delivers is of no interest here."""
    writer = (made.load(**options) if frame is None else frame).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(made.place / "checkpoint"))
    made.query = (writer.trigger(availableNow=True) if once else writer).start()


def run(made: Stream, frame: DataFrame | None = None, **options) -> None:
    """Run to the end of what is there now."""
    start(made, frame, **options)
    made.query.awaitTermination()


def explained(made: Stream) -> StreamExplanation:
    """The explanation of a stream's last query; both views name what was found."""
    explanation = explain_time(made.query)
    (only,) = explanation.streams
    for view in (str(explanation), explanation._repr_html_()):
        assert only.diagnoses[0].kind in view
    return only


def diagnosis(made: Stream) -> Diagnosis:
    """The one thing that was found about a stream's last query."""
    (only,) = explained(made).diagnoses
    return only


def part(made: Stream, number: int = 0) -> Partition:
    return Partition(made.topic, number)


def wait_for(query: StreamingQuery, condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert query.exception() is None, str(query.exception())
        assert time.monotonic() < deadline, "nothing came in time"
        time.sleep(0.2)


@pytest.mark.outside_ci
def test_an_idle_partition_is_named_while_the_query_runs_and_since_when(stream) -> None:
    made = stream([event(1, 1), event(2)], partitions=2, ctiFrequency=1)
    run(made)
    first_us = explained(made).planned_us
    # Partition 1 has had its last event; only partition 0 goes on.
    made.broker.produce(made.topic, [event(second) for second in (5, 9)])
    start(made, once=False)
    try:
        wait_for(made.query, lambda: part_facts(made, 0).offset == 3)
        found, planned_us = explained(made).diagnoses[0], explained(made).planned_us
        facts = part_facts(made, 0)
    finally:
        made.query.stop()
    assert (found.kind, found.cause) == (Kind.IDLE_PARTITION, str(part(made, 1)))
    assert "'idleTimeout'" in found.fix
    assert (facts.offset, facts.lag, facts.idle) == (3, 0, False)
    assert facts.cti_us == facts.last_us == (DAY_MS + 9000) * 1000
    # The checkpoint's log reaches back over the restart.
    assert found.since_us == first_us < planned_us


def part_facts(made: Stream, number: int) -> PartitionFacts:
    """The present facts of a partition."""
    (stream,) = explain_time(made.query).streams
    return next(fact for fact in stream.partitions if fact.partition.number == number)


def test_a_partition_that_never_had_a_record_is_idle(stream) -> None:
    made = stream([event(1), event(2)], partitions=2, ctiFrequency=1)
    run(made, kafka__sasl__password="hunter2")
    assert (diagnosis(made).kind, diagnosis(made).cause) == (
        Kind.IDLE_PARTITION,
        str(part(made, 1)),
    )
    # The run was bounded, and waits for nobody.
    assert "idleTimeout" not in str(explain_time(made.query))
    assert "hunter2" not in str(explain_time(made.query)) + explain_time(made.query)._repr_html_()


def test_an_event_far_in_the_future_is_named_with_what_it_cost(stream) -> None:
    day_s = DAY_MS // 1000
    instants = [day_s + 1, day_s + 60 * 365 * 86_400, day_s + 3, day_s + 4]
    made = stream(
        [event(0, at=instant) for instant in instants],
        schema="start_time timestamp, cti timestamp",
        valueFormat="json", startTime="at", timeUnit="s", ctiFrequency=1,
    )  # fmt: skip
    run(made)
    found = diagnosis(made)
    assert (found.kind, found.cause) == (Kind.FAR_FUTURE, str(part(made)))
    assert "2 of 4 events came late" in found.text
    assert "'maxFuture'" in found.fix


def test_a_backlog_is_named_while_the_query_is_behind(stream) -> None:
    made = stream([event(second) for second in range(200)], ctiFrequency=1)
    start(made, once=False, maxOffsetsPerTrigger=1)
    try:
        wait_for(made.query, lambda: made.query.lastProgress is not None)
        found, facts = diagnosis(made), part_facts(made, 0)
    finally:
        made.query.stop()
    assert (found.kind, found.cause) == (Kind.BACKLOG, str(part(made)))
    assert "'maxOffsetsPerTrigger'" in found.fix
    assert facts.lag is not None
    assert facts.lag > 100


def test_no_cti_yet_says_what_is_missing(stream) -> None:
    made = stream([event(second) for second in range(3)], ctiFrequency=10)
    run(made)
    found = diagnosis(made)
    assert (found.kind, found.cause) == (Kind.NO_CTI, str(part(made)))
    assert "3 events count so far, and 'ctiFrequency' is 10" in found.text
    assert explained(made).cti_us is None


def test_everything_dropped_is_told_with_its_counts(stream) -> None:
    made = stream([event(second) for second in range(20, 10, -1)], ctiFrequency=1)
    run(made)
    found = diagnosis(made)
    assert (found.kind, found.cause) == (Kind.EVERYTHING_DROPPED, str(part(made)))
    assert "of 10 events 9 were dropped as late" in found.text
    assert "'ctiDelay'" in found.fix


def test_events_without_a_readable_time_point_at_the_option(stream) -> None:
    made = stream(
        [Record('{"at": "noon"}')] * 4,
        schema="start_time timestamp, cti timestamp",
        valueFormat="json", startTime="at", ctiFrequency=1,
    )  # fmt: skip
    run(made)
    assert diagnosis(made).kind is Kind.MALFORMED
    assert "option 'startTime' is 'at'" in diagnosis(made).text
    assert "begins 'no'" in diagnosis(made).detail
    # A final CTI does not stand in front of the cause.
    run(made, finalCti="true")
    assert [each.kind for each in explained(made).diagnoses] == [Kind.MALFORMED, Kind.FINAL_CTI]


def test_a_final_cti_is_named_before_and_after_new_data_is_refused(stream) -> None:
    made = stream([event(1)], ctiFrequency=1, finalCti="true")
    run(made)
    assert diagnosis(made).kind is Kind.ENDED
    assert "=> the stream has ended: nothing is wrong" in str(explain_time(made.query))
    made.broker.produce(made.topic, [event(2)])
    with pytest.raises(Exception, match="this checkpoint's stream has ended"):
        run(made)
    assert diagnosis(made).kind is Kind.FINAL_CTI
    assert "'finalCti'" in diagnosis(made).fix
    assert "the query has failed: this checkpoint's stream has ended" in str(
        explain_time(made.query)
    )


def test_a_join_has_an_explanation_for_each_stream(stream, spark: SparkSession) -> None:
    one, other = stream([event(1)], ctiFrequency=1), stream([event(1)], ctiFrequency=5)
    clock = spark.readStream.format("timestream").option("maxCount", 1).load()
    both = one.load().select("value").union(other.load().select("value"))
    run(one, both.union(clock.selectExpr("cast(cast(value as string) as binary)")))
    found = {each.topics: each.diagnoses[0].kind for each in explain_time(one.query).streams}
    assert found == {(one.topic,): Kind.CAUGHT_UP, (other.topic,): Kind.NO_CTI}


def test_a_stopped_querys_checkpoint_says_the_same_on_the_command_line(stream) -> None:
    made = stream([event(1), event(2)], partitions=2, ctiFrequency=1)
    run(made)
    said = command(made.place / "checkpoint")
    assert f"=> an idle partition: {part(made, 1)}" in said
    assert "Fix: make sure that every partition gets records; if this run is the end" in said
    kept = str(explain_time(made.query))
    # All but the subject, the notes and, in the table, the lags: a checkpoint does not know them.
    first, last = "Stream of", "   partition"
    told = [text[text.index(first) : text.index(last)] for text in (said, kept)]
    assert told[0] == told[1]
    assert "kafka-consumer-groups.sh --describe --group timestream-" in said
    for text, lag in ((said, "?"), (kept, "0")):
        head, *rows = text[text.index(last) :].splitlines()
        assert {row[head.index("lag")] for row in rows[:2]} == {lag}


def command(checkpoint: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_timestream", "explain", "--checkpoint", str(checkpoint)],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout


# -- the likeliest mistakes of a query, and of who asks -------------------------------------------


def test_a_watermark_beside_the_ctis_is_the_headline_and_names_advance_time(stream) -> None:
    made = stream([event(1), event(2)], ctiFrequency=1)
    start(made, made.load().withWatermark("start_time", "1 second").dropDuplicates(["start_time"]))
    made.query.awaitTermination()
    found = diagnosis(made)
    assert found.kind is Kind.OWN_WATERMARK
    assert found.cause == "withWatermark on column 'start_time'"
    assert "advance_time(df)" in found.fix


def test_state_without_advance_time_is_the_headline_and_right_with_it(stream) -> None:
    made = stream([event(1), event(2)], ctiFrequency=1)
    run(made, made.load().dropDuplicates(["value"]))
    assert (diagnosis(made).kind, diagnosis(made).cause) == (Kind.NO_ADVANCE_TIME, "Deduplicate")
    assert "advance_time(df)" in diagnosis(made).fix
    right = stream([event(1), event(2)], ctiFrequency=1)
    run(right, advance_time(right.load()).dropDuplicates(["value", "start_time"]))
    assert diagnosis(right).kind is Kind.CAUGHT_UP


def test_a_run_of_one_batch_is_told_that_it_has_no_end(stream) -> None:
    made = stream([event(1), event(2)], ctiFrequency=1, finalCti="true")
    writer = made.load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(made.place / "checkpoint"))
    made.query = writer.trigger(once=True).start()
    made.query.awaitTermination()
    found = diagnosis(made)
    assert (found.kind, found.cause) == (Kind.ONE_BATCH, ".trigger(once=True)")
    # The advice, taken.
    run(made)
    assert diagnosis(made).kind is Kind.ENDED


@pytest.mark.outside_ci
def test_only_the_stream_that_the_mistake_is_made_with_is_told_of_it(stream) -> None:
    one, other = stream([event(1)], ctiFrequency=1), stream([event(1)], ctiFrequency=1)
    left = advance_time(one.load(), releases="rows").select("value")
    run(one, left.join(other.load().withColumnRenamed("value", "b"), F.expr("value = b")))
    found = {each.topics: each.diagnoses[0].kind for each in explain_time(one.query).streams}
    assert found == {(one.topic,): Kind.CAUGHT_UP, (other.topic,): Kind.NO_ADVANCE_TIME}


def test_ctis_that_never_reach_the_watermark_are_the_headline_not_an_end_without_faults(
    stream, monkeypatch
) -> None:
    made = stream([event(second) for second in range(6)], ctiFrequency=1, finalCti="true")
    # As where the plan is the server's: nothing is seen below advance_time.
    monkeypatch.setattr(transforms, "keep_cti_rows", lambda df: df)
    rows = advance_time(made.load().where("value IS NOT NULL"))
    counts = rows.groupBy(F.window("start_time", "1 second")).count()
    run(made, counts)
    headline = explained(made).diagnoses[0]
    assert headline.kind is Kind.LOST_CTIS
    assert "advance_time(df)" in headline.fix
    monkeypatch.undo()
    right = stream([event(second) for second in range(6)], ctiFrequency=1, finalCti="true")
    rows = advance_time(right.load().where("value IS NOT NULL"))
    run(right, rows.groupBy(F.window("start_time", "1 second")).count())
    assert diagnosis(right).kind is Kind.ENDED


@pytest.mark.outside_ci
@pytest.mark.parametrize(("partitions", "is_noted"), [("40", True), ("4", False)])
def test_a_small_state_in_many_partitions_is_noted_until_they_are_few(
    stream, spark: SparkSession, partitions: str, is_noted: bool
) -> None:
    made = stream([event(second) for second in range(6)], ctiFrequency=1, finalCti="true")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    try:
        run(made, advance_time(made.load()).groupBy(F.window("start_time", "1 second")).count())
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    notes = str(explain_time(made.query))
    assert ("each batch runs 40 tasks" in notes) == is_noted
    assert ("spark.sql.shuffle.partitions" in notes) == is_noted


def test_who_passes_a_frame_is_told_what_explain_time_wants(stream) -> None:
    with pytest.raises(TypeError, match=r"got a DataFrame; accepted: the StreamingQuery that \.st"):
        explain_time(stream([]).load())


# -- in-band and imported CTIs --------------------------------------------------------------------


def marked(second: float, writer: str, mark: str | None = None, partition: int = 0) -> Record:
    """An event that carries a mark of its writer."""
    instant = mark or f"2024-01-01T00:00:{second:02.0f}Z"
    headers = [("now", instant.encode()), ("now-writer", writer.encode())]
    return event(second, partition)._replace(headers=headers)


@pytest.mark.outside_ci
def test_a_silent_writer_is_named_until_it_marks_again(stream) -> None:
    made = stream([marked(3, "b"), marked(4, "a"), marked(9, "a")], ctiHeader="now")
    run(made)
    found = diagnosis(made)
    assert (found.kind, found.cause) == (Kind.SILENT_WRITER, f"writer 'b' of {part(made)}")
    assert "2024-01-01T00:00:03Z as its last mark" in found.text
    assert "'writerTimeout'" in found.fix
    (facts,) = explained(made).partitions
    assert [(writer.name, writer.is_cause) for writer in facts.writers] == [
        ("a", False),
        ("b", True),
    ]
    made.broker.produce(made.topic, [marked(9, "b")])
    run(made)
    assert diagnosis(made).kind is Kind.CAUGHT_UP


def test_a_writer_that_is_waited_for_is_named(stream) -> None:
    made = stream([marked(4, "a")], ctiHeader="now", writers="a,late")
    run(made)
    assert diagnosis(made).cause == f"writer 'late' of {part(made)}"
    assert "no mark yet" in diagnosis(made).text


@pytest.mark.outside_ci
def test_a_late_import_is_named_by_its_topic_until_it_comes(stream) -> None:
    clock = stream([])
    made = stream(
        [event(second) for second in (5, 7)],
        ctiImport=json.dumps({"topic": clock.topic, "frequency": "1"}),
    )
    run(made)
    found = diagnosis(made)
    assert (found.kind, found.cause) == (Kind.LATE_IMPORT, f"the import of {part(clock)}")
    assert "'ctiImport'" in found.fix
    made.broker.produce(clock.topic, [event(9)])
    run(made)
    assert diagnosis(made).kind is Kind.CAUGHT_UP


def test_a_misspelt_column_is_named_and_a_store_as_the_sink_and_the_advice_helps(
    stream, spark: SparkSession, tmp_path: Path
) -> None:
    records = [event(second, speed=float(second)) for second in range(9)]
    made = stream(records, ctiFrequency=1, valueFormat="json")

    def store(column: str, place: Path) -> list[float | None]:
        made.schema = f"{column} double, start_time timestamp, cti timestamp"
        frame = made.load().where("cti IS NULL").selectExpr("start_time timestamp", f"{column} v")
        writer = frame.writeStream.format("tseries").option("seriesName", "all")
        writer = writer.option("retainedRange", "unlimited")
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        made.query = writer.trigger(availableNow=True).start(str(place / "store"))
        made.query.awaitTermination()
        return [
            row["v"] for row in spark.read.format("tseries").load(str(place / "store")).collect()
        ]

    assert store("sped", tmp_path / "first") == [None] * 9
    explanation = explain_time(made.query)
    assert explained(made).diagnoses[0].kind is Kind.NO_SUCH_FIELD
    assert "there is no field 'sped': did you mean 'speed'?" in str(explanation)
    assert "the sink is a store: a query with a new checkpoint writes all of" in str(explanation)
    made.broker.produce(made.topic, [event(9, speed=9.0)])
    # The checkpoint goes on for the records to come; a new one, and a new store, has all of them.
    assert store("speed", tmp_path / "first") == [None] * 9 + [9.0]
    assert explained(made).diagnoses[0].kind is Kind.CAUGHT_UP
    assert store("speed", tmp_path / "second") == [float(second) for second in range(10)]
    assert "the sink is a store" not in str(explain_time(made.query))
