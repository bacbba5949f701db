"""`correct_late` corrects windows by late rows after a query has written them (semantics 30.6).

The query that writes windows leaves flagged rows out; the correcting query takes them. In each
batch it aggregates the late rows by series and window, and writes edits of the values in force.

Windows that must wait are in a file of the store, which is written before the commit. The commit
has the batch's number and the digest of its windows, and the file has both in its name: so the log
says which file holds, and a kill at any moment neither loses nor doubles anything. Several drivers
of a query may run at once, for example after a network failure: the first to commit decides what
the batch corrects, and the others find its file (`LateFiles`). A batch without windows to correct
makes no commit; every driver lets all of its windows wait.

Late rows come in batches, as partial aggregates of (series, window). A window is corrected once the
store's CTI is above its time, because then its query has written all of it. Until then its partial
aggregates wait. `advance_windows` is a pure fold over batches: with the same rows and CTIs it gives
the same windows, so a repeated batch decides as it did before.

Each attempt to commit reads the values in force as of the preceding commit, so a correction never
loses an edit that another writer made meanwhile.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_timestream.core.declarations import quote_column
from pyspark_timestream.core.instants import (
    TICK_US,
    format_duration,
    format_instant,
    read_duration,
)
from pyspark_timestream.errors import compose_message
from pyspark_tseries.errors import IncompatibleValue, ReplayDiffers, UpdateFailed
from pyspark_tseries.maintain.background import maintain_after_commit
from pyspark_tseries.maintain.corrections import (
    LATE_TOKEN,
    REASON_COLUMN,
    LateFiles,
    LateNote,
    list_correctors,
    read_withdrawn,
)
from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE
from pyspark_tseries.model.columns import (
    INSTANT,
    check_text,
    list_python_values,
    originals_of,
    result_schema,
)
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import Query
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.options import NO_MAX_US
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.spark.query_checks import (
    QueryIdentity,
    RecordStream,
    check_window_columns,
    refuse_limit,
    refuse_other_reasons,
    refuse_other_streams,
    refuse_other_windows,
    refuse_without_ctis,
)
from pyspark_tseries.storage.erasures import flag_erased
from pyspark_tseries.storage.failures import explained_failures
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store, check_replay
from pyspark_tseries.write.batch import (
    Batch,
    CommitContext,
    PreparedCommit,
    Revision,
    StoreCondition,
)
from pyspark_tseries.write.numbering import FutureLimit
from pyspark_tseries.write.rows import EDIT_OF, digest_rows, stage_columns, staged_schema

_LOG: Final = logging.getLogger(__name__)

MergeRule = str | Callable[[Any, Any], Any]
"""The rule that combines two results: `sum`, `min`, `max`, or a function of both."""

MERGES: Final = ("sum", "min", "max")

LATE_COUNT: Final = "tseries late rows"
"""The column with the number of late rows of a window.

No column of a store has a space in its name, so no result is called like this one or those below.
"""

_ORIGINAL: Final = "tseries original"
_ROW: Final = "tseries row"
_US: Final = "tseries us"
_CORRECTED_US: Final = "tseries corrected us"
_COUNT: Final = "tseries count"
_NAN: Final = "tseries nan"
_WIDE: Final = pa.decimal128(38)
"""The type in which integers are added."""
_LEFT: Final = "tseries left"
_AUTHOR: Final = "tseries author"


@dataclass(frozen=True, slots=True)
class WindowRules:
    """The windows that a query corrects, and how; see `correct_late`.

    Attributes:
        keys: the column of the series, and the column of the window's start.
        merges: by column of results, the rule that combines two results.
        offset_us: the distance from a window's start to its time in the store.
        author: the author of the corrections.
        reason: the text in the column `reason` of each.
        max_age_us: leave out windows further before the store's newest one; None: leave out none.
        beside_others: True if other queries may have corrected the store.
        window_us: the length of a window; None: do not compare it with the store's.
    """

    keys: tuple[str, str]
    merges: Mapping[str, MergeRule]
    offset_us: int
    author: str
    reason: str
    max_age_us: int | None = None
    beside_others: bool = False
    window_us: int | None = None

    def name_merges(self) -> dict[str, str]:
        """Return the name of each column's rule; all functions have the same."""
        return {
            name: how if isinstance(how, str) else "function" for name, how in self.merges.items()
        }


@dataclass(frozen=True, slots=True)
class WindowStep:
    """The outcome of one batch of late rows: tables of series, window, results and `LATE_COUNT`.

    Attributes:
        ready: windows to correct now.
        waiting: windows that their query may not have written yet.
        too_old: windows that are left out.
    """

    ready: pa.Table
    waiting: pa.Table
    too_old: pa.Table


def advance_windows(
    waiting: pa.Table,
    new: pa.Table,
    rules: WindowRules,
    *,
    cti_us: int | None,
    oldest_us: int | None,
) -> WindowStep:
    """Divide the windows of `waiting` and `new` by the store's CTI; without one all wait.

    Leave out windows with a time before `oldest_us`.
    """
    windows = merge_windows(pa.concat_tables([waiting, new]), rules.merges, rules.keys)
    return _divide(windows, rules, cti_us, oldest_us)


def _divide(
    windows: pa.Table, rules: WindowRules, cti_us: int | None, oldest_us: int | None
) -> WindowStep:
    if cti_us is None:
        return WindowStep(windows.slice(0, 0), windows, windows.slice(0, 0))
    times = pc.add(windows[rules.keys[1]].cast(pa.int64()), rules.offset_us)
    is_ready = pc.less(times, cti_us)
    is_old = pc.and_(is_ready, pc.less(times, NEVER_US if oldest_us is None else oldest_us))
    return WindowStep(
        windows.filter(pc.and_(is_ready, pc.invert(is_old))),
        windows.filter(pc.invert(is_ready)),
        windows.filter(is_old),
    )


def merge_windows(
    windows: pa.Table, merges: Mapping[str, MergeRule], keys: tuple[str, str]
) -> pa.Table:
    """Merge the rows of each series and window into one row, sorted by both.

    A null is a result without values, and changes nothing.
    """
    arrow_rules = {name: how for name, how in merges.items() if isinstance(how, str)}
    arrow_rules[LATE_COUNT] = "sum"
    functions = {name: how for name, how in merges.items() if callable(how)}
    grouped = _aggregate(windows.select([*keys, *arrow_rules]), arrow_rules, keys)
    rows_of_windows = grouped[_ROW].to_pylist() if functions else []
    columns = {key: grouped[key] for key in keys}
    for name in windows.column_names:
        data_type = windows[name].type
        if name in arrow_rules:
            columns[name] = _fit(grouped[name], name, data_type)
        elif name in functions:
            step = (
                "merge it by 'min' or 'max', or cast it to a number. Nothing of the batch is stored"
            )
            values = list_python_values(windows, name, step, ", and a function merges it")
            folded = [
                _fold([values[row] for row in rows], functions[name]) for rows in rows_of_windows
            ]
            columns[name] = _fit(folded, name, data_type)
    merged = pa.table(columns, windows.schema)
    return merged.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def _aggregate(windows: pa.Table, rules: Mapping[str, str], keys: tuple[str, str]) -> pa.Table:
    """Merge the rows of each window as Spark would all its rows, with the list of them in `_ROW`.

    Arrow's own sum of integers goes round where 64 bits end, and its maximum passes over a NaN.
    """
    columns = {name: windows[name] for name in windows.column_names}
    aggregations = []
    has_nan = {}
    for name, how in rules.items():
        data_type = windows[name].type
        if how == "sum" and pa.types.is_integer(data_type):
            columns[name] = windows[name].cast(_WIDE)
        if how == "max" and pa.types.is_floating(data_type):
            has_nan[name] = f"{_NAN} {name}"
            columns[has_nan[name]] = pc.fill_null(pc.is_nan(windows[name]), False)
            aggregations.append((has_nan[name], "any"))
        aggregations.append((name, how))
    try:
        grouped = (
            _number(pa.table(columns), _ROW)
            .group_by(list(keys), use_threads=False)
            .aggregate([*aggregations, (_ROW, "list")])
        )
    except pa.ArrowNotImplementedError:
        types = ", ".join(
            f"'{name}' ({windows[name].type}) by '{how}'"
            for name, how in rules.items()
            if name != LATE_COUNT
        )
        raise IncompatibleValue(
            f"a rule cannot merge the results of its type, among {types}",
            "'sum' of numbers, 'min' and 'max' of what has an order, or a function of both results",
            "give it another rule. Nothing of the batch is stored",
        ) from None
    # A key may be called like a result with its rule, such as `rides_sum`.
    grouped = grouped.rename_columns([*keys, *(name for name, _ in aggregations), _ROW])
    for name, flags in has_nan.items():
        values = pc.if_else(grouped[flags], pa.scalar(math.nan, grouped[name].type), grouped[name])
        grouped = grouped.set_column(grouped.column_names.index(name), name, values)
    return grouped


def _fit(
    results: pa.ChunkedArray | list[Any], name: str, data_type: pa.DataType
) -> pa.ChunkedArray:
    """Return merged results in their column's type."""
    try:
        if isinstance(results, list):
            return pa.chunked_array([pa.array(results, data_type)])
        return results.cast(data_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise IncompatibleValue(
            f"a merged result of column '{name}' does not fit {data_type}: {error}",
            f"results that {data_type} holds",
            "widen the column (TimeSeries.widen_columns), and cast the aggregate to its new type. "
            "Nothing of the batch is stored",
        ) from None


def _number(table: pa.Table, name: str) -> pa.Table:
    """Append a column with the number of each row."""
    return table.append_column(name, pa.array(range(table.num_rows), pa.int64()))


def _join_left(left: pa.Table, right: pa.Table, keys: list[str]) -> pa.Table:
    """Append the columns of `right` in the row with the same `keys`; nulls if there is none.

    Arrow cannot join structs, lists or maps: `left` may have them, `right` not.
    """
    matches = _number(left.select(keys), _LEFT).join(right, keys, join_type="left outer")
    joined = left.take(matches[_LEFT])
    for name in matches.column_names:
        if name not in (*keys, _LEFT):
            joined = joined.append_column(name, matches[name])
    return joined


def _fold(values: list[Any], how: Callable[[Any, Any], Any]) -> Any:
    present = [value for value in values if value is not None]
    result = present[0] if present else None
    for value in present[1:]:
        result = how(result, value)
    return result


@dataclass(slots=True)
class Corrections(Revision):
    """Late windows to merge into a store, atomically.

    Attributes:
        windows: series, window, results and `LATE_COUNT`, a row for each window.
        rules: the rules of the windows.
        values: the store's value columns.
        token: identifies the batch.
        condition: what must hold of the store when they are committed.
        is_first: True if nobody has corrected the store yet.
        hidden: after `revise`, the windows left out because the store's retained range hides them.
        erased: after `revise`, the windows left out because they may have been erased.
    """

    windows: pa.Table
    rules: WindowRules
    values: list[pa.Field]
    token: tuple[str, int] | None = None
    condition: StoreCondition | None = None
    is_first: bool = False
    hidden: pa.Table | None = field(default=None)
    erased: pa.Table | None = field(default=None)

    @property
    def digest(self) -> int:
        """The digest of the windows and their author, which names the file of what waits."""
        author = pa.repeat(self.rules.author, self.windows.num_rows)
        return digest_rows(self.windows.append_column(_AUTHOR, author))

    def revise(self, context: CommitContext, snapshot: Snapshot) -> PreparedCommit:
        """Prepare a commit as `Batch.prepare` does, with its errors."""
        refuse_limit(context.settings.retained, context.location.root)
        in_force = self._read_in_force(context, snapshot)
        windows = self._find_originals(in_force)
        self._compare_windows(in_force)
        if self.is_first:
            refuse_other_reasons(in_force.take(windows[_ROW].drop_null()))
        is_hidden = self._find_hidden(windows, in_force, context.index)
        self.hidden = windows.filter(is_hidden).select(self.windows.column_names)
        windows = windows.filter(pc.invert(is_hidden))
        is_erased = self._find_erased(windows, in_force, snapshot)
        self.erased = windows.filter(is_erased).select(self.windows.column_names)
        merged = self._merge(windows.filter(pc.invert(is_erased)), in_force)
        # If only late rows make an original, its other columns are null.
        rows = self._stage(merged, in_force.take(merged[_ROW]))
        # Refuse no timestamp here: the windows are in the store, or would be.
        future = FutureLimit(NO_MAX_US)
        batch = Batch(
            rows,
            "adjust",
            self.rules.author,
            self.token,
            is_correction=True,
            future=future,
            condition=self.condition,
        )
        return batch.prepare(context)

    def _read_in_force(self, context: CommitContext, snapshot: Snapshot) -> pa.Table:
        """Read the values of the windows' series, with the sequences of their originals."""
        names = self.windows[self.rules.keys[0]].unique().to_pylist()
        if context.head_id is None:
            return result_schema(self.values).empty_table()
        return run_query(Scope(snapshot, context.index, names), Query("values")).table

    def _find_originals(self, in_force: pa.Table) -> pa.Table:
        """Return the windows, with the sequence of the original of each and its row of `in_force`.

        Both are null for a window that the store does not have.
        """
        series, window = self.rules.keys
        originals = pa.table(
            {
                series: in_force["series"],
                window: in_force[window],
                _ORIGINAL: originals_of(in_force),
            }
        )
        windows = _join_left(self.windows, _number(originals, _ROW), [series, window])
        if windows.num_rows > self.windows.num_rows:
            raise UpdateFailed(
                f"a series has several originals of one window ('{window}')",
                "one original for each series and window",
                "let the series' name have all that the writing query groups by. Nothing of the "
                "batch is stored",
            )
        return windows

    def _merge(self, windows: pa.Table, in_force: pa.Table) -> pa.Table:
        """Merge the late results of `windows` into the values in force; sorted by their keys."""
        keys, merges = list(self.rules.keys), self.rules.merges
        late_results = windows.select(self.windows.column_names)
        stored = in_force.take(windows[_ROW].drop_null())
        stored_results = (
            stored.select(["series", keys[1], *merges])
            .rename_columns([*keys, *merges])
            .append_column(
                LATE_COUNT, pa.nulls(stored.num_rows, late_results.schema.field(LATE_COUNT).type)
            )
            .select(late_results.column_names)
        )
        try:
            late_results = late_results.cast(stored_results.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise IncompatibleValue(
                f"a result does not fit the store: {error}",
                ", ".join(f"{field.name} {field.type}" for field in self.values),
                "cast the aggregates to the types of the store's columns",
            ) from None
        # The stored results come first, as a function that merges expects them.
        results = pa.concat_tables([stored_results, late_results])
        merged = merge_windows(results, merges, self.rules.keys)
        rows = _join_left(merged, windows.select([*keys, _ORIGINAL, _ROW]), keys)
        return rows.sort_by([(key, "ascending") for key in keys])

    def _compare_windows(self, in_force: pa.Table) -> None:
        """Refuse windows of another length than those that others wrote."""
        if self.rules.window_us is None:
            return
        window = in_force[self.rules.keys[1]]
        is_theirs = pc.and_(pc.is_null(in_force[REASON_COLUMN]), window.is_valid())
        times = pc.coalesce(in_force["original_timestamp"], in_force["timestamp"])
        refuse_other_windows(
            pa.table(
                {"series": in_force["series"], "timestamp": times, self.rules.keys[1]: window}
            ).filter(is_theirs),
            self.rules.keys[1],
            window_us=self.rules.window_us,
            offset_us=self.rules.offset_us,
        )

    def _find_hidden(
        self, windows: pa.Table, in_force: pa.Table, index: SeriesIndex
    ) -> pa.ChunkedArray:
        """Flag the windows that may have been written and are hidden now.

        Their series has hidden events, and they do not come after all visible ones. Timestamps of
        originals do not decrease, and no original is before its window's time: so a hidden window's
        time is not after any visible timestamp. Visible windows would not do, because an earlier
        correction may have written one late.
        """
        series, window = self.rules.keys
        visible = pa.table(
            {
                series: in_force["series"],
                _ORIGINAL: originals_of(in_force),
                _US: in_force["timestamp"].cast(pa.int64()),
            }
        )
        oldest = visible.group_by([series], use_threads=False).aggregate(
            [(_ORIGINAL, "min"), (_US, "min")]
        )
        # A join does not keep the order of rows.
        names, *firsts = (column.combine_chunks() for column in oldest.columns)
        rows_of_names = pc.index_in(windows[series], value_set=names)
        first_original, first_us = (first.take(rows_of_names) for first in firsts)
        time_us = pc.add(windows[window].cast(pa.int64()), self.rules.offset_us)
        is_older = pc.and_(pc.greater(first_original, 0), pc.less_equal(time_us, first_us))
        last_sequence = index.lookup(windows[series].to_pylist())["last_sequence"]
        all_hidden = pc.and_(
            pc.is_null(rows_of_names), pa.chunked_array([pa.array(last_sequence != NO_SEQUENCE)])
        )
        may_be_hidden = pc.or_(pc.fill_null(is_older, False), all_hidden)
        return pc.and_(windows[_ORIGINAL].is_null(), may_be_hidden)

    def _find_erased(
        self, windows: pa.Table, in_force: pa.Table, snapshot: Snapshot
    ) -> pa.Array | pa.ChunkedArray:
        """Flag the windows that may have been erased: late rows would pass for all of their rows.

        An erased event has lost its window's start. If the writing query made it, it has the
        window's timestamp; if a correction did, perhaps late, the window may be any before it.
        """
        series, window = self.rules.keys
        empty = in_force.filter(in_force[window].is_null())
        may_be = snapshot.has_erasures and empty.num_rows and windows[_ORIGINAL].null_count
        if not may_be:
            return pa.repeat(pa.scalar(False), windows.num_rows)
        is_erased = flag_erased(
            snapshot.location, snapshot.metadata.erasure, empty["series"], empty["sequence"]
        )
        erased = empty.filter(pa.array(is_erased))
        is_correction = pc.equal(erased["author"].cast(pa.string()), self.rules.author)
        erased_us = erased["timestamp"].cast(pa.int64())
        bounds = pa.table(
            {
                series: erased["series"],
                _US: erased_us,
                _CORRECTED_US: pc.if_else(is_correction, erased_us, NEVER_US),
            }
        )
        of_times = bounds.group_by([series, _US], use_threads=False).aggregate([([], "count_all")])
        of_times = of_times.rename_columns([series, _US, _COUNT])
        of_series = bounds.group_by([series], use_threads=False).aggregate([(_CORRECTED_US, "max")])
        of_series = of_series.rename_columns([series, _CORRECTED_US])
        time_us = pc.add(windows[window].cast(pa.int64()), self.rules.offset_us)
        keys = _number(windows.select([series]).append_column(_US, time_us), _ROW)
        found = _join_left(_join_left(keys, of_times, [series, _US]), of_series, [series])
        found = found.sort_by(_ROW)  # A join does not keep the order of rows.
        has_time = found[_COUNT].is_valid()
        may_be_late = pc.fill_null(pc.less_equal(time_us, found[_CORRECTED_US]), False)
        return pc.and_(windows[_ORIGINAL].is_null(), pc.or_(has_time, may_be_late))

    def _stage(self, rows: pa.Table, in_force: pa.Table) -> pa.Table:
        """Return the rows to write: edits of windows in force, and originals of the others.

        `in_force` has the row in force of each of `rows`, or nulls.
        """
        series, window = self.rules.keys
        time = pc.add(rows[window].cast(pa.int64()), self.rules.offset_us)
        is_edit = rows[_ORIGINAL].is_valid()
        columns = {
            **{field.name: in_force[field.name] for field in self.values},
            "series": rows[series],
            "timestamp": pc.if_else(is_edit, pa.scalar(None, pa.int64()), time),
            EDIT_OF.name: rows[_ORIGINAL],
            window: rows[window],
            REASON_COLUMN: pa.array([self.rules.reason] * rows.num_rows, pa.string()),
            **{name: rows[name] for name in self.rules.merges},
        }
        return stage_columns(columns, rows.num_rows, staged_schema(self.values))


def _check_aggregates(aggregates: Mapping[str, tuple[Column, MergeRule]]) -> None:
    unknown = [how for _, how in aggregates.values() if isinstance(how, str) and how not in MERGES]
    if unknown or not aggregates:
        problem = f"{unknown[0]!r} merges no results" if unknown else "there are none"
        raise ValueError(
            compose_message(
                f"aggregates: {problem}",
                f"for each value column {', '.join(MERGES)}, or a function of both results",
                "correct it; for an average keep a sum and a count, which add up",
            )
        )


def correct_late(
    late: DataFrame,
    store: str,
    aggregates: Mapping[str, tuple[Column, MergeRule]],
    *,
    series: str,
    window: str,
    event_time: str = "start_time",
    start: str = "window_start",
    timestamp: Literal["start", "end"] = "start",
    max_age: str | None = None,
    author: str = "correct_late",
    reason: str = "late rows",
    beside_others: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """Make a query that corrects windows in a store by the late rows of a stream.

    Another query has made the store: it writes the windows of all rows in time, with a CTI
    (`ctiDelay`). A window that is in the store gets an edit; one that had no rows in time gets an
    original. A window that may not be written yet waits. The store gets the column `reason`.
    Name the aggregates as the writing query has them: `{"trips": (F.count("*"), "sum")}`; an edit
    leaves the store's other value columns as they are.

    Args:
        late: a stream with a column `violation`; the query takes its rows that are `late`.
        store: the path of the store.
        aggregates: by value column, the aggregate and the rule that combines two of its results:
            `sum` (also of counts), `min`, `max`, or a function of both. An average is a sum and a
            count.
        series: the column with the series' name, without nulls.
        window: the length of a window, such as `1 hour`, as the writing query has it.
        event_time: the column of event times.
        start: the store's value column with the start of the window, a timestamp.
        timestamp: the end of a window that is its `timestamp` in the store.
        max_age: leave out windows further before the store's newest window, count and report them;
            None: leave out none.
        author: the author of the corrections.
        reason: the text in the column `reason` of each correction.
        beside_others: True if another query has corrected the store by other late rows; else a
            query with a new checkpoint is refused there, since it would count late rows again.
        storage_options: how to reach an object store.

    Returns:
        The writer; give it a checkpoint and `start()` it. Over Spark Connect batches find their
        query by its `queryName`: set no other.

    Raises:
        NoSuchStore: there is no store.
        IncompatibleValue: the store has no such value columns, or a `reason` that is not a text;
            or `late` has no column `violation`.
        UpdateFailed: its retained range has a `limit`, or a writer gives the store no CTI.
        PermissionDenied: the author may not add events.
        StorageFailed: the store cannot be read or written.
        ValueError: `aggregates` is empty, a merge is unknown, or a duration is not valid.
    """
    _check_aggregates(aggregates)
    if timestamp not in ("start", "end"):
        raise ValueError(f"timestamp={timestamp!r}: accepted are 'start' and 'end'")
    accepts = "a duration above 0, such as '1 hour', as the writing query has it"
    length_us = read_duration("window", window, accepts, at_least_us=TICK_US)
    accepts = "None, or a duration of 0 or more, such as '7 days'"
    max_age_us = None if max_age is None else read_duration("max_age", max_age, accepts)
    location = parse_location(store, storage_options)
    with explained_failures(location):
        opened = Store.open(location)
        check_window_columns(opened, start, list(aggregates))
        refuse_limit(opened.settings.retained, opened.root)
        refuse_without_ctis(opened)
        AccessCheck(opened.settings.policy, author).require("update", "correct windows")
        _check_violation(late)
        if REASON_COLUMN not in [column.name for column in opened.values]:
            add_columns(opened, [pa.field(REASON_COLUMN, pa.string())])
    rules = WindowRules(
        (series, start),
        {name: how for name, (_, how) in aggregates.items()},
        offset_us=length_us if timestamp == "end" else 0,
        author=author,
        reason=reason,
        max_age_us=max_age_us,
        beside_others=beside_others,
        window_us=length_us,
    )
    corrector = _Corrector(location, rules)
    rows = late.where("violation = 'late'")
    windows = F.window(event_time, f"{length_us} microseconds").alias("_window")
    results = [column.alias(name) for name, (column, _) in aggregates.items()]

    identity = QueryIdentity.of(rows)

    def correct(batch: DataFrame, number: int) -> None:
        key = quote_column(series)
        grouped = batch.groupBy(F.col(key), windows).agg(*results, F.count("*").alias(LATE_COUNT))
        late_windows = grouped.select(
            key, F.col("_window.start").alias(start), *map(quote_column, [*aggregates, LATE_COUNT])
        )
        query = identity.find_id(batch)
        streams = partial(identity.find_streams, query, number)
        table = late_windows.toArrow()
        with explained_failures(location):
            corrector.correct(table, query, number, streams)

    return identity.mark(rows.writeStream.foreachBatch(correct))


def _check_violation(late: DataFrame) -> None:
    """Refuse a stream that does not flag late rows, because rows in time would count twice."""
    if "violation" in late.columns:
        return
    raise IncompatibleValue(
        "the stream of late rows has no column 'violation', so rows in time would count again",
        "a stream in which 'violation' is 'late' in the rows to correct with",
        "set 'violationPolicy' to 'flag' and add 'violation string' to .schema(...); if all rows "
        "are late, say so: late.withColumn('violation', F.lit('late'))",
    )


class _Outpaced(Exception):
    """Raised if a batch must be decided again: another driver or writer was faster."""


@dataclass(frozen=True, slots=True)
class _StillUndecided:
    """The condition that nobody else has decided a batch, and all its windows are still ready.

    With `is_alone` no other query may have corrected the store either.

    Another driver may decide meanwhile that the batch has no windows to correct, and write its
    file without a commit. Before its next batch it looks at the store again. If this commit is
    there, it takes it. If not, the store is still as it is here: these windows are ready for its
    next batch, too, and only one of the two commits succeeds.
    """

    store: Store
    files: LateFiles
    number: int
    windows: pa.Table
    rules: WindowRules
    is_alone: bool

    def check(self, context: CommitContext) -> None:
        """Raise _Outpaced if it does not hold."""
        if self.is_alone and _find_others(self.store, self.files.query):
            raise _Outpaced
        bounds = _find_bounds(context.index, self.rules)
        ready = _divide(self.windows, self.rules, *bounds).ready
        is_ready = ready.num_rows == self.windows.num_rows
        is_last = LateFiles.of(self.store, self.files.query) == self.files
        if not is_ready or not is_last or self.files.newest() >= self.number:
            raise _Outpaced


def _find_others(store: Store, query: str) -> list[str]:
    """Return the other queries with corrections in the store that are not withdrawn."""
    return [
        name
        for name, batch in list_correctors(store).items()
        if name != query and batch > read_withdrawn(store.location, name)
    ]


def _find_bounds(index: SeriesIndex, rules: WindowRules) -> tuple[int | None, int | None]:
    """Return the store's CTI, and the time of the oldest window to correct; None for no bound."""
    newest_us = int(index.columns["original_us"].max(initial=NEVER_US))
    is_limited = rules.max_age_us is not None and newest_us != NEVER_US
    oldest_us = newest_us - (rules.max_age_us or 0) if is_limited else None
    return index.metadata.ctis.store_us, oldest_us


def _describe_rules(merges: Mapping[str, str], window_us: int | None) -> str:
    results = ", ".join(f"'{name}' ({how})" for name, how in sorted(merges.items()))
    return results if window_us is None else f"{results} of {format_duration(window_us)}"


@dataclass(slots=True)
class _Corrector:
    """Corrects a store by the batches of one query; see `correct_late`."""

    location: Location
    rules: WindowRules
    warned: set[str] = field(default_factory=set)

    def correct(
        self,
        new: pa.Table,
        query: str,
        number: int,
        find_streams: Callable[[], Sequence[RecordStream] | None] = tuple,
    ) -> None:
        """Correct the store by the late windows of one batch, once."""
        store = Store.open(self.location)
        self._refuse_withdrawn(query)
        refuse_without_ctis(store)
        new = self._read_windows(new)
        files, digest = LateFiles.of(store, query), digest_rows(new)
        newest = files.newest()
        if newest >= number:
            had = files.read(number)[1].rows if newest == number else None
            check_replay(store.root, (f"{LATE_TOKEN}{query}", number), digest, newest, had)
            return
        before = files.read(number - 1) if number else None
        waiting = new.slice(0, 0) if before is None else self._continue(*before, new.schema)
        last = None if before is None else before[1]
        is_compared = last is not None and last.compared
        if not is_compared and (streams := find_streams()) is not None:
            refuse_other_streams(store, streams)
            is_compared = True
        cti_us, oldest_us = _find_bounds(store.index(), self.rules) if is_compared else (None, None)
        step = advance_windows(waiting, new, self.rules, cti_us=cti_us, oldest_us=oldest_us)
        note = self._note_batch(last, digest, is_compared)
        if not step.ready.num_rows:
            files.write(number, step.waiting, note)
        else:
            try:
                self._commit(store, files, number, step, note)
            except (_Outpaced, ReplayDiffers):
                return self.correct(new, query, number, find_streams)
        self._warn_left_out(
            step.too_old, "is further before the store's newest window than max_age"
        )
        if not store.metadata().ctis.writers or store.metadata().ctis.without_cti():
            self._warn_no_cti(store)
        # A repeated batch needs the file of the batch before it; older files are unused.
        files.remove_before(number - 1)

    def _note_batch(self, last: LateNote | None, rows: int, is_compared: bool) -> LateNote:
        """Return what the file of a batch says about the query; `rows` is their digest."""
        # A restart may give another author.
        authors = {self.rules.author, *(() if last is None else last.authors)}
        return LateNote(
            compared=is_compared,
            authors=tuple(sorted(authors)),
            rows=rows,
            merges=self.rules.name_merges(),
            window_us=self.rules.window_us,
        )

    def _continue(self, waiting: pa.Table, note: LateNote, schema: pa.Schema) -> pa.Table:
        """Return the windows that wait since the last batch, in the columns of `schema`.

        The rows of these windows were aggregated as that batch did; others can only follow them.
        """
        if not waiting.num_rows:
            return schema.empty_table()
        had = _describe_rules(note.merges, note.window_us)
        given = _describe_rules(self.rules.name_merges(), self.rules.window_us)
        named = waiting.rename_columns([*self.rules.keys, *waiting.column_names[2:]])
        if had != given:
            problem = f"{waiting.num_rows} windows that wait have {had}, and this query {given}"
        else:
            try:
                return named.select(schema.names).cast(schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                problem = f"the results of {waiting.num_rows} windows that wait do not fit: {error}"
        raise UpdateFailed(
            problem,
            "the aggregates, rules and window of the last run, while windows wait",
            "restart as before, and change them once the store's CTI has passed all windows that "
            "wait; or call withdraw_corrections(store), and start with a new checkpoint. "
            "Nothing of the batch is stored",
        )

    def _commit(
        self, store: Store, files: LateFiles, number: int, step: WindowStep, note: LateNote
    ) -> None:
        """Commit the windows that are ready, once the file of the waiting ones is written."""
        others, is_new = _find_others(store, files.query), files.commit is None
        is_alone = is_new and not self.rules.beside_others
        if is_alone and others:
            raise UpdateFailed(
                f"query {others[0]} has already corrected the store '{self.location.root}', and "
                "this one has not: with a new or deleted checkpoint it counts late rows again",
                "the checkpoint of the query that has corrected the store",
                "bring that checkpoint back; if its corrections were wrong, stop it and call "
                "withdraw_corrections(store); if both take different late rows, set "
                "beside_others=True. Nothing of the batch is stored",
            )
        is_first = is_new and not list_correctors(store)
        corrections = Corrections(
            step.ready,
            self.rules,
            store.values,
            token=(f"{LATE_TOKEN}{files.query}", number),
            condition=_StillUndecided(store, files, number, step.ready, self.rules, is_alone),
            is_first=is_first,
        )
        after = dataclasses.replace(files, commit=(number, corrections.digest))
        after.write(number, step.waiting, note)
        store.append(corrections)
        if corrections.hidden is not None:
            self._warn_left_out(corrections.hidden, "is out of the store's retained range")
        if corrections.erased is not None:
            self._warn_left_out(corrections.erased, "was erased, or may have been")
        maintain_after_commit(store)

    def _refuse_withdrawn(self, query: str) -> None:
        if read_withdrawn(self.location, query) >= 0:
            raise UpdateFailed(
                f"the corrections of query {query} in the store '{self.location.root}' have been "
                "withdrawn, and its checkpoint says that they are there",
                "a query with a new checkpoint",
                "start correct_late with a new checkpoint, and the options of the query that "
                "writes the windows. Nothing of the batch is stored",
            )

    def _read_windows(self, windows: pa.Table) -> pa.Table:
        """Return Spark's windows in the types of the store's keys."""
        series, window = self.rules.keys
        data_type = windows[series].type
        if not (pa.types.is_string(data_type) or pa.types.is_large_string(data_type)):
            raise IncompatibleValue(
                f"column '{series}' of the late rows is {data_type}, and names no series",
                "a string",
                f"cast it as the query that writes the windows does: late.withColumn('{series}', "
                f"F.col('{quote_column(series)}').cast('string')). Nothing of the batch is stored",
            )
        for batch in windows.to_batches():
            check_text(batch, batch.column_names, series, None)
        if windows[series].null_count:
            raise UpdateFailed(
                f"column '{series}' is null in late rows",
                "a series' name in every row",
                "filter these rows or name them. Nothing of the batch is stored",
            )
        types = {series: pa.string(), window: INSTANT}
        fields = [field.with_type(types.get(field.name, field.type)) for field in windows.schema]
        return windows.cast(pa.schema(fields))

    def _warn_left_out(self, windows: pa.Table, why: str) -> None:
        if windows.num_rows:
            us = windows[self.rules.keys[1]].cast(pa.int64())[0].as_py()
            _LOG.warning(
                "%d late rows of %d windows are left out of the store '%s', such as '%s' at %s, "
                "which %s",
                sum(windows[LATE_COUNT].to_pylist()),
                windows.num_rows,
                self.location.root,
                windows[self.rules.keys[0]][0],
                format_instant(us),
                why,
            )

    def _warn_no_cti(self, store: Store) -> None:
        if "cti" not in self.warned:
            self.warned.add("cti")
            names: Any = store.metadata().ctis.without_cti()
            _LOG.warning(
                "late rows wait until the store '%s' has a CTI above their windows, and a writer "
                "has given none: %s; next step: set 'ctiDelay' on the query that writes the "
                "windows",
                self.location.root,
                ", ".join(map(repr, names)) or "there is none yet",
            )
