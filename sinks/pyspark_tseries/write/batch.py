"""One attempt to commit a batch: its rows numbered on top of a head, its files written.

The files count for nothing until a Delta commit names them; an attempt that lost its race is
discarded, and the next one starts from the head that won.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.policy import Guard, Policy
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.model.series_index import NEVER_US, Head, advance, next_note
from pyspark_tseries.storage import data_files as files
from pyspark_tseries.storage.head_files import head_path, write_head
from pyspark_tseries.storage.location import Place
from pyspark_tseries.write.edits import number_edits, targets_of
from pyspark_tseries.write.numbering import Numbered, counted, number
from pyspark_tseries.write.originals import find_originals
from pyspark_tseries.write.rows import EDIT_OF, author_column, event_rows

__all__ = ["Appended", "Attempt", "Batch", "Sight"]


class Appended(Protocol):
    """What a store can append: see `Batch` for the properties and `prepare` for the method."""

    @property
    def token(self) -> tuple[str, int] | None:
        """What makes it happen once."""

    @property
    def has_edits(self) -> bool:
        """Whether `prepare` needs a sight."""

    @property
    def takes_long(self) -> bool:
        """Whether `prepare` may take longer than other writers of the host wait in silence."""

    def prepare(
        self,
        place: Place,
        head_id: int | None,
        head: Head,
        now_us: int,
        new_id: int,
        sight: "Sight | None",
        policy: Policy | None,
    ) -> "Attempt":
        """Writes the files of a commit on top of `head`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to append as a whole.

    Attributes:
        rows: columns of `RowPlan.staged`, one chunk each.
        policy: what becomes of late rows: `fail`, `drop` or `adjust`.
        author: of the rows that name none.
        principal: who appends; None: the author.
        missing: what becomes of edits without an original: `fail` or `drop`.
        clock: what assigns timestamps: `wall`, the commit's time, or `event`, the series' newest.
        token: (application, version): a batch is skipped where the store has this version of the
            application, or a higher one; None appends always.
    """

    rows: pa.Table
    policy: str
    author: str
    token: tuple[str, int] | None = None
    principal: str | None = None
    missing: str = "fail"
    clock: str = "wall"

    @property
    def has_edits(self) -> bool:
        """Whether a row is an edit."""
        column = self.rows[EDIT_OF.name]
        return bool(column.null_count < len(column))

    @property
    def takes_long(self) -> bool:
        """Never: its rows are few."""
        return False

    def prepare(
        self,
        place: Place,
        head_id: int | None,
        head: Head,
        now_us: int,
        new_id: int,
        sight: "Sight | None",
        policy: Policy | None,
    ) -> "Attempt":
        """Numbers the rows on top of `head` and writes the files of the commit.

        Args:
            place: where the store lies.
            head_id: the id of `head`; None before the first commit.
            head: the store as it is.
            now_us: the wall clock; the commit's time where it is not before the last commit's.
            new_id: the id of the new head, unlike any other.
            sight: as of `head`; needed where the batch has edits.
            policy: the store's, None where everything is allowed.

        Raises:
            UpdateFailed: a row may not be added; nothing has been written.
            NoSuchEvent: an edit may not; nothing has been written.
            PermissionDenied: the policy does not allow it; nothing has been written.
        """
        guard = Guard(policy, self.author if self.principal is None else self.principal)
        _check_update(guard, self)
        now_us = max(now_us, head.note.commit_us)
        assigned_us = now_us if self.clock == "wall" else NEVER_US
        rows, edits = self.rows, None
        if sight is not None and self.has_edits:
            rows, edits = _parted(self.rows)
        series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        parts = [_Part("event", rows, number(series, given, head, self.policy, assigned_us))]
        if edits is not None and sight is not None:
            parts.append(_edited(place, edits, parts[0], self, head, assigned_us, sight, guard))
        delta = parts[-1].events.delta
        note = next_note(head, head_id, now_us=now_us, rows=delta.num_rows)
        for part in parts:
            note = counted(note, part.events)
        after, table = advance(head, delta, note)
        paths, written = [head_path(place, new_id)], []
        try:
            write_head(place, new_id, table)
            for part in parts:
                if len(part.events.order):
                    path = f"kind={part.kind}/{note.commit:010d}-{new_id:016x}.parquet"
                    paths.append(place.file(path))
                    table = event_rows(part.rows, part.events, note, self.author, part.originals)
                    written.append(files.write_events(place, path, table))
        except OSError:
            place.remove(paths)  # Of a full disk, say.
            raise
        return Attempt(new_id, after, written, paths, tuple(part.events for part in parts))


@dataclass(frozen=True, slots=True)
class Sight:
    """What edits are judged by besides the head: the store's files and its retained range."""

    files: list[files.DataFile]
    retained: RetainedRange


@dataclass(frozen=True, slots=True)
class Attempt:
    """Files written for a commit.

    Attributes:
        head_id: the id of the new head.
        head: the store as it is after the commit.
        written: the files of events and edits; none where the batch was dropped whole.
        paths: all files, to discard.
        numbered: what became of the appends, and where there are any of the edits.
    """

    head_id: int
    head: Head
    written: list[files.WrittenFile]
    paths: list[str]
    numbered: tuple[Numbered, ...] = ()


def _check_update(guard: Guard, batch: Batch) -> None:
    if guard.policy is not None:
        guard.need("update", "add events")
        guard.need_authors([batch.author])
        guard.need_authors(batch.rows["author"].drop_null().unique().to_pylist())


@dataclass(frozen=True, slots=True)
class _Part:
    """The appends of a batch, or its edits; `events` are in terms of `rows`."""

    kind: str
    rows: pa.Table
    events: Numbered
    originals: list[pa.Array] | None = None


def _parted(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The appends and the edits."""
    edit = rows[EDIT_OF.name].is_valid()
    return rows.filter(pc.invert(edit)).combine_chunks(), rows.filter(edit).combine_chunks()


def _edited(
    place: Place,
    rows: pa.Table,
    appends: _Part,
    batch: Batch,
    head: Head,
    assigned_us: int,
    sight: Sight,
    guard: Guard,
) -> _Part:
    series, sequence = (rows[name].combine_chunks() for name in ("series", EDIT_OF.name))
    targets = find_originals(place, sight.files, targets_of(series, sequence))
    authors = author_column(appends.rows["author"], appends.events, batch.author)
    targets = targets.in_batch(head, appends.events, authors)
    if guard.policy is not None:
        guard.need_edits(targets.author.drop_null().unique().to_pylist())
    edited = number_edits(targets, head, appends.events, sight.retained, batch.missing, assigned_us)
    return _Part("edit", rows, edited.events, edited.originals)
