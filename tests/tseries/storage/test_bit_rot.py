"""No bit of a data file or head changes unnoticed: reads fail by name, `verify` names the file."""

import random
import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import repetitions
from tseries.builders import batch, data_file, forget_stores, new_store, stored
from tseries.limits import set_limits

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import check_file, verify
from pyspark_tseries.model.columns import query_schema
from pyspark_tseries.model.commits import NO_COMMIT, with_checksum
from pyspark_tseries.model.series_index import SeriesIndex, advance_index, make_change
from pyspark_tseries.storage import row_reader
from pyspark_tseries.storage.data_files import (
    checksum_placeholder,
    count_leaves,
    fill_in_checksums,
    read_footer,
)
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.storage.row_reader import ALL_ROWS, FOOTER_CACHE, RowFilter
from pyspark_tseries.storage.snapshot import head_path, load_index, read_head_metadata, write_head
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.numbering import EventFile

HEAD = tuple(SeriesIndex().columns)
VALUES = {
    "value": pa.float64(),
    "count": pa.int64(),
    "text": pa.string(),
    "nested": pa.struct(
        [("list", pa.list_(pa.int32())), ("map", pa.map_(pa.string(), pa.bool_()))]
    ),
}


@pytest.fixture
def path(tmp_path):
    """A store of one file of two row groups, with nulls, repeated values and nested ones."""
    series = TimeSeries.create(tmp_path / "s", VALUES, "unlimited", "me", auto_compact=False)
    nested = [{"list": [1, None]}, {"list": []}, None]
    rows = {
        "series": [f"s{n % 5}" for n in range(30)],
        "value": [n / 7 for n in range(30)],
        "count": [n if n % 3 else None for n in range(30)],
        "text": ["x" * (n % 4) if n % 5 else None for n in range(30)],
        "nested": [nested[n % 3] for n in range(30)],
    }
    kinds = pa.schema([("series", pa.string()), *VALUES.items()])
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, group_rows=16)
        series.append_many(pa.table(rows, kinds))
    return tmp_path / "s"


def only_file(path):
    (file,) = Store.open(str(path)).snapshot().files
    return file


def content(store, file, row_filter=ALL_ROWS, columns=None):
    """A query's rows of a file, in a process that has never seen it."""
    FOOTER_CACHE.clear()
    schema = query_schema(store.values)
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return row_reader.read_rows(store.location, [file], wanted, row_filter)


def content_or_error(*asked):
    try:
        return content(*asked), None
    except UnusableStore as error:
        return None, str(error)


def some_bytes(content):
    """The places of bytes to damage: every seventh, others each time; all of them in a soak."""
    step = repetitions(7, 1)
    return range(random.randrange(step), len(content), step)


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_a_flipped_bit_is_never_read_as_a_value_nor_called_sound(path):
    """One bit of a byte: all of them take an hour, and give the same."""
    store, file = Store.open(str(path)), only_file(path)
    assert pq.read_metadata(path / file.path).num_row_groups == 2
    questions = [(), (RowFilter(["s3"]), ["author", "count"])]
    answers = [content(store, file, *asked) for asked in questions]
    sound = (path / file.path).read_bytes()
    assert check_file(store.location, file, store.values).problem is None
    found, tried = 0, some_bytes(sound)
    for at in tried:
        broken = bytearray(sound)
        broken[at] ^= 1 << (at * 5 % 8)
        (path / file.path).write_bytes(broken)
        for asked, answer in zip(questions, answers, strict=True):
            read, error = content_or_error(store, file, *asked)
            assert read == answer or f"file '{file.path}'" in error, (at, error)
        said = check_file(store.location, file, store.values).problem
        assert said is None or f"file '{file.path}'" in said
        found += said is not None
    # The mark at the beginning, which nobody reads, and the name of our key do no harm.
    assert found >= len(tried) - len("PAR1") - len("tseries.crc32") - 2


def test_a_flipped_bit_of_a_store_is_named_by_every_read_and_by_verify(path):
    file = only_file(path)
    victim = path / file.path
    sound = bytearray(victim.read_bytes())
    names = pq.read_metadata(victim).row_group(0).column(0)
    sound[names.data_page_offset + names.total_compressed_size // 2] ^= 4
    victim.write_bytes(sound)
    forget_stores()
    FOOTER_CACHE.clear()
    series = TimeSeries.open(path, auto_compact=False)
    for read in (
        lambda: series.range_query().select_from("s1"),
        lambda: series.edit("s1", 0, {"value": 1.0}),
        lambda: compact(str(path)),
    ):
        with pytest.raises(UnusableStore, match="checksum is another one"):
            read()
    (said,) = [line for line in map(str, verify(str(path))) if "cannot be read" in line]
    assert file.path in said
    assert "30 rows of series 's0' to 's4', sequences 0 to 5" in said


def test_flipped_bit_of_a_head_file_is_always_detected(tmp_path, monkeypatch):
    """One bit of a byte of a small head, of a compressed one, and of a large one's note."""
    (tmp_path / "s").mkdir()
    location = parse_location(str(tmp_path / "s"))
    for rows in (3, 64):
        columns = {name: np.arange(rows) * 3 for name in HEAD}
        delta = make_change(pa.array([f"s{n}" for n in range(rows)]), columns)
        index, table = advance_index(
            SeriesIndex(), delta, replace(NO_COMMIT, commit=7, policy='{"a": "b"}')
        )
        path = write_head(location, rows, table)
        with open(path, "rb") as file:
            sound = file.read()
        assert (
            load_index(location, rows, None, SeriesIndex()).metadata
            == read_head_metadata(location, rows)
            == index.metadata
        )
        for at in some_bytes(sound):
            broken = bytearray(sound)
            broken[at] ^= 1 << (at * 5 % 8)
            with open(path, "wb") as file:
                file.write(broken)
            for read in (load_index, lambda location, rows, *_: read_head_metadata(location, rows)):
                with pytest.raises(UnusableStore, match=r"head file '.*repair"):
                    read(location, rows, None, SeriesIndex())
            with monkeypatch.context() as patch:
                set_limits(patch, whole_read_bytes=0)
                with suppress(UnusableStore, OSError):
                    assert read_head_metadata(location, rows) == index.metadata


def test_a_flipped_bit_of_a_stores_head_is_named_and_mended(tmp_path):
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append(batch(("a", n), ("b", n)))
    sound = stored(tmp_path / "s", "series", "sequence")
    store.refresh()
    victim = head_path(store.location, store.head_id())
    with open(victim, "r+b") as file:
        content = bytearray(file.read())
        content[content.index(b"ab")] ^= 4
        file.seek(0)
        file.write(content)
    forget_stores()
    with pytest.raises(UnusableStore, match="its checksum is another one"):
        Store.open(str(tmp_path / "s")).append(batch(("a", 9)))
    assert any(victim in line for line in map(str, verify(str(tmp_path / "s"))))
    repair(str(tmp_path / "s"))
    forget_stores()
    assert verify(str(tmp_path / "s")) == []
    assert stored(tmp_path / "s", "series", "sequence") == sound
    Store.open(str(tmp_path / "s")).append(batch(("a", 9)))
    assert stored(tmp_path / "s", "series", "sequence") == sorted([*sound, ("a", 3)])


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 900, with_checksum(b"x" * 900 + b"\xff" * 4 + bytes(4)), "no note", "other note"],
)
def test_a_head_of_another_form_is_named(tmp_path, content):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    store.refresh()
    path = head_path(store.location, store.head_id())
    if isinstance(content, str):
        note = {} if content == "no note" else {"tseries": with_checksum(b'{"x": 1}')}
        table = pa.table({"series": ["a"]}).replace_schema_metadata(note)
        write_head(store.location, store.head_id(), table)
    else:
        with open(path, "wb") as file:
            file.write(content)
    forget_stores()
    with pytest.raises(UnusableStore, match=r"head file '.*repair"):
        Store.open(str(tmp_path / "s")).append(batch(("a", 9)))
    assert any(path in line for line in map(str, verify(str(tmp_path / "s"))))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_bytes(b""), "has 0 bytes instead of the"),
        (lambda file: file.write_bytes(file.read_bytes()[:-8]), "bytes instead of the"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "bytes instead of the"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "is not a Parquet file"),
        (lambda file: file.write_bytes(b"x" * file.stat().st_size), "is not a Parquet file"),
        (lambda file: file.write_bytes(b"\xff" * (file.stat().st_size - 4) + b"PAR1"), "footer of"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read|bytes instead of the"),
    ],
)
def test_every_kind_of_damage_is_reported_and_the_rest_is_still_checked(tmp_path, damage, said):
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append(batch(("a", n), (f"b{n}", n)))
    first, second, third = store.snapshot().files
    damage(tmp_path / "s" / second.path)
    (tmp_path / "s" / third.path).unlink()
    forget_stores()
    found = list(map(str, verify(str(tmp_path / "s"))))
    assert any(second.path in line and re.search(said, line) for line in found)
    assert any(third.path in line and "is missing" in line for line in found)
    assert not any(first.path in line for line in found)
    assert all("2 rows of series 'a' to 'b" in line for line in found if "by the log" in line)


def test_parquet_file_replaced_by_another_is_reported(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(("a", 1)))
    file = only_file(tmp_path / "s")
    columns = {field.name: field.type for field in query_schema(store.values)}
    for table, said in (
        (pa.table({"x": [1]}), "has no column 'series'"),
        (pa.table({"series": ["a"], **{n: pa.nulls(1, k) for n, k in columns.items()}}), "column"),
    ):
        full = tmp_path / "s" / file.path
        pq.write_table(table, full)
        same_size = data_file(file.path, full.stat().st_size)
        assert said in check_file(store.location, same_size, store.values).problem


def test_the_pages_have_checksums_for_other_readers_too(path):
    file = only_file(path)
    whole = bytearray((path / file.path).read_bytes())
    chunk = pq.read_metadata(path / file.path).row_group(0).column(1)
    whole[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    source = pa.BufferReader(bytes(whole))
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(source, page_checksum_verification=True).read(columns=["sequence"])


KINDS = st.recursive(
    st.sampled_from([pa.int64(), pa.string(), pa.float32(), pa.bool_()]),
    lambda kinds: (
        kinds.map(pa.list_)
        | kinds.map(lambda kind: pa.map_(pa.string(), kind))
        | st.lists(kinds, min_size=1, max_size=3).map(
            lambda some: pa.struct([(f"f{n}", kind) for n, kind in enumerate(some)])
        )
    ),
    max_leaves=5,
)


@settings(max_examples=60)
@given(st.lists(KINDS, min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 12))
def test_the_room_for_checksums_fits_every_schema(tmp_path_factory, kinds, rows, group):
    full = str(tmp_path_factory.mktemp("files") / "f.parquet")
    table = pa.table({f"c{n}": pa.nulls(rows, kind) for n, kind in enumerate(kinds)})
    made = []
    with pq.ParquetWriter(full, table.schema, metadata_collector=made) as writer:
        writer.write_table(table, row_group_size=group)
        writer.add_key_value_metadata(checksum_placeholder(table.schema, -(-rows // group)))
    fill_in_checksums(full, made[0])
    with pa.OSFile(full) as source:
        metadata, sums = read_footer(source, source.size())
    assert metadata.num_columns == sum(map(count_leaves, kinds))
    assert len(sums) == metadata.num_columns * metadata.num_row_groups
    assert pq.read_table(full).equals(table)


def test_a_file_that_is_written_in_parts_has_checksums(tmp_path):
    store = new_store(tmp_path / "s")
    store.append(batch(*((f"s{n:03}", n) for n in range(200))))
    written = pq.read_table(tmp_path / "s" / only_file(tmp_path / "s").path, partitioning=None)
    (tmp_path / "other").mkdir()
    location = parse_location(str(tmp_path / "other"))
    file = EventFile(location, "kind=event/f.parquet")
    for at in range(0, 200, 30):
        file.add(written.slice(at, 30).replace_schema_metadata(None))
    done = file.close()
    with location.read(location.file(done.path)) as source:
        _, sums = read_footer(source, done.size)
    assert sums is not None
    assert check_file(location, data_file_of(done, 200), store.values).problem is None


def data_file_of(written, rows):
    return replace(data_file(written.path, written.size), rows=rows)
