"""`TimeSeries`: a store without Spark, for small appends, edits and queries.

    series = TimeSeries.create("/data/room", {"celsius": pa.float64()}, retained_range="last 7D")
    series.append("kitchen", 21.5)
    series.range_query().from_last(timedelta(hours=1)).select_from("kitchen")

`range_query()` begins a query; see `client/questions.py`.
"""

import asyncio
import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

import pyarrow as pa

from pyspark_timestream.core.instants import datetime_to_us, to_datetime
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import show_value, wrap_methods
from pyspark_timestream.report import format_count
from pyspark_tseries.client.convert import (
    check_retained,
    check_stored_columns,
    convert_name,
    convert_value,
    new_value_fields,
    parse_author,
    parse_duration_argument,
    parse_max_future,
    parse_values,
    stage_given_rows,
    to_value_schema,
)
from pyspark_tseries.client.follow import Follower
from pyspark_tseries.client.questions import Questions
from pyspark_tseries.client.results import (
    RECEIPT_SCHEMA,
    Event,
    EventMetadata,
    QueryResult,
    build_receipt,
    format_span,
)
from pyspark_tseries.errors import (
    ConditionFailed,
    Finding,
    FutureEvent,
    IncompatibleValue,
    NoSuchEvent,
    OutOfOrder,
    UnusableStore,
)
from pyspark_tseries.maintain.background import maintain_after_commit
from pyspark_tseries.maintain.compactor import CompactionResult, compact
from pyspark_tseries.maintain.erase import erase, list_erasures
from pyspark_tseries.maintain.rollup import RollupOptions, RollupResult, rollup
from pyspark_tseries.maintain.verify import describe, verify
from pyspark_tseries.maintain.widen import widen_columns
from pyspark_tseries.model.columns import INSTANT, fits, is_valid_text, type_name
from pyspark_tseries.model.commits import is_maintenance_due
from pyspark_tseries.model.properties import (
    ensure_owner,
    new_properties,
    parse_policy,
    tseries_properties,
)
from pyspark_tseries.model.ranges import format_range, parse_choice, to_whole
from pyspark_tseries.options import (
    LEAVE_OUT_POLICIES,
    STORE_POLICIES,
    name_lenient,
    parse_argument,
    parse_optional,
)
from pyspark_tseries.read.view import View
from pyspark_tseries.storage.erasures import Erasure
from pyspark_tseries.storage.failures import explain_failure, explained_failures
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.admin_commits import (
    add_columns,
    forget_writer,
    require_owner,
    set_policy,
    set_retained_range,
    set_units,
)
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch, PreparedCommit, SeriesCondition, condition_error
from pyspark_tseries.write.numbering import DEFAULT_LIMIT, FutureLimit
from pyspark_tseries.write.rows import staged_schema

_CORRECT_CLOCK: Final = (
    "correct the clock that the timestamp is of; if it is right, give max_future a longer time, or "
    "timedelta.max for none"
)
_NEXT_STEPS: Final = {
    (OutOfOrder, "append"): (
        "give a later timestamp, or none to have one assigned; append_many can leave such events "
        f"out or move them, by an out_of_order of {name_lenient(STORE_POLICIES)}. Nothing is stored"
    ),
    (OutOfOrder, "append_many"): (
        f"leave such rows out, or set out_of_order to {name_lenient(STORE_POLICIES)}. Nothing is "
        "stored"
    ),
    (FutureEvent, "append"): f"{_CORRECT_CLOCK}. Nothing is stored",
    (FutureEvent, "append_many"): (
        f"{_CORRECT_CLOCK}; or set future_policy to {name_lenient(LEAVE_OUT_POLICIES)}. Nothing is "
        "stored"
    ),
    (NoSuchEvent, "append"): (
        "name the original_sequence of an event in the result of a query; in place of an erased "
        "one append a new event. Nothing is stored"
    ),
    (NoSuchEvent, "append_many"): (
        "name the original_sequence of an event in the result of a query in 'edit_of', append a "
        "new event in place of an erased one, or set missing_original to "
        f"{name_lenient(LEAVE_OUT_POLICIES)}. Nothing is stored"
    ),
}
"""The next steps in the words of these methods: Spark's options have other names."""


def _find_location(time_series: "TimeSeries") -> Location | None:
    store = getattr(time_series, "_store", None)  # __init__ may not have set it yet.
    return None if store is None else store.location


@wrap_methods(lambda self, error: explain_failure(_find_location(self), error))
class TimeSeries(Questions):
    """An open store; safe for threads, and for any number of processes at the same time.

    Every append and every edit is stored when the call returns, in a commit of its own or, if
    several threads append at the same time, in one that their events share (semantics 16.9). In a
    store with one value column a value is that column's value, otherwise a mapping of names to
    values; columns not named are null. Columns that others add can be named at once; a store
    opened with one column still accepts a bare value for that column.
    """

    def __init__(
        self, store: Store, author: str = "", auto_compact: bool = True, *, synced: bool = True
    ) -> None:
        if not isinstance(store, Store):
            raise TypeError("a store is opened by TimeSeries.open(path), and made by .create(...)")
        self._store = store
        self._author = author
        self._auto_compact = auto_compact
        self._synced = synced
        self._columns = _load_columns(store)
        self._only_column = store.values[0].name if len(store.values) == 1 else None

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        schema: pa.Schema | Mapping[str, pa.DataType],
        retained_range: str | None = None,
        author: str | None = None,
        *,
        subscription_range: str | None = None,
        min_retention_age: timedelta | None = None,
        auto_compact: bool = True,
        policy: Mapping[str, Iterable[str]] | None = None,
        durability: str = "fsync",
        storage_options: Mapping[str, str] | None = None,
    ) -> "TimeSeries":
        """Create the store at `path`.

        Args:
            path: a local path, a `file:` URI, or an `s3:` URI.
            schema: the value columns; a key `unit` in a field's metadata is its unit.
            retained_range: how much a series keeps: `limit N`, `last DURATION`, both, or
                `unlimited`; None: `limit 10`.
            author: the author of events written, and the principal under a policy; None: the OS
                user.
            subscription_range: what subscribers get first: `limit N`, `last DURATION`, both,
                `unlimited` or `none`; None: `limit 1`.
            min_retention_age: compaction removes nothing younger; None: 10 minutes.
            auto_compact: True if appends start the maintenance of the store every 32 commits.
            policy: principal -> a subset of `PERMISSIONS`; if nobody may `own`, the author may;
                None: everything is allowed.
            durability: on a local path, `fsync`: an append or edit survives a power loss when the
                call returns; `os`: once the operating system has written it to disk, usually
                within half a minute. All other writes are always synced.
            storage_options: how to reach an object store, by names in `STORAGE_OPTIONS`; others
                come from the environment.

        Raises:
            IncompatibleValue: a column that no store can have.
            UnusableStore: `path` has files of data, lies in a Delta table, or cannot be reached.
            ValueError: an empty path, an invalid retained range, a negative age, an unknown
                durability or storage option.
        """
        synced = parse_argument("durability", durability) == "fsync"
        location = parse_location(path, storage_options)
        arguments = (
            parse_optional("retained_range", retained_range),
            parse_duration_argument("min_retention_age", min_retention_age),
            parse_optional("subscription_range", subscription_range),
        )
        values = new_value_fields(to_value_schema(schema))
        principal = parse_author(author)
        allowed = None if policy is None else ensure_owner(parse_policy(policy), principal)
        with explained_failures(location, is_new=True):
            if Store.find(location) is not None:
                raise _exists_error(path)
            store = Store.create(location, values, *arguments, policy=allowed)
        # Another process may have created it a moment before.
        fixed = new_properties(*arguments, allowed)
        properties = tseries_properties(store.properties())
        if store.values != values or properties != tseries_properties(fixed):
            raise _exists_error(path)
        return TimeSeries(store, principal, auto_compact, synced=synced)

    @staticmethod
    def open_or_create(
        path: str | os.PathLike[str],
        schema: pa.Schema | Mapping[str, pa.DataType],
        retained_range: str | None = None,
        author: str | None = None,
        *,
        subscription_range: str | None = None,
        min_retention_age: timedelta | None = None,
        auto_compact: bool = True,
        policy: Mapping[str, Iterable[str]] | None = None,
        durability: str = "fsync",
        storage_options: Mapping[str, str] | None = None,
    ) -> "TimeSeries":
        """Open the store at `path`, or create it; arguments are as for `create`.

        If several processes call this at once, one creates the store. The columns of an existing
        store, and a retained range if one is given, are checked; its other settings stay.

        Raises:
            IncompatibleValue: the store lacks a column of `schema`, or has another type for it.
            UnusableStore: it has another retained range; or as `create` and `open`.
        """
        location = parse_location(path, storage_options)
        opening: dict[str, Any] = {"auto_compact": auto_compact, "durability": durability}
        with explained_failures(location, is_new=True):
            store = Store.find(location)
        if store is None:
            try:
                return TimeSeries.create(
                    path,
                    schema,
                    retained_range,
                    author,
                    subscription_range=subscription_range,
                    min_retention_age=min_retention_age,
                    policy=policy,
                    storage_options=storage_options,
                    **opening,
                )
            except UnusableStore:
                # Another process may have created it a moment before.
                if Store.find(location) is None:
                    raise
        series = TimeSeries.open(path, author, storage_options=storage_options, **opening)
        check_stored_columns(series._store, new_value_fields(to_value_schema(schema)))
        if retained_range is not None:
            check_retained(series._store, parse_argument("retained_range", retained_range))
        return series

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        author: str | None = None,
        *,
        auto_compact: bool = True,
        durability: str = "fsync",
        storage_options: Mapping[str, str] | None = None,
    ) -> "TimeSeries":
        """Open the store at `path` for `author`; None: the OS user.

        With `auto_compact` appends start maintenance in a separate process every 32 commits.
        `durability` and `storage_options` are as for `create`.

        Raises:
            NoSuchStore: there is none.
            UnusableStore: it has a newer version, is not a store, or is damaged: see `repair`.
            ValueError: an empty path, an unknown durability or storage option.
        """
        principal = parse_author(author)
        synced = parse_argument("durability", durability) == "fsync"
        location = parse_location(path, storage_options)
        with explained_failures(location):
            store = Store.open(location)
        return TimeSeries(store, principal, auto_compact, synced=synced)

    def append(
        self,
        series: str,
        value: Any,
        timestamp: datetime | None = None,
        *,
        max_future: timedelta | None = None,
        expected_sequence: int | None = None,
        if_newest: Callable[[Event | None], bool] | None = None,
    ) -> EventMetadata:
        """Add an event to the end of a series.

        Args:
            series: the name of the series; a new one begins with this event.
            value: the value; see the class.
            timestamp: an aware datetime; None: now, or the series' newest timestamp if that is
                later.
            max_future: how far `timestamp` may be after now; None: if the store's retained range
                has `last`, that duration, at least a day; timedelta.max: any time.
            expected_sequence: store the event only if this is the highest sequence of the series,
                edits included; -1: only if it has no event; None: in any case.
            if_newest: store the event only if this returns True for the series' newest original
                with its current value, as `latest` does, None if that shows none: the series has no
                event, or edits have filled its `limit`. It may be called several times.

        Raises:
            ConditionFailed: one of the two does not hold; nothing is stored.
            OutOfOrder: `timestamp` is before the series' newest original.
            FutureEvent: `timestamp` is further after now than `max_future`.
            ValueError: a negative `max_future`.
            IncompatibleValue: `value` does not fit the store's columns.
            PermissionDenied: the author may not append.
            StoreBusy: other writers won every attempt.
        """
        future = FutureLimit(parse_max_future(max_future))
        us = None
        if timestamp is not None:
            us = datetime_to_us(timestamp, IncompatibleValue, "timestamp")
        if expected_sequence is None and if_newest is None:
            return self._append_one(series, value, us, None, future)
        if expected_sequence is not None:
            expected_sequence = to_whole(expected_sequence, "sequence", IncompatibleValue)

        def add(condition: SeriesCondition) -> EventMetadata:
            return self._append_one(series, value, us, None, future, condition=condition)

        if if_newest is None:
            assert expected_sequence is not None
            return add(SeriesCondition(series, expected_sequence))
        if not callable(if_newest):
            raise IncompatibleValue(
                f"if_newest {show_value(if_newest)} is not a function",
                "one that takes the newest event, or None, and returns True or False",
                "correct it, such as if_newest=lambda newest: newest is None",
            )
        return self._append_if(series, expected_sequence, if_newest, add)

    def set(self, series: str, value: Any) -> EventMetadata:
        """Append a value with the time of now, as `append` without a timestamp does."""
        return self.append(series, value)

    async def append_async(self, *args: Any, **options: Any) -> EventMetadata:
        """Append as `append` does, in a thread, so that other tasks go on meanwhile.

        If the task that waits is cancelled, the event may be stored nevertheless.
        """
        return await asyncio.to_thread(self.append, *args, **options)

    async def edit_async(self, series: str, original_sequence: int, value: Any) -> EventMetadata:
        """Edit as `edit` does, in a thread, so that other tasks go on meanwhile."""
        return await asyncio.to_thread(self.edit, series, original_sequence, value)

    def edit(self, series: str, original_sequence: int, value: Any) -> EventMetadata:
        """Add an event that overrides the value of an original, which remains in the store.

        Args:
            series: the name of the series.
            original_sequence: the sequence of the original; an edit cannot be edited.
            value: the new value; see the class.

        Raises:
            NoSuchEvent: there is no such original, it is itself an edit, or it was discarded.
            IncompatibleValue: `value` does not fit the store's columns.
            PermissionDenied: the author may not edit.
            StoreBusy: other writers won every attempt.
        """
        original = to_whole(original_sequence, "sequence", IncompatibleValue)
        convert_value(original, pa.field("original_sequence", pa.int64()))  # Refuse larger numbers.
        return self._append_one(series, value, None, original)

    def append_many(
        self,
        rows: Any,
        *,
        out_of_order: str = "fail",
        missing_original: str = "fail",
        clock: str = "wall",
        max_future: timedelta | None = None,
        future_policy: str = "fail",
    ) -> pa.Table:
        """Add rows as one commit, as the sink does.

        Every value is stored as it is or refused, as for `append`.

        Args:
            rows: a table or batches of Arrow, a frame of pandas or Polars, or a list of mappings,
                with `series`, value columns, and optionally `timestamp`, `author` and `edit_of`.
                In a frame of pandas a NaN is a null, and a named index is a column.
            out_of_order: what to do with late rows, as the sink's `outOfOrder`.
            missing_original: what to do with edits without an original, as its `missingOriginal`.
            clock: the clock of assigned timestamps: `wall` or `event`.
            max_future: as for `append`.
            future_policy: what to do with rows that are further ahead, as its `futurePolicy`.

        Returns:
            A row for each of `rows`: series, sequence, timestamp, author; nulls for dropped ones.

        Raises:
            ValueError: an unknown choice.
            UpdateFailed, NoSuchEvent: a row may not be added; nothing is stored.
            IncompatibleValue: a column of a wrong name, or a value that its column cannot hold.
            PermissionDenied: the author may not append, or may not edit and a row is an edit.
            StoreBusy: other writers won every attempt.
        """
        late = parse_argument("out_of_order", out_of_order)
        missing = parse_argument("missing_original", missing_original)
        clock = parse_argument("clock", clock)
        ahead = parse_argument("future_policy", future_policy)
        future = FutureLimit(parse_max_future(max_future), ahead)
        self._store.refresh(whole=False)
        staged = stage_given_rows(rows, self._store.values)
        if not staged.num_rows:
            return RECEIPT_SCHEMA.empty_table()
        batch = Batch(
            staged.combine_chunks(),
            late,
            self._author,
            missing_original=missing,
            clock=clock,
            future=future,
        )
        try:
            attempt = self._commit(batch)
        except (OutOfOrder, FutureEvent, NoSuchEvent) as error:
            raise error.with_next_step(_NEXT_STEPS[type(error), "append_many"]) from None
        return build_receipt(batch.rows, attempt.numbered, self._author)

    def follow(
        self,
        series: str | Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
        start: str | None = None,
        starting_sequence: Mapping[str, int] | None = None,
        values: bool = False,
        position: str | None = None,
        timeout: float | timedelta | None = None,
        poll: float | timedelta | None = None,
    ) -> Follower:
        """Follow series: their initial events first, then each later one as it is stored.

        Edits are events, too. Any process may append. The series are named as for `select_from`;
        those that begin later are followed as well.

        Args:
            series: the name of a series, or of several; None: all that `prefix` or `pattern` picks.
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.
            start: the initial events of each series: `limit N`, `last DURATION`, both, `unlimited`
                or `none`; None: the store's `subscription_range`, with `values` none.
            starting_sequence: by series, the sequence from which all of its stored events are given
                instead, overridden ones too; `start` is then none, if it is not given.
            values: True to get pairs of series and value, of originals and edits alike.
            position: a `Follower.position`, to resume after it; `start` and `starting_sequence`
                then have no effect, and the position's series are followed if none are named.
            timeout: end the iteration after this many seconds without an event; None: never.
            poll: seconds between looks for new commits; None: 0.05, in an object store 1.

        Raises:
            InvalidQuery: series are chosen in two ways, `start` or `position` is not valid,
                `starting_sequence` has a series that is not followed, or `timeout` or `poll` is not
                a time to wait.
            UnusableStore: the position belongs to another store.
            HistoryChanged: the store lacks the commit of the position: it was put back.
            PermissionDenied: the author may not read, or may not ask for the past
                (`query_obsolete`) with `starting_sequence`.
        """
        return Follower(
            self._store,
            self._author,
            parse_choice(series, prefix, pattern),
            start,
            starting_sequence,
            values=bool(values),
            position=position,
            timeout=timeout,
            poll=poll,
        )

    def rollup(
        self,
        into: str | os.PathLike[str],
        every: str | timedelta | None = None,
        aggregates: Mapping[str, Any] | None = None,
        *,
        timezone: str | None = None,
        origin: datetime | None = None,
        retained_range: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> RollupResult:
        """Keep the buckets of this store in another store, its *rollup*; bring it up to date.

        The first call creates the rollup, and later ones take what has changed since: they append
        the buckets that are complete now, and edit those in which an event was edited, erased or
        added, with the author of that change and a `reason` in a column of this name. An event of
        the rollup has the series, the start of the bucket as its timestamp, and the aggregates.

        Args:
            into: the path of the rollup.
            every: the width of the buckets, as for `RangeQuery.every`; None: the rollup's.
            aggregates: the rollup's columns, as `BucketQuery.aggregate` names them, such as
                `{"celsius": "mean", "hottest": ("celsius", "max")}`, without `time_weighted_mean`;
                None: the rollup's.
            timezone: the time zone of the buckets, as for `RangeQuery.every`.
            origin: an aware datetime at which a bucket begins.
            retained_range: how much a new rollup keeps; None: `unlimited`.
            storage_options: how to reach an object store with the rollup; None: as this store.

        Returns:
            How many buckets were `added` and `edited`, how many that have changed stay as they are
            (`left`), and the commit of this store that the rollup has reached (`covered`).

        Raises:
            InvalidQuery: a setting is wrong, or is not that of the rollup.
            UnusableStore: the store at `into` is not a rollup.
            StoreMismatch: it is the rollup of another store.
            HistoryChanged: this store lacks the commit that the rollup covers: it was put back.
            PermissionDenied: the author may not read this store, or not write to the rollup.
            StoreBusy: other runs won every attempt.
        """
        options = self._store.location.storage_options
        location = parse_location(into, options if storage_options is None else storage_options)
        retained = parse_optional("retained_range", retained_range)
        rollup_options = RollupOptions(every, aggregates, timezone, origin, retained)
        return rollup(
            self._store,
            location,
            rollup_options,
            self._author,
            synced=self._synced,
            auto_compact=self._auto_compact,
        )

    def describe(self) -> dict[str, Any]:
        """Return what the command `describe` prints, by name: settings, columns, sizes, state."""
        return describe(self._store.location)

    def cti(self) -> datetime | None:
        """Return the store's CTI: no original before it is appended any more (semantics 30).

        Return None while the store has no CTI; `describe` names its writers.
        """
        self._store.refresh()
        us = self._store.metadata().ctis.store_us
        return None if us is None else to_datetime(us)

    def forget_writer(self, writer: str) -> None:
        """Stop a writer that has ended without a final CTI from holding back the store's CTI.

        If it appends again, it is a writer again.

        Args:
            writer: a key of `describe()["cti_writers"]`.

        Raises:
            ValueError: there is no such writer.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        self._store.refresh()
        forget_writer(self._store, writer, read_wall_clock(), self._author)

    def erase(self, series: str, sequences: int | Iterable[int], reason: str) -> Erasure | None:
        """Erase the values of events, and of all edits of them: they are null from now on.

        Subscribers get no event. The result's `files` names the files that still hold a value; the
        next maintenance that begins ten minutes or more from now removes them.

        Args:
            series: the name of the series.
            sequences: the sequences of originals, which can then no longer be edited, or of single
                edits.
            reason: the reason; the erasure keeps it, with the author of this object and the time.

        Returns:
            The erasure; None if all of them were erased before.

        Raises:
            NoSuchEvent: the series has never had one of the events; nothing is erased.
            IncompatibleValue: a sequence or the reason is not valid.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        self._store.refresh()
        return erase(self._store, series, sequences, reason, principal=self._author)

    def erasures(self) -> list[Erasure]:
        """Return the erasures, oldest first, with the files that still hold some."""
        self._store.refresh()
        return list_erasures(self._store)

    def set_retained_range(self, retained_range: str) -> None:
        """Set the retained range from now on; events already out of range do not come back.

        Raises:
            ValueError: an invalid retained range.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        self._store.refresh()
        retained = parse_argument("retained_range", retained_range)
        set_retained_range(self._store, retained, read_wall_clock(), self._author)

    def add_columns(self, columns: pa.Schema | Mapping[str, pa.DataType]) -> None:
        """Add value columns, null in all earlier events; columns that are there stay as they are.

        A subscriber ends at the change, and goes on from there when it is started again (semantics
        23.6).

        Raises:
            IncompatibleValue: a column that no store can have, or one that is there with another
                type.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        added = new_value_fields(to_value_schema(columns))
        self._store.refresh()
        require_owner(self._store, self._author, "add columns")
        columns_by_name = {field.name.lower(): field for field in self._store.values}
        for field in added:
            stored = columns_by_name.get(field.name.lower(), field)
            if not fits(field.type, stored.type):
                raise IncompatibleValue(
                    f"column '{stored.name}' is there as {type_name(stored.type)}, and cannot be "
                    f"added as {type_name(field.type)}",
                    "names that the store lacks",
                    "make it wider with widen_columns"
                    if fits(stored.type, field.type)
                    else "take another name",
                )
        add_columns(self._store, added)
        # Another client may have added one at the same time.
        check_stored_columns(self._store, added)
        self._update_columns()

    def set_units(self, units: Mapping[str, str]) -> None:
        """Set the units of value columns, such as `{"celsius": "°C"}`; an empty text removes one.

        Charts and tables show them; Spark and Delta keep them in a column's metadata, as `unit`. A
        store can also be created with them: `pa.field("celsius", pa.float64(), metadata={"unit":
        "°C"})` in its schema, and columns can be added so.

        Raises:
            IncompatibleValue: the store lacks a column, or a unit is not a text.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        if not isinstance(units, Mapping):
            raise IncompatibleValue(
                f"{show_value(units)} does not name value columns and their units",
                "a mapping of names to texts, such as {'celsius': '°C'}",
                "correct it",
            )
        self._store.refresh()
        require_owner(self._store, self._author, "set units")
        names = {field.name.lower(): field.name for field in self._store.values}
        for name, unit in units.items():
            if str(name).lower() not in names:
                raise IncompatibleValue(
                    f"the store has no value column {show_value(name)} to have a unit",
                    ", ".join(names.values()) or "none: its events have no values",
                    "name one of these, or add the column with add_columns",
                )
            if not is_valid_text(unit):
                raise IncompatibleValue(
                    f"column '{name}' cannot have the unit {show_value(unit)}",
                    "a text such as '°C', or '' for none",
                    "correct it",
                )
        set_units(self._store, {names[name.lower()]: unit for name, unit in units.items()})

    def widen_columns(
        self,
        columns: pa.Schema | Mapping[str, pa.DataType],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Give value columns wider types: int to long, float to double, structs with more fields.

        Every stored value stays equal, and writers and readers go on meanwhile; semantics 35.4 has
        the types, and what others see. This copies all files with a column of another type than
        before, so the store takes up to twice its room for an hour; new fields of structs need no
        copies, except inside maps. A call that was killed can be repeated, and goes on from where
        it was.

        Args:
            columns: the whole new types of the columns that change.
            progress: is called after each file with the bytes of files done so far, and of all.

        Raises:
            IncompatibleValue: the store lacks a column, or its new type does not hold every value
                of the present one; the error names the next step.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        new_columns = new_value_fields(to_value_schema(columns))
        self._store.refresh()
        widen_columns(self._store, new_columns, principal=self._author, progress=progress)
        self._update_columns()

    def compact(self) -> CompactionResult:
        """Cluster the files by series and remove events out of the retained range.

        Raises:
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other compactions were faster each time.
        """
        return compact(self._store.location, principal=self._author)

    def verify(self) -> list[Finding]:
        """Return what is wrong with the store; an empty list if it is sound."""
        return verify(self._store.location)

    def set_policy(self, policy: Mapping[str, Iterable[str]]) -> None:
        """Set the policy (principal -> permissions) from now on.

        If it names no owner, the author becomes one, so that it can be changed later.

        Raises:
            ValueError: an invalid policy.
            PermissionDenied: the store has a policy, and the author is not an owner.
            StoreBusy: other writers won every attempt.
        """
        allowed = ensure_owner(parse_policy(policy), self._author)
        set_policy(self._store, allowed, read_wall_clock(), self._author)

    def __enter__(self) -> Self:
        """Return the store itself: it holds nothing open, so there is nothing to close."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the store as it is: every append was stored when its call returned."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the store is and who opened it; unpickling opens it again."""
        return _reopen, (self._store.location, self._author, self._auto_compact, self._synced)

    def __repr__(self) -> str:
        """Describe the store in one line from its log, without reading files of events."""
        store = self._store
        is_there = False
        with contextlib.suppress(Exception):  # A store that is gone, or lost in a fork, has one.
            if store.refresh():
                files = store.data_files()
                retained = format_range(store.settings.retained)
                self._columns = _load_columns(store)
                is_there = True
        values = ", ".join(f"{field.name} {type_name(field.type)}" for field in self._columns[0])
        brief = f"TimeSeries('{store.root}', values: {values or 'none'}"
        if not is_there:
            return f"{brief})"
        events = format_count(sum(file.rows for file in files), "event")
        if originals := [file for file in files if file.kind != "edit"]:
            ends = min(file.min_us for file in originals), max(file.max_us for file in originals)
            events += f" stored, {format_span(*ends)}"
        return f"{brief}, {events}, retained range: {retained})"

    def _append_if(
        self,
        series: str,
        expected: int | None,
        holds: Callable[[Event | None], bool],
        add: Callable[[SeriesCondition], EventMetadata],
    ) -> EventMetadata:
        """Call `add` if the condition holds, again whenever the series changes in the meantime."""
        convert_name(series)

        def attempt() -> EventMetadata | None:
            view = self._view()
            rows, index = view.newest(series)
            if expected is not None:
                SeriesCondition(series, expected).check_series(index)
            condition = SeriesCondition.as_read(series, index, view.snapshot.settings.retained)
            events = QueryResult(rows, rows.num_rows).events
            answer = holds(events[-1] if events else None)
            if inspect.isawaitable(answer):
                # It would count as true, with any result.
                if inspect.iscoroutine(answer):
                    answer.close()
                raise IncompatibleValue(
                    f"if_newest {show_value(holds)} returns {show_value(answer)}, which must be "
                    "awaited",
                    "True or False",
                    "take a function that is not async. Nothing is stored",
                )
            if not answer:
                raise condition_error(
                    f"the condition does not hold for the newest event of series '{series}'",
                    condition.sequence,
                )
            with contextlib.suppress(ConditionFailed):
                return add(condition)
            return None  # The event that the condition saw is no longer the newest.

        return self._store.retry(
            attempt,
            self._store.retrying.commit_attempts,
            "the event is not stored",
            next_step="append it again, or let fewer writers change this series",
            races=(),  # `add` has tried those of its commit again.
        )

    def _append_one(
        self,
        series: str,
        value: Any,
        stamp: int | None,
        original: int | None,
        future: FutureLimit = DEFAULT_LIMIT,
        *,
        condition: SeriesCondition | None = None,
    ) -> EventMetadata:
        name = convert_name(series)
        staged, values = self._convert_value(value)
        metadata = (name, pa.array([stamp], INSTANT), pa.nulls(1, pa.string()))
        columns = [*metadata, pa.array([original], pa.int64()), *values]
        rows = pa.Table.from_arrays(columns, schema=staged)
        batch = Batch(rows, "fail", self._author, future=future, condition=condition)
        try:
            if original is None and condition is None:
                event, maintains = self._store.append_event(batch, synced=self._synced)
                if self._auto_compact and maintains and is_maintenance_due(event.commit):
                    maintain_after_commit(self._store, event.commit)
                return EventMetadata(event.sequence, to_datetime(event.timestamp_us), self._author)
            numbered = self._commit(batch).numbered[-1]  # Edits come last.
        except (OutOfOrder, FutureEvent, NoSuchEvent) as error:
            raise error.with_next_step(_NEXT_STEPS[type(error), "append"]) from None
        except IncompatibleValue:  # An older state of the store was put back.
            if self._update_columns()[1] == staged:
                raise
            return self._append_one(series, value, stamp, original, future, condition=condition)
        time = to_datetime(int(numbered.timestamp_us[0]))
        return EventMetadata(int(numbered.sequence[0]), time, self._author)

    def _commit(self, batch: Batch) -> PreparedCommit:
        attempt = self._store.append(batch, synced=self._synced)
        assert attempt is not None
        if self._auto_compact:
            maintain_after_commit(self._store)
        return attempt

    def _convert_value(self, value: Any) -> tuple[pa.Schema, list[pa.Array]]:
        """Return the staged columns, and an array of each value column, both of one state."""
        values, staged = self._columns
        if isinstance(value, Mapping) and not set(value) <= {field.name for field in values}:
            values, staged = self._update_columns()
        try:
            return staged, self._convert(value, values)
        except IncompatibleValue:
            updated = self._update_columns()
            if updated[1] == staged:
                raise
            return updated[1], self._convert(value, updated[0])

    def _convert(self, value: Any, fields: list[pa.Field]) -> list[pa.Array]:
        cells = parse_values([field.name for field in fields], self._only_column, value)
        return list(map(convert_value, cells, fields))

    def _update_columns(self) -> "_Columns":
        """Return the columns with those that other writers have added or widened."""
        self._store.refresh()
        self._columns = _load_columns(self._store)
        return self._columns

    def _view(self) -> View:
        with explained_failures(self._store.location):
            return View(self._store.snapshot(), self._author)


_Columns = tuple[list[pa.Field], pa.Schema]
"""The value columns of a store, and those of staged rows with such values."""


def _load_columns(store: Store) -> _Columns:
    values = store.values
    return values, staged_schema(values)


def _reopen(location: Location, author: str, auto_compact: bool, synced: bool) -> TimeSeries:
    return TimeSeries(Store.open(location), author, auto_compact, synced=synced)


def _exists_error(path: str | os.PathLike[str]) -> UnusableStore:
    return UnusableStore(
        f"there is a store at '{path}' already",
        "a path where nothing is",
        "TimeSeries.open it, or choose another path",
    )
