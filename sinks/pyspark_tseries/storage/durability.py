"""Files and directories synced to the disk, so that they survive a power loss.

A file survives a power loss once it is synced, and its name once its directory is. Syncing several
at once costs hardly more than one, because the file system writes them together.

The rules are semantics 25.
"""

import contextlib
import ctypes
import errno
import functools
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

__all__ = ["copy_or_link", "list_directories", "make_directories", "move_exclusively", "sync"]

MAX_SYNC_THREADS: Final = 16
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What file systems answer that have no hard links: FAT, some network and FUSE mounts."""

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
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


def copy_or_link(path: str, to: str) -> None:
    """Hard-link a file that never changes again, or copy it where that cannot be done."""
    try:
        os.link(path, to)
    except OSError:  # A file system without hard links, or another one; a missing file fails again.
        shutil.copyfile(path, to)


def move_exclusively(path: str, to: str) -> None:
    """Move a file unless there is one at `to`, as one step of the file system.

    Raises:
        FileExistsError: there is one; nothing was changed.
        OSError: the file cannot be moved; with the code EMLINK if the file system has neither
            hard links nor exclusive renaming.
    """
    try:
        os.link(path, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_exclusively(path, to)
    else:
        os.remove(path)  # This fixes the file's time, from which a log entry's visibility is dated.


def _rename_exclusively(path: str, to: str) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        code = errno.ENOSYS
    elif not rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(to), _RENAME_NOREPLACE):
        return
    else:
        code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), to)
    raise OSError(code, os.strerror(code), to)


def make_directories(path: str) -> None:
    """Make a directory and its parents so that they survive a power loss."""
    missing = [path]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    os.makedirs(path, exist_ok=True)
    sync(missing)
    with contextlib.suppress(PermissionError):  # A directory may be writable but not readable.
        sync([parent])
