"""Choose the series that a question is about: some by name, a prefix, a pattern, or all (31.1)."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.columns import is_valid_text

_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class SeriesChoice:
    """The series of a question; without names, those that have the prefix and fit the pattern.

    Attributes:
        names: the series by name, sorted and distinct; they may be unknown. None: not by name.
        prefix: how names begin.
        pattern: what names look like: `*` any text, `?` one letter, `[...]` one of some letters.
    """

    names: tuple[str, ...] | None = None
    prefix: str = ""
    pattern: str | None = None

    @property
    def is_all(self) -> bool:
        """True if every series is chosen."""
        return self.names is None and not self.prefix and self.pattern is None

    def pick(self, names: Sequence[str]) -> list[str]:
        """Return the chosen ones of `names`, sorted by their code points."""
        if self.names is not None:
            wanted = set(self.names)
            return sorted(name for name in names if name in wanted)
        begins = self.prefix
        if self.pattern is not None:
            wildcard = _WILDCARD.search(self.pattern)
            begins = self.pattern[: wildcard.start()] if wildcard else self.pattern
        if begins:
            texts = pa.array(names, pa.string())
            names = texts.filter(pc.starts_with(texts, begins)).to_pylist()
        if self.pattern is not None:
            fits = re.compile(fnmatch.translate(self.pattern)).match
            names = [name for name in names if fits(name)]
        return sorted(names)


ALL_SERIES: Final = SeriesChoice()


def parse_choice(
    series: Any = None, prefix: str | None = None, pattern: str | None = None
) -> SeriesChoice:
    """Return the choice that a caller names; nothing names all series.

    Args:
        series: a name, or several of them.
        prefix: how the names begin.
        pattern: a pattern of names.

    Raises:
        InvalidQuery: more than one of the three is given, or one of them is no text.
    """
    named = {"series": series, "prefix": prefix, "pattern": pattern}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InvalidQuery(
            f"{' and '.join(given)} choose series at the same time",
            "one of series, prefix and pattern; none of them for all series",
            "leave out all but one; a pattern such as 'room/*/celsius' can begin with a prefix",
        )
    for name, text in (("prefix", prefix), ("pattern", pattern)):
        if text is not None and not is_valid_text(text):
            raise InvalidQuery(f"{name} {show_value(text)} is not a text", "a text", "correct it")
    if series is None:
        return SeriesChoice(None, str(prefix or ""), None if pattern is None else str(pattern))
    names = [series] if isinstance(series, str) else _list_names(series)
    return SeriesChoice(tuple(sorted({parse_name(name) for name in names})))


def _list_names(series: Any) -> list[Any]:
    if isinstance(series, pa.Array | pa.ChunkedArray):
        return list(series.to_pylist())
    if isinstance(series, bytes) or not isinstance(series, Iterable):
        return [series]
    return list(series)


def parse_name(name: Any) -> str:
    """Return the name of a series; raise InvalidQuery if it is not a valid text."""
    if not is_valid_text(name):
        raise InvalidQuery(
            f"{show_value(name)} is not the name of a series",
            "a text, or several",
            "name the series as they were appended; series() lists them",
        )
    return str(name)
