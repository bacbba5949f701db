"""How many records a client gets at a time, without a broker (semantics 29.3)."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.producer.transactions import limit_chunk

BOUND = 64 * 1024 * 1024


@given(st.integers(1, 10**6), st.integers(0, 10**12), st.integers(1, 2**31))
def test_a_chunk_fits_into_the_queue_by_number_and_by_size(count, size, max_queued) -> None:
    chunk = limit_chunk(count, size, max_queued)
    assert 1 <= chunk <= max_queued
    assert chunk == 1 or chunk * size <= BOUND * count


def test_small_records_go_in_large_chunks() -> None:
    assert limit_chunk(100_000, 5_000_000, 2**31) == 10_000
