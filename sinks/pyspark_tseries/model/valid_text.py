"""Check that texts are UTF-8; Spark's `cast(binary as string)` makes texts that are not.

Arrow passes them on unchecked, and DuckDB, Polars and Python cannot read a file that holds one. So
they are refused before anything is written.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pyspark_tseries.errors import IncompatibleValue

__all__ = ["check_text", "is_valid_text"]

MAX_SHOWN_BYTES = 24


def is_valid_text(given: object) -> bool:
    """True for a str that UTF-8 can encode: one without an unpaired surrogate."""
    if not isinstance(given, str):
        return False
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(
    batch: pa.RecordBatch, columns: Sequence[str], series: str | None, series_name: str | None
) -> None:
    """Check every text in some columns of a batch, nested texts included.

    Args:
        batch: the rows.
        columns: the names of the columns.
        series: the column with the series' names; None if all rows belong to `series_name`.
        series_name: the one series of all rows.

    Raises:
        IncompatibleValue: a text is not UTF-8; names series and column.
    """
    for name in columns:
        column = batch[name]
        if _contains_text(column.type) and not _is_valid_utf8(column):
            row = _first_invalid_row(column)
            named = series_name if series is None else _describe_cell(batch[series], row)
            raise IncompatibleValue(
                f"series {named!r}: column '{name}' holds {_describe_cell(column, row)!r}, which "
                "is not UTF-8",
                "text in UTF-8, or bytes in a binary column",
                "leave out the cast from binary to string, or mend it with Spark's "
                "make_valid_utf8. Nothing of the batch is stored",
            )


def _contains_text(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _contains_text(kind.key_type) or _contains_text(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _contains_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_contains_text(field.type) for field in kind)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)  # type: ignore[no-any-return]


def _is_valid_utf8(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_invalid_row(column: pa.Array) -> int:
    first, end = 0, len(column)
    while end - first > 1:
        middle = (first + end) // 2
        # validate() checks the whole buffers of a slice; take() copies only these rows.
        if _is_valid_utf8(column.take(pa.array(np.arange(first, middle)))):
            first = middle
        else:
            end = middle
    return first


def _describe_cell(column: pa.Array, row: int) -> object:
    """The text of a cell, or some bytes around the first invalid one; for other types the type."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return str(kind)
    cell = column.slice(row, 1).cast(pa.large_binary())[0].as_py()
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError as error:
        start = max(0, error.start - MAX_SHOWN_BYTES // 2)
        return cell[start : start + MAX_SHOWN_BYTES]
