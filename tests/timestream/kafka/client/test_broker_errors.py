"""Errors about brokers that are not reached: who is named, what is advised, when it is final."""

import pytest
from confluent_kafka import KafkaError

from pyspark_timestream.kafka.client.broker_errors import is_refused, no_answer, request_refused
from pyspark_timestream.kafka.client.client_log import Complaint

CLIENT = {"bootstrap.servers": "a:1, SSL://b ,c:3"}


def complaint(code: int = KafkaError._TRANSPORT, reason: str = "Connection refused") -> Complaint:
    return Complaint(code, reason, 0.0)


def test_every_address_that_was_tried_is_named_with_what_it_said():
    heard = {"c:3": complaint(), "advertised:4": complaint(KafkaError._RESOLVE, "no such host")}
    message = str(no_answer(CLIENT, heard, 30, "it"))
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
def test_the_next_step_fits_what_was_said(heard, advice):
    assert advice in str(no_answer(CLIENT, {"a:1": heard}, 30, "it")).split("next step: ")[1]


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
def test_only_what_every_broker_refuses_for_seconds_is_final(heard, spent_s, is_final):
    assert is_refused(heard, spent_s) == is_final


def test_an_error_of_the_client_is_not_put_into_a_brokers_mouth():
    broken = request_refused(KafkaError._BAD_MSG, "failed CRC32C check", "it")
    assert "the Kafka client says 'failed CRC32C check'" in str(broken)
