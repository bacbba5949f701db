"""`rollup`: keep the buckets of a store in another one, and correct them (semantics 36).

A run finds what changed since the commit that the last run covered: the rows of later commits, and
later erasures. Two kinds of buckets are due. First, buckets that are complete now and lie behind
the rollup's; only series with new originals have them, or all series if the source's CTI has
reached another bucket. Second, buckets that the rollup has and that a change has touched.
`downsample` computes both. New buckets are appended, and buckets with other aggregates are edited.

Only the last commit of a run names the commit that it covers. If a run is killed before, the next
one does it again, and skips buckets that are written already. Each commit expects the head of the
rollup that the run has read, so if two runs meet, one writes and the other begins again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import MIN_US
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
    Int64Array,
    KeyRange,
    encode_runs,
    split_keys,
    to_int64,
)
from pyspark_tseries.model.buckets import parse_buckets
from pyspark_tseries.model.columns import INSTANT, fits, new_value_field, originals_of, type_name
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.model.downsampling import (
    BEGUN,
    CHANGES,
    COVERED,
    PROPERTY,
    REASON_FIELD,
    RollupSettings,
    check_aggregates,
    describe_reasons,
    flag_changed,
    keep_last_changes,
    merge_ranges,
    parse_aggregates,
    parse_rollup_settings,
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
from pyspark_tseries.read.downsample import MAX_BYTES_AT_ONCE, downsample
from pyspark_tseries.read.scan import Scope, run_query, sample_series
from pyspark_tseries.read.view import known_series
from pyspark_tseries.storage.erasures import flag_erased, read_records
from pyspark_tseries.storage.failures import explained_failures
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import RowFilter, base_fields, read_rows, scan_file
from pyspark_tseries.store.commit_history import describe_change, is_given_up
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch, CommitContext, digest_transaction
from pyspark_tseries.write.numbering import FutureLimit
from pyspark_tseries.write.rows import EDIT_OF, stage_columns, staged_schema

MAX_BUCKETS_PER_COMMIT: Final = 100_000
"""A run with more buckets makes several commits."""

MAX_EVENTS_AT_ONCE: Final = 1_000_000
"""Read about this many events of a group of series at once."""

MAX_RANGES: Final = 32
"""Read the changed buckets in at most this many ranges of time."""

_CHANGED_COLUMNS: Final = (
    *("series", "sequence", "timestamp", "author"),
    *("original_sequence", "original_timestamp", "commit"),
)
_ANY_FUTURE: Final = FutureLimit(MAX_NUMBER)


@dataclass(frozen=True, slots=True)
class RollupResult:
    """The result of a run of a rollup.

    Attributes:
        added: how many buckets it appended.
        edited: how many buckets it edited.
        left: how many buckets have changed in the source, but stay as they are: the rollup does not
            have them, or the source no longer has all of their events.
        covered: the rollup has everything up to this commit of the source; -1: none.
    """

    added: int
    edited: int
    left: int
    covered: int


@dataclass(frozen=True, slots=True)
class RollupOptions:
    """The caller's settings of a rollup; None stands for those that the rollup has.

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
    options: RollupOptions,
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
        options: its settings; they must match those of a rollup that exists.
        author: who reads the source; also the author of new buckets.
        synced: True if the rollup's commits must survive a power loss.
        auto_compact: True if commits start the maintenance of the rollup when it is due.
        progress: called with a line after each commit but the last one.

    Raises:
        InvalidQuery: a setting is wrong, or differs from the rollup's.
        UnusableStore: the store at `into` is not a rollup.
        StoreMismatch: it is the rollup of another store.
        HistoryChanged: the source lacks the commit that the rollup covers: it was put back.
        PermissionDenied: the author may not read the source, or may not write to the rollup.
        StoreBusy: another run won every attempt.
    """
    source.refresh()
    AccessCheck(source.settings.policy, author).require_query(Query())
    with explained_failures(into, is_new=True):
        target, settings = _open_rollup(source, into, options)
    counts = _BucketCounts()

    def attempt() -> RollupResult:
        run = _RollupRun(source, target, settings, author, counts, synced=synced, progress=progress)
        with explained_failures(into):
            covered = run.run()
        if auto_compact and run.has_committed:
            maintain_after_commit(target)
        return RollupResult(counts.added, counts.edited, run.left, covered)

    return target.retry(
        attempt,
        target.retrying.commit_attempts,
        "the rollup has what they wrote",
        races=(_RollupChanged, ReplayDiffers),
    )


def _open_rollup(
    source: Store, into: Location, options: RollupOptions
) -> tuple[Store, RollupSettings]:
    if into == source.location:
        raise InvalidQuery(
            f"'{into.root}' is the source itself", "another path", "give the rollup its own"
        )
    target = Store.find(into)
    if target is None:
        target = _create_rollup(source, into, options)
    settings = parse_rollup_settings(target.properties(), into.root)
    if settings is None:
        raise UnusableStore(
            f"the store '{into.root}' is not a rollup",
            "a path where nothing is, or a rollup",
            "give the rollup a path of its own",
        )
    if settings.source != source.id:
        raise StoreMismatch(
            f"'{into.root}' is the rollup of another store than the one now at '{source.root}'",
            "the store that it was made of, or a later state of that",
            "correct the path; or begin a new rollup at another one. Nothing is stored",
        )
    _check_settings(source, into, options, settings)
    _check_columns(source, target, settings)
    retained = target.settings.retained
    if options.retained is not None and options.retained != retained:
        raise _other_setting(
            into, "retained_range", format_range(retained), format_range(options.retained)
        )
    return target, settings


def _create_rollup(source: Store, into: Location, options: RollupOptions) -> Store:
    if options.every is None or options.aggregates is None:
        missing = "every" if options.every is None else "aggregates"
        raise InvalidQuery(
            f"there is no rollup at '{into.root}' yet, and {missing} is not given",
            "the width of its buckets and their aggregates, such as '1 hour' and celsius = mean",
            f"give {missing}, or correct the path",
        )
    settings = _parse_settings(source, options)
    values = [new_value_field(field) for field in settings.values(pa.schema(source.values))]
    retained = options.retained or UNLIMITED
    return Store.create(into, values, retained, more_properties={PROPERTY: settings.to_json()})


def _parse_settings(
    source: Store, options: RollupOptions, current: RollupSettings | None = None
) -> RollupSettings:
    """Return the requested settings; those that are not given are taken from `current`."""
    if options.every is not None:
        buckets = parse_buckets(options.every, options.timezone, options.origin)
    elif current is None or options.timezone is not None or options.origin is not None:
        raise InvalidQuery(
            "timezone and origin are given without every",
            "both beside every only",
            "give every, or leave them out",
        )
    else:
        buckets = current.buckets
    if options.aggregates is None and current is not None:
        return RollupSettings(source.id, buckets, current.aggregates)
    columns = {} if options.aggregates is None else options.aggregates
    if not isinstance(columns, Mapping):
        raise InvalidQuery(
            f"aggregates {show_value(columns)} does not name columns",
            "a mapping such as {'celsius': 'mean', 'n': ('*', 'count')}",
            "name each column of the rollup, and what it is",
        )
    aggregates = parse_aggregates(pa.schema(source.values), dict(columns))
    check_aggregates(aggregates)
    return RollupSettings(source.id, buckets, aggregates)


def _check_settings(
    source: Store, into: Location, options: RollupOptions, current: RollupSettings
) -> None:
    requested = _parse_settings(source, options, current)
    if (requested.buckets, set(requested.aggregates)) == (current.buckets, set(current.aggregates)):
        return
    current_texts, requested_texts = current.describe(), requested.describe()
    name = next(
        (name for name in current_texts if current_texts[name] != requested_texts[name]), "every"
    )
    raise _other_setting(into, name, current_texts[name], requested_texts[name])


def _other_setting(into: Location, name: str, current: str, requested: str) -> InvalidQuery:
    return InvalidQuery(
        f"the rollup '{into.root}' has {name} '{current}', and '{requested}' is asked for",
        f"'{current}': the settings of a rollup never change",
        f"leave {name} out, or begin another rollup at a path of its own",
    )


def _check_columns(source: Store, target: Store, settings: RollupSettings) -> None:
    types = {field.name: field.type for field in target.values}
    for field in settings.values(pa.schema(source.values)):
        data_type = new_value_field(field).type
        if types.get(field.name) != data_type:
            raise IncompatibleValue(
                f"column '{field.name}' of the rollup '{target.root}' would be of type "
                f"{type_name(data_type)} now",
                f"{type_name(types[field.name])}, as the rollup was made"
                if field.name in types
                else None,
                "make it wider: open the rollup, call widen_columns with this column and type, and "
                "run the rollup again"
                if field.name in types and fits(types[field.name], data_type)
                else "begin another rollup at a path of its own",
            )


class _RollupChanged(Exception):
    """Another client has committed to the rollup since this run read it."""


@dataclass(slots=True)
class _BucketCounts:
    """How many buckets are appended and edited."""

    added: int = 0
    edited: int = 0


@dataclass(frozen=True, slots=True)
class _UnchangedRollup:
    """The condition that the rollup still has the head `head_id`."""

    head_id: int | None

    def check(self, context: CommitContext) -> None:
        if context.head_id != self.head_id:
            raise _RollupChanged


@dataclass(frozen=True, slots=True)
class _DueRows:
    """The buckets that are due, by series.

    Attributes:
        names: the series, sorted.
        lows: for each series, the start of the first bucket that may be new.
        highs: the end of the last one; `lows` if there is none.
        changes: the last change of each bucket that the rollup has.
        codes: for each change, the position of its series in `names`.
        starts: for each change, the start of its bucket.
    """

    names: pa.Array
    lows: Int64Array
    highs: Int64Array
    changes: pa.Table
    codes: Int64Array
    starts: Int64Array


@dataclass(frozen=True, slots=True)
class _DueRange:
    """A range of time with due buckets: new buckets of some series, or changed ones.

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
        left: how many changed buckets were not found so far.
        has_committed: True if the run has made a commit.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        settings: RollupSettings,
        author: str,
        counts: _BucketCounts,
        *,
        synced: bool,
        progress: Callable[[str], None],
    ) -> None:
        # Read the rollup first, so that the source has all that the rollup covers.
        self._target = target
        self._rollup = target.snapshot()
        self._head_id = self._rollup.head_id
        self._source = source
        self._snapshot = source.snapshot()
        self._index = self._snapshot.index()
        self._target_index = self._rollup.index()
        self._settings = settings
        self._buckets = settings.buckets
        self._downsampling = settings.downsampling
        self._author = author
        self._counts = counts
        self._synced = synced
        self._progress = progress
        self._schema = staged_schema(target.values)
        self._rows: list[pa.Table] = []
        self._pending_counts = _BucketCounts()
        self._since, self._is_first = self._find_covered()
        self.left = 0
        self.has_committed = False

    def run(self) -> int:
        """Write all due buckets; return the source's commit that the rollup then covers."""
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
        for due_range in self._divide_due(due):
            self._roll(due, due_range)
        self._commit(is_last=True)
        return commit

    def _find_covered(self) -> tuple[CommitId | None, bool]:
        """Return the source's commit that the rollup covers, and whether its first run is due."""
        transaction = self._target.transaction
        for name, is_first in ((COVERED, False), (BEGUN, True)):
            number = transaction(name)
            commit_id = transaction(digest_transaction(name))
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
        changes, touched = self._collect_changes()
        series = known_series(self._index) if self._is_first else self._add_by_cti(touched)
        pending = self._find_pending(series)
        names = sorted({*pending, *changes["series"].unique().to_pylist()})
        ends = np.array([pending.get(name, (0, 0)) for name in names], np.int64).reshape(-1, 2)
        array = pa.array(names, pa.string())
        return _DueRows(
            names=array,
            lows=ends[:, 0],
            highs=ends[:, 1],
            changes=changes,
            codes=pc.index_in(changes["series"], array).to_numpy().astype(np.int64),
            starts=to_int64(changes["timestamp"]),
        )

    def _collect_changes(self) -> tuple[pa.Table, set[str]]:
        """Return the last change of each bucket since the last run, and the series with new events.

        Changes are folded while they are read, so memory holds few for each bucket.
        """
        changes = [CHANGES.empty_table()]
        touched: set[str] = set()
        if self._since is not None:
            for new_changes, new_series in self._read_changes(self._since.number):
                changes.append(new_changes)
                touched |= new_series
                if sum(table.num_rows for table in changes) > MAX_BUCKETS_PER_COMMIT:
                    changes = [keep_last_changes(pa.concat_tables(changes))]
            changes.append(self._read_erasures(self._since.number))
        return keep_last_changes(pa.concat_tables(changes)), touched

    def _next_starts(self, names: Sequence[str]) -> Int64Array:
        """Return where the next bucket of each series begins; NEVER_US if the rollup has none."""
        newest = self._target_index.lookup(names)["original_us"]
        has_buckets = newest != NEVER_US
        starts = np.full(len(names), NEVER_US, np.int64)
        starts[has_buckets] = self._buckets.ends(self._buckets.starts(newest[has_buckets]))
        return starts

    def _find_pending(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return, by series with buckets to add, where the first begins and the last ends."""
        states = self._index.lookup(names)
        # A bucket is complete once its series' newest original, or the CTI, lies in a later one.
        reach = np.maximum(states["original_us"], self._index.cti_us)
        lows = self._next_starts(names)
        has_events = (states["original_us"] != NEVER_US) & (states["last_sequence"] >= 0)
        first_us = states["first_us"]
        # Where the index does not know a series' first time, begin at the earliest of all files.
        oldest_us = min((file.min_us for file in self._snapshot.files), default=0)
        first_us = np.where(first_us == NEVER_US, oldest_us, first_us)
        lacks_buckets = has_events & (lows == NEVER_US)
        lows[lacks_buckets] = self._buckets.starts(first_us[lacks_buckets])
        highs = lows.copy()
        highs[has_events] = self._buckets.starts(reach[has_events])
        rows = np.flatnonzero(has_events & (highs > lows))
        ends = zip(lows[rows].tolist(), highs[rows].tolist(), strict=True)
        return dict(zip((names[row] for row in rows.tolist()), ends, strict=True))

    def _add_by_cti(self, touched: set[str]) -> list[str]:
        """Return the touched series, and the series with a newest bucket that the CTI completes."""
        ctis = self._snapshot.metadata.ctis
        assert self._since is not None
        before = ctis.cti_at(self._since.number)
        now = ctis.store_us
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
        start_before, start_now = self._buckets.starts(np.array([before, now])).tolist()
        return bool(start_now > start_before)

    def _read_changes(self, since: int) -> Iterator[tuple[pa.Table, set[str]]]:
        """Yield the changes in later commits, and the series that got originals there."""
        location = self._snapshot.location
        later = RowFilter(commits=(since + 1, MAX_NUMBER))
        for file in self._snapshot.files:
            for rows in scan_file(location, file, base_fields(_CHANGED_COLUMNS), later):
                is_original = rows["original_sequence"].is_null()
                names = set(rows["series"].filter(is_original).unique().to_pylist())
                yield keep_last_changes(self._find_changes(rows)), names

    def _find_changes(self, rows: pa.Table) -> pa.Table:
        """Return the rows in buckets that the rollup may have, as changes of one event each."""
        names, codes = encode_runs(rows["series"])
        us = pc.coalesce(rows["original_timestamp"], rows["timestamp"])
        starts = self._buckets.starts(to_int64(us))
        is_rolled = pa.array(starts < self._next_starts(names.to_pylist())[codes])
        size = rows.num_rows
        columns = [
            rows["series"].cast(pa.string()),
            pa.chunked_array([pa.array(starts).cast(INSTANT)]),
            *(rows[name] for name in ("commit", "sequence")),
            originals_of(rows),
            rows["author"].cast(pa.string()),
            rows["because"] if "because" in rows.column_names else pa.nulls(size, pa.string()),
            pa.array(np.ones(size, np.int64)),
        ]
        return pa.Table.from_arrays(columns, schema=CHANGES).filter(is_rolled)

    def _read_erasures(self, since: int) -> pa.Table:
        """Return the events that were erased in later commits as changes."""
        erased = [CHANGES.empty_table()]
        for record in read_records(self._snapshot.location, self._snapshot.metadata.erasure):
            erasure = record.erasure
            if erasure.commit <= since:
                break
            events = pa.array(erasure.events, pa.int64())
            if not len(events):
                continue
            ends = min(erasure.events), max(erasure.events)
            row_filter = RowFilter([erasure.series], sequences=ends)
            is_meant = pc.field("sequence").isin(events)
            location, files = self._snapshot.location, self._snapshot.files
            schema = base_fields(_CHANGED_COLUMNS)
            rows = read_rows(location, files, schema, row_filter, is_meant)
            # If the erasure has an edit and its original, the original is the change.
            rows = rows.filter(pc.invert(pc.is_in(rows["original_sequence"], events)))
            size = rows.num_rows
            for name, value in (("commit", erasure.commit), ("author", erasure.principal)):
                column = rows.schema.get_field_index(name)
                rows = rows.set_column(column, name, pa.repeat(value, size))
            rows = rows.append_column("because", pa.repeat(erasure.reason, size))
            erased.append(self._find_changes(rows))
        return pa.concat_tables(erased)

    def _divide_due(self, due: _DueRows) -> Iterator[_DueRange]:
        """Divide the due buckets by time, so that one series with a long range widens no other."""
        nothing = np.empty(0, np.int64)
        rows = np.flatnonzero(due.highs > due.lows)
        lows, highs = due.lows[rows], due.highs[rows]
        # Merge ranges of about one length, to the power of two; a long one would hide short ones.
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

    def _roll(self, due: _DueRows, due_range: _DueRange) -> None:
        """Add and edit the due buckets of a range."""
        low, high = due_range.low, due_range.high
        codes = np.union1d(due_range.new, due.codes[due_range.changed])
        names = due.names.take(pa.array(codes)).to_pylist()
        existing = self._read_existing(names, due_range)
        changes = due.changes.take(pa.array(due_range.changed))
        for group in self._divide_series(names, low, high):
            first_buckets = self._find_first_buckets(names, group)
            for begin, end in self._divide_time(group, low, high):
                query = Query(view=Range(Point("time", begin), Point("time", end - 1)))
                scope = Scope(self._snapshot, self._index, names, group)
                tables = downsample(scope, query, self._downsampling)
                for table in tables:
                    complete = self._filter_complete(table, first_buckets)
                    if len(due_range.new):
                        self._add(complete, due, existing)
                    else:
                        self._edit(complete, changes, existing)
                    if (
                        self._pending_counts.added + self._pending_counts.edited
                        >= MAX_BUCKETS_PER_COMMIT
                    ):
                        self._commit(is_last=False)

    def _divide_series(self, names: Sequence[str], low: int, high: int) -> list[KeyRange]:
        row_filter = RowFilter(times=(low, high - 1))
        files = [file for file in self._snapshot.files if row_filter.may_match_file(file)]
        samples = sample_series(self._index, sum(file.size for file in files), names)
        return list(split_keys(samples, MAX_BYTES_AT_ONCE, whole_series=True))

    def _divide_time(self, group: KeyRange, low: int, high: int) -> list[tuple[int, int]]:
        """Divide a range of time into ranges with about `MAX_EVENTS_AT_ONCE` events each."""
        events = 0.0
        first_us, last_us = high, low
        for file in self._snapshot.files:
            ends = max(file.min_us, low), min(file.max_us, high - 1)
            if ends[0] <= ends[1] and group.overlaps(file.first, file.last):
                # As if the rows of a file were spread evenly over its times.
                events += file.rows * (ends[1] - ends[0] + 1) / (file.max_us - file.min_us + 1)
                first_us, last_us = min(first_us, ends[0]), max(last_us, ends[1])
        count = int(events // MAX_EVENTS_AT_ONCE) + 1
        if count == 1 or last_us <= first_us:
            return [(low, high)]
        cuts = np.linspace(first_us, last_us, count + 1)[1:-1].astype(np.int64)
        inner = np.unique(self._buckets.starts(cuts))
        inner = inner[(inner > low) & (inner < high)]
        return list(zip([low, *inner.tolist()], [*inner.tolist(), high], strict=True))

    def _read_existing(self, names: Sequence[str], due_range: _DueRange) -> pa.Table:
        """Return the rollup's buckets that may be edited, or must not be added again."""
        columns = ["series", "timestamp", "sequence", "original_sequence", *self._value_names]
        # A series has buckets behind its newest one only if they were erased in the rollup.
        if not len(due_range.changed) and not self._rollup.has_erasures:
            types = {field.name: field.type for field in self._schema}
            schema = pa.schema([(name, types.get(name, pa.int64())) for name in columns])
            return schema.empty_table()
        query = Query(view=Range(Point("time", due_range.low), Point("time", due_range.high - 1)))
        scope = Scope(self._rollup, self._target_index, names)
        return run_query(scope, query, columns=columns).table

    @property
    def _value_names(self) -> list[str]:
        return [aggregate.name for aggregate in self._settings.aggregates]

    def _find_first_buckets(self, names: Sequence[str], group: KeyRange) -> dict[str, int]:
        """Return the bucket of the first visible original, by series that has lost originals."""
        low, _ = self._compute_bounds(names)
        trimmed = [name for name, sequence in zip(names, low.tolist(), strict=True) if sequence > 0]
        if not trimmed:
            return {}
        query = Query(view=Range(Point("start"), Point("next_count", 1)))
        columns = ["series", "timestamp"]
        scope = Scope(self._snapshot, self._index, trimmed, group)
        rows = run_query(scope, query, columns=columns).table
        starts = self._buckets.starts(to_int64(rows["timestamp"])).tolist()
        return dict(zip(rows["series"].to_pylist(), starts, strict=True))

    def _compute_bounds(self, names: Sequence[str]) -> tuple[Int64Array, Int64Array]:
        """Return the lowest sequence and the earliest time of each series in the source."""
        states = self._index.lookup_all(names)
        newest = states["last_sequence"], states["original_us"]
        low, low_us = min_retained(self._snapshot.settings.retained, *newest, states)
        first_us = states["first_us"]
        keeps_all = (first_us != NEVER_US) & (first_us >= low_us)
        return low, np.where(keeps_all, NEVER_US, low_us)

    def _filter_complete(self, buckets: pa.Table, first_buckets: dict[str, int]) -> pa.Table:
        """Return the buckets that still have all their events in the source."""
        names, codes = encode_runs(buckets["series"])
        starts = to_int64(buckets["timestamp"])
        series = names.to_pylist()
        low, low_us = self._compute_bounds(series)
        first_us = np.array([first_buckets.get(name, MAX_NUMBER) for name in series], np.int64)
        first_us = np.where(low <= 0, NEVER_US, first_us)
        is_complete = (starts >= low_us[codes]) & (starts > first_us[codes])
        return buckets if is_complete.all() else buckets.filter(pa.array(is_complete))

    # -- writing ---------------------------------------------------------------------------------

    def _add(self, buckets: pa.Table, due: _DueRows, existing: pa.Table) -> None:
        """Append the buckets that are new."""
        starts = to_int64(buckets["timestamp"])
        codes = pc.index_in(buckets["series"].cast(pa.string()), due.names).to_numpy()
        # A clock that starts at 0001-01-01 has buckets from before it, which no event can have.
        is_new = (starts >= np.maximum(due.lows[codes], MIN_US)) & (starts < due.highs[codes])
        is_new[_join_keys(buckets, existing)[0]] = False
        buckets = buckets.filter(pa.array(is_new))
        if buckets.num_rows:
            columns = {name: buckets[name] for name in ("series", "timestamp", *self._value_names)}
            self._add_pending(columns, buckets.num_rows)
            self._pending_counts.added += buckets.num_rows

    def _edit(self, buckets: pa.Table, changes: pa.Table, existing: pa.Table) -> None:
        """Edit the buckets that have changed."""
        rows, existing_rows = _join_keys(buckets, existing)
        buckets, existing = buckets.take(pa.array(rows)), existing.take(pa.array(existing_rows))
        if self._rollup.has_erasures:
            # Nobody can edit these.
            is_erased = flag_erased(
                self._rollup.location,
                self._rollup.metadata.erasure,
                existing["series"],
                originals_of(existing),
            )
            is_editable = pa.array(~is_erased)
            buckets, existing = buckets.filter(is_editable), existing.filter(is_editable)
        rows, change_rows = _join_keys(buckets, changes)
        buckets, existing = buckets.take(pa.array(rows)), existing.take(pa.array(rows))
        self.left -= len(rows)
        names = self._value_names
        differs = pa.array(flag_changed(existing.select(names), buckets.select(names)))
        buckets, existing = buckets.filter(differs), existing.filter(differs)
        changes = changes.take(pa.array(change_rows)).filter(differs)
        if not buckets.num_rows:
            return
        # Under a policy the author of every event is the principal (28.3); the reason names the
        # author of the change.
        allowed = self._rollup.settings.policy is None
        columns = {name: buckets[name] for name in ("series", *names)}
        columns[EDIT_OF.name] = originals_of(existing)
        columns["author"] = (
            changes["author"] if allowed else pa.nulls(buckets.num_rows, pa.string())
        )
        columns[REASON_FIELD.name] = describe_reasons(changes)
        self._add_pending(columns, buckets.num_rows)
        self._pending_counts.edited += buckets.num_rows

    def _add_pending(self, columns: Mapping[str, Any], size: int) -> None:
        self._rows.append(stage_columns(columns, size, self._schema))

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
            condition=_UnchangedRollup(self._head_id),
        )
        try:
            attempt = self._target.append(batch, synced=self._synced)
        except OutOfOrder as error:
            raise error.with_next_step(
                "nobody but its runs appends to a rollup: begin a new one at another path. Nothing "
                "of the batch is stored"
            ) from None
        if attempt is None:
            raise _RollupChanged
        self._head_id = attempt.head_id
        self.has_committed = True
        self._counts.added += self._pending_counts.added
        self._counts.edited += self._pending_counts.edited
        self._rows = []
        self._pending_counts = _BucketCounts()
        if not is_last:
            self._progress(f"{self._counts.added:,} buckets added so far")


def _join_keys(table: pa.Table, other_table: pa.Table) -> tuple[Int64Array, Int64Array]:
    """Return the rows of two tables with the same series and timestamp, in the order of `table`."""
    keys = ["series", "timestamp"]
    keyed, other_keyed = (
        pa.table(
            {
                "series": side["series"].cast(pa.string()),
                "timestamp": side["timestamp"],
                name: pa.array(np.arange(side.num_rows)),
            }
        )
        for side, name in ((table, "one"), (other_table, "other"))
    )
    joined = keyed.join(other_keyed, keys, join_type="inner").sort_by("one")
    return to_int64(joined["one"]), to_int64(joined["other"])
