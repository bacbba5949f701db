"""`make bench`: every comparison, each in a process of its own, as one table of ratios.

`kafka` measures the Kafka source, `time_rules` CTIs and the simulated clock, `tseries` the store;
`nexmark`, `tsbs`, `neighbours` and `load` have a folder each, and `measuring` what all share.
`results` keeps what machines have measured.

Above 1 ours is faster, except where a job is measured in ms or MB: there below 1 is better. The
results are kept in `bench/results/<machine>`, with the versions; BENCH_MACHINE names the machine
(default: its processor and cores), and the results of other machines stay. A benchmark that fails,
or takes longer than BENCH_LIMIT_S (default 3600), is named in the end, and the rest goes on; one
that this machine cannot run says why in place of its rows. Arguments name those to run, such as
`python bench kafka_source rules`. BENCH_RESULTS is another folder to keep them in.

With BENCH_QUICK=1 (`make bench QUICK=1`) sizes and rounds are small (`sizes`), its ratios are
rough, and it is kept only in `.work/bench`. The whole takes ten minutes: one of each kind comes
first. If a slow machine has no time left for some, they are named in the end.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import psutil

sys.path.insert(0, str(Path(__file__).parent / "measuring"))
from machine import machine_name
from side_by_side import heading, versions
from sizes import SKIPPED, size

HERE: Final = Path(__file__).parent
LIMIT_S: Final = float(os.environ.get("BENCH_LIMIT_S", size(3600, 180)))
QUICK_S: Final = 580
"""Seconds for all small benchmarks together; the last of them needs time to end its broker."""

FIRST_QUICK: Final = (
    "kafka_source",
    "rules",
    "tseries_append",
    "tseries_query",
    "tseries_durability",
    "tsbs",
    "neighbours",
    "latency",
    "internal_consistency",
    "nexmark",
)
"""One of each kind, which small runs begin with."""

GOODBYE_S: Final = 20
"""How long a benchmark that was interrupted may take to end its broker."""

COMPARISONS: Final = (
    "kafka_source",
    "beside_flink",
    "payload_formats",
    "folded_windows",
    "kafka_growth",
    "long_query",
    "load",
    "nexmark",
    "latency",
    "start",
    "source_floor",
    "neighbours",
    "window_latency",
    "aligned_reading",
    "watch_page",
    "cti_cost",
    "rules",
    "mechanisms_store",
    "mechanisms_stream",
    "time_source",
    "tseries_append",
    "tseries_query",
    "tseries_newest",
    "tseries_commits",
    "tseries_durability",
    "tseries_memory",
    "tsbs",
    "internal_consistency",
)


def main() -> None:
    """Print the heading, then the rows as they come, and in the end what failed."""
    wanted = sys.argv[1:] or size(list(COMPARISONS), quick_order())
    if unknown := set(wanted) - set(COMPARISONS):
        raise SystemExit(f"no such benchmark: {unknown}; there are {', '.join(COMPARISONS)}")
    print(", ".join(f"{name} {value}" for name, value in versions().items()))
    print(heading(), flush=True)
    place = results_folder()
    environment = environment_for(place)
    failures, left_out = [], []
    # Named benchmarks take the time that they need.
    end_s = time.monotonic() + (math.inf if sys.argv[1:] else size(math.inf, QUICK_S))
    for name in wanted:
        began = time.monotonic()
        left_s = end_s - began
        if left_s <= 0:
            left_out.append(name)
            continue
        why = failure(script_of(name), environment, min(LIMIT_S, left_s))
        if why and time.monotonic() >= end_s:
            left_out.append(name)
        elif why:
            failures.append(why)
        print(f"  {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"kept in {place}")
    if left_out:
        print(f"no time was left for {', '.join(left_out)}; python bench NAME runs one of them")
    if failures:
        raise SystemExit("\n".join(failures))


def quick_order() -> list[str]:
    """All benchmarks, one of each kind first."""
    return [*FIRST_QUICK, *(name for name in COMPARISONS if name not in FIRST_QUICK)]


def environment_for(place: Path) -> dict[str, str]:
    """A benchmark's environment, which says where it finds the others and keeps its results."""
    support = sorted((HERE.parent / "integration" / "support").glob("[a-z]*"))
    paths = (HERE, HERE / "measuring", *support, os.environ.get("PYTHONPATH"))
    given = {
        "BENCH_RESULTS": str(place),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
    }
    # Images of containers set it; each process of Spark would compile all that it imports.
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": ""} | given


def results_folder() -> Path:
    """Where results are kept: small ones never beside those of full size."""
    if given := os.environ.get("BENCH_RESULTS"):
        return Path(given)
    return size(HERE / "results" / machine_name(), HERE.parent / ".work" / "bench")


def script_of(name: str) -> Path:
    """A benchmark's file, or the folder of one that has several."""
    return HERE / name if (HERE / name).is_dir() else next(HERE.glob(f"*/{name}.py"))


def failure(script: Path, environment: dict[str, str], limit_s: float) -> str | None:
    """Run a benchmark; return why it failed, with the end of its output."""
    # A file, since a process that outlives a killed benchmark would hold a pipe open.
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
        if code == SKIPPED:
            print(tail(said, lines=1).strip(), flush=True)
            return None
        return f"{script.name} failed ({code}):\n{tail(said)}" if code else None


def end(child: subprocess.Popen[bytes]) -> None:
    """End a benchmark and the processes that it has started."""
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
