"""A Spark Connect server from PySpark's own distribution: a driver in a JVM of its own."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kafka_process import free_port
from process_session import ProcessSession

from pyspark_timestream.core.session import use_installed_pyspark

READY_SECONDS = 90.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer(NamedTuple):
    """A server that answers at `url`, `sc://...`."""

    url: str
    session: ProcessSession


@contextmanager
def connect_server(directory: Path, **settings: str) -> Iterator[ConnectServer]:
    """A server that answers; it ends with the block (`_` for `.`).

    Args:
        directory: where its log, its tables and its temporary files go.
        settings: of Spark, beside those of all tests.
    """
    use_installed_pyspark(os.environ)
    port = free_port()
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    command = [str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit"), "--class", SERVER]
    command += ["--master", "local[2]"]
    command += [word for each in given.items() for word in ("--conf", "=".join(each))]
    temporary = directory / "tmp"
    temporary.mkdir(parents=True)
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        # Not the client's: they share no directory by chance.
        "TMPDIR": str(temporary),
    }
    server = ProcessSession.begin(
        [*command, "spark-internal"], log=directory / "log", env=environment
    )
    try:
        _wait_for_port(server, port)
        yield ConnectServer(f"sc://127.0.0.1:{port}", server)
    finally:
        server.end()


def _wait_for_port(server: ProcessSession, port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            if server.exit_code is not None or time.monotonic() > deadline:
                raise TimeoutError(f"no Spark Connect server:\n{server.tail()}") from None
            time.sleep(0.1)
