"""The store's promises about one commit: whole, once, numbered, counted, readable by others."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from tseries.builders import VALUE, batch, forget_stores, new_store, stored
from tseries.limits import set_limits
from tseries.meetings import Meeting, fail, rival

from pyspark_timestream.errors import OptionError
from pyspark_tseries import describe
from pyspark_tseries.errors import (
    NoSuchStore,
    ReplayDiffers,
    StoreBusy,
    UnusableStore,
    UpdateFailed,
)
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model import properties
from pyspark_tseries.model.properties import parse_policy
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.store.admin_commits import forget_writer, set_policy
from pyspark_tseries.store.store import Store
from pyspark_tseries.write import batch as attempts
from pyspark_tseries.write import numbering
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.rows import digest_rows


def reopened(path):
    """The store as another process finds it."""
    forget_stores()
    return Store.open(str(path))


def files_under(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_batches_are_numbered_on_top_of_each_other(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1), ("b", 1), ("a", 2)))
    reopened(tmp_path / "s").append(batch(("a", 2), ("c", 9)))
    assert stored(tmp_path / "s") == [
        *(("a", 0, 1), ("a", 1, 2), ("a", 2, 2)),
        *(("b", 0, 1), ("c", 0, 9)),
    ]


def test_rows_carry_commit_number_and_nondecreasing_time(tmp_path):
    store = new_store(tmp_path / "s")
    for now, row in ((100, ("a", 1)), (50, ("a", 2)), (200, ("a", 3))):
        store.append(batch(row), clock=lambda now=now: now)
    assert stored(tmp_path / "s", "commit", "commit_time") == [(0, 100), (1, 100), (2, 200)]


def test_untimed_rows_get_the_time_of_the_commit(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", None), ("b", 900)), clock=lambda: 500)
    store.append(batch(("a", None), ("b", None)), clock=lambda: 600)
    assert [row[2] for row in stored(tmp_path / "s")] == [500, 600, 900, 900]


def test_authors_come_from_the_rows_or_else_from_the_writer(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 1), ("a", 2), authors=["x", None]))
    assert stored(tmp_path / "s", "author") == [("x",), ("me",)]


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_batch_of_an_application_is_stored_once(tmp_path, version):
    store = new_store(tmp_path / "s")
    for _ in range(2):
        store.append(batch(("a", 1), token=("q", version)))
        reopened(tmp_path / "s").append(batch(("a", 1), token=("q", version)))
    assert len(stored(tmp_path / "s")) == 1
    store.append(batch(("a", 1), token=("other", version)))
    store.append(batch(("a", 1), token=("q", version + 1)))
    assert len(stored(tmp_path / "s")) == 3


def test_a_batch_before_the_last_one_of_its_writer_is_refused_by_name(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1), token=("tseries:q:q", 4)))
    with pytest.raises(ReplayDiffers, match=r"batch 3 of query q is to be stored.*its batch 4: "):
        store.append(batch(("a", 2), token=("tseries:q:q", 3)))
    store.append(batch(("b", 1), token=("tseries:app:nightly", 4)))
    with pytest.raises(ReplayDiffers, match=r"txnVersion 3 of txnAppId 'nightly'.*its version 4"):
        store.append(batch(("b", 2), token=("tseries:app:nightly", 3)))
    assert len(stored(tmp_path / "s")) == 2
    store.append(batch(("b", 2), token=("tseries:app:another", 3)))  # The next step.
    assert len(stored(tmp_path / "s")) == 3


def digested(*rows, **more):
    made = batch(*rows, **more)
    return replace(made, digest=digest_rows(made.rows))


@pytest.mark.parametrize("mark", ["tseries:q:q", "tseries:app:nightly"])
def test_the_last_batch_again_with_other_rows_is_refused_and_with_the_same_is_a_replay(
    tmp_path, mark
):
    store = new_store(tmp_path / "s")
    for number in range(3):
        store.append(digested(("a", number, 1.0), ("b", number, 2.0), token=(mark, number)))
    assert store.append(digested(("b", 2, 2.0), ("a", 2, 1.0), token=(mark, 2))) is None
    for rows in ([("a", 2, 1.0)], [("a", 2, 1.0), ("b", 2, 2.5)], [("c", 3, 1.0), ("b", 2, 2.0)]):
        with pytest.raises(ReplayDiffers, match="comes again with other rows"):
            reopened(tmp_path / "s").append(digested(*rows, token=(mark, 2)))
    assert len(stored(tmp_path / "s")) == 6
    reopened(tmp_path / "s").append(digested(("a", 3, 1.0), token=(mark, 3)))
    assert len(stored(tmp_path / "s")) == 7


def test_the_digest_of_a_batch_is_known_after_a_checkpoint_of_the_log(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(digested(("a", 1), token=("tseries:q:q", 0)))
    for number in range(60):
        store.append(batch(("b", number)))
    remove_obsolete_files(store, 2**60)
    with pytest.raises(ReplayDiffers, match="comes again with other rows"):
        reopened(tmp_path / "s").append(digested(("a", 2), token=("tseries:q:q", 0)))
    assert reopened(tmp_path / "s").append(digested(("a", 1), token=("tseries:q:q", 0))) is None


def test_batches_without_a_token_are_always_stored(tmp_path):
    store = new_store(tmp_path / "s")
    for _ in range(3):
        store.append(batch(("a", 1)))
    assert len(stored(tmp_path / "s")) == 3


def test_a_late_row_under_fail_stores_nothing_of_its_batch(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 5_000_000)))
    before = files_under(tmp_path / "s")
    with pytest.raises(UpdateFailed, match=r"'a'.*00:00:04Z.*sequence 0 at .*00:00:05Z"):
        store.append(batch(("a", 4_000_000), ("b", 1), token=("q", 0)))
    assert files_under(tmp_path / "s") == before
    store.append(batch(("a", 6_000_000), token=("q", 0)))
    assert len(stored(tmp_path / "s")) == 2


def test_dropped_and_adjusted_rows_are_counted_for_good(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 10)))
    store.append(batch(("a", 1), ("b", 1), policy="drop"))
    store.append(batch(("a", 2), policy="drop"))
    reopened(tmp_path / "s").append(batch(("a", 3), policy="adjust"))
    assert stored(tmp_path / "s") == [("a", 0, 10), ("a", 1, 10), ("b", 0, 1)]
    facts = describe(str(tmp_path / "s"))
    assert (facts["dropped"], facts["adjusted"], facts["last_commit"]) == (2, 1, 3)
    assert facts["last_dropped"]["timestamp"] == "1970-01-01T00:00:00.000002Z"
    assert facts["last_adjusted"]["newest_timestamp"] == "1970-01-01T00:00:00.000010Z"


def test_a_batch_that_is_dropped_whole_is_still_counted_once(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 10)))
    for _ in range(2):
        store.append(batch(("a", 1), policy="drop", token=("q", 0)))
    assert describe(str(tmp_path / "s"))["dropped"] == 1
    assert len(stored(tmp_path / "s")) == 1


def test_duckdb_reads_the_same_rows(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1, 1.5), ("b", 2, float("nan"))))
    store.append(batch(("a", 3, None)))
    paths = [str(tmp_path / "s" / file.path) for file in store.snapshot().files]
    query = "select series, sequence, epoch_us(timestamp), value from read_parquet(?) order by 1, 2"
    rows = duckdb.execute(query, [paths]).fetchall()
    assert str(rows) == str([("a", 0, 1, 1.5), ("a", 1, 3, None), ("b", 0, 2, float("nan"))])


def test_a_file_says_which_series_it_holds_and_is_sorted(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("b", 2), ("a", 1), ("ü", 1), ("a", 0)))
    (file,) = store.snapshot().files
    assert (file.first, file.last, file.kind) == ("a", "ü", "event")
    entry = tmp_path / "s" / "_delta_log" / "00000000000000000001.json"
    adds = [json.loads(line)["add"] for line in entry.read_text().splitlines() if '"add"' in line]
    stats = json.loads(adds[0]["stats"])
    assert stats["numRecords"] == 4
    assert stats["maxValues"] == {
        "series": "ü",
        "sequence": 1,
        "timestamp": "1970-01-01T00:00:00.000002Z",
    }


def test_values_of_every_kind_come_back(tmp_path):
    kind = pa.struct([pa.field("x", pa.list_(pa.field("element", pa.decimal128(9, 2))))])
    fields = [pa.field("n", kind), pa.field("m", pa.map_(pa.string(), pa.int64()))]
    store = new_store(tmp_path / "s", values=fields)
    rows = batch(("b", 1), ("a", 1)).rows.drop_columns(["value"])
    from decimal import Decimal

    nested = pa.array([{"x": [Decimal("1.25"), None]}, None], kind)
    maps = pa.array([None, [("k", 1)]], fields[1].type)
    store.append(Batch(rows.append_column("n", nested).append_column("m", maps), "fail", "me"))
    assert stored(tmp_path / "s", "series", "n", "m") == [
        ("a", None, [("k", 1)]),
        ("b", {"x": [Decimal("1.25"), None]}, None),
    ]


# -- what can be at a path -----------------------------------------------------------------------


def test_an_unknown_store_is_an_error_that_names_the_path(tmp_path):
    with pytest.raises(NoSuchStore, match="nothing-here"):
        Store.open(str(tmp_path / "nothing-here"))


def test_a_store_of_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(properties, "FORMAT_VERSION", 2)
    new_store(tmp_path / "s")
    forget_stores()
    monkeypatch.undo()
    with pytest.raises(UnusableStore, match=r"tseries.formatVersion 2; accepted: 1"):
        Store.open(str(tmp_path / "s"))


def test_a_delta_table_of_somebody_else_is_refused(tmp_path):
    DeltaTable.create(str(tmp_path / "t"), pa.schema([VALUE]))
    with pytest.raises(UnusableStore, match="not a tseries store"):
        Store.open(str(tmp_path / "t"))


def test_a_second_creator_gets_the_store_of_the_first(tmp_path):
    new_store(tmp_path / "s", {"limit": 3})
    assert new_store(tmp_path / "s", {"limit": 4}).settings.retained == RetainedRange(limit=3)


def test_another_retained_range_is_refused_naming_both(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 3})
    for same in (None, RetainedRange(limit=3)):
        properties.check_unchanged("retainedRange", same, store.settings.retained, store.root)
    with pytest.raises(OptionError, match=r"'limit 4'.*'limit 3'"):
        properties.check_unchanged(
            "retainedRange", RetainedRange(limit=4), store.settings.retained, store.root
        )


def test_a_store_that_was_replaced_at_its_path_is_noticed(tmp_path):
    for _ in range(2):
        new_store(tmp_path / "s").append(batch(("a", 1), ("a", 2)))
        assert stored(tmp_path / "s") == [("a", 0, 1), ("a", 1, 2)]
        shutil.rmtree(tmp_path / "s")


def test_store_removed_under_its_writer_is_not_recreated(tmp_path):
    store = new_store(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(NoSuchStore, match=r"its mount is away; .* bring it back to that path"):
        store.append(batch(("a", 1)))
    assert not (tmp_path / "s" / "_delta_log").exists()


# -- crashes and lost races ----------------------------------------------------------------------


class Crash(BaseException):
    """Ends a commit where it stands, as SIGKILL would."""


def test_a_crash_at_the_commit_leaves_the_store_as_it_was(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1), token=("q", 0)))
    with pytest.raises(Crash):
        Meeting(store, before=[partial(fail, Crash())]).append(batch(("a", 2), token=("q", 1)))
    check_crash(tmp_path / "s")


def check_crash(path):
    assert stored(path) == [("a", 0, 1)]
    reopened(path).append(batch(("a", 2), token=("q", 1)))
    assert stored(path) == [("a", 0, 1), ("a", 1, 2)]


@pytest.mark.parametrize("place", ["write_head", "write_events"])
def test_a_crash_before_the_commit_leaves_the_store_as_it_was(tmp_path, monkeypatch, place):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1), token=("q", 0)))
    owner = {"write_head": attempts, "write_events": numbering}[place]
    real = getattr(owner, place)

    def crash(*args, **options):
        real(*args)
        raise Crash

    monkeypatch.setattr(owner, place, crash)
    with pytest.raises(Crash):
        store.append(batch(("a", 2), token=("q", 1)))
    monkeypatch.undo()
    check_crash(tmp_path / "s")


def losing(store, *rows):
    """The store, with a writer that loses a race against each of `rows`."""
    return Meeting(store, before=[lambda each=each: rival(store).append(each) for each in rows])


def test_a_lost_race_numbers_the_batch_again(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1, 0.0)))
    losing(store, batch(("b", 2, 2.0)), batch(("a", 2, 1.0))).append(batch(("a", 3, 3.0)))
    assert stored(tmp_path / "s", "series", "sequence", "value", "commit") == [
        ("a", 0, 0.0, 0),
        ("a", 1, 1.0, 2),
        ("a", 2, 3.0, 3),
        ("b", 0, 2.0, 1),
    ]


def test_a_lost_race_leaves_no_files_behind(tmp_path):
    losing(new_store(tmp_path / "s"), batch(("a", 2))).append(batch(("a", 3)))
    names = files_under(tmp_path / "s")
    assert sum(name.startswith("kind=event/") for name in names) == 2
    assert sum(name.startswith("_tseries/head/") for name in names) == 2


def test_row_made_late_by_a_lost_race_is_checked_again(tmp_path):
    store = new_store(tmp_path / "s")
    with pytest.raises(UpdateFailed, match="sequence 0"):
        losing(store, batch(("a", 9))).append(batch(("a", 3)))
    assert stored(tmp_path / "s") == [("a", 0, 9)]


@pytest.mark.parametrize("rivals", [0, 1])
@pytest.mark.parametrize("token", [None, ("q", 0)])
def test_a_commit_whose_answer_was_lost_is_not_repeated(tmp_path, token, rivals):
    store = new_store(tmp_path / "s")

    def lose_answer():
        for _ in range(rivals):
            rival(store).append(batch(("a", 8)))
        raise CommitFailedError("the connection was reset")

    Meeting(store, after=[lose_answer]).append(batch(("a", 3), token=token))
    assert len(stored(tmp_path / "s")) == 1 + rivals


@pytest.mark.parametrize("synced", [False, True])
def test_append_that_stood_still_writes_its_removed_files_again(tmp_path, monkeypatch, synced):
    set_limits(monkeypatch, fresh_files_s=-1)
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    late_us = (time.time_ns() + 2 * 3600 * 10**9) // 1000
    sweep = partial(remove_obsolete_files, rival(store), late_us)
    Meeting(store, before=[sweep]).append(batch(("a", 2)), synced=synced)
    assert stored(tmp_path / "s") == [("a", 0, 1), ("a", 1, 2)]
    assert verify(str(tmp_path / "s")) == []


@pytest.mark.parametrize("rivals", [0, 1])
def test_an_owners_change_whose_answer_was_lost_is_not_repeated(tmp_path, rivals):
    store, now_us = new_store(tmp_path / "s"), time.time_ns() // 1000
    store.append(batch(("a", 1)))

    def lose_answer():
        for _ in range(rivals):
            rival(store).append(batch(("a", 8), token=("q", 0)))
        raise CommitFailedError("the connection was reset")

    forget_writer(Meeting(store, after=[lose_answer]), "batch", now_us, "me")
    # A second time it would be refused: who has set it is no longer an owner.
    rivals = 0
    policy = parse_policy({"you": ["own"]})
    set_policy(Meeting(store, after=[lose_answer]), policy, now_us, "me")
    assert verify(str(tmp_path / "s")) == []


def test_a_race_lost_against_the_same_batch_gives_no_commit_and_leaves_no_files(tmp_path):
    """Another driver of the same query was first: its commit is not the caller's."""
    same = batch(("a", 1, 1.0), token=("q", 0))
    assert losing(new_store(tmp_path / "s"), same).append(same) is None
    assert stored(tmp_path / "s") == [("a", 0, 1)]
    names = files_under(tmp_path / "s")
    assert sum(name.startswith("kind=event/") for name in names) == 1
    assert sum(name.startswith("_tseries/head/") for name in names) == 1


def test_a_race_lost_against_a_later_batch_of_the_writer_is_refused_and_leaves_no_files(tmp_path):
    store = losing(new_store(tmp_path / "s"), batch(("a", 1), token=("q", 1)))
    with pytest.raises(ReplayDiffers):
        store.append(batch(("a", 1), token=("q", 0)))
    names = files_under(tmp_path / "s")
    assert sum(name.startswith("kind=event/") for name in names) == 1


def test_a_commit_that_landed_after_a_lost_race_is_returned_and_keeps_its_files(tmp_path):
    store = new_store(tmp_path / "s")
    lose_answer = partial(fail, CommitFailedError("the connection was reset"))
    beaten = partial(rival(store).append, batch(("b", 1)))
    made = Meeting(store, before=[beaten], after=[lose_answer]).append(
        batch(("a", 1), token=("q", 0))
    )
    assert made.head_id == Store.open(tmp_path / "s").head_id()
    assert stored(tmp_path / "s") == [("a", 0, 1), ("b", 0, 1)]
    assert verify(str(tmp_path / "s")) == []


def test_a_broken_storage_fails_soon_and_a_busy_store_by_name(tmp_path):
    store = new_store(tmp_path / "s")
    broken = [partial(fail, CommitFailedError("disk full"))] * 100
    with pytest.raises(CommitFailedError, match="disk full"):
        Meeting(store, before=broken).append(batch(("a", 1)))
    with pytest.raises(StoreBusy, match="all of 3 attempts"):
        Meeting(store, before=broken, commits=3).append(batch(("a", 1)))


# -- the command line ----------------------------------------------------------------------------


def test_describe_prints_the_facts_of_a_store(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 1), ("b", 2)))
    command = [sys.executable, "-m", "pyspark_tseries", "describe"]
    done = subprocess.run([*command, str(tmp_path / "s")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (facts["series"], facts["events"], facts["files"]) == ("2", "2", "1")
    assert (facts["retained_range"], facts["retained_default"]) == ("limit 10", "true")
    done = subprocess.run([*command, str(tmp_path / "x")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no store" in done.stderr


def test_path_without_a_store_gives_a_one_line_error(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("no store")
    (tmp_path / "garbage" / "_delta_log").mkdir(parents=True)
    (tmp_path / "garbage" / "_delta_log" / f"{0:020d}.json").write_text("{nonsense")
    for path in (plain, tmp_path / "garbage"):
        with pytest.raises(UnusableStore, match="cannot be opened as a store") as failure:
            describe(str(path))
        assert len(str(failure.value).splitlines()) == 1


def test_store_copied_without_head_files_names_the_missing_file(tmp_path):
    new_store(tmp_path / "s").append(batch(("a", 1)))
    shutil.rmtree(tmp_path / "s" / "_tseries" / "head")
    with pytest.raises(UnusableStore, match=r"head file .* cannot be read: .*'_tseries' included"):
        reopened(tmp_path / "s").index()
