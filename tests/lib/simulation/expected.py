"""The rows that a run must have delivered, by an oracle from the semantics that knows no state.

It gets the produced records, and of each batch only the decisions in Spark's log: ranges, idle
partitions, and the number of tasks. It keeps one clock a partition, and moves it one record at a
time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from simulation.cluster import Log, Record
from timestream.builders import late_word

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.core.policies import LATE_COUNTERS
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition


class Clock:
    """Semantics 2.2 to 2.5, 3 and 4.2 for points that lie at their records' timestamps."""

    def __init__(self, every: int | None, span_us: int | None, delay_us: int) -> None:
        self.every, self.span_us, self.delay_us = every, span_us, delay_us
        self.cti: int | None = None
        self.count, self.base = 0, None
        self.events = self.late = self.ctis = 0

    def hear(self, record: Record) -> bool:
        """Take a record; whether its event is late."""
        time = record.stamp_ms * 1_000
        late = self.cti is not None and time < self.cti
        self.events, self.late, self.count = self.events + 1, self.late + late, self.count + 1
        self.base = time if self.base is None else self.base
        if self.count == self.every or (self.span_us and time - self.base >= self.span_us):
            self.count, self.base = 0, time
            self.ctis += self.lift(time - self.delay_us)
        if record.mark is not None and self.lift(record.mark * 1_000):
            self.count, self.base, self.ctis = 0, self.cti, self.ctis + 1
        return late

    def lift(self, cti: int | None) -> bool:
        """Raise the CTI in force; whether that takes effect."""
        if cti is None or (self.cti is not None and cti <= self.cti):
            return False
        self.cti = cti
        return True


def most(*ctis: int | None) -> int | None:
    """The greatest."""
    return max((cti for cti in ctis if cti is not None), default=None)


def least(ctis: Sequence[int | None]) -> int | None:
    """The least; none if one is not known."""
    return None if not ctis or None in ctis else min(ctis)  # type: ignore[type-var]


class ChainOracle:
    """Semantics 2 to 5, 7.2, 7.3, 8.1 and 10.1 over all batches of one checkpoint.

    `policy`: what happens to late events. `clock`: makes the clock of a partition.
    """

    def __init__(self, logs: Mapping[Partition, Log], clock: Any, *, policy: str) -> None:
        self.logs, self.new_clock, self.policy = logs, clock, policy
        self.clocks: dict[Partition, Clock] = {}
        self.starts: dict[Partition, int] = {}
        self.reached: dict[Partition, int] = {}
        self.times: dict[tuple[int, int], int] = {}
        self.emitted: int | None = None
        self.idle: set[Partition] = set()
        self.there: set[Partition] = set()
        self.lost: set[Partition] = set()
        """Partitions that lost their clocks with their records, at the batch that begins (8.3)."""
        self.stream: int | None = None

    def _begin(self, batch: StreamOffset) -> None:
        """5.1, 5.4, 5.5, 8.3: the stream's CTI at a batch's start, and who is raised to it."""
        there, first = set(batch.partitions), batch.number == 0
        idle = {each for each, one in batch.partitions.items() if one.idle}
        self.change_rules(batch)
        for each in there - self.clocks.keys():
            self.clocks[each] = self.new_clock()
        self.take_imports(batch)
        new = set() if first else there - self.there
        joining = (new | (self.idle & there)) - idle
        holding = there - joining - idle
        ctis = {each: self.clocks[each].cti for each in there}
        if holding:
            now = least([ctis[each] for each in holding])
        elif joining:
            now = least([most(ctis[each], self.stream) for each in joining])
        else:
            now = most(*(ctis[each] for each in idle))
        self.stream = FINAL_US if batch.final else self.find_stream(batch, now)
        assert batch.cti_us == self.stream, f"the stream's CTI is {batch.cti_us}: {self.stream}"
        for each in joining | new | (self.lost - idle):
            self.clocks[each].lift(self.stream)
        for each, one in batch.partitions.items():
            clock, state = self.clocks[each], one.clock
            late = sum(state.counters()[name] for name in LATE_COUNTERS)
            told = state.events, late, state.ctis, state.cti_us
            known = clock.events, clock.late, clock.ctis, clock.cti
            assert told == known, f"batch {batch.number}, {each}: the clock is {told}, not {known}"
        self.there, self.idle, self.lost = there, idle, set()

    def change_rules(self, batch: StreamOffset) -> None:
        """The rules of the batch, where they may change (8.10)."""

    def take_imports(self, batch: StreamOffset) -> None:
        """Raise clocks by imported CTIs (6.2)."""

    def end_range(self, partition: Partition, one: PartitionOffset) -> None:
        """A range has been read."""

    def keeps(self, row: tuple[int, int, str | None]) -> bool:
        """Whether Spark gets the row, which the policy lets pass."""
        return True

    def find_stream(self, batch: StreamOffset, now: int | None) -> int | None:
        """The stream's CTI at the start of a batch, from its partitions' clocks."""
        return most(self.stream, now)

    def find_due(self, partition: Partition, batch: StreamOffset) -> int:
        """Where a range must begin."""
        return self.reached.get(partition, self.starts.get(partition, 0))

    def check(self, batch: StreamOffset, tasks: Sequence[Sequence[Any]]) -> None:
        """All promises about a batch, given its rows by task."""
        self._begin(batch)
        expected = {each: self.read(each, one, batch) for each, one in batch.partitions.items()}
        delivered: dict[int, list[Any]] = {}
        for row in (row for task in tasks for row in task if not isinstance(row, int)):
            delivered.setdefault(row[0], []).append(row)
        for partition, rows in expected.items():
            found = delivered.pop(partition.number, [])
            assert found == rows, f"batch {batch.number}, {partition}: {found} is not {rows}"
        assert not delivered, f"batch {batch.number} has rows of other partitions: {delivered}"
        proven = least([self.clocks[each].cti for each in self.there - self.idle])
        bound, emitted = most(self.stream, proven), most(self.stream, self.emitted)
        self.check_ctis(batch, tasks, bound, emitted)

    def check_ctis(
        self,
        batch: StreamOffset,
        tasks: Sequence[Sequence[Any]],
        bound: int | None,
        emitted: int | None,
    ) -> None:
        """5.7: the CTI rows of a batch, none of which may be above `bound`."""
        for task in tasks:
            ctis = [row for row in task if isinstance(row, int)]
            assert ctis == sorted(set(ctis)), f"batch {batch.number}: CTI rows {ctis}"
            assert not ctis or (bound is not None and ctis[-1] <= bound), f"{ctis} above {bound}"
            self._check_promises(task)
            emitted = most(emitted, *ctis)
        if len(tasks) == 1 and not batch.final:
            assert emitted == bound, f"batch {batch.number} ends with CTI {emitted}, not {bound}"
        self.stream = self.emitted = emitted

    def _check_promises(self, task: Sequence[Any]) -> None:
        """2.1: no event on time lies before an earlier CTI row."""
        shown = self.emitted
        for row in task:
            if isinstance(row, int):
                shown = most(shown, row)
            elif row[2] is None:
                time = self.times[row[0], row[1]]
                assert shown is None or time >= shown, f"{row} at {time} comes after CTI {shown}"

    def read(self, partition: Partition, one: PartitionOffset, batch: StreamOffset) -> list[Any]:
        """The rows of a range that begins where the last one ended."""
        due = self.find_due(partition, batch)
        assert one.start_inclusive == due, (
            f"{partition} goes on at {one.start_inclusive}, not {due}"
        )
        self.reached[partition] = one.end_exclusive
        clock, rows = self.clocks[partition], []
        for record in self.logs[partition].records:
            if one.start_inclusive <= record.offset < one.end_exclusive:
                late = clock.hear(record)
                self.times[partition.number, record.offset] = record.stamp_ms * 1_000
                word = late_word(self.policy) if late else None
                row = partition.number, record.offset, word
                if (word or not late) and self.keeps(row):
                    rows.append(row)
        self.end_range(partition, one)
        return rows

    def check_end(self) -> None:
        """Everything that can be read was read."""
        for partition, log in self.logs.items():
            reached = self.reached.get(partition, 0)
            assert reached == log.stable_end, (
                f"{partition} is read to {reached} of {log.stable_end}"
            )
