"""Transport `kafka` through Spark on a real broker: what a user is promised, one test each."""

import json
import time
from collections import Counter

import pytest
from broker import Record
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka_query import DAY_MS, Stream, ctis, event, marks, seconds, times
from lengths import outside_ci
from pyspark.sql import functions as F
from timestream.builders import PASSING
from timestream.oracle import Event, run

from pyspark_timestream import advance_time, shift_time
from pyspark_timestream.core.checkpoint import INITIAL_OFFSET, OFFSET_VERSION
from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.reader import KafkaTransport
from pyspark_timestream.rules.clocks import COUNTERS

# -- columns and where time comes from ------------------------------------------------------------


def test_the_default_schema_is_sparks_and_event_time(stream) -> None:
    frame = stream(ctiFrequency=1, violationPolicy="flag", includeHeaders="true").load()
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
        "start_time", "violation", "cti",
    ]  # fmt: skip


def test_records_carry_what_kafka_has(stream) -> None:
    headers = [("h", b"1"), ("h", None)]
    records = [Record(b"v", b"k", 0, DAY_MS, headers), Record(None, None, 0, DAY_MS + 1)]
    first, second = stream(records, includeHeaders="true").run()
    assert (first.key, first.value, first.offset, first.timestampType) == (b"k", b"v", 0, 0)
    assert [(h.key, h.value) for h in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, second.value, second.headers, second.offset) == (None, None, None, 1)
    assert seconds(second.timestamp) == 0.001


ODD_STAMPS = [-1, -5000, 1, DAY_MS, 253_402_300_799_000, 253_402_300_799_001, 10**15]
"""Milliseconds; the last two are after the end of time, 9999-12-31T23:59:59Z."""


@pytest.mark.outside_ci
def test_records_are_delivered_whatever_their_timestamps(spark, broker, topic, tmp_path) -> None:
    name = topic(message_timestamp_after_max_ms=2**63 - 1)
    broker.produce(name, [Record(b"v", None, 0, stamp) for stamp in ODD_STAMPS])
    made = Stream(spark, broker, name, tmp_path)
    # In microseconds, since Python has no year 10000.
    micros = ["offset", "unix_micros(timestamp) AS timestamp", "unix_micros(start_time) AS start"]
    # As Spark's own source shows them; what is not an event time is none.
    legal = [0 <= stamp <= 253_402_300_799_000 for stamp in ODD_STAMPS]
    expected = [
        (offset, stamp * 1000, stamp * 1000 if fine else None)
        for offset, (stamp, fine) in enumerate(zip(ODD_STAMPS, legal, strict=True))
    ]
    assert sorted(map(tuple, made.load_batch().selectExpr(*micros).collect())) == expected
    rows = made.run(made.load().selectExpr(*micros))
    assert [tuple(row)[:3] for row in rows] == expected
    assert (made.report()["events"], made.report()["malformed"]) == (7, 4)
    dropping = Stream(spark, broker, name, tmp_path / "dropping", {"ctiHeader": "cti"})
    rows = dropping.run(dropping.load().selectExpr(*micros))
    assert [tuple(row)[:3] for row in rows] == [row for row in expected if row[2] is not None]
    assert (dropping.report()["events"], dropping.report()["malformed"]) == (7, 4)


def test_the_schema_is_the_projection(stream) -> None:
    made = stream(
        [event(1, name="a")],
        schema="name string, offset long, start_time timestamp",
        valueFormat="json",
    )
    assert [(row.name, row.offset, seconds(row.start_time)) for row in made.run()] == [("a", 0, 1)]


def test_event_time_comes_from_a_header(stream) -> None:
    stamps = [("t", b"2024-01-01T00:00:07Z"), ("t", str(DAY_MS + 9000).encode())]
    made = stream([Record("x", None, 0, 5, stamps)], startTime="header:t")
    assert times(row for row in with_cti(made.run())) == [9]


def with_cti(rows):
    """Rows of a stream without CTIs, for helpers that look at the column."""
    return [type("Rowlike", (dict,), {})(row.asDict() | {"cti": None}) for row in rows]


def test_event_time_comes_from_a_json_field_that_the_schema_need_not_name(stream) -> None:
    made = stream(
        [event(5)],
        schema="start_time timestamp, cti timestamp",
        valueFormat="json",
        startTime="second",
        timeUnit="s",
        ctiFrequency=1,
    )
    assert [row.start_time.timestamp() for row in made.run() if row.start_time] == [5]


@pytest.mark.outside_ci
def test_nested_fields_are_columns_and_times_and_a_restart_may_add_the_prefix(stream) -> None:
    def change(second: int) -> Record:
        value = {"at": second, "payload": {"after": {"id": second, "a.b": "x"}, "second": second}}
        return Record(json.dumps(value), None, 0, DAY_MS)

    made = stream(
        [change(5)],
        schema="start_time timestamp, cti timestamp, `payload.after.id` long, `at` string, "
        "`payload.after.``a.b``` string",
        valueFormat="json", startTime="payload.second", timeUnit="s", ctiFrequency=1,
    )  # fmt: skip
    made.run()
    made.broker.produce(made.topic, [change(6)])
    rows = [row for row in made.run(startTime="field:payload.second") if row.start_time]
    names = ("start_time", "payload.after.id", "payload.after.`a.b`", "at")
    found = [tuple(row.asDict()[name] for name in names) for row in rows]
    assert [(at.timestamp(), *rest) for at, *rest in found] == [(5, 5, "x", "5"), (6, 6, "x", "6")]
    with pytest.raises(Exception, match=r"option 'startTime' was 'field:payload\.second' when"):
        made.run(startTime="payload.after.id")


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [0, 1, 2]), ("latest", []), ('{"%s": {"0": 1}}', [1, 2]),
     ('{"%s": {"0": -2}}', [0, 1, 2]), ('{"%s": {"0": -1}}', [])],
)  # fmt: skip
def test_a_new_query_starts_where_starting_offsets_say(stream, start: str, expected) -> None:
    made = stream([event(s) for s in range(3)])
    rows = made.run(startingOffsets=start.replace("%s", made.topic))
    assert [row.offset for row in rows] == expected


def test_assign_reads_exactly_those_partitions(stream) -> None:
    made = stream([event(s, s % 3) for s in range(9)], partitions=3)
    rows = made.run(subscribe=None, assign=json.dumps({made.topic: [0, 2]}))
    assert {row.partition for row in rows} == {0, 2}


def test_a_broken_value_meets_the_parse_mode(stream) -> None:
    made = stream(
        [event(1, n=1), Record('{"n": ', None, 0, DAY_MS), event(3, n="three")],
        schema="n long, offset long, _corrupt_record string",
        valueFormat="json",
    )
    assert [(r.n, r.offset, r._corrupt_record) for r in made.load_batch().collect()] == [
        (1, 0, None), (None, 1, '{"n": '), (None, 2, '{"second": 3, "n": "three"}'),
    ]  # fmt: skip
    dropped = made.load_batch(parseMode="DROPMALFORMED").collect()
    assert [row.offset for row in dropped] == [0]
    with pytest.raises(Exception, match=r"partition 0 offset 1: the value is not JSON"):
        made.load_batch(parseMode="FAILFAST").collect()


# -- CTIs and policies ----------------------------------------------------------------------------


def test_one_partition_has_every_cti_right_after_its_record(stream) -> None:
    made = stream([event(s) for s in (1, 3, 2, 5, 4, 9)], ctiFrequency=2, ctiDelay="1 second")
    # 3 -> 2; the second pair ends with 5 -> 4; the third with 9 -> 8. 2 and 4 are at the CTI.
    assert marks(made.run()) == ["e1", "e3", "c2", "e2", "e5", "c4", "e4", "e9", "c8"]


@pytest.mark.parametrize("policy", PASSING)
def test_points_meet_the_policy(stream, policy: str) -> None:
    times = (10, 4, "never", 12)
    made = stream(
        [event(12, t=t) for t in times],
        schema="start_time timestamp, cti timestamp"
        + (", violation string" if POLICIES[policy].columns("point") else ""),
        valueFormat="json", startTime="t", timeUnit="s", ctiFrequency=1, violationPolicy=policy,
    )  # fmt: skip
    rows = [row for row in made.run() if row.cti is None]
    found = [(row.start_time and row.start_time.timestamp(), row.asDict().get("violation"))
             for row in rows]  # fmt: skip
    points = [Event("point", t if isinstance(t, int) else None) for t in times]
    told, tally, *_ = run(points, policy, every=1)
    assert found == [(start, word) for _, _, start, _, word in (row for row in told if row[2:])]
    assert +Counter({name: made.report()[name] for name in COUNTERS}) == tally


def test_a_late_interval_is_adjusted_or_dropped_when_nothing_is_left(stream) -> None:
    made = stream(
        [event(0, s=10, e=20), event(0, s=5, e=15), event(0, s=4, e=10), event(0, s=4, e=3)],
        schema="start_time timestamp, end_time timestamp, violation string, cti timestamp, "
        "original_start_time timestamp, original_end_time timestamp",
        valueFormat="json", eventShape="interval", startTime="s", endTime="e", timeUnit="s",
        ctiFrequency=1, violationPolicy="adjust",
    )  # fmt: skip
    first, second = [row for row in made.run() if row.cti is None]
    as_seconds = [row and row.timestamp() for row in second if hasattr(row, "timestamp")]
    assert (first.violation, first.original_start_time) == (None, None)
    assert (second.violation, as_seconds) == ("adjusted", [10, 15, 5, 15])
    report = made.report()
    assert (report["adjusted"], report["dropped"], report["malformed"]) == (1, 1, 1)


def test_policy_fail_names_topic_partition_offset_time_and_cti(stream) -> None:
    made = stream([event(10), event(4)], ctiFrequency=1, violationPolicy="fail")
    query = made.start()
    with pytest.raises(Exception, match="terminated") as failure:
        query.awaitTermination()
    assert (
        f"topic '{made.topic}' partition 0 offset 1: the event has event time "
        "2024-01-01T00:00:04Z, before; the CTI in force is 2024-01-01T00:00:10Z"
    ) in str(failure.value)


def test_the_stream_cti_is_the_minimum_and_the_closing_batch_brings_it(stream) -> None:
    made = stream([event(s, s % 2) for s in range(1, 9)], partitions=2, ctiFrequency=1)
    rows = made.run()
    assert sorted(times(rows)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert ctis(rows) == sorted(set(ctis(rows)))
    assert ctis(rows)[-1] == 7
    assert made.report()["cti"] == "2024-01-01T00:00:07Z"
    assert made.report()["endOfStream"] is True


def test_a_partition_without_a_cti_holds_the_stream_back(stream) -> None:
    made = stream([event(s) for s in range(5)], partitions=2, ctiFrequency=1)
    assert ctis(made.run()) == []
    made.broker.produce(made.topic, [event(2, 1)])
    assert ctis(made.run()) == [2]


def test_a_partition_found_while_running_does_not_take_the_clock_back(stream) -> None:
    made = stream([event(s) for s in (1, 5)], ctiFrequency=1)
    assert ctis(made.run()) == [1, 5]
    made.broker.add_partitions(made.topic, 2)
    made.broker.produce(made.topic, [event(2, 1), event(6, 1), event(7)])
    rows = made.run()
    assert times(rows) == [1, 5, 6, 7] or times(rows) == [1, 5, 7, 6]
    assert ctis(rows)[-1] == 6
    assert made.report()["dropped"] == 1


# -- bounded runs, restarts, upgrades -------------------------------------------------------------


def test_the_final_cti_ends_the_stream_and_new_data_is_refused(stream) -> None:
    made = stream([event(1)], ctiFrequency=1, finalCti="true")
    assert ctis(made.run()) == [1, float("inf")]
    assert ctis(made.run()) == [1, float("inf"), float("inf")]
    made.broker.produce(made.topic, [event(2)])
    with pytest.raises(Exception, match="this checkpoint's stream has ended"):
        made.run()


def test_the_first_batch_after_a_start_repeats_the_cti(stream) -> None:
    made = stream([event(1), event(4)], ctiFrequency=1)
    assert marks(made.run()) == ["e1", "c1", "e4", "c4"]
    assert marks(made.run()) == ["e1", "c1", "e4", "c4", "c4"]


@pytest.mark.parametrize("left", ["kept", *outside_ci("deleted")])
def test_a_restart_goes_on_whether_the_group_kept_the_state_or_not(stream, left: str) -> None:
    made = stream([event(s) for s in (3, 5)], ctiFrequency=3)
    made.run()
    if left == "deleted":
        (offset,) = sorted((made.place / "checkpoint" / "offsets").glob("[0-9]*"))[-1:]
        group = "timestream-" + json.loads(offset.read_text().splitlines()[-1])["stream"]
        admin = AdminClient({"bootstrap.servers": made.broker.bootstrap})
        # The last batch of the run before has no records; take the state of its first one away.
        admin.delete_consumer_groups([group])[group].result()
        for later in (made.place / "checkpoint").glob("*/*1*"):
            later.unlink()
    made.broker.produce(made.topic, [event(9), event(4)])
    rows = made.run()
    # The third event of the partition, counted over the restart, sets the CTI.
    assert times(rows) == [3, 5, 9]
    assert made.report()["dropped"] == 1


def test_max_offsets_per_trigger_cuts_batches_and_changes_no_row(stream) -> None:
    records = [event((7 * n) % 23, n % 2) for n in range(40)]
    options = {"ctiFrequency": 3, "ctiDelay": "2 seconds"}
    whole, cut = (stream(records, partitions=2, **options) for _ in range(2))
    assert data(whole.run()) == data(cut.run(maxOffsetsPerTrigger=7))
    assert len({row.batch for row in cut.rows() if row.cti is None}) > 4
    assert whole.report()["dropped"] == cut.report()["dropped"] > 0


def data(rows):
    """Data rows, in an order of their own."""
    kept = (row for row in rows if row.cti is None)
    return sorted((row.partition, row.offset, row.start_time) for row in kept)


def test_an_option_that_defines_time_may_not_change(stream) -> None:
    made = stream([event(1)], ctiFrequency=1)
    made.run()
    with pytest.raises(Exception, match=r"option 'ctiFrequency' was '1' .* and is '2' now"):
        made.run(ctiFrequency=2)
    made.run(maxTasks=1, maxOffsetsPerTrigger=5, failOnDataLoss="false")


def test_a_newer_offset_is_refused_by_name(stream) -> None:
    made = stream([event(1)], ctiFrequency=1)
    made.run()
    for offset in (made.place / "checkpoint" / "offsets").glob("[0-9]*"):
        newer = offset.read_text().replace(f'"version": {OFFSET_VERSION}', '"version": 99')
        assert '"version": 99' in newer
        offset.write_text(newer)
        (offset.parent / f".{offset.name}.crc").unlink(missing_ok=True)
    with pytest.raises(Exception, match="format version 99; this timestream reads version 1"):
        made.run()


# -- what is gone ---------------------------------------------------------------------------------


def test_deleted_records_fail_the_query_or_are_passed_over(stream) -> None:
    made = stream([event(s) for s in range(4)], ctiFrequency=1)
    made.run()
    made.broker.produce(made.topic, [event(s) for s in range(4, 8)])
    made.broker.delete_records(made.topic, {0: 6})
    with pytest.raises(Exception, match="offsets 4 to 5 were deleted before they were read"):
        made.run()
    assert times(made.run(failOnDataLoss="false")) == [0, 1, 2, 3, 6, 7]


def test_a_topic_made_anew_is_read_from_its_start_and_harms_no_other(stream) -> None:
    made = stream([event(s) for s in range(5)])
    other = stream([])
    both = f"{made.topic},{other.topic}"
    made.run(subscribe=both, failOnDataLoss="false")
    made.broker.delete_topic(made.topic)
    made.broker.create_topic(made.topic)
    made.broker.produce(made.topic, [event(s) for s in (7, 8)])
    made.broker.produce(other.topic, [event(s) for s in range(100, 130)])
    rows = made.run(subscribe=both, failOnDataLoss="false")
    found = {topic: sorted(seconds(r.start_time) for r in rows if r.topic == topic)
             for topic in (made.topic, other.topic)}  # fmt: skip
    assert found == {made.topic: [0, 1, 2, 3, 4, 7, 8], other.topic: list(range(100, 130))}


# A group that is forbidden for a while is part of CI: test_faults.py.
@pytest.mark.soak
def test_a_forbidden_group_makes_the_stream_slower_and_never_wrong(stream) -> None:
    made = stream([event(s) for s in (3, 5, 4, 9, 1)], ctiFrequency=2, groupIdPrefix="forbidden")
    prefixed = ResourcePatternType.PREFIXED
    with made.broker.deny(ResourceType.GROUP, "forbidden", pattern=prefixed):
        assert marks(made.run(maxOffsetsPerTrigger=2)) == ["e3", "e5", "c5", "e9", "c9"]
        assert made.report()["dropped"] == 2


@pytest.mark.outside_ci
def test_a_deleted_topic_fails_the_query_by_name(stream) -> None:
    made = stream([event(1)], ctiFrequency=1)
    made.run()
    made.broker.delete_topic(made.topic)
    with pytest.raises(Exception, match=f"topic '{made.topic}' partition 0 is gone"):
        made.run()


def test_aborted_records_are_not_delivered_and_ranges_end_by_position(stream) -> None:
    made = stream([event(1)], ctiFrequency=1)
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions()
    for number, ends in enumerate([producer.abort_transaction, producer.commit_transaction] * 2):
        producer.begin_transaction()
        producer.produce(made.topic, b"{}", partition=0, timestamp=DAY_MS + 1000 * (number + 2))
        producer.flush()
        ends()
    made.broker.wait_for_markers(made.topic)
    assert times(made.run(maxOffsetsPerTrigger=2)) == [1, 3, 5]


@pytest.mark.outside_ci
def test_another_isolation_on_a_checkpoint_is_refused_by_name_and_loses_nothing(stream) -> None:
    made = stream([event(1)], ctiFrequency=1)
    assert times(made.run()) == [1]
    made.broker.produce(made.topic, [event(2)])
    refused = "'kafka.isolation.level' was 'read_committed' .* is 'read_uncommitted' now; .* set it"
    with pytest.raises(Exception, match=refused):
        made.run(kafka__isolation__level="read_uncommitted")
    # An open transaction's records are not waited for, however the level is spelt.
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(made.topic, b"{}", partition=0, timestamp=DAY_MS + 3000)
    producer.flush()
    assert times(made.run(kafka__isolation__level="READ_COMMITTED")) == [1, 2]
    producer.abort_transaction()


# -- progress -------------------------------------------------------------------------------------


def test_progress_and_group_tell_how_far_the_stream_is(stream) -> None:
    made = stream([event(s, s % 2) for s in range(6)], partitions=2, ctiFrequency=1)
    made.run()
    report = made.report()
    parts = report["partitions"][made.topic]
    assert {name: (p["offset"], p["lag"], p["idle"], p["events"]) for name, p in parts.items()} == {
        "0": (3, 0, False, 3), "1": (3, 0, False, 3),
    }  # fmt: skip
    assert (report["events"], report["ctis"], report["dropped"]) == (6, 6, 0)
    (offset,) = sorted((made.place / "checkpoint" / "offsets").glob("[0-9]*"))[-1:]
    group = "timestream-" + json.loads(offset.read_text().splitlines()[-1])["stream"]
    consumer = made.broker.consumer(group_id=group)
    asked = [TopicPartition(made.topic, number) for number in range(2)]
    assert [part.offset for part in consumer.committed(asked, timeout=10)] == [3, 3]
    consumer.close()


# -- results appear when the CTI says so ----------------------------------------------------------


def test_a_window_appears_when_the_slower_partition_reaches_its_end_and_not_before(stream) -> None:
    made = stream([event(s, p) for p in (0, 1) for s in (1, 9)], partitions=2, ctiFrequency=1)
    counts = windows(advance_time(made.load()))
    query = made.start(counts, once=False)
    try:
        made.broker.produce(made.topic, [event(25, 0)])
        settle(query)
        assert made.rows() == []
        made.broker.produce(made.topic, [event(9.999, 1)])
        settle(query)
        assert made.rows() == []
        made.broker.produce(made.topic, [event(10, 1)])
        settle(query)
        assert [(seconds(row.start), row.n) for row in made.rows()] == [(0, 5)]
    finally:
        query.stop()


def settle(query) -> None:
    """Wait until all that is there has been processed, no-data batches included."""
    query.processAllAvailable()
    time.sleep(0.2)
    query.processAllAvailable()


def windows(rows):
    """How many rows each window of ten seconds has."""
    counts = rows.groupBy(F.window("start_time", "10 seconds").alias("w"))
    return counts.agg(F.count("*").alias("n")).select(F.col("w.start").alias("start"), "n")


def test_a_bounded_run_leaves_nothing_committed_unreleased(stream) -> None:
    made = stream([event(s) for s in (1, 12, 31)], ctiFrequency=1)
    assert [(seconds(r.start), r.n) for r in made.run(windows(advance_time(made.load())))] == [
        (0, 1), (10, 1),
    ]  # fmt: skip


def test_the_final_cti_releases_the_last_window(stream) -> None:
    made = stream([event(s) for s in (1, 12, 31)], ctiFrequency=1, finalCti="true")
    rows = made.run(windows(advance_time(made.load())))
    assert sorted((seconds(r.start), r.n) for r in rows) == [(0, 1), (10, 1), (30, 1)]


def test_rows_at_exactly_the_cti_survive_in_windows(stream) -> None:
    made = stream([event(s) for s in (10, 10, 20, 10, 20)], ctiFrequency=1, finalCti="true")
    rows = made.run(windows(advance_time(made.load(maxOffsetsPerTrigger=1))))
    assert sorted((seconds(r.start), r.n) for r in rows) == [(10, 2), (20, 2)]


@pytest.mark.outside_ci
def test_rows_at_exactly_the_cti_survive_deduplication(stream) -> None:
    made = stream([event(10, id=n) for n in (1, 2, 1, 3)], ctiFrequency=1,
                  schema="id long, start_time timestamp, cti timestamp", valueFormat="json",
                  )  # fmt: skip
    rows = advance_time(made.load(maxOffsetsPerTrigger=1), releases="rows")
    unique = made.run(rows.dropDuplicatesWithinWatermark(["id"]))
    assert sorted(row.id for row in unique) == [1, 2, 3]


@pytest.mark.outside_ci
def test_rows_at_exactly_the_cti_survive_a_stream_stream_join(stream) -> None:
    schema = {"schema": "id long, start_time timestamp, cti timestamp", "valueFormat": "json"}
    left = stream([event(10, id=1), event(20, id=2), event(20, id=3)], ctiFrequency=1, **schema)
    right = stream([event(10, id=1), event(10, id=1), event(20, id=3)], ctiFrequency=1, **schema)
    one = advance_time(left.load(maxOffsetsPerTrigger=1), releases="rows").alias("one")
    two = advance_time(right.load(maxOffsetsPerTrigger=1), releases="rows").alias("two")
    within = "one.id = two.id AND two.start_time BETWEEN one.start_time AND one.start_time"
    joined = one.join(two, F.expr(within), "leftOuter")
    rows = left.run(joined.select("one.id", F.col("two.id").alias("match")))
    found = sorted((row.id, row.match) for row in rows if row.match is not None)
    assert found == [(1, 1), (1, 1), (3, 3)]


def test_flagged_rows_stay_out_of_advance_time(stream) -> None:
    made = stream([event(s) for s in (15, 3, 16)], ctiFrequency=1, violationPolicy="flag",
                  finalCti="true")  # fmt: skip
    rows = made.run(windows(advance_time(made.load())))
    assert [(seconds(r.start), r.n) for r in rows] == [(10, 2)]


def test_a_batch_read_refuses_latest(stream) -> None:
    made = stream([event(1)])
    with pytest.raises(Exception, match="'latest' \\(-1\\) was given to a batch read"):
        made.load_batch(startingOffsets="latest").collect()


def test_batches_that_were_not_noted_are_read_all_the_same(stream) -> None:
    """After a crash under asynchronous progress tracking Spark asks from batch 0 to batch 3."""
    made = stream([event((7 * n) % 23) for n in range(20)], ctiFrequency=3, ctiDelay="2 seconds")
    expected = [(row.offset, row.start_time) for row in made.run(maxOffsetsPerTrigger=5)[:]]
    options = {"kafka.bootstrap.servers": made.broker.bootstrap, "subscribe": made.topic}
    transport = KafkaTransport({"transport": "kafka", **options, **made.options})
    reader = transport.stream_reader(transport.schema())
    log = [json.loads((made.place / "checkpoint" / "offsets" / str(number)).read_text()
           .splitlines()[-1]) for number in range(4)]  # fmt: skip
    first = [row for row in made.rows() if row.batch == 0]
    tasks = reader.partitions(log[0], log[3])
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    kept = {row["offset"] for row in rows} | {row.offset for row in first}
    assert kept - {None} == {offset for offset, _ in expected if offset is not None}
    told = [row["cti"] for row in rows if row["cti"] is not None]
    assert told == sorted(told)
    with pytest.raises(CheckpointMismatch, match="start with a new checkpoint"):
        reader.partitions(INITIAL_OFFSET, log[3])


def test_a_shift_moves_events_and_ctis_alike_and_leaves_the_final_cti(stream) -> None:
    made = stream([event(s) for s in (1, 2)], ctiFrequency=1, finalCti="true")
    rows = made.run(shift_time(made.load(), "10 seconds"))
    assert marks(rows) == ["e11", "c11", "e12", "c12", "cinf"]


def test_advance_time_refuses_a_stream_without_ctis(stream) -> None:
    with pytest.raises(Exception, match="set option 'ctiFrequency'"):
        advance_time(stream().load())


# -- batch reads and errors -----------------------------------------------------------------------


def test_a_batch_read_of_one_partition_carries_every_cti_and_the_final_one(stream) -> None:
    made = stream([event(s) for s in (1, 3, 2)], ctiFrequency=1, finalCti="true")
    assert marks(made.load_batch(startingOffsets=None).collect()) == [
        "e1",
        "c1",
        "e3",
        "c3",
        "cinf",
    ]


def test_a_batch_read_of_several_partitions_carries_only_the_final_cti(stream) -> None:
    made = stream([event(s, s % 2) for s in range(4)], partitions=2, ctiFrequency=1,
                  finalCti="true")  # fmt: skip
    rows = made.load_batch().collect()
    assert (sorted(times(rows)), ctis(rows)) == ([0, 1, 2, 3], [float("inf")])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ctiFrequncy": 1}, "did you mean 'ctiFrequency'?"),
        ({"ctiDelay": "1 s"}, "has no effect alone"),
        ({"subscribe": "nosuch"}, "topic 'nosuch' does not exist"),
        ({"kafka.no.such": "x"}, 'No such configuration property: "no.such"'),
        ({"kafka.sasl.jaas.config": "s3cret"}, "use kafka.sasl.username and kafka.sasl.password"),
    ],
)
@pytest.mark.parametrize("schema", ["value binary", *outside_ci(None)])
def test_a_wrong_option_is_said_in_the_first_line(stream, options, said: str, schema) -> None:
    made = stream([event(1)], schema=schema)
    with pytest.raises(Exception, match="PYTHON") as failure:
        made.run(**options)
    assert said in str(failure.value).splitlines()[0]
    assert "s3cret" not in str(failure.value)
    assert "UnboundLocalError" not in str(failure.value)
