"""The sizes of benchmarks: full, or small (`make bench QUICK=1`), and how many rounds they run."""

import os
from typing import Final, TypeVar

__all__ = ["QUICK", "ROUNDS", "WARM_UP", "records", "size", "whole_number"]

T = TypeVar("T")

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


ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", size(5, 2)))
WARM_UP: Final = size(3, 1)
"""Rounds until contenders in a JVM have met its last compiler."""
