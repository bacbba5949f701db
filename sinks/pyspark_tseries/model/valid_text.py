"""Texts that are no UTF-8, as Spark's `cast(binary as string)` makes them.

Arrow carries them as they are, and DuckDB, Polars and Python cannot read a file that holds one. So
they are refused before anything is written.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pyspark_tseries.errors import IncompatibleValue

__all__ = ["is_text", "refuse_broken_text"]

_SHOWN_BYTES = 24


def is_text(given: object) -> bool:
    """Whether `given` is a text that UTF-8 can hold: one without half a surrogate pair."""
    if not isinstance(given, str):
        return False
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_broken_text(
    batch: pa.RecordBatch, columns: Sequence[str], series: str | None, series_name: str | None
) -> None:
    """Checks every text in some columns of a batch, nested ones too.

    Args:
        batch: the rows.
        columns: the names of the columns.
        series: the one with the series' names; None where `series_name` is that of all rows.
        series_name: see there.

    Raises:
        IncompatibleValue: a text is no UTF-8; names series and column.
    """
    for name in columns:
        column = batch[name]
        if _has_text(column.type) and not _is_sound(column):
            row = _first_broken(column)
            named = series_name if series is None else _shown(batch[series], row)
            raise IncompatibleValue(
                f"series {named!r}: column '{name}' holds {_shown(column, row)!r}, which is no "
                "UTF-8; accepted: text in UTF-8, or bytes in a binary column; next step: leave out "
                "the cast from binary to string, or mend it with Spark's make_valid_utf8. Nothing "
                "of the batch is stored"
            )


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _has_text(kind.key_type) or _has_text(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_text(field.type) for field in kind)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)  # type: ignore[no-any-return]


def _is_sound(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_broken(column: pa.Array) -> int:
    first, end = 0, len(column)
    while end - first > 1:
        middle = (first + end) // 2
        # A slice would be checked with all that lies in its buffers; rows that are taken are alone.
        if _is_sound(column.take(pa.array(np.arange(first, middle)))):
            first = middle
        else:
            end = middle
    return first


def _shown(column: pa.Array, row: int) -> object:
    """The cell as text, as the beginning of its bytes where it is none; or what kind it is."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return str(kind)
    cell = column.slice(row, 1).cast(pa.large_binary())[0].as_py()
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError as error:
        start = max(0, error.start - _SHOWN_BYTES // 2)
        return cell[start : start + _SHOWN_BYTES]
