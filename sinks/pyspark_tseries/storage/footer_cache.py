"""A cache of the parsed footers of data files.

A data file never changes and its name is unique, so a cached footer stays valid whatever other
processes commit, compact or remove.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.parquet_checksums import (
    Checksums,
    chunk_span,
    count_leaves,
    read_footer,
)
from pyspark_tseries.storage.parquet_layout import has_raw_bounds

__all__ = ["FOOTER_CACHE", "MAX_CACHED_BYTES", "Footer", "FooterCache"]

MAX_CACHED_BYTES: Final = 4 * 1024 * 1024
"""The stored size of the footers kept; parsed they take some ten times as much memory."""

_EXACT_BOUNDS: Final = frozenset(["author", "commit"])
"""Columns whose bounds are exact values, never truncated."""

_INTEGER_COLUMNS: Final = frozenset(["sequence", "timestamp", "commit"])
"""Columns whose bounds are read as integers."""


class Footer:
    """The footer of a data file.

    Attributes:
        metadata: Arrow's; saves a reader of the file from reading it again.
        sums: the checksums of its column chunks; None if it has none.
        names: of the file's columns.
    """

    def __init__(self, metadata: Any, sums: Checksums | None = None) -> None:
        self.metadata = metadata
        self.sums = sums
        schema = metadata.schema
        columns = schema.to_arrow_schema()
        self.names = frozenset(columns.names)
        self._leaves: dict[str, range] = {}
        first = 0
        for field in columns:
            self._leaves[field.name] = range(first, first := first + count_leaves(field.type))
        self._at = {schema.column(i).path: i for i in range(metadata.num_columns)}
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}
        self._constants: dict[str, list[tuple[Any] | None]] = {}
        self._ends: dict[str, list[tuple[Any, Any] | None]] = {}

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return int(self.metadata.num_row_groups)

    def rows(self, group: int) -> int:
        """The number of rows of a row group."""
        return self._group_rows[group]

    @functools.cached_property
    def _group_rows(self) -> list[int]:
        return [int(self.metadata.row_group(group).num_rows) for group in range(self.groups)]

    def has_dictionary(self, group: int, column: str) -> bool:
        """True if a plain column of a row group is stored as a dictionary."""
        return bool(self.metadata.row_group(group).column(self._at[column]).has_dictionary_page)

    def chunks(
        self, groups: Iterable[int], columns: Iterable[str]
    ) -> Iterator[tuple[int, int, int]]:
        """Offset, size and checksum of the chunks of some columns; empty without checksums."""
        if self.sums is None:
            return
        which = [leaf for name in columns for leaf in self._leaves[name]]
        width = self.metadata.num_columns
        for group in groups:
            for leaf in which:
                span = self._spans.get((group, leaf))
                if span is None:
                    span = chunk_span(self.metadata.row_group(group).column(leaf))
                    self._spans[group, leaf] = span
                yield *span, int(self.sums[group * width + leaf])

    def bounds(self, column: str) -> list[tuple[Any, Any] | None]:
        """The lowest and the highest value of `column` in each row group; None if unknown."""
        if column not in self._ends:
            self._ends[column] = [self._bounds(group, column) for group in range(self.groups)]
        return self._ends[column]

    def constant(self, groups: Sequence[int], column: str) -> tuple[Any] | None:
        """The one value of `column` in all rows of some `groups`; None if unknown.

        Known for texts and integers only, and for columns of nulls.
        """
        if column not in self._at or "." in column:  # A dotted name may be a nested field.
            return None
        if column not in self._constants:
            every = range(self.groups)
            self._constants[column] = [self._constant(group, column) for group in every]
        known = self._constants[column]
        value = known[groups[0]]
        return value if all(known[group] == value for group in groups) else None

    def _constant(self, group: int, column: str) -> tuple[Any] | None:
        chunk = self.metadata.row_group(group).column(self._at[column])
        known = chunk.statistics
        if known is None or not known.has_null_count:
            return None
        if known.null_count:
            return (None,) if known.null_count == chunk.num_values else None
        if column not in _EXACT_BOUNDS or not known.has_min_max or known.min_raw != known.max_raw:
            return None
        return (known.min,)

    def _bounds(self, group: int, column: str) -> tuple[Any, Any] | None:
        # Arrow leaves out the bounds of texts of more than 4 KiB.
        at = self._at[column]
        known = self.metadata.row_group(group).column(at).statistics
        if known is None or not known.has_min_max:
            return None
        if column in _INTEGER_COLUMNS:
            whole = has_raw_bounds(self.metadata.schema.column(at))
            return (known.min_raw, known.max_raw) if whole else None
        return known.min, known.max


class FooterCache:
    """The footers used last; safe for threads.

    Args:
        max_bytes: how much is kept; the footer used last is kept in any case.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._most_bytes = max_bytes
        self._kept: OrderedDict[tuple[Location, str, int], Footer] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """The bytes of all footers that are kept, as they are stored."""
        return self._bytes

    def __contains__(self, key: tuple[Location, DataFile]) -> bool:
        location, file = key
        return (location, file.path, file.size) in self._kept

    def get(self, location: Location, file: DataFile) -> Footer:
        """The footer of `file`.

        Raises:
            OSError, pa.ArrowException: it must be read and cannot, or is broken.
        """
        key = location, file.path, file.size
        with self._lock:
            footer = self._kept.get(key)
            if footer is not None:
                self._kept.move_to_end(key)
                return footer
        with location.read(location.file(file.path)) as source:
            return self._keep(key, Footer(*read_footer(source, file.size)))

    def _keep(self, key: tuple[Location, str, int], footer: Footer) -> Footer:
        with self._lock:
            if key in self._kept:
                return self._kept[key]  # Another thread read it first.
            self._kept[key] = footer
            self._bytes += _footer_bytes(footer)
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= _footer_bytes(self._kept.popitem(last=False)[1])
            return footer


def _footer_bytes(footer: Footer) -> int:
    return int(footer.metadata.serialized_size)


FOOTER_CACHE: Final = FooterCache()
"""The cache of this process."""
