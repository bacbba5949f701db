"""After a power loss `repair` brings a store back to its last whole commit, and says what went."""

import json
import re
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from lengths import in_ci
from tseries.builders import batch, forget_stores, new_store, stored
from tseries.object_store import bucket  # noqa: F401 the fixture
from tseries.power_loss import Disk
from tseries.subscriber import Client, rows_of
from tseries.torn_files import newest, tear

from pyspark_tseries import TimeSeries
from pyspark_tseries.__main__ import main
from pyspark_tseries.errors import StoreBusy, UnusableStore
from pyspark_tseries.maintain import repair as repairs
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import parse_range
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.store import Store

pytestmark = pytest.mark.thorough

VALUES = {"value": pa.int64()}
TORN = in_ci(["half", "zeros"], ["empty", "half", "zeros"])


def opened(path, durability="os"):
    forget_stores()
    return TimeSeries.open(path, "me", durability=durability, auto_compact=False)


def fill(path, durability, commits=13):
    series = TimeSeries.create(
        path, VALUES, "unlimited", "me", durability=durability, auto_compact=False
    )
    for number in range(commits):
        series.append("ab"[number % 2], number)
    forget_stores()
    return path


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    """A store of 13 commits that were not synced; its log has a checkpoint at entry 9."""
    return fill(tmp_path_factory.mktemp("model") / "s", "os")


@pytest.fixture
def path(model_store, tmp_path):
    """A copy of that store, with its times."""
    return Path(shutil.copytree(model_store, tmp_path / "s"))


def events(path):
    return [row[:2] for row in stored(path)]


def tear_commit(path):
    """Tear the newest log entry and its file, so that only the head says what they held."""
    files = [newest(path, kind) for kind in ("data", "entry")]
    for file in files:
        tear(file, "half")


@pytest.mark.parametrize("how", TORN)
def test_a_torn_newest_entry_whose_files_are_whole_loses_nothing(path, how):
    before = events(path)
    tear(newest(path, "entry"), how)
    with pytest.raises(UnusableStore):
        opened(path)
    done = repair(str(path))
    assert (len(done.mended), done.lost, done.left) == (1, (), ())
    assert verify(str(path)) == []
    assert events(path) == before
    assert opened(path).append("a", 1).sequence == 7


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("kind", ["entry", "data"])
def test_rewind_of_a_torn_newest_commit_reports_it_and_keeps_the_rest(path, kind, how):
    before, file = events(path), newest(path, kind)
    if kind == "entry":
        tear(newest(path, "data"), "half")
    tear(file, how)
    planned = repair(str(path), dry_run=True)
    with pytest.raises(UnusableStore):
        opened(path)
    done = repair(str(path))
    assert done.lost == planned.lost
    (lost,) = done.lost
    assert lost.startswith("commit 12 of 2")
    assert "(log entry 13): 1 events: sequences of 'a' 6" in lost
    (mended,) = map(str, done.mended)
    assert file.name in mended
    assert str(path / "_tseries" / "lost") in mended
    assert done.left == ()
    assert verify(str(path)) == []
    assert events(path) == [row for row in before if row != ("a", 6)]
    assert opened(path).append("a", 1).sequence == 6
    assert repair(str(path)) == RepairResult()
    (aside,) = (path / "_tseries" / "lost").iterdir()
    kept = json.loads((aside / "lost.json").read_text())
    assert [commit["series"] for commit in kept["commits"]] == [{"a": [6, 6]}]
    assert {file.suffix for file in aside.rglob("*") if file.is_file()} >= {".json", ".parquet"}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_newest_head_loses_no_event(path, how):
    before, file = events(path), newest(path, "head")
    tear(file, how)
    done = repair(str(path))
    assert (len(done.lost), done.left) == (1, ())
    assert "the counts of dropped" in done.lost[0]
    assert "as they were with commit 11" in done.lost[0]
    assert file.name in str(done.mended[0])
    assert verify(str(path)) == []
    assert events(path) == before
    assert opened(path).append("a", 1).sequence == 7


@pytest.mark.parametrize("harm", ["empty", "missing"])
def test_rewind_to_a_torn_log_entry_reports_each_lost_commit(path, harm):
    entry = path / "_delta_log" / f"{11:020d}.json"
    tear(entry, "empty") if harm == "empty" else entry.unlink()
    (file,) = path.glob("kind=event/0000000010-*")
    tear(file, "half")
    done = repair(str(path))
    assert [line.split(" of ")[0] for line in done.lost] == ["commit 10", "commit 11", "commit 12"]
    assert [line.split("sequences of ")[1] for line in done.lost] == ["'a' 5", "'b' 5", "'a' 6"]
    assert events(path) == [("a", n) for n in range(5)] + [("b", n) for n in range(5)]
    assert verify(str(path)) == []


def test_unknown_events_of_a_lost_commit_are_reported_as_unknown(path):
    for file in [newest(path, kind) for kind in ("head", "data", "entry")]:
        tear(file, "empty")
    done = repair(str(path))
    assert done.lost == ("a commit (log entry 13): its events are unknown",)
    assert verify(str(path)) == []


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("pointer", [True, False])
def test_a_torn_checkpoint_is_named_and_loses_nothing(path, how, pointer):
    before = events(path)
    tear(path / "_delta_log" / f"{9:020d}.checkpoint.parquet", how)
    if not pointer:
        (path / "_delta_log" / "_last_checkpoint").unlink()
    with pytest.raises(UnusableStore, match=rf"checkpoint '.*{9:020d}.*pyspark_tseries repair"):
        opened(path)
    assert any("checkpoint" in line for line in map(str, verify(str(path))))
    done = repair(str(path))
    assert (len(done.mended), done.lost, done.left) == (1, (), ())
    assert verify(str(path)) == []
    assert events(path) == before
    assert opened(path).append("a", 1).sequence == 7


def test_a_log_without_any_whole_checkpoint_says_that_it_needs_a_copy(path):
    tear(path / "_delta_log" / f"{9:020d}.checkpoint.parquet", "half")
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(UnusableStore, match=r"holds no whole commit.*from a copy"):
        repair(str(path))


def test_batches_of_lost_commits_are_named_and_stored_when_they_come_again(tmp_path):
    store = new_store(tmp_path / "s")
    for number in range(3):
        store.append(batch(("a", number), token=("tseries:q:hourly", number)), synced=False)
    forget_stores()
    tear(newest(tmp_path / "s", "data"), "empty")
    done = repair(str(tmp_path / "s"))
    assert done.lost[1].startswith("batch 2 of 'hourly': if it is a query, remove 'commits/2'")
    store = Store.open(str(tmp_path / "s"))
    assert store.append(batch(("a", 2), token=("tseries:q:hourly", 1)), synced=False) is None
    assert store.append(batch(("a", 2), token=("tseries:q:hourly", 2)), synced=False) is not None
    assert stored(tmp_path / "s") == [("a", 0, 0), ("a", 1, 1), ("a", 2, 2)]


def test_a_subscriber_that_has_seen_lost_commits_misses_none_of_the_new_ones(path):
    subscriber = Client(path, parse_range("unlimited"))
    subscriber.drain()
    assert len(subscriber.got) == 13
    tear(path / "_delta_log" / f"{12:020d}.json", "half")
    (file,) = path.glob("kind=event/0000000011-*")
    tear(file, "half")
    repair(str(path))
    series = opened(path)
    for number in range(3):
        series.append("c", number)
    assert [row[:2] for row in subscriber.poll()] == [("c", 0), ("c", 1), ("c", 2)]
    rebuild(str(path))
    series.append("c", 3)
    assert [row[:2] for row in subscriber.poll()] == [("c", 3)]


def lose_last_commits(path, count):
    """Tear the last commits, so that `repair` gives them up."""
    for folder, kind in (("_delta_log", "*.json"), ("kind=event", "*.parquet")):
        for file in sorted((path / folder).glob(kind))[-count:]:
            tear(file, "half")
    assert len(repair(str(path)).lost) == count


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("most", [1, 2, None])
def test_events_of_lost_commits_count_neither_as_missed_nor_in_place_of_new_ones(path, lost, most):
    subscriber = Client(path, parse_range("unlimited"))
    subscriber.drain()
    lose_last_commits(path, lost)
    series = opened(path)
    for number in range(5):
        series.append("c", number)
    batches = iter(lambda: subscriber.poll(most), None)
    assert [len(rows) for rows in batches] == {1: [1] * 5, 2: [2, 2, 1], None: [5]}[most]
    assert (subscriber.position.seen, subscriber.position.missed) == (13 - lost + 5, 0)


def test_a_subscriber_goes_on_behind_lost_commits_in_a_backup_in_an_object_store(path, bucket):  # noqa: F811
    subscriber = Client(path, parse_range("unlimited"))
    subscriber.drain()
    lose_last_commits(path, 1)
    opened(path).append("c", 1)
    copy = parse_location(bucket.uri("behind-lost-commits"), bucket.options)
    backup(str(path), copy)
    follows = Subscription(copy, subscriber.initial)
    end = follows.find_end(subscriber.position, None)
    assert rows_of(follows.plan_tasks(subscriber.position, end)) == [("c", 0)]


def test_a_repair_beside_another_moves_no_commit_that_was_made_since(path, monkeypatch):
    tear_commit(path)
    find, refused = repairs.find_lost_commits, []

    def meet(*known):
        try:
            repair(str(path))
            opened(path).append("c", 1)
        except StoreBusy as error:
            refused.append(error)
        return find(*known)

    monkeypatch.setattr(repairs, "find_lost_commits", meet)
    assert len(repair(str(path)).lost) == 1
    assert len(refused) == 1
    assert verify(str(path)) == []
    assert opened(path).append("a", 1).sequence == 6


@pytest.mark.parametrize("step", ["plan_rewind", "find_lost_commits"])
def test_a_writer_beside_a_repair_commits_behind_the_last_whole_commit(path, monkeypatch, step):
    """Its entry was behind those that the repair moved aside: a store that did not open."""
    store = Store(parse_location(path), load_table(parse_location(path)))
    writer = TimeSeries(store, "me", auto_compact=False)
    tear(newest(path, "data"), "half")
    real, begun = getattr(repairs, step), []

    def meet(*known, **named):
        result = real(*known, **named)
        if not begun:
            begun.append(threading.Thread(target=writer.append, args=("c", 1)))
            begun[0].start()
            begun[0].join(0.3)
        return result

    monkeypatch.setattr(repairs, step, meet)
    assert len(repair(str(path)).lost) == 1
    begun[0].join()
    assert verify(str(path)) == []
    assert ("c", 0) in events(path)


@pytest.mark.parametrize(("module", "name"), [(repairs, "replace_index"), (json, "dump")])
def test_an_interrupted_repair_is_ended_by_the_next(path, monkeypatch, module, name):
    subscriber = Client(path, parse_range("unlimited"))
    subscriber.drain()
    tear_commit(path)

    def killed(*given, **named):
        if module is json:
            given[1].write('{"highest_commit"')
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, killed)
    with pytest.raises(KeyboardInterrupt):
        repair(str(path))
    monkeypatch.undo()
    repair(str(path))
    opened(path).append("c", 0)
    assert [row[:2] for row in subscriber.poll()] == [("c", 0)]


def test_rewind_with_a_damaged_synced_file_gives_up_no_whole_commit(
    tmp_path,
):
    path = fill(tmp_path / "s", "fsync")
    before = events(path)
    file = next((path / "kind=event").glob("0000000010-*"))
    whole = file.read_bytes()
    tear(file, "half")
    done = repair(str(path))
    assert (done.mended, done.lost) == ((), ())
    assert any(
        "put it back from a copy" in line and "--give-up" in line for line in map(str, done.left)
    )
    file.write_bytes(whole)
    assert repair(str(path)) == RepairResult()
    tear(file, "half")
    done = repair(str(path), give_up=True)
    assert [line.split(" of ")[0] for line in done.lost] == ["commit 10", "commit 11", "commit 12"]
    assert done.left == ()
    assert verify(str(path)) == []
    assert events(path) == [row for row in before if row not in [("a", 5), ("b", 5), ("a", 6)]]


def test_rewind_gives_up_the_newest_commit_if_its_file_is_damaged(tmp_path):
    path = fill(tmp_path / "s", "fsync")
    tear(newest(path, "data"), "empty")
    done = repair(str(path))
    assert "commit 12" in done.lost[0]
    assert verify(str(path)) == []


def test_repair_command_reports_losses_and_exits_with_1_if_some_are_left(path, capsys):
    def run(*more):
        forget_stores()
        return main(["repair", str(path), *more]), capsys.readouterr().out

    tear_commit(path)
    code, said = run("--dry-run")
    assert code == 1
    assert "lost: commit 12 of " in said
    code, again = run()
    assert code == 0
    assert "lost: commit 12 of " in again
    assert run() == (0, "nothing to repair\n")


@pytest.mark.parametrize("seed", range(in_ci(4, 12)))
def test_rewind_after_any_power_loss_keeps_a_prefix_of_the_commits(tmp_path, monkeypatch, seed):
    home = tmp_path / "home" / "s"
    home.parent.mkdir()
    disk = Disk(home, monkeypatch)
    series = TimeSeries.create(home, VALUES, "unlimited", "me", auto_compact=False)
    states = [[]]
    for number in range(12):
        series._synced = number < 3
        series.append("ab"[number % 2], number)
        states.append(events(home))
    left = tmp_path / "left"
    disk.leave(left, names=bool(seed % 2), seed=seed)
    monkeypatch.undo()
    forget_stores()
    done = repair(str(left))
    assert done.left == ()
    assert verify(str(left)) == []
    kept = states.index(events(left))
    assert kept >= 3, "these were synced"
    entries = [int(found[1]) for line in done.lost if (found := re.search(r"entry (\d+)", line))]
    assert entries == list(range(kept + 1, kept + 1 + len(entries)))
    numbers = [int(found[1]) for line in done.lost if (found := re.match(r"commit (\d+)", line))]
    assert set(numbers) <= set(range(kept, 12))
    assert opened(left).append("a", 1).sequence == sum(key[0] == "a" for key in states[kept])
