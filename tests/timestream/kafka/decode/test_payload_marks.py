"""Punctuations in a task: headers, values and timestamps become marks, rows and CTIs."""

import logging

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT, block, options, projection
from timestream.decoding import COLUMNS, task

from pyspark_timestream.errors import ViolationFound
from pyspark_timestream.kafka.decode.payload import list_required_columns, read_payload
from pyspark_timestream.kafka.decode.records import ColumnSet

MARKED = {"ctiHeader": "cti", "timeUnit": "ms"}


def mark(time, writer=None, close=False):
    """The headers of a punctuation; a time is written in milliseconds."""
    said = [] if time is None else [("cti", time if isinstance(time, bytes) else b"%d" % time)]
    said += [] if writer is None else [("cti-writer", writer)]
    return [*said, ("cti-close", None)] if close else said


def test_a_punctuation_without_a_value_is_no_row_and_no_event():
    rows, state = task(MARKED, (b"", None, 5), (None, mark(7), 6), (None, None, 7))
    assert rows == [(0, None), (None, 7000), (2, None)]
    assert (state.events, state.malformed, state.ctis) == (2, 0, 1)


def test_a_value_with_a_mark_is_a_row_before_its_cti():
    assert task(MARKED, (b"", mark(9, b"a"), 5), (b"", None, 8))[0] == [(0, None), (None, 9000)]


def test_a_mark_is_read_as_a_start_time_is_and_the_last_of_repeated_headers_wins():
    headers = [("cti", b"1970-01-01T00:00:09Z"), *mark(3, b"x"), *mark(b"5", b"a")]
    rows, state = task({**MARKED, "timeUnit": "s"}, (None, headers, 0))
    assert rows == [(None, 5_000_000)]
    assert [name for name, _ in state.writers] == ["a"]


@pytest.mark.parametrize(
    "headers", [mark(b"soon"), mark(b"\xff"), [("cti", None)], mark(5, b"\xff"), mark(b"")]
)
def test_an_unreadable_mark_is_ignored_counted_and_warned_of(headers, caplog):
    with caplog.at_level(logging.WARNING):
        rows, state = task(MARKED, (b"", None, 5), (None, headers, 6))
    assert rows == [(0, None)]
    assert (state.ignored_ctis, state.ctis, state.writers) == (1, 0, ())
    assert "partition 0 offset 1: 1 marks in header 'cti'" in caplog.text


def test_unreadable_mark_under_fail_names_its_record():
    with pytest.raises(ViolationFound, match="offset 1: the mark in header 'cti' cannot be read"):
        task({**MARKED, "violationPolicy": "fail"}, (b"", None, 5), (None, mark(b"soon"), 6))


def test_a_writer_header_alone_makes_no_punctuation():
    rows, state = task(MARKED, (None, [("cti-writer", b"a")], 5))
    assert rows == [(0, None)]
    assert state.events == 1


def test_a_close_header_alone_closes_the_writer_and_is_no_event():
    close = mark(None, b"b", close=True)
    records = [(None, mark(5, b"a"), 0), (None, mark(4, b"b"), 0), (None, mark(8, b"a"), 0)]
    rows, state = task(MARKED, *records, (None, close, 0))
    assert rows == [(None, 5000), (None, 8000)]
    assert (state.events, [name for name, _ in state.writers]) == (0, ["a"])


def test_a_minimum_raised_by_a_timeout_comes_before_the_record_that_shows_it():
    raw = {**MARKED, "writerTimeout": "10 ms"}
    records = [(None, mark(5, b"a"), 0), (None, mark(9, b"b"), 5), (b"", None, 11)]
    for sizes in ((99,), (2,), (1, 1)):
        assert task(raw, *records, sizes=sizes)[0] == [(None, 5000), (None, 9000), (2, None)]


def test_max_future_counts_from_the_records_timestamp():
    raw = {"ctiFrequency": "1", "startTime": "header:t", "maxFuture": "5 ms", "ctiDelay": "1 ms"}
    far, near, bare = (
        (b"", [("t", b"900")], 10),
        (b"", [("t", b"15")], 10),
        (b"", [("t", b"99")], -1),
    )
    assert task(raw, far, near)[0] == [(0, None), (1, None), (None, 14_000)]
    assert task(raw, bare)[0] == [(0, None), (None, 98_000)]


def test_a_time_window_is_of_the_position_before_the_records_own_mark():
    columns = [("offset", pa.int64()), ("time_lower", INSTANT), ("time_upper", INSTANT)]
    raw = {**MARKED, "timeWindow": "true", "startTime": "header:t"}
    late = [("t", b"99"), *mark(9, b"a")]
    records = [(b"", late, 0), (None, mark(5, b"b"), 0), (b"", [("t", b"99")], 0)]
    rows, _ = task(raw, *records, columns=columns)
    assert rows == [(0, None, None), (2, 5000, 9000)]


def test_a_punctuation_is_known_only_by_its_headers_and_its_value():
    given_options = options(ctiHeader="cti")
    wanted = projection(given_options, ("offset", pa.int64()))
    assert list_required_columns(given_options, wanted) == ColumnSet(
        timestamps=True, values=True, headers=True
    )
    payload = read_payload(given_options, wanted, block(b"", None))
    assert payload.events.present is None


NAMES = st.sampled_from([None, b"", b"a", b"b", b"\xff"])
TIMES = st.sampled_from([None, 3, 5, 8, 11, b"soon"])
RECORDS = st.tuples(
    st.sampled_from([None, b"", b"v"]),
    st.none() | st.builds(mark, TIMES, NAMES, st.booleans()),
    st.integers(-1, 12),
)


@given(
    st.lists(RECORDS, max_size=9),
    st.lists(st.integers(1, 3), max_size=5),
    st.sampled_from([{}, {"ctiFrequency": "2"}, {"ctiFrequency": "3 ms", "maxFuture": "2 ms"}]),
    st.sampled_from([{}, {"writers": "a"}, {"writerTimeout": "4 ms"}]),
)
@settings(deadline=None, max_examples=100)
def test_how_records_are_blocked_changes_no_row_no_cti_and_no_state(records, sizes, more, writers):
    raw = {**MARKED, "timeWindow": "true", "violationPolicy": "flag", **more, **writers}
    columns = [*COLUMNS, ("violation", pa.string()), ("time_lower", INSTANT)]
    whole = task(raw, *records, columns=columns)
    assert task(raw, *records, sizes=sizes, columns=columns) == whole
