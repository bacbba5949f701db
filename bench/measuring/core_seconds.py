"""The core seconds that a benchmark's processes take, by kind of process, read from /proc."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from memory import command_of, family_of, kind_of

__all__ = ["CoreSeconds"]

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")


class CoreSeconds:
    """Core seconds by kind of process, spent while it is entered.

    `jvm`: Spark's; `python`: the process `root`, else this one, and all its other descendants, even
    ended ones, such as the `chmod` that Hadoop runs for each local file of a checkpoint; `broker`:
    a Kafka broker that this process started as a process of its own. A kind without processes is
    missing; a broker in a container, or one that others started, is not seen.

    The core time of an ended process is known if its parent has waited for it. PySpark's daemon
    waits for none of its workers, and Spark ends them after a minute without a task: the core time
    of such a worker is lost.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root or os.getpid()
        self.by_kind: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        """The core seconds of all kinds but the broker, which serves everybody."""
        return sum(each for kind, each in self.by_kind.items() if kind != "broker")

    def __enter__(self) -> "CoreSeconds":
        self._before = _read_processes(self._root)
        return self

    def __exit__(self, *error: object) -> None:
        after = _read_processes(self._root)
        before = {
            name: each for name, each in self._before.items() if name in after or each.is_waited_for
        }
        spent = _add_by_kind(after)
        spent.subtract(_add_by_kind(before))
        # The time of an ended process then counts for its parent, which may be of another kind.
        self.by_kind = {kind: round(each, 2) for kind, each in spent.items() if each > 0}


class _Process(NamedTuple):
    """The core time of a process so far.

    Attributes:
        kind: of `CoreSeconds`.
        own_s: its own core seconds.
        ended_s: those of its children that have ended and were waited for.
        is_waited_for: whether its parent will wait for it.
    """

    kind: str
    own_s: float
    ended_s: float
    is_waited_for: bool


_Name = tuple[int, str]
"""The id of a process, which another one may get later, and when it started."""


def _add_by_kind(processes: dict[_Name, _Process]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in processes.values():
        found[each.kind] += each.own_s
        # A process that the JVM has started, and that ended, was Python or a command of Hadoop's.
        found["python" if each.kind == "jvm" else each.kind] += each.ended_s
    return found


def _read_processes(root: int) -> dict[_Name, _Process]:
    found = {}
    for pid in family_of(root):
        kind = {"driver": "jvm", "broker": "broker"}.get(kind_of(command_of(pid)) or "", "python")
        found |= _read_process(pid, kind)
    if root != os.getpid():
        for pid in family_of(os.getpid()):
            if kind_of(command_of(pid)) == "broker":
                found |= _read_process(pid, "broker")
    return found


def _read_process(pid: int, kind: str) -> dict[_Name, _Process]:
    """Nothing if it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return {}
    own, ended = (sum(map(int, fields[at : at + 2])) * _TICK_S for at in (11, 13))
    return {(pid, fields[19]): _Process(kind, own, ended, not _ignores_children(int(fields[1])))}


def _ignores_children(pid: int) -> bool:
    """Whether the system forgets the children of a process as soon as they end."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) >> (signal.SIGCHLD - 1) & 1)
