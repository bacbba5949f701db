"""Stores, queries and results as ordinary objects: pickled, compared, completed, in `with`."""

import copy
import math
import pickle
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import pyspark_tseries
from pyspark_tseries import TimeSeries
from pyspark_tseries.__main__ import main

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def series(tmp_path):
    kinds = {"celsius": pa.float64(), "all": pa.list_(pa.struct([("x", pa.float32())]))}
    store = TimeSeries.create(tmp_path / "s", kinds, "unlimited", "ann", auto_compact=False)
    nan = math.nan
    for value in (1.5, nan, None):
        store.append("a", {"celsius": value, "all": [{"x": value and 0.5}, {"x": nan}]}, NOON)
    return store


@pytest.mark.thorough
def test_store_and_query_that_were_pickled_go_on_as_they_were(series, tmp_path):
    for again in (pickle.loads(pickle.dumps(series)), copy.deepcopy(series)):
        assert again.append("b", {"celsius": 1.0}).author == "ann"
        assert again._auto_compact is False
    query = pickle.loads(pickle.dumps(series.range_query().from_(1).limit(5)))
    assert len(query.select_from("a")) == 2
    result = query.select_from("a")
    assert result.events
    assert pickle.loads(pickle.dumps(result)) == result
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).append('c', {}).sequence)"
    told = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(series), capture_output=True, check=True
    )
    assert told.stdout.strip() == b"0"


def test_store_and_query_are_used_in_with(series, tmp_path):
    with TimeSeries.open(tmp_path / "s") as store:
        store.append("a", {"celsius": 2.0})
    with store.range_query() as query:
        assert len(query.select_from("a")) == 4


def test_equal_questions_are_equal_queries_and_have_equal_results_with_nan(series, tmp_path):
    asked, other = series.range_query(), TimeSeries.open(tmp_path / "s").range_query()
    for one, another in [
        (asked, other.from_start().until_last(0)),
        (asked.for_edits(), other.for_edits().all_edits()),
        (asked, other.edit_range()),
        (asked.from_(NOON), other.columns("celsius").from_(NOON.astimezone()).columns()),
    ]:
        assert one == another
        assert hash(one) == hash(another)
        assert one.select_from("a") == another.select_from("a")
        assert one.select_from("a").events == another.select_from("a").events
    assert asked != asked.limit(1)
    assert asked.select_from("a") != asked.limit(2).select_from("a")
    assert asked.select_from("a") != asked.columns("celsius").select_from("a")
    assert asked.select_from("a") != 5
    before = asked.select_from("a")
    series.edit("a", 1, {"celsius": 0.0})
    assert before != asked.select_from("a")
    assert before.events[1] != asked.select_from("a").events[1]
    assert len({*before.events, *before.events}) == 3


def test_completion_knows_every_public_name():
    assert set(pyspark_tseries.__all__) <= set(dir(pyspark_tseries))


def test_maintain_says_what_it_did(tmp_path, capsys):
    store = TimeSeries.create(tmp_path / "s", {"n": pa.int64()}, "limit 1", auto_compact=False)
    assert main(["maintain", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().out == "nothing to do\n"
    for n in range(70):
        store.append("a", n)
    assert main(["maintain", str(tmp_path / "s")]) == 0
    said = capsys.readouterr().out
    assert "merged 70 files of events into 1\n" in said
