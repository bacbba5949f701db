"""Hostile input of every kind ends in a right answer or in an error of ours, and in nothing else.

A failure says how to try its case again. `make fuzz MINUTES=30` goes on for longer, by the
seed of the commit, so that each commit tries other cases; `tests/lib/fuzz` has what is tried.
"""

import os

import pytest
from fuzz import engine
from fuzz.engine import (
    Finding,
    Target,
    chance_of,
    is_asked_for,
    run_case,
    run_in_a_process,
    seed_of_commit,
)
from fuzz.targets import GROUPS
from lengths import in_ci

from pyspark_timestream.errors import OptionError

TARGETS = sum(map(len, GROUPS.values()))
SECONDS = float(os.environ.get("FUZZ_MINUTES", 0)) * 60 / TARGETS or in_ci(0.5, 4)
"""For each target; in CI a minute in all."""


@pytest.mark.thorough
@pytest.mark.timeout(600 + 20 * SECONDS)
@pytest.mark.parametrize("group", [each for each in GROUPS if any(map(is_asked_for, GROUPS[each]))])
def test_hostile_input_is_answered_or_refused_by_name(group, tmp_path):
    told = run_in_a_process(group, seed_of_commit(), SECONDS, tmp_path)
    print(told)
    assert told


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError("another answer"), ValueError()])
def test_any_other_error_is_a_finding(error):
    def fail(case):
        raise error

    with pytest.raises(Finding, match=type(error).__name__):
        run_case(Target(lambda chance: None, fail), None)


def test_an_error_of_ours_is_an_end_of_a_case():
    def refuse(case):
        raise OptionError("a", "b", "c", "d")

    assert run_case(Target(lambda chance: None, refuse), None) == "OptionError"


def test_a_case_is_the_same_wherever_and_whenever_it_is_made():
    for group in ("checkpoints", "options"):
        for name, target in GROUPS[group].items():
            made = [repr(target().make(chance_of(name, "seed", 5))) for _ in range(2)]
            assert made[0] == made[1], name


def test_a_case_of_a_stored_file_damages_the_same_place_again():
    """Only the table's id and the time of its making differ."""
    made = []
    for _ in range(2):
        target = GROUPS["stores"]["stored_files"]()
        cases = (target.make(chance_of("stored_files", "seed", number)) for number in range(40))
        made.append([(name, len(content), *given) for name, content, *given in cases])
    assert made[0] == made[1]


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["os._exit(3)", "time.sleep(600)"])
def test_a_case_that_ends_the_process_or_hangs_is_a_finding(end, tmp_path, monkeypatch):
    """A library of C may do either."""
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import os, sys, time
if "fuzz" in " ".join(sys.orig_argv):
    from fuzz import engine, targets
    engine.LONGEST_S = 0.5
    made = engine.Target(lambda chance: 5, lambda case: {end})
    targets.GROUPS = {{"broken": {{"broken": lambda: made}}}}
"""
    )
    monkeypatch.setattr(engine, "PATHS", (tmp_path, *engine.PATHS))
    with pytest.raises(Finding, match=r"exit code [13] .*FUZZ_CASE=broken/0"):
        run_in_a_process("broken", "seed", 1, tmp_path)
