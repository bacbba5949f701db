"""The native gather, `native/gather.c`, and librdkafka as ctypes sees them.

Both are optional: `native_gather` says why they are not to be had, and confluent-kafka's own
objects then do the same work.
"""

import ctypes
import functools
import hashlib
import logging
import os
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.kafka.decode.columns import METADATA
from pyspark_timestream.kafka.decode.records import Needs, RecordBlock

__all__ = ["GATHERED", "Block", "Gather", "block_of", "native_gather", "need_bits"]

_LOG: Final = logging.getLogger(__name__)

LIBRARY: Final = Path(__file__).parent / "gather.so"
_SOURCE: Final = LIBRARY.with_suffix(".c")

GATHERED: Final = (
    "rd_kafka_consume_batch_queue",
    "rd_kafka_message_destroy",
    "rd_kafka_message_timestamp",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
    "rd_kafka_topic_name",
    "rd_kafka_message_errstr",
)
"""What `gather_open` is handed, in its order."""


class _Buffer(ctypes.Structure):
    _fields_ = (("at", c_void_p), ("used", c_int64), ("room", c_int64))


class _Column(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("nulls", c_int64),
        ("starts", _Buffer),
        ("data", _Buffer),
        ("valid", _Buffer),
    )


class Block(ctypes.Structure):
    """`block` of gather.c."""

    _fields_ = (
        ("rows", c_int64),
        ("reached", c_int64),
        ("inflated", c_int64),
        ("header_nulls", c_int64),
        ("names_beyond_ascii", c_int64),
        ("offsets", _Buffer),
        ("stamps", _Buffer),
        ("stamp_types", _Buffer),
        ("header_starts", _Buffer),
        ("header_valid", _Buffer),
        ("keys", _Column),
        ("values", _Column),
        ("header_names", _Column),
        ("header_values", _Column),
        ("problem", c_int32),
        ("problem_partition", c_int32),
        ("problem_offset", c_int64),
        ("problem_topic", c_char * 256),
        ("problem_text", c_char * 512),
    )


class Gather(NamedTuple):
    """The compiled library's functions; each releases the GIL while it runs."""

    open: Callable[..., int | None]
    aim: Callable[..., None]
    read: Callable[..., int]
    release: Callable[[int | None], None]
    live_buffers: Callable[[], int]
    close: Callable[[int], None]
    new_counter: Callable[..., int | None]
    read_counter: Callable[[int], int]
    free_counter: Callable[[int], None]


@functools.cache
def native_gather(library: Path = LIBRARY) -> Gather | None:
    """The library; None where it was not built, was built from another source, or is not wanted.

    Environment variable `TIMESTREAM_NATIVE`: `0` does without it, `1` insists on it; unset or empty
    takes it where it is to be had.

    Raises:
        RuntimeError: `TIMESTREAM_NATIVE` is `1`, and it cannot be had, or is something else.
    """
    wish = os.environ.get("TIMESTREAM_NATIVE") or ""
    if wish not in ("", "0", "1"):
        raise RuntimeError(
            f"environment variable 'TIMESTREAM_NATIVE': '{wish}' is not a choice; accepted: 0 (do "
            "without the native gather), 1 (insist on it), or nothing; next step: set it to 0 or "
            "1, or unset it, on the driver and the executors"
        )
    if wish == "0":
        return None
    try:
        return _loaded(library)
    except (OSError, AttributeError, ValueError) as error:
        if wish == "1":
            raise RuntimeError(
                f"TIMESTREAM_NATIVE is 1, but the native gather cannot be used: {error}; install "
                "timestream again where a C compiler is, or set TIMESTREAM_NATIVE to 0"
            ) from error
        if library.exists():
            _LOG.warning("going on without the native gather, which is slower: %s", error)
        return None


def _loaded(library: Path) -> Gather:
    found = ctypes.CDLL(str(library))
    wanted = hashlib.sha256(_SOURCE.read_bytes()).hexdigest().encode()
    # The oldest libraries have no digest.
    digest = getattr(found, "gather_source_digest", None)
    size = _declared(found.gather_block_size, c_int64)()
    if digest is None or _declared(digest, c_char_p)() != wanted or size != ctypes.sizeof(Block):
        raise ValueError(f"{library} was built from another version of {_SOURCE.name}")
    limits = (c_int64, c_int64, c_int64, c_int64)
    return Gather(
        open=_declared(found.gather_open, c_void_p, c_void_p, c_void_p),
        aim=_declared(found.gather_aim, None, c_void_p, c_char_p, c_int32),
        read=_declared(
            found.gather_read, c_int, c_void_p, *limits, c_int32, c_uint32, POINTER(Block)
        ),
        release=_declared(found.gather_release, None, c_void_p),
        live_buffers=_declared(found.gather_live_buffers, c_int64),
        close=_declared(found.gather_close, None, c_void_p),
        new_counter=_declared(found.gather_count, c_void_p, c_void_p, c_void_p, c_void_p),
        read_counter=_declared(found.gather_counted, c_int64, c_void_p),
        free_counter=_declared(found.gather_uncount, None, c_void_p),
    )


def _declared(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def need_bits(needs: Needs) -> int:
    """`needs` as gather.c counts them."""
    wanted = (needs.timestamps, needs.keys, needs.values, needs.headers)
    return sum(1 << bit for bit, is_wanted in enumerate(wanted) if is_wanted)


# -- from C's buffers to Arrow's arrays, without a copy -------------------------------------------


class _Owned:
    """A buffer of the library's that lives as long as Arrow needs it."""

    def __init__(self, gather: Gather, address: int) -> None:
        self._release, self._address = gather.release, address

    def __del__(self) -> None:
        self._release(self._address)


def block_of(gather: Gather, block: Block, needs: Needs) -> RecordBlock | None:
    """The records of `block`, whose buffers it takes over; None where there are none."""
    take = functools.partial(_taken, gather)
    rows = block.rows
    offsets = _numbers(pa.int64(), rows, take(block.offsets))
    stamps = _numbers(pa.int64(), rows, take(block.stamps)) if needs.timestamps else None
    types = _numbers(pa.int32(), rows, take(block.stamp_types)) if needs.timestamps else None
    keys = _values(take, block.keys) if needs.keys else None
    values = _values(take, block.values) if needs.values else None
    headers = _headers(take, block) if needs.headers else None
    return RecordBlock(offsets, stamps, types, keys, values, headers) if rows else None


def _taken(gather: Gather, buffer: _Buffer) -> pa.Buffer:
    if not buffer.at:
        return pa.py_buffer(b"")
    return pa.foreign_buffer(buffer.at, buffer.used, _Owned(gather, buffer.at))


def _numbers(kind: pa.DataType, rows: int, data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, data], 0)


def _values(
    take: Callable[[_Buffer], pa.Buffer], column: _Column, kind: pa.DataType | None = None
) -> pa.Array:
    buffers = [take(column.valid), take(column.starts), take(column.data)]
    if not column.nulls:
        buffers[0] = None
    return pa.Array.from_buffers(kind or pa.binary(), column.rows, buffers, column.nulls)


def _headers(take: Callable[[_Buffer], pa.Buffer], block: Block) -> pa.Array:
    if block.names_beyond_ascii:
        raw = _values(take, block.header_names)
        # Kafka's own client reads a name that is no UTF-8 so, too.
        names = pa.array([name.decode(errors="replace") for name in raw.to_pylist()], pa.string())
    else:
        names = _values(take, block.header_names, pa.string())
    kind = METADATA["headers"]
    pairs = pa.StructArray.from_arrays(
        [names, _values(take, block.header_values)], fields=list(kind.value_type)
    )
    valid, starts = take(block.header_valid), take(block.header_starts)
    buffers = [valid if block.header_nulls else None, starts]
    return pa.Array.from_buffers(kind, block.rows, buffers, block.header_nulls, children=[pairs])
