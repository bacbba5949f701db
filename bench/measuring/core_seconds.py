"""The core seconds that a benchmark's processes take, by kind of process, read from /proc."""

import os
from collections import Counter
from pathlib import Path
from typing import Final

from memory import command_of, family_of, kind_of

__all__ = ["CoreSeconds"]

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")


class CoreSeconds:
    """Core seconds by kind of process, spent while it is entered.

    `jvm`: Spark's; `python`: the process `root`, else this one, and all others among its
    descendants, those included that ended meanwhile, such as the `chmod` by which Hadoop makes each
    local file of a checkpoint; `broker`: a Kafka broker that this process started as a process of
    its own. A kind without any is missing; a broker in a container, or one
    that others started, is not seen.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root or os.getpid()
        self.by_kind: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        """Of all kinds but the broker, which serves everybody."""
        return sum(each for kind, each in self.by_kind.items() if kind != "broker")

    def __enter__(self) -> "CoreSeconds":
        self._before = _spent(self._root)
        return self

    def __exit__(self, *error: object) -> None:
        spent = _spent(self._root)
        spent.subtract(self._before)
        # What ended is its parent's from then on, which may be of another kind.
        self.by_kind = {kind: round(each, 2) for kind, each in spent.items() if each > 0}


def _spent(root: int) -> Counter[str]:
    """Kind -> core seconds so far."""
    found: Counter[str] = Counter()
    for pid in family_of(root):
        kind = {"driver": "jvm", "broker": "broker"}.get(kind_of(command_of(pid)) or "", "python")
        own_s, ended_s = _times(pid)
        found[kind] += own_s
        # What the JVM has started and has ended was Python, or a command of Hadoop's.
        found["python" if kind == "jvm" else kind] += ended_s
    if root != os.getpid():
        brokers = [p for p in family_of(os.getpid()) if kind_of(command_of(p)) == "broker"]
        found["broker"] = sum(sum(_times(pid)) for pid in brokers)
    return found


def _times(pid: int) -> tuple[float, float]:
    """Core seconds of a process, and of its children that have ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return (user + system) * _TICK_S, (ended_user + ended_system) * _TICK_S
