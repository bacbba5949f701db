"""A store of events as the sink, on a disk that fails, fills up, and loses what was not synced.

The packages' own writer stages and commits; the disk is a directory; every change of it is a step
of the seed. Each driver has caches of its own, as a process has.
"""

import builtins
import errno
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType
from simulation.chance import Beside, Chance, Killed, Process
from simulation.spark import MemorySink, to_rows
from simulation.world import World
from tseries.limits import set_limits
from tseries.power_loss import Disk

from pyspark_timestream.core.processes import ProcessLock
from pyspark_tseries import DefaultSource, TimeSeries
from pyspark_tseries.errors import NoSuchStore, ReplayDiffers, StorageFailed, WrongClock
from pyspark_tseries.maintain.background import maintain
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.spark import query_checks, readers, writer
from pyspark_tseries.storage import location
from pyspark_tseries.storage import snapshot as heads
from pyspark_tseries.store import checkpoints
from pyspark_tseries.store import store as stores

_QUERY = "query"
_CHANGES = ("link", "replace", "rename", "remove", "unlink", "mkdir", "rmdir", "fsync", "utime")
_CACHES: tuple[Any, ...] = (
    stores._open_stores,
    heads.LAST_INDEXES,
    readers._last_snapshots,
    query_checks._noted,
    writer._warned,
)
"""A process's memory of stores."""

_SCHEMA = (
    StructType()
    .add("series", "string")
    .add("timestamp", "timestamp")
    .add("value", "long")
    .add("cti", "timestamp")
)


class StoreSink:
    """The packages' sink, beside one in memory that compares what is repeated."""

    def __init__(self, chance: Chance, root: Path) -> None:
        self.memory = MemorySink(chance)
        self.batches = self.memory.batches
        self.has_acknowledged = False
        self._options = {
            "path": str(root / "store" / "events"),
            "checkpointLocation": str(root / "checkpoint"),
            "retainedRange": "unlimited",
            "autoCompact": "false",
            "outOfOrder": "fail",
        }

    def _open(self) -> Any:
        return DefaultSource(self._options).streamWriter(_SCHEMA, False)

    def stage(self, number: int, batches: Iterator[pa.RecordBatch]) -> Any:
        """Stage the rows of a task."""
        rows: list[Any] = []

        def convert() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows.extend(to_rows(batch))
                yield to_events(batch)

        with _in_task(number):
            return rows, self._open().write(convert())

    def commit(self, batch: int, tasks: list[Any]) -> None:
        """Commit a batch."""
        self.memory.commit(batch, [rows for rows, _ in tasks])
        self._open().commit([staged for _, staged in tasks], batch)
        self.has_acknowledged = True

    def abort(self, batch: int, tasks: list[Any]) -> None:
        """Give a batch up."""
        self._open().abort([staged for _, staged in tasks], batch)


@contextmanager
def _in_task(number: int) -> Iterator[None]:
    before = TaskContext._taskContext
    TaskContext._setTaskContext(None)
    task = TaskContext._getOrCreate()
    task._partitionId, task._localProperties = number, {"sql.streaming.queryId": _QUERY}
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def to_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as events, each of a series of its own, so that only the store's CTI is compared."""
    numbers = [batch[name].cast(pa.string()) for name in ("partition", "offset")]
    series = pc.binary_join_element_wise(*numbers, "-")
    columns = [series, batch["timestamp"], batch["offset"], batch["cti"]]
    return pa.RecordBatch.from_arrays(columns, ["series", "timestamp", "value", "cti"])


class StoreWorld(World):
    """A world with a store as the sink."""

    def __init__(self, seed: int, faults: int | None = None) -> None:
        super().__init__(seed, faults)
        self.maintainers: list[Process] = []
        self._image: Process | None = None
        self._images: dict[Process, list[Any]] = {}
        self._is_aside = False
        self._disk: Disk | None = None

    def draw(self) -> None:
        """A query that drops late events: the store refuses events before its CTI."""
        super().draw(policy="drop", lengths=(15, 40))
        self.chance.kill_rate /= 4
        self.power_rate = self.chance.random.choice([0, 0.3, 1])

    def run(self) -> None:
        """Run it in a directory of its own."""
        # Python looks for this directory once a process, and that must be no step of the disk.
        tempfile.gettempdir()
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(dir=memory, prefix="simulation-") as directory:
            self.root = Path(directory)
            (self.root / "checkpoint" / "offsets").mkdir(parents=True)
            (self.root / "store").mkdir()
            super().run()

    def open_sink(self) -> Any:
        """The store."""
        return StoreSink(self.chance, self.root)

    def prepare(self, patch: pytest.MonkeyPatch) -> None:
        """Watch the disk, and let one thread do everything."""
        chance = self.chance
        set_limits(patch, checkpoint_interval=5)
        patch.setattr(writer, "_refresh_in_background", self._refresh_later)
        patch.setattr(location, "_sync_threads", lambda pid: _Inline())
        checkpointer = checkpoints._Checkpointer()
        checkpointer._pool = Beside(chance)
        patch.setattr(checkpoints, "_checkpointer", lambda pid: checkpointer)
        self._disk = Disk(self.root / "store", patch)
        self._disk._names[str(self.root)] = {"store"}
        self._remember_all()
        for name in _CHANGES:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        opened = self._watched("open", io.open, is_change=_writes)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        patch.setattr(pa, "OSFile", self._watched("write", pa.OSFile, is_change=_writes))
        chance.on_switch = self._switch
        self._switch(None)

    def _refresh_later(self, store: Any) -> None:
        self.chance.later(lambda: writer.refresh_quietly(store))

    def _watched(
        self, name: str, real: Callable[..., Any], is_change: Callable[..., bool] | None = None
    ) -> Callable[..., Any]:
        chance = self.chance

        def call(*given: Any, **named: Any) -> Any:
            is_ours = threading.get_ident() == chance.thread and not self._is_aside
            if not is_ours or (is_change is not None and not is_change(*given, **named)):
                return real(*given, **named)
            chance.point(f"disk {name}")
            if chance.current is not None and chance.fails("disk fails", 0.2):
                code = chance.pick((errno.ENOSPC, errno.EIO))
                raise OSError(code, os.strerror(code), str(given[0]))
            done = real(*given, **named)
            chance.point(f"disk {name} done")
            return done

        return call

    # -- processes

    def _switch(self, process: Process | None) -> None:
        """Let each driver, with its executors, see only the caches of its own process."""
        image = process and (process.parent or process)
        if image is self._image and image is not None:
            return
        self._images[self._image or _NOBODY] = [
            *(cache.copy() for cache in _CACHES),
            stores._opening_lock,
        ]
        *contents, lock = self._images.get(image or _NOBODY, [*([] for _ in _CACHES), None])
        for cache, content in zip(_CACHES, contents, strict=True):
            cache.clear()
            cache.update(content)
        stores._opening_lock = lock or ProcessLock()
        self._image = image

    def on_kill(self, process: Process) -> None:
        """The power may go, which kills all."""
        if not self.chance.happens(self.power_rate):
            return
        self.chance.hits["power loss"] += 1
        for driver in [*self.drivers, *self.maintainers]:
            driver.is_dead = True
            for executor in driver.executors:
                executor.is_dead = True
        self.chance.jobs.clear()
        with self._aside():
            self._lose_power()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        before, self._is_aside = self._is_aside, True
        try:
            yield
        finally:
            self._is_aside = before

    def _lose_power(self) -> None:
        chance, disk = self.chance, self._disk
        assert disk is not None
        store, left = str(self.root / "store"), str(self.root / "left")
        seed = chance.random.getrandbits(32) if chance.happens(0.6) else None
        disk.leave(left, names=chance.happens(0.5), seed=seed)
        shutil.rmtree(store)
        os.rename(left, store)
        self._remember_all()
        last = max(self.checkpoint.offsets, default=-1)
        if chance.happens(0.5) and last in self.checkpoint.commits:
            del self.checkpoint.commits[last]
        record = self.root / "checkpoint" / "sinks" / "tseries.json"
        if chance.happens(0.3) and record.exists():
            record.write_text("" if chance.happens(0.5) else record.read_text()[:20])

    def _remember_all(self) -> None:
        """All files there now are on the disk."""
        assert self._disk is not None
        for directory, below, files in os.walk(self.root / "store"):
            self._disk._names[directory] = {*below, *files}
            for file in files:
                found = os.stat(os.path.join(directory, file))
                self._disk._files.add((found.st_ino, found.st_mtime_ns))

    # -- what happens, and the end

    def disturb(self) -> None:
        """Maintenance runs beside, now and then."""
        if self.chance.happens(0.04) and (self.root / "store" / "events").exists():
            self._maintain()
        else:
            super().disturb()

    def _maintain(self) -> None:
        self.chance.hits["maintenance"] += 1
        process = Process("maintenance")
        self.maintainers.append(process)
        try:
            with self.chance.running(process):
                maintain(str(self.root / "store" / "events"))
        except Killed:
            self.chance.hits["maintenance killed"] += 1
        except WrongClock as error:
            self.check_excuse(error)
        except NoSuchStore:
            assert not self.sink.has_acknowledged, "there is no store, and batches are stored"
        except (StorageFailed, OSError):
            assert self.chance.fault_rate, "no disk failed"
        finally:
            process.is_dead = True
            self.maintainers.remove(process)
            self._images.pop(process, None)

    def excuses(self, error: Exception) -> bool:
        """A disk that fails, a rival that was faster, or a clock that was set back."""
        if isinstance(error, WrongClock) and self.chance.wall_ahead_us < self.peak_ahead_us:
            # Somebody sets it right, as the message says.
            self.chance.wall_ahead_us = self.peak_ahead_us
            return True
        if isinstance(error, ReplayDiffers):
            return self.query.has_rival
        if isinstance(error, StorageFailed):
            return bool(self.chance.fault_rate)
        return super().excuses(error)

    def compare(self) -> None:
        """The store has each row once, and is sound."""
        super().compare()
        path = str(self.root / "store" / "events")
        rows = [row for n in self.sink.batches for task in self.sink.batches[n] for row in task]
        ctis = [row for row in rows if isinstance(row, int)]
        expected = sorted(f"{row[0]}-{row[1]}" for row in rows if not isinstance(row, int))
        with self.chance.running(Process("reader")):
            series = TimeSeries.open(path)
            found = sorted(series.series()["series"].to_pylist())
            assert found == expected, f"the store has {found}, not {expected}"
            count = series.describe()["events"]
            assert count == len(expected), f"the store has {count} events of {len(expected)} rows"
            assert list(verify(path)) == []
            cti = series.cti()
            told = None if cti is None else round(cti.timestamp() * 1e6)
            assert told == max(ctis, default=None), f"the store's CTI is {told}: {max(ctis)}"


_NOBODY = Process("nobody")


def _writes(path: Any, mode: str = "r", *given: Any, **named: Any) -> bool:
    return any(letter in mode for letter in "wax+")


class _Inline:
    """An executor that makes each call at once; a kill in one is a kill of the caller."""

    def submit(self, call, *args):
        made = Future()
        try:
            made.set_result(call(*args))
        except Exception as error:
            made.set_exception(error)
        return made
