"""A batch over thousands of partitions: plans and tasks grow linearly."""

import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from timestream.builders import at, options, projection
from timestream.driven import FakeBroker, unreadable

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.group_metadata import encode_group_metadata
from pyspark_timestream.kafka.offsets.offset import (
    ImportedPartition,
    ImportedTopic,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.offsets.tasks import plan_tasks
from pyspark_timestream.kafka.ranges import OffsetRange, assign_tasks
from pyspark_timestream.kafka.reader import KafkaStreamReader
from pyspark_timestream.rules.clocks import PartitionClock, compute_min_of_others, min_cti

clocks = st.lists(st.none() | st.integers(-9, 9), max_size=6)


def stream(partitions, tasks):
    """An offset that reads a record of each partition."""
    partition_offsets = {
        at(n): PartitionOffset(0, 1, PartitionClock(cti_us=n)) for n in range(partitions)
    }
    settings = options(ctiFrequency="1").settings()
    return StreamOffset("me", settings, 1, partition_offsets, tasks=tasks)


def shipped(partitions, tasks=None, **more):
    """The bytes of all tasks of a batch, by default with a task a partition."""
    given, broker = options(ctiFrequency="1"), FakeBroker()
    broker.topic_id = "an id"
    reader = KafkaStreamReader(given, projection(given))
    reader._driver = StreamDriver(given, broker.connect, create_reader=unreadable)
    offset = replace(stream(partitions, tasks or partitions), **more)
    plans = reader.partitions(INITIAL_OFFSET, offset.to_json())
    assert len(plans) == (tasks or partitions)
    return sum(len(pickle.dumps(plan)) for plan in plans)


def test_eight_times_the_partitions_ship_about_eight_times_the_bytes():
    assert shipped(800) < 10 * shipped(100)


def test_task_receives_only_its_own_part_of_the_offset():
    clock = PartitionClock(count=2, cti_us=1_700_000_000_000_000, events=9, last_us=1)
    partitions = {
        at(n, "fast"): ImportedPartition(9, clock, 1_700_000_000_000_000) for n in range(1000)
    }
    more = {
        "imported": ImportedTopic(partitions, 1_700_000_000_000_000),
        "topic_ids": {"topic": "an id", "fast": "another"},
        "missing": {at(n): PartitionOffset(7, 7, clock) for n in range(1000, 2000)},
    }
    assert shipped(1000, 50, **more) == shipped(1000, 50)


def test_task_with_its_part_commits_the_same_metadata():
    offset = stream(5, 5)
    given = options(ctiFrequency="1")
    reader = KafkaStreamReader(given, projection(given))
    for task in reader.partitions(INITIAL_OFFSET, offset.to_json()):
        [partition_offset] = task.plan.ranges
        partition, end = partition_offset.offsets.partition, PartitionClock(cti_us=7)
        one, other = (encode_group_metadata(each, partition, end) for each in (task.offset, offset))
        assert one == other


@given(clocks, st.data())
@hypothesis_settings(max_examples=200, deadline=None)
def test_the_least_of_the_others_stands_for_all_of_them(ctis, data):
    groups = data.draw(st.lists(st.sets(st.integers(0, 5).filter(lambda i: i < len(ctis)))
                                if ctis else st.just(set()), max_size=4))  # fmt: skip
    for group, least in zip(groups, compute_min_of_others(ctis, groups), strict=True):
        others = [ctis[i] for i in range(len(ctis)) if i not in group]
        assert len(least) == bool(others)
        assert min_cti(least) == min_cti(others)


@given(clocks, st.sets(st.integers(0, 5)), st.integers(1, 4))
@hypothesis_settings(max_examples=200, deadline=None)
def test_task_knows_the_least_cti_of_other_awake_partitions(ctis, idle, tasks):
    partition_offsets = {
        at(n): PartitionOffset(0, 0 if n in idle else n % 3, PartitionClock(cti_us=cti), n in idle)
        for n, cti in enumerate(ctis)
    }
    offset = replace(stream(0, tasks), partitions=partition_offsets)
    for plan in plan_tasks(offset):
        mine = {partition_offset.offsets.partition for partition_offset in plan.ranges}
        others = [
            s.clock.cti_us for p, s in partition_offsets.items() if p not in mine and not s.idle
        ]
        assert min_cti(plan.others_us) == min_cti(others)
        assert bool(plan.others_us) == bool(others)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 4))
@hypothesis_settings(max_examples=200, deadline=None)
def test_the_largest_ranges_go_to_the_least_loaded_tasks(sizes, tasks):
    spans = [OffsetRange(at(number), 0, size) for number, size in enumerate(sizes)]
    loads, expected = [0] * tasks, [[] for _ in range(tasks)]
    for span in sorted((s for s in spans if s.size), key=lambda s: (-s.size, s.partition)):
        task = loads.index(min(loads))
        loads[task] += span.size
        expected[task].append(span)
    assert assign_tasks(spans, tasks) == [sorted(group) for group in expected if group]
