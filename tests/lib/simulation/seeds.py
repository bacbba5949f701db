"""Runs seeds, makes a failure small, and counts what was done."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from simulation.restored import RestoredWorld
from simulation.store import StoreWorld
from simulation.topic_sink import TopicWorld
from simulation.wide import WideWorld
from simulation.world import World

ROOT = Path(__file__).parents[3]
_now_s, _core_s = time.perf_counter, time.process_time
"""The real clocks, taken before the simulation puts its own in their place."""

NOT_FAULTS = frozenset(
    ("start", "batch", "rows handed over", "bounded run ended", "maintenance", "driver killed")
)
"""Counts that are no faults; the kill of a driver is counted where it happened."""


@dataclass
class Report:
    """The counts of some seeds."""

    seeds: int = 0
    steps: int = 0
    simulated_s: float = 0
    core_s: float = 0
    hits: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """The faults that hit."""
        return sum(
            count
            for name, count in self.hits.items()
            if name not in NOT_FAULTS and not name.startswith("query ended")
        )

    def __str__(self) -> str:
        """One line."""
        pace, hours = self.simulated_s / max(self.core_s, 0.001), self.simulated_s / 3600
        return (
            f"{self.seeds:,} seeds, {self.steps:,} steps, {self.hits['batch']:,} batches, "
            f"{self.faults:,} faults, {hours:,.1f} hours in {self.core_s:,.0f} s of "
            f"a core ({pace:,.0f} times as fast), {len(self.findings)} findings"
        )


WORLDS: tuple[type[World], ...] = (
    World, World, World, StoreWorld, WideWorld, TopicWorld, WideWorld, RestoredWorld
)  # fmt: skip
"""The kinds of worlds; a seed modulo their number picks one."""


def world_of(seed: int) -> type[World]:
    """The kind of world of a seed."""
    return WORLDS[seed % len(WORLDS)]


def make_world(seed: int, faults: int | None = None) -> World:
    """The world of a seed."""
    return world_of(seed)(seed, faults)


def shrink(seed: int) -> int:
    """The least number of steps with faults that still fails, found by bisection."""
    # The last failure may have come in the last step.
    least, most = 0, make_world(seed).run_quietly().chance.steps + 1
    while least < most:
        middle = (least + most) // 2
        if make_world(seed, middle).run_quietly().finding is None:
            least = middle + 1
        else:
            most = middle
    return most


def run_seeds(
    seeds: Iterable[int],
    seconds: float,
    tell: Callable[[str], object] = print,
    *,
    stop_at_first: bool = True,
    shrinks: bool = True,
) -> Report:
    """Run seeds until the time is over; with `shrinks` a finding tells how few faults it takes."""
    report, began_s, told_s, cpu_s = Report(), _now_s(), _now_s(), _core_s()
    for seed in seeds:
        world = make_world(seed).run_quietly()
        report.seeds += 1
        report.steps += world.chance.steps
        report.hits += world.chance.hits
        report.simulated_s += world.chance.elapsed_s
        report.core_s, elapsed_s = _core_s() - cpu_s, _now_s() - began_s
        if world.finding is not None:
            fewest = f" FAULTS={shrink(seed)}" if shrinks else ""
            report.findings.append(f"{world.finding}{fewest}")
            tell(report.findings[-1])
            if stop_at_first:
                break
        if _now_s() - told_s > 60:
            told_s = _now_s()
            tell(str(report))
        if elapsed_s >= seconds:
            break
    return report


def first_seed() -> int:
    """The first seed of this commit; 0 outside of a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(found[:8], 16) * 1_000
