"""Hands the rows of a small batch to Spark together with the batch's partitions (semantics 8.9).

Right after `partitions`, Spark's process of a source asks whether the reader is the wrapper of a
simple reader. Such a reader gives the batch's rows at once: Spark keeps them as a block, which the
batch's only task reads without a Python process. If the block is lost, the task calls `read` as
usual. Spark has no public way to do this, and the wrapper itself gives up reported offsets and
limits. So a reader here passes for the wrapper only while it has rows to hand over.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_timestream.core.worker import hide_tracebacks

_WRAPPER: Final[type | None] = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)

CAN_HAND_OVER: Final = hasattr(_WRAPPER, "getCache")
"""Whether this version of Spark takes rows along with partitions."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Spark's process of the source holds at most about this much of a batch, twice while it sends."""


def collect_rows(
    batches: Iterable[pa.RecordBatch], max_bytes: int = MAX_BYTES
) -> list[pa.RecordBatch] | None:
    """Return all `batches`; None once they take more than `max_bytes`."""
    rows, left = [], max_bytes
    for batch in batches:
        left -= batch.nbytes
        if left < 0:
            return None
        rows.append(batch)
    return rows


def can_be_taken(rows: Iterable[pa.RecordBatch]) -> bool:
    """Return whether Spark can take these rows along: it copies them, and fails at some nulls.

    A null among the numbers, times or truth values of a list or map ends its copy with
    `Value at index is null` (`ColumnarArray.copy`, Spark 4.3). A task's rows are not copied so.
    """
    return not any(_has_null_item(column) for batch in rows for column in batch.columns)


def _has_null_item(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_struct(kind):
        return any(_has_null_item(column.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        items = [column.keys, column.items]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = [column.values]
    else:
        return False
    return any(
        (each.null_count > 0 and pa.types.is_primitive(each.type)) or _has_null_item(each)
        for each in items
    )


@hide_tracebacks
class HandingReader(DataSourceStreamReader):
    """A stream reader whose `partitions` may hand the rows over with a single partition."""

    _rows: list[pa.RecordBatch] | None = None
    _handed_schema: pa.Schema | None = None
    _fits = True

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self) if self._rows is None else _WRAPPER

    def __reduce__(self) -> tuple[Any, ...]:
        # Rows are for Spark alone, and pickle would compare `__class__` with the type.
        state = {**(self.__getstate__() or {}), "_rows": None}  # type: ignore[dict-item]
        return _create, (type(self),), state

    @property
    def can_hand_over(self) -> bool:
        """Return whether this version of Spark takes rows of this schema along with partitions."""
        return CAN_HAND_OVER and self._fits

    def set_handed_schema(self, schema: StructType) -> None:
        """Give rows the schema by which Spark reads them; without a call they go as they are.

        Other than rows that a task returns, Spark refuses these if metadata of a column is missing
        (a table of a catalog has some), or if Arrow does not hold a type, such as a collation.
        """
        self._handed_schema = to_arrow_schema(schema, timezone="UTC")
        self._fits = from_arrow_schema(self._handed_schema, prefer_timestamp_ntz=True) == schema

    def hand_over(self, rows: list[pa.RecordBatch]) -> None:
        """Let Spark take `rows` after this call of `partitions`, which returns one partition."""
        self._rows = rows

    def getCache(self, _start: dict[str, Any], _end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Give Spark the rows; it asks right after `partitions`, and once."""
        rows, self._rows = self._rows or (), None
        if self._handed_schema is None:
            return iter(rows)
        return iter(
            [pa.RecordBatch.from_arrays(each.columns, schema=self._handed_schema) for each in rows]
        )


def _create(kind: type[HandingReader]) -> HandingReader:
    return kind.__new__(kind)
