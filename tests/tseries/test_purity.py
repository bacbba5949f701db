"""The rules need neither Spark nor Delta, and the package imports nothing heavy."""

import subprocess
import sys

import pytest

PURE = [
    "attempts",
    "block_columns",
    "broken_text",
    "chart",
    "checksums",
    "columns",
    "compaction",
    "edits",
    "errors",
    "file_check",
    "files",
    "footers",
    "head_checksums",
    "head_files",
    "heads",
    "history",
    "invariants",
    "large_batches",
    "merges",
    "numbering",
    "originals",
    "permissions",
    "places",
    "properties",
    "pruning",
    "range_query",
    "ranges",
    "receipts",
    "results",
    "scan",
    "selection",
    "options",
    "retention",
    "row_groups",
    "rows",
    "runs",
    "shares",
    "sieve",
    "slices",
    "staging",
    "standing",
    "table_scan",
    "deliveries",
    "subscription",
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


@pytest.mark.parametrize("module", ["writer", "reader", "subscriber"])
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

    with pytest.raises(TypeError, match="leaves"):
        TseriesError("something")
