"""Options `kafka.*`: what only Kafka's Java client has is refused, with librdkafka's own name."""

import ctypes
import os
import re
import tempfile
from ctypes import c_void_p

import confluent_kafka.cimpl
import pytest
from confluent_kafka import Consumer, KafkaException
from timestream.builders import GIVEN, options

from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.client.consumer import build_consumer_config, create_client
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.keys import ENGINE_OWNED, JVM_ONLY, RUNS_CODE


def refusal(key):
    """The message that refuses `kafka.<key>`."""
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
        create_client(given.client, lambda: Consumer(build_consumer_config(given, "group")))
    assert "hunter2" not in str(refused.value)


def test_a_secret_in_librdkafkas_own_words_is_hidden():
    given = options(
        **{
            "kafka.sasl.password": "hunter2",
            "kafka.ssl.endpoint.identification.algorithm": "hunter2",
        }
    )
    with pytest.raises(OptionError) as refused:
        create_client(given.client, lambda: Consumer(build_consumer_config(given, "group")))
    assert "hunter2" not in str(refused.value)


JAVA_4_3 = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs
client.dns.lookup client.id client.rack config.providers connections.max.idle.ms
default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes
internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
session.timeout.ms share.acknowledgement.mode share.acquire.mode
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type value.deserializer
auto.include.jmx.reporter
""".split()  # noqa: SIM905
"""`ConsumerConfig.configNames()` of kafka-clients 4.3.0, and what older ones had as well."""


@pytest.mark.parametrize("key", JAVA_4_3)
def test_every_name_of_javas_client_is_taken_or_has_its_equivalent_in_the_message(key):
    if key in {*JVM_ONLY, *ENGINE_OWNED, *RUNS_CODE}:
        assert "use " in refusal(key) or "leave it out" in refusal(key)
    else:
        assert "No such" not in reason(**{key: "x"})
        assert "producer property" not in reason(**{key: "x"})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("default.api.timeout.ms", "option 'kafkaConsumer.connectTimeoutMs'"),
        ("fetch.max.wait.ms", "kafka.fetch.wait.max.ms"),
        ("receive.buffer.bytes", "kafka.socket.receive.buffer.bytes"),
        ("send.buffer.bytes", "kafka.socket.send.buffer.bytes"),
        ("exclude.internal.topics", "option 'subscribePattern'"),
        ("metrics.recording.level", "the query's progress"),
    ],
)
def test_a_name_of_javas_client_says_what_does_the_same_here(key, said):
    assert said in refusal(key)


def test_a_class_of_javas_client_that_assigns_partitions_is_refused_by_name():
    given = {**GIVEN, "kafka.partition.assignment.strategy": "org.apache.kafka.RangeAssignor"}
    with pytest.raises(OptionError, match="a class of Java's client means nothing to librdkafka"):
        read_kafka_options(given)
    assert options(**{"kafka.partition.assignment.strategy": "range"}).client


def test_how_sparks_own_source_asks_for_offsets_is_no_choice_here():
    with pytest.raises(OptionError, match=r"'useDeprecatedOffsetFetching': .* Spark's own source"):
        read_kafka_options({**GIVEN, "usedeprecatedoffsetfetching": "true"})


# -- what would run code -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        *RUNS_CODE, "ssl.engine.of.tomorrow", "error_cb", "stats_cb", "oauth_cb", "logger",
        "on_commit", "opaque", "ssl.certificate.verify_cb", "ssl_engine_callback_data", "ssl_ca",
        "oauthbearer_token_refresh_cb", "background_event_cb", "default.topic.config",
        "default_topic_conf", "msg_order_cmp", "test.mock.num.brokers",
    ],
)  # fmt: skip
def test_a_setting_that_would_run_code_is_refused_by_name(key):
    message = refusal(key)
    assert "it would " in message or "tests" in message


def properties():
    """The names of librdkafka's own settings, of the library that is installed."""
    library, libc = ctypes.CDLL(confluent_kafka.cimpl.__file__), ctypes.CDLL(None)
    show, opened = library.rd_kafka_conf_properties_show, libc.fdopen
    show.argtypes, opened.restype, libc.fclose.argtypes = [c_void_p], c_void_p, [c_void_p]
    with tempfile.TemporaryFile() as file:
        stream = opened(os.dup(file.fileno()), b"w")
        show(stream)
        libc.fclose(stream)
        file.seek(0)
        lines = file.read().decode().splitlines()
    return {line.split("|")[0].strip() for line in lines if line.count("|") > 4} - {"Property"}


def is_taken(key):
    """Whether the option reaches librdkafka."""
    try:
        read_kafka_options({**GIVEN, f"kafka.{key}": "x"})
    except OptionError:
        return False
    return True


def test_no_setting_of_librdkafkas_that_runs_code_is_left():
    """By the settings' names: an update of librdkafka must look at new ones."""
    suspicious = re.compile(
        "cmd|command|exec|plugin|librar|engine|provider|_cb$|callback(_data)?$|opaque|interceptor|"
        "cmp$|conf$|^ssl_|^test"
    )
    found = {name for name in properties() if suspicious.search(name)}
    assert {"plugin.library.paths", "sasl.kerberos.kinit.cmd", "ssl.providers"} <= found
    assert [name for name in sorted(found) if is_taken(name)] == []


@pytest.mark.parametrize(
    "value", ["a; touch /tmp/x", "$(id)", "`id`", "a b", "-Xx509_user_identity=PKCS11:/x.so", ""]
)
def test_a_principal_that_would_change_the_command_of_kinit_is_refused(value):
    with pytest.raises(OptionError, match=r"'kafka.sasl.kerberos.principal': .* command line"):
        options(**{"kafka.sasl.kerberos.principal": value})
    assert options(**{"kafka.sasl.kerberos.principal": "spark/h.example.org@EXAMPLE.ORG"})


@pytest.mark.parametrize("value", ['/a"; touch /tmp/x; "', "/a$(id)", "/a`id`", "/a\n", "/a\\"])
def test_a_keytab_that_would_change_the_command_of_kinit_is_refused(value):
    with pytest.raises(OptionError, match=r"'kafka.sasl.kerberos.keytab': .* command line"):
        options(**{"kafka.sasl.kerberos.keytab": value})
    assert options(**{"kafka.sasl.kerberos.keytab": "/etc/key tabs/spark.keytab"})
