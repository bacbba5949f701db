"""Units pass between Spark's columns and those of a store."""

import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from pyspark_tseries import DefaultSource, TimeSeries
from pyspark_tseries.model.columns import find_unit

pytestmark = pytest.mark.spark

ROWS = StructType(
    [
        StructField("series", StringType()),
        StructField("celsius", DoubleType(), metadata={"unit": "°C", "other": "kept by Spark"}),
        StructField("n", LongType(), metadata={"unit": 3}),
    ]
)


def units(schema):
    return {field.name: field.metadata for field in schema if field.metadata}


def test_a_store_that_spark_creates_has_the_units_of_its_columns(tmp_path):
    path = str(tmp_path / "s")
    DefaultSource({"path": path, "retainedRange": "unlimited"}).writer(ROWS, overwrite=False)
    store = TimeSeries.open(path)
    columns = store.range_query().select_from().table.schema
    assert {f.name: find_unit(f) for f in columns if find_unit(f)} == {"celsius": "°C"}
    assert units(DefaultSource({"path": path}).schema()) == {"celsius": {"unit": "°C"}}
    store.set_units({"n": "pcs"})
    asked = {"path": path, "every": "1 hour", "aggregate": "top = celsius max, m = n count"}
    assert units(DefaultSource(asked).schema()) == {"top": {"unit": "°C"}}


def test_rows_without_units_and_columns_added_with_them_are_written(tmp_path):
    path = str(tmp_path / "s")
    options = {"path": path, "retainedRange": "unlimited", "mergeSchema": "true"}
    plain = StructType([StructField("series", StringType()), StructField("n", LongType())])
    DefaultSource(options).writer(plain, overwrite=False)
    DefaultSource(options).writer(ROWS, overwrite=False)
    DefaultSource(options).writer(plain, overwrite=False)
    assert units(DefaultSource({"path": path}).schema()) == {"celsius": {"unit": "°C"}}
