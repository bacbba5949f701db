"""Looking at one data file from its first to its last byte: is it as it was written.

Every page of every column is read, in one row group at a time, and held against the checksums, and
against what the footer and the log say of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.series_state import longs
from pyspark_tseries.model.slices import Sample
from pyspark_tseries.storage.data_files import DataFile, Extent, contents, extent_of
from pyspark_tseries.storage.footer_cache import Footer
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.parquet_checksums import read_footer
from pyspark_tseries.storage.row_groups import OpenFile
from pyspark_tseries.storage.table_scan import SCANNED, sample

__all__ = ["Examined", "examine"]

_FIXED_BYTES = sum(f.type.bit_width // 8 for f in SCANNED if not pa.types.is_string(f.type))
_TEXT_BYTES = 64
"""About so much the texts of a row take that are checked."""


@dataclass
class Examined:
    """What a look at a file has found.

    Attributes:
        problem: what is wrong, as a sentence; None where it is sound.
        extent: what its rows are between; None where it has none, or is not sound.
        samples: of its keys.
    """

    problem: str | None = None
    extent: Extent | None = None
    samples: list[Sample] = field(default_factory=list)


class _Unsound(Exception):
    """A file that can be read, and is not what it should be."""


def examine(place: Place, file: DataFile, values: Iterable[pa.Field]) -> Examined:
    """Reads all of `file`, which is of a store with the value columns `values`.

    Raises:
        OSError: the object store cannot be reached.
    """
    found = Examined()
    path = place.file(file.path)
    try:
        size = place.size(path)
        if size != file.size:
            raise _Unsound(f"has {size} bytes, the log says {file.size}")
        with place.read(path) as source:
            footer = Footer(*read_footer(source, size))  # As it is now, not as it was once read.
            _examine(OpenFile(place, source, footer), file, values, found)
    except FileNotFoundError:
        problem = "is missing"
    except _Unsound as error:
        problem = str(error)
    except (OSError, pa.ArrowException, ValueError) as error:
        if not place.local and "AWS Error" in str(error):
            raise
        problem = f"cannot be read: {place.hides(str(error)).splitlines()[0]}"
    else:
        return found
    return Examined(f"file '{file.path}' {problem}; by the log it has {contents(file)}")


def _examine(source: OpenFile, file: DataFile, values: Iterable[pa.Field], found: Examined) -> None:
    footer = source.footer
    wanted = pa.schema([*SCANNED, *values])
    kinds = footer.metadata.schema.to_arrow_schema()
    for name in (name for name in SCANNED.names if name not in footer.names):
        raise _Unsound(f"has no column '{name}'")
    for name in (name for name in wanted.names if name in footer.names):
        if not _fits(kinds.field(name).type, wanted.field(name).type, file):
            raise _Unsound(
                f"has a column '{name}' of type {kinds.field(name).type}, the store's is of type "
                f"{wanted.field(name).type}"
            )
    rows, last = 0, None
    for group in range(footer.groups):
        table = pa.table(source.columns([group], kinds.names, alone=True))
        table.validate(full=True)
        if table.num_rows != footer.rows(group):
            raise _Unsound(f"has {table.num_rows} rows in row group {group}, its footer says more")
        _check_footer(table, footer, group)
        rows += table.num_rows
        if table.num_rows:
            last = _check_order(table, file, last)
            extent = extent_of(table)
            found.extent = found.extent.followed(extent) if found.extent else extent
            found.samples += sample(table, _FIXED_BYTES + _TEXT_BYTES)
    if rows != file.rows:
        raise _Unsound(f"has {rows} rows, the log says {file.rows}")


def _fits(kind: pa.DataType, wanted: pa.DataType, file: DataFile) -> bool:
    # Names of nested fields that carry no meaning differ among writers.
    return file.is_foreign or pa.types.is_nested(wanted) or kind == wanted


def _check_footer(table: pa.Table, footer: Footer, group: int) -> None:
    """Raises _Unsound where a reader who goes by the footer's bounds would go astray."""
    for name in ("series", "sequence", "timestamp", "commit"):
        bounds = footer.ends(name)[group]
        if bounds is not None and table.num_rows:
            column = table[name] if name == "series" else pa.chunked_array([longs(table[name])])
            ends = pc.min_max(column)
            if ends["min"].as_py() < bounds[0] or ends["max"].as_py() > bounds[1]:
                raise _Unsound(f"has a footer that says of column '{name}' what is not so")
    for name in table.column_names:
        one = footer.constant([group], name)
        if one is not None and table[name].unique().to_pylist() not in ([one[0]], []):
            raise _Unsound(f"has a footer that says of column '{name}' what is not so")


def _check_order(
    table: pa.Table, file: DataFile, last: tuple[str, int] | None
) -> tuple[str, int] | None:
    """The table's last key; raises _Unsound where one is not after the one before it."""
    if file.is_foreign:
        return None
    series, sequence = table["series"].combine_chunks(), longs(table["sequence"])
    first = series[0].as_py(), int(sequence[0])
    above = pc.greater(series[1:], series[:-1]).to_numpy(zero_copy_only=False)
    same = pc.equal(series[1:], series[:-1]).to_numpy(zero_copy_only=False)
    rising = above | (same & (np.diff(sequence) > 0))
    if not rising.all() or (last is not None and first <= last):
        raise _Unsound("is not sorted by (series, sequence)")
    return series[-1].as_py(), int(sequence[-1])
