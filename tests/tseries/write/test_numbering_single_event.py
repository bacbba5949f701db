"""A commit of one event has a way of its own, and writes what the way of all batches writes."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import in_ci
from tseries.builders import staged

from pyspark_timestream.core.instants import FINAL_US, MIN_US
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.model.arrays import NEVER_US, UNTIMED
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.properties import StoreSettings
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.options import STORE_POLICIES
from pyspark_tseries.storage.data_files import write_events
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.write.batch import Batch, CommitContext
from pyspark_tseries.write.numbering import (
    FutureLimit,
    NumberedRows,
    WriteRules,
    build_events,
    number_rows,
)

NAMES = st.sampled_from(["a", "b", "ü", "", "a" * 300])
TIMES = st.none() | st.integers(-5, 40) | st.sampled_from([MIN_US, FINAL_US, UNTIMED, MIN_US - 1])
VALUES = {
    "real": (pa.float64(), st.none() | st.floats() | st.just(float("nan"))),
    "whole": (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), st.none() | st.text("aé\0", max_size=9)),
    "list": (pa.list_(pa.float32()), st.none() | st.lists(st.none() | st.floats(width=32))),
    "pair": (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        st.none() | st.fixed_dictionaries({"x": st.none() | st.floats(), "y": st.none()}),
    ),
    "when": (INSTANT, st.none() | st.integers(0, 99)),
}
AUTHORS = st.none() | st.sampled_from(["ann", "Ünal"])


@st.composite
def batches(draw):
    """A batch of one event, or at times of some, with any options."""
    rows = draw(st.sampled_from([1, 1, 1, 1, 3]))
    several = {"min_size": rows, "max_size": rows}
    table = staged(*draw(st.lists(st.tuples(NAMES, TIMES), **several))).drop_columns(["value"])
    for name, (kind, values) in VALUES.items():
        table = table.append_column(name, pa.array(draw(st.lists(values, **several)), kind))
    authors = pa.array(draw(st.lists(AUTHORS, **several)), pa.string())
    is_query = draw(st.booleans())
    return Batch(
        table.set_column(2, "author", authors),
        draw(st.sampled_from(list(STORE_POLICIES))),
        "me",
        ("tseries:q:1", draw(st.integers(0, 9))) if is_query else None,
        clock=draw(st.sampled_from(["wall", "event"])),
        cti_us=draw(st.none() | st.integers(-5, 20)) if is_query else None,
        is_correction=draw(st.booleans()),
        future=draw(st.sampled_from([FutureLimit(), FutureLimit(3), FutureLimit(3, "drop")])),
    )


SETTINGS = st.sampled_from(["unlimited", "last"]).map(
    lambda said: StoreSettings(RetainedRange(last_us=5 if said == "last" else None))
)


def prepare(batch, context):
    """The effects of a batch on a store: its files, the next head and index, and its numbers."""
    try:
        made = batch.prepare(context)
    except TseriesError as error:
        return str(error), None
    root = Path(context.location.root)
    files = {path: Path(path).read_bytes() for path in made.paths if Path(path).exists()}
    return {str(Path(path).relative_to(root)): got for path, got in files.items()}, made


def state(index):
    columns = {name: column.tolist() for name, column in index.columns.items()}
    return index.ids.names(), columns, index.metadata


def numbered(events):
    plain = {"order": events.order.tolist(), "names": events.names.to_pylist()}
    arrays = (events.codes, events.sequence, events.timestamp_us)
    kinds = {each.dtype for each in (events.order, *arrays)}
    return plain, [each.tolist() for each in arrays], kinds, events.change, events.counts


@settings(max_examples=in_ci(40, 300))
@given(st.lists(st.tuples(batches(), st.integers(-3, 30)), min_size=1, max_size=6), SETTINGS)
def test_one_event_is_written_as_any_batch_is_byte_for_byte(steps, chosen):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        ways = [parse_location(f"{place}/{name}") for name in ("alone", "as any")]
        for way in ways:
            Path(way.root).mkdir()
        index, other, head_id = SeriesIndex(), SeriesIndex(), None
        for number, (batch, now) in enumerate(steps):
            context = CommitContext(ways[0], head_id, index, now, number + 9, chosen)
            files, made = prepare(batch, context)
            with patch.context() as general:
                general.setattr(WriteRules, "number_event", lambda *_: None)
                context = replace(context, location=ways[1], index=other)
                expected, same = prepare(batch, context)
            assert files == expected
            if made is None:
                assert same is None
                continue
            assert made.written == same.written
            for mine, theirs in zip(made.numbered, same.numbered, strict=True):
                assert numbered(mine) == numbered(theirs)
            assert state(made.index) == state(same.index)
            index, other, head_id = made.index, same.index, made.head_id


@settings(max_examples=in_ci(100, 1000))
@given(NAMES, TIMES, TIMES, st.integers(-5, 20) | st.just(NEVER_US), st.integers(-5, 60))
def test_only_an_event_that_is_kept_as_given_goes_its_own_way(name, newest, us, cti_us, now):
    """The other way decides all else: it refuses, drops or adjusts."""
    before = {"last_sequence": -1, "newest_us": NEVER_US, "original_sequence": -1}
    before |= {"original_us": NEVER_US, "first_us": NEVER_US, "edits": 0}
    # Stored events have times.
    if newest is not None and MIN_US <= newest <= FINAL_US:
        before |= {"last_sequence": 7, "newest_us": newest, "original_us": newest}

    class Index:
        def lookup(self, names):
            return {column: np.array([number] * len(names)) for column, number in before.items()}

    Index.cti_us = cti_us
    rules = WriteRules(None, "me", "fail", now, FutureLimit(10).make_rule(RetainedRange(), 30))
    table = staged((name, us))
    mine = rules.number_event(name, us, before, cti_us)
    columns = (table[column].combine_chunks() for column in ("series", "timestamp"))
    try:
        other = number_rows(*columns, Index(), "fail", now, future=rules.future)
    except TseriesError:
        assert mine is None
    else:
        assert isinstance(mine, NumberedRows)
        assert numbered(mine) == numbered(other)


@pytest.mark.parametrize("author", ["me", "Ünal", ""])
def test_an_author_alone_is_written_as_one_of_many_is(tmp_path, author):
    rows = staged(("a", 1, 2.5))
    columns = (rows[name].combine_chunks() for name in ("series", "timestamp"))
    events = number_rows(*columns, SeriesIndex(), "fail", 0)
    table = build_events(rows, events, SeriesIndex().metadata, author)
    by_code = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([author]))
    other = table.set_column(3, "author", by_code)
    location = parse_location(tmp_path)
    for name, events in (("one", table), ("other", other)):
        write_events(location, name, events)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
