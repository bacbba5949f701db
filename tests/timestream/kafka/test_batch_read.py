"""The tasks of a batch read, also for a topic that has changed by the time they run."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at, block, micros, options, projection

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.offsets.tasks import plan_slice, select_partitions, slice_read
from pyspark_timestream.kafka.ranges import OffsetRange
from pyspark_timestream.kafka.task import run_task


def bound(given, read_slice, starts, stops):
    """The work of the task if the partitions start and end like this when it runs."""
    asked = {
        partition: starts[partition] for partition in select_partitions(read_slice, list(starts))
    }
    return plan_slice(given, read_slice, list(starts), asked, stops)


def batch_tasks(given, starts, stops):
    """The tasks of a batch read, where nothing has changed since it was planned."""
    return [
        bound(given, read_slice, starts, stops) for read_slice in slice_read(given, starts, stops)
    ]


def spans(plans):
    """The rows of each task."""
    return [[task_range.offsets for task_range in plan.ranges] for plan in plans]


def test_a_batch_read_that_one_task_reads_carries_every_cti():
    (plan,) = batch_tasks(options(finalCti="true"), {at(0): 2}, {at(0): 4})
    assert (spans([plan]), plan.others_us) == ([[OffsetRange(at(0), 2, 4)]], ())
    assert plan.last_cti_us == FINAL_US


def test_an_empty_partition_holds_the_ctis_of_a_batch_read_back():
    plans = batch_tasks(options(finalCti="true"), {at(0): 2, at(1): 5}, {at(0): 4, at(1): 5})
    assert spans(plans) == [[OffsetRange(at(0), 2, 4)], []]
    assert [plan.others_us for plan in plans] == [(None,), (None,)]
    assert [plan.last_cti_us for plan in plans] == [None, FINAL_US]


def test_parts_of_one_partition_carry_only_the_final_cti():
    given = options(ctiFrequency="1", finalCti="true", maxRecordsPerPartition="2")
    plans = batch_tasks(given, {at(0): 1}, {at(0): 5})
    assert spans(plans) == [[OffsetRange(at(0), 1, 3)], [OffsetRange(at(0), 3, 5)]]
    assert [plan.others_us for plan in plans] == [(None,), (None,)]
    assert [plan.last_cti_us for plan in plans] == [None, FINAL_US]
    assert [plan.ranges[0].warm_up for plan in plans] == [None, OffsetRange(at(0), 1, 3)]


def test_a_part_reads_nothing_before_it_where_no_ctis_are_made():
    given = options(finalCti="true", maxRecordsPerPartition="2")
    plans = batch_tasks(given, {at(0): 1}, {at(0): 5})
    assert [task_range.warm_up for plan in plans for task_range in plan.ranges] == [None, None]


@pytest.mark.parametrize("starts", [{at(0): 2}, {at(0): 2, at(1): 3}, {}])
def test_a_batch_read_of_nothing_has_a_task_and_no_rows(starts):
    # Without any task Spark would make up one that is none of ours.
    plans = batch_tasks(options(), starts, starts)
    assert spans(plans) == [[] for _ in range(max(len(starts), 1))]


@pytest.mark.parametrize(
    ("raw", "starting", "ending"),
    [
        ({"startingOffsets": '{"topic": {"0": 7}}'}, "startingOffsets", "endingOffsets"),
        (
            {"startingTimestamp": "7", "endingTimestamp": "5"},
            "startingTimestamp",
            "endingTimestamp",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"topic": {"0": 7}}',
                "endingOffsetsByTimestamp": '{"topic": {"0": 5}}',
            },
            "startingOffsetsByTimestamp",
            "endingOffsetsByTimestamp",
        ),
    ],
)
def test_a_batch_read_whose_start_is_behind_its_end_is_refused_by_name(raw, starting, ending):
    said = f"topic 'topic' partition 0 starts at offset 7, and option '{ending}' ends it at 3"
    with pytest.raises(OptionError, match=said) as refused:
        batch_tasks(options(**raw), {at(0): 7}, {at(0): 3})
    assert refused.value.name == starting
    batch_tasks(options(**raw), {at(0): 3}, {at(0): 3})
    (read_slice,) = slice_read(options(**raw), {at(0): 3}, {at(0): 3})
    with pytest.raises(OptionError, match=said):
        bound(options(**raw), read_slice, {at(0): 7}, {at(0): 3})


class Topic:
    """Partitions of event times; their first records may be gone."""

    def __init__(self, logs, **raw):
        self.logs = {at(number): log for number, log in enumerate(logs)}
        self.starts = dict.fromkeys(self.logs, 0)
        self.options = options(ctiFrequency="2", violationPolicy="flag", **raw)
        self.projection = projection(self.options)

    @property
    def stops(self):
        return {partition: len(log) for partition, log in self.logs.items()}

    def read(self, span, _needs):
        stamps = self.logs[span.partition][span.start_inclusive : span.end_exclusive]
        if stamps:
            first = span.start_inclusive
            yield block(*[None] * len(stamps), first=first, timestamps_ms=stamps)

    def rows(self, slices):
        """Data rows by partition and offset; CTI rows."""
        data, ctis = [], []
        for read_slice in slices:
            plan = bound(self.options, read_slice, self.starts, self.stops)
            arguments = self.options, self.projection, plan, self.read, lambda *_: None
            table = pa.Table.from_batches(list(run_task(*arguments)), self.projection.schema)
            marks = micros(table["cti"].combine_chunks())
            for row, cti in zip(table.drop_columns(["cti"]).to_pylist(), marks, strict=True):
                if cti is None:
                    data.append((row["partition"], row["offset"], row["violation"]))
                else:
                    ctis.append(cti)
        return sorted(data, key=lambda row: row[:2]), ctis

    def slices(self):
        return slice_read(self.options, self.starts, self.stops)


LOGS = st.lists(st.lists(st.integers(-1, 20), max_size=12), min_size=1, max_size=7)
CUTS = st.dictionaries(
    st.sampled_from(["minPartitions", "maxRecordsPerPartition"]), st.integers(1, 9).map(str)
)


@settings(max_examples=100, deadline=None)
@given(logs=LOGS, cut=CUTS)
def test_cutting_a_batch_read_changes_no_row(logs, cut):
    whole, pieces = Topic(logs), Topic(logs, **cut)
    assert whole.rows(whole.slices())[0] == pieces.rows(pieces.slices())[0]


@settings(max_examples=200, deadline=None)
@given(before=LOGS, after=LOGS, cut=CUTS, data=st.data())
def test_later_evaluation_reads_what_exists_by_then(before, after, cut, data):
    """Logs have grown, shrunk, lost their first records; partitions have come and gone."""
    planned, now, fresh = Topic(before, **cut), Topic(after, **cut), Topic(after, **cut)
    for partition, log in now.logs.items():
        now.starts[partition] = fresh.starts[partition] = data.draw(st.integers(0, len(log)))
    rows, ctis = now.rows(planned.slices())
    assert rows == fresh.rows(fresh.slices())[0]
    # Only one task with everything may tell CTIs, and an empty partition holds them back.
    alone = len(planned.slices()) == 1 and all(now.stops[p] > now.starts[p] for p in now.logs)
    assert alone or not ctis


def test_partitions_empty_at_planning_are_read_by_several_tasks():
    empty = Topic([[] for _ in range(9)])
    full = Topic([[1] for _ in range(9)])
    plans = [
        bound(full.options, read_slice, full.starts, full.stops) for read_slice in empty.slices()
    ]
    assert sorted(len(plan.ranges) for plan in plans) == [2, 2, 2, 3]


def test_only_the_tasks_that_need_it_are_shipped_the_names_of_all_partitions():
    topic = Topic([[1] for _ in range(9)])
    assert [len(read_slice.assigned) for read_slice in topic.slices()] == [0] * 5 + [9] * 4
