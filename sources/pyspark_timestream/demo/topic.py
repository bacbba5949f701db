"""The demo's topics: waited for, created, filled."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_timestream.demo.errors import NoDemo
from pyspark_timestream.demo.page_topics import PageRecord, page_topics
from pyspark_timestream.demo.trips import STATIONS, TOPIC, Trip
from pyspark_timestream.kafka.client.bounded import BoundedClient

__all__ = ["create_topic", "create_topics", "fill_topic", "make_page_topics", "wait_for_broker"]

_READY_TIMEOUT_S: Final = 90.0
_DELIVERY_TIMEOUT_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 30.0


def wait_for_broker(bootstrap: str, failure: Callable[[], str | None]) -> None:
    """Return when a metadata request succeeds.

    Raises:
        NoDemo: the broker ended, or did not answer in time.
    """
    admin = BoundedClient(AdminClient(_settings(bootstrap)))
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _answers(admin):
        if (printed := failure()) is not None:
            raise NoDemo(f"the Kafka broker ended by itself; the end of its log:\n{printed}")
        if time.monotonic() > deadline:
            raise NoDemo(
                f"the Kafka broker at {bootstrap} did not answer within {_READY_TIMEOUT_S:.0f} s: "
                "try again when the machine has less to do"
            )
        time.sleep(0.1)


def _answers(admin: Any) -> bool:
    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def create_topic(bootstrap: str) -> None:
    """Create topic `trips`, a partition for each station."""
    create_topics(bootstrap, {TOPIC: len(STATIONS)})


def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Create topics, each with as many partitions as `partitions` says.

    Raises:
        NoDemo: one could not be created.
    """
    admin = BoundedClient(AdminClient(_settings(bootstrap)))
    # Records of a past day would be deleted within minutes.
    config = {"retention.ms": "-1"}
    wanted = [NewTopic(name, count, 1, config=config) for name, count in partitions.items()]
    for name, future in admin.create_topics(wanted).items():
        try:
            admin.wait(future, _REQUEST_TIMEOUT_S, "create_topics")
        except KafkaException as error:
            raise NoDemo(f"topic {name} could not be created: {error.args[0].str()}") from error


def fill_topic(bootstrap: str, trips: Iterable[Trip]) -> int:
    """Produce trips in the given order; return how many, when the broker has them all.

    Raises:
        NoDemo: it did not take them all.
    """
    records = (PageRecord(each.value, each.partition, each.reported_ms) for each in trips)
    return _produce(bootstrap, ((TOPIC, each) for each in records))


def make_page_topics(bootstrap: str) -> dict[str, int]:
    """Create and fill the topics of the documentation's pages; return the records of each.

    Raises:
        NoDemo: one could not be created, or a broker did not take all records.
    """
    topics = page_topics()
    parts = {
        name: 1 + max((r.partition for r in found), default=0) for name, found in topics.items()
    }
    create_topics(bootstrap, parts)
    _produce(bootstrap, ((name, each) for name, found in topics.items() for each in found))
    return {name: len(found) for name, found in topics.items()}


def _produce(bootstrap: str, records: Iterable[tuple[str, PageRecord]]) -> int:
    failures: list[Any] = []
    settings = {"enable.idempotence": True, "linger.ms": 20, "delivery.report.only.error": True}
    producer = BoundedClient(Producer(_settings(bootstrap) | settings))
    count = 0
    for count, (topic, record) in enumerate(records, 1):
        producer.direct.produce(
            topic,
            record.value,
            partition=record.partition,
            timestamp=record.timestamp_ms or 0,
            on_delivery=lambda error, _: failures.append(error),
        )
        if count % 1000 == 0:
            producer.direct.poll(0)
    try:
        left = producer.flush(timeout=_DELIVERY_TIMEOUT_S)
    except KafkaException as error:
        left, failures = 1, [error.args[0].str()]
    if left or failures:
        raise NoDemo(f"the broker at {bootstrap} did not take all records: {failures[:1]}")
    return count


def _settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0}
