"""The data source `tseries` as Spark sees it."""

import functools
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, UserDefinedType

from pyspark_timestream.core.adapters import (
    RefusedReader,
    drop_options,
    freeze_objects,
    hide_tracebacks,
    keep_options,
    log_like_spark,
    read_definition,
    restore_options,
)
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import OptionError, wrap_methods
from pyspark_tseries.errors import IncompatibleValue, TseriesError
from pyspark_tseries.maintain.widen import add_struct_fields
from pyspark_tseries.model.columns import (
    INSTANT,
    UNIT_KEY,
    find_later_columns,
    find_unit,
    fits,
    result_schema,
    type_name,
    unstorable_type_error,
    value_type,
)
from pyspark_tseries.model.downsampling import Downsampling, result_fields
from pyspark_tseries.model.properties import AccessCheck, check_unchanged
from pyspark_tseries.options import (
    VIEW,
    ReadOptions,
    SubscribeOptions,
    WriteOptions,
    author_or_user,
    parse_any_read,
    parse_options,
)
from pyspark_tseries.read.delivery import InitialEvents
from pyspark_tseries.read.scan import pick_columns
from pyspark_tseries.read.view import warn_of_unknown_series
from pyspark_tseries.spark.query_checks import check_before_batch, find_checkpoint
from pyspark_tseries.spark.readers import RangeQueryReader, SubscriptionReader, check_schema
from pyspark_tseries.spark.writer import BatchWriter, StreamWriter, WriteTarget
from pyspark_tseries.storage.failures import explain_failure
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.admin_commits import add_columns
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.rows import plan_rows
from pyspark_tseries.write.task_output import OptimisticNumber

_SERIES_ADVICE: Final = (
    "option 'series' takes whole names, several as a JSON list; a filter such as "
    "series LIKE 'room%' chooses by their form"
)


@hide_tracebacks
@wrap_methods(lambda _, error: explain_failure(None, error))
class DefaultSource(DataSource):
    """An append-only store of time series.

    Writes take a column `series`, optionally `timestamp` and `author`, and value columns; every
    batch is stored exactly once, its events numbered per series from 0 without gaps. Reads give
    `series, sequence, timestamp, author, <values>, original_sequence, original_timestamp,
    original_author, edit_timestamp` of the events that a range query finds; in a `values` query
    `timestamp` is the original's. Streaming reads give every event that is added. For the options
    see `WriteOptions`, `ReadOptions` and `SubscribeOptions`.

        df.writeStream.format("tseries").option("retainedRange", "last 7D")
          .option("checkpointLocation", c).start(path)
        spark.read.format("tseries").option("series", "a").load(path)
        spark.readStream.format("tseries").load(path)
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "tseries"

    def schema(self) -> StructType:
        """Return the columns of a read."""
        table_options = read_definition(self.options, VIEW)
        if table_options is not None:
            return keep_options(DefaultSource(table_options).schema(), table_options, self.name())
        options = parse_any_read(self.options)
        values = pa.schema(Store.open(options.location).values)
        columns = result_schema(values)
        if isinstance(options, ReadOptions):
            return _to_spark(_read_schema(values, options, options.plan_buckets(values)))
        return _to_spark(_add_cti_column(columns, options))

    def reader(self, schema: StructType) -> RangeQueryReader:
        """Return the reader of a batch read."""
        table_options = restore_options(self.options, schema, self.name())
        if table_options is not None:
            return DefaultSource(table_options).reader(schema)
        options = parse_options(ReadOptions, self.options)
        schema = drop_options(schema)
        planned_us: int | None = read_wall_clock()
        store = Store.open(options.location)
        snapshot = store.snapshot()
        values = pa.schema(snapshot.values)
        buckets = options.plan_buckets(values)
        check_schema(
            to_arrow_schema(schema, timezone="UTC"), _read_schema(values, options, buckets)
        )
        guard = AccessCheck(snapshot.settings.policy, author_or_user(options.principal))
        guard.require_query(options.to_query())
        if options.as_of is not None:
            guard.require("query_obsolete", "set asOf, which shows overridden values")
            snapshot = snapshot.at_time(options.as_of)
            planned_us = None
        elif options.series is not None:
            log_like_spark("pyspark_tseries")
            index = snapshot.newest_index(options.series)
            warn_of_unknown_series(snapshot, index, options.series, _SERIES_ADVICE)
        return RangeQueryReader(
            snapshot,
            options.to_query(),
            options.series,
            schema,
            planned_us=planned_us,
            principal=guard.principal,
            buckets=buckets,
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch write; check it against the store before any task."""
        options = parse_options(WriteOptions, self.options)
        return BatchWriter(_prepare_write(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a stream's batch; check it against the store before any task."""
        options = parse_options(WriteOptions, self.options)
        _refuse_batch_number(options)
        checkpoint = find_checkpoint(self.options)
        check_before_batch(checkpoint, options.location)
        target = _prepare_write(options, schema, overwrite=overwrite)
        return StreamWriter(replace(target, checkpoint=checkpoint))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a subscription."""
        try:
            table_options = restore_options(self.options, schema, self.name())
            source = self if table_options is None else DefaultSource(table_options)
            reader = source._open_subscription(drop_options(schema))
        except (OptionError, TseriesError) as error:
            return RefusedReader(error)
        reader.set_handed_schema(schema)
        return reader

    def _open_subscription(self, schema: StructType) -> SubscriptionReader:
        options = parse_options(SubscribeOptions, self.options)
        store = Store.open(options.location)
        principal = author_or_user(options.principal)
        check = functools.partial(
            _check_subscription, to_arrow_schema(schema, timezone="UTC"), options, principal
        )
        check(store.snapshot())
        log_like_spark("pyspark_tseries")
        initial_range = options.subscription_range
        initial = InitialEvents(
            store.settings.subscription if initial_range is None else initial_range,
            options.starting_sequence or {},
        )
        return SubscriptionReader(options, initial, schema, check)


def _to_spark(schema: pa.Schema) -> StructType:
    """Return the columns of a read, with their units in the metadata."""
    fields = from_arrow_schema(schema).fields
    for field, column in zip(fields, schema, strict=True):
        if unit := find_unit(column):
            field.metadata = {**(field.metadata or {}), UNIT_KEY.decode(): unit}
    return StructType(fields)


def _read_schema(
    values: pa.Schema, options: ReadOptions, buckets: Downsampling | None
) -> pa.Schema:
    """Return the columns of a batch read of a store with these value columns."""
    if buckets is not None:
        return result_fields(values, buckets)
    return pick_columns(result_schema(values), options.columns)


def _check_subscription(
    schema: pa.Schema, options: SubscribeOptions, principal: str, store: Snapshot
) -> None:
    """Refuse a subscription that does not fit the store, at its start and after each change."""
    guard = AccessCheck(store.settings.policy, principal)
    guard.require("read", "subscribe to the store")
    if options.starting_sequence:
        guard.require("query_obsolete", "set startingSequence, which shows overridden values")
    names = set(schema.names) - {options.cti}
    later = find_later_columns(names, store.values)
    if later:
        columns = ", ".join(f"'{field.name}' {type_name(field.type)}" for field in later)
        raise IncompatibleValue(
            f"columns have been added to the store '{store.location.root}' after this query was "
            f"loaded, and it would not deliver them: {columns}",
            "a query with all columns of the store, or a schema() without some that it always had",
            "start it again from its checkpoint, with spark.readStream.format('tseries').load(): "
            "it then delivers them from the first event that has them; select() leaves them out, "
            "and a table of the catalog is dropped and created again",
        )
    check_schema(schema, _add_cti_column(result_schema(store.values), options))


def _add_cti_column(columns: pa.Schema, options: SubscribeOptions) -> pa.Schema:
    """Add the column of CTIs to the columns of a subscription, if it asks for one."""
    if not options.cti:
        return columns
    if options.cti.lower() in (name.lower() for name in columns.names):
        raise OptionError(
            "cti",
            f"the store has a column '{options.cti}'",
            f"another name than {', '.join(columns.names)}",
            "name the column of CTIs otherwise, such as 'store_cti'",
        )
    # In a row of a CTI everything else is null.
    nullable = [field.with_nullable(True) for field in columns]
    return pa.schema([*nullable, pa.field(options.cti, INSTANT)])


def _refuse_batch_number(options: WriteOptions) -> None:
    """Refuse the number of a batch write in a stream, because it would have no effect there."""
    if options.txn_app_id is not None:
        raise OptionError(
            "txnAppId",
            f"'{options.txn_app_id}' has no effect in a streaming write: each batch of a query is "
            "stored once anyway",
            "it in df.write, with 'txnVersion'",
            "leave both out, or write with df.write in foreachBatch",
        )


def _prepare_write(options: WriteOptions, schema: StructType, *, overwrite: bool) -> WriteTarget:
    """Check a write against its store, creating it if missing; runs on the driver."""
    log_like_spark("pyspark_tseries")
    if overwrite:
        raise OptionError(
            "mode",
            "'overwrite' (output mode 'complete' of a stream) would change events",
            "'append'",
            "append; a series is only changed by adding events",
        )
    incoming = _make_arrow_schema(schema)
    store = Store.find(options.location)
    principal = author_or_user(options.principal)
    author = principal if options.author is None else options.author
    guard = AccessCheck(store.settings.policy if store else None, principal)
    guard.require("update", "add events")
    guard.require_authors([author])
    plan = plan_rows(incoming, options, store.values if store else None)
    if store is None:
        values = [field for _, field in plan.values]
        store = Store.create(
            options.location,
            values,
            options.retained_range,
            subscription=options.subscription_range,
        )
        plan = plan_rows(incoming, options, store.values)
    if store.values != [field for _, field in plan.values]:
        _merge_columns(store, [field for _, field in plan.values])
        plan = plan_rows(incoming, options, store.values)
    settings = store.settings
    check_unchanged("retainedRange", options.retained_range, settings.retained, store.root)
    check_unchanged(
        "subscriptionRange", options.subscription_range, settings.subscription, store.root
    )
    freeze_objects()
    return WriteTarget(
        location=store.location,
        plan=plan,
        options=options,
        author=author,
        principal=principal,
        optimistic=_make_optimistic_number(store),
    )


def _merge_columns(store: Store, incoming: list[pa.Field]) -> None:
    """Add columns, and fields of structs, that only the incoming rows have."""
    add_columns(store, incoming)
    types = {field.name.lower(): field.type for field in store.values}
    grown = [field for field in incoming if not fits(field.type, types[field.name.lower()])]
    if grown:
        add_struct_fields(store, grown)


def _make_optimistic_number(store: Store) -> OptimisticNumber:
    """Return the commit that the batch gets if no other writer commits before it."""
    metadata = store.metadata()
    return OptimisticNumber(
        store.head_id(), metadata.commit + 1, max(store.read_clock(), metadata.commit_us)
    )


def _make_arrow_schema(schema: StructType) -> pa.Schema:
    for field in schema:
        _check_type(field.name, field.dataType)
    columns = []
    for field in schema:
        unit = (field.metadata or {}).get(UNIT_KEY.decode())
        metadata = {UNIT_KEY: unit.encode()} if isinstance(unit, str) else None
        data_type = to_arrow_type(field.dataType, timezone="UTC")
        columns.append(pa.field(field.name, data_type, metadata=metadata))
    return pa.schema(columns)


def _check_type(name: str, data_type: DataType) -> None:
    """Refuse a type that a store cannot hold, or that Arrow would change."""
    if isinstance(data_type, ArrayType):
        _check_type(name, data_type.elementType)
    elif isinstance(data_type, MapType):
        _check_type(name, data_type.keyType)
        _check_type(name, data_type.valueType)
    elif isinstance(data_type, StructType):
        for field in data_type:
            _check_type(name, field.dataType)
    elif isinstance(data_type, UserDefinedType):
        reason = "which would come back without its class"
        raise unstorable_type_error(name, f"'{data_type.typeName()}'", reason)
    elif isinstance(data_type, StringType) and not data_type.isUTF8BinaryCollation():
        raise unstorable_type_error(
            name, data_type.simpleString(), "and a store does not keep collations"
        )
    else:
        try:
            value_type(pa.field(name, to_arrow_type(data_type, timezone="UTC")))
        except Exception as error:
            raise unstorable_type_error(name, data_type.simpleString()) from error
