"""The clock of a partition where its rules change (semantics 8.10)."""

from dataclasses import replace

import pytest

from pyspark_timestream.rules.clocks import (
    Clues,
    PartitionClock,
    TimeRules,
    WriterState,
    change_rules,
)

RULES = TimeRules(every_events=5, delay_us=3)


def live(**writers):
    return tuple(sorted(writers.items()))


@pytest.mark.parametrize(
    "after", [TimeRules(every_events=2, delay_us=3), TimeRules(every_us=9, delay_us=3)]
)
def test_another_frequency_begins_with_a_new_counter_and_base(after):
    clock = PartitionClock(
        7, count=4, base_us=6, events=9, writers=live(a=WriterState(2, None, 3, 1))
    )
    assert change_rules(clock, RULES, after) == PartitionClock(
        7, events=9, writers=live(a=WriterState(2, None, 0, None))
    )


def test_another_delay_or_limit_moves_nothing_but_the_clues_of_late_events():
    clues = Clues(ahead=1, behind_us=5, most_late_us=4, old=3, early=2)
    clock = PartitionClock(7, count=4, base_us=6, dropped=3, clues=clues)
    for after in (replace(RULES, delay_us=0), replace(RULES, max_future_us=9)):
        kept = replace(clock, clues=Clues(old=3, early=2))
        assert change_rules(clock, RULES, after) == kept
    assert change_rules(clock, RULES, replace(RULES, policy="flag")) is clock


MARKED = live(a=WriterState(9, 4), b=WriterState(5, 8), c=WriterState(None, 1))


def test_a_writer_that_was_only_waited_for_leaves_and_the_minimum_rises_at_the_change():
    before = TimeRules(writers=("b", "c"))
    clock = PartitionClock(3, writers=MARKED, begun=True)
    moved = change_rules(clock, before, TimeRules())
    assert (moved.cti_us, dict(moved.writers).keys()) == (5, {"a", "b"})
    assert moved.begun


@pytest.mark.parametrize(("record_us", "cti_us"), [(None, 3), (19, 3), (20, 5)])
def test_the_minimum_rises_at_the_change_not_before_the_grace_is_over(record_us, cti_us):
    before = TimeRules(writers=("c",), writer_grace_us=10)
    clock = PartitionClock(3, writers=MARKED, begun=True, record_us=record_us, first_us=10)
    assert change_rules(clock, before, replace(before, writers=())).cti_us == cti_us


@pytest.mark.parametrize("cti_us", [3, 4])
def test_a_partition_whose_minimum_passes_the_end_of_a_replay_at_the_change_has_that_cti(cti_us):
    """Also one that has ended before, whose writers' marks may be far beyond."""
    before = TimeRules(writers=("c",), until_us=4)
    clock = PartitionClock(cti_us, writers=MARKED, begun=True)
    assert change_rules(clock, before, replace(before, writers=())).cti_us == 4


def test_a_new_name_is_waited_for_unless_it_is_live_and_one_that_is_gone_stays_gone():
    before, after = TimeRules(writers=("gone",)), TimeRules(writers=("a", "gone", "new"))
    clock = PartitionClock(3, writers=live(a=WriterState(9, 4)), begun=True)
    moved = change_rules(clock, before, after)
    assert moved.writers == live(a=WriterState(9, 4), new=WriterState())
    # Before the first record nobody has been waited for yet.
    begun = change_rules(PartitionClock(), before, after)
    assert dict(begun.writers).keys() == {"a", "gone", "new"}


@pytest.mark.parametrize(("old", "new"), [(None, 5), (5, None)])
def test_silence_is_measured_from_the_first_record_after_the_change(old, new):
    before, after = TimeRules(writer_timeout_us=old), TimeRules(writer_timeout_us=new)
    moved = change_rules(PartitionClock(3, writers=MARKED, record_us=8), before, after)
    assert [writer.seen_us for _, writer in moved.writers] == [None, None, None]
    assert moved.record_us is None


def test_another_timeout_takes_the_silence_that_was_measured():
    clock = PartitionClock(3, writers=MARKED, record_us=8)
    before, after = TimeRules(writer_timeout_us=5), TimeRules(writer_timeout_us=6)
    assert change_rules(clock, before, after).writers == MARKED
