"""Format `timestream`: the class that Spark finds, which chooses a transport."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_timestream.core.adapters import (
    HandingReader,
    RefusedReader,
    drop_options,
    hide_tracebacks,
    keep_options,
    read_definition,
    restore_options,
)
from pyspark_timestream.core.declarations import choice, option, read_options
from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka.options.kafka_options import SPECS

_VIEW: Final = (
    "CREATE TEMPORARY VIEW name USING timestream OPTIONS (transport 'kafka', subscribe 'trips', "
    "...)"
)
"""Errors suggest this statement when a table cannot carry the options."""


class Transport(Protocol):
    """The interface of a transport; its constructor takes Spark's options and may refuse them."""

    def schema(self) -> StructType:
        """Return the columns that apply without a user schema."""
        ...

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one streaming query."""
        ...

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch query."""
        ...


@dataclass(frozen=True, slots=True)
class _TransportOption:
    transport: str = option(
        "transport",
        choice("time", "kafka"),
        "time",
        description="`time` or `kafka`",
        # Not "leave it out": the default is another stream than the one that was meant.
        help="correct it",
    )


@hide_tracebacks
class DefaultSource(DataSource):
    """Reads timestamps of a simulated clock, or Kafka records with current time increments.

    Schema: `timestamp timestamp, value long` with transport `time`.

    Options: see docs/reference; this class reads them when the query is built, not before.

    Delivery: every row exactly once, if the sink is idempotent per batch; a batch that runs again
    has the same rows.

    Example:
        spark.readStream.format("timestream").option("period", "0.5").option("maxCount", 10).load()
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Read the topic settings here, once: Spark copies this object from here on."""
        super().__init__(options)
        self._topic_settings: dict[str, str] = {}
        if "timesettings" in map(str.lower, options) and _read_transport_name(options) == "kafka":
            # Imported late: a clock needs no Kafka library.
            from pyspark_timestream.kafka.topic_settings import load_topic_settings

            self._topic_settings = load_topic_settings(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "timestream"

    def schema(self) -> StructType:
        """Return the columns that apply without a user schema; reads every option."""
        table_options = read_definition(self.options, _VIEW)
        if table_options is not None:
            # A stream has no path; Spark gives a table one.
            options = {name: text for name, text in table_options.items() if name != "path"}
            return keep_options(DefaultSource(options).schema(), options, self.name())
        return self._transport().schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one streaming query."""
        try:
            table_options = restore_options(self.options, schema, self.name())
            source = self if table_options is None else DefaultSource(table_options)
            reader = source._transport().stream_reader(drop_options(schema))
        except (OptionError, SchemaRefused) as error:
            return RefusedReader(error)
        if isinstance(reader, HandingReader):
            reader.set_handed_schema(schema)
        return reader

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch query, if the transport supports it."""
        table_options = restore_options(self.options, schema, self.name())
        if table_options is not None:
            return DefaultSource(table_options)._transport().reader(drop_options(schema))
        if not self.options:
            raise OptionError(
                "transport",
                "'time', the default, cannot be read with spark.read; a table of Spark's catalog "
                "that was created with columns has no other, since Spark passes a Python source no "
                "options of it",
                "spark.readStream; 'kafka' for batch reads",
                "use spark.readStream, or set transport and the other options; DROP a table, and "
                f"create it without columns, or {_VIEW} instead",
            )
        return self._transport().reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch write to topics (semantics 29.7)."""
        self._refuse_clock()
        # Imported late: a clock needs no Kafka library.
        from pyspark_timestream.kafka.writer.stream_writer import open_batch_writer

        return open_batch_writer(self.options, schema, overwrite)

    def _refuse_clock(self) -> None:
        if _read_transport_name(self.options) != "kafka":
            raise OptionError(
                "transport",
                "'time', the default, cannot be written to",
                "'kafka'",
                "set option 'transport' to 'kafka', or write with another format, such as "
                "'tseries' or 'delta'",
            )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of one batch of a stream to topics (semantics 29)."""
        self._refuse_clock()
        # Imported late: a clock needs no Kafka library.
        from pyspark_timestream.kafka.writer.stream_writer import open_stream_writer

        return open_stream_writer(self.options, schema, overwrite)

    def _transport(self) -> Transport:
        if _read_transport_name(self.options) == "kafka":
            # Imported late: a clock needs no Kafka library.
            from pyspark_timestream.kafka.reader import KafkaTransport

            return KafkaTransport(self.options, self._topic_settings)
        # Late as well: each query starts a process, which then imports only what it needs.
        from pyspark_timestream.clock.reader import TimeTransport

        return TimeTransport(self.options, SPECS.keys())


def _read_transport_name(raw: Mapping[str, Any]) -> str:
    options = {key: value for key, value in raw.items() if key.lower() == "transport"}
    return read_options(_TransportOption, options).transport
