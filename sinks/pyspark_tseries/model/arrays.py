"""Keep columns of whole numbers as NumPy arrays, and select rows by ranges of keys.

Sequences, timestamps and positions are 64-bit integers. Null is a number that no legal value
reaches. A key is (series, sequence); Python and Arrow both compare names by their UTF-8 bytes.

These numbers stand for null:

- NO_SEQUENCE, -1: no event yet, in an index or a state; the next sequence is then 0. As an original
  to be edited: none, so the event is an original.
- NO_ORIGINAL, -2^63: the latter, in checks and deliveries, as a damaged file may hold -1.
- NEVER_US, -2^62: no time yet. It is below all times, so a maximum with a time is that time, and so
  far inside 64 bits that no arithmetic with times and durations overflows.
- UNTIMED, 2^63 - 1: a row without a timestamp, before it gets one. It is above all times, so the
  row is sorted behind the others.

`NO_COMMIT` in `model.commits` is not a number: it is the metadata of a store without commits.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BoolArray = npt.NDArray[np.bool_]
"""One flag for each row; the name says what is True, such as `is_present` or `inside`."""
FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
"""Sequences or times, or positions: `rows` are of rows, `codes` of names in a list of names."""

MIN_NUMBER: Final = -(2**62)
MAX_NUMBER: Final = 2**62
"""Every sequence and timestamp lies between these, exclusive."""

NO_SEQUENCE: Final = -1
"""The last sequence of a series without events."""

NO_ORIGINAL: Final = np.iinfo(np.int64).min
"""A null in column `original_sequence`; differs from NO_SEQUENCE, which a damaged file may hold."""

NEVER_US: Final = MIN_NUMBER
"""The newest timestamp of a series without events."""

UNTIMED: Final = np.iinfo(np.int64).max
"""A null timestamp while sorting: such rows come last."""


def is_any_list(data_type: pa.DataType) -> bool:
    """Return whether a type has lists of any of Arrow's layouts; maps are none."""
    types = pa.types
    checks = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    views = (types.is_list_view, types.is_large_list_view)
    return any(check(data_type) for check in (*checks, *views))


def is_any_text(data_type: pa.DataType) -> bool:
    """Return whether a type has texts of any of Arrow's layouts."""
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(data_type) for check in checks)


def is_any_binary(data_type: pa.DataType) -> bool:
    """Return whether a type has bytes of any length, in any of Arrow's layouts."""
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(check(data_type) for check in checks)


def to_int64(column: pa.ChunkedArray | pa.Array) -> Int64Array:
    """Return a column of numbers or timestamps, without nulls, as numbers."""
    values: Int64Array
    if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1:
        column = column.chunk(0)
    if isinstance(column, pa.Array) and pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())  # In a tenth of the time of a cast.
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    values = column.to_numpy(zero_copy_only=False)
    return values


def to_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column in one piece; copy it only if it has several."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def encode_values(column: pa.Array) -> tuple[pa.Array, Int64Array]:
    """Return the distinct values, sorted, and each row's position among them.

    Texts are sorted by UTF-8 bytes; a null is the last value.
    """
    encoded = column.dictionary_encode(null_encoding="encode")
    by_value = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(by_value), np.int64)
    rank[by_value] = np.arange(len(by_value))
    return encoded.dictionary.take(pa.array(by_value)), rank[encoded.indices.to_numpy()]


def encode_runs(series: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Int64Array]:
    """Return the same as `encode_values`, faster if neighbouring rows mostly share their series.

    For a million rows it is three to six times as fast if they are sorted by series, and half as
    fast if they are in random order.
    """
    names, starts = find_runs_of(series)
    run = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(series)))
    if len(names) < 2 or pc.all(pc.less(names[:-1], names[1:])).as_py():
        return names, run
    names, codes = encode_values(names)
    return names, codes[run]


def find_runs_of(series: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Int64Array]:
    """Return each run's series and first row; a run is adjacent rows of one series.

    `series` are texts, a dictionary of them, or encoded by runs.
    """
    if pa.types.is_run_end_encoded(series.type):
        runs = to_array(series)
        return runs.values, np.append(0, runs.run_ends.to_numpy()[:-1])
    if pa.types.is_dictionary(series.type):
        if isinstance(series, pa.ChunkedArray):
            series = to_array(series.unify_dictionaries())
        codes = series.indices.to_numpy()
        starts, _ = find_number_runs(codes)
        return series.dictionary.take(pa.array(codes[starts])).cast(pa.string()), starts
    names = series.combine_chunks() if isinstance(series, pa.ChunkedArray) else series
    names = names.cast(pa.string())
    starts = _find_changes(
        np.asarray(pc.not_equal(names[1:], names[: len(names) - 1]), bool), len(names)
    )
    return (names if len(starts) == len(names) else names.take(pa.array(starts))), starts


def _find_changes(differs: BoolArray, size: int) -> Int64Array:
    """Return the first of `size` rows, and each row that differs from the row before."""
    return np.concatenate([np.arange(min(size, 1)), np.flatnonzero(differs) + 1])


def find_number_runs(*columns: npt.NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Return the first row and the size of each run of rows that are equal in all `columns`.

    >>> begins, sizes = find_number_runs(np.array([4, 4, 7]), np.array([1, 1, 1]))
    >>> begins.tolist(), sizes.tolist()
    ([0, 2], [2, 1])
    """
    size = len(columns[0])
    differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    begins = _find_changes(differs, size)
    return begins, np.diff(begins, append=size)


def expand_ranges(firsts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the numbers of all ranges: from each of `firsts` on, as many as its size.

    >>> expand_ranges(np.array([7, 20]), np.array([2, 3])).tolist()
    [7, 8, 20, 21, 22]
    """
    begins = np.cumsum(sizes) - sizes
    offsets = np.repeat(firsts - begins, sizes)
    numbers: Int64Array = np.arange(len(offsets)) + offsets
    return numbers


def place_values(column: pa.Array, rows: Int64Array, size: int) -> pa.Array:
    """Return a column of `size` rows with the values of `column` at `rows`, and nulls elsewhere."""
    positions = np.full(size, -1)
    positions[rows] = np.arange(len(rows))
    return column.take(pa.array(positions, mask=positions < 0))


def sort_by_code(codes: Int64Array, numbers: Int64Array) -> Int64Array:
    """Return the rows in the order of (code, number, row); codes are not negative.

    This equals `np.lexsort((numbers, codes))`, in less than half the time: NumPy sorts 16-bit
    numbers without comparing them, and most batches are already in the order of time.
    """
    order = np.arange(len(numbers))
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
    for shift in range(0, int(codes.max(initial=0)).bit_length(), 16):
        digits = ((codes >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def sort_keys(codes: Int64Array, sequence: Int64Array) -> Int64Array:
    """Return the same as `sort_by_code`, faster if the rows are already sorted by distinct keys."""
    step = np.diff(codes)
    if np.all((step > 0) | ((step == 0) & (np.diff(sequence) > 0))):
        return np.arange(len(codes))
    return sort_by_code(codes, sequence)


def flag_last(codes: Int64Array, count: int) -> BoolArray:
    """Flag the last `count` rows of each code; `codes` are sorted.

    >>> flag_last(np.array([0, 0, 0, 2]), 2).tolist()
    [False, True, True, True]
    """
    if count >= len(codes):
        return np.ones(len(codes), bool)
    flags: BoolArray = np.searchsorted(codes, codes, "right") - np.arange(len(codes)) <= count
    return flags


def reduce_runs(
    function: np.ufunc, values: npt.NDArray[Any], begins: Int64Array, sizes: Int64Array
) -> npt.NDArray[Any]:
    """Apply `function` to each run of values; other values may lie between two runs."""
    ends = begins + sizes
    if (begins[1:] == ends[:-1]).all():
        return np.asarray(function.reduceat(values[: ends[-1]], begins))
    # This also reduces the values between two runs; [::2] drops those results.
    cuts = np.stack([begins, ends], axis=1).ravel()
    cuts = cuts[:-1] if cuts[-1] == len(values) else cuts
    return np.asarray(function.reduceat(values, cuts)[::2])


def find_first(size: int, is_among: Callable[[int, int], bool]) -> int:
    """Find a row among `size` rows by halving; one of them is the row.

    `is_among(first, end)` returns whether it is among the rows from `first` to `end`, exclusive.
    """
    first, end = 0, size
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (first, middle) if is_among(first, middle) else (middle, end)
    return first


def is_same(value: Any, other_value: Any) -> bool:
    """Return whether two values are equal; a NaN equals a NaN, inside dicts and lists too."""
    if isinstance(value, float) and isinstance(other_value, float) and value != value:
        return other_value != other_value
    if isinstance(value, dict) and isinstance(other_value, dict):
        return value.keys() == other_value.keys() and all(
            is_same(value[key], other_value[key]) for key in value
        )
    if isinstance(value, list | tuple) and isinstance(other_value, list | tuple):
        return len(value) == len(other_value) and all(map(is_same, value, other_value))
    return bool(value == other_value)


def list_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column's values, times and dates as numbers.

    Python has no time outside the years 1 to 9999, but a value column may have one.
    """
    values: list[Any] = column.cast(_number_times(column.type)).to_pylist()
    return values


def list_texts(column: pa.Array) -> Iterator[str]:
    """Yield each value as a text; a time that Python lacks is one, too."""
    for cell in column:
        try:
            yield str(cell.as_py()) if cell.is_valid else "(null)"
        except OverflowError:
            yield str(cell.cast(pa.string()))


def _number_times(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(data_type):
        return pa.int64()
    if pa.types.is_date32(data_type):
        return pa.int32()
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_number_times(field.type)) for field in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(_number_times(data_type.key_type), _number_times(data_type.item_type))
    if pa.types.is_list(data_type):
        field = data_type.value_field
        return pa.list_(field.with_type(_number_times(field.type)))
    return data_type


BLOCK_ROWS: Final = 1 << 14
MAX_SEPARATE_BLOCKS: Final = 8
"""For more blocks than this, one NumPy call on the whole column is faster."""


class BlockColumns(Mapping[str, Int64Array]):
    """Columns of equal length by name, in blocks; `columns[name]` returns a copy in one piece."""

    def __init__(self, columns: Mapping[str, Int64Array]) -> None:
        self._blocks = {name: _split_blocks(column) for name, column in columns.items()}
        self.rows = max(map(len, columns.values()), default=0)
        self._bounds: dict[str, Int64Array] = {}

    def __getitem__(self, name: str) -> Int64Array:
        return _concatenate(self._blocks[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, name: object) -> bool:
        return name in self._blocks

    def bounds(self, name: str) -> Int64Array:
        """Return the lowest and the highest number of a non-empty column; cached."""
        if name not in self._bounds:
            blocks = self._blocks[name]
            self._bounds[name] = np.array([min(map(np.min, blocks)), max(map(np.max, blocks))])
        return self._bounds[name]

    def take(self, rows: Int64Array, absent: Mapping[str, int]) -> dict[str, Int64Array]:
        """Return the columns of `absent` at `rows`; its numbers fill missing rows and columns."""
        is_present = (rows >= 0) & (rows < self.rows)
        present_rows = rows[is_present]
        positions = _locate_rows(present_rows)
        columns = {}
        for name, missing in absent.items():
            columns[name] = np.full(len(rows), missing, np.int64)
            if name in self._blocks:
                columns[name][is_present] = _gather_rows(
                    self._blocks[name], present_rows, positions
                )
        return columns

    def row(self, row: int, absent: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers that `take` returns for one row."""
        if not 0 <= row < self.rows:
            return dict(absent)
        block, offset = divmod(row, BLOCK_ROWS)
        return {
            name: int(self._blocks[name][block][offset]) if name in self._blocks else missing
            for name, missing in absent.items()
        }

    def put(
        self, rows: Int64Array, changes: Mapping[str, Int64Array], absent: Mapping[str, int]
    ) -> "BlockColumns":
        """Return a copy with `changes` at the distinct `rows`, which may lie beyond the end.

        The copy has the columns of `absent`; its numbers fill cells that are not set.
        """
        result = BlockColumns({})
        result.rows = max(self.rows, int(rows.max(initial=-1)) + 1)
        positions = _locate_rows(rows)
        for name, missing in absent.items():
            blocks = _extend_blocks(self._blocks.get(name, []), result.rows, missing)
            if name in changes:
                blocks = _overwrite_rows(blocks, rows, changes[name], positions)
            result._blocks[name] = blocks
        return result

    def put_one(
        self, row: int, numbers: Mapping[str, int], absent: Mapping[str, int]
    ) -> "BlockColumns":
        """Do what `put` does, for one row."""
        result = BlockColumns({})
        result.rows = max(self.rows, row + 1)
        block, offset = divmod(row, BLOCK_ROWS)
        for name, missing in absent.items():
            blocks = _extend_blocks(self._blocks.get(name, []), result.rows, missing)
            if name in numbers:
                blocks[block] = blocks[block].copy()
                blocks[block][offset] = numbers[name]
            result._blocks[name] = blocks
        return result


def _split_blocks(column: Int64Array) -> list[Int64Array]:
    return [column[start : start + BLOCK_ROWS] for start in range(0, len(column), BLOCK_ROWS)]


def _concatenate(blocks: list[Int64Array]) -> Int64Array:
    return np.concatenate(blocks) if blocks else np.empty(0, np.int64)


_Positions = list[tuple[int, Any, Any]]
"""For each touched block: its number, the rows in it, and their offsets there."""


def _locate_rows(rows: Int64Array) -> _Positions | None:
    """Return the positions of `rows`, the same in all columns; None if they lie in many blocks."""
    if len(rows) == 1:
        block, offset = divmod(int(rows[0]), BLOCK_ROWS)
        return [(block, 0, offset)]
    blocks = rows // BLOCK_ROWS
    touched = np.flatnonzero(np.bincount(blocks)).tolist()
    if len(touched) > MAX_SEPARATE_BLOCKS:
        return None
    flags_of_blocks = ((block, blocks == block) for block in touched)
    return [
        (block, is_inside, rows[is_inside] - block * BLOCK_ROWS)
        for block, is_inside in flags_of_blocks
    ]


def _gather_rows(
    blocks: list[Int64Array], rows: Int64Array, positions: _Positions | None
) -> Int64Array:
    if positions is None:
        return _concatenate(blocks)[rows]
    gathered = np.empty(len(rows), np.int64)
    for block, is_inside, offsets in positions:
        gathered[is_inside] = blocks[block][offsets]
    return gathered


def _extend_blocks(blocks: list[Int64Array], rows: int, absent: int) -> list[Int64Array]:
    rows_before = sum(map(len, blocks[-1:])) + BLOCK_ROWS * max(len(blocks) - 1, 0)
    if rows_before == rows:
        return list(blocks)
    full_blocks = rows_before // BLOCK_ROWS
    new = np.full(rows - full_blocks * BLOCK_ROWS, absent, np.int64)
    new[: rows_before - full_blocks * BLOCK_ROWS] = _concatenate(blocks[full_blocks:])
    return blocks[:full_blocks] + _split_blocks(new)


def _overwrite_rows(
    blocks: list[Int64Array], rows: Int64Array, values: Int64Array, positions: _Positions | None
) -> list[Int64Array]:
    """Set `values` at `rows` of a column; copy the blocks, because older columns share them."""
    if positions is None:
        column = _concatenate(blocks)
        column[rows] = values
        return _split_blocks(column)
    for block, is_inside, offsets in positions:
        blocks[block] = blocks[block].copy()
        blocks[block][offsets] = values[is_inside]
    return blocks


Key = tuple[str, int]
SizedKey = tuple[str, int, int]
"""A series, a sequence, and the number of bytes that this event stands for."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The events from `first` (inclusive) to `end` (exclusive); None does not bound."""

    first: Key | None = None
    end: Key | None = None

    def expression(self) -> pc.Expression | None:
        """Return the range as a filter on the columns `series` and `sequence`; None passes all."""
        bounds = []
        series, sequence = pc.field("series"), pc.field("sequence")
        if self.first is not None:
            name, number = self.first
            bounds.append((series > name) | ((series == name) & (sequence >= number)))
        if self.end is not None:
            name, number = self.end
            bounds.append((series < name) | ((series == name) & (sequence < number)))
        if not bounds:
            return None
        return bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]

    def contains(self, series: pa.Array | pa.ChunkedArray, sequence: Int64Array) -> BoolArray:
        """Return a flag for each event: True if it is inside the range."""
        inside = np.ones(len(sequence), bool)
        if self.first is not None:
            name, number = self.first
            inside &= _flags(pc.greater, series, name) | (
                _flags(pc.equal, series, name) & (sequence >= number)
            )
        if self.end is not None:
            name, number = self.end
            inside &= _flags(pc.less, series, name) | (
                _flags(pc.equal, series, name) & (sequence < number)
            )
        return inside

    def overlaps(self, first: str, last: str) -> bool:
        """Return whether the range may contain a series from `first` to `last`, both inclusive."""
        above = self.first is None or last >= self.first[0]
        return above and (self.end is None or first <= self.end[0])


ALL_KEYS: Final = KeyRange()


def _flags(compare: Any, series: pa.Array | pa.ChunkedArray, name: str) -> BoolArray:
    return flag_names(series, lambda names: compare(names, pa.scalar(name, pa.string())))


def flag_names(
    series: pa.Array | pa.ChunkedArray, test: Callable[[pa.Array], pa.Array]
) -> BoolArray:
    """Return whether the name of each row passes `test`, which tests an array of texts.

    In a dictionary each name is tested once.
    """
    chunks = series.chunks if isinstance(series, pa.ChunkedArray) else [series]
    if not pa.types.is_dictionary(series.type):
        flags = [np.asarray(test(chunk), bool) for chunk in chunks]
    else:
        flags = [
            np.asarray(test(chunk.dictionary), bool)[chunk.indices.to_numpy()] for chunk in chunks
        ]
    return np.concatenate([np.empty(0, bool), *flags])


ROWS_PER_SAMPLE: Final = 1000


def sample_sizes(keys: pa.Table, row_bytes: int, path: str) -> list[SizedKey]:
    """Return one of every ROWS_PER_SAMPLE rows, with the number of bytes that it stands for.

    Each file begins with another row. Otherwise commits with the same series would give samples of
    a few series only, and put all others into one range.
    """
    count = keys.num_rows
    if not count:
        return []
    start = zlib.crc32(path.encode()) % min(count, ROWS_PER_SAMPLE)
    rows = np.arange(start, count, ROWS_PER_SAMPLE)
    some = keys.take(rows)
    sizes = np.diff(rows, append=count)
    sizes[0] += start
    columns = some["series"].to_pylist(), some["sequence"].to_pylist(), (sizes * row_bytes).tolist()
    return list(zip(*columns, strict=True))


def split_keys(
    samples: Iterable[SizedKey], budget: int, *, whole_series: bool
) -> Iterator[KeyRange]:
    """Yield key ranges of about `budget` bytes each that together cover all keys.

    `samples` are spread evenly over the rows; `whole_series` keeps each series in one range.
    """
    begin: Key | None = None
    pending_bytes = 0
    for name, sequence, size in sorted(samples):
        end = (name, 0 if whole_series else sequence)
        if pending_bytes and pending_bytes + size > budget and end != (begin or ("", -1)):
            yield KeyRange(begin, end)
            begin = end
            pending_bytes = 0
        pending_bytes += size
    yield KeyRange(begin, None)
