"""A pass over a topic tells what it may hide, and refuses a topic without times."""

import pytest
from timestream.builders import at, options

from pyspark_timestream import OptionError
from pyspark_timestream.commands.measure_lateness import (
    DelayResult,
    DelayTrial,
    Lateness,
    check_readable,
    list_notes,
)
from pyspark_timestream.rules.clocks import PartitionClock

TIMED = {"startTime": "field:t", "ctiFrequency": "5"}


def findings(*clocks: PartitionClock, behind: int | None = None, every: int = 1) -> Lateness:
    found = DelayResult(0)
    for number, clock in enumerate(clocks):
        found = found.add(at(number), DelayTrial(clock, behind))
    return Lateness(("topic",), (found,), every)


@pytest.mark.parametrize(
    ("found", "whole_us", "said"),
    [
        (findings(PartitionClock(events=9, ctis=1)), None, []),
        (findings(PartitionClock(events=9, ctis=1)), 7_200_000_000, ["of less than 2 hours: all"]),
        (findings(PartitionClock(events=9, malformed=2, ctis=1)), None, ["2 of 9 events have no"]),
        (
            findings(
                PartitionClock(events=3, malformed=1, tombstones=2),
                PartitionClock(events=2, ctis=1),
            ),
            None,
            ["3 of 5 events have no readable time"],
        ),
        (
            findings(PartitionClock(events=3), PartitionClock(), PartitionClock(events=7, ctis=1)),
            None,
            ["1 of 3 partitions have no CTI, since they hold less than option 'ctiFrequency'"],
        ),
        (
            findings(PartitionClock(events=9, ctis=1), behind=172_800_000_000),
            None,
            ["one event was 2 days behind an earlier one: if that one's time is wrong"],
        ),
        (findings(PartitionClock(events=9, ctis=1), every=3), None, ["on one in 3 records"]),
    ],
)
def test_notes_say_what_the_numbers_hide(found, whole_us, said) -> None:
    notes = list(list_notes(options(**TIMED), found, whole_us))
    assert len(notes) == len(said)
    assert all(text in note for note, text in zip(notes, said, strict=True))


def test_silence_of_a_partition_may_be_a_writers() -> None:
    waited_for = options(**TIMED, writerFrom="field:device", writers="a")
    (note,) = list_notes(waited_for, findings(PartitionClock(events=9)), None)
    assert "asks for, or a writer that is waited for has not come as far" in note


def test_with_max_future_no_wrong_clock_is_suspected() -> None:
    found = findings(PartitionClock(events=9, ctis=1), behind=172_800_000_000)
    assert not list(list_notes(options(**TIMED, maxFuture="1 hour"), found, None))


def test_events_without_times_are_refused_and_lead_to_peek() -> None:
    check_readable(options(**TIMED), findings(PartitionClock(events=9, malformed=8)))
    with pytest.raises(OptionError, match=r"none of 9 events has a readable time in 't'.* peek "):
        check_readable(options(**TIMED), findings(PartitionClock(events=9, malformed=9)))
    clock = PartitionClock(events=9, malformed=6, tombstones=3)
    with pytest.raises(OptionError, match=r"none of 9 events has a readable time in 't'.* peek "):
        check_readable(options(**TIMED), findings(clock))
    with pytest.raises(OptionError, match=r"no record is an event"):
        check_readable(options(**TIMED), findings(PartitionClock()))
