"""A block of Kafka records as columns, what a reader hands to the rules."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Needs", "RecordBlock", "has_header", "header_texts", "header_values", "utf8_or_none"]


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
    values = header_values(headers, name)
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([utf8_or_none(value.as_py()) for value in values], pa.string())


def header_values(headers: pa.Array, name: str) -> pa.Array:
    """The header `name` of each of n records as it is; null where it is absent.

    Of repeated headers the last wins (contract section 3.4).
    """
    places = _places(headers, name)
    return headers.flatten().field("value").take(pa.array(places, mask=places < 0))


def has_header(headers: pa.Array, name: str) -> npt.NDArray[np.bool_]:
    """Which of n records have the header `name`, with a value or without."""
    return _places(headers, name) >= 0


def _places(headers: pa.Array, name: str) -> npt.NDArray[np.int64]:
    """Where each record's last header `name` is among all headers; -1: nowhere."""
    rows = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
    named = pc.equal(headers.flatten().field("key"), name).to_numpy(zero_copy_only=False)
    places = np.full(len(headers), -1, dtype=np.int64)
    # A later assignment to the same row overwrites an earlier one: the last header wins.
    places[rows[named]] = np.flatnonzero(named)
    return places


def utf8_or_none(value: bytes | None) -> str | None:
    """The text of `value`; None where it is null or no UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
