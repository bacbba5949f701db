"""The peak resident memory of a benchmark's processes, read from /proc while it runs."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["HighWater", "PeakMemory", "command_of", "family_of", "kind_of", "workers_with"]

_EVERY_S: Final = 0.1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
_WORKERS: Final = ("pyspark.daemon", "pyspark.worker")


class PeakMemory:
    """Peaks in MB by kind of process, while it is entered.

    `main`: the process `root`, else this one; the others are its descendants; `driver`: the JVM,
    which in a local session runs the tasks' JVM side too and gives no heap back, so it only grows
    over a run; `worker`: the largest Python worker; `all`: all of them together at one moment, and
    the other children as well, where forked processes count what they share twice. A kind that was
    not seen is missing. Brokers do not count. `worker_mb` is the largest worker over time, in MB.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root or os.getpid()
        self.peaks_mb: dict[str, float] = {}
        self.worker_mb: list[float] = []
        self._kinds: dict[int, str | None] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        # The first look is at once: a block may be shorter than the time between two.
        while True:
            for kind, size_mb in self._look().items():
                self.peaks_mb[kind] = max(self.peaks_mb.get(kind, 0.0), size_mb)
                if kind == "worker":
                    self.worker_mb.append(size_mb)
            if self._done.wait(_EVERY_S):
                return

    def _look(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for pid in family_of(self._root):
            kind = self._kind(pid)
            if kind == "broker":
                continue
            size_mb = _resident_mb(pid)
            found["all"] = found.get("all", 0.0) + size_mb
            if kind:
                found[kind] = max(found.get(kind, 0.0), size_mb)
        return found

    def _kind(self, pid: int) -> str | None:
        # A process that has forked but not yet become another program is asked again.
        if self._kinds.get(pid) is None:
            self._kinds[pid] = "main" if pid == self._root else kind_of(command_of(pid))
        return self._kinds[pid]


class HighWater:
    """Peaks in MB as the kernel keeps them (VmHWM), of the largest process of each kind.

    The kinds are as in `PeakMemory`, and `source`: a Python process that Spark's driver starts for
    a source or a writer. A process is looked at again and again, so only what it allocates in its
    last moment may be missed.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self.peaks_mb: dict[str, float] = {}
        self._kinds: dict[int, str | None] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "HighWater":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._look()
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(4 * _EVERY_S):
            self._look()

    def _look(self) -> None:
        for pid in family_of(self._root):
            if self._kinds.get(pid) is None:
                self._kinds[pid] = "main" if pid == self._root else _fine_kind(command_of(pid))
            kind = self._kinds[pid]
            if kind:
                self.peaks_mb[kind] = max(self.peaks_mb.get(kind, 0.0), _high_water_mb(pid))


def _fine_kind(command: str) -> str | None:
    is_source = "python_streaming_source_runner" in command
    return "source" if is_source else kind_of(command)


def _high_water_mb(pid: int) -> float:
    found = [line for line in _text(pid, "status").splitlines() if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) * 1024 / 1e6 if found else 0.0


def workers_with(root: int, library: str) -> bool:
    """Whether a Python worker among the descendants of `root` has loaded a library."""
    workers = (pid for pid in family_of(root) if kind_of(command_of(pid)) == "worker")
    return any(library in _text(pid, "maps") for pid in workers)


def kind_of(command: str) -> str | None:
    """`driver`: a JVM of Spark or Flink; `worker`: of Python; `broker`: Kafka's; None: another."""
    if "org.apache.spark" in command or "org.apache.flink" in command:
        return "driver"
    if "kafka.Kafka" in command:
        return "broker"
    return "worker" if any(module in command for module in _WORKERS) else None


def family_of(root: int) -> list[int]:
    """`root` and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                # The parent follows the command in brackets, which may hold anything.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return family


def command_of(pid: int) -> str:
    """Its command line; empty of one that has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("latin-1")
    except OSError:
        return ""


def _text(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text()
    except OSError:
        return ""


def _resident_mb(pid: int) -> float:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE / 1e6
    except (OSError, IndexError):
        return 0.0
