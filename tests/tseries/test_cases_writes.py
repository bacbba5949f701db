"""Diffusion's conformance cases of appends, edits and retained ranges, through the client."""

import inspect
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tseries.builders import batch
from tseries.cases import at

from pyspark_tseries import IncompatibleValue, NoSuchEvent, TimeSeries, UpdateFailed
from pyspark_tseries.store import Store

VALUE = {"value": pa.float64()}


@pytest.fixture
def make(tmp_path):
    """Makes a store with one series `s` of so many originals, a second apart."""

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


# -- writes --------------------------------------------------------------------------------------


def test_w1_the_first_event_has_sequence_0_the_time_of_the_commit_and_the_author(make):
    before = datetime.now(UTC) - timedelta(seconds=1)
    event = make("limit 10").append("s", 1.0)
    assert (event.sequence, event.author) == (0, "me")
    assert before < event.timestamp < datetime.now(UTC) + timedelta(seconds=1)


def test_w2_each_append_is_one_more_and_there_are_no_holes(make):
    series = make("limit 100")
    assert [series.append("s", 1.0).sequence for _ in range(5)] == [0, 1, 2, 3, 4]


def test_w3_w4_an_equal_timestamp_is_accepted_an_earlier_one_is_not(make):
    series = make("limit 10", 2)
    assert series.append("s", 1.0, at(1000)).sequence == 2
    with pytest.raises(UpdateFailed, match="sequence 2"):
        series.append("s", 1.0, at(999))
    assert sequences(series) == [0, 1, 2]


def test_w5_without_a_timestamp_the_newest_one_is_taken_where_the_clock_is_behind_it(make):
    """Where Diffusion contradicts itself: the append is not refused."""
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


@pytest.mark.parametrize(("target", "why"), [(2, "itself an edit"), (99, "no such event")])
def test_w8_w9_only_an_original_that_there_is_can_be_edited(make, target, why):
    series = make("limit 10", 2)
    series.edit("s", 0, 9.0)
    with pytest.raises(NoSuchEvent, match=why):
        series.edit("s", target, 1.0)


def test_w10_a_discarded_original_cannot_be_edited(make):
    series = make("limit 2", 3)
    with pytest.raises(NoSuchEvent, match="discarded"):
        series.edit("s", 0, 1.0)


def test_w12_a_value_of_another_type_is_refused(make):
    with pytest.raises(IncompatibleValue, match="'value'"):
        make("limit 10").append("s", "text")


def test_w13_an_edit_takes_no_timestamp():
    assert list(inspect.signature(TimeSeries.edit).parameters)[1:] == [
        *("series", "original_sequence", "value"),
    ]


def test_w14_r12_an_edit_of_a_backfilled_series_neither_blocks_nor_discards_it(make):
    """Otherwise than Diffusion, where the edit's time of today would do both."""
    series = make("last 10s", 5)
    series.edit("s", 2, 9.0)
    assert series.append("s", 1.0, at(4000)).sequence == 6
    assert sequences(series) == [0, 1, 5, 3, 4, 6]


# -- the retained range --------------------------------------------------------------------------


def test_r1_by_default_ten_events_are_kept(make):
    assert sequences(make(None, 12)) == list(range(2, 12))


def test_r2_an_edit_counts_toward_the_limit(make):
    series = make("limit 15 last 10s", 25, step_ms=1)
    series.edit("s", 20, 9.0)
    values = series.range_query().select_from("s").events
    assert len(values) == 14
    assert [event.original_sequence for event in values] == list(range(11, 25))
    assert values[9].value == 9.0


def test_r3_last_ignores_the_clock(make):
    assert sequences(make("limit 15 last 10s", 25, step_ms=1)) == list(range(10, 25))


def test_r4_the_end_of_last_is_inclusive(make):
    assert sequences(make("last 10s", 3, step_ms=5000)) == [0, 1, 2]


@pytest.mark.parametrize("text", ["limit 5 last 10s", "last 10s limit 5", "LIMIT 5 LAST 10S"])
def test_r6_clauses_come_in_any_order_and_case(make, text):
    series = make(text, 20, step_ms=10)
    assert series.describe()["retained_range"] == "limit 5 last 10S"
    assert sequences(series) == [15, 16, 17, 18, 19]


def test_r7_the_smaller_clause_wins(make):
    assert sequences(make("limit 5 last 10s", 3, step_ms=9000)) == [1, 2]


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


def test_r13_an_event_of_the_future_discards_the_rest_at_once(make):
    series = make("last 1H", 5)
    series.append("s", 1.0, datetime.now(UTC) + timedelta(days=365))
    assert sequences(series) == [5]


def test_r14_sequences_are_never_used_again(make):
    series = make("limit 2", 5)
    series.set_retained_range("limit 1")
    assert series.append("s", 1.0, at(9000)).sequence == 5
    assert sequences(series) == [5]


def test_r16_minutes_and_days_are_units_too(make):
    assert make("last 5M").describe()["retained_range"] == "last 5M"


@pytest.mark.parametrize("text", ["", "last 5", "limit five", "first 3", "limit 0"])
def test_r17_r18_what_is_no_range_creates_no_store(tmp_path, text):
    with pytest.raises(ValueError, match=r"clause|not in"):
        TimeSeries.create(str(tmp_path / "s"), VALUE, text)
    assert not (tmp_path / "s").exists()


def test_r18_of_a_clause_given_twice_the_smaller_counts(make):
    assert sequences(make("limit 5 limit 3", 9)) == [6, 7, 8]


def test_r20_edits_are_counted_as_events(make):
    series = make("limit 10", 2)
    series.edit("s", 0, 1.0)
    assert series.describe()["events"] == 3


def test_r21_a_store_is_as_it_was_when_it_is_opened_again(make, tmp_path):
    make("limit 10", 2).edit("s", 0, 1.0)
    assert sequences(TimeSeries.open(str(tmp_path / "s"))) == [2, 1]
