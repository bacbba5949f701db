"""The one way in which benchmarks compare: in turns, guarded, as ratios, kept as JSON.

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
contender must have done the same work, as `Done.work` says it (row counts, checksums; what it costs
to find out belongs into `checks`, which run once and are not measured): otherwise there is no
result.

`unit` says what `Done.took` is: seconds, from which rows a second and a ratio of speeds are made
(above 1: ours is faster), or "ms" or "MB", where the ratio is of those (below 1: ours is less).
A peer may be ourselves with something switched off. The memory is that of this process and its
descendants, or of the process that a contender's `pid` names (`sessions.Apart`).

`report` prints a row a job and writes `BENCH_RESULTS/<benchmark>.json` (default `.work/bench`;
`make bench` keeps them in `bench/results`). BENCH_ROUNDS (default 5) says how many rounds.
"""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from memory import PeakMemory

__all__ = [
    "ROUNDS",
    "Comparison",
    "Done",
    "against_each",
    "compare",
    "each_against_peer",
    "heading",
    "pair",
    "report",
    "rows_of",
]

ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "5"))
_PLACE: Final = Path(os.environ.get("BENCH_RESULTS", ".work/bench"))
_PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "confluent-kafka", "deltalake", "duckdb")


class Done(NamedTuple):
    """One run: what it took, in the comparison's unit, and the work by which it is known."""

    took: float
    work: Mapping[str, Any] = {}


Contender = Callable[[], Done]


@dataclass(frozen=True)
class Comparison:
    """What the contenders of one job took, by round.

    Attributes:
        job: its name in the table.
        took: contender -> what each round took; the peer first, ours last.
        rows: how many rows a run is about.
        unit: "s", "ms" or "MB".
        work: what each run did.
        memory_mb: contender -> kind of process -> its peak over the measured runs.
    """

    job: str
    took: Mapping[str, Sequence[float]]
    rows: int = 0
    unit: str = "s"
    work: Mapping[str, Any] = field(default_factory=dict)
    memory_mb: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

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
        return {
            "job": self.job,
            "rows": self.rows,
            "unit": self.unit,
            "took": {name: list(each) for name, each in self.took.items()},
            "ratio": {"min": low, "median": middle, "max": high},
            "work": dict(self.work),
            "memory_mb": {name: dict(each) for name, each in self.memory_mb.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Comparison":
        """What `to_json` wrote."""
        names = ("job", "took", "rows", "unit", "work", "memory_mb")
        return cls(**{name: value[name] for name in names})


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
        checks: name -> what the contender's result is, where finding out would cost.

    Raises:
        SystemExit: two runs did not do the same work.
    """
    guard = _Guard(job)
    for name, check in (checks or {}).items():
        guard.same("check", name, check())
    took: dict[str, list[float]] = {name: [] for name in contenders}
    peaks: dict[str, dict[str, float]] = {name: {} for name in contenders}
    for turn in range(warm_up + rounds):
        order = list(contenders) if turn % 2 else list(contenders)[::-1]
        for name in order:
            with PeakMemory(getattr(contenders[name], "pid", None)) as memory:
                done = contenders[name]()
            guard.same("run", name, done.work)
            if turn >= warm_up:
                took[name].append(done.took)
                for kind, peak in memory.peaks_mb.items():
                    peaks[name][kind] = max(peak, peaks[name].get(kind, 0.0))
    return Comparison(job, took, rows, unit, guard.work, peaks)


def against_each(comparison: Comparison, by: str = ", ") -> list[Comparison]:
    """The one run as a row for each peer, whose name follows the job's after `by`."""
    *peers, ours = comparison.took
    return [pair(comparison, peer, ours, f"{by}{peer}") for peer in peers]


def each_against_peer(comparison: Comparison, by: str = ", ") -> list[Comparison]:
    """The one run as a row for each way of ours, whose name follows the job's after `by`."""
    peer, *ways = comparison.took
    return [pair(comparison, peer, way, f"{by}{way}") for way in ways]


def pair(comparison: Comparison, peer: str, ours: str, suffix: str) -> Comparison:
    """Two of the contenders as a row, whose name is the job's with `suffix`."""

    def both(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in (peer, ours) if name in given}

    return replace(
        comparison,
        job=f"{comparison.job}{suffix}",
        took=both(comparison.took),
        memory_mb=both(comparison.memory_mb),
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


def report(script: str, comparisons: Iterable[Comparison]) -> None:
    """Print the rows of a benchmark as they come, and keep all in a file of its name."""
    if "BENCH_RESULTS" not in os.environ:
        print(heading(), flush=True)
    _PLACE.mkdir(parents=True, exist_ok=True)
    path = _PLACE / f"{Path(script).stem}.json"
    jobs: list[dict[str, Any]] = []
    kept = {"versions": versions(), "jobs": jobs}
    for comparison in comparisons:
        print(rows_of(comparison), flush=True)
        jobs.append(comparison.to_json())
        # Each time, since what comes next may fail or be ended.
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def heading() -> str:
    """The head of the table."""
    return (
        f"{'job':<44} {'rows':>11} {'peer':>13} {'ours':>13} "
        f"{'min':>5} {'ratio':>6} {'max':>5}  {'worker MB':>10} {'driver MB':>11}"
    )


def rows_of(comparison: Comparison) -> str:
    """The row of one job: medians, the ratio's spread, the peaks of peer and ours."""
    peer, *_, ours = comparison.took
    low, middle, high = comparison.spread()
    medians = (_shown(comparison, statistics.median(comparison.took[n])) for n in (peer, ours))
    memory = (
        "/".join(_peak(comparison.memory_mb.get(name, {}), kinds) for name in (peer, ours))
        for kinds in (("worker",), ("driver", "main"))
    )
    texts = (*medians, *memory)
    return (
        f"{comparison.job:<44} {comparison.rows or '':>11} {texts[0]:>13} {texts[1]:>13} "
        f"{low:>5.2f} {middle:>6.2f} {high:>5.2f}  {texts[2]:>10} {texts[3]:>11}"
    )


def _shown(comparison: Comparison, took: float) -> str:
    if comparison.unit == "s" and comparison.rows:
        return f"{comparison.rows / took:,.0f}/s"
    return (
        f"{took:,.3f} s"
        if comparison.unit == "s"
        else f"{took:,.{1 if took >= 10 else 3}f} {comparison.unit}"
    )


def _peak(peaks: Mapping[str, float], kinds: Sequence[str]) -> str:
    return next((f"{peaks[kind]:.0f}" for kind in kinds if kind in peaks), "-")


def versions() -> dict[str, Any]:
    """What the numbers were measured with."""
    found: dict[str, Any] = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return found | {
        "python": platform.python_version(),
        "librdkafka": _librdkafka(),
        "cores": os.cpu_count(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": _commit(),
    }


def _librdkafka() -> str:
    import confluent_kafka

    return str(confluent_kafka.libversion()[0])


def _commit() -> str:
    """What is checked out; `-dirty` where files differ, other than results of this very run."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "-uno", "--", ":/", ":(exclude,top)bench/results")
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
