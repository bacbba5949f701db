"""The README's example without Spark runs as it says."""

import re
from pathlib import Path

import duckdb
import polars
from deltalake import DeltaTable

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def block(word):
    (found,) = (text for text in BLOCKS if word in text)
    return found


def test_the_example_runs_and_prints_what_it_says(tmp_path, capsys):
    session = {"duckdb": duckdb, "polars": polars, "DeltaTable": DeltaTable}
    for word in ("TimeSeries.create", "current_values"):
        exec(block(word).replace("/data/", f"{tmp_path}/"), session)
    assert capsys.readouterr().out.splitlines() == ["[21.5, 21.6]"] * 3
    assert session["history"].num_rows == 3
    assert "<svg" in session["recent"]._repr_html_()
