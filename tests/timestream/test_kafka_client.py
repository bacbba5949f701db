"""How clients are configured, and which errors of the broker are worth another try."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.kafka_client import consumer_config, passes
from pyspark_timestream.kafka_options import read_kafka_options


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # A broker that was killed and started has a new epoch, and its clients the old one.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    ],
)
def test_what_a_starting_broker_says_passes(code: int) -> None:
    assert passes(KafkaException(KafkaError(code)))


@pytest.mark.parametrize(
    "code",
    [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._SSL, KafkaError.UNKNOWN_TOPIC_OR_PART],
)
def test_what_only_a_change_can_mend_does_not_pass(code: int) -> None:
    assert not passes(KafkaException(KafkaError(code)))


def test_a_fetch_that_finds_nothing_does_not_hold_up_the_next_range() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    assert consumer_config(read_kafka_options(given), "g")["fetch.wait.max.ms"] <= 10
    named = read_kafka_options({**given, "kafka.fetch.wait.max.ms": "200"})
    assert consumer_config(named, "g")["fetch.wait.max.ms"] == "200"
