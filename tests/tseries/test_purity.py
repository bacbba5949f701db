"""The package imports nothing heavy, and what tasks import needs no Delta."""

import subprocess
import sys

import pytest


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_package_itself_imports_nothing_heavy():
    run(
        "import sys, pyspark_tseries; "
        "assert not {'pyspark', 'deltalake', 'pyarrow', 'numpy'} & set(sys.modules)"
    )


@pytest.mark.parametrize("module", ["spark.writer", "spark.readers"])
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
