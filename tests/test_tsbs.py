"""The TSBS-shaped load, and contenders that all give the rows of an oracle."""

import functools
import re
import shutil
import sqlite3
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from side_by_side import compare
from sizes import whole_number
from tsbs.load import FIELDS, HOUR_US, START_US, TAGS, Load, batches, write_files
from tsbs.queries import DUCKDB, KINDS, TOTALS, Kind, Query, digest, draw, rows_of, sql_of
from tsbs.readers import READERS
from tsbs.runs import answer, answers, fill
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


def test_another_seed_gives_other_readings_and_tags() -> None:
    first, other = (readings(Load(8, 12, 60, seed)) for seed in (123, 124))
    for name in (FIELDS[0], "rack", "service"):
        assert first[name] != other[name]
    assert first["series"] == other["series"]


def test_fields_are_walks_of_whole_percentages_and_tags_stay() -> None:
    load = LOAD
    by_host = defaultdict(list)
    for row in readings(load).to_pylist():
        by_host[row["series"]].append(row)
    assert list(by_host) == load.names
    assert (len(TAGS) + 1, len(FIELDS)) == (10, 10)
    values = set()
    for rows in by_host.values():
        assert len({tuple(row[tag] for tag in TAGS) for row in rows}) == 1
        times = {(b["timestamp"] - a["timestamp"]).total_seconds() for a, b in pairwise(rows)}
        assert times == {10}
        for field in FIELDS:
            values |= {row[field] for row in rows}
            assert max(abs(a[field] - b[field]) for a, b in pairwise(rows)) <= 6
    assert (min(values), max(values)) == (0, 100)


@pytest.mark.parametrize("given", [(7, 24, 10), (8, 11, 10), (8, 12, 0)])
def test_a_load_too_small_for_the_queries_is_refused(given: tuple[int, int, int]) -> None:
    with pytest.raises(SystemExit, match="accepted are 8 hosts, 12 hours and a minute, or more"):
        Load(*given)


def test_a_variable_that_is_no_whole_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_HOSTS", "many")
    with pytest.raises(SystemExit, match="BENCH_HOSTS=many: accepted is a whole number above 0"):
        whole_number("BENCH_HOSTS", 20)


def test_queries_are_drawn_within_the_load_and_differ() -> None:
    for kind in KINDS:
        drawn = [draw(kind, LOAD, number) for number in range(20)]
        assert drawn == [draw(kind, LOAD, number) for number in range(20)]
        assert all(START_US <= each.start_us < each.end_us <= LOAD.end_us for each in drawn)
        assert {len(set(each.hosts)) for each in drawn} == {kind.hosts}
        assert (len(set(drawn)) > 1) == bool(kind.hours)


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


def test_a_run_says_how_many_rows_it_has_found(place: Path) -> None:
    wanted = sum(answers("SQLite", place, LOAD, KINDS[1])["rows"])
    assert wanted >= 60 * KINDS[1].a_run
    assert {answer(name, place, LOAD, KINDS[1]).work["rows"] for name in READERS} == {wanted}


def test_a_digest_tells_rows_that_differ_in_a_value_or_are_missing() -> None:
    rows = [(1, "a", 0.5), (2, "b", 1.5)]
    assert digest(rows) == digest(list(rows))
    others = ([(1, "a", 0.5)], [(1, "a", 0.5), (2, "b", 1.25)], rows + rows[:1])
    assert digest(rows) not in {digest(each) for each in others}


def test_sql_has_no_place_left_open() -> None:
    for kind in (*KINDS, TOTALS):
        assert not re.search(r"[{}]", sql_of(draw(kind, LOAD, 0), DUCKDB))
