"""Charts show each job once, by its whole run, and say whether it is above or below 1."""

import json
import re
from pathlib import Path
from typing import Any

from kept_charts import chart, headline_jobs


def job(name: str, median: float, unit: str = "s", **more: Any) -> dict[str, Any]:
    ratio = {"min": median / 2, "median": median, "max": median * 2}
    return {"job": name, "rows": 10, "unit": unit, "ratio": ratio, "took": {}, **more}


def keep(place: Path, machine: str, *jobs: dict[str, Any]) -> None:
    (place / machine).mkdir()
    (place / machine / "some.json").write_text(json.dumps({"jobs": jobs}))


def test_chart_has_each_job_once_by_its_whole_run_on_the_worst_machine(tmp_path: Path) -> None:
    keep(tmp_path, "a", job("x", 4.0, figure="batch work"), job("x", 2.0, figure="whole run"))
    keep(tmp_path, "b", job("x", 1.5, figure="whole run"), job("y", 3.0, figure="core s"))
    found = [(each["job"], each["ratio"]["median"]) for each in headline_jobs("some", tmp_path)]
    assert found == [("x", 1.5), ("y", 3.0)]
    drawn = chart("some", tmp_path)
    assert re.findall(r'chart-value">([^<]+)<', drawn) == ["1.50", "3.00"]
    assert "(/explanation/figures.md#some)" in drawn


def test_full_dots_are_on_the_better_side_of_one(tmp_path: Path) -> None:
    keep(tmp_path, "a", job("fast", 2.0), job("slow", 0.5), job("short", 0.5, "ms"))
    rows = re.findall(r'chart-name">([^<]+)<.*?chart-dot( chart-better)?"', chart("some", tmp_path))
    assert rows == [("fast", " chart-better"), ("slow", ""), ("short", " chart-better")]


def test_names_in_a_chart_are_text(tmp_path: Path) -> None:
    keep(tmp_path, "a", job("<b>", 2.0))
    assert "&lt;b&gt;" in chart("some", tmp_path)
