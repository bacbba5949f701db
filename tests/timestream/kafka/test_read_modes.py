"""Options of streams only and of batch reads only, and the cutting of partitions."""

import pytest
from timestream.builders import at, options

from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.tasks import plan_stream_tasks, plan_tasks
from pyspark_timestream.kafka.options.checks import (
    adapt_to_batch,
    adapt_to_stream,
    list_ignored_in_batch,
)
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.ranges import OffsetRange
from pyspark_timestream.rules.clocks import PartitionClock


def used(use, **raw):
    """Options as a stream or a batch read takes them."""
    return use(options(**raw), frozenset(name.lower() for name in raw))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("endingOffsets", "latest"),
        ("endingTimestamp", "7"),
        ("endingOffsetsByTimestamp", '{"topic": {"0": 7}}'),
    ],
)
def test_a_stream_with_an_end_starts_at_earliest_and_refuses_latest(name, text):
    assert used(adapt_to_stream, **{name: text}).starting_offsets == EARLIEST
    with pytest.raises(OptionError, match="given to a stream with an end, which would always be"):
        used(adapt_to_stream, startingOffsets="latest", **{name: text})


@pytest.mark.parametrize("name", ["startingCti", "endingCti"])
def test_a_replay_starts_at_earliest_unless_told(name):
    span = {"ctiFrequency": "1", name: "2024-01-01T00:00:00Z"}
    assert used(adapt_to_stream, **span).starting_offsets == EARLIEST
    assert used(adapt_to_stream, **span, startingOffsets="latest").starting_offsets == LATEST
    assert used(adapt_to_stream).starting_offsets == LATEST


@pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition"])
@pytest.mark.parametrize(
    "ctis",
    [
        {"ctiFrequency": "1"},
        {"finalCti": "true"},
        {"ctiHeader": "c", "timeWindow": "true"},
        {"ctiImport": "fast"},
    ],
)
def test_a_partition_of_a_stream_with_ctis_is_not_cut(name, ctis):
    with pytest.raises(OptionError, match="a stream with a column 'cti'") as refused:
        used(adapt_to_stream, **{name: "4"}, **ctis)
    assert refused.value.name == name
    used(adapt_to_stream, **{name: "4"})
    used(adapt_to_batch, **{name: "4"}, **ctis)


def test_batch_read_starts_at_earliest_by_default():
    assert used(adapt_to_batch).starting_offsets == EARLIEST
    assert used(adapt_to_batch, startingOffsets='{"a": {"0": 5}}').starting_offsets == {
        at(0, "a"): 5
    }


@pytest.mark.parametrize("text", ["latest", '{"a": {"0": 5, "1": -1}}'])
def test_a_batch_read_cannot_start_at_the_latest_unless_a_timestamp_decides(text):
    with pytest.raises(OptionError, match="always be empty"):
        used(adapt_to_batch, startingOffsets=text)
    used(adapt_to_batch, startingOffsets=text, startingTimestamp="5")
    used(adapt_to_batch, startingOffsets=text, startingOffsetsByTimestamp='{"a": {"0": 5, "1": 5}}')


def test_a_batch_read_has_no_use_for_the_pace_of_a_stream():
    given = {"maxoffsetspertrigger", "startingoffsets", "maxtriggerdelay"}
    assert list_ignored_in_batch(given) == ["maxOffsetsPerTrigger", "maxTriggerDelay"]


def spans(plans):
    """The rows of each task."""
    return [[partition_offset.offsets for partition_offset in plan.ranges] for plan in plans]


def stream_offset(**ranges):
    """A batch's offset over these ranges, all in one task."""
    partition_offsets = {at(int(name[1:])): PartitionOffset(*span, PartitionClock(events=3))
              for name, span in ranges.items()}  # fmt: skip
    return StreamOffset("s", {}, 1, partition_offsets, tasks=1)


def test_a_stream_without_ctis_is_cut_as_asked():
    offset = stream_offset(p0=(0, 100), p1=(5, 15), p2=(7, 7))
    assert plan_stream_tasks(options(), offset) == plan_tasks(offset)
    assert spans(plan_stream_tasks(options(minPartitions="2"), offset)) == [
        [OffsetRange(at(0), 0, 100)],
        [OffsetRange(at(1), 5, 15)],
    ]
    cut = spans(plan_stream_tasks(options(minPartitions="5"), offset))
    assert [span for (span,) in cut] == [
        *(OffsetRange(at(0), 25 * n, 25 * n + 25) for n in range(4)),
        OffsetRange(at(1), 5, 15),
    ]
