"""Tables of the results of benchmarks kept in `bench/results/<machine>/<benchmark>.json`.

Several machines may have measured the same job. For each job a table shows the machine with the
worst median: the least ratio where more is better, the greatest where less is.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = [
    "RESULTS",
    "WHOLE",
    "counts",
    "fault_counts",
    "faults",
    "format_ratio",
    "kept",
    "long_runs",
    "not_measured",
    "ratios",
    "sizes",
    "worst_jobs",
]

RESULTS: Final = Path(__file__).parent.parent / "bench/results"
_NOT_VERSIONS: Final = ("machine", "cpu", "cores", "memory GB", "date", "load")
_KINDS: Final = {"jvm": "JVM", "python": "Python", "broker": "broker"}
WHOLE: Final = ("", "whole run", "p50")
"""The figures beside a job's core seconds: both are of the whole run."""

Kept = Mapping[str, Any]


def kept(benchmark: str, results: Path = RESULTS) -> dict[str, Kept]:
    """Machine -> what a benchmark has measured there."""
    found = sorted(results.glob(f"*/{benchmark}.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in found}


def worst_jobs(machines: Mapping[str, Kept]) -> list[tuple[str, Kept]]:
    """Each job of any machine, in its order, with the machine of the worst median ratio."""
    found: dict[tuple[Any, ...], list[tuple[str, Kept]]] = {}
    for machine, measured in machines.items():
        for job in measured["jobs"]:
            key = (job["job"], job["rows"], job.get("figure", ""))
            found.setdefault(key, []).append((machine, job))
    return [_worst(each) for each in found.values()]


def _worst(measured: list[tuple[str, Kept]]) -> tuple[str, Kept]:
    more_is_better = measured[0][1]["unit"] == "s"
    choose = min if more_is_better else max
    return choose(measured, key=lambda each: each[1]["ratio"]["median"])


def ratios(benchmark: str, results: Path = RESULTS) -> str:
    """The table of a benchmark's ratios, and below it what each machine has run."""
    machines = kept(benchmark, results)
    if not machines:
        return not_measured(benchmark)
    rows = [_ratio_row(machine, job) for machine, job in worst_jobs(machines)]
    return _table(rows, machines)


def counts(benchmark: str, results: Path = RESULTS) -> str:
    """The table of what a benchmark has counted, machine by machine."""
    machines = kept(benchmark, results)
    if not machines:
        return not_measured(benchmark)
    rows = [
        {**{name: _number(each) for name, each in row.items()}, "machine": machine}
        for machine, measured in machines.items()
        for row in measured["table"]
    ]
    return _table(rows, machines)


def faults(campaign: str, results: Path = RESULTS) -> str:
    """The table of a campaign's faults: what operators saw of each, and when it went on."""
    machines = kept(campaign, results)
    rows = [_fault_row(kind) for measured in machines.values() for kind in measured["kinds"]]
    return _table(rows, machines)


def fault_counts(campaign: str = "chaos", results: Path = RESULTS) -> str:
    """How many faults hit, with how many seeds, and what was checked after them."""
    measured = list(kept(campaign, results).values())
    hit = sum(each["faults"]["hit"] for each in measured)
    whole = sum(each["faults"]["hit on whole chains"] for each in measured)
    seeds = sum(len(each["faults"]["seeds"]) for each in measured)
    checked: dict[str, int] = {}
    for each in measured:
        for name, count in each["checked"].items():
            checked[name] = checked.get(name, 0) + count
    told = ", ".join(f"{count:,} {name}" for name, count in checked.items())
    return f"{hit:,} that hit in {seeds} campaigns, {whole:,} of them a chain; compared: {told}"


_BY_ITSELF: Final = (
    "frozen", "deleted", "clock", "together", "executor", "Python worker", "of three brokers",
)  # fmt: skip
"""Faults that need no action if they told nothing."""


def long_runs(benchmark: str = "long_query", results: Path = RESULTS) -> str:
    """How long a long run was, and how many of its quantities were flat."""
    told = []
    for measured in kept(benchmark, results).values():
        run, rows = measured["run"], measured["table"]
        flat = sum(row["flat"] == "yes" for row in rows)
        told.append(
            f"{run['days of event time']:g} days in {run['hours']:g} hours: {run['batches']:,g} "
            f"batches, {run['records']:,} records; {flat} of {len(rows)} quantities flat"
        )
    return "; ".join(told)


def sizes(benchmark: str = "load", results: Path = RESULTS) -> str:
    """How many of the largest sizes were tried."""
    return "; ".join(f"{len(each['table'])} jobs" for each in kept(benchmark, results).values())


def _fault_row(kind: Mapping[str, Any]) -> dict[str, str]:
    seen, steps = _told(kind["told"])
    name = kind["kind"]
    step = "nothing" if any(each in name for each in _BY_ITSELF) else "start it again"
    return {
        "fault": name,
        "hit": f"{kind['hit']:,}",
        "what you see": seen or ("nothing" if step == "nothing" else "the process has ended"),
        "next step": steps or step,
        "went on after": f"{kind['went_on_s']['median']:.1f} s",
        "at worst": f"{kind['went_on_s']['worst']:.1f} s",
    }


def _told(messages: Iterable[Mapping[str, str]]) -> tuple[str, str]:
    """The messages without their next steps, and these."""
    parts = [each["text"].partition("; next step: ") for each in messages]
    seen = [_cell(text.partition("; accepted: ")[0]) for text, _, _ in parts]
    steps = [_cell(step.partition(". Nothing of")[0]) for _, _, step in parts if step]
    return "<br>".join(dict.fromkeys(seen)), "<br>".join(dict.fromkeys(steps))


def _cell(text: str) -> str:
    """Text of a program as a cell of a table."""
    flat = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return f"`{flat}`"


def not_measured(benchmark: str) -> str:
    """The text for a benchmark without kept results."""
    return f"*No machine has kept this yet: `python bench {benchmark}` measures it.*"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _ratio_row(machine: str, job: Kept) -> dict[str, str]:
    figures = {name: format_ratio(job["ratio"][key]) for name, key in _SPREAD.items()}
    peer, *_, ours = job["took"]
    row = {
        "job": job["job"].strip(),
        "rows": f"{job['rows']:,}" if job["rows"] else "",
        "figure": job.get("figure", ""),
        **figures,
        "peer": f"{peer}: {_middle(job, peer)}",
        "ours": f"{ours}: {_middle(job, ours)}",
    }
    for name, contender in (("peer", peer), ("ours", ours)):
        is_whole = job.get("figure", "") in WHOLE
        row[f"core s, {name}"] = _cores(job, contender) if is_whole else ""
        row[f"MB, {name}"] = _memory(job, contender) if is_whole else ""
    return row | {"machine": machine}


_SPREAD: Final = {"least": "min", "median": "median", "most": "max"}


def format_ratio(value: float) -> str:
    """Two decimals, or two digits of what these would hide."""
    return f"{value:.2f}" if value >= 0.095 or value == 0 else f"{value:.2g}"


def _middle(job: Kept, contender: str) -> str:
    """The median of a contender's figure, to three digits or the whole number.

    If the job has rows, core seconds become rows a second of a core.
    """
    took = statistics.median(job["took"][contender])
    if job.get("figure") == "core s" and job["rows"]:
        return f"{job['rows'] / took:,.0f}/s"
    return f"{took:,.0f} {job['unit']}" if took >= 100 else f"{took:.3g} {job['unit']}"


def _cores(job: Kept, contender: str) -> str:
    """Core seconds of a run, for a million rows where it has rows, then by kind of process."""
    rounds = job.get("core_s", {}).get(contender)
    if not rounds:
        return ""
    per = 1e6 / job["rows"] if job["rows"] else 1.0

    def middle(each: Iterable[float]) -> str:
        return f"{per * statistics.median(each):.2f}"

    kinds = [
        f"{label} {middle(each.get(kind, 0.0) for each in rounds)}"
        for kind, label in _KINDS.items()
        if any(kind in each for each in rounds)
    ]
    whole = middle(sum(each.values()) for each in rounds)
    return f"{whole} ({', '.join(kinds)})" if kinds else whole


def _memory(job: Kept, contender: str) -> str:
    """The peak of all processes together; in an older result, the largest of each kind."""
    peaks = job.get("memory_mb", {}).get(contender, {})
    if "all" in peaks:
        return f"{peaks['all']:,.0f}"
    return f"{sum(peaks.values()):,.0f}" if peaks else ""


def _table(rows: list[dict[str, str]], machines: Mapping[str, Kept]) -> str:
    """Columns with something in any row; the machine only if there are several."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [
        name
        for name in names
        if any(row.get(name) for row in rows) and (name != "machine" or len(machines) > 1)
    ]
    head = [f"| {' | '.join(shown)} |", f"| {' | '.join('---' for _ in shown)} |"]
    body = [f"| {' | '.join(row.get(name, '') for name in shown)} |" for row in rows]
    facts = [line for name, each in machines.items() for line in ("", *_facts(name, each))]
    return "\n".join([*head, *body, *facts])


def _facts(machine: str, measured: Kept) -> list[str]:
    """The machine, the command, and the versions of everything that took part."""
    given = measured["versions"]
    versions = ", ".join(
        f"{name} {value}" for name, value in given.items() if name not in _NOT_VERSIONS
    )
    cores = f"{given['cores']} cores"
    memory = f", {given['memory GB']} GB" if "memory GB" in given else ""
    where = f"{machine}: {given['cpu']}, {cores}{memory}, {given['date']}"
    return ["{.facts}", f"Run on {where} by `{measured['command']}` with {versions}."]
