"""What all fast tests share: Spark's workers start without compiling PySpark anew."""

import gc

from spark_home import use_installed_pyspark

use_installed_pyspark()


def pytest_unconfigure() -> None:
    """Let Python collect in the end what tests of a worker's memory have frozen.

    Libraries that are bound by nanobind (DuckDB) would report it as leaked, in forty lines.
    """
    gc.unfreeze()
