"""Locks between the processes of one host; a killed process gives its lock back.

They only save work. What keeps a store correct on any number of hosts is the log's own check.
"""

import contextlib
import fcntl
import random
import time
from collections.abc import Iterator
from typing import Final

from pyspark_tseries.places import Place

__all__ = ["alone", "in_turn", "try_lock"]

QUEUE_SECONDS: Final = 10.0
"""How long a writer waits for those of its host before it just races them."""


@contextlib.contextmanager
def in_turn(place: Place) -> Iterator[None]:
    """Lets the writers of one host commit in turn."""
    if not place.local:
        yield  # Its writers are seldom of one host: they race.
        return
    try:
        file = open(place.lock_path("commit.lock"), "ab")  # noqa: SIM115 closed below
    except FileNotFoundError:
        yield  # The store is gone, which whoever queues finds out next.
        return
    with file:
        patience = time.monotonic() + QUEUE_SECONDS
        while not try_lock(file.fileno()) and time.monotonic() < patience:
            time.sleep(random.uniform(0.001, 0.005))
        try:
            yield
        finally:
            # Closing would not do where a fork of this process has the file open as well.
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


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
