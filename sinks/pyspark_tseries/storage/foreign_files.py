"""Files of events that another tool has written, as OPTIMIZE does: rows in any order.

Their names say nothing, and what the log says of them may be missing; but every row knows its
commit, and the footer says between which values the columns lie.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_tseries.model.columns import COMMIT, EVENT
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.parquet_layout import has_raw_bounds

__all__ = ["FileBounds", "bounds_of_file"]

_MOST_KNOWN: Final = 4096
_AFTER_ALL: Final = chr(0x10FFFF) * 64
"""A name after every one that is likely."""

_READ: Final = tuple(field.name for field in (*EVENT[:3], COMMIT[0]))


@dataclass(frozen=True, slots=True)
class FileBounds:
    """Between which values the rows of a file lie; pairs are inclusive and may be too wide."""

    rows: int
    series: tuple[str, str]
    sequence: tuple[int, int]
    us: tuple[int, int]
    commit: tuple[int, int]


_UNKNOWN: Final = FileBounds(0, ("", _AFTER_ALL), (0, 2**62), (-(2**62), 2**62), (0, 2**62))


@functools.lru_cache(maxsize=_MOST_KNOWN)
def bounds_of_file(place: Place, path: str, size: int) -> FileBounds:
    """The bounds of the file at `path`, as far as its footer or its rows say them.

    A file that cannot be read may hold everything, so that whoever needs it finds out.

    Args:
        place: where the store lies.
        path: relative to the store.
        size: in bytes; a file never changes.
    """
    try:
        metadata = pq.read_metadata(place.file(path), filesystem=place.filesystem)
        known = {name: _footer_bounds(metadata, name) for name in _READ}
        missing = [name for name, bounds in known.items() if bounds is None]
        if missing and metadata.num_rows:
            known.update(_row_bounds(place, path, missing))
    except (OSError, pa.ArrowException, KeyError):
        return _UNKNOWN
    if not metadata.num_rows:
        return FileBounds(0, ("", ""), (0, 0), (0, 0), (0, 0))
    series, sequence, us, commit = (known[name] for name in _READ)
    assert series
    assert sequence
    assert us
    assert commit
    return FileBounds(metadata.num_rows, series, sequence, us, commit)


def _footer_bounds(metadata: Any, column: str) -> tuple[Any, Any] | None:
    """Between which values a column lies; None: the footer does not say."""
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


def _row_bounds(place: Place, path: str, columns: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    full, filesystem = place.file(path), place.filesystem
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
