"""Results of a benchmark that compares rows with DuckDB's, as a table for each machine."""

import statistics
from pathlib import Path
from typing import Final

from kept_results import RESULTS, Kept, kept, not_measured

__all__ = ["exactness"]

_COUNTS: Final = ("rows", "missing", "doubled", "changed", "made_up")
_HEAD: Final = (
    "| query | by | core s / million | whole run | MB | rows | missing | doubled | changed "
    "| made up |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def exactness(benchmark: str, results: Path = RESULTS) -> str:
    """The tables of the contenders' times, and of the rows that they have wrong."""
    machines = kept(benchmark, results)
    if not machines:
        return not_measured(benchmark)
    return "\n\n".join(_table(machine, measured) for machine, measured in machines.items())


def _table(machine: str, measured: Kept) -> str:
    jobs = measured["jobs"]
    whole = {job["job"]: job["took"] for job in jobs if job["figure"] == "whole run"}
    cores = [job for job in jobs if job["figure"] == "core s"]
    rows = [_row(job, whole[job["job"]][by], by) for job in cores for by in job["took"]]
    lost = [
        f"{job['job']}: {found['lost_bids']:.1%} by {by}"
        for job in cores
        for by, found in job["work"]["exactness"].items()
        if found.get("lost_bids")
    ]
    losses = [f"Bids that are in no session: {'; '.join(lost)}.", ""] if lost else []
    versions = measured["versions"]
    run = ", ".join(f"{name} {versions[name]}" for name in ("pyspark", "librdkafka", "duckdb"))
    facts = f"{cores[0]['rows']:,} events a query, on {machine}, {versions['date']}, with {run}."
    return "\n".join([_HEAD, *rows, "", *losses, "{.facts}", facts])


def _row(job: Kept, whole_s: list[float], by: str) -> str:
    core_s = statistics.median(job["took"][by]) * 1e6 / job["rows"]
    memory = job["memory_mb"][by]
    mb = " + ".join(f"{memory[kind]:.0f}" for kind in ("driver", "worker") if kind in memory)
    found = job["work"]["exactness"][by]
    counts = [f"{found[kind]:,}" for kind in _COUNTS]
    figures = [f"{core_s:.1f}", f"{statistics.median(whole_s):.1f} s", mb, *counts]
    return f"| {' | '.join([job['job'], by, *figures])} |"
