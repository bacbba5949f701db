"""Compile each C file of the package next to itself: `python build_native.py [flags...]`.

Wheels and editable installs run this through `hatch_build.py`. If it fails, the package works
without the library: records then pass through confluent-kafka's Python objects, and JSON through
Arrow's parser.
"""

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KAFKA = Path(__file__).parent / "sources" / "pyspark_timestream" / "kafka"
SOURCE = KAFKA / "client" / "native" / "native_reader.c"
LIBRARY = SOURCE.with_suffix(".so")
SCANNER = KAFKA / "decode" / "json" / "scan_json.c"
SOURCES = {"the native reader": SOURCE, "the JSON scanner": SCANNER}
"""The users' name of each library -> its source; the library stands beside the source."""

FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")


def build_library(
    library: Path = LIBRARY, flags: Sequence[str] = (), source: Path | None = None
) -> str | None:
    """Compile `library` with `CC`, by default `cc`; return None, or the reason for a failure.

    `source` is the C file, by default that of the native reader.

    Replace an existing library atomically; after a failure remove it, because it may be outdated.
    """
    source = source or SOURCE
    fresh = library.with_suffix(f".{os.getpid()}")
    try:
        command = [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS, *flags]
        # `load_compiled` compares it to detect a library built from another source.
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        command += [f'-DSOURCE_DIGEST="{digest}"', "-o", str(fresh), str(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0:
            fresh.replace(library)
            return None
        # A compiler may fail silently, and an empty reason would mean success.
        trouble = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
    except (OSError, ValueError) as error:
        trouble = str(error)
    for old in (library, fresh):
        with contextlib.suppress(OSError):
            old.unlink()
    return trouble


if __name__ == "__main__":
    every = [build_library(it.with_suffix(".so"), sys.argv[1:], it) for it in SOURCES.values()]
    sys.exit("\n".join(filter(None, every)) or None)
