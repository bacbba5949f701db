"""The TSBS-shaped load, and contenders that all give the rows of an oracle."""

import functools
import shutil
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from side_by_side import compare
from tsbs.load import HOUR_US, START_US, Load, batches, write_files
from tsbs.queries import KINDS, TOTALS, Kind, Query, draw, rows_of
from tsbs.readers import READERS
from tsbs.runs import answers, fill
from tsbs.stores import STORES

LOAD = Load(9, 13, file_minutes=240)
ASKED = 3


def readings(load: Load) -> pa.Table:
    return pa.concat_tables(batches(load))


# -- the load -------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [7, 10_000])
def test_readings_do_not_depend_on_how_they_are_cut(minutes: int) -> None:
    cut = readings(Load(8, 12, minutes))
    assert cut.equals(readings(Load(8, 12, 45)))
    assert cut.num_rows == Load(8, 12).rows == 8 * 12 * 360


# -- answers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("stores")
    files = write_files(LOAD, found / "files")
    assert len(files) == 4
    for name in STORES:
        filled = fill(name, found / name, files)
        assert filled.work == {"files": 4}
        assert filled.figures["commits"] <= filled.figures["whole run"]
        assert 0 < filled.figures["maintained"] < 40 * LOAD.values
    return found


def oracle(query: Query, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows of a query, as its kind's line says them."""
    within = [row for row in rows if query.start_us <= row["timestamp"] < query.end_us]
    named = [row for row in within if row["series"] in query.hosts]
    fields, groups = query.kind.fields, defaultdict(list)
    if query.kind.name.startswith("single-groupby"):
        for row in named:
            groups[row["timestamp"] // 60_000_000].append(row)
        return sorted(
            (key, *(max(row[f] for row in each) for f in fields)) for key, each in groups.items()
        )
    if query.kind.name == "double-groupby-1":
        for row in within:
            groups[row["timestamp"] // HOUR_US, row["series"]].append(row[fields[0]])
        return sorted((*key, sum(each) / len(each)) for key, each in groups.items())
    if query.kind.name == "lastpoint":
        chosen = {row["series"]: row for row in sorted(rows, key=lambda row: row["timestamp"])}
        return sorted(tuple(row.values()) for row in chosen.values())
    names = ("series", "timestamp", *fields)
    return sorted(tuple(row[n] for n in names) for row in within if row["usage_user"] > 90)


@pytest.fixture(scope="module")
def every_row() -> list[dict[str, Any]]:
    table = readings(LOAD)
    times = table["timestamp"].cast(pa.int64())
    rows: list[dict[str, Any]] = table.set_column(1, "timestamp", times).to_pylist()
    return rows


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_reader_gives_the_rows_of_the_oracle(
    kind: Kind, place: Path, every_row: list[dict[str, Any]]
) -> None:
    wanted = [oracle(draw(kind, LOAD, number), every_row) for number in range(ASKED)]
    assert all(wanted)
    for name, (store, opened) in READERS.items():
        ask = opened(place / store)
        for number, rows in enumerate(wanted):
            assert rows_of(ask(draw(kind, LOAD, number))) == rows, name


@pytest.mark.thorough
def test_totals_are_all_readings_in_every_store(place: Path) -> None:
    found = {name: answers(name, place, LOAD, TOTALS)["digests"] for name in READERS}
    assert len({*map(tuple, found.values())}) == 1
    ask = READERS["DuckDB"][1](place / "DuckDB")
    ((rows, hosts, first, last, *_),) = rows_of(ask(draw(TOTALS, LOAD, 0)))
    assert (rows, hosts) == (LOAD.rows, LOAD.hosts)
    assert (first, last) == (START_US, LOAD.end_us - 10_000_000)


def test_a_contender_that_lacks_a_reading_has_no_result(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "SQLite", tmp_path / "SQLite")
    with sqlite3.connect(tmp_path / "SQLite" / "readings.db") as database:
        database.execute("DELETE FROM points WHERE host = 3 AND timestamp = ?", [START_US])
    database.close()
    checks = {
        name: functools.partial(answers, name, where, LOAD, TOTALS)
        for name, where in (("DuckDB", place), ("SQLite", tmp_path))
    }
    with pytest.raises(SystemExit, match="unequal work is not compared"):
        compare("readings", {}, rounds=0, warm_up=0, checks=checks)
