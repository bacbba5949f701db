"""What the driver makes of a broker that loses, truncates, recreates and forgets for a moment."""

import pytest
from timestream.builders import at, options

from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka_driver import StreamDriver
from pyspark_timestream.kafka_offset import StreamOffset
from pyspark_timestream.offsets import SENTINEL


class FakeBroker:
    """A broker of one topic, whose log is a pair (first offset, end) a partition."""

    def __init__(self, **logs: tuple[int, int]) -> None:
        self.group = ""
        self.log = {at(int(name[1:])): bounds for name, bounds in logs.items()}
        self.missing: list[int] = []
        """How often a partition is left out of the next listings, by number."""

    def connect(self, options, group: str) -> "FakeBroker":
        self.group = group
        return self

    def partitions(self):
        hidden = {at(self.missing.pop(0))} if self.missing else set()
        return [part for part in self.log if part not in hidden]

    def earliest(self, partitions):
        return {part: self.log[part][0] for part in partitions if part in self.log}

    def ends(self, partitions):
        return {part: self.log[part][1] for part in partitions if part in self.log}

    def left_metadata(self, partitions):
        return {}


class Driven:
    """A run over a fake broker; clocks are not at issue, so no range is read again."""

    def __init__(self, broker: FakeBroker, **raw: str) -> None:
        self.driver = StreamDriver(options(startingOffsets="earliest", **raw), broker.connect)
        self.driver._read_again = lambda offset, span: offset.partitions[span.partition].state
        self.offset = SENTINEL

    def plan(self, cap: int | None = None) -> dict[int, tuple[int, int]] | None:
        """The next batch's ranges; None where there is none."""
        self.driver._looked_at = float("-inf")
        planned = self.driver.plan(self.offset, cap)
        if planned == self.offset:
            return None
        self.offset = planned
        ranges = StreamOffset.from_json(planned).ranges()
        return {span.partition.number: (span.start_inclusive, span.end_exclusive)
                for span in ranges}  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("pyspark_timestream.kafka_driver._GONE_S", 0.05)


def test_a_deleted_partition_is_said_once_and_leaves_the_stream(caplog):
    broker = FakeBroker(p0=(0, 10), p1=(0, 10))
    run = Driven(broker, failOnDataLoss="false")
    assert run.plan() == {0: (0, 10), 1: (0, 10)}
    del broker.log[at(1)]
    assert run.plan() == {0: (10, 10)}
    assert run.plan() is None
    assert run.plan() is None
    assert caplog.text.count("partition 1 is gone") == 1


def test_a_topic_made_anew_is_read_from_its_start_even_if_it_was_empty_in_between():
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


def test_a_loss_fails_the_query_unless_it_is_allowed():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker)
    run.plan()
    broker.log[at(0)] = (120, 130)
    with pytest.raises(DataLost, match="offsets 100 to 119 were deleted before they were read"):
        run.plan()


def test_a_bounded_run_over_a_truncated_topic_ends_where_the_log_does():
    broker = FakeBroker(p0=(0, 100))
    run = Driven(broker, failOnDataLoss="false")
    run.driver.bound()
    assert run.plan(cap=40) == {0: (0, 40)}
    broker.log[at(0)] = (0, 30)
    assert run.plan() == {0: (0, 30)}
    assert run.plan() == {0: (30, 30)}
    assert StreamOffset.from_json(run.offset).closing
    assert run.plan() is None


def test_a_partition_found_after_a_bounded_run_began_waits_for_the_next_run():
    broker = FakeBroker(p0=(0, 10))
    run = Driven(broker)
    run.driver.bound()
    run.plan()
    broker.log[at(1)] = (0, 10)
    assert run.plan() == {0: (10, 10)}
    later = Driven(broker)
    later.offset = run.offset
    assert later.plan() == {0: (10, 10), 1: (0, 10)}
