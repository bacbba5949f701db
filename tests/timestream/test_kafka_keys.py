"""Options `kafka.*`: what only Kafka's Java client has is refused, with librdkafka's own name."""

import re

import pytest
from confluent_kafka import Consumer, KafkaException
from timestream.builders import GIVEN, options

from pyspark_timestream.kafka_client import consumer_config, made
from pyspark_timestream.kafka_keys import ENGINE_OWNED, JVM_ONLY
from pyspark_timestream.kafka_options import read_kafka_options
from pyspark_timestream.option_fields import OptionError


def refusal(key):
    """The message with which `kafka.<key>` is refused."""
    with pytest.raises(OptionError) as refused:
        read_kafka_options({**GIVEN, f"kafka.{key}": "hunter2"})
    message = str(refused.value)
    assert "hunter2" not in message
    assert message.startswith(f"option 'kafka.{key}': ")
    return message


@pytest.mark.parametrize("key", [*JVM_ONLY, *ENGINE_OWNED])
def test_a_key_that_librdkafka_does_not_take_names_what_to_use(key):
    assert refusal(key).endswith(f"use {JVM_ONLY.get(key) or ENGINE_OWNED[key]}")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("ssl.truststore.of.tomorrow", "kafka.ssl.ca.location"),
        ("ssl.keystore.of.tomorrow", "kafka.ssl.certificate.location"),
        ("sasl.server.callback.handler.class", "kafka.sasl.oauthbearer.method"),
    ],
)
def test_a_new_key_of_an_old_family_is_known_as_well(key, instead):
    assert instead in refusal(key)


def reason(**client):
    """Why librdkafka does not take a configuration; nothing where it does."""
    try:
        Consumer({"group.id": "g", "log_level": 0, **client}).close()
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


def test_a_refused_key_is_none_that_librdkafka_would_have_taken():
    said = {key: reason(**{key: "x"}) for key in JVM_ONLY}
    assert [key for key, why in said.items() if not re.search("No such|not supported", why)] == []


def test_every_name_that_a_refusal_offers_is_one_that_librdkafka_has():
    offered = {
        name for text in JVM_ONLY.values() for name in re.findall(r"kafka\.([a-z.]*[a-z])", text)
    }
    assert "ssl.ca.location" in offered
    assert [name for name in sorted(offered) if "No such" in reason(**{name: "x"})] == []


@pytest.mark.parametrize("key", ["ssl.keystore.location", "ssl.keystore.password"])
def test_a_key_that_both_clients_have_is_passed_on(key):
    assert options(**{f"kafka.{key}": "x"}).client[key] == "x"


def test_an_unknown_key_meets_librdkafkas_own_error_without_secrets():
    given = options(**{"kafka.sasl.password": "hunter2", "kafka.no.such": "hunter2"})
    with pytest.raises(OptionError, match=r'property: "no\.such"') as refused:
        made(given, lambda: Consumer(consumer_config(given, "group")))
    assert "hunter2" not in str(refused.value)


def test_a_secret_in_librdkafkas_own_words_is_hidden():
    given = options(
        **{
            "kafka.sasl.password": "hunter2",
            "kafka.ssl.endpoint.identification.algorithm": "hunter2",
        }
    )
    with pytest.raises(OptionError) as refused:
        made(given, lambda: Consumer(consumer_config(given, "group")))
    assert "hunter2" not in str(refused.value)
