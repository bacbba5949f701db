"""`TimeSeries`: a store without Spark, for small appends, edits and queries.

series = TimeSeries.create("/data/room", {"celsius": pa.float64()}, retained_range="last 7D")
series.append("kitchen", 21.5)
series.range_query().from_last(timedelta(hours=1)).select_from("kitchen")
"""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pyspark_tseries.client.arguments import (
    author_of,
    refuse_metadata,
    rows_of,
    schema_of,
    sequence_of,
    series_of,
    stamp_of,
    synced_of,
    values_of,
)
from pyspark_tseries.client.range_query import RangeQuery
from pyspark_tseries.client.receipts import RECEIPT, receipt
from pyspark_tseries.client.results import EventMetadata, QueryResult
from pyspark_tseries.errors import IncompatibleValue, UnusableStore
from pyspark_tseries.maintain.background import after_commit
from pyspark_tseries.maintain.compactor import Compacted, compact
from pyspark_tseries.maintain.describe import describe
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.columns import EVENT, one_value
from pyspark_tseries.model.policy import Guard, parse_policy, with_owner
from pyspark_tseries.model.properties import new_properties, own
from pyspark_tseries.model.query import Query
from pyspark_tseries.model.retention import parse_range
from pyspark_tseries.model.valid_text import is_text
from pyspark_tseries.options.values import WriteOptions, parse_write
from pyspark_tseries.read.scan import answer
from pyspark_tseries.storage.location import place_of
from pyspark_tseries.store.admin_commits import set_policy, set_retained_range
from pyspark_tseries.store.store import Store, now_us
from pyspark_tseries.subscribe.position import parse_initial
from pyspark_tseries.write.batch import Attempt, Batch
from pyspark_tseries.write.rows import plan_rows, stage_rows, staged_schema

__all__ = ["TimeSeries"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeSeries:
    """An open store; safe for threads, and for any number of processes beside it.

    Every append and every edit is one commit, in the store when the call returns. The value of a
    store with one value column is that value, otherwise a mapping of names to values; what it
    does not name is null. Columns that others add meanwhile can be named at once; who opened a
    store with one column may go on giving that one's value.
    """

    def __init__(
        self, store: Store, author: str, auto_compact: bool = True, *, synced: bool = True
    ) -> None:
        self._store = store
        self._author = author
        self._auto_compact = auto_compact
        self._synced = synced
        self._staged = staged_schema(store.values)
        self._only = store.values[0].name if len(store.values) == 1 else None

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
        """The new store at `path`.

        Args:
            path: a local path, a `file:` URI, or an `s3:` URI.
            schema: the value columns.
            retained_range: how much a series keeps: `limit N`, `last DURATION`, both, or
                `unlimited`; None: `limit 10`.
            author: of what is written, and the principal under a policy; None: the OS user.
            subscription_range: what subscribers get first: `limit N`, `last DURATION`, both,
                `unlimited` or `none`; None: `limit 1`.
            min_retention_age: compaction removes nothing younger; None: 10 minutes.
            auto_compact: whether appends start the store's upkeep now and then.
            policy: principal -> a subset of `PERMISSIONS`; where nobody may `own`, the author may;
                None: everything is allowed.
            durability: on a local path, `fsync`: an append or edit that returned outlives a power
                loss; `os`: it does once the operating system has written it to the disk, within
                half a minute as a rule. Nothing else than appends and edits is ever left to it.
            storage_options: how an object store is reached, names among `STORAGE_OPTIONS`; what
                is not said comes from the environment.

        Raises:
            IncompatibleValue: a column that no store can have.
            UnusableStore: there is something at `path` already, or it cannot be reached.
            ValueError: no path, no retained range, a negative age, no such durability, or no such
                storage option.
        """
        synced = synced_of(durability)
        place = place_of(path, storage_options)
        if min_retention_age is not None and min_retention_age < timedelta(0):
            raise ValueError(f"min_retention_age {min_retention_age} is below 0")
        retained = None if retained_range is None else parse_range(retained_range)
        plan = plan_rows(
            pa.schema([EVENT[0], *schema_of(schema)]), WriteOptions(path=place.location), None
        )
        refuse_metadata(plan)
        who = author_of(author)
        allowed = None if policy is None else with_owner(parse_policy(policy), who)
        if Store.find(place) is not None:
            raise _taken(path)
        values = [field for _, field in plan.values]
        asked = (
            retained,
            None if min_retention_age is None else min_retention_age // timedelta(microseconds=1),
            None if subscription_range is None else parse_initial(subscription_range),
        )
        store = Store.create(place, values, *asked, policy=allowed)
        # Another creator may have been there a moment before.
        fixed = new_properties(*asked, allowed)
        if store.values != values or own(store.log.properties()) != own(fixed):
            raise _taken(path)
        return TimeSeries(store, who, auto_compact, synced=synced)

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        author: str | None = None,
        *,
        auto_compact: bool = True,
        durability: str = "fsync",
        storage_options: Mapping[str, str] | None = None,
    ) -> "TimeSeries":
        """The store at `path`; what is written is by `author`, None: the OS user.

        With `auto_compact` appends start the store's upkeep now and then, in a process of its own.
        `durability` and `storage_options` as for `create`.

        Raises:
            NoSuchStore: there is none.
            UnusableStore: it is of a newer version, no store, or damaged, which `repair` mends.
            ValueError: no path, no such durability, or no such storage option.
        """
        who, synced = author_of(author), synced_of(durability)
        store = Store.open(place_of(path, storage_options))
        return TimeSeries(store, who, auto_compact, synced=synced)

    def append(self, series: str, value: Any, timestamp: datetime | None = None) -> EventMetadata:
        """Adds an event to the end of a series.

        Args:
            series: its name; a new one begins with this event.
            value: see the class.
            timestamp: aware; None: now, or the series' newest timestamp where that is later.

        Raises:
            UpdateFailed: `timestamp` is before the series' newest original.
            IncompatibleValue: `value` does not fit the store's columns.
            PermissionDenied: the author may not append.
            StoreBusy: other writers won every attempt.
        """
        return self._add(series, value, stamp_of(timestamp), None)

    def edit(self, series: str, original_sequence: int, value: Any) -> EventMetadata:
        """Adds an event that overrides the value of an original, which stays in the store.

        Raises:
            NoSuchEvent: there is no such original, it is itself an edit, or it was discarded.
            IncompatibleValue: `value` does not fit the store's columns.
            StoreBusy: other writers won every attempt.
        """
        return self._add(series, value, None, sequence_of(original_sequence))

    def append_many(
        self,
        table: pa.Table,
        *,
        out_of_order: str = "fail",
        missing_original: str = "fail",
        clock: str = "wall",
    ) -> pa.Table:
        """Adds rows as one commit, as the sink does.

        Args:
            table: `series`, value columns, and where wanted `timestamp`, `author` and `edit_of`.
            out_of_order: of late rows: `fail`, `drop` or `adjust`.
            missing_original: of edits without an original: `fail` or `drop`.
            clock: of assigned timestamps: `wall` or `event`.

        Returns:
            A row for each of `table`: series, sequence, timestamp, author; nulls where dropped.

        Raises:
            OptionError: a choice that there is not.
            UpdateFailed, NoSuchEvent: a row may not be added; nothing is stored.
            IncompatibleValue: a column of a wrong type or name.
            StoreBusy: other writers won every attempt.
        """
        table = rows_of(table)
        self._store.refresh()
        choices = {"outOfOrder": out_of_order, "missingOriginal": missing_original, "clock": clock}
        options = parse_write({"path": self._store.root, **choices})
        plan = plan_rows(table.schema, options, self._store.values)
        if not table.num_rows:
            return RECEIPT.empty_table()
        staged = [stage_rows(part, plan) for part in table.to_batches() if part.num_rows]
        rows = pa.Table.from_batches(staged).combine_chunks()
        batch = Batch(
            rows,
            options.out_of_order,
            self._author,
            missing=options.missing_original,
            clock=options.clock,
        )
        attempt = self._commit(batch)
        return receipt(rows, attempt.numbered, self._author)

    def range_query(self) -> RangeQuery:
        """A query for all values, to be narrowed step by step."""
        return RangeQuery(answer=self._answer)

    def describe(self) -> dict[str, Any]:
        """The facts of the store."""
        return describe(self._store.place)

    def set_retained_range(self, retained_range: str) -> None:
        """Makes `retained_range` the store's from now on; nothing that is out of range comes back.

        Raises:
            ValueError: no retained range.
            PermissionDenied: the store has a policy, and the author is no owner.
            StoreBusy: other writers won every attempt.
        """
        self._store.refresh()
        set_retained_range(self._store, parse_range(retained_range), now_us(), self._author)

    def compact(self) -> Compacted:
        """Clusters the files by series and removes what is out of the retained range.

        Raises:
            PermissionDenied: the store has a policy, and the author is no owner.
            StoreBusy: other compactions were faster each time.
        """
        return compact(self._store.place, principal=self._author)

    def verify(self) -> list[str]:
        """What is broken, as sentences; empty where the store is sound."""
        return verify(self._store.place)

    def set_policy(self, policy: Mapping[str, Iterable[str]]) -> None:
        """Makes `policy` (principal -> permissions) the store's from now on.

        Where it names no owner, the author is one: somebody must be able to change it.

        Raises:
            ValueError: no policy.
            PermissionDenied: the store has a policy, and the author is no owner.
            StoreBusy: other writers won every attempt.
        """
        allowed = with_owner(parse_policy(policy), self._author)
        set_policy(self._store, allowed, now_us(), self._author)

    def _add(
        self, series: str, value: Any, stamp: int | None, original: int | None
    ) -> EventMetadata:
        if not is_text(series):
            raise IncompatibleValue(
                f"{series!r} names no series; accepted: a text; next step: correct it"
            )
        given = (series, stamp, None, original, *self._values(value))
        columns = [one_value(field, cell) for field, cell in zip(self._staged, given, strict=True)]
        rows = pa.Table.from_arrays(columns, schema=self._staged)
        attempt = self._commit(Batch(rows, "fail", self._author))
        (events,) = (part for part in attempt.numbered if len(part.order))
        moment = _EPOCH + timedelta(microseconds=int(events.timestamp_us[0]))
        return EventMetadata(int(events.sequence[0]), moment, self._author)

    def _commit(self, batch: Batch) -> Attempt:
        attempt = self._store.append(batch, synced=self._synced)
        assert attempt is not None
        if self._auto_compact:
            after_commit(self._store)
        return attempt

    def _values(self, value: Any) -> list[Any]:
        if isinstance(value, Mapping) and not set(value) <= set(self._staged.names[4:]):
            self._store.refresh()  # Somebody may have added a column.
            self._staged = staged_schema(self._store.values)
        return values_of(self._staged.names[4:], self._only, value)

    def _answer(self, query: Query, series: str) -> QueryResult:
        names = [series_of(series)]
        snapshot, head = self._store.glance(names)
        Guard(snapshot.policy, self._author).need_query(query)
        found = answer(snapshot, head, query, names)
        return QueryResult(found.table, found.selected)


def _taken(path: str | os.PathLike[str]) -> UnusableStore:
    return UnusableStore(
        f"there is a store at '{path}' already; accepted: a path where nothing is; next step: "
        "TimeSeries.open it, or choose another path"
    )
