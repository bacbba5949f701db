"""A simulated query with partitions that idle, come and go, and imports, beside an oracle of it.

Only its offset as JSON text survives a batch, and the driver's memory of earlier looks. The oracle
knows nothing of offsets: it keeps one clock a partition, and moves it one record at a time.
"""

import copy
import json
from dataclasses import replace

import pyarrow as pa
from hypothesis import strategies as st
from timestream.builders import (
    INSTANT,
    at,
    block,
    first_offset,
    micros,
    next_offset,
    options,
    projection,
    run_context,
    stream_state,
)

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.kafka.driver.cti_importer import CtiImporter, derive_import_options
from pyspark_timestream.kafka.driver.trackers import IdleTracker
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.offsets.positions import reconcile
from pyspark_timestream.kafka.offsets.stream_state import (
    BrokerSnapshot,
    compute_alignment,
)
from pyspark_timestream.kafka.offsets.tasks import plan_tasks
from pyspark_timestream.kafka.ranges import TaskRange
from pyspark_timestream.kafka.task import compute_end_clock, run_task

TIMEOUT = 3


class Clock:
    """One partition: a CTI at every N-th event, at its time; events before the CTI are late."""

    def __init__(self, every, cti=None):
        self.every, self.cti, self.count = every, cti, 0

    def hear(self, time):
        """Whether the event is late."""
        late = self.cti is not None and time < self.cti
        self.count += 1
        if self.count == self.every:
            self.count = 0
            self.lift(time)
        return late

    def lift(self, cti):
        if cti is not None and (self.cti is None or cti > self.cti):
            self.cti = cti


def least(ctis):
    known = list(ctis)
    return None if not known or None in known else min(known)


def most(*ctis):
    return max((cti for cti in ctis if cti is not None), default=None)


class Oracle:
    """Semantics 5 and 6, given what exists and when it is looked at."""

    def __init__(self, every):
        self.every, self.clocks, self.idle, self.since = every, {}, set(), {}
        self.missing, self.recorded = {}, {}
        self.waiting, self.imported, self.stream = {}, None, None

    def update(self, now, positions, ends, readable_ends, imported, closed):
        """The state that the next batch starts with."""
        first, before = not self.clocks, set(self.clocks)
        resting = {n for n in positions if positions[n] == readable_ends[n]}
        self.since = {} if first else {n: self.since.get(n, now) for n in resting}
        was = self.idle
        self.idle = {n for n in self.since if n in was or now - self.since[n] >= TIMEOUT}
        if closed:
            self.idle = was & set(positions)
        # A partition that comes back goes on, and so does its clock.
        self.missing |= self.clocks
        self.clocks = {n: self.missing.get(n, Clock(self.every)) for n in positions}
        for n in positions:
            if imported is not None and (imported != self.imported or n not in before):
                self.waiting.setdefault(n, []).append((ends[n], imported))
            for end, cti in self.waiting.get(n, []):
                if positions[n] >= end:
                    self.clocks[n].lift(cti)
        self.imported = imported
        new = set() if first else set(positions) - before
        joining = (new | was & set(positions)) - self.idle
        holding = set(positions) - joining - self.idle
        if holding:
            now_cti = least(self.clocks[n].cti for n in holding)
        elif joining:
            now_cti = least(most(self.clocks[n].cti, self.stream) for n in joining)
        else:
            now_cti = most(*(self.clocks[n].cti for n in self.idle))
        self.stream = most(self.stream, now_cti)
        for n in joining | new:
            self.clocks[n].lift(self.stream)

    def reach(self, n, end):
        """Let the imported CTIs take effect that waited for the records of a batch."""
        for waited, cti in self.waiting.get(n, []):
            if end >= waited:
                self.clocks[n].lift(cti)

    def minimum(self):
        return least(clock.cti for n, clock in self.clocks.items() if n not in self.idle)


class Topic:
    """A log as the importer asks for it; event times are whole milliseconds."""

    trouble_count = 0

    def __init__(self, times):
        self.times = times

    def partitions(self):
        return [at(0, "fast")]

    def ends(self, partitions):
        return {at(0, "fast"): len(self.times)}

    def earliest(self, partitions):
        return {at(0, "fast"): 0}

    def topic_ids(self, topics):
        return {}

    def read(self, span, _needs):
        stamps = self.times[span.start_inclusive : span.end_exclusive]
        yield block(*[None] * len(stamps), first=span.start_inclusive, timestamps_ms=stamps)


class World:
    """A checkpoint, the topics under it, and a wall clock in seconds."""

    trouble_count = 0

    max_tasks = None

    def __init__(self, every, logs, imports, max_skew_us=None, has_time_index=True):
        self.max_skew_us, self.has_time_index = max_skew_us, has_time_index
        source = {"ctiImport": json.dumps({"topic": "fast", "frequency": 1})} if imports else {}
        self.options = options(violationPolicy="flag", ctiFrequency=str(every), **source)
        columns = ("partition", pa.int32()), ("offset", pa.int64()), ("violation", pa.string())
        self.projection = projection(self.options, *columns, ("cti", INSTANT))
        self.log, self.fast, self.made = dict(enumerate(logs)), [], len(logs)
        self.gone, self.away = {}, {}
        self.now, self.text, self.ctis = 0, None, []
        self.noted = -1
        """The last batch that no restart goes back before."""
        self.batches = []
        """Each batch's offset, the notes of its planning, and its rows."""
        self.oracle = Oracle(every)
        self.restart()

    def restart(self, bounded=False):
        self.watch, self.began = IdleTracker(TIMEOUT, across_runs=bounded), False
        self.bounds = {n: len(log) for n, log in self.log.items()} if bounded else None
        self.oracle.since = dict(self.oracle.recorded) if bounded else {}
        self.topic = Topic(self.fast)
        own = derive_import_options(self.options)
        self.importer = own and CtiImporter(own, self.topic, self.topic.read)
        if bounded and own:
            self.importer.limit_to_current_ends()

    def open_transactions(self, ends):
        return set()

    def offset(self):
        return StreamOffset.from_json(json.loads(self.text))

    def batch(self, cap=None):
        """Plan and run a batch; False where there is nothing to do."""
        run = run_context(
            replace(
                self.options,
                max_tasks=self.max_tasks,
                idle_timeout_us=TIMEOUT,
                max_skew_us=self.max_skew_us,
            ),
            max_offsets=cap,
            bounded=self.bounds is not None,
            new_start=not self.began,
            committed_batch=self.noted,
        )
        previous = self.offset() if self.text else None
        imported = None
        if self.importer:
            recorded = previous.imported if previous else None
            imported = self.importer.update(recorded, {}, self.now * 10**6)
            (read,) = imported.partitions.values()
            told = [*self.fast[: read.position], FINAL_US // 1000]
            told = told[: told.index(FINAL_US // 1000)]
            assert imported.cti_us == max((time * 1000 for time in told), default=None)
        readable_ends = {at(n): len(log) for n, log in self.log.items()}
        ends = readable_ends if self.bounds is None else {at(n): e for n, e in self.bounds.items()}
        if previous is None:
            positions = dict.fromkeys(ends, 0)
            sight = BrokerSnapshot(topic_ids={"topic": "the same"}, imported=imported)
            planned = first_offset("me", {}, positions, ends, run, sight)
        else:
            wanted = {
                partition: partition_offset.end_exclusive
                for partition, partition_offset in previous.partitions.items()
            }
            positions, losses = reconcile(wanted, wanted, readable_ends)
            found = {
                partition: previous.missing.get(partition)
                for partition in ends
                if partition not in positions
            }
            positions |= {
                partition: partition_offset.end_exclusive if partition_offset else 0
                for partition, partition_offset in found.items()
            }
            returned = any(found.values())
            if run.new_start:
                self.watch.resume(previous.partitions)
            sight = BrokerSnapshot(
                lost=bool(losses) or returned,
                now_us=self.now,
                caught_up_since_us=self.watch.update(
                    self, positions, readable_ends, previous.idle, self.now
                ),
                topic_ids={"topic": "the same"},
                imported=imported,
            )
            after = {partition: self.state_after(previous, partition) for partition in wanted}
            asked = compute_alignment(
                stream_state(previous, after, positions, ends, run), ends
            ).list_instants_ms()
            index = self.look_up(asked)
            known = after, positions, ends, run, sight
            planned = next_offset(previous, *known, time_index=index)
            again = next_offset(self.offset(), *known, time_index=index)
            assert json.dumps(again.to_json()) == json.dumps(planned.to_json())
        oracle = copy.deepcopy(self.oracle)
        oracle.update(
            self.now,
            {partition.number: position for partition, position in positions.items()},
            {
                partition.number: ends.get(partition, positions[partition])
                for partition in positions
            },
            {
                partition.number: readable_ends.get(partition, positions[partition])
                for partition in positions
            },
            imported.cti_us // 1000 if imported and imported.cti_us is not None else None,
            run.bounded and not run.new_start and previous.end_of_run,
        )
        if planned is previous:
            # Only conclusions from the looks themselves live on without an offset.
            self.oracle.since = oracle.since
            return False
        self.oracle, oracle.recorded = oracle, oracle.since
        self.began, self.text = True, json.dumps(planned.to_json())
        self.deliver()
        return True

    def look_up(self, asked):
        """The time index of a broker: the first record at or after a timestamp."""
        return {
            partition: next((n for n, t in enumerate(self.log[partition.number]) if t >= ms), None)
            for partition, ms in asked.items()
            if self.has_time_index
        }

    def state_after(self, previous, partition):
        partition_offset = previous.partitions[partition]
        span = next(s for s in previous.ranges() if s.partition == partition)
        if not span.size:
            return partition_offset.clock
        return compute_end_clock(self.options, TaskRange(span, partition_offset.clock), self.read)

    def read(self, span, _needs):
        # The group outlives a partition: a deleted partition's text from a task is still found.
        log = (self.gone | self.away | self.log)[span.partition.number]
        times = log[span.start_inclusive : span.end_exclusive]
        yield block(*[None] * len(times), first=span.start_inclusive, timestamps_ms=times)

    def rows(self, plans):
        """For each task its rows as (partition, offset, violation) and CTIs in ms."""
        tasks = []
        for plan in plans:
            batches = list(run_task(self.options, self.projection, plan, self.read, lambda *_: 0))
            table = pa.Table.from_batches(batches, self.projection.schema)
            marks = micros(table["cti"].combine_chunks())
            found = [tuple(row.values()) for row in table.drop_columns(["cti"]).to_pylist()]
            tasks.append([row if cti is None else cti // 1000
                          for row, cti in zip(found, marks, strict=True)])  # fmt: skip
        return tasks

    def deliver(self):
        """Run the batch of the stored offset, and check all its promises."""
        offset, oracle = self.offset(), self.oracle
        partition_offsets = {
            partition.number: partition_offset
            for partition, partition_offset in offset.partitions.items()
        }
        assert {
            n for n, partition_offset in partition_offsets.items() if partition_offset.idle
        } == oracle.idle
        assert {
            n: partition_offset.clock.cti_us for n, partition_offset in partition_offsets.items()
        } == {
            n: None if clock.cti is None else clock.cti * 1000 for n, clock in oracle.clocks.items()
        }
        assert offset.cti_us == (None if oracle.stream is None else oracle.stream * 1000)
        tasks = self.rows(plan_tasks(offset))
        assert self.rows(plan_tasks(StreamOffset.from_json(json.loads(self.text)))) == tasks
        self.batches.append((offset, self.noted, [row for task in tasks for row in task]))
        clocks = copy.deepcopy(oracle)
        emitted = oracle.stream
        for task in tasks:
            # A task knows other tasks' partitions only as they were at the start.
            local = copy.deepcopy(oracle)
            for row in task:
                if isinstance(row, int):
                    opening = row == oracle.stream and row * 1000 == offset.first_cti_us
                    assert opening or row <= local.minimum()
                    self.ctis.append(row)
                    emitted = max(row, emitted if emitted is not None else row)
                    continue
                number, place, violation = row
                time = self.log[number][place]
                late = local.clocks[number].hear(time)
                assert late == (violation == "late")
                assert clocks.clocks[number].hear(time) == late
                if place + 1 == partition_offsets[number].end_exclusive:
                    local.reach(number, place + 1)
        assert self.ctis == sorted(self.ctis)
        if offset.tasks == 1:
            # The one task knows every clock, so no later batch has to show where this one ends.
            assert emitted == most(oracle.stream, local.minimum())
        clocks.stream = emitted
        self.oracle = clocks
        taken = sum(isinstance(row, tuple) for task in tasks for row in task)
        assert taken == sum(span.size for span in offset.ranges())


times = st.lists(st.integers(0, 14), max_size=6)
OFTEN = ("batch", "wait", "append")
steps = st.sampled_from(
    (*OFTEN, *OFTEN, "restart", "new", "delete", "bounded", "import", "hide", "show")
)


def act(world, action, data):
    """One thing that happens to a query or to its topics."""
    if action == "batch":
        world.batch(data.draw(st.none() | st.integers(1, 5)))
    elif action == "wait":
        world.now += data.draw(st.integers(1, 4))
        world.batch()
    elif action == "append" and world.log:
        world.log[data.draw(st.sampled_from(sorted(world.log)))] += data.draw(times)
    elif action == "restart":
        world.restart()
    elif action == "new" and world.text:
        world.log[world.made] = data.draw(times)
        world.made += 1
    elif action == "delete" and world.text and len(world.log) > 1:
        number = data.draw(st.sampled_from(sorted(world.log)))
        world.gone[number] = world.log.pop(number)
    elif action == "hide" and world.text and len(world.log) > 1:
        number = data.draw(st.sampled_from(sorted(world.log)))
        world.away[number] = world.log.pop(number)
    elif action == "show" and world.away:
        number = data.draw(st.sampled_from(sorted(world.away)))
        world.log[number] = world.away.pop(number)
    elif action == "import":
        world.fast += data.draw(times)
    elif action == "bounded":
        world.restart(bounded=True)
        drain(world)
        assert world.offset().end_of_run
        world.restart()


def drain(world):
    for _ in range(100):
        if not world.batch():
            return
    raise AssertionError("there is always something to do")
