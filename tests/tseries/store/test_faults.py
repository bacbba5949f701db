"""Faults around a store lose nothing, double nothing, and are named."""

import os
import shutil
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema
from tseries.builders import VALUE, forget_stores, stored
from tseries.meetings import Meeting

from pyspark_tseries import (
    IncompatibleValue,
    InvalidQuery,
    NoSuchStore,
    StorageFailed,
    TimeSeries,
    UpdateFailed,
)
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.ranges import parse_initial
from pyspark_tseries.read.delivery import InitialEvents, read_delivery
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store
from pyspark_tseries.write import batch as attempts
from pyspark_tseries.write import numbering

VALUES = {"value": pa.float64()}


@pytest.fixture
def series(tmp_path):
    return TimeSeries.create(tmp_path / "s", VALUES, "limit 100", author="me", auto_compact=False)


def without_checkpoints(path):
    """From now on a commit fails after it was made: its checkpoint cannot be written."""
    (path / "_delta_log" / "_last_checkpoint").mkdir()


# -- after the commit ----------------------------------------------------------------------------


def test_append_is_stored_once_if_the_checkpoint_after_it_fails(series, tmp_path):
    without_checkpoints(tmp_path / "s")
    for n in range(12):
        assert series.append("a", float(n)).sequence == n
    assert [row[1] for row in stored(tmp_path / "s")] == list(range(12))
    assert series.verify() == []


def test_commit_with_lost_answer_is_found_after_rebuilding_the_head(series, tmp_path):
    def lose_answer():
        rebuild(str(tmp_path / "s"))
        raise OSError("the checkpoint after it")

    series.append("a", 0.0)
    store = Meeting(Store.open(tmp_path / "s"), after=[lose_answer])
    assert TimeSeries(store, "me", auto_compact=False).append("a", 1.0).sequence == 1
    assert [row[1] for row in stored(tmp_path / "s")] == [0, 1]
    assert series.append("a", 2.0).sequence == 2
    assert series.verify() == []


def test_compaction_loses_nothing_if_the_checkpoint_after_it_fails(series, tmp_path):
    for n in range(8):
        series.append("a", float(n))
    without_checkpoints(tmp_path / "s")
    # The store's tenth commit: now a checkpoint is due.
    assert series.compact().files_after == 1
    assert [row[1] for row in stored(tmp_path / "s")] == list(range(8))
    assert series.verify() == []


def test_range_change_holds_if_the_checkpoint_after_it_fails(series, tmp_path):
    for n in range(8):
        series.append("a", float(n))
    without_checkpoints(tmp_path / "s")
    series.set_retained_range("limit 3")
    assert len(series.range_query().select_from("a")) == 3
    assert series.verify() == []


def test_a_compaction_on_a_full_disk_changes_nothing_and_says_why(series, tmp_path, monkeypatch):
    from pyspark_tseries.maintain import compactor

    for n in range(3):
        series.append("a", float(n))
    before = sorted(os.listdir(tmp_path / "s" / "kind=event"))

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compactor, "replace_files", full)
    with pytest.raises(OSError, match="No space left"):
        compact(tmp_path / "s")
    assert sorted(os.listdir(tmp_path / "s" / "kind=event")) == before
    assert series.verify() == []


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("what", ["write_head", "write_events"])
def test_full_disk_fails_an_append_without_leaving_files(series, tmp_path, monkeypatch, what):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    series.append("a", 0.0)
    monkeypatch.setattr(attempts if what == "write_head" else numbering, what, full)
    before = sorted(path for path in (tmp_path / "s").rglob("*") if path.is_file())
    with pytest.raises(OSError, match="No space left"):
        series.append("a", 1.0)
    assert sorted(path for path in (tmp_path / "s").rglob("*") if path.is_file()) == before
    monkeypatch.undo()
    assert series.append("a", 2.0).sequence == 1
    assert series.verify() == []


# -- a store that is moved, removed, or cannot be made -------------------------------------------


def test_a_store_that_was_moved_away_can_be_moved_back(series, tmp_path):
    series.append("a", 0.0)
    os.rename(tmp_path / "s", tmp_path / "away")
    with pytest.raises(NoSuchStore):
        series.append("a", 1.0)
    with pytest.raises(NoSuchStore):
        series.compact()
    assert not (tmp_path / "s").exists()
    os.rename(tmp_path / "away", tmp_path / "s")
    assert series.append("a", 1.0).sequence == 1
    assert series.verify() == []


@pytest.mark.parametrize("path", ["file", "file/s"])
def test_store_that_cannot_be_created_gives_a_one_line_error(tmp_path, path):
    (tmp_path / "file").write_text("in the way")
    step = rf"'.*/{path}.*cannot be.*next step: '{tmp_path}/file' is a file: choose a path"
    with pytest.raises(StorageFailed, match=step):
        TimeSeries.create(tmp_path / path, VALUES)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("columns", "asked"),
    [
        ({"other": pa.int64()}, {}),
        (VALUES, {"retained_range": "limit 3"}),
        (VALUES, {"subscription_range": "none"}),
        (VALUES, {"min_retention_age": timedelta(days=9)}),
        (VALUES, {"author": "me", "policy": {"me": ["update"]}}),
    ],
)
def test_concurrent_creation_gives_each_the_store_it_asked_for(
    tmp_path, monkeypatch, columns, asked
):
    real = Store.create

    def late(location, *given, **named):
        real(location, [VALUE], None)
        return real(location, *given, **named)

    monkeypatch.setattr(Store, "create", late)
    with pytest.raises(UnusableStore, match="there is a store at"):
        TimeSeries.create(tmp_path / "s", columns, **asked)
    assert TimeSeries.create(tmp_path / "same", VALUES).append("a", 1.0).sequence == 0


@pytest.mark.parametrize("wrong", [None, 5, "a\\b", "a\nb", "a%20b", ""])
def test_what_is_no_path_is_refused_and_creates_nothing(tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"path|directory"):
        TimeSeries.create(wrong, VALUES)
    assert os.listdir(tmp_path) == []


def test_lost_head_error_names_the_rebuild_command(series, tmp_path):
    series.append("a", 0.0)
    shutil.rmtree(tmp_path / "s" / "_tseries" / "head")
    forget_stores()
    with pytest.raises(UnusableStore, match=r"python -m pyspark_tseries repair .*/s"):
        TimeSeries.open(tmp_path / "s").append("a", 1.0)


def broken(path):
    for file in (path / "_tseries" / "head").iterdir():
        file.write_bytes(b"")


@pytest.mark.parametrize("harm", [lambda path: shutil.rmtree(path / "_tseries" / "head"), broken])
@pytest.mark.parametrize("use", ["reader", "writer", "streamReader", "streamWriter"])
def test_through_spark_as_well_before_any_task(series, tmp_path, harm, use):
    series.append("a", 0.0)
    harm(tmp_path / "s")
    forget_stores()
    source = DefaultSource({"path": str(tmp_path / "s")})
    schema = from_arrow_schema(pa.schema([("series", pa.string()), ("value", pa.float64())]))
    with pytest.raises(UnusableStore, match=r"python -m pyspark_tseries repair .*/s"):
        getattr(source, use)(*((schema, False) if "riter" in use else (source.schema(),)))


# -- what is given -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"author": 5},
        {"retained_range": 5},
        {"subscription_range": 5},
        {"min_retention_age": timedelta(-1)},
        {"policy": {"me": None}},
        {"policy": {"me": [5]}},
    ],
)
def test_an_argument_of_a_wrong_type_creates_no_store(tmp_path, wrong):
    with pytest.raises(ValueError, match=r"text|is unknown|permissions?"):
        TimeSeries.create(tmp_path / "s", VALUES, **wrong)
    assert not (tmp_path / "s").exists()


def test_a_policy_may_come_from_an_iterator(tmp_path):
    series = TimeSeries.create(tmp_path / "s", VALUES, author="me", policy={"me": iter(["update"])})
    assert series.append("a", 1.0).sequence == 0


@pytest.mark.parametrize("stamp", ["2020-01-01", 5, datetime(2020, 1, 1, tzinfo=UTC).date()])
def test_value_that_is_not_a_timestamp_is_refused(series, stamp):
    with pytest.raises(IncompatibleValue, match="is not a datetime; accepted: an aware datetime"):
        series.append("a", 1.0, stamp)
    assert series.describe()["events"] == 0


@pytest.mark.parametrize("us", [2**63 - 1, 2**62, -(2**63), 253_402_300_800_000_000])
def test_timestamp_out_of_range_is_refused_with_its_series(series, us):
    stamp = pa.array([None, us]).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"series": ["a", "b"], "timestamp": stamp, "value": [1.0, 2.0]})
    with pytest.raises(UpdateFailed, match=f"series 'b': timestamp {us} us .* out of range"):
        series.append_many(rows)
    assert series.describe()["events"] == 0


def test_many_rows_that_are_neither_table_frame_nor_mappings_are_refused(series):
    columns = {"series": ["a"], "value": [1.0]}
    assert series.append_many(pa.record_batch(columns)).num_rows == 1
    for wrong in (columns, [("a", 1.0)], None, "a"):
        with pytest.raises(IncompatibleValue, match="accepted: a table or batches of Arrow"):
            series.append_many(wrong)
    assert series.describe()["events"] == 1


@pytest.mark.parametrize("wrong", [[5], ["a", None], 5])
def test_a_query_names_series_by_texts(series, wrong):
    with pytest.raises(InvalidQuery, match="is not the name of a series"):
        series.range_query().select_from(wrong)


@pytest.mark.parametrize(
    "name", ["", "\x00", "a\x00b", "x" * 10_000, "/../..", "😀", "'\"\\", "[a"]
)
def test_any_text_names_a_series(series, name):
    series.append(name, 1.0)
    series.edit(name, 0, 2.0)
    series.append(name + "~", 3.0)
    series.compact()
    assert [event.value for event in series.range_query().select_from(name).events] == [2.0]
    assert series.verify() == []


# -- columns that another writer adds ------------------------------------------------------------


def test_an_open_client_follows_the_columns_that_others_add(series, tmp_path):
    series.append("a", 1.0)
    rival = Store(str(tmp_path / "s"), DeltaTable(tmp_path / "s"))
    add_columns(rival, [VALUE, pa.field("note", pa.string())])
    series.append("a", 2.0)  # As ever: what it does not name is null.
    series.append("a", {"value": 3.0, "note": "new"})
    add_columns(rival, [VALUE, pa.field("more", pa.int64())])
    rows = pa.table({"series": ["a"], "value": [4.0], "more": [4]})
    series.append_many(rows)
    found = [event.value for event in series.range_query().select_from("a").events]
    assert found == [
        {"value": 1.0, "note": None, "more": None},
        {"value": 2.0, "note": None, "more": None},
        {"value": 3.0, "note": "new", "more": None},
        {"value": 4.0, "note": None, "more": 4},
    ]
    with pytest.raises(IncompatibleValue, match="'nobody'"):
        series.append("a", {"nobody": 1})
    assert series.verify() == []


def test_results_of_different_series_are_not_merged(series):
    series.append("a", 1.0)
    series.append("b", 2.0)
    one, other = (series.range_query().select_from(name) for name in "ab")
    with pytest.raises(InvalidQuery, match="different series, 'a', 'b'"):
        one.merge(other)
    assert len(one.merge(series.range_query().select_from("nobody"))) == 1


@pytest.mark.parametrize("broken", ["missing", "cut short"])
def test_a_broken_file_of_events_says_what_to_do(series, tmp_path, broken):
    for n in range(3):
        series.append("a", float(n))
    victim = sorted((tmp_path / "s" / "kind=event").iterdir())[1]
    victim.unlink() if broken == "missing" else victim.write_bytes(b"PAR1")
    said = rf"cannot be read.*python -m pyspark_tseries verify {tmp_path / 's'}"
    with pytest.raises(UnusableStore, match=said):
        series.range_query().select_from("a")
    source = DefaultSource({"path": str(tmp_path / "s")})
    reader = source.reader(source.schema())
    with pytest.raises(UnusableStore, match=said):
        [list(reader.read(part)) for part in reader.partitions()]
    follower = Subscription(str(tmp_path / "s"), InitialEvents(parse_initial("unlimited"), {}))
    start = follower.find_start()
    with pytest.raises(UnusableStore, match=said):
        [
            list(read_delivery(task))
            for task in follower.plan_tasks(start, follower.find_end(start, None))
        ]
    assert series.verify() != []
