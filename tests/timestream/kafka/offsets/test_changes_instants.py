"""A change waits for a CTI: `changeFrom` names an instant (8.10)."""

import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timestream.builders import PASSING, at, report_progress
from timestream.changing import COLUMNS, SECOND, Changing, Logs, judge_points, put, told

from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.errors import CheckpointMismatch

OLD = {"startTime": "header:t", "ctiFrequency": "1", "ctiDelay": "2 s", "violationPolicy": "flag"}
NEW = {"startTime": "header:t", "ctiFrequency": "2", "ctiDelay": "0 s", "violationPolicy": "drop"}
clocks = st.fixed_dictionaries(
    {
        "startTime": st.just("header:t"),
        "ctiFrequency": st.sampled_from(["1", "2", "2 seconds"]),
        "ctiDelay": st.sampled_from(["0 s", "2 s", "-1 s"]),
        "violationPolicy": st.sampled_from(PASSING),
    },
    optional={"maxFuture": st.sampled_from(["1 s", "6 s"])},
)
records = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12)


def instant(seconds):
    return format_instant(seconds * SECOND)


def find_places(query):
    """The place of the first change, and the CTI of each batch up to it."""
    offsets = [query.offset(place) for place in range(1, len(query.offsets))]
    number = next((each.changes[0].number for each in offsets if each.changes), len(offsets))
    return number, [each.cti_us for each in offsets[: number + 1]]


def check_replays(query, logs, data):
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        joined = [row for rows in query.rows[first:last] for row in rows]
        assert told(logs, query.run(first, last), False) == told(logs, joined, False)


@given(clocks, clocks, records, st.integers(0, 12), st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_changes_at_the_first_batch_that_has_reached_the_instant_and_replays(
    old, new, times, named, data
):
    logs = Logs("topic")
    query = Changing(logs, **old)
    asked = {**new, "changeFrom": instant(named)}
    query.batch()
    query.restart(**asked)
    put(logs, "topic", times)
    while query.batch(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            query.restart(**asked)
    number, ctis = find_places(query)
    is_there = old != new and number < len(query.offsets) - 1
    place = query.offset(number + 1).partitions[at(0)].start_inclusive if is_there else len(times)
    segments = [(old, times[:place]), (new, times[place:])]
    rows = [row for rows in query.rows for row in rows]
    assert told(logs, rows, ctis=True) == judge_points(segments)
    if old != new:
        has_reached = [cti is not None and cti >= named * SECOND for cti in ctis]
        assert has_reached == [False] * (len(ctis) - is_there) + [True] * is_there
    check_replays(query, logs, data)


def test_batches_of_one_record_change_right_after_the_event_that_reaches_the_instant():
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    query.batch()
    query.restart(**NEW, changeFrom=instant(5))
    put(logs, "topic", [(6, 6), (7, 7), (4, 4), (8, 8), (9, 9)])
    while query.batch(1):
        pass
    (change,) = query.offset().changes
    assert change.cti_us == 5 * SECOND
    # 7 - 2 is 5: 4 is dropped and not flagged, and begins a counter of two.
    rows = [row for rows in query.rows for row in rows]
    assert told(logs, rows, True) == [(None, 6), 4, (None, 7), 5, (None, 8), 8, (None, 9)]


def test_until_the_instant_the_old_options_hold_and_explain_says_what_waits(caplog):
    caplog.set_level(logging.WARNING)
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    put(logs, "topic", [(4, 4)])
    query.drain()
    query.restart(**NEW, changeFrom=instant(9))
    query.drain()
    offset = query.offset()
    assert offset.settings["ctiDelay"] == "2 seconds"
    assert offset.changes == ()
    assert offset.unpinned["changeFrom"].startswith("1970-01-01T00:00:09Z: 'ctiDelay' from '2 sec")
    assert report_progress(offset, {})["changes"] == []
    put(logs, "topic", [(11, 11)])
    query.drain()
    offset = query.offset()
    assert (offset.changes[0].cti_us, offset.settings["ctiFrequency"]) == (9 * SECOND, "2")
    assert "changeFrom" not in offset.unpinned
    assert "'ctiDelay' from '2 seconds' to '0 ticks'" in caplog.text


def test_the_old_values_may_be_set_again_while_a_change_waits_and_nothing_changes():
    query = Changing(Logs("topic"), **OLD)
    query.batch()
    query.restart(**NEW, changeFrom=instant(9))
    query.batch()
    query.restart(**OLD, changeFrom=None)
    query.batch()
    assert query.offset().changes == ()
    query.restart(**{**OLD, "ctiDelay": "3 s"}, changeFrom=None)
    with pytest.raises(CheckpointMismatch, match="set option 'changeFrom' to 'now'"):
        query.batch()


def test_an_instant_that_was_passed_is_refused_by_name_and_now_or_a_later_one_is_taken():
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    put(logs, "topic", [(8, 8)])
    query.drain()
    query.restart(**NEW, changeFrom=instant(6))
    with pytest.raises(CheckpointMismatch) as refused:
        query.batch()
    said = str(refused.value)
    assert "'changeFrom' is '1970-01-01T00:00:06Z'" in said
    assert "CTI was already 1970-01-01T00:00:06Z" in said
    assert "'violationPolicy' from 'flag' to 'drop'" in said
    assert said.endswith("give a later instant, or 'now', or set the old values back")
    query.restart(**NEW, changeFrom=instant(7))
    assert query.batch()
    query.restart(**NEW, changeFrom="now")
    assert query.batch()
    assert query.offset().settings["ctiFrequency"] == "2"


def test_an_instant_may_stay_set_after_the_change_and_does_nothing():
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    put(logs, "topic", [(4, 4)])
    query.drain()
    for _ in range(3):
        query.restart(**NEW, changeFrom=instant(3))
        put(logs, "topic", [(9, 9)])
        query.drain()
    assert len(query.offset().changes) == 1


def test_a_kill_between_the_event_and_the_plan_that_would_change_loses_no_change():
    """The clock passed the instant in the last batch; no batch was planned since then."""
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    put(logs, "topic", [(4, 4)])
    query.drain()
    query.restart(**NEW, changeFrom=instant(5))
    put(logs, "topic", [(20, 20)])
    query.batch()
    assert query.offset().changes == ()
    query.restart(**NEW, changeFrom=instant(5))
    query.batch()
    assert query.offset().changes[0].cti_us == 18 * SECOND


def test_bounded_runs_that_come_back_change_once_the_instant_is_reached():
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    query.drain()
    for time in range(1, 12):
        query.restart(**NEW, changeFrom=instant(6))
        query.reader.prepareForTriggerAvailableNow()
        put(logs, "topic", [(time, time)])
        query.reader._driver._ends.limit_to_current_ends({}, has_import=False)
        query.drain()
    (change,) = query.offset().changes
    assert change.cti_us == 6 * SECOND
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]


def test_the_idle_timeout_changes_at_once_beside_a_change_that_waits():
    logs = Logs("topic")
    query = Changing(logs, **OLD, idleTimeout="5 s")
    query.batch()
    query.restart(**NEW, idleTimeout="9 s", changeFrom=instant(6))
    query.batch()
    (change,) = query.offset().changes
    assert dict(change.new) == {"idleTimeout": "9 seconds"}
    put(logs, "topic", [(8, 8)])
    query.drain()
    assert len(query.offset().changes) == 2


def test_a_waiting_change_of_what_an_import_follows_changes_the_import_at_the_same_place():
    def write(*times):
        logs.records[at(0, "fast")] += [(1000, {"t": str(time * 1000)}) for time in times]

    source = json.dumps({"topic": "fast", "frequency": 1, "startTime": "header:t"})
    old = {"startTime": "header:t", "ctiFrequency": None, "ctiImport": source,
           "violationPolicy": "flag", "maxFuture": "1 day"}  # fmt: skip
    new = {**old, "maxFuture": "20 s"}
    logs = Logs("topic", "fast")
    query = Changing(logs, **old)
    query.batch()
    query.restart(**new, changeFrom=instant(10))
    for time, cti in ((50, 50), (60, None), (70, None)):
        write(time)
        put(logs, "topic", [(time, time)])
        query.drain()
        if cti:
            assert query.offset().cti_us == cti * SECOND
    (change,) = query.offset().changes
    assert change.cti_us == 50 * SECOND
    # 50 was taken by the old limit; 60 and 70 are more than 20 s after their records.
    assert query.offset().cti_us == 50 * SECOND


def test_a_waiting_change_needs_the_columns_of_the_old_policy_until_it_is_made(monkeypatch):
    logs = Logs("topic")
    query = Changing(logs, **OLD)
    query.batch()
    columns = tuple(each for each in COLUMNS if each[0] != "violation")
    monkeypatch.setattr("timestream.changing.COLUMNS", columns)
    query.restart(**NEW, changeFrom=instant(9))
    put(logs, "topic", [(4, 4)])
    with pytest.raises(CheckpointMismatch, match="leave that column in the schema"):
        query.batch()
