"""Frames of payloads: which bytes are the frame, and what they name."""

import io
import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_timestream.kafka.decode.formats import (
    HEADERS,
    WriterSchema,
    split_header_frames,
    split_unframed,
    split_value_frames,
)
from pyspark_timestream.kafka.decode.records import FINE, FRAMING

HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
GUID = bytes(range(16))


def rows(framed):
    """Per payload: its body, its writer, its id, and whether it is malformed."""
    framed.bodies.validate(full=True)
    assert framed.bodies.type == pa.binary()
    assert framed.schema_ids.type == pa.int32()
    assert framed.codes.dtype == np.int32
    assert len(set(framed.writers)) == len(framed.writers)
    writers = [framed.writers[code] if code >= 0 else None for code in framed.codes]
    assert framed.reasons.tolist() == [FRAMING if bad else FINE for bad in framed.bad]
    ids, bodies = framed.schema_ids.to_pylist(), framed.bodies.to_pylist()
    return list(zip(bodies, writers, ids, framed.bad.tolist(), strict=True))


def split(*payloads, indexed=False):
    return rows(split_value_frames(pa.array(payloads, pa.binary()), indexed=indexed))


def headers(*values, name=HEADERS["value"]):
    lists = [None if v is None else [{"key": name, "value": v}] for v in values]
    return pa.array([each or [] for each in lists], HEADER_TYPE)


BAD = (None, None, None, True)


def test_a_frame_is_a_zero_byte_and_four_bytes_of_id_big_end_first():
    assert split(b"\0\0\1\2\3body") == [(b"body", WriterSchema(66_051), 66_051, False)]


def test_a_frame_of_a_guid_is_a_byte_of_one_and_sixteen_more():
    assert split(b"\1" + GUID + b"body") == [(b"body", WriterSchema(guid=GUID), None, False)]


def test_a_body_may_be_empty():
    assert split(b"\0\0\0\0\1") == [(b"", WriterSchema(1), 1, False)]
    assert split(b"\0\0\0\0\1\0", indexed=True) == [(b"", WriterSchema(1, None, (0,)), 1, False)]


def test_a_null_payload_is_null_and_not_malformed():
    assert split(None, b"\0\0\0\0\1x", None) == [
        (None, None, None, False),
        (b"x", WriterSchema(1), 1, False),
        (None, None, None, False),
    ]


@pytest.mark.parametrize(
    "payload", [b"", b"\0", b"\0\0\0\1", b"\1" + GUID[:-1], b"\2\0\0\0\1x", b"{}"]
)
def test_a_payload_without_a_whole_frame_is_malformed(payload):
    assert split(payload) == [BAD]
    assert split(payload, indexed=True) == [BAD]


def test_an_id_beyond_31_bits_is_malformed_since_no_registry_gives_it():
    assert split(b"\0\x80\0\0\0x", b"\0\x7f\xff\xff\xffx") == [
        BAD,
        (b"x", WriterSchema(2**31 - 1), 2**31 - 1, False),
    ]


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (b"\0", (0,)),
        (b"\2\0", (0,)),
        (b"\2\2", (1,)),
        (b"\4\2\4", (1, 2)),
        (b"\6\0\0\0", (0, 0, 0)),
        (b"\2\xac\2", (150,)),
        # Longer than needed, but a varint.
        (b"\x80\0", (0,)),
        (b"\x82\x80\0\x82\0", (1,)),
    ],
)
def test_message_indexes_are_zigzag_varints_behind_their_count(indexes, message):
    assert split(b"\0\0\0\0\7" + indexes + b"body", indexed=True) == [
        (b"body", WriterSchema(7, None, message), 7, False)
    ]
    assert split(b"\1" + GUID + indexes, indexed=True) == [
        (b"", WriterSchema(None, GUID, message), None, False)
    ]


@pytest.mark.parametrize(
    "indexes",
    [
        b"",
        b"\1",  # -1 indexes
        b"\3\2\2",  # -2 indexes
        b"\2",  # one index, and none there
        b"\4\2",
        b"\2\1",  # the index -1
        b"\2\x80",  # an index without an end
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1",  # ten bytes
        b"\x80\x80\x80\x80\x80\0",
        b"\xfe\xff\xff\xff\x0f\2\2",  # two billion indexes
        b"\xfe\xff\xff\xff\x1f\2\2",  # 33 bits
        b"\xca\1" + b"\0" * 101,  # 101 indexes
    ],
)
def test_message_indexes_that_make_no_sense_are_malformed(indexes):
    assert split(b"\0\0\0\0\7" + indexes, indexed=True) == [BAD]


def test_a_hundred_message_indexes_are_read():
    payload = b"\0\0\0\0\7\xc8\1" + b"\0" * 100 + b"x"
    assert split(payload, indexed=True) == [(b"x", WriterSchema(7, None, (0,) * 100), 7, False)]


def oracle(payload, indexed):
    """One payload at a time, by the rules' wording."""
    if payload is None:
        return None, None, None, False
    stream = io.BytesIO(payload)

    def varint():
        value = 0
        for step in range(5):
            byte = stream.read(1)[0]
            value |= (byte & 127) << 7 * step
            if byte < 128:
                assert value < 2**32
                return (value >> 1) ^ -(value & 1)
        raise AssertionError

    try:
        magic = stream.read(1)[0]
        assert magic in (0, 1)
        named = stream.read(16 if magic else 4)
        schema_id = None if magic else struct.unpack(">i", named)[0]
        assert len(named) == (16 if magic else 4)
        assert (schema_id or 0) >= 0
        message = None
        if indexed:
            count = varint()
            assert 0 <= count <= 100
            message = tuple(varint() for _ in range(count)) or (0,)
            assert min(message) >= 0
    except (AssertionError, IndexError, struct.error):
        return BAD
    return (
        stream.read(),
        WriterSchema(schema_id, named if magic else None, message),
        schema_id,
        False,
    )


good = st.builds(
    lambda frame, indexes, body: frame + indexes + body,
    st.sampled_from([b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\1\0\0", b"\1" + GUID, b"\0\xff\0\0\0"]),
    st.sampled_from([b"\0", b"\2\0", b"\2\2", b"\4\2\x80\1", b"\2\x80\x80\1", b"\1", b"\4\2"]),
    st.binary(max_size=6),
)
payloads = st.lists(st.none() | good | st.binary(max_size=24), max_size=12)


@given(payloads, st.booleans(), st.integers(0, 12), st.integers(0, 12))
@example([None, None], True, 1, 1)
def test_columns_agree_with_one_payload_at_a_time_in_any_slice(values, indexed, start, length):
    array = pa.array(values, pa.binary()).slice(start, length)
    expected = [oracle(value, indexed) for value in values[start : start + length]]
    assert rows(split_value_frames(array, indexed=indexed)) == expected


@given(payloads, st.booleans())
def test_a_header_frame_is_read_like_one_in_front_of_an_empty_body(values, indexed):
    expected = []
    for value in values:
        body, writer, schema_id, _ = oracle(value, indexed)
        found = body == b""
        expected.append((b"body", writer, schema_id, False) if found else BAD)
    bodies = pa.array([b"body"] * len(values), pa.binary())
    found = split_header_frames(bodies, headers(*values), HEADERS["value"], indexed=indexed)
    assert rows(found) == expected


def test_a_header_frame_leaves_the_bodies_as_they_are():
    bodies = pa.array([b"\0\0\0\0\1x", None, b"y", None])
    frames = headers(b"\0\0\0\0\5", None, b"\1" + GUID, b"\0\0\0\0\6")
    assert rows(split_header_frames(bodies, frames, HEADERS["value"])) == [
        (b"\0\0\0\0\1x", WriterSchema(5), 5, False),
        (None, None, None, False),
        (b"y", WriterSchema(guid=GUID), None, False),
        (None, None, None, False),
    ]


@pytest.mark.parametrize("frame", [None, b"", b"\0\0\0\0\5\0", b"7"])
def test_a_payload_without_a_sound_header_is_malformed(frame):
    bodies = pa.array([b"x", b"y"])
    found = split_header_frames(bodies, headers(b"\0\0\0\0\5", frame), HEADERS["value"])
    assert rows(found) == [(b"x", WriterSchema(5), 5, False), BAD]


def test_the_last_of_repeated_headers_counts_and_those_of_the_key_do_not():
    key, value = HEADERS["key"], HEADERS["value"]
    frames = [
        {"key": value, "value": b"\0\0\0\0\1"},
        {"key": value, "value": b"\0\0\0\0\2"},
        {"key": key, "value": b"\0\0\0\0\3"},
    ]
    both = pa.array([[], frames], HEADER_TYPE).slice(1)
    assert rows(split_header_frames(pa.array([b"x"]), both, value)) == [
        (b"x", WriterSchema(2), 2, False)
    ]
    assert rows(split_header_frames(pa.array([b"x"]), both, key)) == [
        (b"x", WriterSchema(3), 3, False)
    ]


def test_payloads_without_frames_are_the_same_array():
    array = pa.array([b"\0\0\0\0\1", None, b""])
    framed = split_unframed(array)
    assert framed.bodies is array
    assert rows(framed) == [(value.as_py(), None, None, False) for value in array]


def test_writers_that_differ_in_bytes_alone_are_one():
    framed = split_value_frames(
        pa.array([b"\0\0\0\0\1\0a", b"\0\0\0\0\1\2\0b", b"\0\0\0\0\1\2\2c"]), indexed=True
    )
    assert framed.writers == (WriterSchema(1, None, (0,)), WriterSchema(1, None, (1,)))
    assert framed.codes.tolist() == [0, 0, 1]


@settings(deadline=None)
@given(
    st.one_of(st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16)),
    st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
)
def test_frames_that_confluents_client_writes_are_read(named, message):
    serde = pytest.importorskip("confluent_kafka.schema_registry.common.serde")
    by_id = isinstance(named, int)
    kind = "AVRO" if message is None else "PROTOBUF"
    schema_id = serde.SchemaId(
        kind, named if by_id else None, None if by_id else str(uuid.UUID(bytes=named)), message
    )
    frame = schema_id.id_to_bytes() if by_id else schema_id.guid_to_bytes()
    writer = WriterSchema(
        named if by_id else None, None if by_id else named, message and tuple(message)
    )
    expected = [(b"body", writer, named if by_id else None, False)]
    assert split(frame + b"body", indexed=message is not None) == expected
    found = split_header_frames(
        pa.array([b"body"]), headers(frame), HEADERS["value"], indexed=message is not None
    )
    assert rows(found) == expected


def test_thousands_of_different_frames_are_read_at_once():
    """Time grows with the number of payloads, not with its square."""
    many = [struct.pack(">bIBB", 0, i, 2, 2 * (i % 60)) + b"x" for i in range(20_000)]
    framed = split_value_frames(pa.array(many), indexed=True)
    assert len(framed.writers) == 20_000
    assert not framed.bad.any()
    assert framed.schema_ids.to_pylist() == list(range(20_000))
