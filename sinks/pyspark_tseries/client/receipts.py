"""What a writer of many rows gets back: the metadata of each event."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_tseries.model.columns import EVENT, INSTANT
from pyspark_tseries.write.numbering import Numbered

__all__ = ["RECEIPT", "receipt"]

RECEIPT: Final = pa.schema([field.with_nullable(True) for field in EVENT])


def receipt(rows: pa.Table, numbered: Sequence[Numbered], author: str) -> pa.Table:
    """What became of each row of a batch, in the order of the batch; nulls where it was dropped.

    Args:
        rows: columns of `RowPlan.staged`.
        numbered: what became of the appends, and where there are any of the edits.
        author: of the rows that name none.
    """
    edit = rows["original_sequence"].is_valid().to_numpy()
    sequence = np.zeros(len(rows), np.int64)
    stamp, there = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    # A part's events are in terms of its own rows: the appends, or the edits.
    kinds = [np.flatnonzero(~edit), np.flatnonzero(edit)] if edit.any() else [np.arange(len(rows))]
    for mine, events in zip(kinds, numbered, strict=True):
        at = mine[events.order]
        sequence[at], stamp[at], there[at] = events.sequence, events.timestamp_us, True
    columns = [
        rows["series"],
        pa.array(sequence, mask=~there),
        pa.array(stamp, mask=~there).cast(INSTANT),
        rows["author"].fill_null(author),
    ]
    return pa.Table.from_arrays(columns, schema=RECEIPT)
