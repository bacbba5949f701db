"""The rule of `order_by_time`: rows leave in the order of (event time, arrival) (semantics 11.9).

What may leave is decided by the CTIs; here is only in which order. A row's *arrival* is the batch,
the task and the row's number in it. A table or batch of n rows goes in, the same n rows come out.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

__all__ = ["ARRIVAL", "in_order", "stamped"]

ARRIVAL: Final = ("__batch", "__task", "__row")
"""The columns, of 64-bit integers, that hold a row's arrival; they sort in this order."""


def stamped(
    batches: Iterable[pa.RecordBatch], batch_id: int, task: int
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in the same order, each with its arrival as last columns."""
    first = 0
    for batch in batches:
        count = batch.num_rows
        numbers = (
            pa.repeat(pa.scalar(batch_id, pa.int64()), count),
            pa.repeat(pa.scalar(task, pa.int64()), count),
            pa.array(np.arange(first, first + count)),
        )
        first += count
        fields = [*batch.schema, *(pa.field(name, pa.int64()) for name in ARRIVAL)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *numbers], schema=pa.schema(fields))


def in_order(batches: Iterable[pa.RecordBatch], event_time: str) -> Iterator[pa.RecordBatch]:
    """The released rows of one task in the order of (event time, arrival), without arrivals."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return
    rows = pa.Table.from_batches(found)
    order = [(name, "ascending") for name in (event_time, *ARRIVAL)]
    yield from rows.sort_by(order).drop_columns(list(ARRIVAL)).to_batches()
