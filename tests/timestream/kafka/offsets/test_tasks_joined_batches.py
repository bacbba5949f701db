"""Batches that asynchronous progress tracking did not commit, joined after a crash."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at
from timestream.small_reads import small_reads
from timestream.stream_world import World, act, drain, steps, times

from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.stream_state import find_emitted_cti
from pyspark_timestream.kafka.offsets.tasks import join_batches, note_forced_cti, note_restart_point
from pyspark_timestream.kafka.ranges import OffsetRange
from pyspark_timestream.rules.clocks import PartitionClock


@pytest.fixture(scope="module", autouse=True)
def _even_few_records_are_worth_a_task():
    with small_reads(alignments=False):
        yield


def of_records(rows, partitions):
    """The data rows of these partitions, in any order of tasks."""
    return sorted(row for row in rows if isinstance(row, tuple) and at(row[0]) in partitions)


def of_ctis(rows, above):
    """The CTI rows above one that was emitted before, without repeats."""
    found = sorted({row for row in rows if isinstance(row, int)})
    return [cti for cti in found if above is None or cti > above]


def join(world, first, last):
    """The rows of batches `first` to `last` run as one, and the CTI emitted before."""
    start = world.batches[first - 1][0] if first else None
    end = StreamOffset.from_json(json.loads(json.dumps(world.batches[last][0].to_json())))
    if start is None:
        return world.rows(join_batches(None, {}, end, None)), None
    clocks = {partition: world.state_after(start, partition) for partition in start.partitions}
    emitted_us = find_emitted_cti(start, clocks)
    tasks = world.rows(join_batches(start, clocks, end, emitted_us))
    return tasks, None if emitted_us is None else emitted_us // 1000


@given(st.integers(1, 2), st.lists(times, min_size=1, max_size=3), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_joined_batches_give_the_same_rows_drops_and_ctis(every, logs, imports, data):
    world = World(every, logs, imports)
    for action in data.draw(st.lists(steps | st.just("note"), max_size=14)):
        if action == "note":
            world.noted = max(len(world.batches) - 1 - data.draw(st.integers(0, 3)), world.noted)
        else:
            act(world, action, data)
    drain(world)
    for last, (end, noted, _) in enumerate(world.batches):
        for first in range(max(noted + 1, 0), last + 1):
            single = [row for _, _, rows in world.batches[first : last + 1] for row in rows]
            tasks, emitted = join(world, first, last)
            rows = [row for task in tasks for row in task]
            read = {**end.missing, **end.partitions}
            assert of_records(rows, read) == of_records(single, read)
            assert len(of_records(rows, read)) == sum(isinstance(row, tuple) for row in rows)
            for task in tasks:
                told = [row for row in task if isinstance(row, int)]
                assert told == of_ctis(task, emitted)
            told = of_ctis(rows, emitted)
            promised = None if end.cti_us is None else end.cti_us // 1000
            if len(world.log | world.gone | world.away) == 1 and len(end.partitions) == 1:
                # If no record is between CTIs, imports may leave only the last one.
                all_ = of_ctis(single, emitted)
                assert told == [cti for cti in all_ if cti in told]
                assert {cti for cti in all_ if cti in before_records(single)} <= set(told)
            elif len(read) > 1:
                # With several partitions, only the CTIs told by all of the batches are sure.
                assert set(told) <= {promised}
            assert promised is None or promised <= max(
                each for each in (emitted, *told) if each is not None
            )


def test_the_cti_that_an_import_brings_where_the_last_batch_ends_is_a_row() -> None:
    world = World(1, [[0]], True)
    world.fast.append(1)
    drain(world)
    single = [row for _, _, rows in world.batches for row in rows]
    (joined,), emitted = join(world, 0, len(world.batches) - 1)
    assert of_ctis(joined, emitted) == of_ctis(single, emitted) == [0, 1]


def before_records(rows):
    """The CTIs that a record follows, and the last one."""
    following = [*rows[1:], ()]
    return [row for row, after in zip(rows, following, strict=True) if isinstance(after, tuple)]


def offset(number, partition_offset, partition=0):
    return StreamOffset("me", {}, 1, {at(partition): partition_offset}, number=number)


def test_reading_that_went_back_is_joined_from_where_it_went_back_to():
    """Twenty offsets were read, then the log ended at 15 and grew again to 30."""
    clock = PartitionClock(cti_us=7)
    start = offset(4, PartitionOffset(0, 20, PartitionClock()))
    back = PartitionOffset(
        15, 18, clock, restart_points=note_restart_point(start.partitions[at(0)], 5, 15, 3)
    )
    assert back.restart_points == ((5, 15),)
    last = replace(back, start_inclusive=18, end_exclusive=30)
    (plan,) = join_batches(start, {at(0): clock}, offset(6, last), 7)
    assert [
        (partition_offset.offsets[1:], partition_offset.clock) for partition_offset in plan.ranges
    ] == [((15, 30), clock)]
    (plan,) = join_batches(
        None, {}, offset(6, replace(last, restart_points=((0, 2), *last.restart_points))), None
    )
    assert [
        (partition_offset.offsets[1:], partition_offset.clock) for partition_offset in plan.ranges
    ] == [((2, 30), PartitionClock())]


def test_raise_ahead_holds_where_reading_goes_back_to():
    partition_offset = PartitionOffset(0, 20, PartitionClock(), forced_ctis=((3, 5, 1), (4, 20, 9)))
    assert note_forced_cti(partition_offset, 5, 15, 2, None) == ((3, 5, 1), (4, 15, 9))
    assert note_forced_cti(partition_offset, 5, 20, 3, 12) == ((5, 20, 12),)
    assert note_forced_cti(partition_offset, 5, 20, 4, None) == ()


def test_a_partition_that_was_read_on_has_begun_nowhere_else():
    partition_offset = PartitionOffset(0, 20, PartitionClock(), restart_points=((1, 0),))
    assert note_restart_point(partition_offset, 5, 25, 0) == ((1, 0),)
    assert note_restart_point(partition_offset, 5, 20, 1) == ()
    assert note_restart_point(None, 5, 25, 4) == ((5, 25),)


def test_a_partition_that_was_hidden_at_the_start_goes_on_with_its_own_clock():
    clock = PartitionClock(cti_us=9)
    start = replace(
        offset(4, PartitionOffset(0, 5, PartitionClock())),
        missing={at(1): PartitionOffset(7, 7, clock)},
    )
    end = offset(6, PartitionOffset(7, 12, clock), 1)
    (plan,) = join_batches(start, {at(0): PartitionClock()}, end, 3)
    assert [
        (partition_offset.offsets, partition_offset.clock) for partition_offset in plan.ranges
    ] == [(OffsetRange(at(1), 7, 12), clock)]


def test_a_joined_batch_whose_beginning_is_dropped_is_refused_and_reads_no_less() -> None:
    """A commit has dropped where reading began, and Spark asks from the start all the same."""
    world = World(1, [[1, 2, 3]], False)
    drain(world)
    end = world.batches[-1][0]
    dropped = {
        partition: replace(each, restart_points=()) for partition, each in end.partitions.items()
    }
    with pytest.raises(CheckpointMismatch, match="start with a new checkpoint"):
        join_batches(None, {}, replace(end, partitions=dropped), None)
