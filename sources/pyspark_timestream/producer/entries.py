"""Reads what tasks have noted as written, without opening their transactions (semantics 29.4)."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from pyspark_timestream.kafka.client.bounded import BoundedClient
from pyspark_timestream.kafka.client.config import new_bounded_client
from pyspark_timestream.producer.requests import STEP_TIMEOUT_S, Requests, reading_config

__all__ = ["read_entries", "read_group"]

_NONE: Final = -1001
"""The offset of a group that has committed none, as librdkafka says it."""


def read_entries(
    client: Mapping[str, str], topic: str | None, find_task: Callable[[str], int | None]
) -> dict[int, tuple[int, str | None]]:
    """The committed offset of each task's group and its metadata; below 0 without one.

    An offset whose transaction is open is waited for.

    Args:
        client: the user's settings for librdkafka.
        topic: where records and marks go; None: to any topics.
        find_task: finds the task by the name of its group; None: the group is not asked for.

    Raises:
        OptionError: librdkafka refuses the settings.
        DeliveryFailed: the groups cannot be read.
    """
    requests, wanted = Requests(client, topic), "read what is written"
    admin = _Admin(client, requests)
    try:
        groups = requests.run(admin.list_groups, wanted)
        tasks = {group: task for group in groups if (task := find_task(group)) is not None}
        # All of them at once, and only those again that fail.
        asked = {group: requests.run(partial(admin.ask, group, topic), wanted) for group in tasks}

        def read(group: str) -> tuple[int, str | None]:
            answer = asked.pop(group, None) or admin.ask(group, topic)
            return admin.read(answer)

        return {task: requests.run(partial(read, group), wanted) for group, task in tasks.items()}
    finally:
        admin.close()


def read_group(client: Mapping[str, str], group: str) -> tuple[int, str | None]:
    """The greatest offset that a group has committed for any topic, and its metadata.

    Raises:
        DeliveryFailed: the group cannot be read.
    """
    requests = Requests(client, None)
    admin = _Admin(client, requests)
    try:
        return requests.run(lambda: admin.read(admin.ask(group, None)), "read what is written")
    finally:
        admin.close()


class _Admin:
    """An admin client for one look."""

    def __init__(self, client: Mapping[str, str], requests: Requests) -> None:
        self._config, self._requests = reading_config(client), requests
        self._client = self._create()

    def _create(self) -> BoundedClient:
        try:
            return new_bounded_client(AdminClient, self._config, self._requests.log)
        except KafkaException as error:
            raise self._requests.refusal(error) from None

    def list_groups(self) -> list[str]:
        """The names of all groups.

        Raises:
            KafkaException: a broker that may have a group that matters does not answer.
        """
        name = "list_consumer_groups"
        asked = self._client.list_consumer_groups(request_timeout=STEP_TIMEOUT_S)
        listed = self._client.wait(asked, STEP_TIMEOUT_S, name)
        for error in listed.errors:
            # confluent-kafka gives a KafkaError, which is no exception, or a KafkaException.
            raise KafkaException(error) if isinstance(error, KafkaError) else error
        return [each.group_id for each in listed.valid]

    def ask(self, group: str, topic: str | None) -> Future[ConsumerGroupTopicPartitions]:
        """Ask for what a group has committed for one topic, or for all."""
        asked = None if topic is None else [TopicPartition(topic, 0)]
        request = ConsumerGroupTopicPartitions(group, asked)
        answers: dict[str, Future[ConsumerGroupTopicPartitions]] = (
            self._client.list_consumer_group_offsets(
                [request], require_stable=True, request_timeout=STEP_TIMEOUT_S
            )
        )
        return answers[group]

    def read(self, answer: Future[ConsumerGroupTopicPartitions]) -> tuple[int, str | None]:
        """The greatest committed offset of the answer, and its metadata."""
        name = "list_consumer_group_offsets"
        found: tuple[int, str | None] = (_NONE, None)
        for each in self._client.wait(answer, STEP_TIMEOUT_S, name).topic_partitions or ():
            if each.error is not None:
                raise KafkaException(each.error)
            if int(each.offset) > found[0]:
                found = int(each.offset), each.metadata
        return found

    def close(self) -> None:
        """Free the client."""
        self._client.close()
