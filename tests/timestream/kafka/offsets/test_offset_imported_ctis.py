"""Imported CTIs: which wait, which take effect, and the topic's own CTI."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.builders import at, block, options

from pyspark_timestream.core.instants import FINAL_US, TIME_UNITS
from pyspark_timestream.errors import DataLost, OptionError
from pyspark_timestream.kafka.driver.cti_importer import CtiImporter, derive_import_options
from pyspark_timestream.kafka.offsets.offset import (
    MAX_PENDING,
    ImportedPartition,
    ImportedTopic,
    advance_partition,
    defer,
    merge_topic_cti,
    release,
)
from pyspark_timestream.rules.clocks import PartitionClock

reads = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40)


@given(reads, st.integers(0, 120))
def test_imported_cti_takes_effect_exactly_at_its_offset(steps, reached):
    pending, end, all_read = (), 0, []
    for grown, cti in steps:
        end += grown
        pending = defer(pending, end, cti)
        all_read.append((end, cti))
        assert len(pending) <= MAX_PENDING
        assert list(pending) == sorted(set(pending))
        assert len({at for at, _ in pending}) == len({cti for _, cti in pending}) == len(pending)
    now, left = release(pending, reached)
    allowed = [cti for end, cti in all_read if end <= reached]
    assert now is None or now <= max(allowed)
    if len(steps) <= MAX_PENDING:
        assert now == max(allowed, default=None)
    last, nothing = release(pending, end)
    assert (last, nothing) == (max((cti for _, cti in all_read), default=None), ())
    assert all(end > reached for end, _ in left)


def test_a_cti_waits_for_the_end_that_it_found():
    assert defer(((5, 100),), 9, 200) == ((5, 100), (9, 200))
    assert defer(((5, 100),), 5, 200) == ((5, 200),)
    assert defer(((5, 100),), 9, 100) == ((5, 100),)


def test_of_too_many_waiting_ctis_the_last_ones_wait_for_the_newest_end():
    pending = ()
    for n in range(MAX_PENDING + 3):
        pending = defer(pending, n, n)
    kept = [*range(MAX_PENDING - 1), MAX_PENDING + 2]
    assert pending == tuple((n, n) for n in kept)


def test_imported_topic_survives_json():
    partitions = {
        at(1, "slow"): ImportedPartition(3, PartitionClock(7), 5, ended=False),
        at(0, "slow"): ImportedPartition(4, PartitionClock(FINAL_US), 9, ended=True),
        at(2, "slow"): ImportedPartition(4, PartitionClock(7), 9, False, True, 8),
        at(10, "fast"): ImportedPartition(0),
    }
    stored = json.loads(json.dumps(ImportedTopic(partitions, 5).to_json()))
    assert ImportedTopic.from_json(stored) == ImportedTopic(partitions, 5)
    assert list(stored["partitions"]) == ["fast", "slow"]
    assert list(stored["partitions"]["slow"]) == ["0", "1", "2"]


def test_the_topics_cti_is_the_least_of_the_partitions_that_have_not_ended():
    def partition(cti_us, ended=False):
        return ImportedPartition(0, PartitionClock(), cti_us, ended)

    assert merge_topic_cti([], None) is None
    assert merge_topic_cti([], 7) == 7
    assert merge_topic_cti([partition(5), partition(None)], None) is None
    assert merge_topic_cti([partition(5), partition(9)], None) == 5
    assert merge_topic_cti([partition(5, ended=True), partition(9)], None) == 9
    assert merge_topic_cti([partition(5, ended=True), partition(9, ended=True)], None) == 9
    assert merge_topic_cti([partition(5), partition(9)], 7) == 7


def test_idle_partitions_do_not_hold_the_topics_cti_back():
    def partition(cti_us, **more):
        return ImportedPartition(0, PartitionClock(), cti_us, **more)

    assert merge_topic_cti([partition(None, idle=True), partition(9)], None) == 9
    assert merge_topic_cti([partition(5, idle=True), partition(9, idle=True)], None) == 9
    assert merge_topic_cti([partition(5, idle=True), partition(9, ended=True)], None) == 9
    assert merge_topic_cti([partition(None, idle=True)], None) is None


class Quiet:
    """A topic of two partitions of whole milliseconds, and its brokers' troubles."""

    trouble_count = 0

    def __init__(self, *logs):
        self.logs = {at(number, "fast"): log for number, log in enumerate(logs)}
        self.open = set()

    def partitions(self):
        return list(self.logs)

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions):
        return {partition: len(self.logs[partition]) for partition in partitions}

    def topic_ids(self, topics):
        return dict.fromkeys(topics, "the same")

    def open_transactions(self, ends):
        return self.open & set(ends)

    def read(self, span, _needs):
        stamps = self.logs[span.partition][span.start_inclusive : span.end_exclusive]
        yield block(*[None] * len(stamps), first=span.start_inclusive, timestamps_ms=stamps)


class Importing:
    """The importer of one run after the other, a second a look."""

    def __init__(self, broker, **raw):
        self.broker, self.now_s, self.imported = broker, 0, None
        source = {"ctiImport": '{"topic": "fast", "frequency": 1}'}
        self.options = options(**{**source, "idleTimeout": "10 s", **raw})
        self.restart()

    def restart(self, bounded=False):
        own = derive_import_options(self.options)
        self.importer = CtiImporter(own, self.broker, self.broker.read)
        if bounded:
            self.importer.limit_to_current_ends()

    def update(self, after_s=1):
        """The topic's CTI in milliseconds, and who is idle."""
        self.now_s += after_s
        text = json.dumps(self.imported.to_json()) if self.imported else None
        recorded = ImportedTopic.from_json(json.loads(text)) if text else None
        ids = {"fast": "the same"} if recorded else {}
        self.imported = self.importer.update(recorded, ids, self.now_s * 10**6)
        cti_us = self.imported.cti_us
        idle = {
            partition.number for partition, each in self.imported.partitions.items() if each.idle
        }
        return None if cti_us is None else cti_us // 1000, idle


def test_quiet_imported_partition_holds_back_until_idle_timeout():
    broker = Quiet([5, 9], [])
    run = Importing(broker)
    assert run.update() == (None, set())
    assert [run.update() for _ in range(11)] == [(None, set())] * 10 + [(9, {0, 1})]
    broker.logs[at(0, "fast")] += [12]
    assert run.update() == (12, {1})
    broker.logs[at(1, "fast")] += [7, 20]
    assert run.update() == (12, set())
    # A mark that came too late for the topic's CTI does not take it back.
    assert run.imported.partitions[at(1, "fast")].clock.cti_us == 20_000
    broker.logs[at(0, "fast")] += [30]
    assert run.update() == (20, set())


def test_an_imported_partition_with_an_open_transaction_is_not_idle():
    broker = Quiet([5], [])
    broker.open = {at(1, "fast")}
    run = Importing(broker)
    assert [run.update() for _ in range(30)][-1] == (None, {0})
    broker.open = set()
    assert [run.update() for _ in range(11)][-1] == (5, {0, 1})


def test_empty_imported_partition_holds_back_without_idle_timeout():
    run = Importing(Quiet([5], []), idleTimeout=None)
    assert [run.update(3600) for _ in range(3)] == [(None, set())] * 3


def test_scheduled_runs_count_the_quiet_time_of_imported_partitions_across_runs():
    broker = Quiet([5], [])
    run = Importing(broker, idleTimeout="90 minutes")
    found = []
    for hour in range(5):
        broker.logs[at(0, "fast")].append(10 + hour)
        run.restart(bounded=True)
        run.update(3600)
        found.append(run.update(0))
    assert found == [(None, set()), (None, set()), (12, {1}), (13, {1}), (14, {1})]


def test_restart_waits_again_for_imported_partitions_not_yet_idle():
    run = Importing(Quiet([5], []))
    run.update()
    run.restart()
    assert run.update(3600) == (None, set())
    assert run.update(10) == (5, {0, 1})


def test_final_ctis_end_a_partition_and_leave_its_last_one():
    first = advance_partition(ImportedPartition(0), PartitionClock(3), np.array([1, 3]))
    last = advance_partition(first, PartitionClock(FINAL_US), np.array([4, FINAL_US]))
    assert (first.cti_us, first.ended, first.clock.cti_us) == (3, False, 3)
    assert (last.cti_us, last.ended, last.clock.cti_us) == (4, True, FINAL_US)
    assert advance_partition(last, last.clock, np.array([], dtype=np.int64)) == last


def test_import_options_derive_from_the_streams_options():
    assert derive_import_options(options()) is None
    bare = derive_import_options(options(ctiImport="fast", timeUnit="s", failOnDataLoss="false"))
    assert (bare.subscribe, bare.cti_header, bare.frequency) == (("fast",), "cti", None)
    assert (bare.time_unit, bare.fail_on_data_loss) == ("s", False)
    assert set(TIME_UNITS) >= {"s"}
    own = derive_import_options(options(ctiImport="fast", ctiHeader="mark", writers="a"))
    assert (own.cti_header, own.writers) == ("mark", None)
    made = derive_import_options(
        options(
            ctiImport='{"topic": "fast", "frequency": "2", "delay": "1 s", "startTime": "at"}',
            ctiHeader="mark",
            eventShape="interval",
            endTime="e",
            violationPolicy="fail",
        )
    )
    assert (made.cti_header, made.rules.every_events, made.rules.delay_us) == (None, 2, 1_000_000)
    assert (made.rules.shape, made.rules.policy, str(made.start_time)) == ("point", "drop", "at")


def test_a_running_import_that_is_bounded_keeps_what_it_has_seen():
    broker = Quiet([5, 9], [])
    run = Importing(broker)
    for _ in range(8):
        run.update()
    # The partition is missing from one listing, and the other one's end is outdated.
    broker.partitions, broker.ends = lambda: [at(0, "fast")], lambda partitions: {at(0, "fast"): 1}
    run.importer.limit_to_current_ends()
    del broker.partitions, broker.ends
    broker.logs[at(0, "fast")] += [12]
    assert [run.update() for _ in range(4)] == [(None, set())] * 3 + [(9, {1})]


@pytest.mark.parametrize("bounded", [False, True])
def test_an_import_waits_for_a_partition_whose_leader_changes(bounded):
    """Left out, it would be found later: what lies between it and the other one would be late."""
    broker = Quiet([50], [3])
    told, lacks = broker.ends, [True]

    def ends(partitions):
        left_out = {at(1, "fast")} if lacks and lacks.pop() else set()
        return {part: end for part, end in told(partitions).items() if part not in left_out}

    broker.ends = ends
    run = Importing(broker)
    run.restart(bounded)
    assert run.update() == (3, set())


class NoTopic:
    trouble_count = 0

    def partitions(self):
        return []

    def ends(self, partitions):
        return {}

    def earliest(self, partitions):
        return {}

    def topic_ids(self, topics):
        return {}


def test_a_topic_that_does_not_exist_is_named():
    importer = CtiImporter(derive_import_options(options(ctiImport="fast")), NoTopic(), None)
    with pytest.raises(OptionError, match="option 'ctiImport': topic 'fast' does not exist"):
        importer.update(None, {}, 0)


def test_an_imported_partition_that_is_missing_for_a_moment_is_not_gone():
    gone = ImportedTopic({at(0, "fast"): ImportedPartition(3, PartitionClock(7), 7)}, 7)
    importer = CtiImporter(
        derive_import_options(options(ctiImport="fast", failOnDataLoss="false")), NoTopic(), None
    )
    # The first answer may be a slow one, so five seconds count from the second question.
    assert importer.update(gone, {}, -9_000_000) == gone
    assert importer.update(gone, {}, 1) == gone
    assert importer.update(gone, {}, 5_000_000) == gone
    assert importer.update(gone, {}, 5_000_001) == ImportedTopic({}, 7)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_imported_partition_that_is_missing_where_a_bounded_run_begins_is_not_gone(fails):
    read = ImportedTopic({at(0, "fast"): ImportedPartition(3, PartitionClock(7), 7)}, 7)
    broker = Shorter()
    broker.end = 5
    importer = CtiImporter(
        derive_import_options(options(ctiImport="fast", failOnDataLoss=fails)), broker, None
    )
    broker.partitions = list
    importer.limit_to_current_ends()
    assert importer.update(read, {}, 0) == read
    del broker.partitions
    # It has no bound, so the next run reads on.
    (whole,) = importer.update(read, {}, 2_000_000).partitions.values()
    assert (whole.position, whole.cti_us) == (3, 7)


class Shorter(NoTopic):
    """A broker that tells for a moment where the log ended before."""

    end = 2

    def partitions(self):
        return [at(0, "fast")]

    def ends(self, partitions):
        return dict.fromkeys(partitions, self.end)

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 0)


def test_an_imported_log_that_is_shorter_is_another_one_while_its_id_is_not_told():
    """Nothing of it has been read: at its new end all of its CTIs would be skipped."""
    read = ImportedTopic({at(0, "fast"): ImportedPartition(3, PartitionClock(7), 7)}, 7)
    broker = Shorter()
    importer = CtiImporter(
        derive_import_options(options(ctiImport="fast", failOnDataLoss="false")), broker, None
    )
    importer._read_range = lambda span, _needs: iter(
        [block(*[None] * span.size, first=span.start_inclusive, timestamps_ms=[8] * span.size)]
    )
    ids = {"fast": "x", "topic": "y"}
    assert importer.update(read, ids, 0) == importer.update(read, ids, 2) == read
    (whole,) = importer.update(read, ids, 7_000_000).partitions.values()
    assert (whole.position, whole.clock.events) == (2, 2)
    assert importer.topic_ids == {"fast": "x"}


def test_an_imported_log_that_seems_shorter_for_a_moment_has_lost_nothing():
    read = ImportedTopic({at(0, "fast"): ImportedPartition(3, PartitionClock(7), 7)}, 7)
    broker = Shorter()
    importer = CtiImporter(derive_import_options(options(ctiImport="fast")), broker, None)
    assert importer.update(read, {}, 0) == read
    assert importer.update(read, {}, 4_999_999) == read
    broker.end = 3
    (whole,) = importer.update(read, {}, 5_000_000).partitions.values()
    assert whole == ImportedPartition(3, PartitionClock(7), 7, caught_up_since_us=5_000_000)
    broker.end = 2
    assert importer.update(read, {}, 5_500_000) == read
    assert importer.update(read, {}, 6_000_000) == read
    with pytest.raises(DataLost, match="ends at offset 2, but was read up to 3"):
        importer.update(read, {}, 11_000_000)
