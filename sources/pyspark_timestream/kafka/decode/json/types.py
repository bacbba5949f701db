"""What JSON values are read as: the wanted fields, their types, and the way from text to them."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.event_time import Times, number_times, text_times
from pyspark_timestream.kafka.decode.json.scalars import as_bytes

__all__ = [
    "Finished",
    "JsonBlock",
    "JsonFields",
    "finish",
    "finish_times",
    "has_map",
    "unsupported_type",
    "wire_type",
]

Mask = npt.NDArray[np.bool_]

_ZONE: Final = r"[T t][0-9:.,]+\s*([Zz]|[+-][0-9:]+)\s*$"
"""How a text with a time of day ends that has a zone."""


@dataclass(frozen=True, slots=True)
class JsonFields:
    """What is read of each JSON object.

    Attributes:
        columns: the fields wanted as columns, with their Arrow types.
        raw: fields wanted as they stand: strings, int64 or doubles, for event times and edges.
    """

    columns: pa.Schema
    raw: tuple[str, ...] = ()


class JsonBlock(NamedTuple):
    """n values, read.

    Attributes:
        columns: a column of n per field of `JsonFields.columns`, in that order.
        raw: per raw field consecutive pieces that add up to n; each is an array of strings,
            int64 or doubles, or of nulls.
        malformed: n booleans: the value is no JSON object, or a field is not of its type.
    """

    columns: list[pa.Array]
    raw: dict[str, list[pa.Array]]
    malformed: Mask


def unsupported_type(data_type: pa.DataType) -> pa.DataType | None:
    """The type inside `data_type` that no JSON value can be read as; None where there is none."""
    if pa.types.is_struct(data_type):
        inner = [data_type.field(i).type for i in range(data_type.num_fields)]
        return next((bad for bad in map(unsupported_type, inner) if bad), None)
    if pa.types.is_list(data_type):
        return unsupported_type(data_type.value_type)
    if pa.types.is_map(data_type):
        keyed = pa.types.is_string(data_type.key_type)
        return unsupported_type(data_type.item_type) if keyed else data_type
    fits = (
        pa.types.is_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_float64(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_decimal128(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
    )
    return None if fits else data_type


def has_map(data_type: pa.DataType) -> bool:
    """Whether a map is inside `data_type`: Arrow's parser does not make one of a JSON object."""
    if pa.types.is_struct(data_type):
        return any(has_map(data_type.field(i).type) for i in range(data_type.num_fields))
    if pa.types.is_list(data_type):
        return has_map(data_type.value_type)
    return bool(pa.types.is_map(data_type))


def wire_type(data_type: pa.DataType) -> pa.DataType:
    """The type Arrow reads a field as: times and bytes come as strings, and are converted after."""
    if (
        pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
        or pa.types.is_binary(data_type)
    ):
        return pa.string()
    if pa.types.is_struct(data_type):
        inner = [data_type.field(i) for i in range(data_type.num_fields)]
        return pa.struct([(field.name, wire_type(field.type)) for field in inner])
    if pa.types.is_list(data_type):
        return pa.list_(wire_type(data_type.value_type))
    return data_type


class Finished(NamedTuple):
    """A column of n, read to its end.

    Attributes:
        column: of the wanted type.
        partial: n booleans: some part of the value is not of its type, and null.
        void: n booleans: nothing of the value is; what holds it in a list is void as well.
    """

    column: pa.Array
    partial: Mask
    void: Mask


def finish(wire: pa.Array, target: pa.DataType) -> Finished:
    """The column of type `target` that `wire` stands for."""
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        column, bad = finish_times(wire, target)
        return Finished(column, bad, bad)
    if pa.types.is_struct(target):
        return _finish_struct(wire, target)
    if pa.types.is_list(target):
        return _finish_list(wire, target)
    if pa.types.is_decimal(target):
        return _finish_decimal(wire, target)
    if pa.types.is_binary(target):
        return _finish_bytes(wire)
    fine = np.zeros(len(wire), dtype=np.bool_)
    return Finished(wire if wire.type == target else wire.cast(target), fine, fine)


def _finish_struct(wire: pa.Array, target: pa.DataType) -> Finished:
    inner = [target.field(i) for i in range(target.num_fields)]
    parts = [finish(child, field.type) for child, field in zip(wire.flatten(), inner, strict=True)]
    partial = np.zeros(len(wire), dtype=np.bool_)
    for part in parts:
        partial |= part.partial
    children = [part.column for part in parts]
    column = pa.StructArray.from_arrays(children, fields=inner, mask=wire.is_null())
    return Finished(column, partial, np.zeros(len(wire), dtype=np.bool_))


def _finish_list(wire: pa.Array, target: pa.DataType) -> Finished:
    items = finish(wire.flatten(), target.value_type)
    lengths = pc.fill_null(pc.list_value_length(wire), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(wire)), lengths)
    partial, void = (np.zeros(len(wire), dtype=np.bool_) for _ in range(2))
    partial[rows[items.partial]] = True
    void[rows[items.void]] = True
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    absent = pc.or_(wire.is_null(), pa.array(void))
    column = pa.ListArray.from_arrays(offsets, items.column, type=target, mask=absent)
    return Finished(column, partial, void)


def _finish_decimal(wire: pa.Array, target: pa.DataType) -> Finished:
    """Arrow's parser checks the digits behind the point, not those before it."""
    nines = (9,) * target.precision
    smallest, largest = (
        pa.scalar(Decimal((sign, nines, -target.scale)), target) for sign in (1, 0)
    )
    fits = pc.and_(pc.less_equal(wire, largest), pc.greater_equal(wire, smallest))
    fits = pc.fill_null(fits, True)
    bad = ~np.array(fits.to_numpy(zero_copy_only=False))
    return Finished(pc.if_else(fits, wire, None), bad, bad)


def _finish_bytes(wire: pa.Array) -> Finished:
    bad = np.zeros(len(wire), dtype=np.bool_)
    read: list[bytes | None] = []
    for row, text in enumerate(wire.to_pylist()):
        try:
            read.append(None if text is None else as_bytes(text))
        except ValueError:
            read.append(None)
            bad[row] = True
    return Finished(pa.array(read, pa.binary()), bad, bad)


def finish_times(wire: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Texts as timestamps or dates, or whole seconds as timestamps; and where one is neither."""
    if pa.types.is_date32(target):
        # As in Spark, what follows the day is not looked at.
        trimmed = pc.utf8_trim_whitespace(wire)
        dated = pc.match_substring_regex(trimmed, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)")
        suffix = pc.if_else(dated, "T00:00:00Z", None)
        texts_of_day = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(trimmed, 0, 10), suffix, ""
        )
        instants, readable = text_times(texts_of_day, None)
        column = pa.array(instants // 86_400_000_000, pa.int32(), mask=~readable).cast(target)
    else:
        instants, readable = _timestamps(wire, zoned=target.tz is not None)
        column = pa.array(instants, pa.int64(), mask=~readable).cast(target)
    present = np.array(wire.is_valid().to_numpy(zero_copy_only=False))
    return column, present & ~readable


def _timestamps(wire: pa.Array, *, zoned: bool) -> Times:
    """As Spark's JSON reader: a number is seconds since 1970; a time without a zone stays so."""
    if pa.types.is_integer(wire.type):
        instants, readable = number_times(wire, "s")
        return instants, readable & zoned
    instants, readable = text_times(wire, None)
    if not zoned:
        with_zone = pc.fill_null(pc.match_substring_regex(wire, _ZONE), False)
        readable &= ~np.array(with_zone.to_numpy(zero_copy_only=False))
    return instants, readable
