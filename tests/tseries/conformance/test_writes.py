"""Diffusion's conformance cases of appends, edits and retained ranges, through the client.

Those that need no more than rows are in `write_cases`, for Spark too.
"""

import inspect
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tseries.builders import batch
from tseries.cases import at, shown
from tseries.write_cases import WRITE_CASES, Edit

from pyspark_tseries import IncompatibleValue, NoSuchEvent, TimeSeries, UpdateFailed
from pyspark_tseries.store.store import Store

VALUE = {"value": pa.float64()}


@pytest.fixture
def make(tmp_path):
    """Makes a store with one series `s` of this many originals, a second apart."""

    def made(retained, count=0, step_ms=1000):
        series = TimeSeries.create(str(tmp_path / "s"), VALUE, retained, author="me")
        if count:
            rows = [("s", 1000 * step_ms * n, float(n)) for n in range(count)]
            Store.open(str(tmp_path / "s")).append(batch(*rows), clock=lambda: 0)
        return series

    return made


def sequences(series, query=None):
    found = (query or series.range_query()).select_from("s").events
    return [event.sequence for event in found]


@pytest.mark.parametrize("case", WRITE_CASES, ids=str)
def test_a_case_of_writing_through_the_client(make, case):
    def add(row):
        if isinstance(row, Edit):
            series.edit("s", row.of, 9.0)
        else:
            series.append("s", 1.0, row if row is None else at(row))

    series = make(case.retained)
    for rows in case.stored:
        for row in rows:
            add(row)
    before = series.describe()["events"]
    if case.fails:
        (row,) = case.batches[-1]
        with pytest.raises((NoSuchEvent, UpdateFailed), match=case.fails):
            add(row)
    assert shown(series.range_query().select_from("s")) == case.expected
    assert series.describe()["events"] == before
    assert series.verify() == []


# -- writes --------------------------------------------------------------------------------------


def test_w1_the_first_event_has_sequence_0_the_time_of_the_commit_and_the_author(make):
    before = datetime.now(UTC) - timedelta(seconds=1)
    event = make("limit 10").append("s", 1.0)
    assert (event.sequence, event.author) == (0, "me")
    assert before < event.timestamp < datetime.now(UTC) + timedelta(seconds=1)


def test_w5_without_a_timestamp_the_newest_one_is_taken_where_the_clock_is_behind_it(make):
    """Diffusion contradicts itself here: the append is not refused."""
    series, future = make("limit 10"), datetime.now(UTC) + timedelta(days=365)
    assert series.append("s", 1.0, future).timestamp == future  # W6
    assert series.append("s", 2.0).timestamp == future


def test_w7_an_edit_is_a_new_event_with_the_metadata_of_its_original(make):
    series = make("limit 10", 2)
    assert series.edit("s", 0, 9.0).sequence == 2
    event = series.range_query().select_from("s").events[0]
    assert (event.sequence, event.value) == (2, 9.0)
    assert (event.original.sequence, event.original.timestamp) == (0, at(0))
    assert event.original.author == "me"


def test_w12_a_value_of_another_type_is_refused(make):
    with pytest.raises(IncompatibleValue, match="'value'"):
        make("limit 10").append("s", "text")


def test_w15_rows_of_a_table_are_appended_like_one_after_the_other(make, tmp_path):
    series = make("limit 10")
    rows = pa.table({"series": ["s"] * 3, "value": [0.0, 1.0, 2.0]})
    assert series.append_many(rows)["sequence"].to_pylist() == [0, 1, 2]
    other = TimeSeries.create(tmp_path / "other", VALUE, "limit 10", author="me")
    for value in range(3):
        other.append("s", float(value))
    one, two = (each.range_query().select_from("s").events for each in (series, other))
    assert [(e.sequence, e.value) for e in one] == [(e.sequence, e.value) for e in two]


def test_w17_a_store_is_not_created_without_value_columns_being_named(tmp_path):
    with pytest.raises(IncompatibleValue, match="does not name value columns"):
        TimeSeries.create(tmp_path / "s", None)
    with pytest.raises(IncompatibleValue, match="type null"):
        TimeSeries.create(tmp_path / "s", {"value": pa.null()})
    assert not (tmp_path / "s").exists()


def test_w13_an_edit_takes_no_timestamp():
    assert list(inspect.signature(TimeSeries.edit).parameters)[1:] == [
        *("series", "original_sequence", "value"),
    ]


# -- the retained range --------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["limit 5 last 10s", "last 10s limit 5", "LIMIT 5 LAST 10S"])
def test_r6_clauses_come_in_any_order_and_case(make, text):
    series = make(text, 20, step_ms=10)
    assert series.describe()["retained_range"] == "limit 5 last 10S"
    assert sequences(series) == [15, 16, 17, 18, 19]


def test_r8_nothing_expires_while_nothing_is_added(make):
    series = make("last 10s", 2, step_ms=9000)
    assert sequences(series) == [0, 1]
    series.append("other", 1.0, at(86_400_000))
    assert sequences(series) == [0, 1]


def test_r9_r11_an_edit_whose_original_was_discarded_is_in_no_result_and_edits_nothing(make):
    series = make("limit 3", 1)
    series.edit("s", 0, 5.0)
    for n in range(2):
        series.append("s", float(n), at(n))
    assert sequences(series) == [2, 3]
    assert sequences(series, series.range_query().for_edits()) == [2, 3]
    with pytest.raises(NoSuchEvent, match="discarded"):
        series.edit("s", 0, 1.0)


def test_r14_sequences_are_never_used_again(make):
    series = make("limit 2", 5)
    series.set_retained_range("limit 1")
    assert series.append("s", 1.0, at(9000)).sequence == 5
    assert sequences(series) == [5]


def test_r16_minutes_are_units_too(make):
    assert make("last 5M").describe()["retained_range"] == "last 5M"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not a clause"),
        ("last 5", "'last 5' is not a clause"),
        ("limit five", "'limit five' is not a clause"),
        ("last 7D, limit 5", "'last 7D, limit 5' is not a clause"),
        ("limit 3 first 3", "'first 3' is not a clause"),
        ("limit 0", "0 is not in [1, 2^62)"),
        (3, "3 is not a text"),
    ],
)
def test_r17_r18_what_is_no_range_creates_no_store_and_its_wrong_clause_is_named(
    tmp_path, text, said
):
    with pytest.raises(ValueError, match=r"accepted: 'limit N'.*next step: correct ") as refused:
        TimeSeries.create(str(tmp_path / "s"), VALUE, text)
    assert said in str(refused.value)
    assert not (tmp_path / "s").exists()


def test_r19_a_wider_range_later_shows_no_more_than_there_was(make):
    series = make("limit 3", 5)
    series.set_retained_range("unlimited")
    assert sequences(series) == [2, 3, 4]
    series.append("s", 5.0)
    assert sequences(series) == [2, 3, 4, 5]


def test_r20_edits_are_counted_as_events(make):
    series = make("limit 10", 2)
    series.edit("s", 0, 1.0)
    assert series.describe()["events"] == 3


def test_r21_a_store_is_as_it_was_when_it_is_opened_again(make, tmp_path):
    make("limit 10", 2).edit("s", 0, 1.0)
    assert sequences(TimeSeries.open(str(tmp_path / "s"))) == [2, 1]
