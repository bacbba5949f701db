"""`make bench`: every comparison, each in a session of its own, as one table of ratios.

Above 1 ours is faster, except where a job is measured in ms or MB: there below 1 is better. What
was measured is kept in `bench/results`, with the versions.
"""

import os
import subprocess
import sys
from pathlib import Path

from side_by_side import heading, versions

HERE = Path(__file__).parent
COMPARISONS = (
    "kafka_source.py",
    "kafka_growth.py",
    "latency.py",
    "cti_cost.py",
    "rules.py",
    "time_source.py",
    "tseries_append.py",
    "tseries_query.py",
    "tseries_commits.py",
    "tseries_memory.py",
)


def main() -> None:
    """Print what is compared where, then the rows as they come, and in the end what failed."""
    print(", ".join(f"{name} {value}" for name, value in versions().items()))
    print(heading(), flush=True)
    kept = {**os.environ, "BENCH_RESULTS": str(HERE / "results")}
    failures = []
    for name in COMPARISONS:
        command = [sys.executable, str(HERE / name)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=kept, check=False)
        if done.returncode:
            failures.append(f"{name} failed:\n{done.stderr[-2000:]}")
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
