"""Rows of state are read from the files of a checkpoint, however these came to be."""

import json
import random
import struct
import zipfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.commands_watch import running, write
from timestream.histories import NOON, SECOND

from pyspark_timestream.commands.watch import state_files
from pyspark_timestream.commands.watch.follow import CheckpointFollower
from pyspark_timestream.commands.watch.state_files import MAX_STATE_BYTES, StateFiles

TIME = "timestamp"
MARKED = {"spark.watermarkDelayMs": 0}
WINDOW = {
    "type": "struct",
    "fields": [{"name": n, "type": TIME, "metadata": {}} for n in ("start", "end")],
}
WINDOWS = [
    {"name": "user", "type": "string", "metadata": {}},
    {"name": "window", "type": WINDOW, "metadata": MARKED},
]
PLAIN = [{"name": "user", "type": "string", "metadata": {}}]


def key_of(user, end_us):
    """A row of (user, window) as Spark has it in memory."""
    name = user.encode().ljust(8, b"\0")
    window = struct.pack("<qqq", 0, end_us - SECOND, end_us)
    fixed = struct.pack("<qqq", 0, 24 << 32 | len(user), 32 << 32 | len(window))
    return fixed + name + window


def block(data, how):
    if how == "stored":
        token, body = 0x15, data
    else:
        token, body = 0x25, pa.Codec("lz4_raw").compress(data, asbytes=True)
    return struct.pack("<8sBIII", b"LZ4Block", token, len(body), len(data), 7) + body


def file_of(changes, how="lz4", rows=3):
    """A file of changes: key -> value, None for one that is removed; a block for some rows each."""
    parts = []
    for key, value in changes.items():
        parts.append(struct.pack(">i", len(key)) + key)
        parts.append(struct.pack(">i", -1) if value is None else struct.pack(">i", 4) + b"abcd")
    parts.append(struct.pack(">i", -1))
    blocks = [b"".join(parts[n : n + rows]) for n in range(0, len(parts), rows)]
    return b"".join(block(each, how) for each in blocks) + block(b"", "stored")


class Operator:
    """An operator of a query, with files as Spark writes them."""

    def __init__(self, root, fields=WINDOWS, kind="stateStoreSave", stores=("default",), number=0):
        self.folder, self.stores = root / "state" / str(number), stores
        (self.folder / "_metadata").mkdir(parents=True)
        told = {
            "operatorInfo": {"operatorId": number, "operatorName": kind},
            "stateStoreInfo": [
                {"storeName": name, "numColsPrefixKey": 0, "numPartitions": 2} for name in stores
            ],
        }
        (self.folder / "_metadata" / "metadata").write_text("v1\n" + json.dumps(told))
        for place in self.places():
            (place / "_metadata").mkdir(parents=True)
        text = json.dumps({"type": "struct", "fields": fields}).encode()
        pieces = [text[n : n + 50] for n in range(0, len(text), 50)]
        schema = b"\0\2v2" + struct.pack(">i", len(pieces))
        schema += b"".join(struct.pack(">H", len(each)) + each for each in pieces)
        (self.places()[0] / "_metadata" / "schema").write_bytes(schema)

    def places(self):
        return [
            self.folder / str(number) / ("" if name == "default" else name)
            for name in self.stores
            for number in range(2)
        ]

    def write(self, version, *changes, snapshot=False, **how):
        end = "snapshot" if snapshot else "delta"
        for place, each in zip(self.places(), changes, strict=True):
            (place / f"{version}.{end}").write_bytes(file_of(each, **how))


def number(value):
    """A number as RocksDB writes it, seven bits a byte."""
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def table_block(entries, how, shares=True, has_sizes=True):
    out, before = b"", b""
    for place, (key, value) in enumerate(entries):
        shared = 0
        while shares and place % 4 and key[: shared + 1] == before[: shared + 1] != before[:shared]:
            shared += 1
        out += number(shared) + number(len(key) - shared)
        out += (number(len(value)) if has_sizes else b"") + key[shared:] + value
        before = key
    out += struct.pack("<II", 0, 1)
    if how == "stored":
        return out + b"\0CRC0"
    body = pa.Codec("lz4_raw").compress(out, asbytes=True)
    return number(len(out)) + body + b"\4CRC0"


def table_of(entries, how="lz4", form=5, rows=3):
    """A table of RocksDB: (key, number, what the entry does), a block for some entries each."""
    coded = sorted(
        (b"\0" + key, -order, struct.pack("<Q", order << 8 | what)) for key, order, what in entries
    )
    out, index, size = b"", [], 0
    for start in range(0, len(coded), rows):
        keys = [(key + end, b"value") for key, _, end in coded[start : start + rows]]
        each = table_block(keys, how)
        change = len(each) - 5 - size
        signed = change << 1 if change >= 0 else -change * 2 - 1
        shares = start and start % (2 * rows)
        size = len(each) - 5
        index.append((keys[-1][0], number(signed) if shares else number(len(out)) + number(size)))
        out += each
    # Every second key of the index repeats the one before, and has only the difference of sizes.
    told = b"".join(
        (number(1) + number(0) + value if place % 2 else number(0) + number(len(key)) + key + value)
        for place, (key, value) in enumerate(index)
    ) + struct.pack("<II", 0, 1)
    start, out = len(out), out + told + b"\0CRC0"
    places = (b"\0\0" + number(start) + number(len(told))).ljust(40, b"\0")
    return out + b"\1" + places + struct.pack("<I", form) + bytes.fromhex("f7cff485b741e288")


class RocksOperator(Operator):
    """The same, with RocksDB: changelogs, and snapshots of tables."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.order = 0

    def log(self, version, *changes, how="lz4"):
        for place, each in zip(self.places(), changes, strict=True):
            coded = {b"\0" + key: value for key, value in each.items()}
            (place / f"{version}.changelog").write_bytes(file_of(coded, how=how))

    def snapshot(self, version, place, rows, *tables, told=(), **how):
        """Write tables of (key, what the entry does), oldest first, and what names them."""
        (place / "SSTs").mkdir(exist_ok=True)
        files = []
        for entries in filter(None, tables):
            numbered = []
            for key, what in entries:
                self.order += 1
                numbered.append((key, self.order, what))
            files.append({"localFileName": "1.sst", "dfsSstFileName": f"{self.order}-x.sst"})
            (place / "SSTs" / f"{self.order}-x.sst").write_bytes(table_of(numbered, **how))
        about = {"sstFiles": files[::-1], "numKeys": rows, "columnFamilyMapping": {}, **dict(told)}
        with zipfile.ZipFile(place / f"{version}.zip", "w") as archive:
            archive.writestr("CURRENT", "MANIFEST-000005\n")
            archive.writestr("metadata", "v1\n" + json.dumps(about))


ROCKS = {"spark.sql.streaming.stateStore.providerClass": "org.x.RocksDBStateStoreProvider"}


def rows_of(files, batch, **given):
    files.read(batch, given)
    return [(each.operator, each.rows) for each in files.state.operators]


CHANGES = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(1, 6)), st.sampled_from(["set", "removed"])
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(CHANGES, CHANGES, st.booleans(), st.sampled_from(["lz4", "stored"])),
        min_size=1, max_size=8,
    ),
    st.sets(st.integers(0, 7)),
    st.booleans(),
)  # fmt: skip
def test_whatever_was_written_and_whenever_it_is_read_the_rows_are_those_of_the_map(
    tmp_path_factory, batches, looks, removes
):
    root = tmp_path_factory.mktemp("checkpoint")
    operator, files = Operator(root), StateFiles(root)
    maps = [{}, {}]
    for number, (*changes, has_snapshot, how) in enumerate(batches):
        for known, given_ in zip(maps, changes, strict=True):
            for (user, second), what in given_.items():
                key = key_of(user, NOON + second * SECOND)
                known[key] = second if what == "set" else None
        written = [
            {key_of(u, NOON + s * SECOND): None if what == "removed" else 1
             for (u, s), what in each.items()}
            for each in changes
        ]  # fmt: skip
        operator.write(number + 1, *written, how=how)
        alive = [{k: v for k, v in known.items() if v is not None} for known in maps]
        if has_snapshot:
            operator.write(number + 1, *alive, snapshot=True)
            for place in operator.places() if removes else ():
                for old in range(1, number + 1):
                    (place / f"{old}.delta").unlink(missing_ok=True)
        if number not in looks and number < len(batches) - 1:
            continue
        files.read(number, {})
        (found,) = files.state.operators
        seconds = [second for each in alive for second in each.values()]
        assert found.rows == len(seconds)
        assert found.times == len(set(seconds))
        assert found.is_window
        assert found.due == tuple(
            (NOON + second * SECOND, seconds.count(second)) for second in sorted(set(seconds))
        )
        assert files.state.note == ""


def test_a_batch_is_read_once_and_a_new_one_takes_its_changes_alone(tmp_path, monkeypatch):
    operator, files = Operator(tmp_path), StateFiles(tmp_path)
    read = []
    inner = StateFiles._apply
    monkeypatch.setattr(
        StateFiles, "_apply",
        lambda self, path, *given: read.append(path.name) or inner(self, path, *given),
    )  # fmt: skip
    for version in range(1, 4):
        operator.write(version, {key_of("a", NOON + version * SECOND): 1}, {})
    assert files.read(2, {})
    assert not files.read(2, {})
    assert sorted(read) == sorted(2 * ["1.delta", "2.delta", "3.delta"])
    operator.write(4, {}, {key_of("b", NOON): 1})
    assert rows_of(files, 3) == [("0 stateStoreSave", 4)]
    assert read[6:] == ["4.delta", "4.delta"]


def test_of_a_join_each_row_counts_once_and_no_time_is_guessed(tmp_path):
    stores = [f"{side}-{what}" for side in ("left", "right")
              for what in ("keyToNumValues", "keyWithIndexToValue")]  # fmt: skip
    operator = Operator(tmp_path, kind="symmetricHashJoin", stores=stores)
    rows = {key_of("a", NOON): 1, key_of("b", NOON): 1}
    operator.write(1, rows, {}, rows, {}, {}, {}, {key_of("c", NOON): 1}, {})
    files = StateFiles(tmp_path)
    assert rows_of(files, 0) == [("0 symmetricHashJoin", 3)]
    assert files.state.operators[0].due == ()


def test_a_key_without_a_time_has_rows_alone(tmp_path):
    operator = Operator(tmp_path, fields=PLAIN, kind="dedupe")
    operator.write(1, {b"x" * 24: 1}, {})
    files = StateFiles(tmp_path)
    files.read(0, {})
    assert files.state.operators[0].times == 0
    assert files.state.note == ""


SETTING = "spark.sql.streaming.stateStore."


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({f"{SETTING}providerClass": "org.x.OtherStateStoreProvider"}, "OtherStateStoreProvider"),
        ({f"{SETTING}compression.codec": "zstd"}, "'zstd'"),
        ({f"{SETTING}encodingFormat": "avro"}, "'avro'"),
        ({f"{SETTING}rowChecksum.enabled": "true"}, "rowChecksum"),
    ],
)
def test_state_in_another_form_is_said_to_be_unknown(tmp_path, given_, told):
    Operator(tmp_path).write(1, {}, {})
    files = StateFiles(tmp_path)
    assert rows_of(files, 0, **given_) == []
    assert told in files.state.note
    assert "explain --state" in files.state.note


def test_one_operator_that_cannot_be_read_hides_no_other(tmp_path):
    Operator(tmp_path, number=10).write(1, {key_of("a", NOON): 1}, {})
    (Operator(tmp_path, number=2).folder / "_metadata" / "metadata").unlink()
    files = StateFiles(tmp_path)
    assert rows_of(files, 0) == [("10 stateStoreSave", 1)]
    assert files.state.note.startswith("the rows of state are not known of 2: its layout")


def test_what_spark_has_removed_or_a_copy_lacks_is_named(tmp_path):
    operator, files = Operator(tmp_path), StateFiles(tmp_path)
    operator.write(1, {}, {})
    operator.write(2, {}, {})
    (operator.places()[1] / "2.delta").unlink()
    assert rows_of(files, 1) == []
    assert "'state/0/1/2.delta' is not there" in files.state.note
    operator.write(2, {}, {key_of("a", NOON): 1})
    operator.write(3, {}, {})
    assert rows_of(files, 2) == [("0 stateStoreSave", 1)]


def test_too_much_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(state_files, "MAX_STATE_BYTES", 1_000)
    assert MAX_STATE_BYTES > 1_000
    operator, files = Operator(tmp_path), StateFiles(tmp_path)
    operator.write(1, {key_of("a", NOON + n * SECOND): 1 for n in range(90)}, {}, how="stored")
    assert rows_of(files, 0) == []
    assert "more than 0 MB" in files.state.note


def test_random_garbage_is_a_note_or_another_count_and_never_an_end(tmp_path):
    operator = Operator(tmp_path)
    operator.write(1, {key_of("a", NOON + n * SECOND): 1 for n in range(9)}, {})
    paths = sorted(path for path in (tmp_path / "state").rglob("*") if path.is_file())
    chance = random.Random(7)
    for _ in range(400):
        path = chance.choice(paths)
        whole = path.read_bytes()
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data[: chance.randrange(len(data) + 1)]) if chance.random() < 0.3
                         else bytes(data))  # fmt: skip
        files = StateFiles(tmp_path)
        files.read(0, {})
        assert files.state.note or files.state.operators
        path.write_bytes(whole)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(CHANGES, CHANGES, st.booleans(), st.sampled_from(["lz4", "stored"])),
        min_size=1, max_size=8,
    ),
    st.sets(st.integers(0, 7)),
    st.booleans(),
)  # fmt: skip
def test_with_rocksdb_the_rows_are_those_of_the_map_from_changelogs_and_snapshots(
    tmp_path_factory, batches, looks, has_changelogs
):
    root = tmp_path_factory.mktemp("checkpoint")
    operator, files = RocksOperator(root), StateFiles(root)
    maps, tables = [{}, {}], [[], []]
    for batch, (*changes, has_snapshot, how) in enumerate(batches):
        coded = [
            {key_of(u, NOON + s * SECOND): what == "set" for (u, s), what in each.items()}
            for each in changes
        ]
        if has_changelogs:
            operator.log(
                batch + 1, *({k: 1 if v else None for k, v in each.items()} for each in coded)
            )
        for place, known, own, each in zip(operator.places(), maps, tables, coded, strict=True):
            known.update(each)
            own.append([(key, 1 if is_set else batch % 2 * 7) for key, is_set in each.items()])
            if has_snapshot or not has_changelogs:
                operator.snapshot(batch + 1, place, sum(known.values()), *own, how=how)
        if batch in looks or batch == len(batches) - 1:
            files.read(batch, ROCKS)
            (found,) = files.state.operators
            alive = [key for known in maps for key, is_set in known.items() if is_set]
            assert (found.rows, files.state.note) == (len(alive), "")
            assert found.times == len({key[-8:] for key in alive})
            assert found.is_window


def read_rocks(root):
    files = StateFiles(root)
    files.read(0, ROCKS)
    return [each.rows for each in files.state.operators], files.state.note


def test_rows_that_spark_counts_otherwise_are_not_shown(tmp_path):
    operator = RocksOperator(tmp_path)
    first, second = operator.places()
    operator.snapshot(1, first, 1, [(key_of("a", NOON), 1)])
    operator.snapshot(1, second, 1, [(key_of("b", NOON), 1)])
    assert read_rocks(tmp_path) == ([2], "")
    operator.snapshot(1, second, 2, [(key_of("b", NOON), 1)])
    rows, note = read_rocks(tmp_path)
    assert rows == []
    assert "'state/0/1/1.zip' has 2 rows and its tables 1" in note
    assert "explain --state" in note


@pytest.mark.parametrize(
    ("about", "how", "told"),
    [
        ({"columnFamilyMapping": {"left": 1}}, {}, "a snapshot of it is not one"),
        ({"logFiles": [{"dfsLogFileName": "1.log"}]}, {}, "a snapshot of it is not one"),
        ({"numKeys": -1}, {}, "a snapshot of it is not one"),
        ({"sstFiles": [{"dfsSstFileName": "../../secret"}]}, {}, "a snapshot of it is not one"),
        ({"sstFiles": [{"dfsSstFileName": "gone.sst"}]}, {}, "gone.sst' is not there"),
        ({}, {"form": 6}, "its tables are not ones"),
        ({}, {"what": 2}, "entries that are merged"),
    ],
)
def test_snapshots_of_rocksdb_in_another_form_are_said_to_be_unknown(tmp_path, about, how, told):
    operator = RocksOperator(tmp_path)
    what = how.pop("what", 1)
    for place in operator.places():
        operator.snapshot(1, place, 1, [(key_of("a", NOON), what)], told=about, **how)
    rows, note = read_rocks(tmp_path)
    assert rows == []
    assert told in note
    assert "explain --state" in note


def test_changelogs_of_a_later_version_are_said_to_be_unknown(tmp_path):
    operator = RocksOperator(tmp_path)
    for place in operator.places():
        (place / "1.changelog").write_bytes(block(b"\0\2v2" + bytes(40), "lz4"))
    rows, note = read_rocks(tmp_path)
    assert rows == []
    assert "its changelogs are of version 2" in note


def test_keys_that_rocksdb_splits_are_counted_and_have_no_times(tmp_path):
    operator = RocksOperator(tmp_path)
    described = operator.folder / "_metadata" / "metadata"
    described.write_text(
        described.read_text().replace('"numColsPrefixKey": 0', '"numColsPrefixKey": 1')
    )
    operator.log(1, {key_of("a", NOON): 1}, {key_of("b", NOON): 1})
    files = StateFiles(tmp_path)
    files.read(0, ROCKS)
    (found,) = files.state.operators
    assert (found.rows, found.times, found.due) == (2, 0, ())


def test_garbage_in_tables_of_rocksdb_is_a_note_or_a_count_that_equals_sparks(tmp_path):
    operator = RocksOperator(tmp_path)
    for place in operator.places():
        operator.snapshot(1, place, 9, [(key_of("a", NOON + n * SECOND), 1) for n in range(9)])
    paths = sorted(path for path in (tmp_path / "state").rglob("*") if path.is_file())
    chance = random.Random(8)
    for _ in range(600):
        path = chance.choice(paths)
        whole = path.read_bytes()
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data[: chance.randrange(len(data) + 1)]) if chance.random() < 0.3
                         else bytes(data))  # fmt: skip
        rows, note = read_rocks(tmp_path)
        assert note or rows == [18] or path.suffix == ".zip" or path.name == "metadata"
        path.write_bytes(whole)


def test_a_follower_shows_the_state_after_the_last_finished_batch(tmp_path):
    operator = Operator(tmp_path)
    write(tmp_path, running(3), finished={0, 1})
    operator.write(1, {key_of("a", NOON): 1}, {})
    operator.write(2, {key_of("b", NOON + SECOND): 1}, {})
    follower = CheckpointFollower(str(tmp_path))
    assert not follower.read_state()
    follower.read()
    assert follower.read_state()
    view = follower.view(NOON)
    assert (view.state_batch, view.state[0].rows, view.state[0].times) == (1, 2, 2)
    assert not follower.read_state()


def test_a_checkpoint_without_state_has_no_note(tmp_path):
    write(tmp_path, running(2))
    follower = CheckpointFollower(str(tmp_path))
    follower.read()
    follower.read_state()
    view = follower.view(NOON)
    assert (view.state, view.notes) == ((), ())


def table_of_block(block):
    """A table with one block of any content."""
    squeezed = number(len(block)) + pa.Codec("lz4_raw").compress(block, asbytes=True)
    index = number(0) + number(1) + b"k" + number(0) + number(len(squeezed))
    index += struct.pack("<II", 0, 1)
    start = len(squeezed) + 5
    places = (b"\0\0" + number(start) + number(len(index))).ljust(40, b"\0")
    end = struct.pack("<I", 5) + bytes.fromhex("f7cff485b741e288")
    return squeezed + b"\4CRC0" + index + b"\0CRC0" + b"\1" + places + end


def keys_that_grow(count):
    """Each key is the key before with one more letter."""
    entries = number(0) + number(8) + number(0) + b"\1" * 8
    for place in range(count):
        entries += number(place + 8) + number(1) + number(0) + b"\1"
    return entries + struct.pack("<II", 0, 1)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (b"\xff" * 1_000_000 + struct.pack("<II", 0, 1), "a table of it is damaged"),
        (keys_that_grow(20_000), "its tables are too large"),
    ],
    ids=["number", "keys"],
)
def test_a_small_table_that_stands_for_gigabytes_is_not_unpacked(block, said):
    table = table_of_block(block)
    assert len(table) < 100_000
    with pytest.raises(state_files._StateUnreadable, match=said):
        state_files._add_table(table, {})


def test_a_small_snapshot_whose_description_is_huge_is_not_unpacked(tmp_path):
    path = tmp_path / "1.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", bytes(state_files.MAX_STATE_BYTES + 1))
    with pytest.raises(state_files._StateUnreadable, match="its description is too large"):
        state_files._read_description(path)
