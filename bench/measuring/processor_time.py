"""Comparisons by processor time, in turns: a mechanism beside the code that it replaces.

All threads count, and nothing else runs in the process (`side_by_side.compare` looks at the
memory meanwhile). The peer is the simpler way, so a ratio below 1 shows the saving. `report_parts`
keeps the rows, the counts of things that are not timed, the processor and its load.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from machine import processor
from side_by_side import Comparison, heading, rows_of, versions
from sizes import chosen, size

__all__ = ["Part", "Work", "in_turns", "report_parts"]

ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", size(7, 1)))
PLACE: Final = Path(os.environ.get("BENCH_RESULTS", ".work/bench"))

Work = Callable[[], Any]
"""Does a job once; what it returns says what was done."""


class Part(NamedTuple):
    """The measurements of one mechanism: times, and what else is counted."""

    times: Callable[[], Iterator[Comparison]]
    counts: Callable[[], Mapping[str, Any]] = dict


def in_turns(job: str, ways: Mapping[str, Work], rows: int, rounds: int = ROUNDS) -> Comparison:
    """The processor time of each of `ways`, the peer first, after a round that warms up.

    Raises:
        SystemExit: two runs did not do the same work.
    """
    took: dict[str, list[float]] = {name: [] for name in ways}
    done: list[Any] = []
    for turn in range(1 + rounds):
        for name in list(ways) if turn % 2 else list(ways)[::-1]:
            began = time.process_time()
            done.append(ways[name]())
            spent_ms = (time.process_time() - began) * 1000
            if done[-1] != done[0]:
                raise SystemExit(f"{job}: {name} did {done[-1]}, not {done[0]}")
            if turn:
                took[name].append(spent_ms)
    return Comparison(job, took, rows, "ms", {"run": {"result": done[0]}})


def machine() -> dict[str, Any]:
    """The processor, and how busy it is."""
    return {"cpu": processor(), "load": list(os.getloadavg())}


def report_parts(script: str, parts: Mapping[str, Part]) -> None:
    """Print the rows, and keep them; BENCH_PARTS names those to measure, and the others stay."""
    if "BENCH_RESULTS" not in os.environ:
        print(heading(), flush=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    path = PLACE / f"{Path(script).stem}.json"
    # Not `jobs`: the page of results shows jobs against peers.
    kept = json.loads(path.read_text()) if path.exists() else {"mechanisms": {}}
    for name in chosen("BENCH_PARTS", tuple(parts)):
        measured: dict[str, Any] = {"began": machine(), "comparisons": []}
        for comparison in parts[name].times():
            print(rows_of(comparison), flush=True)
            measured["comparisons"].append(comparison.to_json())
        if counts := dict(parts[name].counts()):
            measured["counts"] = counts
            print(f"  {counts}", flush=True)
        kept["mechanisms"][name] = measured | {"ended": machine(), "versions": versions()}
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
