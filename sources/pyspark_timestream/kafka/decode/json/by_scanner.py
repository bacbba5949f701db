"""Reads flat JSON objects with the compiled scanner; `scan_json.c` says which values it leaves.

The library is optional. What it reads of a value is what the other two ways read of it, so nothing
depends on whether it is there, or on which values it leaves.
"""

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.compiled import declare_function, load_compiled
from pyspark_timestream.core.instants import Mask
from pyspark_timestream.kafka.decode.records import RequestedFields
from pyspark_timestream.kafka.options.parsers import Path as FieldPath

_SOURCE: Final = Path(__file__).parent / "scan_json.c"
LIBRARY_PATH: Final = _SOURCE.with_suffix(".so")

_MAX_FIELDS: Final = 64

_MAX_LEFT: Final = 0.25
"""With more values left, putting them back into their places costs more than was saved."""


_TEXT, _BOOLEAN, _INTEGER, _FLOAT, _DOUBLE, _DECIMAL, _ANY, _TIME = range(8)


class _Field(ctypes.Structure):
    """The struct `field` of scan_json.c."""

    _fields_ = (
        ("name", c_char_p),
        ("name_size", c_int64),
        ("kind", c_int32),
        ("is_raw", c_int32),
        ("least", c_int64),
        ("most", c_int64),
        ("bound", c_uint64 * 2),
        ("tenth", c_uint64 * 2),
        ("scale", c_int32),
        ("width", c_int32),
        ("may_widen", c_int32),
        ("unused", c_int32),
        ("valid", c_void_p),
        ("values", c_void_p),
        ("starts", c_void_p),
        ("used", c_int64),
        ("nulls", c_int64),
    )


class _Wanted(NamedTuple):
    """A field to scan; `type` is that of its column, null if it is wanted as a raw field only."""

    name: bytes
    kind: int
    type: pa.DataType
    is_raw: bool = False


class ScannedBlock(NamedTuple):
    """N values that were scanned.

    Attributes:
        fields: the values of each wanted field by its path, in the type of its column, or as text
            or seconds where that is a time, a date or binary; raw ones as texts or numbers. Null
            where a value was left.
        left: n booleans: the value was left to the other ways.
    """

    fields: dict[FieldPath, pa.Array]
    left: Mask


@functools.cache
def load_scanner(library: Path = LIBRARY_PATH) -> Callable[..., int] | None:
    """Load the library, or return None; see `load_compiled`.

    Raises:
        RuntimeError: `TIMESTREAM_NATIVE` has another value, or is `1` without a usable library.
    """
    return load_compiled(library, _SOURCE, "the JSON scanner", _declare)


def _declare(loaded: Any) -> Callable[..., int]:
    if declare_function(loaded.scan_field_size, c_int64)() != ctypes.sizeof(_Field):
        raise ValueError(f"its field is not that of {_SOURCE.name}")
    values = (c_void_p, c_void_p, c_void_p, c_int64, c_int64)
    scan: Callable[..., int] = declare_function(
        loaded.scan_json, c_int64, *values, POINTER(_Field), c_int32, c_void_p
    )
    return scan


def scan_flat(fields: RequestedFields, values: pa.Array) -> ScannedBlock | None:
    """Scan n binary values; None where that is not worth it, or not possible for these fields."""
    scan, wanted = load_scanner(), _plan(fields)
    _, starts, data = values.buffers()
    if scan is None or wanted is None or data is None:
        return None
    n = len(values)
    bounds = np.frombuffer(starts, np.int32)[values.offset :]
    columns = [_Column(each, n, int(bounds[n]) - int(bounds[0])) for each in wanted.values()]
    structs = (_Field * len(columns))(*(column.describe() for column in columns))
    present = values.buffers()[0] if values.null_count else None
    left = np.empty(n, np.bool_)
    found = scan(
        data.address,
        bounds.ctypes.data,
        present.address if present else None,
        values.offset,
        n,
        structs,
        len(structs),
        left.ctypes.data,
    )
    if found < 0 or found > n * _MAX_LEFT:
        return None
    arrays = [column.build(struct) for column, struct in zip(columns, structs, strict=True)]
    return ScannedBlock(dict(zip(wanted, arrays, strict=True)), left)


@functools.lru_cache(maxsize=64)
def _plan(fields: RequestedFields) -> dict[FieldPath, _Wanted] | None:
    """Say how to scan each field; None if the scanner cannot read one of them."""
    wanted: dict[FieldPath, _Wanted] = {}
    for path, field in zip(fields.column_paths(), fields.columns, strict=True):
        kind = _find_kind(field.type)
        if kind is None or path in wanted:
            return None
        wanted[path] = _Wanted(_encode(path), kind, field.type)
    for path in fields.raw_paths().values():
        column = wanted.get(path)
        if column is None:
            wanted[path] = _Wanted(_encode(path), _ANY, pa.null(), is_raw=True)
        elif column.kind in (_DOUBLE, _TEXT, _TIME) or column.type == pa.int64():
            wanted[path] = column._replace(is_raw=True)
        else:
            return None
    is_flat = all(len(path) == 1 for path in wanted)
    return wanted if is_flat and len(wanted) <= _MAX_FIELDS else None


def _encode(path: FieldPath) -> bytes:
    # Half a surrogate pair is in no text that the scanner reads.
    return path[0].encode(errors="surrogatepass")


def _find_kind(target: pa.DataType) -> int | None:
    types = pa.types
    if types.is_string(target) or types.is_binary(target) or types.is_date32(target):
        return _TEXT
    if types.is_timestamp(target):
        return _TIME
    if types.is_boolean(target):
        return _BOOLEAN
    if types.is_signed_integer(target):
        return _INTEGER
    if types.is_floating(target):
        return {32: _FLOAT, 64: _DOUBLE}.get(target.bit_width)
    return _DECIMAL if types.is_decimal128(target) else None


class _Column:
    """The room for n values of a field, and the array that they become."""

    def __init__(self, wanted: _Wanted, n: int, text_bytes: int) -> None:
        self._wanted, self._n = wanted, n
        self._valid = _make_bits(n)
        is_text = wanted.kind in (_TEXT, _ANY, _TIME)
        width = _get_width(wanted)
        self._starts = np.zeros(n + 1, np.int32) if is_text else None
        if wanted.kind == _BOOLEAN:
            self._values = _make_bits(n)
        elif wanted.kind == _TEXT:
            self._values = np.empty(text_bytes, np.uint8)
        else:
            # Zeros, because a number that nobody wrote is read when its column is widened.
            self._values = np.zeros(max(n * width, text_bytes if is_text else 0), np.uint8)

    def describe(self) -> _Field:
        """Describe the field and its room as the library expects it."""
        name, kind, target, is_raw = self._wanted
        least, most, scale, bound = -(2**63), 2**63 - 1, 0, 0
        if kind == _INTEGER:
            least, most = -(1 << target.bit_width - 1), (1 << target.bit_width - 1) - 1
        elif kind == _DECIMAL:
            scale, bound = target.scale, 10**target.precision
        starts = None if self._starts is None else self._starts.ctypes.data
        return _Field(
            name=name,
            name_size=len(name),
            kind=kind,
            is_raw=is_raw,
            least=least,
            most=most,
            bound=_halve(bound),
            tenth=_halve(bound // 10),
            scale=scale,
            width=_get_width(self._wanted),
            may_widen=kind == _ANY,
            valid=self._valid.ctypes.data,
            values=self._values.ctypes.data,
            starts=starts,
        )

    def build(self, struct: _Field) -> pa.Array:
        """Make an array of what the library has written."""
        valid = pa.py_buffer(self._valid) if struct.nulls else None
        kind = _find_type(struct.kind, self._wanted)
        if kind is None:
            return pa.nulls(self._n, pa.string())
        if struct.kind == _TEXT:
            parts = [valid, pa.py_buffer(self._starts), pa.py_buffer(self._values[: struct.used])]
        else:
            parts = [valid, pa.py_buffer(self._values)]
        return pa.Array.from_buffers(kind, self._n, parts, struct.nulls)


def _halve(number: int) -> tuple[int, int]:
    """Return the lower and the upper 64 bits."""
    return number & (1 << 64) - 1, number >> 64


def _make_bits(n: int) -> npt.NDArray[np.uint8]:
    return np.zeros((n + 7) // 8, np.uint8)


def _get_width(wanted: _Wanted) -> int:
    """Return the bytes of a number; 8 if it is not known yet that it is one."""
    if wanted.kind in (_INTEGER, _FLOAT, _DOUBLE, _DECIMAL):
        return int(wanted.type.bit_width) // 8
    return 8


def _find_type(kind: int, wanted: _Wanted) -> pa.DataType | None:
    """Return the type of what was read; None if all of it is null."""
    if kind == _TEXT:
        return pa.string()
    if wanted.kind in (_ANY, _TIME):
        return {_INTEGER: pa.int64(), _DOUBLE: pa.float64()}.get(kind)
    return wanted.type
