"""The checks of a write before any task, without a broker (semantics 29.1)."""

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

from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka.writer.stream_writer import open_batch_writer, open_stream_writer
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
        ({"writer": None}, {"value": VALUE, "cti": TIME}, OptionError, "option 'writer': it is m"),
        ({"writer": None}, {"value": VALUE, "cti": TIME}, OptionError, "drop the column 'cti'"),
        (
            {"writer": None, "ctiFrom": "watermark"},
            {"value": VALUE},
            OptionError,
            "without marks, leave 'ctiFrom' out",
        ),
        ({"topic": None}, {"value": VALUE, "cti": TIME}, OptionError, "option 'topic': it is m"),
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
    given = {key: text for key, text in {**GIVEN, **options}.items() if text is not None}
    with pytest.raises(error, match=said):
        open_stream_writer(given, columns(**schema), overwrite=False)


PLAIN = {key: text for key, text in GIVEN.items() if key != "writer"}
NOWHERE = {key: text for key, text in PLAIN.items() if key != "topic"}


@pytest.mark.parametrize("open_writer", [open_stream_writer, open_batch_writer])
def test_rows_without_marks_need_a_topic_by_option_or_column(open_writer) -> None:
    named = columns(value=VALUE, topic=VALUE)
    for given, schema in ((PLAIN, columns(value=VALUE)), (NOWHERE, named), (PLAIN, named)):
        assert pickle.dumps(open_writer(given, schema, overwrite=False))
    with pytest.raises(OptionError, match=r"option 'topic': it is missing.*a column 'topic'"):
        open_writer(NOWHERE, columns(value=VALUE), overwrite=False)


def test_rows_without_marks_are_written_in_output_mode_complete_as_by_sparks_sink() -> None:
    assert open_stream_writer(PLAIN, columns(value=VALUE), overwrite=True)


@pytest.mark.parametrize(
    ("given", "schema", "overwrite", "said"),
    [
        (GIVEN, {"value": VALUE}, False, r"option 'writer': marks .*availableNow"),
        (PLAIN, {"value": VALUE, "cti": TIME}, False, r"drop CTI rows: where\('cti IS NULL'\)"),
        (PLAIN, {"value": VALUE}, True, r"option 'mode': 'overwrite'.*mode\('append'\)"),
        ({"kafka.bootstrap.servers": "b:1"}, {"value": VALUE}, False, "set option 'transport'"),
    ],
)
def test_a_batch_write_that_cannot_work_is_refused_by_name(given, schema, overwrite, said) -> None:
    with pytest.raises(OptionError, match=said):
        DefaultSource(given).writer(columns(**schema), overwrite)
