"""Reads what tasks have noted as written, without opening their transactions (semantics 29.4)."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from pyspark_timestream.kafka.client.config import new_logged_client
from pyspark_timestream.producer.batch_transaction import reading_config
from pyspark_timestream.producer.requests import STEP_TIMEOUT_S, Requests

__all__ = ["read_entries"]


def read_entries(
    client: Mapping[str, str], topic: str, find_task: Callable[[str], int | None]
) -> dict[int, tuple[int, str | None]]:
    """The committed offset of each task's group and its metadata; below 0 without one.

    An offset whose transaction is open is waited for.

    Args:
        client: the user's settings for librdkafka.
        topic: where records and marks go.
        find_task: finds the task by the name of its group; None: the group is not asked for.

    Raises:
        OptionError: librdkafka refuses the settings.
        DeliveryFailed: the groups cannot be read.
    """
    requests, wanted = Requests(client, topic), "read what is written"
    try:
        admin = new_logged_client(AdminClient, reading_config(client), requests.log)
    except KafkaException as error:
        raise requests.refusal(error) from None
    groups = requests.run(partial(_list_groups, admin), wanted)
    tasks = {group: task for group in groups if (task := find_task(group)) is not None}
    # All of them at once, and only those again that fail.
    asked = {group: _ask(admin, group, topic) for group in tasks}

    def read(group: str) -> tuple[int, str | None]:
        answer = asked.pop(group, None) or _ask(admin, group, topic)
        (found,) = answer.result().topic_partitions
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset), found.metadata

    return {task: requests.run(partial(read, group), wanted) for group, task in tasks.items()}


def _list_groups(admin: AdminClient) -> list[str]:
    listed = admin.list_consumer_groups(request_timeout=STEP_TIMEOUT_S).result()
    if listed.errors:
        # A broker that does not answer may have a group that matters.
        raise listed.errors[0]
    return [each.group_id for each in listed.valid]


def _ask(admin: AdminClient, group: str, topic: str) -> Future[ConsumerGroupTopicPartitions]:
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    answers: dict[str, Future[ConsumerGroupTopicPartitions]] = admin.list_consumer_group_offsets(
        [request], require_stable=True, request_timeout=STEP_TIMEOUT_S
    )
    return answers[group]
