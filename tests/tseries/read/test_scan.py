"""A query opens the files, and in them the row groups, that may hold what it needs."""

import pytest
from tseries.builders import batch, new_store, sight_now

from pyspark_tseries import InvalidQuery, TimeSeries
from pyspark_tseries.model.arrays import KeyRange
from pyspark_tseries.options import ReadOptions, parse_options
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.store.store import Store

SECOND_US = 1_000_000


@pytest.fixture
def path(tmp_path):
    """Ten commits of ten events of the series `a` and `b`, a second apart."""
    store = new_store(tmp_path / "s", {"limit": 1000})
    for commit in range(10):
        stamps = range(10 * commit, 10 * commit + 10)
        rows = [(name, n * SECOND_US) for n in stamps for name in "ab"]
        store.append(batch(*rows), clock=lambda: 0)
    return tmp_path / "s"


def ask(path, series, part=None, **options):
    query = parse_options(ReadOptions, {"path": "/s", **options}).to_query()
    snapshot, index = sight_now(Store.open(str(path)))
    scope = Scope(snapshot, index, series, part or KeyRange())
    found = run_query(scope, query, columns=["series", "sequence"])
    return list(zip(*(column.to_pylist() for column in found.table.columns), strict=True))


def lose(path, *commits):
    for file in Store.open(str(path)).snapshot().files:
        if int(file.path.split("/")[-1].split("-")[0]) in commits:
            (path / file.path).unlink()


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"from": "last 5"}, [9]),
        ({"from": "sequence 93"}, [9]),
        ({"from": "sequence 35", "to": "sequence 44"}, [3, 4]),
        ({"from": "sequence 29", "to": "next 2"}, [2, 3]),
        ({"from": "1970-01-01T00:00:50Z", "to": "next 5 seconds"}, [5]),
        ({"from": "last 3 seconds"}, [9]),
        ({"to": "sequence 3"}, [0]),
        ({"from": "last 25", "to": "last 15", "query": "allEdits"}, [7, 8, 9]),
    ],
)
def test_files_outside_of_what_a_query_needs_are_not_opened(path, options, needed):
    whole = ask(path, ["a"], **options)
    lose(path, *(set(range(10)) - set(needed)))
    assert whole
    assert ask(path, ["a"], **options) == whole


def test_files_that_only_hold_what_was_discarded_are_not_opened(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 5})
    for commit in range(3):
        store.append(batch(*(("a", 10 * commit + n) for n in range(10))))
    lose(tmp_path / "s", 0, 1)
    assert [sequence for _, sequence in ask(tmp_path / "s", ["a"])] == list(range(25, 30))


def test_edits_do_not_hide_what_counts_need(path):
    store = Store.open(str(path))
    store.append(batch(edits=[("a", n) for n in (1, 95, 95, 99)]))
    assert ask(path, ["a"], **{"from": "last 2"}) == [("a", 98), ("a", 103)]
    assert ask(path, ["a"], **{"from": "last 7", "query": "allEdits"}) == [
        *(("a", n) for n in (97, 98, 99, 103)),
    ]


def test_the_parts_of_all_series_are_the_whole(path):
    options = {"from": "last 3", "to": "last 1"}
    parts = [KeyRange(None, ("b", 0)), KeyRange(("b", 0), None)]
    found = [row for part in parts for row in ask(path, None, part, **options)]
    assert found == ask(path, None, **options) == [(n, s) for n in "ab" for s in (97, 98)]
    assert ask(path, ["b", "b", "nobody"], **options) == [("b", 97), ("b", 98)]


def test_the_first_series_that_cannot_answer_is_named(path):
    client = TimeSeries.open(str(path))
    client.append("aa", 1.0)
    with pytest.raises(InvalidQuery, match="series 'aa'"):
        ask(path, None, **{"from": "last 2", "to": "next 1 second"})
