"""Types of columns, the sentinel that stands for None in columns of instants, and CTI rows."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "NEVER",
    "CtiRows",
    "Instants",
    "Mask",
    "instant_or_none",
    "instant_or_sentinel",
    "split_cti_rows",
]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER: Final = np.iinfo(np.int64).min
"""The sentinel for "no instant"; below every instant."""


def instant_or_sentinel(us: int | None) -> int:
    """`us` for a column: NEVER for None."""
    return NEVER if us is None else us


def instant_or_none(us: int) -> int | None:
    """`us` from a column: None for NEVER."""
    return None if us == NEVER else int(us)


class CtiRows(NamedTuple):
    """A block of rows and its CTI rows, apart (semantics 2.9).

    Attributes:
        rows: the rows of data, with all columns.
        cti_us: the greatest CTI of the block; None if it has none.
        misfit: a column in which a CTI row has something, and the CTI of the first such row; None
            if CTI rows have nothing else.
    """

    rows: pa.RecordBatch
    cti_us: int | None
    misfit: tuple[str, int] | None


def split_cti_rows(block: pa.RecordBatch, name: str) -> CtiRows:
    """Separate rows of data from those in which column `name`, a timestamp, is set."""
    if block[name].null_count == block.num_rows:
        return CtiRows(block, None, None)
    ctis = block[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    is_cti = ctis.is_valid()
    misfit = None
    for each in block.schema.names:
        row = pc.index(pc.and_(is_cti, block[each].is_valid()), True).as_py()
        if row >= 0 and each != name:
            misfit = each, ctis[row].as_py()
            break
    return CtiRows(block.filter(pc.invert(is_cti)), pc.max(ctis).as_py(), misfit)
