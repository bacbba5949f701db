"""The rows that a program gives as a frame, a table or a list, as those that a store stages."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pyspark_tseries.client.convert import Column, convert_column, show_value
from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.model.columns import RESERVED_NAMES, type_name
from pyspark_tseries.write.rows import RowPlan, stage_rows, staged_schema

ROWS: Final = (
    "a table or batches of Arrow, a frame of pandas or Polars, or a list of mappings of names to "
    "values"
)
"""What a program may give as rows."""

_EDIT_OF: Final = "edit_of"
_METADATA: Final = {"series": 0, "timestamp": 1, "author": 2, _EDIT_OF: 3}
"""The columns of rows that are not values, and their places among those that are staged."""


def stage_given_rows(given: Any, values: list[pa.Field]) -> pa.Table:
    """Rows as columns of `staged_schema(values)`.

    Args:
        given: see `ROWS`.
        values: the store's value columns.

    Raises:
        IncompatibleValue: a column or a value does not fit; names it.
        UpdateFailed: a row without a series, or an edit with a timestamp.
    """
    staged = staged_schema(values)
    if isinstance(given, list | tuple) and not given:
        return staged.empty_table()
    columns = _columns_by_name(_read_columns(given))
    fields = dict(zip(_METADATA, list(staged)[: len(_METADATA)], strict=True))
    fields |= {field.name: field for field in values}
    found = _match_columns(columns, fields, values)
    if "series" not in found:
        shown = ", ".join(f"'{name}'" for name, _ in columns.values()) or "none"
        raise IncompatibleValue(
            f"the rows have no column 'series', which names the series of each; they have {shown}",
            "rows with a text in 'series'",
            "add it, or rename the column that has the names",
        )
    made = {
        name: convert_column(column, fields[name].with_name(said))
        for name, (said, column) in found.items()
    }
    plan = RowPlan(
        series="series",
        series_name=None,
        timestamp="timestamp" if "timestamp" in made else None,
        author="author" if "author" in made else None,
        edit_of=_EDIT_OF if _EDIT_OF in made else None,
        cti=None,
        values=tuple((field.name if field.name in made else None, field) for field in values),
    )
    batches = [part for part in pa.table(made).to_batches() if part.num_rows]
    return pa.Table.from_batches([stage_rows(part, plan) for part in batches], staged)


def _columns_by_name(given: list[tuple[Any, Column]]) -> dict[str, tuple[str, Column]]:
    columns: dict[str, tuple[str, Column]] = {}
    for name, column in given:
        if not isinstance(name, str):
            raise IncompatibleValue(
                f"{show_value(name)} is not the name of a column", "texts", "rename the column"
            )
        twin = columns.setdefault(name.lower(), (name, column))
        if twin[1] is not column:
            raise IncompatibleValue(
                f"columns '{twin[0]}' and '{name}' have one name in a store",
                "names that differ in more than case",
                "rename one of them, or leave it out",
            )
    return columns


def _match_columns(
    columns: dict[str, tuple[str, Column]], fields: dict[str, pa.Field], values: list[pa.Field]
) -> dict[str, tuple[str, Column]]:
    """For columns of the store, the name and the column of the rows."""
    known = {name.lower(): name for name in fields}
    for lower, (name, _) in columns.items():
        if lower in known:
            continue
        shown = ", ".join(f"'{field.name}' {type_name(field.type)}" for field in values) or "none"
        if lower == "cti":
            raise IncompatibleValue(
                f"column '{name}' is not in the store, and has CTIs, which only a streaming query "
                "can give",
                "rows without it",
                "drop the column",
            )
        if lower in RESERVED_NAMES:
            raise IncompatibleValue(
                f"column '{name}' is one that the store fills itself",
                f"{', '.join(_METADATA)}, and value columns: {shown}",
                f"drop the column; an edit names its original in '{_EDIT_OF}'",
            )
        raise IncompatibleValue(
            f"column '{name}' is not in the store",
            f"{', '.join(_METADATA)}, and value columns: {shown}",
            "correct the name, or drop the column; a write of Spark with 'mergeSchema' adds it to "
            "the store",
        )
    return {known[lower]: found for lower, found in columns.items()}


# -- frames, tables, lists -----------------------------------------------------------------------


def _read_columns(given: Any) -> list[tuple[Any, Column]]:
    if isinstance(given, pa.RecordBatchReader):
        given = given.read_all()
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return list(zip(given.column_names, given.columns, strict=True))
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(given, pandas.DataFrame):
        return _read_pandas(given)
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return _read_columns(pa.table(given))
    if isinstance(given, list | tuple) and all(isinstance(row, Mapping) for row in given):
        return _read_mappings(given)
    is_list = isinstance(given, list | tuple)
    other = next((row for row in given if not isinstance(row, Mapping)), None) if is_list else given
    raise IncompatibleValue(
        f"{show_value(other)} is not a row" if is_list else f"{type(given).__name__} has no rows",
        ROWS,
        "convert it, for example with pa.table(columns); collect() a lazy frame first",
    )


def _read_mappings(rows: Sequence[Mapping[Any, Any]]) -> list[tuple[Any, Column]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [(name, [row.get(name) for row in rows]) for name in names]


def _read_pandas(frame: Any) -> list[tuple[Any, Column]]:
    """The columns of a frame of pandas, and the levels of its index that have names.

    A NaN among its floats is a null, as everywhere in pandas.
    """
    index = frame.index
    levels = [index.get_level_values(n) for n in range(index.nlevels)]
    for level in levels:
        if level.name is None and level.dtype.kind not in "iu":
            raise IncompatibleValue(
                f"the frame's index ({level.dtype}) has no name, so that nobody knows what it is",
                "an index with the name of a column, or one of numbers, which is left out",
                "name it with frame.rename_axis('timestamp'), or drop it with "
                "frame.reset_index(drop=True)",
            )
    named = [(level.name, level) for level in levels if level.name is not None]
    columns = [(name, frame.iloc[:, place]) for place, name in enumerate(frame.columns)]
    return [(name, _read_pandas_column(name, column)) for name, column in (*named, *columns)]


def _read_pandas_column(name: Any, column: Any) -> Column:
    if column.dtype == object:
        nulls = column.isna().tolist() if hasattr(column, "isna") else []
        return [None if null else value for value, null in zip(column.tolist(), nulls, strict=True)]
    if hasattr(column.dtype, "subtype") and hasattr(column, "sparse"):
        column = column.sparse.to_dense()
    try:
        made: Column = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise IncompatibleValue(
            f"column '{name}' is of type {column.dtype}, which Arrow cannot hold: "
            f"{str(error).splitlines()[0]}",
            "types of a store",
            "convert it",
        ) from None
    return made
