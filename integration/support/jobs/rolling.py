"""The process that `test_rollup_kills` kills: `SOURCE ROLLUP BEGUN`.

It brings a rollup up to date again and again, and adds a byte to BEGUN before each run.
"""

from __future__ import annotations

import sys

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain import rollup as runs

AGGREGATES = {"mean": ("value", "mean"), "last": ("value", "last"), "events": ("*", "count")}


def main() -> None:
    """Run until killed, in commits of few buckets."""
    source, rollup, begun = sys.argv[1:]
    runs.MAX_BUCKETS_PER_COMMIT = 40  # type: ignore[misc]
    runs.MAX_BYTES_AT_ONCE = 1  # type: ignore[misc]
    series = TimeSeries.open(source, "roller")
    with open(begun, "ab", buffering=0) as file:
        while True:
            file.write(b".")
            series.rollup(rollup, "1 minute", AGGREGATES)


if __name__ == "__main__":
    main()
