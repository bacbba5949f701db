"""Apache Kafka in a container, by the command `docker` alone."""

import os
import subprocess
from collections.abc import Callable
from typing import Final

from pyspark_timestream.demo.errors import NoDemo
from pyspark_timestream.demo.kafka_process import free_port
from pyspark_timestream.demo.kafka_settings import KAFKA_VERSION, broker_properties
from pyspark_timestream.demo.orphan_watch import OrphanWatch
from pyspark_timestream.demo.progress import run_with_output

__all__ = ["CLUSTER_ID", "IMAGE", "KafkaContainer", "broker_environment", "docker_answers", "pull"]

IMAGE: Final = f"apache/kafka:{KAFKA_VERSION}"
CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""Any 16 bytes in base64; the image formats its storage for it once."""

_ANSWER_TIMEOUT_S: Final = 10


def docker_answers() -> bool:
    """True if the command exists and reaches an engine."""
    try:
        _docker("version", timeout=_ANSWER_TIMEOUT_S)
    except (NoDemo, subprocess.TimeoutExpired):
        return False
    return True


def pull(image: str = IMAGE, on_line: Callable[[str], None] = lambda _: None) -> None:
    """Have the engine fetch the image, unless it has it.

    Raises:
        NoDemo: no registry gave it.
    """
    if _docker("image", "ls", "--quiet", image):
        return
    last = ""

    def keep(line: str) -> None:
        nonlocal last
        last = line.strip()
        on_line(line)

    failed = run_with_output(["docker", "pull", image], keep)
    if failed:
        raise NoDemo(f"Docker could not fetch {image}: {last}")


class KafkaContainer:
    """A broker at `port` of 127.0.0.1; it and its data do not outlive this process."""

    def __init__(self, port: int, image: str = IMAGE) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._name = f"timestream-demo-{os.getpid()}-{port}"
        has_bridge = bool(_docker("network", "ls", "--quiet", "--filter", "name=^bridge$"))
        given = broker_environment(port, has_bridge)
        network = ["--publish", f"127.0.0.1:{port}:{port}"] if has_bridge else ["--network=host"]
        settings = [part for name, text in given.items() for part in ("--env", f"{name}={text}")]
        self._run = ["run", "--detach", "--name", self._name, *network, *settings, image]
        self._watch = OrphanWatch(["docker", "rm", "--force", "--volumes", self._name])

    def start(self) -> None:
        """Create the container and start the broker.

        Raises:
            NoDemo: the engine refused.
        """
        _docker(*self._run)

    def close(self) -> None:
        """Remove the container with its data."""
        _docker("rm", "--force", "--volumes", self._name)
        self._watch.stop()

    def failure(self) -> str | None:
        """The end of the log of a broker that ended by itself; None where it did not."""
        if _docker("inspect", "--format", "{{.State.Running}}", self._name) == "true":
            return None
        return _docker("logs", "--tail", "30", self._name)


def broker_environment(port: int, has_bridge: bool) -> dict[str, str]:
    """The variables by which the image runs a broker that clients reach at `port` of 127.0.0.1.

    Args:
        port: is published from the engine's bridge, or else a port of the host.
        has_bridge: without one the container is in the host's network, whose ports it takes.
    """
    bootstrap = f"127.0.0.1:{port}"
    controller = "localhost:9093" if has_bridge else f"127.0.0.1:{free_port()}"
    listen = (f":{port}", ":9093") if has_bridge else (bootstrap, controller)
    properties = broker_properties(listen[0], bootstrap, listen[1], controller)
    # The image reads KAFKA_FOO_BAR as `foo.bar`.
    return {"CLUSTER_ID": CLUSTER_ID, "KAFKA_HEAP_OPTS": "-Xmx512m"} | {
        "KAFKA_" + name.upper().replace(".", "_"): text for name, text in properties.items()
    }


def _docker(*arguments: str, timeout: float | None = None) -> str:
    """The output of a docker command that succeeds."""
    try:
        done = subprocess.run(
            ["docker", *arguments], check=True, capture_output=True, text=True, timeout=timeout
        )
    except FileNotFoundError:
        raise NoDemo("there is no command docker") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise NoDemo(f"docker {arguments[0]} failed: {lines[-1] if lines else ''}") from None
    return done.stdout.strip()
