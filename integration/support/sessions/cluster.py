"""A standalone Spark cluster from PySpark's own distribution: a master and workers, each a JVM."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_process import free_port
from process_session import ProcessSession, members

from pyspark_timestream.core.session import use_installed_pyspark

READY_SECONDS = 90.0
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Cluster:
    """A running cluster: the master's URL, and the sessions of its workers."""

    url: str
    workers: list[ProcessSession]

    def executors(self) -> list[int]:
        """The processes of Java that run the tasks of jobs."""
        found = [pid for worker in self.workers for pid in members(worker.id)]
        return [pid for pid in found if _EXECUTOR in _command(pid)]


def _command(pid: int) -> list[bytes]:
    """Empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


@contextmanager
def cluster(directory: Path, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """A cluster with all workers registered; it ends with the block.

    Args:
        directory: Where logs and the workers' files go.
        workers: How many worker processes; Spark starts one executor in each for a job.
        cores: Cores of each worker.

    A driver must listen on 127.0.0.1 too; `spark_session.local_spark(name, url)` does.
    """
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    with ExitStack() as running:
        _begin(running, directory / "master", "master.Master", arguments)
        # A worker that finds no master waits longer before its second try than a master starts.
        _wait_for_page(page)
        sessions = [
            _begin_worker(running, directory / f"worker-{number}", url, cores)
            for number in range(workers)
        ]
        _wait_for_page(page, alive=workers)
        yield Cluster(url, sessions)


def _begin_worker(running: ExitStack, directory: Path, url: str, cores: int) -> ProcessSession:
    place = ["--host", "127.0.0.1", "--webui-port", str(free_port()), "-d", str(directory)]
    return _begin(running, directory, "worker.Worker", [*place, "-c", str(cores), "-m", "1g", url])


def _begin(running: ExitStack, directory: Path, main: str, arguments: list[str]) -> ProcessSession:
    use_installed_pyspark(os.environ)
    command = [
        str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-class"),
        f"{_DEPLOY}.{main}",
        *arguments,
    ]
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "PYSPARK_PYTHON": sys.executable,
    }
    session = ProcessSession.begin(command, log=directory / "log", env=environment)
    running.callback(session.end)
    return session


def _wait_for_page(port: int, alive: int = 0) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while (found := _alive_workers(port)) is None or found < alive:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {alive} workers registered in {READY_SECONDS:.0f} s")
        time.sleep(0.1)


def _alive_workers(port: int) -> int | None:
    """None while the master does not answer, or answers with another page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, json.JSONDecodeError):
        return None
