"""A clock that is far ahead dates no commit; a store with such commits gets its times back."""

import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from tseries.builders import batch, forget_stores, new_store, stored
from tseries.limits import set_limits
from tseries.subscriber import Client

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import StoreBusy, TimeSeries, WrongClock
from pyspark_tseries.maintain import repair as repairs
from pyspark_tseries.maintain.background import maintain
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.rebuild import correct_times, find_future_commits
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.commits import check_commit_time, is_clock_suspicious
from pyspark_tseries.model.ranges import parse_range
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.store import Store

VALUES = {"value": pa.int64()}
HOUR, DAY, YEAR = 3_600_000_000, 86_400_000_000, 365 * 86_400_000_000
NOW = 1_893_456_000_000_000


# -- rules ---------------------------------------------------------------------------------------


def check(last_us, now, storage_us=NOW, same_machine=True):
    check_commit_time("/s", last_us, now, storage_us, same_machine=same_machine)


@pytest.mark.parametrize("idle", [0, HOUR, DAY, YEAR, 2 * YEAR])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("storage_us", [NOW, None])
def test_a_store_that_was_idle_is_accepted(idle, same, storage_us):
    check(NOW - idle, NOW, storage_us, same)


def test_clock_after_a_pause_of_two_years_needs_another_clock_or_repair():
    check(NOW - 3 * YEAR, NOW, same_machine=False)
    for storage_us, same in ((NOW, True), (None, False)):
        with pytest.raises(WrongClock, match=r"is right, say so with: python -m .* repair"):
            check(NOW - 3 * YEAR, NOW, storage_us, same)


@pytest.mark.parametrize("ahead", [HOUR + 1, DAY, 64 * YEAR, 2**62])
@pytest.mark.parametrize("last_us", [NOW, NOW - YEAR, -(2**62)])
def test_a_writer_whose_clock_is_ahead_of_the_storages_is_refused_by_name(ahead, last_us):
    with pytest.raises(WrongClock) as error:
        check(last_us, NOW + ahead)
    assert "this machine's clock says 20" in str(error.value) or "9999" in str(error.value)
    assert "the storage's 2030-01-01T00:00:00Z" in str(error.value)
    assert "next step: set this machine's clock. Nothing is stored" in str(error.value)


@pytest.mark.parametrize("storage_us", [NOW, None])
def test_writer_after_a_commit_in_the_future_is_pointed_to_repair(storage_us):
    with pytest.raises(WrongClock, match="python -m pyspark_tseries repair /s corrects"):
        check(NOW + HOUR + 1, NOW, storage_us)


def test_clocks_that_differ_little_and_one_that_is_behind_do_no_harm():
    check(NOW + HOUR, NOW)
    check(NOW, NOW + HOUR)
    check(NOW, NOW - 5 * YEAR)
    check(NOW, 0)


def test_clock_that_was_never_set_does_not_count_against_another():
    check(0, NOW)
    check(NOW - 40 * YEAR, NOW)


def test_the_storage_is_asked_only_where_something_is_odd():
    assert not is_clock_suspicious(NOW, NOW + HOUR)
    assert not is_clock_suspicious(NOW + HOUR, NOW)
    assert is_clock_suspicious(NOW, NOW + HOUR + 1)
    assert is_clock_suspicious(NOW + HOUR + 1, NOW)
    assert not is_clock_suspicious(NOW, NOW, NOW - HOUR)
    assert is_clock_suspicious(NOW, NOW, NOW - HOUR - 1)


@given(
    st.lists(st.integers(0, 30), unique=True, max_size=8).map(sorted),
    st.dictionaries(st.integers(0, 30), st.integers(0, 200)),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_corrected_times_increase_between_the_last_good_one_and_now(commits, written, good, more):
    now = good + more
    found = correct_times(np.array(commits, np.int64), written, good, now)
    times = list(found.values())
    assert list(found) == commits
    assert times == sorted(times)
    assert all(good <= us <= now for us in times)
    known = [written[c] for c in commits if good <= written.get(c, -1) <= now]
    if len(known) == len(commits) and known == sorted(known):
        assert times == known


# -- a store -------------------------------------------------------------------------------------


@pytest.fixture
def series(tmp_path):
    return TimeSeries.create(
        tmp_path / "s",
        VALUES,
        "last 30D",
        "me",
        min_retention_age=timedelta(0),
        auto_compact=False,
    )


@pytest.mark.parametrize("step", [50 * 60_000_000, 60_000_000, HOUR])
def test_commits_each_a_little_ahead_of_the_last_do_not_drift_beyond_an_hour(tmp_path, step):
    store, begun = new_store(tmp_path / "s"), read_wall_clock()
    ahead = 0
    while ahead + step <= HOUR - 30_000_000:  # The storage's clock goes on meanwhile.
        ahead += step
        store.append(batch(("a", None)), lambda: begun + ahead)  # noqa: B023 called at once
    for more in (HOUR, 2 * HOUR, 199 * HOUR):
        with pytest.raises(WrongClock, match="set this machine's clock"):
            store.append(batch(("a", None)), lambda: begun + more + 60_000_000)  # noqa: B023
    assert store.metadata().commit_us <= read_wall_clock() + HOUR
    store.append(batch(("a", None)))
    forget_stores()
    TimeSeries.open(tmp_path / "s", auto_compact=False).append("a", 1.0)


def set_clock(monkeypatch, ahead_us, *, kernel=False):
    """This process's clock, and the kernel's if so, as if it were this much ahead."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 1000 * ahead_us)
    if kernel:
        monkeypatch.setattr(Location, "clock_us", lambda _: real() // 1000 + ahead_us)


def times(path):
    rows = stored(path, "series", "sequence", "timestamp", "commit_time")
    return {row[:2]: row[2:] for row in rows}


@pytest.mark.parametrize("ahead", [2 * HOUR, 64 * YEAR])
def test_a_writer_far_ahead_stores_nothing_and_the_others_go_on(
    series, tmp_path, monkeypatch, ahead
):
    series.append("a", 1)
    rows = pa.table({"series": ["a"], "value": [1]})
    columns = DefaultSource({"path": str(tmp_path / "s")}).schema()
    schema = StructType([columns["series"], columns["value"]])
    before = times(tmp_path / "s")
    with monkeypatch.context() as context:
        set_clock(context, ahead)
        for use in (
            lambda: series.append("a", 2),
            lambda: series.edit("a", 0, 2),
            lambda: series.append_many(rows),
            lambda: series.set_retained_range("limit 1"),
            lambda: series.set_policy({"me": ["own"]}),
            lambda: compact(tmp_path / "s"),
            lambda: maintain(tmp_path / "s"),
            lambda: repair(tmp_path / "s"),
            lambda: DefaultSource({"path": str(tmp_path / "s")}).streamWriter(schema, False),
        ):
            with pytest.raises(WrongClock, match="next step: set this machine's clock"):
                use()
    assert times(tmp_path / "s") == before
    assert (datetime.now(UTC) - series.append("a", 2).timestamp) < timedelta(minutes=5)
    assert verify(str(tmp_path / "s")) == []


def test_the_first_commit_of_a_store_is_looked_at_too(series, tmp_path, monkeypatch):
    set_clock(monkeypatch, 64 * YEAR)
    with pytest.raises(WrongClock):
        series.append("a", 1)
    assert times(tmp_path / "s") == {}


def test_a_store_that_was_idle_for_a_year_goes_on(tmp_path):
    store = new_store(tmp_path / "s")
    now = read_wall_clock()
    store.append(batch(("a", None)), clock=lambda: now - YEAR)
    store.append(batch(("a", None)), clock=lambda: now)
    assert [row[2] for row in stored(tmp_path / "s")] == [now - YEAR, now]


def poisoned(series, monkeypatch, ahead=64 * YEAR):
    """Commits by a machine with its clock ahead, its kernel's too; the first is good."""
    series.append("a", 1, datetime(2026, 1, 1, tzinfo=UTC))
    series.append("b", 1)
    with monkeypatch.context() as context:
        set_clock(context, ahead, kernel=True)
        set_limits(context, idle_us=10**18)
        series.append("a", 2)
        series.append("c", 3, datetime(2090, 1, 1, tzinfo=UTC))  # It names its time.
        series.append("c", 4)
        series.edit("a", 1, 5)
        series.append("b", 2, datetime(2090, 6, 1, tzinfo=UTC))
    forget_stores()


def test_a_store_with_commits_of_the_future_is_refused_and_repaired(series, tmp_path, monkeypatch):
    began = read_wall_clock()
    subscriber = Client(tmp_path / "s", parse_range("unlimited"))
    poisoned(series, monkeypatch)
    subscriber.drain()
    far = read_wall_clock() + 60 * YEAR
    assert times(tmp_path / "s")["a", 1][0] > far
    with pytest.raises(WrongClock, match=r"python -m pyspark_tseries repair .*/s corrects"):
        series.append("a", 9)
    assert any("its last commit is of 20" in line for line in map(str, verify(str(tmp_path / "s"))))
    planned = repair(str(tmp_path / "s"), dry_run=True)
    done = repair(str(tmp_path / "s"))
    assert done.lost == done.left == ()
    assert "The commits 2 to 6 are now of 20" in str(done.mended[0])
    assert "so are 3 events of 2 series" in str(done.mended[0])
    assert "The commits 2 to 6 are now of 20" in str(planned.mended[0])
    found = times(tmp_path / "s")
    assert all(began <= row[1] <= read_wall_clock() for row in found.values())
    for key in (("a", 1), ("a", 2)):
        assert began <= found[key][0] <= read_wall_clock(), "it had the time of its commit"
    given = [datetime(2090, 1, 1, tzinfo=UTC), datetime(2090, 6, 1, tzinfo=UTC)]
    assert [found[key][0] for key in (("c", 0), ("b", 1))] == [
        int(moment.timestamp()) * 1_000_000 for moment in given
    ]
    assert found["c", 1][0] == found["c", 0][0], "its series' newest is later than its commit"
    assert verify(str(tmp_path / "s")) == []
    original, edited = series.range_query().for_edits().from_(1).to(1).select_from("a").events
    assert edited.original.timestamp == original.timestamp
    event = series.append("a", 10)
    assert (datetime.now(UTC) - event.timestamp) < timedelta(minutes=5)
    assert [row[:2] for row in subscriber.poll()] == [("a", 3)]
    assert repair(str(tmp_path / "s")) == RepairResult()
    series.compact()
    assert verify(str(tmp_path / "s")) == []


def test_of_two_repairs_at_once_one_is_refused_and_no_event_is_doubled(
    series, tmp_path, monkeypatch
):
    path = str(tmp_path / "s")
    poisoned(series, monkeypatch)
    before = [row[:2] for row in stored(path)]
    late_store = Store.open_damaged(path)
    us = read_wall_clock()
    late = find_future_commits(late_store, us, us)
    correct, refused = repairs.correct_future_commits, []

    def meet(store, correction):
        with pytest.raises(StoreBusy) as busy:
            repair(path)
        refused.append(str(busy.value))
        correct(store, correction)

    monkeypatch.setattr(repairs, "correct_future_commits", meet)
    assert repair(path).left == ()
    assert "another repair is at work" in refused[0]
    with pytest.raises(StoreBusy, match="another repair or a writer was first"):
        correct(late_store, late)  # As of another host, where the lock is not seen.
    assert [row[:2] for row in stored(path)] == before
    assert verify(path) == []


def test_what_the_future_had_hidden_is_there_again(series, tmp_path, monkeypatch):
    """`last 30D` counts from a series' newest event, and so do floors that a change of it makes."""
    poisoned(series, monkeypatch)
    with monkeypatch.context() as context:
        set_clock(context, 64 * YEAR, kernel=True)
        series.set_retained_range("last 7D")
    repair(str(tmp_path / "s"))
    assert len(series.range_query().select_from("a")) == 1, "the other is of January"
    series.append("a", 1)
    assert len(series.range_query().select_from("a")) == 2


def test_commits_of_the_future_are_corrected_where_files_were_merged_by_any_tool(
    series, tmp_path, monkeypatch
):
    from deltalake import DeltaTable

    began = read_wall_clock()
    series.set_retained_range("unlimited")
    poisoned(series, monkeypatch)
    with monkeypatch.context() as context:
        set_clock(context, 64 * YEAR, kernel=True)
        DeltaTable(tmp_path / "s").optimize.z_order(["value"])
        rows = pa.table({"series": ["d"] * 3, "value": [1, 2, 3]})
        series.append_many(rows)
    repair(str(tmp_path / "s"))
    found = times(tmp_path / "s")
    assert all(began <= row[1] <= read_wall_clock() for row in found.values())
    assert verify(str(tmp_path / "s")) == []
    with monkeypatch.context() as context:
        set_clock(context, 64 * YEAR, kernel=True)
        set_limits(context, idle_us=10**18)
        series.append("e", 1)
        compact(tmp_path / "s")
    repair(str(tmp_path / "s"))
    assert times(tmp_path / "s").keys() == found.keys() | {("e", 0)}
    assert verify(str(tmp_path / "s")) == []


def test_a_future_without_events_is_set_back_too(series, tmp_path, monkeypatch):
    series.append("a", 1)
    with monkeypatch.context() as context:
        set_clock(context, 64 * YEAR, kernel=True)
        set_limits(context, idle_us=10**18)
        series.set_retained_range("limit 5")
    assert "No event belongs to such a commit" in str(repair(str(tmp_path / "s")).mended[0])
    assert series.append("a", 2).sequence == 1
    assert series.describe()["retained_range"] == "limit 5"
    assert verify(str(tmp_path / "s")) == []


def test_corrected_times_leave_the_counts_of_a_series_of_erased_edits_alone(
    series, tmp_path, monkeypatch
):
    series.set_retained_range("limit 1")
    event = series.append("a", 1)
    series.edit("a", 0, 2)
    series.erase("a", 0, "asked for")
    series.compact()
    assert stored(str(tmp_path / "s"), "sequence") == [(1,)]
    before = series.series().to_pylist()
    assert before[0]["first"] == event.timestamp
    with monkeypatch.context() as context:
        set_clock(context, 64 * YEAR, kernel=True)
        set_limits(context, idle_us=10**18)
        series.append("b", 1)
    assert repair(str(tmp_path / "s")).mended
    assert TimeSeries.open(tmp_path / "s").series().to_pylist()[:1] == before


def test_repair_after_years_without_commits_accepts_the_clock(series, tmp_path, monkeypatch):
    series.append("a", 1)
    set_limits(monkeypatch, credible_us=0)
    set_clock(monkeypatch, 3 * YEAR, kernel=True)
    with pytest.raises(WrongClock, match="is right, say so with"):
        series.append("a", 2)
    assert verify(str(tmp_path / "s")) == [], "an archive is sound"
    assert "assumed to be right" in str(repair(str(tmp_path / "s")).mended[0])
    assert series.append("a", 2).sequence == 1
