"""The README's example without Spark runs, and foreign engines get the same values by its SQL."""

import re
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from tseries.builders import batch, new_store

from pyspark_tseries import TimeSeries

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def block(word):
    (found,) = (text for text in BLOCKS if word in text)
    return found


def test_the_example_runs_and_prints_what_it_says(tmp_path, capsys):
    session = {"duckdb": duckdb, "DeltaTable": DeltaTable}
    for word in ("TimeSeries.create", "current_values"):
        exec(block(word).replace("/data/", f"{tmp_path}/"), session)
    assert capsys.readouterr().out.splitlines() == ["[21.5, 21.6]"] * 2
    assert session["history"].num_rows == 3
    assert "<svg" in session["recent"]._repr_html_()


def test_the_sql_gives_duckdb_the_current_values(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 10})
    rows = [(name, n) for n in range(12) for name in "ab"]
    store.append(batch(*rows), clock=lambda: 50)
    store.append(batch(("a", 30), edits=[("a", 5, 1.5), ("b", 3, 2.5), ("a", 5, 3.5)]))
    store.append(batch(("b", 40), ("b", 41)))
    session = {"duckdb": duckdb, "DeltaTable": DeltaTable}
    exec(
        block("current_values").replace("/data/rooms", f"{tmp_path}/s").replace("celsius", "value"),
        session,
    )
    query = session["current_values"].replace("-- AND place", "AND place")
    events = DeltaTable(str(tmp_path / "s")).to_pyarrow_table()
    found = duckdb.sql(query).to_arrow_table()
    assert events.num_rows == 30
    columns = ["series", "sequence", "value", "original_sequence"]
    client = TimeSeries.open(str(tmp_path / "s"))
    results = [client.range_query().select_from(name).to_arrow() for name in "ab"]
    assert (
        found.select(columns).to_pylist() == pa.concat_tables(results).select(columns).to_pylist()
    )
    assert found.num_rows == 17
