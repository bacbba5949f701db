"""What the Python client is given, checked: each says what it is not, and what is accepted."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from numbers import Integral
from typing import Any

import pyarrow as pa

from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.model.query import instant_us
from pyspark_tseries.model.valid_text import is_text
from pyspark_tseries.options.values import DURABILITIES, os_user
from pyspark_tseries.write.rows import RowPlan

__all__ = [
    "author_of",
    "refuse_metadata",
    "rows_of",
    "schema_of",
    "sequence_of",
    "series_of",
    "stamp_of",
    "synced_of",
    "values_of",
]


def author_of(given: str | None) -> str:
    """Who writes; None: the OS user. Raises ValueError where it is no text."""
    if given is not None and not is_text(given):
        raise ValueError(f"author {given!r} is no text")
    return os_user() if given is None else given


def synced_of(durability: str) -> bool:
    """Whether commits outlive a power loss once they are acknowledged.

    Raises:
        ValueError: no such durability.
    """
    if durability not in DURABILITIES:
        raise ValueError(
            f"durability {durability!r} is none; accepted: {', '.join(map(repr, DURABILITIES))}; "
            "next step: leave it out for 'fsync'"
        )
    return durability == "fsync"


def schema_of(given: Any) -> pa.Schema:
    """The value columns of a new store.

    Raises:
        IncompatibleValue: none are named.
    """
    if given is None:
        raise IncompatibleValue(
            "None names no value columns; accepted: a pyarrow.Schema, or a mapping of names to "
            "types, {} for events without a value; next step: name the columns"
        )
    return pa.schema(given)


def refuse_metadata(plan: RowPlan) -> None:
    """Raises IncompatibleValue where a value column is named like what an event has anyway."""
    for name in (plan.timestamp, plan.author, plan.edit_of):
        if name is not None:
            raise IncompatibleValue(
                f"value column '{name}' is named like what an event has anyway; accepted: any "
                "other name; next step: rename it, or leave it out"
            )


def series_of(given: Any) -> str:
    """The name of a series; raises InvalidQuery."""
    if not is_text(given):
        raise InvalidQuery(
            f"{given!r} names no series; accepted: a text; next step: ask for one series at a time"
        )
    return str(given)


def stamp_of(given: Any) -> int | None:
    """A timestamp in microseconds, None for none.

    Raises:
        IncompatibleValue: it is none.
        InvalidQuery: it has no time zone.
    """
    if given is None:
        return None
    if not isinstance(given, datetime):
        raise IncompatibleValue(
            f"{given!r} is no timestamp; accepted: an aware datetime; next step: convert it"
        )
    return instant_us(given)


def sequence_of(given: Any) -> int:
    """The sequence of an original; raises IncompatibleValue."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise IncompatibleValue(
            f"{given!r} is no sequence; accepted: the int that append returned; next step: "
            "correct it"
        )
    return int(given)


def rows_of(given: Any) -> pa.Table:
    """A table, of a record batch too; raises IncompatibleValue."""
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if not isinstance(given, pa.Table):
        raise IncompatibleValue(
            f"{type(given).__name__} is no table of rows; accepted: a pyarrow.Table; next step: "
            "convert it, with pa.Table.from_pandas(frame, preserve_index=False) or "
            "pa.table(columns)"
        )
    return given


def values_of(names: Sequence[str], only: str | None, given: Any) -> list[Any]:
    """The value of each column.

    Args:
        names: the store's value columns.
        only: the one whose value may be given without its name.
        given: the value, or a mapping of names to values; what is not named is null.

    Raises:
        IncompatibleValue: it names no columns, or others.
    """
    named = isinstance(given, Mapping) and set(given) <= set(names)
    if only is not None and not (named and given):
        given = {only: given}
    elif not named:
        shown = ", ".join(f"'{name}'" for name in names)
        raise IncompatibleValue(
            f"{given!r} does not fit the store's value columns; accepted: a mapping with keys "
            f"among {shown}; next step: name the columns"
        )
    return [given.get(name) for name in names]
