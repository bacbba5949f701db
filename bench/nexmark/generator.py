"""The generator: the crate `nexmark`, built by cargo in `.work`, in one version.

It writes the same everywhere and always, except for times, which count from now.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sizes import SKIPPED

from nexmark.events import PARTITIONS

__all__ = ["PLACE", "SKIPPED", "generate", "require_generator"]

PLACE: Final = Path(__file__).parents[2] / ".work" / "nexmark"
VERSION: Final = "0.2.0"
_CARGO: Final = (shutil.which("cargo"), Path.home() / ".cargo" / "bin" / "cargo")


def require_generator() -> Path:
    """The generator's program, built first where it is not there.

    Raises:
        SystemExit: it cannot be built; without cargo, the benchmark is SKIPPED.
    """
    program = PLACE / VERSION / "bin" / "nexmark"
    if program.exists():
        return program
    cargo = next((each for each in _CARGO if each and Path(each).exists()), None)
    if cargo is None:
        print(
            f"nexmark is skipped: its events come from the crate nexmark {VERSION}, which cargo "
            "builds, and there is no cargo on PATH; next step: install Rust (https://rustup.rs), "
            "and run it again",
            file=sys.stderr,
        )
        raise SystemExit(SKIPPED)
    command = [str(cargo), "install", "nexmark", "--version", f"={VERSION}", "--features", "bin"]
    command += ["--quiet", "--root", str(program.parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"cargo could not build nexmark {VERSION}:\n{done.stderr[-2000:]}")
    return program


def generate(partition: int, first: int, count: int) -> Iterator[bytes]:
    """Lines of a partition's events: `count` of them, from number `first` on.

    Raises:
        SystemExit: the generator failed.
    """
    command = [str(require_generator()), "--no-wait", "--number", str(count)]
    command += ["--offset", str(partition + PARTITIONS * first), "--step", str(PARTITIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        yield from running.stdout
    if running.returncode:
        raise SystemExit(f"the generator of nexmark {VERSION} failed ({running.returncode})")
