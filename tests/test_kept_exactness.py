"""The table of rows that contenders have wrong is made of what machines have kept."""

import json
from pathlib import Path

from kept_exactness import exactness


def test_exactness_is_a_row_for_each_query_and_contender(tmp_path: Path) -> None:
    assert "`python bench nexmark` measures it" in exactness("nexmark", tmp_path)
    wrong = {"rows": 1500, "missing": 1, "doubled": 0, "changed": 2, "made_up": 3}
    exact = dict.fromkeys(wrong, 0) | {"rows": 1500}
    job = {
        "job": "q11, JSON, lagging",
        "figure": "core s",
        "rows": 2_000_000,
        "took": {"spark": [8.0, 6.0, 7.0], "timestream": [4.0, 4.0, 5.0]},
        "memory_mb": {"spark": {"driver": 900.4}, "timestream": {"driver": 800, "worker": 200}},
        "work": {"exactness": {"spark": wrong | {"lost_bids": 0.2345}, "timestream": exact}},
    }
    whole = job | {"figure": "whole run", "took": {"spark": [9], "timestream": [8]}}
    versions = {"date": "2026-01-01", "pyspark": "4", "librdkafka": "2", "duckdb": "1"}
    (tmp_path / "a laptop").mkdir()
    text = json.dumps({"jobs": [job, whole], "versions": versions})
    (tmp_path / "a laptop" / "nexmark.json").write_text(text)
    page = exactness("nexmark", tmp_path)
    name = "| q11, JSON, lagging |"
    assert f"{name} spark | 3.5 | 9.0 s | 900 | 1,500 | 1 | 0 | 2 | 3 |" in page
    assert f"{name} timestream | 2.0 | 8.0 s | 800 + 200 | 1,500 | 0 | 0 | 0 | 0 |" in page
    assert "in no session: q11, JSON, lagging: 23.4% by spark." in page
    assert "2,000,000 events a query, on a laptop, 2026-01-01, with pyspark 4" in page
