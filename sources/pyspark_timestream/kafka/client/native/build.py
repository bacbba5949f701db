"""Compile `gather.c` next to itself: `python build.py [compiler flags...]`.

Wheels and editable installs do it through `hatch_build.py`. Where it fails the package works
without: records then pass through confluent-kafka's Python objects.
"""

import contextlib
import hashlib
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
    try:
        command = [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS, *flags]
        # By it `native_gather` tells a library of this source from an older one.
        digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
        command += [f'-DSOURCE_DIGEST="{digest}"', "-o", str(fresh), str(SOURCE)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0:
            fresh.replace(library)
            return None
        # It may fail without a word, and a reason that is empty would count as none.
        trouble = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
    except (OSError, ValueError) as error:
        trouble = str(error)
    for old in (library, fresh):
        with contextlib.suppress(OSError):
            old.unlink()
    return trouble


if __name__ == "__main__":
    sys.exit(compiled(flags=sys.argv[1:]))
