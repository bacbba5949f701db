"""A batch of any size in the order of its events, with a bounded part of it in memory.

Rows are gathered up to a budget, sorted, and written as a *run*; `rising` merges runs. The order
is that of `numbering`: series, timestamp, untimed rows last; rows that are equal in this keep the
order of the runs, and in a run that of its rows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.model.series_index import Longs
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.parquet_layout import rows_per
from pyspark_tseries.write.numbering import UNTIMED, Standing, ordered
from pyspark_tseries.write.rows import EDIT_OF

__all__ = ["Names", "Sorter", "fewer", "read_run", "rising"]

BATCH_ROWS: Final = 10_000
"""A run is read so many rows at a time, or fewer where they are large."""

MOST_RUNS: Final = 64
"""So many are merged at once; a part of each, which is that part of the budget, is in memory."""

Key = tuple[str, int]


class Names:
    """Paths in the staging directory that nobody else uses; `own` is a name unlike any other."""

    def __init__(self, place: Place, own: str) -> None:
        self._place, self._own, self._number = place, own, count()
        self._given: list[str] = []

    def new(self, kind: str = "arrow") -> str:
        """The next path, relative to the store."""
        path = f"_tseries/staging/{self._own}-{next(self._number)}.{kind}"
        self._given.append(path)
        return path

    def discard(self, but: Iterable[str] = ()) -> None:
        """Removes the files of all paths, as far as there are any, `but` for some full paths."""
        full = {self._place.file(path) for path in self._given}
        self._place.remove(full.difference(but))


@dataclass(frozen=True, slots=True)
class _Reach:
    """What is known of a run: its series, each with its earliest timestamp; is a row untimed."""

    names: pa.Array
    least_us: Longs
    untimed: bool


class Sorter:
    """Sorts rows, which are columns of `RowPlan.staged` without edits, into runs.

    Args:
        place: where the store lies.
        names: what its runs are called.
        budget: so many bytes are gathered before they are written.
    """

    def __init__(self, place: Place, names: Names, budget: int) -> None:
        self._place, self._names, self._budget = place, names, budget
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._reach: list[_Reach] = []
        self.runs: list[str] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes the next rows."""
        if rows.num_rows and self._size + rows.nbytes > self._budget:
            self.spill()
        self._held.append(rows)
        self._size += rows.nbytes

    def held(self) -> pa.Table:
        """The rows that are in no run yet, at least one, unsorted, as one chunk a column."""
        return pa.Table.from_batches(self._held).combine_chunks()

    def spill(self) -> list[str]:
        """Writes what is held, too, as a run; returns all runs, in the order of the input."""
        if not any(batch.num_rows for batch in self._held):
            return self.runs
        rows = self.held()
        self._held, self._size = [], 0
        order, names, codes, us = ordered(*_keys(rows))
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        self._reach.append(_Reach(names, us[first], bool((us == UNTIMED).any())))
        parts = _parts(rows, order, self._budget)
        self.runs.append(_write_run(self._place, self._names.new(), rows.schema, parts))
        return self.runs

    def on_time(self, head: Standing) -> bool:
        """Whether each row of the runs is timed, and not before its series' newest original."""
        return all(
            not run.untimed
            and not (run.least_us < head.of(run.names.to_pylist())["original_us"]).any()
            for run in self._reach
        )

    def series(self) -> pa.Array:
        """The distinct series of the runs."""
        return pa.chunked_array([run.names for run in self._reach], pa.string()).unique()


def _keys(rows: pa.Table | pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Series and timestamps of rows that are one chunk a column."""
    series, given = rows["series"], rows["timestamp"]
    return (series.chunk(0), given.chunk(0)) if isinstance(rows, pa.Table) else (series, given)


def _parts(rows: pa.Table, order: Longs, budget: int) -> Iterator[pa.Table]:
    step = rows_per(rows, budget // MOST_RUNS, BATCH_ROWS)
    return (rows.take(pa.array(order[at : at + step])) for at in range(0, len(order), step))


def _write_run(place: Place, path: str, schema: pa.Schema, parts: Iterable[pa.Table]) -> str:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        place.write(place.file(path)) as file,
        pa.ipc.new_stream(file, schema, options=options) as writer,
    ):
        for part in parts:
            writer.write_table(part)
    return path


def read_run(place: Place, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A run a part at a time; a file of events is one as well.

    Args:
        place: where the store lies.
        path: relative to the store.
        schema: the columns of `RowPlan.staged`.
    """
    if not path.endswith(".parquet"):
        with place.read(place.file(path)) as file:
            yield from pa.ipc.open_stream(file)
        return
    stored = [field.name for field in schema if field.name != EDIT_OF.name]
    with (
        place.read(place.file(path)) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as events,
    ):
        for part in events.iter_batches(BATCH_ROWS, columns=stored, use_threads=False):
            columns = [
                part[field.name].cast(field.type)
                if field.name in stored
                else pa.nulls(part.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Reading:
    """A run being merged; `part` has the next rows, None at the run's end."""

    def __init__(self, run: Iterator[pa.RecordBatch]) -> None:
        self._run = run
        self._next()

    def _next(self) -> None:
        self.part = next((part for part in self._run if part.num_rows), None)
        if self.part is not None:
            self._series, given = _keys(self.part)
            us = given.cast(pa.int64()).fill_null(UNTIMED)
            self._us = us.to_numpy(zero_copy_only=False)

    def _key(self, row: int) -> Key:
        return self._series[row].as_py(), int(self._us[row])

    def last(self) -> Key:
        """The key of the last row of the part."""
        assert self.part is not None
        return self._key(self.part.num_rows - 1)

    def taken(self, bound: Key, *, inclusive: bool) -> pa.RecordBatch:
        """Takes the part's rows before `bound`, or up to it."""
        assert self.part is not None
        bisect = bisect_right if inclusive else bisect_left
        end = bisect(range(self.part.num_rows), bound, key=self._key)
        taken = self.part.slice(0, end)
        if end == self.part.num_rows:
            self._next()
        elif end:
            self.part = self.part.slice(end)
            self._series, self._us = self._series.slice(end), self._us[end:]
        return taken


def rising(runs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.Table]:
    """The rows of all runs: no row of a table comes before one of the tables that went before.

    The rows of a table are run after run, to be sorted by `ordered`, which keeps the order of
    equal ones. Memory: one part a run.
    """
    reading = [_Reading(run) for run in runs]
    while True:
        there = [(run.last(), at) for at, run in enumerate(reading) if run.part is not None]
        if not there:
            return
        # Nothing up to this key is still to come: what follows in its own run, and equal keys in
        # earlier runs, are not before it; equal keys in later runs wait until this run is past it.
        bound, whose = min(there)
        parts = [reading[at].taken(bound, inclusive=at <= whose) for _, at in there]
        yield pa.Table.from_batches([part for part in parts if part.num_rows]).combine_chunks()


def fewer(place: Place, names: Names, runs: list[str], schema: pa.Schema, budget: int) -> list[str]:
    """The same rows in at most MOST_RUNS runs, by merging some; none is removed."""
    while len(runs) > MOST_RUNS:
        groups = [runs[at : at + MOST_RUNS] for at in range(0, len(runs), MOST_RUNS)]
        runs = [_merged(place, names, group, schema, budget) for group in groups]
    return runs


def _merged(place: Place, names: Names, runs: list[str], schema: pa.Schema, budget: int) -> str:
    if len(runs) == 1:
        return runs[0]
    tables = rising([read_run(place, run, schema) for run in runs])
    parts = (part for rows in tables for part in _parts(rows, ordered(*_keys(rows))[0], budget))
    return _write_run(place, names.new(), schema, parts)
