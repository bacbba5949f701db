"""States of buckets merge to the same in any order, however events are cut (semantics 32.2)."""

import math
from itertools import pairwise, permutations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.queries import aggregate

from pyspark_timestream.core.instants import HOUR_US, MINUTE_US
from pyspark_tseries.model.buckets import parse_buckets
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.downsampling import FUNCTIONS, Downsampling, parse_aggregates
from pyspark_tseries.read import states
from pyspark_tseries.read.downsample import finish
from pyspark_tseries.read.states import Folding, Merger

SCHEMA = pa.schema(
    {
        "whole": pa.int64(),
        "real": pa.float64(),
        "text": pa.string(),
        "money": pa.decimal128(9, 2),
        "room": pa.string(),
    }
)
START = 1_767_225_600_000_000
rows = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from([0, 0, 1, 7, 40, 61, 300]),
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    st.none() | st.floats(-100, 100) | st.sampled_from([math.nan, math.inf, 1e308, 0.0, -0.0]),
    st.none() | st.text("abc", max_size=2),
    st.none() | st.decimals(-1000, 1000, places=2),
    st.none() | st.sampled_from("xy"),
)


def events_of(drawn, *, of_floats=False):
    """Events, sorted by series and sequence; all times of a series rise."""
    ends, counts, made = {}, {}, []
    for series, minutes, *values in drawn:
        ends[series] = ends.get(series, START) + minutes * MINUTE_US
        counts[series] = counts.get(series, -1) + 1
        key = {"series": series, "sequence": counts[series], "timestamp": ends[series]}
        made.append(key | dict(zip(SCHEMA.names, values, strict=True)))
    kinds = {"series": pa.string(), "sequence": pa.int64(), "timestamp": pa.int64()}
    table = pa.Table.from_pylist(made, pa.schema([*kinds.items(), *SCHEMA]))
    table = table.set_column(2, "timestamp", table["timestamp"].cast(INSTANT))
    return table.sort_by([("series", "ascending"), ("sequence", "ascending")])


def plan(tag):
    functions = [*FUNCTIONS, 0.9]
    named = {f"real_{f}".replace(".", "_"): ("real", f) for f in functions}
    named |= {f"{c}_{f}": (c, f) for c in ("text", "money") for f in ("min", "max", "last")}
    named |= {"mean": ("whole", "mean"), "money": ("money", "sum"), "n": ("*", "count")}
    return Downsampling(parse_buckets("1 hour"), parse_aggregates(SCHEMA, named), tag)


@pytest.mark.parametrize("tag", [None, "room"])
@settings(max_examples=30)
@given(st.lists(rows, min_size=1, max_size=20), st.data())
def test_events_in_any_pieces_give_the_same_buckets(tag, drawn, data):
    events, wanted = events_of(drawn), plan(tag)
    whole = aggregate(events, SCHEMA, wanted)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(events)), max_size=4)) | {0, len(events)})
    pieces = [events.slice(a, b - a) for a, b in pairwise(cuts)]
    folding = Folding(SCHEMA, wanted)
    merger = Merger(folding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "MAX_PENDING_STATES", data.draw(st.sampled_from([1, 10**6])))
        for piece in data.draw(st.permutations(pieces)):
            place = piece.schema.get_field_index("series")
            encoded = piece.set_column(place, "series", piece["series"].dictionary_encode())
            merger.add(folding.fold(data.draw(st.sampled_from([piece, encoded]))))
    assert same(finish(merger.merged(), SCHEMA, wanted), whole)


def same(one, other):
    """Whether two tables have the same cells; a NaN equals a NaN."""
    return repr(one.to_pylist()) == repr(other.to_pylist()) and one.schema == other.schema


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_zeros_and_nans_have_one_form_in_every_order(kind):
    """As DuckDB and Spark compare them: both zeros are equal, and so are all NaN."""
    schema = pa.schema({"real": pa.from_numpy_dtype(kind)})
    bits = np.dtype(f"i{np.dtype(kind).itemsize}")
    ordered = ("first", "last", "time_weighted_mean")
    named = {function: ("real", function) for function in FUNCTIONS}
    wanted = Downsampling(parse_buckets("1 hour"), parse_aggregates(schema, named))
    for values in ([0.0, -0.0], [-0.0, 0.0, 5.0], [-5.0, 0.0, -0.0], [math.nan, -math.nan, 1.0]):
        answers = set()
        for order in permutations(values):
            us = pa.array([START + at for at in range(len(order))]).cast(INSTANT)
            key = {"series": ["a"] * len(order), "sequence": range(len(order)), "timestamp": us}
            events = pa.table({**key, "real": pa.array(order, schema[0].type)})
            made = aggregate(events, schema, wanted)
            found = {name: made[name].to_numpy() for name in made.column_names if name in named}
            assert np.signbit(found["last"][0]) == np.signbit(order[-1])
            plain = [one for name, one in found.items() if name not in ordered]
            answers.add(b"".join(np.asarray(one, kind).view(bits).tobytes() for one in plain))
        assert len(answers) == 1


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=4),
    st.sampled_from([None, (1, 7), (8, 3), (-5, 400)]),
    st.sampled_from(["15 minutes", "1 hour", "1 day", "1 month"]),
    st.sampled_from([None, "Europe/Berlin"]),
)
def test_a_search_finds_the_runs_of_a_walk(steps, ends, width, zone):
    us = np.concatenate([START + np.cumsum(mine) * 20 * MINUTE_US for mine in steps])
    begins = np.cumsum([0, *map(len, steps[:-1])])
    requested = ends and tuple(np.full(len(begins), START + end * HOUR_US) for end in ends)
    asked = us, begins, parse_buckets(width, zone), requested
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "_ROWS_PER_SEARCH", 0)
        patch.setattr(states, "_BUCKETS_PER_SEARCH", 10**6)
        found = states._search_runs(*asked)
    assert found is not None
    wanted = states._walk_runs(*asked)
    for one, other in zip(unpack(found), unpack(wanted), strict=True):
        assert one.tolist() == other.tolist()


def unpack(found):
    segment, starts, runs = found
    return segment, starts, runs.first, runs.sizes


def test_times_that_fall_are_walked():
    us = np.array([START, START - 1, START + 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "_ROWS_PER_SEARCH", 0)
        assert states._search_runs(us, np.array([0]), parse_buckets("1 hour"), None) is None
