"""Apache Kafka in a local JVM: the broker on machines without Docker."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_timestream.demo import end_run
from pyspark_timestream.demo.kafka_settings import LOG4J_FILE, broker_properties
from pyspark_timestream.demo.orphan_watch import OrphanWatch

__all__ = ["KafkaProcess", "free_port"]


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KafkaProcess:
    """A broker that keeps its data when it is killed, and that ends with this process.

    Args:
        jars: the directory with the broker's jars.
        directory: for all its files; removed by `close`.
        ports: of the broker and of its controller; free ones by default.
        changes: settings that differ from those of a single broker.
        cluster: the cluster's id; a new one by default.
        heap: of the JVM.
        java: the Java to run it with.
        flags: further flags of the JVM.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        ports: tuple[int, int] | None = None,
        changes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        heap: str = "512m",
        java: str = "java",
        flags: Sequence[str] = (),
    ) -> None:
        port, controller = ports or (free_port(), free_port())
        self.bootstrap = f"127.0.0.1:{port}"
        self.directory = directory
        self._command = [java, f"-Xmx{heap}", *flags]
        self._command += [f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"]
        self._command += ["-cp", f"{jars}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        # First of all, so that a kill at any moment leaves nothing behind.
        self._watch = OrphanWatch([sys.executable, "-P", end_run.__file__, str(directory)])
        voter = f"127.0.0.1:{controller}"
        properties = broker_properties(self.bootstrap, self.bootstrap, voter, voter)
        properties |= {"log.dirs": str(directory / "data"), **(changes or {})}
        try:
            self._format(properties, cluster or _random_id())
        except BaseException:
            self.close()
            raise

    def _format(self, properties: Mapping[str, str], cluster: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(LOG4J_FILE)
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self._settings.write_text(text)
        tool = [*self._command, "kafka.tools.StorageTool", "format", "-t", cluster]
        done = subprocess.run(
            [*tool, "-c", str(self._settings)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(f"Kafka could not format its storage: {done.stdout}{done.stderr}")

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _log(self) -> Path:
        return self.directory / "broker.log"

    def start(self) -> None:
        """Start the broker, with its previous data and ports if it ran before."""
        with self._log.open("ab") as log:
            # In a separate session, which Ctrl-C does not reach.
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, timeout: float = 60.0) -> None:
        """Send SIGTERM: the broker hands over its partitions before it ends."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL: no notice to clients, no clean shutdown of the log."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """End the broker and remove its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._watch.stop()

    def failure(self) -> str | None:
        """The end of the log of a broker that ended by itself; None if it did not."""
        if self._process is None or self._process.poll() is None:
            return None
        return self._log.read_text(errors="replace")[-4000:]


def _random_id() -> str:
    # With the first bit set it might begin with a dash, and Kafka's tool would read an option.
    first = bytes([secrets.randbelow(128)])
    return urlsafe_b64encode(first + secrets.token_bytes(15)).decode().rstrip("=")
