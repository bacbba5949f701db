"""The Spark session that integration tests and jobs use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_timestream import configure_spark

READ_BACK = """\
{python} - <<'END'
from pyspark.sql import SparkSession
from pyspark_timestream import configure_spark
spark = configure_spark(SparkSession.builder).getOrCreate()
spark.read.format("tseries").load("{store}").orderBy("series", "timestamp").show()
END"""


def local_spark(
    name: str, master: str = "local[2]", *, log: Path | None = None, **settings: str
) -> SparkSession:
    """A session as users are told to build it, only on this host, without a UI (`_` for `.`).

    With `log`, all output of Spark's own process goes to that file.
    """
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A query without new data asks its source a hundred times a second otherwise.
        "spark.sql.streaming.pollingDelay": "50ms",
        # Arrow reads these as Spark does, with their zone.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # The driver has these already.
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    given = {key.replace("_", "."): each for key, each in settings.items()}
    builder = SparkSession.builder.appName(name).master(master)
    for key, each in {**fixed, **given}.items():
        builder = builder.config(key, each)
    builder = configure_spark(builder)
    if log is None:
        session = builder.getOrCreate()
    else:
        with _errors_into(log):
            session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _errors_into(log: Path) -> Iterator[None]:
    """A process started in this block prints its errors into a file until it ends."""
    sys.stderr.flush()
    kept = os.dup(sys.stderr.fileno())
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)


def read_back(store: Path) -> str:
    """A command for a shell that shows what is in a store."""
    return READ_BACK.format(python=_named(Path(sys.executable)), store=store.resolve())


def _named(path: Path) -> str:
    """As a reader in this directory would name it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
