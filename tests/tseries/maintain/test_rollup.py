"""A rollup has the buckets of its source, once each, and says who changed them and why (36)."""

import re
import shutil
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import outside_ci
from tseries.builders import forget_stores
from tseries.deliveries import AUTUMN, BEGIN, CELLS, MINUTES, SERIES, Deliveries
from tseries.limits import set_limits
from tseries.meetings import Meeting

from pyspark_tseries import (
    HistoryChanged,
    IncompatibleValue,
    InvalidQuery,
    NoSuchStore,
    PermissionDenied,
    StoreMismatch,
    TimeSeries,
    UnusableStore,
)
from pyspark_tseries.__main__ import main
from pyspark_tseries.maintain import rollup as runs
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.arrays import is_same
from pyspark_tseries.model.buckets import parse_buckets
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store import store as stores
from pyspark_tseries.store.store import Store
from pyspark_tseries.write import batch as attempts
from pyspark_tseries.write import numbering

AGGREGATES = {
    "mean": ("celsius", "mean"),
    "total": ("n", "sum"),
    "p9": ("n", 0.9),
    "closed": ("room", "last"),
    "events": ("*", "count"),
}
HOUR = timedelta(hours=1)


class Source(Deliveries):
    """A store, what was delivered to it, and which of it a rollup has to tell."""

    def __post_init__(self):
        super().__post_init__()
        self.changes = {}

    def note(self, name, at, author, reason):
        self.changes.setdefault((name, at), []).append((author, reason))

    def as_author(self, author):
        self.series = TimeSeries.open(self.path, author, auto_compact=False, durability="os")

    def append(self, rows):
        self.as_author("carl")
        before = len(self.rows)
        super().append(rows)
        for row in self.rows[before:]:
            self.note(
                row["series"], row["timestamp"], "carl", f"carl added event {row['sequence']}"
            )

    def pick(self, name, number):
        """An event of the series, so that most steps find one."""
        events = [row for row in self.rows if row["series"] == name]
        return events[number % len(events)]["sequence"] if events else number

    def edit(self, name, number, cells):
        sequence = self.pick(name, number)
        author = "ann" if sequence % 2 else "bob"
        self.as_author(author)
        before = len(self.rows)
        super().edit(name, sequence, cells)
        for row in self.rows[before:]:
            (original,) = self.find(name, sequence)
            reason = f"{author} edited event {sequence} by event {row['sequence']}"
            self.note(name, original["timestamp"], author, reason)

    def erase(self, name, number):
        sequence = self.pick(name, number)
        found = self.find(name, sequence)
        was = bool(found) and found[0]["erased"]
        self.as_author("eve")
        super().erase(name, sequence)
        if found and not was:
            of = found[0]["of"]
            (original,) = self.find(name, sequence if of is None else of)
            edit = "" if of is None else f", an edit of event {of}"
            reason = f"eve erased event {sequence}{edit}: a test"
            self.note(name, original["timestamp"], "eve", reason)


class Checked:
    """A rollup that is compared with its source after each run."""

    def __init__(self, source, path, width, zone):
        self.source, self.path, self.width, self.zone = source, path, width, zone
        self.buckets = parse_buckets(width, zone)
        self.rows, self.commit, self.missing = {}, -1, set()

    def start(self, at):
        us = self.buckets.starts(pa.array([at], INSTANT).cast(pa.int64()).to_numpy())
        return pa.array(us).cast(INSTANT).to_pylist()[0]

    def end(self, start):
        us = pa.array([start], INSTANT).cast(pa.int64()).to_numpy()
        return pa.array(self.buckets.ends(us)).cast(INSTANT).to_pylist()[0]

    def read(self):
        opened = TimeSeries.open(self.path)
        found = opened.range_query().select_from().to_arrow().to_pylist()
        assert len({(row["series"], row["timestamp"]) for row in found}) == len(found)
        return {(row["series"], row["timestamp"]): row for row in found}

    def run(self):
        source, before = self.source, self.rows
        told = source.series.rollup(self.path, self.width, AGGREGATES, timezone=self.zone)
        assert source.series.rollup(self.path) == runs.RollupResult(0, 0, 0, told.covered)
        self.rows = self.read()
        query = source.series.range_query().every(self.width, self.zone).aggregate(**AGGREGATES)
        now = {(r["series"], r["timestamp"]): r for r in query.select_from().to_arrow().to_pylist()}
        seen = source.seen() if source.rows else set()
        originals = [row for row in source.rows if row["of"] is None]
        newest = {}
        for row in originals:
            if not row["erased"]:
                at = newest.get(row["series"], row["timestamp"])
                newest[row["series"]] = max(at, row["timestamp"])
        cut = self.find_cut(originals, seen)
        last = {name: max(at for n, at in before if n == name) for name, _ in before}
        edited = 0
        for key, row in now.items():
            name, start = key
            complete = name in newest and newest[name] >= self.end(start)
            if key in before:
                is_same_now = self.same(row, self.rows[key])
                assert is_same_now or (key in cut and self.rows[key] == before[key]), key
                edited += self.check_edit(key, before[key], self.rows[key])
            elif not complete:
                assert key not in self.rows
            elif key in cut:
                assert key not in self.rows or self.same(row, self.rows[key])
            elif name in last and start < last[name]:
                self.missing.add(key)  # Let in by an erasure, before a bucket that was there.
                assert told.left
            else:
                assert self.same(row, self.rows[key]), key
                assert self.rows[key]["reason"] is None
                assert self.rows[key]["author"] == source.series._author
        for key in before.keys() - now.keys():
            assert self.rows[key] == before[key], "retention of the source corrects nothing"
        assert self.rows.keys() >= before.keys()
        assert (told.edited, told.added) == (edited, len(self.rows) - len(before))
        source.changes.clear()

    def find_cut(self, originals, seen):
        """The buckets that have lost events, and the first visible one of these series."""
        cut, first = set(), {}
        for row in originals:
            key = row["series"], self.start(row["timestamp"])
            if (row["series"], row["sequence"]) not in seen:
                cut.add(key)
            else:
                first[row["series"]] = min(first.get(row["series"], key), key)
        return cut | {first[name] for name, _ in cut if name in first}

    def same(self, row, kept):
        return all(is_same(row[name], kept[name]) for name in AGGREGATES)

    def check_edit(self, key, before, after):
        if self.same(before, after):
            assert before == after, "an edit without a change"
            return 0
        name, start = key
        changes = [
            change
            for (series, at), some in self.source.changes.items()
            for change in some
            if series == name and self.start(at) == start
        ]
        author, reason = after["author"], after["reason"]
        many = "" if len(changes) == 1 else f"; the last of {len(changes)} changes"
        assert reason.endswith(many)
        assert (author, reason.removesuffix(many)) in changes
        return 1


ROWS = st.lists(st.tuples(SERIES, MINUTES, CELLS), min_size=4, max_size=12)
RETAINED = st.sampled_from(["unlimited", "unlimited", "limit 12", "limit 20 last 4H", "last 1D"])
EDITS = st.tuples(st.just("edit"), SERIES, st.integers(0, 30), CELLS)
STEPS = [
    *[st.tuples(st.just("append"), ROWS)] * 2,
    *[EDITS] * 3,
    st.tuples(st.sampled_from(["compact", "merge"])),
]
ERASURES = st.tuples(st.just("erase"), SERIES, st.integers(0, 30))
PROGRAMS = {
    True: st.lists(st.one_of(*STEPS, ERASURES), min_size=2, max_size=8),
    False: st.lists(
        st.one_of(*STEPS, st.tuples(st.just("retain"), RETAINED)), min_size=2, max_size=8
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("erases", [True, *outside_ci(False)])
@settings(max_examples=12)
@given(st.data())
def test_after_each_run_a_rollup_has_the_complete_buckets_of_any_source(
    tmp_path_factory, erases, data
):
    place = tmp_path_factory.mktemp("rollup")
    with pytest.MonkeyPatch.context() as few:
        set_limits(few, group_rows=3, piece_rows=2, range_bytes=600, group_bytes=1)
        few.setattr(runs, "MAX_BUCKETS_PER_COMMIT", data.draw(st.sampled_from([1, 3, 1000])))
        few.setattr(runs, "MAX_EVENTS_AT_ONCE", data.draw(st.sampled_from([1, 5, 1000])))
        few.setattr(runs, "MAX_BYTES_AT_ONCE", data.draw(st.sampled_from([1, 10**9])))
        few.setattr(runs, "MAX_RANGES", data.draw(st.sampled_from([1, 2, 32])))
        begin = data.draw(st.sampled_from([BEGIN, AUTUMN]))
        retained = "unlimited" if erases else data.draw(RETAINED)
        source = Source(str(place / "s"), retained, begin)
        zone = data.draw(st.sampled_from([None, "Europe/Berlin"]))
        width = data.draw(st.sampled_from(["15 minutes", "1 hour", "1 hour", "1 day"]))
        rollup = Checked(source, str(place / "r"), width, zone)
        for _ in range(data.draw(st.integers(2, 4))):
            source.run(data.draw(PROGRAMS[erases]))
            rollup.run()
    assert TimeSeries.open(rollup.path).verify() == []


# -- a source of two series, twenty minutes from event to event ------------------------------------


def rows(first, count, names="ab"):
    return [
        {"series": name, "timestamp": BEGIN + timedelta(minutes=20 * n), "celsius": float(n)}
        for n in range(first, first + count)
        for name in names
    ]


@pytest.fixture
def source(tmp_path):
    values = {"celsius": pa.float64(), "n": pa.int64()}
    store = TimeSeries.create(
        tmp_path / "s", values, "unlimited", "ann", durability="os", auto_compact=False
    )
    store.append_many(rows(0, 10), max_future=timedelta.max)
    return store


def roll(source, path, **more):
    return source.rollup(path, "1 hour", {"celsius": "mean", "n": ("*", "count")}, **more)


def buckets(path, kind="values"):
    query = TimeSeries.open(path, "ann").range_query()
    query = query.for_edits() if kind == "allEdits" else query
    return query.select_from().to_arrow().to_pylist()


def write_more(source):
    """Two edits of an old bucket, an erasure, and a new bucket."""
    TimeSeries.open(source._store.root, "bob", auto_compact=False).edit("a", 1, {"celsius": 30.0})
    TimeSeries.open(source._store.root, "cyd", auto_compact=False).edit("a", 2, {"celsius": 40.0})
    TimeSeries.open(source._store.root, "eve", auto_compact=False).erase("b", 3, "was private")
    source.append_many(rows(10, 4), max_future=timedelta.max)


def test_an_edit_of_a_bucket_has_the_author_of_the_last_change_and_says_why(source, tmp_path):
    assert roll(source, tmp_path / "r") == runs.RollupResult(6, 0, 0, 0)
    write_more(source)
    assert source.rollup(tmp_path / "r") == runs.RollupResult(2, 2, 0, 4)
    told = [(r["series"], r["author"], r["reason"]) for r in buckets(tmp_path / "r") if r["reason"]]
    assert told == [
        ("a", "cyd", "cyd edited event 2 by event 11; the last of 2 changes"),
        ("b", "eve", "eve erased event 3: was private"),
    ]
    versions = TimeSeries.open(tmp_path / "r").history("a", 0).to_pylist()
    assert [(row["author"], row["celsius"]) for row in versions] == [
        ("ann", 1.0),
        ("cyd", pytest.approx(70 / 3)),
    ]


def test_an_edit_that_changes_no_aggregate_edits_no_bucket(source, tmp_path):
    roll(source, tmp_path / "r")
    source.edit("a", 1, {"n": 7})
    source.edit("a", 1, {"celsius": 1.0})
    assert source.rollup(tmp_path / "r") == runs.RollupResult(0, 0, 0, 2)


@pytest.mark.thorough
def test_a_run_reads_the_files_of_later_commits_and_those_of_their_buckets_alone(
    source, tmp_path, monkeypatch
):
    for n in range(10, 110):
        source.append_many(rows(n, 1), max_future=timedelta.max)
    roll(source, tmp_path / "r")
    assert len(source._store.snapshot().files) == 101
    source.edit("a", 50, {"celsius": 0.0})
    source.append_many(rows(110, 2), max_future=timedelta.max)
    read, real = set(), Location.read

    def reading(location, path):
        if "kind=" in path and location == source._store.location:
            read.add(path)
        return real(location, path)

    monkeypatch.setattr(Location, "read", reading)
    assert source.rollup(tmp_path / "r") == runs.RollupResult(2, 1, 0, 102)
    # The edit and the append, three files of the bucket that is edited, three of the new one.
    assert 2 <= len(read) <= 8
    read.clear()
    assert source.rollup(tmp_path / "r").added == 0
    assert not read


def test_retention_of_the_source_takes_nothing_from_a_rollup(source, tmp_path):
    roll(source, tmp_path / "r")
    before = buckets(tmp_path / "r")
    source.set_retained_range("limit 2")
    source.compact()
    source.edit("a", 9, {"celsius": 5.0})
    assert source.rollup(tmp_path / "r") == runs.RollupResult(0, 0, 0, 2)
    assert buckets(tmp_path / "r") == before


def test_a_bucket_that_retention_has_cut_is_neither_added_nor_edited(tmp_path):
    store = TimeSeries.create(tmp_path / "s", {"celsius": pa.float64()}, "last 2H", "ann")
    store.append_many(rows(0, 8, "a"), max_future=timedelta.max)  # Shows what is from 00:20 on.
    assert store.rollup(tmp_path / "r", "1 hour", {"celsius": "count"}).added == 1
    assert [r["timestamp"] for r in buckets(tmp_path / "r")] == [BEGIN + HOUR]
    store.edit("a", 3, 7.0)
    store.append_many(rows(8, 2, "a"), max_future=timedelta.max)  # From 01:00 on.
    store.append_many(rows(10, 1, "a"), max_future=timedelta.max)  # From 01:20 on.
    assert store.rollup(tmp_path / "r") == runs.RollupResult(1, 0, 1, 3)


@pytest.mark.parametrize("rebuilds", [False, True])
def test_a_bucket_that_compaction_has_cut_is_not_added_either(tmp_path, rebuilds):
    """A rebuilt head knows only the events that are left, and not that there were others."""
    values, keep_for = {"celsius": pa.float64()}, timedelta(0)
    store = TimeSeries.create(tmp_path / "s", values, "last 2H", "ann", min_retention_age=keep_for)
    for first in (0, 2):  # Shows what is from 00:20 on.
        store.append_many(rows(first, 2 + first * 2, "a"), max_future=timedelta.max)
    assert store.compact().removed_events
    if rebuilds:
        rebuild(tmp_path / "s")
    assert store.verify() == []
    assert store.series().to_pylist()[0]["first"] == (None if rebuilds else BEGIN)
    assert store.rollup(tmp_path / "r", "1 hour", {"celsius": "count"}).added == 1
    assert [r["timestamp"] for r in buckets(tmp_path / "r")] == [BEGIN + HOUR]
    store.append_many(rows(8, 5, "a"), max_future=timedelta.max)
    assert store.series().to_pylist()[0]["first"] == (None if rebuilds else BEGIN)


def test_a_bucket_is_complete_by_the_newest_original_or_the_cti(tmp_path):
    from tseries.builders import batch, new_store

    store = new_store(tmp_path / "s")
    minute = 60_000_000
    store.append(batch(("a", 10 * minute), ("b", 70 * minute)))
    series = TimeSeries.open(tmp_path / "s", "me")
    assert series.rollup(tmp_path / "r", "1 hour", {"value": "sum"}).added == 0
    store.append(batch(("b", 130 * minute)))
    assert series.rollup(tmp_path / "r").added == 1
    ctis = batch()
    cti = attempts.Batch(ctis.rows, "fail", "me", cti_us=60 * minute)
    store.append(cti)
    assert series.rollup(tmp_path / "r").added == 1
    assert [row["series"] for row in buckets(tmp_path / "r")] == ["a", "b"]


def test_a_rollup_of_a_rollup_follows_the_corrections(source, tmp_path):
    roll(source, tmp_path / "r")
    hours = TimeSeries.open(tmp_path / "r", "ann")
    assert hours.rollup(tmp_path / "r2", "2 hours", {"n": "sum", "celsius": "max"}).added == 2
    write_more(source)
    source.rollup(tmp_path / "r")
    done = hours.rollup(tmp_path / "r2")
    assert (done.added, done.edited) == (0, 2)
    told = [(row["author"], row["reason"]) for row in buckets(tmp_path / "r2")]
    assert told == [
        ("cyd", "cyd edited event 0 by event 4"),
        ("eve", "eve edited event 1 by event 4"),
    ]


def test_days_of_a_time_zone_are_rolled_up(tmp_path):
    store = TimeSeries.create(tmp_path / "s", {"celsius": pa.float64()}, "unlimited", "ann")
    store.append_many(rows(0, 200, "a"), max_future=timedelta.max)
    store.rollup(tmp_path / "r", "1 day", {"celsius": "count"}, timezone="Europe/Berlin")
    query = store.range_query().every("1 day", "Europe/Berlin").aggregate(celsius="count")
    wanted = query.select_from("a").to_arrow().to_pylist()[:-1]
    found = [(row["timestamp"], row["celsius"]) for row in buckets(tmp_path / "r")]
    assert found == [(row["timestamp"], row["celsius"]) for row in wanted]
    assert 69 in {count for _, count in found}, "a day of 23 hours"


@pytest.mark.parametrize("day", [1, 15])
def test_a_rollup_by_months_of_a_zone_has_every_month_from_any_day_on(tmp_path, day):
    zone = ZoneInfo("Europe/Berlin")
    store = TimeSeries.create(tmp_path / "s", {"v": pa.int64()}, "unlimited")
    for month in range(1, 13):
        store.append("a", month, datetime(2023, month, 20, tzinfo=zone))
        store.rollup(
            tmp_path / "months",
            "1 month",
            {"v": "sum"},
            timezone="Europe/Berlin",
            origin=datetime(2000, 1, day, tzinfo=zone),
        )
    found = TimeSeries.open(tmp_path / "months").range_query().select_from("a")
    assert found.table["v"].to_pylist() == list(range(1, 12))


@pytest.mark.parametrize(("width", "zone"), [("1 day", "Europe/Berlin"), ("10 years", None)])
def test_a_bucket_from_before_the_year_1_is_left_out_and_the_others_are_added(
    tmp_path, width, zone
):
    """An event at the zero time of Go and .NET made every run fail, for all series."""
    source = TimeSeries.create(tmp_path / "s", {"n": pa.int64()}, "unlimited")
    times = [
        datetime(1, 1, 1, tzinfo=UTC),
        *(datetime(2001 + 20 * n, 7, 1, tzinfo=UTC) for n in (0, 1)),
    ]
    for at in times:
        source.append("a", 1, at)
    done = source.rollup(tmp_path / "r", width, {"n": "sum"}, timezone=zone)
    assert (done.added, done.left) == (1, 0)
    source.edit("a", 0, 2)
    done = source.rollup(tmp_path / "r")
    assert (done.added, done.edited, done.left) == (0, 0, 1)
    assert TimeSeries.open(tmp_path / "r").verify() == []


def test_a_bucket_that_was_erased_in_the_rollup_stays_erased(source, tmp_path):
    roll(source, tmp_path / "r")
    hours = TimeSeries.open(tmp_path / "r")
    hours.erase("a", 0, "private")
    hours.erase("a", 2, "private")  # The newest one.
    write_more(source)
    done = source.rollup(tmp_path / "r")
    assert (done.added, done.edited, done.left) == (2, 1, 1)
    assert [r["n"] for r in buckets(tmp_path / "r") if r["series"] == "a"] == [None, 3, None, 3]
    assert hours.describe()["dropped"] == 0


def test_an_event_that_an_erasure_lets_in_corrects_its_bucket(source, tmp_path):
    roll(source, tmp_path / "r")
    source.erase("a", 9, "a test")
    for n in (8, 7, 6):
        source.erase("a", n, "a test")
    source.append("a", {"celsius": 100.0}, BEGIN + timedelta(minutes=119), max_future=timedelta.max)
    done = source.rollup(tmp_path / "r")
    assert (done.added, done.edited, done.left) == (0, 2, 0)
    told = [row["reason"] for row in buckets(tmp_path / "r") if row["reason"]]
    assert told == [
        "ann added event 10",
        "ann erased event 6: a test; the last of 3 changes",
    ]


def test_under_a_policy_the_principal_writes_and_the_reason_names_the_editor(source, tmp_path):
    roll(source, tmp_path / "r")
    TimeSeries.open(tmp_path / "r", "ann").set_policy({"ann": ["read", "update", "edit"]})
    write_more(source)
    source.rollup(tmp_path / "r")
    edited = [row for row in buckets(tmp_path / "r") if row["reason"]]
    assert [row["author"] for row in edited] == ["ann", "ann"]
    assert edited[0]["reason"].startswith("cyd edited event 2")
    other = TimeSeries.open(tmp_path / "s", "bob")
    other.append_many(rows(14, 4), max_future=timedelta.max)
    with pytest.raises(PermissionDenied):
        other.rollup(tmp_path / "r")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda s, p: s.rollup(p / "new"), "every is not given"),
        (lambda s, p: s.rollup(p / "new", "1 hour"), "aggregates is not given"),
        (lambda s, p: s.rollup(p / "r", "2 hours"), "has every '1 hour', and '2 hours'"),
        (
            lambda s, p: s.rollup(p / "r", "1 hour", timezone="Europe/Berlin"),
            "has timezone 'UTC', and 'Europe/Berlin' is asked for",
        ),
        (
            lambda s, p: s.rollup(p / "r", "1 hour", origin=BEGIN + timedelta(minutes=1)),
            "has origin",
        ),
        (lambda s, p: s.rollup(p / "r", timezone="Europe/Berlin"), "given without every"),
        (lambda s, p: s.rollup(p / "r", aggregates={"n": "sum"}), "has aggregates"),
        (lambda s, p: s.rollup(p / "r", retained_range="limit 5"), "has retained_range"),
        (lambda s, p: s.rollup(p / "s"), "is the source itself"),
        (
            lambda s, p: s.rollup(p / "new", "1 hour", {"celsius": "time_weighted_mean"}),
            "a rollup has no time_weighted_mean",
        ),
        (lambda s, p: s.rollup(p / "new", "1 hour", {"reason": ("n", "sum")}), "'reason' anyway"),
        (lambda s, p: s.rollup(p / "new", "1 hour", {"Author": ("n", "sum")}), "'author' anyway"),
        (
            lambda s, p: s.rollup(p / "new", "1 hour", {"n": "sum", "N": ("n", "max")}),
            "two aggregates have the name 'n'",
        ),
        (lambda s, p: s.rollup(p / "new", "1 hour", {}), "no aggregate is named"),
        (lambda s, p: s.rollup(p / "new", "1 hour", 5), "aggregates 5 does not name columns"),
        (lambda s, p: s.rollup(p / "new", "1 hour", "n"), "aggregates 'n' does not name columns"),
        (lambda s, p: s.rollup(p / "new", "often", {"n": "sum"}), "is not the width"),
    ],
)
def test_a_setting_that_no_rollup_or_not_this_one_has_is_refused_by_name(
    source, tmp_path, ask, said
):
    roll(source, tmp_path / "r")
    with pytest.raises(InvalidQuery, match=said) as refused:
        ask(source, tmp_path)
    assert refused.value.next_step
    assert not (tmp_path / "new").exists()


def test_a_rollup_of_a_widened_source_goes_on_once_it_is_widened_too(tmp_path):
    store = TimeSeries.create(tmp_path / "s", {"n": pa.int32()}, "unlimited", auto_compact=False)
    for minutes in (0, 90):
        store.append("a", 1, BEGIN + timedelta(minutes=minutes))
    assert store.rollup(tmp_path / "r", HOUR, {"top": ("n", "max")}).added == 1
    store.widen_columns({"n": pa.int64()})
    store.append("a", 2**40, BEGIN + timedelta(minutes=150))
    store.append("a", 1, BEGIN + timedelta(minutes=210))
    with pytest.raises(IncompatibleValue, match="widen_columns with this column"):
        store.rollup(tmp_path / "r")
    TimeSeries.open(tmp_path / "r").widen_columns({"top": pa.int64()})
    assert store.rollup(tmp_path / "r").added == 2
    rows = TimeSeries.open(tmp_path / "r").range_query().select_from("a").to_arrow()
    assert rows["top"].to_pylist() == [1, 1, 2**40]


def test_a_store_that_is_no_rollup_or_of_another_source_is_refused(source, tmp_path):
    roll(source, tmp_path / "r")
    other = TimeSeries.create(tmp_path / "o", {"celsius": pa.float64(), "n": pa.int64()}, "limit 9")
    with pytest.raises(UnusableStore, match="is not a rollup"):
        source.rollup(tmp_path / "o", "1 hour", {"n": "sum"})
    with pytest.raises(StoreMismatch, match="is the rollup of another store"):
        other.rollup(tmp_path / "r")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "of_others.parquet").write_bytes(b"...")
    with pytest.raises(UnusableStore, match="of_others"):
        roll(source, tmp_path / "data")
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(NoSuchStore):
        source.rollup(tmp_path / "r")


def test_a_source_that_was_put_back_is_refused_and_a_rollup_that_was_goes_on(source, tmp_path):
    roll(source, tmp_path / "r")
    shutil.copytree(tmp_path / "s", tmp_path / "s-before")
    shutil.copytree(tmp_path / "r", tmp_path / "r-before")
    write_more(source)
    source.rollup(tmp_path / "r")
    wanted = read_values(tmp_path / "r")
    shutil.rmtree(tmp_path / "r")
    shutil.move(tmp_path / "r-before", tmp_path / "r")
    forget_stores()
    source.rollup(tmp_path / "r")
    assert read_values(tmp_path / "r") == wanted
    shutil.rmtree(tmp_path / "s")
    shutil.move(tmp_path / "s-before", tmp_path / "s")
    forget_stores()
    for first in (10, 16):  # It is as far behind, then further than before.
        with pytest.raises(HistoryChanged, match="an older state of the store was put back") as old:
            TimeSeries.open(tmp_path / "s").rollup(tmp_path / "r")
        assert old.value.next_step
        for n in range(6):
            TimeSeries.open(tmp_path / "s").append_many(
                rows(first + n, 1), max_future=timedelta.max
            )


def test_what_somebody_else_appended_to_a_rollup_is_told(source, tmp_path):
    roll(source, tmp_path / "r")
    later = BEGIN + timedelta(days=1)
    TimeSeries.open(tmp_path / "r").append("a", {"n": 1}, later, max_future=timedelta.max)
    source.append_many(rows(10, 4), max_future=timedelta.max)
    done = source.rollup(tmp_path / "r")
    assert done.added == 1, "of the other series"


# -- kills and rivals ------------------------------------------------------------------------------


class Crash(BaseException):
    """Ends a run where it stands, as SIGKILL would."""


def read_values(path):
    names = ("series", "sequence", "timestamp", "celsius", "n", "author", "reason")
    found = buckets(path, "allEdits")
    return [tuple(r[n] for n in names if n != "timestamp" or not r["reason"]) for r in found]


def crashing(monkeypatch, moment):
    """From now on the `moment`-th thing that a commit does is its last; how many there were."""
    done = [0]

    def doomed(owner, name):
        real = getattr(owner, name)

        def call(*args, **named):
            for is_over in (False, True):
                done[0] += 1
                if done[0] == moment:
                    raise Crash
                if not is_over:
                    result = real(*args, **named)
            return result

        monkeypatch.setattr(owner, name, call)

    doomed(numbering, "write_events")
    doomed(attempts, "write_events")
    doomed(attempts, "write_head")
    doomed(Store, "commit_prepared")
    doomed(runs, "_create_rollup")
    return done


@pytest.mark.thorough
@pytest.mark.parametrize(("most", "step"), [(2, 5), *outside_ci((1000, 1))])
def test_a_run_that_is_killed_at_any_moment_is_finished_by_the_next(
    source, tmp_path, monkeypatch, most, step
):
    monkeypatch.setattr(runs, "MAX_BUCKETS_PER_COMMIT", most)
    monkeypatch.setattr(runs, "MAX_BYTES_AT_ONCE", 1)
    roll(source, tmp_path / "whole")
    shutil.copytree(tmp_path / "s", tmp_path / "s-early")
    write_more(source)
    source.rollup(tmp_path / "whole")
    shutil.copytree(tmp_path / "s", tmp_path / "s-late")
    wanted = read_values(tmp_path / "whole")
    for moment in range(1, 100, step):
        kills = 0
        forget_stores()  # A checkpoint of the last round would be written into these stores.
        for path in ("s", "r"):
            shutil.rmtree(tmp_path / path, ignore_errors=True)
        for state in ("s-early", "s-late"):
            shutil.copytree(tmp_path / state, tmp_path / "s", dirs_exist_ok=True)
            forget_stores()
            with monkeypatch.context() as broken:
                done = crashing(broken, moment)
                try:
                    roll(TimeSeries.open(tmp_path / "s", "ann"), tmp_path / "r")
                except Crash:
                    kills += 1
            assert done[0] <= moment or not kills
            forget_stores()
            roll(TimeSeries.open(tmp_path / "s", "ann"), tmp_path / "r")
        assert sorted(read_values(tmp_path / "r"), key=str) == sorted(wanted, key=str)
        assert TimeSeries.open(tmp_path / "r").verify() == []
        if not kills:
            break
    assert moment > 8


@pytest.mark.thorough
@pytest.mark.parametrize("most", [2, 1000])
def test_of_two_runs_at_the_same_time_one_writes_and_the_other_goes_on(
    source, tmp_path, monkeypatch, most
):
    monkeypatch.setattr(runs, "MAX_BUCKETS_PER_COMMIT", most)
    monkeypatch.setattr(runs, "MAX_BYTES_AT_ONCE", 1)
    roll(source, tmp_path / "whole")
    write_more(source)
    source.rollup(tmp_path / "whole")
    location = Location(str(tmp_path / "r"))

    def rival():
        ours = stores._open_stores.pop(location)
        roll(TimeSeries.open(tmp_path / "s", "ann"), tmp_path / "r")
        stores._open_stores[location] = ours

    for before in (0, 1, 2):
        forget_stores()
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        series = TimeSeries.open(tmp_path / "s", "ann")
        settings = runs.RollupOptions("1 hour", {"celsius": "mean", "n": ("*", "count")})
        made = runs._create_rollup(series._store, location, settings)
        meets = [lambda: None] * before + [rival]
        stores._open_stores[location] = Meeting(made, before=meets)
        roll(series, tmp_path / "r")
        forget_stores()
        whole = [(r["series"], r["timestamp"], r["celsius"]) for r in buckets(tmp_path / "whole")]
        there = [
            (r["series"], r["timestamp"], r["celsius"]) for r in buckets(tmp_path / "r", "allEdits")
        ]
        assert there == whole
        assert series.rollup(tmp_path / "r") == runs.RollupResult(0, 0, 0, 4)


# -- the command -----------------------------------------------------------------------------------


def command(source, tmp_path, *more):
    return main(["rollup", source._store.root, "--into", str(tmp_path / "r"), *more])


def test_the_command_makes_a_rollup_and_goes_on_with_its_path_alone(source, tmp_path, capsys):
    columns = ["--aggregate", "celsius=mean", "hottest=celsius max", "--aggregate", "n=count"]
    assert command(source, tmp_path, "--every", "1h", *columns, "--author", "cron") == 0
    root = source._store.root
    assert capsys.readouterr().out == f"buckets: 6 added, 0 edited, up to commit 0 of '{root}'\n"
    write_more(source)
    source.set_retained_range("limit 2")
    source.edit("a", 15, {"celsius": 1.0})
    assert command(source, tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"buckets: 0 added, 0 edited, up to commit 6 of '{root}'\n")
    assert "changed buckets that stay as they are: 2, because" in out
    first = buckets(tmp_path / "r")[0]
    assert (first["author"], first["celsius"], first["hottest"], first["n"]) == ("cron", 1, 2, 3)


def test_the_command_says_how_far_a_long_run_is(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runs, "MAX_BUCKETS_PER_COMMIT", 2)
    monkeypatch.setattr(runs, "MAX_BYTES_AT_ONCE", 1)
    assert command(source, tmp_path, "--every", "1h", "--aggregate", "n=count") == 0
    assert "3 buckets added so far" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--every", "1h"], "aggregates is not given"),
        (["--every", "1h", "--aggregate", "celsius=maen"], "--aggregate: .*'maen' is none of"),
        (["--every", "1h", "--aggregate", "celsius"], "'celsius' is not 'COLUMN FUNCTION'"),
        (["--every", "1h", "--aggregate", "n=n sum, m=n max"], "is 2 aggregates"),
        (["--every", "1h", "--aggregate", "n=sum", "n=max"], "two have one name"),
        (
            ["--every", "1h", "--aggregate", "n=sum", "--origin", "soon"],
            "--origin: 'soon' is not an ISO",
        ),
        (["--every", "1h", "--aggregate", "=mean"], "--aggregate: '=mean' is not 'COLUMN FUNC"),
        (["--every", "1h", "--aggregate", "n=sum", "--timezone", "Mars"], "is not a time zone"),
        (["--every", "1h", "--aggregate", "m=sum"], "has no value column 'm'"),
        (["--every", "1h", "--aggregate", "n=sum", "--retained-range", "much"], "retained_range"),
    ],
)
def test_a_wrong_argument_of_the_command_is_told_and_makes_nothing(
    source, tmp_path, capsys, more, said
):
    assert command(source, tmp_path, *more) == 1
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "r").exists()


def test_times_inside_values_that_python_lacks_are_compared_and_named_in_charts(tmp_path):
    old_us, fields = -70_000_000_000_000_000, [("at", INSTANT)]  # In the year -249.

    def cell(us):
        return pa.array([us], pa.int64()).cast(INSTANT)[0]

    columns = {"inside": pa.struct(fields), "tag": INSTANT}
    store = TimeSeries.create(tmp_path / "s", columns, retained_range="unlimited")
    for number in range(3):
        value = {"inside": {"at": cell(old_us)}, "tag": cell(old_us)}
        store.append("a", value, BEGIN + number * HOUR)

    def run():
        return store.rollup(
            str(tmp_path / "r"), every="1 hour", aggregates={"first": ("inside", "first")}
        )

    assert run().added == 2
    store.edit("a", 0, {"inside": {"at": cell(old_us)}, "tag": None})
    assert run().edited == 0
    store.edit("a", 0, {"inside": {"at": cell(old_us + 1)}, "tag": None})
    assert run().edited == 1
    by_tag = store.range_query().every("1 hour").aggregate(n=("*", "count")).by("tag").select_from()
    assert "-0249-10-15" in by_tag.chart().to_svg()
