"""kafkarrow (librdkafka in Rust, to Arrow) as a contender: in an environment of its own.

`python bench/neighbours/kafkarrow_process.py` installs it from PyPI into `.work/kafkarrow` (some
60 MB to fetch, with pyarrow), and so does the benchmark. Where that fails, it says why, and
compares the others. A package that would have to be compiled counts as missing.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

__all__ = ["VERSION", "Kafkarrow", "NotInstalled", "install"]

VERSION: Final = "0.1.1"
_ENVIRONMENT: Final = Path(__file__).parents[2] / ".work" / "kafkarrow"
_JOB: Final = Path(__file__).parent / "kafkarrow_job.py"


class NotInstalled(Exception):
    """kafkarrow cannot be had here; the text says why."""


def install(place: Path = _ENVIRONMENT, package: str = f"kafkarrow=={VERSION}") -> Path:
    """The Python of an environment that has `package`, which is made if it is not there.

    Raises:
        NotInstalled: pip could not; the last lines of its output.
    """
    python, done = place / "bin" / "python", place / f".{package}"
    if not done.exists():
        venv.create(place, with_pip=False, clear=True)
        # pyarrow in our version: what differs is the reader.
        wanted = [package, f"pyarrow=={pa.__version__}"]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        command = [*pip, "--only-binary", ":all:", *wanted]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            lines = [line for line in said.stderr.splitlines() if line.startswith("ERROR")]
            raise NotInstalled(f"pip cannot install {package}: {' '.join(lines[-2:])}")
        done.touch()
    return python


class Kafkarrow:
    """The process; it ends with the `with` block."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(_JOB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def __enter__(self) -> "Kafkarrow":
        return self

    def __exit__(self, *error: object) -> None:
        # Leaving Popen's own block closes the pipes.
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def read(self, settings: dict[str, Any], topic: str, records: int, contents: bool) -> Any:
        """Read a topic to its end; its answer.

        Raises:
            SystemExit: it ended before; what it said is on the standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"settings": settings, "topic": topic, "records": records, "contents": contents}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answered = self._process.stdout.readline()
        if not answered:
            raise SystemExit("kafkarrow's process ended before it had read the topic")
        return json.loads(answered)


if __name__ == "__main__":
    sys.exit(print(f"kafkarrow {VERSION} is installed: {install()}"))
