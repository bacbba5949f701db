"""Disks that a campaign can fill, make read-only or take away: mounts of its own processes.

A disk is a small file system in memory, bound to the path where the chain uses it. Below it lies an
empty read-only one, as a careful operator leaves a mount point: a process that writes there while
the disk is away fails, and does not start over in an empty directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def own_mounts() -> bool:
    """Give this process, and those that it starts, mounts of their own; False if it may not.

    They end with the last of these processes. Call it before a thread is started.
    """
    user, group = os.getuid(), os.getgid()
    flags = _NEWNS if user == 0 else _NEWNS | _NEWUSER
    if _libc.unshare(flags) != 0:
        return False
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    try:
        _mount("none", "/", None, _REC | _PRIVATE)
    except OSError:
        return False
    return True


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    given = [None if each is None else each.encode() for each in (source, target, kind)]
    if _libc.mount(*given, flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


class Disk:
    """A disk at `path`; its faults are `fill`, `make_read_only` and `take_away`."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        self._backing = path.with_name(f".{path.name}-disk")
        for place in (path, self._backing):
            place.mkdir(parents=True)
        _mount("tmpfs", str(self._backing), "tmpfs", 0, f"size={megabytes}m")
        _mount("tmpfs", str(path), "tmpfs", 0, "size=4k")
        _mount("none", str(path), None, _REMOUNT | _RDONLY)
        self.bring_back()

    @property
    def _ballast(self) -> Path:
        return self._backing / "ballast"

    def fill(self) -> None:
        """Use up all that is free."""
        block = bytes(65536)
        with self._ballast.open("wb", buffering=0) as file:
            for size in (65536, 4096):
                try:
                    while True:
                        file.write(block[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """For every file that is opened from now on."""
        # Remounting fails while somebody has a file open for writing, so we mount it again.
        self.take_away()
        self.bring_back()
        self._remount(_RDONLY)

    def make_writable(self) -> None:
        self._remount(0)

    def _remount(self, flags: int) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                return _mount("none", str(self.path), None, _REMOUNT | _BIND | flags)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            self.take_away()
            self.bring_back()

    def take_away(self) -> None:
        """Unmount it under whoever uses it; open files stay open."""
        if _libc.umount2(str(self.path).encode(), _DETACH) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self.path))

    def bring_back(self) -> None:
        _mount(str(self._backing), str(self.path), None, _BIND)
