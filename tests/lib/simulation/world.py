"""A query in a world where everything goes wrong, by one seed.

`World(seed).run()` draws a query, lets its topic, its brokers and its drivers act in any order with
faults at any point, ends all trouble, lets the query read the rest, and compares everything that it
has delivered with the oracle's rows.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from simulation.chance import Chance, Killed, Process
from simulation.cluster import TOPIC, Cluster, Log
from simulation.expected import ChainOracle, Clock
from simulation.patches import patched
from simulation.spark import Checkpoint, ConcurrentUpdate, Driver, MemorySink, TasksKilled

from pyspark_timestream.errors import BrokerUnreachable, DataLost, OptionError
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Partition

SECOND = 1_000_000
_SHORT_US = 3 * SECOND
"""A change of leaders is shorter: it is not a loss (semantics 9.1)."""

_ANSWER_S = 100
"""Time in which a driver tells of a loss."""

_CALM_US = 300 * SECOND
_LAST_RUNS = 2
_PATIENCE = 10_000
"""More phases than any last run takes: six a batch, which may have one record."""


class Finding(AssertionError):
    """The product broke a promise; the message says how to see it again."""


@dataclass(frozen=True, slots=True)
class Query:
    """The seed's draws: the options of the query, and how much goes wrong."""

    options: dict[str, str]
    every: int | None
    span_us: int | None
    delay_us: int
    has_marks: bool
    has_transactions: bool
    fails_on_loss: bool
    has_rival: bool
    partitions: int
    min_task_records: int
    length: int

    @classmethod
    def draw(
        cls, chance: Chance, *, policy: str = "", lengths: Sequence[int] = (40, 120, 300)
    ) -> "Query":
        """Draw a query, and set the rates of faults."""
        draw = chance.random
        every = draw.choice([1, 2, 3, 5, None])
        span_us = None if every else draw.choice([1, 3, 10]) * SECOND
        delay_us = draw.choice([0, 0, 1, 2]) * SECOND
        policy = policy or ("drop" if draw.random() < 0.4 else "flag")
        has_marks = draw.random() < 0.3
        has_transactions, fails_on_loss = draw.random() < 0.4, draw.random() < 0.5
        options = {
            "kafka.bootstrap.servers": "broker:9092",
            "subscribe": TOPIC,
            "startingOffsets": draw.choice(["earliest", "earliest", "latest"]),
            "violationPolicy": policy,
            "ctiFrequency": str(every) if every else f"{span_us} us",
            "ctiDelay": f"{delay_us} us",
            "failOnDataLoss": str(fails_on_loss).lower(),
            "maxDriverRecords": draw.choice(["0", "5", "10000"]),
            "finalCti": "false",
        }
        if has_marks:
            options["ctiHeader"] = "cti"
        if has_transactions:
            options["kafka.isolation.level"] = "read_committed"
        for name, texts in {
            "idleTimeout": ("2 s", "10 s"),
            "maxOffsetsPerTrigger": ("1", "4", "20"),
            "maxTasks": ("1", "2"),
            "maxSkew": ("5 s",),
        }.items():
            if draw.random() < 0.5:
                options[name] = draw.choice(texts)
        chance.kill_rate = draw.choice([0, 0.002, 0.01, 0.04])
        chance.interrupt_rate = draw.choice([0, 0.03, 0.15])
        chance.fault_rate = draw.choice([0, 0.01, 0.05, 0.15])
        return cls(
            options,
            every,
            span_us,
            delay_us,
            has_marks,
            has_transactions,
            fails_on_loss,
            draw.random() < 0.4,
            draw.randint(1, 4),
            draw.choice([1, 3, 20_000]),
            draw.choice(lengths),
        )


class World:
    """One run.

    Args:
        seed: decides everything.
        faults: after this many steps nothing fails any more; None for no such limit.
    """

    def __init__(self, seed: int, faults: int | None = None) -> None:
        self.chance = Chance(seed, faults)
        self.peak_ahead_us = self.chance.wall_ahead_us
        self.draw()
        self.cluster = Cluster(self.chance)
        self.cluster.keeps_ids = not self.query.fails_on_loss
        self.checkpoint = self.make_checkpoint()
        self.drivers: list[Driver] = []
        self.finding: Finding | None = None
        self.made = 0
        self.event_ms = 1_600_000_000_000
        self.calm_at_us: dict[Partition, int] = {}
        self.lost_until_us = -_ANSWER_S * SECOND
        """The time when a missing partition counts as gone (semantics 9.1)."""
        for _ in range(self.query.partitions):
            self.add_partition()
        self.chance.interrupt = self.interrupt
        self.chance.on_kill = self.on_kill

    def make_checkpoint(self) -> Checkpoint:
        """The checkpoint, which outlives all drivers."""
        return Checkpoint(self.chance)

    def draw(self, **given: Any) -> None:
        """Draw the query, and how much goes wrong."""
        self.query = Query.draw(self.chance, **given)

    # -- the run

    def run(self) -> None:
        """Run it, and compare; a `Finding` tells the seed."""
        level = logging.getLogger("pyspark_timestream").level
        logging.getLogger("pyspark_timestream").setLevel(logging.CRITICAL)
        try:
            self.sink = self.open_sink()
            with patched(self.chance, self.cluster, self.query.min_task_records) as patch:
                self.prepare(patch)
                for _ in range(self.query.length):
                    self.act()
                self.read_the_rest()
                self.compare()
        except Exception as error:
            raise Finding(
                f"seed {self.chance.seed} fails after {self.chance.steps} steps: "
                f"{type(error).__name__}: {error}; make simulate SEED={self.chance.seed}"
            ) from error
        finally:
            logging.getLogger("pyspark_timestream").setLevel(level)

    def open_sink(self) -> Any:
        """The sink, which outlives all drivers."""
        return MemorySink(self.chance)

    def run_quietly(self) -> "World":
        """Run it, and keep what was found in `finding`."""
        try:
            self.run()
        except Finding as finding:
            self.finding = finding
        return self

    def prepare(self, patch: pytest.MonkeyPatch) -> None:
        """Put more of the world in place of the real one."""

    def act(self) -> None:
        """One thing happens."""
        if self.chance.happens(0.65):
            self.step_driver()
        else:
            self.disturb()

    def interrupt(self) -> None:
        """Somebody else acts, while a process waits."""
        which = self.chance.random.random()
        if which < 0.3:
            self.step_driver()
        elif which < 0.6:
            self.chance.run_a_job()
        else:
            self.disturb()

    # -- drivers

    def step_driver(self) -> None:
        """Let a driver go on; start one if none runs, or the rival of one."""
        free = [each for each in self.drivers if not self.chance.is_running(each)]
        rival = self.query.has_rival and len(self.drivers) == 1 and self.chance.happens(0.05)
        if not self.drivers or (rival and self.chance.is_faulty):
            self.chance.hits["two drivers at once"] += bool(self.drivers)
            self.drivers.append(self.start_driver(is_bounded=self.chance.happens(0.25)))
        elif free:
            driver = self.chance.pick(free)
            for _ in range(self.chance.random.randint(1, 8)):
                if not self.go_on(driver):
                    break

    def start_driver(self, *, is_bounded: bool) -> Driver:
        """A new run of the query on its checkpoint."""
        self.chance.hits["start"] += 1
        return Driver(
            self.chance,
            self.choose_options(),
            self.checkpoint,
            lambda: self.sink,
            is_bounded=is_bounded,
        )

    def choose_options(self) -> dict[str, str]:
        """The options of a new run."""
        return self.query.options

    def go_on(self, driver: Driver) -> bool:
        """Let a driver make one step; whether it runs on."""
        try:
            with self.chance.running(driver):
                phase = next(driver.steps)
        except StopIteration:
            self.chance.hits["bounded run ended"] += 1
        except Killed:
            self.chance.hits["driver killed"] += 1
        except ConcurrentUpdate:
            self.chance.hits["driver refused by the log"] += 1
        except Exception as error:
            self.check_excuse(error)
        else:
            driver.phase = phase
            self.chance.hits["batch"] += phase == "committed"
            return True
        self.end(driver)
        return False

    def end(self, driver: Driver) -> None:
        """A driver has ended, or is killed."""
        driver.is_dead = True
        if driver in self.drivers:
            self.drivers.remove(driver)
        # Executors of a cluster may outlive the driver, for a while.
        for executor in driver.executors:
            executor.is_dead |= self.chance.happens(0.7)
        self.chance.jobs = [
            job for job in self.chance.jobs if not (job._owner and job._owner.is_dead)
        ]

    def on_kill(self, process: Process) -> None:
        """A process dies at this moment."""

    def check_excuse(self, error: Exception) -> None:
        """An error that ends a query is a fault's, or a finding."""
        self.chance.hits[f"query ended: {type(error).__name__}"] += 1
        if not self.excuses(error):
            raise error

    def excuses(self, error: Exception) -> bool:
        """Whether a fault has caused the error."""
        if isinstance(error, DataLost):
            seconds = self.chance.monotonic() - self.lost_until_us / 1e6
            return seconds < _ANSWER_S
        if isinstance(error, OptionError):
            # Before the first batch, a topic that metadata lacks does not exist.
            return not self.checkpoint.offsets and bool(self.cluster.hidden)
        if isinstance(error, BrokerUnreachable):
            return bool(self.chance.fault_rate)
        return isinstance(error, TasksKilled)

    # -- the topic and its brokers

    def add_partition(self) -> None:
        """The topic gets one more partition."""
        self.cluster.create(Partition(TOPIC, self.made))
        self.made += 1

    def disturb(self) -> None:
        """Something happens to the topic, the brokers or the clocks."""
        chance, cluster = self.chance, self.cluster
        die = chance.random.random()
        partition = chance.pick(list(cluster.logs))
        log = cluster.logs[partition]
        if die < 0.55:
            self.produce(log)
        elif die < 0.65 and self.query.has_transactions:
            if log.open_at is None:
                log.begin_transaction()
            else:
                log.end_transaction(commits=chance.happens(0.6))
        elif die < 0.70:
            chance.advance(chance.random.choice([0.1, 1, 5, 30]))
        elif die < 0.73 and self.checkpoint.offsets and self.made < 6:
            self.add_partition()
        elif chance.is_faulty:
            self.break_something(partition, log)

    def produce(self, log: Log) -> None:
        """Producers write some records, some late, some far ahead, some with marks."""
        draw = self.chance.random
        for _ in range(draw.choice([1, 2, 3, 10])):
            self.event_ms += draw.randrange(0, 1_000)
            stamp_ms = self.event_ms + draw.choice([0, 0, 0, -500, -4_000, -60_000, 2_000])
            mark = stamp_ms if self.query.has_marks and draw.random() < 0.2 else None
            is_open = log.open_at is not None and draw.random() < 0.5
            log.append(stamp_ms, mark, is_open=is_open)

    def break_something(self, partition: Partition, log: Log) -> None:
        """A fault that lasts."""
        chance, cluster, now_us = self.chance, self.cluster, self.chance.monotonic_us()
        if not chance.fault_rate:
            return
        kind = chance.pick(
            ("hide", "hide long", "outdate", "outage", "clock", "group", "delete", "kill")
        )
        chance.hits[kind] += 1
        if kind in ("hide", "hide long", "outdate"):
            self.change_leader(kind, partition, log)
        elif kind == "outage" and chance.happens(0.3):
            cluster.down_until_us = now_us + chance.random.choice([1, 5, 70, 200]) * SECOND
        elif kind == "clock":
            chance.wall_ahead_us += chance.random.choice([-3_600, -5, 5, 3_600]) * SECOND
            self.peak_ahead_us = max(self.peak_ahead_us, chance.wall_ahead_us)
        elif kind == "group":
            cluster.groups.clear()
        elif kind == "delete" and not self.query.has_rival:
            self.delete_old(partition, log)
        elif kind == "kill" and self.drivers:
            driver = chance.pick(self.drivers)
            chance.kill(driver, "any time")
            if not chance.is_running(driver):
                self.end(driver)
        elif kind == "kill":
            range_reader._POOL._idle.clear()

    def change_leader(self, kind: str, partition: Partition, log: Log) -> None:
        """Hide a partition, or let a former leader answer; not again before it was seen again."""
        chance, cluster, now_us = self.chance, self.cluster, self.chance.monotonic_us()
        if now_us < self.calm_at_us.get(partition, 0):
            return
        lasting_us = chance.random.randrange(_SHORT_US)
        if kind == "outdate":
            cluster.outdated[partition] = (
                chance.random.randint(log.begin, log.end),
                now_us + lasting_us,
            )
        else:
            if kind == "hide long" and self.checkpoint.offsets:
                lasting_us = chance.random.randrange(60 * SECOND)
                if lasting_us >= 5 * SECOND:
                    self.lost_until_us = now_us + lasting_us
            cluster.hidden[partition] = now_us + lasting_us
        self.calm_at_us[partition] = now_us + lasting_us + _CALM_US

    def delete_old(self, partition: Partition, log: Log) -> None:
        """Retention deletes what no restart reads again."""
        last = max(self.checkpoint.offsets, default=-1)
        if last < 2:
            return
        read = StreamOffset.from_json(json.loads(self.checkpoint.offsets[last - 2]))
        if partition in read.partitions:
            log.begin = max(log.begin, read.partitions[partition].start_inclusive)

    # -- the end

    def read_the_rest(self) -> None:
        """End all trouble, and let bounded runs read the rest."""
        self.chance.is_quiet = True
        for driver in list(self.drivers):
            self.end(driver)
        self.cluster.heal()
        self.chance.advance(120)
        for _ in range(_LAST_RUNS):
            driver = self.start_driver(is_bounded=True)
            for _ in range(_PATIENCE):
                with self.chance.running(driver):
                    if next(driver.steps, None) is None:
                        break
            else:
                raise AssertionError("a bounded run does not end")

    def compare(self) -> None:
        """Compare all that was delivered with the oracle."""
        query, offsets = self.query, self.checkpoint.offsets
        self.check_log()
        oracle = self.make_oracle()
        batches = [StreamOffset.from_json(json.loads(offsets[n])) for n in sorted(offsets)]
        if query.options["startingOffsets"] == "latest":
            oracle.starts = {
                each: one.start_inclusive for each, one in batches[0].partitions.items()
            }
        for number, batch in enumerate(batches):
            assert batch.number == number, f"batch {number} is {batch.number} in its offset"
            oracle.check(batch, self.rows_of(number))
        assert batches[-1].end_of_run
        oracle.check_end()

    def check_log(self) -> None:
        """Spark's logs have each batch once, and all are done."""
        offsets, commits = self.checkpoint.offsets, self.checkpoint.commits
        assert sorted(offsets) == sorted(commits) == list(range(len(offsets)))

    def make_oracle(self) -> ChainOracle:
        """The oracle to compare with all batches."""
        query = self.query
        return ChainOracle(
            self.cluster.logs,
            lambda: Clock(query.every, query.span_us, query.delay_us),
            policy=query.options["violationPolicy"],
        )

    def rows_of(self, batch: int) -> list[list[Any]]:
        """The rows of a batch in the sink, by task."""
        rows: list[list[Any]] = self.sink.batches[batch]
        return rows
