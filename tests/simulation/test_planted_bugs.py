"""The simulation can fail: it finds each of these small bugs, and within this many seeds."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from lengths import with_rest_outside_ci
from simulation.restored import RestoredWorld
from simulation.seeds import run_seeds, world_of
from simulation.store import StoreWorld
from simulation.topic_sink import TopicWorld
from simulation.wide import WideWorld
from simulation.world import World

from pyspark_timestream.core import adapters
from pyspark_timestream.kafka import reader, task
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.driver import driver, end_states, trackers
from pyspark_timestream.kafka.offsets import changes, group_metadata, next_offset, offset
from pyspark_timestream.kafka.writer import stream_writer
from pyspark_timestream.producer import transactions
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_tseries.spark import query_checks
from pyspark_tseries.storage import location
from pyspark_tseries.store import store as stores

pytestmark = [
    pytest.mark.thorough,
    # A process that is killed closes no file.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

SEEDS_TO_FIND = 15
"""A planted bug is found by one of this many seeds of its kind of world at most."""

FOREVER_S = 1e9

Patch = pytest.MonkeyPatch
BUGS: dict[str, tuple[Callable[[Patch], object], list[int]]] = {}
"""Name -> how it is planted, and the seeds that look for it."""


def bug(
    first: int = 0, *, of: type[World] = World, within: int = SEEDS_TO_FIND
) -> Callable[[Callable[[Patch], object]], None]:
    """A bug that a test plants, and looks for in worlds of a kind from the seed `first` on."""

    def add(plant: Callable[[Patch], object]) -> None:
        seeds = (seed for seed in itertools.count(first) if world_of(seed) is of)
        BUGS[plant.__name__] = plant, list(itertools.islice(seeds, within))

    return add


@bug()
def an_offset_is_lost_at_a_restart(patch: Patch) -> None:
    real = driver.StreamDriver._examine_logs

    def find(self: Any, previous: Any, run: Any) -> Any:
        found = real(self, previous, run)
        if not run.new_start:
            return found
        ends = found.ends
        later = {p: min(at + 1, ends.get(p, at)) for p, at in found.positions.items()}
        return found._replace(positions=later)

    patch.setattr(driver.StreamDriver, "_examine_logs", find)


@bug()
def a_replay_reads_other_ranges(patch: Patch) -> None:
    real = reader.KafkaStreamReader.partitions

    def partitions(self: Any, start: Any, end: Any) -> Any:
        if self._driver is None:
            batch = offset.StreamOffset.from_json(end)
            shorter = {
                each: replace(one, end_exclusive=max(one.end_exclusive - 1, one.start_inclusive))
                for each, one in batch.partitions.items()
            }
            end = replace(batch, partitions=shorter).to_json()
        return real(self, start, end)

    patch.setattr(reader.KafkaStreamReader, "partitions", partitions)


@bug()
def a_batch_that_tasks_committed_counts_twice(patch: Patch) -> None:
    real = end_states.load_end_states

    def find(options: Any, batch: Any, *given: Any) -> Any:
        found = real(options, batch, *given)
        clocks = {
            each: replace(clock, events=2 * clock.events - batch.partitions[each].clock.events)
            for each, clock in found.clocks.items()
        }
        return replace(found, clocks=clocks)

    patch.setattr(end_states, "load_end_states", find)


@bug()
def a_late_commit_of_an_old_batch_is_taken_for_the_last_one(patch: Patch) -> None:
    patch.setattr(group_metadata, "_compute_key", lambda batch, partition: 0)


@bug()
def the_counter_of_the_clock_is_not_persisted(patch: Patch) -> None:
    real = PartitionClock.to_json
    patch.setattr(
        PartitionClock,
        "to_json",
        lambda clock: {name: each for name, each in real(clock).items() if name != "count"},
    )


@bug()
def a_moment_without_a_leader_counts_as_a_loss(patch: Patch) -> None:
    patch.setattr(trackers.RunEnds, "wait_for", lambda self, places: self.request_ends())


@bug(440)
def a_first_batch_takes_what_is_there(patch: Patch) -> None:
    def wait_for_first_ranges(self: Any) -> Any:
        ends = self.request_ends(fresh=not self.is_bounded)
        return self._get_broker().earliest(ends), ends

    patch.setattr(trackers.RunEnds, "wait_for_first_ranges", wait_for_first_ranges)


@bug(20)
def a_slow_answer_shows_that_a_partition_is_gone(patch: Patch) -> None:
    def wait_for(self: Any, places: Any) -> Any:
        ends = self.request_ends()
        deadline = time.monotonic() + 5
        while not self.reaches(places) and time.monotonic() < deadline:
            time.sleep(0.5)
            ends = self.request_ends(fresh=True)
        return ends

    patch.setattr(trackers.RunEnds, "wait_for", wait_for)


@bug()
def a_partition_that_comes_back_is_not_raised(patch: Patch) -> None:
    patch.setattr(next_offset, "_raise_to_stream_cti", lambda clock, planned: planned)


@bug()
def handed_rows_lack_their_last_block(patch: Patch) -> None:
    real = adapters.collect_rows

    def collect(rows: Iterator[Any]) -> Any:
        found = real(rows)
        return found[:-1] if found and len(found) > 1 else found

    patch.setattr(adapters, "collect_rows", collect)


@bug()
def a_fetch_that_hung_goes_on_one_offset_later(patch: Patch) -> None:
    real = range_reader.RangeReader._check_progress

    def check(self: Any, span: Any, position: int, *given: Any) -> None:
        real(self, span, position, *given)
        self._skips = True

    seek = range_reader.RangeReader._seek

    def skip(self: Any, partition: Any, position: int) -> None:
        skips, self._skips = getattr(self, "_skips", False), False
        seek(self, partition, position + skips)

    patch.setattr(range_reader.RangeReader, "_check_progress", check)
    patch.setattr(range_reader.RangeReader, "_seek", skip)


@bug(of=StoreWorld)
def a_batch_that_is_stored_is_stored_again(patch: Patch) -> None:
    patch.setattr(stores, "check_replay", lambda *given: False)


@bug(of=StoreWorld)
def a_commit_is_acknowledged_before_it_is_on_the_disk(patch: Patch) -> None:
    patch.setattr(location, "_sync", lambda path: None)


@bug(of=RestoredWorld)
def a_store_that_was_put_back_is_not_noticed(patch: Patch) -> None:
    patch.setattr(query_checks, "_check_history", lambda *given: None)


@bug(of=RestoredWorld)
def a_batch_of_an_older_checkpoint_is_taken_for_one_that_is_stored(patch: Patch) -> None:
    def check_replay(root: Any, token: Any, digest: Any, last: Any, stored: Any) -> bool:
        return last is not None and token[1] <= last

    patch.setattr(stores, "check_replay", check_replay)


@bug(of=WideWorld)
def an_imported_cti_takes_effect_at_once(patch: Patch) -> None:
    real = next_offset.defer
    patch.setattr(next_offset, "defer", lambda pending, end, cti_us: real(pending, 0, cti_us))


@bug(of=WideWorld)
def an_imported_cti_is_lost_where_it_waits(patch: Patch) -> None:
    def release(pending: Any, position: int) -> Any:
        return None, tuple(pair for pair in pending if pair[0] > position)

    patch.setattr(next_offset, "release", release)


@bug(60, of=WideWorld, within=60)
def an_imported_cti_does_not_wait_for_what_metadata_lacks(patch: Patch) -> None:
    def complete(self: Any, told: Any, partitions: Any) -> Any:
        return {**dict.fromkeys(partitions, 0), **told}

    patch.setattr(driver.StreamDriver, "_add_lacking_ends", complete)


@bug(of=WideWorld)
def a_filter_lets_everything_pass(patch: Patch) -> None:
    patch.setattr(task, "find_true_rows", lambda projection, processed: None)


@bug(of=WideWorld)
def a_changed_frequency_keeps_its_counter(patch: Patch) -> None:
    patch.setattr(changes, "change_rules", lambda clock, before, after, **_: clock)


@bug(of=WideWorld)
def a_batch_that_runs_again_has_the_new_options(patch: Patch) -> None:
    real = reader.replace

    def keep(plan: Any, **named: Any) -> Any:
        named.pop("settings", None)
        return real(plan, **named)

    patch.setattr(reader, "replace", keep)


@bug(772, of=WideWorld)
def a_batch_that_runs_again_reads_the_topic_that_was_created_again(patch: Patch) -> None:
    patch.setattr(driver.StreamDriver, "find_recreated", lambda self, batch, ranges: frozenset())


@bug(of=TopicWorld)
def a_batch_that_is_noted_is_written_again(patch: Patch) -> None:
    patch.setattr(stream_writer, "check_written", lambda last, batch, place: False)


@bug(of=TopicWorld)
def rows_are_committed_without_their_note(patch: Patch) -> None:
    real = transactions.ProducerTransactions.commit
    patch.setattr(transactions.ProducerTransactions, "commit", lambda self, *note: real(self))


@bug(of=TopicWorld)
def an_old_attempt_is_not_fenced(patch: Patch) -> None:
    numbers = itertools.count()
    real = stream_writer._open_transaction

    def open_place(options: Any, place: Any) -> Any:
        name = f"{place.transactional_id}/{next(numbers)}"
        return real(options, replace(place, transactional_id=name))

    patch.setattr(stream_writer, "_open_transaction", open_place)


# CI asks whether the simulation finds bugs at all; `make test-more` plants every one.
IN_CI = list(BUGS)[::4]


@pytest.mark.parametrize("name", with_rest_outside_ci(BUGS, IN_CI))
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, seeds = BUGS[name]
    plant(monkeypatch)
    report = run_seeds(seeds, FOREVER_S, lambda line: None, shrinks=False)
    print(f"{name}: {report}", *report.findings)
    assert report.findings
