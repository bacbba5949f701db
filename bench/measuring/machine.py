"""The machine that a benchmark runs on, and the versions of everything that takes part."""

import importlib.metadata
import os
import platform
import re
import sqlite3
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from flink import installed_versions
from peers import ARTIFACTS, AVRO_ARTIFACTS

from pyspark_timestream.demo.broker import KAFKA_VERSION

__all__ = ["command", "machine_name", "processor", "versions"]

_SIZES: Final = ("BENCH_", "LONG_", "NEXMARK_")
_NOT_SIZES: Final = ("BENCH_LIMIT_S", "BENCH_MACHINE", "BENCH_RESULTS")
_PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "confluent-kafka", "deltalake", "duckdb")


def machine_name() -> str:
    """The name for keeping results: BENCH_MACHINE, else the processor and its cores.

    Raises:
        SystemExit: the name is not one of a folder.
    """
    given = os.environ.get("BENCH_MACHINE")
    if given is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", given):
        raise SystemExit(
            f"BENCH_MACHINE is '{given}'; accepted: lower-case letters, digits, '-' and '.'"
        )
    model = re.sub(r"[^a-z0-9]+", "-", processor().lower()).strip("-")
    return given or f"{model}-{os.cpu_count()}-cores"


def processor() -> str:
    """The processor's model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), "unknown")


def versions() -> dict[str, Any]:
    """The machine, and the versions of all that takes part."""
    found: dict[str, Any] = {name: importlib.metadata.version(name) for name in _PACKAGES}
    found |= {module: revision for _, module, revision in (*ARTIFACTS, *AVRO_ARTIFACTS)}
    found |= installed_versions()
    return found | {
        "machine": machine_name(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "memory GB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "java": _java(),
        "kafka": KAFKA_VERSION,
        "librdkafka": _librdkafka(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": _commit(),
    }


def command(script: str) -> str:
    """The command that repeats this run."""
    settings = [
        f"{name}={each}"
        for name, each in sorted(os.environ.items())
        if each and name.startswith(_SIZES) and name not in _NOT_SIZES
    ]
    return " ".join([*settings, "python", "bench", Path(script).stem])


def _java() -> str:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else "unknown"


def _librdkafka() -> str:
    import confluent_kafka

    return str(confluent_kafka.libversion()[0])


def _commit() -> str:
    """The commit that is checked out; `-dirty` if files differ, other than results of this run."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "-uno", "--", ":/", ":(exclude,top)bench/results")
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
