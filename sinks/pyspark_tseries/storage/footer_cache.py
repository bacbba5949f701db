"""The footers of a store's data files, parsed once for as long as there is room.

A data file never changes and its name is like no other's, so what was read of it stays true,
whatever other processes commit, compact or remove meanwhile.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.parquet_checksums import Sums, chunk_span, leaves, read_footer
from pyspark_tseries.storage.parquet_layout import has_raw_bounds

__all__ = ["MOST_BYTES", "Footer", "Footers", "footers"]

MOST_BYTES: Final = 4 * 1024 * 1024
"""How much is kept: bytes of footers as they are stored; parsed they take some ten times that."""

_SIMPLE: Final = frozenset(["author", "commit"])
"""Columns whose bounds are a value of theirs, not cut and not between two ones."""

_RAW: Final = frozenset(["sequence", "timestamp", "commit"])
"""Columns whose bounds are wanted as whole numbers."""


class Footer:
    """What a data file says of itself.

    Attributes:
        metadata: as Arrow reads it; spares a reader of the file to read it again.
        sums: the checksums of its column chunks; None where it has none.
        names: of the file's columns.
    """

    def __init__(self, metadata: Any, sums: Sums | None = None) -> None:
        self.metadata = metadata
        self.sums = sums
        schema = metadata.schema
        columns = schema.to_arrow_schema()
        self.names = frozenset(columns.names)
        self._leaves: dict[str, range] = {}
        first = 0
        for field in columns:
            self._leaves[field.name] = range(first, first := first + leaves(field.type))
        self._at = {schema.column(i).path: i for i in range(metadata.num_columns)}
        self._constants: dict[str, list[tuple[Any] | None]] = {}
        self._ends: dict[str, list[tuple[Any, Any] | None]] = {}

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return int(self.metadata.num_row_groups)

    def rows(self, group: int) -> int:
        """The number of rows of a row group."""
        return int(self.metadata.row_group(group).num_rows)

    def chunks(
        self, groups: Iterable[int], columns: Iterable[str]
    ) -> Iterator[tuple[int, int, int]]:
        """Offset, size and checksum of the chunks of some columns; none where there are no sums."""
        if self.sums is None:
            return
        which = [leaf for name in columns for leaf in self._leaves[name]]
        width = self.metadata.num_columns
        for group in groups:
            row_group = self.metadata.row_group(group)
            for leaf in which:
                at, size = chunk_span(row_group.column(leaf))
                yield at, size, int(self.sums[group * width + leaf])

    def ends(self, column: str) -> list[tuple[Any, Any] | None]:
        """The lowest and the highest value of `column` in each row group; None: not known."""
        if column not in self._ends:
            self._ends[column] = [self._bounds(group, column) for group in range(self.groups)]
        return self._ends[column]

    def constant(self, groups: Sequence[int], column: str) -> tuple[Any] | None:
        """The one value of `column` in all rows of some `groups`; None: not known.

        Only of texts and whole numbers, and of what is null throughout.
        """
        if column not in self._at or "." in column:  # It may be a field of another column.
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
        if column not in _SIMPLE or not known.has_min_max or known.min_raw != known.max_raw:
            return None
        return (known.min,)

    def _bounds(self, group: int, column: str) -> tuple[Any, Any] | None:
        # Arrow leaves out the bounds of texts of more than 4 KiB.
        at = self._at[column]
        known = self.metadata.row_group(group).column(at).statistics
        if known is None or not known.has_min_max:
            return None
        if column in _RAW:
            whole = has_raw_bounds(self.metadata.schema.column(at))
            return (known.min_raw, known.max_raw) if whole else None
        return known.min, known.max


class Footers:
    """The footers used last; safe for threads.

    Args:
        most_bytes: how much is kept, see MOST_BYTES; the footer used last is kept in any case.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[Place, str, int], Footer] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """The bytes of all footers that are kept, as they are stored."""
        return self._bytes

    def __contains__(self, key: tuple[Place, DataFile]) -> bool:
        place, file = key
        return (place, file.path, file.size) in self._kept

    def of(self, place: Place, file: DataFile) -> Footer:
        """The footer of `file`.

        Raises:
            OSError, pa.ArrowException: it must be read and cannot, or is broken.
        """
        key = place, file.path, file.size
        with self._lock:
            footer = self._kept.get(key)
            if footer is not None:
                self._kept.move_to_end(key)
                return footer
        with place.read(place.file(file.path)) as source:
            return self._keep(key, Footer(*read_footer(source, file.size)))

    def _keep(self, key: tuple[Place, str, int], footer: Footer) -> Footer:
        with self._lock:
            if key in self._kept:
                return self._kept[key]  # Another thread was first.
            self._kept[key] = footer
            self._bytes += _size(footer)
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= _size(self._kept.popitem(last=False)[1])
            return footer


def _size(footer: Footer) -> int:
    return int(footer.metadata.serialized_size)


footers: Final = Footers()
"""Those of this process."""
