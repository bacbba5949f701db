"""Flink as a contender: a mini cluster in a process and an environment of its own.

`python bench/nexmark/flink.py` installs it into `.work/flink` (PyPI's apache-flink, 844 MB with its
dependencies); its Kafka connector comes from Maven Central. Flink takes part where it is installed,
and with NEXMARK_FLINK=1 it must be; NEXMARK_FLINK=0 leaves it out.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, Final

__all__ = ["Flink", "takes_part"]

VERSION: Final = "2.3.0"
CONNECTOR: Final = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
_ENVIRONMENT: Final = Path(__file__).parents[2] / ".work" / "flink"
_PYTHON: Final = _ENVIRONMENT / "bin" / "python"
_INSTALLED: Final = _ENVIRONMENT / f".apache-flink-{VERSION}"
_JOB: Final = Path(__file__).parent / "flink_job.py"


def takes_part(default: str | None = None) -> bool:
    """Whether Flink is a contender.

    Args:
        default: the value of NEXMARK_FLINK where it is not set.

    Raises:
        SystemExit: it must be, by NEXMARK_FLINK, and is not installed.
    """
    wanted = os.environ.get("NEXMARK_FLINK", default)
    if wanted not in (None, "0", "1"):
        raise SystemExit(f"NEXMARK_FLINK={wanted}: accepted is 0 or 1, or leave it away")
    if wanted == "1" and not _INSTALLED.exists():
        raise SystemExit(
            f"NEXMARK_FLINK=1, and there is no apache-flink {VERSION} in {_ENVIRONMENT}; "
            "next step: python bench/nexmark/flink.py installs it (844 MB)"
        )
    return wanted != "0" and _INSTALLED.exists()


class Flink:
    """The process; it ends with the `with` block."""

    def __init__(self) -> None:
        from peers import jar

        # Flink's own scripts look for Python and settings there; Spark's must not reach them.
        kept = {key: each for key, each in os.environ.items() if not key.startswith("PYSPARK_")}
        self._process = subprocess.Popen(
            [str(_PYTHON), str(_JOB), jar(*CONNECTOR).as_uri()],
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

    def run(self, query: str, bootstrap: str, topic: str, rows: Path | None = None) -> float:
        """Run a query to the end of a topic; the seconds that it took.

        Args:
            query: its name.
            bootstrap: the broker's address.
            topic: the topic's name; its values are JSON.
            rows: where its rows go, as JSON; None if nowhere.

        Raises:
            SystemExit: Flink failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"query": query, "bootstrap": bootstrap, "topic": topic}
        asked["rows"] = None if rows is None else str(rows)
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # Java prints warnings of its own.
            if line.startswith('{"took"'):
                answered: dict[str, Any] = json.loads(line)
                return float(answered["took"])
        raise SystemExit(f"Flink's process ended in {query}; what it said is above")


def install() -> None:
    """Install Flink, in an environment that has nothing else."""
    venv.create(_ENVIRONMENT, with_pip=True)
    pip = [str(_PYTHON), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"apache-flink=={VERSION}"], check=True)
    _INSTALLED.touch()
    print(f"apache-flink {VERSION} is in {_ENVIRONMENT}")


if __name__ == "__main__":
    sys.exit(install())
