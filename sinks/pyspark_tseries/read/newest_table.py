"""Answer questions for newest events, and keep them in memory for the next one (semantics 31.2).

A table of a commit serves a later one, too: for a series that has grown since, according to the
index, only the later events are read. The commit must be in the store's past, which the chain of
heads says: a repair begins a new chain, and a store that was put back has another one. The series
of later acts of erasing are read again. A retained range is applied to each answer, and what it
once hid never comes back.
"""

import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.threads import lazy
from pyspark_tseries.model.arrays import NO_SEQUENCE, Int64Array, to_int64
from pyspark_tseries.model.columns import result_schema
from pyspark_tseries.model.series_index import SeriesIds, SeriesIndex
from pyspark_tseries.read.newest import (
    KEYS,
    NewestRows,
    Series,
    find_series,
    interleave,
    read_located,
    read_newest,
)
from pyspark_tseries.read.scan import Answer, may_hide, pick_columns
from pyspark_tseries.storage.erasures import find_erased_series
from pyspark_tseries.storage.head_files import is_ancestor
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.snapshot import Snapshot

MAX_KEPT_BYTES: Final = 512 * 1024 * 1024
"""The size of the rows of all tables of a process."""

MAX_PATCHED_ROWS: Final = 2000
"""A table of up to this many rows is brought up to date by every question."""

MAX_SPARE_BYTES: Final = 16 * 1024 * 1024
"""A table of up to this size is kept beside the next one, for questions that began before it."""

SERIES_PER_PATCH: Final = 20
"""A larger one only if at least one of this many of its series is read, or all are asked for."""

MAX_SEPARATE_PROBES: Final = 64
"""More names than this are looked up at once, by a hash table of all."""


@dataclass(frozen=True)
class NewestTable:
    """The newest rows of some series.

    Attributes:
        head_id: the head of the commit up to which the table was brought.
        commit: the number of that commit.
        erasure: the last act of erasing as of that commit.
        values: the value columns of the store.
        columns: the columns of the rows.
        count: how many originals of each series it has, if there are as many.
        names: the series, sorted.
        seen: the last sequence of each when it was read; NO_SEQUENCE: its rows do not count.
        rows: their rows.
    """

    head_id: int
    commit: int
    erasure: str | None
    values: list[pa.Field]
    columns: list[str]
    count: int
    names: list[str]
    seen: Int64Array
    rows: NewestRows

    @lazy
    def nbytes(self) -> int:
        """The size of the rows."""
        return int(self.rows.table.nbytes)

    def has(self, snapshot: Snapshot, columns: Sequence[str], count: int) -> bool:
        """Return whether it has such rows of the store of `snapshot`, at this or another commit."""
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
    """Return the positions of sorted names among others, which are sorted, too; -1 if missing."""
    if names is among:
        return np.arange(len(among))
    if len(names) > MAX_SEPARATE_PROBES:
        texts, known = pa.array(names, pa.string()), pa.array(among, pa.string())
        return to_int64(pc.index_in(texts, known).fill_null(-1))
    places = [bisect_left(among, name) for name in names]
    size = len(among)
    pairs = zip(names, places, strict=True)
    is_same = [place < size and among[place] == name for name, place in pairs]
    return np.where(np.array(is_same, bool), np.array(places, np.int64), -1)


class _KnownStore:
    """What this process knows of the newest events of a store.

    Attributes:
        tables: the newest two tables, the last one first.
        lock: held while many series are read, so that threads do not all read them.
    """

    def __init__(self) -> None:
        self.tables: list[NewestTable] = []
        self.lock = threading.RLock()
        self._all: tuple[SeriesIds, int, Series] | None = None

    def find_series(self, index: SeriesIndex, names: Sequence[str] | None) -> Series:
        """Return what `newest.find_series` returns; sort the names of all series only once."""
        if names is not None:
            return find_series(index, names)
        known, size = self._all, index.columns.rows
        if known is not None and known[0] is index.ids and known[1] == size:
            series = Series(known[2].names, known[2].rows, index)
            if (series.last != NO_SEQUENCE).all():
                return series
        series = find_series(index, None)
        if len(series) == size:
            self._all = index.ids, size, series
        return series


_STORES: Final[OrderedDict[Location, _KnownStore]] = OrderedDict()
"""By the location of the store, the one that was asked last at the end."""

_stores_lock = threading.Lock()


def _begin_child() -> None:
    """Begin anew in a forked process: another thread of the parent may have held a lock."""
    global _stores_lock
    _STORES.clear()
    _stores_lock = threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


def forget_newest() -> None:
    """Forget all tables of this process."""
    with _stores_lock:
        _STORES.clear()


def _known_store(location: Location) -> _KnownStore:
    with _stores_lock:
        known = _STORES.setdefault(location, _KnownStore())
        _STORES.move_to_end(location)
        return known


def _keep(known: _KnownStore, table: NewestTable) -> None:
    """Keep a table, and of the others those that have room; those asked last stay."""
    with _stores_lock:
        spare = [held for held in known.tables[:1] if held.nbytes <= MAX_SPARE_BYTES]
        known.tables = [table, *spare]
        room = MAX_KEPT_BYTES
        for store in reversed(_STORES.values()):
            kept = []
            for held in store.tables:
                if held.nbytes <= room:
                    room -= held.nbytes
                    kept.append(held)
            store.tables = kept


def ask_newest(
    snapshot: Snapshot,
    index: SeriesIndex,
    names: Sequence[str] | None,
    count: int,
    at_us: int | None = None,
    columns: Sequence[str] | None = None,
) -> Answer:
    """Return the newest `count` originals of each series, each replaced by its latest edit.

    Args:
        snapshot: the store.
        index: its index, at least of `names`.
        names: the series, sorted and distinct; None for all.
        count: how many, at least 1.
        at_us: only originals with a timestamp up to this one are asked for; None: all.
        columns: names of the result's columns; None for all of `result_schema`.

    Raises:
        InvalidQuery: the store lacks one of `columns`.
    """
    schema = result_schema(snapshot.values)
    shown = pick_columns(schema, columns).names
    needed = [name for name in schema.names if name in shown or name in KEYS]
    known = _known_store(snapshot.location)
    question = _Question(snapshot, known.find_series(index, names), needed, count, at_us)
    if snapshot.as_of is not None or not len(question.series):
        rows = question.read()
    elif at_us is None:
        rows = question.answer(known, is_all=names is None)
    else:
        rows = question.answer_at(known)
    return Answer(rows.table.select(shown), rows.table.num_rows)


@dataclass(frozen=True)
class _Match:
    """What a table has of the series of a question.

    Attributes:
        table: the table; None if there is none that serves.
        at: the position of each series in the table, -1 if missing.
        seen: the last sequence that the table has seen of each; NO_SEQUENCE if it does not count.
        erased: the series of which events were erased since.
    """

    table: NewestTable | None
    at: Int64Array
    seen: Int64Array
    erased: Sequence[str] = ()

    def rows(self, which: Int64Array) -> NewestRows | None:
        """Return the rows of some series, none of those that do not count."""
        if self.table is None:
            return None
        counts = self.seen[which] != NO_SEQUENCE
        rows = self.table.rows.pick(self.at[which[counts]])
        sizes = np.zeros(len(which), np.int64)
        sizes[counts] = rows.sizes
        return NewestRows(rows.table, np.append(0, np.cumsum(sizes)))


@dataclass(frozen=True)
class _Question:
    """A question for newest events; see `ask_newest`. `columns` has `KEYS`, too."""

    snapshot: Snapshot
    series: Series
    columns: list[str]
    count: int
    at_us: int | None

    def read(self) -> NewestRows:
        """Answer from the files alone."""
        if self.at_us is None:
            return read_newest(self.snapshot, self.series, self.columns, self.count)
        return self._read_exactly(np.arange(len(self.series)))

    def _read_exactly(self, which: Int64Array) -> NewestRows:
        part = self.series.pick(which)
        return read_located(self.snapshot, part, self.columns, self.count, self.at_us)

    def answer(self, known: _KnownStore, *, is_all: bool) -> NewestRows:
        """Answer from a table, and bring it up to date."""
        match = self._match(known)
        stale = np.flatnonzero(match.seen != self.series.last)
        if len(stale) > MAX_SEPARATE_PROBES:
            with known.lock:
                # Another thread may have read them in the meantime.
                match = self._match(known)
                stale = np.flatnonzero(match.seen != self.series.last)
                rows, count = self._read_stale(known, match, stale, is_all)
        else:
            rows, count = self._read_stale(known, match, stale, is_all)
        rows, doubtful = self._cut(self.series, rows, count)
        return self._with_exact(rows, doubtful)

    def answer_at(self, known: _KnownStore) -> NewestRows:
        """Answer from a table where its rows reach back far enough."""
        match = self._match(known)
        fresh = np.flatnonzero(match.seen == self.series.last)
        if match.table is None or not len(fresh):
            return self.read()
        held = match.table.rows.pick(match.at[fresh])
        rows, doubtful = self._cut(self.series.pick(fresh), held, match.table.count)
        others = np.union1d(np.setdiff1d(np.arange(len(self.series)), fresh), fresh[doubtful])
        sure = np.flatnonzero(~np.isin(fresh, fresh[doubtful]))
        parts = [(fresh[sure], _select(rows.pick(sure), self.columns))]
        if len(others):
            parts.append((others, self._read_exactly(others)))
        return interleave(len(self.series), parts)

    def _match(self, known: _KnownStore) -> _Match:
        """Return what the first table that serves has of the series."""
        nothing = np.full(len(self.series), NO_SEQUENCE)
        for table in known.tables:
            if not table.has(self.snapshot, self.columns, self.count):
                continue
            erased = table.erased_since(self.snapshot)
            if erased is None:
                continue
            places = find_names(self.series.names, table.names)
            seen = (
                np.where(places >= 0, table.seen[places], NO_SEQUENCE)
                if len(table.names)
                else nothing
            )
            _forget(erased, self.series.names, seen)
            return _Match(table, places, seen, erased)
        return _Match(None, nothing, nothing)

    def _read_stale(
        self, known: _KnownStore, match: _Match, stale: Int64Array, is_all: bool
    ) -> tuple[NewestRows, int]:
        """Return the rows of all series, and how many of each; read the `stale` ones."""
        table, size = match.table, len(self.series)
        if table is not None and not len(stale):
            return table.rows.pick(match.at), table.count
        columns, count = self.columns, self.count
        if table is not None:
            columns, count = table.columns, table.count
            is_kept = (
                is_all
                or table.rows.table.num_rows <= MAX_PATCHED_ROWS
                or len(stale) * SERIES_PER_PATCH >= len(table.names)
            )
        else:
            last = known.tables[0] if known.tables else None
            is_kept = is_all or last is None or 2 * size >= len(last.names)
            if is_kept and last is not None and last.values == self.snapshot.values:
                names = result_schema(self.snapshot.values).names
                columns = [name for name in names if name in {*columns, *last.columns}]
                count = max(count, last.count)
        part = self.series.pick(stale)
        new = read_newest(self.snapshot, part, columns, count, match.seen[stale], match.rows(stale))
        if is_kept:
            kept = self._bring_up(match, stale, NewestRows(new.table.combine_chunks(), new.starts))
            _keep(known, self._make_table(*kept, columns, count))
            if kept[0] is self.series.names:
                return kept[2], count
        fresh = np.setdiff1d(np.arange(size), stale)
        held = match.rows(fresh)
        return interleave(size, [(stale, new), *([] if held is None else [(fresh, held)])]), count

    def _bring_up(
        self, match: _Match, stale: Int64Array, new: NewestRows
    ) -> tuple[list[str], Int64Array, NewestRows]:
        """Return the names, the last sequences and the rows of a table with `new` ones."""
        if match.table is None:
            return self.series.names, self.series.last, new
        before, names = match.table.names, self.series.names
        here = np.count_nonzero(match.at >= 0)
        if here == len(names) and here < len(before):
            names = before
        elif here < len(before):
            names = sorted({*before, *names})
        places, read = find_names(before, names), find_names(self.series.names, names)[stale]
        seen = np.full(len(names), NO_SEQUENCE)
        seen[places] = match.table.seen
        _forget(match.erased, names, seen)
        seen[read] = self.series.last[stale]
        others = np.flatnonzero(~np.isin(places, read))
        parts = [(places[others], match.table.rows.pick(others)), (read, new)]
        return names, seen, interleave(len(names), parts)

    def _make_table(
        self, names: list[str], seen: Int64Array, rows: NewestRows, columns: list[str], count: int
    ) -> NewestTable:
        snapshot, now = self.snapshot, self.snapshot.metadata
        assert snapshot.head_id is not None
        return NewestTable(
            snapshot.head_id,
            now.commit,
            now.erasure,
            snapshot.values,
            columns,
            count,
            names,
            seen,
            rows,
        )

    def _cut(self, series: Series, rows: NewestRows, count: int) -> tuple[NewestRows, Int64Array]:
        """Return the rows that answer, and the series of which earlier ones may answer, too.

        `rows` are the newest `count` of each series.
        """
        hides = may_hide(self.snapshot.settings.retained, series.index)
        is_more = count > self.count and bool((rows.sizes > self.count).any())
        if not hides and self.at_us is None and not is_more:
            return rows, np.empty(0, np.int64)
        codes, kept = rows.codes, np.ones(rows.table.num_rows, bool)
        if hides:
            low, low_us = series.retained(self.snapshot)
            kept &= (rows.places >= low[codes]) & (rows.us >= low_us[codes])
        if self.at_us is not None:
            kept &= rows.us <= self.at_us
        inside = np.flatnonzero(kept)
        behind = np.searchsorted(codes[inside], codes[inside], "right") - np.arange(len(inside))
        kept[inside] = behind <= self.count
        few = np.bincount(codes[kept], minlength=len(series)) < self.count
        # Without times and erased events, what is hidden comes before all that is not.
        if self.at_us is None and not self.snapshot.has_erasures:
            few[:] = False
        return rows.keep(kept), np.flatnonzero(few & (rows.sizes >= count))

    def _with_exact(self, rows: NewestRows, which: Int64Array) -> NewestRows:
        """Return `rows`, those of some series read from the files."""
        if not len(which):
            return rows
        others = np.setdiff1d(np.arange(len(self.series)), which)
        parts = [
            (others, _select(rows.pick(others), self.columns)),
            (which, self._read_exactly(which)),
        ]
        return interleave(len(self.series), parts)


def _forget(erased: Sequence[str], names: Sequence[str], seen: Int64Array) -> None:
    """Let the rows of the series `erased` no longer count."""
    places = find_names(erased, names)
    seen[places[places >= 0]] = NO_SEQUENCE


def _select(rows: NewestRows, columns: Sequence[str]) -> NewestRows:
    return NewestRows(rows.table.select(list(columns)), rows.starts)
