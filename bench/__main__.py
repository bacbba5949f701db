"""`make bench`: every comparison, each in a process of its own, as one table of ratios.

Above 1 ours is faster, except where a job is measured in ms or MB: there below 1 is better. What
was measured is kept in `bench/results`, with the versions. A benchmark that fails, or takes longer
than BENCH_LIMIT_S (default 1800), is named in the end, and the rest goes on; arguments name those
to run, such as `python bench kafka_source rules`.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import psutil
from side_by_side import heading, versions

HERE: Final = Path(__file__).parent
LIMIT_S: Final = float(os.environ.get("BENCH_LIMIT_S", "1800"))
GOODBYE_S: Final = 20
"""How long a benchmark that was interrupted may take to end its broker."""

COMPARISONS: Final = (
    "kafka_source",
    "payload_formats",
    "kafka_growth",
    "latency",
    "aligned_reading",
    "cti_cost",
    "rules",
    "mechanisms_store",
    "mechanisms_stream",
    "time_source",
    "tseries_append",
    "tseries_query",
    "tseries_commits",
    "tseries_durability",
    "tseries_memory",
)


def main() -> None:
    """Print what is compared where, then the rows as they come, and in the end what failed."""
    wanted = sys.argv[1:] or list(COMPARISONS)
    if unknown := set(wanted) - set(COMPARISONS):
        raise SystemExit(f"no such benchmark: {unknown}; there are {', '.join(COMPARISONS)}")
    print(", ".join(f"{name} {value}" for name, value in versions().items()))
    print(heading(), flush=True)
    kept = {**os.environ, "BENCH_RESULTS": str(HERE / "results")}
    failures = [why for name in wanted if (why := failure(HERE / f"{name}.py", kept, LIMIT_S))]
    if failures:
        raise SystemExit("\n".join(failures))


def failure(script: Path, environment: dict[str, str], limit_s: float) -> str | None:
    """Run a benchmark; why it failed, with the end of what it said."""
    # A file, since what outlives a killed benchmark would hold a pipe open.
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, str(script)], stderr=said, env=environment, start_new_session=True
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"{script.name} took longer than {limit_s:.0f} s:\n{tail(said)}"
        finally:
            end(child)
        return f"{script.name} failed ({code}):\n{tail(said)}" if code else None


def end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of a benchmark: itself, and what it has started."""
    family = []
    if child.poll() is None:
        family = psutil.Process(child.pid).children(recursive=True)
        # Its broker is in a session of its own, and ends with the `with` block that began it.
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GOODBYE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()


def tail(said: IO[str], lines: int = 15, width: int = 200) -> str:
    """The last lines, none of them long: a stack trace of Spark's may have thousands."""
    said.seek(0)
    return "\n".join(f"  {line[:width]}" for line in said.read().splitlines()[-lines:])


if __name__ == "__main__":
    main()
