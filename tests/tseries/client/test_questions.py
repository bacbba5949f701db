"""Questions of several series at once: which series, and what comes of them (semantics 31)."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_tseries import InvalidQuery, PermissionDenied, TimeSeries

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
    assert "hall" not in ask(store, "hall")._repr_html_()


def test_a_principal_without_the_right_is_refused(tmp_path):
    policy = {"me": ["own", "read"], "you": []}
    TimeSeries.create(tmp_path / "s", {}, author="me", policy=policy)
    with pytest.raises(PermissionDenied):
        ask(TimeSeries.open(tmp_path / "s", "you"))
