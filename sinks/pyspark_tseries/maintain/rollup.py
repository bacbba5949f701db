"""`rollup`: keep the buckets of a store in another one, and correct them (semantics 36).

A run finds what changed since the commit that the last run covered: the rows of later commits, and
later acts of erasing. Two things are due. Of a series with new originals (or of all, if the
source's CTI has come to another bucket) the buckets that are complete now and lie behind those that
the rollup has; and all buckets that the rollup has and a change has touched. `downsample` answers
for both. New buckets are appended, and those whose aggregates differ are edited.

Only the last commit of a run names the commit that it covers. A run that was killed before is done
again: what it wrote is then there, and is neither appended nor edited again. Each commit expects
the head of the rollup that the run has seen, so of two runs one writes, and the other begins again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import (
    HistoryChanged,
    IncompatibleValue,
    InvalidQuery,
    OutOfOrder,
    ReplayDiffers,
    StoreMismatch,
    UnusableStore,
)
from pyspark_tseries.maintain.background import maintain_after_commit
from pyspark_tseries.model.arrays import (
    MAX_NUMBER,
    NEVER_US,
    BoolArray,
    Int64Array,
    KeyRange,
    encode_runs,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.buckets import parse_buckets
from pyspark_tseries.model.columns import INSTANT, fits, new_value_field, type_name
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.model.downsampling import (
    BEGUN,
    CHANGES,
    COVERED,
    PROPERTY,
    REASON,
    RollupSettings,
    check_aggregates,
    flag_changed,
    fold_changes,
    merge_ranges,
    parse_aggregates,
    parse_settings,
    tell_reasons,
)
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import (
    UNLIMITED,
    Point,
    Query,
    Range,
    RetainedRange,
    format_range,
    min_retained,
)
from pyspark_tseries.read.downsample import downsample
from pyspark_tseries.read.scan import run_query, sample_series
from pyspark_tseries.read.view import known_series
from pyspark_tseries.storage.erasures import read_records
from pyspark_tseries.storage.failures import named_failures
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows, scan_file
from pyspark_tseries.store.commit_history import describe_change, is_given_up
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch, CommitContext, PreparedCommit, digest_transaction
from pyspark_tseries.write.numbering import FutureLimit
from pyspark_tseries.write.rows import EDIT_OF, staged_schema

MAX_BUCKETS_PER_COMMIT: Final = 100_000
"""A run with more buckets makes several commits."""

MAX_EVENTS_AT_ONCE: Final = 1_000_000
"""Read about this many events of a group of series at once."""

MAX_GROUP_BYTES: Final = 64 * 1024 * 1024
"""The stored size of the files of about as many series as are read at once."""

MAX_RANGES: Final = 32
"""Read the buckets that have changed in at most this many ranges of time."""

_CHANGED_COLUMNS: Final = (
    *("series", "sequence", "timestamp", "author"),
    *("original_sequence", "original_timestamp", "commit"),
)
_ANY_FUTURE: Final = FutureLimit(MAX_NUMBER)


@dataclass(frozen=True, slots=True)
class RollupResult:
    """What a run of a rollup did.

    Attributes:
        added: how many buckets it appended.
        edited: how many buckets it edited.
        left: how many buckets have changed in the source and stay as they are: the rollup does not
            have them, or the source has not all of their events any more.
        covered: the source's commit up to which the rollup has everything; -1: it has no commit.
    """

    added: int
    edited: int
    left: int
    covered: int


@dataclass(frozen=True, slots=True)
class RollupOptions:
    """What a caller asks of a rollup; None stands for what the rollup has.

    Attributes:
        every: the width of the buckets.
        aggregates: column -> function, or name -> (column, function).
        timezone: the time zone of the buckets.
        origin: a time at which a bucket begins.
        retained: the retained range of a new rollup; None: unlimited.
    """

    every: str | timedelta | None = None
    aggregates: Mapping[str, Any] | None = None
    timezone: str | None = None
    origin: datetime | None = None
    retained: RetainedRange | None = None


def rollup(
    source: Store,
    into: Location,
    asked: RollupOptions,
    author: str,
    *,
    synced: bool = True,
    auto_compact: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> RollupResult:
    """Bring the rollup of `source` at `into` up to date; create it if there is none.

    Args:
        source: the store.
        into: where the rollup is, or will be.
        asked: its settings; of a rollup that is there, those that are given must be its own.
        author: who reads the source, and the author of new buckets.
        synced: True if the rollup's commits must survive a power loss.
        auto_compact: True if commits start the maintenance of the rollup when it is due.
        progress: called with a line after each commit but the last one.

    Raises:
        InvalidQuery: a setting is wrong, or differs from the rollup's.
        UnusableStore: the store at `into` is no rollup.
        StoreMismatch: it is the rollup of another store.
        HistoryChanged: the source lacks the commit that the rollup covers: it was put back.
        PermissionDenied: the author may not read the source, or not write to the rollup.
        StoreBusy: other runs won every attempt.
    """
    source.refresh()
    AccessCheck(source.settings.policy, author).require_query(Query())
    with named_failures(into, is_new=True):
        target, settings = _open_rollup(source, into, asked)
    counts = _Counts()
    for attempt in range(target.retrying.commits):
        run = _RollupRun(source, target, settings, author, counts, synced=synced, progress=progress)
        try:
            with named_failures(into):
                covered = run.run()
        except (_RollupChanged, ReplayDiffers):
            target.retrying.pause(attempt)
            continue
        if auto_compact and run.has_committed:
            maintain_after_commit(target)
        return RollupResult(counts.added, counts.edited, run.left, covered)
    raise target.busy_error(target.retrying.commits, "the rollup has what they wrote")


def _open_rollup(
    source: Store, into: Location, asked: RollupOptions
) -> tuple[Store, RollupSettings]:
    if into == source.location:
        raise InvalidQuery(
            f"'{into.root}' is the source itself", "another path", "give the rollup its own"
        )
    target = Store.find(into)
    if target is None:
        target = _create_rollup(source, into, asked)
    settings = parse_settings(target.properties(), into.root)
    if settings is None:
        raise UnusableStore(
            f"the store '{into.root}' is no rollup",
            "a path where nothing is, or a rollup",
            "give the rollup a path of its own",
        )
    if settings.source != source.id:
        raise StoreMismatch(
            f"'{into.root}' is the rollup of another store than the one now at '{source.root}'",
            "the store that it was made of, or a later state of that",
            "correct the path; or begin a new rollup at another one. Nothing is stored",
        )
    _check_settings(source, into, asked, settings)
    _check_columns(source, target, settings)
    kept = target.settings.retained
    if asked.retained is not None and asked.retained != kept:
        raise _other_setting(
            into, "retained_range", format_range(kept), format_range(asked.retained)
        )
    return target, settings


def _create_rollup(source: Store, into: Location, asked: RollupOptions) -> Store:
    if asked.every is None or asked.aggregates is None:
        missing = "every" if asked.every is None else "aggregates"
        raise InvalidQuery(
            f"there is no rollup at '{into.root}' yet, and {missing} is not given",
            "the width of its buckets and their aggregates, such as '1 hour' and celsius = mean",
            f"give {missing}, or correct the path",
        )
    settings = _parse_settings(source, asked)
    values = [new_value_field(field) for field in settings.values(pa.schema(source.values))]
    retained = asked.retained or UNLIMITED
    return Store.create(into, values, retained, others={PROPERTY: settings.to_json()})


def _parse_settings(
    source: Store, asked: RollupOptions, kept: RollupSettings | None = None
) -> RollupSettings:
    """Return the settings that are asked for; what is not is as `kept`."""
    if asked.every is not None:
        buckets = parse_buckets(asked.every, asked.timezone, asked.origin)
    elif kept is None or asked.timezone is not None or asked.origin is not None:
        raise InvalidQuery(
            "timezone and origin are those of buckets",
            "every beside them",
            "give every, or leave them out",
        )
    else:
        buckets = kept.buckets
    if asked.aggregates is None and kept is not None:
        return RollupSettings(source.id, buckets, kept.aggregates)
    wanted = {} if asked.aggregates is None else asked.aggregates
    if not isinstance(wanted, Mapping):
        raise InvalidQuery(
            f"aggregates {show_value(wanted)} does not name columns",
            "a mapping such as {'celsius': 'mean', 'n': ('*', 'count')}",
            "name each column of the rollup, and what it is",
        )
    aggregates = parse_aggregates(pa.schema(source.values), dict(wanted))
    check_aggregates(aggregates)
    return RollupSettings(source.id, buckets, aggregates)


def _check_settings(
    source: Store, into: Location, asked: RollupOptions, kept: RollupSettings
) -> None:
    given = _parse_settings(source, asked, kept)
    if (given.buckets, set(given.aggregates)) == (kept.buckets, set(kept.aggregates)):
        return
    has, wanted = kept.describe(), given.describe()
    name = next((name for name in has if has[name] != wanted[name]), "every")
    raise _other_setting(into, name, has[name], wanted[name])


def _other_setting(into: Location, name: str, has: str, given: str) -> InvalidQuery:
    return InvalidQuery(
        f"the rollup '{into.root}' has {name} '{has}', and '{given}' is asked for",
        f"'{has}': the settings of a rollup never change",
        f"leave {name} out, or begin another rollup at a path of its own",
    )


def _check_columns(source: Store, target: Store, settings: RollupSettings) -> None:
    known = {field.name: field.type for field in target.values}
    for field in settings.values(pa.schema(source.values)):
        kind = new_value_field(field).type
        if known.get(field.name) != kind:
            raise IncompatibleValue(
                f"column '{field.name}' of the rollup '{target.root}' would be of type "
                f"{type_name(kind)} now",
                f"{type_name(known[field.name])}, as the rollup was made"
                if field.name in known
                else None,
                "make it wider: open the rollup, call widen_columns with this column and type, and "
                "run the rollup again"
                if field.name in known and fits(known[field.name], kind)
                else "begin another rollup at a path of its own",
            )


class _RollupChanged(Exception):
    """Another client has committed to the rollup since this run read it."""


@dataclass(slots=True)
class _Counts:
    """How many buckets were committed."""

    added: int = 0
    edited: int = 0


@dataclass(frozen=True, slots=True)
class _ExpectedBatch:
    """An `Appendable`: a batch that is committed only on top of one head."""

    batch: Batch
    head_id: int | None

    @property
    def token(self) -> tuple[str, int] | None:
        return self.batch.token

    @property
    def digest(self) -> int | None:
        return self.batch.digest

    @property
    def has_edits(self) -> bool:
        return self.batch.has_edits

    @property
    def is_slow(self) -> bool:
        return self.batch.is_slow

    def prepare(self, context: CommitContext) -> PreparedCommit:
        if context.head_id != self.head_id:
            raise _RollupChanged
        return self.batch.prepare(context)


@dataclass(frozen=True, slots=True)
class _DueRows:
    """What a run reads, by series.

    Attributes:
        names: the series, sorted.
        lows: the start of the first bucket of each that may be new.
        highs: the end of the last one; `lows` if there is none.
        changes: the last change of each bucket that the rollup has.
        codes: the position in `names` of the series of each change.
        starts: the start of the bucket of each.
    """

    names: pa.Array
    lows: Int64Array
    highs: Int64Array
    changes: pa.Table
    codes: Int64Array
    starts: Int64Array


@dataclass(frozen=True, slots=True)
class _DueRange:
    """A range of time of what is due: new buckets of some series, or changed ones.

    Attributes:
        low: its start.
        high: its end, exclusive.
        new: the positions in `_DueRows.names` of series with new buckets.
        changed: the positions of changes.
    """

    low: int
    high: int
    new: Int64Array
    changed: Int64Array


class _RollupRun:
    """One attempt to bring a rollup up to date.

    Attributes:
        left: how many changed buckets were not found, so far.
        has_committed: True if the run has made a commit.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        settings: RollupSettings,
        author: str,
        counts: _Counts,
        *,
        synced: bool,
        progress: Callable[[str], None],
    ) -> None:
        # The rollup first: what it covers is then in the source that is read after it.
        self._target, self._there = target, target.snapshot()
        self._head_id = self._there.head_id
        self._source, self._snapshot = source, source.snapshot()
        self._index, self._target_index = self._snapshot.index(), self._there.index()
        self._settings, self._buckets = settings, settings.buckets
        self._wanted = settings.downsampling
        self._author, self._counts = author, counts
        self._synced, self._progress = synced, progress
        self._schema = staged_schema(target.values)
        self._rows: list[pa.Table] = []
        self._held = _Counts()
        self._since, self._is_first = self._find_covered()
        self.left, self.has_committed = 0, False

    def run(self) -> int:
        """Write all that is due; return the source's commit that the rollup then covers."""
        commit = self._snapshot.metadata.commit
        since = self._since
        if since is not None:
            self._check_source(since)
        covered = -1 if since is None else since.number
        if commit <= covered and not self._is_first:
            return covered
        if commit < 0:
            return -1
        due = self._find_due()
        self.left = due.changes.num_rows
        for part in self._divide_due(due):
            self._roll(due, part)
        self._commit(is_last=True)
        return commit

    def _find_covered(self) -> tuple[CommitId | None, bool]:
        """Return the source's commit that the rollup covers, and whether its first run is due."""
        transaction = self._target.transaction
        for name, is_first in ((COVERED, False), (BEGUN, True)):
            number, commit_id = transaction(name), transaction(digest_transaction(name))
            if number is not None and commit_id is not None:
                return CommitId(number, commit_id), is_first
        return None, True

    def _check_source(self, since: CommitId) -> None:
        change = describe_change(self._source, since)
        if change is None or is_given_up(self._source.location, since):
            return
        raise HistoryChanged(
            f"the store '{self._source.root}' {change}, and its rollup '{self._target.root}' has "
            f"seen {since} there: an older state of the store was put back, or another copy of it",
            "the store that the rollup was made of, or a later state of that",
            "put that state of the store back; or the rollup of the same backup, which goes on "
            "from there; or begin a new rollup at another path. Nothing is stored",
        )

    # -- what is due -----------------------------------------------------------------------------

    def _find_due(self) -> _DueRows:
        changes = [CHANGES.empty_table()]
        touched: set[str] = set()
        if self._since is not None:
            for some, got in self._read_changes(self._since.number):
                changes.append(some)
                touched |= got
                if sum(table.num_rows for table in changes) > MAX_BUCKETS_PER_COMMIT:
                    changes = [fold_changes(pa.concat_tables(changes))]
            changes.append(self._read_erasures(self._since.number))
        folded = fold_changes(pa.concat_tables(changes))
        series = known_series(self._index) if self._is_first else self._add_by_cti(touched)
        pending = self._find_pending(series)
        names = sorted({*pending, *folded["series"].unique().to_pylist()})
        ends = np.array([pending.get(name, (0, 0)) for name in names], np.int64).reshape(-1, 2)
        array = pa.array(names, pa.string())
        codes = pc.index_in(folded["series"], array).to_numpy().astype(np.int64)
        starts = to_int64(folded["timestamp"])
        return _DueRows(array, ends[:, 0], ends[:, 1], folded, codes, starts)

    def _next_starts(self, names: Sequence[str]) -> Int64Array:
        """Return where the first bucket behind those of the rollup begins; NEVER_US without any."""
        newest = self._target_index.lookup(names)["original_us"]
        has = newest != NEVER_US
        starts = np.full(len(names), NEVER_US, np.int64)
        starts[has] = self._buckets.ends(self._buckets.starts(newest[has]))
        return starts

    def _find_pending(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return for each series with buckets to add where the first begins and the last ends."""
        states = self._index.lookup(names)
        reach = np.maximum(states["original_us"], self._index.cti_us)
        lows = self._next_starts(names)
        known = (states["original_us"] != NEVER_US) & (states["last_sequence"] >= 0)
        first_us = states["first_us"]
        oldest_us = min((file.min_us for file in self._snapshot.files), default=0)
        first_us = np.where(first_us == NEVER_US, oldest_us, first_us)
        new = known & (lows == NEVER_US)
        lows[new] = self._buckets.starts(first_us[new])
        highs = lows.copy()
        highs[known] = self._buckets.starts(reach[known])
        rows = np.flatnonzero(known & (highs > lows))
        ends = zip(lows[rows].tolist(), highs[rows].tolist(), strict=True)
        return dict(zip((names[row] for row in rows.tolist()), ends, strict=True))

    def _add_by_cti(self, touched: set[str]) -> list[str]:
        """Return the touched series, and those whose newest bucket the CTI has completed."""
        ctis = self._snapshot.metadata.ctis
        assert self._since is not None
        before, now = ctis.cti_at(self._since.number), ctis.store_us
        if now is None or (before is not None and not self._is_later(before, now)):
            return sorted(touched)
        names = known_series(self._index)
        newest = self._index.lookup(names)["original_us"]
        rows = np.flatnonzero(newest != NEVER_US)
        starts = self._buckets.starts(newest[rows])
        next_starts = self._next_starts([names[row] for row in rows.tolist()])
        rows = rows[(starts >= next_starts) & (newest[rows] < now)]
        return sorted(touched.union(names[row] for row in rows.tolist()))

    def _is_later(self, before: int, now: int) -> bool:
        first, last = self._buckets.starts(np.array([before, now])).tolist()
        return bool(last > first)

    def _read_changes(self, since: int) -> Iterator[tuple[pa.Table, set[str]]]:
        """Yield the changes in later commits, and the series that got originals there."""
        location = self._snapshot.location
        later = RowFilter(commits=(since + 1, MAX_NUMBER))
        for file in self._snapshot.files:
            if file.last_commit <= since:
                continue
            for rows in scan_file(location, file, BASE_SCHEMA, _CHANGED_COLUMNS, later):
                is_original = rows["original_sequence"].is_null()
                names = set(rows["series"].filter(is_original).unique().to_pylist())
                yield fold_changes(self._find_changes(rows)), names

    def _find_changes(self, rows: pa.Table) -> pa.Table:
        """Return the rows whose bucket the rollup may have as changes, each of one event."""
        names, codes = encode_runs(rows["series"])
        us = pc.coalesce(rows["original_timestamp"], rows["timestamp"])
        starts = self._buckets.starts(to_int64(us))
        is_rolled = pa.array(starts < self._next_starts(names.to_pylist())[codes])
        size = rows.num_rows
        columns = [
            rows["series"].cast(pa.string()),
            pa.chunked_array([pa.array(starts).cast(INSTANT)]),
            *(rows[name] for name in ("commit", "sequence")),
            pc.coalesce(rows["original_sequence"], rows["sequence"]),
            rows["author"].cast(pa.string()),
            rows["because"] if "because" in rows.column_names else pa.nulls(size, pa.string()),
            pa.array(np.ones(size, np.int64)),
        ]
        return pa.Table.from_arrays(columns, schema=CHANGES).filter(is_rolled)

    def _read_erasures(self, since: int) -> pa.Table:
        """Return the events that were erased in later commits as changes."""
        erased = [CHANGES.empty_table()]
        for record in read_records(self._snapshot.location, self._snapshot.metadata.erasure):
            act = record.act
            if act.commit <= since:
                break
            events = pa.array(act.events, pa.int64())
            if not len(events):
                continue
            ends = min(act.events), max(act.events)
            files = [
                file
                for file in self._snapshot.files
                if file.first <= act.series <= file.last
                and file.max_sequence >= ends[0]
                and file.min_sequence <= ends[1]
            ]
            row_filter = RowFilter([act.series], sequences=ends)
            is_meant = pc.field("sequence").isin(events)
            rows = read_rows(
                self._snapshot.location, files, BASE_SCHEMA, _CHANGED_COLUMNS, row_filter, is_meant
            )
            # An edit whose original is erased by the same act is no change of its own.
            rows = rows.filter(pc.invert(pc.is_in(rows["original_sequence"], events)))
            size = rows.num_rows
            for name, value in (("commit", act.commit), ("author", act.principal)):
                column = rows.schema.get_field_index(name)
                rows = rows.set_column(column, name, pa.repeat(value, size))
            rows = rows.append_column("because", pa.repeat(act.reason, size))
            erased.append(self._find_changes(rows))
        return pa.concat_tables(erased)

    def _divide_due(self, due: _DueRows) -> Iterator[_DueRange]:
        """Divide what is due by time, so that a series with a long range widens no other one."""
        nothing = np.empty(0, np.int64)
        rows = np.flatnonzero(due.highs > due.lows)
        lows, highs = due.lows[rows], due.highs[rows]
        widths = np.frexp(highs - lows)[1]
        for width in np.unique(widths).tolist():
            alike = widths == width
            for low, high in merge_ranges(lows[alike], highs[alike], MAX_RANGES):
                inside = alike & (lows >= low) & (highs <= high)
                yield _DueRange(low, high, rows[inside], nothing)
        for low, high in merge_ranges(due.starts, self._buckets.ends(due.starts), MAX_RANGES):
            changed = np.flatnonzero((due.starts >= low) & (due.starts < high))
            yield _DueRange(low, high, nothing, changed)

    # -- reading ---------------------------------------------------------------------------------

    def _roll(self, due: _DueRows, part: _DueRange) -> None:
        """Take the buckets of a part."""
        low, high = part.low, part.high
        codes = np.union1d(part.new, due.codes[part.changed])
        names = due.names.take(pa.array(codes)).to_pylist()
        kept = self._read_there(names, part)
        changes = due.changes.take(pa.array(part.changed))
        for group in self._divide_series(names, low, high):
            first = self._find_first_buckets(names, group)
            for begin, end in self._divide_time(group, low, high):
                query = Query(view=Range(Point("time", begin), Point("time", end - 1)))
                found = downsample(self._snapshot, self._index, query, self._wanted, names, group)
                for table in found:
                    whole = self._filter_whole(table, first)
                    if len(part.new):
                        self._add(whole, due, kept)
                    else:
                        self._edit(whole, changes, kept)
                    if self._held.added + self._held.edited >= MAX_BUCKETS_PER_COMMIT:
                        self._commit(is_last=False)

    def _divide_series(self, names: Sequence[str], low: int, high: int) -> list[KeyRange]:
        files = [f for f in self._snapshot.files if f.max_us >= low and f.min_us < high]
        samples = sample_series(self._index, sum(file.size for file in files), names)
        return list(split_keys(samples, MAX_GROUP_BYTES, whole_series=True))

    def _divide_time(self, group: KeyRange, low: int, high: int) -> list[tuple[int, int]]:
        """Divide a range of time so that about `MAX_EVENTS_AT_ONCE` events lie in each part."""
        events = 0.0
        first, last = high, low
        for file in self._snapshot.files:
            ends = max(file.min_us, low), min(file.max_us, high - 1)
            if ends[0] <= ends[1] and group.overlaps(file.first, file.last):
                events += file.rows * (ends[1] - ends[0] + 1) / (file.max_us - file.min_us + 1)
                first, last = min(first, ends[0]), max(last, ends[1])
        parts = int(events // MAX_EVENTS_AT_ONCE) + 1
        if parts == 1 or last <= first:
            return [(low, high)]
        cuts = np.linspace(first, last, parts + 1)[1:-1].astype(np.int64)
        inner = np.unique(self._buckets.starts(cuts))
        inner = inner[(inner > low) & (inner < high)]
        return list(zip([low, *inner.tolist()], [*inner.tolist(), high], strict=True))

    def _read_there(self, names: Sequence[str], part: _DueRange) -> pa.Table:
        """Return the rollup's buckets that may be edited, or are not to be added again."""
        columns = ["series", "timestamp", "sequence", "original_sequence", *self._value_names]
        # Behind its newest bucket a series has others only if they were erased in the rollup.
        if not len(part.changed) and not self._there.has_erasures:
            return self._there_schema(columns).empty_table()
        query = Query(view=Range(Point("time", part.low), Point("time", part.high - 1)))
        return run_query(self._there, self._target_index, query, names, columns=columns).table

    def _there_schema(self, columns: Sequence[str]) -> pa.Schema:
        kinds = {field.name: field.type for field in self._schema}
        return pa.schema([(name, kinds.get(name, pa.int64())) for name in columns])

    @property
    def _value_names(self) -> list[str]:
        return [aggregate.name for aggregate in self._settings.aggregates]

    def _find_first_buckets(self, names: Sequence[str], group: KeyRange) -> dict[str, int]:
        """Return the bucket of the first visible original of series that have lost some."""
        low, _ = self._find_bounds(names)
        cut = [name for name, least in zip(names, low.tolist(), strict=True) if least > 0]
        if not cut:
            return {}
        query = Query(view=Range(Point("start"), Point("next_count", 1)))
        columns = ["series", "timestamp"]
        rows = run_query(self._snapshot, self._index, query, cut, group, columns=columns).table
        starts = self._buckets.starts(to_int64(rows["timestamp"])).tolist()
        return dict(zip(rows["series"].to_pylist(), starts, strict=True))

    def _find_bounds(self, names: Sequence[str]) -> tuple[Int64Array, Int64Array]:
        """Return the lowest sequence and the earliest time that the source shows of each series."""
        states = self._index.lookup(names)
        newest = states["last_sequence"], states["original_us"]
        retained = self._snapshot.settings.retained
        low, low_us = min_retained(retained, *newest, self._index.min_retained(names))
        first_us = states["first_us"]
        keeps_all = (first_us != NEVER_US) & (first_us >= low_us)
        return low, np.where(keeps_all, NEVER_US, low_us)

    def _filter_whole(self, found: pa.Table, first: dict[str, int]) -> pa.Table:
        """Return the buckets of which the source shows every event that it ever had."""
        names, codes = encode_runs(found["series"])
        starts, known = to_int64(found["timestamp"]), names.to_pylist()
        low, low_us = self._find_bounds(known)
        first_us = np.array([first.get(name, MAX_NUMBER) for name in known], np.int64)
        first_us = np.where(low <= 0, NEVER_US, first_us)
        whole = (starts >= low_us[codes]) & (starts > first_us[codes])
        return found if whole.all() else found.filter(pa.array(whole))

    # -- writing ---------------------------------------------------------------------------------

    def _add(self, found: pa.Table, due: _DueRows, kept: pa.Table) -> None:
        """Take the buckets that are new."""
        starts = to_int64(found["timestamp"])
        codes = pc.index_in(found["series"].cast(pa.string()), due.names).to_numpy()
        is_new = (starts >= due.lows[codes]) & (starts < due.highs[codes])
        is_new[_join_keys(found, kept)[0]] = False
        found = found.filter(pa.array(is_new))
        if found.num_rows:
            columns = {name: found[name] for name in ("series", "timestamp", *self._value_names)}
            self._hold(columns, found.num_rows)
            self._held.added += found.num_rows

    def _edit(self, found: pa.Table, changes: pa.Table, there: pa.Table) -> None:
        """Take the edits of those buckets that have changed."""
        rows, kept_rows = _join_keys(found, there)
        found, there = found.take(pa.array(rows)), there.take(pa.array(kept_rows))
        if self._there.has_erasures:
            kept = pa.array(~self._flag_erased(there))
            found, there = found.filter(kept), there.filter(kept)
        rows, why = _join_keys(found, changes)
        found, there = found.take(pa.array(rows)), there.take(pa.array(rows))
        self.left -= len(rows)
        names = self._value_names
        differs = pa.array(flag_changed(there.select(names), found.select(names)))
        found, there = found.filter(differs), there.filter(differs)
        changes = changes.take(pa.array(why)).filter(differs)
        if not found.num_rows:
            return
        # Under a policy the author of every event is the principal (28.3); the reason names theirs.
        allowed = self._there.settings.policy is None
        columns = {name: found[name] for name in ("series", *names)}
        columns[EDIT_OF.name] = pc.coalesce(there["original_sequence"], there["sequence"])
        columns["author"] = changes["author"] if allowed else pa.nulls(found.num_rows, pa.string())
        columns[REASON.name] = tell_reasons(changes)
        self._hold(columns, found.num_rows)
        self._held.edited += found.num_rows

    def _flag_erased(self, kept: pa.Table) -> BoolArray:
        """Flag the buckets that were erased in the rollup, which nobody can edit."""
        erased = {
            (record.act.series, sequence)
            for record in read_records(self._there.location, self._there.metadata.erasure)
            for sequence in record.act.events
        }
        originals = pc.coalesce(kept["original_sequence"], kept["sequence"]).to_pylist()
        keys = zip(kept["series"].to_pylist(), originals, strict=True)
        return np.array([key in erased for key in keys], bool)

    def _hold(self, columns: Mapping[str, Any], size: int) -> None:
        arrays = [
            columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(size, field.type)
            for field in self._schema
        ]
        self._rows.append(pa.Table.from_arrays(arrays, schema=self._schema))

    def _commit(self, *, is_last: bool) -> None:
        rows = pa.concat_tables([self._schema.empty_table(), *self._rows]).combine_chunks()
        token = None
        if is_last:
            token = COVERED
        elif self._is_first and self._since is None and not self.has_committed:
            token = BEGUN
        commit = self._snapshot.metadata.commit
        batch = Batch(
            rows,
            "fail",
            self._author,
            token=None if token is None else (token, commit),
            missing_original="drop",
            digest=None if token is None else self._snapshot.head_id,
            future=_ANY_FUTURE,
        )
        try:
            attempt = self._target.append(_ExpectedBatch(batch, self._head_id), synced=self._synced)
        except OutOfOrder as error:
            raise error.with_next_step(
                "nobody but its runs appends to a rollup: begin a new one at another path. Nothing "
                "of the batch is stored"
            ) from None
        if attempt is None:
            raise _RollupChanged
        self._head_id, self.has_committed = attempt.head_id, True
        self._counts.added += self._held.added
        self._counts.edited += self._held.edited
        self._rows, self._held = [], _Counts()
        if not is_last:
            self._progress(f"{self._counts.added:,} buckets added so far")


def _join_keys(one: pa.Table, other: pa.Table) -> tuple[Int64Array, Int64Array]:
    """Return the rows of two tables with the same series and timestamp, in the order of `one`."""
    keys = ["series", "timestamp"]
    left, right = (
        pa.table(
            {
                "series": table["series"].cast(pa.string()),
                "timestamp": table["timestamp"],
                name: pa.array(np.arange(table.num_rows)),
            }
        )
        for table, name in ((one, "one"), (other, "other"))
    )
    joined = left.join(right, keys, join_type="inner").sort_by("one")
    return to_int64(joined["one"]), to_int64(joined["other"])
