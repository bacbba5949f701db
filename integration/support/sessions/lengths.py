"""The length of repetitions: short in `make test` and `make integration`, long in `make soak`.

A short run checks every promise; a long one looks for bugs that need many tries. CI has the time
for more cases than `make test`, and leaves cases marked `outside_ci` to the whole recipes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

FULL_LENGTH: Final = os.environ.get("FULL_LENGTH") == "1"
IN_CI: Final = os.environ.get("CI") == "true"


def repetitions(short: int, long: int) -> int:
    """The number of kills, seconds or commits that this run is for."""
    return long if FULL_LENGTH else short


def in_ci(short: T, long: T) -> T:
    """The sizes of a run of `make test`, and of all other runs."""
    return long if FULL_LENGTH or IN_CI else short


def choices(short: Sequence[T], long: Sequence[T]) -> Sequence[T]:
    """The cases that this run tries."""
    return long if FULL_LENGTH else short


def with_rest_outside_ci(every: Iterable[T], in_ci: Collection[T]) -> list[Any]:
    """Every case: those of `in_ci` in CI as well, the others as `outside_ci` says."""
    cases = list(every)
    rest = outside_ci(*(case for case in cases if case not in in_ci))
    return [*(case for case in cases if case in in_ci), *rest]


def outside_ci(*cases: Any) -> list[Any]:
    """Cases that `.ci/run` has no time for, and `make test-more` and `make integration` have."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.outside_ci)
        for case in cases
    ]
