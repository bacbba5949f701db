"""Errors that end a query because of its brokers, with each broker's reason and the next step."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client.client_log import BrokerFailure
from pyspark_timestream.kafka.client.retry import REFUSED_CODES

__all__ = [
    "abandoned_error",
    "is_login_refused",
    "lasting_error",
    "no_answer_error",
    "refusal_error",
]

_MAX_REFUSED_S: Final = 5.0
"""How long every broker may refuse a login or certificate before the client gives up."""

_DEFAULT_PORT: Final = 9092
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user describe and read the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "let the user read the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user describe the cluster",
}


def is_login_refused(complaints: Mapping[str, BrokerFailure], spent_s: float) -> bool:
    """Check whether every broker contacted has refused the connection for too long.

    Failing to obtain a token is not a refusal by a broker, and is retried.
    """
    codes = {each.code for each in complaints.values()}
    refused = bool(codes) and codes <= set(REFUSED_CODES) and "" not in complaints
    return refused and spent_s >= _MAX_REFUSED_S


def no_answer_error(
    client: Mapping[str, Any],
    complaints: Mapping[str, BrokerFailure],
    spent_s: float,
    wanted: str,
    prefix: str = "kafka.",
) -> BrokerUnreachable:
    """Build the error for brokers that never answered.

    Args:
        client: librdkafka's configuration.
        complaints: the reason of each broker, by address.
        spent_s: how long the client has tried.
        wanted: what was requested.
        prefix: what the user writes before librdkafka's names.
    """
    addresses = dict.fromkeys([*_bootstrap_addresses(client), *(at for at in complaints if at)])
    said = [f"{at} ({complaints[at].reason if at in complaints else 'no answer'})"
            for at in addresses]  # fmt: skip
    everywhere = f"{complaints[''].reason}; " if "" in complaints else ""
    return BrokerUnreachable(
        f"no Kafka broker answered within {spent_s:.0f} s when asked for {wanted}: "
        f"{everywhere}{', '.join(said)}",
        next_step=_choose_advice(complaints, prefix),
    )


def lasting_error(
    answer: str, complaints: Mapping[str, BrokerFailure], spent_s: float, wanted: str
) -> BrokerUnreachable:
    """Build the error for a retriable error that did not pass."""
    others = [f"{at} ({each.reason})" for at, each in complaints.items() if at]
    unreached = f"; not to be reached meanwhile: {', '.join(others)}" if others else ""
    return BrokerUnreachable(
        f"cannot get {wanted}: for {spent_s:.0f} s the Kafka brokers answered "
        f"'{answer}'{unreached}",
        next_step="see to it that every partition has a leader and enough replicas in sync, and "
        "start the query again: it goes on where it stopped",
    )


def abandoned_error(answer: str, wanted: str) -> BrokerUnreachable:
    """Build the error for a client library that does not return from its calls."""
    return BrokerUnreachable(
        f"cannot get {wanted}: {answer}",
        next_step="look at the brokers, and start the query again: it goes on where it stopped",
    )


def refusal_error(code: int, answer: str, wanted: str) -> BrokerUnreachable:
    """Build the error for a refusal; codes below 0 are the client's own."""
    advice = _RIGHTS.get(code, "correct what this names, and start the query again")
    who = "the Kafka broker answered" if code > 0 else "the Kafka client says"
    return BrokerUnreachable(f"cannot get {wanted}: {who} '{answer}'", next_step=advice)


def _bootstrap_addresses(client: Mapping[str, Any]) -> list[str]:
    """Split `bootstrap.servers` into addresses with ports.

    >>> _bootstrap_addresses({"bootstrap.servers": "a:1, SSL://b"})
    ['a:1', 'b:9092']
    """
    given = str(client.get("bootstrap.servers", "")).split(",")
    named = (each.strip().rpartition("://")[2] for each in given)
    return [
        at if at.rpartition(":")[2].isdigit() else f"{at}:{_DEFAULT_PORT}" for at in named if at
    ]


def _choose_advice(complaints: Mapping[str, BrokerFailure], prefix: str) -> str:
    codes = {each.code for each in complaints.values()}
    protocol = f"'{prefix}security.protocol'"
    if KafkaError._AUTHENTICATION in codes:
        return (
            f"check the login: options {protocol}, '{prefix}sasl.mechanism', and "
            f"'{prefix}sasl.username' with '{prefix}sasl.password' or '{prefix}sasl.oauthbearer.*'"
        )
    if KafkaError._SSL in codes:
        return (
            f"check options {protocol} and '{prefix}ssl.ca.location' (whom to trust), and that the "
            "broker's certificate is of this address"
        )
    if any(each.reason.startswith("Disconnected") for each in complaints.values()):
        return (
            f"check option {protocol}: a broker that hangs up may want a login (SASL_PLAINTEXT, "
            "SASL_SSL) or encryption (SSL, SASL_SSL)"
        )
    option = "option " if prefix else ""
    longer = "; option 'kafkaConsumer.connectTimeoutMs' waits longer" if prefix else ""
    return (
        f"check {option}'{prefix}bootstrap.servers', that the brokers run, and the network to the "
        f"addresses that they advertise{longer}"
    )
