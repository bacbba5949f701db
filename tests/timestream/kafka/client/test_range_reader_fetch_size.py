"""Fetch sizes that follow a topic's compression ratio."""

import pytest

from pyspark_timestream.kafka.client.range_reader import CompressionStats

KB = 1024


def after(*reads: tuple[int, int]) -> bool:
    """Whether a topic is harmless after reads of (received, inflated) bytes."""
    known = CompressionStats()
    for received, inflated in reads:
        known.note("t", received, inflated, 1)
    return known.allows_large_fetches("t")


@pytest.mark.parametrize(
    ("reads", "is_harmless"),
    [
        ([], False),
        ([(31 * KB, 31 * KB)], False),
        ([(32 * KB, 32 * KB)], True),
        ([(16 * KB, 0), (16 * KB, 512 * KB)], True),
        ([(32 * KB, 513 * KB)], False),
        # Ten megabytes out of a thousand bytes.
        ([(1_000, 10_000_000)] * 40, False),
    ],
)
def test_a_topic_is_harmless_when_enough_of_it_has_been_seen_to_inflate_little(reads, is_harmless):
    assert after(*reads) is is_harmless


def test_a_harmless_topic_that_begins_to_inflate_is_harmless_no_longer():
    harmless = (32 * KB, 32 * KB)
    assert after(harmless, (1024 * KB, 64 * 1024 * KB))
    assert not after(harmless, (1024 * KB, 64 * 1024 * KB + 1))
    assert after(harmless, (1024 * KB, 65 * 1024 * KB), harmless)


def test_topics_are_known_one_by_one_with_the_size_of_their_records():
    known = CompressionStats()
    known.note("a", 32 * KB, 32 * KB, 100)
    assert known.allows_large_fetches("a")
    assert not known.allows_large_fetches("b")
    assert known.mean_record_bytes("a") == pytest.approx(327.68)
    assert known.mean_record_bytes("b") is None
    for _ in range(100):
        known.note("a", 0, 10_000 * 1_000, 10_000)
    assert known.mean_record_bytes("a") == pytest.approx(1_000, rel=0.01)
