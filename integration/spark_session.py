"""The Spark session that integration tests and jobs use."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def local_spark(name: str, master: str = "local[2]", **settings: str) -> SparkSession:
    """A session in UTC, without a UI, with workers of this very interpreter (`_` for `.`)."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    given = {key.replace("_", "."): each for key, each in settings.items()}
    for key, each in {**fixed, **given}.items():
        builder = builder.config(key, each)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
