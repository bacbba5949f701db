"""The demo's topic: waited for, created, filled."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_timestream.demo.errors import NoDemo
from pyspark_timestream.demo.trips import STATIONS, TOPIC, Trip
from pyspark_timestream.kafka.client.bounded import BoundedClient

__all__ = ["create_topic", "fill_topic", "wait_for_broker"]

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
    admin = BoundedClient(AdminClient(_settings(bootstrap)))
    # Records of a past day would be deleted within minutes.
    wanted = NewTopic(TOPIC, len(STATIONS), 1, config={"retention.ms": "-1"})
    for future in admin.create_topics([wanted]).values():
        try:
            admin.wait(future, _REQUEST_TIMEOUT_S, "create_topics")
        except KafkaException as error:
            raise NoDemo(f"topic {TOPIC} could not be created: {error.args[0].str()}") from error


def fill_topic(bootstrap: str, trips: Iterable[Trip]) -> int:
    """Produce in the given order; return how many, when the broker has them all.

    Raises:
        NoDemo: it did not take them all.
    """
    failures: list[Any] = []
    settings = {"enable.idempotence": True, "linger.ms": 20, "delivery.report.only.error": True}
    producer = BoundedClient(Producer(_settings(bootstrap) | settings))
    count = 0
    for count, trip in enumerate(trips, 1):
        producer.direct.produce(
            TOPIC,
            trip.value,
            partition=trip.partition,
            timestamp=trip.reported_ms,
            on_delivery=lambda error, _: failures.append(error),
        )
        if count % 1000 == 0:
            producer.direct.poll(0)
    try:
        left = producer.flush(timeout=_DELIVERY_TIMEOUT_S)
    except KafkaException as error:
        left, failures = 1, [error.args[0].str()]
    if left or failures:
        raise NoDemo(f"the broker at {bootstrap} did not take all trips: {failures[:1]}")
    return count


def _settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0}
