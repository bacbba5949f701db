"""A local Apache Kafka process: the broker of machines without Docker."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from orphan_watch import OrphanWatch
from process_session import ProcessSession

KAFKA_VERSION = "4.3.0"
# The log4j2 that Kafka itself brings; without a binding the broker would log nothing at all.
LOG_BINDING_VERSION = "2.25.4"
CACHE = Path(__file__).parent.parent / ".work" / "kafka"

_IVY_FILE = f"""<ivy-module version="2.0">
  <info organisation="timestream" module="broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"
                conf="default->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="{LOG_BINDING_VERSION}"
                conf="default->default"/>
  </dependencies>
</ivy-module>
"""

LOG4J_FILE = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def broker_properties(listen: str, advertise: str, controller: str, voter: str) -> dict[str, str]:
    """Settings of a one-node broker for tests, for both the process and the container."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{voter}",
        "listeners": f"PLAINTEXT://{listen},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{advertise}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # So that a test can forbid something by name; what no rule names is allowed.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        # A misspelt topic must be an error in a test, not an empty topic.
        "auto.create.topics.enable": "false",
        # After a SIGKILL the old registration blocks the new one until it times out.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # A compacted topic is compacted within a second or two, not within fifteen.
        "log.cleaner.backoff.ms": "1000",
        # Transactions that a test abandons are aborted soon after their timeout.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KafkaProcess:
    """A broker in a JVM of ours; its data outlives a kill.

    Args:
        changes: settings other than those of a broker that is alone.
        ports: of the broker and of its controller; free ones by default.
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
        self._jars = kafka_jars()
        self._heap = heap
        remove_leftovers()
        port, controller = ports or (free_port(), free_port())
        self.bootstrap = f"127.0.0.1:{port}"
        self.directory = CACHE / "runs" / f"{os.getpid()}-{port}"
        self.directory.mkdir(parents=True)
        _write_owner(self.directory)
        self._session: ProcessSession | None = None
        # Should this process be killed, the broker may not outlive it.
        self._watch = OrphanWatch([sys.executable, __file__])
        voter = f"127.0.0.1:{controller}"
        properties = broker_properties(self.bootstrap, self.bootstrap, voter, voter)
        properties |= {"log.dirs": str(self.directory / "data"), **(changes or {})}
        try:
            self._format(properties, cluster)
        except BaseException:
            self.close()
            raise

    def _format(self, properties: Mapping[str, str], cluster: str | None) -> None:
        (self.directory / "log4j2.properties").write_text(LOG4J_FILE)
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self.directory / "server.properties").write_text(text)
        cluster = cluster or self._storage_tool("random-uuid").strip()
        self._storage_tool("format", "-t", cluster, "-c", str(self._settings))

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    def _java(self, main: str, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return ["java", f"-Xmx{self._heap}", log4j, "-cp", f"{self._jars}/*", main, *arguments]

    def _storage_tool(self, *arguments: str) -> str:
        command = self._java("kafka.tools.StorageTool", *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(self) -> None:
        """Start the broker on the data and the port it had."""
        command = self._java("kafka.Kafka", str(self._settings))
        self._session = ProcessSession.begin(command, log=self.directory / "broker.log")

    def stop(self, timeout: float = 60.0) -> None:
        """SIGTERM: the broker hands its partitions over before it ends."""
        if self._session is not None:
            self._session.signal(signal.SIGTERM)
            self._session.wait(timeout)
            self._session.kill()

    def kill(self) -> None:
        """SIGKILL: no goodbye to clients, no clean shutdown of the log."""
        if self._session is not None:
            self._session.kill()

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

    def close(self) -> None:
        """End the broker and remove its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._watch.stop()

    def failure(self) -> str | None:
        """What the broker printed, when it ended by itself."""
        session = self._session
        return None if session is None or session.exit_code is None else session.tail()


def kafka_jars() -> Path:
    """The directory with the broker's jars, fetched from Maven Central on first use."""
    jars = CACHE / f"kafka-{KAFKA_VERSION}"
    with locked():
        if not jars.is_dir():
            partial = CACHE / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            _retrieve(partial)
            partial.rename(jars)
    return jars


def _retrieve(into: Path) -> None:
    """Spark ships Ivy, so neither Maven nor a Kafka distribution is needed."""
    recipe = CACHE / "ivy.xml"
    recipe.write_text(_IVY_FILE)
    command = ["java", "-jar", str(_ivy_jar()), "-ivy", str(recipe), "-confs", "default"]
    command += ["-cache", str(CACHE / "ivy")]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not any(into.glob("kafka_2.13-*.jar")):
        raise OSError(f"Ivy could not fetch Kafka {KAFKA_VERSION}:\n{done.stdout[-2000:]}")


def _ivy_jar() -> Path:
    import pyspark

    return next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))


@contextmanager
def locked(what: str = "lock") -> Iterator[None]:
    """One process at a time: two test runs may share the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / what).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_owner(directory: Path) -> None:
    """Remember who began this run, so that what is left of it is known for a leftover."""
    (directory / "owner.json").write_text(json.dumps({"owner": _identity(os.getpid())}))


def remove_leftovers() -> None:
    """End the processes, and remove the data, of runs whose owner did not live to do it."""
    with locked():
        for record in (CACHE / "runs").glob("*/owner.json"):
            if _is_alive(json.loads(record.read_text())["owner"]):
                continue
            for pid in _processes_of(record.parent):
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
            shutil.rmtree(record.parent, ignore_errors=True)


def _processes_of(directory: Path) -> list[int]:
    """Those that were started with a file of the run: broker and tools, whenever that was."""
    found = psutil.process_iter(["pid", "cmdline"])
    place = f"{directory}/"
    return [
        each.pid
        for each in found
        if any(place in argument for argument in each.info["cmdline"] or ())
    ]


def _identity(pid: int) -> list[float]:
    """A pid alone may have been given to someone else since."""
    return [pid, psutil.Process(pid).create_time()]


def _is_alive(identity: list[float]) -> bool:
    pid, created = identity
    try:
        process = psutil.Process(int(pid))
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    remove_leftovers()
