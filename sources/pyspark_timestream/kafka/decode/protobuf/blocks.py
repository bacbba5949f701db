"""Reads blocks of messages: Google's library judges them, ptars makes them Arrow.

ptars is fast, and trusts: of bytes that no Protobuf library writes, it reads some that it should
refuse (overlong tags, ragged packed fields) and panics at others (lengths that wrap around). So
Google's library parses them first. n messages, each with a tag and its length in front, are one
message of n rows, and parsing that costs less than what ptars takes. A block that it refuses is
halved until the malformed rows are alone; so a row never depends on its neighbours. Where the two
read the same bytes differently (both members of a oneof, a repeated key of a map), Google's library
rewrites the needed fields of the rows, in the one form that all libraries agree on, and ptars reads
that.

The rules are then those of Google's library: it skips unknown fields and groups, the last of a
repeated scalar counts, repeated messages merge, and more than 99 levels are malformed.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.decode.protobuf.libraries import import_libraries

__all__ = ["BlockReader", "MessageBlock", "parse_block"]

_MAX_ROWS: Final = 8_192
_MAX_BYTES: Final = 256 * 1024
"""The size of a piece that is parsed at once, unless a single message is larger.

A parsed message takes up to some hundred times the memory of its bytes.
"""

_ROW_TAG: Final = 0x0A
"""Field 1, length-delimited."""


Places = npt.NDArray[np.int64]


class BlockReader(NamedTuple):
    """The classes that read blocks.

    Attributes:
        block_class: Google's class of a block.
        handler: ptars' reader of a block; None if no field is needed.
        rewrite: the two may read the same bytes of a wanted field differently.
        rewriter: Google's class of a block of the needed fields alone; None if none is needed.
    """

    block_class: Any
    handler: Any | None
    rewrite: bool = False
    rewriter: Any = None


class MessageBlock(NamedTuple):
    """n parsed messages.

    Attributes:
        rows: m structs of the fields that are needed, one per well-formed message; None if none
            is needed.
        fine: n booleans: the message is well-formed.
    """

    rows: pa.Array | None
    fine: Mask


def parse_block(reader: BlockReader, messages: pa.Array) -> MessageBlock:
    """Parse n binary messages, of which none is null."""
    fine = np.ones(len(messages), dtype=np.bool_)
    parts: list[pa.Array] = []
    for start, stop in _split(messages):
        data, bounds = _join(messages.slice(start, stop - start))
        fine[start:stop] = _judge(reader.block_class, data, bounds)
        if reader.handler is None:
            continue
        good = np.flatnonzero(fine[start:stop])
        if len(good) < stop - start:
            data, bounds = _keep(data, bounds, good)
        converted, failed = _convert(reader, data, bounds)
        parts += converted
        fine[start + good[failed]] = False
    if reader.handler is None:
        return MessageBlock(None, fine)
    return MessageBlock(pa.concat_arrays(parts or [_to_rows(reader.handler, b"", 0)]), fine)


def _split(messages: pa.Array) -> Iterator[tuple[int, int]]:
    """Split into pieces that are parsed at once."""
    if not len(messages):
        return
    narrow = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :][: len(messages) + 1]
    # A search for a wider number would convert all of them again each time.
    ends = narrow.astype(np.int64)
    start = 0
    while start < len(messages):
        fitting = int(np.searchsorted(ends, ends[start] + _MAX_BYTES, side="right")) - 1
        stop = min(max(fitting, start + 1), start + _MAX_ROWS, len(messages))
        yield start, stop
        start = stop


def _join(messages: pa.Array) -> tuple[memoryview, Places]:
    """Write n messages as the rows of one; return also the bounds of the rows in it."""
    n = len(messages)
    ends = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :][: n + 1]
    lengths = np.diff(ends).astype(np.int64)
    groups = np.ones(n, dtype=np.int64)
    for digits in range(7, int(lengths.max(initial=0)).bit_length(), 7):
        groups += lengths >= 1 << digits
    starts = np.concatenate(([0], np.cumsum(groups + 1)))
    heads = np.empty(starts[-1], dtype=np.uint8)
    heads[starts[:-1]] = _ROW_TAG
    for step in range(int(groups.max())):
        rows = np.flatnonzero(groups > step)
        more = np.where(groups[rows] > step + 1, 0x80, 0)
        heads[starts[rows] + 1 + step] = (lengths[rows] >> (7 * step)) & 0x7F | more
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(heads)]
    tags = pa.BinaryArray.from_buffers(pa.binary(), n, buffers)
    joined = pc.binary_join_element_wise(tags, messages, b"")
    bounds = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][: n + 1]
    return memoryview(joined.buffers()[2]), bounds.astype(np.int64)


def _judge(block_class: Any, data: memoryview, bounds: Places) -> Mask:
    """Find the well-formed rows of n."""
    fine = np.ones(len(bounds) - 1, dtype=np.bool_)
    pending = [(0, len(fine))]
    decode_error = import_libraries().DecodeError
    while pending:
        first, last = pending.pop()
        try:
            block_class.FromString(data[bounds[first] : bounds[last]])
        except decode_error:
            if last - first == 1:
                fine[first] = False
            else:
                pending += _halve(first, last)
    return fine


def _keep(data: memoryview, bounds: Places, rows: Places) -> tuple[memoryview, Places]:
    """Keep `rows`, which rise, of the rows in `data`."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
    kept = b"".join(data[bounds[run[0]] : bounds[run[-1] + 1]] for run in runs)
    return memoryview(kept), np.concatenate(([0], np.cumsum(np.diff(bounds)[rows])))


def _convert(
    reader: BlockReader, data: memoryview, bounds: Places
) -> tuple[list[pa.Array], list[int]]:
    """Convert n well-formed rows; return also the rows at which ptars fails: none is known."""
    parts: list[pa.Array] = []
    failed: list[int] = []
    pending = [(0, len(bounds) - 1)] if len(bounds) > 1 else []
    while pending:
        first, last = pending.pop()
        piece = data[bounds[first] : bounds[last]]
        try:
            part = _convert_piece(reader, piece, last - first)
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException:
            # A panic of ptars is no Exception.
            if last - first == 1:
                failed.append(first)
            else:
                pending += _halve(first, last)
            continue
        # ptars' arrays have room for many rows: of few, a copy is kept.
        parts.append(part if last - first == len(bounds) - 1 else part.take(np.arange(len(part))))
    return parts, failed


def _halve(first: int, last: int) -> list[tuple[int, int]]:
    middle = (first + last) // 2
    return [(middle, last), (first, middle)]


def _convert_piece(reader: BlockReader, data: memoryview, rows: int) -> pa.Array:
    if not reader.rewrite:
        # Should ptars refuse what Google's library accepts, it may read what that one writes.
        with contextlib.suppress(ValueError):
            return _to_rows(reader.handler, data, rows)
    block = reader.rewriter.FromString(data)
    block.DiscardUnknownFields()
    written = block.SerializePartialToString(deterministic=True)
    return _to_rows(reader.handler, written, rows)


def _to_rows(handler: Any, data: bytes | memoryview, rows: int) -> pa.Array:
    """Convert the block of `data` to an array of its rows."""
    bounds = pa.py_buffer(np.array([0, len(data)], dtype=np.int32))
    blocks = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, bounds, pa.py_buffer(data)])
    found = handler.array_to_record_batch(blocks).column(0).flatten()
    if len(found) != rows:
        raise ValueError(f"{len(found)} rows instead of {rows}")
    return found
