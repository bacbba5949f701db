"""The sizes of benchmarks: full, or small (`make bench QUICK=1`), and how many rounds they run."""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["QUICK", "ROUNDS", "SKIPPED", "WARM_UP", "chosen", "records", "size", "whole_number"]

T = TypeVar("T")

SKIPPED: Final = 77
"""The exit code of a benchmark that this machine cannot run; it says why."""

QUICK: Final = os.environ.get("BENCH_QUICK") == "1"
"""Whether all benchmarks together may take ten minutes, on two cores."""


def size(full: T, quick: T) -> T:
    """The size that this run is for."""
    return quick if QUICK else full


def records(full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of records; BENCH_RECORDS (numbers with commas between them) overrides."""
    given = os.environ.get("BENCH_RECORDS")
    return tuple(map(int, given.split(","))) if given else size(full, quick)


def whole_number(variable: str, default: int) -> int:
    """The whole number above 0 that a variable of the environment has.

    Raises:
        SystemExit: it is none.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) == 0:
        raise SystemExit(f"{variable}={text}: accepted is a whole number above 0")
    return int(text)


def chosen(
    variable: str, every: Sequence[str], quick: Sequence[str] | None = None
) -> Sequence[str]:
    """The names that a variable of the environment lists with commas; default all, or `quick`.

    Raises:
        SystemExit: one of them is not of `every`.
    """
    given = os.environ.get(variable)
    names = given.split(",") if given else size(every, quick or every)
    if unknown := set(names) - set(every):
        raise SystemExit(
            f"{variable}: no {', '.join(sorted(unknown))}; accepted is {', '.join(every)}"
        )
    return names


ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", size(5, 2)))
WARM_UP: Final = size(3, 1)
"""After this many rounds, a JVM's last compiler has compiled a contender."""
