"""The tasks' proofs of the stream's CTI, against the minimum that a single reader would see."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.rules.clocks import (
    TaskWatermark,
    compute_stream_cti,
    find_max_proven,
    min_cti,
)

instants = st.integers(0, 9)
clocks = st.lists(
    st.tuples(st.none() | instants, st.lists(instants, max_size=5)), min_size=1, max_size=4
)


def least(ctis):
    """The stream's CTI by semantics 5.1: a partition without one holds it back."""
    known = list(ctis)
    return None if None in known or not known else min(known)


def increasing(start, news):
    """The CTIs of one partition in a batch: those of `news` that raise its clock."""
    out = []
    for cti in news:
        if cti > max([-1 if start is None else start, *out]):
            out.append(cti)
    return out


@given(clocks, st.data())
@settings(max_examples=300, deadline=None)
def test_tasks_emit_only_what_the_minimum_allows_and_all_that_they_can(partitions, data):
    starts = [start for start, _ in partitions]
    news = [increasing(start, later) for start, later in partitions]
    ends = [(found or [start])[-1] for start, found in zip(starts, news, strict=True)]
    order = data.draw(st.permutations(range(len(starts))))
    task_of = data.draw(st.lists(st.integers(0, 2), min_size=len(starts), max_size=len(starts)))
    groups = [[p for p in order if task_of[p] == task] for task in range(3)]
    emitted_us = least(starts)
    all_rows, proven = [], []
    for group in filter(None, groups):
        others = tuple(starts[p] for p in range(len(starts)) if p not in group)
        watermark = TaskWatermark(tuple(starts[p] for p in group), others, emitted_us)
        now = {p: starts[p] for p in group}
        for position, p in enumerate(group):
            cuts = sorted(data.draw(st.lists(st.integers(0, len(news[p])), max_size=2)))
            for first, stop in zip([0, *cuts], [*cuts, len(news[p])], strict=True):
                ctis = np.array(news[p][first:stop], dtype=np.int64)
                places, rows = watermark.advance(position, ctis)
                at_place = dict(zip(places.tolist(), rows.tolist(), strict=True))
                for i, cti in enumerate(ctis.tolist()):
                    before = least([*now.values(), *others])
                    now[p] = cti
                    minimum = least([*now.values(), *others])
                    # A row is due exactly where what the task can know has risen.
                    assert at_place.get(i) == (minimum if minimum != before else None)
                    if i in at_place:
                        all_rows.append(at_place[i])
        proven.append(least([*now.values(), *others]))
    # Only the task that has all partitions that hold the stream back can say anything.
    assert all_rows == sorted(set(all_rows))
    final = least(ends)
    assert all(final is not None and row <= final for row in all_rows)
    used = [group for group in groups if group]
    known = [cti for cti in proven if cti is not None]
    assert find_max_proven(starts, ends, used) == max(known, default=None)


@given(st.none() | instants, st.lists(instants, max_size=9))
@settings(deadline=None)
def test_with_one_partition_every_cti_is_a_row_at_once(start, later):
    news = increasing(start, later)
    watermark = TaskWatermark((start,), (), start)
    places, rows = watermark.advance(0, np.array(news, dtype=np.int64))
    assert places.tolist() == list(range(len(news)))
    assert rows.tolist() == news
    assert watermark.emitted_us == (news or [start])[-1]


def test_a_partition_without_a_cti_holds_the_others_back_wherever_it_is_read():
    five = np.array([5])
    for watermark in (TaskWatermark((None, None), (), None), TaskWatermark((None,), (None,), None)):
        assert len(watermark.advance(0, five)[0]) == 0
    watermark = TaskWatermark((None, None), (), None)
    watermark.advance(0, five)
    assert watermark.advance(1, np.array([3, 4, 9]))[1].tolist() == [3, 4, 5]


def test_what_was_emitted_before_is_not_emitted_again():
    places, rows = TaskWatermark((None,), (), 4).advance(0, np.array([3, 4, 5]))
    assert (places.tolist(), rows.tolist()) == ([2], [5])


@pytest.mark.parametrize(
    ("ctis", "expected"),
    [([], None), ([None], None), ([3, None], None), ([3], 3), ([3, 2, 4], 2)],
)
def test_the_streams_cti_is_the_least_and_nobodys_is_none(ctis, expected):
    assert min_cti(ctis) == expected
    assert min_cti(iter(ctis)) == expected


def test_without_tasks_nothing_is_proven():
    assert find_max_proven([1, 2], [3, 4], []) is None


@pytest.mark.parametrize(
    ("holding", "joining", "idle", "floor", "expected"),
    [
        ([5, 7], [1], [9], 4, 5),
        ([5, None], [9], [9], 4, 4),
        ([5, None], [9], [9], None, None),
        ([], [3, 8], [9], None, 3),
        ([], [3, 8], [9], 6, 6),
        ([], [None, 8], [9], 6, 6),
        ([], [None, 8], [9], None, None),
        ([], [], [3, None, 9], 6, 9),
        ([], [], [3, None], 6, 6),
        ([], [], [], None, None),
    ],
)
def test_the_awake_hold_back_and_those_that_join_only_where_nobody_else_is_awake(
    holding, joining, idle, floor, expected
):
    assert compute_stream_cti(holding, joining, idle, floor) == expected


def test_while_one_partition_has_no_cti_what_was_emitted_is_not_forgotten():
    watermark = TaskWatermark((None, None), (), 7)
    for position, cti, rows in ((0, 3, []), (1, 5, []), (0, 9, []), (1, 8, [8])):
        _, emitted = watermark.advance(position, np.array([cti]))
        assert emitted.tolist() == rows


def test_what_the_other_partitions_of_a_task_have_said_is_kept():
    for position, rows in enumerate([[2], [], []]):
        watermark = TaskWatermark((1, 2, 3), (), 1)
        assert watermark.advance(position, np.array([9]))[1].tolist() == rows
        for other in {0, 1, 2} - {position}:
            rows = watermark.advance(other, np.array([9]))[1].tolist()
        assert rows == [9]


class Counted(int):
    """A CTI that counts how often any is compared."""

    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return int(self) < int(other)

    def __eq__(self, other):
        Counted.compared += 1
        return int(self) == int(other)

    def __hash__(self):
        return int(self)


@pytest.mark.parametrize("step", [1, -1])
def test_a_block_is_compared_with_few_of_the_task_s_partitions(step, monkeypatch):
    # Every partition has a block of one CTI, as a small batch of many partitions has.
    monkeypatch.setattr("pyspark_timestream.rules.clocks.instant_or_sentinel", lambda us: us)
    compared = {}
    for count in (500, 4000):
        Counted.compared = 0
        watermark = TaskWatermark([Counted(step * n) for n in range(count)], (), None)
        for position in range(count):
            watermark.advance(position, np.array([count + position]))
        compared[count] = Counted.compared
    assert watermark.emitted_us == 4000
    assert compared[4000] < 12 * compared[500]


def test_where_others_hold_the_stream_back_one_row_says_so():
    places, rows = TaskWatermark((3, 5), (), 3).advance(0, np.array([4, 6, 7]))
    assert (places.tolist(), rows.tolist()) == ([0, 1], [4, 5])
