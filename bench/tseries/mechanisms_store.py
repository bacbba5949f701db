"""Mechanisms of the store beside the simpler way (decisions.md): `processor_time.py`.

Large batches that publish what tasks wrote, the heartbeat of the commit lock, ways to read Parquet.
"""

import contextlib
import functools
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from processor_time import Part, Work, in_turns, report_parts
from side_by_side import Comparison, each_against_peer
from sizes import size

from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.ranges import UNLIMITED
from pyspark_tseries.storage import location as locks
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.row_reader import ALL_ROWS, RowFilter, read_rows, scan_file
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Appendable, Batch, CommitContext, PreparedCommit, _Commit
from pyspark_tseries.write.task_output import (
    OptimisticNumber,
    TaskOutput,
    read_chunk,
    write_task_output,
)

ROWS: Final = size(1_000_000, 100_000)

TASKS: Final = 4

SERIES: Final = 1_000
"""Series of a task; no two tasks share one."""

STAGED: Final = pa.schema(
    [
        ("series", pa.string()),
        ("timestamp", INSTANT),
        ("author", pa.string()),
        ("original_sequence", pa.int64()),
        ("value", pa.float64()),
    ]
)

READ: Final = pa.schema([("series", pa.string()), ("timestamp", INSTANT), ("value", pa.float64())])


def rows_of_task(task: int, rows: int, start: int = 0) -> pa.Table:
    """Rows of the series of one task in turn, a millisecond apart."""
    places = np.arange(start, start + rows)
    names = pa.array([f"task {task} series {number:04}" for number in range(SERIES)])
    columns = [
        names.take(pa.array(places % SERIES)),
        pa.array(places * 1000).cast(INSTANT),
        pa.nulls(rows, pa.string()),
        pa.nulls(rows, pa.int64()),
        pa.array(np.sin(places)),
    ]
    return pa.table(columns, schema=STAGED)


@contextlib.contextmanager
def a_store() -> Iterator[Store]:
    """A store with one commit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        store = Store.create(f"{place}/store", [pa.field("value", pa.float64())], UNLIMITED)
        compete(store)
        yield store


def compete(store: Store) -> None:
    """A small commit, of a series that no task has."""
    row = rows_of_task(TASKS, 1, time.time_ns() // 1_000_000)
    store.append(Batch(row, "fail", "rival"), synced=False)


def expect(store: Store) -> OptimisticNumber:
    """The next commit as it is expected now."""
    store.refresh()
    head_id, index = store.head_id(), store.index()
    return OptimisticNumber(head_id, index.metadata.commit + 1, index.metadata.commit_us)


def tasks_write(
    store: Store, expected: OptimisticNumber, parts: Sequence[pa.Table]
) -> list[TaskOutput]:
    """The outputs of a batch's tasks, each its part."""
    return [
        write_task_output(
            store.location,
            part.to_batches(),
            STAGED,
            expected,
            "me",
            unique_name=secrets.token_hex(8),
        )
        for part in parts
    ]


def large_batch() -> Iterator[Comparison]:
    """Publishing what tasks wrote, rewriting it, and writing it only from sorted runs."""
    parts = [rows_of_task(task, ROWS // TASKS) for task in range(TASKS)]
    with a_store() as store:
        expected = expect(store)
        lost = OptimisticNumber(1, expected.commit, expected.commit_us)
        """No such head: a task that cannot load it leaves sorted runs."""

        def context() -> CommitContext:
            store.refresh()
            head_id, index = store.head_id(), store.index()
            us = index.metadata.commit_us
            return CommitContext(
                store.location, head_id, index, us, secrets.randbits(62), store.settings
            )

        def write(of: OptimisticNumber) -> int:
            outputs = tasks_write(store, of, parts)
            for output in outputs:
                store.location.remove(output.paths(store.location))
            return sum(output.rows for output in outputs)

        yield in_turns(
            "large batch, tasks: runs / numbered files",
            {"sorted runs": lambda: write(lost), "numbered files": lambda: write(expected)},
            ROWS,
        )
        as_files, as_runs = (tasks_write(store, of, parts) for of in (expected, lost))
        before = context()
        compete(store)
        after = context()
        if before.head_id == after.head_id:
            raise SystemExit("the competing commit is not to be seen")

        def commit(outputs: list[TaskOutput], given: CommitContext) -> int:
            batch = Batch(STAGED.empty_table(), "fail", "me", tasks=tuple(outputs))
            attempt = batch.prepare(given)
            store.location.remove(attempt.paths)
            return attempt.index.metadata.rows - given.index.metadata.rows

        ways = {
            "from sorted runs": lambda: commit(as_runs, before),
            "rewritten": lambda: commit(as_files, after),
            "published": lambda: commit(as_files, before),
        }
        yield from each_against_peer(in_turns("large batch, commit", ways, ROWS), ": runs / ")


def races(batches: int = 10, rows: int = 60_000) -> dict[str, str]:
    """How many large batches were published as they were, for each rival that writes meanwhile."""
    found = {}
    for name, writers in (("one writer", 1), ("two writers, batch after batch", 2)):
        confirmed: list[bool] = []
        write = _Commit.write

        def noted(self: _Commit, write: Any = write, to: list[bool] = confirmed) -> PreparedCommit:
            to.append(self._optimistic is not None)
            return write(self)

        with a_store() as store, mock.patch.object(_Commit, "write", noted):

            def run(task: int, root: str = store.root) -> None:
                mine = Store.open_damaged(root)
                for number in range(batches):
                    part = rows_of_task(task, rows, number * rows)
                    outputs = tasks_write(mine, expect(mine), [part])
                    large = Batch(STAGED.empty_table(), "fail", "me", tasks=tuple(outputs))
                    mine.append(large, synced=False)

            threads = [threading.Thread(target=run, args=(task,)) for task in range(writers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found[name] = f"{sum(confirmed)} published of {len(confirmed)} attempts"
    return found


class SlowBatch(Appendable):
    """A small batch that takes `pause_s` to prepare, and counts its attempts."""

    is_slow = True  # type: ignore[assignment]

    def __init__(self, rows: pa.Table, pause_s: float) -> None:
        self._batch, self._pause_s, self.attempts = Batch(rows, "fail", "me"), pause_s, 0

    def prepare(self, context: CommitContext) -> PreparedCommit:
        """As `Batch`, later."""
        self.attempts += 1
        time.sleep(self._pause_s)
        return self._batch.prepare(context)


def heartbeat() -> Iterator[Comparison]:
    """A commit with a heartbeat beside one without."""

    class WithHeartbeat(Batch):
        is_slow = True  # type: ignore[assignment]

    with a_store() as store:
        turn = iter(range(10**9))

        def commits(kind: type[Batch]) -> int:
            for _ in range(50):
                store.append(kind(rows_of_task(0, 1, next(turn)), "fail", "me"), synced=False)
            return 50

        ways = {
            "without": functools.partial(commits, Batch),
            "with": functools.partial(commits, WithHeartbeat),
        }
        yield in_turns("50 commits, without / with a heartbeat", ways, 50)

        def beats(made: Callable[[], contextlib.AbstractContextManager[None]]) -> int:
            for _ in range(1000):
                with made():
                    pass
            return 1000

        alone = {
            "none": lambda: beats(contextlib.nullcontext),
            "heartbeat": lambda: beats(lambda: locks.heartbeat(store.location)),
        }
        yield in_turns("1,000 times nothing / a heartbeat", alone, 1000)


def attempts(silence_s: float = 0.2, pause_s: float = 1.0, most: int = 10) -> dict[str, int]:
    """Attempts of a batch that takes five times the patience of a rival that commits on and on.

    The rival stops after `most` attempts.
    """
    found = {}
    none = lambda _: contextlib.nullcontext()  # noqa: E731
    for name, beat in (("with", locks.heartbeat), ("without", none)):
        with (
            a_store() as store,
            mock.patch.object(locks, "MAX_SILENCE_S", silence_s),
            mock.patch.object(locks, "heartbeat", beat),
        ):
            slow, over = SlowBatch(rows_of_task(0, 1), pause_s), threading.Event()

            def rival(root: str = store.root, slow: SlowBatch = slow, over: Any = over) -> None:
                mine = Store.open_damaged(root)
                while not over.is_set() and slow.attempts < most:
                    compete(mine)

            thread = threading.Thread(target=rival)
            thread.start()
            time.sleep(0.1)
            store.append(slow, synced=False)
            over.set()
            thread.join()
            found[name] = slow.attempts
    return found


def reads() -> Iterator[Comparison]:
    """One series of many, and all events, by each way of reading Parquet."""
    with a_store() as store:
        for number in range(5):
            parts = [rows_of_task(task, ROWS // 20, number * ROWS // 20) for task in range(TASKS)]
            store.append(
                Batch(pa.concat_tables(parts).combine_chunks(), "fail", "me"), synced=False
            )
        location, files = store.location, store.data_files()
        paths = [location.file(file.path) for file in files]

        def streamed(file: DataFile, row_filter: RowFilter) -> int:
            return sum(part.num_rows for part in scan_file(location, file, READ, row_filter))

        def point(read: Callable[[str], int]) -> int:
            return sum(read(f"task {at % TASKS} series {at:04}") for at in range(0, 1000, 100))

        def by_run() -> int:
            runs = (read_chunk(location, file.path, READ) for file in files)
            return sum(part.num_rows for run in runs for part in run)

        def whole(name: str) -> int:
            return read_rows(location, files, READ, RowFilter([name])).num_rows

        def by_pyarrow(name: str) -> int:
            found = pq.read_table(
                paths, columns=READ.names, filters=[("series", "==", name)], partitioning=None
            )
            return int(found.num_rows)

        def streaming(name: str) -> int:
            return sum(streamed(file, RowFilter([name])) for file in files)

        ways: dict[str, Work] = {
            "pyarrow": lambda: point(by_pyarrow),
            "streamed": lambda: point(streaming),
            "together": lambda: point(whole),
        }
        yield from each_against_peer(in_turns("10 point queries", ways, 10), ": pyarrow / ")
        ways = {
            "pyarrow": lambda: pq.read_table(paths, columns=READ.names, partitioning=None).num_rows,
            "as runs": by_run,
            "streamed": lambda: sum(streamed(file, ALL_ROWS) for file in files),
            "together": lambda: read_rows(location, files, READ, ALL_ROWS).num_rows,
        }
        yield from each_against_peer(in_turns("full scan", ways, ROWS), ": pyarrow / ")


if __name__ == "__main__":
    report_parts(
        __file__,
        {
            "large_batch": Part(large_batch, races),
            "heartbeat": Part(heartbeat, attempts),
            "reads": Part(reads),
        },
    )
