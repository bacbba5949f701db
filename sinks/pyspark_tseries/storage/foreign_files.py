"""Event files that another tool has written, such as OPTIMIZE, with rows in any order.

Their names are arbitrary and their statistics may be missing. But every row has its commit, and
the footer has bounds of the columns.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_tseries.model.columns import COMMIT_FIELDS, EVENT_FIELDS
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.parquet_layout import has_raw_bounds

__all__ = ["FileBounds", "read_bounds"]

MAX_CACHED_FILES: Final = 4096
_LAST_NAME: Final = chr(0x10FFFF) * 64
"""A name after all likely ones."""

_BOUNDED_COLUMNS: Final = tuple(field.name for field in (*EVENT_FIELDS[:3], COMMIT_FIELDS[0]))


@dataclass(frozen=True, slots=True)
class FileBounds:
    """The bounds of a file's rows; pairs are inclusive and may be too wide."""

    rows: int
    series: tuple[str, str]
    sequence: tuple[int, int]
    us: tuple[int, int]
    commit: tuple[int, int]


_UNKNOWN: Final = FileBounds(0, ("", _LAST_NAME), (0, 2**62), (-(2**62), 2**62), (0, 2**62))


@functools.lru_cache(maxsize=MAX_CACHED_FILES)
def read_bounds(location: Location, path: str, size: int) -> FileBounds:
    """The bounds of the file at `path`, from its footer or its rows.

    A file that cannot be read gets the widest bounds, so that a query that needs it fails.

    Args:
        location: of the store.
        path: relative to the store.
        size: in bytes; a file never changes.
    """
    try:
        metadata = pq.read_metadata(location.file(path), filesystem=location.filesystem)
        known = {name: _footer_bounds(metadata, name) for name in _BOUNDED_COLUMNS}
        missing = [name for name, bounds in known.items() if bounds is None]
        if missing and metadata.num_rows:
            known.update(_row_bounds(location, path, missing))
    except (OSError, pa.ArrowException, KeyError):
        return _UNKNOWN
    if not metadata.num_rows:
        return FileBounds(0, ("", ""), (0, 0), (0, 0), (0, 0))
    series, sequence, us, commit = (known[name] for name in _BOUNDED_COLUMNS)
    assert series
    assert sequence
    assert us
    assert commit
    return FileBounds(metadata.num_rows, series, sequence, us, commit)


def _footer_bounds(metadata: Any, column: str) -> tuple[Any, Any] | None:
    """The bounds of a column from the footer; None if it lacks them."""
    at = metadata.schema.names.index(column)
    groups = [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]
    known = [group.statistics for group in groups]
    if not known or not all(group is not None and group.has_min_max for group in known):
        return None
    if column == "series":
        return min(group.min for group in known), max(group.max for group in known)
    if not has_raw_bounds(metadata.schema.column(at)):
        return None
    return min(group.min_raw for group in known), max(group.max_raw for group in known)


def _row_bounds(
    location: Location, path: str, columns: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    full, filesystem = location.file(path), location.filesystem
    table = pq.read_table(
        full,
        columns=list(columns),
        partitioning=None,
        filesystem=filesystem,
        coerce_int96_timestamp_unit="us",
    )
    found = {}
    for name in columns:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        ends = pc.min_max(column)
        found[name] = ends["min"].as_py(), ends["max"].as_py()
    return found
