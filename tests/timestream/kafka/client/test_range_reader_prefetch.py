"""Prefetched ranges are complete, or read again one by one."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.kafka.client import consumer as consumer_module
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.client.consumer import MessageConsumer
from pyspark_timestream.kafka.client.errors import ClientLog
from pyspark_timestream.kafka.client.range_reader import (
    CompressionStats,
    PartialFetch,
    Prefetcher,
    choose_small_ranges,
    prefetch_small_ranges,
)
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition


@dataclass
class Said:
    """As much of a confluent-kafka message as is looked at."""

    place: tuple[str | None, int | None]
    at: int
    code: int | None = None
    size: int = 5

    def topic(self) -> str | None:
        return self.place[0]

    def partition(self) -> int | None:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def error(self) -> object:
        return None if self.code is None else KafkaError(self.code)

    def __len__(self) -> int:
        return self.size


def part(number: int) -> Partition:
    return Partition("t", number)


def end(number: int, at: int) -> Said:
    return Said(part(number), at, KafkaError._PARTITION_EOF)


def offsets(records: Sequence[Said], span: OffsetRange) -> list[int]:
    return [record.at for record in records if record.at < span.end_exclusive]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[OffsetRange], dict[Partition, list[Said]]]:
    """Ranges, and what a consumer gives from each one's start on: gaps, an end or more records."""
    spans, given_by = [], {}
    for number in range(draw(st.integers(1, 4))):
        start, size = draw(st.integers(0, 5)), draw(st.integers(1, 6))
        there = sorted(draw(st.sets(st.integers(start, start + size + 3))))
        stops_at = draw(st.integers(start + size, start + size + 4))
        records = [Said(part(number), at) for at in there if at < stops_at]
        spans.append(OffsetRange(part(number), start, start + size))
        given_by[part(number)] = [*records, end(number, stops_at)]
    return spans, given_by


@given(logs(), st.data())
@settings(max_examples=150)
def test_a_range_is_whole_when_all_below_its_end_has_come(
    world: tuple[list[OffsetRange], dict[Partition, list[Said]]], data: st.DataObject
) -> None:
    spans, given_by = world
    arrivals = PartialFetch(spans)
    left = {place: list(messages) for place, messages in given_by.items()}
    come: dict[Partition, list[Said]] = {place: [] for place in left}
    while any(left.values()):
        polled = []
        for _ in range(data.draw(st.integers(1, 5))):
            waiting = [place for place, messages in left.items() if messages]
            if waiting:
                message = left[data.draw(st.sampled_from(waiting))].pop(0)
                come[Partition(*message.place)].append(message)
                polled.append(message)
        arrivals.add(polled)
        whole = dict(arrivals.complete_ranges())
        for span in spans:
            so_far = come[span.partition]
            is_whole = any(
                m.at >= span.end_exclusive - (m.code is None) for m in so_far
            )  # a record tells of its own offset, an end of all before it
            assert (span in whole) == is_whole
            if is_whole:
                expected = [m.at for m in given_by[span.partition] if m.code is None]
                assert offsets(whole[span], span) == [
                    at for at in expected if at < span.end_exclusive
                ]
    assert arrivals.missing_offsets == 0
    assert not arrivals.failed


def test_fetch_with_an_error_keeps_only_complete_ranges() -> None:
    done, not_done = OffsetRange(part(0), 0, 2), OffsetRange(part(1), 0, 2)
    for place in (part(1), (None, None)):
        arrivals = PartialFetch([done, not_done])
        arrivals.add([Said(part(0), 0), Said(part(0), 1), Said(part(1), 0)])
        assert arrivals.missing_offsets == 1
        arrivals.add([Said(place, -1, KafkaError._AUTO_OFFSET_RESET)])
        assert arrivals.failed
        assert arrivals.missing_offsets == 0
        assert [span for span, _ in arrivals.complete_ranges()] == [done]


def test_records_after_an_error_do_not_complete_a_range() -> None:
    spans = [OffsetRange(part(0), 0, 3), OffsetRange(part(1), 0, 2)]
    wrong = [Said(part(number), 1, KafkaError._BAD_MSG) for number in range(2)]
    arrivals = PartialFetch(spans)
    arrivals.add([Said(part(0), 0), wrong[0], Said(part(0), 2)])
    # Behind the range's end an error is not about it.
    arrivals.add([Said(part(1), 0), Said(part(1), 1), wrong[1]])
    assert [span for span, _ in arrivals.complete_ranges()] == [spans[1]]


def test_the_end_of_a_log_that_became_shorter_makes_nothing_whole() -> None:
    arrivals = PartialFetch([OffsetRange(part(0), 3, 9)])
    arrivals.add([Said(part(0), 3), end(0, 4)])
    assert arrivals.complete_ranges() == []
    assert arrivals.missing_offsets == 5


def test_large_records_end_the_reading_ahead() -> None:
    arrivals = PartialFetch([OffsetRange(part(0), 0, 2), OffsetRange(part(1), 0, 2)])
    arrivals.add([Said(part(0), 0, size=2**30)])
    assert arrivals.missing_offsets == 0
    assert arrivals.complete_ranges() == []


def test_ranges_are_read_ahead_the_smallest_first_as_far_as_memory_allows() -> None:
    large, small, tiny = (
        OffsetRange(part(0), 0, 19_990),
        OffsetRange(part(1), 0, 30),
        OffsetRange(part(2), 5, 7),
    )
    assert choose_small_ranges([large, small, tiny, OffsetRange(part(3), 4, 4)], tiny_records) == [
        tiny,
        small,
    ]
    assert choose_small_ranges([large, small], tiny_records) == []
    assert choose_small_ranges([OffsetRange(part(0), 0, 10)], tiny_records) == []


def test_a_partition_that_is_read_in_two_parts_is_not_read_ahead() -> None:
    spans = [OffsetRange(part(0), 0, 2), OffsetRange(part(0), 2, 4), OffsetRange(part(1), 0, 1)]
    assert choose_small_ranges(spans, tiny_records) == []


def tiny_records(topic: str) -> float | None:
    return 5.0


def test_records_of_unknown_size_and_too_large_ones_are_not_read_at_once() -> None:
    spans = [OffsetRange(part(number), 0, 10) for number in range(4)]
    assert choose_small_ranges(spans, lambda _: None) == []
    assert choose_small_ranges(spans, lambda _: 1_000_000.0) == spans[:3]
    assert choose_small_ranges(spans, lambda _: 10_000_000.0) == []


def test_a_topics_first_range_is_read_by_itself_and_the_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, in_turn, at_once = CompressionStats(), [], []

    def read(span: OffsetRange, needs: ColumnSet) -> Iterator[RecordBlock]:
        in_turn.append(span.partition.number)
        known.note("t", 0, 50, 10)
        return iter(())

    def read_at_once(
        options: object, group: str, spans: Sequence[OffsetRange], needs: ColumnSet
    ) -> dict[OffsetRange, list[RecordBlock]]:
        at_once.append([span.partition.number for span in spans])
        return {span: [] for span in spans[1:]}

    given = read_kafka_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"})
    spans = [OffsetRange(part(number), 0, 2) for number in range(5)]
    monkeypatch.setattr(range_reader, "get_compression_stats", lambda _: known)
    monkeypatch.setattr(range_reader, "_fetch_ranges", read_at_once)
    reading = prefetch_small_ranges(given, "g", spans, ColumnSet(), read)
    for span in spans:
        assert list(reading(span, ColumnSet())) == []
    # A range that did not come whole is read separately.
    assert (in_turn, at_once) == ([0, 1], [[1, 2, 3, 4]])


def test_prefetch_waits_until_held_ranges_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []

    def read_at_once(
        options: object, group: str, spans: Sequence[OffsetRange], needs: ColumnSet
    ) -> dict[OffsetRange, list[RecordBlock]]:
        at_once.append(len(spans))
        return {span: [] for span in spans}

    known = CompressionStats()
    known.note("t", 0, 10_000_000, 10)
    given = read_kafka_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"})
    spans = [OffsetRange(part(number), 0, 1) for number in range(100)]
    monkeypatch.setattr(range_reader, "get_compression_stats", lambda _: known)
    monkeypatch.setattr(range_reader, "_fetch_ranges", read_at_once)
    reading = prefetch_small_ranges(given, "g", spans, ColumnSet(), lambda *_: iter(()))
    # A task takes them in another order than that in which they are chosen.
    for span in [spans[0], *reversed(spans[1:])]:
        assert list(reading(span, ColumnSet())) == []
    assert at_once == [33]


class Fetcher:
    """A consumer that gives what a test puts in its queue; a look at it takes 20 ms."""

    def __init__(self, config: object, logger: object) -> None:
        self.queue: list[Said] = []
        self.now_s = 0.0
        self.state = "new"

    def assign(self, partitions: object) -> None:
        self.state = "assigned"

    def unassign(self) -> None:
        self.state = "at rest"

    def close(self) -> None:
        self.state = "closed"

    def consume(self, most: int, timeout: float) -> list[Said]:
        self.now_s += 0.02
        # An assignment that has ended is out of date, but in the queue until somebody looks.
        found = self.queue[:most] if self.state == "assigned" else []
        self.queue = self.queue[most:] if self.state == "assigned" else []
        return found


def test_paused_consumer_frees_records_fetched_past_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetcher = Fetcher({}, None)
    monkeypatch.setattr(consumer_module, "Consumer", lambda *_, **__: fetcher)
    consumer = MessageConsumer({}, ClientLog({}))
    consumer.seek(part(0), 0)
    fetcher.queue = [Said(part(0), at) for at in range(9)]
    assert consumer.poll(OffsetRange(part(0), 0, 2), 0, ColumnSet(), 1).reached == 2
    consumer.pause()
    assert (fetcher.state, fetcher.queue) == ("at rest", [])


def test_errors_among_records_are_separated(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = Fetcher({}, None)
    monkeypatch.setattr(consumer_module, "Consumer", lambda *_, **__: fetcher)
    consumer = MessageConsumer({}, ClientLog({}))
    consumer.seek(part(0), 0)
    wrong = Said(part(0), 1, KafkaError._BAD_MSG)
    fetcher.queue = [Said(part(0), 0), wrong, Said(part(0), 2), end(0, 5)]
    taken = consumer.poll(OffsetRange(part(0), 0, 5), 0, ColumnSet(), 1)
    assert (taken.block.offsets.to_pylist(), taken.reached) == ([0, 2], 5)
    assert [(p.error.code(), p.offset) for p in taken.errors] == [(KafkaError._BAD_MSG, 1)]


def test_a_slow_first_connection_serves_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Fetcher] = []
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    create = lambda config, logger: made.append(Fetcher(config, logger)) or made[-1]  # noqa: E731
    clock = SimpleNamespace(monotonic=lambda: made[-1].now_s if made else 0)
    monkeypatch.setattr(range_reader, "Consumer", create)
    monkeypatch.setattr(range_reader, "time", clock)
    reader = Prefetcher(read_kafka_options(given), "g")
    spans = [OffsetRange(part(number), 0, 2) for number in range(2)]
    assert reader.read(spans, ColumnSet()) == {}
    (fetcher,) = made
    assert (fetcher.state, fetcher.now_s > 0.9) == ("at rest", True)
    fetcher.queue = [Said(part(number), at) for at in range(9) for number in range(2)]
    assert reader.read(spans, ColumnSet()).keys() == set(spans)
    assert (fetcher.state, fetcher.queue) == ("at rest", [])
    # A client that was used before knows a cluster that may have changed since.
    assert reader.read(spans, ColumnSet()) == {}
    assert fetcher.state == "closed"
    fetchers = len(made)
    # A client that has met an error is closed at once.
    reader.read(spans, ColumnSet())
    assert len(made) == fetchers + 1
    made[-1].queue = [Said(part(0), -1, KafkaError._AUTO_OFFSET_RESET)]
    assert reader.read(spans, ColumnSet()) == {}
    assert made[-1].state == "closed"


def test_fetch_settings_of_the_user_are_kept() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    named = {"kafka.queued.max.messages.kbytes": "1024", "kafka.fetch.message.max.bytes": "1000"}
    ours, theirs = (
        Prefetcher(read_kafka_options(options), "g")._config for options in (given, given | named)
    )
    for name, value in named.items():
        assert theirs[name.removeprefix("kafka.")] == value
        assert ours[name.removeprefix("kafka.")] == 64 * 1024


def test_broker_that_goes_away_completes_no_range_in_time() -> None:
    # librdkafka's own broker for tests: it lives and dies with this producer.
    server = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    for at in range(10):
        for number in range(4):
            server.produce("t", f"{number}-{at}", partition=number)
    assert server.flush(60) == 0
    (where,) = server.list_topics(timeout=60).brokers.values()
    given = {"kafka.bootstrap.servers": f"{where.host}:{where.port}", "kafka.log_level": "0"}
    reader = Prefetcher(read_kafka_options({**given, "subscribe": "t"}), "g")
    spans = [OffsetRange(part(number), 2, 5) for number in range(4)]
    try:
        deadline_s = time.monotonic() + 60
        found = reader.read(spans, ColumnSet(values=True))
        while len(found) < len(spans):  # a first connection may take longer than a reader waits
            assert time.monotonic() < deadline_s
            found = reader.read(spans, ColumnSet(values=True))
        assert {span: [block.values.to_pylist() for block in found[span]] for span in found} == {
            span: [[f"{span.partition.number}-{at}".encode() for at in (2, 3, 4)]] for span in spans
        }
        del server
        assert reader.read(spans, ColumnSet(values=True)) == {}
    finally:
        reader.close()
