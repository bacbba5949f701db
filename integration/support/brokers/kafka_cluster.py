"""A cluster of three brokers, each a process, and operators' acts on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from broker import Broker, wait_until_ready
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka_container import CLUSTER_ID
from kafka_process import KafkaProcess, free_port

SIZE = 3
MIN_IN_SYNC = 2
READY_SECONDS = 120.0


class KafkaCluster:
    """Three brokers that are their own controllers; topics are on all of them."""

    def __init__(self, nodes: list[KafkaProcess]) -> None:
        self.nodes = nodes
        bootstrap = ",".join(node.bootstrap for node in nodes)
        self.broker = Broker(bootstrap, "cluster", replication=SIZE)
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def restart(self, number: int, hard: bool = False) -> None:
        """Restart one broker, and wait until it has caught up; hard: kill it."""
        node = self.nodes[number]
        (node.kill if hard else node.stop)()
        node.start()
        self.wait_until_in_sync()

    def wait_until_in_sync(self) -> None:
        """Return when every replica of every partition is in sync."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_in_sync():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not in sync within {READY_SECONDS:.0f} s")
            time.sleep(0.2)

    def _is_in_sync(self) -> bool:
        try:
            found = self._admin.list_topics(timeout=5)
        except KafkaException:
            return False
        parts = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == SIZE and all(len(each.isrs) == SIZE for each in parts)


@contextmanager
def kafka_cluster() -> Iterator[KafkaCluster]:
    """A cluster that is ready; it and its data end with the block."""
    ports = [(free_port(), free_port()) for _ in range(SIZE)]
    voters = ",".join(f"{n}@127.0.0.1:{port}" for n, (_, port) in enumerate(ports, 1))
    replicated = {
        "controller.quorum.voters": voters,
        # Nobody may vote before the authorizer has read the log, and it cannot before a vote.
        "authorizer.class.name": "",
        "default.replication.factor": str(SIZE),
        "min.insync.replicas": str(MIN_IN_SYNC),
        "offsets.topic.replication.factor": str(SIZE),
        "transaction.state.log.replication.factor": str(SIZE),
        "transaction.state.log.min.isr": str(MIN_IN_SYNC),
        # Three JVMs on few cores: a heartbeat may come late without anything being wrong.
        "broker.session.timeout.ms": "6000",
    }
    with ExitStack() as running:
        nodes = []
        for number, pair in enumerate(ports, 1):
            node = KafkaProcess({**replicated, "node.id": str(number)}, pair, CLUSTER_ID, "256m")
            running.callback(node.close)
            nodes.append(node)
        for node in nodes:
            node.start()
        wait_until_ready(nodes[0].bootstrap, nodes[0].failure)
        cluster = KafkaCluster(nodes)
        cluster.wait_until_in_sync()
        yield cluster
