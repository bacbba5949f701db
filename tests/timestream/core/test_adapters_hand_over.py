"""Rows handed over with the partitions, in the functions of Spark's own process of a source."""

import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.serializers import read_int, write_int
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import python_streaming_source_runner as spark
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_timestream.core.adapters import (
    CAN_HAND_OVER,
    HandingReader,
    can_be_taken,
    collect_rows,
)

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("n", LongType())


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


class Reader(HandingReader, SupportsTriggerAvailableNow):
    """Hands over what `rows` has for a batch, by its end."""

    def __init__(self, rows: dict[int, list[pa.RecordBatch]]) -> None:
        self.given = rows

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None: ...

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": start["at"] + 1}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"at": 9}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if end["at"] in self.given:
            self.hand_over(self.given[end["at"]])
        return [InputPartition(end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


def plan(reader: Reader, end: int) -> tuple[int, list[int] | None]:
    """The answer of Spark's process to the planning of a batch: its flag, and the numbers."""
    asked, answer = io.BytesIO(), io.BytesIO()
    for offset in ({"at": end - 1}, {"at": end}):
        text = json.dumps(offset).encode()
        write_int(len(text), asked)
        asked.write(text)
    asked.seek(0)
    spark.partitions_func(reader, DataSource({}), SCHEMA, 10_000, asked, answer)
    answer.seek(0)
    assert read_int(answer) == 1
    assert pickle.loads(answer.read(read_int(answer))).value == end
    flag = read_int(answer)
    if flag != spark.NON_EMPTY_PYARROW_RECORD_BATCHES:
        return flag, None
    read_int(answer)
    batches = ArrowStreamSerializer().load_stream(answer)
    return flag, [number for each in batches for number in each["n"].to_pylist()]


def test_spark_takes_the_rows_of_the_very_batch_and_asks_tasks_for_those_of_others() -> None:
    # A canary: where a new Spark changes how it takes rows, this fails.
    assert CAN_HAND_OVER
    reader = Reader({2: [batch(1, 2), batch(3)], 3: []})
    assert plan(reader, 1) == (spark.PREFETCHED_RECORDS_NOT_FOUND, None)
    assert plan(reader, 2) == (spark.NON_EMPTY_PYARROW_RECORD_BATCHES, [1, 2, 3])
    assert plan(reader, 3) == (spark.EMPTY_PYARROW_RECORD_BATCHES, None)
    assert plan(reader, 4) == (spark.PREFETCHED_RECORDS_NOT_FOUND, None)
    assert plan(reader, 2)[1] == [1, 2, 3]


def test_a_reader_that_hands_over_keeps_its_limits_and_its_progress() -> None:
    reader = Reader({2: [batch(1)]})
    plan(reader, 2)
    flags, reported = io.BytesIO(), io.BytesIO()
    spark.check_support_func(reader, flags)
    spark.report_latest_offset_func(reader, reported)
    flags.seek(0)
    assert (
        read_int(flags) == spark.SUPPORTS_ADMISSION_CONTROL | spark.SUPPORTS_TRIGGER_AVAILABLE_NOW
    )
    assert json.loads(reported.getvalue()[4:]) == {"at": 9}


def test_a_reader_that_holds_rows_is_pickled_without_them() -> None:
    reader = Reader({2: [batch(1)]})
    reader.partitions({}, {"at": 2})
    copies = [pickle.loads(dumps(reader)) for dumps in (pickle.dumps, cloudpickle.dumps)]
    for each in copies:
        assert type(each) is each.__class__ is Reader
        assert list(each.getCache({}, {})) == []
        assert plan(each, 2)[1] == [1]
    assert list(reader.getCache({}, {})) == [batch(1)]


def test_handed_rows_have_the_metadata_of_the_columns_that_spark_asks_for() -> None:
    # Those of a table of a catalog, say, where the rows of tasks need none.
    reader = Reader({2: [batch(1, 2)]})
    schema = StructType().add("n", LongType(), metadata={"comment": "how many"})
    reader.set_handed_schema(schema)
    assert reader.can_hand_over
    reader.partitions({}, {"at": 2})
    [rows] = reader.getCache({}, {})
    assert from_arrow_schema(rows.schema) == schema
    assert rows["n"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (StringType(), True),
        (StringType("UTF8_LCASE"), False),
        (TimestampType(), True),
        (TimestampNTZType(), True),
        (ArrayType(LongType(), containsNull=False), True),
        (MapType(StringType(), StructType().add("x", DecimalType(12, 3))), True),
    ],
)
def test_rows_that_arrow_cannot_describe_for_spark_are_left_to_tasks(
    kind: DataType, fits: bool
) -> None:
    reader = Reader({})
    reader.set_handed_schema(StructType().add("column", kind))
    assert reader.can_hand_over == fits


def test_rows_are_collected_up_to_a_number_of_bytes() -> None:
    taken: list[int] = []

    def produce() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            taken.append(number)
            yield batch(number)

    size = batch(0).nbytes
    assert collect_rows([batch(1), batch(2)], 2 * size) == [batch(1), batch(2)]
    assert collect_rows(produce(), 2 * size) is None
    # No more is held than what goes beyond the limit.
    assert taken == [0, 1, 2]
    assert collect_rows(iter(())) == []


NUMBERS = pa.list_(pa.int32())


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (pa.int32(), None, True),
        (NUMBERS, None, True),
        (NUMBERS, [1, 2], True),
        (NUMBERS, [1, None], False),
        (pa.list_(pa.bool_()), [None], False),
        (pa.list_(pa.date32()), [None], False),
        (pa.list_(pa.timestamp("us", "UTC")), [None], False),
        (pa.list_(pa.string()), [None], True),
        (pa.list_(NUMBERS), [None, [1]], True),
        (pa.list_(NUMBERS), [[1], [None]], False),
        (pa.map_(pa.string(), pa.float64()), [("a", None)], False),
        (pa.map_(pa.string(), pa.struct({"x": pa.int8()})), [("a", {"x": None})], True),
        (pa.map_(pa.string(), pa.struct({"x": NUMBERS})), [("a", {"x": [None]})], False),
        (pa.struct({"x": pa.int8(), "y": NUMBERS}), {"x": None, "y": [1]}, True),
        (pa.struct({"x": pa.int8(), "y": NUMBERS}), {"x": 1, "y": [None]}, False),
    ],
)
def test_rows_that_spark_cannot_copy_are_left_to_a_task(
    kind: pa.DataType, value: Any, taken: bool
) -> None:
    """Spark's copy of a list ends at a null number: its query would never get past that batch."""
    rows = pa.record_batch({"n": pa.array([0, 1]), "v": pa.array([None, value], kind)})
    assert can_be_taken([batch(1), rows]) == taken
    assert can_be_taken([rows.slice(0, 0)]) or not taken
