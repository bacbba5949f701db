"""What campaigns have found, as `bench/results/<machine>/chaos.json` keeps it.

`python chaos_results.py OUT FAULTS...` reads the lines of campaigns. A seed counts only if all that
must hold was checked after it, and a fault only if it hit.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chaos_parts import explained
from machine import versions

TEXTS = 3
"""Messages that are kept of a kind of fault, those told most often."""

FOREIGN = ("producer",)
"""Parts whose errors are not ours: Confluent's client."""


def main() -> None:
    """Write the summary of the campaigns."""
    out, *logs = map(Path, sys.argv[1:])
    lines: list[dict[str, Any]] = []
    checked: list[dict[str, Any]] = []
    for log in logs:
        seeds = {each["seed"]: each for each in read(log.with_suffix(".checked"))}
        checked += seeds.values()
        lines += [line for line in read(log) if line["seed"] in seeds]
    kept = summary(lines, checked)
    out.parent.mkdir(parents=True, exist_ok=True)
    command = "make chaos SEEDS=20"
    out.write_text(
        json.dumps({"versions": versions(), "command": command, **kept}, indent=1) + "\n"
    )
    print(f"{kept['faults']['hit']} of {kept['faults']['struck']} faults hit")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(lines: list[dict[str, Any]], checked: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by kind, how long until the chain went on, and what operators were told."""
    total: Counter[str] = Counter()
    for each in checked:
        total.update(each["checked"])
    chains = {each["seed"] for each in checked if "records" in each["checked"]}
    kinds = sorted(
        {line["kind"] for line in lines if line["hit"]}, key=lambda kind: order(lines, kind)
    )
    return {
        "faults": {
            "struck": len(lines),
            "hit": sum(line["hit"] for line in lines),
            "hit on whole chains": sum(line["hit"] for line in lines if line["seed"] in chains),
            "seeds": sorted(each["seed"] for each in checked),
        },
        "checked": dict(total),
        "kinds": [
            of_kind(kind, [line for line in lines if line["kind"] == kind]) for kind in kinds
        ],
    }


def order(lines: list[dict[str, Any]], kind: str) -> tuple[bool, str]:
    """Faults of what all share before those of one part."""
    return any("part" in line for line in lines if line["kind"] == kind), kind


def of_kind(kind: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    hits = [line for line in lines if line["hit"]]
    went_on = [line["went_on_s"] for line in hits if line["went_on_s"] > 0] or [0]
    return {
        "kind": kind,
        "struck": len(lines),
        "hit": len(hits),
        "went_on_s": {"median": statistics.median(went_on), "worst": max(went_on)},
        "example": hits[0]["evidence"][:200],
        "told": most_told(each for line in hits for each in line["told"]),
    }


def most_told(told: Iterable[list[str]]) -> list[dict[str, str]]:
    """The texts that were told most often, the first example of each."""
    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, str]] = {}
    for where, text in told:
        if where not in FOREIGN:
            key = re.sub(r"'[^']*'|\d+", "", text)[:60]
            counts[key] += 1
            examples.setdefault(key, {"where": where, "text": in_words_of_today(text)})
    return [examples[key] for key, _ in counts.most_common(TEXTS)]


def in_words_of_today(text: str) -> str:
    """What `why` makes of a foreign error now, if it knew no next step when the fault hit."""
    if not text.startswith("not an error of"):
        return text
    return explained(RuntimeError(text.rpartition("; caused by ")[2].partition(": ")[2] or text))


if __name__ == "__main__":
    main()
