"""A batch that its tasks write is the batch that the driver would have written: event by event."""

import errno
import gc
import itertools
import os
import pickle
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from spark_task import in_task
from tseries.builders import batch, new_store, staged, stored
from tseries.large_batches import (
    NOW,
    SCHEMA,
    TINY,
    as_tasks,
    at,
    large,
    output,
    own_numbers,
    table,
)
from tseries.limits import set_limits
from tseries.meetings import Meeting, rival

from pyspark_timestream.core.adapters import freeze_objects
from pyspark_tseries.errors import NoSuchEvent, PermissionDenied, UpdateFailed
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.commits import CommitMetadata
from pyspark_tseries.model.properties import StoreSettings
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.options import LEAVE_OUT_POLICIES, STORE_POLICIES
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.storage import snapshot as heads
from pyspark_tseries.storage.data_files import to_data_file
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store
from pyspark_tseries.write import batch as batches_module
from pyspark_tseries.write import numbering
from pyspark_tseries.write import task_output as runs
from pyspark_tseries.write.batch import Batch, CommitContext
from pyspark_tseries.write.numbering import WriteRules
from pyspark_tseries.write.task_output import DEFAULT_LIMITS, OptimisticNumber, SpillLimits


@pytest.fixture
def location(tmp_path):
    (tmp_path / "s").mkdir()  # As the creation of a store makes it.
    return parse_location(str(tmp_path / "s"))


pytestmark = pytest.mark.spark

NAMES = ["a", "b", "c", "ä", "d" * 40]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """So that a dozen rows are many: parts of 2 rows, row groups of 3, merges of 2 runs."""
    set_limits(monkeypatch, part_rows=2, merged_chunks=2, group_rows=3)
    heads.LAST_INDEXES.clear()


def left(location):
    return sorted(path for path, _ in location.list_files(location.file("_tseries", "staging")))


def events(location, attempt):
    """The rows in the files of an attempt, by kind, in (series, sequence) order."""
    found = []
    for file in attempt.written:
        rows = pq.read_table(location.file(file.path), partitioning=None)
        described = to_data_file(file, 0)
        assert file.size == os.path.getsize(location.file(file.path))
        assert described.rows == rows.num_rows
        us = rows["timestamp"].cast(pa.int64()).to_pylist()
        assert (described.min_us, described.max_us) == (min(us), max(us))
        sequence = rows["sequence"].to_pylist()
        assert (described.min_sequence, described.max_sequence) == (min(sequence), max(sequence))
        keys = list(zip(rows["series"].to_pylist(), sequence, strict=True))
        assert keys == sorted(keys)
        assert (described.first, described.last) == (keys[0][0], keys[-1][0])
        found += [(file.kind, *row.values()) for row in rows.to_pylist()]
    return sorted(found, key=lambda row: row[:3])


def stands(index):
    names = index.ids.names()
    floors = {name: column.tolist() for name, column in index.floors(names).items()}
    at = {name: column.tolist() for name, column in index.lookup(names).items()} | floors
    return {name: [column[i] for column in at.values()] for i, name in enumerate(names)}


SETTINGS = StoreSettings(RetainedRange(limit=4))


def outcome(location, given, head_id, index, snapshot):
    """The result of a batch: its events, counts and head, or its error."""
    new_id = 10_000 + next(own_numbers)
    try:
        attempt = given.prepare(
            CommitContext(location, head_id, index, NOW, new_id, SETTINGS, snapshot)
        )
    except (UpdateFailed, NoSuchEvent, PermissionDenied) as error:
        return type(error)  # It may name another one of several such rows.
    note = attempt.index.metadata
    counts = (note.commit, note.commit_us, note.rows, note.dropped, note.adjusted)
    examples = note.last_dropped, note.last_adjusted
    return events(location, attempt), stands(attempt.index), counts, examples


ROW = st.tuples(
    st.sampled_from(NAMES),
    st.none() | st.integers(0, 9),
    st.none(),
    st.floats(allow_nan=False) | st.none(),
    st.sampled_from(["me", "you", None]),
)
TIMED = ROW.map(lambda row: (row[0], 3 if row[1] is None else row[1] + 3, *row[2:]))
EDIT = st.tuples(st.sampled_from(NAMES), st.none(), st.integers(0, 6), st.just(0.5), st.just(None))
TASK = st.one_of(
    st.lists(TIMED, max_size=14), st.lists(ROW, max_size=14), st.lists(ROW | EDIT, max_size=14)
)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(
    tasks=st.lists(TASK, min_size=1, max_size=4),
    limits=st.builds(
        SpillLimits, st.integers(0, 10), st.just(10**6), st.sampled_from([1, 300, 10**6, 10**6])
    ),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    policy=st.sampled_from(list(STORE_POLICIES)),
    missing=st.sampled_from(list(LEAVE_OUT_POLICIES)),
    clock=st.sampled_from(["wall", "event"]),
    before=st.lists(ROW.filter(lambda row: row[1] is not None), max_size=6),
    expected=st.sampled_from(["true", "true", "true", "of another head", "too old"]),
)
def test_any_division_among_tasks_gives_the_events_of_the_whole_batch(
    tmp_path_factory, tasks, limits, sizes, policy, missing, clock, before, expected
):
    location = parse_location(str(tmp_path_factory.mktemp("store")))
    first = Batch(table(before), "fail", "me").prepare(
        CommitContext(location, None, SeriesIndex(), 50, 7)
    )
    index, data = first.index, [to_data_file(file, 0) for file in first.written]
    expected_us = {"true": NOW, "of another head": NOW, "too old": NOW - 60_000_001}[expected]
    expected = OptimisticNumber(None if expected == "of another head" else 7, 1, expected_us)
    rows = [row for task in tasks for row in task]
    has_edits = any(row[2] is not None for row in rows)
    snapshot = Snapshot(location, data, 7, index.metadata, SETTINGS, []) if has_edits else None

    def prepared_whole(rows):
        given = Batch(table(rows), policy, "me", missing_original=missing, clock=clock)
        return outcome(location, given, 7, index, snapshot)

    divided = [output(location, task, expected, limits, sizes) for task in tasks]
    parts = large(
        divided, out_of_order=policy, missing_original=missing, clock=clock, limits=limits
    )
    assert parts.has_edits == has_edits
    found, wanted = outcome(location, parts, 7, index, snapshot), prepared_whole(rows)
    location.remove(path for part in divided for path in part.paths(location))
    assert left(location) == []
    if isinstance(wanted, type) and found != wanted:
        # A batch that is wrong in several series names one of them.
        series = [[row for row in rows if row[0] == name] for name in NAMES]
        assert isinstance(found, type)
        assert {found, wanted} <= set(map(prepared_whole, series))
    else:
        assert found == wanted


@given(
    runs_of=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3)), max_size=12),
        max_size=5,
    ),
    size=st.integers(1, 4),
)
def test_merging_sorts_all_and_keeps_the_order_of_equal_rows(runs_of, size):
    number = itertools.count()

    def key(row):
        return row[0], (row[1] is None, row[1])

    sorted_runs = [
        sorted(((*row, next(number)) for row in rows), key=lambda row: key(row)[0:2])
        for rows in runs_of
    ]

    def parts(rows):
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            some = [(series, us, None, float(n), None) for series, us, n in some]
            yield from table(some).combine_chunks().to_batches()

    merged = []
    for rows in runs.merge_sorted([parts(run) for run in sorted_runs]):
        order = runs.sort_rows(rows["series"].combine_chunks(), rows["timestamp"].combine_chunks())[
            0
        ]
        merged += rows.take(pa.array(order))["value"].to_pylist()
    rows = [row for run in sorted_runs for row in run]
    assert merged == [float(row[2]) for row in sorted(rows, key=key)]


FIRST = OptimisticNumber(None, 0, NOW)


def published(location, tasks, expected=FIRST, now=NOW):
    """The attempt to commit the tasks' rows, and which of its files are the tasks' own."""
    divided = [output(location, task, expected) for task in tasks]
    mine = {
        os.stat(location.file(path)).st_ino
        for part in divided
        for path in part.chunks
        if path.endswith(".parquet")
    }
    attempt = large(divided).prepare(
        CommitContext(location, None, SeriesIndex(), now, next(own_numbers))
    )
    own = [os.stat(location.file(file.path)).st_ino in mine for file in attempt.written]
    return attempt, own


APART = [[at("a", 1), at("a", 2), at("b", 1)], [at("c", 1)], [at("d", 9), at("e", 1)]]


def test_task_files_without_common_series_are_published_unchanged(location):
    attempt, own = published(location, APART)
    assert own == [True, True, True]
    assert len({to_data_file(file, 0).file_group for file in attempt.written}) == 1
    assert not any(to_data_file(file, 0).is_compacted for file in attempt.written)


def test_only_task_files_with_common_series_are_rewritten(location):
    attempt, own = published(location, [*APART, [at("e", 1, 7.0)]])
    assert own == [True, True, False]
    rows = [row for row in events(location, attempt) if row[1] == "e"]
    assert [(row[2], row[5]) for row in rows] == [(0, 0.0), (1, 7.0)]


@pytest.mark.parametrize(
    ("expected", "now"),
    [
        (OptimisticNumber(5, 0, NOW), NOW),
        (OptimisticNumber(None, 1, NOW), NOW),
        (FIRST, NOW + 60_000_001),
    ],
)
def test_wrong_expected_commit_rewrites_rows_with_the_actual_one(location, expected, now):
    attempt, own = published(location, APART, expected, now=now)
    assert own == [False, False, False]
    assert {(row[-2], us_of(row[-1])) for row in events(location, attempt)} == {(0, now)}
    assert attempt.index.metadata.commit_us == now


def test_published_events_have_number_and_time_of_the_expected_commit(location):
    attempt, own = published(location, APART, now=NOW + 60_000_000)
    assert all(own)
    assert {(row[-2], us_of(row[-1])) for row in events(location, attempt)} == {(0, NOW)}
    assert attempt.index.metadata.commit_us == NOW


def us_of(stamp):
    return pa.scalar(stamp).cast(SCHEMA.field("timestamp").type).value


def test_task_with_untimed_or_late_rows_leaves_numbering_to_the_commit(location):
    head = Batch(table([at("a", 5)]), "fail", "me").prepare(
        CommitContext(location, None, SeriesIndex(), 50, 7)
    )
    assert head.head_id == 7
    for rows in ([at("b", 1), at("b", None)], [at("a", 4), at("b", 1)]):
        for memory in (1, 10**6):
            limits = SpillLimits(0, 0, memory)
            left_to_it = output(location, rows, OptimisticNumber(7, 1, NOW), limits)
            assert left_to_it.file is None
            on_time = output(location, [*rows[1:], at("a", 5)], OptimisticNumber(7, 1, NOW), limits)
            assert (on_time.file is None) == (rows[1][1] is None)


def test_failed_batch_leaves_only_the_files_of_its_tasks(location):
    expected = FIRST
    tasks = [output(location, [row], expected) for row in (at("a", 5), at("b", None), at("c", 1))]
    before = left(location)
    with pytest.raises(UpdateFailed, match="'b': its first event has no timestamp"):
        large(tasks, clock="event").prepare(CommitContext(location, None, SeriesIndex(), NOW, 1))
    assert left(location) == before
    there = [path for _, _, found in os.walk(location.root) for path in found]
    assert len(there) == len(before)
    location.remove(path for task in tasks for path in task.paths(location))
    assert left(location) == []


def test_the_first_error_of_a_batch_is_raised_though_closing_its_file_fails(location, monkeypatch):
    """A disk that is full fails the rows, and then the end of their file."""
    rows = staged(*((f"s{n}", n) for n in range(3)))
    rules = WriteRules(CommitMetadata(0, NOW, None, None), "me", "fail", NOW)

    def tables():
        yield rows
        raise UpdateFailed("the first error")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(numbering, "ROWS_PER_GROUP", 1)
    monkeypatch.setattr(pq.ParquetWriter, "close", full)
    monkeypatch.setattr(pq.ParquetWriter, "__del__", lambda _: None)
    with pytest.raises(UpdateFailed, match="the first error"):
        numbering.write_sorted(location, "f.parquet", tables(), SeriesIndex(), rules)
    assert os.listdir(location.root) == []
    with pytest.raises(OSError, match="No space left"):
        numbering.write_sorted(location, "f.parquet", [rows], SeriesIndex(), rules)
    assert os.listdir(location.root) == []


def test_the_first_error_of_a_batch_is_raised_though_its_files_cannot_be_removed(
    location, monkeypatch
):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Location, "remove", denied)
    with pytest.raises(UpdateFailed, match="'b': its first event has no timestamp"):
        large([output(location, [at("b", None)], FIRST)], clock="event").prepare(
            CommitContext(location, None, SeriesIndex(), NOW, 1)
        )
    with pytest.raises(UpdateFailed, match="out of range"):
        output(location, [at("a", 5), at("a", 6), at("b", 2**62)], FIRST)


def test_a_task_that_fails_leaves_nothing(location):
    with pytest.raises(UpdateFailed, match="out of range"):
        output(location, [at("a", 5), at("a", 6), at("b", 2**62)], FIRST)
    assert left(location) == []


def test_under_a_policy_every_author_is_the_principal(location):
    rows = [at("a", 1), ("a", 2, None, 0.0, "you")]
    for limits in (TINY, SpillLimits()):
        tasks = [output(location, rows, FIRST, limits)]
        with pytest.raises(PermissionDenied, match="in the name of 'you'"):
            large(tasks).prepare(
                CommitContext(
                    location,
                    None,
                    SeriesIndex(),
                    NOW,
                    1,
                    StoreSettings(policy={"me": ("read", "update")}),
                )
            )


def test_a_large_batch_is_in_the_store_once(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 100})
    rows = [at(name, us) for us in range(5) for name in "abcd"]
    for _ in range(2):
        tasks = as_tasks(store, 4, rows)
        store.append(large(tasks, token=("q", 0)), clock=lambda: NOW)
        store.location.remove(path for task in tasks for path in task.paths(store.location))
    assert stored(tmp_path / "s") == [(name, us, us) for name in "abcd" for us in range(5)]
    assert verify(str(tmp_path / "s")) == []
    assert len(store.data_files()) == 4
    assert left(store.location) == []


@pytest.mark.parametrize("series", ["a", "z"])
def test_lost_publication_race_rewrites_the_task_files(tmp_path, series):
    store = new_store(tmp_path / "s")
    first = [lambda: rival(store).append(batch((series, 0)), clock=lambda: NOW + 7)] * 2
    tasks = as_tasks(store, 2, [at("a", 1), at("b", 1), at("a", 2), at("b", 2)])
    Meeting(store, before=first).append(large(tasks), clock=lambda: NOW)
    assert verify(str(tmp_path / "s")) == []
    found = stored(tmp_path / "s", "series", "sequence", "timestamp", "commit", "commit_time")
    mine = [row for row in found if row[2] > 0]
    first = 2 if series == "a" else 0
    assert [row[:3] for row in mine] == [
        *(("a", first, 1), ("a", first + 1, 2)),
        *(("b", 0, 1), ("b", 1, 2)),
    ]
    assert {row[3:] for row in mine} == {(2, NOW + 7)}
    on_disk = {path.name for path in (tmp_path / "s").glob("kind=event/*.parquet")}
    assert on_disk == {os.path.basename(file.path) for file in store.snapshot().files}


def test_aborting_a_batch_during_its_commit_removes_no_stored_file(tmp_path):
    store = new_store(tmp_path / "s")
    tasks = as_tasks(store, 2, [at("a", 1), at("b", 1)])
    store.append(large(tasks), clock=lambda: NOW)
    for _ in range(2):
        store.location.remove(path for task in tasks for path in task.paths(store.location))
    assert verify(str(tmp_path / "s")) == []
    assert len(stored(tmp_path / "s")) == 2


def test_compaction_merges_the_files_of_tasks_like_any_other(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 100})
    for turn in range(3):
        rows = [at(name, 10 * turn + us) for us in range(5) for name in "abc"]
        store.append(large(as_tasks(store, 3, rows)), clock=lambda turn=turn: NOW + turn)
    before = stored(tmp_path / "s", "series", "sequence", "timestamp", "commit", "commit_time")
    assert compact(str(tmp_path / "s")).files_before == 9
    columns = "series", "sequence", "timestamp", "commit", "commit_time"
    assert stored(tmp_path / "s", *columns) == before
    assert verify(str(tmp_path / "s")) == []
    assert {row[3:] for row in before} == {(n, NOW + n) for n in range(3)}


def test_files_of_a_killed_batch_are_ignored_and_cleaned_after_a_day(tmp_path):
    store = new_store(tmp_path / "s")
    as_tasks(store, 2, [at("a", 1), at("b", 1)])
    assert stored(tmp_path / "s") == []
    now_us = time.time_ns() // 1000
    remove_obsolete_files(store, now_us)
    assert len(left(store.location)) > 0
    remove_obsolete_files(store, now_us + 25 * 3_600_000_000)
    assert left(store.location) == []
    assert verify(str(tmp_path / "s")) == []


SPARK = StructType().add("series", "string").add("timestamp", "timestamp").add("value", "double")


MANY_ARE_THREE = SpillLimits(rows=2, size=10**6, memory=10**6)


def run_tasks(path, tasks, limits=DEFAULT_LIMITS, stream=True):
    """The writer and the messages of its tasks, which Spark pickles."""
    source = DefaultSource({"path": str(path), "retainedRange": "unlimited"})
    made = source.streamWriter(SPARK, False) if stream else source.writer(SPARK, False)
    made.target = replace(made.target, limits=limits)
    sent, messages = pickle.loads(pickle.dumps(made)), []
    for partition, rows in enumerate(tasks):
        batches = table(rows).select(SPARK.names).to_batches()
        with in_task(partition, sql__streaming__queryId="a query"):
            messages.append(pickle.loads(pickle.dumps(sent.write(iter(batches)))))
    return sent, messages[::-1]


def test_the_writer_publishes_what_its_tasks_wrote_once(tmp_path):
    tasks = [[at(name, us) for us in range(3)] for name in "abc"] + [[at("d", 1)], []]
    for files in (3, 0):  # On top of themselves the rows are late, so they are left to the commit.
        made, messages = run_tasks(tmp_path / "s", tasks, MANY_ARE_THREE)
        assert sum(message.output.file is not None for message in messages) == files
        made.commit(messages, 0)
    store = Store.open(str(tmp_path / "s"))
    assert len(store.data_files()) == 4
    assert stored(tmp_path / "s") == [
        *((name, us, us) for name in "abc" for us in range(3)),
        ("d", 0, 1),
    ]
    assert left(store.location) == []
    assert verify(str(tmp_path / "s")) == []


def unsettle():
    """Be a process that has done nothing yet."""
    gc.unfreeze()
    freeze_objects.cache_clear()


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_each_process_of_a_write_settles_when_it_has_done_its_part(tmp_path):
    # Spark's worker collects garbage after each; unsettled that takes longer than the work.
    unsettle()
    planned = DefaultSource({"path": str(tmp_path / "s")}).streamWriter(SPARK, False)
    assert gc.get_freeze_count()
    unsettle()
    with in_task(sql__streaming__queryId="a query"):
        message = planned.write(iter(table([at("a", 1)]).select(SPARK.names).to_batches()))
    assert gc.get_freeze_count()
    unsettle()
    planned.commit([message], 0)
    assert gc.get_freeze_count()


@pytest.mark.parametrize("memory", [1, 10**6])
@pytest.mark.parametrize("rival", [False, True])
def test_column_added_during_a_batch_is_null_in_it(tmp_path, rival, memory):
    tasks = [[at(name, us) for us in range(3)] for name in "abb"] + [[at("d", 1)], []]
    limits = SpillLimits(rows=2, size=10**6, memory=memory)
    _, messages = run_tasks(tmp_path / "s", tasks, limits)
    store = Store.open(str(tmp_path / "s"))
    add_columns(store, [pa.field("more", pa.int64())])
    if rival:
        store.append(batch(("z", 1)))
    # As Spark does it: a new writer commits, by the store as it is then.
    anew = DefaultSource({"path": str(tmp_path / "s")}).streamWriter(SPARK, False)
    anew.target = replace(anew.target, limits=limits)
    anew.commit(messages, 0)
    found = stored(tmp_path / "s", "series", "sequence", "more")
    assert found == [
        *(("a", n, None) for n in range(3)),
        *(("b", n, None) for n in range(6)),
        ("d", 0, None),
        *([("z", 0, None)] if rival else []),
    ]
    assert verify(str(tmp_path / "s")) == []


@pytest.mark.parametrize("stream", [True, False])
def test_an_aborted_batch_leaves_nothing(tmp_path, stream):
    tasks = [[at("a", us) for us in range(3)], [at("b", 1)]]
    made, messages = run_tasks(tmp_path / "s", tasks, MANY_ARE_THREE, stream)
    made.abort([*messages, None], *([0] if stream else []))
    assert left(Store.open(str(tmp_path / "s")).location) == []
    assert stored(tmp_path / "s") == []


def test_stored_batch_succeeds_if_staged_files_cannot_be_removed(tmp_path, monkeypatch):
    tasks = [[at("a", us) for us in range(3)]]
    made, messages = run_tasks(tmp_path / "s", tasks, MANY_ARE_THREE, stream=False)

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    append = Store.append

    def then_denied(store, batch, **named):
        append(store, batch, **named)
        monkeypatch.setattr(Location, "remove", denied)

    monkeypatch.setattr(Store, "append", then_denied)
    made.commit(messages)
    made.abort([*messages, None])
    assert stored(tmp_path / "s") == [("a", us, us) for us in range(3)]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4), max_size=6))
def test_lists_of_series_are_joined_by_the_names_they_have_in_common(lists):
    def joined(pairs):
        groups = [{at} for at in range(len(lists))]
        for one, other in pairs:
            whole = groups[one] | groups[other]
            for member in whole:
                groups[member] = whole
        return groups

    pairs = batches_module._overlapping_pairs([pa.array(names, pa.string()) for names in lists])
    every = itertools.combinations(range(len(lists)), 2)
    assert joined(pairs) == joined((a, b) for a, b in every if set(lists[a]) & set(lists[b]))


@pytest.mark.thorough
def test_series_names_of_many_tasks_may_exceed_one_text_array():
    long = pa.array(["a" * 1_000_000])
    pairs = batches_module._overlapping_pairs([long] * 2200)
    assert pairs == [(at, at + 1) for at in range(2199)]


@pytest.mark.thorough
def test_many_small_task_outputs_stay_a_large_batch(tmp_path, monkeypatch):
    limits = SpillLimits(rows=10, size=10**6, memory=100)
    tasks = [[at(name, us) for name in "ab"] for us in range(6)]
    made, messages = run_tasks(tmp_path / "s", tasks, limits, stream=False)
    assert all(message.output.inline is not None for message in messages)
    batches = []
    append = Store.append
    monkeypatch.setattr(Store, "append", lambda s, b, **n: batches.append(b) or append(s, b, **n))
    made.commit(messages)
    assert [batch.is_slow for batch in batches] == [True]
    assert stored(tmp_path / "s") == [(name, us, us) for name in "ab" for us in range(6)]
