"""Through Spark: a value of every type comes back, and foreign Spark reads the same values."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from store_query import append, read, stream
from tseries.foreign import COLUMNS, current_values

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify

# tests/tseries/model/test_value_types.py has the types' edges; here is what the JVM makes of them.
NTZ = datetime(2024, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001 it is of no zone
VALUES: dict[str, tuple[str, Any]] = {
    "flag": ("boolean", True),
    "tiny": ("tinyint", -128),
    "small": ("smallint", -(2**15)),
    "whole": ("int", -(2**31)),
    "large": ("bigint", -(2**63)),
    "half": ("float", 0.5),
    "double": ("double", 5e-324),
    "price": ("decimal(38,18)", Decimal("-0.000000000000000001")),
    "text": ("string", "ü\n"),
    "bytes": ("binary", bytearray(b"\0\xff")),
    "day": ("date", date(2024, 2, 29)),
    "moment": ("timestamp", NTZ),
    "naive": ("timestamp_ntz", NTZ),
    "list": ("array<array<string>>", [["a", None], None]),
    "table": ("map<string,struct<x:int,y:array<date>>>", {"k": (1, [None]), "l": None}),
    "record": ("struct<naive:timestamp_ntz,map:map<int,decimal(4,1)>>", (NTZ, {1: None})),
}


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """A row with a value of every type, and one of nulls."""
    kinds = ", ".join(f"`{name}` {kind}" for name, (kind, _) in VALUES.items())
    values = [value for _, value in VALUES.values()]
    rows = [("a", *values), ("a", *[None] * len(values))]
    return spark.createDataFrame(rows, f"series string, {kinds}")


def values(frame: DataFrame) -> list[Any]:
    return frame.orderBy("sequence").select(*VALUES).collect()


@pytest.mark.timeout(400)
def test_a_value_of_every_type_comes_back_from_batches_streams_and_subscriptions(
    spark: SparkSession, tmp_path: Path, frame: DataFrame
) -> None:
    source, store = tmp_path / "in", tmp_path / "store"
    # One partition: its rows are the input order.
    frame.coalesce(1).write.parquet(str(source))
    rows = frame.select(*VALUES).collect()
    append(frame.coalesce(1), store, retainedRange="unlimited")
    streamed = spark.readStream.schema(frame.schema).parquet(str(source))
    stream(streamed, store, tmp_path / "checkpoint")
    back = read(spark, store)
    assert back.select(*VALUES).dtypes == frame.select(*VALUES).dtypes
    assert values(back) == rows * 2
    edit = frame.where("flag").withColumn("edit_of", F.lit(1).cast("bigint"))
    append(edit, store)
    compact(str(store))
    by_place = F.coalesce("original_sequence", "sequence")
    current = read(spark, store).withColumn("sequence", by_place)
    assert values(current) == [rows[0], rows[0], *rows]
    subscription = spark.readStream.format("tseries").option("subscriptionRange", "unlimited")
    query = subscription.load(str(store)).writeStream.format("memory").queryName("every_type")
    query = query.option("checkpointLocation", f"{tmp_path}/live").trigger(availableNow=True)
    query.start().awaitTermination()
    # All originals, and the edit at the end.
    assert values(spark.table("every_type")) == [*rows, *rows, rows[0]]
    assert verify(str(store)) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("INTERVAL '1' DAY", "is of type interval day"),
        ("array(INTERVAL '1' YEAR)", "is of type interval year"),
        ("parse_json('1')", "is of type variant"),
        ("struct(NULL AS x)", "is of type void"),
        ("'x' COLLATE UNICODE_CI", "is of type string collate UNICODE_CI"),
        ("map('k', localtimestamp())", "is of type timestamp_ntz"),
        ("named_struct('a b', 1)", "has the name 'a b'"),
    ],
)
def test_what_a_store_cannot_hold_is_refused_before_anything_is_there(
    spark: SparkSession, tmp_path: Path, value: str, said: str
) -> None:
    frame = spark.range(1).select(F.lit("a").alias("series"), F.expr(value).alias("value"))
    with pytest.raises(PySparkException) as error:
        append(frame, tmp_path / "store")
    assert f"column 'value' {said}" in str(error.value)
    assert "accepted: " in str(error.value)
    assert not (tmp_path / "store").exists()


def test_spark_without_this_package_gets_the_same_values_from_the_parquet_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    client = TimeSeries.create(str(store), {"value": pa.float64()}, "limit 4", auto_compact=False)
    for number in range(6):
        for name in "ab":
            client.append(name, float(number))
    client.edit("a", 4, 4.5)
    client.edit("a", 4, 4.75)
    expected = [
        tuple(row[name] for name in COLUMNS)
        for series in "ab"
        for row in client.range_query().select_from(series).to_arrow().to_pylist()
    ]
    assert [row[2] for row in expected] == [4.75, 5.0, 2.0, 3.0, 4.0, 5.0]
    for _ in range(2):
        paths = DeltaTable(store).file_uris()
        spark.read.parquet(*paths).createOrReplaceTempView("events")
        found = spark.sql(current_values("limit 4")).select(*COLUMNS).collect()
        assert [tuple(row) for row in found] == expected
        compact(str(store))
