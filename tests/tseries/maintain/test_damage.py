"""If one file of a store is damaged, no event is lost or changed without a word.

Single bits, truncations and deletions of entries and checkpoints of the log, of `_last_checkpoint`,
of heads and of data files, by seeds; a case that fails names its seed, which DAMAGE_SEED begins
with. DAMAGES says how many there are of each store.
"""

import os
import random
import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lengths import outside_ci, repetitions
from tseries.builders import VALUE, batch, forget_stores
from tseries.limits import set_limits

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import TseriesError, UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.rebuild_entries import rebuild_entries
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.storage.snapshot import readable_metadata
from pyspark_tseries.store.admin_commits import add_columns, set_retained_range
from pyspark_tseries.store.store import Store

NAMES = "abcä"
DAMAGES = int(os.environ.get("DAMAGES", repetitions(7, 1500)))
FIRST = int(os.environ.get("DAMAGE_SEED", 0))
KINDS = ("entry", "entry", "entry", "checkpoint", "pointer", "head", "data")
WAYS = ("bit", "bit", "cut", "delete")


def fill(path, commits, compacted=None):
    """Appends, edits, batches of a query, a further column and another range; a file a commit."""
    store = Store.create(str(path), [VALUE], RetainedRange())
    for number in range(commits):
        rows = [(NAMES[(number + n) % 4], number * 10 + n, number + n / 7) for n in range(3)]
        edits = [("a", 0, float(number))] if number % 5 == 4 else []
        token = ("tseries:q:hourly", number) if number % 3 else None
        store.append(batch(*rows, edits=edits, token=token))
        if number == commits // 4:
            add_columns(store, [pa.field("more", pa.string())])
        if number == commits // 3:
            set_retained_range(store, RetainedRange(limit=1000), 1, "me")
        if number == compacted:
            compact(str(path))
            store.refresh()
    forget_stores()
    return path


def fill_sound(path, interval):
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, checkpoint_interval=interval)
        return fill(path, 24, compacted=11)


@pytest.fixture(scope="module")
def without_checkpoints(tmp_path_factory):
    return fill_sound(tmp_path_factory.mktemp("sound") / "s", 1000)


@pytest.fixture(scope="module")
def with_checkpoints(tmp_path_factory):
    return fill_sound(tmp_path_factory.mktemp("sound") / "s", 10)


@pytest.fixture(params=["with_checkpoints", *outside_ci("without_checkpoints")])
def sound(request):
    return request.getfixturevalue(request.param)


def answers(path):
    """All events, edits included, as a process reads them that has never seen the store."""
    forget_stores()
    series = TimeSeries.open(path, "me", auto_compact=False)
    edits = series.range_query().for_edits()
    tables = [edits.select_from(name).to_arrow() for name in NAMES]
    return {
        (row["series"], row["sequence"]): str(row) for table in tables for row in table.to_pylist()
    }


def log_of(path):
    return sorted((file.name, file.read_bytes()) for file in (path / "_delta_log").iterdir())


def entry(path, version):
    return path / "_delta_log" / f"{version:020d}.json"


def newest(path):
    return max(int(file.stem) for file in (path / "_delta_log").glob("*.json"))


def choose(path, kind, chance):
    """A file to damage; None if there is none of this kind."""
    found = {
        "entry": "_delta_log/*.json",
        "checkpoint": "_delta_log/*.checkpoint.parquet",
        "pointer": "_delta_log/_last_checkpoint",
        "head": "_tseries/head/*.arrow",
        "data": "kind=*/*.parquet",
    }
    files = sorted(path.glob(found[kind]))
    return chance.choice(files) if files else None


def damage(file, how, chance):
    content = bytearray(file.read_bytes())
    if how == "delete":
        file.unlink()
        return
    if how == "cut":
        file.write_bytes(content[: chance.randrange(len(content))])
        return
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def read(path):
    """The events; or None, and the error that names what is damaged."""
    try:
        return answers(path), None
    except TseriesError as error:
        return None, str(error)


def check_case(path, right, file):
    """The oracle of one damaged file."""
    events, _ = read(path)
    assert events is None or events == right
    damaged = log_of(path)
    try:
        said = list(map(str, verify(str(path))))
        repair(str(path), dry_run=True)
    except UnusableStore as error:
        said = [str(error)]
    assert log_of(path) == damaged, "neither verify nor a dry run changes anything"
    assert said or events == right
    try:
        done = repair(str(path))
    except UnusableStore:
        assert log_of(path) == damaged
        return "refused"
    events, _ = read(path)
    if events == right:
        return "right"
    if done.lost and events is not None:
        # Only the newest commit, with its own file damaged.
        assert file.suffix == ".parquet"
        assert file.name[:10] == "0000000024"
        assert {key: right[key] for key in events} == events
        return "newest lost"
    assert done.left, (done, events is None)
    assert log_of(path) == damaged
    return "left"


@pytest.mark.thorough
@pytest.mark.timeout(7200 if DAMAGES > 100 else 300)
def test_no_damage_of_one_file_loses_an_event_without_a_word(sound, tmp_path):
    right = answers(sound)
    assert len(right) == 24 * 3 + 4
    ends = {}
    for seed in range(FIRST, FIRST + DAMAGES):
        chance = random.Random(seed)
        # Each kind in turn, so that few cases have them all.
        kind, how = KINDS[seed % len(KINDS)], chance.choice(WAYS)
        path = tmp_path / "s"
        forget_stores()  # A checkpoint of the case before would be written into this store.
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(sound, path)
        file = choose(path, kind, chance)
        if file is None or (how == "delete" and file == entry(path, newest(path))):
            continue  # A newest entry that is gone is as if its writer had been killed before it.
        damage(file, how, chance)
        try:
            end = check_case(path, right, file)
        except BaseException as error:
            error.add_note(f"seed {seed}: {how} of {file}")
            raise
        ends.setdefault((kind, end), []).append(seed)
    assert len(KINDS) > DAMAGES or {kind for kind, _ in ends} >= {"entry", "head", "data"}
    print({key: len(seeds) for key, seeds in ends.items()})


@pytest.fixture
def no_checkpoints(monkeypatch):
    set_limits(monkeypatch, checkpoint_interval=1000)


def entry_of(path, name):
    """The oldest log entry in which `name` stands, and the file of that name."""
    named = [v for v in range(newest(path)) if name.encode() in entry(path, v).read_bytes()]
    files = list(path.glob(f"kind=event/{name}*"))
    return entry(path, min(named)), files[0] if files else None


def copy_of(sound, path):
    shutil.copytree(sound, path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["words", "cut", "delete"])
@pytest.mark.usefixtures("no_checkpoints")
def test_a_damaged_entry_before_whole_ones_is_made_again_without_give_up(
    without_checkpoints, tmp_path, how
):
    """The commits after the damaged entry are whole and were synced."""
    path = copy_of(without_checkpoints, tmp_path / "s")
    right, victim = answers(path), entry(path, 20)
    content = victim.read_bytes()
    if how == "delete":
        victim.unlink()
    else:
        broken = {"words": content.replace(b"event", b"EVENT"), "cut": content[:200]}
        victim.write_bytes(broken[how])
    with pytest.raises(UnusableStore, match=r"log entry '.*20.json'"):
        answers(path)
    done = repair(str(path))
    assert (done.lost, done.left, len(done.mended)) == ((), (), 1)
    assert "made again from the files of commit" in str(done.mended[0])
    assert verify(str(path)) == []
    assert answers(path) == right
    kept = list((path / "_tseries" / "lost").rglob("*.json"))
    assert [file.name for file in kept] == ([] if how == "delete" else [victim.name])


@pytest.mark.thorough
def test_a_flipped_bit_of_any_kind_of_entry_is_corrected_byte_by_byte(sound, tmp_path):
    path, chance = copy_of(sound, tmp_path / "s"), random.Random(3)
    location = parse_location(str(path))
    last = max((int(file.name[:20]) for file in path.glob("_delta_log/*.parquet")), default=-1)
    for version in range(last + 1, newest(path) + 1):
        content = entry(path, version).read_bytes()
        damage(entry(path, version), "bit", chance)
        made = rebuild_entries(location)
        assert [one.content for one in made] in ([content], []), version
        assert made or answers(path) == answers(sound)
        entry(path, version).write_bytes(content)


def test_the_batch_of_a_query_is_known_again_when_its_entry_is_gone(tmp_path):
    path = tmp_path / "s"
    store = Store.create(str(path), [VALUE], RetainedRange())
    for number in range(3):
        store.append(batch(("a", number), token=("tseries:q:hourly", number)))
    store.append(batch(("b", 1)))
    right = answers(path)
    entry(path, 3).unlink()
    repair(str(path))
    assert answers(path) == right
    store = Store.open(str(path))
    assert store.append(batch(("a", 2), token=("tseries:q:hourly", 2))) is None
    assert answers(path) == right


@pytest.mark.usefixtures("no_checkpoints")
def test_an_entry_that_cannot_be_made_again_is_refused_and_nothing_happens(tmp_path):
    """Its own file is gone as well; with --give-up the commits after it are given up, too."""
    path = fill(tmp_path / "s", 8)
    right = answers(path)
    lost, its_file = entry_of(path, "0000000004-")
    lost.unlink()
    its_file.unlink()
    before = log_of(path)
    done = repair(str(path))
    assert (done.mended, done.lost, len(done.left)) == ((), (), 1)
    assert f"{lost.name}': it is missing, and commits after it are whole" in str(done.left[0])
    assert "--give-up" in str(done.left[0])
    assert log_of(path) == before
    with pytest.raises(UnusableStore):
        answers(path)
    done = repair(str(path), give_up=True)
    assert len(done.lost) >= 4
    assert verify(str(path)) == []
    assert answers(path).items() < right.items()


@pytest.mark.usefixtures("no_checkpoints")
def test_a_compaction_whose_entry_is_gone_is_forgotten_while_its_files_are_there(tmp_path):
    path = fill(tmp_path / "s", 8, compacted=4)
    right = answers(path)
    entry_of(path, '"remove"')[0].unlink()
    removed = copy_of(path, tmp_path / "cleaned")
    done = repair(str(path))
    assert (done.lost, done.left) == ((), ())
    assert "it replaced files that are still there, and is empty now" in str(done.mended[0])
    assert answers(path) == right
    assert verify(str(path)) == []
    next(removed.glob("kind=event/0000000002-*")).unlink()  # As maintenance does, later.
    before = log_of(removed)
    assert len(repair(str(removed)).left) == 1
    assert log_of(removed) == before


@pytest.mark.usefixtures("no_checkpoints")
def test_two_attempts_at_a_lost_commit_are_told_apart_by_the_heads_after_it(tmp_path):
    path = fill(tmp_path / "s", 8)
    right = answers(path)
    lost, own = entry_of(path, "0000000004-")
    shutil.copy(own, own.with_name(f"0000000004-{7:016x}.parquet"))  # A writer was killed.
    lost.unlink()
    assert repair(str(path)).lost == ()
    assert answers(path) == right
    assert own.name in lost.read_text()


@pytest.mark.usefixtures("no_checkpoints")
def test_a_changed_range_whose_entry_is_gone_is_in_force_again(tmp_path):
    path = fill(tmp_path / "s", 8)
    lost, _ = entry_of(path, f'tseries:head","version":{head_of(path, 3)}')
    lost.unlink()
    assert repair(str(path)).lost == ()
    assert Store.open(str(path)).settings.retained == RetainedRange(limit=1000)
    assert verify(str(path)) == []


@pytest.mark.usefixtures("no_checkpoints")
def test_a_column_whose_entry_is_gone_is_there_again_with_its_values(tmp_path):
    path = tmp_path / "s"
    series = TimeSeries.create(path, {"v": pa.int64()}, "unlimited", "me", auto_compact=False)
    series.append("a", 1)
    add_columns(Store.open(str(path)), [pa.field("more", pa.string()), pa.field("n", pa.int64())])
    series.append_many(
        pa.table({"series": ["b", "ä"], "v": [2, 3], "more": ["x", None], "n": [4, 5]})
    )
    right = answers(path)
    entry(path, 2).unlink()
    done = repair(str(path))
    assert "it was made again from files that have the columns 'more', 'n'" in str(done.mended[0])
    assert (done.lost, done.left) == ((), ())
    assert answers(path) == right
    assert Store.open(str(path)).values[1:] == [
        pa.field("more", pa.string()),
        pa.field("n", pa.int64()),
    ]


@pytest.mark.usefixtures("no_checkpoints")
def test_an_entry_that_may_have_set_a_property_is_not_left_empty(tmp_path):
    path = fill(tmp_path / "s", 4)
    DeltaTable(path).alter.set_table_properties({"tseries.minRetentionAge": "1 hour"}, False)
    Store.open(str(path)).append(batch(("a", 99)))
    entry(path, newest(path) - 1).unlink()
    before = log_of(path)
    done = repair(str(path))
    assert (done.mended, done.lost, len(done.left)) == ((), (), 1)
    assert log_of(path) == before


def head_of(path, commit):
    heads = readable_metadata(parse_location(str(path)))
    (own,) = [head for head, metadata in heads.items() if metadata.commit == commit]
    return own
