"""Originals outside a query's bounds change no result."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.queries import QUERIES, columns, histories

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.ranges import NO_LIMIT, UNLIMITED, Point, Query, Range, RetainedRange
from pyspark_tseries.read.select import SeriesEvents, compute_bounds, select

ALL = Point("last_count", 0)


def standing(events):
    last = [event[0] for event in events][-1]
    originals = [event[1] for event in events if event[2] < 0 and not event[3]]
    values = {"last_sequence": last, "original_us": originals[-1] if originals else NEVER_US}
    values |= {"floor_sequence": events[0][0], "floor_us": NEVER_US}
    return {name: np.array([value]) for name, value in values.items()}


def answer(events, query):
    try:
        got = select(events, query)
    except InvalidQuery:
        return "invalid"
    return events.sequence[got.rows].tolist(), got.selected


@settings(max_examples=1500)
@given(histories().filter(bool), QUERIES, st.integers(0, 2))
def test_what_is_outside_the_bounds_changes_no_result(history, query, spare):
    events = columns(history)
    # Edits of what was discarded are hidden, and still there.
    span = int(events.sequence[-1] - events.sequence[0]) + 1
    edits = span - int((events.original < 0).sum()) + spare
    bounds = compute_bounds(query, UNLIMITED, standing(history), edits)
    least, most, min_us, max_us = bounds.over(0, 1)
    kept = (events.sequence >= least) & (events.sequence <= most)
    kept &= (events.us >= min_us) & (events.us <= max_us)
    kept |= events.original >= 0
    rows = np.flatnonzero(kept)
    if not len(rows):
        assert answer(events, query) == ([], 0)
        return
    fewer = SeriesEvents(
        events.names,
        *(c[rows] for c in (events.codes, events.sequence, events.us, events.original)),
        None if events.erased is None else events.erased[rows],
    )
    assert answer(fewer, query) == answer(events, query)


def test_the_queries_of_every_day_are_bounded():
    history = [(i, 10 * i, -1, False) for i in range(100)]

    def bounds(kind, anchor, span=ALL, retained=UNLIMITED):
        query = Query(kind, Range(anchor, span), limit=NO_LIMIT)
        return compute_bounds(query, retained, standing(history), 0).over(0, 1)

    for kind in ("values", "allEdits"):
        assert bounds(kind, Point("last_count", 3))[0] == 96
        assert bounds(kind, Point("sequence", 90))[0] == 90
        assert bounds(kind, Point("sequence", 9), Point("next_count", 3))[:2] == (9, 12)
        assert bounds(kind, Point("time", 500), Point("next_us", 70))[2:] == (500, 570)
        assert bounds(kind, Point("last_us", 30))[2] == 960
        assert bounds(kind, Point("start"), Point("time", 5))[3] == 5
        assert bounds(kind, Point("start"), retained=RetainedRange(5, 20))[::2] == (95, 970)


@settings(max_examples=300)
@given(
    st.lists(histories().filter(bool), min_size=1, max_size=4),
    QUERIES,
    st.none() | st.integers(1, 5),
    st.none() | st.integers(0, 10),
)
def test_bounds_of_the_lowest_and_highest_state_are_the_widest(many, query, limit, last_us):
    parts = [standing(history) for history in many]
    retained = RetainedRange(limit, last_us)
    states = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ends = {name: np.array([column.min(), column.max()]) for name, column in states.items()}
    exact = compute_bounds(query, retained, states, 3).over(0, len(many))
    least, most, min_us, max_us = compute_bounds(query, retained, ends, 3).over(0, 2)
    assert least <= exact[0]
    assert min_us <= exact[2]
    assert most >= exact[1]
    assert max_us >= exact[3]


@pytest.mark.parametrize("retained", ["limit 2", "last 0S"])
def test_count_from_a_discarded_event_starts_at_the_first_visible_one(tmp_path, retained):
    store = TimeSeries.create(str(tmp_path / "s"), {"value": pa.int64()}, retained)
    for number in range(4):
        store.append("a", number, datetime(2026, 1, 1 + number // 2, tzinfo=UTC))
    found = store.range_query().from_(0).next(2).select_from("a")
    assert [event.sequence for event in found.events] == [2, 3]
