"""Map a DataFrame's columns to a store's, convert its rows, and compute their digest.

By the digest the store recognizes whether a repeated batch has the same rows (semantics 16.5). It
does not depend on their order or partitioning. A row's digest combines the hashes of its columns.
The digest of a set is the sum over its rows, so the driver adds up the digests of tasks. Nulls add
nothing, so a column that is added later changes no digest. Floats count to about six digits, and as
0 below 1e-9: Spark adds up floats in the order in which its tasks end, so a repeated sum may differ
in its last digits.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import CTI_COLUMN, split_cti_rows
from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.errors import OptionError
from pyspark_tseries.errors import IncompatibleValue, UpdateFailed
from pyspark_tseries.model.arrays import Int64Array, is_any_binary, is_any_text
from pyspark_tseries.model.columns import (
    EVENT_FIELDS,
    INSTANT,
    ORIGINAL_FIELDS,
    RESERVED_NAMES,
    add_fields,
    check_text,
    fits,
    new_value_field,
    type_name,
    value_type,
)
from pyspark_tseries.options import WriteOptions

EDIT_OF: Final = ORIGINAL_FIELDS[0]
"""The column with the sequences of edited originals; null in appends."""

STAGED_NAMES: Final = ("series", "timestamp", "author", EDIT_OF.name)
"""The names of the first columns of a `staged_schema`; the others are values."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The incoming column for each column of the store; None if there is none.

    Attributes:
        series: the column with the series' names.
        series_name: the one series of all rows, if `series` is None.
        timestamp: the column with the event times.
        author: the column with the authors.
        edit_of: the column with the sequences of the edited originals.
        cti: the column with CTIs; a row with a CTI has nothing else, and is not stored.
        values: pairs of incoming column and stored field.
    """

    series: str | None
    series_name: str | None
    timestamp: str | None
    author: str | None
    edit_of: str | None
    cti: str | None
    values: tuple[tuple[str | None, pa.Field], ...]

    @property
    def staged(self) -> pa.Schema:
        """The columns of rows on their way from a task to the commit."""
        return staged_schema([field for _, field in self.values])


def staged_schema(values: list[pa.Field]) -> pa.Schema:
    """Return the columns of rows on their way from a task to the commit, for these values."""
    timestamp, author = (EVENT_FIELDS[i].with_nullable(True) for i in (2, 3))
    return pa.schema([EVENT_FIELDS[0], timestamp, author, EDIT_OF, *values])


def stage_columns(columns: Mapping[str, Any], size: int, staged: pa.Schema) -> pa.Table:
    """Return `size` rows with the columns `staged`: those in `columns`, and nulls in the others."""
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in staged
    ]
    return pa.Table.from_arrays(arrays, schema=staged).combine_chunks()


def plan_rows(incoming: pa.Schema, options: WriteOptions, stored: list[pa.Field] | None) -> RowPlan:
    """Find the columns that `options` name, and check the others against the store.

    Names match in any case, as in Spark. Store columns that are not among them become null.

    Args:
        incoming: the DataFrame's columns.
        options: the options that name the metadata columns.
        stored: the store's value columns; None creates them from `incoming`.

    Raises:
        OptionError: a column that an option names is missing.
        IncompatibleValue: a column has a wrong type or name.
    """
    by_name = _index_by_name(incoming)
    series = None
    if options.series_name is None:
        series = _find_column(by_name, "seriesColumn", options.series_column, "series")
        if series is None:
            raise _missing_column_error(
                "seriesColumn", "series", by_name, "set seriesColumn or seriesName"
            )
    timestamp = _find_column(by_name, "timestampColumn", options.timestamp_column, "timestamp")
    author = _find_column(by_name, "authorColumn", options.author_column, "author")
    edit_of = _find_column(by_name, "editOfColumn", options.edit_of_column, "edit_of")
    cti = _find_cti_column(by_name, options.cti_column, stored)
    _check_type(series, "seriesColumn", pa.string())
    _check_type(timestamp, "timestampColumn", INSTANT)
    _check_type(author, "authorColumn", pa.string())
    _check_type(edit_of, "editOfColumn", pa.int64())
    _check_type(cti, "ctiColumn", INSTANT)
    roles = [field and field.name for field in (series, timestamp, author, edit_of, cti)]
    other_columns = {key: field for key, field in by_name.items() if field.name not in roles}
    return RowPlan(
        series=roles[0],
        series_name=options.series_name,
        timestamp=roles[1],
        author=roles[2],
        edit_of=roles[3],
        cti=roles[4],
        values=_match_values(other_columns, stored, merges_schema=options.merge_schema),
    )


def _index_by_name(incoming: pa.Schema) -> dict[str, pa.Field]:
    by_name: dict[str, pa.Field] = {}
    for field in incoming:
        same_name = by_name.setdefault(field.name.lower(), field)
        if same_name is not field:
            raise IncompatibleValue(
                f"columns '{same_name.name}' and '{field.name}' have one name in a store",
                "names that differ in more than case",
                "rename one of them",
            )
    return by_name


def _find_column(
    by_name: dict[str, pa.Field], option: str, chosen: str | None, default: str
) -> pa.Field | None:
    field = by_name.get((chosen or default).lower())
    if field is None and chosen is not None:
        raise _missing_column_error(
            option, chosen, by_name, "name a column of the DataFrame, or leave it out"
        )
    return field


def _find_cti_column(
    by_name: dict[str, pa.Field], chosen: str | None, stored: list[pa.Field] | None
) -> pa.Field | None:
    field = _find_column(by_name, "ctiColumn", chosen, CTI_COLUMN)
    if chosen is not None or field is None:
        return field
    # A store may have a value column of this name.
    is_value = any(stored_field.name.lower() == CTI_COLUMN for stored_field in stored or ())
    return None if is_value or not pa.types.is_timestamp(field.type) else field


def _missing_column_error(
    option: str, column: str, by_name: dict[str, pa.Field], next_step: str
) -> OptionError:
    names = ", ".join(f"'{field.name}'" for field in by_name.values())
    return OptionError(option, f"the DataFrame has no column '{column}'", names, next_step)


def _check_type(field: pa.Field | None, option: str, data_type: pa.DataType) -> None:
    if field is not None and value_type(field) != data_type:
        raise IncompatibleValue(
            f"column '{field.name}' ({option}) is of type {type_name(field.type)}",
            type_name(data_type),
            f"cast it, or name another column with {option}",
        )


def _match_values(
    incoming: dict[str, pa.Field], stored: list[pa.Field] | None, *, merges_schema: bool
) -> tuple[tuple[str | None, pa.Field], ...]:
    for key, field in incoming.items():
        if key in RESERVED_NAMES:
            raise IncompatibleValue(
                f"value column '{field.name}' is named like a metadata column of the store",
                f"any name but {', '.join(RESERVED_NAMES)}",
                "rename it",
            )
    if stored is None:
        return tuple((field.name, new_value_field(field)) for field in incoming.values())
    fields_by_name = {field.name.lower(): field for field in stored}
    for key, field in incoming.items():
        if merges_schema:
            new = new_value_field(field)
            fields_by_name[key] = (
                add_fields(fields_by_name[key], new.type) if key in fields_by_name else new
            )
        _check_value(field, fields_by_name.get(key), stored)
    return tuple(
        (incoming[key].name if key in incoming else None, field)
        for key, field in fields_by_name.items()
    )


def _check_value(field: pa.Field, stored_field: pa.Field | None, stored: list[pa.Field]) -> None:
    names = ", ".join(f"'{f.name}' {type_name(f.type)}" for f in stored) or "none"
    if stored_field is None:
        raise IncompatibleValue(
            f"column '{field.name}' of type {type_name(field.type)} is not in the store: its "
            "value columns are fixed at its creation",
            names,
            "drop the column, or set mergeSchema to add it",
        )
    data_type = value_type(field)
    if not fits(data_type, stored_field.type):
        next_step = "cast it"
        if fits(stored_field.type, data_type):
            next_step += ", or give the store's column this type with TimeSeries.widen_columns"
        raise IncompatibleValue(
            f"column '{field.name}' is of type {type_name(field.type)}, in the store it is of "
            f"type {type_name(stored_field.type)}",
            type_name(stored_field.type),
            next_step,
        )


def split_ctis(batch: pa.RecordBatch, plan: RowPlan) -> tuple[pa.RecordBatch, int | None]:
    """Return the rows to store, and the greatest CTI of the other rows, in microseconds.

    Raises:
        UpdateFailed: a row with a CTI has a value in another column.
    """
    if plan.cti is None:
        return batch, None
    rows, cti_us, misfit = split_cti_rows(batch, plan.cti)
    if misfit is not None:
        name, us = misfit
        raise UpdateFailed(
            f"the row with a CTI in column '{plan.cti}', {format_instant(us)}, has column "
            f"'{name}' as well, which would be lost: such a row is not stored",
            f"rows in which only '{plan.cti}' is set, or it is null",
            f"if '{plan.cti}' has values of yours, rename it; else keep the others null: "
            f"F.when(F.col('{plan.cti}').isNull(), ...).alias('{name}'). Nothing of the batch "
            "is stored",
        )
    return rows, cti_us


def stage_rows(batch: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Return the rows of a task, in their order, as `plan.staged`; raise as `pick_rows` does."""
    return cast_rows(pick_rows(batch, plan), plan)


def cast_rows(picked: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Return rows from `pick_rows`, cast to the types of the store."""
    columns = zip(picked.columns, plan.staged, strict=True)
    cast = [column.cast(field.type) for column, field in columns]
    return pa.RecordBatch.from_arrays(cast, schema=plan.staged)


def pick_rows(batch: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Return the rows of a task in their own types, by the names of `plan.staged`.

    Raises:
        UpdateFailed: a row has no series, or an edit has a timestamp.
        IncompatibleValue: a text is not UTF-8.
    """
    text_columns = [plan.series, plan.author, *(name for name, _ in plan.values)]
    check_text(
        batch, [name for name in text_columns if name is not None], plan.series, plan.series_name
    )
    _check_edit_timestamps(batch, plan)
    size = batch.num_rows
    if plan.series is None:
        series = pa.repeat(pa.scalar(plan.series_name, pa.string()), size)
    else:
        series = batch[plan.series]
        _check_series_names(series, plan.series)
    sources = [plan.timestamp, plan.author, plan.edit_of, *(name for name, _ in plan.values)]
    columns = [series, *(pa.nulls(size) if name is None else batch[name] for name in sources)]
    return pa.RecordBatch.from_arrays(columns, plan.staged.names)


def _check_series_names(series: pa.Array, column: str) -> None:
    if series.null_count:
        fix = "filter these rows or name them"
        if series.null_count == len(series):
            fix = "correct the name of the field or column that it comes from, if nothing has it"
        raise UpdateFailed(
            f"column '{column}' is null in {series.null_count} of {len(series)} rows of a task",
            "a series' name in every row",
            f"{fix}. Nothing of the batch is stored",
        )


def _check_edit_timestamps(batch: pa.RecordBatch, plan: RowPlan) -> None:
    if plan.edit_of is None or plan.timestamp is None:
        return
    timed = pc.and_(batch[plan.edit_of].is_valid(), batch[plan.timestamp].is_valid())
    row = pc.index(timed, True).as_py()
    if row < 0:
        return
    series = plan.series_name if plan.series is None else batch[plan.series][row].as_py()
    raise UpdateFailed(
        f"series '{series}': the edit of {batch[plan.edit_of][row]} has a timestamp",
        f"null in column '{plan.timestamp}', an edit's timestamp is assigned at commit",
        "set it to null in rows that are edits. Nothing of the batch is stored",
    )


Hashes = npt.NDArray[np.uint64]

DIGEST_BITS: Final = 62
_MASK: Final = (1 << DIGEST_BITS) - 1
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD: Final = np.uint64(0xBF58476D1CE4E5B9)
_HALF: Final = np.uint64(32)
_FLOAT_NOISE: Final = 1e-9
_FLOAT_BITS_DROPPED: Final = np.uint64(32)
"""Drop these of the 52 bits of a double's fraction; 20 stay."""

_FLOAT_ROUNDING: Final = np.uint64(0x6A09E667)
"""Add this before bits are dropped. With a half, sums of cents such as 600,000.25 would lie between
two rounded numbers, and the smallest difference would change the digest."""

ROWS_IN_CACHE: Final = 16 * 1024
"""This many rows of a column fit in the processor's cache."""


def digest_rows(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the digest of `rows`; 0 for none."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    total = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_IN_CACHE):
            total = add_digests(total, _digest(batch.slice(start, ROWS_IN_CACHE)))
    return total


def add_digests(*digests: int) -> int:
    """Return the digest of the union of several sets."""
    return sum(digests) & _MASK


def _digest(batch: pa.RecordBatch) -> int:
    rows = np.full(batch.num_rows, _ODD)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count < len(column):
            rows += _hash_with_name(field.name, _hash(column))
    return int(_scramble(rows).sum(dtype=np.uint64)) & _MASK


def _hash_with_name(name: str, hashes: Hashes) -> Hashes:
    """Return each row's hash with the name of its column or field; 0 for null."""
    seed = np.uint64(zlib.crc32(name.lower().encode(errors="replace")) * 2 + 1)
    return _scramble(hashes * seed)


def _scramble(hashes: Hashes) -> Hashes:
    """Mix the bits of each number, in place; 0 stays 0."""
    hashes *= _ODD
    hashes ^= hashes >> _HALF
    hashes *= _OTHER_ODD
    hashes ^= hashes >> _HALF
    return hashes


def _hash(column: pa.Array) -> Hashes:
    """Return a number for each value, 0 for null; equal values have equal numbers."""
    hashes = _hash_values(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _hash_values(column: pa.Array) -> Hashes:
    """Hash as `_hash` does, but with an arbitrary number for null."""
    data_type = column.type
    if pa.types.is_null(data_type):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_dictionary(data_type):
        hashed: Hashes = _hash(column.dictionary)[
            column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        ]
        return hashed
    if pa.types.is_nested(data_type):
        return _hash_nested(column)
    if pa.types.is_floating(data_type):
        return _hash_numbers(_float_bits(column))
    if pa.types.is_decimal(data_type):
        return _hash_text(column.cast(pa.string()))
    is_bytes = is_any_binary(data_type) or pa.types.is_fixed_size_binary(data_type)
    if is_bytes or is_any_text(data_type):
        return _hash_text(column)
    if pa.types.is_boolean(data_type):
        column = column.cast(pa.uint8())
    elif not pa.types.is_integer(data_type):
        column = column.cast(pa.int64() if data_type.bit_width == 64 else pa.int32())
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return _hash_numbers(numbers.astype(np.int64).view(np.uint64))


def _hash_nested(column: pa.Array) -> Hashes:
    """Hash structs, maps and lists from the hashes of their contents."""
    data_type = column.type
    if pa.types.is_struct(data_type):
        hashes = np.full(len(column), _ODD)
        for field, child in zip(data_type, column.flatten(), strict=True):
            hashes += _hash_with_name(field.name, _hash(child))
        return hashes
    if pa.types.is_map(data_type):
        keys = _hash_with_name("key", _hash(column.keys))
        values = _hash_with_name("value", _hash(column.items))
        # The entries of a map have no order.
        return _sum_parts(_scramble(keys * _ODD + values + _ODD), _list_offsets(column))
    if pa.types.is_fixed_size_list(data_type):
        return _hash_nested(column.cast(pa.list_(data_type.value_type)))
    elements, offsets = _hash(column.values) + _ODD, _list_offsets(column)
    return _sum_parts(_scramble(elements * _odd_positions(offsets, len(elements))), offsets)


def _hash_numbers(numbers: Hashes) -> Hashes:
    """Hash numbers; 0 differs from null."""
    return _scramble(numbers ^ _OTHER_ODD)


def _float_bits(column: pa.Array) -> Hashes:
    floats = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    floats = np.where(np.abs(floats) < _FLOAT_NOISE, 0.0, floats)
    bits = floats.view(np.uint64)
    rounded = (bits + _FLOAT_ROUNDING) >> _FLOAT_BITS_DROPPED
    return np.where(np.isnan(floats), _ODD, rounded)


def _hash_text(column: pa.Array) -> Hashes:
    """Return a number for each text or binary, from words of eight bytes; any number for null."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_string()).view(pa.large_binary())
    else:
        column = column.cast(pa.large_binary())
    _, offsets_buffer, content = column.buffers()
    if not len(column) or offsets_buffer is None or content is None:
        return np.full(len(column), _ODD)
    first, last = column.offset, column.offset + len(column)
    bounds = np.frombuffer(offsets_buffer, np.int64)[first : last + 1]
    text_bytes = np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]
    sizes = np.diff(bounds)
    word_counts = (sizes + 7) >> 3
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(word_counts)])
    words = _read_words(text_bytes, bounds[:-1] - bounds[0], offsets)
    # Clear the bytes of each last word that belong to the next text.
    has_words = word_counts > 0
    surplus_bits = (8 * (8 * word_counts - sizes)[has_words]).astype(np.uint64)
    last_words = offsets[1:][has_words] - 1
    words[last_words] = (words[last_words] << surplus_bits) >> surplus_bits
    hashes = _scramble((words ^ _OTHER_ODD) * _odd_positions(offsets, len(words)))
    return _sum_parts(hashes, offsets) + sizes.view(np.uint64) * _ODD


def _read_words(
    text_bytes: npt.NDArray[np.uint8], begins: Int64Array, offsets: Int64Array
) -> Hashes:
    """Return the words of eight bytes of each text, from its first byte on.

    `begins` has the first byte of each text, and `offsets` the number of its first word.
    """
    # Eight more bytes, so that a word may begin at any byte.
    padded = np.zeros(len(text_bytes) + 8, np.uint8)
    padded[:-8] = text_bytes
    word_at_byte = np.ndarray(len(padded) - 7, np.uint64, padded, strides=(1,))
    # Word k of all texts would be at byte 8 * k if every text followed the words of the one before.
    distances = np.repeat(begins - 8 * offsets[:-1], np.diff(offsets))
    words: Hashes = word_at_byte[8 * np.arange(offsets[-1]) + distances]
    return words


def _list_offsets(lists: pa.Array) -> Int64Array:
    """Return the offset of each list among the values, and the end of the last one."""
    offsets: Int64Array = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets


def _odd_positions(offsets: Int64Array, size: int) -> Hashes:
    """Return an odd number for the position of each of `size` values in its list: 1, 3, 5."""
    positions = np.arange(size)
    positions[offsets[0] : offsets[-1]] -= np.repeat(offsets[:-1], np.diff(offsets))
    return positions.view(np.uint64) * np.uint64(2) + np.uint64(1)


def _sum_parts(parts: Hashes, offsets: Int64Array) -> Hashes:
    """Return a number for each list, from the sum and the count of its `parts`."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(parts, dtype=np.uint64)])
    sizes = np.diff(offsets).view(np.uint64)
    return _scramble(sums[offsets[1:]] - sums[offsets[:-1]] + (sizes + np.uint64(1)) * _ODD)
