"""Other tools on a store: what keeps the rows works; what changes them is refused, and undone."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from lengths import outside_ci, with_rest_outside_ci
from tseries.builders import forget_stores
from tseries.rewriting import in_milliseconds, rewritten_by_spark
from tseries.spark_calls import read
from tseries.subscriber import Client

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import StoreBusy, UnusableStore
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import RepairResult, plan_revert, repair, revert_changes
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import Query, parse_range
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.store import checkpoints
from pyspark_tseries.store.store import Store

pytestmark = pytest.mark.thorough

NAMES = ["", "a", "b", "room \U00020bb7", "z" * 200, "z" * 200 + "y", "\U0010ffff"]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def opened(path):
    forget_stores()
    return TimeSeries.open(path, "me", auto_compact=False)


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    """A store of many commits, with edits, and with series of unusual names."""
    place = tmp_path_factory.mktemp("model") / "s"
    series = TimeSeries.create(
        place,
        {"value": pa.float64()},
        "limit 9",
        "me",
        min_retention_age=timedelta(0),
        auto_compact=False,
    )
    for number in range(6):
        rows = {"series": NAMES, "value": [float(number)] * len(NAMES)}
        at = [BEGIN + timedelta(seconds=number)] * len(NAMES)
        series.append_many(pa.table({**rows, "timestamp": at}))
        series.edit(NAMES[number], number // 2, 100.0)
    checkpoints.wait_for_checkpoints()
    return place


@pytest.fixture
def path(model_store, tmp_path):
    """A copy of that store, with its times."""
    return Path(shutil.copytree(model_store, tmp_path / "s"))


def contents(path):
    """The answers of queries for every series."""
    series = opened(path)
    found = {}
    query = series.range_query()
    queries = {
        "values": query,
        "some": query.from_(BEGIN).next(2),
        "times": query.from_(BEGIN + timedelta(seconds=1)).to(BEGIN + timedelta(seconds=4)),
        "edits": query.for_edits(),
        "latest": query.for_edits().latest_edits().from_last(3),
    }
    for name in [*NAMES, "nobody"]:
        # Every series by all its events and values, and some by each kind of query.
        for asked in queries if name in NAMES[:3] else ("values", "edits"):
            events = queries[asked].select_from(name).events
            found[name, asked] = [(e.sequence, e.value, e.timestamp) for e in events]
    return found


def compacted(table):
    table.optimize.compact()


def small_groups(table):
    from deltalake import WriterProperties

    few = WriterProperties(max_row_group_size=3, compression="SNAPPY", statistics_truncate_length=2)
    table.optimize.compact(writer_properties=few)


def clustered_by_time(table):
    table.optimize.z_order(["timestamp", "value"])


def clustered(table):
    table.optimize.z_order(["series", "sequence"])


TOOLS = [compacted, small_groups, clustered_by_time, clustered, rewritten_by_spark]


@pytest.mark.parametrize("tool", with_rest_outside_ci(TOOLS, [rewritten_by_spark]))
def test_a_store_that_another_tool_has_optimized_simply_works(path, tool):
    subscriber = Client(path, parse_range("unlimited"))
    subscriber.poll()
    series = TimeSeries.open(path, "me", auto_compact=False)  # Open all the time.
    series.append("b", 6.0, BEGIN + timedelta(minutes=1))
    before, spark = contents(path), sorted(read(path))
    version = DeltaTable(path).version()
    tool(DeltaTable(path))
    assert DeltaTable(path).version() > version
    assert contents(path) == before
    assert sorted(read(path)) == spark
    assert verify(str(path)) == []
    assert [row[:2] for row in subscriber.poll()] == [("b", 7)]
    assert series.append("b", 7.0, BEGIN + timedelta(minutes=2)).sequence == 8
    assert series.edit("b", 6, 60.0).sequence == 9
    subscriber.drain()
    assert [row[:2] for row in subscriber.got[-2:]] == [("b", 8), ("b", 9)]
    before = contents(path)
    assert rebuild(str(path)) == len(NAMES)
    assert contents(path) == before
    assert series.compact().files_after == 2
    assert contents(path) == before
    assert not any(file.is_foreign for file in Store.open(path).snapshot().files)
    assert verify(str(path)) == []
    tool(DeltaTable(path))
    assert contents(path) == before


@pytest.mark.parametrize("tool", [rewritten_by_spark, in_milliseconds])
def test_timestamps_of_other_units_are_found_in_every_year(tmp_path, tool):
    path, days = (
        tmp_path / "s",
        [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1969, 2026, 9999)],
    )
    series = TimeSeries.create(path, {"value": pa.timestamp("us", "UTC")}, auto_compact=False)
    for day in days:
        series.append("a", day, day)
    tool(DeltaTable(path))
    series = opened(path)
    query = series.range_query()
    assert [event.value for event in query.select_from("a").events] == days
    for day in days:
        (event,) = query.from_(day).to(day + timedelta(hours=1)).select_from("a").events
        assert (event.timestamp, event.value) == (day, day)
    series.compact()
    assert [event.timestamp for event in query.select_from("a").events] == days


@pytest.mark.parametrize("tool", with_rest_outside_ci(TOOLS, [rewritten_by_spark]))
def test_as_of_finds_the_commits_of_rows_that_another_tool_has_gathered(path, tool):
    moment, series, before = read_wall_clock(), opened(path), sorted(read(path))
    series.append("a", 9.0)
    tool(DeltaTable(path))
    past = Store.open(path).snapshot().at_time(moment)
    assert past.as_of == 11
    found = run_query(Scope(past, past.index()), Query()).table
    keys = zip(found["series"].to_pylist(), found["sequence"].to_pylist(), strict=True)
    assert sorted(keys) == before


def test_compaction_after_optimize_removes_only_events_out_of_range(path):
    series = opened(path)
    for number in range(20):
        series.append("a", float(number))
    before = contents(path)
    compacted(DeltaTable(path))
    removed = series.compact().removed_events
    assert removed == 17  # Nine of 27 events are in range, and the newest edit stays.
    assert contents(path) == before
    assert verify(str(path)) == []


@pytest.mark.parametrize("full", [False, True])
def test_a_vacuum_by_another_tool_takes_nothing_that_is_needed(path, full):
    series = opened(path)
    series.compact()
    before = contents(path)
    removed = DeltaTable(path).vacuum(0, False, enforce_retention_duration=False, full=full)
    assert len(removed) == 12
    assert contents(path) == before
    assert series.append("a", 1.0).sequence == 7
    assert verify(str(path)) == []


def test_other_tools_read_what_they_have_optimized_and_what_came_after(path):
    compacted(DeltaTable(path))
    opened(path).append("a", 11.0)
    rows = duckdb.sql(f"SELECT max(value) FROM read_parquet({DeltaTable(path).file_uris()})")
    assert rows.fetchall() == [(100.0,)]
    assert DeltaTable(path).to_pyarrow_table().num_rows == 7 * 6 + 6 + 1


def test_maintenance_by_many_tools_at_once_loses_nothing(path):
    series = opened(path)
    for number in range(8):
        TOOLS[number % 4](DeltaTable(path))
        series.append("a", float(number))
        DeltaTable(path).vacuum(0, False, enforce_retention_duration=False)
        if number % 3 == 0:
            series.compact()
    assert [e.value for e in series.range_query().select_from("a").events][-8:] == [
        float(number) for number in range(8)
    ]
    assert verify(str(path)) == []


def merged_by_us(path):
    opened(path).compact()


def optimized_by_another(path):
    compacted(DeltaTable(path))


def appended_and_optimized(path):
    opened(path).append("a", 9.0)
    compacted(DeltaTable(path))


@pytest.mark.parametrize("undo", ["repair", "restore"])
@pytest.mark.parametrize(
    "rival", [optimized_by_another, *outside_ci(merged_by_us, appended_and_optimized)]
)
def test_an_optimize_that_overlooked_another_is_refused_and_undone(path, rival, undo):
    """delta-rs 1.6 adds the rows of files that another client has replaced meanwhile again."""
    series = opened(path)
    begun = DeltaTable(path)
    rival(path)
    before, sound = contents(path), DeltaTable(path).version()
    rows = DeltaTable(path).to_pyarrow_table().num_rows
    compacted(begun)
    assert DeltaTable(path).to_pyarrow_table().num_rows > rows, "delta-rs finds the conflict now"
    for use in (lambda: series.latest("a"), lambda: series.append("a", 1.0), lambda: Client(path)):
        with pytest.raises(UnusableStore, match=rf"is an OPTIMIZE .*restore\({sound}\)"):
            use()
    if undo == "repair":
        assert len(repair(str(path)).mended) == 1
    else:
        DeltaTable(path).restore(sound)
    assert contents(path) == before
    assert verify(str(path)) == []
    assert DeltaTable(path).to_pyarrow_table().num_rows == rows
    series.append("a", 10.0)


def without_read_version(path):
    """Take `readVersion` out of the newest entry, which Delta's protocol does not ask for."""
    table = DeltaTable(path)
    entry = Path(path, "_delta_log", f"{table.version():020d}.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("commitInfo", {}).pop("readVersion", None)
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("rival", [None, merged_by_us])
def test_an_optimize_that_does_not_say_what_it_read_is_refused_if_rows_are_there_twice(path, rival):
    begun = DeltaTable(path)
    if rival is not None:
        rival(path)
    before = contents(path)
    compacted(begun)
    without_read_version(path)
    if rival is None:
        assert contents(path) == before
        return
    with pytest.raises(UnusableStore, match=r"is an OPTIMIZE .*restore"):
        Client(path)
    assert len(repair(str(path)).mended) == 1
    assert contents(path) == before


# -- a change of rows ----------------------------------------------------------------------------


def deleted(table):
    table.delete("series = 'a' AND sequence = 1")


def emptied(table):
    table.delete()


def updated(table):
    table.update(predicate="series = 'b'", updates={"value": "7.5"})


def appended(table):
    rows = table.to_pyarrow_table().slice(0, 2)
    write_deltalake(table, rows, mode="append")


def overwritten(table):
    rows = table.to_pyarrow_table().slice(0, 20)
    write_deltalake(table, rows, mode="overwrite")


def merged(table):
    rows = table.to_pyarrow_table().slice(0, 1)
    merge = table.merge(rows, "t.series = s.series", source_alias="s", target_alias="t")
    merge.when_matched_update({"value": "1.5"}).execute()


CHANGES = {
    deleted: "a DELETE",
    emptied: "a DELETE",
    updated: "an UPDATE",
    appended: "a WRITE",
    overwritten: "a WRITE",
    merged: "a MERGE",
}


@pytest.mark.parametrize("change", with_rest_outside_ci(CHANGES, [deleted]))
def test_foreign_change_of_rows_is_refused_until_restored(path, change):
    before, series = contents(path), opened(path)
    sound = DeltaTable(path).version()
    change(DeltaTable(path))
    for use in (
        lambda: opened(path),
        lambda: series.append("a", 1.0),
        lambda: series.range_query().select_from("a"),
        lambda: series.compact(),
        lambda: rebuild(str(path)),
        lambda: read(path),
        lambda: Client(path),
    ):
        with pytest.raises(UnusableStore) as error:
            use()
        said = str(error.value)
        assert f"version {sound + 1} of its log is {CHANGES[change]} by 'delta-rs" in said
        assert f"restore({sound})" in said
        assert f"python -m pyspark_tseries repair {path}" in said
    assert any("changes rows" in line for line in map(str, verify(str(path))))
    DeltaTable(path).restore(sound)
    assert contents(path) == before
    assert series.append("a", 1.0).sequence == 7
    assert verify(str(path)) == []


@pytest.mark.parametrize("change", with_rest_outside_ci(CHANGES, [deleted]))
def test_repair_undoes_foreign_changes_and_keeps_the_tools_files(path, change):
    before, series = contents(path), opened(path)
    change(DeltaTable(path))
    compacted(DeltaTable(path))
    planned = repair(str(path), dry_run=True)
    with pytest.raises(UnusableStore):
        opened(path)
    done = repair(str(path))
    assert done == planned
    (mended,) = map(str, done.mended)
    assert f"{CHANGES[change]} by 'delta-rs" in mended
    assert all("a copy is in '" in line for line in done.lost)
    copies = {copy.name for copy in (path / "_tseries" / "lost").rglob("*.parquet")}
    assert len(copies) == len(done.lost)
    assert contents(path) == before
    assert verify(str(path)) == []
    assert series.append("a", 1.0).sequence == 7
    assert repair(str(path)) == RepairResult()


def test_a_second_repair_undoes_nothing_once_files_were_merged_after_the_first(path):
    before = contents(path)
    deleted(DeltaTable(path))
    late = Store.open_damaged(str(path))
    revert, _ = plan_revert(late)
    repair(str(path))
    opened(path).compact()
    with pytest.raises(StoreBusy, match="nothing was changed"):
        revert_changes(late, revert, [])
    assert contents(path) == before
    assert verify(str(path)) == []


def test_foreign_change_with_removed_files_is_reported_by_file(path):
    deleted(DeltaTable(path))
    (gone, *_) = DeltaTable(path).vacuum(0, False, enforce_retention_duration=False)
    done = repair(str(path))
    assert done.mended == ()
    assert f"'{gone}'" in str(done.left[0])
    assert "put them back from a copy of the store" in str(done.left[0])
    with pytest.raises(UnusableStore):
        opened(path)


def test_foreign_change_stays_refused_after_optimize_and_checkpoints(path):
    sound = DeltaTable(path).version()
    before = contents(path)
    deleted(DeltaTable(path))
    for _ in range(12):
        appended(DeltaTable(path))
    compacted(DeltaTable(path))
    with pytest.raises(UnusableStore, match=rf"version {sound + 1} .* DELETE .*restore\({sound}\)"):
        opened(path)
    DeltaTable(path).restore(sound)
    compacted(DeltaTable(path))
    assert contents(path) == before


def test_restore_of_an_older_version_is_reported_with_the_way_back(path):
    sound = DeltaTable(path).version()
    DeltaTable(path).restore(sound - 1)
    with pytest.raises(UnusableStore, match=rf"is a RESTORE by .*restore\({sound}\)"):
        opened(path)
    DeltaTable(path).restore(sound)
    assert opened(path).append("a", 1.0).sequence == 7


def test_changes_whose_log_is_gone_are_not_taken_for_harmless(path):
    deleted(DeltaTable(path))
    compacted(DeltaTable(path))
    for _ in range(10):
        DeltaTable(path).vacuum(0, False, enforce_retention_duration=False)
    DeltaTable(path).create_checkpoint()
    newest = DeltaTable(path).version()
    for version in range(newest):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(UnusableStore, match="nobody knows whether they changed rows"):
        opened(path)
    done = repair(str(path))
    assert "nobody knows whether they changed rows" in str(done.left[0])
    assert any("sequences 1 to 1 are missing" in line for line in map(str, done.left))


def test_repair_accepts_changes_without_log_if_all_events_are_sound(path):
    before = contents(path)
    compacted(DeltaTable(path))
    clustered(DeltaTable(path))
    DeltaTable(path).create_checkpoint()
    for version in range(DeltaTable(path).version()):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(UnusableStore, match="nobody knows whether they changed rows"):
        opened(path)
    assert "can be checked is sound" in str(repair(str(path)).mended[0])
    assert contents(path) == before
    assert opened(path).append("a", 1.0).sequence == 7


def test_a_property_that_another_tool_sets_changes_nothing(path):
    before = contents(path)
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 2 days"})
    DeltaTable(path).alter.set_table_description("rooms")
    assert contents(path) == before
    assert opened(path).append("a", 1.0).sequence == 7


def ask_for_changes(table):
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def ask_for_features(table):
    """One by one, with an OPTIMIZE in between."""
    wanted = (TableFeatures.ChangeDataFeed, TableFeatures.DeletionVectors)
    for feature in wanted:
        table.alter.add_feature(feature, allow_protocol_versions_increase=True)
        table = DeltaTable(table.table_uri)
        if feature is wanted[0]:
            compacted(table)


def test_a_feature_of_an_empty_store_is_refused_with_a_way_back_to_its_creation(tmp_path):
    path = str(tmp_path / "s")
    TimeSeries.create(path, {"v": pa.float64()}, "unlimited", auto_compact=False)
    ask_for_changes(DeltaTable(path))
    with pytest.raises(UnusableStore, match="asks its writers for") as refused:
        opened(path).append("a", 1.0)
    assert "restore(0, protocol_downgrade_allowed=True)" in str(refused.value)
    DeltaTable(path).restore(0, protocol_downgrade_allowed=True)
    assert opened(path).append("a", 1.0).sequence == 0


@pytest.mark.parametrize("ask", [ask_for_changes, ask_for_features])
def test_a_feature_that_asks_more_of_writers_is_refused_with_a_way_back_that_works(path, ask):
    """delta-rs has no way to drop a feature."""
    before, version = contents(path), DeltaTable(path).version()
    ask(DeltaTable(path))
    assert contents(path) == before
    with pytest.raises(UnusableStore, match=r"asks its writers for .*next step: drop") as refused:
        opened(path).append("a", 1.0)
    (said,) = re.findall(r"restore\((\d+), protocol_downgrade_allowed=True\)", str(refused.value))
    assert int(said) == version
    DeltaTable(path).restore(int(said), protocol_downgrade_allowed=True)
    assert contents(path) == before
    assert opened(path).append("a", 1.0).sequence == 7
    assert verify(str(path)) == []
