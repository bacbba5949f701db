"""Lock files between the processes of one host, with `flock`.

Locks only save work: the check in the log keeps commits correct on any number of hosts. A process
that waits for the commit lock gives up once the holder has been silent for `MAX_SILENCE_S`, and
commits without the lock. A holder that writes a large batch keeps the lock by touching the file,
its heartbeat. The kernel releases the lock of a killed process.
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
"""A client waits this long for a holder without a heartbeat, then commits without the lock."""

MAX_HEARTBEATS: Final = 360
"""The heartbeat ends after 15 minutes, at four beats in `MAX_SILENCE_S`: a client may hang."""


@contextlib.contextmanager
def commit_lock(location: Location) -> Iterator[None]:
    """Let the clients of one host commit in turn."""
    if not location.is_local:
        yield  # Clients of an object store are seldom on one host, so the log decides.
        return
    descriptor = location.open_lock(_COMMIT_LOCK_FILE)
    if descriptor is None:
        yield  # The commit itself reports a broken disk or a missing store.
        return
    with open(descriptor, "rb") as file:
        seen, patience = None, 0.0
        while not try_lock(file.fileno()):
            # Wait as long as the holder beats: small batches that did not wait would win every race
            # against a large one.
            if seen != (seen := os.fstat(file.fileno()).st_mtime_ns):
                patience = time.monotonic() + MAX_SILENCE_S
            if time.monotonic() >= patience:
                break
            time.sleep(random.uniform(0.001, 0.005))
        try:
            yield
        finally:
            # Unlock explicitly: after a fork, the child has the file open too, so that closing it
            # here would not release the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


@contextlib.contextmanager
def heartbeat(location: Location) -> Iterator[None]:
    """Show waiting clients that the holder of the commit lock is working."""
    over = threading.Event()
    if location.is_local:
        path = location.file("_tseries", _COMMIT_LOCK_FILE)
        with contextlib.suppress(RuntimeError):  # No thread is left, or the interpreter is ending.
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

    A process that inherits the descriptor also holds the lock until it ends.

    Raises:
        OSError: the lock's file cannot be opened.
    """
    descriptor = location.open_lock(name)
    if descriptor is None:
        # Opening the file without a fallback raises the error that `open_lock` suppressed.
        descriptor = os.open(location.lock_path(name), os.O_RDWR | os.O_CREAT, 0o644)
    with open(descriptor, "rb"):
        yield descriptor if try_lock(descriptor) else None


def try_lock(descriptor: int) -> bool:
    """Take the lock; return whether it is now held. Closing the file releases it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # The file system has no locks, so the log decides.
    return True
