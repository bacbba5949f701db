"""An erased value is null for every reader, its bytes go, the act stays (semantics 18.6-18.9)."""

import contextlib
import json
import os
import random
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st
from tseries import foreign
from tseries.builders import VALUE, forget_stores, sight_as_of, stored
from tseries.meetings import Meeting, fail, rival
from tseries.object_store import bucket  # noqa: F401 a fixture
from tseries.power_loss import Disk
from tseries.subscriber import Client

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import (
    Erasure,
    IncompatibleValue,
    NoSuchEvent,
    OutOfOrder,
    PermissionDenied,
    StoreBusy,
    TimeSeries,
    UnusableStore,
)
from pyspark_tseries.__main__ import main
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.compactor import compact, merge_file_groups
from pyspark_tseries.maintain.erase import erase, find_last_gap
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import NO_EVENTS, UNLIMITED, Query
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.admin_commits import replace_files
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.store import Store

SECRET = "the secret of Ann"
VALUES = {"text": pa.string()}
NESTED = {
    **VALUES,
    "parts": pa.list_(pa.struct([("text", pa.string())])),
    "by": pa.map_(pa.string(), pa.string()),
    "raw": pa.binary(),
    "at": pa.timestamp("us"),
    "cents": pa.decimal128(30, 2),
}
START = datetime(2026, 3, 1, tzinfo=UTC)
TEN_MINUTES_US = 600_000_000
DAY_US = 86_400_000_000


def at(hours):
    return START + timedelta(hours=hours)


def new(path, retained="unlimited", values=None, **given):
    return TimeSeries.create(
        path,
        VALUES if values is None else values,
        retained,
        "me",
        auto_compact=False,
        min_retention_age=timedelta(0),
        **given,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def series(path):
    """Originals 0 to 3 of `a`, 4 an edit of 1; the secret is in 1 and 4."""
    made = new(path)
    for number in range(4):
        made.append("a", SECRET if number == 1 else f"plain {number}", at(number))
    made.edit("a", 1, f"{SECRET}, edited")
    made.append("b", "of another series", at(0))
    return made


def events(series, name="a", kind="allEdits"):
    query = series.range_query()
    if kind != "values":
        query = query.for_edits()
    if kind == "latestEdits":
        query = query.latest_edits()
    return [(event.sequence, event.value) for event in query.select_from(name).events]


def holding(path, *words):
    """The files that have one of `words`, relative to the store."""
    found = [file for file in path.rglob("*") if file.is_file()]
    return {
        str(file.relative_to(path))
        for file in found
        if any(word.encode() in file.read_bytes() for word in words)
    }


def maintained(path, after_us=TEN_MINUTES_US):
    forget_stores()
    remove_obsolete_files(Store.open(str(path)), read_wall_clock() + after_us)


# -- what readers see ----------------------------------------------------------------------------


def test_an_erased_value_is_null_in_every_kind_of_query_and_in_the_past(series, path):
    act = series.erase("a", 1, "asked for")
    assert (act.events, act.removed) == ((1, 4), ())
    assert events(series, kind="values") == [
        (0, "plain 0"),
        (4, None),
        (2, "plain 2"),
        (3, "plain 3"),
    ]
    expected = [(0, "plain 0"), (1, None), (2, "plain 2"), (3, "plain 3"), (4, None)]
    assert events(series) == events(series, kind="latestEdits") == expected
    assert events(series, "b") == [(0, "of another series")]
    store = Store.open(str(path))
    times = sorted({us for (us,) in stored(path, "commit_time")})
    for us, count in zip(times, range(1, 7), strict=True):
        table = run_query(Scope(*sight_as_of(store, us), ["a"]), Query("allEdits")).table
        assert table["text"].to_pylist() == [value for _, value in expected[:count]]
    assert verify(str(path)) == []


def test_nested_values_are_erased_too_and_other_readers_see_nulls(tmp_path):
    series = new(tmp_path / "s", values=NESTED)
    value = {
        "text": SECRET,
        "parts": [{"text": SECRET}],
        "by": {SECRET: SECRET},
        "raw": SECRET.encode(),
        "at": datetime(2026, 1, 1),  # noqa: DTZ001 a timestamp without a zone
        "cents": 7,
    }
    kept = {**value, "text": "kept", "parts": [{"text": "kept"}], "by": {"kept": None}, "raw": b""}
    series.append_many(
        pa.Table.from_pylist(
            [{"series": "a", **each} for each in (kept, value, kept)],
            pa.schema([("series", pa.string()), *NESTED.items()]),
        )
    )
    series.erase("a", [1], "asked for")
    table = DeltaTable(tmp_path / "s").to_pyarrow_table().sort_by("sequence")
    for name in NESTED:
        cells = table[name].to_pylist()
        assert cells[1] is None
        assert cells[0] == cells[2] is not None
    assert table["sequence"].to_pylist() == [0, 1, 2]
    maintained(tmp_path / "s")
    assert holding(tmp_path / "s", SECRET) == set()


def test_the_act_stays_with_who_when_why_and_which(series, path):
    before_us = read_wall_clock()
    act = series.erase("a", [4, 1, 1], "request 4711")
    assert series.erasures() == [act]
    assert (act.series, act.sequences, act.events) == ("a", (1, 4), (1, 4))
    assert (act.principal, act.reason, act.commit) == ("me", "request 4711", 6)
    assert before_us - 1_000_000 <= act.time_us <= read_wall_clock()
    table = (
        DeltaTable(path)
        .to_pyarrow_table()
        .sort_by([("series", "ascending"), ("sequence", "ascending")])
    )
    ids = table["erasure"].to_pylist()
    assert ids == [None, act.id, None, None, act.id, None]
    assert table["author"].unique().to_pylist() == ["me"]
    assert [event.timestamp for event in series.range_query().select_from("a").events][2] == at(2)
    second = series.erase("a", [0], "another")
    forget_stores()
    reasons = [each.reason for each in TimeSeries.open(path, "me").erasures()]
    assert reasons == ["request 4711", "another"]
    assert second.commit == 7
    assert series.describe()["erasures"] == 2


def test_an_edit_is_erased_alone_and_its_original_can_still_be_edited(series):
    assert series.erase("a", 4, "only the edit").events == (4,)
    assert events(series)[1] == (1, SECRET)
    assert events(series, kind="values")[1] == (4, None)
    series.edit("a", 1, "again")
    assert events(series, kind="values")[1] == (5, "again")


def test_an_erased_original_cannot_be_edited(series):
    series.erase("a", 1, "asked for")
    with pytest.raises(
        NoSuchEvent, match=r"original 1 to edit, that event was erased.*append a new event"
    ):
        series.edit("a", 1, "back")
    rows = pa.table({"series": ["a"], "text": ["back"], "edit_of": [1]})
    with pytest.raises(NoSuchEvent, match="was erased"):
        series.append_many(rows)
    told = series.append_many(rows, missing_original="drop")
    assert told["sequence"].to_pylist() == [None]
    assert series.describe()["last_dropped"]["reason"] == "that event was erased"
    series.edit("a", 2, "others can")


def test_what_was_erased_before_needs_no_act(series, path):
    series.erase("a", 1, "asked for")
    version = DeltaTable(path).version()
    assert series.erase("a", [1, 4], "again") is None
    assert DeltaTable(path).version() == version
    assert series.erase("a", [1, 2], "one is new").events == (2,)


# -- subscribers ---------------------------------------------------------------------------------


def test_subscribers_get_no_event_and_nulls_in_those_still_to_come(series, path):
    client = Client(path, NO_EVENTS)
    late = Client(path, UNLIMITED)
    series.append("a", SECRET, at(5))
    series.erase("a", [1, 5], "asked for")
    got = [
        row
        for task in _tasks(client)
        for part in task
        for row in part.select(["sequence", "text"]).to_pylist()
    ]
    assert got == [{"sequence": 5, "text": None}]
    assert client.drain() == [("a", 5)]
    assert len(late.drain(2)) == 7
    assert late.position.missed == 0


def _tasks(client):
    from pyspark_tseries.read.delivery import read_delivery
    from pyspark_tseries.read.subscription import Subscription

    follower = Subscription(client.path, client.initial)
    start = follower.find_end(client.position, None) if client.position.initial else client.position
    return [
        list(read_delivery(task))
        for task in follower.plan_tasks(start, follower.find_end(start, None))
    ]


# -- the bytes -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("before", ["nothing", "compacted", "optimized", "both"])
def test_bytes_are_named_until_maintenance_removes_them(series, path, before):
    if before in ("compacted", "both"):
        compact(str(path))
    if before in ("optimized", "both"):
        DeltaTable(path).optimize.z_order(["sequence"])  # Its log entry has bounds of all values.
    act = series.erase("a", 1, "asked for")
    there = holding(path, SECRET)
    assert there
    assert there == set(act.files) == set(series.describe()["erasure_files"])
    assert set(series.erasures()[0].files) == there
    maintained(path, TEN_MINUTES_US - 1_000_000)
    assert holding(path, SECRET) == there, "tasks may be reading them"
    maintained(path)
    assert holding(path, SECRET) == set()
    forget_stores()
    again = TimeSeries.open(path, "me", auto_compact=False)
    assert again.describe()["erasure_files"] == []
    assert events(again)[1] == (1, None)
    again.append("a", "goes on", at(9))
    assert verify(str(path)) == []
    assert rebuild(str(path)) == 2
    assert repair(str(path)) == RepairResult()


def test_a_record_of_another_version_is_refused_by_name(path):
    series = new(path)
    series.append("a", SECRET, at(1))
    act = series.erase("a", [0], "asked for")
    record = path / "_tseries" / "erasures" / f"{act.id}.json"
    record.write_text(record.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(UnusableStore, match=r"record .* it has version 2; accepted: 1"):
        series.erasures()


def test_bytes_go_from_checkpoints_of_the_log_too(path, monkeypatch):
    """If a tool has taken the property away, OPTIMIZE puts bounds of values into the log."""
    monkeypatch.setattr("pyspark_tseries.model.properties.READERS_PROPERTIES", {})
    series = new(path)
    for number in range(12):
        series.append("a", f"{SECRET} {number}", at(number))
    DeltaTable(path).optimize.compact()
    for number in range(12, 24):
        series.append("a", f"plain {number}", at(number))
    wait_for_checkpoints()
    assert (path / "_delta_log" / "_last_checkpoint").exists()
    checkpoint = max((path / "_delta_log").glob("*.checkpoint.parquet"))
    assert SECRET.encode() in checkpoint.read_bytes()
    act = series.erase("a", range(12), "asked for")
    assert f"_delta_log/{checkpoint.name}" in act.files
    assert holding(path, SECRET) <= set(act.files)
    maintained(path)
    assert holding(path, SECRET) == set()
    series.append("a", "goes on", at(30))
    forget_stores()
    assert TimeSeries.open(path).range_query().select_from("a").events[-1].value == "goes on"
    assert verify(str(path)) == []


def test_an_event_that_compaction_has_removed_is_found_in_the_files_that_still_have_it(path):
    series = new(path, "limit 2")
    for number in range(6):
        series.append("a", f"{SECRET} {number}", at(number))
    series.edit("a", 5, "a new value")
    compact(str(path))
    assert (0, 0) not in stored(path, "sequence", "commit")
    act = series.erase("a", [0, 5], "asked for")
    assert (act.removed, act.events) == ((0,), (5, 6))
    assert {f"{SECRET} 0", f"{SECRET} 5"} & {SECRET} == set()
    assert holding(path, f"{SECRET} 0", f"{SECRET} 5") <= set(act.files)
    maintained(path)
    assert holding(path, f"{SECRET} 0", f"{SECRET} 5") == set()


def test_hidden_events_are_erased_too(path):
    series = new(path, "limit 2")
    for number in range(6):
        series.append("a", f"{SECRET} {number}", at(number))
    assert series.erase("a", [0], "hidden, and on the disk").events == (0,)
    maintained(path)
    assert holding(path, f"{SECRET} 0") == set()


def test_an_act_is_closed_a_day_later_and_looked_for_no_more(series, path, monkeypatch):
    act = series.erase("a", 1, "asked for")
    maintained(path)
    assert not (path / "_tseries" / "erasures" / f"{act.id}.done").exists()
    maintained(path, DAY_US + TEN_MINUTES_US)
    assert (path / "_tseries" / "erasures" / f"{act.id}.done").exists()
    assert [each.id for each in series.erasures()] == [act.id]


def test_a_compaction_killed_after_its_files_were_written_is_named_and_swept(
    series, path, monkeypatch
):
    monkeypatch.setattr("pyspark_tseries.maintain.compactor.replace_files", _dies)
    monkeypatch.setattr("pyspark_tseries.maintain.compactor._discard_files", lambda *given: None)
    with pytest.raises(KeyboardInterrupt):
        compact(str(path))
    orphan = next((path / "kind=event").glob("*_0000.parquet"))
    act = series.erase("a", 1, "asked for")
    assert f"kind=event/{orphan.name}" in act.files
    day_ago = read_wall_clock() * 1000 - 25 * 3_600_000_000_000
    for left in (path / "kind=event").glob("*_0000.parquet"):
        if left.name in {os.path.basename(name) for name in act.files}:
            os.utime(left, ns=(day_ago, day_ago))
    for left in (path / "kind=edit").glob("*_0000.parquet"):
        if left.name in {os.path.basename(name) for name in act.files}:
            os.utime(left, ns=(day_ago, day_ago))
    maintained(path)
    assert holding(path, SECRET) == set()


def _dies(*given, **named):
    raise KeyboardInterrupt


def test_what_a_repair_has_put_aside_is_named(series, path):
    aside = path / "_tseries" / "lost" / "some"
    aside.mkdir(parents=True)
    old = next(
        file for file in (path / "kind=event").iterdir() if SECRET.encode() in file.read_bytes()
    )
    (aside / old.name).write_bytes(old.read_bytes())
    series.erase("a", 1, "asked for")
    maintained(path)
    assert series.describe()["erasure_files"] == [f"_tseries/lost/some/{old.name}"]


def test_rows_that_a_killed_writer_left_are_named_until_they_go_after_a_day(series, path):
    staging = path / "_tseries" / "staging"
    staging.mkdir(exist_ok=True)
    (staging / "run.arrow").write_text(SECRET)
    act = series.erase("a", 1, "asked for")
    assert "_tseries/staging/run.arrow" in act.files
    maintained(path)
    assert series.describe()["erasure_files"] == ["_tseries/staging/run.arrow"]
    maintained(path, DAY_US + TEN_MINUTES_US)
    assert series.describe()["erasure_files"] == []
    (staging / "later.arrow").write_text("of a batch that goes on")
    assert series.describe()["erasure_files"] == []


def test_a_backup_has_the_act_and_none_of_the_values(series, path, tmp_path):
    act = series.erase("a", 1, "asked for")
    backup(path, tmp_path / "copy")
    copy = TimeSeries.open(tmp_path / "copy", "me", auto_compact=False)
    assert [each.id for each in copy.erasures()] == [act.id]
    assert events(copy) == events(series)
    assert holding(tmp_path / "copy", SECRET) <= set(copy.describe()["erasure_files"])
    assert copy.verify() == []


def test_later_compactions_and_other_tools_keep_the_nulls(series, path):
    act = series.erase("a", 1, "asked for")
    compact(str(path))
    DeltaTable(path).optimize.z_order(["sequence"])
    compact(str(path))
    assert events(series)[1] == (1, None)
    assert [row for row in stored(path, "sequence", "erasure") if row[1]] == [
        (1, act.id),
        (4, act.id),
    ]
    assert verify(str(path)) == []


def test_verify_finds_a_value_of_an_erased_event(series, path):
    import pyarrow.parquet as pq

    series.erase("a", 1, "asked for")
    data = next(
        file
        for file in Store.open(str(path)).data_files()
        if "erasure" in pq.ParquetFile(path / file.path).schema_arrow.names and file.kind == "event"
    )
    table = pq.ParquetFile(path / data.path).read()
    forged = table.set_column(table.schema.get_field_index("text"), "text", pa.array([SECRET]))
    pq.write_table(forged, path / data.path)
    found = " ".join(map(str, verify(str(path))))
    assert "value of an erased event in column 'text'" in found or "bytes instead of" in found


# -- the newest of a series ----------------------------------------------------------------------


def test_an_erased_event_of_the_future_hides_nothing_and_the_series_goes_on(tmp_path):
    series = new(tmp_path / "s", "last 30D")
    for number in range(20):
        series.append("a", f"real {number}", at(number))
    wrong = _append_future(series, "a")
    assert [value for _, value in events(series, kind="values")] == ["wrong"]
    with pytest.raises(OutOfOrder):
        series.append("a", "late", at(21))
    series.erase("a", wrong, "a clock of 2099")
    values = [value for _, value in events(series, kind="values")]
    assert values == [*(f"real {number}" for number in range(20)), None]
    assert series.append("a", "on time", at(21)).sequence == 21
    assert series.append("a", "without a time").timestamp < datetime(2099, 1, 1, tzinfo=UTC)
    found = series.range_query().from_last(timedelta(0)).select_from("a").events
    assert [event.value for event in found] == [None, "without a time"]
    assert verify(str(tmp_path / "s")) == []
    compact(str(tmp_path / "s"))
    rebuild(str(tmp_path / "s"))
    assert verify(str(tmp_path / "s")) == []
    with pytest.raises(OutOfOrder):
        series.append("a", "late", at(19))


def _append_future(series, name, value="wrong"):
    row = {"series": name, "text": value, "timestamp": datetime(2099, 1, 1, tzinfo=UTC)}
    told = series.append_many(pa.Table.from_pylist([row]), max_future=timedelta.max)
    return told["sequence"].to_pylist()


def test_an_erased_event_of_the_future_does_not_raise_the_floor_of_a_changed_range(tmp_path):
    series = new(tmp_path / "s", "last 30D")
    for number in range(5):
        series.append("a", f"real {number}", at(number))
    wrong = _append_future(series, "a")
    series.set_retained_range("last 20D")
    series.erase("a", wrong, "a clock of 2099")
    series.append("a", "new", at(6))
    assert [value for _, value in events(series, kind="values")] == [None, "new"]
    assert verify(str(tmp_path / "s")) == []


def test_what_compaction_removed_while_it_was_hidden_does_not_come_back(tmp_path):
    series = new(tmp_path / "s", "last 30D")
    for number in range(5):
        series.append("a", f"real {number}", at(number))
    wrong = _append_future(series, "a")
    compact(str(tmp_path / "s"))
    series.erase("a", wrong, "a clock of 2099")
    assert events(series, kind="values") == [(5, None)]
    series.append("a", "new", at(6))
    series.append("a", "newer", at(7))
    compact(str(tmp_path / "s"))
    assert events(series, kind="values") == [(5, None), (6, "new"), (7, "newer")]
    assert verify(str(tmp_path / "s")) == []
    rebuild(str(tmp_path / "s"))
    assert verify(str(tmp_path / "s")) == []


def test_an_edit_with_the_time_of_an_erased_original_gives_it_to_no_other_event(tmp_path):
    series = new(tmp_path / "s", "last 30D")
    series.append("a", "real", at(0))
    wrong = _append_future(series, "a")
    assert series.edit("a", 1, "x").timestamp == datetime(2099, 1, 1, tzinfo=UTC)
    series.set_retained_range("unlimited")
    series.edit("a", wrong[0], "y")
    series.erase("a", wrong, "a clock of 2099")
    assert series.append("a", "without a time").timestamp < datetime(2099, 1, 1, tzinfo=UTC)
    assert verify(str(tmp_path / "s")) == []


# -- writers, compactions and kills meanwhile ----------------------------------------------------


def erase_meeting(path, sequence, *others, after=(), commits=200):
    """Erase an event, with others on other hosts around the first publication."""
    store = Meeting(Store.open(str(path)), before=others, after=after, commits=commits)
    return erase(store, "a", sequence, "asked for", principal="me")


def test_an_edit_that_came_first_is_erased_too(series, path):
    """Another host's edit is committed while the act is being prepared."""
    other = TimeSeries(rival(Store.open(str(path))), "me", auto_compact=False)
    act = erase_meeting(path, 1, lambda: other.edit("a", 1, f"{SECRET}, again"))
    assert act.events == (1, 4, 5 + 1 - 1)
    assert events(series)[-1] == (5, None)
    assert verify(str(path)) == []
    maintained(path)
    assert holding(path, SECRET) == set()


def test_a_compaction_that_came_first_makes_the_act_look_again(series, path):
    other = rival(Store.open(str(path)))
    act = erase_meeting(
        path, 1, lambda: merge_file_groups(other, read_wall_clock(), everything=True)
    )
    assert events(series)[1] == (1, None)
    assert set(act.files) == holding(path, SECRET)
    assert verify(str(path)) == []


def test_an_act_that_came_first_makes_a_compaction_start_again(series, path, monkeypatch):
    real = replace_files

    def slow(*given):
        monkeypatch.setattr("pyspark_tseries.maintain.compactor.replace_files", real)
        series.erase("a", 1, "asked for")
        return real(*given)

    monkeypatch.setattr("pyspark_tseries.maintain.compactor.replace_files", slow)
    compact(str(path))
    assert events(series)[1] == (1, None)
    assert verify(str(path)) == []
    maintained(path)
    assert holding(path, SECRET) == set()


def test_an_edit_prepared_before_the_act_is_refused_after_it(series, path):
    other = rival(Store.open(str(path)))
    act = lambda: erase(other, "a", 2, "asked for", principal="me")  # noqa: E731
    late = TimeSeries(Meeting(Store.open(str(path)), before=[act]), "me", auto_compact=False)
    with pytest.raises(NoSuchEvent, match="was erased"):
        late.edit("a", 2, SECRET)
    assert verify(str(path)) == []


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_acts_appends_and_compactions_at_the_same_time_lose_nothing(path):
    new(path).append("a", "first", at(0))
    errors = []

    def guarded(act):
        def run():
            try:
                act(TimeSeries.open(path, "me", auto_compact=False))
            except Exception as error:
                errors.append(error)

        return threading.Thread(target=run)

    def appends(series):
        for number in range(15):
            series.append("a", f"{number}")

    def erases(series):
        chance = random.Random(1)
        for _ in range(8):
            series.erase("a", chance.randint(0, len(events(series)) - 1), "at random")

    def compacts(series):
        for _ in range(4):
            with contextlib.suppress(StoreBusy):  # Acts were first each time.
                series.compact()

    threads = [guarded(act) for act in (appends, appends, erases, compacts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    series = TimeSeries.open(path, "me")
    erased = {sequence for act in series.erasures() for sequence in act.events}
    assert {sequence for sequence, value in events(series) if value is None} == erased
    assert len(events(series)) == 31
    assert verify(str(path)) == []


def test_a_power_loss_at_any_point_erases_all_of_it_or_nothing(tmp_path, monkeypatch):
    path, left, states = tmp_path / "home" / "s", tmp_path / "left", set()
    path.parent.mkdir()
    acknowledged = []

    def lose_power():
        for names in (False, True):
            disk.leave(left, names=names)
            forget_stores()
            if not acknowledged:
                continue
            there = TimeSeries.open(left, "me", auto_compact=False)
            state = tuple(value for _, value in events(there))
            states.add(state)
            assert state in acknowledged[-1]
            assert verify(str(left)) == []
            erased = {each for act in there.erasures() for each in act.events}
            assert {n for n, value in enumerate(state) if value is None} == erased

    disk = Disk(path, monkeypatch, lose_power)
    series = new(path)
    series.append_many(pa.table({"series": ["a"] * 3, "text": ["0", SECRET, "2"]}))
    series.edit("a", 1, f"{SECRET}, edited")
    whole, erased = ("0", SECRET, "2", f"{SECRET}, edited"), ("0", None, "2", None)
    acknowledged.append({whole, erased})
    series.erase("a", 1, "asked for")
    acknowledged.append({erased})
    lose_power()
    maintained(path)
    lose_power()
    assert states == {whole, erased}


@pytest.mark.outside_ci
def test_a_full_disk_at_any_point_erases_nothing_or_all(series, path, monkeypatch):
    writes = 0

    def failing(limit, name):
        real = getattr(Location, name)

        def write(*given, **named):
            nonlocal writes
            writes += 1
            if writes > limit:
                raise OSError(28, "No space left on device")
            return real(*given, **named)

        return write

    before = events(series)
    for limit in range(12):
        writes = 0
        with monkeypatch.context() as patch:
            for name in ("write", "write_whole"):
                patch.setattr(Location, name, failing(limit, name))
            try:
                series.erase("a", 1, "asked for")
            except OSError:
                assert events(series) == before
                assert verify(str(path)) == []
                continue
            break
    assert limit >= 3
    assert events(series)[1] == (1, None)
    assert verify(str(path)) == []


def test_an_act_whose_answer_was_lost_is_found_and_made_once(series, path):
    lost = lambda: fail(CommitFailedError("the answer was lost"))  # noqa: E731
    act = erase_meeting(path, 1, after=[lost])
    assert series.erasures() == [act]
    assert series.describe()["last_commit"] == act.commit
    assert verify(str(path)) == []


def test_a_lost_head_is_rebuilt_with_its_acts(series, path):
    act = series.erase("a", 3, "the newest")
    head = Store.open(str(path)).head_id()
    for file in (path / "_tseries" / "head").iterdir():
        if file.name.startswith(f"{head:016x}"):
            file.unlink()
    forget_stores()
    repair(str(path))
    again = TimeSeries.open(path, "me", auto_compact=False)
    assert [each.id for each in again.erasures()] == [act.id]
    assert again.append("a", "from 2 on", at(2)).sequence == 5
    assert verify(str(path)) == []


def test_a_restored_version_from_before_the_act_is_refused(series, path):
    version = DeltaTable(path).version()
    series.erase("a", 1, "asked for")
    DeltaTable(path).restore(version)
    forget_stores()
    with pytest.raises(UnusableStore, match="RESTORE"):
        TimeSeries.open(path)
    repair(str(path))
    forget_stores()
    assert events(TimeSeries.open(path, "me"))[1] == (1, None)


# -- who may, and what is refused ----------------------------------------------------------------


def test_only_an_owner_may_erase(tmp_path):
    policy = {"boss": ["own"], "me": ["read", "update", "edit", "query_obsolete"]}
    series = new(tmp_path / "s", policy=policy)
    series.append("a", SECRET)
    with pytest.raises(PermissionDenied, match="may not erase values"):
        series.erase("a", 0, "asked for")
    assert "erasure" not in pa.schema(DeltaTable(tmp_path / "s").schema()).names
    line = ["erase", str(tmp_path / "s"), "--series", "a", "--sequence", "0", "--reason", "asked"]
    assert main([*line, "--principal", "me"]) == 1
    assert main([*line, "--principal", "boss"]) == 0
    assert events(series) == [(0, None)]


@pytest.mark.parametrize("sequences", [[7], [-1], [0, 99]])
def test_a_sequence_that_never_was_is_refused_and_nothing_is_erased(series, path, sequences):
    version = DeltaTable(path).version()
    with pytest.raises(NoSuchEvent, match=r"has no event .*its newest is sequence 4.*Nothing"):
        series.erase("a", sequences, "asked for")
    with pytest.raises(NoSuchEvent, match="it is empty"):
        series.erase("nobody", 0, "asked for")
    assert DeltaTable(path).version() == version


@pytest.mark.parametrize(
    ("name", "sequences", "reason"),
    [
        ("a", [], "why"),
        ("a", [True], "why"),
        ("a", ["1"], "why"),
        ("a", [1.0], "why"),
        ("a", None, "why"),
        ("a", 1.0, "why"),
        ("a", "1", "why"),
        ("a", b"\1", "why"),
        ("a", np.array([1], "timedelta64[ns]"), "why"),
        ("a", 1, ""),
        ("a", 1, "  "),
        ("a", 1, None),
        ("a", 1, "\ud800"),
        (None, 1, "why"),
        ("\ud800", 1, "why"),
    ],
)
def test_wrong_arguments_are_refused_by_name(series, path, name, sequences, reason):
    with pytest.raises(IncompatibleValue, match="next step"):
        series.erase(name, sequences, reason)
    assert series.erasures() == []


def test_a_value_column_may_not_have_the_name_of_the_acts_column(tmp_path):
    with pytest.raises(IncompatibleValue, match="Erasure"):
        TimeSeries.create(tmp_path / "s", {"Erasure": pa.string()})


# -- the command line, and an object store -------------------------------------------------------


def test_the_command_line_erases_and_lists(series, path, capsys):
    line = ["erase", str(path), "--series", "a", "--sequence", "1", "2", "--reason", "a request"]
    assert main(line) == 0
    said = capsys.readouterr().out
    act = json.loads(said.splitlines()[0])
    assert (act["events"], act["reason"]) == ([1, 2, 4], "a request")
    assert f"maintain {path}" in said
    assert main(line) == 0
    assert "erased before" in capsys.readouterr().out
    assert main(["erasures", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == act
    assert main([*line[:5], "99", *line[7:]]) == 1
    assert "has no event 99" in capsys.readouterr().err


@pytest.mark.outside_ci
@pytest.mark.timeout(300)
def test_an_object_store_erases_as_a_disk_does(bucket):  # noqa: F811 the fixture
    location = parse_location(bucket.uri("erase"), bucket.options)
    Store.create(location, [VALUE], UNLIMITED, min_retention_us=0)
    series = TimeSeries.open(
        location.root, "me", auto_compact=False, storage_options=dict(location.options)
    )
    for number in range(3):
        series.append("a", 7000.0 + number, at(number))
    act = series.erase("a", 1, "asked for")
    assert isinstance(act, Erasure)
    assert [value for _, value in events(series)] == [7000.0, None, 7002.0]
    assert len(act.files) == 1
    remove_obsolete_files(Store.open(location), read_wall_clock() + TEN_MINUTES_US)
    assert series.describe()["erasure_files"] == []
    assert series.verify() == []


def test_attempts_end_and_say_that_nothing_was_erased(series, path):
    busy = lambda: fail(CommitFailedError("another was first"))  # noqa: E731
    before = sorted(path.glob("kind=*/*"))
    with pytest.raises(StoreBusy, match="nothing was erased"):
        erase_meeting(path, 1, *[busy] * 5, commits=2)
    assert sorted(path.glob("kind=*/*")) == before


def test_the_sql_of_other_engines_shows_what_this_package_shows_after_an_act(tmp_path):
    import duckdb

    series = new(tmp_path / "s", "last 30D")
    for number in range(5):
        series.append("a", f"real {number}", at(number))
    series.edit("a", 2, "edited")
    series.erase("a", [0, *_append_future(series, "a")], "a clock of 2099")
    said = "CASE WHEN original_sequence IS NULL AND erasure IS NULL"
    assert said in foreign.PAGE
    sql = foreign.current_values("last 30D").replace("CASE WHEN original_sequence IS NULL", said)
    events_table = DeltaTable(tmp_path / "s").to_pyarrow_table()
    found = duckdb.sql(sql.replace("FROM events", "FROM events_table")).to_arrow_table()
    assert events_table.num_rows == 7
    values = [(row["sequence"], row["text"]) for row in found.to_pylist()]
    assert values == events(series, kind="values")


def test_a_series_of_erased_edits_alone_is_sound_and_keeps_its_counts(path):
    """Its original has left the retained range, and compaction has removed it."""
    series = new(path)
    series.append("a", "real", at(0))
    series.edit("a", 0, "edited")
    series.erase("a", 0, "asked for")
    series.set_retained_range("limit 1")
    compact(str(path))
    assert stored(str(path), "sequence") == [(1,)]
    (row,) = series.series().to_pylist()
    assert (row["events"], row["edits"], row["first"]) == (1, 1, at(0))
    assert verify(str(path)) == []


@given(st.sets(st.integers(0, 30)), st.integers(-1, 30))
def test_the_last_gap_is_the_greatest_number_that_is_not_stored(stored, last):
    stored = {each for each in stored if each <= last}
    expected = max(set(range(last + 1)) - stored, default=-1)
    assert find_last_gap(np.array(sorted(stored), np.int64), last) == expected
