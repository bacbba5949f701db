"""`correct_late` corrects windows by late rows after a query has written them (semantics 30.6).

The query that writes windows leaves flagged rows out; this one takes them. In each batch it
aggregates the late rows by series and window, and writes edits of the values in force. Windows that
must wait are in a file of the store, `_tseries/late/QUERY/N.arrow`, with the store's CTI that batch
N decided by. The file is written before the commit, and a repeated batch decides by it; the commit
carries the batch's number. So a kill at any moment neither loses nor doubles anything.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_timestream.core.instants import format_instant, parse_duration
from pyspark_tseries.errors import IncompatibleValue, UpdateFailed
from pyspark_tseries.maintain.background import maintain_after_commit
from pyspark_tseries.maintain.withdrawal import (
    BOUNDS_KEY,
    LATE_TOKEN,
    REASON,
    late_path,
    list_correctors,
    read_withdrawn,
)
from pyspark_tseries.model.arrays import NEVER_US
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.policy import AccessCheck
from pyspark_tseries.model.row_digest import digest_rows
from pyspark_tseries.spark.corrections import (
    MERGES,
    ROWS,
    Corrections,
    Merge,
    WindowRules,
    WindowStep,
    advance_windows,
    refuse_limit,
)
from pyspark_tseries.spark.late_checks import (
    QueryIdentity,
    RecordStream,
    refuse_other_streams,
    refuse_without_ctis,
)
from pyspark_tseries.storage.location import Location, list_directories, parse_location, sync
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import is_replay

_LOG: Final = logging.getLogger(__name__)


def correct_late(
    late: DataFrame,
    store: str,
    aggregates: Mapping[str, tuple[Column, Merge]],
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
    Aggregates are those of the writing query: `{"trips": (F.count("*"), "sum")}`; an edit leaves
    the store's other value columns as they are.

    Args:
        late: a stream with a column `violation`; the query takes its rows that are `late`.
        store: the path of the store.
        aggregates: by value column, the aggregate and how two results of it become one: `sum`
            (counts too), `min`, `max`, or a function of both. An average is a sum and a count.
        series: the column with the series' name, without nulls.
        window: the length of a window, such as `1 hour`, as the writing query has it.
        event_time: the column of event times.
        start: the store's value column with the start of the window, a timestamp.
        timestamp: which end of a window its `timestamp` in the store is.
        max_age: leave out windows further before the store's newest window, count and report them;
            None: leave out none.
        author: the author of the corrections.
        reason: the text in the column `reason` of each correction.
        beside_others: True if another query has corrected the store by other late rows; else a
            query with a new checkpoint is refused there, since it would count late rows again.
        storage_options: how to reach an object store.

    Returns:
        The writer; give it a checkpoint and `start()` it. Over Spark Connect it has a `queryName`
        by which batches find their query: set no other.

    Raises:
        NoSuchStore: there is no store.
        IncompatibleValue: the store has no such value columns, or a `reason` that is not a text;
            or `late` has no column `violation`.
        UpdateFailed: its retained range has a `limit`, or a writer gives the store no CTI.
        PermissionDenied: the author may not add events.
        ValueError: `aggregates` is empty, a merge is unknown, or a duration is not valid.
    """
    unknown = [how for _, how in aggregates.values() if isinstance(how, str) and how not in MERGES]
    if unknown or not aggregates:
        raise ValueError(
            f"aggregates: {unknown[0]!r} merges no results" if unknown else "aggregates: none given"
        )
    if timestamp not in ("start", "end"):
        raise ValueError(f"timestamp={timestamp!r}: accepted are 'start' and 'end'")
    location = parse_location(store, storage_options)
    opened = Store.open(location)
    _check_columns(opened, start, list(aggregates))
    refuse_limit(opened.settings.retained, opened.root)
    refuse_without_ctis(opened)
    AccessCheck(opened.settings.policy, author).require("update", "correct windows")
    _check_violation(late)
    if REASON not in [column.name for column in opened.values]:
        add_columns(opened, [pa.field(REASON, pa.string())])
    length_us = parse_duration(window)
    rules = WindowRules(
        (series, start),
        {name: how for name, (_, how) in aggregates.items()},
        offset_us=length_us if timestamp == "end" else 0,
        author=author,
        reason=reason,
        max_age_us=None if max_age is None else parse_duration(max_age),
        beside_others=beside_others,
        window_us=length_us,
    )
    plan = _Plan(location, rules)
    rows = late.where("violation = 'late'")
    windows = F.window(event_time, f"{length_us} microseconds").alias("_window")
    results = [column.alias(name) for name, (column, _) in aggregates.items()]

    identity = QueryIdentity.of(rows)

    def correct(batch: DataFrame, number: int) -> None:
        opened = batch.groupBy(F.col(series), windows).agg(*results, F.count("*").alias(ROWS))
        taken = opened.select(series, F.col("_window.start").alias(start), *aggregates, ROWS)
        query = identity.find_id(batch)
        streams = partial(identity.find_streams, query, number)
        plan.correct(taken.toArrow(), query, number, streams)

    return identity.mark(rows.writeStream.foreachBatch(correct))


def _check_violation(late: DataFrame) -> None:
    """Refuse a stream that does not say which rows are late: rows in time would count twice."""
    if "violation" in late.columns:
        return
    raise IncompatibleValue(
        "the stream of late rows has no column 'violation', so rows in time would count again",
        "a stream in which 'violation' is 'late' in the rows to correct with",
        "set 'violationPolicy' to 'flag' and add 'violation string' to .schema(...); if all rows "
        "are late, say so: late.withColumn('violation', F.lit('late'))",
    )


def _check_columns(store: Store, start: str, results: list[str]) -> None:
    known = {field.name: field.type for field in store.values}
    missing = [name for name in (start, *results) if name not in known]
    if missing or known[start] != INSTANT:
        name = missing[0] if missing else start
        raise IncompatibleValue(
            f"the store '{store.root}' has no value column '{name}'"
            + ("" if missing else " of timestamps"),
            ", ".join(f"'{field}' {kind}" for field, kind in known.items()) or "none",
            "let the query that writes the windows select it, such as "
            "F.col('window.start').alias('window_start')",
        )
    if known.get(REASON, pa.string()) != pa.string():
        raise IncompatibleValue(
            f"the store '{store.root}' has a column '{REASON}' of type {known[REASON]}",
            f"a store whose '{REASON}' is a text, and null in what others write",
            "let the query that writes the windows give that column another name",
        )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The basis of one batch's decisions: the store's CTI, and the oldest window to correct.

    `compared` is True once the query's streams were compared with those of the windows; a batch
    that cannot compare them yet lets all windows wait. `author` is the author of the corrections,
    `rows` the digest of the late rows.
    """

    cti_us: int | None
    oldest_us: int | None
    author: str
    compared: bool = True
    rows: int | None = None


@dataclass(slots=True)
class _Plan:
    """The common part of the batches of a correcting query; see `correct_late`."""

    location: Location
    rules: WindowRules
    told: set[str] = field(default_factory=set)

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
        new = new.cast(self._schema(new.schema))
        if new[self.rules.keys[0]].null_count:
            raise UpdateFailed(
                f"column '{self.rules.keys[0]}' is null in late rows",
                "a series' name in every row",
                "filter these rows or name them. Nothing of the batch is stored",
            )
        before = self._read(query, number - 1)
        if before is None and number > 0:
            raise UpdateFailed(
                f"the late rows that wait since batch {number - 1} are gone: "
                f"'{self._path(query, number - 1)}' is missing or damaged",
                "the store that this query's checkpoint belongs to",
                "bring the file back, or start with a new checkpoint and a store without "
                "corrections of this query",
            )
        waiting = new.slice(0, 0) if before is None else before[0].cast(new.schema)
        decided, digest = self._read(query, number), digest_rows(new)
        if decided is not None:
            bounds = decided[1]
            # A batch without windows to correct makes no commit that would know its rows.
            is_replay(store.root, (f"{LATE_TOKEN}{query}", number), digest, number, bounds.rows)
        else:
            bounds = self._find_bounds(store)
            if before is None or not before[1].compared:
                streams = find_streams()
                if streams is None:
                    bounds = _Bounds(None, None, self.rules.author, compared=False)
                else:
                    refuse_other_streams(store, streams)
        step = advance_windows(
            waiting, new, self.rules, cti_us=bounds.cti_us, oldest_us=bounds.oldest_us
        )
        if decided is None:
            self._write(query, number, step.waiting, dataclasses.replace(bounds, rows=digest))
        self._tell_left_out(
            step.too_old, "is further before the store's newest window than max_age"
        )
        if step.ready.num_rows:
            self._commit(store, step, query, number)
        if not store.metadata().ctis.writers or store.metadata().ctis.without_cti():
            self._tell_no_cti(store)
        # A repeated batch needs the file of the batch before it, and nobody needs older ones.
        self.location.remove([self._path(query, number - 2)])

    def _find_bounds(self, store: Store) -> "_Bounds":
        """Return the bounds that a batch gets from the store as it is now."""
        index = store.index()
        newest_us = int(index.columns["original_us"].max(initial=NEVER_US))
        known = self.rules.max_age_us is not None and newest_us != NEVER_US
        oldest_us = newest_us - (self.rules.max_age_us or 0) if known else None
        return _Bounds(index.metadata.ctis.store_us, oldest_us, self.rules.author)

    def _commit(self, store: Store, step: WindowStep, query: str, number: int) -> None:
        others = self._find_others(store, query)
        token = f"{LATE_TOKEN}{query}", number
        is_new = store.transaction(token[0]) is None
        if is_new and others and not self.rules.beside_others:
            raise UpdateFailed(
                f"query {others[0]} has already corrected the store '{self.location.root}', and "
                "this one has not: with a new or deleted checkpoint it counts late rows again",
                "the checkpoint of the query that has corrected the store",
                "bring that checkpoint back; if its corrections were wrong, stop it and call "
                "withdraw_corrections(store); if both take different late rows, set "
                "beside_others=True. Nothing of the batch is stored",
            )
        is_first = is_new and not list_correctors(store)
        corrections = Corrections(step.ready, self.rules, store.values, token, is_first=is_first)
        store.append(corrections)
        if corrections.hidden is not None:
            self._tell_left_out(corrections.hidden, "is out of the store's retained range")
        maintain_after_commit(store)

    def _find_others(self, store: Store, query: str) -> list[str]:
        return [
            name
            for name, batch in list_correctors(store).items()
            if name != query and batch > read_withdrawn(self.location, name)
        ]

    def _refuse_withdrawn(self, query: str) -> None:
        if read_withdrawn(self.location, query) >= 0:
            raise UpdateFailed(
                f"the corrections of query {query} in the store '{self.location.root}' have been "
                "withdrawn, and its checkpoint says that they are there",
                "a query with a new checkpoint",
                "start correct_late with a new checkpoint, and the options of the query that "
                "writes the windows. Nothing of the batch is stored",
            )

    def _schema(self, schema: pa.Schema) -> pa.Schema:
        times = pa.field(self.rules.keys[1], INSTANT)
        return pa.schema([times if field.name == times.name else field for field in schema])

    def _path(self, query: str, number: int) -> str:
        return late_path(self.location, query, f"{number}.arrow")

    def _read(self, query: str, number: int) -> "tuple[pa.Table, _Bounds] | None":
        """Return the waiting windows and the bounds of a batch; None if it has not decided."""
        try:
            with self.location.read(self._path(query, number)) as file:
                table = pa.ipc.open_file(file).read_all()
        except (FileNotFoundError, pa.ArrowInvalid):
            return None  # A kill may have torn it: then the batch has committed nothing.
        bounds = json.loads((table.schema.metadata or {})[BOUNDS_KEY])
        return table.replace_schema_metadata(None), _Bounds(**bounds)

    def _write(self, query: str, number: int, waiting: pa.Table, bounds: "_Bounds") -> None:
        path = self._path(query, number)
        note = {BOUNDS_KEY: json.dumps(dataclasses.asdict(bounds)).encode()}
        with self.location.write(path) as file:
            noted = waiting.replace_schema_metadata(note)
            with pa.ipc.new_file(file, noted.schema) as writer:
                writer.write_table(noted)
        if self.location.is_local:
            sync([path, *list_directories(self.location.root, [path])])

    def _tell_left_out(self, windows: pa.Table, why: str) -> None:
        if windows.num_rows:
            first = windows.slice(0, 1).to_pylist()[0]
            us = windows[self.rules.keys[1]].cast(pa.int64())[0].as_py()
            _LOG.warning(
                "%d late rows of %d windows are left out of the store '%s', such as '%s' at %s, "
                "which %s",
                sum(windows[ROWS].to_pylist()),
                windows.num_rows,
                self.location.root,
                first[self.rules.keys[0]],
                format_instant(us),
                why,
            )

    def _tell_no_cti(self, store: Store) -> None:
        if "cti" not in self.told:
            self.told.add("cti")
            names: Any = store.metadata().ctis.without_cti()
            _LOG.warning(
                "late rows wait until the store '%s' has a CTI above their windows, and a writer "
                "has given none: %s; next step: set 'ctiDelay' on the query that writes the "
                "windows",
                self.location.root,
                ", ".join(map(repr, names)) or "there is none yet",
            )
