"""Single events in one commit are what they would be one after the other (semantics 16.9)."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tseries.builders import batch

from pyspark_tseries.errors import OutOfOrder, PermissionDenied, UpdateFailed
from pyspark_tseries.model.properties import StoreSettings
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.shared_commits import AppendedEvent, Refused, SharedBatch, can_share
from pyspark_tseries.write.batch import CommitContext

EVENTS = st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9))
NOW = 5


def context(location, index, head_id, policy=None):
    return CommitContext(
        location, head_id, index, NOW, (head_id or 0) + 1, StoreSettings(policy=policy)
    )


def appended(location, index, head_id, events, policy=None):
    """The outcome of each event, and the index afterwards."""
    shared = SharedBatch(lambda: [batch(event) for event in events])
    try:
        commit = shared.prepare(context(location, index, head_id, policy))
    except Refused as refused:
        return list(refused.reasons), index
    return shared.outcomes(commit), commit.index


@given(
    before=st.lists(EVENTS, max_size=4),
    events=st.lists(EVENTS, min_size=1, max_size=8),
)
def test_shared_events_are_as_in_one_order_of_single_appends(tmp_path_factory, before, events):
    location = parse_location(str(tmp_path_factory.mktemp("store")))
    index, head = SeriesIndex(), None
    for number, event in enumerate(before):
        (outcome,), index = appended(location, index, head, [event])
        head = number + 1 if isinstance(outcome, AppendedEvent) else head
    outcomes, _ = appended(location, index, head, events)
    # First those with a time, in its order, each on top of the one before.
    order = sorted(range(len(events)), key=lambda row: (events[row][1] is None, events[row][1]))
    assert len(outcomes) == len(events)
    newest = index.lookup(["a", "b"])["original_us"].tolist()
    for row in order:
        name, us = events[row]
        late = us is not None and us < newest["ab".index(name)]
        assert isinstance(outcomes[row], OutOfOrder if late else AppendedEvent)
    for row in (row for row in order if isinstance(outcomes[row], AppendedEvent)):
        (alone,), index = appended(location, index, head, [events[row]])
        head = index.metadata.commit + 1
        shared = outcomes[row]
        assert (alone.sequence, alone.timestamp_us) == (shared.sequence, shared.timestamp_us)


def test_refused_event_gets_its_own_error_and_fails_no_other(tmp_path):
    location = parse_location(str(tmp_path))
    _, index = appended(location, SeriesIndex(), None, [("a", 7)])
    events = [("a", 8), ("a", 3), ("b", 1), ("a", 4), ("b", 2**62)]
    outcomes, after = appended(location, index, 1, events)
    assert [type(each) for each in outcomes] == [
        *(AppendedEvent, OutOfOrder, AppendedEvent, OutOfOrder, UpdateFailed)
    ]
    assert "(1 such row in the batch)" in str(outcomes[1])
    assert [(each.sequence, each.commit) for each in (outcomes[0], outcomes[2])] == [(1, 1), (0, 1)]
    assert after.lookup(["a", "b"])["last_sequence"].tolist() == [1, 0]


def test_shared_batch_of_refused_events_alone_writes_nothing(tmp_path):
    location = parse_location(str(tmp_path))
    nobody = {"you": ("update",)}
    outcomes, after = appended(location, SeriesIndex(), None, [("a", 1), ("b", 2)], nobody)
    assert [type(each) for each in outcomes] == [PermissionDenied] * 2
    assert after.metadata.commit == -1
    assert list(tmp_path.iterdir()) == []


def test_events_share_a_commit_only_if_their_batches_are_alike():
    one = batch(("a", 1))
    assert can_share(one, batch(("b", None)))
    for other in (
        replace(one, author="you"),
        replace(one, is_correction=True),
        batch(("a", 1), policy="drop"),
    ):
        assert not can_share(one, other)
        assert not can_share(other, one)


def test_a_second_attempt_judges_again_on_the_winners_index(tmp_path):
    location = parse_location(str(tmp_path))
    drawn = itertools.count()

    def draw():
        next(drawn)
        return [batch(("a", 5)), batch(("b", 5))]

    shared = SharedBatch(draw)
    first = shared.prepare(context(location, SeriesIndex(), None))
    _, winner = appended(location, SeriesIndex(), 6, [("a", 9)])
    second = shared.prepare(context(location, winner, 7))
    assert [type(each) for each in shared.outcomes(first)] == [AppendedEvent] * 2
    assert [type(each) for each in shared.outcomes(second)] == [OutOfOrder, AppendedEvent]
    assert next(drawn) == 1, "drawn once"
