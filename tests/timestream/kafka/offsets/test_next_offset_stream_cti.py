"""Whole queries with idle, new and missing partitions and imports (semantics 5 and 6)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.small_reads import small_reads
from timestream.stream_world import TIMEOUT, World, act, drain, most, steps, times

from pyspark_timestream.core.instants import FINAL_US


@pytest.fixture(scope="module", autouse=True)
def _even_few_records_are_worth_a_task():
    with small_reads(alignments=False):
        yield


@given(st.integers(1, 2), st.lists(times, min_size=1, max_size=3), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_any_course_of_idleness_finds_deletes_and_imports_keeps_the_rules(
    every, logs, imports, data
):
    world = World(every, logs, imports)
    world.max_tasks = data.draw(st.sampled_from((None, 1)))
    for action in data.draw(st.lists(steps, max_size=14)):
        act(world, action, data)
    drain(world)
    # All is read: the last CTI row is the minimum.
    assert world.ctis[-1:] == ([] if world.oracle.stream is None else [world.oracle.stream])
    world.now += TIMEOUT
    drain(world)
    assert world.oracle.idle == set(world.log)
    clocks = [clock.cti for clock in world.oracle.clocks.values()]
    assert world.oracle.stream == most(world.oracle.stream, *clocks)
    assert world.ctis[-1:] == ([] if world.oracle.stream is None else [world.oracle.stream])


def test_a_final_cti_of_the_imported_topic_is_not_imported():
    world = World(1, [[1, 2]], True)
    world.fast += [5, FINAL_US // 1000]
    drain(world)
    assert world.ctis[-1] == 5
    world.fast += [7]
    drain(world)
    assert world.ctis[-1] == 5
