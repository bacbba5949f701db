"""Checks of the arguments of the Python client; each error names what is accepted."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from numbers import Integral
from typing import Any, TypeGuard

import pyarrow as pa

from pyspark_timestream.errors import compose_message
from pyspark_tseries.client.convert import show_value
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.model.columns import RESERVED_NAMES, new_value_field
from pyspark_tseries.model.query import datetime_to_us, timedelta_to_us
from pyspark_tseries.model.valid_text import is_valid_text
from pyspark_tseries.options import DURABILITIES, os_user
from pyspark_tseries.options.values import NO_MAX_US

__all__ = [
    "is_integer",
    "new_value_fields",
    "parse_author",
    "parse_choice",
    "parse_durability",
    "parse_schema",
    "parse_sequence",
    "parse_series",
    "parse_timestamp",
    "parse_values",
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


def new_value_fields(schema: pa.Schema) -> list[pa.Field]:
    """The value columns of a new store.

    Raises:
        IncompatibleValue: a name or a type that no store can have.
    """
    names = [field.name.lower() for field in schema]
    for field in schema:
        name = field.name.lower()
        is_cti = name == "cti" and pa.types.is_timestamp(field.type)
        if name in (*RESERVED_NAMES, "edit_of") or is_cti:
            raise IncompatibleValue(
                f"value column '{field.name}' is named like what an event has anyway",
                "any other name",
                "rename it, or leave it out",
            )
        if names.count(name) > 1:
            raise IncompatibleValue(
                f"two value columns have the name '{field.name}'",
                "names that differ in more than case",
                "rename one of them",
            )
    return [new_value_field(field) for field in schema]


def parse_choice(name: str, given: Any, choices: Sequence[str]) -> str:
    """The value of argument `name`; raises ValueError if it is none of `choices`."""
    if given not in choices:
        raise ValueError(
            compose_message(
                f"{name} {given!r} is unknown", ", ".join(map(repr, choices)), f"correct {name}"
            )
        )
    return str(given)


def parse_max_future(given: timedelta | None) -> int | None:
    """Microseconds of `max_future`; None: the default. Raises ValueError if it is none."""
    if given is None:
        return None
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise ValueError(
            compose_message(
                f"max_future {given!r} is unknown",
                "a timedelta that is not negative, timedelta.max for no limit, or None",
                "leave it out for the default",
            )
        )
    return NO_MAX_US if given == timedelta.max else timedelta_to_us(given)


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
        IncompatibleValue: it is not a datetime, has no time zone, or is finer than a microsecond.
    """
    if given is None:
        return None
    if not isinstance(given, datetime):
        raise IncompatibleValue(
            f"timestamp {show_value(given)} is not a datetime", "an aware datetime", "convert it"
        )
    if given.tzinfo is None:
        raise IncompatibleValue(
            f"timestamp {given!r} has no time zone, so it could be any moment",
            "an aware datetime",
            "give it one, such as timestamp.replace(tzinfo=UTC)",
        )
    if getattr(given, "nanosecond", 0):  # Of pandas.
        raise IncompatibleValue(
            f"timestamp {given!r} is finer than a microsecond",
            "whole microseconds",
            "round it, such as with timestamp.floor('us')",
        )
    return datetime_to_us(given)


def parse_sequence(given: Any) -> int:
    """The sequence of an original; raises IncompatibleValue."""
    if not is_integer(given):
        raise IncompatibleValue(
            f"original_sequence {show_value(given)} is not a sequence",
            "the int that append returned",
            "correct it",
        )
    return int(given)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def parse_values(names: Sequence[str], only: str | None, given: Any) -> list[Any]:
    """The value of each column.

    Args:
        names: the store's value columns.
        only: the column whose value may be given without its name.
        given: the value, or a mapping of names to values; columns not named are null.

    Raises:
        IncompatibleValue: the mapping has other names, or there is none.
    """
    columns = {name.lower(): name for name in names}
    given_as = {}
    if isinstance(given, Mapping):
        given_as = {columns.get(str(key).lower()): value for key, value in given.items()}
    named = isinstance(given, Mapping) and None not in given_as and len(given_as) == len(given)
    if only is not None and not (named and given):
        given_as = {only: given}
    elif not named:
        shown = ", ".join(f"'{name}'" for name in names)
        raise IncompatibleValue(
            f"{show_value(given)} does not fit the store's value columns",
            f"a mapping with keys among {shown}, each once",
            "name the columns",
        )
    return [given_as.get(name) for name in names]
