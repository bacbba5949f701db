"""Small makers of batches, and readers of a store's contents."""

import pyarrow as pa

from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.store import store as stores
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch

VALUE = pa.field("value", pa.float64())


def staged(*rows, authors=None, edits=()):
    """Rows (series, timestamp in us or None[, value]) as a task stages them.

    `edits` are rows (series, original sequence[, value]) that follow.
    """
    targets = [None] * len(rows) + [row[1] for row in edits]
    rows = (*rows, *((name, None, *value) for name, _, *value in edits))
    values = [row[2] if len(row) > 2 else float(i) for i, row in enumerate(rows)]
    return pa.table(
        {
            "series": pa.array([row[0] for row in rows], pa.string()),
            "timestamp": pa.array([row[1] for row in rows], pa.int64()).cast(INSTANT),
            "author": pa.array(authors or [None] * len(rows), pa.string()),
            "original_sequence": pa.array(targets, pa.int64()),
            "value": pa.array(values, pa.float64()),
        }
    )


def batch(*rows, policy="fail", token=None, authors=None, edits=(), missing="fail", clock="wall"):
    rows = staged(*rows, authors=authors, edits=edits)
    return Batch(rows, policy, "me", token, missing_original=missing, clock=clock)


def new_store(path, retained=None, values=(VALUE,)):
    return Store.create(str(path), values, retained and RetainedRange(**retained))


def forget_stores():
    """Let the next opening read a store as a new process does, and end as a process does."""
    wait_for_checkpoints()
    stores._open_stores.clear()


def sight_as_of(store, us):
    """Snapshot and index of `store` as it was at the commit time `us`."""
    past = store.snapshot().at_time(us)
    return past, past.index()


def sight_now(store):
    """Snapshot and index of `store` as it is."""
    now = store.snapshot()
    return now, now.index()


def stored(path, *columns):
    """The rows that any Delta reader sees, in (series, sequence) order, as tuples."""
    from deltalake import DeltaTable

    table = (
        DeltaTable(str(path))
        .to_pyarrow_table()
        .sort_by([("series", "ascending"), ("sequence", "ascending")])
    )
    names = columns or ("series", "sequence", "timestamp")
    return list(zip(*(_plain(table[name]) for name in names), strict=True))


def _plain(column):
    return column.cast(pa.int64()).to_pylist() if column.type == INSTANT else column.to_pylist()


def data_file(path, size):
    numbers = (0, 2**62, -(2**62), 2**62, 0, 2**62)
    return DataFile(path, size, "", chr(0x10FFFF), "event", 0, *numbers)
