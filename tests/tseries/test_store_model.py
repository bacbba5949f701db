"""Random programs on a store, with maintenance, damage and other writers between, against a model.

MODEL_SECONDS says for how long (three seconds, ten in CI), MODEL_SEED where it begins: a program
that fails says its seed, and runs first with it.
"""

import os
import time
from pathlib import Path

import pytest
from lengths import in_ci, repetitions
from tseries.store_model_writer import Writers
from tseries.store_program import Program

SECONDS = float(os.environ.get("MODEL_SECONDS", repetitions(in_ci(3, 10), 60)))
SEED = int(os.environ.get("MODEL_SEED", "0"))
STEPS = 250
"""A program."""


@pytest.mark.timeout(SECONDS + 240)
def test_random_operations_agree_with_the_model(tmp_path: Path) -> None:
    until, seed, steps = time.monotonic() + SECONDS, SEED, 0
    with Writers() as writers:
        while time.monotonic() < until:
            program = Program(tmp_path / str(seed), seed, writers)
            try:
                steps += program.run(STEPS, until)
            except BaseException as error:
                error.add_note(f"the program of MODEL_SEED={seed}")
                raise
            seed += 1
    print(f"{steps} operations in {seed - SEED} programs")
