"""Check of one data file, byte by byte: every page of every column, one row group at a time.

The content is compared with its checksums, with the bounds in the footer and with the log.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import to_int64
from pyspark_tseries.model.columns import ERASURE_FIELD
from pyspark_tseries.model.slices import Sample
from pyspark_tseries.storage.data_files import DataFile, FileStats, compute_stats, describe_contents
from pyspark_tseries.storage.footer_cache import Footer
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.parquet_checksums import read_footer
from pyspark_tseries.storage.row_groups import OpenFile
from pyspark_tseries.storage.table_scan import BASE_SCHEMA, sample_sizes

__all__ = ["FileCheck", "check_file"]

_FIXED_BYTES_PER_ROW = sum(
    f.type.bit_width // 8 for f in BASE_SCHEMA if not pa.types.is_string(f.type)
)
_TEXT_BYTES_PER_ROW = 64
"""A typical size of the text columns that are checked."""


@dataclass
class FileCheck:
    """The result of checking a file.

    Attributes:
        problem: a sentence; None if the file is intact.
        extent: the bounds of its rows; None if it has no rows, or a problem.
        samples: of its keys.
    """

    problem: str | None = None
    extent: FileStats | None = None
    samples: list[Sample] = field(default_factory=list)


class _DamagedFile(Exception):
    """A file that can be read but has the wrong content."""


def check_file(location: Location, file: DataFile, values: Iterable[pa.Field]) -> FileCheck:
    """Read and check all of `file`, of a store with the value columns `values`.

    Raises:
        OSError: the object store cannot be reached.
    """
    found = FileCheck()
    path = location.file(file.path)
    try:
        size = location.size(path)
        if size != file.size:
            raise _DamagedFile(f"has {size} bytes instead of the {file.size} in the log")
        with location.read(path) as source:
            footer = Footer(*read_footer(source, size))  # Read again, not from the cache.
            _check_content(OpenFile(location, source, footer), file, values, found)
    except FileNotFoundError:
        problem = "is missing"
    except _DamagedFile as error:
        problem = str(error)
    except (OSError, pa.ArrowException, ValueError) as error:
        if not location.is_local and "AWS Error" in str(error):
            raise
        problem = f"cannot be read: {location.redact(str(error)).splitlines()[0]}"
    else:
        return found
    return FileCheck(f"file '{file.path}' {problem}; by the log it has {describe_contents(file)}")


def _check_content(
    source: OpenFile, file: DataFile, values: Iterable[pa.Field], found: FileCheck
) -> None:
    footer = source.footer
    wanted = pa.schema([*BASE_SCHEMA, *values])
    kinds = footer.metadata.schema.to_arrow_schema()
    required = [name for name in BASE_SCHEMA.names if name != ERASURE_FIELD.name]
    for name in (name for name in required if name not in footer.names):
        raise _DamagedFile(f"has no column '{name}'")
    for name in (name for name in wanted.names if name in footer.names):
        if not _has_type(kinds.field(name).type, wanted.field(name).type, file):
            raise _DamagedFile(
                f"has a column '{name}' of type {kinds.field(name).type}, the store's is of type "
                f"{wanted.field(name).type}"
            )
    rows, last = 0, None
    for group in range(footer.groups):
        table = pa.table(source.columns([group], kinds.names, alone=True))
        table.validate(full=True)
        if table.num_rows != footer.rows(group):
            raise _DamagedFile(
                f"has {table.num_rows} rows in row group {group}, not as many as its footer says"
            )
        _check_footer(table, footer, group)
        rows += table.num_rows
        if table.num_rows:
            last = _check_order(table, file, last)
            _check_erased(table, values)
            extent = compute_stats(table)
            found.extent = found.extent.extended_with(extent) if found.extent else extent
            found.samples += sample_sizes(table, _FIXED_BYTES_PER_ROW + _TEXT_BYTES_PER_ROW)
    if rows != file.rows:
        raise _DamagedFile(f"has {rows} rows instead of the {file.rows} in the log")


def _has_type(kind: pa.DataType, wanted: pa.DataType, file: DataFile) -> bool:
    # Writers name some nested fields, such as the elements of lists, differently.
    return file.is_foreign or pa.types.is_nested(wanted) or kind == wanted


def _check_erased(table: pa.Table, values: Iterable[pa.Field]) -> None:
    """Raise _DamagedFile if an event that an act has erased has a value."""
    if ERASURE_FIELD.name not in table.column_names:
        return
    erased = table.filter(table[ERASURE_FIELD.name].is_valid())
    for name in (value.name for value in values if value.name in table.column_names):
        if erased[name].null_count != erased.num_rows:
            raise _DamagedFile(f"has a value of an erased event in column '{name}'")


def _check_footer(table: pa.Table, footer: Footer, group: int) -> None:
    """Raise _DamagedFile if the bounds in the footer would make a reader skip rows."""
    for name in ("series", "sequence", "timestamp", "commit"):
        bounds = footer.bounds(name)[group]
        if bounds is not None and table.num_rows:
            column = table[name] if name == "series" else pa.chunked_array([to_int64(table[name])])
            ends = pc.min_max(column)
            if ends["min"].as_py() < bounds[0] or ends["max"].as_py() > bounds[1]:
                raise _DamagedFile(f"has a footer that contradicts the values of column '{name}'")
    for name in table.column_names:
        one = footer.constant([group], name)
        if one is not None and table[name].unique().to_pylist() not in ([one[0]], []):
            raise _DamagedFile(f"has a footer that contradicts the values of column '{name}'")


def _check_order(
    table: pa.Table, file: DataFile, last: tuple[str, int] | None
) -> tuple[str, int] | None:
    """The last key of the table; raises _DamagedFile if the keys do not increase."""
    if file.is_foreign:
        return None
    series, sequence = table["series"].combine_chunks(), to_int64(table["sequence"])
    first = series[0].as_py(), int(sequence[0])
    above = pc.greater(series[1:], series[:-1]).to_numpy(zero_copy_only=False)
    same = pc.equal(series[1:], series[:-1]).to_numpy(zero_copy_only=False)
    rising = above | (same & (np.diff(sequence) > 0))
    if not rising.all() or (last is not None and first <= last):
        raise _DamagedFile("is not sorted by (series, sequence)")
    return series[-1].as_py(), int(sequence[-1])
