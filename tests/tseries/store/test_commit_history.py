"""A store that is not the one of before is noticed by everybody who remembers a commit of it."""

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import batch, forget_stores
from tseries.limits import set_limits
from tseries.spark_calls import Query
from tseries.subscriber import Client, make

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import HistoryChanged, ReplayDiffers, StoreMismatch, UnusableStore
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.model.commits import COMMITS_PER_FILE, CommitId, pack_ids, unpack_ids
from pyspark_tseries.model.properties import parse_policy
from pyspark_tseries.store import commit_history
from pyspark_tseries.store.admin_commits import add_columns, set_policy
from pyspark_tseries.store.commit_history import (
    describe_change,
    find_commit_id,
    keep_history,
    last_commit_id,
)
from pyspark_tseries.store.log_check import read_entry
from pyspark_tseries.store.log_entries import parse_entry
from pyspark_tseries.store.store import Store

pytestmark = pytest.mark.thorough


def copy(source, target):
    """A copy, or a copy put back, as `cp -a` of the whole folder makes it."""
    # A checkpoint that is due would be written in the middle.
    forget_stores()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def append(path, *numbers, series="a"):
    """Commit an event for each number."""
    store = Store.open(str(path))
    for number in numbers:
        store.append(batch((series, number)))
    store.refresh()
    return store


def marks_of(store):
    """The commits that the log names."""
    found = {}
    for version in range(store.log.version() + 1):
        entry = read_entry(store.location, version)
        if entry is not None and entry.own.get("commit") is not None:
            head = entry.transactions.get("tseries:head")
            found |= {} if head is None else {entry.own["commit"]: head}
    return found


def cut_log(store):
    """Remove the log before its last checkpoint, as maintenance does in time."""
    DeltaTable(store.root).create_checkpoint()
    for file in (
        store.location.file("_delta_log", f"{v:020d}.json") for v in range(store.log.version())
    ):
        store.location.remove([file])
    forget_stores()
    return Store.open(store.root)


# -- ids of commits ------------------------------------------------------------------------------


def test_each_commit_is_found_by_its_number_among_entries_of_other_kinds(tmp_path):
    store = make(tmp_path / "s")
    assert last_commit_id(store) is None
    assert find_commit_id(store, 0) is None
    for number in range(9):
        append(tmp_path / "s", number)
        if number % 3 == 1:
            compact(str(tmp_path / "s"))
    add_columns(store, [pa.field("more", pa.int64())])
    set_policy(store, parse_policy({"me": ["own", "update", "read"]}), 0, "me")
    append(tmp_path / "s", 10)
    known = marks_of(store)
    assert sorted(known) == list(range(11))
    for number, head in known.items():
        assert find_commit_id(store, number) == CommitId(number, head)
        assert describe_change(store, CommitId(number, head)) is None
        store.log.proven.clear()
        said = describe_change(store, CommitId(number, 1))
        assert "(id 0000000000000001)" not in said
        assert f"commit {number} (id {head:016x})" in said
    assert describe_change(store, CommitId(11, 1)).startswith("ends with commit 10 (id ")


def test_ids_of_commits_are_known_after_maintenance_has_removed_their_log_entries(tmp_path):
    store = make(tmp_path / "s")
    append(tmp_path / "s", *range(40))
    known = marks_of(store)
    remove_obsolete_files(store, 2**60)
    store = append(tmp_path / "s", *range(40, 60))
    known |= marks_of(store)
    keep_history(store)
    store = cut_log(store)
    store = append(tmp_path / "s", 60)
    assert read_entry(store.location, 30) is None
    for number, head in known.items():
        assert find_commit_id(store, number) == CommitId(number, head)
        assert describe_change(store, CommitId(number, 1)).startswith("has commit ")


def test_ids_that_are_kept_of_an_older_log_give_way_to_those_of_the_log(tmp_path):
    store = make(tmp_path / "s")
    append(tmp_path / "s", *range(10))
    copy(tmp_path / "s", tmp_path / "copy")
    store = append(tmp_path / "s", *range(10, 30))
    before = marks_of(store)
    keep_history(store)
    # A copy that has taken the log first, and these files last.
    shutil.copytree(tmp_path / "s/_tseries/history", tmp_path / "copy/_tseries/history")
    copied = append(tmp_path / "copy", *range(10, 40))
    after = marks_of(copied)
    for number in range(10, 30):
        assert describe_change(copied, CommitId(number, before[number])) is not None
    keep_history(copied)
    copied = cut_log(copied)
    for number in range(39):
        assert find_commit_id(copied, number) == CommitId(number, after[number])


def test_a_commit_whose_id_nobody_has_kept_counts_as_there(tmp_path):
    store = make(tmp_path / "s")
    append(tmp_path / "s", *range(4))
    store = append(tmp_path / "s", *range(4, 8))
    store = cut_log(store)
    assert describe_change(store, CommitId(3, 1)) is None
    assert find_commit_id(store, 3) is None


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(0, COMMITS_PER_FILE - 1), st.integers(0, 2**62 - 1), max_size=9),
    st.integers(0, 40),
    st.integers(0, 8 * COMMITS_PER_FILE + 3),
)
def test_a_file_of_ids_gives_them_back_and_a_damaged_one_none(ids, chunk, at):
    first = chunk * COMMITS_PER_FILE
    ids = {first + number: head for number, head in ids.items()}
    content = pack_ids(ids, first)
    assert unpack_ids(content, first) == ids
    assert unpack_ids(content[:at], first) == {}
    flipped = bytearray(content)
    flipped[at] ^= 1
    assert unpack_ids(bytes(flipped), first) == {}


def test_ids_of_commits_go_over_the_bounds_of_files(tmp_path, monkeypatch):
    set_limits(monkeypatch, commits_per_file=4)
    store = make(tmp_path / "s")
    known = {}
    monkeypatch.setattr(
        commit_history, "_write_kept", lambda _, first, ids: known.__setitem__(first, dict(ids))
    )
    monkeypatch.setattr(commit_history, "_read_kept", lambda _, first: dict(known.get(first, {})))
    for number in range(19):
        append(tmp_path / "s", number)
        if number % 5 == 2:
            keep_history(store)
    keep_history(store)
    assert sorted(known) == [0, 4, 8, 12, 16]
    assert {n: h for ids in known.values() for n, h in ids.items()} == marks_of(store)


# -- subscribers ---------------------------------------------------------------------------------


def fork(tmp_path, before=3, seen=4, most=None):
    """A store with a copy of its first commits, and a subscriber that has seen more."""
    make(tmp_path / "s")
    append(tmp_path / "s", *range(before))
    copy(tmp_path / "s", tmp_path / "old")
    client = Client(tmp_path / "s")
    append(tmp_path / "s", *range(before, before + seen))
    client.drain(most)
    return client


@pytest.mark.parametrize("grown", [0, 4, 9])
def test_subscriber_of_a_store_that_was_put_back_is_told_and_nothing_is_skipped(tmp_path, grown):
    client = fork(tmp_path)
    copy(tmp_path / "old", tmp_path / "s")
    append(tmp_path / "s", *range(3, 3 + grown))
    with pytest.raises(HistoryChanged) as refused:
        client.poll()
    said = str(refused.value)
    assert f"'{tmp_path / 's'}'" in said
    assert f"{client.position.commit_id} there" in said
    assert ("ends with commit" if grown < 4 else "has commit 6 (id") in said
    assert "next step: put that state of the store back; or" in said


def test_running_subscriber_notices_that_the_store_was_put_back_and_has_grown(tmp_path):
    from pyspark_tseries.read.subscription import Subscription

    client = fork(tmp_path)
    running = Subscription(client.path, client.initial)
    assert running.find_end(client.position, None) == client.position
    copy(tmp_path / "old", tmp_path / "s")
    append(tmp_path / "s", *range(3, 7))  # As many commits as before.
    with pytest.raises(HistoryChanged):
        running.find_end(client.position, None)


def test_planned_batch_of_a_store_that_was_put_back_is_refused(tmp_path):
    from pyspark_tseries.read.subscription import Subscription

    client = fork(tmp_path)
    append(tmp_path / "s", *range(7, 9))
    end = Subscription(client.path, client.initial).find_end(client.position, None)
    copy(tmp_path / "old", tmp_path / "s")
    append(tmp_path / "s", *range(3, 20))
    with pytest.raises(HistoryChanged):
        Subscription(client.path, client.initial).plan_tasks(client.position, end)


def test_subscriber_in_the_middle_of_a_commit_notices_that_it_is_another(tmp_path):
    make(tmp_path / "s")
    append(tmp_path / "s", 0)
    client = Client(tmp_path / "s")
    client.drain()
    copy(tmp_path / "s", tmp_path / "old")
    Store.open(str(tmp_path / "s")).append(batch(("a", 1), ("a", 2), ("b", 1)))
    assert client.poll(2) == [("a", 1), ("a", 2)]
    copy(tmp_path / "old", tmp_path / "s")
    Store.open(str(tmp_path / "s")).append(batch(("a", 5), ("a", 6), ("b", 1)))
    with pytest.raises(HistoryChanged, match="has commit 1 "):
        client.poll(2)


def test_subscriber_goes_on_with_the_checkpoint_of_the_same_backup(tmp_path):
    client = fork(tmp_path, seen=0)  # The checkpoint of the moment of the copy.
    backup, got = client.position, len(client.got)
    append(tmp_path / "s", *range(3, 9))
    client.drain()
    copy(tmp_path / "old", tmp_path / "s")
    append(tmp_path / "s", *range(30, 33))
    with pytest.raises(HistoryChanged):
        client.poll()
    client.position, client.got = backup, client.got[:got]  # The next step.
    assert client.drain()[got:] == [("a", 3), ("a", 4), ("a", 5)]


def test_subscriber_goes_on_once_the_store_is_as_it_was(tmp_path):
    client = fork(tmp_path)
    copy(tmp_path / "s", tmp_path / "newest")
    copy(tmp_path / "old", tmp_path / "s")
    with pytest.raises(HistoryChanged):
        client.poll()
    copy(tmp_path / "newest", tmp_path / "s")  # The next step.
    append(tmp_path / "s", 50)
    assert client.poll() == [("a", 7)]


def test_checkpoint_of_a_subscriber_older_than_the_store_gets_what_followed(tmp_path):
    client = fork(tmp_path, seen=2)
    old, got = client.position, len(client.got)
    store = append(tmp_path / "s", *range(5, 50))
    compact(str(tmp_path / "s"))
    remove_obsolete_files(store, 2**60)
    forget_stores()
    client.drain()
    again, client.position = client.got[got:], old
    client.got = client.got[:got]
    assert client.drain(7)[got:] == again
    assert len(again) == 45


def test_two_copies_that_both_go_on_are_told_apart_by_those_who_have_seen_one(tmp_path):
    client = fork(tmp_path, seen=0)
    copy(tmp_path / "s", tmp_path / "b")
    other = Client(tmp_path / "b")
    other.position, other.got = client.position, []
    for path in ("s", "b"):
        append(tmp_path / path, *range(3, 8))
    client.drain()
    other.drain()
    client.path, other.path = other.path, client.path
    for each in (client, other):
        with pytest.raises(HistoryChanged):
            each.poll()


def test_store_put_back_before_its_first_commit_is_noticed(tmp_path):
    make(tmp_path / "s")
    copy(tmp_path / "s", tmp_path / "old")
    client = Client(tmp_path / "s")
    append(tmp_path / "s", 1, 2)
    client.drain()
    copy(tmp_path / "old", tmp_path / "s")
    with pytest.raises(HistoryChanged, match="has no commit"):
        client.poll()


def test_store_created_again_under_a_subscriber_is_another_one(tmp_path):
    client = fork(tmp_path)
    shutil.rmtree(tmp_path / "s")
    forget_stores()
    make(tmp_path / "s")
    append(tmp_path / "s", *range(20))
    with pytest.raises(UnusableStore, match="belongs to another store"):
        client.poll()


def tear_commit(path, version):
    """Tear a log entry and the files of its commit, which could rebuild it."""
    entry = path / "_delta_log" / f"{version:020d}.json"
    for added in parse_entry(version, entry.read_bytes()).added:
        (path / added).write_bytes(b"")
    entry.write_bytes(b"")


def test_subscriber_goes_on_after_a_repair_that_gave_commits_up(tmp_path):
    """The repair reports the losses, and their numbers are not used again (26.2)."""
    client = fork(tmp_path)
    tear_commit(tmp_path / "s", 7)
    forget_stores()
    repair(str(tmp_path / "s"))
    append(tmp_path / "s", 60, 61)
    assert client.poll() == [("a", 6), ("a", 7)]


# -- writers -------------------------------------------------------------------------------------


def write(query, *numbers, first=0):
    for number in numbers:
        query.commit(number, ("a", first + number, number))


def put_back(tmp_path, name):
    """A backup of store and checkpoint put back; `store` or `checkpoint` for only one of them."""
    for folder in {"both": ("s", "c-q"), "store": ("s",), "checkpoint": ("c-q",)}[name]:
        copy(tmp_path / "backup" / folder, tmp_path / folder)


@pytest.fixture
def query(tmp_path):
    """A query with batches 0 and 1 in a backup of store and checkpoint."""
    made = Query(tmp_path)
    write(made, 0, 1)
    for folder in ("s", "c-q"):
        copy(tmp_path / folder, tmp_path / "backup" / folder)
    return made


def values(query):
    return sorted(event.value("value") for event in TimeSeries.open(query.store).query("a"))


def test_older_checkpoint_over_a_newer_store_is_refused_in_every_batch(tmp_path, query):
    write(query, 2, 3)
    put_back(tmp_path, "checkpoint")
    with pytest.raises(ReplayDiffers, match=r"batch 2 of query q is to be .* its batch 3: the che"):
        write(query, 2, first=100)
    with pytest.raises(ReplayDiffers, match="batch 3 of query q comes again with other rows"):
        write(query, 3, first=100)
    write(query, 3)  # A batch that comes again as it was.
    write(query, 4)
    assert TimeSeries.open(query.store).describe()["events"] == 5


def test_a_driver_that_is_behind_another_one_of_its_query_is_told_that_there_may_be_two(query):
    """As two instances on one checkpoint: the second one plans an old batch, and is late."""
    write(query, 1, 2)
    told = "or another driver runs this query as well; .* next step: let one driver run the query"
    with pytest.raises(ReplayDiffers, match=told):
        write(query, 1, first=100)


def test_new_checkpoint_behind_what_is_stored_is_the_way_out_of_an_older_one(tmp_path, query):
    write(query, 2, 3)
    put_back(tmp_path, "checkpoint")
    with pytest.raises(ReplayDiffers, match="start with a new checkpointLocation"):
        write(query, 2, first=100)
    write(Query(tmp_path, "new"), 0, 1, first=100)
    assert TimeSeries.open(query.store).describe()["events"] == 6


@pytest.mark.parametrize("others", [0, 2, 9])
def test_older_store_under_a_newer_checkpoint_is_refused(tmp_path, query, others):
    write(query, 2, 3)
    put_back(tmp_path, "store")
    append(tmp_path / "s", *range(others), series="b")
    with pytest.raises(HistoryChanged) as refused:
        write(query, 4)
    said = str(refused.value)
    assert f"'{query.store}'" in said
    assert "with its batch 3: an older state of the store was put back" in said
    assert "remove all files from number 2 on in 'commits'" in said
    assert TimeSeries.open(query.store).describe()["events"] == 2 + others
    # The next step: Spark runs batch 2 again, by the offsets that it has recorded.
    write(query, 2, 3, 4)
    assert TimeSeries.open(query.store).describe()["events"] == 5 + others


def test_backup_of_store_and_checkpoint_put_back_together_goes_on(tmp_path, query):
    write(query, 2, 3)
    put_back(tmp_path, "both")
    write(query, 2, 3, 4, first=50)
    assert TimeSeries.open(query.store).describe()["events"] == 5


def test_older_checkpoint_is_refused_also_where_another_query_wrote_meanwhile(tmp_path, query):
    write(query, 2)
    append(tmp_path / "s", *range(4), series="b")
    put_back(tmp_path, "both")
    append(tmp_path / "s", *range(40), series="b")
    write(query, 2)
    put_back(tmp_path, "checkpoint")
    with pytest.raises(ReplayDiffers):
        write(query, 1, first=9)


def test_store_put_back_to_before_the_query_is_refused(tmp_path):
    make(tmp_path / "s")
    append(tmp_path / "s", 1, series="b")
    copy(tmp_path / "s", tmp_path / "backup")
    query = Query(tmp_path)
    write(query, 0, 1)
    copy(tmp_path / "backup", tmp_path / "s")
    with pytest.raises(HistoryChanged, match="remove all files from number 0 on in 'commits'"):
        write(query, 2)
    write(query, 0, 1, 2)
    assert TimeSeries.open(query.store).describe()["events"] == 4


def test_store_created_again_under_a_query_is_another_one(tmp_path, query):
    shutil.rmtree(tmp_path / "s")
    forget_stores()
    make(tmp_path / "s")
    with pytest.raises(StoreMismatch, match="is another one"):
        write(query, 2)


def test_copies_of_store_and_checkpoint_that_both_go_on_cannot_be_mixed(tmp_path, query):
    shutil.copytree(tmp_path / "backup", tmp_path / "second")
    other = Query.__new__(Query)
    other.__dict__ = {**query.__dict__, "store": str(tmp_path / "second/s")}
    other.checkpoint = tmp_path / "second/c-q"
    other.options = {
        **query.options,
        "path": other.store,
        "checkpointLocation": str(other.checkpoint),
    }
    write(query, 2, 3)
    write(other, 2, 3, 4)
    query.store, other.store = other.store, query.store
    query.options["path"], other.options["path"] = query.store, other.store
    with pytest.raises(HistoryChanged, match="has commit 3 "):
        write(query, 5)
    with pytest.raises(HistoryChanged, match="ends with commit 3 "):
        write(other, 5)


def test_second_deployment_with_a_copy_of_the_checkpoint_doubles_and_loses_nothing(tmp_path, query):
    """Both write to one store: batches with the same rows are stored once, others are refused."""
    write(query, 2)
    put_back(tmp_path, "checkpoint")
    write(query, 2)
    write(query, 3)
    put_back(tmp_path, "checkpoint")
    with pytest.raises(ReplayDiffers):
        write(query, 3, first=7)
    assert TimeSeries.open(query.store).describe()["events"] == 4


def test_empty_batch_in_place_of_one_with_rows_is_refused(tmp_path, query):
    with pytest.raises(ReplayDiffers, match="comes again with other rows"):
        query.commit(1)
    with pytest.raises(ReplayDiffers, match="is to be stored"):
        query.commit(0)
    query.commit(2)
    write(query, 3)


def test_batch_that_a_repair_gave_up_is_not_skipped_by_its_query(tmp_path, query):
    write(query, 2)
    tear_commit(tmp_path / "s", 3)
    forget_stores()
    repair(query.store)
    with pytest.raises(HistoryChanged, match="remove all files from number 2 on in 'commits'"):
        write(query, 3)
    write(query, 2, 3)
    assert TimeSeries.open(query.store).describe()["events"] == 4


def test_query_goes_on_after_a_repair_that_gave_up_commits_of_others(tmp_path, query):
    append(tmp_path / "s", 1, series="b")
    shutil.rmtree(query.checkpoint / "sinks")
    write(query, 1)  # Comes again, and so remembers the last commit of all.
    tear_commit(tmp_path / "s", 3)
    forget_stores()
    repair(query.store)
    write(query, 2)
    assert TimeSeries.open(query.store).describe()["events"] == 3
