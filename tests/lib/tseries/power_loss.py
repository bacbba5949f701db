"""The worst that a power loss leaves of a directory: only the bytes that were synced.

`Disk` watches this process: a file is safe once `os.fsync` was called for it after its last change,
a name once that was called for its directory. Everything else may be gone.
"""

import os
import random
import shutil
import stat
import threading


class Disk:
    """Watches what is synced below `root` until `monkeypatch` is undone.

    `step` is called before and after every link and replacement: moments when the power may go.
    """

    def __init__(self, root, monkeypatch, step=lambda: None):
        self.root = str(root)
        self._files = set()
        self._names = {}
        self._lock = threading.Lock()
        fsync = os.fsync

        def watched(descriptor):
            fsync(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            found = os.fstat(descriptor)
            with self._lock:
                if stat.S_ISDIR(found.st_mode):
                    self._names[path] = set(os.listdir(path))
                else:
                    self._files.add((found.st_ino, found.st_mtime_ns))

        monkeypatch.setattr(os, "fsync", watched)
        for name in ("link", "replace"):
            monkeypatch.setattr(os, name, self._stepping(getattr(os, name), step))

    def _stepping(self, call, step):
        def stepping(*given, **named):
            step()
            done = call(*given, **named)
            step()
            return done

        return stepping

    def leave(self, target, *, names, seed=None):
        """Makes `target` what a power loss leaves now.

        `names`: names of unsynced files are there all the same, of empty files. With a `seed`, some
        unsynced bytes and names are there, at random.
        """
        chance = random.Random(seed)

        def survives(safe, otherwise=False):
            return safe or (chance.random() < 0.5 if seed is not None else otherwise)

        shutil.rmtree(target, ignore_errors=True)
        above = os.path.dirname(self.root)
        if not survives(os.path.basename(self.root) in self._names.get(above, ()), names):
            return
        for directory, below, files in os.walk(self.root):
            known = self._names.get(directory, set())
            here = os.path.join(target, os.path.relpath(directory, self.root))
            os.makedirs(here, exist_ok=True)
            below[:] = [name for name in below if survives(name in known, names)]
            for name in files:
                if survives(name in known, names):
                    there = os.path.join(directory, name)
                    found = os.stat(there)
                    whole = survives((found.st_ino, found.st_mtime_ns) in self._files)
                    with open(there, "rb") as old, open(os.path.join(here, name), "wb") as new:
                        new.write(old.read() if whole else b"")
