"""Recent counts of a stream: wrong data is told soon, even after much good data."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.builders import at, options

from pyspark_timestream.kafka.diagnosis.diagnoses import Kind
from pyspark_timestream.kafka.diagnosis.warner import (
    RecentCounts,
    find_recent_mistakes,
    update_counts,
)
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads, PartitionOffset, StreamOffset
from pyspark_timestream.rules.clocks import PartitionClock

SETTINGS = options(valueFormat="json", startTime="at", ctiFrequency="1").settings()
YEARS = 1_000_000
"""So many events were well before."""


def share(events, malformed=0, malformed_payloads=0, reason="type"):
    clock = PartitionClock(events=events, malformed=malformed)
    counted = MalformedPayloads.from_reasons({reason: malformed_payloads})
    return PartitionOffset(events, events, clock, malformed_payloads=counted)


def stands(**shares):
    return StreamOffset(
        "me", SETTINGS, 1, {at(int(name[1:])): each for name, each in shares.items()}
    )


def told(*courses):
    """The mistakes found after batches that leave partition 0 at each of `courses` in turn."""
    recent, kinds = RecentCounts(), []
    for before, now in itertools.pairwise(courses):
        recent = update_counts(recent, {at(0): before}, {at(0): now})
        kinds.append([each.kind for each in find_recent_mistakes(recent, stands(p0=now))])
    return kinds


@pytest.mark.parametrize(
    ("name", "kind"),
    [("malformed", Kind.MALFORMED), ("malformed_payloads", Kind.MALFORMED_VALUES)],
)
def test_data_that_went_wrong_is_told_and_no_longer_once_it_is_well(name, kind):
    bad = share(YEARS + 12, **{name: 12})
    well = share(YEARS + 40, **{name: 12})
    assert told(share(YEARS), bad, bad, well) == [[kind], [kind], []]


def test_the_counts_are_those_of_the_last_events():
    recent = update_counts(RecentCounts(), {at(0): share(YEARS, 7)}, {at(0): share(YEARS + 20, 22)})
    (diagnosis,) = find_recent_mistakes(recent, stands(p0=share(YEARS + 20, 22)))
    assert diagnosis.full_text.startswith("lately, 15 of 20 events have no time that can be read")


def test_the_reasons_of_recent_malformed_values_are_those_of_the_last_events():
    before = replace(share(YEARS), malformed_payloads=MalformedPayloads.from_reasons({"syntax": 8}))
    more = MalformedPayloads.from_reasons({"syntax": 9, "framing": 12})
    now = replace(share(YEARS + 20), malformed_payloads=more)
    recent = update_counts(RecentCounts(), {at(0): before}, {at(0): now})
    (diagnosis,) = find_recent_mistakes(recent, stands(p0=now))
    assert diagnosis.full_text.startswith("lately, 13 of 20 records have a malformed value or key")
    assert diagnosis.text.endswith("(reasons: 12 framing, 1 syntax)")


@given(st.lists(st.integers(0, 30), max_size=20))
def test_of_any_batches_twenty_wrong_events_are_told_and_few_are_not(sizes):
    recent, now = RecentCounts(), share(YEARS)
    for size in sizes:
        wrong = now.clock.malformed + size
        now, before = share(YEARS + wrong, wrong), now
        recent = update_counts(recent, {at(0): before}, {at(0): now})
        found = find_recent_mistakes(recent, stands(p0=now))
        # It may take ten that are counted with others.
        assert bool(found) == (wrong >= 10)


def test_few_wrong_events_among_many_are_not_told():
    assert told(share(YEARS), share(YEARS + 100, 49)) == [[]]


def test_partitions_that_are_new_made_anew_or_gone_are_counted_from_there():
    recent = update_counts(
        RecentCounts(), {at(0): share(YEARS)}, {at(0): share(3), at(1): share(12, 12)}
    )
    assert [each.partitions for each in find_recent_mistakes(recent, stands())] == [{at(1)}]
    recent = update_counts(recent, {at(0): share(3)}, {at(0): share(23, 20)})
    assert [each.partitions for each in find_recent_mistakes(recent, stands())] == [{at(0)}]
    assert update_counts(recent, {}, {}) == RecentCounts()
