"""Withdraw wrong corrections of `correct_late`, and say where it keeps its state (semantics 30.7).

A store keeps the late rows of a correcting query that wait in `_tseries/late/QUERY`, a file for
each batch; the number and digest of the query's last committed batch are transactions.

`withdraw_corrections` restores windows that `correct_late` corrected wrongly. A withdrawn
correction stays in the store, as every event does, and an edit restores the values of other
writers. A note in the query's folder then names its last withdrawn batch. It is written after the
commit: after a kill between the two, the values are withdrawn, and a second call writes only the
notes.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import UpdateFailed
from pyspark_tseries.model.arrays import encode_values, find_number_runs, to_int64
from pyspark_tseries.model.columns import originals_of
from pyspark_tseries.model.downsampling import flag_changed
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import Query
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.storage.failures import explained_failures
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import (
    Batch,
    CommitContext,
    PreparedCommit,
    Revision,
    digest_transaction,
)
from pyspark_tseries.write.rows import EDIT_OF, stage_columns, staged_schema

REASON_COLUMN: Final = "reason"
"""The value column that says why an event was written; null in events of other writers."""

LATE_TOKEN: Final = "tseries:late:"
_NOTE_KEY: Final = b"batch"
"""The key of a batch's note, as JSON, in the metadata of its file of waiting windows."""

_WITHDRAWN: Final = "withdrawn.json"


def late_path(location: Location, query: str, name: str) -> str:
    """Return the path of a file of a correcting query."""
    return location.file("_tseries", "late", query, name)


@dataclass(frozen=True, slots=True)
class LateNote:
    """The facts of a batch that its file keeps beside the windows that wait.

    `compared` is True once the query's streams were compared with those of the windows; a batch
    that cannot compare them yet lets all windows wait. `authors` made the corrections so far,
    `rows` is the digest of the late rows, and `merges` and `window_us` say how these were
    aggregated.
    """

    compared: bool
    authors: tuple[str, ...]
    rows: int
    merges: Mapping[str, str]
    window_us: int | None


@dataclass(frozen=True, slots=True)
class LateFiles:
    """The files of a query's batches from one of its commits on: what waits after each of them.

    The name of a file has its batch and the query's last commit then. So a driver never replaces a
    file that is read by one that knows another commit. Without a new commit, all drivers of the
    query write the same: what waited, and the late rows of the batch.

    Attributes:
        location: the location of the store.
        query: the id of the query.
        commit: the number and digest of its last batch with a commit; None before the first one.
    """

    location: Location
    query: str
    commit: tuple[int, int] | None

    @staticmethod
    def of(store: Store, query: str) -> "LateFiles":
        """Return the files from the query's last commit on, in the log as last refreshed."""
        token = f"{LATE_TOKEN}{query}"
        batch, digest = store.transaction(token), store.transaction(digest_transaction(token))
        return LateFiles(store.location, query, None if batch is None else (batch, digest or 0))

    def path(self, number: int) -> str:
        """Return the path of the file of a batch."""
        return late_path(self.location, self.query, f"{number}{self._suffix()}")

    def _suffix(self) -> str:
        return ".arrow" if self.commit is None else "-{}-{:016x}.arrow".format(*self.commit)

    def newest(self) -> int:
        """Return the number of the last batch that is decided; -1 without one."""
        decided = [number for number, path in self._list() if path == self.path(number)]
        return max(decided, default=-1 if self.commit is None else self.commit[0])

    def read(self, number: int) -> tuple[pa.Table, LateNote]:
        """Return the windows that wait after a batch, and its note.

        Raises:
            UpdateFailed: the file is missing or damaged.
        """
        path = self.path(number)
        try:
            with self.location.read(path) as file:
                table = pa.ipc.open_file(file).read_all()
            note = json.loads((table.schema.metadata or {})[_NOTE_KEY])
        except (FileNotFoundError, pa.ArrowInvalid, KeyError):
            raise UpdateFailed(
                f"the late rows that wait since batch {number} are gone: '{path}' is missing or "
                "damaged",
                "the store that this query's checkpoint belongs to, and one driver of the query",
                "end other drivers of this query, and start it again; or bring the file back, or "
                "start with a new checkpoint and a store without corrections of this query",
            ) from None
        return table.replace_schema_metadata(None), LateNote(**note)

    def write(self, number: int, waiting: pa.Table, note: LateNote) -> None:
        """Write the file of a batch."""
        metadata = {_NOTE_KEY: json.dumps(dataclasses.asdict(note)).encode()}
        noted, content = waiting.replace_schema_metadata(metadata), pa.BufferOutputStream()
        with pa.ipc.new_file(content, noted.schema) as writer:
            writer.write_table(noted)
        self.location.replace_whole(self.path(number), content.getvalue().to_pybytes())

    def remove_before(self, number: int) -> None:
        """Remove the files of all batches before `number`."""
        self.location.remove([path for batch, path in self._list() if batch < number])

    def _list(self) -> Iterator[tuple[int, str]]:
        """Yield the number and path of each file of the query, also of those from other commits."""
        for path, _ in self.location.list_files(late_path(self.location, self.query, "")):
            number, _, _ = os.path.basename(path).removesuffix(".arrow").partition("-")
            if path.endswith(".arrow") and number.isdecimal():
                yield int(number), path


def list_correctors(store: Store) -> dict[str, int]:
    """Return the queries that have corrected the store, each with its last committed batch."""
    names = store.location.list_folders(store.location.file("_tseries", "late"))
    batches = {name: store.transaction(f"{LATE_TOKEN}{name}") for name in names}
    return {name: batch for name, batch in sorted(batches.items()) if batch is not None}


def read_withdrawn(location: Location, query: str) -> int:
    """Return a query's last batch with withdrawn corrections; -1 without one."""
    try:
        return int(json.loads(location.read_whole(late_path(location, query, _WITHDRAWN)))["batch"])
    except FileNotFoundError:
        return -1


def _find_authors(location: Location, queries: Iterable[str]) -> set[str]:
    authors = set()
    for query in queries:
        for path, _ in location.list_files(late_path(location, query, "")):
            if path.endswith(".arrow"):
                with contextlib.suppress(pa.ArrowInvalid), location.read(path) as file:
                    metadata = pa.ipc.open_file(file).schema.metadata or {}
                    authors.update(json.loads(metadata[_NOTE_KEY])["authors"])
    return authors


def withdraw_corrections(
    store: str,
    *,
    start: str = "window_start",
    author: str = "correct_late",
    reason: str = "corrections withdrawn",
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Withdraw the corrections of `correct_late`, so that the right query can correct the store.

    Stop the correcting queries first; they are refused if they are started again. Each corrected
    window gets an edit with the last values of other writers. A window made only by late rows keeps
    its start, and its other values become null. All events stay, and `allEdits` shows them. Then
    start the right query, with a new checkpoint.

    Args:
        store: the path of the store.
        start: as in `correct_late`, the value column with the start of the window.
        author: the author of the edits that withdraw the corrections.
        reason: the text in the column `reason` of these edits.
        storage_options: how to reach an object store.

    Returns:
        The number of windows that were withdrawn; 0 if this was done before.

    Raises:
        NoSuchStore: there is no store.
        UpdateFailed: nobody has corrected it.
        PermissionDenied: the author may not edit.
        StorageFailed: the store cannot be read or written.
    """
    location = parse_location(store, storage_options)
    with explained_failures(location):
        return _withdraw(Store.open(location), start, author, reason)


def _withdraw(opened: Store, start: str, author: str, reason: str) -> int:
    correctors = list_correctors(opened)
    if not correctors:
        raise UpdateFailed(
            f"the store '{opened.root}' has no corrections of correct_late",
            "a store that such a query has corrected",
            "name the store that correct_late was given",
        )
    AccessCheck(opened.settings.policy, author).require("update", "withdraw corrections")
    authors = frozenset(_find_authors(opened.location, correctors))
    withdrawal = _Withdrawal(opened.values, start, authors, author, reason)
    rows = withdrawal.find_rows(opened.snapshot())
    if rows.num_rows:
        opened.append(withdrawal)
    for query, batch in correctors.items():
        _note_withdrawal(opened.location, query, batch)
    return int(rows.num_rows)


@dataclass(frozen=True, slots=True)
class _Withdrawal(Revision):
    """Edits that atomically restore the values before the corrections.

    It reads the values as of the preceding commit, so it loses no edit made meanwhile.
    """

    values: list[pa.Field]
    start: str
    correctors: frozenset[str]
    author: str
    reason: str

    def revise(self, context: CommitContext, snapshot: Snapshot) -> PreparedCommit:
        """Prepare a commit as `Batch.prepare` does, with its errors."""
        rows = self.find_rows(snapshot)
        return Batch(rows, "adjust", self.author, is_correction=True).prepare(context)

    def find_rows(self, snapshot: Snapshot) -> pa.Table:
        """Return an edit for each visible window in which a correction is in force."""
        schema = staged_schema(self.values)
        if REASON_COLUMN not in schema.names or snapshot.head_id is None:
            return schema.empty_table()
        events = run_query(Scope(snapshot, snapshot.index()), Query("allEdits")).table
        original = originals_of(events)
        is_own = pc.and_(
            pc.is_in(events["author"], pa.array(sorted(self.correctors), pa.string())),
            events[REASON_COLUMN].is_valid(),
        )
        # Values stay out of the join: their columns have any name, and Arrow joins no nested ones.
        keys = pa.table({"series": events["series"], "original": original, "is_own": is_own})
        keys = keys.append_column("row", pa.array(range(keys.num_rows)))
        corrected = keys.filter(is_own).group_by(["series", "original"]).aggregate([])
        keys = keys.append_column("sequence", events["sequence"])
        keys = keys.join(corrected, ["series", "original"], join_type="left semi")
        keys = keys.sort_by([(name, "ascending") for name in ("series", "original", "sequence")])
        if not keys.num_rows:
            return schema.empty_table()
        return self._restore(keys, events.take(keys["row"]), schema)

    def _restore(self, keys: pa.Table, events: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return an edit of each window that does not have the last values of other writers yet.

        `events` are the versions of the windows, in the order of `keys`.
        """
        _, codes = encode_values(keys["series"].combine_chunks())
        begins, sizes = find_number_runs(codes, to_int64(keys["original"]))
        row_numbers = np.arange(keys.num_rows)
        others = np.where(keys["is_own"].to_numpy(), -1, row_numbers)
        others = np.maximum.reduceat(others, begins)
        # A window made only by late rows keeps its start.
        sources = {self.start: np.where(others < 0, begins, others)}
        names = [field.name for field in self.values if field.name != REASON_COLUMN]
        restored = pa.table(
            {
                name: events[name].take(pa.array(rows, mask=rows < 0))
                for name in names
                for rows in (sources.get(name, others),)
            }
        )
        last = events.select(names).take(pa.array(begins + sizes - 1))
        is_changed = pa.array(flag_changed(last, restored))
        first_keys = keys.take(pa.array(begins)).filter(is_changed)
        restored = restored.filter(is_changed)
        columns = {name: restored[name] for name in names}
        columns |= {"series": first_keys["series"], EDIT_OF.name: first_keys["original"]}
        columns[REASON_COLUMN] = pa.array([self.reason] * restored.num_rows, pa.string())
        return stage_columns(columns, restored.num_rows, schema)


def _note_withdrawal(location: Location, query: str, batch: int) -> None:
    content = json.dumps({"batch": batch}).encode()
    location.replace_whole(late_path(location, query, _WITHDRAWN), content)
