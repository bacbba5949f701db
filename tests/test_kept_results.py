"""Tables of what several machines have measured quote the worst, and say what was run where."""

import json
from pathlib import Path
from typing import Any

from kept_results import kept, ratios, worst_jobs

VERSIONS = {"cpu": "A CPU", "cores": 2, "date": "2026-11-23", "pyspark": "4.3.0"}


def job(name: str, median: float, unit: str = "s", **more: Any) -> dict[str, Any]:
    ratio = {"min": median - 0.25, "median": median, "max": median + 0.25}
    took = {"spark": [3.0, 1.0, 2.0], "timestream": [1234.5]}
    return {"job": name, "rows": 2_000_000, "unit": unit, "ratio": ratio, "took": took, **more}


def keep(place: Path, machine: str, **measured: Any) -> None:
    (place / machine).mkdir()
    text = json.dumps({"versions": VERSIONS, "command": "python bench some", **measured})
    (place / machine / "some.json").write_text(text)


def test_worst_median_is_the_least_speed_and_the_greatest_time(tmp_path: Path) -> None:
    keep(tmp_path, "a", jobs=[job("fast", 2.0), job("short", 0.5, "ms"), job("only here", 1.0)])
    keep(tmp_path, "b", jobs=[job("fast", 1.5), job("short", 0.75, "ms")])
    worst = worst_jobs(kept("some", tmp_path))
    found = [(machine, each["job"], each["ratio"]["median"]) for machine, each in worst]
    assert found == [("b", "fast", 1.5), ("b", "short", 0.75), ("a", "only here", 1.0)]


def test_figures_and_sizes_of_a_job_are_rows_of_their_own(tmp_path: Path) -> None:
    jobs = [job("read", 2.0, figure="batch work"), job("read", 1.0, figure="whole run")]
    keep(tmp_path, "a", jobs=[*jobs, {**jobs[1], "rows": 4_000_000}])
    rows = [line for line in ratios("some", tmp_path).splitlines() if line.startswith("| read")]
    contenders = "spark: 2 s | timestream: 1,234 s |"
    assert [row.removeprefix("| read | ") for row in rows] == [
        f"2,000,000 | batch work | 1.75 | 2.00 | 2.25 | {contenders}",
        f"2,000,000 | whole run | 0.75 | 1.00 | 1.25 | {contenders}",
        f"4,000,000 | whole run | 0.75 | 1.00 | 1.25 | {contenders}",
    ]


def test_core_seconds_are_of_the_whole_run_a_million_rows_by_kind(tmp_path: Path) -> None:
    core_s = {"timestream": [{"jvm": 4.0, "python": 2.0}, {"jvm": 6.0, "broker": 1.0}]}
    memory_mb = {"timestream": {"all": 1234.5, "worker": 99.0}, "spark": {"driver": 7.0}}
    more = {"core_s": core_s, "memory_mb": memory_mb}
    keep(tmp_path, "a", jobs=[job("x", 2.0, figure="whole run", **more), job("y", 2.0, **more)])
    first, second = (line for line in ratios("some", tmp_path).splitlines() if "(JVM" in line)
    assert first.startswith("| x | 2,000,000 | whole run |")
    assert second.startswith("| y | 2,000,000 |  |")
    end = "| 7 | 3.25 (JVM 2.50, Python 0.50, broker 0.25) | 1,234 |"
    assert [first.endswith(end), second.endswith(end)] == [True, True]
    keep(tmp_path, "b", jobs=[job("x", 1.0, figure="batch work", **more)])
    both = ratios("some", tmp_path)
    assert both.count("| b |") == 1
    assert both.count("(JVM") == 2
