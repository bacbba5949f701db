"""Apache Kafka in a container: the broker of machines with Docker."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from kafka_image import image_to_run

from pyspark_timestream.demo.broker import free_port, list_broker_properties
from pyspark_timestream.demo.orphans import OrphanWatch

# The reaper is one more image to pull; the container is removed by `close`.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


def docker_answers() -> bool:
    """Whether a Docker engine is there; a client without one is not enough."""
    import docker

    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    # Asked first, because docker-py leaks its socket where nobody listens.
    if address.startswith("unix://") and not _listens(address.removeprefix("unix://")):
        return False
    try:
        client = docker.from_env(timeout=5)
    except docker.errors.DockerException:
        return False
    client.close()
    return True


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        return probe.connect_ex(path) == 0


def _what_the_engine_has() -> tuple[str, bool]:
    """The image to run, and whether there is a bridge to publish a port from."""
    import docker

    # Importing an image takes long on a slow disk.
    client = docker.from_env(timeout=180)
    try:
        return image_to_run(client), bool(client.networks.list(names=["bridge"]))
    finally:
        client.close()


CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
"""Any 16 bytes in base64; the image formats its storage for it once."""


def broker_environment(port: int, has_bridge: bool) -> dict[str, str]:
    """The variables that make the image run a broker at `port` of 127.0.0.1.

    Args:
        port: is published from the engine's bridge, or else a port of the host.
        has_bridge: without one the container is in the host's network, and takes its ports.
    """
    bootstrap = f"127.0.0.1:{port}"
    controller = "localhost:9093" if has_bridge else f"127.0.0.1:{free_port()}"
    listen = (f":{port}", ":9093") if has_bridge else (bootstrap, controller)
    properties = list_broker_properties(listen[0], bootstrap, listen[1], controller)
    # The image reads KAFKA_FOO_BAR as `foo.bar`.
    return {"CLUSTER_ID": CLUSTER_ID, "KAFKA_HEAP_OPTS": "-Xmx512m"} | {
        "KAFKA_" + name.upper().replace(".", "_"): text for name, text in properties.items()
    }


class KafkaContainer:
    """A broker in a container on a fixed port, which a kill and a start therefore keep.

    testcontainers' own Kafka class knows the layout of another vendor's image only.
    """

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer

        image, has_bridge = _what_the_engine_has()
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        environment = broker_environment(port, has_bridge)
        if flags := os.environ.get("JVM_FLAGS"):
            environment["KAFKA_JVM_PERFORMANCE_OPTS"] = flags
        name = f"timestream-kafka-{os.getpid()}-{port}"
        self._container = DockerContainer(image).with_envs(**environment).with_name(name)
        # Should this process be killed, the container may not outlive it.
        self._watch = OrphanWatch([sys.executable, __file__, name])
        if has_bridge:
            self._container.ports = {f"{port}/tcp": ("127.0.0.1", port)}  # type: ignore[dict-item]
        else:
            self._container.with_kwargs(network_mode="host")
        self._started = False

    def start(self) -> None:
        """Create the container, or start the killed one again on its data."""
        if self._started:
            self._wrapped().start()
        else:
            self._started = True
            self._container.start()

    def kill(self) -> None:
        """SIGKILL the broker; the container and its data stay."""
        self._wrapped().kill()

    def freeze(self) -> None:
        """Stop all that runs in it."""
        self._wrapped().pause()

    def thaw(self) -> None:
        """Let it go on."""
        self._wrapped().unpause()

    def close(self) -> None:
        """Remove the container with its data."""
        self._container.stop()
        self._watch.stop()

    def failure(self) -> str | None:
        """What the broker printed, if it ended unasked."""
        wrapped = self._wrapped()
        wrapped.reload()
        return wrapped.logs(tail=30).decode() if wrapped.status == "exited" else None

    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()


def remove(name: str) -> None:
    """Remove the container of a process that did not live to do it, where there is one."""
    import docker

    client = docker.from_env(timeout=60)
    for container in client.containers.list(all=True, filters={"name": f"^/?{name}$"}):
        container.remove(force=True, v=True)
    client.close()


if __name__ == "__main__":
    remove(sys.argv[1])
