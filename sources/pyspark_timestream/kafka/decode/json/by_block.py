"""Parses blocks of JSON values with Arrow's parser, isolating malformed values.

Paths that share a parent become one struct, and a column that is a struct includes the paths that
lead into it. Each read gives a name one type. So a field that contradicts an earlier one (another
type, or a path into a field requested as text) is read in another pass over the same values.

The result for a value never depends on its neighbours: parsing a block and parsing its values one
by one give the same columns. Two rules ensure that. Values are joined by newlines, which a JSON
string cannot contain unescaped. Only values that begin with ``{`` and end with ``}`` are joined, so
that an object cannot extend into the next value. Values that Arrow reads but Python does not
(extreme nesting, very long numbers) are excluded from the block; short values exceed no limit.

The compiled scanner, if there is one, reads the objects first, and gives the same columns;
`scan_json.c` says which values it leaves to the other two ways.
"""

import ctypes
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pyspark_timestream.core.arrow import (
    MAX_DIGITS,
    MAX_WIDE_DIGITS,
    Bytes,
    Integers,
    Mask,
    locate,
    to_mask,
)
from pyspark_timestream.core.processes import declare_function, load_compiled
from pyspark_timestream.kafka.decode.convert import (
    Converted,
    build_decoded_block,
    cast_scalars,
    contains,
    convert,
    find_bad,
    keep,
    limit_decimals,
)
from pyspark_timestream.kafka.decode.json.by_row import (
    null_on_error,
    parse_rows,
    read_times,
    to_bytes,
)
from pyspark_timestream.kafka.decode.records import (
    FINE,
    DecodedBlock,
    RequestedFields,
    Tree,
    find_conflict,
    join_blocks,
    merge,
    nest,
    to_texts,
)
from pyspark_timestream.kafka.options.parsers import Path as FieldPath
from pyspark_timestream.kafka.options.parsers import descend

_SOURCE: Final = Path(__file__).parent / "scan_json.c"
JSON_SCANNER_PATH: Final = _SOURCE.with_suffix(".so")

_MAX_FIELDS: Final = 64

_MAX_UNSCANNED: Final = 0.25
"""If more values stay unscanned, putting them back in order costs more than scanning saves."""


_TEXT, _BOOLEAN, _INTEGER, _FLOAT, _DOUBLE, _DECIMAL, _ANY, _TIME, _OBJECT = range(9)


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
        ("parent", c_int32),
        ("valid", c_void_p),
        ("values", c_void_p),
        ("starts", c_void_p),
        ("used", c_int64),
        ("nulls", c_int64),
    )


class _ScanField(NamedTuple):
    """A field to scan; `type` is its column's, null if it is requested only as a raw field."""

    kind: int
    type: pa.DataType
    is_raw: bool = False


class _ScanPlan(NamedTuple):
    """The fields to scan for values, by their paths, and the paths of objects around them."""

    fields: dict[FieldPath, _ScanField]
    objects: tuple[FieldPath, ...]

    def describe_location(self, path: FieldPath) -> dict[str, Any]:
        """Return the entries of `_Field` that locate `path`; objects come after the fields."""
        # Half a surrogate pair is in no text that the scanner reads.
        name = path[-1].encode(errors="surrogatepass")
        parent = len(self.fields) + self.objects.index(path[:-1]) if len(path) > 1 else -1
        return {"name": name, "name_size": len(name), "parent": parent}


class ScannedBlock(NamedTuple):
    """N values that were scanned.

    Attributes:
        fields: the values of each requested field by its path, in the type of its column, but
            times, dates and binary as text or seconds; raw fields as texts or numbers. Null where a
            value was not scanned.
        unscanned: n booleans: the scanner left this value to the other ways.
    """

    fields: dict[FieldPath, pa.Array]
    unscanned: Mask


@functools.cache
def load_scanner(library: Path = JSON_SCANNER_PATH) -> Callable[..., int] | None:
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


def scan_block(fields: RequestedFields, values: pa.Array) -> ScannedBlock | None:
    """Scan n binary values; None if scanning does not pay, or cannot read one of these fields."""
    scan, plan = load_scanner(), _plan(fields)
    _, starts, data = values.buffers()
    if scan is None or plan is None or data is None:
        return None
    n = len(values)
    bounds = np.frombuffer(starts, np.int32)[values.offset :]
    text_bytes = int(bounds[n]) - int(bounds[0])
    columns = {path: _JsonColumn(field, n, text_bytes) for path, field in plan.fields.items()}
    field_structs = [
        column.describe(plan.describe_location(path)) for path, column in columns.items()
    ]
    field_structs += [_Field(kind=_OBJECT, **plan.describe_location(path)) for path in plan.objects]
    structs = (_Field * len(field_structs))(*field_structs)
    present = values.buffers()[0] if values.null_count else None
    unscanned = np.empty(n, np.bool_)
    unscanned_count = scan(
        data.address,
        bounds.ctypes.data,
        present.address if present else None,
        values.offset,
        n,
        structs,
        len(structs),
        unscanned.ctypes.data,
    )
    if unscanned_count < 0 or unscanned_count > n * _MAX_UNSCANNED:
        return None
    pairs = zip(columns.items(), structs, strict=False)  # Objects, at the end, have no column.
    return ScannedBlock({path: column.build(struct) for (path, column), struct in pairs}, unscanned)


@functools.lru_cache(maxsize=64)
def _plan(fields: RequestedFields) -> _ScanPlan | None:
    """Say how to scan each field; None if the scanner cannot read one of them."""
    scanned: dict[FieldPath, _ScanField] = {}
    for path, field in zip(fields.column_paths(), fields.columns, strict=True):
        kind = _find_kind(field.type)
        if kind is None or path in scanned:
            return None
        scanned[path] = _ScanField(kind, field.type)
    for path in fields.raw_paths().values():
        column = scanned.get(path)
        if column is None:
            scanned[path] = _ScanField(_ANY, pa.null(), is_raw=True)
        elif column.kind in (_DOUBLE, _TEXT, _TIME) or column.type == pa.int64():
            scanned[path] = column._replace(is_raw=True)
        else:
            return None
    parents = {path[:depth] for path in scanned for depth in range(1, len(path))}
    if parents & scanned.keys() or len(scanned) + len(parents) > _MAX_FIELDS:
        return None
    return _ScanPlan(scanned, tuple(sorted(parents)))


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


class _JsonColumn:
    """The buffers for n values of a field, and the array that they become."""

    def __init__(self, field: _ScanField, n: int, text_bytes: int) -> None:
        self._field = field
        self._n = n
        self._valid = _make_bits(n)
        is_text = field.kind in (_TEXT, _ANY, _TIME)
        width = _get_width(field)
        self._starts = np.zeros(n + 1, np.int32) if is_text else None
        if field.kind == _BOOLEAN:
            self._values = _make_bits(n)
        elif field.kind == _TEXT:
            self._values = np.empty(text_bytes, np.uint8)
        else:
            # Zeros, because widening a column also reads numbers that the scanner never wrote.
            self._values = np.zeros(max(n * width, text_bytes if is_text else 0), np.uint8)

    def describe(self, location: dict[str, Any]) -> _Field:
        """Describe the field at `location`, and its buffers, as the library expects it."""
        kind, target, is_raw = self._field
        least = -(2**63)
        greatest = 2**63 - 1
        scale = 0
        bound = 0
        if kind == _INTEGER:
            least, greatest = -(1 << target.bit_width - 1), (1 << target.bit_width - 1) - 1
        elif kind == _DECIMAL:
            scale, bound = target.scale, 10**target.precision
        starts = None if self._starts is None else self._starts.ctypes.data
        return _Field(
            **location,
            kind=kind,
            is_raw=is_raw,
            least=least,
            most=greatest,
            bound=_halve(bound),
            tenth=_halve(bound // 10),
            scale=scale,
            width=_get_width(self._field),
            may_widen=kind == _ANY,
            valid=self._valid.ctypes.data,
            values=self._values.ctypes.data,
            starts=starts,
        )

    def build(self, struct: _Field) -> pa.Array:
        """Make an array of the library's output."""
        valid = pa.py_buffer(self._valid) if struct.nulls else None
        data_type = _find_type(struct.kind, self._field)
        if data_type is None:
            return pa.nulls(self._n, pa.string())
        if struct.kind == _TEXT:
            buffers = [valid, pa.py_buffer(self._starts), pa.py_buffer(self._values[: struct.used])]
        else:
            buffers = [valid, pa.py_buffer(self._values)]
        return pa.Array.from_buffers(data_type, self._n, buffers, struct.nulls)


def _halve(number: int) -> tuple[int, int]:
    """Return the lower and the upper 64 bits."""
    return number & (1 << 64) - 1, number >> 64


def _make_bits(n: int) -> npt.NDArray[np.uint8]:
    return np.zeros((n + 7) // 8, np.uint8)


def _get_width(field: _ScanField) -> int:
    """Return the bytes of a number; 8 for a field that may yet turn out to be a number."""
    if field.kind in (_INTEGER, _FLOAT, _DOUBLE, _DECIMAL):
        return int(field.type.bit_width) // 8
    return 8


def _find_type(kind: int, field: _ScanField) -> pa.DataType | None:
    """Return the type of the values read; None if all are null."""
    if kind == _TEXT:
        return pa.string()
    if field.kind in (_ANY, _TIME):
        return {_INTEGER: pa.int64(), _DOUBLE: pa.float64()}.get(kind)
    return field.type


_WHITESPACE: Final = " \t\n\r"
"""JSON's whitespace."""

_MAX_SAFE_DEPTH: Final = 250
"""Python's parser reads values that are nested this deep."""

MAX_SAFE_LENGTH: Final = 2 * _MAX_SAFE_DEPTH
"""A text up to this length exceeds no limit: each level takes two brackets, since a text that does
not close them is malformed to both parsers."""

_MAX_SAFE_DIGITS: Final = 999
_TOO_MANY_DIGITS: Final = f"[0-9]{{{_MAX_SAFE_DIGITS + 1}}}"

_NEGATIVE_EXPONENT: Final = r'[:,\[]\s*"?[+-]?[0-9.]+[eE]-|\\u00(2[bBdDeE]|3[0-9]|[46]5)'
"""Matches a number with a negative exponent, in quotes or not, and escapes that may hide one."""

_SAMPLED_DIGITS: Final = 10
"""A number with too many digits in a row contains this many of the sampled bytes."""

_SAMPLE_STEP: Final = (_MAX_SAFE_DIGITS + 1) // _SAMPLED_DIGITS

PIECE_BYTES: Final = 1 << 18
"""Temporary arrays of this size stay in the processor's cache."""

_OPENING: Final = np.uint8(ord("{"))
_BRACE_BIT: Final = np.uint8(ord("{") - ord("["))
"""The bit that distinguishes `{` from `[`."""


def find_joinable(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the values as trimmed texts, and a mask of those that Arrow may parse together."""
    # Arrow's JSON parser accepts invalid UTF-8, which `to_texts` makes null.
    texts = to_texts(values)
    joinable = _find_objects(texts)
    if not joinable.all():
        texts = pc.ascii_trim(texts, characters=_WHITESPACE)
        joinable = _find_objects(texts)
    return texts, joinable


def _find_objects(texts: pa.Array) -> Mask:
    shaped = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    joinable = to_mask(shaped)
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(joinable & (lengths > MAX_SAFE_LENGTH))
    if len(long):
        joinable[long] = ~_find_extreme(texts.take(pa.array(long)))
    return joinable


def _find_extreme(texts: pa.Array) -> Mask:
    """Find texts that may exceed a limit of Python's parser; none of them is null."""
    bounds, data = locate(texts)
    content = data[: bounds[-1]]
    brackets = np.diff(np.searchsorted(_find_brackets(content), bounds))
    extreme: Mask = brackets > _MAX_SAFE_DEPTH
    if _may_hold_long_number(content):
        # Slow, but exact: the sample ignores where texts end.
        matching = pc.match_substring_regex(texts, _TOO_MANY_DIGITS)
        extreme |= to_mask(matching)
    return extreme


def _find_brackets(content: Bytes) -> Integers:
    """Return the positions of opening brackets in increasing order."""
    brackets = []
    for start in range(0, len(content), PIECE_BYTES):
        piece = content[start : start + PIECE_BYTES]
        brackets.append(start + np.flatnonzero((piece | _BRACE_BIT) == _OPENING))
    return np.concatenate(brackets)


def _may_hold_long_number(content: Bytes) -> bool:
    """Sample one byte in a hundred: a number with too many digits fills ten samples in a row."""
    # Below "0" the difference wraps around to a large number.
    sample = content[::_SAMPLE_STEP] - np.uint8(ord("0"))
    others = np.flatnonzero(sample > 9)
    return bool(np.diff(others, prepend=-1, append=len(sample)).max() > _SAMPLED_DIGITS)


_ALIKE: Final = (pa.string(), pa.int64())
"""Types that are read alike as a column and as a raw field."""


class FieldLocation(NamedTuple):
    """Where a field is: the number of its table, one for each read, and its path there."""

    table: int
    path: FieldPath


class WireSchemas:
    """The reads that the added fields need: a tree of types each."""

    def __init__(self) -> None:
        self._trees: list[Tree] = [{}]

    def add(self, path: FieldPath, data_type: pa.DataType) -> FieldLocation:
        """Add a field to the first read that it fits into; begin another if there is none."""
        branch = nest(path, _to_node(data_type))
        for table, tree in enumerate(self._trees):
            if find_conflict(tree, branch) is None:
                merge(tree, branch)
                return FieldLocation(table, path)
        self._trees.append(branch)
        return FieldLocation(len(self._trees) - 1, path)

    def find(self, path: FieldPath) -> FieldLocation | None:
        """Find an added field that has the same values as a raw field."""
        for table, tree in enumerate(self._trees):
            node: Tree | pa.DataType | None = tree
            for name in path:
                node = node.get(name) if isinstance(node, dict) else None
            if node is not None and not isinstance(node, dict) and node in _ALIKE:
                return FieldLocation(table, path)
        return None

    def schemas(self) -> list[pa.Schema]:
        """Return the explicit schema of each read."""
        return [
            pa.schema([(name, _to_type(node)) for name, node in tree.items()])
            for tree in self._trees
        ]


def _take_field(tables: list[pa.Table], location: FieldLocation) -> pa.Array:
    """Take a field, perhaps a wider struct, from its table; it is null where a parent is null."""
    column = tables[location.table].column(location.path[0])
    if len(location.path) > 1:
        column = pc.struct_field(column, list(location.path[1:]))
    return column.combine_chunks()


def _to_node(data_type: pa.DataType) -> Tree | pa.DataType:
    if not pa.types.is_struct(data_type):
        return data_type
    tree = {field.name: _to_node(field.type) for field in data_type}
    # A path leads into no struct without fields or with two of one name, so it stays a type.
    return tree if len(tree) == data_type.num_fields > 0 else data_type


def _to_type(node: Tree | pa.DataType) -> pa.DataType:
    if not isinstance(node, dict):
        return node
    return pa.struct([(name, _to_type(inner)) for name, inner in node.items()])


MAX_SINGLE_VALUES: Final = 32
"""Up to this many values are parsed one by one: calling Arrow costs as much as about 20."""

_ROW_IN_MESSAGE: Final = re.compile(r"in row ([0-9]+)")
"""Finds the row in Arrow's error message."""

_RAW_TYPES: Final = {str: pa.string(), int: pa.int64(), float: pa.float64()}
"""Python type of a raw field in the block's first value -> its Arrow type."""

_MAX_EXACT_DOUBLE: Final = float(2**53)


class _ParseFailure(NamedTuple):
    """Arrow could not parse a piece; `row` is the first bad row, None if unknown."""

    row: int | None


def parse_json(
    fields: RequestedFields, values: pa.Array, max_singles: int = MAX_SINGLE_VALUES
) -> DecodedBlock:
    """Parse n JSON texts (binary); a null becomes a row of nulls and is not malformed.

    Runs of up to `max_singles` values are parsed one by one.
    """
    scanned = scan_block(fields, values) if len(values) > max_singles else None
    if scanned is None:
        return parse_unscanned(fields, values, max_singles)
    arrays, unscanned = scanned
    columns = [
        _convert_scanned(arrays[path], field.type)
        for path, field in zip(fields.column_paths(), fields.columns, strict=True)
    ]
    raw = {text: [arrays[path]] for text, path in fields.raw_paths().items()}
    block = build_decoded_block(columns, raw, np.full(len(values), FINE, np.uint8))
    return _fill_in(fields, values, block, np.flatnonzero(unscanned), max_singles)


def _convert_scanned(array: pa.Array, target: pa.DataType) -> Converted:
    return keep(array) if array.type == target else convert(array, target, _read_scalars)


def _fill_in(
    fields: RequestedFields,
    values: pa.Array,
    block: DecodedBlock,
    rows: Integers,
    max_singles: int,
) -> DecodedBlock:
    """Parse the values of `rows`, and put the results into these rows of `block`."""
    if not len(rows):
        return block
    parsed = parse_unscanned(fields, values.take(pa.array(rows)), max_singles)
    # Pieces that hold only nulls take the type of the others.
    raw = {
        text: [
            pa.nulls(len(piece), block.raw[text][0].type)
            if piece.null_count == len(piece)
            else piece
            for piece in pieces
        ]
        for text, pieces in parsed.raw.items()
    }
    order = np.arange(len(values))
    order[rows] = len(values) + np.arange(len(rows))
    return join_blocks(fields, [block, parsed._replace(raw=raw)], order, block.reasons)


def parse_unscanned(
    fields: RequestedFields, values: pa.Array, max_singles: int = MAX_SINGLE_VALUES
) -> DecodedBlock:
    """Do what `parse_json` does without the scanner."""
    texts, joinable = find_joinable(values)
    if any(contains(field.type, pa.types.is_map) for field in fields.columns):
        # Arrow's parser reads no maps.
        joinable[:] = False
    if any(contains(field.type, pa.types.is_decimal) for field in fields.columns):
        # A decimal of many places makes Arrow read memory that is not its own, and may end Python.
        joinable &= ~to_mask(pc.match_substring_regex(texts, _NEGATIVE_EXPONENT))
    pieces: list[DecodedBlock] = []
    for start, stop, joins in _split_runs(joinable, max_singles):
        if joins:
            pieces += _parse_run(fields, values, texts, start, stop, max_singles)
        else:
            pieces.append(parse_rows(fields, values.slice(start, stop - start).to_pylist()))
    columns = [
        pa.concat_arrays([piece.columns[number] for piece in pieces] or [pa.array([], field.type)])
        for number, field in enumerate(fields.columns)
    ]
    raw = {name: [array for piece in pieces for array in piece.raw[name]] for name in fields.raw}
    reasons = np.concatenate([np.zeros(0, np.uint8), *(piece.reasons for piece in pieces)])
    return DecodedBlock(columns, raw, reasons)


def _split_runs(joinable: Mask, max_singles: int) -> Iterator[tuple[int, int, bool]]:
    """Yield runs as (start, stop, join?); merge short joinable runs with their neighbours."""
    bounds = _run_bounds(joinable)
    lengths = np.diff(bounds)
    worth = np.repeat(joinable[bounds[:-1]] & (lengths > max_singles), lengths)
    for start, stop in itertools.pairwise(_run_bounds(worth).tolist()):
        yield start, stop, bool(worth[start])


def _run_bounds(mask: Mask) -> Integers:
    """Return the starts of runs of equal values, and the end."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate(([0], edges, [len(mask)])) if len(mask) else np.array([0])


def _parse_run(
    fields: RequestedFields,
    values: pa.Array,
    texts: pa.Array,
    start: int,
    stop: int,
    max_singles: int,
) -> Iterator[DecodedBlock]:
    """Parse the joinable values from `start` to `stop`, in pieces, in order.

    Arrow usually names the row that it cannot parse; otherwise the piece is halved. The closer bad
    rows are, the more values are parsed one by one before Arrow is tried again. A block with one
    bad value in 1,000 costs about three times as much as one without; the worst costs less than
    twice as much as parsing its values one by one (bench/time_rules/mechanisms_stream.py).
    """
    # `size` is how many values Arrow gets next, `singly` how many are parsed one by one after a
    # failure; `bad` is the number of a value that Arrow has refused.
    #
    # Example: five values, the fourth of them bad, and `max_singles` 1. Arrow refuses all five and
    # names row 3, so it gets the first three next: they are a block. Parse the bad value
    # separately, and so the last one: one value is not worth a call of Arrow. If the second were
    # bad, it would be near: two values would be parsed one by one, and Arrow would get two.
    position = start
    size = stop - start
    singly = max_singles
    bad = -1
    while position < stop:
        count = 1 if position == bad else min(size, stop - position)
        if count <= max_singles:
            # A bad value, a small half or the last few: parse one by one, and give Arrow more next.
            size = 4 * max(size, max_singles)
        else:
            block = _parse_joined(fields, texts.slice(position, count))
            if isinstance(block, DecodedBlock):
                yield block
                position += count
                size *= 4
                singly = max_singles
                continue
            if block.row is None and count > 2 * max_singles:
                # It names no row: halve the piece until it does, or until it is small.
                size = count // 2
                continue
            if block.row is not None and block.row > max_singles:
                # Read the rows before the bad one with Arrow, and then the bad one separately.
                size, bad = block.row, position + block.row
                continue
            # The bad row is near, or the piece small: read rows one by one, and more next time.
            count = min(max(singly, (block.row or 0) + 1), stop - position)
            size, singly = max(2 * max_singles, size // 2), 2 * singly
        yield parse_rows(fields, values.slice(position, count).to_pylist())
        position += count


def _parse_joined(fields: RequestedFields, texts: pa.Array) -> DecodedBlock | _ParseFailure:
    """Parse all of `texts` with Arrow; fail if one does not match the fields."""
    first_value = _parse_first(texts[0].as_py())
    schemas = WireSchemas()
    column_locations = [
        schemas.add(path, _choose_wire_type(field.type, descend(first_value, path).value))
        for path, field in zip(fields.column_paths(), fields.columns, strict=True)
    ]
    raw_locations = {
        text: schemas.find(path)
        or schemas.add(path, _RAW_TYPES.get(type(descend(first_value, path).value), pa.string()))
        for text, path in fields.raw_paths().items()
    }
    # `binary_join` joins the items of each list, so put all texts into one.
    one_list = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    buffer = pc.binary_join(one_list, "\n")[0].as_buffer()
    tables: list[pa.Table] = []
    for schema in schemas.schemas():
        table = _read(buffer, len(texts), schema)
        if isinstance(table, _ParseFailure):
            return table
        tables.append(table)
    raw = {text: _take_field(tables, location) for text, location in raw_locations.items()}
    if any(map(_loses_digits, raw.values())):
        return _ParseFailure(None)
    finished = [
        convert(_take_field(tables, location), field.type, _read_scalars)
        for location, field in zip(column_locations, fields.columns, strict=True)
    ]
    pieces = {text: [column] for text, column in raw.items()}
    return build_decoded_block(finished, pieces, np.full(len(texts), FINE, np.uint8))


def _read(buffer: pa.Buffer, rows: int, schema: pa.Schema) -> pa.Table | _ParseFailure:
    if not len(schema):
        # Arrow counts rows only if there is a field; one that never occurs is enough.
        schema = pa.schema([("\0", pa.string())])
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(buffer),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        match = _ROW_IN_MESSAGE.search(str(error))
        row = int(match[1]) if match else rows
        return _ParseFailure(row if row < rows else None)
    return table if table.num_rows == rows else _ParseFailure(None)


def _parse_first(text: str) -> dict[str, Any]:
    """Parse a block's first value; its field types usually hold for all values."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _choose_wire_type(target: pa.DataType, first_value: Any) -> pa.DataType:
    """Choose the type that Arrow parses; the first value shows whether times are seconds."""
    if pa.types.is_timestamp(target) and type(first_value) is int:
        return pa.int64()
    return _get_wire_type(target)


def _loses_digits(column: pa.Array) -> bool:
    """Return whether doubles may stand for whole numbers that only an int64 holds exactly."""
    if not pa.types.is_float64(column.type):
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= _MAX_EXACT_DOUBLE


def _get_wire_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that Arrow parses: times and bytes are strings, which are converted later."""
    types = pa.types
    is_time = types.is_timestamp(data_type) or types.is_date32(data_type)
    if is_time or types.is_binary(data_type):
        return pa.string()
    if types.is_struct(data_type):
        return pa.struct([(field.name, _get_wire_type(field.type)) for field in data_type])
    if types.is_list(data_type):
        return pa.list_(_get_wire_type(data_type.value_type))
    if types.is_decimal(data_type) and data_type.precision + data_type.scale > MAX_DIGITS:
        # Arrow's parser counts a number's digits, and then multiplies by ten for each missing place
        # after the decimal point without looking whether the product still fits.
        return pa.decimal256(MAX_WIDE_DIGITS - data_type.scale, data_type.scale)
    return data_type


def _read_scalars(wire: pa.Array, target: pa.DataType) -> Converted:
    if pa.types.is_timestamp(target) or pa.types.is_date32(target):
        return read_times(wire, target)
    if pa.types.is_decimal(target):
        # Arrow's parser checks only the digits after the decimal point.
        return limit_decimals(wire, target)
    if pa.types.is_binary(target):
        decoded = [null_on_error(to_bytes, text) for text in wire.to_pylist()]
        return find_bad(pa.array(decoded, target), wire)
    return cast_scalars(wire, target)
