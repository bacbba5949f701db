"""One attempt to commit a batch: its rows numbered from the current index, its files written.

The store keeps, of each query and application, the number of its last batch and a digest of that
batch's rows (`model/row_digest.py`), as transactions of its Delta log.

The files are not part of the store until a Delta commit names them. After a lost race the attempt
is discarded, and the next one starts from the index of the winner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import ReplayDiffers
from pyspark_tseries.model.arrays import NEVER_US, Int64Array
from pyspark_tseries.model.policy import AccessCheck, Policy
from pyspark_tseries.model.retention import UNLIMITED, RetainedRange
from pyspark_tseries.model.series_index import SeriesIndex, advance_index, next_metadata
from pyspark_tseries.storage import data_files as files
from pyspark_tseries.storage.head_files import head_path, write_head
from pyspark_tseries.storage.location import Location
from pyspark_tseries.write.edits import find_originals, make_targets, number_edits
from pyspark_tseries.write.numbering import (
    FutureLimit,
    NumberedRows,
    add_counts,
    number_rows,
    record_cti,
)
from pyspark_tseries.write.rows import EDIT_OF, author_column, build_events

QUERY_PREFIX: Final = "tseries:q:"
"""The prefix of a streaming query's mark, before its id."""

APPLICATION_PREFIX: Final = "tseries:app:"
"""The prefix of the mark of a `txnAppId`."""

_DIGEST_PREFIX: Final = "tseries:rows:"


def digest_mark(mark: str) -> str:
    """The transaction with the digest of the last batch of the writer `mark`."""
    return _DIGEST_PREFIX + mark.removeprefix("tseries:")


def make_marks(token: tuple[str, int] | None, digest: int | None) -> dict[str, int]:
    """The transactions of a batch: its number, and the digest of its rows if that is known."""
    if token is None:
        return {}
    return {token[0]: token[1], **({} if digest is None else {digest_mark(token[0]): digest})}


def is_replay(
    root: str, token: tuple[str, int], digest: int | None, last: int | None, stored: int | None
) -> bool:
    """True if a batch is the last one of its writer again, False if it is new.

    Args:
        root: the store's location, for people.
        token: the writer's mark, and the number of the batch.
        digest: of its rows; None: unknown.
        last: the number of the writer's last batch in the store; None if it has none.
        stored: the digest of that batch; None: unknown.

    Raises:
        ReplayDiffers: it lies before that batch, or is that batch with other rows.
    """
    mark, batch = token
    if last is None or batch > last:
        return False
    if batch < last:
        raise _older_batch_error(root, mark, batch, last)
    if digest is not None and stored is not None and digest != stored:
        raise _other_rows_error(root, mark, batch)
    return True


def _older_batch_error(root: str, mark: str, batch: int, last: int) -> ReplayDiffers:
    if mark.startswith(APPLICATION_PREFIX):
        name = mark.removeprefix(APPLICATION_PREFIX)
        return ReplayDiffers(
            f"txnVersion {batch} of txnAppId '{name}' is to be stored, and the store '{root}' has "
            f"its version {last}",
            f"a txnVersion above {last}, or {last} again with the same rows",
            "give the write another txnAppId if it is new work: the numbers of batches begin at 0 "
            "again with a new or deleted checkpoint. Nothing of the batch is stored",
        )
    return ReplayDiffers(
        f"batch {batch} of query {_query_id(mark)} is to be stored, and the store '{root}' has its "
        f"batch {last}: the checkpoint is older than the store, as one that was put back",
        f"a batch above {last}, or batch {last} again with the same rows",
        "put the newer checkpoint back, or a state of the store that is as old as the checkpoint "
        "(a backup of both); or start with a new checkpointLocation, and let the source start "
        "behind what is stored (startingOffsets, startingTimestamp). Nothing of the batch is "
        "stored",
    )


def _other_rows_error(root: str, mark: str, batch: int) -> ReplayDiffers:
    if mark.startswith(APPLICATION_PREFIX):
        name = mark.removeprefix(APPLICATION_PREFIX)
        return ReplayDiffers(
            f"txnVersion {batch} of txnAppId '{name}' comes again with other rows than those that "
            f"the store '{root}' has of it",
            "the same rows, in any order",
            "give the write the same input again; or keep the rows that are stored, and leave this "
            "version out; or, if these are new rows and no repetition, give them a greater "
            "txnVersion. Values such as the current time differ at each evaluation: leave them "
            "out, or persist the DataFrame. Nothing of the batch is stored",
        )
    before = f"'commits/{batch - 1}'" if batch else "a file with the lines v1 and {}"
    return ReplayDiffers(
        f"batch {batch} of query {_query_id(mark)} comes again with other rows than those that the "
        f"store '{root}' has of it: an older checkpoint was put back, the query or its input has "
        "changed, or its rows are not determined by its input (random values, the order of a list)",
        "the same rows, in any order",
        "put the newer checkpoint back; or give the query the code and input of before until this "
        "batch is through; or keep the rows that are stored, and go on with the next batch: copy "
        f"{before} of the checkpoint to 'commits/{batch}'. Nothing of the batch is stored",
    )


def _query_id(mark: str) -> str:
    return mark.rpartition(":")[2]


class Appendable(Protocol):
    """Rows that a store can append; `Batch` describes the members."""

    @property
    def token(self) -> tuple[str, int] | None:
        """Identifies the batch, so that it is committed once."""

    @property
    def digest(self) -> int | None:
        """The number of its rows, by which a batch that comes again is known; None: unknown."""

    @property
    def has_edits(self) -> bool:
        """True if `prepare` needs `CommitContext.edits`."""

    @property
    def is_slow(self) -> bool:
        """True if `prepare` needs a heartbeat, so that other writers of the host go on waiting."""

    def prepare(self, context: "CommitContext") -> "PreparedCommit":
        """Write the files of a commit, which stay invisible until it is published."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to append atomically.

    Attributes:
        rows: columns of `RowPlan.staged`, one chunk each.
        out_of_order: the policy for late rows: `fail`, `drop` or `adjust`.
        author: of rows without one.
        principal: the one who appends; None: the author.
        missing_original: the policy for edits without an original: `fail` or `drop`.
        clock: the source of missing timestamps: `wall`, the time of the commit, or `event`, the
            newest timestamp of the series.
        token: (application, version): the batch is skipped if the store's last version of the
            application is this one, and refused if it is a higher one; None always appends.
        cti_us: the CTI of the writer once the batch is stored; None if it gives none.
        joins: its query becomes a writer by it, whatever it appends.
        is_correction: its originals may lie before the store's CTI, and make nobody a writer.
        digest: of its rows, as `digest_rows` makes it; None: they are not compared with those that
            the store has of the same token.
        future: how far ahead of the commit a timestamp may be.
    """

    rows: pa.Table
    out_of_order: str
    author: str
    token: tuple[str, int] | None = None
    principal: str | None = None
    missing_original: str = "fail"
    clock: str = "wall"
    cti_us: int | None = None
    joins: bool = False
    is_correction: bool = False
    digest: int | None = None
    future: FutureLimit = FutureLimit()

    @property
    def has_edits(self) -> bool:
        """True if a row is an edit."""
        column = self.rows[EDIT_OF.name]
        return bool(column.null_count < len(column))

    @property
    def is_slow(self) -> bool:
        """Never: its rows are few."""
        return False

    def prepare(self, context: "CommitContext") -> "PreparedCommit":
        """Number the rows on top of the context's index and write the files of the commit.

        Raises:
            UpdateFailed: a row may not be added; nothing has been written.
            NoSuchEvent: an edit may not; nothing has been written.
            PermissionDenied: the policy does not allow it; nothing has been written.
        """
        location, index = context.location, context.index
        access = self._check_access(context)
        now_us = max(context.now_us, index.metadata.commit_us)
        rows, edits = self.rows, None
        if context.edits is not None and self.has_edits:
            rows, edits = _split_edits(self.rows)
        events = self._number(rows, context)
        parts = [_NumberedPart("event", rows, events)]
        if edits is not None:
            parts.append(
                _prepare_edits(edits, parts[0], self, context, self._assigned_us(context), access)
            )
        delta = parts[-1].events.delta
        marks = make_marks(self.token, self.digest)
        metadata = next_metadata(
            index, context.head_id, now_us=now_us, rows=delta.num_rows, marks=marks
        )
        for part in parts:
            metadata = add_counts(metadata, part.events)
        if not self.is_correction:
            appends = self.joins or bool(len(events.order))
            metadata = record_cti(metadata, self.token, self.cti_us, appends=appends)
        after, table = advance_index(index, delta, metadata)
        paths, written = [head_path(location, context.new_id)], []
        try:
            write_head(location, context.new_id, table)
            for part in parts:
                if len(part.events.order):
                    name = f"{metadata.commit:010d}-{context.new_id:016x}.parquet"
                    path = f"kind={part.kind}/{name}"
                    paths.append(location.file(path))
                    table = build_events(
                        part.rows, part.events, metadata, self.author, part.originals
                    )
                    written.append(files.write_events(location, path, table))
        except OSError:
            location.remove(paths)  # The disk may be full.
            raise
        numbered = tuple(part.events for part in parts)
        return PreparedCommit(context.new_id, after, written, paths, numbered)

    def number_appends(self, context: "CommitContext") -> NumberedRows:
        """Number the rows, none an edit, as `prepare` does; raises what it raises of rows."""
        self._check_access(context)
        return self._number(self.rows, context)

    def _number(self, rows: pa.Table, context: "CommitContext") -> NumberedRows:
        series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        lookup = _WithoutPromise(context.index) if self.is_correction else context.index
        latest_us = max(context.now_us, context.index.metadata.commit_us)
        future = self.future.rule(context.retained, latest_us)
        assigned_us = self._assigned_us(context)
        return number_rows(series, given, lookup, self.out_of_order, assigned_us, future)

    def _assigned_us(self, context: "CommitContext") -> int:
        """The time that a row without a timestamp gets at least, for `number_rows`."""
        latest_us = max(context.now_us, context.index.metadata.commit_us)
        return latest_us if self.clock == "wall" else NEVER_US

    def _check_access(self, context: "CommitContext") -> AccessCheck:
        principal = self.author if self.principal is None else self.principal
        access = AccessCheck(context.policy, principal)
        if access.policy is not None:
            access.require("update", "add events")
            access.require_authors([self.author])
            access.require_authors(self.rows["author"].drop_null().unique().to_pylist())
        return access


@dataclass(frozen=True, slots=True)
class EditContext:
    """The files and the retained range of a store: they decide which originals may be edited."""

    files: list[files.DataFile]
    retained: RetainedRange


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The state of a store that a commit is prepared on top of.

    Attributes:
        location: of the store.
        head_id: names the head file of `index`; None before the first commit.
        index: the series index after the last commit.
        now_us: the wall clock; the commit's time unless the last commit's is later.
        new_id: a unique id for the new head file.
        edits: as of `index`; needed where the batch has edits.
        policy: the store's; None allows everything.
        retained: the store's retained range.
    """

    location: Location
    head_id: int | None
    index: SeriesIndex
    now_us: int
    new_id: int
    edits: EditContext | None = None
    policy: Policy | None = None
    retained: RetainedRange = UNLIMITED


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """Files written for a commit.

    Attributes:
        head_id: the id of the new head.
        index: the store as it is after the commit.
        written: the files of events and edits; empty where all rows were dropped.
        paths: full paths of all files, to remove if the commit fails.
        numbered: the appends, then the edits if there are any.
    """

    head_id: int
    index: SeriesIndex
    written: list[files.WrittenFile]
    paths: list[str]
    numbered: tuple[NumberedRows, ...] = ()


@dataclass(frozen=True, slots=True)
class _WithoutPromise:
    """An index whose store promises nothing."""

    index: SeriesIndex
    cti_us: int = NEVER_US

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        return self.index.lookup(names)


@dataclass(frozen=True, slots=True)
class _NumberedPart:
    """The appends of a batch, or its edits; `events.order` refers to `rows`."""

    kind: str
    rows: pa.Table
    events: NumberedRows
    originals: list[pa.Array] | None = None


def _split_edits(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The appends and the edits."""
    edit = rows[EDIT_OF.name].is_valid()
    return rows.filter(pc.invert(edit)).combine_chunks(), rows.filter(edit).combine_chunks()


def _prepare_edits(
    rows: pa.Table,
    appends: _NumberedPart,
    batch: Batch,
    context: CommitContext,
    assigned_us: int,
    access: AccessCheck,
) -> _NumberedPart:
    assert context.edits is not None
    index, retained = context.index, context.edits.retained
    series, sequence = (rows[name].combine_chunks() for name in ("series", EDIT_OF.name))
    targets = find_originals(context.location, context.edits.files, make_targets(series, sequence))
    authors = author_column(appends.rows["author"], appends.events, batch.author)
    targets = targets.with_batch_originals(index, appends.events, authors)
    if access.policy is not None:
        access.require_edits(targets.author.drop_null().unique().to_pylist())
    edited = number_edits(
        targets, index, appends.events, retained, batch.missing_original, assigned_us
    )
    return _NumberedPart("edit", rows, edited.events, edited.originals)
