"""More that a query may have: imported CTIs, a filter, changed options, joined batches, and a topic
that is deleted and created again."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulation.cluster import Log
from simulation.expected import ChainOracle, Clock, most
from simulation.spark import AsyncCheckpoint, Checkpoint
from simulation.world import World
from timestream.builders import PASSING

from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import Partition

TOPIC, TIMES = "topic", "times"
"""The query's topic, and that of imported CTIs."""

_QUIET = frozenset(("", "start", "bounded", "idle", "committed"))
"""Phases of a driver in which no batch is on its way."""

WHERE = {
    "offset in (0, 2, 3, 5, 8, 13, 21) or offset > 30": lambda row: (
        row[1] in (0, 2, 3, 5, 8, 13, 21) or row[1] > 30
    ),
    "not (partition = 1 and offset < 7)": lambda row: not (row[0] == 1 and row[1] < 7),
    "offset between 1 and 9": lambda row: 1 <= row[1] <= 9,
}
"""Conditions, and what they say of a row."""


@dataclass(frozen=True, slots=True)
class Extras:
    """A seed's draws besides `Query`.

    Attributes:
        import_every: CTIs are imported, by this many events; 0 for those in band, None for none.
        where: a key of `WHERE`; None for no filter.
        changes: whether a restart may change options (8.10).
        is_async: whether Spark's log has only some of the batches (8.6).
        recreates: whether the topic may be deleted and created again (9.1).
    """

    import_every: int | None
    where: str | None
    changes: bool
    is_async: bool
    recreates: bool

    @classmethod
    def draw(cls, draw: random.Random) -> "Extras":
        """Draw them."""
        recreates = draw.random() < 0.25
        return cls(
            draw.choice([None, 0, 1, 3]),
            draw.choice([None, *WHERE]),
            draw.random() < 0.5,
            not recreates and draw.random() < 0.4,
            recreates,
        )


class WideWorld(World):
    """A world with more options in its query than `World` draws."""

    def draw(self, **given: Any) -> None:
        """Draw the query, and the rest by a stream of decisions of its own."""
        super().draw(lengths=(40, 120), **given)
        self._draw = random.Random(f"{self.chance.seed}/wide")
        extras = self.extras = Extras.draw(self._draw)
        query, options = self.query, dict(self.query.options)
        if extras.import_every is not None:
            how: dict[str, str] = {"topic": TIMES}
            how |= {"frequency": str(extras.import_every)} if extras.import_every else {}
            how |= {} if extras.import_every else {"header": "cti"}
            options["ctiImport"] = json.dumps(how)
            if self._draw.random() < 0.4 and not extras.changes and "ctiHeader" not in options:
                del options["ctiFrequency"], options["ctiDelay"]
                query = replace(query, every=None, span_us=None, delay_us=0)
        if extras.where is not None:
            options["where"] = extras.where
        if extras.changes:
            options["changeFrom"] = "now"
        if extras.recreates:
            options["failOnDataLoss"] = "false"
            query = replace(query, fails_on_loss=False)
        if extras.recreates or extras.is_async:
            query = replace(query, has_rival=False)
        self.query = replace(query, options=options)
        self.options = options
        self.made_logs: list[Mapping[Partition, Log]] = []
        self.robbed: set[int] = set()
        """Batches that were planned and not run yet when their topic was created again."""

    def make_checkpoint(self) -> Checkpoint:
        """Spark's log, of all batches or of some."""
        if not self.extras.is_async:
            return super().make_checkpoint()
        return AsyncCheckpoint(self.chance, lambda last: self.sink.forget_after(last))

    def add_partition(self) -> None:
        """The topic gets one more partition; with the first one, the CTIs' topic, too."""
        super().add_partition()
        if self.extras.import_every is not None and self.made == 1:
            for number in range(self._draw.randint(1, 2)):
                self.cluster.create(Partition(TIMES, number))

    # -- options that change

    def choose_options(self) -> dict[str, str]:
        """The options of a new run, which may differ from the last one's."""
        draw, options = self._draw, dict(self.options)
        if self.extras.changes and self.checkpoint.offsets and draw.random() < 0.3:
            self.chance.hits["options changed"] += 1
            name = draw.choice(["ctiFrequency", "ctiDelay", "violationPolicy", "idleTimeout"])
            options[name] = draw.choice(
                {
                    "ctiFrequency": ["1", "2", "4", "1 s", "5 s"],
                    "ctiDelay": ["0 s", "1 s", "3 s"],
                    "violationPolicy": PASSING,
                    "idleTimeout": ["2 s", "10 s"],
                }[name]
            )
        self.options = options
        return options

    # -- what happens

    def disturb(self) -> None:
        """Something happens; now and then the topic is created again."""
        if self.extras.recreates and self.chance.happens(0.02) and self._may_recreate():
            self.chance.hits["topic recreated"] += 1
            last = max(self.checkpoint.offsets, default=-1)
            if last not in self.checkpoint.commits and last >= 0:
                # A driver that goes on would read the planned range in another topic.
                for driver in list(self.drivers):
                    self.chance.kill(driver, "a topic recreated under a batch")
                    self.end(driver)
                self.robbed.add(last)
            self.made_logs.append(self.cluster.recreate(TOPIC))
        else:
            super().disturb()

    def _may_recreate(self) -> bool:
        """Whether nobody reads or stores a batch now."""
        last = max(self.checkpoint.offsets, default=-1)
        at_rest = not any(map(self.chance.is_running, self.drivers)) and not self.chance.jobs
        is_new = last not in self.checkpoint.commits
        is_planned = any(each.phase not in _QUIET for each in self.drivers)
        free = last not in self.sink.batches if is_new else not is_planned
        return self.chance.is_faulty and at_rest and free

    def delete_old(self, partition: Partition, log: Log) -> None:
        """Retention deletes what no restart reads again."""
        if partition.topic == TIMES or self.extras.recreates:
            return
        checkpoint = self.checkpoint
        if not isinstance(checkpoint, AsyncCheckpoint):
            super().delete_old(partition, log)
        elif len(checkpoint.logged) > 3:
            read = StreamOffset.from_json(json.loads(checkpoint.offsets[checkpoint.logged[-4]]))
            if partition in read.partitions:
                log.begin = max(log.begin, read.partitions[partition].start_inclusive)

    def change_leader(self, kind: str, partition: Partition, log: Log) -> None:
        """A change of leaders; the imported topic's changes are short.

        With imported CTIs no deposed leader answers: they wait for the end that the log then has.
        """
        if kind == "outdate" and self.extras.import_every is not None:
            kind = "hide"
        if partition.topic == TIMES and kind == "hide long":
            kind = "hide"
        super().change_leader(kind, partition, log)

    def produce(self, log: Log) -> None:
        """Producers write; the imported topic's write only marks if marks count."""
        is_of_times = any(log is each for p, each in self.cluster.logs.items() if p.topic == TIMES)
        if not is_of_times or self.extras.import_every:
            super().produce(log)
            return
        for _ in range(self._draw.choice([1, 2])):
            self.event_ms += self._draw.randrange(0, 1_000)
            stamp_ms = self.event_ms + self._draw.choice([0, 0, -2_000, -60_000])
            log.append(stamp_ms, stamp_ms, is_open=log.open_at is not None)

    def excuses(self, error: Exception) -> bool:
        """The imported topic, not read before, is missing for a moment; or as `World`."""
        if isinstance(error, OptionError) and "ctiImport" in str(error) and self.cluster.hidden:
            last = self.checkpoint.offsets.get(max(self.checkpoint.offsets, default=-1))
            imported = None if last is None else StreamOffset.from_json(json.loads(last)).imported
            return imported is None or not imported.partitions
        return super().excuses(error)

    # -- the end

    def check_log(self) -> None:
        """Spark's logs have each batch once; with asynchronous tracking, the last one is done."""
        if not self.extras.is_async:
            super().check_log()
            return
        offsets, commits = self.checkpoint.offsets, self.checkpoint.commits
        assert sorted(offsets) == list(range(len(offsets)))
        assert max(commits) == max(offsets)

    def make_oracle(self) -> ChainOracle:
        """The oracle of all of it."""
        return WideOracle(self)


class WideOracle(ChainOracle):
    """`ChainOracle` with sections 6, 8.6, 8.10, 9.1 and 13.15."""

    def __init__(self, world: WideWorld) -> None:
        self.world, query = world, world.query
        logs = {p: log for p, log in world.cluster.logs.items() if p.topic == TOPIC}
        super().__init__(
            logs,
            lambda: Clock(self.rule[0], self.rule[1], self.rule[2]),
            policy=query.options["violationPolicy"],
        )
        self.eras = [*world.made_logs, logs]
        """The logs of the topic, each time that it was created."""
        self.era = 0
        self.logs = self.eras[0]
        self.rule: tuple[int | None, int | None, int] = (query.every, query.span_us, query.delay_us)
        self.parse = read_kafka_options(query.options)
        self.waiting: dict[Partition, tuple[tuple[int, int], ...]] = {}
        self.moved: set[Partition] = set()
        self.imported: int | None = None
        self.times: dict[tuple[int, int], int] = {}
        self.starting: dict[Partition, Clock] = {}
        self.before: dict[Partition, Clock] = {}
        """The clocks where the batch at work begins, and where the last one began."""
        self.is_free, self.free_to = False, None
        self.began: int | None = None
        """The stream's CTI where the last batch began."""
        self._written: dict[int, int] = {}
        self._fold_times()

    # -- 8.10

    def change_rules(self, batch: StreamOffset) -> None:
        """Go on by the options of the batch."""
        self._enter_era(batch)
        options = self.parse.as_of(batch.settings)
        rules = options.rules
        rule = rules.every_events, rules.every_us, options.delay_us
        if rule[:2] != self.rule[:2]:
            for clock in self.clocks.values():
                clock.count, clock.base = 0, None
        self.rule, self.policy = rule, options.policy
        for clock in self.clocks.values():
            clock.every, clock.span_us, clock.delay_us = rule

    # -- 9.1

    def _enter_era(self, batch: StreamOffset) -> None:
        told = int(batch.topic_ids.get(TOPIC, "1" * 32)[:16], 16)
        era = told - 1 if self.world.extras.recreates and TOPIC in batch.topic_ids else self.era
        if era == self.era:
            return
        assert era > self.era, f"the topic's id goes back from {self.era} to {era}"
        self.era, self.logs = era, self.eras[era]
        for each in self.clocks.keys() - batch.partitions.keys():
            # It belongs to a topic with another id, so it is found later (5.6).
            for known in (self.clocks, self.starts, self.reached, self.waiting, self.before):
                known.pop(each, None)
        self.reached = dict.fromkeys(self.reached, 0)
        self.moved = set(self.reached)
        for each, one in batch.partitions.items():
            clock, kept = self.clocks.get(each), self.before.get(each)
            told_now = one.clock.events, one.clock.ctis
            is_robbed = batch.number - 1 in self.world.robbed
            # Only a loss sets a clock back; perhaps only an imported CTI had raised it.
            goes_back = bool(clock) and most(one.clock.cti_us, clock.cti) != one.clock.cti_us
            is_other = bool(clock) and told_now != (clock.events, clock.ctis)
            if clock and kept and (is_robbed or is_other or goes_back):
                # No task's state was there, and no record to read again (8.3): the results of the
                # last batch are not known any more.
                assert told_now == (kept.events, kept.ctis), f"{each} begins with {one.clock}"
                self.clocks[each] = kept
                self.lost.add(each)
        if self.lost:
            self.is_free, self.free_to = True, self.emitted
            self.stream = self.emitted = self.began

    def read(self, partition: Partition, one: PartitionOffset, batch: StreamOffset) -> list[Any]:
        """A batch that was planned before its topic was created again has none of its records."""
        if batch.number not in self.world.robbed:
            return super().read(partition, one, batch)
        logs, self.logs = self.logs, {each: Log() for each in self.logs}
        try:
            return super().read(partition, one, batch)
        finally:
            self.logs = logs

    # -- 6

    def _fold_times(self) -> None:
        """When each CTI of the imported topic was written."""
        every = self.world.extras.import_every
        for partition, log in self.world.cluster.logs.items():
            if partition.topic == TIMES:
                clock = Clock(every or None, None, 0)
                for record in log.records:
                    clock.hear(record if not every else replace(record, mark=None))
                    if clock.cti is not None:
                        self._written.setdefault(clock.cti, record.written)

    def take_imports(self, batch: StreamOffset) -> None:
        """Raise clocks by the CTIs that are due where a batch begins, and note those that wait."""
        if batch.imported is None:
            return
        now, before = batch.imported.cti_us, self.imported
        assert before is None or (now is not None and now >= before), "an imported CTI goes back"
        for partition, one in batch.partitions.items():
            pairs = self.waiting.get(partition, ())
            due = [cti for end, cti in pairs if end <= one.start_inclusive]
            reached = self.reached.get(partition, one.start_inclusive)
            if pairs and (partition in self.moved or one.start_inclusive != reached):
                # Records are lost, or the log is another one: every CTI waits for its present end.
                last = pairs[-1][1]
                due = [] if one.pending and one.pending[-1][1] >= last else [last]
            is_new = partition not in self.there
            if now is not None and (now != before or is_new):
                waits = bool(one.pending) and one.pending[-1][1] == now
                known = pairs and pairs[-1][1] >= now
                due += [] if waits or known else [now]
            known_ctis = {cti for _, cti in pairs} | {now}
            assert {cti for _, cti in one.pending} <= known_ctis, f"{one.pending} after {pairs}"
            self._raise(partition, most(*due), one.start_inclusive)
            self.waiting[partition] = one.pending
        self.imported, self.moved = now, set()

    def end_range(self, partition: Partition, one: PartitionOffset) -> None:
        """An imported CTI takes effect at the end of the range that it waited for."""
        if one.size:
            pairs = self.waiting.get(partition, ())
            due = [cti for end, cti in pairs if end <= one.end_exclusive]
            self._raise(partition, most(*due), one.end_exclusive)

    def _raise(self, partition: Partition, cti: int | None, position: int) -> None:
        clock = self.clocks[partition]
        own = clock.cti
        if not clock.lift(cti):
            return
        self.world.chance.hits["CTI imported"] += 1
        written = self._written.get(cti or 0)
        if written is None:
            return  # It was raised itself, as when a partition comes back.
        for record in self.logs[partition].records:
            time = record.stamp_ms * 1_000
            if record.offset >= position and time < (cti or 0) and (own is None or time >= own):
                assert record.written > written, (
                    f"{partition}: {record} is late by the imported CTI {cti}, written after it"
                )

    # -- 8.6, 13.15

    def keeps(self, row: tuple[int, int, str | None]) -> bool:
        """Whether the filter lets it pass."""
        where = self.world.extras.where
        return where is None or WHERE[where](row)

    def find_stream(self, batch: StreamOffset, now: int | None) -> int | None:
        """The stream's CTI; after joined batches, seen only together, any that was proven."""
        lowest = most(self.stream, now)
        if not self.is_free:
            return lowest
        self.is_free = False
        highest = most(lowest, self.free_to)
        told = batch.cti_us
        assert told == lowest or (
            told is not None and (lowest or told) <= told <= (highest or told)
        ), f"the stream's CTI is {told}, not from {lowest} to {highest}"
        return told

    def check_ctis(
        self,
        batch: StreamOffset,
        tasks: Sequence[Sequence[Any]],
        bound: int | None,
        emitted: int | None,
    ) -> None:
        """Joined batches show only the last of their CTIs."""
        if batch.number in self.world.sink.joined:
            self.is_free, self.free_to = True, bound
            self.emitted = emitted
        else:
            super().check_ctis(batch, tasks, bound, emitted)
        self.before = {each: copy_of(clock) for each, clock in self.starting.items()}
        self.began = batch.cti_us

    def find_due(self, partition: Partition, batch: StreamOffset) -> int:
        """Where a range must begin; its clock then is noted."""
        self.starting[partition] = copy_of(self.clocks[partition])
        return super().find_due(partition, batch)

    def check_end(self) -> None:
        """Everything was read, and no imported CTI waits any more."""
        assert self.era == len(self.eras) - 1, "the last topic was not read"
        super().check_end()
        left = {each: pairs for each, pairs in self.waiting.items() if pairs}
        assert not left, f"imported CTIs still wait: {left}"


def copy_of(clock: Clock) -> Clock:
    """A copy of a clock."""
    made = Clock(clock.every, clock.span_us, clock.delay_us)
    made.__dict__.update(clock.__dict__)
    return made
