"""Search for the originals that edits name, in the files that may contain them."""

import dataclasses
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.columns import ERASURE_FIELD, EVENT_FIELDS
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_filter import RowFilter
from pyspark_tseries.storage.table_scan import BASE_SCHEMA, read_rows
from pyspark_tseries.write.edits import EditTargets

__all__ = ["find_originals"]

EVENT_NAMES: Final = tuple(field.name for field in (*EVENT_FIELDS, ERASURE_FIELD))


def find_originals(
    location: Location, files: Iterable[DataFile], targets: EditTargets
) -> EditTargets:
    """`targets` with timestamp and author of the originals that are in `files`.

    Opens the files of originals whose series and sequences reach a target's, and reads the row
    groups that may hold one.

    Args:
        location: of the store.
        files: the store's.
        targets: what the edits name.
    """
    data = [file for file in files if _may_hold(file, targets)]
    if not data:
        return targets
    row_filter = RowFilter(targets.names.to_pylist(), sequences=_sequence_bounds(targets))
    wanted = pc.field("sequence").isin(pa.array(np.unique(targets.sequence)))
    return _join_originals(
        targets, read_rows(location, data, BASE_SCHEMA, EVENT_NAMES, row_filter, wanted)
    )


def _sequence_bounds(targets: EditTargets) -> tuple[int, int]:
    return int(targets.sequence.min()), int(targets.sequence.max())


def _may_hold(file: DataFile, targets: EditTargets) -> bool:
    low, high = _sequence_bounds(targets)
    if file.kind != "event" or file.max_sequence < low or file.min_sequence > high:
        return False
    names = targets.names.to_pylist()
    return bool(names) and file.first <= names[-1] and file.last >= names[0]


def _join_originals(targets: EditTargets, found: pa.Table) -> EditTargets:
    edits = pa.table(
        {
            "series": targets.names.take(pa.array(targets.codes)),
            "sequence": pa.array(targets.sequence),
            "row": pa.array(np.arange(len(targets.codes))),
        }
    )
    joined = edits.join(found, ["series", "sequence"], join_type="left outer").sort_by("row")
    us = joined["timestamp"].cast(pa.int64()).fill_null(NEVER_US).to_numpy()
    author = joined["author"].combine_chunks().cast(pa.string())
    erased = joined[ERASURE_FIELD.name].is_valid().to_numpy()
    return dataclasses.replace(targets, us=us, author=author, erased=erased)
