"""The score of a run of mutmut in the working directory: which mutants lived, and how many died.

Exits with 1 below 95 %. `survivors.md` explains the mutants that live on purpose.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

LEAST = 0.95
KILLED = ("killed", "timeout", "suspicious", "segfault")


def main() -> int:
    """Print the verdicts; the exit code."""
    listed = subprocess.run(
        ["mutmut", "results", "--all", "true"], capture_output=True, text=True, check=True
    )
    verdicts = dict(line.strip().split(": ") for line in listed.stdout.splitlines() if ": " in line)
    counts = Counter(verdicts.values())
    modules: dict[str, list[bool]] = {}
    for mutant, verdict in sorted(verdicts.items()):
        modules.setdefault(mutant.split(".")[1], []).append(verdict in KILLED)
        if verdict not in KILLED:
            print(verdict, mutant)
    for module, killings in modules.items():
        died = sum(killings)
        print(f"{module}: {died} of {len(killings)} killed: {died / len(killings):.1%}")
    killed = sum(counts[each] for each in KILLED)
    score = killed / len(verdicts)
    print(f"{killed} of {len(verdicts)} mutants killed: {score:.1%} {dict(counts)}")
    return score < LEAST


if __name__ == "__main__":
    sys.exit(main())
