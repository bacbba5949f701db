"""No bit of a log changes unnoticed: opening and reading fail by name, or give the right values."""

import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lengths import in_ci
from tseries.builders import forget_stores

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.store.checkpoints import read_last_checkpoint, wait_for_checkpoints
from pyspark_tseries.store.log import load_table_at
from pyspark_tseries.store.log_entries import parse_entry, seal
from pyspark_tseries.store.store import Store

NOW = 1_900_000_000_000_000


def fill(path, commits):
    series = TimeSeries.create(path, {"v": pa.int64()}, "unlimited", "me", auto_compact=False)
    for number in range(commits):
        series.append("abc"[number % 3], number)
        wait_for_checkpoints()  # Else one that is late is left out for the next one.
    forget_stores()
    return path


@pytest.fixture(scope="module")
def of_seven(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("kept") / "s", 7)


@pytest.fixture
def path(of_seven, tmp_path):
    """Seven commits, each an entry of the log."""
    return Path(shutil.copytree(of_seven, tmp_path / "s"))


@pytest.fixture(scope="module")
def with_checkpoint(tmp_path_factory):
    """Its log has a checkpoint at entry 49, and four entries after it."""
    return fill(tmp_path_factory.mktemp("kept") / "s", 53)


def entry(path, version):
    return path / "_delta_log" / f"{version:020d}.json"


def answers(path):
    """The rows for a process that has never seen the store."""
    forget_stores()
    series = TimeSeries.open(path, "me", auto_compact=False)
    return [series.range_query().select_from(name).to_arrow() for name in "abc"]


def answers_or_error(path):
    try:
        return answers(path), None
    except UnusableStore as error:
        return None, str(error)


def flip(content, at, bit):
    broken = bytearray(content)
    broken[at] ^= 1 << bit
    return bytes(broken)


def test_a_changed_bound_in_a_log_entry_is_named_and_hides_no_event(path):
    said = entry(path, 4).read_text()
    assert said.count('\\"series\\": \\"a\\"') == 2
    entry(path, 4).write_text(said.replace('\\"series\\": \\"a\\"', '\\"series\\": \\"c\\"', 1))
    with pytest.raises(UnusableStore, match=r"log entry '.*4.json'.* checksum .*repair"):
        answers(path)
    assert any("checksum" in line for line in map(str, verify(str(path))))


@pytest.mark.thorough
def test_a_flipped_bit_of_a_log_entry_is_named_or_harmless(path):
    """Every third byte of an older entry, and of the newest; all of them give the same.

    `make test` flips every ninth.
    """
    step = in_ci(9, 3)
    right = answers(path)
    for version in (3, 7):
        sound = entry(path, version).read_bytes()
        named = 0
        for at in range(version % 3, len(sound), step):
            entry(path, version).write_bytes(flip(sound, at, at * 5 % 8))
            read, error = answers_or_error(path)
            assert read == right or entry(path, version).name in error, (version, at, error)
            named += error is not None
        entry(path, version).write_bytes(sound)
        assert named >= len(sound) // step - len('"tseries""crc32""lines"')


def test_a_process_that_has_the_store_open_checks_new_entries_too(path):
    mine = TimeSeries.open(path, "me", auto_compact=False)
    mine.range_query().select_from("a").to_arrow()
    other = answers(path) and TimeSeries.open(path, "me", auto_compact=False)
    for number in range(3):
        other.append("a", number)
    said = entry(path, 9).read_text()
    entry(path, 9).write_text(said.replace('"add"', '"bdd"'))
    with pytest.raises(UnusableStore, match=r"log entry '.*9.json'.* checksum"):
        mine.range_query().select_from("a").to_arrow()


def test_the_store_as_it_was_at_an_entry_is_checked_as_well(path):
    store = Store.open(str(path))
    assert load_table_at(store.location, 4).version() == 4
    entry(path, 3).write_bytes(flip(entry(path, 3).read_bytes(), 300, 2))
    with pytest.raises(UnusableStore, match=r"log entry '.*3.json'.* not whole"):
        load_table_at(store.location, 4)
    assert load_table_at(store.location, 2).version() == 2


def test_entries_of_other_tools_have_no_checksum_and_stay_readable(path):
    right = answers(path)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert answers(path) == right
    TimeSeries.open(path, "me", auto_compact=False).append("a", 1)
    assert [len(events) for events in answers(path)] == [4, 2, 2]
    assert verify(str(path)) == []


def test_an_entry_of_this_package_without_its_checksum_is_named(path):
    lines = [json.loads(line) for line in entry(path, 7).read_text().splitlines()]
    del lines[0]["commitInfo"]["tseries"]["crc32"]
    entry(path, 7).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UnusableStore, match=r"log entry '.*7.json'.* 'crc32'"):
        answers(path)


def fields_of(action, under=()):
    for name, value in action.items():
        yield (*under, name)
        if isinstance(value, dict):
            yield from fields_of(value, (*under, name))


def without(path, version, kind, field, value):
    """The entry as a tool would write it that has no such field, or another value: sealed."""
    lines = [json.loads(line) for line in entry(path, version).read_text().splitlines()]
    holder = next(line for line in lines if kind in line)[kind]
    for name in field[:-1]:
        holder = holder[name]
    if value == "missing":
        del holder[field[-1]]
    else:
        holder[field[-1]] = value
    return seal("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "kind"),
    [(4, "add"), (7, "add"), (4, "txn"), (7, "txn"), (0, "metaData"), (0, "protocol")],
)
def test_a_field_that_delta_needs_is_missed_by_name_although_the_checksum_is_right(
    path, version, kind
):
    """Delta raises ValueError for some, and some only when a transaction is asked for."""
    right, sound = answers(path), entry(path, version).read_bytes()
    lines = [json.loads(line) for line in sound.splitlines()]
    (action,) = (line[kind] for line in lines if kind in line)
    named = set()
    for field in fields_of(action):
        for value in ("missing", None, [], {}):
            entry(path, version).write_bytes(without(path, version, kind, field, value))
            read, error = answers_or_error(path)
            assert read == right or error is not None, (field, value)
            if error is not None:
                # Without its first entry a directory is not a store.
                assert version == 0 or entry(path, version).name in error, (field, value, error)
                named.add(".".join(field))
                assert version == 0 or list(map(str, verify(str(path))))
            entry(path, version).write_bytes(sound)
    needed = {
        "add": {"path", "size", "partitionValues", "partitionValues.kind", "dataChange"},
        "txn": {"appId", "version"},
        "metaData": {"id", "schemaString", "partitionColumns", "configuration"},
        "protocol": {"minReaderVersion", "minWriterVersion"},
    }
    assert needed[kind] <= named


def test_an_entry_whose_file_lost_its_kind_is_made_again(path):
    right = answers(path)
    forged = without(path, 4, "add", ("partitionValues", "kind"), "missing")
    entry(path, 4).write_bytes(forged)
    done = repair(str(path))
    assert (done.lost, done.left, len(done.mended)) == ((), (), 1)
    assert answers(path) == right
    assert verify(str(path)) == []


def test_columns_that_are_added_have_an_entry_with_a_checksum(path):
    from pyspark_tseries.store.admin_commits import add_columns

    add_columns(Store.open(str(path)), [pa.field("more", pa.string())])
    said = entry(path, 8).read_bytes()
    assert b'"crc32"' in said
    assert parse_entry(8, said).changes_table
    entry(path, 8).write_bytes(said.replace(b"more", b"mora"))
    with pytest.raises(UnusableStore, match="checksum"):
        answers(path)


@pytest.mark.thorough
def test_a_flipped_bit_of_a_checkpoint_is_named_and_hides_no_event(with_checkpoint):
    path, right = with_checkpoint, answers(with_checkpoint)
    victim = path / "_delta_log" / f"{49:020d}.checkpoint.parquet"
    sound, chance = victim.read_bytes(), random.Random(6)
    for _ in range(25):
        victim.write_bytes(flip(sound, chance.randrange(len(sound)), chance.randrange(8)))
        with pytest.raises(UnusableStore, match=rf"checkpoint '.*{victim.name}.*repair"):
            answers(path)
        assert any(victim.name in line for line in map(str, verify(str(path))))
    victim.write_bytes(sound)
    assert answers(path) == right


@pytest.mark.thorough
@pytest.mark.parametrize("named", ["missing", "other", "garbage", "later"])
def test_a_last_checkpoint_that_names_a_missing_one_falls_back_to_the_log(
    with_checkpoint, tmp_path, named, monkeypatch
):
    monkeypatch.setattr("pyspark_tseries.store.log.checkpoint_later", lambda *_: None)
    path = Path(shutil.copytree(with_checkpoint, tmp_path / "s"))
    right, pointer = answers(path), path / "_delta_log" / "_last_checkpoint"
    if named == "missing":
        os.remove(path / "_delta_log" / f"{49:020d}.checkpoint.parquet")
    else:
        said = {"other": '{"version":20,"size":2}', "garbage": "\0{", "later": '{"version":990}'}
        pointer.write_text(said[named])
    before = {file: file.read_bytes() for file in (path / "_delta_log").iterdir()}
    assert answers(path) == right
    assert {file: file.read_bytes() for file in (path / "_delta_log").iterdir()} == before
    store = Store.open(str(path))
    assert load_table_at(store.location, 52).version() == 52
    assert any("_last_checkpoint" in line for line in map(str, verify(str(path))))
    TimeSeries.open(path, "me", auto_compact=False).append("b", 1)
    done = repair(str(path))
    assert (done.lost, done.left, len(done.mended)) == ((), (), 1)
    assert "_last_checkpoint" in str(done.mended[0])
    assert verify(str(path)) == []
    assert [len(events) for events in answers(path)] == [18, 19, 17]
    assert DeltaTable(path).version() >= 54


@pytest.mark.thorough
@pytest.mark.parametrize("named", ["missing", '{"version":20,"size":2}', "\0{", '{"version":990}'])
def test_the_next_commit_replaces_a_last_checkpoint_that_is_none(with_checkpoint, tmp_path, named):
    path = Path(shutil.copytree(with_checkpoint, tmp_path / "s"))
    pointer = path / "_delta_log" / "_last_checkpoint"
    if named == "missing":
        os.remove(path / "_delta_log" / f"{49:020d}.checkpoint.parquet")
    else:
        pointer.write_text(named)
    forget_stores()
    series = TimeSeries.open(path, "me", auto_compact=False)
    for number in range(10 if named == "missing" else 1):
        series.append("b", number)
    wait_for_checkpoints()
    assert 54 <= read_last_checkpoint(series._store.location).version <= 63
    assert verify(str(path)) == []


def test_maintenance_goes_on_without_a_readable_last_checkpoint(with_checkpoint, tmp_path):
    path = Path(shutil.copytree(with_checkpoint, tmp_path / "s"))
    (path / "_delta_log" / "_last_checkpoint").write_text('{"version":"x"}')
    right = answers(path)
    remove_obsolete_files(Store.open(str(path)), NOW)
    assert answers(path) == right


def test_a_checkpoint_keeps_the_checksums_of_those_before(tmp_path):
    path = fill(tmp_path / "s", 103)
    said = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())
    assert said["version"] == 99
    assert list(said["tseries"]["checkpoints"])[-2:] == ["89", "99"]
    older = path / "_delta_log" / f"{59:020d}.checkpoint.parquet"
    older.write_bytes(flip(older.read_bytes(), 9000, 3))
    location = Store.open(str(path)).location
    assert load_table_at(location, 101).version() == 101
    with pytest.raises(UnusableStore, match=older.name):
        load_table_at(location, 64)


def test_a_checkpoint_that_another_tool_writes_anew_is_taken_as_it_is(with_checkpoint, tmp_path):
    path = Path(shutil.copytree(with_checkpoint, tmp_path / "s"))
    right = answers(path)
    DeltaTable(path).create_checkpoint()
    assert b"tseries" not in (path / "_delta_log" / "_last_checkpoint").read_bytes()
    assert answers(path) == right
    assert verify(str(path)) == []
