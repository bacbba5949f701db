"""Runs Apache Kafka for the demo, with the Java that Spark needs anyway and jars from Maven.

Besides, it waits until the broker answers, and creates topics with their records.
"""

import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.demo.data import DemoRecord
from pyspark_timestream.demo.orphans import OrphanWatch, end_command
from pyspark_timestream.demo.progress import run_with_output


class NoDemo(Exception):
    """The demo cannot run here; the text gives the reason and the next step."""


KAFKA_VERSION: Final = "4.3.0"
LOG_BINDING_VERSION: Final = "2.25.4"
"""The version of the log4j2 that comes with Kafka; without a binding the broker logs nothing."""

LOG4J_FILE: Final = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def list_broker_properties(
    listen: str, advertise: str, controller: str, voter: str
) -> dict[str, str]:
    """Return the settings of a broker that forms a cluster of one."""
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
        # A test can then forbid an operation by a rule; what no rule names is allowed.
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


_MIN_VERSION: Final = 17
_ADVICE: Final = (
    f"Spark and Kafka need Java {_MIN_VERSION} or newer: install one (Debian: apt-get install "
    "openjdk-17-jre-headless), or set JAVA_HOME"
)


def find_java() -> str:
    """Return the path of a `java` that is new enough.

    Raises:
        NoDemo: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    try:
        printed = subprocess.run(
            [java or "java", "-version"], check=True, capture_output=True, text=True
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        missing = f"JAVA_HOME is {home}, which has no working bin/java" if home else "no Java here"
        raise NoDemo(f"{missing}; {_ADVICE}") from None
    version = read_java_version(printed)
    if version < _MIN_VERSION:
        raise NoDemo(f"{java} is Java {version}; {_ADVICE}")
    return str(java)


def read_java_version(printed: str) -> int:
    """Return the major version in what `java -version` prints: 8 for "1.8.0", 0 without one."""
    version = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(version[1]) if version else 0


JARS: Final = 45
"""The approximate number of jars; together they have 44 MB."""

_IVY_FILE: Final = f"""<ivy-module version="2.0">
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


def find_user_cache() -> Path:
    """Return the directory of this user's cache that the demo keeps Kafka in."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timestream"


def has_jars(cache: Path) -> bool:
    """Return whether the jars are there."""
    return _place(cache).is_dir()


def fetch_jars(
    cache: Path, java: str = "java", on_line: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the directory with the broker's jars; if they are missing, fetch them with Ivy.

    Several processes may share `cache`. `on_line` gets each line that Ivy prints.

    Raises:
        NoDemo: they could not be fetched.
    """
    with locked(cache):
        if not has_jars(cache):
            partial = cache / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            _retrieve(cache, partial, java, on_line)
            # Rename last, so that an interrupted fetch never looks complete.
            partial.rename(_place(cache))
    return _place(cache)


def _place(cache: Path) -> Path:
    return cache / f"kafka-{KAFKA_VERSION}"


def _retrieve(cache: Path, into: Path, java: str, on_line: Callable[[str], None]) -> None:
    recipe, log = cache / "ivy.xml", cache / "ivy.log"
    recipe.write_text(_IVY_FILE)
    command = [java, "-jar", str(_ivy_jar()), "-ivy", str(recipe), "-confs", "default"]
    command += ["-cache", str(cache / "ivy")]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    with log.open("w") as log_file:

        def keep(line: str) -> None:
            log_file.write(line)
            on_line(line)

        failed = run_with_output(command, keep)
    if failed or not any(into.glob("kafka_2.13-*.jar")):
        raise NoDemo(
            f"Kafka {KAFKA_VERSION} could not be fetched from Maven Central: check the network "
            f"(behind a proxy set JAVA_TOOL_OPTIONS), then try again; details are in {log}"
        )


def _ivy_jar() -> Path:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return next((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))


@contextmanager
def locked(cache: Path, name: str = "lock") -> Iterator[None]:
    """Let one process at a time into the block."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """Return a port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KafkaProcess:
    """A broker that keeps its data when it is killed, and that ends with this process.

    Args:
        jars: the directory with the broker's jars.
        directory: holds all files of the broker; `close` removes it.
        ports: the ports of the broker and its controller; free ones by default.
        java: the Java to run it with.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        ports: tuple[int, int] | None = None,
        java: str = "java",
    ) -> None:
        port, controller = ports or (free_port(), free_port())
        self.bootstrap = f"127.0.0.1:{port}"
        self.directory = directory
        self._command = [java, "-Xmx512m"]
        self._command += [f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"]
        self._command += ["-cp", f"{jars}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        # Start the watch before anything else, so that a kill at any moment leaves nothing behind.
        self._watch = OrphanWatch(end_command(directory))
        voter = f"127.0.0.1:{controller}"
        properties = list_broker_properties(self.bootstrap, self.bootstrap, voter, voter)
        properties["log.dirs"] = str(directory / "data")
        try:
            # With the first bit set the id might begin with a dash, as Kafka's options do.
            id_bytes = bytes([secrets.randbelow(128)]) + secrets.token_bytes(15)
            self._format(properties, urlsafe_b64encode(id_bytes).decode().rstrip("="))
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
            # Ctrl-C does not reach a process in a session of its own.
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

    def check(self) -> None:
        """Raise NoDemo if the broker ended unasked."""
        if (printed := self.failure()) is not None:
            raise NoDemo(f"the Kafka broker ended by itself; the end of its log:\n{printed}")

    def failure(self) -> str | None:
        """Return the end of the log if the broker ended unasked, else None."""
        if self._process is None or self._process.poll() is None:
            return None
        return self._log.read_text(errors="replace")[-4000:]


_READY_TIMEOUT_S: Final = 90.0
_DELIVERY_TIMEOUT_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 30.0


def wait_for_broker(server: KafkaProcess) -> None:
    """Return when a metadata request succeeds.

    Raises:
        NoDemo: the broker ended, or did not answer in time.
    """
    from confluent_kafka.admin import AdminClient

    from pyspark_timestream.kafka.client.bounded import BoundedClient

    admin = BoundedClient(AdminClient(_client_settings(server.bootstrap)))
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _has_brokers(admin):
        server.check()
        if time.monotonic() > deadline:
            raise NoDemo(
                f"the Kafka broker at {server.bootstrap} did not answer within "
                f"{_READY_TIMEOUT_S:.0f} s: try again when the machine has less to do"
            )
        time.sleep(0.1)


def _has_brokers(admin: Any) -> bool:
    from confluent_kafka import KafkaException

    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def create_topics(bootstrap: str, topics: Mapping[str, Sequence[DemoRecord]]) -> dict[str, int]:
    """Create topics, and produce their records in order; return the record count of each.

    A topic gets as many partitions as its records name.

    Raises:
        NoDemo: one could not be created, or a broker did not take all records.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from pyspark_timestream.kafka.client.bounded import BoundedClient

    admin = BoundedClient(AdminClient(_client_settings(bootstrap)))
    # With the default retention the broker deletes records of a past day within minutes.
    config = {"retention.ms": "-1"}
    new_topics = [
        NewTopic(
            name, 1 + max((record.partition for record in records), default=0), 1, config=config
        )
        for name, records in topics.items()
    ]
    for name, future in admin.create_topics(new_topics).items():
        try:
            admin.wait(future, _REQUEST_TIMEOUT_S, "create_topics")
        except KafkaException as error:
            raise NoDemo(f"topic {name} could not be created: {error.args[0].str()}") from error
    _produce(bootstrap, ((name, record) for name, records in topics.items() for record in records))
    return {name: len(records) for name, records in topics.items()}


def _produce(bootstrap: str, records: Iterable[tuple[str, DemoRecord]]) -> None:
    from confluent_kafka import KafkaException, Producer

    from pyspark_timestream.kafka.client.bounded import BoundedClient

    failures: list[Any] = []
    settings = {"enable.idempotence": True, "linger.ms": 20, "delivery.report.only.error": True}
    producer = BoundedClient(Producer(_client_settings(bootstrap) | settings))
    for count, (topic, record) in enumerate(records, 1):
        producer.direct.produce(
            topic,
            record.value,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            on_delivery=lambda error, _: failures.append(error),
        )
        if count % 1000 == 0:
            producer.direct.poll(0)
    try:
        undelivered = producer.flush(timeout=_DELIVERY_TIMEOUT_S)
    except KafkaException as error:
        undelivered, failures = 1, [error.args[0].str()]
    if undelivered or failures:
        raise NoDemo(f"the broker at {bootstrap} did not take all records: {failures[:1]}")


def _client_settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0}
