"""Errors about unreachable brokers: addresses, advice, and when they are final."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.kafka.client.errors import (
    BrokerFailure,
    failed_request_error,
    is_login_refused,
    no_answer_error,
)

CLIENT = {"bootstrap.servers": "a:1, SSL://b ,c:3"}


def complaint(
    code: int = KafkaError._TRANSPORT, reason: str = "Connection refused"
) -> BrokerFailure:
    return BrokerFailure(code, reason, 0.0)


def test_no_answer_error_names_each_address_with_its_reason():
    heard = {"c:3": complaint(), "advertised:4": complaint(KafkaError._RESOLVE, "no such host")}
    message = str(no_answer_error(CLIENT, heard, 30, "it"))
    assert (
        "answered within 30 s when asked for it: a:1 (no answer), b:9092 (no answer), "
        "c:3 (Connection refused), advertised:4 (no such host); next step: check option "
        "'kafka.bootstrap.servers'"
    ) in message


@pytest.mark.parametrize(
    ("heard", "advice"),
    [
        (complaint(KafkaError._AUTHENTICATION, "no"), "'kafka.sasl.username'"),
        (complaint(KafkaError._SSL, "no"), "'kafka.ssl.ca.location'"),
        (
            complaint(reason="Disconnected: connection closed"),
            "'kafka.security.protocol': a broker",
        ),
        (complaint(), "'kafka.bootstrap.servers'"),
    ],
)
def test_no_answer_error_advises_by_the_reason(heard, advice):
    assert advice in str(no_answer_error(CLIENT, {"a:1": heard}, 30, "it")).split("next step: ")[1]


def test_no_answer_error_of_a_write_names_no_option_of_reads():
    message = str(no_answer_error(CLIENT, {}, 30, "it", timeout_option=None))
    assert "'kafka.bootstrap.servers'" in message
    assert "kafkaConsumer" not in message
    assert "'kafkaConsumer.connectTimeoutMs' waits" in str(no_answer_error(CLIENT, {}, 30, "it"))


REFUSED = complaint(KafkaError._AUTHENTICATION, "wrong password")


@pytest.mark.parametrize(
    ("heard", "spent_s", "is_final"),
    [
        ({"a:1": REFUSED}, 5, True),
        ({"a:1": REFUSED}, 4.9, False),
        ({"a:1": REFUSED, "c:3": complaint()}, 60, False),
        # A token that cannot be had now may be had later.
        ({"": REFUSED}, 60, False),
        ({}, 60, False),
    ],
)
def test_login_refused_by_every_broker_for_seconds_is_final(heard, spent_s, is_final):
    assert is_login_refused(heard, spent_s) == is_final


def test_an_error_of_the_client_is_not_put_into_a_brokers_mouth():
    error = KafkaException(KafkaError(KafkaError._BAD_MSG, "failed CRC32C check"))
    broken = failed_request_error(error, CLIENT, {}, 0, "it")
    assert "the Kafka client says 'failed CRC32C check'" in str(broken)
