"""The results of campaigns, as `bench/results/<machine>/chaos.json` keeps them.

`python chaos_results.py OUT FAULTS...` adds the lines of campaigns to what OUT has. A seed counts
once, and only if everything was checked after it; a fault counts if it hit.
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
"""So many messages are kept of a kind of fault: the most frequent."""

PARTS = ("appender", "compactor", "editor", "follower", "producer", "roller", "writer")

FOREIGN = ("producer",)
"""Parts with errors that are not ours: Confluent's client."""


def main() -> None:
    """Write the summary of the campaigns."""
    out, *logs = map(Path, sys.argv[1:])
    before = json.loads(out.read_text()) if out.exists() else None
    counted = set() if before is None else {*before["faults"]["seeds"]}
    lines: list[dict[str, Any]] = []
    checked: list[dict[str, Any]] = []
    for log in logs:
        seeds = {each["seed"]: each for each in read(log.with_suffix(".checked"))}
        seeds = {seed: each for seed, each in seeds.items() if seed not in counted}
        checked += seeds.values()
        lines += [line for line in read(log) if line["seed"] in seeds]
    kept = summary(lines, checked)
    if before is not None:
        kept = merged(before, kept)
    out.parent.mkdir(parents=True, exist_ok=True)
    command = "make chaos SEEDS=20"
    # The folder of kept results has the machine's name.
    known = (
        versions() if before is None else {**versions(), "machine": before["versions"]["machine"]}
    )
    text = json.dumps({"versions": known, "command": command, **kept}, indent=1)
    out.write_text(text + "\n")
    print(f"{kept['faults']['hit']} of {kept['faults']['struck']} faults hit")


def merged(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Add both up; the runs with more hits give the median, the slower ones the worst time."""
    faults = {
        name: kept["faults"][name] + new["faults"][name]
        for name in ("struck", "hit", "hit on whole chains", "seeds")
    }
    checked = Counter(kept["checked"])
    checked.update(new["checked"])
    kinds = {each["kind"]: each for each in kept["kinds"]}
    for each in new["kinds"]:
        kinds[each["kind"]] = both(kinds[each["kind"]], each) if each["kind"] in kinds else each
    shared_first = sorted(kinds.values(), key=lambda each: (is_of_a_part(each), each["kind"]))
    return {
        "faults": {**faults, "seeds": sorted(faults["seeds"])},
        "checked": dict(checked),
        "kinds": shared_first,
    }


def both(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Two summaries of one kind."""
    more = max(kept, new, key=lambda each: each["hit"])
    worst = max(each["went_on_s"]["worst"] for each in (kept, new))
    told = {text_key(each["text"]): each for each in [*new["told"], *kept["told"]]}
    return {
        "kind": new["kind"],
        "struck": kept["struck"] + new["struck"],
        "hit": kept["hit"] + new["hit"],
        "went_on_s": {"median": more["went_on_s"]["median"], "worst": worst},
        "example": new["example"],
        "told": [*told.values()][:TEXTS],
    }


def is_of_a_part(kind: dict[str, Any]) -> bool:
    return kind["kind"].partition(" ")[0] in PARTS


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(lines: list[dict[str, Any]], checked: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by kind, the time until the chain went on, and the messages to operators."""
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
            key = text_key(text)
            counts[key] += 1
            examples.setdefault(key, {"where": where, "text": in_words_of_today(text)})
    return [examples[key] for key, _ in counts.most_common(TEXTS)]


def text_key(text: str) -> str:
    """The common form of texts that say the same."""
    return re.sub(r"'[^']*'|\d+", "", text)[:60]


def in_words_of_today(text: str) -> str:
    """The text of `why` for a foreign error now, if it knew no next step when the fault hit."""
    if not text.startswith("not an error of"):
        return text
    return explained(RuntimeError(text.rpartition("; caused by ")[2].partition(": ")[2] or text))


if __name__ == "__main__":
    main()
