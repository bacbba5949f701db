"""Files and directories synced to the disk, so that they survive a power loss.

A file survives a power loss once it is synced, and its name once its directory is. Syncing several
at once costs hardly more than one, because the file system writes them together.

The rules are semantics 25.
"""

import contextlib
import errno
import functools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

__all__ = ["list_directories", "make_directories", "sync"]

MAX_SYNC_THREADS: Final = 16
_DIRECTORY_SYNC_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def sync(paths: Iterable[str]) -> None:
    """Return once these files, and the names in these directories, survive a power loss.

    Raises:
        OSError: one is missing, or could not be written to the disk.
    """
    wanted = list(dict.fromkeys(paths))
    if len(wanted) > 1:
        try:
            list(_sync_threads(os.getpid()).map(_sync, wanted))
            return
        except RuntimeError:
            pass  # No more threads, or the interpreter is ending.
    for path in wanted:
        _sync(path)


@functools.lru_cache(maxsize=1)
def _sync_threads(pid: int) -> ThreadPoolExecutor:
    """The threads that sync; a fork, which has none of its parent's, gets its own."""
    return ThreadPoolExecutor(MAX_SYNC_THREADS, thread_name_prefix=f"tseries-sync-{pid}")


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync directories, and need not.
        if error.errno not in _DIRECTORY_SYNC_UNSUPPORTED or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def list_directories(root: str, files: Sequence[str]) -> list[str]:
    """The directories from each of `files`, which lie in `root`, up to `root` itself."""
    found: dict[str, None] = {}
    for file in files:
        directory = os.path.dirname(file)
        while directory not in found and len(directory) >= len(root):
            found[directory] = None
            directory = os.path.dirname(directory)
    return list(found)


def make_directories(path: str) -> None:
    """Make a directory and its parents so that they survive a power loss."""
    missing = [path]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    os.makedirs(path, exist_ok=True)
    sync(missing)
    with contextlib.suppress(PermissionError):  # A directory may be writable but not readable.
        sync([parent])
