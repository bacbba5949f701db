"""Reads blocks of Avro payloads in columns: a step at a time, for all payloads at once.

Every payload has a place in the block's bytes. A step reads its value at the places of all rows by
arithmetic on arrays, and moves the places on. So nothing is ever allocated by a length that a
payload claims: a length is compared with the bytes that the payload has left, and a payload that
claims more is broken. So is one with an index that its union or enum lacks, a whole number with too
many digits, a boolean that is neither 0 nor 1, text that is not UTF-8, or bytes left over. The
others go on. An array takes as many rounds as it has items, so payloads with much longer ones than
others are left to `by_row`, whose results are the same.
"""

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.columns import Mask
from pyspark_timestream.kafka.decode.avro.binaries import convert_binary_column, format_uuid
from pyspark_timestream.kafka.decode.avro.places import Places
from pyspark_timestream.kafka.decode.avro.resolution import (
    Again,
    Misfit,
    Plan,
    Record,
    Repeated,
    Scalar,
    Step,
    Union,
)

__all__ = ["can_read_block", "read_block"]

_FEW_ROUNDS: Final = 8
_FEW_ROWS: Final = 256
"""After a few rounds of reading an array, its last few rows are read one by one: a round costs the
same for one row as for many."""


def can_read_block(plan: Plan) -> bool:
    """Check that no type of the writer's schema contains itself."""
    return not plan.recursive


def read_block(step: Step, places: Places) -> pa.Array:
    """Read values at all places, which move on; null where a value does not fit or is broken.

    Without a type to read the result is of type null.
    """
    match step:
        case Scalar():
            return _read_scalar(step, places)
        case Record():
            return _read_record(step, places)
        case Union():
            return _read_union(step, places)
        case Repeated():
            return _read_repeated(step, places)
        case Misfit():
            read_block(step.step, places)
            places.unfit[:] = True
            return pa.nulls(len(places), step.type)
        case Again():
            raise AssertionError("types that contain themselves are read one by one")


def _read_record(step: Record, places: Places) -> pa.Array:
    if step.type is None:
        for field, _ in step.fields:
            read_block(field, places)
        return pa.nulls(len(places))
    children: list[pa.Array] = [None] * step.type.num_fields
    for field, at in step.fields:
        read = read_block(field, places)
        if at is not None:
            children[at] = read
    for at, default in step.defaults.items():
        children[at] = default.take(pa.array(np.zeros(len(places), np.int64)))
    for at in step.missing:
        children[at] = pa.nulls(len(places), step.type.field(at).type)
        places.unfit[:] = True
    if not children:
        return pa.array([{}] * len(places), step.type)
    return pa.StructArray.from_arrays(children, fields=list(step.type))


def _read_union(step: Union, places: Places) -> pa.Array:
    chosen = places.read_index(len(step.branches))
    if len(places) and not places.broken.any() and (chosen == chosen[0]).all():
        return _read_branch(step, int(chosen[0]), places)
    order = np.full(len(places), -1, np.int64)
    pieces: list[pa.Array] = []
    total = 0
    for branch in range(len(step.branches)):
        rows = np.flatnonzero((chosen == branch) & ~places.broken)
        if not len(rows):
            continue
        part = places.select(rows)
        pieces.append(_read_branch(step, branch, part))
        places.update(rows, part)
        order[rows] = np.arange(total, total + len(rows))
        total += len(rows)
    if step.type is None or not pieces:
        return pa.nulls(len(places), step.type or pa.null())
    return pa.concat_arrays(pieces).take(pa.array(order, mask=order < 0))


def _read_branch(step: Union, branch: int, places: Places) -> pa.Array:
    read = read_block(step.branches[branch], places)
    if step.type is None or step.fits[branch]:
        return read
    places.unfit[:] = True
    return pa.nulls(len(places), step.type)


def _read_scalar(step: Scalar, places: Places) -> pa.Array:
    match step.kind:
        case "null":
            return pa.nulls(len(places), step.type or pa.null())
        case "boolean":
            return _finish(step, places, places.read_booleans())
        case "int":
            return _read_whole(step, places, places.read_ints())
        case "long":
            return _read_whole(step, places, places.read_longs())
        case "float":
            return _finish(step, places, places.read_floats(4))
        case "double":
            return _finish(step, places, places.read_floats(8))
        case "enum":
            return _read_enum(step, places)
    starts, stops = places.pass_fixed(step.size) if step.kind == "fixed" else places.pass_bytes()
    if step.type is None:
        return pa.nulls(len(places))
    values = places.slice_bytes(starts, stops)
    if step.kind == "fixed" and pa.types.is_string(step.type):
        return _read_uuids(values)
    column, unfit = convert_binary_column(values, step.type)
    # Bytes may be read as text, but need not be; a string that is not UTF-8 is not a string.
    flaws = places.broken if step.kind == "string" else places.unfit
    flaws |= unfit
    return column


def _read_uuids(values: pa.Array) -> pa.Array:
    return pa.array([format_uuid(value.ljust(16, b"\0")) for value in values.to_pylist()])


def _finish(step: Scalar, places: Places, values: npt.NDArray[np.generic]) -> pa.Array:
    if step.type is None:
        return pa.nulls(len(places))
    with np.errstate(invalid="ignore"):  # Of a signalling NaN, which is a NaN as any other.
        return pa.array(values.astype(step.type.to_pandas_dtype(), copy=False), step.type)


def _read_whole(step: Scalar, places: Places, values: npt.NDArray[np.int64]) -> pa.Array:
    if step.type is None or not pa.types.is_temporal(step.type):
        return _finish(step, places, values)
    if pa.types.is_date32(step.type):
        return pa.array(values.astype(np.int32)).view(step.type)
    times, over = step.scale
    if times == 1:
        return pa.array(values // over if over > 1 else values).view(step.type)
    unfit = _find_overflow(values, times)
    if unfit.any():
        places.unfit |= unfit
        scaled = np.where(unfit, 0, values) * times
        return pa.array(scaled, pa.int64(), mask=unfit).view(step.type)
    return pa.array(values * times).view(step.type)


def _find_overflow(values: npt.NDArray[np.int64], times: int) -> Mask:
    bounds = np.iinfo(np.int64)
    overflow: Mask = (values > bounds.max // times) | (values < -(bounds.max // times))
    return overflow


def _read_enum(step: Scalar, places: Places) -> pa.Array:
    chosen = places.read_index(len(step.symbols))
    if step.type is None:
        return pa.nulls(len(places))
    symbols = pa.array(step.symbols, step.type)
    read = symbols.take(pa.array(chosen, mask=places.broken))
    if None in step.symbols:
        places.unfit |= np.array(read.is_null().to_numpy(zero_copy_only=False))
    return read


def _read_repeated(step: Repeated, places: Places) -> pa.Array:
    """Read the first item of every row, then the second, and so on; then put them in order."""
    left = np.zeros(len(places), np.int64)
    sized_end = np.full(len(places), -1, np.int64)
    open_rows = np.arange(len(places))[~places.broken]
    items: list[pa.Array] = []
    keys: list[pa.Array] = []
    owners: list[npt.NDArray[np.int64]] = []
    void = np.zeros(len(places), np.bool_)
    for rounds in itertools.count():
        fresh = open_rows[left[open_rows] == 0]
        if len(fresh):
            part = places.select(fresh)
            counts, ends = part.read_block_header(sized_end[fresh])
            places.update(fresh, part)
            left[fresh], sized_end[fresh] = counts, ends
            open_rows = open_rows[(left[open_rows] > 0) & ~places.broken[open_rows]]
        if not len(open_rows):
            break
        if rounds >= _FEW_ROUNDS and len(open_rows) < _FEW_ROWS:
            places.late[open_rows] = True
            places.broken[open_rows] = True
            break
        part = places.select(open_rows)
        if step.keyed:
            keys.append(_read_scalar(_KEY if step.type is not None else _PASSED_KEY, part))
        found = read_block(step.item, part)
        if part.unfit.any():
            # A list with an item that is unreadable as a whole is unreadable (semantics 13.13).
            void[open_rows] |= part.unfit & _find_nulls(found)
        items.append(found)
        owners.append(open_rows)
        places.update(open_rows, part)
        left[open_rows] -= 1
        open_rows = open_rows[~places.broken[open_rows]]
    if step.type is None:
        return pa.nulls(len(places))
    made = _build_lists(step, places, owners, keys, items)
    return pc.if_else(pa.array(void), pa.scalar(None, made.type), made) if void.any() else made


def _find_nulls(values: pa.Array) -> Mask:
    nulls: Mask = np.array(values.is_null().to_numpy(zero_copy_only=False))
    return nulls


_KEY: Final = Scalar("string", pa.string())
_PASSED_KEY: Final = Scalar("string")


def _build_lists(
    step: Repeated,
    places: Places,
    owners: list[npt.NDArray[np.int64]],
    keys: list[pa.Array],
    items: list[pa.Array],
) -> pa.Array:
    if not owners:
        return pa.array([[]] * len(places), step.type)
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(places))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    taken = pa.array(order)
    values = pa.concat_arrays(items).take(taken)
    if not step.keyed:
        return pa.ListArray.from_arrays(offsets, values, type=step.type)
    key = pa.concat_arrays(keys).take(taken)
    _leave_repeated_keys(places, key, owner[order])
    if key.null_count:
        key = key.fill_null("")  # Of a broken row.
    return pa.MapArray.from_arrays(offsets, key, values, type=step.type)


def _leave_repeated_keys(places: Places, keys: pa.Array, owner: npt.NDArray[np.int64]) -> None:
    """Leave maps with a key that occurs twice to `by_row`."""
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    pairs = owner * (len(codes) + 1) + codes
    _, first, times = np.unique(pairs, return_index=True, return_counts=True)
    places.late[owner[first[times > 1]]] = True
