"""Give value columns wider types: rewrite the files that have narrower ones (semantics 35.4).

Delta has a feature that lets old files keep their types, but many readers lack it. So each file is
first copied with the new types, while writers and readers go on. A copy names its original in its
footer, so a call that was killed leaves its copies to the next call. Then one commit sets the new
types and replaces all files. The commit changes the head, so it begins again after an append, with
the new files; and an append prepared for the old types loses to it, and converts its rows.

A new field of a struct needs no copies, except inside a map: every reader reads it as null.
"""

import contextlib
import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from pyspark_timestream.core.instants import HOUR_US
from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.maintain.background import ORPHAN_RETENTION_HOURS
from pyspark_tseries.maintain.compactor import Merge
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.columns import is_readable_as, type_name, value_type, widen_field
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.series_index import next_metadata
from pyspark_tseries.storage.data_files import DataFile, WrittenFile, read_bounds, read_footer
from pyspark_tseries.storage.location import bears_tag, list_event_files
from pyspark_tseries.storage.row_reader import Footer, OpenFile, load_footer
from pyspark_tseries.storage.snapshot import Snapshot, write_full_head
from pyspark_tseries.store.admin_commits import allow_local_times, require_owner
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import CommitContext, PreparedCommit, Revision

CopyProgress = Callable[[int, int], None]
"""Gets the bytes of files copied so far, and of all files to copy."""

_TO_DO: Final = "give columns wider types"
_COPY_OF: Final = "tseries.copy_of"
"""The key in a copy's footer with the path of its original."""

_COPY_LIFETIME_US: Final = (ORPHAN_RETENTION_HOURS - 4) * HOUR_US
"""Make older copies again: maintenance may remove them just when the commit names them."""

_FEW_FILES: Final = 8
_FEW_BYTES: Final = 8 * 1024 * 1024
_MAX_ROUNDS: Final = 20
"""Copy the last files while writers of this host wait: when at most this many files and bytes are
left, after this many rounds, or once a round leaves as many files as the one before."""


def widen_columns(
    store: Store,
    columns: Sequence[pa.Field],
    *,
    principal: str,
    progress: CopyProgress | None = None,
) -> None:
    """Give value columns the types in `columns`, which are as wide as the present ones, or wider.

    Args:
        store: the store.
        columns: the columns, by their names in any case.
        principal: who does it.
        progress: called after each file.

    Raises:
        IncompatibleValue: a column is not there, or its type is not as wide as the present one.
        PermissionDenied: the store has a policy, and the principal is not an owner.
        StoreBusy: other clients won all attempts.
        WrongClock: the clock is far ahead, or was when the last commit was made.
        OSError: the storage failed.
    """
    _change(store, _Widening(store, columns, principal, progress))


def add_struct_fields(store: Store, columns: Sequence[pa.Field]) -> None:
    """Add struct fields for a writer, without requiring ownership."""
    _change(store, _Widening(store, columns, None, None))


def _change(store: Store, widening: "_Widening") -> None:
    widening.check()
    widening.copy_files()
    with contextlib.suppress(_NothingToWiden):
        store.append(widening)


def _has_local_times(data_type: pa.DataType) -> bool:
    if pa.types.is_struct(data_type):
        return any(_has_local_times(field.type) for field in data_type)
    if pa.types.is_list(data_type):
        return _has_local_times(data_type.value_type)
    return bool(data_type == pa.timestamp("us"))


class _NothingToWiden(Exception):
    """The columns and all files already have these types."""


class _Widening(Revision):
    """The change, and the copies that it can use."""

    def __init__(
        self,
        store: Store,
        columns: Sequence[pa.Field],
        owner: str | None,
        progress: CopyProgress | None,
    ) -> None:
        self._store = store
        self._location = store.location
        self._columns = columns
        self._owner = owner
        self._progress = progress
        self._done = self._total = 0
        self._reported = -1, -1
        self._values: list[pa.Field] = []
        self._groups: dict[str, tuple[int, int]] = {}
        self._copies: dict[str, list[WrittenFile]] = {}
        self._types: dict[str, pa.DataType] = {}
        self._is_narrow: dict[str, bool] = {}

    def check(self) -> None:
        """Refuse wrong columns before any file is copied; let the table have the types."""
        if self._owner is not None:
            require_owner(self._store, self._owner, _TO_DO)
        self._resolve_types(self._store.snapshot())
        if any(_has_local_times(field.type) for field in self._columns):
            allow_local_times(self._store)

    def copy_files(self) -> None:
        """Copy files until few are left; files of new commits come in the next round."""
        snapshot = self._store.snapshot()
        self._resolve_types(snapshot)
        narrow = self._list_narrow(snapshot)
        self._copies = self._adopt_copies(snapshot, narrow)
        before = math.inf
        for _ in range(_MAX_ROUNDS):
            due = self._find_due(narrow)
            if len(due) <= _FEW_FILES and sum(file.size for file in due) <= _FEW_BYTES:
                return
            if len(due) >= before:
                return  # Writers add files as fast as these are copied: more rounds gain nothing.
            before = len(due)
            for file in due:
                self._copy(snapshot, file)
            snapshot = self._store.snapshot()
            self._resolve_types(snapshot)
            narrow = self._list_narrow(snapshot)
            # Leave the copies of files that have left the store to maintenance: another call may
            # have put them in their place.
            for path in self._copies.keys() - snapshot.paths:
                del self._copies[path]

    def revise(self, context: CommitContext, snapshot: Snapshot) -> PreparedCommit:
        """Copy the last files and name all; raise _NothingToWiden if nothing has to change."""
        if self._owner is not None:
            AccessCheck(context.settings.policy, self._owner).require("own", _TO_DO)
        self._resolve_types(snapshot)
        narrow = self._list_narrow(snapshot)
        if self._values == snapshot.values and not narrow:
            raise _NothingToWiden
        for file in self._find_due(narrow):
            self._copy(snapshot, file)
        index = context.index
        metadata = next_metadata(index, context.head_id, now_us=context.now_us, rows=0)
        after, head = write_full_head(
            self._location, context.new_id, dataclasses.replace(index, metadata=metadata)
        )
        return PreparedCommit(
            context.new_id,
            after,
            [copy for file in narrow for copy in self._copies[file.path]],
            [head],
            replaced=tuple(narrow),
            columns=self._types,
        )

    def _resolve_types(self, snapshot: Snapshot) -> None:
        """Give the value columns their new types; raise IncompatibleValue as 35.4 says."""
        fields_by_name = {field.name.lower(): field for field in snapshot.values}
        for field in self._columns:
            stored = fields_by_name.get(field.name.lower())
            if stored is None:
                names = ", ".join(f"'{f.name}' {type_name(f.type)}" for f in snapshot.values)
                raise IncompatibleValue(
                    f"the store at '{snapshot.root}' has no column '{field.name}'",
                    names or "no value columns",
                    "correct the name, or add the column with add_columns",
                )
            fields_by_name[field.name.lower()] = widen_field(stored, field)
        self._values = list(fields_by_name.values())
        types = {
            field.name: field.type
            for field in self._values
            if field.name.lower() in {column.name.lower() for column in self._columns}
        }
        if types != self._types:
            self._types = types
            self._copies = {}
            self._is_narrow = {}

    def _list_narrow(self, snapshot: Snapshot) -> list[DataFile]:
        """Return the files with a column that not every reader reads as its new type."""
        for file in snapshot.files:
            if file.path not in self._is_narrow:
                footer = load_footer(self._location, file)
                self._is_narrow[file.path] = not self._has_types(footer, is_readable_as)
        return [file for file in snapshot.files if self._is_narrow[file.path]]

    def _has_types(self, footer: Footer, fits: Callable[[pa.DataType, pa.DataType], bool]) -> bool:
        """Return whether the type of each column that changes `fits` its new type."""
        return all(
            fits(value_type(field), self._types[field.name])
            for field in footer.metadata.schema.to_arrow_schema()
            if field.name in self._types
        )

    def _find_due(self, narrow: Sequence[DataFile]) -> list[DataFile]:
        """Return the files that have no copy yet, and note the progress."""
        oldest_us = self._store.read_clock() - _COPY_LIFETIME_US
        due = [file for file in narrow if not self._has_copy(file, oldest_us)]
        self._total = sum(file.size for file in narrow)
        self._done = self._total - sum(file.size for file in due)
        self._report()
        return due

    def _report(self) -> None:
        progress = self._done, self._total
        if self._progress is not None and self._total and progress != self._reported:
            self._reported = progress
            self._progress(*progress)

    def _has_copy(self, file: DataFile, oldest_us: int) -> bool:
        """Return whether there is a copy that maintenance will leave until it is committed."""
        copies = self._copies.get(file.path)
        return copies is not None and all(self._is_safe(copy, oldest_us) for copy in copies)

    def _is_safe(self, copy: WrittenFile, oldest_us: int) -> bool:
        path = self._location.file(copy.path)
        identity = self._location.identity(path)
        is_young = identity is not None and identity[1] >= oldest_us * 1000
        return is_young and self._location.has(path, copy.size)

    def _copy(self, snapshot: Snapshot, file: DataFile) -> None:
        """Write the copy of a file; copies of one file group are a group as well."""
        group, number = self._groups.get(file.file_group) or (self._store.new_id(), 0)
        wide = dataclasses.replace(snapshot, values=self._values)
        notes = {_COPY_OF: file.path}
        merge = Merge(self._store, wide, [file], NEVER_US, group=(group, number), notes=notes)
        self._copies[file.path] = merge.write_all()
        self._groups[file.file_group] = group, number + len(self._copies[file.path])
        self._done += file.size
        self._report()

    def _adopt_copies(
        self, snapshot: Snapshot, narrow: Sequence[DataFile]
    ) -> dict[str, list[WrittenFile]]:
        """Return the copies of `narrow` files that earlier calls have completed."""
        due = {file.path: file for file in narrow}
        live = snapshot.paths
        copies_of_files: dict[tuple[str, str], list[tuple[WrittenFile, int]]] = {}
        for stored in list_event_files(self._location):
            if stored.path in live or not bears_tag(stored.path, self._store.id):
                continue
            copy = self._read_copy(stored.path)
            if copy is not None and copy[0] in due:
                file_group = stored.path.rpartition("_")[0]
                copies_of_files.setdefault((copy[0], file_group), []).append(copy[1:])
        return {
            path: [copy for copy, _ in copies]
            for (path, _), copies in copies_of_files.items()
            if sum(rows for _, rows in copies) == due[path].rows
        }

    def _read_copy(self, path: str) -> tuple[str, WrittenFile, int] | None:
        """Return the original of a copy, the copy, and its rows; None if it is not whole."""
        full = self._location.file(path)
        try:
            size = self._location.size(full)
            with self._location.read(full) as source:
                footer = Footer(*read_footer(source, size))
                original = (footer.metadata.metadata or {}).get(_COPY_OF.encode())
                if original is None or not self._has_types(footer, operator.eq):
                    return None
                whole = OpenFile(self._location, source, footer)
                whole.verify(range(footer.group_count), sorted(footer.names))
        except (OSError, pa.ArrowException):
            return None
        stats = read_bounds(self._location, path, size)[0]
        return original.decode(), WrittenFile(path, size, stats), footer.metadata.num_rows
