"""Checks of the arguments of the Python client; each error names what is accepted."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from numbers import Integral
from typing import Any, TypeGuard

import pyarrow as pa

from pyspark_timestream.errors import compose_message
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.model.query import datetime_to_us
from pyspark_tseries.model.valid_text import is_valid_text
from pyspark_tseries.options import DURABILITIES, os_user
from pyspark_tseries.write.rows import RowPlan

__all__ = [
    "is_integer",
    "parse_author",
    "parse_durability",
    "parse_rows",
    "parse_schema",
    "parse_sequence",
    "parse_series",
    "parse_timestamp",
    "parse_values",
    "refuse_ctis",
    "refuse_metadata",
]


def parse_author(given: str | None) -> str:
    """The author; None: the OS user. Raises ValueError if it is not a valid text."""
    if given is not None and not is_valid_text(given):
        raise ValueError(f"author {given!r} is not a valid text")
    return os_user() if given is None else given


def parse_durability(durability: str) -> bool:
    """Return whether acknowledged commits survive a power loss.

    Raises:
        ValueError: an unknown durability.
    """
    if durability not in DURABILITIES:
        raise ValueError(
            compose_message(
                f"durability {durability!r} is unknown",
                ", ".join(map(repr, DURABILITIES)),
                "leave it out for 'fsync'",
            )
        )
    return durability == "fsync"


def parse_schema(given: Any) -> pa.Schema:
    """The value columns of a new store.

    Raises:
        IncompatibleValue: none are named.
    """
    if given is None:
        raise IncompatibleValue(
            "None does not name value columns",
            "a pyarrow.Schema, or a mapping of names to types, {} for events without a value",
            "name the columns",
        )
    return pa.schema(given)


def refuse_metadata(plan: RowPlan) -> None:
    """Raise IncompatibleValue if a value column has the name of a metadata column."""
    for name in (plan.timestamp, plan.author, plan.edit_of, plan.cti):
        if name is not None:
            raise IncompatibleValue(
                f"value column '{name}' is named like what an event has anyway",
                "any other name",
                "rename it, or leave it out",
            )


def refuse_ctis(plan: RowPlan) -> None:
    """Raise IncompatibleValue if rows have a column of CTIs, which only a stream can give."""
    if plan.cti is not None:
        raise IncompatibleValue(
            f"column '{plan.cti}' is not in the store, and has CTIs, which only a streaming query "
            "can give",
            "rows without it",
            "drop the column",
        )


def parse_series(given: Any) -> str:
    """The name of a series; raises InvalidQuery."""
    if not is_valid_text(given):
        raise InvalidQuery(
            f"{given!r} is not the name of a series", "a text", "ask for one series at a time"
        )
    return str(given)


def parse_timestamp(given: Any) -> int | None:
    """A timestamp in microseconds, None for none.

    Raises:
        IncompatibleValue: it is not a datetime.
        InvalidQuery: it is without a time zone.
    """
    if given is None:
        return None
    if not isinstance(given, datetime):
        raise IncompatibleValue(f"{given!r} is not a timestamp", "an aware datetime", "convert it")
    return datetime_to_us(given)


def parse_sequence(given: Any) -> int:
    """The sequence of an original; raises IncompatibleValue."""
    if not is_integer(given):
        raise IncompatibleValue(
            f"{given!r} is not a sequence", "the int that append returned", "correct it"
        )
    return int(given)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def parse_rows(given: Any) -> pa.Table:
    """A table, or a record batch as one; raises IncompatibleValue."""
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if not isinstance(given, pa.Table):
        raise IncompatibleValue(
            f"{type(given).__name__} is not a table of rows",
            "a pyarrow.Table",
            "convert it, with pa.Table.from_pandas(frame, preserve_index=False) or "
            "pa.table(columns)",
        )
    return given


def parse_values(names: Sequence[str], only: str | None, given: Any) -> list[Any]:
    """The value of each column.

    Args:
        names: the store's value columns.
        only: the column whose value may be given without its name.
        given: the value, or a mapping of names to values; columns not named are null.

    Raises:
        IncompatibleValue: the mapping has other names, or there is none.
    """
    named = isinstance(given, Mapping) and set(given) <= set(names)
    if only is not None and not (named and given):
        given = {only: given}
    elif not named:
        shown = ", ".join(f"'{name}'" for name in names)
        raise IncompatibleValue(
            f"{given!r} does not fit the store's value columns",
            f"a mapping with keys among {shown}",
            "name the columns",
        )
    return [given.get(name) for name in names]
