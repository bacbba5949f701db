"""Map a DataFrame's columns to those of a store, and convert its rows."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import format_instant, split_cti_rows
from pyspark_timestream.errors import OptionError
from pyspark_tseries.errors import IncompatibleValue, UpdateFailed
from pyspark_tseries.model.columns import (
    EVENT_FIELDS,
    INSTANT,
    ORIGINAL_FIELDS,
    RESERVED_NAMES,
    check_text,
    new_value_field,
    type_name,
    value_type,
)
from pyspark_tseries.model.widening import add_fields, fits
from pyspark_tseries.options import WriteOptions

EDIT_OF: Final = ORIGINAL_FIELDS[0]
"""The column with the sequences of edited originals; null in appends."""

STAGED_NAMES: Final = ("series", "timestamp", "author", EDIT_OF.name)
"""The names of the first columns of a `staged_schema`; the others are values."""

_CTI: Final = "cti"
"""The default column of CTIs, as in the DataFrames of timestream's sources."""


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
    stamp, author = (EVENT_FIELDS[i].with_nullable(True) for i in (2, 3))
    return pa.schema([EVENT_FIELDS[0], stamp, author, EDIT_OF, *values])


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
    by_name = _by_name(incoming)
    constant = options.series_name is not None
    series = (
        None if constant else _find_column(by_name, "seriesColumn", options.series_column, "series")
    )
    if not constant and series is None:
        raise _missing_column_error(
            "seriesColumn", "series", by_name, "set seriesColumn or seriesName"
        )
    stamp = _find_column(by_name, "timestampColumn", options.timestamp_column, "timestamp")
    author = _find_column(by_name, "authorColumn", options.author_column, "author")
    edit_of = _find_column(by_name, "editOfColumn", options.edit_of_column, "edit_of")
    cti = _find_cti_column(by_name, options.cti_column, stored)
    _check_type(series, "seriesColumn", pa.string())
    _check_type(stamp, "timestampColumn", INSTANT)
    _check_type(author, "authorColumn", pa.string())
    _check_type(edit_of, "editOfColumn", pa.int64())
    _check_type(cti, "ctiColumn", INSTANT)
    roles = [field and field.name for field in (series, stamp, author, edit_of, cti)]
    rest = {key: field for key, field in by_name.items() if field.name not in roles}
    return RowPlan(
        series=roles[0],
        series_name=options.series_name,
        timestamp=roles[1],
        author=roles[2],
        edit_of=roles[3],
        cti=roles[4],
        values=_match_values(rest, stored, options.merge_schema),
    )


def _by_name(incoming: pa.Schema) -> dict[str, pa.Field]:
    by_name: dict[str, pa.Field] = {}
    for field in incoming:
        twin = by_name.setdefault(field.name.lower(), field)
        if twin is not field:
            raise IncompatibleValue(
                f"columns '{twin.name}' and '{field.name}' have one name in a store",
                "names that differ in more than case",
                "rename one of them",
            )
    return by_name


def _find_column(
    by_name: dict[str, pa.Field], name: str, named: str | None, default: str
) -> pa.Field | None:
    field = by_name.get((named or default).lower())
    if field is None and named is not None:
        raise _missing_column_error(
            name, named, by_name, "name a column of the DataFrame, or leave it out"
        )
    return field


def _find_cti_column(
    by_name: dict[str, pa.Field], named: str | None, stored: list[pa.Field] | None
) -> pa.Field | None:
    field = _find_column(by_name, "ctiColumn", named, _CTI)
    if named is not None or field is None:
        return field
    # A store may have a value column of this name.
    is_value = any(known.name.lower() == _CTI for known in stored or ())
    return None if is_value or not pa.types.is_timestamp(field.type) else field


def _missing_column_error(
    name: str, value: str, by_name: dict[str, pa.Field], next_step: str
) -> OptionError:
    names = ", ".join(f"'{field.name}'" for field in by_name.values())
    return OptionError(name, f"the DataFrame has no column '{value}'", names, next_step)


def _check_type(field: pa.Field | None, name: str, kind: pa.DataType) -> None:
    if field is not None and value_type(field) != kind:
        raise IncompatibleValue(
            f"column '{field.name}' ({name}) is of type {type_name(field.type)}",
            type_name(kind),
            f"cast it, or name another column with {name}",
        )


def _match_values(
    rest: dict[str, pa.Field], stored: list[pa.Field] | None, merge: bool
) -> tuple[tuple[str | None, pa.Field], ...]:
    for key, field in rest.items():
        if key in RESERVED_NAMES:
            raise IncompatibleValue(
                f"value column '{field.name}' is named like a metadata column of the store",
                f"any name but {', '.join(RESERVED_NAMES)}",
                "rename it",
            )
    if stored is None:
        return tuple((f.name, new_value_field(f)) for f in rest.values())
    known = {field.name.lower(): field for field in stored}
    for key, field in rest.items():
        if merge:
            new = new_value_field(field)
            known[key] = add_fields(known[key], new.type) if key in known else new
        _check_value(field, known.get(key), stored)
    return tuple((rest[k].name if k in rest else None, field) for k, field in known.items())


def _check_value(field: pa.Field, known: pa.Field | None, stored: list[pa.Field]) -> None:
    names = ", ".join(f"'{f.name}' {type_name(f.type)}" for f in stored) or "none"
    if known is None:
        raise IncompatibleValue(
            f"column '{field.name}' of type {type_name(field.type)} is not in the store, whose "
            "value columns are fixed at its creation",
            names,
            "drop the column, or set mergeSchema to add it",
        )
    kind = value_type(field)
    if not fits(kind, known.type):
        step = "cast it"
        if fits(known.type, kind):
            step = "cast it, or give the store's column this type with TimeSeries.widen_columns"
        raise IncompatibleValue(
            f"column '{field.name}' is of type {type_name(field.type)}, in the store it is of "
            f"type {type_name(known.type)}",
            type_name(known.type),
            step,
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
            f"rows in which '{plan.cti}' alone is set, or is null",
            f"if '{plan.cti}' has values of yours, rename it; else keep the others null: "
            f"F.when(F.col('{plan.cti}').isNull(), ...).alias('{name}'). Nothing of the batch "
            "is stored",
        )
    return rows, cti_us


def stage_rows(batch: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Return the rows of a task, in their order, as `plan.staged`; raise as `pick_rows` does."""
    return cast_rows(pick_rows(batch, plan), plan)


def cast_rows(picked: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Return what `pick_rows` has returned in the types of the store."""
    columns = zip(picked.columns, plan.staged, strict=True)
    cast = [column.cast(field.type) for column, field in columns]
    return pa.RecordBatch.from_arrays(cast, schema=plan.staged)


def pick_rows(batch: pa.RecordBatch, plan: RowPlan) -> pa.RecordBatch:
    """Return the rows of a task in their own types, by the names of `plan.staged`.

    Raises:
        UpdateFailed: a row has no series, or an edit has a timestamp.
        IncompatibleValue: a text is not UTF-8.
    """
    named = [plan.series, plan.author, *(name for name, _ in plan.values)]
    check_text(batch, [name for name in named if name is not None], plan.series, plan.series_name)
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
        raise UpdateFailed(
            f"column '{column}' is null in {series.null_count} of {len(series)} rows of a task",
            "a series' name in every row",
            "filter these rows or name them. Nothing of the batch is stored",
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
