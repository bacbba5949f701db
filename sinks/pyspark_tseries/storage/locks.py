"""Locks between the processes of one host; a killed process gives its lock back.

They only save work. What keeps a store correct on any number of hosts is the log's own check.
"""

import contextlib
import fcntl
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from pyspark_tseries.storage.location import Place

__all__ = ["alone", "at_work", "in_turn", "try_lock"]

_COMMIT_LOCK: Final = "commit.lock"

QUEUE_SECONDS: Final = 10.0
"""How long a writer waits for one of its host that shows no sign of life before it races it."""

MOST_SIGNS: Final = 360
"""So many signs of life, four in `QUEUE_SECONDS`, a writer gives: a large batch takes minutes."""


@contextlib.contextmanager
def in_turn(place: Place) -> Iterator[None]:
    """Lets the writers of one host commit in turn."""
    if not place.local:
        yield  # Its writers are seldom of one host: they race.
        return
    try:
        file = open(place.lock_path(_COMMIT_LOCK), "ab")  # noqa: SIM115 closed below
    except FileNotFoundError:
        yield  # The store is gone, which whoever queues finds out next.
        return
    with file:
        seen, patience = None, 0.0
        while not try_lock(file.fileno()):
            # Who raced a large batch, which is written anew then, would win each of its attempts.
            if seen != (seen := os.fstat(file.fileno()).st_mtime_ns):
                patience = time.monotonic() + QUEUE_SECONDS
            if time.monotonic() >= patience:
                break
            time.sleep(random.uniform(0.001, 0.005))
        try:
            yield
        finally:
            # Closing would not do where a fork of this process has the file open as well.
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


@contextlib.contextmanager
def at_work(place: Place) -> Iterator[None]:
    """Shows life, within a turn, to the writers that wait for theirs."""
    over = threading.Event()
    if place.local:
        path = place.lock_path(_COMMIT_LOCK)
        with contextlib.suppress(RuntimeError):  # No more threads, or the interpreter is ending.
            threading.Thread(target=_show_life, args=(path, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _show_life(path: str, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        for _ in range(MOST_SIGNS):
            if over.wait(QUEUE_SECONDS / 4):
                return
            os.utime(path)


@contextlib.contextmanager
def alone(place: Place, name: str) -> Iterator[int | None]:
    """Holds the lock `name`; None where another process of this host holds it.

    The lock is the descriptor's, and a process that inherits it holds the lock too, to its end.
    """
    with open(place.lock_path(name), "ab") as file:
        yield file.fileno() if try_lock(file.fileno()) else None


def try_lock(descriptor: int) -> bool:
    """Whether the lock is ours now; it is given back when the file is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # A file system without locks: the writers race.
    return True
