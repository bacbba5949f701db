"""Headers of a block as text."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import HEADERS

from pyspark_timestream.kafka.decode.records import read_header

names = st.sampled_from(["t", "T", "u"])
contents = st.sampled_from([None, b"", b"1", b"2", b"\xff", "é".encode()])
headers = st.none() | st.lists(st.tuples(names, contents), max_size=4)


def text(value):
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


@given(st.lists(headers, max_size=6), st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_of_repeated_headers_the_last_wins_also_in_a_slice(rows, start, length):
    column = pa.array(rows, HEADERS).slice(start, length)
    expected = [
        text([value for name, value in row or [] if name == "t"][-1])
        if any(name == "t" for name, _ in row or [])
        else None
        for row in rows[start : start + length]
    ]
    assert read_header(column, "t").to_pylist() == expected


def test_a_last_header_without_a_value_hides_the_one_before():
    column = pa.array([[("t", b"1"), ("t", None)], [("t", b"1"), ("t", b"\xff")]], HEADERS)
    assert read_header(column, "t").to_pylist() == [None, None]
