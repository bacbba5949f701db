"""Questions of several series at once: which series, and what comes of them (semantics 31)."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tseries.builders import forget_stores

from pyspark_tseries import (
    IncompatibleValue,
    InvalidQuery,
    NoSuchEvent,
    PermissionDenied,
    TimeSeries,
)
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.commits import attach_metadata
from pyspark_tseries.model.series_index import SeriesIndex, apply_change, make_change
from pyspark_tseries.read.scan import Scope
from pyspark_tseries.read.view import list_series
from pyspark_tseries.storage import row_reader

NAMES = ["hall", "room/1/celsius", "room/1/door", "room/2/celsius", "Room/3/celsius", "room/[x]"]


def at(second):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


@pytest.fixture
def store(tmp_path):
    """Two events of each series, and an edit of the second one of `hall`."""
    store = TimeSeries.create(tmp_path / "store", {"value": pa.float64()}, "unlimited", "me")
    rows = [
        {"series": name, "timestamp": at(10 * i + second), "value": float(i)}
        for i, name in enumerate(NAMES)
        for second in (0, 60)
    ]
    store.append_many(rows)
    store.edit("hall", 1, 99.0)
    return store


def names(result):
    return list(dict.fromkeys(result.to_arrow()["series"].to_pylist()))


def ask(store, *series, **chosen):
    return store.range_query().select_from(*series, **chosen)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"series": "hall"}, ["hall"]),
        ({"series": ["room/1/door", "hall", "nobody", "hall"]}, ["hall", "room/1/door"]),
        ({"series": pa.array(["hall"])}, ["hall"]),
        ({"series": (name for name in ("hall",))}, ["hall"]),
        ({"series": []}, []),
        ({"prefix": "room/1"}, ["room/1/celsius", "room/1/door"]),
        ({"prefix": ""}, sorted(NAMES)),
        ({"prefix": "x"}, []),
        ({"pattern": "room/*/celsius"}, ["room/1/celsius", "room/2/celsius"]),
        ({"pattern": "room/?/celsius"}, ["room/1/celsius", "room/2/celsius"]),
        ({"pattern": "[Rr]oom/[23]/celsius"}, ["Room/3/celsius", "room/2/celsius"]),
        ({"pattern": "room/[[]x]"}, ["room/[x]"]),
        ({"pattern": "hal"}, []),
        ({}, sorted(NAMES)),
    ],
)
def test_series_are_chosen_by_name_prefix_pattern_or_all(store, chosen, expected):
    result = ask(store, **chosen)
    assert names(result) == expected
    one_by_one = [ask(store, name).to_arrow() for name in expected]
    if one_by_one:
        assert result.to_arrow().equals(pa.concat_tables(one_by_one))


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"series": "a", "prefix": "b"}, "series and prefix choose series at the same time"),
        ({"prefix": "a", "pattern": "b"}, "prefix and pattern choose series at the same time"),
        ({"series": 5}, "5 is not the name of a series"),
        ({"series": b"hall"}, "b'hall' is not the name of a series"),
        ({"series": ["hall", None]}, "None is not the name of a series"),
        ({"series": "\ud800"}, "is not the name of a series"),
        ({"prefix": 5}, "prefix 5 is not a text"),
        ({"pattern": ["a"]}, r"pattern \['a'\] is not a text"),
    ],
)
def test_wrong_choice_is_refused_by_name(store, chosen, problem):
    with pytest.raises(InvalidQuery, match=problem):
        ask(store, **chosen)


def test_limit_keeps_the_last_events_of_each_series(store):
    result = store.range_query().limit(1).select_from(prefix="room/")
    assert [event.sequence for event in result.events] == [1, 1, 1, 1]
    assert (len(result), result.selected_count) == (4, 8)


def test_events_name_their_series(store):
    found = {(event.series, event.sequence): event.value for event in ask(store).events}
    assert found["hall", 2] == 99.0
    assert found["room/[x]", 0] == 5.0
    assert len(found) == 12


def test_results_of_several_series_are_not_merged(store):
    with pytest.raises(InvalidQuery, match="of different series"):
        ask(store, "hall").merge(ask(store))


def test_texts_of_several_series_say_how_many(store):
    result = ask(store, prefix="room/1")
    assert repr(result).startswith("QueryResult(2 series, 4 events, ")
    assert "room/1/door" in result._repr_html_()
    assert "hall" not in ask(store, "hall")._repr_html_().partition("<table>")[2]


def test_a_principal_without_the_right_is_refused(tmp_path):
    policy = {"me": ["own", "read"], "you": []}
    TimeSeries.create(tmp_path / "s", {}, author="me", policy=policy)
    with pytest.raises(PermissionDenied):
        ask(TimeSeries.open(tmp_path / "s", "you"))


# -- newest values, the list of series, the past -------------------------------------------------


def test_latest_gives_the_newest_events_of_each_series_with_their_edits(store):
    found = [(e.series, e.original_sequence, e.value) for e in store.latest(prefix="h").events]
    assert found == [("hall", 1, 99.0)]
    both = store.latest(["hall", "nobody"], count=5).events
    assert [(e.original_sequence, e.value) for e in both] == [(0, 0.0), (1, 99.0)]
    assert store.latest().to_arrow().num_rows == len(NAMES)


def test_latest_at_a_time_asks_for_originals_up_to_it(store):
    found = store.latest(at=at(59), columns=["series", "value"]).to_arrow()
    assert found.column_names == ["series", "value"]
    assert found["value"].to_pylist() == [float(NAMES.index(name)) for name in sorted(NAMES)]
    assert [e.value for e in store.latest("hall", at=at(60)).events] == [99.0]
    assert len(store.latest("hall", at=at(-1))) == 0


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"count": 0}, "count 0 is below 1"),
        ({"count": "2"}, "'2' is not a whole number"),
        ({"at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"at": pd.NaT}, "at NaT is not a datetime"),
        ({"at": 5}, "at 5 is not a datetime"),
        ({"columns": ["nothing"]}, "column 'nothing' is not in the store"),
        ({"columns": "nothing"}, "column 'nothing' is not in the store"),
        ({"columns": 5}, r"columns\(5,\) are not distinct names"),
        ({"count": 10**30}, "is too large"),
    ],
)
def test_wrong_latest_is_refused_by_name(store, asked, problem):
    with pytest.raises(InvalidQuery, match=problem):
        store.latest(**asked)


@pytest.mark.parametrize("step", ["from_last", "until_last", "next", "previous"])
@pytest.mark.parametrize(
    "length", [np.timedelta64(2, "ns"), np.timedelta64(2, "h"), np.timedelta64(2), "1h", 1.5, None]
)
def test_a_length_of_time_is_never_taken_for_a_number_of_events(store, step, length):
    """NumPy calls its lengths of time integers."""
    with pytest.raises(InvalidQuery, match=r"neither a number of events nor .*an int, or a timede"):
        getattr(store.range_query(), step)(length)
    assert len(store.range_query().from_last(np.int64(2)).select_from("hall")) == 2


@pytest.mark.parametrize("step", ["from_", "to"])
@pytest.mark.parametrize(
    "end", [np.datetime64("2026-01-01"), np.timedelta64(3), date(2026, 1, 1), "2026-01-01", True]
)
def test_an_end_that_is_no_place_in_a_series_is_told_what_one_is(store, step, end):
    with pytest.raises(InvalidQuery, match=r"neither a sequence nor a time.*an aware datetime"):
        getattr(store.range_query(), step)(end)


def test_a_query_by_buckets_can_be_the_key_of_a_mapping(store):
    def ask(fill):
        return store.range_query().every("1 hour").aggregate(n=("*", "count")).fill(fill)

    assert {ask(1): "one", ask([2]): "two"}[ask(1)] == "one"


@pytest.mark.parametrize("function", [np.array([0.5, 0.9]), ["mean"], {"mean"}, max, None])
def test_what_is_no_aggregate_is_refused_by_name(store, function):
    query = store.range_query().every("1 hour").aggregate(n=function)
    with pytest.raises(InvalidQuery, match="is not an aggregate"):
        query.select_from()


def test_series_lists_names_counts_and_times_without_reading_events(store, monkeypatch):
    monkeypatch.setattr(row_reader, "read_pieces", None)
    rows = store.series(prefix="h").to_pylist()
    assert rows == [{"series": "hall", "events": 2, "edits": 1, "first": at(0), "newest": at(60)}]
    assert store.series()["series"].to_pylist() == sorted(NAMES)
    assert store.series(pattern="*/door")["first"].to_pylist() == [at(20)]


def test_series_counts_what_compaction_and_erasure_have_removed(tmp_path):
    store = TimeSeries.create(
        tmp_path / "s", {"v": pa.int64()}, "limit 2", "me", min_retention_age=timedelta(0)
    )
    for second in range(6):
        store.append("a", second, at(second))
        if second % 2:
            store.edit("a", (second - 1) // 2 * 3, 7)
    before = store.series().to_pylist()
    store.erase("a", 7, "a test")
    store.compact()
    after = store.series().to_pylist()
    assert before == [{"series": "a", "events": 6, "edits": 3, "first": at(0), "newest": at(5)}]
    assert after == [{**before[0], "newest": at(4)}]
    store.append("a", 8, at(9))
    assert store.as_of(9).series().to_pylist() == after
    assert store.verify() == []
    forget_stores()
    rebuild(str(tmp_path / "s"))
    # Compaction has removed an original or an edit: nobody knows any more which.
    unknown = {"events": None, "edits": None, "first": None}
    rebuilt = TimeSeries.open(tmp_path / "s", "me").series().to_pylist()
    assert rebuilt == [{"series": "a", **unknown, "newest": at(9)}]
    assert TimeSeries.open(tmp_path / "s", "me").verify() == []


def test_series_as_of_a_commit_stays_the_same_after_later_edits_and_erasures(tmp_path):
    store = TimeSeries.create(
        tmp_path / "s", {"v": pa.int64()}, "limit 2", "me", min_retention_age=timedelta(0)
    )
    for second in range(4):
        store.append("a", second, at(second))
    store.append("b", 4, at(20))
    store.compact()
    store.edit("a", 3, 5)
    commit = store.history("a", 4)["commit"].to_pylist()[-1]
    before = store.series().to_pylist()
    assert [(row["events"], row["edits"], row["first"]) for row in before] == [
        (4, 1, at(0)),
        (1, 0, at(20)),
    ]
    store.edit("a", 3, 6)
    store.append("a", 7, at(30))
    store.erase("b", 0, "a test")
    store.append("b", 8, at(10))  # Behind an erased event an original may be older.
    past = store.as_of(commit)
    assert past.series().to_pylist() == [before[0], {**before[1], "newest": None}]
    counts = past.sql("SELECT events, edits FROM series ORDER BY series").fetchall()
    assert counts == [(4, 1), (1, 0)]
    assert store.series()["first"].to_pylist() == [at(0), at(10)]


def test_an_index_without_counts_gives_nulls(store):
    index = store._store.index()
    names, columns = index.ids.names(), {name: index.columns[name] for name in index.columns}
    old = make_change(pa.array(names), columns).drop_columns(["first_us", "edits"])
    index = apply_change(SeriesIndex(), attach_metadata(old, index.metadata))
    rows = list_series(Scope(store._store.snapshot(), index)).to_pylist()
    assert {row["events"] for row in rows} == {None}
    assert {row["newest"] is None for row in rows} == {False}


def test_the_past_is_asked_by_time_or_commit(store):
    past = store.as_of(0)
    assert (past.commit, repr(past).endswith("commit 0)")) == (0, True)
    assert [e.value for e in past.latest("hall").events] == [0.0]
    assert [row["edits"] for row in past.series(prefix="hall").to_pylist()] == [0]
    edited = store.history("hall", 1)["commit_time"].to_pylist()
    assert store.as_of(edited[0]).latest().to_arrow().equals(past.latest().to_arrow())
    now = store.as_of(edited[1])
    store.append("hall", 5.0)
    assert [e.value for e in now.latest("hall").events] == [99.0]
    assert len(store.as_of(edited[0] - timedelta(days=1)).latest()) == 0


@pytest.mark.parametrize(
    ("moment", "problem"),
    [
        (2, "there is no commit 2"),
        (-1, "there is no commit -1"),
        ("now", "'now' is neither a time nor the number of a commit"),
        (True, "True is neither a time"),
        (datetime(2026, 1, 1), "has no time zone"),  # noqa: DTZ001
    ],
)
def test_wrong_moment_is_refused_by_name(store, moment, problem):
    with pytest.raises(InvalidQuery, match=problem):
        store.as_of(moment)


def test_history_has_each_version_with_author_commit_and_erasure(store):
    store.edit("hall", 1, 98.0)
    store.erase("hall", 2, "wrong room")
    for sequence in (1, 2, 3):
        rows = store.history("hall", sequence).to_pylist()
        assert [row["sequence"] for row in rows] == [1, 2, 3]
        assert [row["value"] for row in rows] == [0.0, None, 98.0]
        assert [row["original_sequence"] for row in rows] == [None, 1, 1]
        assert [row["commit"] for row in rows] == [0, 1, 2]
        assert [row["erased_because"] for row in rows] == [None, "wrong room", None]
        assert [row["erased_by"] for row in rows] == [None, "me", None]
    assert len(store.as_of(1).history("hall", 1)) == 2


@pytest.mark.parametrize(
    ("series", "sequence"), [("hall", 3), ("nobody", 0), ("hall", -1), ("hall", 10**30)]
)
def test_history_of_an_event_that_is_not_stored_is_refused_by_name(store, series, sequence):
    with pytest.raises(NoSuchEvent, match=f"series '{series}': event {sequence} is not stored"):
        store.history(series, sequence)


def test_the_past_and_the_list_need_rights(tmp_path):
    policy = {"me": ["own", "read", "update"], "you": ["own"]}
    store = TimeSeries.create(tmp_path / "s", {}, author="me", policy=policy)
    store.append("a", {})
    for ask_past in (lambda: store.as_of(0), lambda: store.history("a", 0)):
        with pytest.raises(PermissionDenied, match="query_obsolete"):
            ask_past()
    assert store.series().num_rows == len(store.latest()) == 1
    for ask_now in ("series", "latest"):
        with pytest.raises(PermissionDenied):
            getattr(TimeSeries.open(tmp_path / "s", "you"), ask_now)()


def test_no_value_column_is_named_like_another_column_of_an_answer(tmp_path):
    """`history` had two columns `erased_by`, and a row as a dict lost the value."""
    store = TimeSeries.create(tmp_path / "s", {"value": pa.float64()}, "unlimited")
    store.append("a", 1.0)
    store.edit("a", 0, 2.0)
    answers = (
        store.history("a", 0).column_names,
        store.latest().to_arrow().column_names,
        store.range_query().for_edits().select_from().to_arrow().column_names,
        store.sql("FROM events").columns,
        store.sql("FROM all_events").columns,
    )
    for name in set().union(*answers) - {"value"}:
        with pytest.raises(IncompatibleValue, match="named like what an event has anyway"):
            TimeSeries.create(tmp_path / "other", {name: pa.float64()}, "unlimited")


def test_a_series_that_the_store_does_not_have_is_named_once_and_the_advice_helps(store, caplog):
    for _ in range(2):
        assert len(ask(store, "Hall")) == 0
        assert len(store.latest(series=["hall", "room/*/door"])) == 1
        buckets = store.range_query().every("1 hour").aggregate(n=("*", "count"))
        assert len(buckets.select_from("Hall")) == 0
    first, second = (record.getMessage() for record in caplog.records)
    assert "has no series 'Hall', which a question names; next step: correct the name" in first
    assert "has no series 'room/*/door'" in second
    assert "series() lists the names, and prefix= and pattern= choose by their form" in second
    assert "hall" in store.series()["series"].to_pylist()
    assert names(ask(store, pattern="room/*/door")) == ["room/1/door"]
    assert len(caplog.records) == 2
