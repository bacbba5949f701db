"""A block of Kafka records as columns: what readers return and rules consume."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.kafka.decode.json.scalars import decode_or_none
from pyspark_timestream.kafka.ranges import Range

__all__ = [
    "ColumnSet",
    "ReadRange",
    "RecordBlock",
    "find_header",
    "read_header",
    "take_header_values",
    "to_texts",
]


class ColumnSet(NamedTuple):
    """The columns to read; offsets are always read."""

    timestamps: bool = False
    keys: bool = False
    values: bool = False
    headers: bool = False


class RecordBlock(NamedTuple):
    """n consecutive records of one partition, in offset order.

    Attributes:
        offsets: n int64.
        timestamps_ms: n int64, negative if the record has none; None if not needed.
        timestamp_types: n int32: 0 create time, 1 log append time, -1 none; or None as well.
        keys: n binary, or None if not needed.
        values: n binary, or None if not needed.
        headers: n lists of struct<key: string, value: binary>, or None if not needed.
    """

    offsets: pa.Array
    timestamps_ms: pa.Array | None = None
    timestamp_types: pa.Array | None = None
    keys: pa.Array | None = None
    values: pa.Array | None = None
    headers: pa.Array | None = None


ReadRange = Callable[[Range, ColumnSet], Iterator[RecordBlock]]


def read_header(headers: pa.Array, name: str) -> pa.Array:
    """Read the header `name` of n records as text; null where it is absent or not UTF-8."""
    return to_texts(take_header_values(headers, find_header(headers, name)))


def to_texts(values: pa.Array) -> pa.Array:
    """Convert binary values to text; null where one is null or not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode_or_none(value.as_py()) for value in values], pa.string())


def take_header_values(headers: pa.Array, places: npt.NDArray[np.int64]) -> pa.Array:
    """Take the values at `places` among all headers; null where a place is -1."""
    return headers.flatten().field("value").take(pa.array(places, mask=places < 0))


def find_header(headers: pa.Array, name: str) -> npt.NDArray[np.int64]:
    """Return the place of each of n records' header `name` among all headers; -1 if absent.

    The last of repeated headers counts (semantics 1.2).
    """
    named = pc.equal(headers.flatten().field("key"), name).to_numpy(zero_copy_only=False)
    places = np.full(len(headers), -1, dtype=np.int64)
    if named.any():
        rows = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        # A later assignment to the same row overwrites an earlier one.
        places[rows[named]] = np.flatnonzero(named)
    return places
