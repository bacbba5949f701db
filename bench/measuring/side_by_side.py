"""How all benchmarks compare: in turns, guarded, as ratios, kept as JSON.

    from side_by_side import Done, compare, report

    def ours() -> Done:
        began = time.perf_counter()
        rows = read()
        return Done(time.perf_counter() - began, {"rows": rows})

    report(__file__, [compare("a job", {"peer": theirs, "timestream": ours}, rows=1_000_000)])

A contender is a function that does the job once and says what it took and what it did. The first
contender is the peer, the last is ours. The contenders take turns, every second round in the
opposite order, after rounds that warm up (`warm_up`, one unless said otherwise); a ratio is made of
two runs of one round, so noise that lasts longer than a round meets both. Every run of every
contender must have done the same work, as `Done.work` says it (row counts, checksums). Work that is
expensive to check belongs into `checks`, which run once and are not measured. Without the same work
there is no result.

`unit` says what `Done.took` is: seconds, which become rows a second and a ratio of speeds (above 1:
ours is faster), or "ms" or "MB", which become a ratio (below 1: ours is less). A peer may be
ourselves with something switched off. Memory and core seconds count for this process and its
descendants, or for the process that a contender's `pid` names (`sessions.Apart`), over the whole
call; a broker of this process counts with the core seconds.

A run may tell more than one figure (`Done.figures`: a batch's work, the whole run); `by_figure`
makes a row of each.

`report` prints a row a job and writes `BENCH_RESULTS/<benchmark>.json` (default `.work/bench`;
`make bench` keeps them in `bench/results/<machine>`). `report_table` does the same with what is
counted and not compared. `sizes` says how many rounds there are.
"""

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from core_seconds import CoreSeconds
from machine import command, versions
from memory import PeakMemory
from sizes import ROUNDS

__all__ = [
    "ROUNDS",
    "Comparison",
    "Done",
    "against_each",
    "by_core_seconds",
    "by_figure",
    "compare",
    "each_against_peer",
    "heading",
    "pair",
    "report",
    "report_table",
    "rows_of",
    "versions",
]

_PLACE: Final = Path(os.environ.get("BENCH_RESULTS", ".work/bench"))


class Done(NamedTuple):
    """One run: what it took, in the comparison's unit, and the work that it did.

    `figures` are more figures of it, by name, in the same unit; every run has the same names.
    """

    took: float
    work: Mapping[str, Any] = {}
    figures: Mapping[str, float] = {}


Contender = Callable[[], Done]


@dataclass(frozen=True)
class Comparison:
    """The figures of the contenders of one job, by round.

    Attributes:
        job: its name in the table.
        took: contender -> what each round took; the peer first, ours last.
        rows: how many rows a run is about.
        unit: "s", "ms" or "MB".
        work: what each run did.
        memory_mb: contender -> kind of process -> its peak over the measured runs.
        core_s: contender -> what each round took of the cores, by kind of process.
        figure: which figure of a run `took` is, where a run has several.
        figures: figure -> contender -> what each round took.
    """

    job: str
    took: Mapping[str, Sequence[float]]
    rows: int = 0
    unit: str = "s"
    work: Mapping[str, Any] = field(default_factory=dict)
    memory_mb: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    core_s: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    figure: str = ""
    figures: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Round by round: peer over ours for seconds (speed), ours over peer for the rest."""
        peer, *_, ours = self.took.values()
        pairs = zip(peer, ours, strict=True)
        return [a / b if self.unit == "s" else b / a for a, b in pairs]

    def spread(self) -> tuple[float, float, float]:
        """The least, the median and the greatest ratio."""
        return min(self.ratios), statistics.median(self.ratios), max(self.ratios)

    def to_json(self) -> dict[str, Any]:
        """All that was measured."""
        low, middle, high = self.spread()
        kept = {name: each for name, each in asdict(self).items() if name != "figures"}
        return kept | {"ratio": {"min": low, "median": middle, "max": high}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Comparison":
        """Read what any version of `to_json` wrote; of several figures it has only its own."""
        names = ("job", "took", "rows", "unit", "work", "memory_mb", "core_s", "figure")
        return cls(**{name: value[name] for name in names if name in value})


def compare(
    job: str,
    contenders: Mapping[str, Contender],
    rows: int = 0,
    unit: str = "s",
    rounds: int = ROUNDS,
    warm_up: int = 1,
    checks: Mapping[str, Callable[[], Mapping[str, Any]]] | None = None,
) -> Comparison:
    """The contenders in turns.

    Args:
        job: its name in the table.
        contenders: name -> one run; at least two, the peer first, ours last.
        rows: how many rows a run is about.
        unit: of `Done.took`.
        rounds: how many rounds are measured.
        warm_up: how many rounds are not, before those.
        checks: name -> a function that returns the contender's result, if this is expensive.

    Raises:
        SystemExit: two runs did not do the same work.
    """
    guard = _Guard(job)
    for name, check in (checks or {}).items():
        guard.same("check", name, check())
    took: dict[str, list[float]] = {name: [] for name in contenders}
    peaks: dict[str, dict[str, float]] = {name: {} for name in contenders}
    cores: dict[str, list[Mapping[str, float]]] = {name: [] for name in contenders}
    figures: dict[str, dict[str, list[float]]] = {}
    for turn in range(warm_up + rounds):
        order = list(contenders) if turn % 2 else list(contenders)[::-1]
        for name in order:
            pid = getattr(contenders[name], "pid", None)
            with PeakMemory(pid) as memory, CoreSeconds(pid) as spent:
                done = contenders[name]()
            guard.same("run", name, done.work)
            if turn >= warm_up:
                took[name].append(done.took)
                cores[name].append(spent.by_kind)
                for figure, each in done.figures.items():
                    of_each = figures.setdefault(figure, {other: [] for other in contenders})
                    of_each[name].append(each)
                for kind, peak in memory.peaks_mb.items():
                    peaks[name][kind] = max(peak, peaks[name].get(kind, 0.0))
    return Comparison(job, took, rows, unit, guard.work, peaks, cores, figures=figures)


def by_figure(comparison: Comparison) -> list[Comparison]:
    """The one run as a row for each of its figures; itself, if it has one only."""
    return [
        replace(comparison, took=took, figure=figure, figures={})
        for figure, took in comparison.figures.items()
    ] or [comparison]


def by_core_seconds(comparison: Comparison) -> Comparison:
    """The same runs by their core seconds, without the broker, which serves everybody."""
    took = {
        name: [sum(s for kind, s in spent.items() if kind != "broker") for spent in rounds]
        for name, rounds in comparison.core_s.items()
    }
    return replace(comparison, took=took, unit="s", figures={})


def against_each(comparison: Comparison, by: str = ", ") -> list[Comparison]:
    """The one run as a row for each peer, named after the job, `by` and the peer."""
    *peers, ours = comparison.took
    return [pair(comparison, peer, ours, f"{by}{peer}") for peer in peers]


def each_against_peer(comparison: Comparison, by: str = ", ") -> list[Comparison]:
    """The one run as a row for each way of ours, named after the job, `by` and the way."""
    peer, *ways = comparison.took
    return [pair(comparison, peer, way, f"{by}{way}") for way in ways]


def pair(comparison: Comparison, peer: str, ours: str, suffix: str) -> Comparison:
    """Two of the contenders as a row, named after the job and `suffix`."""

    def both(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in (peer, ours) if name in given}

    return replace(
        comparison,
        job=f"{comparison.job}{suffix}",
        took=both(comparison.took),
        memory_mb=both(comparison.memory_mb),
        core_s=both(comparison.core_s),
        figures={figure: both(took) for figure, took in comparison.figures.items()},
    )


class _Guard:
    """Remembers the first work of each kind, and refuses any other."""

    def __init__(self, job: str) -> None:
        self.work: dict[str, Mapping[str, Any]] = {}
        self._job = job
        self._first: dict[str, str] = {}

    def same(self, kind: str, name: str, work: Mapping[str, Any]) -> None:
        first = self._first.setdefault(kind, name)
        if self.work.setdefault(kind, dict(work)) != work:
            raise SystemExit(
                f"{self._job}: {name} did {dict(work)}, but {first} did {self.work[kind]}: "
                "unequal work is not compared"
            )


def report(script: str, comparisons: Iterable[Comparison], place: Path = _PLACE) -> None:
    """Print the rows of a benchmark as they come, and keep all in a file of its name."""
    if "BENCH_RESULTS" not in os.environ:
        print(heading(), flush=True)
    jobs: list[dict[str, Any]] = []
    kept = {"versions": versions(), "command": command(script), "jobs": jobs}
    for comparison in comparisons:
        print(rows_of(comparison), flush=True)
        jobs.append(comparison.to_json())
        # Each time, since the next row may fail or be ended.
        _keep(script, kept, place)


def report_table(script: str, rows: Iterable[Mapping[str, Any]], **more: Any) -> None:
    """Print rows of counts as they come, and keep all; each has the same columns.

    `more` is kept beside them.
    """
    found: list[dict[str, Any]] = []
    kept = {"versions": versions(), "command": command(script), "table": found, **more}
    for row in rows:
        print(", ".join(f"{name}: {each}" for name, each in row.items()), flush=True)
        found.append(dict(row))
        _keep(script, kept, _PLACE, sort_keys=False)


def _keep(script: str, kept: Mapping[str, Any], place: Path, *, sort_keys: bool = True) -> None:
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{Path(script).stem}.json"
    path.write_text(json.dumps(kept, indent=1, sort_keys=sort_keys) + "\n")


def heading() -> str:
    """The head of the table."""
    return (
        f"{'job':<56} {'rows':>10} {'peer':>13} {'ours':>13} {'min':>5} {'ratio':>6} {'max':>5} "
        f"{'core s':>11} {'MB':>11}"
    )


def rows_of(comparison: Comparison) -> str:
    """The row of one job: medians, the ratio's spread, core seconds and peak of peer and ours."""
    peer, *_, ours = comparison.took
    low, middle, high = comparison.spread()
    medians = [_shown(comparison, statistics.median(comparison.took[n])) for n in (peer, ours)]
    cores = "/".join(_cores(comparison.core_s.get(name, ())) for name in (peer, ours))
    memory = "/".join(_peak(comparison.memory_mb.get(name, {})) for name in (peer, ours))
    job = ", ".join(filter(None, (comparison.job, comparison.figure)))
    return (
        f"{job:<56} {comparison.rows or '':>10} {medians[0]:>13} {medians[1]:>13} "
        f"{low:>5.2f} {middle:>6.2f} {high:>5.2f} {cores:>11} {memory:>11}"
    )


def _shown(comparison: Comparison, took: float) -> str:
    if comparison.unit == "s" and comparison.rows:
        return f"{comparison.rows / took:,.0f}/s"
    if comparison.unit == "s":
        return f"{took:,.3f} s" if took >= 0.01 else f"{took * 1000:.3f} ms"
    return f"{took:,.{1 if took >= 10 else 3}f} {comparison.unit}"


def _cores(rounds: Sequence[Mapping[str, float]]) -> str:
    return f"{statistics.median(sum(each.values()) for each in rounds):.1f}" if rounds else "-"


def _peak(peaks: Mapping[str, float]) -> str:
    return f"{peaks['all']:.0f}" if "all" in peaks else "-"
