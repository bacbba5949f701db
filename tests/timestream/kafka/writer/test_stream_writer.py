"""What a write is checked for before any task, without a broker (semantics 29.1)."""

import pickle
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.writer.stream_writer import open_stream_writer
from pyspark_timestream.source import DefaultSource

pytestmark = pytest.mark.spark

GIVEN = {"transport": "kafka", "kafka.bootstrap.servers": "b:9092", "topic": "t", "writer": "w"}
VALUE, TIME = StringType(), TimestampType()
HEADER = StructType().add("key", VALUE).add("value", BinaryType())


def columns(**kinds: DataType) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema = schema.add(name, kind)
    return schema


def test_a_writer_that_can_work_goes_to_the_tasks(tmp_path: Path) -> None:
    given = {**GIVEN, "checkpointlocation": str(tmp_path), "ctifrom": "watermark"}
    source = DefaultSource(given)
    schema = columns(key=VALUE, value=BinaryType())
    assert pickle.dumps(source.streamWriter(schema, overwrite=False))
    every = columns(
        value=VALUE, cti=TIME, partition=IntegerType(), timestamp=TIME, headers=ArrayType(HEADER)
    )
    assert pickle.dumps(open_stream_writer(GIVEN, every, overwrite=False))


def test_output_mode_complete_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"option 'outputMode': 'complete'.*append"):
        open_stream_writer(GIVEN, columns(value=VALUE, cti=TIME), True)


@pytest.mark.parametrize(
    ("options", "schema", "error", "said"),
    [
        ({}, {"value": VALUE}, OptionError, "option 'ctiFrom': it is missing"),
        ({"ctiFrom": "watermark"}, {"value": VALUE}, OptionError, "'checkpointLocation'"),
        ({}, {"value": VALUE, "cti": VALUE}, SchemaRefused, "column 'cti' is string"),
        ({}, {"value": HEADER, "cti": TIME}, SchemaRefused, "column 'value' is struct"),
        (
            {},
            {"value": VALUE, "cti": TimestampNTZType()},
            SchemaRefused,
            "column 'cti' is timestamp",
        ),
    ],
)
def test_a_write_that_cannot_work_is_refused_before_any_task(options, schema, error, said) -> None:
    with pytest.raises(error, match=said):
        open_stream_writer({**GIVEN, **options}, columns(**schema), overwrite=False)
