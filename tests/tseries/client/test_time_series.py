"""`TimeSeries` without Spark: one commit a call, typed results, errors at once."""

import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import forget_stores, stored
from tseries.queries import oracle

from pyspark_tseries import (
    EventMetadata,
    IncompatibleValue,
    InvalidQuery,
    NoSuchEvent,
    NoSuchStore,
    TimeSeries,
    UpdateFailed,
)
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model.ranges import NO_LIMIT, Point, Query, Range

VALUE = {"value": pa.float64()}


def at(us):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


@pytest.fixture
def series(tmp_path):
    return TimeSeries.create(str(tmp_path / "s"), VALUE, retained_range="unlimited", author="me")


def values(result):
    return [event.value for event in result.events]


# -- writing -------------------------------------------------------------------------------------


def test_an_append_returns_what_the_event_got(series, tmp_path):
    assert series.append("a", 1.5, at(5)) == EventMetadata(0, at(5), "me")
    before = datetime.now(UTC)
    second = series.append("a", 2.5)
    assert second.sequence == 1
    assert before - timedelta(seconds=1) <= second.timestamp <= datetime.now(UTC)
    again = TimeSeries.open(str(tmp_path / "s"), author="you")
    third = again.append("b", None)
    assert (third.sequence, third.author) == (0, "you")
    assert values(again.range_query().select_from("a")) == [1.5, 2.5]


def test_an_edit_overrides_its_original_and_keeps_it(series):
    original = series.append("a", 1.5, at(5))
    edit = series.edit("a", 0, 9.5)
    assert edit.sequence == 1
    (event,) = series.range_query().select_from("a").events
    assert (event.value, event.original, event.is_edit) == (9.5, original, True)
    assert event.original_sequence == 0
    first = series.range_query().for_edits().select_from("a").events[0]
    assert (first.value, first.original, first.original_sequence) == (1.5, None, 0)


def test_rows_are_added_as_one_commit_in_the_order_of_the_sink(series):
    stamps = pa.array([7, 5, None, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table(
        {
            "series": ["a", "a", "b", "a"],
            "timestamp": stamps,
            "value": [1.0, 2.0, 3.0, 4.0],
            "edit_of": pa.array([None, None, None, 0], pa.int64()),
            "author": ["x", None, "z", None],
        }
    )
    made = series.append_many(table)
    assert made["sequence"].to_pylist() == [1, 0, 0, 2]
    assert made["author"].to_pylist() == ["x", "me", "z", "me"]
    assert made["timestamp"].to_pylist()[:2] == [at(7), at(5)]
    assert values(series.range_query().select_from("a")) == [4.0, 1.0]


def test_rows_that_were_dropped_have_no_sequence(series):
    series.append("a", 1.0, at(9))
    stamps = pa.array([3, 9], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"series": ["a", "a"], "timestamp": stamps, "value": [1.0, 2.0]})
    with pytest.raises(UpdateFailed, match="'a'"):
        series.append_many(table)
    made = series.append_many(table, out_of_order="drop")
    assert made["sequence"].to_pylist() == [None, 1]
    assert series.append_many(table.slice(0, 0)).num_rows == 0
    chunks = pa.concat_tables([table.slice(1, 1), table.slice(0, 0), table.slice(1, 1)])
    assert series.append_many(chunks)["sequence"].to_pylist() == [2, 3]
    with pytest.raises(ValueError, match=r"out_of_order 'raise'.*'adjust'"):
        series.append_many(table, out_of_order="raise")


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"more": pa.string()}, {"n": 2, "more": "x"}),
        ({"n": pa.int64()}, {"n": 2**40}),
        ({"s": pa.struct({"a": pa.int8(), "b": pa.int8()})}, {"s": {"a": 1, "b": 2}}),
    ],
)
def test_a_client_stores_no_value_in_a_column_that_an_older_state_lacks(tmp_path, changed, value):
    """It lost the value in silence, or wrote a file that could not be read."""
    path, columns = tmp_path / "s", {"n": pa.int16(), "s": pa.struct({"a": pa.int8()})}
    series = TimeSeries.create(path, columns, "unlimited", "me", auto_compact=False)
    series.append("a", {"n": 1})
    shutil.copytree(path, tmp_path / "copy")
    (series.add_columns if "more" in changed else series.widen_columns)(changed)
    series.append("a", value)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    with pytest.raises(IncompatibleValue):
        series.append("a", value)
    assert series.append("a", {"n": 3}).sequence == 1
    assert series.range_query().select_from("a").table["n"].to_pylist() == [1, 3]
    assert series.verify() == []


def test_several_value_columns_are_a_mapping(tmp_path):
    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])
    series = TimeSeries.create(str(tmp_path / "s"), schema)
    series.append("a", {"x": 1})
    series.append("a", {"y": "k", "x": 2})
    expected = [{"x": 1, "y": None}, {"x": 2, "y": "k"}]
    assert values(series.range_query().select_from("a")) == expected
    for wrong in (5, {"z": 1}, {"x": "text"}):
        with pytest.raises(IncompatibleValue, match="next step"):
            series.append("a", wrong)


def test_what_may_not_be_stored_is_refused_and_stores_nothing(series, tmp_path):
    series.append("a", 1.0, at(5))
    with pytest.raises(UpdateFailed, match="before the newest event"):
        series.append("a", 1.0, at(4))
    with pytest.raises(NoSuchEvent, match="no original 7"):
        series.edit("a", 7, 1.0)
    with pytest.raises(
        IncompatibleValue, match=r"'original_sequence' cannot hold .*out of the range"
    ):
        series.edit("a", 2**70, 1.0)
    with pytest.raises(IncompatibleValue, match="'value' cannot hold 'text'"):
        series.append("a", "text")
    with pytest.raises(IncompatibleValue, match="no time zone"):
        series.append("a", 1.0, datetime(2020, 1, 1))  # noqa: DTZ001
    for wrong in (None, "0", 0.0, True):
        with pytest.raises(IncompatibleValue, match="is not a sequence"):
            series.edit("a", wrong, 1.0)
    with pytest.raises(IncompatibleValue, match="is not the name of a series"):
        series.append(None, 1.0)
    assert stored(tmp_path / "s") == [("a", 0, 5)]


UTC_US = pa.timestamp("us", "UTC")
YEAR_10000 = 253_402_300_800_000_000


@pytest.mark.parametrize(
    "moment",
    [
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12))),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
    ],
)
def test_a_timestamp_outside_the_years_1_to_9999_is_refused_by_name(series, moment):
    with pytest.raises(UpdateFailed, match=r"'a': timestamp .* is out of range.*9999-12-31") as e:
        series.append("a", 1.0, moment)
    is_shown = moment.tzinfo is UTC
    assert ("timestamp 9999-12-31T23:59:59.999999Z is" in str(e.value)) == is_shown
    series.append("a", 1.0)
    everything = series.range_query().from_(moment).next(1).select_from("a")
    assert len(everything) == (moment.year == 1)


@pytest.mark.parametrize("us", [YEAR_10000, -(2**62), 2**62])
@pytest.mark.parametrize("kind", [UTC_US, pa.timestamp("us"), pa.list_(UTC_US)], ids=str)
def test_value_after_year_9999_is_named_if_python_cannot_hold_it(tmp_path, kind, us):
    series = TimeSeries.create(tmp_path / "s", {"n": pa.int64(), "at": kind}, auto_compact=False)
    cell = [us] if kind == pa.list_(UTC_US) else us
    series.append_many(
        pa.table({"series": ["a"], "n": [7], "at": pa.array([cell], kind)}),
    )
    result = series.range_query().select_from("a")
    with pytest.raises(IncompatibleValue, match=r"column 'at' \(.*years 1 to 9999.*to_arrow"):
        result.events  # noqa: B018
    assert result.to_arrow()["at"].combine_chunks() == pa.array([cell], kind)
    assert "<td>7</td><td>(a time outside the years 1 to 9999)</td>" in result._repr_html_()


def test_what_opens_a_store_and_appends_rows_is_told_to_who_tries_otherwise(tmp_path):
    with pytest.raises(TypeError, match=r"opened by TimeSeries\.open\(path\), and made by"):
        TimeSeries(str(tmp_path / "s"))
    with pytest.raises(ValueError, match="'hdfs:' stores yet; accepted: a path of this"):
        TimeSeries.open("hdfs://name/s")
    store = TimeSeries.create(
        str(tmp_path / "s"), {"a": pa.float64(), "b": pa.float64()}, retained_range="unlimited"
    )
    rows = [{"series": "x", "a": 1.0, "b": 2.0}] * 2
    with pytest.raises(IncompatibleValue, match="name the columns; append_many takes many rows"):
        store.append("x", rows)
    store.append_many(rows)
    assert len(store.range_query().select_from("x")) == 2


def test_opening_and_creating_say_what_is_there(tmp_path):
    with pytest.raises(NoSuchStore, match="there is no store"):
        TimeSeries.open(str(tmp_path / "nothing"))
    TimeSeries.create(str(tmp_path / "s"), VALUE)
    with pytest.raises(UnusableStore, match="there is a store"):
        TimeSeries.create(str(tmp_path / "s"), VALUE)
    for name in ("timestamp", "author", "edit_of", "sequence"):
        with pytest.raises(IncompatibleValue, match=f"'{name}'"):
            TimeSeries.create(str(tmp_path / "t"), {name: pa.int64()})
    with pytest.raises(ValueError, match=r"limit 0|not in"):
        TimeSeries.create(str(tmp_path / "t"), VALUE, retained_range="limit 0")
    assert not (tmp_path / "t").exists()


def test_the_retained_range_can_be_changed_and_nothing_comes_back(series):
    for n in range(5):
        series.append("a", float(n), at(n))
    series.set_retained_range("limit 2")
    assert values(series.range_query().select_from("a")) == [3.0, 4.0]
    series.set_retained_range("unlimited")
    assert values(series.range_query().select_from("a")) == [3.0, 4.0]
    with pytest.raises(NoSuchEvent, match="discarded"):
        series.edit("a", 1, 1.0)
    assert series.describe()["retained_range"] == "unlimited"


WRITER = """
import sys
from pyspark_tseries import TimeSeries
series = TimeSeries.open(sys.argv[1], author=sys.argv[2])
for n in range(12):
    series.append("a", float(n)); series.edit("a", 0, float(n))
"""


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_threads_and_processes_append_and_edit_one_series(tmp_path, series):
    series.append("a", -1.0)

    def write(name):
        mine = TimeSeries.open(str(tmp_path / "s"), author=name)
        for n in range(12):
            mine.append("a", float(n))
            mine.edit("a", 0, float(n))

    command = [sys.executable, "-c", WRITER, str(tmp_path / "s")]
    processes = [subprocess.Popen([*command, f"process {n}"]) for n in range(2)]
    threads = [threading.Thread(target=write, args=(f"thread {n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    found = series.range_query().for_edits().select_from("a")
    assert found.to_arrow()["sequence"].to_pylist() == list(range(97))
    authors = found.to_arrow()["author"].to_pylist()[1:]
    assert sorted(authors) == sorted(
        name for n in range(2) for name in [f"process {n}", f"thread {n}"] * 24
    )


# -- queries -------------------------------------------------------------------------------------


def test_a_limit_leaves_a_result_incomplete_and_counts_what_was_found(series):
    for n in range(4):
        series.append("a", float(n), at(n))
    result = series.range_query().limit(3).select_from("a")
    assert (values(result), result.selected_count, result.is_complete) == (
        [1.0, 2.0, 3.0],
        4,
        False,
    )
    whole = series.range_query().limit(4).select_from("a")
    assert (len(whole), whole.selected_count, whole.is_complete) == (4, 4, True)
    nobody = series.range_query().limit(0).select_from("nobody")
    assert (nobody.events, nobody.selected_count, nobody.is_complete) == ((), 0, True)


def test_a_result_shows_itself_with_a_chart_and_escapes_what_is_in_it(tmp_path):
    kinds = {"v<>": pa.float64(), "note": pa.string()}
    series = TimeSeries.create(str(tmp_path / "s"), kinds, author="<b>")
    for n, value in enumerate([1.0, float("nan"), None, 2.0, 1e308, -1e308]):
        series.append("a", {"v<>": value, "note": "<script>"}, at(n))
    shown = series.range_query().limit(4).select_from("a")._repr_html_()
    assert "<svg" in shown
    assert 'stroke-width="1.6"' in shown
    assert "2 more beyond the limit" in shown
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "nan" not in shown.partition("<table>")[0]
    assert "<svg" not in series.range_query().select_from("nobody")._repr_html_()


# -- random programs against the definition ------------------------------------------------------

ANCHORS = st.sampled_from(["start", "sequence", "time", "last_count", "last_us"])
SPANS = st.sampled_from(["start", "last_count", "next_count", "next_us", "previous_count", "time"])
RANGES = st.builds(
    Range, st.builds(Point, ANCHORS, st.integers(0, 9)), st.builds(Point, SPANS, st.integers(0, 9))
)
QUERIES = st.builds(
    Query,
    st.sampled_from(["values", "allEdits", "latestEdits"]),
    RANGES,
    st.just(Range()) | RANGES,
    st.just(NO_LIMIT) | st.integers(0, 4),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 6), st.integers(0, 3)),
        st.tuples(st.just("range"), st.integers(1, 6), st.none()),
        st.tuples(st.sampled_from(["compact", "restart"]), st.none(), st.none()),
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """A store in memory: per series events (sequence, time, what it edits or -1)."""

    def __init__(self, limit):
        self.limit, self.events, self.floor = limit, {"a": [], "b": []}, {"a": 0, "b": 0}

    def low(self, name):
        return max(self.floor[name], len(self.events[name]) - self.limit)

    def change_range(self, limit):
        if limit != self.limit:
            self.floor = {name: self.low(name) for name in self.events}
            self.limit = limit

    def may_edit(self, name, target):
        events = self.events[name]
        return self.low(name) <= target < len(events) and events[target][2] < 0

    def seen(self, name):
        low = self.low(name)
        return [e for e in self.events[name] if (e[0] if e[2] < 0 else e[2]) >= low]

    def newest_us(self, name):
        return max((e[1] for e in self.events[name] if e[2] < 0), default=0)


@pytest.mark.thorough
@settings(max_examples=80)
@given(STEPS, st.lists(QUERIES, min_size=1, max_size=5), st.sampled_from([2, 4, 99]))
def test_random_programs_answer_as_the_model_does(tmp_path_factory, steps, queries, limit):
    path = str(tmp_path_factory.mktemp("program") / "s")
    series, model = TimeSeries.create(path, VALUE, f"limit {limit}"), Model(limit)
    for name, number, later in steps:
        if name == "range":
            series.set_retained_range(f"limit {number}")
            model.change_range(number)
        elif name == "compact":
            compact(path, now_us=2**60)
        elif name == "restart":
            forget_stores()
            series = TimeSeries.open(path)
        elif number is None:
            us = model.newest_us(name) + later
            made = series.append(name, 0.0, at(us))
            assert made.sequence == len(model.events[name])
            model.events[name].append((made.sequence, us, -1))
        elif not model.may_edit(name, number):
            with pytest.raises(NoSuchEvent):
                series.edit(name, number, 1.0)
        else:
            made = series.edit(name, number, 1.0)
            us = (made.timestamp - at(0)) // timedelta(microseconds=1)
            model.events[name].append((made.sequence, us, number))
    for query in queries:
        for name in "ab":
            check(series, name, query, model.seen(name))


def check(series, name, query, seen):
    try:
        none_erased = [(*event, False) for event in seen]
        expected = oracle(none_erased, query) if seen else ([], 0)
    except InvalidQuery:
        with pytest.raises(InvalidQuery):
            replace(series.range_query(), query=query).select_from(name)
        return
    got = replace(series.range_query(), query=query).select_from(name)
    assert (got.table["sequence"].to_pylist(), got.selected_count) == expected
