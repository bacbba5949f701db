"""What only a stream or only a batch read takes, and how both cut partitions into parts."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at, block, micros, options, projection

from pyspark_timestream.cti import PartitionState
from pyspark_timestream.instants import FINAL_US
from pyspark_timestream.kafka_batch import plan_tasks
from pyspark_timestream.kafka_offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka_task import run_task
from pyspark_timestream.kafka_uses import (
    batch_tasks,
    for_batch,
    for_stream,
    stream_tasks,
    useless_in_batch,
)
from pyspark_timestream.kafka_values import EARLIEST
from pyspark_timestream.option_fields import OptionError
from pyspark_timestream.ranges import Range


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
def test_a_stream_has_no_end(name, text):
    with pytest.raises(OptionError, match="given to a stream, which has no end") as refused:
        used(for_stream, **{name: text})
    assert refused.value.name == name
    used(for_batch, **{name: text})


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
        used(for_stream, **{name: "4"}, **ctis)
    assert refused.value.name == name
    used(for_stream, **{name: "4"})
    used(for_batch, **{name: "4"}, **ctis)


def test_a_batch_read_starts_at_earliest_unless_told_otherwise():
    assert used(for_batch).starting_offsets == EARLIEST
    assert used(for_batch, startingOffsets='{"a": {"0": 5}}').starting_offsets == {at(0, "a"): 5}


@pytest.mark.parametrize("text", ["latest", '{"a": {"0": 5, "1": -1}}'])
def test_a_batch_read_cannot_start_at_the_latest_unless_a_timestamp_decides(text):
    with pytest.raises(OptionError, match="always be empty"):
        used(for_batch, startingOffsets=text)
    used(for_batch, startingOffsets=text, startingTimestamp="5")
    used(for_batch, startingOffsets=text, startingOffsetsByTimestamp='{"a": {"0": 5, "1": 5}}')


def test_a_batch_read_has_no_use_for_the_pace_of_a_stream():
    given = {"maxoffsetspertrigger", "startingoffsets", "maxtriggerdelay"}
    assert useless_in_batch(given) == ["maxOffsetsPerTrigger", "maxTriggerDelay"]


def spans(plans):
    """What each task delivers."""
    return [[share.span for share in plan.shares] for plan in plans]


def test_a_batch_read_that_one_task_reads_carries_every_cti():
    (plan,) = batch_tasks(options(finalCti="true"), {at(0): 2, at(1): 5}, {at(0): 4, at(1): 5})
    assert (spans([plan]), plan.others_us) == ([[Range(at(0), 2, 4)]], ())
    assert plan.closing_us == FINAL_US
    assert batch_tasks(options(), {at(0): 2}, {at(0): 2}) == []


def test_parts_of_one_partition_carry_only_the_final_cti():
    given = options(ctiFrequency="1", finalCti="true", maxRecordsPerPartition="2")
    plans = batch_tasks(given, {at(0): 1}, {at(0): 5})
    assert spans(plans) == [[Range(at(0), 1, 3)], [Range(at(0), 3, 5)], []]
    assert [plan.others_us for plan in plans[:2]] == [(None,), (None,)]
    assert [plan.closing_us for plan in plans] == [None, None, FINAL_US]
    assert [plan.shares[0].lead for plan in plans[:2]] == [None, Range(at(0), 1, 3)]


def test_a_part_reads_nothing_before_it_where_no_ctis_are_made():
    given = options(finalCti="true", maxRecordsPerPartition="2")
    plans = batch_tasks(given, {at(0): 1}, {at(0): 5})
    assert [share.lead for plan in plans for share in plan.shares] == [None, None]


def test_a_read_that_ends_before_it_starts_is_empty():
    assert batch_tasks(options(), {at(0): 7, at(1): 0}, {at(0): 3, at(1): 0}) == []


def stream_offset(**ranges):
    """A batch's offset over these ranges, all in one task."""
    shares = {at(int(name[1:])): PartitionOffset(*span, PartitionState(events=3))
              for name, span in ranges.items()}  # fmt: skip
    return StreamOffset("s", {}, 1, shares, tasks=1)


def test_a_stream_without_ctis_is_cut_as_asked():
    offset = stream_offset(p0=(0, 100), p1=(5, 15), p2=(7, 7))
    assert stream_tasks(options(), offset) == plan_tasks(offset)
    assert spans(stream_tasks(options(minPartitions="2"), offset)) == [
        [Range(at(0), 0, 100)],
        [Range(at(1), 5, 15)],
    ]
    cut = spans(stream_tasks(options(minPartitions="5"), offset))
    assert [span for (span,) in cut] == [
        *(Range(at(0), 25 * n, 25 * n + 25) for n in range(4)),
        Range(at(1), 5, 15),
    ]


LOGS = st.lists(st.lists(st.integers(-1, 20), max_size=12), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(
    logs=LOGS,
    every=st.integers(1, 4),
    cut=st.dictionaries(
        st.sampled_from(["minPartitions", "maxRecordsPerPartition"]),
        st.integers(1, 9).map(str),
        min_size=1,
    ),
)
def test_cutting_a_batch_read_changes_no_row(logs, every, cut):
    given_options = {"ctiFrequency": str(every), "violationPolicy": "flag"}

    def rows(**more):
        chosen = options(**given_options, **more)
        shape = projection(chosen)
        ends = {at(number): len(log) for number, log in enumerate(logs)}

        def read(span, _needs):
            stamps = logs[span.partition.number][span.start_inclusive : span.end_exclusive]
            if stamps:
                first = span.start_inclusive
                yield block(*[None] * len(stamps), first=first, timestamps_ms=stamps)

        tables = [
            pa.Table.from_batches(
                list(run_task(chosen, shape, plan, read, lambda *_: None)), shape.schema
            )
            for plan in batch_tasks(chosen, dict.fromkeys(ends, 0), ends)
        ]
        found = [
            (row["partition"], row["offset"], row["violation"])
            for table in tables
            for row, cti in zip(
                table.drop_columns(["cti"]).to_pylist(),
                micros(table["cti"].combine_chunks()),
                strict=True,
            )
            if cti is None
        ]
        return sorted(found, key=lambda row: row[:2])

    assert rows(**cut) == rows()
