"""`make simulate`: seeds of this commit for two minutes, for MINUTES or HOURS, or one SEED."""

import argparse
import itertools
import sys
import traceback

from simulation.seeds import first_seed, make_world, run_seeds


def main() -> int:
    """Run what the arguments say; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one only, and show where it fails")
    parser.add_argument("--faults", type=int, help="with --seed: no faults after this many steps")
    parser.add_argument("--first", type=int, help="the first seed; this commit's by default")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--hours", type=float)
    given = parser.parse_args()
    if given.seed is not None:
        return _run_one(given.seed, given.faults)
    minutes = given.minutes if given.hours is None else given.hours * 60
    first = first_seed() if given.first is None else given.first
    _say(f"seeds from {first} on, for {minutes:g} minutes")
    report = run_seeds(itertools.count(first), minutes * 60, _say, stop_at_first=False)
    _say(f"{report}")
    _say(", ".join(f"{name} {count:,}" for name, count in report.hits.most_common()))
    return bool(report.findings)


def _run_one(seed: int, faults: int | None) -> int:
    world = make_world(seed, faults).run_quietly()
    _say(f"seed {seed}: {world.chance.steps} steps, {dict(world.chance.hits)}")
    if world.finding is None:
        _say("nothing was found")
        return 0
    traceback.print_exception(world.finding.__cause__ or world.finding)
    _say(str(world.finding))
    return 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
