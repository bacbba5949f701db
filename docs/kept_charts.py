"""Charts and headlines of kept results, to look at before the full tables.

A chart has a row for each job: its name, the ratio's spread over the rounds on a logarithmic scale
with a line at 1, and the median in digits. It is HTML with positions in per cent, so that it fits
every screen and follows the theme; without styles its text is a list of names and medians.
"""

import html
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kept_results import RESULTS, WHOLE, Kept, format_ratio, kept, not_measured, worst_jobs

FIGURES: Final = "/explanation/figures.md"
"""The page with the full tables."""

_ROOM: Final = 1.25
"""The scale reaches at least this far to both sides of 1."""


def chart(benchmark: str, results: Path = RESULTS) -> str:
    """The chart of a benchmark's whole runs, with a link to its full table."""
    jobs = headline_jobs(benchmark, results)
    if not jobs:
        return not_measured(benchmark)
    low = min([1 / _ROOM, *(job["ratio"]["min"] for job in jobs)])
    high = max([_ROOM, *(job["ratio"]["max"] for job in jobs)])
    rows = [_row(job, max(low, 0.01), high, _tells_sizes(jobs)) for job in jobs]
    several = {_is_more_better(job) for job in jobs}
    better = {(True,): "above 1 is better", (False,): "below 1 is better"}.get(
        tuple(several), "the full dots are on the better side of 1"
    )
    legend = (
        f'<div class="chart-legend">Ratio: least, <b>median</b>, most; the line is 1; {better}.'
        "</div>"
    )
    link = f"[The full table]({FIGURES}#{benchmark}): every figure, core seconds, memory, versions."
    return "\n".join(['<div class="chart">', *rows, legend, "</div>", "", link])


def headlines(page: str, results: Path = RESULTS) -> str:
    """The table of the charts of a page: a benchmark, its medians, and which way is better."""
    rows = ["| benchmark | jobs | medians | better |", "| --- | --- | --- | --- |"]
    for name in re.findall(r"^<!-- chart: (\w+) -->$", page, re.MULTILINE):
        jobs = headline_jobs(name, results)
        for more in (True, False):
            found = [job["ratio"]["median"] for job in jobs if _is_more_better(job) is more]
            if found:
                spread = format_ratio(min(found))
                if len(found) > 1:
                    spread += f" to {format_ratio(max(found))}"
                way = "above 1" if more else "below 1"
                rows.append(f"| [{name}]({FIGURES}#{name}) | {len(found)} | {spread} | {way} |")
    return "\n".join(rows)


def headline_jobs(benchmark: str, results: Path = RESULTS) -> list[Kept]:
    """Each job's whole run, or its only figures, from the machine with the worst median."""
    jobs = [job for _, job in worst_jobs(kept(benchmark, results))]
    whole = {(job["job"], job["rows"]) for job in jobs if job.get("figure", "") in WHOLE}
    return [
        job
        for job in jobs
        if job.get("figure", "") in WHOLE or (job["job"], job["rows"]) not in whole
    ]


def _tells_sizes(jobs: Sequence[Kept]) -> bool:
    """Whether jobs of one name differ by their rows alone."""
    return len({job["job"] for job in jobs}) < len(jobs)


def _is_more_better(job: Kept) -> bool:
    return bool(job["unit"] == "s")


def _row(job: Kept, low: float, high: float, with_rows: bool) -> str:
    def place(value: float) -> float:
        return 100 * math.log(min(max(value, low), high) / low) / math.log(high / low)

    ratio: dict[str, Any] = job["ratio"]
    begin, middle, end = (place(ratio[key]) for key in ("min", "median", "max"))
    is_better = (ratio["median"] > 1) == _is_more_better(job)
    name = job["job"].strip()
    size = f", {job['rows']:,}" if with_rows and job["rows"] else ""
    figure = f", {job['figure']}" if job.get("figure", "") not in ("", "whole run") else ""
    label = html.escape(name + size + figure)
    return (
        f'<div class="chart-row"><span class="chart-name">{label}</span>'
        '<span class="chart-track" aria-hidden="true">'
        f'<span class="chart-one" style="left:{place(1):.1f}%"></span>'
        f'<span class="chart-range" style="left:{begin:.1f}%;width:{end - begin:.1f}%"></span>'
        f'<span class="chart-dot{" chart-better" if is_better else ""}" style="left:{middle:.1f}%">'
        f'</span></span> <span class="chart-value">{format_ratio(ratio["median"])}</span></div>'
    )
