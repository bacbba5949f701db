"""The data source `tseries` as Spark sees it."""

from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructType,
    UserDefinedType,
)

from pyspark_timestream.connector.driver_log import log_like_spark
from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.connector.spark_errors import RefusedReader, brief_errors
from pyspark_timestream.connector.worker_memory import settle
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.model.columns import query_schema, unstorable, value_type
from pyspark_tseries.model.policy import Guard
from pyspark_tseries.model.properties import check_same
from pyspark_tseries.options.values import (
    WriteOptions,
    os_user,
    parse_read,
    parse_subscribe,
    parse_write,
    read_place,
)
from pyspark_tseries.read.as_of import snapshot_as_of
from pyspark_tseries.spark.checkpoint_store import check_before_batch, checkpoint_directory
from pyspark_tseries.spark.reader import RangeReader, check_schema
from pyspark_tseries.spark.stream_reader import Subscriber
from pyspark_tseries.spark.writer import BatchWriter, StreamWriter, Target
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store, now_us
from pyspark_tseries.subscribe.position import Initial
from pyspark_tseries.write.rows import plan_rows
from pyspark_tseries.write.task_output import Forecast

__all__ = ["DefaultSource"]


@brief_errors
class DefaultSource(DataSource):
    """An append-only store of time series.

    Writes take a column `series`, optionally `timestamp` and `author`, and value columns; every
    batch is stored exactly once, its events numbered per series from 0 without gaps. Reads give
    `series, sequence, timestamp, author, <values>, original_sequence, original_timestamp,
    original_author` of what a range query finds; streaming reads give every event that is added.
    The options are those of `WriteOptions`, `ReadOptions` and `SubscribeOptions`.

        df.writeStream.format("tseries").option("retainedRange", "last 7D")
          .option("checkpointLocation", c).start(path)
        spark.read.format("tseries").option("series", "a").load(path)
        spark.readStream.format("tseries").load(path)
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tseries"

    def schema(self) -> StructType:
        """The columns of a read."""
        store = Store.open(read_place(self.options))
        return from_arrow_schema(query_schema(store.values))

    def reader(self, schema: StructType) -> RangeReader:
        """A batch read."""
        options = parse_read(self.options)
        planned_us: int | None = now_us()
        store = Store.open(options.place)
        snapshot = store.snapshot()
        guard = _guard(store, options.principal)
        guard.need_query(options.asked())
        if options.as_of is not None:
            guard.need("query_obsolete", "set asOf, which shows overridden values")
            snapshot, planned_us = snapshot_as_of(store, options.as_of), None
        return RangeReader(
            snapshot,
            options.asked(),
            options.series,
            schema,
            planned_us=planned_us,
            principal=guard.principal,
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch write, checked against the store before any task."""
        options = parse_write(self.options)
        return BatchWriter(_prepare(options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A batch of a stream, checked against the store before any task."""
        options = parse_write(self.options)
        checkpoint = checkpoint_directory(self.options)
        check_before_batch(checkpoint, options.place)
        target = _prepare(options, schema, overwrite)
        return StreamWriter(replace(target, checkpoint=checkpoint))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A subscription."""
        try:
            return self._subscriber(schema)
        except (OptionError, TseriesError) as error:
            return RefusedReader(error)

    def _subscriber(self, schema: StructType) -> Subscriber:
        options = parse_subscribe(self.options)
        store = Store.open(options.place)
        guard = _guard(store, options.principal)
        guard.need("read", "subscribe to the store")
        if options.starting_sequence:
            guard.need("query_obsolete", "set startingSequence, which shows overridden values")
        check_schema(to_arrow_schema(schema, timezone="UTC"), query_schema(store.values))
        wanted = options.subscription_range
        initial = Initial(
            store.subscription if wanted is None else wanted, options.starting_sequence or {}
        )
        return Subscriber(options, initial, schema)


def _prepare(options: WriteOptions, schema: StructType, overwrite: bool) -> Target:
    """Checks a write against its store, creating it where there is none; runs on the driver.

    Raises:
        OptionError: an option does not fit the DataFrame or the store.
        IncompatibleValue: a column does not fit the store; nothing is created then.
        UnusableStore: what is at the path is no store of this version.
        PermissionDenied: the principal may not add events, or not in this author's name.
    """
    log_like_spark("pyspark_tseries")
    if overwrite:
        raise OptionError(
            "mode",
            "'overwrite' (output mode 'complete' of a stream) would change events",
            "'append'",
            "append; a series is only changed by adding events",
        )
    incoming = _arrow_schema(schema)
    store = Store.find(options.place)
    author, principal = options.who()
    guard = Guard(store.policy if store else None, principal)
    guard.need("update", "add events")
    guard.need_authors([author])
    plan = plan_rows(incoming, options, store.values if store else None)
    if store is None:
        values = [field for _, field in plan.values]
        store = Store.create(
            options.place,
            values,
            options.retained_range,
            subscription=options.subscription_range,
        )
        plan = plan_rows(incoming, options, store.values)
    if store.values != [field for _, field in plan.values]:
        add_columns(store, [field for _, field in plan.values])
        plan = plan_rows(incoming, options, store.values)
    check_same("retainedRange", options.retained_range, store.retained, store.root)
    check_same("subscriptionRange", options.subscription_range, store.subscription, store.root)
    settle()
    return Target(store.place, plan, options, author, principal, _forecast(store))


def _forecast(store: Store) -> Forecast:
    """The batch's commit, if it is made soon and nobody else makes one before."""
    note = store.note()
    return Forecast(store.head_id(), note.commit + 1, max(store.wall_us(), note.commit_us))


def _guard(store: Store, principal: str | None) -> Guard:
    return Guard(store.policy, os_user() if principal is None else principal)


def _arrow_schema(schema: StructType) -> pa.Schema:
    for field in schema:
        _check_kind(field.name, field.dataType)
    return pa.schema([(f.name, to_arrow_type(f.dataType, timezone="UTC")) for f in schema])


def _check_kind(name: str, kind: DataType) -> None:
    """Refuses a type that has no place, and what Arrow carries as something else.

    Raises:
        IncompatibleValue: names the column and the type, as Spark names it.
    """
    if isinstance(kind, ArrayType):
        _check_kind(name, kind.elementType)
    elif isinstance(kind, MapType):
        _check_kind(name, kind.keyType)
        _check_kind(name, kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind:
            _check_kind(name, field.dataType)
    elif isinstance(kind, UserDefinedType):
        reason = "which would come back without its class"
        raise unstorable(name, f"'{kind.typeName()}'", reason)
    elif isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        raise unstorable(name, kind.simpleString(), "and a store does not keep collations")
    else:
        try:
            value_type(pa.field(name, to_arrow_type(kind, timezone="UTC")))
        except Exception as error:
            raise unstorable(name, kind.simpleString()) from error
