"""Turns rows of a DataFrame into records, and checks their columns and types (semantics 29.1).

The columns are the same as in Spark's own Kafka sink, plus `timestamp` and `cti`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import CTI_COLUMN, INSTANT, split_cti_rows
from pyspark_timestream.core.instants import MILLISECOND_US, format_instant
from pyspark_timestream.errors import OptionError, SchemaRefused

TOPIC_COLUMN: Final = "topic"

_TEXT: Final = "STRING or BINARY"
_NAME: Final = "STRING"
_TIME: Final = "TIMESTAMP"
_TYPES: Final = {
    "key": _TEXT,
    "value": _TEXT,
    TOPIC_COLUMN: _NAME,
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "partition": "INT",
    "timestamp": _TIME,
    CTI_COLUMN: _TIME,
}
"""The columns that a record can have -> their types in Spark's words."""

_ANY_PARTITION: Final = -1
_MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Rows up to this size are kept, so that a task can write them again."""

_NOW: Final = 0
"""librdkafka replaces this timestamp by the current time."""


def check_record_columns(schema: pa.Schema, *, has_marks: bool) -> None:
    """Check that the columns can become records, and that they suit marks if there are any."""
    names = list(schema.names)
    if TOPIC_COLUMN in names and has_marks:
        raise SchemaRefused(
            "the DataFrame has a column 'topic', and all rows and marks go to the topic of option "
            "'topic'",
            next_step="leave the column out, and write each topic by a query of its own; only rows "
            "without marks may name their topics",
        )
    if "value" not in names:
        raise SchemaRefused(
            f"required attribute 'value' not found: the DataFrame has {', '.join(names)}",
            "a column 'value' of STRING or BINARY",
            "select(to_json(struct('*')).alias('value'))",
        )
    for name in names:
        if name not in _TYPES:
            raise SchemaRefused(
                f"column '{name}' has no place in a record",
                ", ".join(_TYPES),
                "put it into 'value', as to_json(struct(...)) does, or leave it out",
            )
        if names.count(name) > 1:
            raise SchemaRefused(f"there is more than one column '{name}'", next_step="rename one")
        data_type = schema.field(name).type
        if not _is_type(data_type, _TYPES[name]):
            raise SchemaRefused(
                f"column '{name}' is {data_type}", _TYPES[name], f"cast it to {_TYPES[name]}"
            )


def _is_type(data_type: pa.DataType, spark_type: str) -> bool:
    if spark_type == _TEXT:
        return data_type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    if spark_type == _NAME:
        return data_type in (pa.string(), pa.large_string())
    if spark_type == _TIME:
        return pa.types.is_timestamp(data_type) and data_type.tz is not None
    return data_type == pa.int32() if spark_type == "INT" else _is_headers(data_type)


def _is_headers(data_type: pa.DataType) -> bool:
    if not (pa.types.is_list(data_type) and pa.types.is_struct(data_type.value_type)):
        return False
    if [field.name for field in data_type.value_type] != ["key", "value"]:
        return False
    key, value = (field.type for field in data_type.value_type)
    return _is_type(key, _NAME) and value in (pa.binary(), pa.large_binary())


def split_ctis(block: pa.RecordBatch) -> tuple[pa.RecordBatch, int | None]:
    """Return the rows of data, without the column `cti`, and the greatest CTI, if any."""
    if CTI_COLUMN not in block.schema.names:
        return block, None
    rows, cti_us, misfit = split_cti_rows(block, CTI_COLUMN)
    if misfit is not None:
        name, us = misfit
        raise SchemaRefused(
            f"the row with cti {format_instant(us)} has column '{name}' as well, and a CTI row has "
            "nothing but 'cti'",
            next_step=f"keep it null: F.when(F.col('cti').isNull(), ...).alias('{name}')",
        )
    return rows.drop_columns([CTI_COLUMN]), cti_us


def build_messages(rows: pa.RecordBatch, header: str | None) -> list[dict[str, Any]]:
    """Return rows of data as confluent-kafka's messages, in order.

    `header` is the header of marks, which no row may have; None without marks.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if "partition" in columns:
        columns["partition"] = _fill_partitions(columns["partition"])
    if "timestamp" in columns:
        columns["timestamp"] = _to_ms(columns["timestamp"])
    if "headers" in columns:
        _check_headers(columns["headers"], header)
    messages: list[dict[str, Any]] = pa.RecordBatch.from_pydict(columns).to_pylist()
    if "headers" in columns:
        for message in messages:
            pairs = message["headers"]
            message["headers"] = pairs and [(pair["key"], pair["value"]) for pair in pairs]
    return messages


def _fill_partitions(partitions: pa.Array) -> pa.Array:
    least = pc.min(partitions).as_py()
    if least is not None and least < 0:
        raise SchemaRefused(
            f"a row has partition {least}", "0 or more, or null", "null lets the key decide"
        )
    return partitions.fill_null(_ANY_PARTITION)


def _to_ms(times: pa.Array) -> pa.Array:
    """Return record timestamps: milliseconds, rounded down; `_NOW` for null."""
    us = times.cast(INSTANT).cast(pa.int64())
    least = pc.min(us).as_py()
    if least is not None and least < MILLISECOND_US:
        raise SchemaRefused(
            f"a row has timestamp {format_instant(least)}",
            "a time after 1970-01-01T00:00:00Z, since Kafka has no earlier ones",
            "put the time into 'value', and leave 'timestamp' out",
        )
    # Arrow's division rounds towards zero, which is down for these positive times.
    return pc.divide(us, MILLISECOND_US).fill_null(_NOW)


def _check_headers(headers: pa.Array, header: str | None) -> None:
    keys = headers.flatten().field("key")
    if keys.null_count:
        raise SchemaRefused(
            "a row has a header null", "names that are not null", "drop the header, or name it"
        )
    if header is None:
        return
    reserved = pa.array([header, f"{header}-writer", f"{header}-close"])
    is_reserved = pc.is_in(keys, value_set=reserved.cast(keys.type))
    if is_reserved.true_count:
        raise SchemaRefused(
            f"a row has a header {keys.filter(is_reserved)[0].as_py()!r}",
            f"names other than those of marks ({', '.join(reserved.to_pylist())})",
            "rename it, or set option 'ctiHeader' to another name, which readers then use too",
        )


class MessageBlock(NamedTuple):
    """The arguments of `BatchTransaction.send` for the rows of one topic."""

    messages: list[dict[str, Any]]
    size_bytes: int
    topic: str | None = None


_Rows = tuple[pa.RecordBatch, str | None]
"""The rows of data for one topic, without the column `topic`, and the topic."""


class TaskRows:
    """Returns a task's rows as messages, block by block; can start again if the rows are few.

    Attributes:
        count: the number of rows of data so far.
        cti_us: the greatest CTI so far.

    Args:
        header: the header of marks, which no row may have; None without marks.
        blocks: rows of data and CTI rows.
        by_topic: True if the rows name their topics; otherwise a column `topic` is ignored.
    """

    def __init__(
        self, header: str | None, blocks: Iterator[pa.RecordBatch], *, by_topic: bool = False
    ) -> None:
        self._header = header
        self._by_topic = by_topic
        self._kept: list[_Rows] | None = []
        self._kept_bytes = 0
        self._unread = self._take_rows(blocks)
        self._blocks: Iterator[_Rows] = self._unread
        self.count = 0
        self.cti_us: int | None = None

    def has_rows(self) -> bool:
        """Return whether there is a row of data; call it first. It notes CTI rows on the way."""
        first_rows = list(islice(self._unread, 1))
        self._blocks = chain(first_rows, self._unread)
        return bool(first_rows)

    def next_block(self) -> MessageBlock | None:
        """Return the messages of the next block with rows of data; None at the end."""
        block = next(self._blocks, None)
        if block is None:
            return None
        rows, topic = block
        self.count += rows.num_rows
        return MessageBlock(build_messages(rows, self._header), rows.nbytes, topic)

    def rewind(self) -> bool:
        """Go back to the first row; False if some rows are no longer kept."""
        if self._kept is None:
            return False
        self._blocks = chain(list(self._kept), self._unread)
        self.count = 0
        return True

    def _take_rows(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[_Rows]:
        for block in blocks:
            rows, cti_us = split_ctis(block)
            if cti_us is not None:
                self.cti_us = cti_us if self.cti_us is None else max(self.cti_us, cti_us)
            if rows.num_rows:
                for topic_rows in self._split_topics(rows):
                    self._keep(topic_rows)
                    yield topic_rows

    def _split_topics(self, rows: pa.RecordBatch) -> Iterator[_Rows]:
        """Split a block by topic; keep the order of each topic's rows."""
        if TOPIC_COLUMN not in rows.schema.names:
            yield rows, None
            return
        topics = rows.column(TOPIC_COLUMN)
        rows = rows.drop_columns([TOPIC_COLUMN])
        if not self._by_topic:
            yield rows, None
            return
        if topics.null_count:
            raise SchemaRefused(
                "a row has null in column 'topic'",
                "the name of a topic that exists",
                "fill it, or set option 'topic', which then counts for all rows",
            )
        for topic in pc.unique(topics).to_pylist():
            yield rows.filter(pc.equal(topics, topic)), topic

    def _keep(self, topic_rows: _Rows) -> None:
        self._kept_bytes += topic_rows[0].nbytes
        if self._kept_bytes > _MAX_KEPT_BYTES:
            self._kept = None
        if self._kept is not None:
            self._kept.append(topic_rows)


def find_cti_source(cti_from: str | None, names: Sequence[str], *, wants_marks: bool) -> str | None:
    """Return where a DataFrame's CTIs come from, `column` or `watermark`; None without marks.

    `wants_marks` is true if an option about marks is set.

    Raises:
        OptionError: the option does not fit the columns.
    """
    if CTI_COLUMN in names:
        if cti_from == "watermark":
            raise OptionError(
                "ctiFrom",
                "'watermark', and the DataFrame has a column 'cti' as well",
                "one of them",
                "leave the option out, or drop the column",
            )
        return "column"
    if cti_from == "watermark":
        return "watermark"
    if not wants_marks:
        return None
    problem = "'column'" if cti_from else "it is missing"
    raise OptionError(
        "ctiFrom",
        f"{problem}, and the DataFrame has no column 'cti'",
        "'watermark', or a column `cti` among the columns; for rows without marks, none of "
        "'writer', 'ctiFrom', 'ctiHeader' and 'ctiDelay'",
        "set it to 'watermark' for results of windows, or select 'cti' as well; to write rows "
        "without marks, leave 'writer' and the options on CTIs out",
    )
