"""JSON values to columns: whole blocks by Arrow's parser, malformed rows isolated by bisection.

What a value becomes never depends on its neighbours: a block that Arrow reads whole and the same
values read one by one give the same columns. Two things make that sound. Values are joined by
newlines, which a JSON string cannot contain raw; and only values that begin with ``{`` and end
with ``}`` are joined, so that an object can neither end in nor swallow the next value. What Arrow
would read and Python would not (extreme nesting, endless digits) is kept out of the block.
"""

import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pyspark_timestream.event_time import text_times

__all__ = ["JsonBlock", "JsonFields", "parse_json", "unsupported_type"]

Mask = npt.NDArray[np.bool_]

_FEW: Final = 32
"""So many values are read one by one: a call of Arrow's parser costs as much as about 20."""

_WHITESPACE: Final = " \t\n\r"
"""What JSON calls whitespace."""

_LONG: Final = 250
"""No shorter text can hold more brackets or digits than Python's parser takes."""

_EXACT_IN_DOUBLE: Final = float(2**53)
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


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


def parse_json(fields: JsonFields, values: pa.Array) -> JsonBlock:
    """Read n JSON texts (binary, null allowed; null is a row of nulls, not malformed)."""
    texts, joinable = _joinable(values)
    pieces = [
        piece
        for start, stop, good in _runs(joinable)
        for piece in _parse_run(fields, values, texts, start, stop, good)
    ]
    if not pieces:
        empty = [pa.array([], field.type) for field in fields.columns]
        return JsonBlock(empty, {name: [] for name in fields.raw}, np.empty(0, dtype=np.bool_))
    return JsonBlock(
        [pa.concat_arrays(column) for column in zip(*(p.columns for p in pieces), strict=True)]
        if len(fields.columns)
        else [],
        {name: [part for p in pieces for part in p.raw[name]] for name in fields.raw},
        np.concatenate([p.malformed for p in pieces]),
    )


def _joinable(values: pa.Array) -> tuple[pa.Array, Mask]:
    """The values as trimmed texts, and which of them may be joined."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        # Some value is no UTF-8; Arrow's JSON parser would let it through, so it is kept out.
        texts = pa.array([_utf8_or_none(value.as_py()) for value in values], pa.string())
    joinable = _object_like(texts)
    if not joinable.all():
        texts = pc.ascii_trim(texts, characters=_WHITESPACE)
        joinable = _object_like(texts)
    return texts, joinable


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _object_like(texts: pa.Array) -> Mask:
    shaped = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    joinable = np.array(pc.fill_null(shaped, False).to_numpy(zero_copy_only=False))
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(joinable & (lengths > _LONG))
    joinable[long] = ~_extreme(texts.take(pa.array(long)))
    return joinable


def _extreme(texts: pa.Array) -> Mask:
    """Which texts may nest deeper, or hold longer numbers, than Python's parser takes."""
    brackets = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
    endless = pc.match_substring_regex(texts, "[0-9]{1000}")
    return np.array(pc.or_(pc.greater(brackets, _LONG), endless).to_numpy(zero_copy_only=False))


def _runs(joinable: Mask) -> Iterator[tuple[int, int, bool]]:
    """Consecutive (start, stop, worth joining); short good runs go with the bad around them."""
    bounds = _bounds(joinable)
    lengths = np.diff(bounds)
    worth = np.repeat(joinable[bounds[:-1]] & (lengths > _FEW), lengths)
    for start, stop in itertools.pairwise(_bounds(worth).tolist()):
        yield start, stop, bool(worth[start])


def _bounds(mask: Mask) -> npt.NDArray[np.int64]:
    """Where runs of equal values begin, and the end."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate(([0], edges, [len(mask)])) if len(mask) else np.array([0])


def _parse_run(
    fields: JsonFields, values: pa.Array, texts: pa.Array, start: int, stop: int, good: bool
) -> Iterator[JsonBlock]:
    """Read `values[start:stop]`, in pieces, in order."""
    if not good or stop - start <= _FEW:
        yield _parse_rows(fields, values.slice(start, stop - start).to_pylist())
        return
    block = _parse_joined(fields, texts.slice(start, stop - start))
    if block is not None:
        yield block
        return
    middle = (start + stop) // 2
    yield from _parse_run(fields, values, texts, start, middle, good)
    yield from _parse_run(fields, values, texts, middle, stop, good)


def _parse_joined(fields: JsonFields, texts: pa.Array) -> JsonBlock | None:
    """All of `texts` by Arrow; None where one of them is not what the fields say."""
    shared = {name for name in fields.raw if _shares_wire(fields.columns, name)}
    apart = [name for name in fields.raw if name not in shared]
    guessed = _raw_types(texts[0].as_py(), apart)
    taken = {*fields.columns.names}
    wanted = [*[(f.name, _wire_type(f.type)) for f in fields.columns]]
    together = [(name, kind) for name, kind in guessed.items() if name not in taken]
    again = [(name, kind) for name, kind in guessed.items() if name in taken]
    buffer = pc.binary_join(_one_list(texts), "\n")[0].as_buffer()
    table = _read(buffer, len(texts), pa.schema(wanted + together))
    second = _read(buffer, len(texts), pa.schema(again)) if again else None
    if table is None or (again and second is None):
        return None
    raw = {name: table.column(name) for name in (*shared, *dict(together))}
    if second is not None:
        raw |= {name: second.column(name) for name, _ in again}
    if any(map(_loses_digits, raw.values())):
        return None
    finished = [_finish(table.column(f.name).combine_chunks(), f.type) for f in fields.columns]
    malformed = np.zeros(len(texts), dtype=np.bool_)
    for _, bad in finished:
        malformed |= bad
    parts = {name: [column.combine_chunks()] for name, column in raw.items()}
    return JsonBlock([column for column, _ in finished], parts, malformed)


def _one_list(texts: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)


def _read(buffer: pa.Buffer, rows: int, schema: pa.Schema) -> pa.Table | None:
    if not len(schema):
        # Arrow needs a field to count rows by; one that no object has does.
        schema = pa.schema([("\0", pa.string())])
    try:
        table = pyarrow.json.read_json(
            io.BytesIO(buffer),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == rows else None


def _shares_wire(columns: pa.Schema, name: str) -> bool:
    """Whether a raw field can be taken from the column of the same name."""
    place = columns.get_field_index(name)
    return place >= 0 and _wire_type(columns.field(place).type) in (pa.string(), pa.int64())


def _raw_types(text: str, names: list[str]) -> dict[str, pa.DataType]:
    """The type that each raw field has in the block's first value; usually all have it."""
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {}
    return {name: kinds.get(type(value.get(name)), pa.string()) for name in names}


def _loses_digits(column: pa.ChunkedArray) -> bool:
    """Whether doubles stand for whole numbers that only an int64 holds exactly."""
    if not pa.types.is_float64(column.type):
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= _EXACT_IN_DOUBLE


def _wire_type(data_type: pa.DataType) -> pa.DataType:
    """The type Arrow reads a field as: times come as strings and are converted by our own rules."""
    if pa.types.is_timestamp(data_type) or pa.types.is_date32(data_type):
        return pa.string()
    if pa.types.is_struct(data_type):
        inner = [data_type.field(i) for i in range(data_type.num_fields)]
        return pa.struct([(field.name, _wire_type(field.type)) for field in inner])
    if pa.types.is_list(data_type):
        return pa.list_(_wire_type(data_type.value_type))
    return data_type


def _finish(wire: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """The column of type `target` that `wire` stands for, and where a text was no time."""
    fine = np.zeros(len(wire), dtype=np.bool_)
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        return _finish_times(wire, target)
    if pa.types.is_struct(target):
        inner = [target.field(i) for i in range(target.num_fields)]
        parts = [
            _finish(child, field.type) for child, field in zip(wire.flatten(), inner, strict=True)
        ]
        for _, bad in parts:
            fine |= bad
        children = [child for child, _ in parts]
        return pa.StructArray.from_arrays(children, fields=inner, mask=_absent(wire, fine)), fine
    if pa.types.is_list(target):
        values, bad = _finish(wire.flatten(), target.value_type)
        lengths = pc.fill_null(pc.list_value_length(wire), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(wire)), lengths)
        fine[rows[bad]] = True
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(
            offsets, values, type=target, mask=_absent(wire, fine)
        ), fine
    if pa.types.is_decimal(target):
        # Arrow's parser checks the scale alone.
        fits = pa.array([value is None or _fits(value, target) for value in wire.to_pylist()])
        return pc.if_else(fits, wire, None), ~np.array(fits.to_numpy(zero_copy_only=False))
    return (wire if wire.type == target else wire.cast(target)), fine


def _fits(value: Decimal, target: pa.DataType) -> bool:
    return bool(abs(value) < Decimal(10) ** (target.precision - target.scale))


def _absent(wire: pa.Array, bad: Mask) -> pa.Array:
    """Where a nested value is null: with one bad part, the whole field is."""
    return pc.or_(wire.is_null(), pa.array(bad))


def _finish_times(texts: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
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


def _parse_rows(fields: JsonFields, values: list[bytes | None]) -> JsonBlock:
    """The values one by one: what is broken becomes null, what is readable stays."""
    columns: list[list[Any]] = [[] for _ in fields.columns]
    raw: dict[str, list[Any]] = {name: [] for name in fields.raw}
    malformed = np.zeros(len(values), dtype=np.bool_)
    for row, text in enumerate(values):
        parsed, malformed[row] = _load(text)
        for column, field in zip(columns, fields.columns, strict=True):
            converted, fits = _field(parsed.get(field.name), field.type)
            column.append(converted)
            malformed[row] |= not fits
        for name, found in raw.items():
            found.append(_raw(parsed.get(name)))
    typed = zip(columns, fields.columns, strict=True)
    pieces = {name: _by_type(found) for name, found in raw.items()}
    return JsonBlock([pa.array(column, field.type) for column, field in typed], pieces, malformed)


def _load(text: bytes | None) -> tuple[dict[str, Any], bool]:
    """The object that `text` is, and whether it is malformed; a null is an object of nulls."""
    try:
        value = {} if text is None else json.loads(text.decode(), parse_float=_Literal)
    except (ValueError, RecursionError):
        return {}, True
    return (value, False) if isinstance(value, dict) else ({}, True)


class _Literal(float):
    """A float that remembers its digits, which a decimal column wants all of."""

    __slots__ = ("digits",)

    def __init__(self, digits: str) -> None:
        self.digits = digits


def _raw(value: Any) -> str | int | float | None:
    """A raw field of one row; what is neither text nor number that Arrow holds is no time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if value.isascii() or _encodes(value) else None
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    return float(value) if isinstance(value, float) else None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _by_type(values: list[Any]) -> list[pa.Array]:
    return [pa.array(list(run)) for _, run in itertools.groupby(values, type)]


def _field(value: Any, target: pa.DataType) -> tuple[Any, bool]:
    """`value` as `target` and True, or None and whether None is what it says."""
    try:
        return _convert(value, target), True
    except (ValueError, OverflowError, pa.ArrowException):
        return None, False


def _convert(value: Any, target: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(target):
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        )
        text.encode()
        return text
    if pa.types.is_boolean(target):
        return _typed(value, bool)
    if pa.types.is_struct(target):
        inner = [target.field(i) for i in range(target.num_fields)]
        return {f.name: _convert(_typed(value, dict).get(f.name), f.type) for f in inner}
    if pa.types.is_list(target):
        return [_convert(item, target.value_type) for item in _typed(value, list)]
    if pa.types.is_decimal(target):
        digits = getattr(value, "digits", value)
        return pa.scalar(str(_typed(digits, (str, int)))).cast(target).as_py()
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        column, bad = _finish_times(pa.array([_typed(value, str)]), target)
        if bad[0]:
            raise ValueError(f"{value!r} is no {target}")
        return column[0].as_py()
    return _number(value, target)


def _typed(value: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _number(value: Any, target: pa.DataType) -> Any:
    """A JSON number as `target`; raises where it does not fit."""
    number = _typed(value, (int, float))
    if pa.types.is_integer(target):
        return pa.scalar(_typed(number, int), target).as_py()
    if pa.types.is_float32(target):
        # By way of a double it would be rounded twice.
        return pa.scalar(getattr(number, "digits", None) or str(number)).cast(target).as_py()
    return float(number)
