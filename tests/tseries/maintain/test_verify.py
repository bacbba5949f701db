"""`verify` finds what is broken and nothing else; `rebuild` brings a lost head back."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tseries.builders import batch, forget_stores, new_store, stored

from pyspark_tseries import describe
from pyspark_tseries.__main__ import main
from pyspark_tseries.client.time_series import TimeSeries
from pyspark_tseries.errors import DAMAGES, UnusableStore
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import REPAIR_STEPS, repair
from pyspark_tseries.maintain.verify import CompactionHorizon, find_violations, verify
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.commits import attach_metadata
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import (
    SeriesIndex,
    apply_change,
    combine_states,
    compute_state,
    state_to_change,
)
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.log_entries import seal
from pyspark_tseries.store.store import Store

COLUMNS = {
    "series": pa.string(),
    "sequence": pa.int64(),
    "timestamp": INSTANT,
    "author": pa.string(),
    "original_sequence": pa.int64(),
    "original_timestamp": INSTANT,
    "original_author": pa.string(),
    "commit": pa.int64(),
    "commit_time": INSTANT,
    "erasure": pa.string(),
}
SOUND = [
    ("a", 0, 10, "x", None, None, None, 0, 100),
    ("a", 1, 20, "y", None, None, None, 0, 100),
    ("a", 2, 90, "z", 0, 10, "x", 1, 110),
    ("a", 3, 20, "x", None, None, None, 2, 110),
    ("b", 0, 5, "x", None, None, None, 1, 110),
]


def events(rows):
    columns = zip(*((*row, None)[: len(COLUMNS)] for row in rows), strict=True)
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, COLUMNS.values(), strict=True)],
        names=list(COLUMNS),
    )


def head_of(rows):
    return apply_change(
        SeriesIndex(),
        attach_metadata(state_to_change(compute_state(events(rows), -1)), SeriesIndex().metadata),
    )


def changed(row, **values):
    place = dict(zip(COLUMNS, range(len(COLUMNS)), strict=True))
    rows = [list(row) for row in SOUND]
    for name, value in values.items():
        rows[row][place[name]] = value
    return rows


def test_sound_events_have_no_findings_in_any_order():
    assert find_violations(events(SOUND), head_of(SOUND), CompactionHorizon()) == []
    assert find_violations(events(SOUND[::-1]), head_of(SOUND), CompactionHorizon()) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([SOUND[0], *SOUND], "'a': sequence 0 is stored twice"),
        (SOUND[:1] + SOUND[2:], "'a': sequences 1 to 1 are missing"),
        (SOUND[1:2] + SOUND[3:], "'a': sequences 0 to 0 are missing"),
        (changed(3, timestamp=19), "sequence 3 at 1970-01-01T00:00:00.000019Z is before the orig"),
        (changed(2, commit=3), "sequence 3 is of commit 2, its predecessor of a later one"),
        (changed(4, commit_time=111), "commit 1 has two times, or one out of order"),
        (changed(0, commit_time=120), "has two times, or one out of order"),
        (changed(2, original_sequence=2), "sequence 2 edits 2, which is not before it"),
        (changed(4, original_sequence=7, sequence=9), "edits 7, which does not exist"),
        (changed(3, original_sequence=2), "sequence 3 edits 2, which is an edit itself"),
        (changed(2, original_timestamp=11), "edits 0, whose timestamp or author differs"),
        (changed(2, original_author=None), "edits 0, whose timestamp or author differs"),
    ],
)
def test_each_kind_of_breakage_is_named(rows, said):
    assert any(
        said in sentence
        for sentence in map(str, find_violations(events(rows), head_of(rows), CompactionHorizon()))
    )


def test_a_head_that_differs_from_the_events_is_named_by_column():
    said = list(map(str, find_violations(events(SOUND), head_of(SOUND[:3]), CompactionHorizon())))
    assert "series 'a': the head has last_sequence 2, its events have 3" in said
    assert "series 'b': the head has last_sequence nothing, its events have 0" in said


@pytest.mark.parametrize(
    ("retained", "horizon", "sound"),
    [
        ({"limit": 1}, 0, True),
        ({"limit": 2}, 0, False),
        ({"limit": 1}, -1, False),
        ({"last_us": 9}, 0, True),
        ({"last_us": 10}, 2, True),
        ({}, 2, False),
    ],
)
def test_only_what_was_out_of_range_at_the_horizon_may_be_missing(retained, horizon, sound):
    rows = [row for row in SOUND if row[:2] != ("a", 0)]
    trimming = CompactionHorizon(horizon, RetainedRange(**retained))
    # The rest of the series says where it stood: with 0 gone its last 10 us reach to 1.
    said = list(map(str, find_violations(events(rows), head_of(SOUND), trimming)))
    assert (said == []) == sound


def test_combined_states_of_parts_equal_the_state_of_all():
    parts = [compute_state(events([row]), 1) for row in SOUND]
    whole = compute_state(events(SOUND), 1).sort_by("series")
    assert combine_states(parts).sort_by("series").equals(whole)
    assert whole.to_pylist()[0] == {
        **{"series": "a", "last_sequence": 3, "newest_us": 90, "original_sequence": 3},
        **{
            "original_us": 20,
            "first_us": 10,
            "edits": 1,
            "edit_sequence": 2,
            "horizon_sequence": 2,
            "horizon_us": 20,
            "events": 4,
        },
    }
    assert combine_states([]).num_rows == 0


# -- whole stores --------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append(batch(("a", n), ("a", n), (f"b{n}", 1)))
    store.append(batch(("a", 0), policy="drop"))
    return tmp_path / "s"


def reopened(path):
    forget_stores()
    return Store.open(str(path))


def test_a_store_that_was_only_written_is_sound(path, tmp_path):
    assert verify(str(path)) == []
    new_store(tmp_path / "empty")
    assert verify(str(tmp_path / "empty")) == []


def test_missing_shortened_and_unreadable_files_are_named(path):
    first, second, third = (path / file.path for file in Store.open(str(path)).snapshot().files)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-8])
    third.write_bytes(bytes(third.stat().st_size))
    said = list(map(str, verify(str(path))))
    assert any(first.name in line and "is missing" in line for line in said)
    assert any(second.name in line and "bytes instead of the" in line for line in said)
    assert any(third.name in line and "cannot be read" in line for line in said)
    assert any("series 'b0': the head has last_sequence 0, without events" in x for x in said)


def test_a_file_that_is_not_sorted_is_named(path):
    file = Store.open(str(path)).snapshot().files[0]
    table = pq.read_table(path / file.path, partitioning=None)
    pq.write_table(table.take([2, 1, 0]).replace_schema_metadata(None), path / file.path)
    (entry,) = (path / "_delta_log").glob("*1.json")
    size = (path / file.path).stat().st_size
    said = entry.read_text().replace(f'"size":{file.size}', f'"size":{size}')
    entry.write_bytes(seal(said.encode()))
    reopened(path)
    assert any(
        "is not sorted by (series, sequence)" in line for line in map(str, verify(str(path)))
    )


def test_a_lost_head_is_found_and_rebuilt(path):
    before = describe(str(path))
    shutil.rmtree(path / "_tseries" / "head")
    forget_stores()
    assert any("cannot be read" in line for line in map(str, verify(str(path))))
    assert rebuild(str(path)) == 4
    forget_stores()
    assert verify(str(path)) == []
    after = describe(str(path))
    assert (after["series"], after["events"]) == (before["series"], before["events"])
    assert after["last_commit"] > before["last_commit"]
    Store.open(str(path)).append(batch(("a", 5)))
    assert stored(path, "series", "sequence")[6] == ("a", 6)
    assert verify(str(path)) == []


def test_a_rebuilt_head_keeps_the_counts_of_the_newest_head_that_can_be_read(path):
    store = Store.open(str(path))
    index = store.index()
    newest = path / "_tseries" / "head" / f"{store.head_id():016x}.arrow"
    store.append(batch(("a", 9)))
    assert newest.exists()
    (path / "_tseries" / "head" / f"{store.head_id():016x}.arrow").unlink()
    forget_stores()
    rebuild(str(path))
    assert describe(str(path))["dropped"] == index.metadata.dropped == 1
    assert verify(str(path)) == []


def test_a_rebuilt_head_that_was_whole_says_the_same(path):
    before = Store.open(str(path)).index()
    rebuild(str(path))
    after = reopened(path).index()
    names = before.ids.names()
    for name, column in before.lookup(names).items():
        assert column.tolist() == after.lookup(names)[name].tolist()
    assert after.metadata.dropped == 1


# -- a changed retained range --------------------------------------------------------------------


def visible(path):
    from tseries.spark_calls import read

    return [key for key in read(path) if key[0] == "a"]


def test_a_wider_range_brings_nothing_back_and_a_narrower_one_holds_at_once(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 2})
    store.append(batch(*(("a", n) for n in range(5))))
    set_retained_range(store, RetainedRange(limit=4), 0, "me")
    assert visible(tmp_path / "s") == [("a", 3), ("a", 4)]
    store.append(batch(("a", 9)))
    assert visible(tmp_path / "s") == [("a", 3), ("a", 4), ("a", 5)]
    set_retained_range(reopened(tmp_path / "s"), RetainedRange(limit=1), 0, "me")
    assert visible(tmp_path / "s") == [("a", 5)]
    assert describe(str(tmp_path / "s"))["retained_range"] == "limit 1"
    assert verify(str(tmp_path / "s")) == []


def test_a_wider_span_of_time_brings_nothing_back(tmp_path):
    store = new_store(tmp_path / "s", {"last_us": 2000})
    store.append(batch(*(("a", 1000 * n) for n in range(5))))
    set_retained_range(store, RetainedRange(), 0, "me")
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    rebuild(str(tmp_path / "copy"))
    for path in (tmp_path / "s", tmp_path / "copy"):
        assert visible(path) == [("a", 2), ("a", 3), ("a", 4)]


# -- the command line ----------------------------------------------------------------------------


def test_commands_report_violations_and_exit_with_1(path, capsys):
    def run(command):
        forget_stores()
        code = main([command, str(path)])
        return code, capsys.readouterr().out

    assert run("verify") == (0, "sound\n")
    shutil.rmtree(path / "_tseries" / "head")
    code, said = run("verify")
    assert code == 1
    assert "head file" in said
    assert run("rebuild") == (0, "4 series\n")
    assert run("verify") == (0, "sound\n")
    assert DeltaTable(path).version() == 5
    assert json.loads(run("describe")[1].split("stored_events")[1].split()[0]) == 9


def test_rebuild_of_a_lost_head_keeps_what_was_out_of_range(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 2})
    store.append(batch(*(("a", n) for n in range(5))))
    set_retained_range(store, RetainedRange(limit=4), 0, "me")
    store.append(batch(("a", 5)))
    store.refresh()
    (tmp_path / "s" / "_tseries" / "head" / f"{store.head_id():016x}.arrow").unlink()
    forget_stores()
    rebuild(str(tmp_path / "s"))
    assert visible(tmp_path / "s") == [("a", 3), ("a", 4), ("a", 5)]
    assert describe(str(tmp_path / "s"))["retained_range"] == "limit 4"


def test_findings_are_values_that_say_kind_place_and_next_step(tmp_path):
    store = tmp_path / "s"
    TimeSeries.create(store, {"v": pa.int64()}).append("a", 1)
    (file,) = store.glob("kind=event/*.parquet")
    file.write_bytes(b"nothing")
    (found, *more) = verify(str(store))
    assert (found.kind, found.path) == ("file", f"kind=event/{file.name}")
    assert found.next_step == DAMAGES["file"].next_step.format(root=store)
    assert str(found) == f"{found.problem}; next step: {found.next_step}"
    assert [(each.kind, each.series, each.sequences) for each in more] == [("state", "a", (0, 0))]


def test_semantics_have_every_kind_of_damage():
    text = (Path(__file__).parents[3] / "docs/semantics.md").read_text()
    rows = [
        f"| {kind} | {known.found} | {known.mended or 'none'} | {known.costs or 'none'} |"
        for kind, known in DAMAGES.items()
    ]
    head = "| kind | found by | `repair` | costs |\n| --- | --- | --- | --- |\n"
    assert head + "\n".join(rows) in text


def test_repair_has_a_step_for_each_kind_of_damage_that_it_mends():
    mended = [kind for kind, known in DAMAGES.items() if known.mended is not None]
    assert list(dict.fromkeys(kind for kinds in REPAIR_STEPS.values() for kind in kinds)) == mended


@pytest.mark.thorough
@pytest.mark.parametrize("lacks", ["series", "sequence", "timestamp"])
@pytest.mark.parametrize("value", ["null", "nothing", "no statistics"])
def test_bounds_that_the_log_lacks_exclude_no_rows(path, lacks, value):
    """Other tools may leave them out; then they are read from the file."""
    for entry in (path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for add in (line["add"] for line in lines if "add" in line):
            stats = json.loads(add["stats"])
            for end in ("minValues", "maxValues"):
                stats[end][lacks] = None
                if value == "nothing":
                    del stats[end][lacks]
            add["stats"] = None if value == "no statistics" else json.dumps(stats)
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        entry.write_bytes(seal(text.encode()))
    reopened(path)
    assert verify(str(path)) == []
    done = repair(str(path))
    assert (done.mended, done.lost, done.left) == ((), (), ())


def test_wrong_bounds_in_the_log_are_found_and_mended(tmp_path):
    path = tmp_path / "s"
    series = TimeSeries.create(path, {"v": pa.int64()}, auto_compact=False)
    series.append("b", 1)
    entry = path / "_delta_log" / f"{1:020d}.json"
    forged = entry.read_bytes().replace(rb"\"series\": \"b\"", rb"\"series\": \"a\"")
    entry.write_bytes(seal(forged))
    forget_stores()
    assert {found.kind for found in verify(str(path))} == {"bounds"}
    assert [found.kind for found in repair(str(path)).mended] == ["bounds"]
    assert verify(str(path)) == []


def test_a_lost_record_of_an_act_is_named(tmp_path):
    path = tmp_path / "s"
    series = TimeSeries.create(path, {"v": pa.int64()}, auto_compact=False)
    series.append("a", 1)
    act = series.erase("a", [0], "asked to")
    (path / "_tseries" / "erasures" / f"{act.id}.json").unlink()
    with pytest.raises(UnusableStore) as error:
        series.erasures()
    assert error.value.kind == "erasure record"
    assert "erasure record" in {found.kind for found in verify(str(path))}


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_help_of_commands_lists_every_kind_of_damage(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert all(kind in shown and (known.mended or "") in shown for kind, known in DAMAGES.items())
