"""What JSON values are read as: the wanted fields, their types, and the way from text to them."""

from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.event_time import text_times

__all__ = [
    "JsonBlock",
    "JsonFields",
    "finish",
    "finish_times",
    "fits_decimal",
    "unsupported_type",
    "wire_type",
]

Mask = npt.NDArray[np.bool_]


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
    fits = (
        pa.types.is_string(data_type)
        or pa.types.is_integer(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_float64(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_decimal128(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
    )
    return None if fits else data_type


def wire_type(data_type: pa.DataType) -> pa.DataType:
    """The type Arrow reads a field as: times come as strings and are converted by our own rules."""
    if pa.types.is_timestamp(data_type) or pa.types.is_date32(data_type):
        return pa.string()
    if pa.types.is_struct(data_type):
        inner = [data_type.field(i) for i in range(data_type.num_fields)]
        return pa.struct([(field.name, wire_type(field.type)) for field in inner])
    if pa.types.is_list(data_type):
        return pa.list_(wire_type(data_type.value_type))
    return data_type


def finish(wire: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """The column of type `target` that `wire` stands for, and where a text was no time."""
    fine = np.zeros(len(wire), dtype=np.bool_)
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        return finish_times(wire, target)
    if pa.types.is_struct(target):
        inner = [target.field(i) for i in range(target.num_fields)]
        parts = [
            finish(child, field.type) for child, field in zip(wire.flatten(), inner, strict=True)
        ]
        for _, bad in parts:
            fine |= bad
        children = [child for child, _ in parts]
        return pa.StructArray.from_arrays(children, fields=inner, mask=_absent(wire, fine)), fine
    if pa.types.is_list(target):
        values, bad = finish(wire.flatten(), target.value_type)
        lengths = pc.fill_null(pc.list_value_length(wire), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(wire)), lengths)
        fine[rows[bad]] = True
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(
            offsets, values, type=target, mask=_absent(wire, fine)
        ), fine
    if pa.types.is_decimal(target):
        # Arrow's parser checks the scale alone.
        fits = pa.array(
            [value is None or fits_decimal(value, target) for value in wire.to_pylist()]
        )
        return pc.if_else(fits, wire, None), ~np.array(fits.to_numpy(zero_copy_only=False))
    return (wire if wire.type == target else wire.cast(target)), fine


def fits_decimal(value: Decimal, target: pa.DataType) -> bool:
    """Whether the decimal type has digits enough before the point for `value`."""
    return bool(abs(value) < Decimal(10) ** (target.precision - target.scale))


def _absent(wire: pa.Array, bad: Mask) -> pa.Array:
    """Where a nested value is null: with one bad part, the whole field is."""
    return pc.or_(wire.is_null(), pa.array(bad))


def finish_times(texts: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Texts as timestamps or dates, and where one that is not null is neither."""
    if pa.types.is_date32(target):
        dated = pc.match_substring_regex(texts, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
        suffix = pc.if_else(dated, "T00:00:00Z", None)
        texts_of_day = pc.binary_join_element_wise(texts, suffix, "")
        instants, readable = text_times(texts_of_day, "ms")
        column = pa.array(instants // 86_400_000_000, pa.int32(), mask=~readable).cast(target)
    else:
        instants, readable = text_times(texts, "ms")
        column = pa.array(instants, pa.int64(), mask=~readable).cast(target)
    present = np.array(texts.is_valid().to_numpy(zero_copy_only=False))
    return column, present & ~readable
