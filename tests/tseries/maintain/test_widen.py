"""Wider columns: every value stays equal for every reader, whoever writes meanwhile (35.4)."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import outside_ci
from tseries.builders import forget_stores, stored
from tseries.limits import set_limits
from tseries.meetings import Meeting, fail, rival
from tseries.object_store import bucket  # noqa: F401 a fixture
from tseries.subscriber import Client

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import (
    IncompatibleValue,
    InvalidQuery,
    NoSuchEvent,
    PermissionDenied,
    StoreBusy,
    TimeSeries,
)
from pyspark_tseries.maintain import background, widen
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.compactor import Merge, compact, merge_file_groups
from pyspark_tseries.maintain.erase import erase
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.maintain.widen import widen_columns
from pyspark_tseries.model.ranges import UNLIMITED, Query
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.store import Store

PART = pa.struct([("a", pa.int32())])
MORE = pa.struct([("a", pa.int64()), ("b", pa.string())])
NARROW = {
    "n": pa.int32(),
    "f": pa.float32(),
    "d": pa.decimal128(5, 2),
    "s": PART,
    "l": pa.list_(PART),
    "m": pa.map_(pa.string(), PART),
    "text": pa.string(),
}
WIDE = {
    "n": pa.int64(),
    "f": pa.float64(),
    "d": pa.decimal128(12, 4),
    "s": MORE,
    "l": pa.list_(MORE),
    "m": pa.map_(pa.string(), MORE),
}
GROWN = {"s": pa.struct([("a", pa.int32()), ("b", pa.string())])}
START = datetime(2026, 3, 1, tzinfo=UTC)


def new(path, retained="unlimited", columns=NARROW, **options):
    return TimeSeries.create(
        path,
        columns,
        retained,
        "me",
        auto_compact=False,
        min_retention_age=timedelta(0),
        **options,
    )


def value(number):
    """A value of the narrow columns; one in four is null throughout."""
    if number % 4 == 3:
        return {}
    part = {"a": -number}
    return {
        "n": 2**31 - 1 - number,
        "f": float(np.float32(number / 3)),
        "d": Decimal(number).scaleb(-2),
        "s": part,
        "l": [part, None, {}],
        "m": {"k": part, "none": None},
        "text": f"text {number}",
    }


def without_new_fields(cell):
    """A cell as it was before its structs got the field `b`, which must be null."""
    if isinstance(cell, dict):
        assert cell.get("b") is None
        return {key: without_new_fields(inner) for key, inner in cell.items() if key != "b"}
    if isinstance(cell, list):
        return [without_new_fields(inner) for inner in cell]
    if isinstance(cell, tuple):
        return (cell[0], without_new_fields(cell[1]))
    return cell


def rows(table):
    return [
        {name: without_new_fields(cell) for name, cell in row.items()} for row in table.to_pylist()
    ]


def everything(path, commits=None):
    """All questions to a store, with answers as plain values, or the kind of error of a refusal."""
    forget_stores()
    series = TimeSeries.open(path, "me", auto_compact=False)
    last = series._store.snapshot().metadata.commit if commits is None else commits
    answers = {}

    def ask(name, question):
        try:
            answers[name] = question()
        except (InvalidQuery, NoSuchEvent) as error:
            answers[name] = type(error).__name__

    for kind in ("values", "edits", "latest"):
        query = series.range_query()
        query = query if kind == "values" else query.for_edits()
        query = query.latest_edits() if kind == "latest" else query
        ask(kind, lambda query=query: rows(query.select_from().table))
    ask("newest", lambda: rows(series.latest(count=2).table))
    ask("sql", lambda: rows(series.sql("FROM events ORDER BY series, sequence").to_arrow_table()))
    ask("audit", lambda: sorted_rows(series.sql("FROM all_events").to_arrow_table()))
    ask("list", lambda: series.series().to_pylist())
    ask("delta", lambda: sorted_rows(DeltaTable(str(path)).to_pyarrow_table()))
    totals = "SELECT count(n), sum(n::INT128), max(f::DOUBLE) FROM events"
    for commit in range(0, last + 1, 4):
        ask(commit, lambda c=commit: rows(series.as_of(c).range_query().select_from().table))
        ask((commit, "sql"), lambda c=commit: series.as_of(c).sql(totals).fetchall())
    for name in ("a", "b"):
        ask((name, "history"), lambda name=name: rows(series.history(name, 0)))
        hours = series.range_query().every("1 hour").aggregate(n="max", f="min", d="max")
        ask((name, "hours"), lambda name=name, hours=hours: rows(hours.select_from(name).table))
    return answers


def contents(path):
    """A store's contents: for any Delta reader, and for a query of now and of an earlier commit."""
    forget_stores()
    series = TimeSeries.open(path, "me", auto_compact=False)
    return (
        sorted_rows(DeltaTable(str(path)).to_pyarrow_table()),
        rows(series.range_query().select_from().table),
        rows(series.as_of(8).range_query().select_from().table),
    )


def sorted_rows(table):
    names = ["series", "sequence"]
    return rows(table.sort_by([(name, "ascending") for name in names]))


def types(path):
    forget_stores()
    return {field.name: field.type for field in Store.open(str(path)).values}


def store_of(path):
    return Store.open(str(path))


def widen_all(store, wanted=WIDE, **options):
    widen_columns(store, [pa.field(*pair) for pair in wanted.items()], principal="me", **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def series(path):
    """Twelve originals of two series; two are edited and one is erased."""
    made = new(path)
    for number in range(12):
        made.append("ab"[number % 2], value(number), START + timedelta(minutes=20 * number))
    made.edit("a", 0, value(20))
    made.edit("b", 1, value(21))
    made.erase("a", 2, "asked for")
    return made


# -- what stays ----------------------------------------------------------------------------------


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_every_answer_is_the_same_in_the_new_types(series, path):
    before = everything(path)
    commits = series._store.snapshot().metadata.commit
    series.widen_columns(WIDE)
    assert types(path) == {**NARROW, **WIDE}
    assert everything(path, commits) == before
    assert verify(str(path)) == []
    compact(str(path))
    assert everything(path, commits) == before
    assert verify(str(path)) == []


def test_all_columns_of_all_files_have_the_new_types_so_that_any_reader_takes_them(series, path):
    import polars

    series.widen_columns(WIDE)
    series.append("a", {"n": 2**40, "s": {"a": 2**40, "b": "new"}, "m": {"k": {"b": "x"}}})
    last = {"a": 2**40, "b": "new"}
    table = polars.scan_delta(str(path)).filter(polars.col("n") == 2**40).collect()
    assert table["s"].to_list() == [last]
    assert DeltaTable(str(path)).protocol().min_reader_version == 1
    found = series.range_query().select_from("a").events[-1].value
    assert (found["n"], found["s"], found["m"]) == (2**40, last, [("k", {"a": None, "b": "x"})])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["append", "append", "edit"]), st.sampled_from("ab")),
        st.tuples(st.just("erase"), st.sampled_from("ab")),
        st.tuples(st.sampled_from(["compact", "merge", "add", "limit", "rebuild", "reopen"])),
    ),
    min_size=1,
    max_size=12,
)
TARGETS = st.dictionaries(st.sampled_from(sorted(WIDE)), st.none(), min_size=1).map(
    lambda names: {name: WIDE[name] for name in names}
)


@pytest.mark.outside_ci
@pytest.mark.thorough
@settings(max_examples=25)
@given(before=STEPS, after=STEPS, targets=st.lists(TARGETS, min_size=1, max_size=2))
def test_any_program_gives_the_same_with_and_without_a_change_of_types_in_the_middle(
    tmp_path_factory, before, after, targets
):
    top = tmp_path_factory.mktemp("widen")
    plain, changed = (new(top / name) for name in ("plain", "changed"))
    for made in (plain, changed):
        run(made, before)
    for wanted in targets:
        changed.widen_columns(wanted)
    for made in (plain, changed):
        run(made, after, len(before))
    assert verify(str(top / "changed")) == []
    plain_answers, changed_answers = (timeless(top / name) for name in ("plain", "changed"))
    assert plain_answers == changed_answers


def run(series, steps, first=0):
    path = series._store.root
    for number, step in enumerate(steps, first):
        stamp = START + timedelta(minutes=7 * number)
        match step:
            case ("append", name):
                series.append(name, value(number), stamp)
            case ("edit", name):
                attempt(lambda name=name, n=number: series.edit(name, n // 2, value(n + 50)))
            case ("erase", name):
                attempt(lambda name=name, n=number: series.erase(name, n // 2, "asked for"))
            case ("compact",):
                series.compact()
            case ("merge",):
                merge_file_groups(store_of(path), read_wall_clock(), everything=True)
            case ("add",):
                series.add_columns({"late": pa.int16()})
            case ("limit",):
                series.set_retained_range("limit 5")
            case ("rebuild",):
                rebuild(path)
            case ("reopen",):
                forget_stores()


def attempt(act):
    try:
        act()
    except NoSuchEvent:
        return


def timeless(path):
    """A store's answers, without times and commits."""
    answers = everything(path, -1)
    vague = {"timestamp", "original_timestamp", "edit_timestamp", "commit", "commit_time"}
    vague |= {"erased_at", "erasure"}
    return {
        name: [{key: cell for key, cell in row.items() if key not in vague} for row in answer]
        if isinstance(answer, list) and all(isinstance(row, dict) for row in answer)
        else answer
        for name, answer in answers.items()
        if name != "list" and not (isinstance(name, tuple) and name[1] == "hours")
    }


# -- new fields of structs -----------------------------------------------------------------------


def test_new_fields_need_no_copies(series, path):
    before, files = contents(path), store_of(path).snapshot().paths
    told = []
    series.widen_columns({**GROWN, "l": pa.list_(GROWN["s"])}, lambda *sizes: told.append(sizes))
    assert store_of(path).snapshot().paths == files
    assert told == []
    assert contents(path) == before
    series.append("a", {"s": {"b": "new"}, "l": [{"a": 1, "b": "x"}]})
    found = series.range_query().select_from("a").events[-1].value
    assert (found["s"], found["l"]) == ({"a": None, "b": "new"}, [{"a": 1, "b": "x"}])
    assert series.sql("SELECT s.b, l[1].b FROM events WHERE s.b IS NOT NULL").fetchall() == [
        ("new", "x")
    ]
    compact(str(path))
    assert verify(str(path)) == []


def test_a_field_that_has_local_times_is_added_to_a_table_without_any(series, path):
    kind = pa.struct([("a", pa.int32()), ("at", pa.timestamp("us"))])
    series.widen_columns({"s": kind})
    at = START.replace(tzinfo=None)
    series.append("a", {"s": {"at": at}})
    assert DeltaTable(str(path)).to_pyarrow_table()["s"].to_pylist()[-1] is not None
    assert series.range_query().select_from("a").events[-1].value["s"]["at"] == at


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"x": pa.int64()}, "no column 'x'.*'n' int.*add_columns"),
        ({"n": pa.int16()}, "'n' is int now, and smallint is narrower"),
        ({"n": pa.string()}, "does not hold all of it.*add_columns"),
        ({"n": pa.int64(), "f": pa.int32()}, "column 'f' cannot become int"),
        ({"s": pa.struct([("z", pa.int32())])}, "lacks the field 's.a'"),
        ({"series": pa.string()}, "named like what an event has anyway"),
        ({"n": pa.int64(), "N": pa.int64()}, "two value columns"),
        ({"n": pa.uint64()}, "which a store cannot hold"),
        ({"s": pa.struct([("a", pa.int32()), ("A", pa.int32())])}, "two fields 'a'"),
        (None, "None does not name value columns"),
    ],
)
def test_what_is_not_wider_is_refused_and_nothing_changes(series, path, wanted, said):
    version = DeltaTable(str(path)).version()
    with pytest.raises(IncompatibleValue, match=f"(?s){said}"):
        series.widen_columns(wanted)
    assert DeltaTable(str(path)).version() == version
    assert types(path) == NARROW


def test_only_an_owner_widens_columns(tmp_path):
    made = new(tmp_path / "s", policy={"me": ["own"], "bob": ["update", "read"]})
    with pytest.raises(PermissionDenied, match="may not give columns wider types"):
        TimeSeries.open(tmp_path / "s", "bob").widen_columns({"n": pa.int64()})
    made.widen_columns({"N": pa.int64()})
    assert types(tmp_path / "s")["n"] == pa.int64()


def test_doors_of_creation_and_new_columns_name_the_way_and_take_narrower_types(series, path):
    with pytest.raises(IncompatibleValue, match="make it wider with widen_columns"):
        series.add_columns({"n": pa.int64()})
    with pytest.raises(IncompatibleValue, match="make it wider with widen_columns"):
        TimeSeries.open_or_create(path, {"n": pa.int64()}, auto_compact=False)
    series.widen_columns({"n": pa.int64()})
    series.add_columns({"n": pa.int32()})
    TimeSeries.open_or_create(path, NARROW, auto_compact=False).append("c", value(0))
    assert series.range_query().select_from("c").events[0].value["n"] == 2**31 - 1


def test_the_same_types_again_make_no_commit(series, path):
    series.widen_columns(WIDE)
    version = DeltaTable(str(path)).version()
    series.widen_columns(WIDE)
    series.widen_columns({})
    assert DeltaTable(str(path)).version() == version


# -- writers at the same time --------------------------------------------------------------------


def test_a_writer_of_the_old_types_goes_on_and_the_new_ones_are_its_own_when_it_needs_them(path):
    series = new(path)
    old = TimeSeries.open(path, "me", auto_compact=False)
    series.append("a", value(1))
    series.widen_columns(WIDE)
    old.append("a", value(2))
    old.edit("a", 0, value(4))
    old.append("a", {"n": 2**40})
    assert [event.value["n"] for event in series.range_query().select_from("a").events] == [
        value(4)["n"],
        value(2)["n"],
        2**40,
    ]
    assert verify(str(path)) == []
    with pytest.raises(IncompatibleValue, match="column 'n' cannot hold"):
        old.append("a", {"n": 2**70})


@pytest.mark.thorough
def test_a_writer_takes_no_types_of_a_state_that_was_put_back(path, tmp_path):
    """Both changes had the same number, so it stored the types of the first."""
    series = TimeSeries.create(path, {"n": pa.int16()}, "unlimited", "me", auto_compact=False)
    series.append("a", {"n": 1})
    shutil.copytree(path, tmp_path / "copy")
    writer = TimeSeries(rival(series._store), "me", auto_compact=False)
    TimeSeries(rival(series._store), "me").widen_columns({"n": pa.int32()})
    writer.append("a", {"n": 2})
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    TimeSeries(rival(series._store), "me").widen_columns({"n": pa.int64()})
    writer.append("a", {"n": 2})
    assert verify(str(path)) == []


@pytest.mark.parametrize("edits", [False, True])
def test_an_append_that_meets_the_change_is_stored_in_the_new_types(series, path, edits):
    store = store_of(path)
    meets = Meeting(store, before=[lambda: widen_all(rival(store))])
    writer = TimeSeries(meets, "me", auto_compact=False)
    if edits:
        writer.edit("a", 0, value(30))
    else:
        writer.append("c", value(30))
    assert verify(str(path)) == []
    name, at = ("a", 0) if edits else ("c", 0)
    assert series.range_query().select_from(name).events[at].value["n"] == value(30)["n"]


def test_the_change_takes_in_what_others_do_before_each_of_its_attempts(series, path):
    store = store_of(path)

    def other():
        return TimeSeries(rival(store), "me", auto_compact=False)

    steps = [
        lambda: other().append("c", value(40)),
        lambda: other().edit("a", 0, value(44)),
        lambda: erase(Store.open(str(path)), "b", 3, "asked for", principal="me"),
        lambda: merge_file_groups(rival(store), read_wall_clock(), everything=True),
        lambda: add_columns(rival(store), [pa.field("late", pa.int16())]),
        lambda: other().set_retained_range("limit 100"),
    ]
    widen_all(Meeting(store, before=steps))
    assert types(path) == {**NARROW, **WIDE, "late": pa.int16()}
    assert verify(str(path)) == []
    rooms = series.range_query().select_from(["a", "c"]).to_arrow()
    assert rooms["n"].to_pylist()[0] == value(44)["n"]
    assert rooms["n"].to_pylist()[-1] == value(40)["n"]
    assert series.range_query().select_from("b").events[3].value["n"] is None


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_of_two_changes_both_come_about(series, path):
    store = store_of(path)
    first = [lambda: widen_all(rival(store), {"n": pa.int64(), "f": pa.float64()})]
    widen_all(Meeting(store, before=first), {"n": pa.int64(), "s": MORE})
    assert types(path) == {**NARROW, "n": pa.int64(), "f": pa.float64(), "s": MORE}
    narrower = [lambda: widen_all(rival(store), {"d": pa.decimal128(20, 4)})]
    with pytest.raises(IncompatibleValue, match="narrower"):
        widen_all(Meeting(store, before=narrower), {"d": pa.decimal128(12, 4)})
    assert verify(str(path)) == []


def test_of_two_equal_changes_the_slower_leaves_the_copies_that_the_other_has_taken(
    series, path, every_file
):
    """It removed them as copies of files that had left the store: their events were lost."""
    store, before, told = store_of(path), contents(path), []

    def progress(*sizes):
        told.append(sizes)
        if len(told) == 6:
            widen_all(rival(store))

    widen_all(store, progress=progress)
    assert verify(str(path)) == []
    assert contents(path) == before


def test_a_change_that_loses_every_race_changes_nothing(series, path):
    store = store_of(path)
    others = [lambda: TimeSeries(rival(store), "me").append("c", value(0))] * 9
    with pytest.raises(StoreBusy):
        widen_all(Meeting(store, before=others, commits=3))
    assert types(path) == NARROW
    assert verify(str(path)) == []


def test_a_change_whose_answer_was_lost_is_made_once(series, path):
    store = store_of(path)
    version = DeltaTable(str(path)).version()
    widen_all(Meeting(store, after=[lambda: fail(OSError("the answer was lost"))]))
    assert DeltaTable(str(path)).version() == version + 1
    assert types(path) == {**NARROW, **WIDE}
    assert verify(str(path)) == []


@pytest.mark.outside_ci
def test_threads_lose_nothing_while_types_change_again_and_again(path):
    series = new(path)
    ends, written = threading.Event(), {}

    def write(name):
        own, numbers = TimeSeries.open(path, "me", auto_compact=False), []
        while not ends.is_set():
            number = len(numbers)
            own.append(name, value(number))
            numbers.append(value(number).get("n"))
        written[name] = numbers

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    try:
        for wanted in ({"n": pa.int64()}, {"m": WIDE["m"]}, {"f": pa.float64(), "s": MORE}):
            series.widen_columns(wanted)
    finally:
        ends.set()
        for writer in writers:
            writer.join()
    assert {
        name: series.range_query().select_from(name).to_arrow()["n"].to_pylist() for name in "abc"
    } == written
    assert verify(str(path)) == []


# -- kills ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def every_file(monkeypatch):
    """No file waits for the commit."""
    monkeypatch.setattr(widen, "_FEW_FILES", -1)
    monkeypatch.setattr(widen, "_MAX_ROUNDS", 2)


def copies_made(monkeypatch):
    made, write_all = [], Merge.write_all

    def counted(self):
        made.append(self)
        return write_all(self)

    monkeypatch.setattr(Merge, "write_all", counted)
    return made


def killed_after(series, files, wanted=WIDE):
    """The files of events after a call that was killed when this many were copied."""
    told = []

    def progress(done, total):
        told.append(done)
        if len(told) > files:
            raise Killed

    with pytest.raises(Killed):
        series.widen_columns(wanted, progress)
    forget_stores()


@pytest.mark.thorough
@pytest.mark.parametrize("files", [5, *outside_ci(0, 14)])
def test_a_killed_call_changes_nothing_and_the_next_goes_on_with_its_files(
    series, path, monkeypatch, every_file, files
):
    before = contents(path)
    total = len(store_of(path).snapshot().files)
    killed_after(series, files)
    assert contents(path) == before
    assert verify(str(path)) == []
    made, told = copies_made(monkeypatch), []
    TimeSeries.open(path, "me").widen_columns(WIDE, lambda *sizes: told.append(sizes))
    assert len(made) == total - files
    assert told[0][0] > 0 or files == 0
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    assert contents(path) == before
    assert verify(str(path)) == []


def test_a_copy_for_other_types_or_torn_or_of_a_file_that_left_is_not_taken(
    series, path, monkeypatch, every_file
):
    before = contents(path)
    known, live = set(path.glob("kind=*/*.parquet")), len(store_of(path).snapshot().files)
    killed_after(series, 6)
    copies = sorted(set(path.glob("kind=*/*.parquet")) - known)
    assert len(copies) == 6
    content = copies[0].read_bytes()
    copies[0].write_bytes(bytes([255 - content[100]]).join([content[:100], content[101:]]))
    copies[1].write_bytes(copies[1].read_bytes()[:-20])
    copies[2].write_bytes(b"\0" * copies[2].stat().st_size)
    copies[3].unlink()
    made = copies_made(monkeypatch)
    TimeSeries.open(path, "me").widen_columns(WIDE)
    assert len(made) == live - 2
    assert contents(path) == before
    assert verify(str(path)) == []


def test_copies_for_other_types_are_not_taken(series, path, monkeypatch, every_file):
    files = len(store_of(path).snapshot().files)
    killed_after(series, 6, {"n": pa.decimal128(10, 0)})
    made = copies_made(monkeypatch)
    series.widen_columns({"n": pa.int64()})
    assert len(made) == files
    assert verify(str(path)) == []


def test_a_file_in_several_parts_is_taken_only_with_all_of_them(path, monkeypatch, every_file):
    series = new(path)
    for number in range(30):
        series.append("ab"[number % 2], value(number), START + timedelta(minutes=number))
    compact(str(path))
    before = rows(DeltaTable(str(path)).to_pyarrow_table())
    set_limits(monkeypatch, range_bytes=300)
    monkeypatch.setattr("pyspark_tseries.model.arrays.ROWS_PER_SAMPLE", 1)
    known = set(path.glob("kind=*/*.parquet"))
    killed_after(series, 1)
    parts = sorted(set(path.glob("kind=*/*.parquet")) - known)
    assert len(parts) > 2
    made = copies_made(monkeypatch)
    parts[1].unlink()
    series.widen_columns(WIDE)
    assert len(made) == 1
    assert verify(str(path)) == []
    table = DeltaTable(str(path)).to_pyarrow_table()
    assert sorted_rows(table) == sorted(before, key=lambda row: (row["series"], row["sequence"]))


def test_copies_that_maintenance_removed_before_the_commit_are_made_again(
    series, path, monkeypatch, every_file
):
    store = store_of(path)

    def clean():
        for file in set(path.glob("kind=*/*.parquet")) - known:
            file.unlink()

    known = set(path.glob("kind=*/*.parquet"))
    widen_all(Meeting(store, before_lock=[clean]))
    assert verify(str(path)) == []
    assert types(path) == {**NARROW, **WIDE}


def test_copies_that_maintenance_is_about_to_remove_are_made_again(series, path, every_file):
    before, known = contents(path), set(path.glob("kind=*/*.parquet"))
    killed_after(series, 6)
    for copy in set(path.glob("kind=*/*.parquet")) - known:
        os.utime(copy, (time.time() - 25 * 3600,) * 2)
    store, swept = store_of(path), []

    def remove(paths):
        if not swept:  # Maintenance has looked what the store needs, and now the change comes.
            TimeSeries.open(path, "me").widen_columns(WIDE)
        swept.extend(paths)
        store.location.remove(swept)

    background._sweep(store, load_table(store.location), store.read_clock(), remove)
    assert len(swept) == 6
    assert verify(str(path)) == []
    assert contents(path) == before


WORKER = """
import sys, pyarrow as pa
from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain import background, widen
widen._FEW_FILES = -1
series = TimeSeries.open(sys.argv[1], "me")
series.widen_columns({"n": pa.int64(), "f": pa.float64()}, lambda *sizes: print(*sizes, flush=True))
"""


@pytest.mark.thorough
def test_a_process_that_is_killed_at_any_moment_leaves_the_old_or_the_new_types(series, path):
    before = contents(path)
    for lines in (2, 15):
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(lines):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        found = types(path)
        assert found in (NARROW, {**NARROW, "n": pa.int64(), "f": pa.float64()})
        assert contents(path) == before
        assert verify(str(path)) == []
    series.widen_columns(WIDE)
    assert contents(path) == before


# -- who follows, copies, repairs ----------------------------------------------------------------


def test_a_follower_ends_at_the_change_and_goes_on_from_its_position(series, path):
    follower = series.follow(start="none", timeout=0)
    series.append("a", value(1))
    assert next(follower).value["n"] == value(1)["n"]
    series.widen_columns(WIDE)
    series.append("a", {"n": 2**40, "s": {"a": 1, "b": "x"}})
    with pytest.raises(IncompatibleValue, match="'n' bigint"):
        next(follower)
    again = TimeSeries.open(path, "me").follow(position=follower.position, timeout=0)
    assert [(event.value["n"], event.value["s"]) for event in again] == [
        (2**40, {"a": 1, "b": "x"})
    ]


def test_a_subscriber_gets_every_event_once_over_the_change(series, path):
    client = Client(path, UNLIMITED)
    client.poll(4)
    series.widen_columns(WIDE)
    series.append("a", value(1))
    client.drain(3)
    keys = sorted(row[:2] for row in client.got)
    assert keys == sorted((s, n) for s, n in stored(path, "series", "sequence"))


def test_a_query_that_was_planned_before_still_reads_the_old_files(series):
    old = series._store.snapshot()
    before = run_query(Scope(old, old.index(), ["a"]), Query("values"))
    series.widen_columns(WIDE)
    assert run_query(Scope(old, old.index(), ["a"]), Query("values")) == before


def test_a_connection_keeps_its_commit_until_it_is_refreshed(series):
    connection = series.connect()
    shown = "SELECT typeof(n) FROM events LIMIT 1"
    series.widen_columns(WIDE)
    assert connection.execute(shown).fetchall() == [("INTEGER",)]
    series.refresh(connection)
    assert connection.execute(shown).fetchall() == [("BIGINT",)]


def test_results_from_before_and_after_are_merged(series):
    before = series.range_query().for_edits().latest_edits().select_from("a")
    series.widen_columns({"n": pa.int64(), "f": pa.float64()})
    series.append("a", {"n": 2**40})
    after = series.range_query().for_edits().latest_edits().select_from("a")
    assert before.merge(after).table["n"].to_pylist()[-1] == 2**40


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_a_backup_before_or_after_is_whole(series, path, tmp_path):
    before = contents(path)
    backup(str(path), str(tmp_path / "early"))
    series.widen_columns(WIDE)
    backup(str(path), str(tmp_path / "late"))
    assert types(tmp_path / "early") == NARROW
    assert types(tmp_path / "late") == {**NARROW, **WIDE}
    for copy in ("early", "late"):
        assert contents(tmp_path / copy) == before
        assert verify(str(tmp_path / copy)) == []
    TimeSeries.open(tmp_path / "early", "me").widen_columns(WIDE)
    assert contents(tmp_path / "early") == before


@pytest.mark.outside_ci
def test_maintenance_removes_the_old_files_and_the_change_stays(series, path, monkeypatch):
    before = contents(path)
    series.widen_columns(WIDE)
    for file in path.rglob("*.parquet"):
        os.utime(file, ns=(0, 0))
    set_limits(monkeypatch, kept_small_files=0)
    remove_obsolete_files(store_of(path), read_wall_clock() + 86_400_000_000)
    live = store_of(path).snapshot().paths
    assert live <= {str(file.relative_to(path)) for file in path.glob("kind=*/*.parquet")}
    assert contents(path) == before
    assert verify(str(path)) == []


@pytest.mark.outside_ci
def test_a_wrong_bit_in_the_entry_of_the_change_is_corrected(series, path):
    series.widen_columns(WIDE)
    series.append("c", {"n": 2**40})
    entry = sorted(path.glob("_delta_log/*.json"))[-2]
    content = entry.read_bytes()
    at = content.index(b"schemaString") + 40
    entry.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    forget_stores()
    assert [finding.kind for finding in verify(str(path))][:1] == ["log entry"]
    assert repair(str(path)) != RepairResult()
    assert verify(str(path)) == []
    assert types(path) == {**NARROW, **WIDE}


def test_an_entry_of_the_change_that_is_gone_is_never_guessed(series, path):
    series.widen_columns({"n": pa.int64()})
    series.append("c", {"n": 2**40})
    sorted(path.glob("_delta_log/*.json"))[-2].unlink()
    for checkpoint in path.glob("_delta_log/*checkpoint*"):
        checkpoint.unlink()
    forget_stores()
    repair(str(path))
    found = verify(str(path))
    if not found:
        table = DeltaTable(str(path)).to_pyarrow_table()
        assert types(path)["n"] == pa.int64() or 2**40 not in table["n"].to_pylist()


@pytest.mark.thorough
def test_an_older_state_that_another_tool_restores_is_refused_and_undone(series, path):
    version = DeltaTable(str(path)).version()
    series.widen_columns(WIDE)
    series.append("c", {"n": 2**40})
    before = contents(path)
    DeltaTable(str(path)).restore(version)
    forget_stores()
    repair(str(path))
    assert types(path) == {**NARROW, **WIDE}
    assert contents(path) == before
    assert verify(str(path)) == []


@pytest.mark.outside_ci
@pytest.mark.session
def test_types_change_in_an_object_store_too(bucket):  # noqa: F811
    uri = bucket.uri("widen")
    series = TimeSeries.create(
        uri, NARROW, "unlimited", "me", auto_compact=False, storage_options=bucket.options
    )
    for number in range(4):
        series.append("a", value(number))
    old = TimeSeries.open(uri, "me", auto_compact=False, storage_options=bucket.options)
    store = series._store
    before = rows(series.range_query().select_from("a").to_arrow())
    writer = [lambda: TimeSeries(rival(store), "me", auto_compact=False).append("b", value(9))]
    widen_all(Meeting(store, before=writer))
    old.append("b", value(10))
    series.append("b", {"n": 2**40})
    assert rows(series.range_query().select_from("a").to_arrow()) == before
    assert series.range_query().select_from("b").to_arrow()["n"].to_pylist() == [
        value(9)["n"],
        value(10)["n"],
        2**40,
    ]
    assert series.verify() == []
    options = store.location.storage_options
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table()
    assert table.schema.field("m").type.item_type == MORE


@pytest.mark.outside_ci
@pytest.mark.session
def test_a_call_that_is_killed_between_types_and_files_of_an_object_store_is_finished(
    bucket,  # noqa: F811
    monkeypatch,
):
    uri = bucket.uri("torn")
    series = TimeSeries.create(
        uri, NARROW, "unlimited", "me", auto_compact=False, storage_options=bucket.options
    )
    for number in range(4):
        series.append("a", value(number))
    before = rows(series.range_query().select_from("a").to_arrow())
    log = type(series._store.log)
    with monkeypatch.context() as killing:
        killing.setattr(log, "_add_remote", lambda self, change: fail(Killed()))
        with pytest.raises(Killed):
            series.widen_columns(WIDE)
    forget_stores()
    series = TimeSeries.open(uri, "me", auto_compact=False, storage_options=bucket.options)
    assert rows(series.range_query().select_from("a").to_arrow()) == before
    series.append("a", {"n": 2**40})
    series.widen_columns(WIDE)
    assert rows(series.range_query().select_from("a").to_arrow())[:4] == before
    assert series.verify() == []
    table = DeltaTable(uri, storage_options=series._store.location.storage_options)
    assert table.to_pyarrow_table()["n"].to_pylist()[-1] in (2**40, value(0)["n"])


@pytest.mark.session
def test_a_change_that_is_killed_twice_between_types_and_files_narrows_no_writer(
    bucket,  # noqa: F811
    monkeypatch,
):
    """Both changes had the same number, so a writer took the second for the first."""
    series = TimeSeries.create(
        bucket.uri("torn twice"),
        {"n": pa.int16()},
        "unlimited",
        "me",
        auto_compact=False,
        storage_options=bucket.options,
    )
    series.append("a", {"n": 1})
    store = series._store
    writer = TimeSeries(rival(store), "me", auto_compact=False)
    for data_type in (pa.int32(), pa.int64()):
        for call in (
            lambda: TimeSeries(rival(store), "me").widen_columns({"n": data_type}),  # noqa: B023
            lambda: writer.append("a", {"n": 2}),
        ):
            with monkeypatch.context() as killing:
                killing.setattr(type(store.log), "_add_remote", lambda *_: fail(Killed()))
                with pytest.raises(Killed):
                    call()
    writer.append("a", {"n": 2})
    store.refresh()
    files = {file.path: store.location.file(file.path) for file in store.data_files()}
    found = [
        path
        for path, full in files.items()
        if pq.read_schema(full, filesystem=store.location.filesystem).field("n").type != pa.int64()
    ]
    assert [path.startswith("kind=event/0000000000-") for path in found] == [True]
    # What it left is no damage: the values are read, and the next call finishes the change.
    for (finding,) in (series.verify(), repair(store.location, principal="me").left):
        assert (finding.kind, finding.path) == ("types", found[0])
        assert "call widen_columns with this column and type again" in finding.next_step
    TimeSeries(rival(store), "me").widen_columns({"n": pa.int64()})
    assert series.verify() == []
