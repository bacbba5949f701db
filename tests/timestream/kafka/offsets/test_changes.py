"""A running clock is changed: each batch is read by the options of its offset (8.10)."""

import json
from contextlib import suppress
from random import Random

import pyarrow as pa
import pytest
from fuzz.mutations import damage_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT, PASSING, at, late_word, options, projection
from timestream.changing import (
    COLUMNS,
    SECOND,
    Changing,
    Logs,
    judge_marks,
    judge_points,
    put,
    told,
)

from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.errors import (
    NEW_CHECKPOINT,
    CheckpointMismatch,
    CheckpointUnreadable,
    OptionError,
    ReasonedError,
    SchemaRefused,
    ViolationFound,
)
from pyspark_timestream.kafka.offsets.changes import KEPT_CHANGES
from pyspark_tseries.spark.query_checks import read_streams

clocks = st.fixed_dictionaries(
    {
        "ctiFrequency": st.sampled_from(["1", "2", "3", "2 seconds", "5 seconds"]),
        "ctiDelay": st.sampled_from(["0 s", "2 s", "4 s", "-1 s"]),
        "violationPolicy": st.sampled_from(PASSING),
    },
    optional={"maxFuture": st.sampled_from(["1 s", "6 s"])},
)
records = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8)


@given(st.lists(st.tuples(clocks, records), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_with_changes_between_gives_the_rows_of_the_oracle_and_replays(segments, data):
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", **segments[0][0])
    for place, (asked, times) in enumerate(segments):
        if place:
            query.restart(startTime="header:t", **asked)
            query.batch(1)
        put(logs, "topic", times)
        while query.batch(data.draw(st.integers(1, 5))):
            if data.draw(st.booleans()):
                query.restart(startTime="header:t", **asked)
    single = [row for rows in query.rows for row in rows]
    assert told(logs, single, ctis=True) == judge_points(segments)
    # Spark runs each batch again with the last options, and any batches as one.
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        joined = [row for rows in query.rows[first:last] for row in rows]
        assert told(logs, query.run(first, last), False) == told(logs, joined, False)


names = st.sampled_from(["a", "b", "c"])
lists = st.lists(names, unique=True, max_size=2)
marked = st.lists(st.tuples(names, st.integers(0, 9), st.integers(0, 9)), max_size=6)


@given(
    st.lists(
        st.tuples(
            lists, st.none() | st.integers(1, 4), st.none() | st.sampled_from([2, 5]), marked
        ),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_with_changes_of_writers_gives_what_the_oracle_gives_and_replays(segments, data):
    logs, query = Logs("topic"), None
    for writers, timeout, grace, records in segments:
        asked = {"ctiHeader": "c", "violationPolicy": "flag"}
        asked |= {} if grace is None else {"writerGrace": f"{grace} s"}
        asked |= {"writers": ",".join(writers)} if writers else {}
        asked |= {} if timeout is None else {"writerTimeout": f"{timeout} s"}
        if query is None:
            query = Changing(logs, **asked)
        query.restart(**asked)
        query.batch(1)
        logs.records[at(0)] += [
            (stamp * 1000, {"c": str(mark * 1000), "c-writer": writer})
            for writer, mark, stamp in records
        ]
        while query.batch(data.draw(st.integers(1, 5))):
            pass
    query.drain()
    check_marks(query, segments, data)


def check_marks(query, segments, data):
    """Compare rows and CTI with the oracle, and each batch and some joined ones with a replay."""
    rows = [row for rows in query.rows for row in rows if isinstance(row, tuple)]
    late, cti = judge_marks(segments)
    assert [violation == "late" for *_, violation in rows] == late
    told_us = query.offset().partitions[at(0)].clock.cti_us
    assert told_us == (None if cti is None else cti * SECOND)
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        joined = [row for rows in query.rows[first:last] for row in rows if isinstance(row, tuple)]
        assert [row for row in query.run(first, last) if isinstance(row, tuple)] == joined


def test_a_smaller_delay_raises_the_clock_and_a_larger_one_holds_it_until_events_pass():
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", ctiDelay="5 s")
    for delay, time, cti in (("5 s", 10, 5), ("1 s", 10, 9), ("5 s", 11, 9), ("5 s", 15, 10)):
        query.restart(startTime="header:t", ctiFrequency="1", ctiDelay=delay)
        put(logs, "topic", [(time, time)])
        query.drain()
        assert query.offset().partitions[at(0)].clock.cti_us == cti * SECOND
    assert [
        (change.cti_us, dict(change.old), dict(change.new)) for change in query.offset().changes
    ] == [
        (5 * SECOND, {"ctiDelay": "5 seconds"}, {"ctiDelay": "1 second"}),
        (9 * SECOND, {"ctiDelay": "1 second"}, {"ctiDelay": "5 seconds"}),
    ]


def test_the_next_step_of_the_refusal_is_changefrom_and_taking_it_changes_the_clock():
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", ctiDelay="5 s", violationPolicy="flag")
    query.batch()
    query.restart(ctiFrequency="1", ctiDelay="7 s", violationPolicy="flag", changeFrom=None)
    with pytest.raises(CheckpointMismatch) as refused:
        query.batch()
    assert str(refused.value) == (
        "option 'ctiDelay' was '5 seconds' when this checkpoint was made and is '7 seconds' now; "
        "it defines the stream's time or rows, so set it back to '5 seconds', or set option "
        f"'changeFrom' to 'now' to change it from here on, or {NEW_CHECKPOINT}"
    )
    query.restart(ctiFrequency="1", ctiDelay="7 s", violationPolicy="flag", changeFrom="now")
    assert query.batch()
    assert query.offset().settings["ctiDelay"] == "7 seconds"


def test_changefrom_without_a_difference_does_nothing():
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", idleTimeout="5 s")
    query.batch()
    query.restart(ctiFrequency="1", idleTimeout="5 s")
    query.batch()
    assert query.offset().changes == ()
    assert "changes" not in query.offset().to_json()


def test_the_idle_timeout_changes_without_changefrom_and_is_recorded():
    query = Changing(
        Logs("topic"), ctiFrequency="1", idleTimeout="5 s", violationPolicy="flag", changeFrom=None
    )
    query.batch()
    query.restart(ctiFrequency="1", idleTimeout="9 s", violationPolicy="flag", changeFrom=None)
    query.batch()
    (change,) = query.offset().changes
    assert change.describe() == "'idleTimeout' from '5 seconds' to '9 seconds'"
    assert "idleTimeout" not in query.offset().settings


def test_the_last_change_of_a_pinned_option_stays_however_often_idle_timeout_changes_after_it():
    query = Changing(Logs("topic"), ctiFrequency="1", idleTimeout="5 s", ctiDelay="1 s")
    query.batch()
    for delay in ("2 s", "3 s"):
        query.restart(ctiFrequency="1", idleTimeout="5 s", ctiDelay=delay)
        query.batch()
    for seconds in range(6, 8 + KEPT_CHANGES):
        query.restart(ctiFrequency="1", idleTimeout=f"{seconds} s", ctiDelay="3 s")
        query.batch()
        query.reader.commit(json.loads(query.offsets[-1]))
        query.logs.records[at(0)].append((seconds * 1000, {}))
        query.batch()
    kept = [change.describe() for change in query.offset().changes]
    assert kept[0] == "'ctiDelay' from '2 seconds' to '3 seconds'"
    assert len(kept) == 1 + KEPT_CHANGES
    (stream,) = read_streams([query.offset().to_json()], 99)
    assert stream.settings["changeFrom"].endswith("batch 2")


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({"timeUnit": "ms"}, {"timeUnit": "s"}, "'timeUnit' .* 'changeFrom' does not change it"),
        ({}, {"startTime": "header:t"}, "'startTime' .* 'changeFrom' does not change it"),
        ({}, {"eventShape": "interval", "endTime": "header:t"}, "'changeFrom' does not change it"),
        ({}, {"writerFrom": "header:w"}, "'writerFrom' .* 'changeFrom' does not change it"),
        ({"ctiHeader": "c"}, {"ctiHeader": "d"}, "takes another one in two restarts"),
        ({}, {"ctiFrequency": None, "finalCti": "true"}, "only beside another"),
        ({}, {"ctiHeader": "c", "changeFrom": "2024-01-01T00:00:00Z"}, "only with 'now'"),
        ({"ctiHeader": "c"}, {"changeFrom": "2024-01-01T00:00:00Z"}, "only with 'now'"),
        ({}, {"subscribe": "topic,more", "changeFrom": "2024-01-01T00:00:00Z"}, "only with 'now'"),
        ({"ctiFrequency": None, "finalCti": "true"}, {"ctiHeader": "c"}, "only beside another"),
        ({"subscribe": "topic,more"}, {"subscribe": "topic"}, "'subscribe' .* only adds topics"),
        ({}, {"subscribe": None, "subscribePattern": "topic"}, "only adds topics|does not change"),
        ({"endingOffsets": "latest"}, {"endingOffsets": "latest", "subscribe": "topic,more"},
         "adds no topics to a stream with an end"),
    ],
)  # fmt: skip
def test_what_never_changes_is_refused_by_name_with_the_way_to_go(first, then, said):
    query = Changing(Logs("topic", "more"), **{"ctiFrequency": "1", **first})
    query.batch()
    query.restart(**{"ctiFrequency": "1", **then})
    with pytest.raises(CheckpointMismatch, match=said) as refused:
        query.batch()
    assert "since 'changeFrom'" in str(refused.value)
    assert str(refused.value).endswith(f"or {NEW_CHECKPOINT}")


def test_an_added_topic_is_read_from_its_start_and_raised_to_the_stream():
    logs = Logs("topic", "more")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", violationPolicy="flag")
    put(logs, "topic", [(1, 1), (9, 9)])
    put(logs, "more", [(3, 3), (12, 12)])
    query.drain()
    query.restart(startTime="header:t", ctiFrequency="1", violationPolicy="flag",
                  subscribe="topic,more")  # fmt: skip
    query.drain()
    assert [row for rows in query.rows for row in rows if isinstance(row, tuple)] == [
        ("topic", 0, 0, None), ("topic", 0, 1, None), ("more", 0, 0, "late"), ("more", 0, 1, None),
    ]  # fmt: skip
    assert query.offset().changes[-1].new == {"subscribe": "more,topic"}
    joined = query.run(0, -1)
    assert ("more", 0, 0, "late") in joined


def test_a_source_that_is_added_counts_from_the_change_on():
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", ctiDelay="5 s")
    logs.records[at(0)] += [(1000, {"t": "1000", "c": "90000"}), (2000, {"t": "2000"})]
    query.drain()
    query.restart(startTime="header:t", ctiFrequency="1", ctiDelay="5 s", ctiHeader="c")
    query.drain()
    assert query.offset().cti_us == -3 * SECOND
    logs.records[at(0)] += [(3000, {"t": "3000", "c": "3000"})]
    query.drain()
    assert query.offset().cti_us == 3 * SECOND
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]


def test_a_replayed_batch_that_flags_needs_the_column_violation(monkeypatch):
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", violationPolicy="flag")
    query.batch()
    columns = [each for each in COLUMNS if each[0] != "violation"]
    monkeypatch.setattr("timestream.changing.COLUMNS", columns)
    query.restart(ctiFrequency="1", violationPolicy="drop")
    with pytest.raises(CheckpointMismatch, match="start once more with that policy and schema"):
        query.run(0, 1)


def test_many_changes_keep_the_offset_small_and_the_last_ones_are_there():
    query = Changing(Logs("topic"), ctiFrequency="1", ctiDelay="0 s")
    for delay in range(1, 40):
        query.restart(ctiFrequency="1", ctiDelay=f"{delay} s")
        query.batch()
        query.reader.commit(json.loads(query.offsets[-1]))
        query.logs.records[at(0)].append((delay * 1000, {}))
        query.batch()
    assert [change.new["ctiDelay"] for change in query.offset().changes][-2:] == [
        "38 seconds", "39 seconds"
    ]  # fmt: skip
    assert len(query.offset().changes) == 16
    assert len(query.offset().partitions[at(0)].change_points) <= 1


@pytest.mark.parametrize("text", ["garbage", 7, None])
def test_a_checkpoint_whose_settings_are_damaged_is_refused_by_name(text):
    query = Changing(Logs("topic"), ctiFrequency="1", ctiDelay="5 s")
    query.batch()
    offset = json.loads(query.offsets[-1])
    offset["settings"]["ctiDelay"] = text
    query.offsets[-1] = json.dumps(offset)
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    with pytest.raises((CheckpointMismatch, CheckpointUnreadable), match=r"damaged|settings"):
        query.batch()


def test_a_checkpoint_whose_changes_are_damaged_is_refused_by_name():
    query = Changing(Logs("topic"), ctiFrequency="1", ctiDelay="5 s")
    query.batch()
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    query.batch()
    whole = query.offsets[-1]
    (good,) = json.loads(whole)["changes"]
    for changes in (
        [{"number": 1}],
        [{**good, "number": "1"}],
        "no",
        [good, good],
        [{**good, "number": 2}],
        [{**good, "number": -1}],
        [{**good, "from": {"ctiDelay": "garbage"}}],
        [{**good, "to": {"startTime": "header:t"}}],
        [{**good, "to": {"nonsense": "7"}}],
        [],
    ):
        query.offsets[-1] = json.dumps({**json.loads(whole), "changes": changes})
        query.restart(ctiFrequency="1", ctiDelay="7 s")
        with pytest.raises(CheckpointUnreadable):
            query.batch()
        with pytest.raises(CheckpointUnreadable):
            query.run(0, -1)
    query.offsets[-1] = whole
    assert query.run(0, -1) == []


@pytest.mark.parametrize("points", [[[1, 9]], [[1, -1]], [[0, 0]], [[1, 0], [1, 0], [0, 0]]])
def test_a_place_of_a_change_that_is_damaged_is_refused_before_records_beyond_it_are_read(points):
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", ctiDelay="5 s")
    query.batch()
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    logs.records[at(0)] += [(0, {})] * 3
    query.batch(3)
    logs.records[at(0)] += [(0, {})] * 9
    offset = json.loads(query.offsets[-1])
    offset["partitions"]["topic"]["0"]["change_points"] = points
    query.offsets[-1] = json.dumps(offset)
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    with pytest.raises(CheckpointUnreadable, match="the changes of topic 'topic' partition 0"):
        query.run(0, -1)


POINTS = [(5, 5), (3, 3), (9, 9), (1, 1)]
PAIRS = [(old, new) for old in POLICIES for new in POLICIES if old != new]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_any_policy_follows_any_other_with_a_schema_that_has_the_columns_of_both(old, new):
    logs = Logs("topic")
    asked = {"startTime": "header:t", "ctiFrequency": "1"}
    query = Changing(logs, **asked, violationPolicy=old)
    if old in PASSING:
        put(logs, "topic", POINTS)
    query.drain()
    query.restart(**asked, violationPolicy=new)
    query.drain()
    put(logs, "topic", [(9, 9), (2, 2)])
    if new not in PASSING:
        with pytest.raises(ViolationFound, match="before"):
            query.drain()
        return
    query.drain()
    word = late_word(new)
    expected = [(None, 9), (word, 2)] if word else [(None, 9)]
    shown = told(logs, [row for rows in query.rows for row in rows], False)
    assert shown[-len(expected) :] == expected
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
    assert query.offset().changes[-1].new.get("violationPolicy", "drop") == new


def test_a_column_that_no_policy_fills_is_refused_with_changefrom_too():
    columns = (*COLUMNS, ("edge", pa.string()))
    given_ = options(ctiFrequency="1", changeFrom="now")
    with pytest.raises(SchemaRefused, match="'edge'"):
        projection(given_, *columns)


def test_changes_back_and_forth_in_restarts_that_never_finish_a_batch_keep_every_place():
    """Each restart plans a batch that is killed; Spark runs it again by the options it had."""
    logs = Logs("topic")
    delays = ["5 s", "1 s", "5 s", "0 s", "9 s", "5 s"] * 3
    query = Changing(logs, startTime="header:t", ctiFrequency="1", ctiDelay="5 s",
                     violationPolicy="flag")  # fmt: skip
    query.batch()
    segments = [({"ctiFrequency": "1", "ctiDelay": "5 s", "violationPolicy": "flag"}, [])]
    for step, delay in enumerate(delays):
        asked = {"ctiFrequency": "1", "ctiDelay": delay, "violationPolicy": "flag"}
        query.restart(startTime="header:t", **asked)
        times = [(step + 6, 0), (step, 0)]
        put(logs, "topic", times)
        query.batch(2)
        query.restart(startTime="header:t", **{**asked, "ctiDelay": delays[step - 1]})
        assert query.run(-2, -1) == query.rows[-1]
        segments.append((asked, times))
    rows = [row for rows in query.rows for row in rows]
    assert told(logs, rows, True) == judge_points(segments)
    for first in range(len(query.offsets) - 1):
        joined = [row for rows in query.rows[first:] for row in rows]
        assert told(logs, query.run(first, -1), False) == told(logs, joined, False)


def test_two_changes_before_the_first_batch_are_none():
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", ctiDelay="5 s")
    query.restart(ctiFrequency="3", ctiDelay="5 s", changeFrom="2024-01-01T00:00:00Z")
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    query.batch()
    assert query.offset().changes == ()
    assert query.offset().settings["ctiDelay"] == "7 seconds"


def test_a_change_in_the_restart_that_finds_the_topic_created_again_goes_on_with_the_clock():
    logs = Logs("topic")
    asked = {"startTime": "header:t", "ctiFrequency": "1", "violationPolicy": "flag",
             "failOnDataLoss": "false"}  # fmt: skip
    query = Changing(logs, **asked, ctiDelay="5 s")
    put(logs, "topic", [(20, 20), (21, 21)])
    query.drain()
    # The batch after the last records: no clock has to be restored from records that are gone.
    assert not query.offset().has_records
    before = len(query.offsets) - 1
    logs.topic_id, logs.records[at(0)] = "second", []
    put(logs, "topic", [(12, 12), (30, 30), (22, 22)])
    query.restart(**asked, ctiDelay="9 s")
    query.drain()
    shown = [row for rows in query.rows for row in rows if isinstance(row, tuple)]
    assert shown[2:] == [
        ("topic", 0, 0, "late"), ("topic", 0, 1, None), ("topic", 0, 2, None),
    ]  # fmt: skip
    assert query.offset().cti_us == 21 * SECOND
    for last in range(before + 1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        joined = [row for rows in query.rows[before:last] for row in rows if isinstance(row, tuple)]
        assert [row for row in query.run(before, last) if isinstance(row, tuple)] == joined


def test_a_clock_is_not_restored_from_the_records_of_a_topic_that_was_created_again():
    """The group has no state, and the offsets that were read belong to another topic now."""
    logs = Logs("topic")
    asked = {"startTime": "header:t", "ctiFrequency": "1", "violationPolicy": "flag",
             "failOnDataLoss": "false"}  # fmt: skip
    query = Changing(logs, **asked, ctiDelay="5 s")
    put(logs, "topic", [(20, 20), (21, 21)])
    query.batch()
    logs.topic_id, logs.records[at(0)] = "second", []
    put(logs, "topic", [(12, 12), (99, 99)])
    query.restart(**asked, ctiDelay="1 s")
    query.drain()
    shown = [row for rows in query.rows for row in rows if isinstance(row, tuple)]
    assert shown[2:] == [("topic", 0, 0, None), ("topic", 0, 1, None)]
    assert query.offset().cti_us == 98 * SECOND


def test_a_change_while_a_partition_is_idle_changes_its_clock_too():
    logs = Logs("topic", "more")
    asked = {"subscribe": "topic,more", "startTime": "header:t", "ctiFrequency": "1",
             "violationPolicy": "flag", "idleTimeout": "3 s"}  # fmt: skip
    query = Changing(logs, **asked, ctiDelay="5 s")
    put(logs, "topic", [(10, 10)])
    put(logs, "more", [(8, 8)])
    query.drain()
    put(logs, "topic", [(20, 20)])
    for _ in range(4):
        query.drain()
        put(logs, "topic", [(20, 20)])
    assert query.offset().partitions[at(0, "more")].idle
    query.restart(**asked, ctiDelay="1 s")
    query.drain()
    put(logs, "more", [(14, 14), (30, 30)])
    put(logs, "topic", [(31, 31)])
    query.drain()
    shown = [row for rows in query.rows for row in rows if isinstance(row, tuple)]
    assert shown[-3:].count(("more", 0, 1, "late")) == 1
    assert query.offset().partitions[at(0, "more")].clock.cti_us == 29 * SECOND
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]


def test_bounded_runs_with_a_change_each_change_each_time():
    logs = Logs("topic")
    asked = {"startTime": "header:t", "ctiFrequency": "1", "violationPolicy": "flag"}
    query, segments = None, []
    for run, delay in enumerate(["5 s", "1 s", "3 s", "0 s", "0 s", "2 s"]):
        query = query or Changing(logs, **asked, ctiDelay=delay)
        query.restart(**asked, ctiDelay=delay)
        times = [(run + 6, 0), (run + 2, 0)]
        put(logs, "topic", times)
        query.reader.prepareForTriggerAvailableNow()
        query.drain()
        assert query.offset().end_of_run
        segments.append(({**asked, "ctiDelay": delay}, times))
    assert len(query.offset().changes) == 4
    rows = [row for rows in query.rows for row in rows]
    assert told(logs, rows, True) == judge_points(segments)


def test_columns_of_a_header_that_is_added_are_null_where_an_older_batch_is_run_again(monkeypatch):
    columns = (*COLUMNS, ("time_lower", INSTANT), ("time_upper", INSTANT))
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", violationPolicy="flag")
    logs.records[at(0)].append((0, {"c": "1000"}))
    query.batch()
    query.restart(ctiFrequency="1", violationPolicy="flag", ctiHeader="c", timeWindow="true")
    given_ = query.reader._options
    query.reader._projection = projection(given_, *columns)
    assert query.run(0, 1)[0][:4] == ("topic", 0, 0, None)
    logs.records[at(0)].append((0, {"c": "1000"}))
    query.batch()
    assert query.rows[-1]


@pytest.mark.thorough
def test_offsets_with_changes_that_are_damaged_anywhere_are_planned_from_or_refused_by_name():
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", ctiDelay="5 s", writers=None)
    for delay in ("7 s", "1 s", "3 s"):
        put(logs, "topic", [(9, 9), (3, 3)])
        query.batch()
        query.restart(startTime="header:t", ctiFrequency="1", ctiDelay=delay)
    query.batch()
    whole = json.loads(query.offsets[-1])
    assert whole["changes"]
    assert whole["partitions"]["topic"]["0"]["change_points"]
    parts = ("changes", "settings", "partitions", "unpinned")
    count = len(query.offsets)
    for seed in range(400):
        chance = Random(seed)
        part = chance.choice(parts)
        damaged = {**whole, part: damage_json(whole[part], chance)}
        query.offsets[-1] = json.dumps(damaged)
        query.restart(startTime="header:t", ctiFrequency="1", ctiDelay="2 s")
        for act in (lambda: query.run(-2, -1), lambda: query.run(0, -1), query.batch):
            with suppress(ReasonedError, OptionError):
                act()
        del query.offsets[count:]
