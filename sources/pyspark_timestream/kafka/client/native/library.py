"""The compiled `gather.c` through ctypes, and its buffers as Arrow arrays without a copy.

The library is optional: without it confluent-kafka's own objects do the same work, slower.
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

from pyspark_timestream.errors import compose_message
from pyspark_timestream.kafka.decode.columns import METADATA
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock

__all__ = [
    "LIBRDKAFKA_FUNCTIONS",
    "Block",
    "Gather",
    "adopt_block",
    "encode_columns",
    "load_gather",
    "warn_of_slow_reading",
]

_LOG: Final = logging.getLogger(__name__)

LIBRARY_PATH: Final = Path(__file__).parent / "gather.so"
_CHOICE: Final = "TIMESTREAM_NATIVE"
"""The environment variable by which a user chooses; see `load_gather`."""

_SOURCE: Final = LIBRARY_PATH.with_suffix(".c")

LIBRDKAFKA_FUNCTIONS: Final = (
    "rd_kafka_consume_batch_queue",
    "rd_kafka_message_destroy",
    "rd_kafka_message_timestamp",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
    "rd_kafka_topic_name",
    "rd_kafka_message_errstr",
)
"""The functions that `gather_open` receives, in its order."""


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
    """The struct `block` of gather.c."""

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
    seek: Callable[..., None]
    read: Callable[..., int]
    release: Callable[[int | None], None]
    live_buffers: Callable[[], int]
    close: Callable[[int], None]
    new_counter: Callable[..., int | None]
    read_counter: Callable[[int], int]
    free_counter: Callable[[int], None]


@functools.cache
def warn_of_slow_reading() -> None:
    """Say once in a driver that its installation has no native reader, unless that was chosen."""
    if load_gather() is None and not LIBRARY_PATH.exists() and not os.environ.get(_CHOICE):
        _LOG.warning(
            "this installation has no native reader, so records take more of "
            "the processor to read; next step: install pyspark-timestream from a wheel for this "
            "platform, or from source where a C compiler is (cc), on the driver and the "
            "executors; TIMESTREAM_NATIVE=0 accepts it and ends this warning"
        )


@functools.cache
def load_gather(library: Path = LIBRARY_PATH) -> Gather | None:
    """Load the library; None if it was not built, comes from another source, or is disabled.

    Environment variable `TIMESTREAM_NATIVE`: `0` disables it, `1` requires it; unset or empty uses
    it if it is available.

    Raises:
        RuntimeError: `TIMESTREAM_NATIVE` is `1` and the library is not usable, or is another value.
    """
    wish = os.environ.get(_CHOICE) or ""
    if wish not in ("", "0", "1"):
        raise RuntimeError(
            compose_message(
                f"environment variable 'TIMESTREAM_NATIVE': '{wish}' is not a choice",
                "0 (do without the native gather), 1 (insist on it), or nothing",
                "set it to 0 or 1, or unset it, on the driver and the executors",
            )
        )
    if wish == "0":
        return None
    try:
        return _load_library(library)
    except (OSError, AttributeError, ValueError) as error:
        if wish == "1":
            raise RuntimeError(
                f"TIMESTREAM_NATIVE is 1, but the native gather cannot be used: {error}; install "
                "timestream again where a C compiler is, or set TIMESTREAM_NATIVE to 0"
            ) from error
        if library.exists():
            _LOG.warning("going on without the native gather, which is slower: %s", error)
        return None


def _load_library(library: Path) -> Gather:
    found = ctypes.CDLL(str(library))
    wanted = hashlib.sha256(_SOURCE.read_bytes()).hexdigest().encode()
    # The first libraries had no digest.
    digest = getattr(found, "gather_source_digest", None)
    size = _declare(found.gather_block_size, c_int64)()
    if digest is None or _declare(digest, c_char_p)() != wanted or size != ctypes.sizeof(Block):
        raise ValueError(f"{library} was built from another version of {_SOURCE.name}")
    limits = (c_int64, c_int64, c_int64, c_int64)
    return Gather(
        open=_declare(found.gather_open, c_void_p, c_void_p, c_void_p),
        seek=_declare(found.gather_aim, None, c_void_p, c_char_p, c_int32),
        read=_declare(
            found.gather_read, c_int, c_void_p, *limits, c_int32, c_uint32, POINTER(Block)
        ),
        release=_declare(found.gather_release, None, c_void_p),
        live_buffers=_declare(found.gather_live_buffers, c_int64),
        close=_declare(found.gather_close, None, c_void_p),
        new_counter=_declare(found.gather_count, c_void_p, c_void_p, c_void_p, c_void_p),
        read_counter=_declare(found.gather_counted, c_int64, c_void_p),
        free_counter=_declare(found.gather_uncount, None, c_void_p),
    )


def _declare(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def encode_columns(needs: ColumnSet) -> int:
    """Encode `needs` as the bits that gather.c expects."""
    wanted = (needs.timestamps, needs.keys, needs.values, needs.headers)
    return sum(1 << bit for bit, is_wanted in enumerate(wanted) if is_wanted)


# -- from C's buffers to Arrow's arrays, without a copy -------------------------------------------


class _OwnedBuffer:
    """Frees a buffer of the library when Arrow no longer uses it."""

    def __init__(self, gather: Gather, address: int) -> None:
        self._release, self._address = gather.release, address

    def __del__(self) -> None:
        self._release(self._address)


def adopt_block(gather: Gather, block: Block, needs: ColumnSet) -> RecordBlock | None:
    """Turn `block` into records, taking over its buffers; None if it is empty."""
    take = functools.partial(_adopt_buffer, gather)
    rows = block.rows
    offsets = _build_numbers(pa.int64(), rows, take(block.offsets))
    stamps = _build_numbers(pa.int64(), rows, take(block.stamps)) if needs.timestamps else None
    types = _build_numbers(pa.int32(), rows, take(block.stamp_types)) if needs.timestamps else None
    keys = _build_values(take, block.keys) if needs.keys else None
    values = _build_values(take, block.values) if needs.values else None
    headers = _build_headers(take, block) if needs.headers else None
    return RecordBlock(offsets, stamps, types, keys, values, headers) if rows else None


def _adopt_buffer(gather: Gather, buffer: _Buffer) -> pa.Buffer:
    if not buffer.at:
        return pa.py_buffer(b"")
    return pa.foreign_buffer(buffer.at, buffer.used, _OwnedBuffer(gather, buffer.at))


def _build_numbers(kind: pa.DataType, rows: int, data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, data], 0)


def _build_values(
    take: Callable[[_Buffer], pa.Buffer], column: _Column, kind: pa.DataType | None = None
) -> pa.Array:
    buffers = [take(column.valid), take(column.starts), take(column.data)]
    if not column.nulls:
        buffers[0] = None
    return pa.Array.from_buffers(kind or pa.binary(), column.rows, buffers, column.nulls)


def _build_headers(take: Callable[[_Buffer], pa.Buffer], block: Block) -> pa.Array:
    if block.names_beyond_ascii:
        raw = _build_values(take, block.header_names)
        # As in Kafka's Java client, for names that are not UTF-8.
        names = pa.array([name.decode(errors="replace") for name in raw.to_pylist()], pa.string())
    else:
        names = _build_values(take, block.header_names, pa.string())
    kind = METADATA["headers"]
    pairs = pa.StructArray.from_arrays(
        [names, _build_values(take, block.header_values)], fields=list(kind.value_type)
    )
    valid, starts = take(block.header_valid), take(block.header_starts)
    buffers = [valid if block.header_nulls else None, starts]
    return pa.Array.from_buffers(kind, block.rows, buffers, block.header_nulls, children=[pairs])
