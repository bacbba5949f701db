"""A sieve lets through exactly the rows that meet it, and every row group that has one."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.sieves import KEYS, ROWS, SIEVES, passes

from pyspark_tseries.model.arrays import encode_runs, sort_keys
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.storage.row_reader import RowFilter


def table_of(rows):
    columns = [[row[0][0] for row in rows], [row[0][1] for row in rows]]
    columns += [[row[1] for row in rows], [row[2] for row in rows]]
    kinds = [pa.string(), pa.int64(), pa.int64(), pa.int64()]
    series, sequence, us, commit = (pa.array(c, k) for c, k in zip(columns, kinds, strict=True))
    names = ["series", "sequence", "timestamp", "commit"]
    return pa.table([series, sequence, us.cast(INSTANT), commit], names)


@settings(max_examples=300)
@given(ROWS, SIEVES)
def test_the_rows_that_pass_are_those_that_meet_every_condition(rows, row_filter):
    rows.sort(key=lambda row: row[0])
    start, needed = row_filter.match_rows(table_of(rows))
    found = [row for row, yes in zip(rows[start:], needed.tolist(), strict=False) if yes]
    assert found == [row for row in rows if passes(row, row_filter)]


@settings(max_examples=300)
@given(ROWS, SIEVES, st.integers(1, 5), st.sets(st.integers(0, 30)))
def test_no_row_group_with_a_row_that_passes_is_left_out(rows, row_filter, size, unknown):
    rows.sort(key=lambda row: row[0])
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]

    def ends(column):
        at = ["series", "sequence", "timestamp", "commit"].index(column)
        cells = [[(*row[0], *row[1:])[at] for row in group] for group in groups]
        known = [(min(each), max(each)) for each in cells]
        return [None if i in unknown else bounds for i, bounds in enumerate(known)]

    chosen = row_filter.match_groups(len(groups), ends)
    having = [i for i, group in enumerate(groups) if any(passes(row, row_filter) for row in group)]
    assert set(having) <= set(chosen) <= set(range(len(groups)))


def test_of_one_series_only_the_row_groups_around_it_are_chosen():
    known = {"series": [("a", "b"), ("b", "d"), ("d", "d"), ("e", "f")]}
    assert RowFilter(["c"]).match_groups(4, known.__getitem__) == [1]
    assert RowFilter(["d"]).match_groups(4, known.__getitem__) == [1, 2]
    assert RowFilter(["dd"]).match_groups(4, known.__getitem__) == []
    assert RowFilter([]).match_groups(4, known.__getitem__) == []


@settings(max_examples=300)
@given(st.lists(KEYS, max_size=20), st.booleans())
def test_rows_are_brought_into_order_whether_they_were_or_not(keys, in_order):
    keys = sorted(set(keys)) if in_order else keys
    names, codes = encode_runs(pa.array([name for name, _ in keys], pa.string()))
    assert names.to_pylist() == sorted({name for name, _ in keys}, key=str.encode)
    assert [names[int(code)].as_py() for code in codes] == [name for name, _ in keys]
    order = sort_keys(codes, np.array([sequence for _, sequence in keys], np.int64))
    assert [keys[row] for row in order.tolist()] == sorted(keys)
