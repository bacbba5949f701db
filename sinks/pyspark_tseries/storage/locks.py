"""Locks between the processes of one host; the kernel releases the lock of a killed process.

They only save work: correctness on any number of hosts comes from the check in the log. A lock is
a `flock` on a file. Whoever waits for the commit lock gives up once the holder has been silent for
`MAX_SILENCE_S`, and then commits without the lock; a holder with a large batch to write stays in
possession by touching the file, its heartbeat.
"""

import contextlib
import fcntl
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from pyspark_tseries.storage.location import Location

_COMMIT_LOCK_FILE: Final = "commit.lock"

MAX_SILENCE_S: Final = 10.0
"""A writer waits this long for a holder without a heartbeat, then commits without the lock."""

MAX_HEARTBEATS: Final = 360
"""The heartbeat ends after 15 minutes, four beats in `MAX_SILENCE_S`: a writer may hang."""


@contextlib.contextmanager
def commit_lock(location: Location) -> Iterator[None]:
    """Let the writers of one host commit in turn."""
    if not location.is_local:
        yield  # Its writers are seldom on one host, so the log decides.
        return
    descriptor = location.open_lock(_COMMIT_LOCK_FILE)
    if descriptor is None:
        yield  # What is wrong with the disk, or that the store is away, the commit itself says.
        return
    with open(descriptor, "rb") as file:
        seen, patience = None, 0.0
        while not try_lock(file.fileno()):
            # Small batches that do not wait would win every race against a large one.
            if seen != (seen := os.fstat(file.fileno()).st_mtime_ns):
                patience = time.monotonic() + MAX_SILENCE_S
            if time.monotonic() >= patience:
                break
            time.sleep(random.uniform(0.001, 0.005))
        try:
            yield
        finally:
            # Closing does not release the lock while a fork of this process has the file open.
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


@contextlib.contextmanager
def heartbeat(location: Location) -> Iterator[None]:
    """Tell waiting writers, while the commit lock is held, that its holder is working."""
    over = threading.Event()
    if location.is_local:
        path = location.file("_tseries", _COMMIT_LOCK_FILE)
        with contextlib.suppress(RuntimeError):  # No more threads, or the interpreter is ending.
            threading.Thread(target=_beat, args=(path, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _beat(path: str, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        for _ in range(MAX_HEARTBEATS):
            if over.wait(MAX_SILENCE_S / 4):
                return
            os.utime(path)


@contextlib.contextmanager
def exclusive(location: Location, name: str) -> Iterator[int | None]:
    """Hold the lock `name`; yield its descriptor, or None if another process holds it.

    A process that inherits the descriptor holds the lock, too, until it ends.

    Raises:
        OSError: the lock's file cannot be opened.
    """
    descriptor = location.open_lock(name)
    if descriptor is None:
        # Says what is wrong.
        descriptor = os.open(location.lock_path(name), os.O_RDWR | os.O_CREAT, 0o644)
    with open(descriptor, "rb"):
        yield descriptor if try_lock(descriptor) else None


def try_lock(descriptor: int) -> bool:
    """True if the lock is now held; closing the file releases it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # A file system without locks: the log decides.
    return True
