"""Our assumptions about Spark's evaluation of a Python source: a canary for each new Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class Clock(DataSource):
    """Two tasks, each says when the read was planned and when its evaluation began."""

    @classmethod
    def name(cls) -> str:
        return "evaluation_clock"

    def schema(self) -> str:
        return "planned_us long, later_us long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ClockReader(time.time_ns() // 1000)


class ClockReader(DataSourceReader):
    def __init__(self, planned_us: int) -> None:
        self._planned_us = planned_us

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int | None]]:
        from pyspark_timestream.core.adapters import find_later_start

        yield self._planned_us, find_later_start(self._planned_us)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    spark.dataSource.register(Clock)
    return spark.read.format("evaluation_clock").load()


@pytest.mark.outside_ci
def test_the_tasks_of_an_evaluation_agree_on_when_it_began(
    spark: SparkSession, frame: DataFrame
) -> None:
    frame.createOrReplaceTempView("clock")
    moments = set()
    for rows in (
        frame.collect(),
        frame.union(frame).collect(),
        spark.sql("SELECT * FROM clock").collect(),
        spark.sql("SELECT * FROM clock").collect(),
    ):
        (planned_us,), (later_us,) = ({row[i] for row in rows} for i in (0, 1))
        assert later_us is None or planned_us < later_us <= time.time_ns() // 1000
        moments.add((planned_us, later_us))
    assert len(moments) == 4


def test_the_first_evaluation_of_a_read_is_not_later_than_its_plan(spark: SparkSession) -> None:
    spark.dataSource.register(Clock)
    rows = spark.read.format("evaluation_clock").load().collect()
    assert [row.later_us for row in rows] == [None, None]
