"""Splits framed payloads into bodies and the ids of the schemas that wrote them.

Semantics 13.8 describes the bytes of a frame. The lengths of frames are computed in columns, and
each distinct frame is parsed only once.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.instants import Mask
from pyspark_timestream.kafka.decode.convert import Longs
from pyspark_timestream.kafka.decode.records import (
    FINE,
    FRAMING,
    Reasons,
    find_header,
    take_header_values,
    to_mask,
)

HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The record header with the frame of the key or the value."""

MAX_INDEXES: Final = 100
"""Frames with more message indexes are malformed; Protobuf's own readers stop at this nesting."""

_ID_LENGTH: Final = 5
_GUID_LENGTH: Final = 17
_MAX_VARINT: Final = 5
"""Maximum number of bytes of a 32-bit varint."""

_MAX_ID: Final = 2**31 - 1

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Writer(NamedTuple):
    """The schema that wrote a payload, as its frame names it.

    Attributes:
        schema_id: the schema's id; None if the frame names a GUID.
        guid: the schema's GUID, 16 bytes; None if the frame names an id.
        message: the indexes of the message type in a Protobuf schema: first among the top-level
            messages, then among the messages nested in that one, and so on; None without.
    """

    schema_id: int | None = None
    guid: bytes | None = None
    message: tuple[int, ...] | None = None


class FramedBlock(NamedTuple):
    """n payloads without their frames.

    Attributes:
        bodies: n binary: the payload after its frame; null if the payload is null or malformed.
        schema_ids: n int32: the id of the writer's schema; null if there is none or it is a GUID.
        writers: the different writers of the block, in order of appearance.
        codes: n int32: the payload's writer as an index into `writers`; -1 if there is none.
        bad: n booleans: the frame is malformed.
    """

    bodies: pa.Array
    schema_ids: pa.Array
    writers: tuple[Writer, ...]
    codes: npt.NDArray[np.int32]
    bad: Mask

    @property
    def reasons(self) -> Reasons:
        """N numbers: FRAMING where the frame is malformed, else FINE."""
        return np.where(self.bad, FRAMING, FINE).astype(np.uint8)

    def name(self, names: Sequence[str | None]) -> pa.Array:
        """Return n strings: the name of each payload's writer, where `names` has one per writer."""
        # The last place stands for no writer.
        return pa.array([*names, None], pa.string()).take(
            pa.array(np.where(self.codes < 0, len(names), self.codes))
        )


def split_unframed(payloads: pa.Array) -> FramedBlock:
    """Return payloads without frames as they are."""
    nothing = np.full(len(payloads), -1, dtype=np.int32)
    ids = pa.nulls(len(payloads), pa.int32())
    return FramedBlock(payloads, ids, (), nothing, np.zeros(len(payloads), dtype=np.bool_))


def split_value_frames(payloads: pa.Array, *, indexed: bool = False) -> FramedBlock:
    """Split n binary payloads into frame and body; `indexed` frames name a Protobuf message."""
    equal = _split_equal_frames(payloads, indexed)
    if equal is not None:
        return equal
    frames, bodies, bad = _cut(payloads, indexed)
    return _resolve(frames, bodies, bad, indexed)


def split_header_frames(
    payloads: pa.Array, headers: pa.Array, name: str, *, indexed: bool = False
) -> FramedBlock:
    """Read the frames of n binary payloads from the record header `name`.

    A payload is malformed if it lacks that header, or if the header has bytes after the frame; a
    null payload never is.
    """
    frames, rest, bad = _cut(take_header_values(headers, find_header(headers, name)), indexed)
    starts, ends, _ = _locate(rest)
    longer = to_mask(rest.is_valid()) & (ends > starts)
    bad = (bad | longer | to_mask(frames.is_null())) & to_mask(payloads.is_valid())
    return _resolve(_blank(frames, to_mask(payloads.is_null()) | bad), payloads, bad, indexed)


def _split_equal_frames(payloads: pa.Array, indexed: bool) -> FramedBlock | None:
    """Split n payloads that all begin with the same frame, as in most blocks; else return None."""
    n = len(payloads)
    if n == 0 or payloads.null_count:
        return None
    starts, ends, data = _locate(payloads)
    length = int(_measure_frames(data, starts[:1], ends[:1], indexed)[0])
    if length == 0 or int((ends - starts).min()) < length:
        return None
    frame = data[starts[0] : starts[0] + length]
    if not all(bool((data[starts + place] == byte).all()) for place, byte in enumerate(frame)):
        return None
    writer = _parse_frame(frame.tobytes(), indexed)
    if writer is None:
        return None
    bodies = _alternate(payloads, starts, ends, length).take(pa.array(np.arange(1, 2 * n, 2)))
    ids = pa.repeat(pa.scalar(writer.schema_id, pa.int32()), n)
    return FramedBlock(bodies, ids, (writer,), np.zeros(n, np.int32), np.zeros(n, np.bool_))


def _cut(payloads: pa.Array, indexed: bool) -> tuple[pa.Array, pa.Array, Mask]:
    """Cut payloads after their frames; both are null where a payload has no sound frame."""
    n = len(payloads)
    present = to_mask(payloads.is_valid())
    starts, ends, data = _locate(payloads)
    lengths = _measure_frames(data, starts, ends, indexed)
    bad = present & (lengths == 0)
    pieces = _alternate(payloads, starts, ends, lengths)
    absent = bad | ~present
    frames = np.arange(0, 2 * n, 2)
    return (
        pieces.take(pa.array(frames, mask=absent)),
        pieces.take(pa.array(frames + 1, mask=absent)),
        bad,
    )


def _alternate(payloads: pa.Array, starts: Longs, ends: Longs, lengths: Longs | int) -> pa.Array:
    """Return an array of frame, body, frame, body and so on over the payloads' bytes."""
    n = len(payloads)
    bounds = np.empty(2 * n + 1, dtype=np.int32)
    bounds[0:-1:2], bounds[1::2], bounds[-1] = starts, starts + lengths, ends[-1] if n else 0
    buffers = [None, pa.py_buffer(bounds), payloads.buffers()[2] or pa.py_buffer(b"")]
    return pa.BinaryArray.from_buffers(pa.binary(), 2 * n, buffers)


def _locate(payloads: pa.Array) -> tuple[Longs, Longs, Bytes]:
    """Return the starts and the ends of payloads in their buffer, and the buffer."""
    if not len(payloads):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    _, offsets, data = payloads.buffers()
    bounds = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
    wide = bounds.astype(np.int64)
    return wide[:-1], wide[1:], np.frombuffer(data or b"", np.uint8)


def _measure_frames(data: Bytes, starts: Longs, ends: Longs, indexed: bool) -> Longs:
    """Return the length of each frame; 0 where it is malformed."""
    magic = _read_bytes(data, starts, ends)
    lengths = np.where(magic == 0, _ID_LENGTH, np.where(magic == 1, _GUID_LENGTH, 0))
    lengths[ends - starts < lengths] = 0
    if indexed:
        framed = np.flatnonzero(lengths)
        places = starts[framed] + lengths[framed]
        # Most schemas write their first message, which is encoded as a single zero byte.
        first = _read_bytes(data, places, ends[framed]) == 0
        behind = places + 1
        behind[~first] = _skip_indexes(data, places[~first], ends[framed[~first]])
        lengths[framed] = np.where(behind > 0, behind - starts[framed], 0)
    return lengths


def _skip_indexes(data: Bytes, places: Longs, ends: Longs) -> Longs:
    """Return the places after arrays of message indexes; 0 where one is malformed."""
    counts, places = _read_varints(data, places, ends)
    # Zigzag encodes a negative count as an odd number.
    sound = (places > 0) & (counts % 2 == 0) & (counts <= 2 * MAX_INDEXES)
    left = np.where(sound, counts // 2, 0)
    places = np.where(sound, places, 0)
    while (rows := np.flatnonzero(left)).size:
        indexes, behind = _read_varints(data, places[rows], ends[rows])
        places[rows] = np.where(indexes % 2 == 0, behind, 0)
        left[rows] = np.where(places[rows] > 0, left[rows] - 1, 0)
    return places


def _read_varints(data: Bytes, places: Longs, ends: Longs) -> tuple[Longs, Longs]:
    """Read a 32-bit varint at each place; return values and the places after, 0 if malformed."""
    values = np.zeros(len(places), dtype=np.int64)
    behind = np.zeros(len(places), dtype=np.int64)
    rows = np.arange(len(places))
    for step in range(_MAX_VARINT):
        at = places[rows] + step
        read = _read_bytes(data, at, ends[rows])
        rows, at, read = rows[read >= 0], at[read >= 0], read[read >= 0]
        values[rows] |= (read & 0x7F) << (7 * step)
        last = read < 0x80
        behind[rows[last]] = at[last] + 1
        rows = rows[~last]
    return values, np.where(values < 2**32, behind, 0)


def _read_bytes(data: Bytes, places: Longs, ends: Longs) -> Longs:
    """Read a byte at each place; -1 where the payload ends before it."""
    inside = places < ends
    if not inside.any():
        return np.full(len(places), -1, dtype=np.int64)
    return np.where(inside, data[np.where(inside, places, 0)], -1).astype(np.int64)


def _resolve(frames: pa.Array, bodies: pa.Array, bad: Mask, indexed: bool) -> FramedBlock:
    """Parse each distinct frame once; different bytes may name the same writer."""
    encoded = frames.dictionary_encode()
    writers: dict[Writer, int] = {}
    meaning = np.full(len(encoded.dictionary) + 1, -1, dtype=np.int32)
    for place, frame in enumerate(encoded.dictionary.to_pylist()):
        writer = _parse_frame(frame, indexed)
        if writer is not None:
            meaning[place] = writers.setdefault(writer, len(writers))
    # The last entry stands for payloads without a frame.
    codes = meaning[encoded.indices.fill_null(len(meaning) - 1).to_numpy(zero_copy_only=False)]
    bad = bad | (to_mask(frames.is_valid()) & (codes < 0))
    if (bad & to_mask(bodies.is_valid())).any():
        bodies = _blank(bodies, bad)
    ids = np.array([writer.schema_id or 0 for writer in writers] + [0], dtype=np.int32)
    named = np.array([writer.schema_id is not None for writer in writers] + [False])
    return FramedBlock(bodies, pa.array(ids[codes], mask=~named[codes]), tuple(writers), codes, bad)


def _parse_frame(frame: bytes, indexed: bool) -> Writer | None:
    """Parse a frame of the right length; None if its id is above the maximum of a registry."""
    length = _GUID_LENGTH if frame[0] else _ID_LENGTH
    message = _parse_indexes(frame[length:]) if indexed else None
    if frame[0]:
        return Writer(guid=frame[1:length], message=message)
    schema_id = int.from_bytes(frame[1:length])
    return Writer(schema_id, message=message) if schema_id <= _MAX_ID else None


def _parse_indexes(frame: bytes) -> tuple[int, ...]:
    numbers, shift = [0], 0
    for byte in frame[:-1]:
        numbers[-1] |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(0)
            shift = 0
    numbers[-1] |= frame[-1] << shift
    return tuple(number // 2 for number in numbers[1:]) or (0,)


def _blank(values: pa.Array, absent: Mask) -> pa.Array:
    return values.take(pa.array(np.arange(len(values)), mask=absent))
