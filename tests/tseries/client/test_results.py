"""A result keeps its values as a table and as data frames, and names what it shows."""

import os
import re
import shutil
import sys
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pandas
import polars
import pyarrow as pa
import pytest

from pyspark_tseries import InvalidQuery, TimeSeries

pytestmark = pytest.mark.pandas

BIG = 2**60 + 1
"""A double cannot hold it."""

KINDS = {
    "count": pa.int64(),
    "small": pa.int16(),
    "celsius": pa.float64(),
    "open": pa.bool_(),
    "price": pa.decimal128(9, 2),
    "day": pa.date32(),
    "local": pa.timestamp("us"),
    "many": pa.list_(pa.int64()),
    "note": pa.string(),
}
ROW = {
    "count": BIG,
    "small": 3,
    "celsius": 1.5,
    "open": True,
    "price": Decimal("1.25"),
    "day": date(2026, 1, 2),
    "local": datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 (a timestamp_ntz)
    "many": [BIG, None],
    "note": "a",
}


def at(second):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


@pytest.fixture
def series(tmp_path):
    """Two originals and an edit of the first, which holds nulls."""
    made = TimeSeries.create(tmp_path / "s", KINDS, retained_range="unlimited", author="me")
    made.append("kitchen", ROW, at(0))
    made.append("kitchen", ROW, at(60))
    made.edit("kitchen", 0, {})
    return made


def ask(series, *columns):
    return series.range_query().columns(*columns).select_from("kitchen")


# -- data frames ---------------------------------------------------------------------------------


def test_to_pandas_null_integers_stay_integers(series):
    frame = ask(series).to_pandas()
    assert frame["count"].tolist() == [pandas.NA, BIG]
    assert frame["original_sequence"].tolist() == [0, pandas.NA]
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert [kinds[name] for name in ("sequence", "count", "small", "open", "celsius")] == [
        "Int64",
        "Int64",
        "Int16",
        "boolean",
        "float64",
    ]
    assert frame["many"][1] == [BIG, None]
    assert frame["price"][1] == Decimal("1.25")
    assert frame["day"][1] == date(2026, 1, 2)


def test_to_pandas_types_do_not_depend_on_the_values(series):
    whole = ask(series).to_pandas()
    without_nulls = series.range_query().from_(1).select_from("kitchen").to_pandas()
    empty = series.range_query().select_from("nobody").to_pandas()
    assert dict(whole.dtypes) == dict(without_nulls.dtypes) == dict(empty.dtypes)


def test_to_pandas_times_are_aware_and_in_utc(series):
    frame = ask(series).to_pandas()
    for name in ("timestamp", "original_timestamp"):
        assert str(frame[name].dtype) == "datetime64[us, UTC]"
    assert frame["timestamp"][1] == at(60)
    assert frame["original_timestamp"][0] == at(0)
    assert frame["local"][1] == ROW["local"]
    assert frame["local"].dt.tz is None


def test_to_pandas_keeps_times_after_the_year_9999(tmp_path):
    series = TimeSeries.create(tmp_path / "far", {"moment": pa.timestamp("us", "UTC")})
    far = pa.table({"series": ["a"], "moment": pa.array([2**58]).cast(pa.timestamp("us", "UTC"))})
    series.append_many(far)
    frame = series.range_query().select_from("a").to_pandas()
    assert frame["moment"].astype("int64").tolist() == [2**58]


def test_to_polars_keeps_values_nulls_and_zones(series):
    frame = ask(series).to_polars()
    assert frame.schema["timestamp"] == polars.Datetime("us", "UTC")
    assert frame.schema["original_timestamp"] == polars.Datetime("us", "UTC")
    assert frame.schema["count"] == polars.Int64
    assert frame["count"].to_list() == [None, BIG]
    assert frame["many"].to_list() == [None, [BIG, None]]
    assert frame["timestamp"][1] == at(60)


def test_to_polars_without_polars_names_the_pip_line(series, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ModuleNotFoundError, match="next step: pip install polars"):
        ask(series).to_polars()


# -- columns -------------------------------------------------------------------------------------


def test_columns_are_those_asked_for_in_their_order(series):
    result = ask(series, "celsius", "timestamp")
    assert result.to_arrow().column_names == ["celsius", "timestamp"]
    assert result.to_arrow()["celsius"].to_pylist() == [None, 1.5]
    assert result.is_complete


def test_columns_stay_through_the_later_steps_of_a_query(series):
    query = series.range_query().columns("sequence").for_edits().latest_edits().from_(1).limit(1)
    assert query.select_from("kitchen").to_arrow().to_pydict() == {"sequence": [2]}


def test_columns_without_names_are_all_again(series):
    query = series.range_query().columns("sequence").columns()
    assert query == series.range_query()
    assert len(query.select_from("kitchen").to_arrow().column_names) == 8 + len(KINDS)


def test_columns_that_the_store_lacks_are_named_with_those_it_has(series):
    with pytest.raises(InvalidQuery, match=r"'pascal' is not in the store; accepted: series.*note"):
        ask(series, "pascal")


@pytest.mark.parametrize("names", [("celsius", "celsius"), (["celsius"],), (1,)])
def test_columns_that_are_not_distinct_names_are_refused(series, names):
    with pytest.raises(InvalidQuery, match="accepted: each column once"):
        ask(series, *names)


def test_events_and_merge_name_the_columns_that_they_lack(series):
    result = ask(series, "timestamp", "celsius")
    with pytest.raises(InvalidQuery, match="events needs the columns sequence, author, original_"):
        _ = result.events
    with pytest.raises(InvalidQuery, match="merge needs the columns series, sequence, original_"):
        ask(series).merge(result)


# -- texts and charts ----------------------------------------------------------------------------


def test_repr_of_a_result_names_series_length_and_range(series):
    series.append("hall", ROW, at(0))
    series.append("hall", ROW, at(60))
    span = "2026-01-01T00:00:00Z to 2026-01-01T00:01:00Z"
    assert repr(series.range_query().select_from("hall")) == (
        f"QueryResult('hall', 2 events, {span})"
    )
    limited = series.range_query().limit(1).select_from("hall")
    assert repr(limited) == (
        "QueryResult('hall', 1 event, 1 more beyond the limit, 2026-01-01T00:01:00Z)"
    )
    assert repr(series.range_query().select_from("nobody")) == "QueryResult(0 events)"
    assert repr(ask(series, "celsius")) == "QueryResult(2 events)"


def test_repr_of_a_store_names_path_columns_length_and_range(tmp_path):
    rooms = TimeSeries.create(
        tmp_path / "rooms", {"celsius": pa.float64()}, retained_range="last 7D"
    )
    start = f"TimeSeries('{tmp_path}/rooms', values: celsius double, "
    assert repr(rooms) == f"{start}0 events, retained range: last 7D)"
    rooms.append("kitchen", 1.0, at(0))
    rooms.append("hall", 2.0, at(60))
    assert repr(rooms) == (
        f"{start}2 events stored, 2026-01-01T00:00:00Z to 2026-01-01T00:01:00Z, "
        "retained range: last 7D)"
    )
    shutil.rmtree(tmp_path / "rooms")
    assert repr(rooms) == f"TimeSeries('{tmp_path}/rooms', values: celsius double)"


def test_repr_of_a_store_that_a_fork_may_not_use_names_path_and_columns(tmp_path):
    """A debugger, a log and a traceback show it, and must not fail with it."""
    rooms = TimeSeries.create(tmp_path / "s", {"celsius": pa.float64()}, "unlimited")
    held, done = threading.Event(), threading.Event()

    def hold():
        with rooms._store.reading():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(theirs, repr(rooms).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours) as shown:
        assert shown.read() == f"TimeSeries('{tmp_path}/s', values: celsius double)"
    os.waitpid(child, 0)
    done.set()
    thread.join()


def test_page_of_a_result_has_a_chart_with_round_ticks_on_both_axes(series):
    for second, count in ((120, 7), (180, -5)):
        series.append("kitchen", {"count": count}, at(second))
    shown = series.range_query().from_(2).select_from("kitchen")._repr_html_()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", shown)
    assert {"-4", "0", "6", "00:02:00", "00:02:30", "1 Jan 2026"} <= set(texts)
    assert "times in UTC" in texts[-1]


def test_html_of_a_result_without_edits_shows_no_columns_of_originals(series):
    assert "original_author" in ask(series)._repr_html_()
    unedited = series.range_query().from_(1).to(1).select_from("kitchen")
    assert "original_" not in unedited._repr_html_()


def test_chart_without_timestamps_is_left_out(series):
    assert "<svg" in ask(series, "timestamp", "celsius")._repr_html_()
    assert "<svg" not in ask(series, "celsius")._repr_html_()
