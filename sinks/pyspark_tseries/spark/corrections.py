"""Choose the windows to correct by late rows, and write the corrections (semantics 30.6).

Late rows come in batches, as partial aggregates of (series, window). A window is corrected once the
store's CTI is above its time, because all that its query writes of it is then in the store. Until
then its partial aggregates wait. `advance_windows` is a pure fold over batches: with the same rows
and CTIs it gives the same windows, so a repeated batch decides as it did before.

Each attempt to commit reads the values in force as of the preceding commit, so a correction never
loses an edit that another writer made between its reading and its commit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import IncompatibleValue, UpdateFailed
from pyspark_tseries.maintain.withdrawal import REASON
from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE
from pyspark_tseries.model.columns import result_schema
from pyspark_tseries.model.ranges import Query, RetainedRange, format_range
from pyspark_tseries.model.row_digest import digest_rows
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.options import NO_MAX_US
from pyspark_tseries.read.scan import run_query
from pyspark_tseries.spark.late_checks import refuse_other_windows
from pyspark_tseries.write.batch import Batch, CommitContext, PreparedCommit
from pyspark_tseries.write.numbering import FutureLimit
from pyspark_tseries.write.rows import EDIT_OF, staged_schema

Merge = str | Callable[[Any, Any], Any]
"""The rule that makes one result of two: `sum`, `min`, `max`, or a function of both."""

MERGES: Final = ("sum", "min", "max")

ROWS: Final = "late_rows"
"""The column with the number of late rows of a window."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """The windows that a query corrects, and how; see `correct_late`.

    Attributes:
        keys: the column of the series, and the column of the window's start.
        merges: by column of results, how two results become one.
        offset_us: from a window's start to the time that the store has of it.
        author: the author of the corrections.
        reason: the text in the column `reason` of each.
        max_age_us: leave out windows further before the store's newest one; None: leave out none.
        beside_others: True if other queries may have corrected the store.
        window_us: the length of a window; None: do not compare it with the store's.
    """

    keys: tuple[str, str]
    merges: Mapping[str, Merge]
    offset_us: int
    author: str
    reason: str
    max_age_us: int | None = None
    beside_others: bool = False
    window_us: int | None = None


@dataclass(frozen=True, slots=True)
class WindowStep:
    """The outcome of one batch of late rows: tables of series, window, results and `ROWS`.

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
    times = pc.add(windows[rules.keys[1]].cast(pa.int64()), rules.offset_us)
    if cti_us is None:
        return WindowStep(windows.slice(0, 0), windows, windows.slice(0, 0))
    is_ready = pc.less(times, cti_us)
    is_old = pc.and_(is_ready, pc.less(times, NEVER_US if oldest_us is None else oldest_us))
    return WindowStep(
        windows.filter(pc.and_(is_ready, pc.invert(is_old))),
        windows.filter(pc.invert(is_ready)),
        windows.filter(is_old),
    )


def merge_windows(
    windows: pa.Table, merges: Mapping[str, Merge], keys: tuple[str, str]
) -> pa.Table:
    """Merge the rows of each series and window into one row, sorted by both.

    A null is the result of no value, and changes nothing.
    """
    functions = {name: how for name, how in merges.items() if not isinstance(how, str)}
    known = {**{n: how for n, how in merges.items() if isinstance(how, str)}, ROWS: "sum"}
    lists = [(name, "list") for name in functions]
    grouped = windows.group_by(list(keys), use_threads=False).aggregate(
        [*((name, str(how)) for name, how in known.items()), *lists]
    )
    columns = {key: grouped[key] for key in keys}
    for name in windows.column_names:
        if name in known:
            columns[name] = grouped[f"{name}_{known[name]}"].cast(windows[name].type)
        elif name in functions:
            folded = [
                _fold(values, functions[name]) for values in grouped[f"{name}_list"].to_pylist()
            ]
            columns[name] = pa.chunked_array([pa.array(folded, windows[name].type)])
    merged = pa.table(columns, windows.schema)
    return merged.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def _fold(values: list[Any], how: Callable[[Any, Any], Any]) -> Any:
    present = [value for value in values if value is not None]
    result = present[0] if present else None
    for value in present[1:]:
        result = how(result, value)
    return result


@dataclass(slots=True)
class Corrections:
    """Late windows to merge into a store, atomically; an `Appendable`.

    Attributes:
        windows: series, window, results and `ROWS`, a row for each window.
        rules: the rules of the windows.
        values: the store's value columns.
        token: identifies the batch.
        is_first: True if nobody has corrected the store yet.
        hidden: after `prepare`, the windows left out because the store's retained range hides them.
    """

    windows: pa.Table
    rules: WindowRules
    values: list[pa.Field]
    token: tuple[str, int] | None
    is_first: bool = False
    hidden: pa.Table | None = field(default=None)

    # `prepare` reads the values in force, so it needs the store's files, and takes time.
    has_edits = is_slow = True

    @property
    def digest(self) -> int:
        """The digest of the windows, which the late rows of the batch determine."""
        return digest_rows(self.windows)

    def prepare(self, context: CommitContext) -> PreparedCommit:
        """Prepare a commit as `Batch.prepare` does, with its errors."""
        assert context.snapshot is not None
        refuse_limit(context.settings.retained, context.location.root)
        rows = self._merge(self._read_in_force(context), context.index)
        # Refuse no timestamp here: the windows are in the store, or would be.
        future = FutureLimit(NO_MAX_US)
        author = self.rules.author
        batch = Batch(rows, "adjust", author, self.token, is_correction=True, future=future)
        return batch.prepare(context)

    def _read_in_force(self, context: CommitContext) -> pa.Table:
        """Read the values of the windows' series, with the sequences of their originals."""
        assert context.snapshot is not None
        names = self.windows[self.rules.keys[0]].unique().to_pylist()
        if context.head_id is None:
            return result_schema(self.values).empty_table()
        return run_query(context.snapshot, context.index, Query("values"), names).table

    def _merge(self, in_force: pa.Table, index: SeriesIndex) -> pa.Table:
        """Return the rows to write: edits of windows in force, and originals of the others."""
        keys, columns = list(self.rules.keys), self.windows.column_names
        original = pc.coalesce(in_force["original_sequence"], in_force["sequence"])
        known = in_force.select(["series", self.rules.keys[1], *self.rules.merges])
        known = known.rename_columns([*keys, *self.rules.merges]).append_column(
            "original", original
        )
        places = pa.array(range(known.num_rows), pa.int64())
        places_ = known.select([*keys, "original"]).append_column("place", places)
        there = self.windows.join(places_, keys)
        if there.num_rows > self.windows.num_rows:
            raise UpdateFailed(
                f"a series has several originals of one window ('{self.rules.keys[1]}')",
                "one original for each series and window",
                "let the series' name have all that the writing query groups by. Nothing of the "
                "batch is stored",
            )
        self._compare_windows(in_force)
        if self.is_first:
            _refuse_other_reasons(in_force.take(there["place"].drop_null()))
        is_hidden = self._find_hidden(there, in_force, index)
        self.hidden = there.filter(is_hidden).select(columns)
        there = there.filter(pc.invert(is_hidden))
        mine = there.select(columns)
        none = pa.nulls(known.num_rows, mine.schema.field(ROWS).type)
        theirs = known.append_column(ROWS, none).select(columns)
        theirs = theirs.join(mine.select(keys), keys, join_type="left semi")
        try:
            mine = mine.cast(theirs.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise IncompatibleValue(
                f"a result does not fit the store: {error}",
                ", ".join(f"{field.name} {field.type}" for field in self.values),
                "cast the aggregates to the types of the store's columns",
            ) from None
        merged = merge_windows(pa.concat_tables([theirs, mine]), self.rules.merges, self.rules.keys)
        rows = merged.join(there.select([*keys, "original", "place"]), keys)
        rows = rows.sort_by([(key, "ascending") for key in keys])
        # If only late rows make an original, its other columns are null.
        return self._stage(rows, in_force.take(rows["place"]))

    def _compare_windows(self, in_force: pa.Table) -> None:
        """Refuse windows of another length than those that others wrote."""
        if self.rules.window_us is None:
            return
        window = in_force[self.rules.keys[1]]
        is_theirs = pc.and_(pc.is_null(in_force[REASON]), window.is_valid())
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
        self, there: pa.Table, in_force: pa.Table, index: SeriesIndex
    ) -> pa.ChunkedArray:
        """Flag the windows of `there` that may have been written and are hidden by now.

        Their series has hidden events, and they do not come after everything visible. Timestamps
        of originals rise, and none is before its window's time, so the time of a hidden original's
        window is not above any visible timestamp. The window of a visible original says nothing,
        since an earlier correction may have written it late.
        """
        series, window = self.rules.keys
        visible = pa.table(
            {
                series: in_force["series"],
                "original": pc.coalesce(in_force["original_sequence"], in_force["sequence"]),
                "us": in_force["timestamp"].cast(pa.int64()),
            }
        )
        oldest = visible.group_by([series], use_threads=False).aggregate(
            [("original", "min"), ("us", "min")]
        )
        # A join does not keep the order of rows.
        names = oldest[series].combine_chunks()
        rows_of_names = pc.index_in(there[series], value_set=names)
        first_original, first_us = (
            oldest[name].take(rows_of_names) for name in ("original_min", "us_min")
        )
        time_us = pc.add(there[window].cast(pa.int64()), self.rules.offset_us)
        is_older = pc.and_(pc.greater(first_original, 0), pc.less_equal(time_us, first_us))
        last = index.lookup(there[series].to_pylist())["last_sequence"]
        all_hidden = pc.and_(
            pc.is_null(rows_of_names), pa.chunked_array([pa.array(last != NO_SEQUENCE)])
        )
        may_be_hidden = pc.or_(pc.fill_null(is_older, False), all_hidden)
        return pc.and_(there["original"].is_null(), may_be_hidden)

    def _stage(self, rows: pa.Table, in_force: pa.Table) -> pa.Table:
        series, window = self.rules.keys
        time = pc.add(rows[window].cast(pa.int64()), self.rules.offset_us)
        is_edit = rows["original"].is_valid()
        columns = {
            "series": rows[series],
            "author": pa.nulls(rows.num_rows, pa.string()),
            "timestamp": pc.if_else(is_edit, pa.scalar(None, pa.int64()), time),
            EDIT_OF.name: rows["original"],
            window: rows[window],
            REASON: pa.array([self.rules.reason] * rows.num_rows, pa.string()),
            **{name: rows[name] for name in self.rules.merges},
        }
        schema = staged_schema(self.values)
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else in_force[field.name]
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema).combine_chunks()


def refuse_limit(retained: RetainedRange, root: str) -> None:
    """Refuse a store in which a correction hides what it corrects."""
    if retained.limit is not None:
        raise UpdateFailed(
            f"the store '{root}' has the retained range '{format_range(retained)}', which counts "
            "edits too: each correction would hide an older window, or its own",
            "a retained range without 'limit', such as 'unlimited' or 'last 30D'",
            "create the store with such a retainedRange, or change it with "
            "TimeSeries.set_retained_range; windows that are hidden already are not corrected",
        )


def _refuse_other_reasons(in_force: pa.Table) -> None:
    """Refuse to write over a user's column that happens to be called `reason`."""
    is_reason = pc.and_(in_force[REASON].is_valid(), in_force["original_sequence"].is_null())
    row = pc.index(is_reason, True).as_py()
    if row >= 0:
        raise UpdateFailed(
            f"the column '{REASON}' is not of corrections: in series '{in_force['series'][row]}' "
            f"it is '{in_force[REASON][row]}', and the store has no corrections yet",
            f"a store whose column '{REASON}' is null in what others write",
            "write these values to a column of another name, in a new store. Nothing of the batch "
            "is stored",
        )
