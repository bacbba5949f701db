"""The native reader against a test double of librdkafka: every record, and no leak."""

import ctypes
import importlib.util
import itertools
import shutil
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.kafka.client import native_consumer as library_module
from pyspark_timestream.kafka.client.native_consumer import (
    Block,
    NativeReader,
    adopt_block,
    encode_columns,
    load_native_reader,
)
from pyspark_timestream.kafka.decode.records import METADATA, ColumnSet, RecordBlock

BUILD = Path(__file__).parents[4] / "build_native.py"
EOF_CODE, TRANSPORT = -191, -195
EVERYTHING = ColumnSet(True, True, True, True)


class Sent(NamedTuple):
    """An entry of the queue: a record, or an error if `code` is not 0."""

    offset: int
    key: bytes | None = None
    value: bytes | None = None
    stamp: tuple[int, int] = (0, 0)
    headers: tuple[tuple[bytes, bytes | None], ...] | None = None
    code: int = 0
    topic: bytes | None = b"t"
    partition: int = 0


class Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int), ("topic", c_void_p), ("partition", c_int32), ("payload", c_void_p),
        ("len", c_size_t), ("key", c_void_p), ("key_len", c_size_t), ("offset", c_int64),
        ("private", c_void_p),
    )  # fmt: skip


class Librdkafka:
    """The functions that the native reader calls, over messages that a test makes up."""

    def __init__(self, pieces: list[list[Sent]]) -> None:
        self.split_at_forced_ctis = pieces
        self.alive: dict[int, tuple[Message, Sent, list[Any]]] = {}
        self.table = [
            CFUNCTYPE(c_int64, c_void_p, c_int, POINTER(c_void_p), c_size_t)(self.consume),
            CFUNCTYPE(None, c_void_p)(self.alive.pop),
            CFUNCTYPE(c_int64, c_void_p, POINTER(c_int))(self.timestamp),
            CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))(self.headers),
            CFUNCTYPE(
                c_int, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_size_t)
            )(self.header),
            CFUNCTYPE(c_void_p, c_void_p)(lambda topic: topic),
            CFUNCTYPE(c_void_p, c_void_p)(self.text),
        ]

    def consume(self, queue: int, wait_ms: int, to: Any, most: int) -> int:
        piece = self.split_at_forced_ctis[0] if self.split_at_forced_ctis else []
        now, later = piece[:most], piece[most:]
        self.split_at_forced_ctis[:1] = [later] if later else []
        for place, sent in enumerate(now):
            message, kept = Message(err=sent.code, partition=sent.partition, offset=sent.offset), []
            # Each value in a place of its own size: what reads beyond it reads another's memory.
            for at, size, value in (("key", "key_len", sent.key), ("payload", "len", sent.value)):
                if value is not None:
                    kept.append(ctypes.create_string_buffer(value, max(1, len(value))))
                    setattr(message, at, ctypes.addressof(kept[-1]))
                    setattr(message, size, len(value))
            if sent.topic is not None:
                kept.append(ctypes.create_string_buffer(sent.topic))
                message.topic = ctypes.addressof(kept[-1])
            to[place] = ctypes.addressof(message)
            self.alive[ctypes.addressof(message)] = (message, sent, kept)
        return len(now)

    def timestamp(self, message: int, kind: Any) -> int:
        kind[0], stamp = self.alive[message][1].stamp
        return stamp

    def headers(self, message: int, to: Any) -> int:
        to[0] = message
        return -156 if self.alive[message][1].headers is None else 0

    def header(self, message: int, number: int, name: Any, value: Any, size: Any) -> int:
        _, sent, kept = self.alive[message]
        if number >= len(sent.headers or ()):
            return -156
        texts = [text for text in sent.headers[number] if text is not None]
        kept += [ctypes.create_string_buffer(text) for text in texts]
        places = [ctypes.addressof(each) for each in kept[-len(texts) :]]
        name[0], value[0] = places[0], places[1] if len(places) > 1 else None
        size[0] = len(texts[-1]) if len(places) > 1 else 0
        return 0

    def text(self, message: int) -> int:
        self.alive[message][2].append(ctypes.create_string_buffer("wörks not".encode()))
        return ctypes.addressof(self.alive[message][2][-1])


class Reading:
    """A native reader over made up messages, aimed at topic `t`, partition 0."""

    def __init__(self, native_reader: NativeReader, *pieces: list[Sent]) -> None:
        self.native_reader, self.kafka = native_reader, Librdkafka(list(pieces))
        table = (c_void_p * 7)(*(ctypes.cast(each, c_void_p) for each in self.kafka.table))
        self.handle = native_reader.open(table, None)
        native_reader.seek(self.handle, b"t", 0)

    def read(
        self,
        end: int,
        position: int = 0,
        most: int = 100,
        most_bytes: int = 1 << 20,
        needs=EVERYTHING,
    ):
        block = Block()
        limits = (position, end, most, most_bytes)
        assert (
            self.native_reader.read(
                self.handle, *limits, 1, encode_columns(needs), ctypes.byref(block)
            )
            == 0
        )
        return adopt_block(self.native_reader, block, needs), block

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self.native_reader.close(self.handle)


def build_script() -> Any:
    spec = importlib.util.spec_from_file_location("build", BUILD)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def native_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeReader]:
    library = tmp_path_factory.mktemp("native") / "native_reader.so"
    trouble = build_script().build_library(library, ["-Werror"])
    if trouble:
        pytest.skip(f"no native reader here: {trouble}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMESTREAM_NATIVE", "1")
        made = load_native_reader(library)
    assert made is not None
    yield made
    # No block is alive any more, so no buffer of one may be.
    assert made.live_buffers() == 0


values = st.none() | st.binary(max_size=40)
names = st.sampled_from([b"", b"cti", b"h", "größe".encode(), b"\xff\xfe"])
records = st.lists(
    st.builds(
        Sent,
        offset=st.just(0),
        key=values,
        value=values,
        stamp=st.tuples(st.integers(0, 2), st.integers(0, 2**50)),
        headers=st.none() | st.lists(st.tuples(names, values), max_size=3).map(tuple),
        code=st.just(0),
        topic=st.just(b"t"),
        partition=st.just(0),
    ),
    max_size=30,
)  # fmt: skip


def expected(sent: list[Sent]) -> list[pa.Array]:
    """The columns, value by value as `RecordBlock` says."""
    return [
        pa.array([each.offset for each in sent], pa.int64()),
        pa.array([each.stamp[1] if each.stamp[0] else -1 for each in sent], pa.int64()),
        pa.array([each.stamp[0] - 1 for each in sent], pa.int32()),
        pa.array([each.key for each in sent], pa.binary()),
        pa.array([each.value for each in sent], pa.binary()),
        pa.array(
            [
                None if each.headers is None
                else [(name.decode(errors="replace"), value) for name, value in each.headers]
                for each in sent
            ],
            METADATA["headers"],
        ),
    ]  # fmt: skip


def joined(blocks: list[RecordBlock]) -> list[pa.Array]:
    return [pa.concat_arrays(column) for column in zip(*blocks, strict=True)]


@settings(max_examples=150, deadline=None)
@given(
    sent=records,
    gaps=st.lists(st.integers(1, 3), min_size=30, max_size=30),
    cuts=st.lists(st.integers(1, 7), min_size=1),
    most=st.integers(1, 9),
    most_bytes=st.integers(1, 200),
)
def test_every_record_arrives_however_the_queue_and_the_blocks_are_cut(
    native_reader: NativeReader, sent, gaps, cuts, most, most_bytes
) -> None:
    places = itertools.accumulate(gaps)
    sent = [each._replace(offset=place) for each, place in zip(sent, places, strict=False)]
    pieces, left = [], list(sent)
    for cut in itertools.cycle(cuts):
        if not left:
            break
        pieces.append(left[:cut])
        left = left[cut:]
    end = sent[-1].offset + 1 if sent else 0
    with Reading(native_reader, *pieces) as reading:
        blocks, position, tries = [], 0, 0
        while position < end:
            tries += 1
            assert tries < 1000
            block, raw = reading.read(end, position, most, most_bytes)
            position = raw.reached
            if block is not None:
                assert len(block.offsets) <= most
                blocks.append(block)
        assert not reading.kafka.alive
    if blocks:
        found = joined(blocks)
        for column in found:
            column.validate(full=True)
        assert [c.to_pylist() for c in found] == [c.to_pylist() for c in expected(sent)]
    else:
        assert not sent


@pytest.mark.parametrize(
    "needs", [ColumnSet(), ColumnSet(values=True), ColumnSet(timestamps=True, headers=True)]
)
def test_only_what_is_needed_is_read(native_reader: NativeReader, needs: ColumnSet) -> None:
    with Reading(native_reader, [Sent(0, b"k", b"v", (1, 5), ((b"h", b"x"),))]) as reading:
        block, _ = reading.read(1, needs=needs)
    wanted = [True, needs.timestamps, needs.timestamps, needs.keys, needs.values, needs.headers]
    assert [column is not None for column in block] == wanted


def test_a_block_ends_at_an_error_and_the_next_goes_on_behind_it(
    native_reader: NativeReader,
) -> None:
    broken = Sent(-1001, code=TRANSPORT, topic=None, partition=-1)
    with Reading(native_reader, [Sent(0), broken, Sent(1)]) as reading:
        first, raw = reading.read(2)
        assert (len(first.offsets), raw.reached, raw.problem) == (1, 1, TRANSPORT)
        assert (raw.problem_topic, raw.problem_text.decode()) == (b"", "wörks not")
        second, raw = reading.read(2, 1)
        assert (second.offsets.to_pylist(), raw.reached, raw.problem) == ([1], 2, 0)


def test_read_at_partition_end_reports_its_position(native_reader: NativeReader) -> None:
    def ends(offset: int, **place: Any) -> Sent:
        return Sent(offset, code=EOF_CODE, **place)

    others = [ends(9, partition=1), ends(9, topic=b"other"), ends(9, topic=None)]
    with Reading(native_reader, [Sent(0), *others], [ends(4)]) as reading:
        block, raw = reading.read(4)
    assert (len(block.offsets), raw.reached, raw.problem) == (1, 4, 0)


def test_no_record_outside_the_range_is_delivered(native_reader: NativeReader) -> None:
    with Reading(native_reader, [Sent(1), Sent(5), Sent(9), Sent(12)]) as reading:
        block, raw = reading.read(9, 3)
    assert (block.offsets.to_pylist(), raw.reached) == ([5], 9)


def test_headers_without_names_and_values_end_a_block_as_well(native_reader: NativeReader) -> None:
    empty = ((b"", None),) * 100
    with Reading(native_reader, [Sent(at, headers=empty) for at in range(5)]) as reading:
        block, raw = reading.read(5, most_bytes=1_500)
        assert (len(block.offsets), raw.reached) == (2, 2)
        # Nobody pays for what is not read.
        block, raw = reading.read(5, 2, most_bytes=1_500, needs=ColumnSet())
        assert (len(block.offsets), raw.reached) == (3, 5)


def test_seek_to_another_partition_drops_queued_records(native_reader: NativeReader) -> None:
    with Reading(native_reader, [Sent(0), Sent(1), Sent(2)]) as reading:
        reading.read(3, most=1)
        assert len(reading.kafka.alive) == 2
        native_reader.seek(reading.handle, b"u", 0)
        assert not reading.kafka.alive
        assert reading.read(9)[0] is None


def test_columns_outlive_the_native_reader(native_reader: NativeReader) -> None:
    with Reading(native_reader, [Sent(0, None, b"x" * 5000)]) as reading:
        block, _ = reading.read(1)
    assert native_reader.live_buffers() > 0
    assert block.values.to_pylist() == [b"x" * 5000]
    del block


def test_a_missing_library_is_an_error_only_where_it_is_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIMESTREAM_NATIVE", raising=False)
    assert load_native_reader(tmp_path / "none.so") is None
    monkeypatch.setenv("TIMESTREAM_NATIVE", "1")
    with pytest.raises(RuntimeError, match="TIMESTREAM_NATIVE is 1, but the native reader cannot"):
        load_native_reader(tmp_path / "nothing.so")


@pytest.mark.parametrize("part", ["columnar format", "native_source_digest"])
def test_a_library_of_another_source_is_refused_aloud(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    native_reader: NativeReader,
    part: str,
) -> None:
    older, script = tmp_path / "native_reader.c", build_script()
    now = script.SOURCE.read_text()
    older.write_text(now.replace(part, "as_it_was"))
    assert older.read_text() != now
    script.SOURCE = older
    assert script.build_library(tmp_path / "native_reader.so") is None
    monkeypatch.setenv("TIMESTREAM_NATIVE", "1")
    with pytest.raises(
        RuntimeError, match=r"was built from another version of native_reader\.c; install"
    ):
        load_native_reader(tmp_path / "native_reader.so")
    monkeypatch.delenv("TIMESTREAM_NATIVE")
    assert load_native_reader(tmp_path / "native_reader.so") is None
    assert "was built from another version" in caplog.text


@pytest.mark.parametrize("wish", ["true", "yes", "2", " 1"])
def test_a_wish_that_is_none_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setenv("TIMESTREAM_NATIVE", wish)
    with pytest.raises(RuntimeError, match=f"'TIMESTREAM_NATIVE': '{wish}' .* accepted: 0 .* 1 "):
        load_native_reader(tmp_path / "any.so")


@pytest.mark.parametrize(("wish", "is_taken"), [("", True), ("0", False), ("1", True)])
def test_the_wish_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    native_reader: NativeReader,
    wish: str,
    is_taken: bool,
) -> None:
    # A library is kept from call to call by its path.
    library = tmp_path / "native_reader.so"
    assert build_script().build_library(library) is None
    monkeypatch.setenv("TIMESTREAM_NATIVE", wish)
    assert (load_native_reader(library) is not None) == is_taken


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_install_with_a_compiler_uses_the_native_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Else every test of it would be skipped, and all others would pass by the slower path.
    monkeypatch.delenv("TIMESTREAM_NATIVE", raising=False)
    assert load_native_reader.__wrapped__() is not None, "run make, which installs it again"


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "false", "cc 'unbalanced"])
def test_failed_compiler_gives_a_reason_and_removes_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    older = tmp_path / "native_reader.so"
    older.write_bytes(b"older")
    # An install goes on without it where there is a reason, and packs the library where none is.
    assert build_script().build_library(older)
    assert list(tmp_path.iterdir()) == []


def test_an_installation_without_the_library_is_said_to_be_slower_once(
    monkeypatch, caplog, tmp_path
):
    monkeypatch.delenv("TIMESTREAM_NATIVE", raising=False)
    monkeypatch.setattr(library_module, "NATIVE_READER_PATH", tmp_path / "native_reader.so")
    monkeypatch.setattr(library_module, "load_native_reader", lambda: None)
    library_module.warn_of_slow_reading.cache_clear()
    for _ in range(2):
        library_module.warn_of_slow_reading()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "install pyspark-timestream from a wheel" in caplog.text
    caplog.clear()
    monkeypatch.setenv("TIMESTREAM_NATIVE", "0")
    library_module.warn_of_slow_reading.cache_clear()
    library_module.warn_of_slow_reading()
    library_module.warn_of_slow_reading.cache_clear()
    assert not caplog.records
