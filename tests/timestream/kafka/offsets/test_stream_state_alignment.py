"""Aligned reading (semantics 5.10): which offsets a batch reads, and that nothing else changes."""

import itertools
import json
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at, first_offset, next_offset, run_context, stream_state
from timestream.small_reads import small_reads
from timestream.stream_world import World, act, drain, steps, times

from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.stream_state import (
    MIN_READ,
    compute_alignment,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import Frequency
from pyspark_timestream.rules.clocks import PartitionClock

SECOND = 1_000_000
FUTURE_S = 4_000_000_000
"""In the year 2096."""


@pytest.fixture
def read_little():
    """Logs of a few records are aligned too, and make several tasks."""
    with small_reads():
        yield


def aligned(skew_s: int | None, delay_s: int | None = None) -> KafkaOptions:
    """Options with this `maxSkew`; a CTI at every event with this delay, None: no CTIs."""
    return KafkaOptions(
        max_skew_us=skew_s and skew_s * SECOND,
        frequency=None if delay_s is None else Frequency(events=1),
        delay_us=(delay_s or 0) * SECOND,
    )


@dataclass
class Reader:
    """A query over logs of event times in seconds (None: no event); only positions are at issue."""

    logs: list[list[int | None]]
    skew_s: int | None
    indexed: bool = True
    bounded: bool = True
    max_offsets: int | None = None
    delay_s: int | None = None
    offset: StreamOffset | None = None

    def clock(self, number: int, upto: int) -> PartitionClock:
        known = (us for us in reversed(self.logs[number][:upto]) if us is not None)
        last_s = next(known, None)
        last_us = None if last_s is None else last_s * SECOND
        if self.delay_s is None or last_us is None:
            return PartitionClock(last_us=last_us)
        newest_s = max(s for s in self.logs[number][:upto] if s is not None)
        return PartitionClock(cti_us=(newest_s - self.delay_s) * SECOND, last_us=last_us)

    def plan(self) -> bool:
        """Plan a batch; False where there is nothing to do."""
        ends = {at(number): len(log) for number, log in enumerate(self.logs)}
        run = run_context(
            aligned(self.skew_s, self.delay_s),
            max_offsets=self.max_offsets,
            bounded=self.bounded,
        )
        if self.offset is None:
            self.offset = first_offset("me", {}, dict.fromkeys(ends, 0), ends, run)
            return True
        previous = self.offset
        partition_offsets = previous.partitions.items()
        positions = {
            partition: partition_offset.end_exclusive
            for partition, partition_offset in partition_offsets
        }
        ended = {
            partition: self.clock(partition.number, end) for partition, end in positions.items()
        }
        wanted_ms = compute_alignment(
            stream_state(previous, ended, positions, ends, run), ends
        ).list_instants_ms()
        index = {
            partition: self.first_at(partition.number, ms) for partition, ms in wanted_ms.items()
        }
        index = index if self.indexed else {}
        planned = next_offset(previous, ended, positions, ends, run, time_index=index)
        # A replay knows only the offset.
        self.offset = StreamOffset.from_json(json.loads(json.dumps(planned.to_json())))
        assert self.offset == planned
        return planned is not previous

    def first_at(self, number: int, ms: int) -> int | None:
        known = enumerate(self.logs[number])
        return next((n for n, s in known if s is not None and s * 1000 >= ms), None)

    def read_all(self) -> list[dict[int, tuple[int, int]]]:
        """Each batch's ranges by partition, to the end of all logs."""
        batches = []
        while self.plan():
            spans = self.offset.ranges()
            batches.append(
                {s.partition.number: (s.start_inclusive, s.end_exclusive) for s in spans}
            )
            assert len(batches) < 20_000, "the run does not end"
        return batches

    def ahead(self, batches) -> list[int]:
        """After each batch, how many records are read that lie past the slowest one and the skew.

        They are what waits in Spark's state. Partitions at the end of their logs hold nobody.
        """
        found = []
        for batch in batches:
            ends = {n: end for n, (_, end) in batch.items()}
            left = [n for n, end in ends.items() if end < len(self.logs[n])]
            bound = min((self.logs[n][ends[n] - 1] for n in left), default=math.inf) + 600
            found.append(sum(s >= bound for n, end in ends.items() for s in self.logs[n][:end]))
        return found


def backfill(hours=4, dense=36_000, behind_h=3):
    """Four partitions with a hundredfold skew in density, one of them three hours behind."""
    start, span = behind_h * 3600, hours * 3600
    steady = [[start + span * n // count for n in range(count)] for count in (dense, 3_600, 360)]
    return [*steady, [(span + start) * n // dense for n in range(dense)]]


@given(st.integers(1, 2), st.lists(times, min_size=1, max_size=3), st.booleans(),
       st.integers(1, 9_000), st.booleans(), st.data())  # fmt: skip
@settings(max_examples=70, deadline=None)
def test_aligned_reading_keeps_every_rule_in_any_course(
    every, logs, imports, skew_us, indexed, data
):
    """The oracle of `stream_world` knows nothing of alignment, of rows, CTIs and clocks all."""
    with small_reads():
        world = World(every, logs, imports, max_skew_us=skew_us, has_time_index=indexed)
        for action in data.draw(st.lists(steps, max_size=12)):
            act(world, action, data)
        drain(world)
        assert {
            n: len(log) for n, log in world.log.items() if at(n) in world.offset().partitions
        } == {
            partition.number: partition_offset.end_exclusive
            for partition, partition_offset in world.offset().partitions.items()
        }


@given(st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=2, max_size=4),
       st.integers(1, 20_000), st.booleans(), st.none() | st.integers(1, 9))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_aligned_rows_ctis_and_counters_equal_those_without(logs, skew_us, indexed, limit):
    def run(**options):
        world = World(2, logs, False, **options)
        while world.batch(limit):
            pass
        rows = sorted(row for *_, rows in world.batches for row in rows if isinstance(row, tuple))
        offset = world.offset()
        ended = {
            partition.number: world.state_after(offset, partition)
            for partition in offset.partitions
        }
        return rows, ended, world.ctis[-1:]

    with small_reads(tasks=False):
        assert run(max_skew_us=skew_us, has_time_index=indexed) == run()


@given(st.lists(st.lists(st.integers(0, 60), max_size=30).map(sorted), min_size=2, max_size=4),
       st.integers(1, 20), st.none() | st.integers(1, 9))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_aligned_batch_reads_exactly_up_to_the_bound_by_the_index(logs, skew_s, limit):
    """By the rule: one record past the bound, and any number only of the slowest partition."""
    with small_reads(tasks=False):
        reader = Reader(logs, skew_s, max_offsets=limit)
        batches = reader.read_all()
    for before, batch in itertools.pairwise(batches):
        left = {n: len(log) - before[n][1] for n, log in enumerate(logs)}
        met = limit is None or sum(left.values()) <= limit
        aligned = [n for n in left if left[n] > (1 if met else 0)]
        if len(aligned) < 2 or any(before[n][1] == 0 for n in aligned):
            continue
        last = {n: logs[n][before[n][1] - 1] for n in aligned}
        # A jump by more than the skew within the last batch does not move the bound yet.
        first = {n: logs[n][before[n][0] - 1] if before[n][0] else last[n] for n in aligned}
        steady = {n: first[n] if last[n] - first[n] > skew_s else last[n] for n in aligned}
        bound = min(steady.values()) + skew_s
        for n in aligned:
            beyond = [s for s in logs[n][slice(*batch[n])] if s >= bound]
            assert len(beyond) <= 1 or steady[n] == min(steady.values())
            if limit is None:
                # Everything before the bound is read.
                assert all(s >= bound for s in logs[n][batch[n][1]:])  # fmt: skip


@pytest.mark.parametrize("indexed", [True, False], ids=["time index", "pace"])
@pytest.mark.parametrize("max_offsets", [None, 5_000])
def test_aligned_backfill_stays_within_the_skew_and_takes_few_batches(indexed, max_offsets):
    logs, skew_s = backfill(), 600
    reader = Reader(logs, skew_s, indexed, max_offsets=max_offsets)
    batches = reader.read_all()
    assert [end for _, end in batches[-1].values()] == [len(log) for log in logs]
    unaligned = Reader(logs, None, max_offsets=5_000)
    assert max(unaligned.ahead(unaligned.read_all())) > 15_000
    # The first reads of four partitions, and one record a batch of each that waits.
    assert max(reader.ahead(batches)) < 4 * MIN_READ
    least = 7 * 3600 / skew_s + sum(map(len, logs)) / (max_offsets or math.inf)
    assert len(batches) < 3 * least


@pytest.mark.parametrize("indexed", [True, False], ids=["time index", "pace"])
def test_aligned_reading_of_events_out_of_order_takes_few_batches(indexed):
    """Each event is up to an hour late, six times the skew; `ctiDelay` allows for that."""
    shuffled = [[max(0, 2 * n - n * 7919 % 3_600) for n in range(10_000)] for _ in range(2)]
    least = 20_000 / 600
    assert len(Reader(shuffled, 600, indexed, delay_s=3_600).read_all()) < 4 * least


@pytest.mark.parametrize("indexed", [True, False], ids=["time index", "pace"])
@pytest.mark.parametrize("futures", [1, 3])
def test_aligned_partition_passes_events_of_the_far_future(indexed, futures):
    logs = [list(range(0, 7200)), list(range(0, 7200))]
    plain = len(Reader(logs, 600, indexed).read_all())
    logs[0][3000:3000] = [FUTURE_S] * futures
    reader = Reader(logs, 600, indexed, delay_s=300)
    batches = reader.read_all()
    assert len(batches) <= plain + 12 + futures
    for batch in batches:
        own, other = batch[0][1], batch[1][1]
        # Neither runs ahead of the other by more than a few times the skew while both have more.
        if max(own, other) < 7200:
            assert abs(own - other) <= (2 + futures) * 600


def test_aligned_partition_of_the_far_future_alone_is_read_at_the_end():
    logs = [[FUTURE_S + n for n in range(1000)], list(range(0, 7200)), list(range(0, 7200))]
    batches = Reader(logs, 600).read_all()
    assert batches[-2][0][1] <= 1000
    assert len(batches) < 50
    assert batches[len(batches) // 2][0][1] < 200


@pytest.mark.parametrize("indexed", [True, False], ids=["time index", "pace"])
def test_aligned_reading_gets_past_markers_and_malformed_events(indexed):
    logs = [[None] * 50_000 + [5], [None] * 300 + list(range(0, 90_000, 10)), [None] * 900]
    batches = Reader(logs, 60, indexed).read_all()
    assert [end for _, end in batches[-1].values()] == [len(log) for log in logs]
    assert len(batches) < 9_000 / 6 + 30


def test_aligned_gaps_longer_than_the_skew_stop_nobody():
    logs = [[n * 86_400 for n in range(1_000)], [n * 86_400 + 5 for n in range(1_000)]]
    assert len(Reader(logs, 60).read_all()) < 1_000 / MIN_READ * 4


def test_aligned_partition_at_its_end_and_small_backlogs_hold_nobody():
    logs = [[0] * 50, [], list(range(100_000, 103_000))]
    assert Reader(logs, 60).read_all()[0] == {0: (0, 50), 1: (0, 0), 2: (0, 3000)}


def test_aligned_partition_without_a_cti_does_not_wait():
    slow, fast = at(0), at(1)
    partition_offsets = {
        partition: PartitionOffset(0, 100, PartitionClock()) for partition in (slow, fast)
    }
    previous = StreamOffset("me", {}, 1, partition_offsets)
    for cti_us, waits in ((None, False), (5_000 * SECOND, True)):
        ended = {
            slow: PartitionClock(cti_us=1, last_us=10),
            fast: PartitionClock(cti_us=cti_us, last_us=5_000 * SECOND),
        }
        ends, run = {slow: 9_000, fast: 9_000}, run_context(aligned(1, 0))
        clock = stream_state(previous, ended, {slow: 100, fast: 100}, ends, run)
        assert (fast in compute_alignment(clock, ends).waiting) == waits


def test_aligned_waiting_partition_is_recorded(read_little):
    reader = Reader([[0, 1, 2, 3, 4], [50, 51, 52, 53, 54]], 10, bounded=False)
    reader.plan()
    reader.plan()
    assert [partition_offset.waits for partition_offset in reader.offset.partitions.values()] == [
        False,
        True,
    ]
    text = json.dumps(reader.offset.to_json())
    assert text.count('"waits": true') == 1


def test_aligned_reading_counts_the_whole_backlog_for_min_offsets():
    logs = [list(range(7200)), list(range(7200))]
    reader = Reader(logs, 10, bounded=False)
    reader.plan()
    ends = {at(n): len(log) for n, log in enumerate(logs)}
    positions = {
        partition: partition_offset.end_exclusive
        for partition, partition_offset in reader.offset.partitions.items()
    }
    ended = {partition: reader.clock(partition.number, end) for partition, end in positions.items()}
    run = run_context(aligned(10), min_offsets=10_000)
    assert sum(s.size for s in next_offset(reader.offset, ended, positions, ends, run).ranges())
