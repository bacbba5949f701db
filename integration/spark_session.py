"""The Spark session that integration tests and jobs use."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyspark_timestream import configure_spark


def local_spark(name: str, master: str = "local[2]", **settings: str) -> SparkSession:
    """A session as users are told to build it, on this host alone, without a UI (`_` for `.`)."""
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    given = {key.replace("_", "."): each for key, each in settings.items()}
    builder = SparkSession.builder.appName(name).master(master)
    for key, each in {**fixed, **given}.items():
        builder = builder.config(key, each)
    session = configure_spark(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
