"""The time of a stream with all partitions idle (semantics 5.9), offset by offset."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at, next_offset, run_context

from pyspark_timestream.core.instants import FINAL_US, MIN_US
from pyspark_timestream.kafka.offsets.offset import (
    ImportedPartition,
    ImportedTopic,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.offsets.stream_state import (
    BrokerSnapshot,
    advance_by_clock,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.rules.clocks import PartitionClock

A, B = at(0), at(1)
SECOND, MINUTE = 1_000_000, 60_000_000
NOW = 1_800_000_000 * SECOND
OLD = PartitionClock(cti_us=NOW - 3600 * SECOND)
OPTIONS = KafkaOptions(idle_timeout_us=10 * SECOND, idle_advance_us=2 * MINUTE)
RUN = run_context(OPTIONS)


def quiet(*clocks, **more):
    """A stream with partitions that have been read to their ends, and are idle."""
    partition_offsets = {
        at(n): PartitionOffset(3, 3, clock, idle=True) for n, clock in enumerate(clocks)
    }
    known = [clock.cti_us for clock in clocks if clock.cti_us is not None]
    given = {"cti_us": max(known, default=None), **more}
    return StreamOffset("me", {}, 1, partition_offsets, **given)


def following(previous, now_us, run=RUN, ends=None, since_us=None, **seen):
    """The offset after `previous`, which is the same from the checkpoint's text."""
    positions = {
        partition: partition_offset.end_exclusive
        for partition, partition_offset in previous.partitions.items()
    }
    ended = {
        partition: partition_offset.clock
        for partition, partition_offset in previous.partitions.items()
    }
    ends = {**positions, **(ends or {})}
    resting = {partition: 0 for partition in positions if ends[partition] == positions[partition]}
    observed = BrokerSnapshot(
        now_us=now_us, caught_up_since_us=resting if since_us is None else since_us, **seen
    )
    planned = next_offset(previous, ended, positions, ends, run, observed)
    read = StreamOffset.from_json(json.loads(json.dumps(planned.to_json())))
    assert read == planned
    return planned if planned is previous else read


def test_quiet_stream_follows_the_wall_clock_by_idle_advance():
    moved = following(quiet(OLD, OLD), NOW)
    assert moved.cti_us == moved.first_cti_us == moved.advanced_us == NOW - 2 * MINUTE
    assert not any(span.size for span in moved.ranges())


def test_quiet_stream_moves_in_steps_and_lags_by_no_more():
    offset, moves = quiet(OLD), []
    for now_us in range(NOW, NOW + 600 * SECOND, SECOND // 2):
        planned = following(offset, now_us)
        if planned is not offset:
            offset = planned
            moves.append(planned.cti_us)
        assert now_us - offset.cti_us < 2 * MINUTE + 12 * SECOND
    assert all(b - a == 12 * SECOND for a, b in itertools.pairwise(moves))
    assert len(moves) == 50


def test_quiet_stream_without_idle_advance_stays():
    before = quiet(OLD)
    assert (
        following(before, NOW, run_context(dataclasses.replace(OPTIONS, idle_advance_us=None)))
        is before
    )


def test_stream_with_one_awake_partition_does_not_follow_the_clock():
    before = quiet(OLD, OLD)
    planned = following(before, NOW, ends={B: 4})
    assert planned.cti_us == OLD.cti_us
    assert planned.advanced_us is None
    just_quiet = following(planned, NOW, since_us={A: 0, B: NOW - SECOND}, ends={A: 3})
    assert just_quiet.cti_us == OLD.cti_us


def test_partition_that_comes_back_meets_the_time_of_the_quiet_stream():
    moved = following(quiet(OLD, OLD), NOW)
    back = following(moved, NOW + SECOND, ends={A: 5})
    assert back.partitions[A].clock.cti_us == NOW - 2 * MINUTE
    assert back.partitions[A].end_exclusive == 5
    assert back.cti_us == NOW - 2 * MINUTE
    assert back.first_cti_us is None


def test_quiet_stream_without_any_cti_gets_its_first_one():
    assert following(quiet(PartitionClock(), PartitionClock()), NOW).cti_us == NOW - 2 * MINUTE


def test_quiet_stream_never_goes_back_with_the_clock():
    moved = following(quiet(OLD), NOW)
    assert following(moved, NOW - 3600 * SECOND) is moved
    ahead = quiet(PartitionClock(cti_us=NOW + MINUTE))
    assert following(ahead, NOW) is ahead


def test_quiet_stream_that_ended_keeps_its_final_cti():
    ended = quiet(OLD, cti_us=FINAL_US, final=True)
    assert following(ended, NOW) is ended
    again = following(ended, NOW, dataclasses.replace(RUN, new_start=True))
    assert (again.cti_us, again.first_cti_us) == (FINAL_US, FINAL_US)


def test_quiet_stream_goes_on_in_a_bounded_run_which_ends():
    bounded = dataclasses.replace(RUN, bounded=True)
    first = following(quiet(OLD), NOW, dataclasses.replace(bounded, new_start=True))
    assert (first.cti_us, first.end_of_run) == (NOW - 2 * MINUTE, True)
    # The run is over, however long its last batch took.
    assert following(first, NOW + 3600 * SECOND, bounded) is first
    final = dataclasses.replace(bounded, new_start=True, final_cti=True)
    assert following(quiet(OLD), NOW, final).cti_us == FINAL_US


def test_stream_without_partitions_does_not_follow_the_clock():
    before = quiet()
    assert following(before, NOW) is before


def test_quiet_stream_does_not_wait_for_an_imported_topic():
    imported = ImportedTopic({at(0, "fast"): ImportedPartition(1, OLD)}, OLD.cti_us)
    waiting = quiet(OLD, imported=imported)
    assert following(waiting, NOW, imported=imported).cti_us == NOW - 2 * MINUTE


@pytest.mark.parametrize(
    ("advance_us", "cti_us", "moved_us"),
    [
        (1, NOW - SECOND, None),
        (1, NOW - SECOND - 1, NOW - 1),
        (2 * MINUTE, NOW - 2 * MINUTE - 12 * SECOND, NOW - 2 * MINUTE),
        (2 * MINUTE, NOW - 2 * MINUTE - 12 * SECOND + 1, None),
        (NOW - MIN_US, None, MIN_US),
        (NOW - MIN_US + 1, None, None),
        (None, None, None),
    ],
)
def test_advance_by_clock_moves_by_at_least_a_step(advance_us, cti_us, moved_us):
    assert advance_by_clock(cti_us, advance_us, NOW) == moved_us


@given(
    st.integers(1, 10 * MINUTE),
    st.lists(
        st.tuples(st.integers(-MINUTE, 5 * MINUTE), st.booleans(), st.booleans(), st.booleans()),
        max_size=30,
    ),
)
@settings(max_examples=150, deadline=None)
def test_quiet_stream_keeps_its_promise_in_any_course(advance_us, course):
    """Never back, never past the clock minus `idleAdvance`, no batch without a step."""
    offset, now_us, latest_us = quiet(OLD, OLD), NOW, NOW
    for passed_us, has_records, starts, bounded in course:
        now_us += passed_us
        latest_us = max(latest_us, now_us)
        run = dataclasses.replace(
            RUN,
            options=dataclasses.replace(OPTIONS, idle_advance_us=advance_us),
            new_start=starts,
            bounded=starts and bounded,
        )
        ends = {A: offset.partitions[A].end_exclusive + 1} if has_records else {}
        since_us = {B: 0} if has_records else None
        planned = following(offset, now_us, run, ends, since_us)
        if planned is offset:
            continue
        assert planned.cti_us >= offset.cti_us
        assert planned.cti_us <= max(latest_us - advance_us, OLD.cti_us)
        if not (has_records or starts or planned.end_of_run):
            woke = any(not partition_offset.idle for partition_offset in offset.partitions.values())
            assert woke or planned.cti_us >= offset.cti_us + max(SECOND, advance_us // 10)
        offset = planned
