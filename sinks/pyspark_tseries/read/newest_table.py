"""Answer questions for newest events, and keep them in memory for the next one (semantics 31.2).

A table made at one commit also serves later commits: if the index says that a series has grown,
only its later events are read. The chain of heads shows whether the commit is in the store's past:
a repair begins a new chain, and a store that was put back has another. Series with values erased
since are read again. A retained range is applied to each answer, and events that it once hid never
come back.
"""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.processes import lazy
from pyspark_tseries.model.arrays import NO_SEQUENCE, Int64Array, flag_last, to_int64
from pyspark_tseries.model.columns import result_schema
from pyspark_tseries.read.newest import (
    KEYS,
    KnownSeries,
    NewestRows,
    find_series,
    interleave,
    read_newest,
    read_newest_exactly,
)
from pyspark_tseries.read.scan import Answer, Scope, may_hide, pick_columns
from pyspark_tseries.storage.erasures import find_erased_series
from pyspark_tseries.storage.location import KeptByStore
from pyspark_tseries.storage.snapshot import Snapshot, is_ancestor

MAX_KEPT_BYTES: Final = 512 * 1024 * 1024
"""The rows of all tables of a process take at most this much memory."""

MAX_PATCHED_ROWS: Final = 2000
"""Every question brings a table of up to this many rows up to date."""

MAX_SPARE_BYTES: Final = 16 * 1024 * 1024
"""Keep a table of up to this size beside the next one, for questions that began before it."""

SERIES_PER_PATCH: Final = 20
"""A question brings a larger table up to date if it reads at least one of this many of its series,
or asks for all."""

MAX_SEPARATE_PROBES: Final = 64
"""Look up more names than this at once, with a hash table."""


@dataclass(frozen=True)
class NewestTable:
    """The newest rows of some series.

    Attributes:
        head_id: the head of the newest commit in the table.
        commit: the number of that commit.
        erasure: the last erasure as of that commit.
        values: the value columns of the store.
        columns: the columns of the rows.
        count: the number of originals of each series, if the series has as many.
        names: the series, sorted.
        seen_sequences: the last sequence of each when it was read; NO_SEQUENCE if its rows are
            not valid.
        rows: their rows.
    """

    head_id: int
    commit: int
    erasure: str | None
    values: list[pa.Field]
    columns: list[str]
    count: int
    names: list[str]
    seen_sequences: Int64Array
    rows: NewestRows

    @lazy
    def nbytes(self) -> int:
        """The size of the rows."""
        return int(self.rows.table.nbytes)

    def covers(self, snapshot: Snapshot, columns: Sequence[str], count: int) -> bool:
        """Return whether it has these columns and `count` rows of the store, as of any commit."""
        alike = self.values == snapshot.values and set(columns) <= set(self.columns)
        return alike and count <= self.count

    def erased_since(self, snapshot: Snapshot) -> list[str] | None:
        """Return the series to read again at a later commit; None if its commit is not later."""
        location, now = snapshot.location, snapshot.metadata
        if self.head_id == snapshot.head_id:
            return []
        if not is_ancestor(location, self.head_id, self.commit, now):
            return None
        if self.erasure == now.erasure:
            return []
        names = find_erased_series(location, now.erasure, self.erasure)
        return None if names is None else sorted(names)


def find_names(names: Sequence[str], among: Sequence[str]) -> Int64Array:
    """Return the positions of sorted names in the sorted list `among`; -1 if missing."""
    if names is among:
        return np.arange(len(among))
    if len(names) > MAX_SEPARATE_PROBES:
        texts, among_array = pa.array(names, pa.string()), pa.array(among, pa.string())
        return to_int64(pc.index_in(texts, among_array).fill_null(-1))
    positions = [bisect_left(among, name) for name in names]
    size = len(among)
    pairs = zip(names, positions, strict=True)
    is_same = [position < size and among[position] == name for name, position in pairs]
    return np.where(np.array(is_same, bool), np.array(positions, np.int64), -1)


class _StoreTables:
    """The newest events of a store that this process has in memory.

    Attributes:
        tables: the newest two tables, the newest first.
        lock: held while many series are read, so that not every thread reads them.
    """

    def __init__(self) -> None:
        self.tables: list[NewestTable] = []
        self.lock = threading.RLock()


_KEPT: Final = KeptByStore(lambda _: _StoreTables())


def _keep_table(store: _StoreTables, table: NewestTable) -> None:
    """Keep a table, and as many others as have room; those used last stay."""
    with _KEPT.lock:
        spares = [spare for spare in store.tables[:1] if spare.nbytes <= MAX_SPARE_BYTES]
        store.tables = [table, *spares]
        room = MAX_KEPT_BYTES
        for other_store in reversed(_KEPT.stores.values()):
            tables = []
            for spare_table in other_store.tables:
                if spare_table.nbytes <= room:
                    room -= spare_table.nbytes
                    tables.append(spare_table)
            other_store.tables = tables


def ask_newest(
    scope: Scope, count: int, at_us: int | None = None, columns: Sequence[str] | None = None
) -> Answer:
    """Return the newest `count` originals of each series, each replaced by its latest edit.

    Args:
        scope: the series, sorted and distinct, without a range of keys.
        count: how many, at least 1.
        at_us: the latest timestamp of an original, inclusive; None for all.
        columns: names of the result's columns; None for all of `result_schema`.

    Raises:
        InvalidQuery: the store lacks one of `columns`.
    """
    snapshot, names = scope.snapshot, scope.names
    schema = result_schema(snapshot.values)
    result_columns = pick_columns(schema, columns).names
    needed = [name for name in schema.names if name in result_columns or name in KEYS]
    store = _KEPT.use(snapshot.location)
    question = _Question(snapshot, find_series(scope.index, names), needed, count, at_us)
    if snapshot.as_of is not None or not len(question.series):
        rows = question.read()
    elif at_us is None:
        rows = question.answer(store, is_all=names is None)
    else:
        rows = question.answer_at(store)
    return Answer(rows.table.select(result_columns), rows.table.num_rows)


@dataclass(frozen=True)
class _Match:
    """The places of a question's series in a table.

    Attributes:
        table: the table; None if none serves.
        table_positions: the position of each series in the table, -1 if missing.
        seen_sequences: the last sequence of each in the table; NO_SEQUENCE if its rows are not
            valid.
        erased: the series with events that were erased since.
    """

    table: NewestTable | None
    table_positions: Int64Array
    seen_sequences: Int64Array
    erased: Sequence[str] = ()

    def rows(self, positions: Int64Array) -> NewestRows | None:
        """Return the valid rows of some series."""
        if self.table is None:
            return None
        counts = self.seen_sequences[positions] != NO_SEQUENCE
        rows = self.table.rows.pick(self.table_positions[positions[counts]])
        sizes = np.zeros(len(positions), np.int64)
        sizes[counts] = rows.sizes
        return NewestRows(rows.table, np.append(0, np.cumsum(sizes)))


@dataclass(frozen=True)
class _Question:
    """A question for newest events; see `ask_newest`. `columns` also has `KEYS`."""

    snapshot: Snapshot
    series: KnownSeries
    columns: list[str]
    count: int
    at_us: int | None

    def read(self) -> NewestRows:
        """Answer from the files, without a table."""
        if self.at_us is None:
            return read_newest(self.snapshot, self.series, self.columns, self.count)
        return self._read_exactly(np.arange(len(self.series)))

    def _read_exactly(self, positions: Int64Array) -> NewestRows:
        some_series = self.series.pick(positions)
        return read_newest_exactly(self.snapshot, some_series, self.columns, self.count, self.at_us)

    def answer(self, store: _StoreTables, *, is_all: bool) -> NewestRows:
        """Answer from a table, and bring the table up to date."""
        match = self._match(store)
        stale = np.flatnonzero(match.seen_sequences != self.series.last)
        # Threads read a few series each; many are read once, while the others wait for them.
        if len(stale) > MAX_SEPARATE_PROBES:
            with store.lock:
                # Another thread may have read them in the meantime.
                match = self._match(store)
                stale = np.flatnonzero(match.seen_sequences != self.series.last)
                rows, count = self._read_stale(store, match, stale, is_all=is_all)
        else:
            rows, count = self._read_stale(store, match, stale, is_all=is_all)
        rows, doubtful = self._select_visible(self.series, rows, count)
        return self._with_exact(rows, doubtful)

    def answer_at(self, store: _StoreTables) -> NewestRows:
        """Answer from a table if its rows reach back far enough, else from the files."""
        match = self._match(store)
        fresh = np.flatnonzero(match.seen_sequences == self.series.last)
        if match.table is None or not len(fresh):
            return self.read()
        fresh_rows = match.table.rows.pick(match.table_positions[fresh])
        rows, doubtful = self._select_visible(
            self.series.pick(fresh), fresh_rows, match.table.count
        )
        others = np.union1d(np.setdiff1d(np.arange(len(self.series)), fresh), fresh[doubtful])
        sure = np.flatnonzero(~np.isin(fresh, fresh[doubtful]))
        pieces = [(fresh[sure], _select_rows(rows.pick(sure), self.columns))]
        if len(others):
            pieces.append((others, self._read_exactly(others)))
        return interleave(len(self.series), pieces)

    def _match(self, store: _StoreTables) -> _Match:
        """Return where the first table that serves has the series."""
        nothing = np.full(len(self.series), NO_SEQUENCE)
        for table in store.tables:
            if not table.covers(self.snapshot, self.columns, self.count):
                continue
            erased = table.erased_since(self.snapshot)
            if erased is None:
                continue
            table_positions = find_names(self.series.names, table.names)
            seen_sequences = (
                np.where(table_positions >= 0, table.seen_sequences[table_positions], NO_SEQUENCE)
                if len(table.names)
                else nothing
            )
            _invalidate_erased(erased, self.series.names, seen_sequences)
            return _Match(table, table_positions, seen_sequences, erased)
        return _Match(None, nothing, nothing)

    def _read_stale(
        self, store: _StoreTables, match: _Match, stale: Int64Array, *, is_all: bool
    ) -> tuple[NewestRows, int]:
        """Return the rows of all series, and their number for each; read the `stale` series."""
        table = match.table
        size = len(self.series)
        if table is not None and not len(stale):
            return table.rows.pick(match.table_positions), table.count
        columns, count, is_kept = self._plan_table(store, table, len(stale), is_all=is_all)
        stale_series = self.series.pick(stale)
        stale_rows = read_newest(
            self.snapshot,
            stale_series,
            columns,
            count,
            seen_sequences=match.seen_sequences[stale],
            earlier_rows=match.rows(stale),
        )
        if is_kept:
            snapshot = self.snapshot
            assert snapshot.head_id is not None
            names, seen_sequences, rows = self._patch_table(
                match, stale, NewestRows(stale_rows.table.combine_chunks(), stale_rows.starts)
            )
            patched = NewestTable(
                head_id=snapshot.head_id,
                commit=snapshot.metadata.commit,
                erasure=snapshot.metadata.erasure,
                values=snapshot.values,
                columns=columns,
                count=count,
                names=names,
                seen_sequences=seen_sequences,
                rows=rows,
            )
            _keep_table(store, patched)
            if names is self.series.names:
                return rows, count
        fresh = np.setdiff1d(np.arange(size), stale)
        fresh_rows = match.rows(fresh)
        return interleave(
            size, [(stale, stale_rows), *([] if fresh_rows is None else [(fresh, fresh_rows)])]
        ), count

    def _plan_table(
        self, store: _StoreTables, table: NewestTable | None, stale_count: int, *, is_all: bool
    ) -> tuple[list[str], int, bool]:
        """Return the columns and the number of rows to read, and whether to keep the new table."""
        if table is not None:
            # A new table copies all rows: that pays if they are few, or many of them are new.
            is_kept = (
                is_all
                or table.rows.table.num_rows <= MAX_PATCHED_ROWS
                or stale_count * SERIES_PER_PATCH >= len(table.names)
            )
            return table.columns, table.count, is_kept
        newest_table = store.tables[0] if store.tables else None
        if newest_table is None:
            return self.columns, self.count, True
        is_kept = is_all or 2 * len(self.series) >= len(newest_table.names)
        if not is_kept or newest_table.values != self.snapshot.values:
            return self.columns, self.count, is_kept
        names = result_schema(self.snapshot.values).names
        columns = [name for name in names if name in {*self.columns, *newest_table.columns}]
        return columns, max(self.count, newest_table.count), True

    def _patch_table(
        self, match: _Match, stale: Int64Array, new: NewestRows
    ) -> tuple[list[str], Int64Array, NewestRows]:
        """Return the names, the last sequences and the rows of a table with `new` ones."""
        if match.table is None:
            return self.series.names, self.series.last, new
        before, names = match.table.names, self.series.names
        found_count = np.count_nonzero(match.table_positions >= 0)
        if found_count == len(names) and found_count < len(before):
            names = before
        elif found_count < len(before):
            names = sorted({*before, *names})
        positions = find_names(before, names)
        stale_positions = find_names(self.series.names, names)[stale]
        seen_sequences = np.full(len(names), NO_SEQUENCE)
        seen_sequences[positions] = match.table.seen_sequences
        _invalidate_erased(match.erased, names, seen_sequences)
        seen_sequences[stale_positions] = self.series.last[stale]
        others = np.flatnonzero(~np.isin(positions, stale_positions))
        pieces = [(positions[others], match.table.rows.pick(others)), (stale_positions, new)]
        return names, seen_sequences, interleave(len(names), pieces)

    def _select_visible(
        self, series: KnownSeries, rows: NewestRows, count: int
    ) -> tuple[NewestRows, Int64Array]:
        """Return the rows that answer, and the series that may need earlier rows as well.

        `rows` are the newest `count` of each series.
        """
        hides = may_hide(self.snapshot.settings.retained, series.index)
        is_more = count > self.count and bool((rows.sizes > self.count).any())
        if not hides and self.at_us is None and not is_more:
            return rows, np.empty(0, np.int64)
        codes = rows.codes
        is_kept = np.ones(rows.table.num_rows, bool)
        if hides:
            oldest, oldest_us = series.retained(self.snapshot)
            is_kept &= (rows.originals >= oldest[codes]) & (rows.us >= oldest_us[codes])
        if self.at_us is not None:
            is_kept &= rows.us <= self.at_us
        inside = np.flatnonzero(is_kept)
        is_kept[inside] = flag_last(codes[inside], self.count)
        is_short = np.bincount(codes[is_kept], minlength=len(series)) < self.count
        # Without times and erased events, all hidden rows come before the visible ones.
        if self.at_us is None and not self.snapshot.has_erasures:
            is_short[:] = False
        return rows.keep(is_kept), np.flatnonzero(is_short & (rows.sizes >= count))

    def _with_exact(self, rows: NewestRows, positions: Int64Array) -> NewestRows:
        """Return `rows`, with the rows of some series read from the files."""
        if not len(positions):
            return rows
        others = np.setdiff1d(np.arange(len(self.series)), positions)
        pieces = [
            (others, _select_rows(rows.pick(others), self.columns)),
            (positions, self._read_exactly(positions)),
        ]
        return interleave(len(self.series), pieces)


def _invalidate_erased(
    erased: Sequence[str], names: Sequence[str], seen_sequences: Int64Array
) -> None:
    """Mark the rows of the series `erased` as no longer valid."""
    positions = find_names(erased, names)
    seen_sequences[positions[positions >= 0]] = NO_SEQUENCE


def _select_rows(rows: NewestRows, columns: Sequence[str]) -> NewestRows:
    return NewestRows(rows.table.select(list(columns)), rows.starts)
