"""Range queries over columns equal the rules (semantics 21), event by event."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.queries import QUERIES, columns, histories, oracle

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.ranges import Point, Query, Range
from pyspark_tseries.read.select import SeriesEvents, select


@pytest.mark.thorough
@settings(max_examples=600)
@given(st.lists(histories().filter(bool), min_size=1, max_size=4), QUERIES)
def test_any_query_of_many_series_equals_the_definition_of_each(many, query):
    events = columns(*many)
    try:
        expected = [oracle(history, query) for history in many]
    except InvalidQuery:
        with pytest.raises(InvalidQuery, match=r"series 's\d'.*no timestamp"):
            select(events, query)
        return
    got = select(events, query)
    pairs = zip(events.codes[got.rows].tolist(), events.sequence[got.rows].tolist(), strict=True)
    assert list(pairs) == [
        (i, sequence) for i, (found, _) in enumerate(expected) for sequence in found
    ]
    assert got.selected == sum(count for _, count in expected)


def test_the_first_series_whose_anchor_has_no_time_is_named():
    events = columns([(0, 5, -1, False), (1, 6, -1, False)], [(0, 5, -1, False)])
    query = Query(view=Range(Point("last_count", 2), Point("next_us", 1)))
    with pytest.raises(InvalidQuery, match="series 's1'"):
        select(events, query)


def test_no_series_at_all_are_an_empty_result():
    none = np.empty(0, np.int64)
    events = SeriesEvents(pa.array([], pa.string()), none, none, none, none)
    for query in (Query(), Query("allEdits", Range(Point("sequence", 9), Point("next_us", 1)))):
        assert select(events, query).rows.tolist() == []
