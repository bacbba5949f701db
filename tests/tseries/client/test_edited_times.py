"""A corrected event is shown, counted and drawn at the time of its original (semantics 21.12)."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_tseries import IncompatibleValue, TimeSeries

pytestmark = pytest.mark.pandas


def at(minute):
    return datetime(2020, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


@pytest.fixture
def series(tmp_path):
    """Ten readings a minute apart; the second and the fifth were corrected today."""
    store = TimeSeries.create(
        tmp_path / "s", {"celsius": pa.float64()}, "unlimited", auto_compact=False
    )
    rows = [{"series": "a", "timestamp": at(n), "celsius": float(n)} for n in range(10)]
    store.append_many(rows)
    store.edit("a", 1, 51.0)
    store.edit("a", 4, 54.0)
    store.edit("a", 1, 61.0)
    return store


def test_corrected_values_stand_in_order_at_the_times_of_their_originals(series):
    result = series.range_query().select_from("a")
    assert result.to_arrow().column_names[-1] == "edit_timestamp"
    for times in (
        result.to_arrow()["timestamp"].to_pylist(),
        result.to_pandas()["timestamp"].tolist(),
        result.to_polars()["timestamp"].to_list(),
        [event.timestamp for event in result.events],
    ):
        assert times == [at(n) for n in range(10)]
    made = series.range_query().for_edits().select_from("a").to_arrow()
    own = dict(zip(made["sequence"].to_pylist(), made["timestamp"].to_pylist(), strict=True))
    edited = result.to_arrow()["edit_timestamp"].to_pylist()
    assert edited == [own[12] if n == 1 else own[11] if n == 4 else None for n in range(10)]
    assert [event.edit_timestamp for event in result.events] == edited
    assert own[12] > at(1_000_000)
    frame = result.to_pandas()
    assert frame["timestamp"].is_monotonic_increasing
    assert frame["celsius"].tolist()[:5] == [0.0, 61.0, 2.0, 3.0, 54.0]


def test_edits_keep_their_own_times_in_queries_of_edits(series):
    for query in (
        series.range_query().for_edits(),
        series.range_query().for_edits().latest_edits(),
    ):
        result = query.select_from("a")
        table = result.to_arrow()
        own = table.filter(table["original_sequence"].is_valid())
        assert own["timestamp"] == own["edit_timestamp"]
        assert own["timestamp"] != own["original_timestamp"]
        edits = [event for event in result.events if event.is_edit]
        assert all(event.timestamp > at(1_000_000) for event in edits)
        assert all(event.edit_timestamp == event.timestamp for event in edits)
        assert {event.original.timestamp for event in edits} == {at(1), at(4)}


def test_limit_and_last_give_the_newest_places_not_the_newest_edits(series):
    asked = series.range_query()
    assert [e.value for e in asked.limit(1).select_from("a").events] == [9.0]
    assert [e.timestamp for e in asked.limit(3).select_from("a").events] == [at(7), at(8), at(9)]
    assert len(asked.limit(6).select_from("a")) == 6
    found = asked.from_last(timedelta(minutes=2)).select_from("a")
    assert [e.timestamp for e in found.events] == [at(7), at(8), at(9)]
    found = asked.until_last(timedelta(minutes=8)).select_from("a")
    assert [e.timestamp for e in found.events] == [at(0), at(1)]
    # The edit range is about edits: it counts from the last one.
    recent = asked.for_edits().all_edits().from_last(timedelta(hours=1)).select_from("a")
    assert [e.sequence for e in recent.events] == [10, 11, 12]
    assert [e.sequence for e in asked.for_edits().limit(2).select_from("a").events] == [11, 12]


def test_result_and_store_name_the_span_of_the_originals(series):
    span = "2020-01-01T00:00:00Z to 2020-01-01T00:09:00Z"
    for query in (series.range_query(), series.range_query().for_edits()):
        assert span in repr(query.select_from("a"))
    assert span in repr(series)
    series.compact()
    assert span in repr(series)


@pytest.mark.parametrize("kind", ["values", "allEdits"])
def test_chart_draws_every_value_at_the_time_of_its_original(series, kind):
    query = series.range_query()
    query = query if kind == "values" else query.for_edits()
    (line,) = query.select_from("a").chart().figure.panels[0].lines
    assert (line.us - line.us[0]).tolist() == [n * 60_000_000 for n in range(10)]
    assert len(line.overridden) == (0 if kind == "values" else 3)
    assert set(line.overridden.us.tolist()) <= set(line.us.tolist())


def test_columns_give_the_times_that_are_asked_for(series):
    def ask(*names):
        return series.range_query().columns(*names).select_from("a").to_arrow().to_pydict()

    assert ask("timestamp") == {"timestamp": [at(n) for n in range(10)]}
    assert [time is None for time in ask("edit_timestamp")["edit_timestamp"]] == [
        n not in (1, 4) for n in range(10)
    ]
    assert list(ask("celsius", "edit_timestamp")) == ["celsius", "edit_timestamp"]


def test_results_of_two_kinds_merge_at_the_times_of_the_originals(series):
    before = series.range_query().select_from("a")
    series.edit("a", 7, 77.0)
    series.append("a", 10.0, at(10))
    later = series.range_query().for_edits().from_(0).select_from("a")
    for merged in (before.merge(later), later.merge(before), later.merge(later)):
        assert [event.timestamp for event in merged.events] == [at(n) for n in range(11)]
        assert [event.edit_timestamp is None for event in merged.events] == [
            n not in (1, 4, 7) for n in range(11)
        ]
        assert merged.to_arrow()["celsius"].to_pylist()[7] == 77.0


def test_value_column_cannot_have_the_name_of_the_time_of_edits(tmp_path):
    with pytest.raises(IncompatibleValue, match="'edit_timestamp' is named like"):
        TimeSeries.create(tmp_path / "t", {"edit_timestamp": pa.int64()})
