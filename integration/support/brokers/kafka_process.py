"""A local Apache Kafka process for tests: the broker of machines without Docker."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pyspark_timestream.demo import broker
from pyspark_timestream.demo.broker import fetch_jars, free_port, locked

CACHE = Path(__file__).parents[3] / ".work" / "kafka"


class KafkaProcess(broker.KafkaProcess):
    """A broker in a JVM of ours; its data outlives a kill.

    Args:
        changes: settings that differ from a single broker's.
        ports: the broker's and its controller's; free ones by default.
        cluster: the cluster's id; a new one by default.
        heap: of the JVM.
    """

    def __init__(
        self,
        changes: Mapping[str, str] | None = None,
        ports: tuple[int, int] | None = None,
        cluster: str | None = None,
        heap: str = "512m",
    ) -> None:
        self._changes, self._cluster, self._heap = changes or {}, cluster, heap
        ports = ports or (free_port(), free_port())
        directory = CACHE / "runs" / f"{os.getpid()}-{ports[0]}"
        super().__init__(kafka_jars(), directory, ports)

    def _format(self, properties: Mapping[str, str], cluster: str) -> None:
        # The last flag of a kind counts.
        self._command[2:2] = [f"-Xmx{self._heap}", *os.environ.get("JVM_FLAGS", "").split()]
        super()._format({**properties, **self._changes}, self._cluster or cluster)

    def freeze(self) -> None:
        """Stop all of its threads (SIGSTOP)."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def cut_log(self, topic: str, partition: int) -> None:
        """Remove the last batch of a partition's log, while the broker is not running."""
        place = self.directory / "data" / f"{topic}-{partition}"
        (segment,) = place.glob("*.log")
        data = segment.read_bytes()
        # A batch begins with its first offset (8 bytes) and its length after that (4 bytes).
        begins = [0]
        while begins[-1] < len(data):
            length = int.from_bytes(data[begins[-1] + 8 : begins[-1] + 12], "big")
            begins.append(begins[-1] + 12 + length)
        segment.write_bytes(data[: begins[-2]])
        for index in place.glob("*index"):
            index.unlink()


def kafka_jars() -> Path:
    """The directory with the broker's jars, fetched from Maven Central on first use."""
    return fetch_jars(CACHE)


def image_lock() -> AbstractContextManager[None]:
    """Let one process at a time build an image."""
    return locked(CACHE, "image")
