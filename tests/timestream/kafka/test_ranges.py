"""Limits of a batch's ranges, and their assignment to tasks."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at

from pyspark_timestream.kafka.ranges import (
    MIN_TASK_RECORDS,
    OffsetRange,
    assign_tasks,
    count_tasks,
    cut_ranges,
    limit_ranges,
)

sizes = st.lists(st.integers(0, 9) | st.integers(0, 3 * MIN_TASK_RECORDS), max_size=6)


def spans(lengths):
    return [OffsetRange(at(i), 100 * i, 100 * i + length) for i, length in enumerate(lengths)]


@given(sizes, st.none() | st.integers(1, 20))
@settings(deadline=None)
def test_a_limit_is_kept_as_nearly_as_one_offset_for_each_backlog_allows(backlogs, limit):
    starts = {at(i): 10 for i in range(len(backlogs))}
    ends = {at(i): 10 + backlog for i, backlog in enumerate(backlogs)}
    read = {partition: end - 10 for partition, end in limit_ranges(starts, ends, limit).items()}
    assert set(read) == set(starts)
    for partition, backlog in zip(starts, backlogs, strict=True):
        # Offsets become JSON: a whole number must not be written as a fraction.
        assert type(read[partition]) is int
        assert (0 < read[partition] <= backlog) if backlog else read[partition] == 0
    if limit is None or sum(backlogs) <= limit:
        assert list(read.values()) == backlogs
    else:
        assert sum(read.values()) <= limit + sum(1 for backlog in backlogs if backlog)


def test_a_limit_is_split_in_proportion_to_the_backlog():
    limited = limit_ranges({at(0): 0, at(1): 5}, {at(0): 300, at(1): 105}, 40)
    assert limited == {at(0): 30, at(1): 15}


def test_an_end_that_went_back_reads_nothing():
    assert limit_ranges({at(0): 9}, {at(0): 4}, None) == {at(0): 9}


@given(sizes, st.none() | st.integers(1, 4))
@settings(deadline=None)
def test_task_count_is_limited_by_request_use_and_records(lengths, max_tasks):
    tasks = count_tasks(spans(lengths), max_tasks)
    filled = sum(1 for length in lengths if length)
    useful = math.ceil(sum(lengths) / MIN_TASK_RECORDS)
    assert tasks == min(filled, useful, max_tasks or filled)
    assert type(tasks) is int


def test_one_long_range_is_one_task_however_many_are_allowed():
    assert count_tasks(spans([5 * MIN_TASK_RECORDS]), 4) == 1


@given(sizes, st.integers(1, 5))
@settings(deadline=None)
def test_every_filled_range_has_one_task_and_no_task_is_empty(lengths, tasks):
    given_ranges = spans(lengths)
    groups = assign_tasks(given_ranges, tasks)
    assert groups == assign_tasks(list(reversed(given_ranges)), tasks)
    assert len(groups) <= tasks
    assert all(group and group == sorted(group) for group in groups)
    flat = [span for group in groups for span in group]
    assert sorted(flat) == [span for span in given_ranges if span.size]


def test_the_largest_ranges_are_spread_first():
    groups = assign_tasks(spans([5, 1, 4, 9]), 2)
    assert sorted(sorted(span.size for span in group) for group in groups) == [[1, 9], [4, 5]]


# -- pieces of a partition -------------------------------------------------------------------------


def spark_counts(sizes, min_pieces):
    """How many pieces Spark's KafkaOffsetRangeCalculator makes of ranges of these sizes."""

    def count(size, total, pieces):
        return max(math.floor(size / total * pieces + 0.5), 1)

    if min_pieces is None or len(sizes) >= min_pieces:
        return [1] * len(sizes)
    total = sum(sizes)
    small = [size for size in sizes if count(size, total, min_pieces) == 1]
    left, wanted = total - sum(small), max(min_pieces - len(small), 1)
    return [
        1 if count(size, total, min_pieces) == 1 else min(size, count(size, left, wanted))
        for size in sizes
    ]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), max_size=5),
    min_pieces=st.none() | st.integers(1, 20),
    max_size=st.none() | st.integers(1, 20),
)
def test_a_range_is_cut_into_pieces_as_spark_cuts_it(sizes, min_pieces, max_size):
    spans = [OffsetRange(at(n), 10 * n, 10 * n + size) for n, size in enumerate(sizes)]
    pieces = cut_ranges(spans, min_pieces, max_size)
    assert all(partition.size > 0 for partition in pieces)
    for span in spans:
        mine = [partition for partition in pieces if partition.partition == span.partition]
        assert [n for partition in mine for n in range(*partition[1:])] == list(range(*span[1:]))
        assert max((partition.size for partition in mine), default=0) <= (max_size or 60)
        if max_size is None:
            assert max(map(size_of, mine), default=0) - min(map(size_of, mine), default=0) <= 1
    if max_size is None:
        counts = spark_counts([size for size in sizes if size], min_pieces)
        assert len(pieces) == sum(counts)
    else:
        assert len(pieces) >= sum(-(-size // max_size) for size in sizes)


def size_of(span):
    return span.size


def test_where_there_are_parts_enough_none_is_cut():
    uneven = [OffsetRange(at(n), 0, size) for n, size in enumerate([100, 30, 1, 1, 1, 1, 1])]
    assert cut_ranges(uneven, 7, None) == uneven
    assert len(cut_ranges(uneven, 8, None)) > 7


def test_small_ranges_stay_whole_and_large_ones_are_cut():
    assert [*map(size_of, cut_ranges(spans([60, 40]), 5, None))] == [20, 20, 20, 20, 20]
    assert [*map(size_of, cut_ranges(spans([90, 30, 3]), 6, None))] == [22, 23, 22, 23, 30, 3]
    assert [*map(size_of, cut_ranges(spans([1, 2, 4]), 5, None))] == [1, 2, 1, 1, 2]


def test_a_wait_for_more_offsets_reads_none_of_them():
    starts, ends = {at(0): 3, at(1): 0}, {at(0): 6, at(1): 4}
    assert limit_ranges(starts, ends, None, 8) == starts
    assert limit_ranges(starts, ends, None, 7) == ends
    assert limit_ranges(starts, ends, 7, 7) == ends


@pytest.mark.parametrize("tasks", [0, 2**60])
def test_a_damaged_number_of_tasks_leaves_no_range_out(tasks: int) -> None:
    found = [span for group in assign_tasks(spans([5, 1, 4]), tasks) for span in group]
    assert sorted(found) == spans([5, 1, 4])
