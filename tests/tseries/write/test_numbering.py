"""A batch becomes events by semantics 16 and 17, however the input was cut."""

from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tseries.builders import staged

from pyspark_tseries.errors import UpdateFailed
from pyspark_tseries.model.series_index import SeriesIndex, advance_index, next_metadata
from pyspark_tseries.options import STORE_POLICIES
from pyspark_tseries.write.numbering import add_counts, number_rows

NAMES = st.sampled_from(["a", "b", "ü", ""])
ROWS = st.lists(st.tuples(NAMES, st.none() | st.integers(-5, 20)), min_size=1, max_size=30)
BATCHES = st.lists(ROWS, min_size=1, max_size=6)
POLICY = st.sampled_from(list(STORE_POLICIES))


def step(index, rows, policy, now_us):
    table = staged(*rows)
    series, given = (table[name].combine_chunks() for name in ("series", "timestamp"))
    return number_rows(series, given, index, policy, now_us)


def after(index, events, now_us=0):
    note = next_metadata(index, index.metadata.commit, now_us=now_us, rows=len(events.names))
    return advance_index(index, events.change, add_counts(note, events.counts))[0]


def events_of(events):
    names = events.names.take(pa.array(events.codes)).to_pylist()
    columns = (events.sequence, events.timestamp_us, events.order)
    return list(zip(names, *(column.tolist() for column in columns), strict=True))


def oracle(state, rows, policy, now):
    """Semantics 16 and 17, one row at a time; None where the batch is refused."""
    out, state = [], dict(state)

    def key(r):
        return (r[1][0].encode(), r[1][1] is None, r[1][1] or 0, r[0])

    for name, group in groupby(sorted(enumerate(rows), key=key), lambda r: r[1][0]):
        sequence, floor = state.get(name, (-1, float("-inf")))
        newest = floor
        for index, (_, ts) in group:
            if ts is not None and ts < floor and policy == "fail":
                return None, state
            if ts is not None and ts < floor and policy == "drop":
                continue
            newest = max(newest, now if ts is None else ts)
            sequence += 1
            out.append((name, sequence, int(newest), index))
            state[name] = sequence, newest
    return out, state


@given(BATCHES, POLICY, st.integers(-10, 25))
def test_numbering_equals_the_rules_row_by_row(batches, policy, now):
    index, state = SeriesIndex(), {}
    for rows in batches:
        expected, later = oracle(state, rows, policy, now)
        if expected is None:
            with pytest.raises(UpdateFailed):
                step(index, rows, policy, now)
            continue
        events = step(index, rows, policy, now)
        assert events_of(events) == expected
        index, state = after(index, events), later


@given(ROWS, st.data())
def test_any_cut_of_ordered_input_into_batches_gives_the_same_events(rows, data):
    rows = sorted(rows, key=lambda row: (row[1] is None, row[1] or 0))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(rows)), max_size=4)))
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True) if a < b]
    whole = [event[:3] for event in events_of(step(SeriesIndex(), rows, "fail", 99))]
    index, pieces = SeriesIndex(), []
    for part in parts:
        events = step(index, part, "fail", 99)
        pieces += [event[:3] for event in events_of(events)]
        index = after(index, events)
    assert sorted(pieces) == sorted(whole)


@given(BATCHES)
def test_sequences_are_contiguous_from_zero_per_series(batches):
    index, seen = SeriesIndex(), {}
    for rows in batches:
        events = step(index, rows, "adjust", 5)
        index = after(index, events)
        for name, sequence, us, _ in events_of(events):
            before = seen.get(name, (-1, us))
            assert sequence == before[0] + 1
            assert us >= before[1]
            seen[name] = sequence, us


def test_rows_of_one_timestamp_stay_in_the_order_of_the_input():
    events = step(SeriesIndex(), [("a", 1), ("b", 1), ("a", 1), ("a", 0)], "fail", 0)
    assert events.order.tolist() == [3, 0, 2, 1]


def test_untimed_rows_follow_the_timed_ones_at_the_time_of_the_commit():
    events = step(SeriesIndex(), [("a", None), ("a", 7), ("a", None)], "fail", 9)
    assert [event[1:] for event in events_of(events)] == [(0, 7, 1), (1, 9, 0), (2, 9, 2)]


def test_an_assigned_timestamp_is_never_before_the_newest_of_its_series():
    events = step(SeriesIndex(), [("a", 70), ("a", None)], "fail", 9)
    assert events.timestamp_us.tolist() == [70, 70]
    again = step(after(SeriesIndex(), events), [("a", None)], "fail", 10)
    assert again.timestamp_us.tolist() == [70]


def test_a_late_row_is_named_with_series_timestamp_and_newest_event():
    index = after(SeriesIndex(), step(SeriesIndex(), [("a", 0), ("a", 5_000_000)], "fail", 0))
    with pytest.raises(UpdateFailed) as error:
        step(index, [("b", 1), ("a", 4_000_000)], "fail", 0)
    message = str(error.value)
    for part in ("'a'", "1970-01-01T00:00:04Z", "sequence 1", "1970-01-01T00:00:05Z"):
        assert part in message
    assert "Nothing of the batch is stored" in message
    assert "outOfOrder" in message


def test_lateness_is_judged_against_earlier_commits_only():
    events = step(SeriesIndex(), [("a", 5), ("a", 4)], "fail", 0)
    assert events.timestamp_us.tolist() == [4, 5]


def test_dropped_and_adjusted_rows_are_counted_with_an_example():
    index = after(SeriesIndex(), step(SeriesIndex(), [("a", 10)], "fail", 0))
    rows = [("a", 9), ("a", 10), ("a", 8)]
    dropped = after(index, step(index, rows, "drop", 0)).metadata
    adjusted = after(index, step(index, rows, "adjust", 0)).metadata
    assert (dropped.dropped, dropped.adjusted) == (2, 0)
    assert (adjusted.dropped, adjusted.adjusted) == (0, 2)
    assert dropped.last_dropped["series"] == "a"
    assert dropped.last_dropped["commit"] == 1
    assert adjusted.last_adjusted["newest_sequence"] == 0


def test_a_batch_that_is_dropped_whole_has_no_events():
    index = after(SeriesIndex(), step(SeriesIndex(), [("a", 10), ("b", 1)], "fail", 0))
    events = step(index, [("a", 1)], "drop", 0)
    assert (len(events.order), events.counts.dropped, events.change.num_rows) == (0, 1, 0)


@pytest.mark.parametrize("us", [-(2**61), 2**62, 253_402_300_799_000_001])
def test_a_timestamp_outside_the_calendar_is_refused(us):
    series, given = pa.array(["a"]), pa.array([us]).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(UpdateFailed, match=r"'a'.*out of range.*0001-01-01.*9999-12-31"):
        number_rows(series, given, SeriesIndex(), "fail", 0)
