"""The rules need neither Spark nor Delta, and the package imports nothing heavy."""

import subprocess
import sys

import pytest

PURE = [
    "write.batch",
    "model.block_columns",
    "model.valid_text",
    "client.chart",
    "storage.parquet_checksums",
    "model.columns",
    "maintain.compaction",
    "write.edits",
    "errors",
    "maintain.file_check",
    "storage.data_files",
    "storage.footer_cache",
    "model.head_checksums",
    "storage.head_files",
    "model.series_index",
    "read.as_of",
    "maintain.invariants",
    "write.large_batch",
    "write.event_writer",
    "write.numbering",
    "write.originals",
    "model.policy",
    "storage.location",
    "model.properties",
    "read.bounds",
    "client.data_frames",
    "client.range_query",
    "model.query",
    "client.results",
    "read.scan",
    "read.select",
    "options",
    "model.retention",
    "storage.row_groups",
    "write.rows",
    "write.spill",
    "write.task_output",
    "storage.row_filter",
    "model.slices",
    "storage.staging",
    "model.series_state",
    "storage.table_scan",
    "subscribe.delivery",
    "subscribe.position",
]


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_rules_import_without_spark_and_delta():
    # One process for all: each start of an interpreter with Arrow costs as much as all the imports.
    run(
        "import sys; sys.modules['pyspark'] = sys.modules['deltalake'] = None; "
        + "; ".join(f"import pyspark_tseries.{module}" for module in PURE)
    )


def test_the_package_itself_imports_nothing_heavy():
    run(
        "import sys, pyspark_tseries; "
        "assert not {'pyspark', 'deltalake', 'pyarrow', 'numpy'} & set(sys.modules)"
    )


@pytest.mark.parametrize("module", ["spark.writer", "spark.reader", "spark.stream_reader"])
def test_what_tasks_import_needs_no_delta(module):
    run(f"import sys; sys.modules['deltalake'] = None; import pyspark_tseries.{module}")


def test_the_public_names_are_these():
    import pyspark_tseries

    assert {"DefaultSource", "TimeSeries", "describe"} <= set(pyspark_tseries.__all__)
    assert callable(pyspark_tseries.describe)
    assert pyspark_tseries.DefaultSource.name() == "tseries"
    with pytest.raises(AttributeError, match="nothing_such"):
        pyspark_tseries.nothing_such  # noqa: B018


def test_the_base_error_is_never_raised_itself():
    from pyspark_tseries.errors import TseriesError

    with pytest.raises(TypeError, match="raise a subclass"):
        TseriesError("something")
