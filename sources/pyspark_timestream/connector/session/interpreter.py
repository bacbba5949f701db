"""The Python that Spark starts its workers with, and a check that it has this package.

Spark looks for a format, and reads and writes it, with the Python that its JVM finds in the
environment variable PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else as `python3` on PATH. The
setting `spark.pyspark.python` and the interpreter that runs the driver do not count. A job that is
started as `venv/bin/python job.py`, from an IDE, cron or a notebook, therefore does not find
packages of its virtual environment unless PYSPARK_PYTHON names it before the JVM starts.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

__all__ = [
    "INTERPRETER_VARIABLES",
    "find_interpreter_fault",
    "find_worker_command",
    "is_this_interpreter",
    "use_this_interpreter",
]

INTERPRETER_VARIABLES: Final = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
"""The variables that Spark's JVM reads, in this order."""

_DEFAULT_COMMAND: Final = "python3"
_HAS_PACKAGE: Final = (
    "import importlib.util as u, sys; sys.exit(0 if u.find_spec('pyspark_timestream') else 3)"
)
_START_TIMEOUT_S: Final = 30


def use_this_interpreter(environment: MutableMapping[str, str]) -> None:
    """Name the running interpreter in PYSPARK_PYTHON, unless `environment` names one already."""
    if sys.executable and not environment.get("PYSPARK_PYTHON"):
        environment["PYSPARK_PYTHON"] = sys.executable


def find_worker_command(environment: Mapping[str, str]) -> tuple[str, str]:
    """The command with which a JVM in this environment starts workers, and its origin."""
    for name in INTERPRETER_VARIABLES:
        if name in environment:
            return environment[name], name
    return _DEFAULT_COMMAND, "PATH"


def is_this_interpreter(environment: Mapping[str, str]) -> bool:
    """True if a JVM in this environment starts workers with the running interpreter."""
    command, _ = find_worker_command(environment)
    path = shutil.which(command, path=environment.get("PATH", os.defpath))
    return path is not None and _is_running_interpreter(Path(path))


def find_interpreter_fault(environment: Mapping[str, str]) -> str | None:
    """The reason why a JVM with this environment would not find the formats; None if it would.

    Starts the interpreter in question once, where it is not the running one.
    """
    command, source = find_worker_command(environment)
    named = "found on PATH" if source == "PATH" else f"from the environment variable {source}"
    path = shutil.which(command, path=environment.get("PATH", os.defpath))
    if path is None:
        return f"Spark starts its Python workers as '{command}', {named}, but there is no such file"
    if _is_running_interpreter(Path(path)) or _has_package(path, environment):
        return None
    found = "" if path == command else f" ({path})"
    return (
        f"Spark starts its Python workers as '{command}'{found}, {named}, and pyspark_timestream "
        "is not installed there"
    )


def _is_running_interpreter(path: Path) -> bool:
    """True for the same file in the same directory: a virtual environment is a directory."""
    here = Path(sys.executable)
    return path.parent.absolute() == here.parent.absolute() and path.resolve() == here.resolve()


def _has_package(path: str, environment: Mapping[str, str]) -> bool:
    try:
        return not subprocess.run(
            [path, "-c", _HAS_PACKAGE],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        ).returncode
    except (OSError, subprocess.SubprocessError):
        return False
