"""What a power loss must not take: files and directories brought to the disk before they count.

A file outlives a power loss once it is synced, and its name once its directory is. Several are
synced at once, which costs hardly more than one: the file system writes them together.

The rules are semantics 25.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

__all__ = ["directories_of", "make_directories", "sync"]

AT_ONCE: Final = 16
_NOT_FOR_DIRECTORIES: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def sync(paths: Iterable[str]) -> None:
    """Returns once these files, and the names in these directories, outlive a power loss.

    Raises:
        OSError: one is not there, or could not be written to the disk.
    """
    wanted = list(dict.fromkeys(paths))
    if len(wanted) > 1:
        try:
            with ThreadPoolExecutor(min(AT_ONCE, len(wanted))) as pool:
                list(pool.map(_sync, wanted))
            return
        except RuntimeError:
            pass  # No more threads, or the interpreter is ending.
    for path in wanted:
        _sync(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems of other machines know no such thing, and need none.
        if error.errno not in _NOT_FOR_DIRECTORIES or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def directories_of(root: str, files: Sequence[str]) -> list[str]:
    """The directories from each of `files`, which lie in `root`, up to `root` itself."""
    found: dict[str, None] = {}
    for file in files:
        directory = os.path.dirname(file)
        while directory not in found and len(directory) >= len(root):
            found[directory] = None
            directory = os.path.dirname(directory)
    return list(found)


def make_directories(path: str) -> None:
    """Makes a directory and its parents, in a way that outlives a power loss."""
    missing = [path]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    os.makedirs(path, exist_ok=True)
    sync(missing)
    with contextlib.suppress(PermissionError):  # One may be allowed to write what one cannot list.
        sync([parent])
