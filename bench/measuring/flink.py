"""Flink as a contender: a mini cluster in a process and an environment of its own.

`python bench/measuring/flink.py` installs it into `.work/flink` (PyPI's apache-flink, 844 MB with
its dependencies); its Kafka connector comes from Maven Central. Flink takes part where it is
installed, and with BENCH_FLINK=1 it must be; BENCH_FLINK=0 leaves it out.
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from peers import jar

__all__ = ["Flink", "installed_versions", "kafka_table", "sink_table", "takes_part"]

VERSION: Final = "2.3.0"
CONNECTOR: Final = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
_ENVIRONMENT: Final = Path(__file__).parents[2] / ".work" / "flink"
_PYTHON: Final = _ENVIRONMENT / "bin" / "python"
_INSTALLED: Final = _ENVIRONMENT / f".apache-flink-{VERSION}"
_PROCESS: Final = Path(__file__).parent / "flink_process.py"


def takes_part(default: str | None = None) -> bool:
    """Whether Flink is a contender.

    Args:
        default: the value of BENCH_FLINK where it is not set.

    Raises:
        SystemExit: it must be, by BENCH_FLINK, and is not installed.
    """
    wanted = os.environ.get("BENCH_FLINK", default)
    if wanted not in (None, "0", "1"):
        raise SystemExit(f"BENCH_FLINK={wanted}: accepted is 0 or 1, or leave it away")
    if wanted == "1" and not _INSTALLED.exists():
        raise SystemExit(
            f"BENCH_FLINK=1, and there is no apache-flink {VERSION} in {_ENVIRONMENT}; "
            "next step: python bench/measuring/flink.py installs it (844 MB)"
        )
    return wanted != "0" and _INSTALLED.exists()


def installed_versions() -> dict[str, str]:
    """Flink's version and its connector's, where it is installed."""
    return {"apache-flink": VERSION, CONNECTOR[1]: CONNECTOR[2]} if _INSTALLED.exists() else {}


class Flink:
    """The process; it ends with the `with` block."""

    def __init__(self) -> None:
        # Flink's own scripts look for Python and settings there; Spark's must not reach them.
        kept = {key: each for key, each in os.environ.items() if not key.startswith("PYSPARK_")}
        self._process = subprocess.Popen(
            [str(_PYTHON), str(_PROCESS), jar(*CONNECTOR).as_uri()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept,
        )
        self.pid = self._process.pid

    def __enter__(self) -> "Flink":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, *statements: str) -> float:
        """Run statements of SQL, the last of them a job; the seconds that the job took.

        Raises:
            SystemExit: Flink failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statements) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # Java prints warnings of its own.
            if line.startswith('{"took"'):
                answered: dict[str, Any] = json.loads(line)
                return float(answered["took"])
        raise SystemExit(f"Flink's process ended in {statements[-1]}; what it said is above")


def kafka_table(name: str, columns: str, bootstrap: str, topic: str, **options: str) -> list[str]:
    """Statements that make a table of a topic, read from its start to its present end.

    Args:
        name: the table's.
        columns: their definitions, and the watermark's.
        bootstrap: the broker's address.
        topic: the topic's name.
        options: of the connector, with _ for a point; the values are JSON unless they say else.
    """
    given = {
        "connector": "kafka",
        "properties.bootstrap.servers": bootstrap,
        "topic": topic,
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
    }
    given |= {key.replace("_", "."): each for key, each in options.items()} or {"format": "json"}
    return make_table(name, columns, given)


def sink_table(name: str, columns: str, rows: Path | None) -> list[str]:
    """Statements that make a table of results, which go as JSON to `rows`, or nowhere if None."""
    files = {"connector": "filesystem", "path": f"file://{rows}", "format": "json"}
    return make_table(name, columns, {"connector": "blackhole"} if rows is None else files)


def make_table(name: str, columns: str, options: Mapping[str, str]) -> list[str]:
    """Statements that make a table in place of one of its name."""
    given = ", ".join(f"'{key}' = '{each}'" for key, each in options.items())
    return [
        f"DROP TEMPORARY TABLE IF EXISTS {name}",
        f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ({given})",
    ]


def install() -> None:
    """Install Flink, in an environment that has nothing else."""
    venv.create(_ENVIRONMENT, with_pip=True)
    pip = [str(_PYTHON), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"apache-flink=={VERSION}"], check=True)
    _INSTALLED.touch()
    print(f"apache-flink {VERSION} is in {_ENVIRONMENT}")


if __name__ == "__main__":
    sys.exit(install())
