"""Compile `gather.c` next to itself: `python build.py [compiler flags...]`.

Wheels and editable installs do it through `hatch_build.py`. Where it fails the package works
without: records then pass through confluent-kafka's Python objects.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "gather.c"
LIBRARY = HERE / "gather.so"
FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")


def compiled(library: Path = LIBRARY, flags: Sequence[str] = ()) -> str | None:
    """Make `library` with the compiler that `CC` names, `cc` by default; the reason if it cannot.

    A library that was there before is replaced in one step, or removed: it may be an older one.
    """
    fresh = library.with_suffix(f".{os.getpid()}")
    command = [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS, *flags]
    try:
        done = subprocess.run(
            [*command, "-o", str(fresh), str(SOURCE)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        library.unlink(missing_ok=True)
        return str(error)
    if done.returncode:
        library.unlink(missing_ok=True)
        fresh.unlink(missing_ok=True)
        return done.stderr
    fresh.replace(library)
    return None


if __name__ == "__main__":
    sys.exit(compiled(flags=sys.argv[1:]))
