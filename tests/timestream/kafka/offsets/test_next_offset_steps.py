"""One offset after another, field by field; `test_next_offset` has whole queries."""

from dataclasses import replace

import pytest
from timestream.builders import at, first_offset, next_offset, run_context

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import NEW_CHECKPOINT, CheckpointMismatch
from pyspark_timestream.kafka.offsets.offset import ImportedTopic, PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.stream_state import BrokerSnapshot
from pyspark_timestream.kafka.offsets.tasks import plan_tasks
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.rules.clocks import PartitionClock

A, B = at(0), at(1)
SETTINGS = {"eventShape": "point"}
FIVE = PartitionClock(cti_us=5)
RUN = run_context()


def offset(*partition_offsets, **more):
    """An offset of partitions 0, 1, ... with these partition_offsets."""
    partitions = {
        at(number): PartitionOffset(*partition_offset)
        for number, partition_offset in enumerate(partition_offsets)
    }
    return StreamOffset("me", SETTINGS, 1, partitions, tasks=1, **more)


def test_offsets_are_numbered_and_a_new_start_is_counted():
    first = first_offset("me", SETTINGS, {A: 0}, {A: 4}, RUN)
    second = next_offset(first, {A: FIVE}, {A: 4}, {A: 6}, RUN)
    third = next_offset(second, {A: FIVE}, {A: 6}, {A: 7}, run_context(new_start=True))
    assert [(one.number, one.starts) for one in (first, second, third)] == [(0, 1), (1, 1), (2, 2)]
    assert {(one.stream, str(one.settings)) for one in (first, third)} == {("me", str(SETTINGS))}


def test_ids_of_topics_are_kept_and_learnt():
    first = first_offset("me", {}, {A: 0}, {A: 1}, RUN, BrokerSnapshot(topic_ids={"topic": "x"}))
    more = BrokerSnapshot(topic_ids={"other": "y"})
    second = next_offset(first, {A: FIVE}, {A: 1}, {A: 2}, RUN, more)
    assert second.topic_ids == {"topic": "x", "other": "y"}


def test_offset_records_since_when_a_partition_is_quiet():
    first = first_offset(
        "me", {}, {A: 3, B: 0}, {A: 3, B: 1}, RUN, BrokerSnapshot(caught_up_since_us={A: 7})
    )
    assert first.partitions == {
        A: PartitionOffset(3, 3, PartitionClock(), False, 7, restart_points=((0, 3),)),
        B: PartitionOffset(0, 1, PartitionClock(), restart_points=((0, 0),)),
    }


def test_batch_reads_exactly_within_the_limits():
    ends = {A: 100_000, B: 100_000}
    first = first_offset("me", {}, {A: 0, B: 0}, ends, run_context(max_offsets=80_000))
    assert {
        partition: partition_offset.end_exclusive
        for partition, partition_offset in first.partitions.items()
    } == {
        A: 40_000,
        B: 40_000,
    }
    assert first.tasks == 2
    few = run_context(min_offsets=200_001)
    assert not any(span.size for span in first_offset("me", {}, {A: 0, B: 0}, ends, few).ranges())
    one = run_context(KafkaOptions(max_tasks=1))
    assert first_offset("me", {}, {A: 0, B: 0}, ends, one).tasks == 1


def test_a_stream_that_settled_after_records_makes_one_more_offset():
    read, at_rest = offset((0, 2, FIVE), cti_us=5), offset((2, 2, FIVE), cti_us=5)
    settled = BrokerSnapshot(nothing_to_do=True)
    assert next_offset(read, {A: FIVE}, {A: 2}, {A: 2}, RUN, settled).number == 1
    assert next_offset(read, {A: FIVE}, {A: 2}, {A: 2}, RUN) is read
    assert next_offset(at_rest, {A: FIVE}, {A: 2}, {A: 2}, RUN, settled) is at_rest


def test_loss_makes_a_new_offset():
    before = offset((0, 2, FIVE), cti_us=5)
    after = next_offset(before, {A: FIVE}, {A: 4}, {A: 4}, RUN, BrokerSnapshot(lost=True))
    assert (after.number, after.ranges()[0][1:]) == (1, (4, 4))


def test_a_bounded_run_closes_once_and_a_new_one_closes_again():
    read = offset((0, 2, FIVE), cti_us=5)
    bounded = run_context(bounded=True)
    closing = next_offset(read, {A: FIVE}, {A: 2}, {A: 2}, bounded)
    assert (closing.end_of_run, closing.final, closing.first_cti_us) == (True, False, None)
    assert next_offset(closing, {A: FIVE}, {A: 2}, {A: 2}, bounded) is closing
    again = next_offset(
        closing, {A: FIVE}, {A: 2}, {A: 2}, run_context(bounded=True, new_start=True)
    )
    assert (again.end_of_run, again.first_cti_us, again.number) == (True, 5, 2)


def test_end_emits_the_final_cti_and_refuses_later_records():
    read = offset((0, 2, FIVE), cti_us=5)
    end = run_context(bounded=True, final_cti=True)
    final = next_offset(read, {A: FIVE}, {A: 2}, {A: 2}, end)
    assert (final.end_of_run, final.final, final.cti_us, final.first_cti_us) == (
        True,
        True,
        FINAL_US,
        FINAL_US,
    )
    said = (
        "^this checkpoint's stream has ended: its final CTI promised that nothing changes any "
        f"more, and now there are new records; {NEW_CHECKPOINT}; to run again, set 'finalCti' to "
        "'false' from the beginning$"
    )
    with pytest.raises(CheckpointMismatch, match=said):
        next_offset(final, {A: FIVE}, {A: 2}, {A: 3}, RUN)


def test_partition_that_wakes_up_joins_at_the_streams_cti():
    nine = PartitionClock(cti_us=9)
    before = offset((0, 2, FIVE), (0, 2, nine), cti_us=5)
    clocks, places = {A: FIVE, B: nine}, {A: 2, B: 2}
    timeout = run_context(KafkaOptions(idle_timeout_us=3))
    early = BrokerSnapshot(now_us=12, caught_up_since_us={A: 10})
    assert next_offset(before, clocks, places, places, timeout, early) is before
    ripe = BrokerSnapshot(now_us=13, caught_up_since_us={A: 10})
    asleep = next_offset(before, clocks, places, places, timeout, ripe)
    assert (asleep.cti_us, asleep.first_cti_us) == (9, 9)
    assert asleep.partitions == {
        A: PartitionOffset(2, 2, FIVE, True, 10),
        B: PartitionOffset(2, 2, nine),
    }
    assert next_offset(asleep, clocks, places, places, timeout, ripe) is asleep
    awake = next_offset(asleep, clocks, places, {A: 3, B: 2}, timeout, BrokerSnapshot(now_us=14))
    assert awake.partitions == {
        A: PartitionOffset(2, 3, nine, forced_ctis=((2, 2, 9),)),
        B: PartitionOffset(2, 2, nine),
    }


def test_waking_partitions_alone_determine_the_streams_cti():
    nine = PartitionClock(cti_us=9)
    before = offset((2, 2, nine, True, 10), (2, 2, FIVE), cti_us=5)
    after = next_offset(before, {A: nine, B: FIVE}, {A: 2}, {A: 3}, RUN)
    assert (after.cti_us, after.first_cti_us) == (9, 9)


def test_a_partition_that_is_gone_has_proven_what_it_started_with():
    before = offset((0, 2, FIVE), (0, 2, PartitionClock(cti_us=7)), cti_us=5)
    after = next_offset(before, {A: PartitionClock(cti_us=9)}, {A: 2}, {A: 2}, RUN)
    assert (after.cti_us, after.first_cti_us, set(after.partitions)) == (9, 9, {A})
    low = next_offset(before, {A: PartitionClock(cti_us=6)}, {A: 2}, {A: 2}, RUN)
    assert low is before


def test_an_imported_cti_waits_for_the_end_that_it_found_and_then_takes_effect():
    before = offset((0, 2, FIVE), cti_us=5)
    told = BrokerSnapshot(imported=ImportedTopic(cti_us=8))
    waits = next_offset(before, {A: FIVE}, {A: 2}, {A: 4}, run_context(max_offsets=1), told)
    assert waits.partitions == {A: PartitionOffset(2, 3, FIVE, pending=((4, 8),))}
    assert (waits.cti_us, waits.imported) == (5, ImportedTopic(cti_us=8))
    again = next_offset(waits, {A: FIVE}, {A: 3}, {A: 6}, run_context(max_offsets=1), told)
    assert again.partitions == {A: PartitionOffset(3, 4, FIVE, pending=((4, 8),))}
    found = next_offset(again, {A: FIVE}, {A: 4, B: 0}, {A: 4, B: 2}, RUN, told)
    assert found.partitions[B].pending == ((2, 8),)
    # The batch that reads up to there ends with the row of the CTI.
    [task] = plan_tasks(again)
    assert [task_range.end_cti_us for task_range in task.ranges] == [8]
    assert next_offset(again, {A: FIVE}, {A: 4}, {A: 4}, RUN, told) is again
    taken = next_offset(again, {A: FIVE}, {A: 4}, {A: 5}, RUN, told)
    eight = PartitionClock(cti_us=8)
    assert taken.partitions == {A: PartitionOffset(4, 5, eight, forced_ctis=((3, 4, 8),))}
    assert (taken.cti_us, taken.first_cti_us) == (8, None)


def test_imported_cti_waits_for_the_records_of_open_transactions():
    """The log goes on to 9 behind the last stable offset, 4, when the CTI is read."""
    before = offset((0, 4, FIVE), cti_us=5)
    told = BrokerSnapshot(imported=ImportedTopic(cti_us=8), high_watermarks={A: 9})
    waits = next_offset(before, {A: FIVE}, {A: 4}, {A: 4}, RUN, told)
    assert waits.partitions == {A: PartitionOffset(4, 4, FIVE, pending=((9, 8),))}
    assert (waits.cti_us, waits.first_cti_us) == (5, None)
    later = BrokerSnapshot(imported=ImportedTopic(cti_us=8))
    read = next_offset(waits, {A: FIVE}, {A: 4}, {A: 11}, RUN, later)
    assert read.partitions == {A: PartitionOffset(4, 11, FIVE, pending=((9, 8),))}
    [task] = plan_tasks(read)
    assert [task_range.end_cti_us for task_range in task.ranges] == [8]
    taken = next_offset(read, {A: FIVE}, {A: 11}, {A: 12}, RUN, later)
    assert (taken.cti_us, taken.first_cti_us) == (8, None)


def test_a_run_that_has_closed_decides_nothing_more():
    closing = offset((2, 2, FIVE), (2, 2, PartitionClock(cti_us=9)), cti_us=5, end_of_run=True)
    clocks, places = {A: FIVE, B: PartitionClock(cti_us=9)}, {A: 2, B: 2}
    run = run_context(KafkaOptions(idle_timeout_us=3), bounded=True)
    ripe = BrokerSnapshot(now_us=13, caught_up_since_us={A: 10})
    assert next_offset(closing, clocks, places, places, run, ripe) is closing
    began = run_context(KafkaOptions(idle_timeout_us=3), bounded=True, new_start=True)
    assert next_offset(closing, clocks, places, places, began, ripe).cti_us == 9


def test_imported_ctis_waiting_for_lost_records_wait_for_the_end():
    before = offset(
        (0, 2, FIVE, False, None, ((4, 6), (5, 7), (6, 8))), imported=ImportedTopic(cti_us=8)
    )
    sight = BrokerSnapshot(imported=ImportedTopic(cti_us=8))
    after = next_offset(before, {A: FIVE}, {A: 5}, {A: 9}, RUN, sight)
    assert after.partitions[A].pending == ((9, 8),)


def test_an_imported_cti_waits_for_the_end_of_a_topic_created_again_of_which_nothing_was_read():
    told = BrokerSnapshot(imported=ImportedTopic(cti_us=8), topic_ids={"topic": "y"}, lost=True)
    pending = ((9, 8),)
    before = offset(
        (0, 0, FIVE, False, None, pending), topic_ids={"topic": "x"}, imported=told.imported
    )
    after = next_offset(before, {A: FIVE}, {A: 0}, {A: 3}, RUN, told)
    assert after.partitions[A].pending == ((3, 8),)
    same = replace(told, topic_ids={"topic": "x"})
    assert (
        next_offset(before, {A: FIVE}, {A: 0}, {A: 3}, RUN, same).partitions[A].pending == pending
    )


def test_a_clock_that_was_lost_with_its_topic_is_raised_to_what_was_shown():
    """A task showed 8, an imported CTI, at the end of its range: no record below is on time."""
    told = BrokerSnapshot(imported=ImportedTopic(cti_us=8), lost=True)
    before = offset((0, 2, FIVE, False, None, ((2, 8),)), cti_us=5, imported=told.imported)
    after = next_offset(before, {A: FIVE}, {A: 0}, {A: 3}, RUN, told)
    assert (after.cti_us, after.first_cti_us) == (8, None)
    assert after.partitions[A].clock == PartitionClock(cti_us=8)
    assert after.partitions[A].forced_ctis == ((1, 0, 8),)


def test_a_clock_that_was_lost_is_not_raised_while_its_partition_is_idle():
    before = offset((2, 2, FIVE, True, 1), (0, 2, PartitionClock(cti_us=8)), cti_us=8)
    ripe = BrokerSnapshot(caught_up_since_us={A: 1}, lost=True)
    after = next_offset(before, {A: FIVE, B: PartitionClock(cti_us=8)}, {A: 0, B: 2}, {}, RUN, ripe)
    assert (after.cti_us, after.partitions[A].clock, after.partitions[A].idle) == (8, FIVE, True)


def test_without_a_known_end_an_imported_cti_waits_for_nothing():
    moved = offset((0, 2, FIVE, False, None, ((4, 8),)), imported=ImportedTopic(cti_us=8))
    eight = PartitionOffset(5, 5, PartitionClock(cti_us=8), forced_ctis=((1, 5, 8),))
    sight = BrokerSnapshot(imported=ImportedTopic(cti_us=8))
    after = next_offset(moved, {A: FIVE}, {A: 5}, {}, RUN, replace(sight, lost=True))
    assert after.partitions == {A: eight}
    still = offset((0, 5, FIVE), cti_us=5)
    assert next_offset(still, {A: FIVE}, {A: 5}, {}, RUN, sight).partitions == {A: eight}


def test_a_first_offset_takes_an_imported_cti_where_there_is_nothing_to_read():
    told = BrokerSnapshot(imported=ImportedTopic(cti_us=8))
    first = first_offset("me", {}, {A: 3, B: 0}, {A: 3, B: 2}, RUN, told)
    assert first.partitions == {
        A: PartitionOffset(
            3, 3, PartitionClock(cti_us=8), restart_points=((0, 3),), forced_ctis=((0, 3, 8),)
        ),
        B: PartitionOffset(0, 2, PartitionClock(), pending=((2, 8),), restart_points=((0, 0),)),
    }
    assert (first.cti_us, first.imported) == (None, told.imported)
    alone = first_offset("me", {}, {A: 3}, {A: 3}, RUN, told)
    assert (alone.cti_us, alone.first_cti_us) == (8, 8)
