"""Row filters that Hypothesis draws, and the rows that pass, by plain loops."""

from hypothesis import strategies as st

from pyspark_tseries.model.arrays import MAX_NUMBER, MIN_NUMBER, KeyRange
from pyspark_tseries.storage.row_reader import RowFilter

NAMES = ["", "a", "ab", "b", "\uffff", "\U0001f600"]
"""In the order of their UTF-8 bytes; in UTF-16 the last two would change places."""

KEYS = st.tuples(st.sampled_from(NAMES), st.integers(0, 8))

ROWS = st.lists(st.tuples(KEYS, st.integers(-5, 5), st.integers(0, 3)), max_size=30)

SLICES = st.builds(KeyRange, st.none() | KEYS, st.none() | KEYS)

WANTED = st.none() | st.sets(st.sampled_from([*NAMES, "nobody"])).map(sorted)


def pairs(low, high):
    some = st.tuples(st.integers(low, high), st.integers(low, high))
    return st.just((MIN_NUMBER, MAX_NUMBER)) | some


SIEVES = st.builds(RowFilter, WANTED, SLICES, pairs(0, 8), pairs(-5, 5), pairs(0, 3))


def passes(row, row_filter):
    """As the attributes of a sieve say."""
    (name, sequence), us, commit = row
    return (
        (row_filter.names is None or name in row_filter.names)
        and (row_filter.keys.first is None or (name, sequence) >= row_filter.keys.first)
        and (row_filter.keys.end is None or (name, sequence) < row_filter.keys.end)
        and row_filter.sequences[0] <= sequence <= row_filter.sequences[1]
        and row_filter.times[0] <= us <= row_filter.times[1]
        and row_filter.commits[0] <= commit <= row_filter.commits[1]
    )
