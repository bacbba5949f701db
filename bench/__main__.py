"""`make bench`: every comparison in turn, each in a session of its own."""

import importlib.metadata
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

COMPARISONS = (
    "kafka_source.py",
    "cti_cost.py",
    "time_source.py",
    "tseries_append.py",
    "tseries_query.py",
    "tseries_commits.py",
)
PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "deltalake", "duckdb")


def main() -> None:
    """Print what is compared where, then the tables; only ratios within a run mean anything."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {versions}", flush=True)
    for name in COMPARISONS:
        print(f"\n{name}", flush=True)
        script = Path(__file__).with_name(name)
        subprocess.run([sys.executable, str(script)], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
