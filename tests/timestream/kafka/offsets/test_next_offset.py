"""Whole queries without Spark or a broker: offsets are folded, tasks run, nothing is lost.

The simulated query keeps nothing between batches but its last offset as JSON text and what tasks
left in the group; what it must deliver is what semantics 2 and 3 say of each partition.
"""

import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import (
    INSTANT,
    PASSING,
    at,
    block,
    first_offset,
    late_word,
    micros,
    next_offset,
    options,
    projection,
    run_context,
)
from timestream.oracle import Event, run
from timestream.small_reads import small_reads

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import CheckpointMismatch, DataLost
from pyspark_timestream.kafka.offsets.group_metadata import (
    decode_group_metadata,
    encode_group_metadata,
)
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.offsets.positions import reconcile, report_losses
from pyspark_timestream.kafka.offsets.tasks import plan_tasks
from pyspark_timestream.kafka.ranges import TaskRange
from pyspark_timestream.kafka.task import compute_end_clock, run_task
from pyspark_timestream.rules.clocks import PartitionClock

FLAGGED = [("partition", pa.int32()), ("offset", pa.int64()), ("violation", pa.string())]
COLUMNS = {name: FLAGGED if late_word(name) else FLAGGED[:2] for name in PASSING}


@pytest.fixture(scope="module", autouse=True)
def _even_few_records_are_worth_a_task():
    with small_reads(alignments=False):
        yield


class Query:
    """One checkpoint over a log of event times (whole milliseconds, -1: unreadable)."""

    def __init__(self, policy, how, log, sizes=None):
        frequency = str(how["every"]) if "every" in how else f"{how['span']} ms"
        given_options = {"ctiFrequency": frequency, "ctiDelay": f"{how['delay']} ms"}
        self.options = options(violationPolicy=policy, **given_options)
        self.projection = projection(self.options, *COLUMNS[policy], ("cti", INSTANT))
        self.policy, self.how, self.sizes = policy, how, sizes or (lambda: 99)
        self.log = dict(enumerate(log))
        self.text = None
        self.left, self.raised = {}, dict.fromkeys(self.log)
        self.found = {number: [] for number in self.log}
        self.ctis, self.batches = [], []
        self.run, self.bounds, self.began = run_context(), None, False

    def start(self, bounded=False, final_cti=False):
        self.run = run_context(bounded=bounded, final_cti=final_cti)
        self.bounds = self.ends() if bounded else None
        self.began = False

    def ends(self):
        return {at(number): len(times) for number, times in self.log.items()}

    def offset(self):
        return StreamOffset.from_json(json.loads(self.text))

    def batch(self, max_offsets=None, max_tasks=None):
        """Plan and run a batch; False where there was nothing to do."""
        run_now = replace(
            self.run,
            options=replace(self.options, max_tasks=max_tasks),
            max_offsets=max_offsets,
            new_start=not self.began,
        )
        ends = self.ends() if self.bounds is None else self.bounds
        if self.text is None:
            starts = dict.fromkeys(self.ends(), 0)
            planned = first_offset("me", self.options.settings(), starts, ends, run_now)
        else:
            previous = self.offset()
            positions = {
                partition: partition_offset.end_exclusive
                for partition, partition_offset in previous.partitions.items()
            }
            positions |= {partition: 0 for partition in self.ends() if partition not in positions}
            after = {
                partition: self.state_after(previous, partition)
                for partition in previous.partitions
            }
            planned = next_offset(previous, after, positions, ends, run_now)
            if planned is previous:
                return False
            for partition in planned.partitions.keys() - previous.partitions.keys():
                self.raised[partition.number] = planned.cti_us
                assert planned.partitions[partition].clock == PartitionClock(cti_us=planned.cti_us)
        self.began, self.text = True, json.dumps(planned.to_json())
        rows = self.deliver(check=True)
        assert self.deliver() == rows
        self.batches.append(planned)
        return True

    def drain(self, limit=lambda: None):
        """Batches until there is nothing to do, which must come."""
        for _ in range(200):
            if not self.batch(limit()):
                return
        raise AssertionError("there is always something to do")

    def state_after(self, previous, partition):
        partition_offset, span = previous.partitions[partition], previous.ranges()
        read = next(s for s in span if s.partition == partition)
        if not read.size:
            return partition_offset.clock
        left = decode_group_metadata(previous, partition, self.left.get(partition))
        if left.clock is not None:
            return left.clock
        return compute_end_clock(self.options, TaskRange(read, partition_offset.clock), self.read)

    def read(self, span, _needs):
        times = self.log[span.partition.number]
        first = span.start_inclusive
        while first < span.end_exclusive:
            stop = min(first + self.sizes(), span.end_exclusive)
            stamps = times[first:stop]
            yield block(*[None] * len(stamps), first=first, timestamps_ms=stamps)
            first = stop

    def deliver(self, check=False):
        """The rows of the batch that the stored offset describes, task by task."""
        offset = self.offset()
        leave = {}
        tasks = []
        for plan in plan_tasks(offset):
            arguments = self.options, self.projection, plan, self.read
            tables = list(run_task(*arguments, leave.__setitem__))
            table = pa.Table.from_batches(tables, self.projection.schema)
            rows = table.drop_columns(["cti"]).to_pylist()
            marks = micros(table["cti"].combine_chunks())
            tasks.append(list(zip(rows, marks, strict=True)))
            for row, mark in tasks[-1]:
                assert mark is None or not any(value is not None for value in row.values())
                assert mark is not None or row["offset"] is not None
        if check:
            for partition, end in leave.items():
                self.left[partition] = encode_group_metadata(offset, partition, end.clock)
            self.check(offset, tasks)
        return tasks

    def check(self, offset, tasks):
        marks = [mark for task in tasks for _, mark in task if mark is not None]
        last = self.ctis[-1] if self.ctis else None
        if offset.first_cti_us is not None:
            assert marks[0] == offset.first_cti_us
            repeated = not self.batches or self.batches[-1].starts < offset.starts
            assert last is None or marks[0] > last or (repeated and marks[0] == last)
            marks = marks[1:] if marks[0] == last else marks
        assert sorted({*self.ctis, *marks}) == [*self.ctis, *marks]
        self.ctis += marks
        for plan, task in zip(plan_tasks(offset), tasks, strict=True):
            self.check_marks(offset, plan, task)
        for row, mark in (row for task in tasks for row in task):
            if mark is None:
                kept = (row["offset"], row.get("violation"))
                self.found[row["partition"]].append(kept)

    def check_marks(self, offset, plan, task):
        """No CTI row exceeds the minimum over what the task has read when it emits it."""
        now = {
            partition: partition_offset.start_inclusive
            for partition, partition_offset in offset.partitions.items()
        }
        order = [partition_offset.offsets for partition_offset in plan.ranges]
        for place, (_, mark) in enumerate(task):
            if mark is None or mark == offset.first_cti_us:
                continue
            following = next((row for row, other in task[place:] if other is None), None)
            for span in order:
                if following and span.partition.number == following["partition"]:
                    now[span.partition] = following["offset"]
                    break
                now[span.partition] = span.end_exclusive
            minimum = [self.cti_at(partition, position) for partition, position in now.items()]
            assert None not in minimum
            assert mark <= min(minimum)

    def expected(self, number, upto=None):
        events = [Event("point", None if t < 0 else t * 1000) for t in self.log[number][:upto]]
        how = {name: n * (1 if name == "every" else 1000) for name, n in self.how.items()}
        return run(events, self.policy, **how, cti=self.raised[number])

    def cti_at(self, partition, position):
        return self.expected(partition.number, position)[2]

    def check_all(self):
        """Everything was read: what was delivered is what the rules say of each partition."""
        after = self.offset().partitions
        clocks = []
        for number in self.log:
            if not self.log[number] and at(number) not in after:
                # Found while there was nothing to do: the next batch that does something has it.
                continue
            out, tally, cti, _ = self.expected(number)
            kept = [(what[1], what[4]) for what in out if what[0] == "row"]
            assert self.found[number] == kept
            clock = self.state_after(self.offset(), at(number))
            assert clock.cti_us == cti
            assert +Counter(clock.counters()) == tally
            clocks.append(cti)
        if None not in clocks and self.ctis[-1:] != [FINAL_US]:
            assert self.ctis[-1] == min(clocks)
        if len(self.log) == 1:
            marks = [what[1] for what in self.expected(0)[0] if what[0] == "cti"]
            assert [cti for cti in self.ctis if cti != FINAL_US] == marks


times = st.lists(st.integers(-1, 14), max_size=8)
logs = st.lists(times, min_size=1, max_size=4)
frequencies = st.one_of(
    st.fixed_dictionaries({"every": st.integers(1, 3), "delay": st.integers(-1, 2)}),
    st.fixed_dictionaries({"span": st.integers(1, 4), "delay": st.integers(-1, 2)}),
)
limits = st.none() | st.integers(1, 6)
policies = st.sampled_from(PASSING)


@given(policies, frequencies, logs, st.data())
@settings(max_examples=120, deadline=None)
def test_any_course_of_a_query_delivers_by_the_rules(policy, how, log, data):
    """Appends, restarts, new partitions, limits, lost group metadata, bounded runs."""
    query = Query(policy, how, log, lambda: data.draw(st.integers(1, 5)))
    steps = st.sampled_from(
        ["batch", "batch", "batch", "append", "restart", "forget", "new", "bounded"]
    )
    for action in data.draw(st.lists(steps, max_size=9)):
        if action == "batch":
            query.batch(data.draw(limits), data.draw(st.none() | st.integers(1, 3)))
        elif action == "append":
            query.log[data.draw(st.sampled_from(sorted(query.log)))] += data.draw(times)
        elif action == "restart":
            query.start()
        elif action == "forget":
            query.left.clear()
        elif action == "new" and query.text is not None:
            number = len(query.log)
            query.log[number], query.found[number] = data.draw(times), []
            # A partition found by a batch that had nothing to do is found again.
            query.raised[number] = None
        elif action == "bounded":
            query.start(bounded=True)
            query.drain(lambda: data.draw(limits))
            assert query.offset().end_of_run
            query.start()
    query.drain(lambda: data.draw(limits))
    query.batch()
    query.check_all()


@given(policies, frequencies, logs, st.data())
@settings(max_examples=60, deadline=None)
def test_bounded_runs_end_with_one_closing_batch_and_one_final_cti(policy, how, log, data):
    query = Query(policy, how, log)
    query.start(bounded=True, final_cti=True)
    query.log[0] = query.log[0] + [3]
    query.drain(lambda: data.draw(limits))
    for batch in query.batches:
        assert batch.end_of_run == batch.final == (not any(span.size for span in batch.ranges()))
    assert [batch.end_of_run for batch in query.batches] == [False] * (len(query.batches) - 1) + [
        True
    ]
    assert query.ctis.count(FINAL_US) == 1
    assert query.ctis[-1] == FINAL_US
    assert not query.batch()
    # The run does not read records that came after its start; another run is refused.
    assert sum(s.end_exclusive for s in query.offset().ranges()) == sum(map(len, log))
    query.start(bounded=data.draw(st.booleans()))
    with pytest.raises(CheckpointMismatch, match="its final CTI promised"):
        query.batch()


def one(*event_times, **more):
    return Query("flag", {"every": 1, "delay": 0}, [list(event_times)], **more)


def test_a_finished_stream_without_new_data_repeats_its_final_cti_at_a_new_start():
    query = one(1, 2)
    query.start(bounded=True, final_cti=True)
    query.drain()
    for bounded in (True, False):
        query.start(bounded=bounded, final_cti=bounded)
        assert query.batch()
        assert query.offset().first_cti_us == FINAL_US
        assert query.offset().final
        assert not query.batch()


def test_a_new_start_repeats_the_streams_cti_even_without_new_data():
    query = one(1, 7)
    query.batch()
    assert not query.batch()
    query.start()
    assert query.batch()
    assert query.offset().first_cti_us == 7000
    assert query.deliver()[0] == [({"partition": None, "offset": None, "violation": None}, 7000)]
    assert query.offset().starts == 2
    assert not query.batch()


def test_a_new_start_before_any_cti_opens_with_nothing():
    query = Query("flag", {"every": 9, "delay": 0}, [[1]])
    query.batch()
    query.start()
    query.batch()
    assert query.offset().first_cti_us is None
    assert plan_tasks(query.offset()) == []


def test_nothing_to_do_is_the_previous_offset_itself():
    query = one(1)
    query.batch()
    previous = query.offset()
    ended = {at(0): query.state_after(previous, at(0))}
    same = next_offset(previous, ended, {at(0): 1}, {at(0): 1}, run_context())
    assert same is previous


def test_records_that_several_tasks_read_are_released_by_one_more_batch():
    query = Query("flag", {"every": 1, "delay": 0}, [[1, 5, 9, 9], [2, 6, 8, 8]])
    query.batch()
    assert len(query.deliver()) == 2
    assert query.ctis == []
    assert query.batch()
    assert query.ctis == [8000]
    assert query.offset().ranges()[0].size == 0
    assert not query.batch()


def test_one_task_with_all_partitions_proves_as_it_reads():
    query = Query("flag", {"every": 1, "delay": 0}, [[1, 5, 9, 9], [2, 6, 8, 8]])
    query.batch(max_tasks=1)
    assert query.ctis == [2000, 6000, 8000]
    assert not query.batch()


def test_a_partition_found_while_running_meets_the_policy_at_the_streams_cti():
    query = one(5, 9)
    query.batch()
    query.log[1], query.found[1] = [3, 9, 10], []
    query.batch()
    assert query.found[1] == [(0, "late"), (1, None), (2, None)]
    assert query.offset().partitions[at(1)].clock == PartitionClock(cti_us=9000)


def test_a_partition_found_in_a_bounded_run_waits_for_the_next_run():
    query = one(5)
    query.start(bounded=True)
    query.batch()
    query.log[1], query.found[1] = [7], []
    query.drain()
    assert query.found[1] == []
    query.start()
    query.batch()
    assert query.found[1] == [(0, None)]


def test_a_deleted_partition_leaves_the_minimum():
    query = Query("flag", {"every": 1, "delay": 0}, [[5], [2]])
    query.batch()
    previous = query.offset()
    ended = {partition: query.state_after(previous, partition) for partition in previous.partitions}
    following = next_offset(previous, ended, {at(0): 1}, {at(0): 1}, run_context())
    assert (following.cti_us, following.first_cti_us) == (5000, 5000)
    assert list(following.partitions) == [at(0)]


def test_the_streams_cti_stays_when_all_partitions_are_gone():
    query = one(5)
    query.batch()
    previous = query.offset()
    ended = {at(0): query.state_after(previous, at(0))}
    empty = next_offset(previous, ended, {}, {}, run_context(new_start=True))
    assert (empty.cti_us, empty.partitions) == (5000, {})


WANTED = {at(0): 10, at(1): 10}


@pytest.mark.parametrize(
    ("earliest", "ends", "positions", "said"),
    [
        ({at(0): 0, at(1): 10}, {at(0): 10, at(1): 99}, WANTED, None),
        ({at(0): 10, at(1): 12}, {at(0): 10, at(1): 99}, {at(0): 10, at(1): 12}, "10 to 11 were"),
        ({at(0): 0, at(1): 3}, {at(0): 10, at(1): 9}, {at(0): 10, at(1): 3}, "ends at offset 9"),
        ({at(0): 0}, {at(0): 10}, {at(0): 10}, "partition 1 is gone; it was read up to offset 10"),
    ],
    ids=["nothing lost", "deleted", "truncated", "gone"],
)
def test_losses_are_named_and_then_failed_or_passed_over(caplog, earliest, ends, positions, said):
    found, losses = reconcile(WANTED, earliest, ends)
    assert found == positions
    assert len(losses) == (said is not None)
    report_losses(options(failOnDataLoss="false"), *losses)
    if said is None:
        report_losses(options(), *losses)
        assert not caplog.messages
        return
    assert caplog.messages == [f"{losses[0]}; going on, as option 'failOnDataLoss' is 'false'"]
    assert said in losses[0]
    assert "topic 'topic' partition 1" in losses[0]
    with pytest.raises(DataLost, match="failOnDataLoss") as lost:
        report_losses(options(), *losses)
    assert said in str(lost.value)


def test_first_offset_begins_at_its_starts_without_a_cti():
    offset = first_offset("me", {}, {at(0): 5}, {at(0): 9}, run_context(new_start=True))
    assert offset.ranges()[0][1:] == (5, 9)
    assert (offset.starts, offset.cti_us, offset.first_cti_us, offset.end_of_run) == (
        1,
        None,
        None,
        False,
    )
    assert offset.partitions[at(0)].clock == PartitionClock()


def test_a_bounded_run_over_an_empty_topic_is_one_closing_batch():
    query = Query("flag", {"every": 1, "delay": 0}, [[], []])
    query.start(bounded=True, final_cti=True)
    assert query.batch()
    assert query.offset().end_of_run
    assert query.ctis == [FINAL_US]
    assert not query.batch()
