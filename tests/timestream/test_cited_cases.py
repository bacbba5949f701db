"""Cases that the inventors of punctuations test themselves, on our rules.

Each test names its case by a letter and a number, which stay the same. If the outcome is another
one, docs/explanation/differences.md says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from timestream.builders import PASSING, options

from pyspark_timestream.core.checkpoint import check_offset
from pyspark_timestream.core.instants import FINAL_US, NEVER
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.offsets.stream_state import find_caught_up, find_newly_idle
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import (
    Events,
    PartitionClock,
    TimeRules,
    compute_stream_cti,
    min_cti,
)
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import NO_MARKS, BlockResult, step

FRESH = PartitionClock()
EACH = {"every_events": 1}


def column(values: Sequence[int], kind: type = np.int64) -> np.ndarray:
    return np.array(list(values), dtype=kind)


def points(
    *times: int, clock: PartitionClock = FRESH, **rules
) -> tuple[PartitionClock, BlockResult]:
    """Points at these times under these rules."""
    readable = np.ones(len(times), dtype=np.bool_)
    return step(TimeRules(**rules), clock, Events(column(times), readable))


def in_order(times: Sequence[int], result: BlockResult) -> list[str]:
    """Kept events as `e5` (late ones `l5`) and CTIs as `c5`, as a reader sees them."""
    said = [f"c{us}" for us, at in zip(result.cti_us, result.cti_index, strict=True) if at < 0]
    for index, time in enumerate(times):
        if result.keep[index]:
            said.append(f"{'l' if result.violation[index] else 'e'}{time}")
        said += [f"c{us}" for us, at in zip(result.cti_us, result.cti_index, strict=True)
                 if at == index]  # fmt: skip
    return said


class Writers:
    """A partition that only hears marks; each call is one record."""

    def __init__(self, **rules) -> None:
        self.rules = TimeRules(**rules)
        self.clock = FRESH
        self.last: BlockResult | None = None

    def hear(self, writer: str, mark: int | None = None, at: int = 0, close: bool = False):
        """One punctuation; the CTI after it."""
        yes, no = column([1], np.bool_), column([0], np.bool_)
        marks = Marks(column([0]), column([mark or 0]), yes if mark is not None else no, yes,
                      pa.array([writer]), yes if close else no)  # fmt: skip
        return self._record(marks, at)

    def see(self, at: int):
        """A record without a punctuation, with this timestamp; the CTI after it."""
        return self._record(NO_MARKS, at)

    def _record(self, marks: Marks, at: int) -> int | None:
        no = np.zeros(1, dtype=np.bool_)
        events = Events(column([0]), no, present=no, record_us=column([at]))
        self.clock, self.last = step(self.rules, self.clock, events, marks)
        return self.clock.cti_us

    @property
    def lower(self) -> int | None:
        """The lower bound of the time window at the last record."""
        assert self.last is not None
        assert self.last.time_windows is not None
        us = int(self.last.time_windows.lower_us[0])
        return None if us == NEVER else us


# -- Trill ----------------------------------------------------------------------------------------


def test_trill_17_a_point_that_another_key_made_late_cannot_be_adjusted() -> None:
    times = (70, 11, 22)
    clock, result = points(*times, policy="adjust", delay_us=50, **EACH)
    assert in_order(times, result) == ["e70", "c20", "e22"]
    assert clock.dropped == 1


def test_trill_22_an_event_below_an_explicit_mark_is_dropped() -> None:
    yes, no = column([1], np.bool_), column([0], np.bool_)
    mark = Marks(column([2]), column([100]), yes, yes, pa.array([""]), no)
    here = column([1, 1, 0, 1], np.bool_)
    events = Events(column([1, 101, 0, 99]), here, present=here)
    _, result = step(TimeRules(), FRESH, events, mark)
    assert in_order([1, 101, 0, 99], result) == ["e1", "e101", "c100"]


@pytest.mark.parametrize("policy", PASSING)
def test_trill_25_sorted_input_from_the_grid_has_its_marks_on_the_grid(policy: str) -> None:
    times = range(1001)
    _, result = points(*times, policy=policy, every_us=10)
    assert result.cti_us.tolist() == list(range(10, 1001, 10))
    assert bool(result.keep.all())
    # From 1 on, Trill's marks would be the same; ours follow their base.
    _, result = points(*range(1, 1001), policy=policy, every_us=10)
    assert result.cti_us.tolist() == list(range(11, 1001, 10))


def test_trill_27_a_union_goes_as_far_as_its_slower_side() -> None:
    assert min_cti([101, None]) is None
    assert min_cti([101, 110]) == 101
    assert min_cti([FINAL_US, 110]) == 110
    assert min_cti([FINAL_US, FINAL_US]) == FINAL_US


def test_trill_28_sides_that_end_without_marks_give_one_final_mark_and_no_other() -> None:
    assert [min_cti([None, None]), min_cti([FINAL_US, None])] == [None, None]
    assert min_cti([FINAL_US, FINAL_US]) == FINAL_US


def test_trill_29_after_a_restore_late_events_are_adjusted_to_the_restored_clock() -> None:
    rules = TimeRules("interval", "adjust", every_events=1)
    readable = np.ones(10, dtype=np.bool_)
    clock, _ = step(rules, FRESH, Events(np.full(10, 10_000), readable, np.full(10, 10_001)))
    restored = PartitionClock.from_json(clock.to_json())
    _, result = step(rules, restored, Events(np.zeros(10, np.int64), readable, np.full(10, 20_000)))
    assert result.start_us.tolist() == [10_000] * 10
    assert bool(result.keep.all())


def test_trill_30_a_checkpoint_of_another_policy_is_refused() -> None:
    before = options(ctiFrequency="1", violationPolicy="fail")
    after = options(ctiFrequency="1", violationPolicy="adjust")
    offset = StreamOffset("stream", before.settings(), 1, {}).to_json()
    check_offset(offset, before.settings())
    with pytest.raises(CheckpointMismatch, match=r"violationPolicy.*fail.*adjust"):
        check_offset(offset, after.settings())


def test_trill_31_the_diagnostic_stream_has_exactly_the_late_events() -> None:
    times = [number + 1000 if number % 2 == 0 else 0 for number in range(10_000)]
    _, result = points(*times, policy="flag", **EACH)
    assert np.flatnonzero(result.violation).tolist() == list(range(1, 10_000, 2))


# -- Pravega --------------------------------------------------------------------------------------


def test_pravega_35_to_39_the_mark_is_the_minimum_of_the_writers_that_are_there() -> None:
    stream = Writers(writers=("w1", "w2", "w3"))
    assert [stream.hear("w1", 100), stream.hear("w2", 101)] == [None, None]
    assert stream.hear("w3", 102) == 100  # 35
    assert [stream.hear("w1", 200), stream.hear("w2", 201), stream.hear("w3", 202)] == [
        101, 102, 200,
    ]  # fmt: skip
    # 37: segments have split; every writer marks every partition, so nothing is different.
    assert [stream.hear("w1", 302), stream.hear("w2", 301), stream.hear("w3", 300)][-1] == 300
    assert [stream.hear("w1", 400), stream.hear("w2", 401)] == [300, 300]  # 38: w3 is silent
    assert stream.hear("w3", close=True) == 400  # 39
    assert "w3" not in dict(stream.clock.writers)


@pytest.mark.parametrize(("timeout", "cti"), [(0, 20), (1000, 10)])
def test_pravega_42_a_writer_at_the_mark_counts_until_it_times_out(timeout: int, cti: int) -> None:
    stream = Writers(writer_timeout_us=timeout)
    assert stream.hear("at the mark", 10, at=0) == 10
    assert stream.hear("ahead", 20, at=1) == cti


def test_pravega_43_the_same_mark_again_is_accepted_and_a_lower_one_ignored() -> None:
    stream = Writers()
    assert [stream.hear("w", mark) for mark in (10, 10, 9)] == [10, 10, 10]
    assert dict(stream.clock.writers)["w"].mark_us == 10
    assert stream.clock.ignored_ctis == 2
    # A writer that was removed is not an error: it is as new.
    stream.hear("w", close=True)
    assert stream.hear("w", close=True) == 10
    assert stream.hear("w", 11) == 11


def test_pravega_45_the_lower_bound_follows_the_writer_and_ends_with_its_timeout() -> None:
    stream = Writers(writer_timeout_us=100, time_window=True)
    bounds = []
    for at, mark in ((0, 50), (10, 80), (20, 150)):
        stream.hear("w", mark, at=at)
        stream.see(at=at)
        bounds.append(stream.lower)
    assert bounds == [50, 80, 150]
    assert stream.see(at=121) == 150
    assert stream.lower is None
    # It comes back below the clock: its own mark bounds time, and the CTI stays.
    assert stream.hear("w", 90, at=122) == 150
    stream.see(at=122)
    assert stream.lower == 90


# -- Flink ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "cti"), [((), None), ((1337,), 1327), ((12345, 12300, 12340, 12280), 12335)]
)
def test_flink_47_the_mark_is_the_delay_behind_the_greatest(times: tuple, cti: int | None) -> None:
    """One more than Flink's: its mark says that nothing *at* it will come either."""
    clock, _ = points(*times, policy="flag", delay_us=10, **EACH)
    assert clock.cti_us == cti
    assert points(clock=clock, delay_us=10, **EACH)[0] == clock


@pytest.mark.parametrize("timeout", ["0 seconds", "-1 second"])
def test_flink_48_a_timeout_must_be_positive(timeout: str) -> None:
    with pytest.raises(ValueError, match="idleTimeout"):
        options(ctiFrequency="1", idleTimeout=timeout)


PART = Partition("topic", 0)


def test_flink_48_a_partition_is_idle_awake_and_idle_again() -> None:
    since: dict[Partition, int] = {}
    for began in (0, 100):
        since = find_caught_up(since, [PART], began, troubled=False)
        assert find_newly_idle(since, frozenset(), 10, began + 9) == frozenset()
        since = find_caught_up(since, [PART], began + 10, troubled=False)
        assert find_newly_idle(since, frozenset(), 10, began + 10) == {PART}
        since = find_caught_up(since, [], began + 20, troubled=False)
        assert find_newly_idle(since, frozenset(), 10, began + 50) == frozenset()


def test_flink_49_the_timeout_counts_from_the_first_look_that_found_it_at_rest() -> None:
    """An event at 4 and looks every 5: Flink says idle at 25, we at 20."""
    since: dict[Partition, int] = {}
    idle_at = []
    for now in (5, 10, 15, 20, 25):
        # The look at 5 finds the event and reads it.
        since = find_caught_up(since, [PART] if now > 5 else [], now, troubled=False)
        if find_newly_idle(since, frozenset(), 10, now):
            idle_at.append(now)
    assert idle_at == [20, 25]


def test_flink_50_when_all_are_idle_the_greatest_counts() -> None:
    assert compute_stream_cti([5, 2], [], [], None) == 2
    assert compute_stream_cti([], [], [5, 2], 2) == compute_stream_cti([], [], [2, 5], 2) == 5


def test_flink_51_the_idle_do_not_hold_back() -> None:
    assert compute_stream_cti([2, 5], [], [None], None) == 2
    assert compute_stream_cti([5], [], [2], 2) == 5


def test_flink_53_without_partitions_there_is_no_mark() -> None:
    assert compute_stream_cti([], [], [], None) is None


def test_flink_54_what_is_removed_neither_holds_back_nor_takes_back() -> None:
    assert compute_stream_cti([5], [], [], 2) == 5  # the lower one is gone
    assert (
        compute_stream_cti([1], [], [], 2) == 2
    )  # the higher one is gone, and a new low one there
    assert compute_stream_cti([], [], [], 2) == 2  # the last one is gone


# -- Hazelcast Jet --------------------------------------------------------------------------------


def test_hazelcast_56_the_lag_is_behind_the_greatest_and_a_late_event_passes_alone() -> None:
    times = (100, 90, 101)
    clock, result = points(*times, policy="flag", delay_us=3, **EACH)
    assert in_order(times, result) == ["e100", "c97", "l90", "e101", "c98"]
    assert compute_stream_cti([clock.cti_us], [], [None], None) == 98


def test_hazelcast_58_a_silent_partition_holds_back_until_it_is_idle() -> None:
    clock, _ = points(10, delay_us=3, **EACH)
    assert compute_stream_cti([clock.cti_us, None], [], [], None) is None
    assert compute_stream_cti([clock.cti_us], [], [None], None) == 7
    assert compute_stream_cti([], [], [clock.cti_us, None], 7) == 7


@pytest.mark.parametrize(
    ("left", "idle", "before", "after"),
    [
        pytest.param([10], [], 5, 10, id="the lagging one is removed"),
        pytest.param([5], [], 5, 5, id="the leading one is removed"),
        pytest.param([], [12], 5, 12, id="the lagging one is removed, the other turns idle"),
    ],
)
def test_hazelcast_60_removing_a_partition(left, idle, before: int, after: int) -> None:
    assert compute_stream_cti(left, [], idle, before) == after


# -- Kafka Streams --------------------------------------------------------------------------------


def test_kafka_streams_64_missed_ticks_collapse_to_one() -> None:
    """Theirs keep a grid, so that 1100 fires; ours count from the event that fired last."""
    clock, fired = FRESH, []
    for now in (0, 99, 100, 199, 200, 1001, 1002, 1100, 1101):
        clock, _ = points(now, clock=clock, every_us=100)
        fired.append(clock.ctis)
    assert fired == [0, 0, 1, 1, 2, 3, 3, 3, 4]


# -- none of theirs: what an unreadable mark fails with -------------------------------------------


@pytest.mark.parametrize("cti", [None, 7])
def test_an_unreadable_mark_under_fail_is_no_malformed_event(cti: int | None) -> None:
    yes, no = column([1], np.bool_), column([0], np.bool_)
    marks = Marks(column([0]), column([0]), yes, no, pa.array([""]), no)
    events = Events(column([0]), no, present=no)
    _, result = step(TimeRules(policy="fail"), PartitionClock(cti_us=cti), events, marks)
    failure = result.failure
    assert failure is not None
    assert (failure.index, failure.kind) == (0, "mark")
    assert failure.cti_us == cti
