"""Values that may be parsed together: what is excluded, and how that is found."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.kafka.decode.json import by_block
from pyspark_timestream.kafka.decode.json.by_block import find_joinable, parse_json
from pyspark_timestream.kafka.decode.json.by_row import parse_rows
from pyspark_timestream.kafka.decode.records import RequestedFields

FIELDS = RequestedFields(pa.schema([("i", pa.int64()), ("s", pa.string())]), ("i",))


def is_joinable(value):
    """The same by counting, for a value of text without characters before the object."""
    if value is None or not (value.startswith(b"{") and value.endswith(b"}")):
        return False
    long = len(value) > by_block.MAX_SAFE_LENGTH
    brackets = value.count(b"[") + value.count(b"{")
    return not long or (brackets <= 250 and not re.search(rb"[0-9]{1000}", value))


pieces = st.one_of(
    st.builds(
        lambda part, times: part * times,
        st.sampled_from([b"[", b"{", b"]", b"9", b"0", b"-", b"x", b"\xc3\xa9", b"[]", b'"a":']),
        st.integers(0, 300) | st.sampled_from([249, 250, 251, 998, 999, 1000, 1001, 1100]),
    ),
    st.sampled_from([b"}", b"{", b"1", b""]),
)
texts = st.lists(pieces, max_size=5).map(b"".join)
objects = texts.map(lambda inside: b"{" + inside + b"}")


@given(
    st.lists(objects | objects | texts | st.none(), max_size=6),
    st.integers(0, 3),
    st.sampled_from([1 << 18, 7, 100, 1001]),
)
@settings(max_examples=200, deadline=None)
def test_joinable_values_are_those_that_counting_finds(values, skipped, piece_bytes):
    was, by_block.PIECE_BYTES = by_block.PIECE_BYTES, piece_bytes
    try:
        found, mask = find_joinable(pa.array(values, pa.binary()).slice(skipped))
    finally:
        by_block.PIECE_BYTES = was
    assert mask.dtype == np.bool_
    assert mask.tolist() == [is_joinable(value) for value in values[skipped:]]
    expected = [None if value is None else value.decode() for value in values[skipped:]]
    assert found.to_pylist() == expected


@given(st.integers(0, 400), st.integers(990, 1010), st.integers(0, 3))
@settings(deadline=None)
def test_a_long_run_of_digits_is_found_wherever_it_begins(before, digits, after):
    value = b'{"s":"' + b"x" * before + b"7" * digits + b"x" * after + b'"}'
    _, mask = find_joinable(pa.array([b"{}" * before, value, b"{}"], pa.binary())[1:])
    assert mask.tolist() == [digits < 1000, True]


@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_250_brackets_are_joined_and_251_are_not(bracket):
    inside = [",".join([bracket] * times) for times in (248, 249)]
    values = [f'{{"extra":[{each}]}}'.encode() for each in inside]
    _, mask = find_joinable(pa.array(values, pa.binary()))
    assert mask.tolist() == [True, False]


def nested(depth, opening="[", closing="]"):
    return opening * depth + "1" + closing * depth


@pytest.mark.thorough
@pytest.mark.parametrize(
    "extra",
    [
        nested(240),
        nested(80, '{"":', "}"),
        "[" + "[]," * 150 + "[]]",
        "[" * 480,
        "[" * 240 + '"' + "]" * 200 + '"',
        "7" * 480,
        nested(255),
        nested(600),
        "7" * 999,
        "7" * 1000,
    ],
)
def test_deep_and_long_values_are_read_as_one_by_one(extra):
    value = f'{{"i":5,"extra":{extra},"s":"x"}}'.encode()
    good = json.dumps({"i": 1, "s": "y"}).encode()
    values = [good, value] * 50
    block = parse_json(FIELDS, pa.array(values, pa.binary()))
    expected = parse_rows(FIELDS, values)
    assert block.columns == expected.columns
    assert block.reasons.tolist() == expected.reasons.tolist()
    read = [v for piece in block.raw["i"] for v in piece.to_pylist()]
    assert read == [v for piece in expected.raw["i"] for v in piece.to_pylist()]
