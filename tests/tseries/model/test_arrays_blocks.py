"""Columns in blocks are what columns in one piece would be, and older ones stay as they were."""

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tseries.model import arrays
from pyspark_tseries.model.arrays import BLOCK_ROWS, BlockColumns

ABSENT = {"a": -1, "b": 7, "floor": 0}
ROWS = st.lists(st.integers(0, 30), max_size=12, unique=True)
STEPS = st.lists(st.tuples(ROWS, st.sampled_from([("a",), ("a", "b"), ("a", "floor")])), max_size=8)


def longs(values):
    return np.array(values, np.int64)


@given(STEPS, st.integers(1, 5), st.integers(0, 3), st.lists(st.integers(-1, 40)))
def test_columns_in_blocks_are_what_dictionaries_of_rows_would_be(steps, block, few, asked):
    small = {"BLOCK_ROWS": block, "MAX_SEPARATE_BLOCKS": few}
    with mock.patch.multiple(arrays, **small):
        columns, named, plain, size = BlockColumns({}), set(), {}, 0
        history = []
        for step, (rows, names) in enumerate(steps):
            named |= set(names)
            absent = {name: ABSENT[name] for name in sorted(named)}
            changes = {name: longs([step * 100 + row for row in rows]) for name in names}
            columns = columns.put(longs(rows), changes, absent)
            plain = plain | {(n, row): step * 100 + row for n in names for row in rows}
            size = max([size, *(row + 1 for row in rows)])
            history.append((columns, dict(plain), size, absent))
        for seen, held, rows, absent in history:
            assert (seen.rows, set(seen)) == (rows, set(absent))
            for name, low in absent.items():
                assert seen[name].tolist() == [held.get((name, row), low) for row in range(rows)]
                if rows:
                    ends = seen.bounds(name).tolist()
                    assert ends == [min(seen[name]), max(seen[name])]
            found = seen.take(longs(asked), ABSENT)
            for name, low in ABSENT.items():
                assert found[name].tolist() == [held.get((name, row), low) for row in asked]
            for at, row in enumerate(asked):
                assert seen.row(row, ABSENT) == {name: found[name][at] for name in ABSENT}


def test_a_change_of_one_row_copies_one_block_of_each_column():
    size = 5 * BLOCK_ROWS
    before = BlockColumns({"a": np.zeros(size, np.int64), "b": np.zeros(size, np.int64)})
    row = longs([3 * BLOCK_ROWS])
    after = before.put(row, {"a": row, "b": row}, {"a": 0, "b": 0})
    for name in "ab":
        pairs = zip(before._blocks[name], after._blocks[name], strict=True)
        assert [old is new for old, new in pairs] == [True, True, True, False, True]
