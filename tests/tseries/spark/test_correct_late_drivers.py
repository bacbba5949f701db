"""Drivers that correct a store by the same batches at once, under kills: all rows count once.

Each driver is a thread that stops before each of its steps: a file of what waits that it looks for,
reads, writes or removes, an entry of the log that it reads or adds. A random order of these steps,
with kills and long pauses, is any interleaving of two processes.
"""

import contextlib
import random
import secrets
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from lengths import FULL_LENGTH, with_rest_outside_ci
from tseries.object_store import bucket  # noqa: F401 a fixture

from pyspark_timestream.core.instants import HOUR_US
from pyspark_tseries import ReplayDiffers, TimeSeries, UpdateFailed
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.spark.correct_late import LATE_COUNT, WindowRules, _Corrector
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.log import Log, open_table
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.rows import staged_schema

pytestmark = pytest.mark.timeout(600)

RULES = WindowRules(("series", "hour"), {"rides": "sum"}, 0, "late", "came late")
HOURS = 6
REFUSALS = ReplayDiffers, UpdateFailed


class Killed(BaseException):
    """The end of a driver in the middle of a step."""


def count(rows):
    """The rides of each hour, as Spark counts late rows."""
    hours = sorted(set(rows))
    rides = [rows.count(hour) for hour in hours]
    columns = {
        "series": pa.array(["a"] * len(hours), pa.string()),
        "hour": pa.array([hour * HOUR_US for hour in hours], pa.int64()).cast(INSTANT),
        "rides": pa.array(rides, pa.int64()),
        LATE_COUNT: pa.array(rides, pa.int64()),
    }
    return pa.table(columns)


class Driver(threading.Thread):
    """A driver of the query, which makes a step when `step` is called."""

    here = threading.local()

    def __init__(self, flow):
        super().__init__(daemon=True)
        self.flow, self.error, self.is_over, self.is_killed = flow, None, False, False
        self.turn, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.start()
        self.stopped.acquire()

    def run(self):
        self.here.driver, self.here.store = self, None
        try:
            self.wait()
            self.correct()
        except Exception as error:
            self.error = error
        except Killed:
            pass
        self.is_over = True
        self.stopped.release()

    def correct(self):
        number = self.flow.done
        while number < len(self.flow.batches):
            late = count(self.flow.batches[number])
            _Corrector(self.flow.location, RULES).correct(late, "q", number)
            number += 1
            self.flow.done = max(self.flow.done, number)

    def wait(self):
        """Stop before a step of this driver."""
        self.stopped.release()
        self.turn.acquire()
        if self.is_killed:
            raise Killed

    def step(self):
        """Let the driver go on until its next step."""
        if not self.is_over:
            self.turn.release()
            self.stopped.acquire()

    def kill(self):
        self.is_killed = True
        self.step()

    def finish(self):
        """Let the driver correct all that is left; raise what it is refused by."""
        while not self.is_over:
            self.step()
        if self.error is not None:
            raise self.error


def gate(monkeypatch, owner, name, applies):
    original = getattr(owner, name)

    def stopping(self, *args, **named):
        driver = getattr(Driver.here, "driver", None)
        if driver is not None and applies(*args):
            driver.wait()
        return original(self, *args, **named)

    monkeypatch.setattr(owner, name, stopping)


@pytest.fixture
def gates(monkeypatch):
    """Drivers stop before each step, and each has its own view of the store, like a process."""
    opened = Store.open

    def is_late(paths, *_):
        return "/late/q" in str(paths)

    for name in ("read", "identity", "list_files", "replace_whole", "remove"):
        gate(monkeypatch, Location, name, is_late)
    for name in ("refresh", "add"):
        gate(monkeypatch, Log, name, lambda *_: True)

    def own_store(path):
        if getattr(Driver.here, "driver", None) is None:
            return opened(path)
        if Driver.here.store is None:
            lock = lambda _: contextlib.nullcontext()  # noqa: E731
            Driver.here.store = Store(path, open_table(path), host_lock=lock)
        Driver.here.store.refresh()
        return Driver.here.store

    monkeypatch.setattr(Store, "open", staticmethod(own_store))


class Flow:
    """A store, the late rows of its batches, and how many batches the checkpoint says are done."""

    def __init__(self, location, batches):
        self.location, self.batches, self.done, self.hours = location, batches, 0, 0
        values = {"hour": INSTANT, "rides": pa.int64(), "reason": pa.string()}
        options = dict(location.options) or None
        self.series = TimeSeries.create(location.root, values, "unlimited", storage_options=options)
        self.advance()

    def advance(self):
        """Write a window with one ride, and its CTI."""
        hour = self.hours
        store = Store.open(self.location)
        start = datetime.fromtimestamp(hour * 3600, UTC)
        row = {"series": "a", "timestamp": start, "hour": start, "rides": 1}
        rows = pa.Table.from_pylist([row], staged_schema(store.values)).combine_chunks()
        cti_us = (hour + 1) * HOUR_US
        store.append(Batch(rows, "fail", "main", ("tseries:q:main", hour), cti_us=cti_us))
        self.hours += 1

    def check(self):
        """Every row is in its window once."""
        late = [hour for batch in self.batches for hour in batch]
        rows = self.series.range_query().select_from("a").to_arrow().to_pylist()
        found = {row["hour"].timestamp() // 3600: row["rides"] for row in rows}
        assert found == {hour: 1 + late.count(hour) for hour in range(self.hours)}


def correct_all(flow):
    """Let one driver correct all, behind an empty batch that needs what was left waiting."""
    flow.batches.append([])
    Driver(flow).finish()


@pytest.fixture(params=["disk", "object store"])
def location(request, tmp_path, gates):
    if request.param == "disk":
        return parse_location(str(tmp_path / "s"))
    server = request.getfixturevalue("bucket")
    return parse_location(server.uri(f"drivers/{secrets.token_hex(8)}"), server.options)


@pytest.mark.parametrize(
    ("meanwhile", "is_killed"),
    [(1, False), (3, False), (1, True)],
    ids=["the same batch", "later batches, too", "killed"],
)
@pytest.mark.parametrize("step", with_rest_outside_ci(range(2, 16), in_ci=(6,)))
def test_driver_that_pauses_or_is_killed_at_any_step_finds_what_another_has_decided(
    location, step, meanwhile, is_killed
):
    """The other one decides by a later CTI."""
    flow = Flow(location, [[0, 1, 1], [2], []][:meanwhile])
    paused = Driver(flow)
    for _ in range(step):
        paused.step()
    if is_killed:
        paused.kill()
    flow.advance()
    Driver(flow).finish()
    with contextlib.suppress(*REFUSALS):
        paused.finish()
    flow.advance()
    flow.advance()
    correct_all(flow)
    flow.check()


def run(location, seed):
    """Run drivers in a random order of their steps, with kills, and check what they leave."""
    chance = random.Random(seed)
    # Windows become ready at about the time of their late rows.
    batches = [
        [min(max(number + chance.randint(-1, 2), 0), HOURS - 1) for _ in range(size)]
        for number in range(HOURS)
        for size in (chance.choice([0, 2, 3]),)
    ]
    flow = Flow(location, batches)
    drivers, errors = [Driver(flow), Driver(flow)], []
    while flow.hours < HOURS:
        which = chance.randrange(2)
        for _ in range(chance.choice([1, 1, 2, 3, 5, 8, 20])):
            drivers[which].step()
        if chance.random() < 0.07:
            drivers[which].kill()
        if drivers[which].is_over:
            errors.append(drivers[which].error)
            drivers[which] = Driver(flow)
        if chance.random() < 0.2:
            flow.advance()
    correct_all(flow)
    for driver in drivers:  # They have paused for long.
        with contextlib.suppress(*REFUSALS):
            driver.finish()
    correct_all(flow)
    flow.check()
    refusals = [error for error in errors if error is not None]
    assert all(isinstance(error, REFUSALS) for error in refusals), refusals


@pytest.mark.parametrize(
    "seed", with_rest_outside_ci(range(1000 if FULL_LENGTH else 20), in_ci=(3, 8, 19))
)
def test_drivers_at_once_lose_and_double_nothing(tmp_path, gates, seed):
    run(parse_location(str(tmp_path / "s")), seed)
    assert verify(str(tmp_path / "s")) == []


@pytest.mark.outside_ci
@pytest.mark.parametrize("seed", range(20 if FULL_LENGTH else 3))
def test_drivers_at_once_lose_and_double_nothing_in_an_object_store(bucket, gates, seed):  # noqa: F811
    run(parse_location(bucket.uri(f"drivers/{seed}"), bucket.options), seed)
