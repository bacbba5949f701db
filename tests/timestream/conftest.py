"""One Spark session for the fast tests that need one."""

import os
import sys

import pytest

# As `make test` has it: importing the helpers warns where Spark would start another Python.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

RAW_FILES = "org.apache.hadoop.fs.local.RawLocalFs"


@pytest.fixture
def without_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not started Spark."""
    monkeypatch.setattr("pyspark.SparkContext._jvm", None)


@pytest.fixture(scope="session")
def spark():
    # Imported late: most tests here need no Spark.
    from pyspark.sql import SparkSession

    from pyspark_timestream import DefaultSource

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # Hadoop runs `chmod` twice for each file of a checkpoint otherwise.
        .config("spark.hadoop.fs.AbstractFileSystem.file.impl", RAW_FILES)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(DefaultSource)
    yield session
    session.stop()
