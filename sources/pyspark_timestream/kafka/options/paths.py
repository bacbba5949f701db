"""Paths of fields: their text, and where they lead in parsed JSON (semantics 13.2).

A path is written as Spark writes the name of a nested column: names with dots between them. A name
in backquotes is literal, dots and all, and a backquote in it is doubled. `a.b` is the field `b` of
the object `a`, and ``a.`b.c` `` its field `b.c`.
"""

import functools
from typing import Any, Final, NamedTuple

__all__ = ["PATH_FORM", "Found", "Path", "descend", "format_path", "parse_path"]

Path = tuple[str, ...]
"""The names from the outermost object to the field; at least one."""

PATH_FORM: Final = (
    "names with dots between them, each in backquotes if it contains a dot or a backquote itself"
)


@functools.lru_cache(4096)
def parse_path(text: str) -> Path:
    """Read a path.

    >>> parse_path("payload.`a.b`.c")
    ('payload', 'a.b', 'c')

    Raises:
        ValueError: a name is empty, or a backquote is not where it can be.
    """
    names: list[str] = []
    at = 0
    while True:
        name, at = _read_quoted(text, at) if text[at : at + 1] == "`" else _read_plain(text, at)
        names.append(name)
        if at == len(text):
            return tuple(names)
        at += 1


def _read_quoted(text: str, start: int) -> tuple[str, int]:
    """Read the name whose opening backquote is at `start`; return also the place after it."""
    at = start + 1
    while True:
        close = text.find("`", at)
        if close < 0:
            raise ValueError("a backquote is not closed")
        if text[close + 1 : close + 2] != "`":
            break
        at = close + 2
    if text[close + 1 : close + 2] not in ("", "."):
        raise ValueError("a name in backquotes must end before a dot or at the end")
    return text[start + 1 : close].replace("``", "`"), close + 1


def _read_plain(text: str, start: int) -> tuple[str, int]:
    dot = text.find(".", start)
    end = len(text) if dot < 0 else dot
    name = text[start:end]
    if not name.strip():
        raise ValueError("the name is empty" if not text.strip() else "a name in it is empty")
    if "`" in name:
        raise ValueError("a backquote is inside a name that is not in backquotes")
    return name, end


def format_path(path: Path) -> str:
    """Return the text that reads back to `path`, with backquotes only where they are needed.

    >>> format_path(("payload", "a.b", "c"))
    'payload.`a.b`.c'
    """
    return ".".join(map(_quote, path))


def _quote(name: str) -> str:
    if name.strip() and not {".", "`"} & set(name):
        return name
    return "`" + name.replace("`", "``") + "`"


class Found(NamedTuple):
    """The end of a walk along a path.

    Attributes:
        value: the value at the end of the path; None if it is absent, or its parent is.
        depth: how many names of the path were followed.
        blocked: the walk met a value that is neither an object nor null, and the path goes on.
    """

    value: Any
    depth: int
    blocked: bool


def descend(value: Any, path: Path) -> Found:
    """Walk along `path` through the objects of parsed JSON, from `value` on."""
    for depth, name in enumerate(path):
        if not isinstance(value, dict):
            return Found(None, depth, value is not None)
        if name not in value:
            return Found(None, depth, False)
        value = value[name]
    return Found(value, len(path), False)
