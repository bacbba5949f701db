"""Splits the names of fields inside records."""

import re
from typing import Final

__all__ = ["split_path"]

_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


def split_path(name: str) -> tuple[str, ...]:
    """Split a dotted path; a part in backquotes is literal, and a doubled backquote is one.

    Raises:
        ValueError: a part is empty, or a backquote is not closed.

    >>> split_path("after.id"), split_path("`a.b`.c")
    (('after', 'id'), ('a.b', 'c'))
    """
    parts, at = [], 0
    while True:
        part = _PART.match(name, at)
        if part is None:
            raise ValueError(f"{name!r} is not a path such as after.id")
        parts.append(part[2] if part[1] is None else part[1].replace("``", "`"))
        at = part.end()
        if at == len(name):
            return tuple(parts)
        if name[at] != ".":
            raise ValueError(f"{name!r} is not a path such as after.id")
        at += 1
