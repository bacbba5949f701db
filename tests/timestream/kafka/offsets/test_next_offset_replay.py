"""Streams with ends of their own, over several partitions, in any batches (semantics 7.6, 7.7)."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import (
    INSTANT,
    at,
    block,
    first_offset,
    micros,
    next_offset,
    options,
    projection,
    run_context,
    stream_state,
)
from timestream.small_reads import small_reads

from pyspark_timestream.core.instants import FINAL_US, format_instant
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.diagnosis.mistakes import find_short_replays
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.offsets.positions import find_ended, limit_ends
from pyspark_timestream.kafka.offsets.stream_state import (
    BrokerSnapshot,
    compute_alignment,
)
from pyspark_timestream.kafka.offsets.tasks import join_batches, plan_tasks
from pyspark_timestream.kafka.ranges import TaskRange
from pyspark_timestream.kafka.task import compute_end_clock, run_task

COLUMNS = (
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("violation", pa.string()),
    ("cti", INSTANT),
)


class Replay:
    """A query over logs of event times in ms; only the JSON of its offset survives a batch."""

    def __init__(self, logs, lower=None, upper=None, fixed=None, **raw):
        span = {"startingCti": lower, "endingCti": upper}
        told = {name: format_instant(ms * 1000) for name, ms in span.items() if ms is not None}
        self.options = options(**{"ctiFrequency": "2", **told, **raw})
        self.projection = projection(
            self.options,
            *COLUMNS[:2],
            *(COLUMNS[2:] if self.options.policy == "flag" else COLUMNS[3:]),
        )
        self.logs, self.fixed, self.text, self.rows, self.ctis = logs, fixed, None, [], []
        self.begun, self.quiet = False, set()

    def read(self, span, _needs):
        stamps = self.logs[span.partition.number][span.start_inclusive : span.end_exclusive]
        for i in range(0, len(stamps), 3):
            some = stamps[i : i + 3]
            first = span.start_inclusive + i
            yield block(*[b"v"] * len(some), first=first, timestamps_ms=some)

    def offset(self):
        return StreamOffset.from_json(json.loads(self.text))

    def batch(self, cap=None, bounded=True):
        """Plan and run a batch; False where there is nothing to do."""
        until_us = self.options.ending_cti_us
        run = run_context(
            replace(self.options, idle_timeout_us=1),
            max_offsets=cap,
            bounded=bounded,
            new_start=not self.begun,
            final_cti=self.options.final_cti,
        )
        readable_ends = {at(n): len(log) for n, log in enumerate(self.logs)}
        if self.text is None:
            ends = limit_ends(readable_ends, self.fixed, {})
            starts = dict.fromkeys(ends, 0)
            planned = first_offset("me", self.options.settings(), starts, ends, run)
            planned = replace(planned, fixed_ends=self.fixed)
        else:
            previous = self.offset()
            states = {
                span.partition: compute_end_clock(
                    self.options,
                    TaskRange(span, previous.partitions[span.partition].clock),
                    self.read,
                )
                for span in previous.ranges()
            }
            ended = find_ended(previous, states, until_us)
            ends = limit_ends(readable_ends, previous.fixed_ends, ended)
            positions = {
                partition: partition_offset.end_exclusive
                for partition, partition_offset in previous.partitions.items()
            }
            resting = {
                partition
                for partition in positions
                if positions[partition] == readable_ends[partition]
            }
            since_us = {partition: 0 for partition in resting if partition.number in self.quiet}
            wanted_ms = compute_alignment(
                stream_state(previous, states, positions, ends, run), ends
            ).list_instants_ms()
            index = {
                partition: self.first_at(partition.number, ms)
                for partition, ms in wanted_ms.items()
            }
            seen = BrokerSnapshot(now_us=1, caught_up_since_us=since_us)
            known = previous, states, positions, ends, run, seen
            planned = next_offset(*known, time_index=index)
            if planned is previous:
                return False
        self.begun, self.text = True, json.dumps(planned.to_json())
        for plan in plan_tasks(self.offset()):
            for rows in run_task(self.options, self.projection, plan, self.read, lambda *_: None):
                kept = [row for row in rows.to_pylist() if row["cti"] is None]
                self.rows += [(row["partition"], row["offset"]) for row in kept]
                self.ctis += [us for us in micros(rows["cti"]) if us is not None]
        return True

    def first_at(self, number, ms):
        """As a broker's time index says."""
        return next((n for n, each in enumerate(self.logs[number]) if each >= ms), None)

    def finish(self, **more):
        while self.batch(**more):
            pass
        return self


def full(log, every=2):
    """(offset, time, CTI in force before it) of each record, and the CTI at the end; ms."""
    seen, cti = [], None
    for offset, time in enumerate(log):
        seen.append((offset, time, cti))
        if offset % every == every - 1 and (cti is None or time > cti):
            cti = time
    return seen, cti


def expected_rows(logs, lower, upper, flag):
    """The rows of the full run with times in [lower, upper), up to each partition's end."""
    return [
        (number, offset)
        for number, log in enumerate(logs)
        for offset, time, cti in full(log)[0]
        if (flag or cti is None or time >= cti) and lower <= time < upper and (cti or 0) < upper
    ]


logs = st.lists(st.lists(st.integers(0, 30), max_size=16), min_size=1, max_size=3)


@given(
    logs, st.integers(0, 20), st.integers(1, 15), st.booleans(), st.none() | st.integers(1, 12),
    st.lists(st.sampled_from(["", "1", "4", "restart"]), max_size=12),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_a_replay_in_any_batches_has_the_rows_and_the_last_cti_of_its_span(
    given_logs, lower, length, flag, skew, steps
):
    upper = lower + length
    more = {"violationPolicy": "flag"} if flag else {}
    # Aligned reading (semantics 5.10) changes only the batches.
    more |= {} if skew is None else {"maxSkew": f"{skew} ms"}
    with small_reads(tasks=False):
        replay = Replay(given_logs, lower, upper, **more)
        for step in steps:
            if step == "restart":
                replay.begun = False
            else:
                replay.batch(cap=int(step) if step else None)
        replay.finish()
    assert sorted(replay.rows) == expected_rows(given_logs, lower, upper, flag)
    ends = [full(log)[1] for log in given_logs]
    least = None if None in ends else min(*ends, upper)
    shown = [us // 1000 for us in replay.ctis]
    assert shown == sorted(shown)
    assert all(lower <= cti <= upper for cti in shown)
    assert shown[-1:] == ([least] if least is not None and least >= lower else [])
    assert replay.offset().end_of_run
    (found,) = [*find_short_replays((BatchRecord(0, replay.offset()),))] or [None]
    assert (found is None) == (least == upper)


@given(logs, st.integers(0, 20), st.integers(1, 15), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_batches_of_a_replay_that_run_as_one_have_its_rows(given_logs, lower, length, cap):
    replay = Replay(given_logs, lower, lower + length)
    while replay.batch(cap=cap):
        joined = join_batches(None, {}, replay.offset(), None)
        rows, ctis = [], []
        for plan in joined:
            for each in run_task(
                replay.options, replay.projection, plan, replay.read, lambda *_: None
            ):
                kept = [row for row in each.to_pylist() if row["cti"] is None]
                rows += [(row["partition"], row["offset"]) for row in kept]
                ctis += [us // 1000 for us in micros(each["cti"]) if us is not None]
        assert sorted(rows) == sorted(replay.rows)
        assert all(lower <= cti <= lower + length for cti in ctis)


def test_neither_a_restart_nor_the_driver_shows_a_cti_before_the_start():
    replay = Replay([[1, 4, 5, 6], [3, 3, 9, 9]], 6, 9)
    replay.batch(cap=4)
    replay.begun = False
    assert replay.batch(cap=1)
    assert replay.offset().first_cti_us == 3000
    assert replay.ctis == []
    replay.finish()
    assert replay.ctis == [6000]


def test_an_unbounded_replay_waits_for_its_end_closes_once_and_stays_ended():
    replay = Replay([[1, 4, 5, 6], [3]], 2, 6).finish(bounded=False)
    assert (replay.offset().end_of_run, replay.ctis) == (False, [])
    replay.logs[1] += [7, 1, 99]
    replay.finish(bounded=False)
    assert (replay.offset().end_of_run, replay.ctis[-1]) == (True, 6000)
    before = replay.text
    replay.logs[0] += [5, 5, 50]
    assert not replay.batch(bounded=False)
    replay.begun = False
    replay.finish(bounded=False)
    assert replay.offset().number == json.loads(before)["number"] + 1
    assert replay.ctis[-1] == 6000
    assert sorted(replay.rows) == [(0, 1), (0, 2), (1, 0)]


def test_a_final_cti_that_is_asked_for_follows_the_end():
    replay = Replay([[1, 4, 5, 6]], None, 6, finalCti="true").finish()
    assert replay.ctis == [4000, 6000, FINAL_US]
    replay.logs[0] += [7, 8]
    replay.begun = False
    replay.finish()
    assert replay.ctis[3:] == [FINAL_US]


def replay_past_an_idle_partition(bounded=False, **raw):
    """Partition 1 is idle at 3 ms when partition 0 takes the stream to its end, 6 ms."""
    replay = Replay([[1, 2], [2, 3]], None, 6, **raw)
    replay.quiet = {1}
    replay.batch(bounded=False)
    replay.batch(bounded=False)
    replay.logs[0] += [5, 6]
    return replay.finish(bounded=bounded)


@pytest.mark.parametrize("final", ["false", "true"])
@given(st.lists(st.sampled_from([0, 1, "restart", "bounded", ""]), max_size=8))
@settings(max_examples=40, deadline=None)
def test_records_that_wake_an_idle_partition_after_the_end_are_not_read(final, steps):
    replay = replay_past_an_idle_partition(finalCti=final)
    ended, rows = replay.offset(), list(replay.rows)
    assert (ended.end_of_run, ended.partitions[at(1)].idle) == (True, True)
    assert ended.cti_us == (FINAL_US if final == "true" else 6000)
    for step in steps:
        if isinstance(step, int):
            replay.logs[step] += [4, 5]
        elif step == "restart":
            replay.begun = False
        replay.finish(bounded=step == "bounded")
        assert replay.offset().end_of_run
    assert (replay.rows, replay.offset().cti_us) == (rows, ended.cti_us)


@pytest.mark.parametrize("wakes", [False, True])
def test_new_records_after_a_final_cti_before_the_end_are_refused(wakes):
    replay = Replay([[1, 2], [2, 3]], None, 6, finalCti="true")
    replay.quiet = {1}
    replay.batch(bounded=False)
    replay.finish()
    assert replay.offset().final
    replay.logs[wakes] += [4, 5]
    replay.begun = False
    with pytest.raises(CheckpointMismatch, match="this checkpoint's stream has ended"):
        replay.finish()


@pytest.mark.parametrize("bounded", [False, True])
def test_a_replay_that_ends_without_its_idle_partitions_is_not_early(bounded):
    replay = replay_past_an_idle_partition(bounded)
    assert replay.offset().end_of_run
    assert not [*find_short_replays((BatchRecord(0, replay.offset()),))]
    early = Replay([[1, 2], [2, 3]], None, 6, finalCti="true")
    early.quiet = {0, 1}
    early.batch(bounded=False)
    early.finish()
    (found,) = find_short_replays((BatchRecord(0, early.offset()),))
    assert found.partitions == {at(0), at(1)}


def test_fixed_ends_are_kept_whatever_the_log_and_the_topic_grow_to():
    replay = Replay([[1, 4, 5, 6], [3, 3, 3]], fixed={at(0): 3, at(1): 0})
    replay.batch(cap=1)
    replay.logs = [[1, 4, 5, 6, 7], [3, 3, 3, 3], [2, 2]]
    replay.begun = False
    replay.finish()
    assert sorted(replay.rows) == [(0, 0), (0, 1), (0, 2)]
    assert replay.offset().fixed_ends == {at(0): 3, at(1): 0}
    assert replay.offset().end_of_run


def test_a_replay_that_reaches_nothing_says_so_with_its_cti():
    early = Replay([[1, 4], [2, 3]], 9, 12).finish()
    (found,) = find_short_replays((BatchRecord(0, early.offset()),))
    assert "no partition's CTI reaches 1970-01-01T00:00:00.009" in found.text
    assert "it is 1970-01-01T00:00:00.004" in found.text
    late = Replay([[1, 14], [2, 10], []], 9, 12).finish()
    (found,) = find_short_replays((BatchRecord(0, late.offset()),))
    assert found.partitions == {at(1), at(2)}
    assert "has not reached option 'endingCti'" in found.text
    assert "there is none yet" in found.text
