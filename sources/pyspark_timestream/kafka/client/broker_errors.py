"""The errors that end a query because of its brokers: who was asked, what each said, what to do."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client.client_log import Complaint
from pyspark_timestream.kafka.client.retry import REFUSALS

__all__ = ["answered_too_long", "is_refused", "no_answer", "request_refused"]

_REFUSED_AFTER_S: Final = 5.0
"""A login or certificate that every broker refuses for so long is given up."""

_DEFAULT_PORT: Final = 9092
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user describe and read the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "let the user read the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user describe the cluster",
}


def is_refused(complaints: Mapping[str, Complaint], spent_s: float) -> bool:
    """Whether it is of no use to go on: every broker that was heard of refuses the connection.

    A token that cannot be had is no broker's refusal, and is asked for again.
    """
    codes = {each.code for each in complaints.values()}
    refused = bool(codes) and codes <= set(REFUSALS) and "" not in complaints
    return refused and spent_s >= _REFUSED_AFTER_S


def no_answer(
    client: Mapping[str, Any],
    complaints: Mapping[str, Complaint],
    spent_s: float,
    wanted: str,
    prefix: str = "kafka.",
) -> BrokerUnreachable:
    """No broker answered.

    Args:
        client: librdkafka's configuration.
        complaints: why, by address.
        spent_s: for how long that was so.
        wanted: what was asked for.
        prefix: before librdkafka's names, as the user writes them.
    """
    addresses = dict.fromkeys([*_bootstrap(client), *(at for at in complaints if at)])
    said = [f"{at} ({complaints[at].reason if at in complaints else 'no answer'})"
            for at in addresses]  # fmt: skip
    everywhere = f"{complaints[''].reason}; " if "" in complaints else ""
    return BrokerUnreachable(
        f"no Kafka broker answered within {spent_s:.0f} s when asked for {wanted}: {everywhere}"
        f"{', '.join(said)}; next step: {_advice(complaints, prefix)}"
    )


def answered_too_long(
    answer: str, complaints: Mapping[str, Complaint], spent_s: float, wanted: str
) -> BrokerUnreachable:
    """Brokers answered, and always with something that should have passed by itself."""
    others = [f"{at} ({each.reason})" for at, each in complaints.items() if at]
    unreached = f"; not to be reached meanwhile: {', '.join(others)}" if others else ""
    return BrokerUnreachable(
        f"cannot get {wanted}: for {spent_s:.0f} s the Kafka brokers answered '{answer}'{unreached}"
        "; next step: see to it that every partition has a leader and enough replicas in sync, and "
        "start the query again: it goes on where it stopped"
    )


def request_refused(code: int, answer: str, wanted: str) -> BrokerUnreachable:
    """An error that does not pass by itself: of a broker, or (below 0) of the client."""
    advice = _RIGHTS.get(code, "correct what this names, and start the query again")
    who = "the Kafka broker answered" if code > 0 else "the Kafka client says"
    return BrokerUnreachable(f"cannot get {wanted}: {who} '{answer}'; next step: {advice}")


def _bootstrap(client: Mapping[str, Any]) -> list[str]:
    """The addresses of `bootstrap.servers`, with their ports.

    >>> _bootstrap({"bootstrap.servers": "a:1, SSL://b"})
    ['a:1', 'b:9092']
    """
    given = str(client.get("bootstrap.servers", "")).split(",")
    named = (each.strip().rpartition("://")[2] for each in given)
    return [
        at if at.rpartition(":")[2].isdigit() else f"{at}:{_DEFAULT_PORT}" for at in named if at
    ]


def _advice(complaints: Mapping[str, Complaint], prefix: str) -> str:
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
