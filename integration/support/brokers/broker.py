"""A real Kafka broker, as this machine can get one.

We try in this order: the broker that `KAFKA_BOOTSTRAP_SERVERS` names, a container where a Docker
engine answers, a local process from Maven artifacts; `KAFKA_TIER=container` or `process` allows
that one only. In tests it is the fixture `broker`; scripts say `with broker() as kafka:`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka_process import KafkaProcess

# A killed broker's registration may block its successor for this long on a loaded machine.
READY_SECONDS = 90.0


class NoBroker(Exception):
    """No tier could give a broker; the text says why for each."""


class Record(NamedTuple):
    """A record that a test produces; `None` leaves the choice to the client or the broker."""

    value: bytes | str | None
    key: bytes | str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()


class Server(Protocol):
    """A broker that we run ourselves and may therefore kill."""

    bootstrap: str

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def failure(self) -> str | None: ...


@dataclass
class Broker:
    """A broker that answers, and what tests do with it."""

    bootstrap: str
    tier: str
    server: Server | None = None
    replication: int = 1
    """The replication factor of the topics that are created here."""

    def __post_init__(self) -> None:
        # We keep it while the broker lives: its futures die with it.
        self._admin = AdminClient(self._client_settings())
        self.is_running = True

    def __str__(self) -> str:
        return f"{self.tier}, {self.bootstrap}"

    def _client_settings(self, **settings: Any) -> dict[str, Any]:
        quiet = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        return {**quiet, **{name.replace("_", "."): each for name, each in settings.items()}}

    # -- topics ------------------------------------------------------------------------------

    def create_topic(self, name: str | None = None, partitions: int = 1, **config: Any) -> str:
        """A topic that exists when this returns; its name is unique unless given.

        Settings are topic settings with `_` for `.`: `cleanup_policy="compact"`.
        """
        topic = name or unique_name()
        # Records stamped in the past would be deleted within minutes.
        settings = {"retention.ms": "-1"}
        settings |= {key.replace("_", "."): str(each) for key, each in config.items()}
        wanted = NewTopic(topic, partitions, self.replication, config=settings)
        _wait(lambda: self._create(wanted), f"a broker that takes {topic}")
        self._wait_for_leaders(topic, partitions)
        return topic

    def _create(self, wanted: NewTopic) -> bool:
        """False while Kafka counts no broker: one that was slow for two seconds is fenced."""
        try:
            _result(self._admin.create_topics([wanted]))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            return False
        return True

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions to `total`."""
        _result(self._admin.create_partitions([NewPartitions(topic, total)]))
        self._wait_for_leaders(topic, total)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until the broker no longer lists it."""
        _result(self._admin.delete_topics([topic]))
        _wait(lambda: not self._partitions(topic), f"end of {topic}")

    def delete_records(self, topic: str, before: dict[int, int]) -> None:
        """Remove the records below an offset per partition, as retention would."""
        ends = [TopicPartition(topic, part, offset) for part, offset in before.items()]
        _result(self._admin.delete_records(ends))

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """A partition is listed a moment before its broker serves it: ask for its end as well."""

        def all_served() -> bool:
            try:
                return len(self.end_offsets(topic)) == partitions
            except KafkaException:
                return False

        _wait(all_served, f"{partitions} partitions of {topic}")

    def _partitions(self, topic: str) -> dict[int, Any]:
        """The partitions of a topic; none where it does not exist."""
        found = self._admin.list_topics(timeout=10).topics
        return dict(found[topic].partitions) if topic in found else {}

    # -- rights ------------------------------------------------------------------------------

    @contextmanager
    def deny(
        self,
        kind: ResourceType,
        name: str,
        operation: AclOperation = AclOperation.ALL,
        pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    ) -> Iterator[None]:
        """Let nobody do that with the resource, until the `with` block ends."""
        rule = (kind, name, pattern, "User:*", "*", operation, AclPermissionType.DENY)
        _result(self._admin.create_acls([AclBinding(*rule)]))
        try:
            yield
        finally:
            _result(self._admin.delete_acls([AclBindingFilter(*rule)]))

    # -- records -----------------------------------------------------------------------------

    def produce(self, topic: str, records: Iterable[Record]) -> int:
        """Produce in the given order; return how many, when the broker has them all."""
        failures: list[Any] = []
        producer = self.producer(
            enable_idempotence=True,
            linger_ms=20,
            delivery_report_only_error=True,
            # Our topics exist before they are used: an unknown one is a mistake, and fails soon.
            topic_metadata_propagation_max_ms=3_000,
        )
        count = 0
        for record in records:
            _send(producer, topic, record, lambda error, _: failures.append(error))
            count += 1
        left = producer.flush(60)
        if failures or left:
            raise OSError(f"{topic}: {left} not sent, {len(failures)} refused: {failures[:1]}")
        return count

    def producer(self, **settings: Any) -> Producer:
        """A producer for more than `produce` does, such as transactions (`_` for `.`)."""
        return Producer(self._client_settings(**settings))

    def consumer(self, **settings: Any) -> Consumer:
        """A consumer that starts at the earliest record (`_` for `.`)."""
        defaults = {"group_id": unique_name("reader"), "auto_offset_reset": "earliest"}
        return Consumer(self._client_settings(**{**defaults, **settings}))

    def end_offsets(
        self, topic: str, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[int, int]:
        """The offset behind the last record of each partition; none where there is no topic."""
        latest = {
            TopicPartition(topic, part): OffsetSpec.latest() for part in self._partitions(topic)
        }
        ends: dict[int, int] = {}

        def are_known() -> bool:
            asked = self._admin.list_offsets(latest, isolation_level=level) if latest else {}
            try:
                ends.update(
                    (p.partition, end.result(timeout=30).offset) for p, end in asked.items()
                )
            except KafkaException as error:
                # A broker that has just come back may have an older epoch than the client knows.
                if error.args[0].code() != KafkaError.UNKNOWN_LEADER_EPOCH:
                    raise
                return False
            return True

        _wait(are_known, f"the ends of {topic}", READY_SECONDS)
        return dict(sorted(ends.items()))

    def wait_for_markers(self, topic: str) -> None:
        """Return when every transaction has its markers, written after the broker has answered."""
        _wait(
            lambda: (
                self.end_offsets(topic, IsolationLevel.READ_COMMITTED) == self.end_offsets(topic)
            ),
            f"the markers of {topic}",
            READY_SECONDS,
        )

    def read(self, topic: str) -> list[Message]:
        """Every visible record of a topic, in order within each partition."""
        consumer = self.consumer(enable_partition_eof=True, enable_auto_commit=False)
        try:
            ends = self.end_offsets(topic)
            consumer.assign([TopicPartition(topic, part, 0) for part in ends])
            return list(_until_every_end(consumer, len(ends)))
        finally:
            consumer.close()

    # -- faults ------------------------------------------------------------------------------

    @property
    def can_stop(self) -> bool:
        """Whether the broker is ours to kill."""
        return self.server is not None

    def stop(self) -> None:
        """Kill the broker; its data stays."""
        self._own_server().kill()
        self.is_running = False

    def start(self) -> None:
        """Start a killed broker again and wait until it answers."""
        server = self._own_server()
        server.start()
        wait_until_ready(self.bootstrap, server.failure)
        self.is_running = True

    def _own_server(self) -> Server:
        if self.server is None:
            raise RuntimeError("the broker of KAFKA_BOOTSTRAP_SERVERS is not ours to stop or start")
        return self.server


@contextmanager
def broker(say: Callable[[str], None] = print) -> Iterator[Broker]:
    """The best available broker, ready to use; `say` hears which tier it is and why.

    Raises:
        NoBroker: No tier could give one.
    """
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given and "KAFKA_TIER" in os.environ:
        raise NoBroker("KAFKA_TIER and KAFKA_BOOTSTRAP_SERVERS are both set: unset one of them")
    if given:
        wait_until_ready(given)
        found = Broker(given, "KAFKA_BOOTSTRAP_SERVERS")
        say(f"Kafka broker: {found}")
        yield found
        return
    found = _own_broker(say)
    try:
        yield found
    finally:
        assert found.server is not None
        found.server.close()


def _own_broker(say: Callable[[str], None]) -> Broker:
    reasons = []
    for tier, begin in _tiers_allowed().items():
        try:
            found = started(tier, begin)
        except (NoBroker, OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{tier}: {error}")
            say(f"Kafka broker: no {tier} ({error})")
        else:
            say(f"Kafka broker: {found}")
            return found
    raise NoBroker("; ".join(["KAFKA_BOOTSTRAP_SERVERS is not set", *reasons]))


def _tiers_allowed() -> dict[str, Callable[[], Server]]:
    tiers: dict[str, Callable[[], Server]] = {"container": begin_container, "process": KafkaProcess}
    wanted = os.environ.get("KAFKA_TIER")
    if wanted is None:
        return tiers
    if wanted not in tiers:
        raise NoBroker(f"KAFKA_TIER is {wanted!r}; it may be container or process")
    return {wanted: tiers[wanted]}


def started(tier: str, begin: Callable[[], Server]) -> Broker:
    """A broker of ours that answers."""
    server = begin()
    try:
        _start(server)
    except BaseException:
        server.close()
        raise
    return Broker(server.bootstrap, tier, server)


def _start(server: Server) -> None:
    import docker.errors

    try:
        server.start()
    except docker.errors.DockerException as error:
        # An engine that answers may still be unable to pull the image.
        raise NoBroker(f"the Docker engine cannot run it: {error}") from error
    wait_until_ready(server.bootstrap, server.failure)


def begin_container() -> Server:
    import docker.errors
    from kafka_container import KafkaContainer, docker_answers

    if not docker_answers():
        raise NoBroker("no Docker engine answers")
    try:
        return KafkaContainer()
    except docker.errors.DockerException as error:
        raise NoBroker(f"the Docker engine cannot have an image: {error}") from error


def wait_until_ready(bootstrap: str, failure: Callable[[], str | None] = lambda: None) -> None:
    """Return when a metadata request succeeds and every known partition has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + READY_SECONDS
    while not _all_led(admin):
        if (printed := failure()) is not None:
            raise NoBroker(f"the broker ended by itself:\n{printed}")
        if time.monotonic() > deadline:
            raise NoBroker(f"{bootstrap} did not answer within {READY_SECONDS:.0f} s")
        time.sleep(0.1)


def _all_led(admin: AdminClient) -> bool:
    try:
        found = admin.list_topics(timeout=2)
    except KafkaException:
        return False
    partitions = (each for topic in found.topics.values() for each in topic.partitions.values())
    return bool(found.brokers) and all(each.leader >= 0 for each in partitions)


def unique_name(prefix: str = "topic") -> str:
    """A name that no other test uses, with only characters that Kafka allows."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', prefix).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"


def _send(producer: Producer, topic: str, record: Record, report: Callable[..., None]) -> None:
    optional = {"partition": record.partition, "timestamp": record.timestamp_ms}
    given = {name: each for name, each in optional.items() if each is not None}
    headers = list(record.headers) or None
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=headers, on_delivery=report, **given
            )
            return
        except BufferError:
            producer.poll(0.1)


def _until_every_end(consumer: Consumer, partitions: int) -> Iterator[Message]:
    ended: set[int] = set()
    while len(ended) < partitions:
        for message in consumer.consume(1000, timeout=1):
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(message.error())


def _result(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(timeout=30)


def _wait(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.02)
