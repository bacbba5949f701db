"""Logins and certificates: what is right is read, what is wrong is said in the broker's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker import Record, unique_name
from lengths import outside_ci, with_rest_outside_ci
from pyspark.sql import SparkSession
from secured_broker import PASSWORD, USER, SecuredBroker, secured_broker

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.client.native_consumer import load_native_reader
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

pytestmark = pytest.mark.timeout(300)

TIMEOUT_S = 6.0
Options = dict[str, str]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("certificates")) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(secured: SecuredBroker) -> str:
    name = secured.open.create_topic()
    secured.open.produce(name, [Record("0"), Record("1")])
    return name


def login(secured: SecuredBroker, password: str = PASSWORD) -> Options:
    return {
        "kafka.bootstrap.servers": secured.login,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": password,
    }


def tls(secured: SecuredBroker) -> Options:
    return {
        "kafka.bootstrap.servers": secured.tls,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.ca.location": str(secured.certificate),
    }


def wrong_password(secured: SecuredBroker) -> Options:
    return login(secured, "open barley")


def wrong_mechanism(secured: SecuredBroker) -> Options:
    return {**login(secured), "kafka.sasl.mechanism": "SCRAM-SHA-256"}


def no_login(secured: SecuredBroker) -> Options:
    return {"kafka.bootstrap.servers": secured.login}


def missing_ca(secured: SecuredBroker) -> Options:
    return {name: text for name, text in tls(secured).items() if "ca.location" not in name}


def no_encryption(secured: SecuredBroker) -> Options:
    return {"kafka.bootstrap.servers": secured.tls}


def broken_oauth(secured: SecuredBroker) -> Options:
    oidc = {
        "method": "oidc",
        "client.id": "spark",
        "client.secret": "hush hush",
        "token.endpoint.url": "http://127.0.0.1:1/token",
    }
    return {
        "kafka.bootstrap.servers": secured.login,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        **{f"kafka.sasl.oauthbearer.{name}": text for name, text in oidc.items()},
    }


REASONS = {
    wrong_password: "Authentication failed: Invalid username or password",
    wrong_mechanism: "broker's supported mechanisms: PLAIN",
    no_login: "a broker that hangs up may want a login",
    missing_ca: "certificate verify failed",
    no_encryption: "may want a login (SASL_PLAINTEXT, SASL_SSL) or encryption",
    broken_oauth: "Failed to acquire SASL OAUTHBEARER token: Failed to connect to 127.0.0.1:1",
}


def frame(spark: SparkSession, topic: str, options: Options):
    timeout = {"kafkaConsumer.connectTimeoutMs": str(round(TIMEOUT_S * 1000))}
    given = {"transport": "kafka", "subscribe": topic, **timeout, **options}
    return spark.read.format("timestream").options(**given).load()


@pytest.mark.parametrize("right", [login, tls])
def test_a_right_login_and_a_trusted_certificate_are_read(
    spark: SparkSession, secured: SecuredBroker, topic: str, right: Callable[..., Options]
) -> None:
    rows = frame(spark, topic, right(secured)).collect()
    assert [row.value for row in rows] == [b"0", b"1"]


@pytest.mark.parametrize(
    "wrong",
    with_rest_outside_ci(REASONS, [wrong_password, no_login, missing_ca]),
    ids=lambda wrong: wrong.__name__,
)
def test_what_is_wrong_with_a_login_or_a_certificate_is_the_message(
    spark: SparkSession, secured: SecuredBroker, topic: str, wrong: Callable[..., Options]
) -> None:
    began_s = time.monotonic()
    with pytest.raises(Exception, match="no Kafka broker answered within") as failure:
        frame(spark, topic, wrong(secured)).collect()
    assert time.monotonic() - began_s < TIMEOUT_S + 40
    message = str(failure.value)
    assert REASONS[wrong] in message
    for secret in (PASSWORD, "open barley", "hush hush"):
        assert secret not in message


@pytest.mark.parametrize(
    "wrong",
    with_rest_outside_ci(REASONS, [no_login, missing_ca]),
    ids=lambda wrong: wrong.__name__,
)
@pytest.mark.parametrize("native", [True, *outside_ci(False)], ids=["native", "messages"])
def test_a_task_fails_with_the_same_message_in_time(
    secured: SecuredBroker, topic: str, wrong: Callable[..., Options], native: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not native:
        monkeypatch.setattr(range_reader, "load_native_reader", lambda: None)
    elif load_native_reader() is None:
        pytest.skip("the native reader is not built here, or not wanted")
    limit = {"kafkaConsumer.connectTimeoutMs": str(round(TIMEOUT_S * 1000))}
    options = read_kafka_options({"subscribe": topic, **wrong(secured), **limit})
    reader, began_s = RangeReader(options, unique_name("g")), time.monotonic()
    try:
        with pytest.raises(BrokerUnreachable) as failure:
            list(reader.read(OffsetRange(Partition(topic, 0), 0, 2), ColumnSet()))
    finally:
        reader.close()
    assert time.monotonic() - began_s < TIMEOUT_S + 10
    assert REASONS[wrong] in str(failure.value)


def test_an_option_that_loads_a_library_is_refused_in_sql_before_it_is_loaded(
    spark: SparkSession, secured: SecuredBroker, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=r"option 'kafka\.plugin\.library\.paths': it would load"):
        spark.sql(
            f"""CREATE TEMPORARY VIEW loads_code USING timestream OPTIONS (
                transport 'kafka', kafka.bootstrap.servers '{secured.open.bootstrap}',
                subscribe '{topic}', kafka.plugin.library.paths '{tmp_path}/evil.so')"""
        ).collect()
