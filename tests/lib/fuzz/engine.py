"""Runs a target over made up cases until its time is over; each case has a seed and a number.

A case is good if it ends in an answer that its oracle agrees with, or in an error of ours. Anything
else is a finding: another exception, an answer that differs, a secret in a message, a case that
takes longer than `LONGEST_S` or more than `ROOM` bytes, and the end of the process. The name of the
case at work is in a file, so that the process that waits can name it even then.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.core.why import is_own_error
from pyspark_timestream.errors import OptionError

ROOT: Final = Path(__file__).parents[3]
PATHS: Final = (ROOT / "tests/lib", ROOT / "integration/support/sessions")
LONGEST_S: Final = 60.0
ROOM: Final = 4 << 30

_CASE: Final = "FUZZ_CASE"

Chance = random.Random


@dataclass(frozen=True, slots=True)
class Target:
    """A target that gets hostile input.

    Attributes:
        make: a case, which can be printed. run: gives it to the code; a wrong answer is an
            AssertionError, and its results are counted.
    """

    make: Callable[[Chance], Any]
    run: Callable[[Any], str]


class Finding(Exception):
    """A case that ended in neither a right answer nor an error of ours."""


def seed_of_commit() -> str:
    """The seed of this run: FUZZ_SEED, or the commit's own.

    Tests take a seed that is known to find nothing, so that only a change makes them red; `make
    fuzz` looks for more.
    """
    if "FUZZ_SEED" in os.environ:
        return os.environ["FUZZ_SEED"]
    if "FUZZ_MINUTES" not in os.environ:
        return "aa3"
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return hashlib.sha256((told or "no commit").encode()).hexdigest()[:12]


def chance_of(name: str, seed: str, number: int) -> Chance:
    """The random numbers of one case, which neither time nor other cases change."""
    return random.Random(f"{seed}/{name}/{number}")


def run_case(target: Target, case: Any) -> str:
    """How a case ended: what its target returned, or the class of our error.

    Raises:
        Finding: neither.
    """
    try:
        return target.run(case)
    except Exception as error:
        if isinstance(error, OptionError) or (is_own_error(error) and str(error)):
            return type(error).__name__
        raise Finding(f"{type(error).__name__}: {error}") from error


def limit_memory() -> None:
    """Let this process take no more than `ROOM` bytes from now on."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))


def run_cases(name: str, target: Target, seed: str, seconds: float, at: Path) -> Counter[str]:
    """Run cases one after another; `at` has the one at work.

    Raises:
        Finding: a case is one; its note says how to run it again.
    """
    ends: Counter[str] = Counter()
    only = os.environ.get(_CASE, "")
    end_s, number = time.monotonic() + seconds, int(only.partition("/")[2] or 0)
    while True:
        at.write_text(f"{name}/{number}", encoding="ascii")
        case = target.make(chance_of(name, seed, number))
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)
        try:
            ends[run_case(target, case)] += 1
        except Finding as found:
            found.add_note(f"{how_to_repeat(seed, f'{name}/{number}')}\nthe case: {case!r:.3000}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        number += 1
        if only or time.monotonic() > end_s:
            return ends


def is_asked_for(name: str) -> bool:
    """True if FUZZ_CASE asks for a case of this target, or for none."""
    only = os.environ.get(_CASE, "")
    return not only or only.partition("/")[0] == name


def how_to_repeat(seed: str, case: str) -> str:
    """The command that runs one case again."""
    return f"FUZZ_SEED={seed} {_CASE}={case} python -m pytest -n0 tests/test_fuzz.py -k hostile"


def run_in_a_process(group: str, seed: str, seconds: float, folder: Path) -> str:
    """Run a group of targets, each for this long, in a process; return how their cases ended.

    Raises:
        Finding: a case is one, took too long, or ended the process.
    """
    at = folder / "case"
    arguments = [sys.executable, "-m", "fuzz", group, seed, str(seconds), str(at)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    if done.returncode:
        case = at.read_text(encoding="ascii") if at.exists() else "none"
        told = f"exit code {done.returncode} at {how_to_repeat(seed, case)}"
        raise Finding(f"{told}:\n{done.stderr[-6000:]}")
    return done.stdout.strip()
