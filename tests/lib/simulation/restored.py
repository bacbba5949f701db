"""Older copies of a store and of a query's checkpoint are put back: one of them, or both.

`docs/how-to/back-up-and-restore.md` says what must happen. With both copies of one moment the query
goes on. One without the other is refused by name before anything is stored, and the documented way
out leads on. In the end the store has each row once, as in any other world.
"""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulation.store import StoreSink, StoreWorld

from pyspark_tseries.errors import HistoryChanged, ReplayDiffers

_OFTEN = 0.4
"""How often a copy is made or put back, where that may be."""

_STEPS = 4
"""Refusals at the end, each with its way out, before it is none."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Store and checkpoint at one moment, and the state of the sink in memory then."""

    path: Path
    offsets: dict[int, str]
    commits: dict[int, str]
    batches: dict[int, list[list[Any]]]

    @property
    def last(self) -> int:
        """The last batch in Spark's log."""
        return max(self.offsets)


class RestoredSink(StoreSink):
    """The packages' sink; the one in memory takes what the store has not refused."""

    last_stored = -1
    """The last batch with rows that the store has."""

    def commit(self, batch: int, tasks: list[Any]) -> None:
        """Commit a batch."""
        self._open().commit([staged for _, staged in tasks], batch)
        self.has_acknowledged = True
        self.memory.commit(batch, [rows for rows, _ in tasks])
        if any(isinstance(row, tuple) for rows, _ in tasks for row in rows):
            self.last_stored = batch


class RestoredWorld(StoreWorld):
    """A world that copies its store and checkpoint, and puts them back later."""

    def draw(self) -> None:
        """A query without a rival, on a disk that loses nothing."""
        super().draw()
        self.query = replace(self.query, has_rival=False, length=3 * self.query.length)
        self.power_rate = 0
        self.copy: Copy | None = None
        self.newest: Copy | None = None
        """The checkpoint that an older one has replaced."""
        self.old = ""
        """The part that is older than the rest, the store or the checkpoint; empty for neither."""
        self.copied = 0

    def open_sink(self) -> Any:
        """The store."""
        return RestoredSink(self.chance, self.root)

    def delete_old(self, *given: Any) -> None:
        """The source must still have what is written again."""

    def disturb(self) -> None:
        """Now and then a copy is made, or put back."""
        die = self.chance.random.random()
        if die < _OFTEN and self.sink.last_stored >= 0 and not (self.copy or self.old):
            with self._aside():
                self.copy = self._copy()
        elif die < _OFTEN and self._may_put_back():
            self._put_back(self.chance.pick(("store", "checkpoint", "both")))
        else:
            super().disturb()

    def _may_put_back(self) -> bool:
        running = any(map(self.chance.is_running, self.drivers))
        at_rest = not (running or self.maintainers or self.old)
        # By two batches, so that the copy's next batch is already stored.
        is_older = self.copy is not None and self.copy.last + 2 <= self.sink.last_stored
        return self.chance.is_faulty and at_rest and is_older

    def _copy(self) -> Copy:
        """Copy both at this moment, as a snapshot of the file system does."""
        self.copied += 1
        path = self.root / f"copy-{self.copied}"
        for name in ("store", "checkpoint"):
            shutil.copytree(self.root / name, path / name)
        log, batches = self.checkpoint, self.sink.memory.batches
        return Copy(path, dict(log.offsets), dict(log.commits), dict(batches))

    def _put_back(self, which: str) -> None:
        self.chance.hits[f"{which} put back"] += 1
        assert self.copy is not None
        for driver in list(self.drivers):
            self.chance.kill(driver, "a copy put back")
            self.end(driver)
        self.chance.jobs.clear()
        with self._aside():
            if which == "checkpoint":
                self.newest = self._copy()
            if which != "store":
                self._restore_checkpoint(self.copy)
            if which != "checkpoint":
                self._restore(self.copy, "store")
                self._remember_all()
        self.old = "" if which == "both" else which
        if which != "checkpoint":
            self.sink.last_stored = -1
        self.copy = None

    def _restore(self, copy: Copy, name: str) -> None:
        shutil.rmtree(self.root / name)
        shutil.copytree(copy.path / name, self.root / name)

    def _restore_checkpoint(self, copy: Copy) -> None:
        self._restore(copy, "checkpoint")
        log, memory = self.checkpoint, self.sink.memory
        for known, then in (
            (log.offsets, copy.offsets),
            (log.commits, copy.commits),
            (memory.batches, copy.batches),
        ):
            known.clear()
            known.update(then)

    # -- the ways out

    def excuses(self, error: Exception) -> bool:
        """If only one part is old, it is refused by name; then we do what the documents say."""
        if isinstance(error, HistoryChanged) and self.old == "store":
            self._write_again(str(error))
        elif isinstance(error, ReplayDiffers) and self.old == "checkpoint":
            assert self.newest is not None
            with self._aside():
                self._restore_checkpoint(self.newest)
        else:
            return super().excuses(error)
        self.chance.hits["way out"] += 1
        self.old = ""
        return True

    def _write_again(self, message: str) -> None:
        """Remove the files that the message names, so that the query writes their batches again."""
        found = re.search(r"from number (\d+) on in 'commits', and from number (\d+) on", message)
        assert found, message
        log, (commit, offset) = self.checkpoint, map(int, found.groups())
        for entries, first in ((log.commits, commit), (log.offsets, offset)):
            for number in [each for each in entries if each >= first]:
                del entries[number]
        self.sink.memory.forget_after(commit)

    def read_the_rest(self) -> None:
        """Read what is left; a refusal may come now.

        It comes with the next rows, so there are some.
        """
        for log in self.cluster.logs.values() if self.old else ():
            self.event_ms += 100_000
            log.append(self.event_ms)
        for _ in range(_STEPS):
            try:
                return super().read_the_rest()
            except (HistoryChanged, ReplayDiffers) as error:
                self.check_excuse(error)
        raise AssertionError("the query is refused again and again")
