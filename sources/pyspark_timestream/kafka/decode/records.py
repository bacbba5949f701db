"""A block of Kafka records as columns, what a reader hands to the rules."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "Needs",
    "RecordBlock",
    "as_texts",
    "header_places",
    "header_texts",
    "header_values",
    "utf8_or_none",
]


class Needs(NamedTuple):
    """Which columns are worth reading; offsets always are."""

    timestamps: bool = False
    keys: bool = False
    values: bool = False
    headers: bool = False


class RecordBlock(NamedTuple):
    """n consecutive records of one partition, in offset order.

    Attributes:
        offsets: n int64.
        timestamps_ms: n int64, negative where the record has none; None where not needed.
        timestamp_types: n int32: 0 create time, 1 log append time, -1 none; or None as well.
        keys: n binary, or None where not needed.
        values: n binary, or None where not needed.
        headers: n lists of struct<key: string, value: binary>, or None where not needed.
    """

    offsets: pa.Array
    timestamps_ms: pa.Array | None = None
    timestamp_types: pa.Array | None = None
    keys: pa.Array | None = None
    values: pa.Array | None = None
    headers: pa.Array | None = None


def header_texts(headers: pa.Array, name: str) -> pa.Array:
    """The header `name` of each of n records as text; null where it is absent or no UTF-8."""
    return as_texts(header_values(headers, header_places(headers, name)))


def as_texts(values: pa.Array) -> pa.Array:
    """Binary values as texts; null where one is null or no UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([utf8_or_none(value.as_py()) for value in values], pa.string())


def header_values(headers: pa.Array, places: npt.NDArray[np.int64]) -> pa.Array:
    """The values at `places` among all headers of some records; null where it is -1."""
    return headers.flatten().field("value").take(pa.array(places, mask=places < 0))


def header_places(headers: pa.Array, name: str) -> npt.NDArray[np.int64]:
    """Where each of n records' header `name` is among all headers; -1: nowhere.

    Of repeated headers the last wins (semantics 1.2).
    """
    named = pc.equal(headers.flatten().field("key"), name).to_numpy(zero_copy_only=False)
    places = np.full(len(headers), -1, dtype=np.int64)
    if named.any():
        rows = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        # A later assignment to the same row overwrites an earlier one: the last header wins.
        places[rows[named]] = np.flatnonzero(named)
    return places


def utf8_or_none(value: bytes | None) -> str | None:
    """The text of `value`; None where it is null or no UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
