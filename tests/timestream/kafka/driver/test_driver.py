"""The driver against a broker that loses, truncates, recreates and briefly misses partitions."""

import json
import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timestream.builders import at, options
from timestream.driven import Driven, FakeBroker, unreadable

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.errors import (
    BrokerUnreachable,
    CheckpointMismatch,
    CheckpointUnreadable,
    DataLost,
    OptionError,
)
from pyspark_timestream.kafka.decode.columns import build_default_schema, project
from pyspark_timestream.kafka.diagnosis.causes import diagnose
from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.group_metadata import encode_group_metadata
from pyspark_timestream.kafka.offsets.offset import (
    ImportedPartition,
    ImportedTopic,
    MalformedPayloads,
    StreamOffset,
)
from pyspark_timestream.kafka.ranges import OffsetRange
from pyspark_timestream.kafka.reader import KafkaStreamReader
from pyspark_timestream.rules.clocks import PartitionClock


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for module in ("driver.trackers", "client.broker"):
        monkeypatch.setattr(f"pyspark_timestream.kafka.{module}.LEADER_CHANGE_GRACE_S", 0.05)


class Imports:
    """An imported topic with the CTI that the test sets."""

    def __init__(self) -> None:
        self.cti_us = None
        self.topic_ids: dict = {}

    def update(self, recorded, topic_ids, now_us):
        return ImportedTopic(
            {at(0, "fast"): ImportedPartition(1, PartitionClock(self.cti_us))}, self.cti_us
        )


@pytest.mark.parametrize("is_late", [False, True])
def test_an_imported_cti_takes_effect_where_the_stream_ends_before_its_log(is_late):
    broker = FakeBroker(p0=(0, 1000))
    broker.high_watermarks = lambda partitions: {
        partition: broker.log[partition][1] for partition in partitions
    }
    run = Driven(broker, ctiImport="fast", endingOffsets='{"topic": {"0": 100}}')
    run.driver._importer = imports = Imports()
    imports.limit_to_current_ends = lambda: None
    imports.cti_us = None if is_late else 7
    run.plan(cap=60)
    imports.cti_us = 7
    while run.plan() is not None:
        pass
    (partition_offset,) = StreamOffset.from_json(run.offset).partitions.values()
    assert (
        partition_offset.end_exclusive,
        partition_offset.pending,
        partition_offset.clock.cti_us,
    ) == (100, (), 7)
    assert (run.offset["end_of_run"], run.offset["cti"]) == (True, 7)


def test_import_waits_for_records_of_open_transactions():
    broker = FakeBroker(p0=(0, 10))
    broker.high_watermarks = lambda partitions: dict.fromkeys(partitions, 15)
    run = Driven(broker, ctiImport="fast")
    run.driver._importer = imports = Imports()
    run.plan()
    imports.cti_us = 7
    run.plan()
    (partition_offset,) = StreamOffset.from_json(run.offset).partitions.values()
    # The stable end is 10; what the transaction wrote before the import is read later.
    assert (
        partition_offset.start_inclusive,
        partition_offset.pending,
        partition_offset.clock.cti_us,
    ) == (10, ((15, 7),), None)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_imported_cti_waits_for_open_transactions_after_a_loss_as_well(is_restarted):
    """Records before the position are deleted; those of the transaction came before the CTI."""
    broker = FakeBroker(p0=(0, 10))
    broker.high_watermarks = lambda partitions: dict.fromkeys(partitions, 15)
    run = Driven(broker, ctiImport="fast", failOnDataLoss="false")
    run.driver._importer = imports = Imports()
    run.plan(cap=4)
    imports.cti_us = 7
    run.plan(cap=1)
    if is_restarted:
        run, before = Driven(broker, ctiImport="fast", failOnDataLoss="false"), run
        run.driver._importer, run.offset = imports, before.offset
    broker.log[at(0)] = (8, 10)
    assert run.plan() == {0: (8, 10)}
    while run.plan() is not None:
        pass
    (partition,) = StreamOffset.from_json(run.offset).partitions.values()
    assert (partition.pending, partition.clock.cti_us) == (((15, 7),), None)


@pytest.mark.parametrize("is_bounded", [False, True])
def test_an_imported_cti_waits_for_a_partition_that_metadata_lacks_for_a_moment(is_bounded):
    """Its log may have more than was read: the CTI would make that late."""
    told = [{}, {}, {at(0): 20}]
    broker = FakeBroker(p0=(0, 10))
    broker.high_watermarks = lambda partitions: told.pop(0) if told[1:] else told[0]
    run = Driven(broker, ctiImport="fast")
    run.driver._importer = imports = Imports()
    imports.limit_to_current_ends = lambda: None
    run.plan()
    if is_bounded:
        run.driver.limit_to_current_ends()
    imports.cti_us = 7
    broker.log[at(0)] = (0, 20)
    run.plan()
    (partition,) = StreamOffset.from_json(run.offset).partitions.values()
    assert (partition.pending, partition.clock.cti_us, run.offset["import"]["cti"]) in (
        (((20, 7),), None, 7),
        ((), None, None),
    )
    while run.plan() is not None:
        pass
    (partition,) = StreamOffset.from_json(run.offset).partitions.values()
    assert (partition.pending, partition.clock.cti_us) == (((20, 7),), None)
    assert partition.end_cti_us == (None if is_bounded else 7)


@pytest.mark.parametrize("fails", [True, False])
def test_a_clock_is_not_restored_from_the_records_of_a_recreated_topic(fails, caplog):
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss=str(fails).lower(), ctiFrequency="2")
    # The reader of this driver finds nothing: it must not be asked.
    del run.driver._end_states.restore
    run.plan()
    broker.log[at(0)], broker.topic_id = (0, 150), "second"
    if fails:
        with pytest.raises(DataLost, match="deleted and created again"):
            run.plan()
        return
    assert run.plan() == {0: (0, 150)}
    assert "no task committed the clock of topic 'topic' partition 0" in caplog.text


def test_a_clock_is_restored_only_from_records_of_a_topic_whose_id_is_told():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss="false", ctiFrequency="2")
    del run.driver._end_states.restore
    run.plan()
    broker.log[at(0)], broker.topic_id, told = (0, 150), "second", broker.topic_ids
    broker.topic_ids = lambda topics: {}
    with pytest.raises(BrokerUnreachable, match=r"to be restored .* do not tell the id of topic"):
        run.plan()
    answers = [{}, {}, {}]
    broker.topic_ids = lambda topics: answers.pop() if answers else told(topics)
    run.plan()
    (partition,) = StreamOffset.from_json(run.offset).partitions.values()
    assert partition.clock == PartitionClock()


def run_again(run, broker, **raw):
    """The tasks of the batch that `run` has planned last, in a new run."""
    given = options(startingOffsets="earliest", ctiFrequency="2", **raw)
    reader = KafkaStreamReader(given, project(given, build_default_schema(given)))
    reader._driver = StreamDriver(given, broker.connect, create_reader=unreadable)
    return [task.plan for task in reader.partitions(INITIAL_OFFSET, run.offset)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_that_runs_again_reads_nothing_of_a_topic_created_again(fails, caplog):
    broker = FakeBroker(p0=(0, 100))
    lossy = {"failOnDataLoss": str(fails).lower()}
    run = Driven(broker, ctiFrequency="2", **lossy)
    run.plan()
    [plan] = run_again(run, broker, **lossy)
    assert plan.ranges[0].offsets == OffsetRange(at(0), 0, 100)
    broker.log[at(0)], broker.topic_id = (0, 150), "second"
    if fails:
        with pytest.raises(DataLost, match="batch 0 runs again without the records of topic 'topi"):
            run_again(run, broker, **lossy)
        return
    [plan] = run_again(run, broker, **lossy)
    # Its clock still holds the minimum back.
    assert plan.ranges[0].offsets == OffsetRange(at(0), 0, 0)
    assert "batch 0 runs again without the records of topic 'topic', deleted" in caplog.text


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_that_runs_again_asks_for_the_id_of_its_topic_until_it_is_told(fails):
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, ctiFrequency="2", failOnDataLoss=fails)
    run.plan()
    answers = [{}, {}, {"topic": "first"}]
    broker.topic_ids = lambda topics: answers.pop(0)
    [plan] = run_again(run, broker, failOnDataLoss=fails)
    assert (plan.ranges[0].offsets, answers) == (OffsetRange(at(0), 0, 100), [])
    broker.topic_ids = lambda topics: {}
    with pytest.raises(BrokerUnreachable, match="do not tell the id of topic 'topic': it may have"):
        run_again(run, broker, failOnDataLoss=fails)
    # A topic that is gone has no id: the tasks say that its records are lost.
    del broker.log[at(0)]
    [plan] = run_again(run, broker, failOnDataLoss=fails)
    assert plan.ranges[0].offsets == OffsetRange(at(0), 0, 100)


def test_deleted_partition_is_reported_once_and_removed(caplog):
    broker = FakeBroker(p0=(0, 10), p1=(0, 10))
    run = Driven(broker, failOnDataLoss="false")
    assert run.plan() == {0: (0, 10), 1: (0, 10)}
    del broker.log[at(1)]
    assert run.plan() == {0: (10, 10)}
    assert run.plan() is None
    assert run.plan() is None
    assert caplog.text.count("partition 1 is gone") == 1


def test_recreated_topic_is_read_from_its_start_even_if_empty_before():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    assert run.plan() == {0: (0, 100)}
    broker.log[at(0)] = (0, 0)
    assert run.plan() == {0: (0, 0)}
    broker.log[at(0)] = (0, 150)
    assert run.plan() == {0: (0, 150)}


def test_a_partition_missing_from_one_listing_is_not_gone():
    broker = FakeBroker(p0=(0, 100), p1=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    run.plan()
    broker.missing = [0]
    broker.log[at(1)] = (0, 110)
    assert run.plan() == {0: (100, 100), 1: (100, 110)}


def test_the_troubles_of_two_partitions_do_not_add_up(monkeypatch):
    """One is missing for four seconds; then the other one's former leader answers, for a moment."""
    now = [100.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    monkeypatch.setattr("pyspark_timestream.kafka.driver.trackers.time", clock)
    monkeypatch.setattr("pyspark_timestream.kafka.driver.trackers.LEADER_CHANGE_GRACE_S", 5)
    broker = FakeBroker(p0=(0, 100), p1=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    assert run.plan() == {0: (0, 100), 1: (0, 100)}
    real, short = broker.ends, {at(0): 90, at(1): 100}
    answers = iter([{at(0): 100}, {at(0): 100}, short, short])

    def ends(partitions):
        now[0] += 1.5
        return next(answers, None) or real(partitions)

    broker.ends = ends
    broker.log[at(0)] = (0, 110)
    assert run.plan() == {0: (100, 110), 1: (100, 100)}


def test_a_log_that_seems_shorter_for_a_moment_has_lost_nothing():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker)
    assert run.plan() == {0: (0, 100)}
    broker.log[at(0)] = (0, 110)
    broker.former_ends = [90, 90, 90]
    assert run.plan() == {0: (100, 110)}


def test_a_loss_fails_the_query_unless_it_is_allowed():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker)
    run.plan()
    broker.log[at(0)] = (120, 130)
    with pytest.raises(DataLost, match="offsets 100 to 119 were deleted before they were read"):
        run.plan()


def test_a_bounded_run_over_a_truncated_topic_ends_where_the_log_does():
    broker = FakeBroker(p0=(0, 100))
    broker.topic_ids = lambda topics: {}
    run = Driven(broker, failOnDataLoss="false")
    run.driver.limit_to_current_ends()
    assert run.plan(cap=40) == {0: (0, 40)}
    broker.log[at(0)] = (0, 30)
    assert run.plan() == {0: (0, 30)}
    assert run.plan() == {0: (30, 30)}
    assert StreamOffset.from_json(run.offset).end_of_run
    assert run.plan() is None


def test_a_bounded_run_that_loses_a_partition_ends(caplog):
    broker = FakeBroker(p0=(0, 10), p1=(0, 10))
    run = Driven(broker, failOnDataLoss="false")
    run.driver.limit_to_current_ends()
    assert run.plan() == {0: (0, 10), 1: (0, 10)}
    del broker.log[at(1)]
    assert run.plan() == {0: (10, 10)}
    assert (run.offset["end_of_run"], run.plan()) == (True, None)
    assert "there again" not in caplog.text


def test_a_partition_found_after_a_bounded_run_began_waits_for_the_next_run():
    broker = FakeBroker(p0=(0, 10))
    run = Driven(broker)
    run.driver.limit_to_current_ends()
    run.plan()
    broker.log[at(1)] = (0, 10)
    assert run.plan() == {0: (10, 10)}
    later = Driven(broker)
    later.offset = run.offset
    assert later.plan() == {0: (10, 10), 1: (0, 10)}


def test_recreated_topic_is_recognised_by_its_id_at_any_length():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    run.plan()
    broker.log[at(0)], broker.topic_id = (0, 150), "second"
    assert run.plan() == {0: (0, 150)}
    assert run.plan() is None
    strict = Driven(broker)
    strict.offset, broker.topic_id = run.offset, "third"
    with pytest.raises(DataLost, match="has been deleted and created again since"):
        strict.plan()


@pytest.mark.parametrize("recorded", ["another id", "none"])
def test_first_offsets_of_a_topic_that_is_created_again_are_not_those_of_the_one_before(recorded):
    """Ids and first offsets are asked for at the same time, and the new topic begins at 0."""
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    if recorded == "none":
        broker.topic_ids = lambda topics: {}
    assert run.plan() == {0: (0, 100)}
    broker.log[at(0)] = (70, 120)
    before = [broker.earliest(broker.log)]
    broker.log[at(0)], broker.topic_id = (0, 60), "second"
    broker.topic_ids = FakeBroker.topic_ids.__get__(broker)
    broker.earliest = lambda parts: before.pop() if before else FakeBroker.earliest(broker, parts)
    # An id that was not recorded may be a new one: only the end of the log tells.
    assert run.plan() == {0: (0, 60)}
    assert not before


def test_log_without_its_end_continues_at_the_new_end_for_the_same_id(caplog):
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    run.plan()
    broker.log[at(0)] = (0, 99)
    assert run.plan() == {0: (99, 99)}
    assert "ends at offset 99, but was read up to 100: the end of its log is lost" in caplog.text
    broker.log[at(0)] = (0, 105)
    assert run.plan() == {0: (99, 105)}
    strict = Driven(broker)
    strict.offset, broker.log[at(0)] = run.offset, (0, 104)
    with pytest.raises(DataLost, match="the end of its log is lost"):
        strict.plan()


def hide(broker, run, number=1):
    """The partition's bounds, after a batch that missed it."""
    bounds = broker.log.pop(at(number))
    assert run.plan() == {0: (10, 10)}
    return bounds


def two(**raw):
    broker = FakeBroker(p0=(0, 10), p1=(0, 10))
    run = Driven(broker, failOnDataLoss="false", **raw)
    run.plan()
    return broker, run


def test_missing_partition_continues_and_its_return_is_logged_once(caplog):
    broker, run = two()
    hide(broker, run)
    assert run.plan() is None
    broker.log[at(1)] = (0, 10)
    assert run.plan() == {0: (10, 10), 1: (10, 10)}
    assert run.plan() is None
    broker.log[at(1)] = (0, 12)
    assert run.plan() == {0: (10, 10), 1: (10, 12)}
    assert caplog.text.count("partition 1 is there again; going on at offset 10") == 1


def test_missing_partition_keeps_its_position_over_a_restart(caplog):
    broker, run = two()
    hide(broker, run)
    later = Driven(broker, failOnDataLoss="false")
    later.offset = run.offset
    assert later.plan() == {0: (10, 10)}
    broker.log[at(1)] = (15, 20)
    assert later.plan() == {0: (10, 10), 1: (15, 20)}
    assert "offsets 10 to 14 were deleted before they were read" in caplog.text


def test_missing_partition_keeps_its_counts_of_malformed_values():
    broker, run = two()
    last, counts = json.loads(json.dumps(run.offset)), {"malformed": {"type": 7}}
    last["partitions"]["topic"]["1"] |= counts
    run.offset = last
    bounds = hide(broker, run)
    assert run.offset["missing"]["topic"]["1"].items() >= counts.items()
    broker.log[at(1)] = bounds
    run.plan()
    assert run.offset["partitions"]["topic"]["1"].items() >= counts.items()


def test_missing_partition_goes_on_only_if_the_id_of_its_topic_is_told():
    """A topic that was created again may not be known yet by the broker that is asked."""
    broker = FakeBroker(p0=(0, 100), p1=(0, 10))
    run = Driven(broker, failOnDataLoss="false")
    run.plan()
    del broker.log[at(0)]
    assert run.plan() == {1: (10, 10)}
    broker.log[at(0)], broker.topic_id, told = (0, 150), "second", broker.topic_ids
    answers = [{}, {}]
    broker.topic_ids = lambda topics: answers.pop() if answers else told(topics)
    assert run.plan() == {0: (0, 150), 1: (0, 10)}


def test_missing_partition_of_a_recreated_topic_starts_from_its_start():
    broker, run = two()
    hide(broker, run)
    broker.log[at(1)], broker.topic_id = (0, 12), "second"
    assert run.plan() == {0: (0, 10), 1: (0, 12)}
    assert StreamOffset.from_json(run.offset).missing == {}


def test_without_an_id_a_partition_that_comes_back_may_be_another_one():
    broker = FakeBroker(p0=(0, 10), p1=(0, 10))
    broker.topic_ids = lambda topics: {}
    run = Driven(broker, failOnDataLoss="false")
    run.plan()
    broker.log[at(1)] = hide(broker, run)
    assert run.plan() == {0: (10, 10), 1: (0, 10)}


def test_a_partition_that_was_missing_for_a_week_is_forgotten():
    broker, run = two()
    hide(broker, run)
    run.now_s += 7 * 86_400
    broker.log[at(0)] = (0, 11)
    run.plan()
    offset = StreamOffset.from_json(run.offset)
    assert offset.missing == {}
    assert offset.topic_ids == {"topic": "first"}


def test_the_id_of_a_topic_that_is_gone_for_good_is_forgotten():
    broker = FakeBroker(p0=(0, 10))
    broker.log[at(0, "other")] = (0, 10)
    run = Driven(broker, failOnDataLoss="false", subscribe="topic,other")
    run.plan()
    del broker.log[at(0, "other")]
    run.plan()
    assert StreamOffset.from_json(run.offset).topic_ids == {"topic": "first", "other": "first"}
    run.now_s += 7 * 86_400
    broker.log[at(0)] = (0, 11)
    run.plan()
    assert StreamOffset.from_json(run.offset).topic_ids == {"topic": "first"}


def test_a_topic_whose_id_is_not_known_is_taken_for_the_same():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker)
    broker.topic_ids = lambda topics: {}
    run.plan()
    broker.topic_ids = FakeBroker.topic_ids.__get__(broker)
    broker.log[at(0)] = (0, 110)
    assert run.plan() == {0: (100, 110)}
    broker.topic_ids = lambda topics: {}
    broker.log[at(0)] = (0, 120)
    assert run.plan() == {0: (110, 120)}
    assert StreamOffset.from_json(run.offset).topic_ids == {"topic": "first"}


def test_joined_batches_that_run_again_leave_out_a_topic_that_only_an_earlier_one_reads():
    """The last batch reads only one topic, and the other was created again since."""
    broker = FakeBroker(p0=(0, 10))
    broker.log[at(0, "other")] = (0, 5)
    lossy = {"failOnDataLoss": "false"}
    run = Driven(broker, ctiFrequency="2", **lossy)
    run.plan()
    broker.log[at(0, "other")] = (0, 8)
    run.plan()
    assert {each.partition.topic for each in StreamOffset.from_json(run.offset).ranges()
            if each.size} == {"other"}  # fmt: skip
    broker.topic_ids = lambda topics: {
        name: "second" if name == "topic" else "first" for name in topics
    }
    plans = run_again(run, broker, **lossy)
    ranges = {each.offsets for plan in plans for each in plan.ranges if each.offsets.size}
    assert ranges == {OffsetRange(at(0, "other"), 0, 8)}


def test_beginnings_are_remembered_until_a_batch_after_them_is_noted():
    broker = FakeBroker(p0=(0, 5))
    run = Driven(broker)
    run.plan()
    broker.log |= {at(0): (0, 7), at(1): (2, 4)}
    run.plan()
    (plan,) = run.driver.plan_joined_batches(INITIAL_OFFSET, StreamOffset.from_json(run.offset))
    assert [partition_offset.offsets for partition_offset in plan.ranges] == [
        OffsetRange(at(0), 0, 7),
        OffsetRange(at(1), 2, 4),
    ]
    first = run.offset
    run.driver.mark_committed(INITIAL_OFFSET)
    broker.log[at(0)] = (0, 8)
    run.plan()
    assert StreamOffset.from_json(run.offset).partitions[at(1)].restart_points == ((1, 2),)
    run.driver.mark_committed(first)
    broker.log[at(0)] = (0, 9)
    run.plan()
    assert {
        partition_offset.restart_points
        for partition_offset in StreamOffset.from_json(run.offset).partitions.values()
    } == {()}


def test_no_batch_lists_partitions_before_it_is_time_to(monkeypatch):
    monkeypatch.setattr("pyspark_timestream.kafka.driver.trackers._REFRESH_AGE_S", 3_600.0)
    monkeypatch.setattr("pyspark_timestream.kafka.driver.trackers._MAX_AGE_S", 3_600.0)
    broker = FakeBroker(p0=(0, 2))
    listed, list_all = [], broker.partitions
    broker.partitions = lambda: listed.append(1) or list_all()
    driver, offset = (
        StreamDriver(options(startingOffsets="earliest"), broker.connect),
        INITIAL_OFFSET,
    )
    driver._end_states.restore = lambda options, offset, span: (
        offset.partitions[span.partition].clock
    )
    for end in range(3, 9):
        broker.log[at(0)] = (0, end)
        offset = driver.plan(offset, None)
    assert StreamOffset.from_json(offset).partitions[at(0)].end_exclusive == 8
    assert len(listed) == 1
    driver._partition_cache.asked_at_s = float("-inf")
    broker.log[at(1)] = (0, 5)
    assert at(1) in StreamOffset.from_json(driver.plan(offset, None)).partitions
    assert len(listed) == 2


def test_a_stream_that_falls_quiet_runs_one_empty_batch_and_no_more():
    run = Driven(FakeBroker(p0=(0, 100)))
    run.plan()
    assert run.plan() is None
    run.now_s += 0.9
    assert run.plan() is None
    run.now_s += 0.2
    assert run.plan() == {0: (100, 100)}
    for _ in range(5):
        run.now_s += 60
        assert run.plan() is None


def idle(run):
    partition_offsets = StreamOffset.from_json(run.offset).partitions
    return {
        partition.number
        for partition, partition_offset in partition_offsets.items()
        if partition_offset.idle
    }


def idling(cap=None, **logs):
    broker = FakeBroker(**logs)
    run = Driven(broker, ctiFrequency="1", idleTimeout="10 seconds")
    run.plan(cap)
    return broker, run


def pass_by(run, seconds):
    """Look once a second, as batches come; who was idle after each second."""
    found = []
    for _ in range(seconds):
        run.now_s += 1
        run.plan()
        found.append(idle(run))
    return found


def test_partition_quiet_for_the_timeout_becomes_idle():
    broker, run = idling(p0=(0, 5), p1=(0, 5))
    run.plan()
    for _ in range(9):
        broker.log[at(1)] = (0, broker.log[at(1)][1] + 1)
        assert pass_by(run, 1) == [set()]
    assert pass_by(run, 1) == [{0}]
    broker.log[at(0)] = (0, 6)
    assert pass_by(run, 2) == [set(), set()]


def test_a_partition_held_back_by_a_rate_limit_is_not_idle():
    _, run = idling(20, p0=(0, 5), p1=(0, 1_000))
    for _ in range(20):
        run.now_s += 1
        run.plan(cap=20)
    assert idle(run) == {0}


def test_an_open_transaction_is_not_idle():
    broker, run = idling(p0=(0, 5))
    broker.open = {at(0)}
    assert pass_by(run, 25)[-1] == set()
    broker.open = set()
    assert pass_by(run, 11)[-1] == {0}
    broker.open = {at(0)}
    assert pass_by(run, 2)[-1] == set()


def test_a_broker_that_fails_or_is_slow_restarts_the_waiting():
    broker, run = idling(p0=(0, 5))
    run.plan()
    assert pass_by(run, 9)[-1] == set()
    broker.trouble_count += 1
    assert pass_by(run, 10)[-1] == set()
    assert pass_by(run, 1) == [{0}]


def test_restart_starts_waiting_again_and_keeps_idle_partitions():
    broker, run = idling(p0=(0, 5), p1=(0, 5))
    pass_by(run, 8)
    broker.log[at(1)] = (0, 6)
    pass_by(run, 3)
    assert idle(run) == {0}
    again = Driven(broker, ctiFrequency="1", idleTimeout="10 seconds")
    again.offset, again.now_s = run.offset, run.now_s + 3_600
    assert pass_by(again, 10)[-1] == {0}
    assert pass_by(again, 1) == [{0, 1}]


def test_bounded_run_does_not_wait_and_skips_recorded_idle_partitions():
    broker, run = idling(p0=(0, 5), p1=(0, 5))
    pass_by(run, 8)
    broker.log[at(1)] = (0, 6)
    pass_by(run, 3)
    bounded = Driven(broker, ctiFrequency="1", idleTimeout="10 seconds")
    bounded.offset, bounded.now_s = run.offset, run.now_s + 3_600
    broker.log[at(1)] = (0, 9)
    bounded.driver.limit_to_current_ends()
    assert pass_by(bounded, 30) == [{0}] * 30
    assert StreamOffset.from_json(bounded.offset).end_of_run


def scheduled(timeout, hours, feed=lambda broker, hour: None, **logs):
    """Bounded runs an hour apart with new records in partition 0; who was idle at each end."""
    broker, offset, found = FakeBroker(**{"p0": (0, 5), "p1": (0, 5), **logs}), INITIAL_OFFSET, []
    for hour in range(hours):
        broker.log[at(0)] = (0, broker.log[at(0)][1] + 3)
        feed(broker, hour)
        run = Driven(broker, ctiFrequency="1", idleTimeout=timeout)
        run.offset, run.now_s = offset, run.now_s + 3_600 * hour
        run.driver.limit_to_current_ends()
        while run.plan() is not None:
            run.now_s += 1
        offset = run.offset
        assert StreamOffset.from_json(offset).end_of_run
        found.append(idle(run))
    return found


def test_scheduled_runs_count_quiet_time_across_runs_and_wait_for_nobody():
    assert scheduled("90 minutes", 24) == [set()] * 2 + [{1}] * 22
    assert scheduled("30 minutes", 4) == [set(), {1}, {1}, {1}]


def test_scheduled_runs_restart_quiet_time_after_new_records():
    def feed(broker, hour):
        if hour == 2:
            broker.log[at(1)] = (0, 6)

    assert scheduled("90 minutes", 6, feed) == [set(), set(), set(), set(), {1}, {1}]


def test_scheduled_runs_take_no_partition_with_an_open_transaction_for_quiet():
    def feed(broker, hour):
        broker.open = {at(1)} if hour < 4 else set()
        # The end of a transaction is a record too.
        broker.log[at(1)] = (0, 5 if hour < 4 else 6)

    assert scheduled("90 minutes", 8, feed) == [set()] * 6 + [{1}] * 2


def test_scheduled_runs_keep_quiet_time_despite_a_slow_broker():
    def feed(broker, hour):
        broker.trouble_count += 1

    assert scheduled("90 minutes", 4, feed) == [set(), set(), {1}, {1}]


def test_a_partition_whose_records_came_after_a_bounded_run_began_is_not_quiet():
    broker = FakeBroker(p0=(0, 5), p1=(0, 5))
    run = Driven(broker, ctiFrequency="1", idleTimeout="90 minutes")
    run.driver.limit_to_current_ends()
    broker.log[at(1)] = (0, 6)
    while run.plan() is not None:
        pass
    quiet = {
        partition.number: partition_offset.caught_up_since_us is not None
        for partition, partition_offset in StreamOffset.from_json(run.offset).partitions.items()
    }
    assert quiet == {0: True, 1: False}


def test_the_timeout_may_change_on_a_checkpoint():
    broker, run = idling(p0=(0, 5))
    pass_by(run, 3)
    for timeout in ({"idleTimeout": "2 s"}, {}):
        other = Driven(broker, ctiFrequency="1", **timeout)
        other.offset = run.offset
        assert pass_by(other, 5)[-1] == ({0} if timeout else set())


# -- a batch that waits for more ------------------------------------------------------------------


def filled(run, seconds=0):
    """The next batch's ranges after this many seconds; None where it has no records."""
    run.now_s += seconds
    planned = run.plan() or {}
    return planned if any(first < end for first, end in planned.values()) else None


def test_a_batch_waits_for_enough_offsets_and_no_longer_than_its_delay():
    broker = FakeBroker(p0=(0, 3), p1=(0, 0))
    run = Driven(broker, minOffsetsPerTrigger="10", maxTriggerDelay="60 seconds")
    # The first batch after a start does not wait.
    assert filled(run) == {0: (0, 3), 1: (0, 0)}
    broker.log |= {at(0): (0, 7), at(1): (0, 5)}
    assert filled(run) is None
    broker.log[at(1)] = (0, 6)
    assert filled(run) == {0: (3, 7), 1: (0, 6)}
    broker.log[at(0)] = (0, 8)
    assert filled(run, 59.9) is None
    assert filled(run, 0.1) == {0: (7, 8), 1: (6, 6)}


def test_the_delay_counts_from_the_last_batch_with_records():
    broker = FakeBroker(p0=(0, 3))
    run = Driven(broker, minOffsetsPerTrigger="10", maxTriggerDelay="60 seconds")
    run.plan()
    assert filled(run, 3600) is None
    broker.log[at(0)] = (0, 4)
    assert filled(run) == {0: (3, 4)}
    broker.log[at(0)] = (0, 5)
    assert filled(run, 59) is None


def test_a_run_that_finds_nothing_at_first_waits_from_then_on():
    broker = FakeBroker(p0=(0, 0))
    run = Driven(broker, minOffsetsPerTrigger="10", maxTriggerDelay="60 seconds")
    assert run.plan() == {0: (0, 0)}
    broker.log[at(0)] = (0, 1)
    assert filled(run, 59) is None
    assert filled(run, 1) == {0: (0, 1)}


def test_a_bounded_run_waits_for_nothing():
    broker = FakeBroker(p0=(0, 7))
    run = Driven(broker, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5")
    run.driver.limit_to_current_ends()
    assert run.plan(cap=5) == {0: (0, 5)}
    assert run.plan(cap=5) == {0: (5, 7)}


def test_a_new_run_does_not_wait():
    broker = FakeBroker(p0=(0, 3))
    run = Driven(broker, minOffsetsPerTrigger="10")
    run.plan()
    broker.log[at(0)] = (0, 4)
    later = Driven(broker, minOffsetsPerTrigger="10")
    later.offset = run.offset
    assert filled(later) == {0: (3, 4)}


def test_a_partition_found_while_a_batch_waits_is_read_from_its_start():
    broker = FakeBroker(p0=(0, 3))
    run = Driven(broker, minOffsetsPerTrigger="4", maxTriggerDelay="60 seconds")
    run.plan()
    broker.log[at(1)] = (2, 5)
    assert filled(run) is None
    broker.log[at(1)] = (2, 6)
    assert filled(run) == {0: (3, 3), 1: (2, 6)}


def test_a_pattern_without_topics_waits_for_one():
    broker = FakeBroker()
    run = Driven(broker, subscribe=None, subscribePattern="topic.*")
    assert run.plan() == {}
    assert filled(run) is None
    broker.log[at(0)] = (0, 5)
    assert filled(run) == {0: (0, 5)}


def test_a_stream_whose_partitions_are_cut_reads_nothing_twice():
    broker = FakeBroker(p0=(0, 10))
    run = Driven(broker, maxRecordsPerPartition="3")
    run.driver._end_states.restore = None
    assert filled(run) == {0: (0, 10)}
    broker.log[at(0)] = (0, 12)
    assert filled(run) == {0: (10, 12)}


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), max_size=15),
    st.integers(1, 12),
    st.integers(0, 40),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_is_made_as_soon_as_enough_is_there_or_was_waited_for(steps, least, delay):
    broker = FakeBroker(p0=(0, 0))
    run = Driven(broker, minOffsetsPerTrigger=str(least), maxTriggerDelay=f"{delay} s")
    run.plan()
    read, last = 0, run.now_s
    for records, seconds in steps:
        end = broker.log[at(0)][1] + records
        broker.log[at(0)] = (0, end)
        waited = run.now_s + seconds - last
        due = end > read and (end - read >= least or waited >= delay)
        assert filled(run, seconds) == ({0: (read, end)} if due else None)
        read, last = (end, run.now_s) if due else (read, last)


# -- warnings -------------------------------------------------------------------------------------


NOW_US = 1_700_000_000_000_000


def told(run):
    """The kinds of warnings that the progress lists."""
    return [text.partition(":")[0] for text in run.driver.progress()["warnings"]]


def counting(run, **clocks):
    """Let each batch leave the clock of `clocks`, by partition, with any records."""
    run.driver._end_states.restore = lambda options, offset, span: clocks.get(
        f"p{span.partition.number}", offset.partitions[span.partition].clock
    )


def test_mistake_is_logged_once_and_listed_while_it_holds(caplog):
    broker = FakeBroker(p0=(0, 5))
    run = Driven(broker, ctiFrequency="1")
    counting(run, p0=PartitionClock(events=5, malformed=5))
    run.plan()
    assert told(run) == []
    broker.log[at(0)] = (0, 6)
    run.plan()
    assert told(run) == ["malformed events"]
    again = Driven(broker, ctiFrequency="1")
    again.offset = run.offset
    again.plan()
    assert told(again) == ["malformed events"]
    assert caplog.text.count("malformed events") == 1
    counting(again, p0=PartitionClock(events=50, malformed=10))
    broker.log[at(0)] = (0, 7)
    again.plan()
    broker.log[at(0)] = (0, 8)
    again.plan()
    # The progress has the counts of now, and the log each doubling.
    (line,) = again.driver.progress()["warnings"]
    assert "10 of 50 events" in line
    assert caplog.text.count("malformed events") == 2


def test_late_rows_are_logged_at_the_first_and_with_each_doubling(caplog):
    broker = FakeBroker(p0=(0, 1))
    run = Driven(broker, ctiFrequency="1")
    logged = []
    for dropped in (0, 1, 1, 3, 2, 3, 4, 5, 9):
        counting(run, p0=PartitionClock(events=99, dropped=dropped))
        broker.log[at(0)] = (0, broker.log[at(0)][1] + 1)
        run.plan()
        logged.append(caplog.text.count("rows dropped as late"))
    assert logged == [0, 1, 1, 2, 2, 2, 3, 3, 4]


def test_quiet_partition_is_warned_about_after_half_a_minute(caplog):
    broker = FakeBroker(p0=(0, 5), p1=(0, 0))
    run = Driven(broker, ctiFrequency="1")
    counting(run, p0=PartitionClock(events=5, ctis=5, cti_us=NOW_US, last_us=NOW_US))
    run.plan()
    pass_by(run, 28)
    assert told(run) == []
    pass_by(run, 4)
    assert told(run) == ["an idle partition"]
    assert "topic 'topic' partition 1" in caplog.text
    assert "'idleTimeout'" in caplog.text
    settled = run.offset
    pass_by(run, 60)
    assert run.offset == settled
    assert caplog.text.count("an idle partition") == 1


def test_quiet_partition_is_not_warned_about_if_nothing_waits_for_it():
    broker = FakeBroker(p0=(0, 5), p1=(0, 0))
    for bounded, raw in ((False, {"idleTimeout": "5 min"}), (True, {"finalCti": "true"})):
        run = Driven(broker, ctiFrequency="1", **raw)
        counting(run, p0=PartitionClock(events=5, ctis=5, cti_us=NOW_US, last_us=NOW_US))
        if bounded:
            run.driver.limit_to_current_ends()
        run.plan()
        pass_by(run, 40)
        assert told(run) == []


def test_a_bounded_run_warns_of_an_empty_partition_and_never_of_idle_timeout(caplog):
    run = Driven(FakeBroker(p0=(0, 5), p1=(0, 0)), ctiFrequency="1")
    counting(run, p0=PartitionClock(events=5, ctis=5, cti_us=NOW_US, last_us=NOW_US))
    run.driver.limit_to_current_ends()
    run.plan()
    run.plan()
    assert StreamOffset.from_json(run.offset).end_of_run
    assert told(run) == ["an idle partition"]
    assert "idleTimeout" not in caplog.text
    assert run.plan() is None


def test_bounded_run_with_idle_timeout_advises_to_run_again(caplog):
    broker = FakeBroker(p0=(0, 5), p1=(0, 0))
    run = Driven(broker, ctiFrequency="1", idleTimeout="1 hour")
    counting(run, p0=PartitionClock(events=5, ctis=5, cti_us=NOW_US, last_us=NOW_US))
    run.driver.limit_to_current_ends()
    run.plan()
    run.plan()
    assert told(run) == ["an idle partition"]
    assert "next step: run again: a run that finds it caught up for as long" in caplog.text
    (diagnosis, *_) = diagnose((BatchRecord(NOW_US, StreamOffset.from_json(run.offset)),))
    assert diagnosis.fix.startswith("run again: ")


def test_bounded_run_starting_at_the_end_warns_about_skipped_records(caplog):
    broker = FakeBroker(p0=(3, 5), p1=(0, 7))
    run = Driven(broker)
    run.driver = StreamDriver(options(), broker.connect)
    run.driver.limit_to_current_ends()
    run.plan()
    assert told(run) == ["a start at the end"]
    assert "9 records that are in the topics are not read" in caplog.text
    run.plan()
    assert told(run) == ["a start at the end"]
    assert caplog.text.count("a start at the end") == 1


LONG = {"eventShape": "interval"}


@pytest.mark.parametrize(
    ("raw", "warned"),
    [
        ({"timeUnit": "s"}, ["a unit without effect"]),
        ({"timeUnit": "s", "endTime": "field:day", **LONG}, ["a unit without effect"]),
        ({"timeUnit": "s", "endTime": "field:number", **LONG}, []),
        ({"timeUnit": "s", "endTime": "header:end", **LONG}, []),
        ({"timeUnit": "s", "ctiHeader": "cti"}, []),
        ({}, []),
    ],
)
def test_unit_beside_times_with_one_of_their_own_is_warned_of_once(caplog, raw, warned):
    kinds = {"departed": ("long", "timestamp-micros"), "day": ("int", "date")}
    fields = [
        {"name": name, "type": {"type": kind, "logicalType": logical}}
        for name, (kind, logical) in kinds.items()
    ]
    fields += [{"name": "number", "type": ["null", "long"]}]
    schema = json.dumps({"type": "record", "name": "trip", "fields": fields})
    given = {"valueFormat": "avro", "valueSchema": schema, "startTime": "field:departed"}
    run = Driven(FakeBroker(p0=(0, 5)), ctiFrequency="1", **given, **raw)
    counting(run, p0=PartitionClock(events=5, ctis=5, cti_us=NOW_US, last_us=NOW_US))
    run.plan()
    run.driver._broker.log[at(0)] = (0, 6)
    run.plan()
    assert [each for each in told(run) if "unit" in each] == warned
    run.driver._broker.log[at(0)] = (0, 7)
    run.plan()
    assert caplog.text.count("'timeUnit' = 's': it has no effect") == len(warned)


def test_records_of_a_partition_that_was_empty_at_a_latest_start_are_read_after_a_restart():
    """The first batch notes an end for every partition, not only for those with records."""
    broker = FakeBroker(p0=(0, 10), p1=(0, 0))
    run = Driven(broker, startingOffsets="latest")
    assert run.plan() == {0: (10, 10), 1: (0, 0)}
    broker.log[at(1)] = (0, 5)
    again = Driven(broker, startingOffsets="latest")
    again.offset = run.offset
    assert again.plan() == {0: (10, 10), 1: (0, 5)}


@pytest.mark.parametrize(
    ("raw", "log", "bounded"),
    [
        ({"startingOffsets": "latest"}, (0, 5), True),
        ({}, (5, 5), True),
        ({}, (0, 5), False),
        ({"startingOffsets": "earliest"}, (0, 5), True),
    ],
)
def test_requested_or_harmless_start_at_the_end_is_not_warned_about(raw, log, bounded, caplog):
    broker = FakeBroker(p0=log)
    run = Driven(broker)
    run.driver = StreamDriver(options(**raw), broker.connect)
    if bounded:
        run.driver.limit_to_current_ends()
    run.plan()
    assert told(run) == []


def test_malformed_values_that_tasks_counted_are_summed_up_by_reason_over_batches(caplog):
    broker = FakeBroker(p0=(0, 5))
    broker.committed_metadata = lambda partitions: {
        partition: encode_group_metadata(StreamOffset.from_json(run.offset), partition, state, four)
        for partition in partitions
    }
    run, state = Driven(broker, valueFormat="json"), PartitionClock(events=5)
    four = MalformedPayloads.from_reasons({"syntax": 1, "type": 3})
    run.plan()
    for events in (5, 6, 10):
        state = PartitionClock(events=events)
        broker.log[at(0)] = (0, broker.log[at(0)][1] + 1)
        run.plan()
    counted = StreamOffset.from_json(run.offset).partitions[at(0)].malformed_payloads
    assert counted == MalformedPayloads.from_reasons({"syntax": 3, "type": 9})
    assert caplog.text.count("malformed values: ") == 2
    assert "4 of 5 records have a malformed value or key (reasons: 1 syntax, 3 type)" in caplog.text


def test_stream_without_ctis_is_not_reread_and_warns_about_counts():
    broker = FakeBroker(p0=(0, 5))
    run = Driven(broker)
    run.driver._end_states.restore = None
    run.plan()
    broker.log[at(0)] = (0, 9)
    assert run.plan() == {0: (5, 9)}
    assert told(run) == ["records that are not counted"]
    # Cut ranges leave nothing, as docs/how-to/idle-partitions.md says.
    run = Driven(FakeBroker(p0=(0, 5)), minPartitions="2")
    run.plan()
    run.plan()
    assert told(run) == []


class TimedBroker(FakeBroker):
    """The record at offset n has timestamp 10 * n."""

    def offsets_at(self, instants_ms):
        found = {partition: -(-ms // 10) for partition, ms in instants_ms.items()}
        return {
            partition: at if at < self.log[partition][1] else None
            for partition, at in found.items()
        }


def test_a_stream_with_an_end_fixes_it_once_and_reads_no_partition_found_later():
    broker = TimedBroker(p0=(0, 10), p1=(0, 3))
    run = Driven(broker, endingTimestamp="50")
    run.plan(cap=4)
    assert run.offset["ends"] == {"topic": {"0": 5, "1": 3}}
    broker.log = {at(0): (0, 90), at(1): (0, 90), at(2): (0, 90)}
    again = Driven(broker, endingTimestamp="50")
    again.offset = run.offset
    read = []
    while (ranges := again.plan()) is not None:
        read.append(ranges)
    assert {number: span[1] for number, span in read[0].items()} == {0: 5, 1: 3}
    assert again.offset["end_of_run"]
    assert again.plan() is None
    assert again.driver.progress()["endOfStream"]
    assert again.driver.progress()["partitions"]["topic"]["0"]["lag"] == 0


def test_a_finished_stream_loses_nothing_when_its_log_or_topic_is_gone():
    broker = TimedBroker(p0=(0, 10), p1=(0, 3))
    run = Driven(broker, endingOffsets='{"topic": {"0": 4, "1": -1}}')
    while run.plan() is not None:
        pass
    assert run.offset["end_of_run"]
    broker.log = {at(0): (7, 10)}
    again = Driven(broker, endingOffsets='{"topic": {"0": 4, "1": -1}}')
    again.offset = run.offset
    assert again.plan() == {0: (4, 4), 1: (3, 3)}
    assert (again.plan(), again.offset["end_of_run"]) == (None, True)


def test_an_old_end_that_a_former_leader_names_does_not_end_the_stream_early():
    broker = TimedBroker(p0=(0, 10))
    run = Driven(broker, endingOffsets="latest")
    run.plan(cap=4)
    again = Driven(broker, endingOffsets="latest")
    again.offset, broker.former_ends = run.offset, [4, 4]
    ranges = [again.plan(), again.plan()]
    assert {0: (4, 10)} in ranges
    while again.plan() is not None:
        pass
    assert again.offset["end_of_run"]


def test_records_before_an_end_that_are_gone_are_lost_as_ever():
    broker = TimedBroker(p0=(0, 10))
    run = Driven(broker, endingTimestamp="70")
    run.plan(cap=2)
    broker.log = {at(0): (5, 10)}
    with pytest.raises(DataLost, match="offsets 2 to 4 were deleted before they were read"):
        run.plan()


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"endingOffsets": '{"topic": {"0": 99}}'}, DataLost, "has offsets 0 to 10, not 99"),
        ({"endingOffsets": '{"topic": {"7": 1}}'}, OptionError, "the partitions are topic-0"),
        (
            {"endingTimestamp": "20", "startingOffsets": '{"topic": {"0": 5}}'},
            OptionError,
            "starts at offset 5, and option 'endingTimestamp' ends it at 2",
        ),
    ],
)
def test_an_end_that_does_not_exist_or_lies_before_the_start_is_refused(more, error, said):
    with pytest.raises(error, match=said):
        Driven(TimedBroker(p0=(0, 10)), **more).plan()


DAMAGES = {
    "a position that is a text": ("partitions", "topic", "0", "from", "7"),
    "a position before the log": ("partitions", "topic", "0", "from", -7),
    "a range that ends before it begins": ("partitions", "topic", "0", "to", -1),
    "a clock of another type": ("partitions", "topic", "0", "state", [1]),
    "a time after the year 9999": ("partitions", "topic", "0", "state", {"cti_us": 2**62}),
    "partitions that are a list": ("partitions", []),
    "a number with a fraction": ("number", 0.5),
    "a truth value for a number": ("starts", True),
    "settings that are not texts": ("settings", {"subscribe": 5}),
    "no stream": ("stream", None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_offset_of_an_earlier_run_is_refused_by_name(damage):
    """A checkpoint that a disk or a copy has damaged may be JSON all the same."""
    before = Driven(FakeBroker(p0=(0, 9)), ctiFrequency="10")
    before.plan()
    *path, last, value = DAMAGES[damage]
    damaged = json.loads(json.dumps(before.offset))
    holder = damaged
    for name in path:
        holder = holder[name]
    holder[last] = value
    after = Driven(FakeBroker(p0=(0, 12)), ctiFrequency="10")
    after.offset = damaged
    with pytest.raises(CheckpointUnreadable, match=r"damaged: .*; next step: copy the checkpoint"):
        after.plan()
    after.offset = before.offset
    assert after.plan() == {0: (9, 12)}


@pytest.mark.parametrize(
    "offset", [["version"], 5, {"trips": {"0": 5}}, {"version": 1, "store": ""}]
)
def test_an_offset_of_another_source_is_refused_by_name(offset):
    """Offsets of Spark's sources `rate` and `kafka`, and of a subscription to a store."""
    driven = Driven(FakeBroker(p0=(0, 9)))
    driven.offset = offset
    with pytest.raises(CheckpointMismatch, match=r"another source wrote .* with a new checkpoint"):
        driven.plan()


def test_a_first_batch_waits_for_a_partition_whose_leader_changes():
    broker = FakeBroker(p0=(0, 10), p1=(0, 20))
    asked = []

    def earliest(partitions):
        asked.append(1)
        return {part: broker.log[part][0] for part in partitions if len(asked) > 1 or part != at(1)}

    broker.earliest = earliest
    assert Driven(broker).plan() == {0: (0, 10), 1: (0, 20)}


def untold(broker, times):
    """Let the broker list partition 1, and tell no end of it for this many answers."""
    told, asked = broker.ends, iter(range(10**6))

    def ends(partitions):
        lacks = next(asked) < times
        return {part: end for part, end in told(partitions).items() if not lacks or part != at(1)}

    broker.ends = ends


@pytest.mark.parametrize(
    "raw", [{}, {"advanceTime": "IncreasingStartTime"}, {"endingOffsets": "latest"}]
)
def test_a_bounded_run_leaves_out_no_partition_whose_leader_changes(raw):
    """After a final CTI, or with ends of its own, a stream never comes back to it."""
    broker = FakeBroker(p0=(0, 10), p1=(0, 20))
    run = Driven(broker, **raw)
    untold(broker, times=1)
    run.driver.limit_to_current_ends()
    assert run.plan() == {0: (0, 10), 1: (0, 20)}


def test_a_bounded_run_without_the_end_of_a_partition_ends_by_name():
    broker = FakeBroker(p0=(0, 10), p1=(0, 20))
    run = Driven(broker, advanceTime="IncreasingStartTime")
    untold(broker, times=10**6)
    said = r"the brokers list topic 'topic' partition 1 and do not tell its offsets; .*start"
    with pytest.raises(BrokerUnreachable, match=said):
        run.driver.limit_to_current_ends()


@pytest.mark.parametrize("trouble", [{"missing": [0]}, {"former_ends": [5]}])
def test_a_bounded_run_reads_all_of_a_partition_whose_leader_changed_as_it_began(trouble):
    broker = FakeBroker(p0=(0, 10), p1=(0, 20))
    first = Driven(broker)
    first.plan()
    broker.log[at(0)] = (0, 15)
    run = Driven(broker, finalCti="true", ctiFrequency="1")
    run.offset = {**first.offset, "settings": run.driver._options.settings()}
    vars(broker).update(trouble)
    run.driver.limit_to_current_ends()
    assert run.plan() == {0: (10, 15), 1: (20, 20)}
    assert run.plan() == {0: (15, 15), 1: (20, 20)}
    assert StreamOffset.from_json(run.offset).final


def test_a_first_batch_leaves_out_a_partition_that_stays_without_a_leader():
    broker = FakeBroker(p0=(0, 10), p1=(0, 20))
    broker.earliest = lambda partitions: {at(0): 0}
    assert Driven(broker).plan() == {0: (0, 10)}


def test_an_answer_that_took_long_is_no_proof_that_a_partition_is_gone():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker)
    assert run.plan() == {0: (0, 100)}
    listed, answers = broker.partitions, [[], []]

    def partitions():
        if not answers:
            return listed()
        # Slower than the time that a partition must be missing.
        time.sleep(0.1)
        return answers.pop()

    broker.partitions = partitions
    broker.log[at(0)] = (0, 110)
    assert run.plan() == {0: (100, 110)}
