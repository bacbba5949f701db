"""Finding the originals that edits name, in the files that may hold them."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.columns import EVENT
from pyspark_tseries.model.series_index import NEVER_US
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.row_filter import Sieve
from pyspark_tseries.storage.table_scan import SCANNED, rows_of
from pyspark_tseries.write.edits import Targets

__all__ = ["find_originals"]

EVENT_NAMES: Final = tuple(field.name for field in EVENT)


def find_originals(place: Place, files: Iterable[DataFile], targets: Targets) -> Targets:
    """`targets` with timestamp and author of the originals that are in `files`.

    Opens the files of originals whose series and sequences reach a target's, and reads the row
    groups that may hold one.

    Args:
        place: where the store lies.
        files: the store's.
        targets: what the edits name.
    """
    data = [file for file in files if _may_hold(file, targets)]
    if not data:
        return targets
    sieve = Sieve(targets.names.to_pylist(), sequences=_ends(targets))
    wanted = pc.field("sequence").isin(pa.array(np.unique(targets.sequence)))
    return _joined(targets, rows_of(place, data, SCANNED, EVENT_NAMES, sieve, wanted))


def _ends(targets: Targets) -> tuple[int, int]:
    return int(targets.sequence.min()), int(targets.sequence.max())


def _may_hold(file: DataFile, targets: Targets) -> bool:
    low, high = _ends(targets)
    if file.kind != "event" or file.most_sequence < low or file.least_sequence > high:
        return False
    names = targets.names.to_pylist()
    return bool(names) and file.first <= names[-1] and file.last >= names[0]


def _joined(targets: Targets, found: pa.Table) -> Targets:
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
    return Targets(targets.names, targets.codes, targets.sequence, us, author)
