"""A timestamp far after the time of its commit is refused or left out (semantics 17.6)."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tseries.builders import VALUE, batch, staged, stored
from tseries.large_batches import as_tasks, at, large

from pyspark_tseries import FutureEvent, TimeSeries, UpdateFailed
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.ranges import UNLIMITED, RetainedRange, parse_range
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.options import LEAVE_OUT_POLICIES, NO_MAX_US
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.numbering import FutureLimit, number_rows

DAY_US = 86_400_000_000
NOW = datetime(2026, 3, 1, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000
VALUES = {"value": pa.int64()}


def new(path, retained="last 30D"):
    return TimeSeries.create(path, VALUES, retained, "me", auto_compact=False)


def soon(**span):
    return datetime.now(UTC) + timedelta(**span)


def test_one_event_of_the_year_2099_is_refused_and_hides_nothing(tmp_path):
    series = new(tmp_path / "s")
    for number in range(20):
        series.append("a", number)
    with pytest.raises(FutureEvent) as caught:
        series.append("a", 99, datetime(2099, 1, 1, tzinfo=UTC))
    said = str(caught.value)
    assert isinstance(caught.value, UpdateFailed)
    for part in ("'a'", "2099-01-01", "time of the commit, 20", "at most 30 days", "max_future"):
        assert part in said
    assert "Nothing is stored" in said
    series.append("a", 20)
    assert len(series.range_query().select_from("a").events) == 21


def test_a_longer_limit_or_none_takes_what_the_message_says(tmp_path):
    series = new(tmp_path / "s")
    with pytest.raises(FutureEvent):
        series.append("a", 1, soon(days=31))
    series.append("a", 1, soon(days=29))
    series.append("b", 1, soon(days=31), max_future=timedelta(days=40))
    series.append("c", 1, datetime(2099, 1, 1, tzinfo=UTC), max_future=timedelta.max)
    with pytest.raises(FutureEvent, match="at most 1 hour after it"):
        series.append("d", 1, soon(hours=2), max_future=timedelta(hours=1))


@pytest.mark.parametrize("wrong", [timedelta(-1), 5, "1 day"])
def test_a_limit_that_is_none_is_refused_by_name(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"max_future .* accepted: .* next step"):
        new(tmp_path / "s").append("a", 1, max_future=wrong)


def test_a_short_range_allows_a_day_and_others_allow_every_time(tmp_path):
    new(tmp_path / "s", "last 10S").append("a", 1, soon(hours=23))
    with pytest.raises(FutureEvent, match="1 day"):
        new(tmp_path / "t", "last 10S limit 5").append("a", 1, soon(hours=25))
    for retained in ("unlimited", "limit 10"):
        series = new(tmp_path / retained, retained)
        series.append("a", 1, datetime(9999, 1, 1, tzinfo=UTC))
        with pytest.raises(FutureEvent, match="1 hour"):
            series.append("b", 1, soon(hours=2), max_future=timedelta(hours=1))


def test_a_batch_leaves_out_what_is_far_ahead_and_counts_it(tmp_path):
    series = new(tmp_path / "s")
    rows = pa.table(
        {
            "series": ["a", "a", "b", "b"],
            "value": [1, 2, 3, 4],
            "timestamp": pa.array([NOW, datetime(2099, 1, 1, tzinfo=UTC), None, NOW], INSTANT),
        }
    )
    with pytest.raises(FutureEvent, match=r"\(1 such row in the batch\).*future_policy"):
        series.append_many(rows)
    assert series.describe()["events"] == 0
    told = series.append_many(rows, future_policy="drop")
    assert told["sequence"].to_pylist() == [0, None, 1, 0]
    said = series.describe()
    assert (said["future"], said["dropped"]) == (1, 0)
    assert said["last_future"]["series"] == "a"
    assert said["last_future"]["timestamp"].startswith("2099")
    assert said["last_future"]["commit"] == 0
    series.append("a", 5)
    assert series.describe()["future"] == 1
    with pytest.raises(ValueError, match="future_policy 'adjust'"):
        series.append_many(rows, future_policy="adjust")


def test_a_late_row_is_late_and_nothing_else(tmp_path):
    series = new(tmp_path / "s")
    series.append("a", 1, datetime(2099, 1, 2, tzinfo=UTC), max_future=timedelta.max)
    rows = pa.table(
        {"series": ["a"], "value": [2], "timestamp": [datetime(2099, 1, 1, tzinfo=UTC)]}
    )
    told = series.append_many(rows, out_of_order="adjust")
    assert told["timestamp"].to_pylist() == [datetime(2099, 1, 2, tzinfo=UTC)]
    told = series.append_many(rows, out_of_order="drop")
    assert told["sequence"].to_pylist() == [None]
    said = series.describe()
    assert (said["future"], said["dropped"], said["adjusted"]) == (0, 1, 1)


def test_assigned_timestamps_and_edits_are_never_far_ahead(tmp_path):
    series = new(tmp_path / "s")
    series.append("a", 1, datetime(2099, 1, 2, tzinfo=UTC), max_future=timedelta.max)
    assert series.append("a", 2).timestamp.year == 2099
    assert series.edit("a", 0, 3).timestamp.year == 2099


@pytest.mark.parametrize("policy", list(LEAVE_OUT_POLICIES))
@pytest.mark.parametrize("retained", ["last 30D", "unlimited"])
def test_rows_of_large_tasks_are_judged_like_those_of_small_ones(tmp_path, retained, policy):
    answers = []
    for name, make in (("small", _small), ("large", _large)):
        store = Store.create(str(tmp_path / name), [VALUE], parse_range(retained))
        rows = [
            ("a", NOW_US),
            ("a", NOW_US + 29 * DAY_US),
            ("b", NOW_US + 31 * DAY_US),
            ("b", NOW_US),
        ]
        try:
            store.append(make(store, rows, FutureLimit(None, policy)), lambda: NOW_US)
            answers.append(stored(tmp_path / name))
            metadata = store.index().metadata
            answers[-1].append((metadata.future, (metadata.last_future or {}).get("series")))
        except FutureEvent as error:
            answers.append(str(error))
        assert verify(str(tmp_path / name)) == []
    assert answers[0] == answers[1]
    assert isinstance(answers[0], str) == (policy == "fail" and retained == "last 30D")


def _small(store, rows, future):
    return Batch(staged(*rows), "fail", "me", future=future)


def _large(store, rows, future):
    import dataclasses

    tasks = as_tasks(store, 2, [at(*row) for row in rows])
    return dataclasses.replace(large(tasks), future=future, author="me", out_of_order="fail")


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9)), min_size=1, max_size=8
)


@given(ROWS, st.none() | st.integers(0, 9), st.sampled_from(list(LEAVE_OUT_POLICIES)))
def test_any_batch_equals_one_without_the_rows_that_are_far_ahead(rows, max_days, policy):
    """Its rows are as in a batch that never had them; under `fail` there is none."""
    rule = FutureLimit(None if max_days is None else max_days * DAY_US, policy).make_rule(
        UNLIMITED, 0
    )
    far = [max_days is not None and day is not None and day > max_days for _, day in rows]

    def number(some, future):
        series = pa.array([name for name, _ in some], pa.string())
        stamps = pa.array([None if day is None else day * DAY_US for _, day in some], pa.int64())
        return number_rows(series, stamps.cast(INSTANT), SeriesIndex(), "fail", 0, future=future)

    if policy == "fail" and any(far):
        with pytest.raises(FutureEvent, match=rf"\({sum(far)} such row"):
            number(rows, rule)
        return
    found = number(rows, rule)
    near = [row for row, is_far in zip(rows, far, strict=True) if not is_far]
    expected = number(near, None)
    assert found.counts.future == sum(far)
    assert found.sequence.tolist() == expected.sequence.tolist()
    assert found.timestamp_us.tolist() == expected.timestamp_us.tolist()
    assert found.change == expected.change
    assert [rows[row] for row in found.order] == [near[row] for row in expected.order]


def test_the_default_follows_the_range():
    day, month = RetainedRange(last_us=DAY_US), RetainedRange(5, 30 * DAY_US)
    assert FutureLimit().make_rule(UNLIMITED, 0) is None
    assert FutureLimit(NO_MAX_US).make_rule(month, 0) is None
    assert FutureLimit().make_rule(day, 0).allowed_us == DAY_US
    assert FutureLimit().make_rule(RetainedRange(last_us=1), 0).allowed_us == DAY_US
    assert FutureLimit().make_rule(month, 0).allowed_us == 30 * DAY_US
    assert FutureLimit(1).make_rule(month, 0).allowed_us == 1
    assert FutureLimit().make_rule(RetainedRange(last_us=2**61), NOW_US) is None


def test_one_thread_s_refusal_does_not_affect_others_of_a_shared_commit(tmp_path):
    store = Store.create(str(tmp_path / "s"), [VALUE], parse_range("last 1D"))
    from pyspark_tseries.store.shared_commits import Refused, SharedBatch, can_share

    near, far = batch(("a", NOW_US)), batch(("a", NOW_US + 2 * DAY_US))
    assert can_share(near, far)
    shared = SharedBatch(lambda: [near, far])
    commit = store.append(shared, lambda: NOW_US)
    event, error = shared.outcomes(commit)
    assert event.sequence == 0
    assert isinstance(error, FutureEvent)
    with pytest.raises(Refused):
        store.append(SharedBatch(lambda: [far]), lambda: NOW_US)
