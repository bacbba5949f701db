"""Whether what was read from JSON has the types that its class declares.

Text that this package wrote has them. A checkpoint that a disk, a copy or a person has damaged may
be JSON all the same, and would fail far from here, in an error that names neither. So whoever reads
a checkpoint for the first time asks here; the annotations of a class are what is accepted.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias, TypeGuard

from pyspark_timestream.core.instants import FINAL_US, MIN_US

_Find: TypeAlias = Callable[[Any], str | None]
"""Returns what is wrong with a value; None if nothing is."""


def find_mistake(value: Any) -> str | None:
    """Return which field of a dataclass or named tuple has another type than declared.

    Whole numbers have at most 64 bits, and those whose name ends in `_us` lie in years 1 to 9999.

    >>> from pyspark_timestream.clock.ticks import Ticks
    >>> find_mistake(Ticks(3, "4")), find_mistake(Ticks(3, 4))
    ("end_exclusive is '4' and not a whole number", None)
    """
    kind: Any = type(value)
    return _of(kind, "")(value)


def is_instant(value: Any) -> TypeGuard[int]:
    """Return whether a value is an instant of the years 1 to 9999, in microseconds.

    >>> [is_instant(each) for each in (0, True, 2**62, "0", None)]
    [True, False, False, False, False]
    """
    return type(value) is int and MIN_US <= value <= FINAL_US


@cache
def _of(kind: Any, name: str) -> _Find:
    """Return the check of a type; `name` is the field's."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _of_fields(kind)
    if origin in (types.UnionType, typing.Union):
        return _of_any([_of(each, name) for each in inner])
    if origin is tuple:
        return _of_tuple(inner, name)
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(_of(inner[0], f"a key of {name}"), _of(inner[1], name))
    if kind is int:
        return _of_number(name)
    wanted = {str: "a text", bool: "true or false", types.NoneType: "null"}.get(kind, str(kind))
    return lambda value: None if isinstance(value, kind) else _describe(name, value, wanted)


def _describe(name: str, value: Any, wanted: str) -> str:
    shown = repr(value)
    return f"{name} is {shown if len(shown) <= 40 else f'{shown[:37]}...'} and not {wanted}"


def _of_number(name: str) -> _Find:
    low, high = (MIN_US, FINAL_US) if name.endswith("_us") else (-(2**63), 2**63 - 1)

    def find(value: Any) -> str | None:
        if type(value) is int and low <= value <= high:
            return None
        return _describe(name, value, "a whole number" if type(value) is not int else "in range")

    return find


def _of_fields(kind: Any) -> _Find:
    @cache
    def list_checks() -> list[tuple[str, Any, _Find]]:
        # At the first value, because a class may have fields of its own type.
        hints = typing.get_type_hints(kind)
        return [(name, default, _of(hints[name], name)) for name, default in _list_defaults(kind)]

    def find(value: Any) -> str | None:
        if not isinstance(value, kind):
            return _describe("an entry", value, f"a {kind.__name__}")
        for name, default, check in list_checks():
            item = getattr(value, name)
            # Most fields of a thousand partitions are the very default, which is right.
            if item is not default and (wrong := check(item)) is not None:
                return wrong
        return None

    return find


def _list_defaults(kind: Any) -> list[tuple[str, Any]]:
    """Return the names of fields with their defaults; the class itself where there is none."""
    if hasattr(kind, "_fields"):
        return [(name, kind._field_defaults.get(name, kind)) for name in kind._fields]
    fields = dataclasses.fields(kind)
    return [(f.name, kind if f.default is dataclasses.MISSING else f.default) for f in fields]


def _of_any(checks: list[_Find]) -> _Find:
    def find(value: Any) -> str | None:
        first = None
        for check in checks:
            if (wrong := check(value)) is None:
                return None
            first = first or wrong
        return first

    return find


def _of_tuple(inner: tuple[Any, ...], name: str) -> _Find:
    each = [_of(kind, name) for kind in inner if kind is not Ellipsis]
    is_long = Ellipsis in inner

    def find(value: Any) -> str | None:
        if not isinstance(value, tuple) or not (is_long or len(value) == len(each)):
            return _describe(name, value, "a list as it was written")
        checks = each * len(value) if is_long else each
        for check, item in zip(checks, value, strict=True):
            if (wrong := check(item)) is not None:
                return wrong
        return None

    return find


def _of_mapping(check_key: _Find, check_value: _Find) -> _Find:
    def find(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return _describe("an entry", value, "an object")
        for key, item in value.items():
            wrong = check_key(key) or check_value(item)
            if wrong is not None:
                return wrong
        return None

    return find
