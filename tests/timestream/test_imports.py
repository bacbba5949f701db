"""Imported CTIs: which wait, which take effect, and how the topic's own CTI comes about."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.builders import at, options

from pyspark_timestream.cti import PartitionState
from pyspark_timestream.errors import DataLost
from pyspark_timestream.event_time import TIME_UNITS
from pyspark_timestream.imports import (
    MOST_PENDING,
    Imported,
    ImportedPartition,
    heard,
    taken,
    topic_cti,
    waiting,
)
from pyspark_timestream.instants import FINAL_US
from pyspark_timestream.kafka_import import Importer, imported_options
from pyspark_timestream.option_fields import OptionError

reads = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40)


@given(reads, st.integers(0, 120))
def test_a_cti_takes_effect_once_the_end_that_it_found_is_reached_and_never_before(steps, reached):
    pending, end, all_read = (), 0, []
    for grown, cti in steps:
        end += grown
        pending = waiting(pending, end, cti)
        all_read.append((end, cti))
        assert len(pending) <= MOST_PENDING
        assert list(pending) == sorted(set(pending))
        assert len({at for at, _ in pending}) == len({cti for _, cti in pending}) == len(pending)
    now, left = taken(pending, reached)
    allowed = [cti for end, cti in all_read if end <= reached]
    assert now is None or now <= max(allowed)
    if len(steps) <= MOST_PENDING:
        assert now == max(allowed, default=None)
    last, nothing = taken(pending, end)
    assert (last, nothing) == (max((cti for _, cti in all_read), default=None), ())
    assert all(end > reached for end, _ in left)


def test_a_cti_waits_for_the_end_that_it_found():
    assert waiting(((5, 100),), 9, 200) == ((5, 100), (9, 200))
    assert waiting(((5, 100),), 5, 200) == ((5, 200),)
    assert waiting(((5, 100),), 9, 100) == ((5, 100),)


def test_of_too_many_waiting_ctis_the_last_ones_wait_for_the_newest_end():
    pending = ()
    for n in range(MOST_PENDING + 3):
        pending = waiting(pending, n, n)
    kept = [*range(MOST_PENDING - 1), MOST_PENDING + 2]
    assert pending == tuple((n, n) for n in kept)


def test_what_was_imported_survives_json():
    parts = {
        at(1, "slow"): ImportedPartition(3, PartitionState(7), 5, ended=False),
        at(0, "slow"): ImportedPartition(4, PartitionState(FINAL_US), 9, ended=True),
        at(10, "fast"): ImportedPartition(0),
    }
    stored = json.loads(json.dumps(Imported(parts, 5).to_json()))
    assert Imported.from_json(stored) == Imported(parts, 5)
    assert list(stored["partitions"]) == ["fast", "slow"]
    assert list(stored["partitions"]["slow"]) == ["0", "1"]


def test_the_topics_cti_is_the_least_of_the_partitions_that_have_not_ended():
    def part(cti_us, ended=False):
        return ImportedPartition(0, PartitionState(), cti_us, ended)

    assert topic_cti([], None) is None
    assert topic_cti([], 7) == 7
    assert topic_cti([part(5), part(None)], None) is None
    assert topic_cti([part(5), part(9)], None) == 5
    assert topic_cti([part(5, ended=True), part(9)], None) == 9
    assert topic_cti([part(5, ended=True), part(9, ended=True)], None) == 9
    assert topic_cti([part(5), part(9)], 7) == 7


def test_final_ctis_end_a_partition_and_leave_its_last_one():
    first = heard(ImportedPartition(0), PartitionState(3), np.array([1, 3]))
    last = heard(first, PartitionState(FINAL_US), np.array([4, FINAL_US]))
    assert (first.cti_us, first.ended, first.state.cti_us) == (3, False, 3)
    assert (last.cti_us, last.ended, last.state.cti_us) == (4, True, FINAL_US)
    assert heard(last, last.state, np.array([], dtype=np.int64)) == last


def test_what_is_imported_follows_from_the_streams_options_and_its_own():
    assert imported_options(options()) is None
    bare = imported_options(options(ctiImport="fast", timeUnit="s", failOnDataLoss="false"))
    assert (bare.subscribe, bare.cti_header, bare.frequency) == (("fast",), "cti", None)
    assert (bare.time_unit, bare.fail_on_data_loss) == ("s", False)
    assert set(TIME_UNITS) >= {"s"}
    own = imported_options(options(ctiImport="fast", ctiHeader="mark", writers="a"))
    assert (own.cti_header, own.writers) == ("mark", None)
    made = imported_options(
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


class NoTopic:
    def partitions(self):
        return []

    def ends(self, partitions):
        return {}

    def topic_ids(self, topics):
        return {}


def test_a_topic_that_does_not_exist_is_named():
    importer = Importer(imported_options(options(ctiImport="fast")), NoTopic(), None)
    with pytest.raises(OptionError, match="option 'ctiImport': topic 'fast' does not exist"):
        importer.look(None, {}, 0)


def test_an_imported_partition_that_is_missing_for_a_moment_is_not_gone():
    gone = Imported({at(0, "fast"): ImportedPartition(3, PartitionState(7), 7)}, 7)
    importer = Importer(
        imported_options(options(ctiImport="fast", failOnDataLoss="false")), NoTopic(), None
    )
    assert importer.look(gone, {}, 0) == gone
    assert importer.look(gone, {}, 4_999_999) == gone
    importer._broker.earliest = lambda partitions: {}
    assert importer.look(gone, {}, 5_000_000) == Imported({}, 7)


class Shorter(NoTopic):
    """A broker that tells for a moment where the log ended before."""

    end = 2

    def partitions(self):
        return [at(0, "fast")]

    def ends(self, partitions):
        return dict.fromkeys(partitions, self.end)

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 0)


def test_an_imported_log_that_seems_shorter_for_a_moment_has_lost_nothing():
    read = Imported({at(0, "fast"): ImportedPartition(3, PartitionState(7), 7)}, 7)
    broker = Shorter()
    importer = Importer(imported_options(options(ctiImport="fast")), broker, None)
    assert importer.look(read, {}, 0) == read
    assert importer.look(read, {}, 4_999_999) == read
    broker.end = 3
    assert importer.look(read, {}, 5_000_000) == read
    broker.end = 2
    assert importer.look(read, {}, 6_000_000) == read
    with pytest.raises(DataLost, match="ends at offset 2, but was read up to 3"):
        importer.look(read, {}, 11_000_000)
