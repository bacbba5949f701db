"""Equal sets of rows have equal digests, in any order and division, and other rows have others."""

import datetime as dt
import decimal
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tseries.write.rows import ROWS_IN_CACHE, add_digests, digest_rows

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)

VALUES = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [0, 1, -1, 127]),
    (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 2**32]),
    (pa.float32(), [0.0, 1.5, -1.5, 3.25]),
    (pa.float64(), [0.0, 1.5, -1.5, 1e300, float("inf"), float("-inf"), float("nan")]),
    (pa.decimal128(20, 2), [decimal.Decimal(text) for text in ("0", "1.25", "-1.25", "1e17")]),
    (pa.string(), ["", "a", "b", "ab", "ba", "a\0", "\0", "x" * 8, "x" * 9, "ä" * 40, "y" * 999]),
    (pa.string_view(), ["", "a", "a longer text than a view holds itself", "\0"]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"a", b"abcdefgh", b"abcdefghi"]),
    (pa.binary(2), [b"ab", b"ba", b"\0\0"]),
    (pa.date32(), [dt.date(2026, 1, 1), dt.date(1969, 1, 1)]),
    (pa.timestamp("us", "UTC"), [MOMENT, MOMENT + dt.timedelta(microseconds=1)]),
    (pa.timestamp("us"), [MOMENT.replace(tzinfo=None), MOMENT.replace(tzinfo=None, year=1969)]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", ""]),
    (pa.list_(pa.int64()), [[], [0], [1], [None], [1, 2], [2, 1], [0, 0]]),
    (pa.large_list(pa.string()), [[], [""], ["ab"], ["a", "b"], ["b", "a"]]),
    (pa.list_(pa.int64(), 2), [[1, 2], [2, 1], [None, 1], [0, 0]]),
    (pa.list_(pa.list_(pa.int64())), [[], [[]], [[], []], [[1], [2]], [[1, 2]], [[1, 2], []]]),
    (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": None}],
    ),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)], [("a", None)], [("b", 1)]]),
]


def table(kind, values):
    return pa.table({"value": pa.array(values, kind)})


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda each: str(each)[:20])
def test_each_value_of_each_type_has_a_digest_of_its_own(kind, values):
    digests = [digest_rows(table(kind, [value])) for value in (None, *values)]
    assert len(set(digests)) == len(digests)
    # A slice, and a value beside a null, are the same value.
    for value, digest in zip(values, digests[1:], strict=True):
        among = table(kind, [values[0], None, value, values[-1]]).slice(1, 2)
        assert digest_rows(among) == add_digests(digest, digests[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**30))
def test_neither_order_nor_division_of_the_rows_changes_a_digest(seed):
    rng = random.Random(seed)
    size = rng.randrange(1, 60)
    columns = {
        str(number): pa.array(rng.choices([None, *values], k=size), kind)
        for number, (kind, values) in enumerate(VALUES)
        if not pa.types.is_dictionary(kind)  # Arrow's take keeps no type of a dictionary here.
    }
    rows = pa.table(columns)
    digest = digest_rows(rows)
    order = list(range(size))
    rng.shuffle(order)
    mixed = pa.table(
        {n: pa.array([c[i].as_py() for i in order], c.type) for n, c in columns.items()}
    )
    at = rng.randrange(size + 1)
    assert digest_rows(mixed) == digest
    assert add_digests(digest_rows(rows.slice(at)), digest_rows(rows.slice(0, at))) == digest
    assert add_digests(digest, digest_rows(rows.slice(0, 1))) != digest
    assert 0 <= digest < 2**62


def test_columns_are_told_apart_and_one_that_is_null_counts_nothing():
    one = pa.table({"a": [1, 2], "b": [2, 1]})
    assert digest_rows(one) != digest_rows(pa.table({"a": [1, 2], "b": [1, 2]}))
    assert digest_rows(one) != digest_rows(pa.table({"b": [1, 2], "c": [2, 1]}))
    added = one.append_column("new", pa.nulls(2, pa.float64()))
    assert digest_rows(added.select(["new", "b", "a"])) == digest_rows(one)
    assert (
        digest_rows(one.slice(0, 0)) == 0 != digest_rows(pa.table({"a": pa.nulls(1, pa.int64())}))
    )


def test_a_sum_of_floats_in_another_order_is_the_same_row():
    rng = np.random.default_rng(7)
    floats = rng.normal(size=(2000, 12)) * 1000
    sums = floats.sum(axis=1)
    others = np.add.accumulate(floats[:, ::-1], axis=1)[:, -1]
    assert (sums != others).any()
    assert digest_rows(pa.table({"v": sums})) == digest_rows(pa.table({"v": others}))
    assert digest_rows(pa.table({"v": [0.1 + 0.2 - 0.3]})) == digest_rows(pa.table({"v": [0.0]}))
    assert digest_rows(pa.table({"v": [1.0]})) != digest_rows(pa.table({"v": [1.00001]}))


def test_sums_of_cents_in_another_order_are_the_same_rows():
    rng = np.random.default_rng(7)
    for most in (8_000_000, 16_000_000, 32_000_000):
        cents = rng.integers(1, most, (2000, 20)) / 100
        sums = np.add.accumulate(cents, axis=1)[:, -1]
        others = np.add.accumulate(cents[:, ::-1], axis=1)[:, -1]
        assert (sums != others).any()
        assert digest_rows(pa.table({"v": sums})) == digest_rows(pa.table({"v": others}))


def test_many_rows_in_parts_are_all_counted():
    size = 2 * ROWS_IN_CACHE + 3
    rows = pa.table({"a": pa.array(range(size), pa.int64())})
    parts = [digest_rows(rows.slice(at, 1000)) for at in range(0, size, 1000)]
    assert digest_rows(rows) == add_digests(*parts)
