"""The Python that Spark would start, and whether it has this package."""

import sys
from pathlib import Path

import pytest

from pyspark_timestream.core.session import (
    find_interpreter_fault,
    find_worker_command,
    use_this_interpreter,
)


def fake_python(directory: Path, name: str = "python3", has_package: bool = False) -> Path:
    """A command that answers as a Python without (or with) this package does."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\nexit {0 if has_package else 3}\n")
    path.chmod(0o755)
    return path


def test_interpreter_without_variables_is_the_one_on_path(tmp_path: Path) -> None:
    foreign = fake_python(tmp_path)
    assert find_worker_command({"PATH": str(tmp_path)}) == ("python3", "PATH")
    fault = find_interpreter_fault({"PATH": str(tmp_path)})
    assert fault == (
        f"Spark starts its Python workers as 'python3' ({foreign}), found on PATH, and "
        "pyspark_timestream is not installed there"
    )


def test_interpreter_of_another_environment_that_has_the_package_is_fine(tmp_path: Path) -> None:
    fake_python(tmp_path, has_package=True)
    assert find_interpreter_fault({"PATH": str(tmp_path)}) is None


def test_interpreter_that_runs_is_fine_and_not_started_again() -> None:
    # Without a PATH nothing could be started but by its full name.
    assert (
        find_interpreter_fault(
            {"PYSPARK_PYTHON": sys.executable, "PATH": "", "LD_PRELOAD": "no.so"}
        )
        is None
    )


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_interpreter_named_by_a_variable_and_missing_is_named(variable: str) -> None:
    fault = find_interpreter_fault({variable: "jupyter-of-mine", "PATH": "/nowhere"})
    assert fault == (
        f"Spark starts its Python workers as 'jupyter-of-mine', from the environment variable "
        f"{variable}, but there is no such file"
    )


def test_interpreter_of_the_driver_variable_goes_first(tmp_path: Path) -> None:
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "jupyter"}
    assert find_worker_command(environment) == ("jupyter", "PYSPARK_DRIVER_PYTHON")
    assert "PYSPARK_DRIVER_PYTHON" in (find_interpreter_fault(environment) or "")


def test_interpreter_in_use_is_set_unless_one_is_named() -> None:
    empty: dict[str, str] = {}
    use_this_interpreter(empty)
    assert empty == {"PYSPARK_PYTHON": sys.executable}
    given = {"PYSPARK_PYTHON": "/opt/cluster/python"}
    use_this_interpreter(given)
    assert given == {"PYSPARK_PYTHON": "/opt/cluster/python"}
