"""The text that commits a clock to the consumer group: a task's clock after its range (8.3).

A group stores a text with each partition's offset, up to the broker's setting
`offset.metadata.max.bytes` (by default 4096). The driver reads it for the next batch. Task and
driver both know the clock before the range, so the text has only the differences of the writers'
clocks from it, without the names. 5,000 writers that move in step need no more room than one; of
writers that move independently, 700 fit. A key covers the clock before the range, the range and the
settings. The runs of a copied checkpoint share the group; each knows its own clocks by the key.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import compress, pairwise
from os.path import commonprefix
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_timestream.core.arrow import Integers, Mask
from pyspark_timestream.core.instants import NEVER, instant_or_sentinel
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    MalformedPayloads,
    StreamOffset,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import PartitionClock, WriterState


def group_name(prefix: str, stream: str) -> str:
    """Return the consumer group of the stream with the id `stream`."""
    return f"{prefix}-{stream}"


_METADATA_VERSION: Final = 1

_STREAM_PREFIX_LENGTH: Final = 8
_RAW_DEFLATE: Final = -zlib.MAX_WBITS
"""Deflate without header and checksum: the key shows whether the text is ours."""
_MAX_UNPACKED_BYTES: Final = 1 << 24
"""The limit for a clock, and for its writers' names: a short text can unpack to any size."""
_MAX_BITS: Final = 64
"""The bits of the largest number."""

_UNREADABLE: Final = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    zlib.error,
)
"""Errors that decoding a foreign text may raise."""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The decoded metadata of one partition, for one batch.

    Attributes:
        clock: the clock after the range, committed by a task of this batch; None if missing.
        malformed_payloads: the malformed values and keys in the range, if a task counted them.
        settings: (name, value) of session settings, seen by the task, that break what CTIs
            promise.
        refused_length: the length of the text with the clock, if the broker refused it as too
            long; None otherwise.
        other_stream: the first characters of another stream's id, if a task of that stream wrote
            the metadata; None otherwise.
    """

    clock: PartitionClock | None = None
    malformed_payloads: MalformedPayloads = NO_MALFORMED_PAYLOADS
    settings: tuple[tuple[str, str], ...] = ()
    refused_length: int | None = None
    other_stream: str | None = None


def encode_group_metadata(
    offset: StreamOffset,
    partition: Partition,
    end: PartitionClock,
    malformed_payloads: MalformedPayloads = NO_MALFORMED_PAYLOADS,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Return the ASCII text that a task commits for a partition after its range.

    `settings` are session settings that break what CTIs promise.
    """
    value = {
        "for": _compute_key(offset, partition),
        "packed": _pack_clock(end, offset.partitions[partition].clock),
        "settings": dict(settings or {}),
        "stream": offset.stream[:_STREAM_PREFIX_LENGTH],
        "version": _METADATA_VERSION,
        **malformed_payloads.to_json(),
    }
    # Leave out empty entries, but not the offset 0.
    return _to_text({name: entry for name, entry in value.items() if entry or entry == 0})


def drop_clock(metadata: str) -> str:
    """Replace the clock by the text's length, after the broker refused the text as too long.

    Return a text without a clock unchanged.
    """
    value = json.loads(metadata or "{}")
    if "packed" not in value:
        return metadata
    del value["packed"]
    return _to_text({**value, "length": len(metadata)})


def decode_group_metadata(
    offset: StreamOffset, partition: Partition, metadata: str | None
) -> GroupMetadata:
    """Decode `metadata` for the batch `offset`; return an empty result for foreign texts."""
    try:
        value = json.loads(metadata or "")
        if value["version"] != _METADATA_VERSION:
            return GroupMetadata()
        if value["for"] != _compute_key(offset, partition):
            stream = value.get("stream", "")
            is_other = stream and not offset.stream.startswith(stream)
            return GroupMetadata(other_stream=stream if is_other else None)
        start = offset.partitions[partition].clock
        return GroupMetadata(
            clock=_unpack_clock(value["packed"], start) if "packed" in value else None,
            malformed_payloads=MalformedPayloads.from_json(value),
            settings=tuple(sorted(value.get("settings", {}).items())),
            refused_length=value.get("length"),
        )
    except _UNREADABLE:
        return GroupMetadata()


def describe_missing_clocks(is_ordered: bool) -> str:
    """Return, for a message, the cost of clocks that are missing in the group."""
    if is_ordered:
        return "its batches are read a second time to restore their clocks"
    return "the counts in the progress leave its records out"


def _pack_clock(clock: PartitionClock, start: PartitionClock) -> str:
    """Return `clock` as ASCII text, as differences from `start`."""
    body: list[bytes] = []
    head = replace(clock, writers=()).to_json()
    if clock.writers or start.writers:
        head["writers"] = _pack_writers(dict(clock.writers), dict(start.writers), body)
    deflate = zlib.compressobj(wbits=_RAW_DEFLATE, zdict=_compression_dictionary(start))
    text = b"\n".join((_to_text(head).encode(), b"".join(body)))
    return base64.b85encode(deflate.compress(text) + deflate.flush()).decode()


def _unpack_clock(text: str, start: PartitionClock) -> PartitionClock:
    """Read the result of `_pack_clock`.

    Raises:
        ValueError: the text is not a result of it; the message says why.
    """
    try:
        inflate = zlib.decompressobj(_RAW_DEFLATE, zdict=_compression_dictionary(start))
        unpacked = inflate.decompress(base64.b85decode(text), _MAX_UNPACKED_BYTES)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("it does not end where it should")
        head, _, body = unpacked.partition(b"\n")
        fields, packed_writers = json.loads(head), BytesIO(body)
        writers_head = fields.pop("writers", None)
        writers = (
            ()
            if writers_head is None
            else _unpack_writers(writers_head, dict(start.writers), packed_writers)
        )
        if packed_writers.read(1):
            raise ValueError("there are more numbers than writers")
        return replace(PartitionClock.from_json(fields), writers=writers)
    except _UNREADABLE as error:
        raise ValueError(f"the packed clock cannot be read: {error}") from error


def _compression_dictionary(start: PartitionClock) -> bytes:
    """Return a text that both sides know; new names and instants resemble those in it."""
    names = [name for name, _ in start.writers]
    return _to_text([names, replace(start, writers=()).to_json()]).encode()


def _pack_writers(
    writers: Mapping[str, WriterState], start: Mapping[str, WriterState], body: list[bytes]
) -> list[Any]:
    """Add numbers to `body`; return the new names, and a description of each group of numbers.

    Write each name as the length of the prefix that it shares with the previous one, and the rest.
    Each field of the writers is a column with two groups: values that had one at the start, and
    others. A group has a bit for each value, set if it changed, and the changed values as numbers
    or, if that is shorter, as differences: the marks of many writers are near each other, or all
    move by the same amount.
    """
    body.append(_to_bits(np.array([name in writers for name in start], dtype=bool)))
    new = sorted(writers.keys() - start.keys())
    neighbours = pairwise(["", *new])
    prefixes = [len(commonprefix(pair)) for pair in neighbours]  # noqa: RUF071 - texts, not paths
    suffixes = [name[length:] for name, length in zip(new, prefixes, strict=True)]
    head: list[Any] = [prefixes, suffixes]
    ends, starts = _to_table(writers, writers), _to_table(start, writers)
    for field in range(len(WriterState._fields)):
        expected, unwritten = _expect(starts, ends, field)
        for group in _split_known(starts[field]):
            values = ends[field][group]
            is_changed = values != unwritten[group]
            body.append(_to_bits(is_changed))
            numbers = values[is_changed]
            differences = numbers - expected[group][is_changed]
            planes = min(
                _Planes.fit(differences, is_difference=True),
                _Planes.fit(numbers, is_difference=False),
            )
            body.append(_to_planes(differences if planes.is_difference else numbers, planes))
            head.append(planes)
    return head


def _unpack_writers(
    head: list[Any], start: Mapping[str, WriterState], body: BytesIO
) -> tuple[tuple[str, WriterState], ...]:
    prefixes, suffixes, *plane_heads = head
    new, bytes_left = [""], _MAX_UNPACKED_BYTES
    for length, suffix in zip(prefixes, suffixes, strict=True):
        new.append(new[-1][:length] + suffix)
        bytes_left -= len(new[-1])
        if bytes_left < 0:
            raise ValueError("its names are too long")
    kept = compress(start, _from_bits(body, len(start)).tolist())
    names = sorted((*kept, *new[1:]))
    starts = _to_table(start, names)
    ends, next_head = np.empty_like(starts), iter(plane_heads)
    for field in range(len(WriterState._fields)):
        expected, unwritten = _expect(starts, ends, field)
        ends[field] = unwritten
        for group in _split_known(starts[field]):
            changed = group[_from_bits(body, len(group))]
            planes = _Planes._make(next(next_head, ()))
            values = _from_planes(planes, len(changed), body)
            ends[field][changed] = values + expected[changed] if planes.is_difference else values
    columns = [[None if us == NEVER else us for us in column.tolist()] for column in ends]
    return tuple(zip(names, map(WriterState, *columns), strict=True))


def _to_table(writers: Mapping[str, WriterState], names: Iterable[str]) -> Integers:
    """Return a column of numbers per field, with NEVER for None."""
    new = WriterState()
    rows = [tuple(map(instant_or_sentinel, writers.get(name, new))) for name in names]
    return np.array(rows, dtype=np.int64).reshape(-1, len(new)).T


def _expect(starts: Integers, ends: Integers, field: int) -> tuple[Integers, Integers]:
    """Return the base of the differences, and the values that stand for "nothing is written".

    A writer's timespan begins a fixed distance from its mark, so the base moves with the mark.
    Differences overflow without harm: adding them overflows back.
    """
    marks, end_marks = (_zero_if_never(table[0]) for table in (starts, ends))
    expected = _zero_if_never(starts[field])
    if WriterState._fields[field] == "base_us":
        expected = expected + (end_marks - marks)
    return expected, np.where(starts[field] == NEVER, NEVER, expected)


def _zero_if_never(column: Integers) -> Integers:
    return np.where(column == NEVER, 0, column)


def _split_known(column: Integers) -> tuple[Integers, Integers]:
    """Return the positions of the known values, and those of NEVER."""
    return np.flatnonzero(column != NEVER), np.flatnonzero(column == NEVER)


class _Planes(NamedTuple):
    """How numbers are written as planes of bits, each number as a multiple of `step` above `least`.

    Shorter ones compare as less.
    """

    width: int
    is_difference: int
    least: int
    step: int

    @classmethod
    def fit(cls, numbers: Integers, *, is_difference: bool) -> "_Planes":
        """Return the planes with the fewest bits for `numbers`."""
        if not len(numbers):
            return cls(0, 0, 0, 1)
        least = int(numbers.min())
        above = (numbers - np.int64(least)).view(np.uint64)
        step = max(int(np.gcd.reduce(above)), 1)
        return cls((int(above.max()) // step).bit_length(), int(is_difference), least, step)


def _to_planes(numbers: Integers, planes: _Planes) -> bytes:
    """Return planes of bits: the first bits of all numbers, then the second, and so on."""
    above = (numbers - np.int64(planes.least)).view(np.uint64) // np.uint64(planes.step)
    bits = np.unpackbits(above.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    return _to_bits(bits[:, _MAX_BITS - planes.width :].T)


def _from_planes(planes: _Planes, count: int, body: BytesIO) -> Integers:
    width = planes.width
    if not 0 <= width <= _MAX_BITS:
        raise ValueError(f"a number has {width} bits")
    bits = np.zeros((count, _MAX_BITS), dtype=np.uint8)
    bits[:, _MAX_BITS - width :] = _from_bits(body, width * count).reshape(width, count).T
    above = np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
    return (above * np.uint64(planes.step)).view(np.int64) + np.int64(planes.least)


def _to_bits(flags: Mask | NDArray[np.uint8]) -> bytes:
    return np.packbits(flags).tobytes()


def _from_bits(body: BytesIO, count: int) -> Mask:
    size = -(-count // 8)
    packed = np.frombuffer(body.read(size), dtype=np.uint8)
    if len(packed) < size:
        raise ValueError("there are fewer numbers than writers")
    return np.unpackbits(packed, count=count).astype(bool)


def _to_text(value: Mapping[str, Any] | list[Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _compute_key(offset: StreamOffset, partition: Partition) -> str:
    partition_offset = offset.partitions[partition]
    origin = [
        partition.topic,
        partition.number,
        partition_offset.start_inclusive,
        partition_offset.end_exclusive,
        partition_offset.clock.to_json(),
        sorted(offset.settings.items()),
    ]
    return hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]
