"""Options `kafka.*`: passed on to librdkafka, or refused with the name to use instead.

Spark's own source runs Kafka's Java client, some of whose settings librdkafka does not have; each
is refused with librdkafka's equivalent. Keys that would load code or run a command in the driver
and in every task are refused too: permission to set options, in SQL for example, does not imply
permission to run programs there. librdkafka checks the rest.
"""

import re
from collections.abc import Mapping
from typing import Final

from pyspark_timestream.connector.options import OptionError

__all__ = [
    "ENGINE_OWNED",
    "JVM_ONLY",
    "RECORD_KEYS",
    "RUNS_CODE",
    "read_client_settings",
    "select_record_settings",
]

_OIDC: Final = (
    "kafka.sasl.oauthbearer.method=oidc with kafka.sasl.oauthbearer.token.endpoint.url, "
    "kafka.sasl.oauthbearer.client.id and kafka.sasl.oauthbearer.client.secret"
)
_CA_FILE: Final = "kafka.ssl.ca.location (a PEM file, made by keytool -exportcert -rfc)"
_KEYSTORE: Final = (
    "kafka.ssl.keystore.location and kafka.ssl.keystore.password for PKCS#12, or PEM files in "
    "kafka.ssl.certificate.location and kafka.ssl.key.location"
)
_OPENSSL: Final = "nothing: librdkafka uses OpenSSL, which needs no such choice"
_TLS: Final = (
    "nothing: OpenSSL takes the newest TLS version that both sides know; kafka.ssl.cipher.suites "
    "and kafka.ssl.sigalgs.list narrow it"
)
_TEMPLATE: Final = "kafka.sasl.oauthbearer.assertion.jwt.template.file"
_PROVIDERS: Final = "nothing: OpenSSL's own configuration on each machine chooses its providers"
_REFRESH: Final = "nothing: librdkafka renews tokens itself, after 80 % of their lifetime"
_BROKER_SIDE: Final = "nothing: it is for brokers, which check tokens; a client only gets them"
_METRICS: Final = (
    "nothing: the query's progress shows what was read; librdkafka has no such metrics to report"
)
_IN_A_TASK: Final = "nothing: a task reads its range, and no consumer joins a group"

JVM_ONLY: Final = {
    "sasl.jaas.config": "kafka.sasl.username and kafka.sasl.password (PLAIN, SCRAM), "
    "kafka.sasl.kerberos.principal and kafka.sasl.kerberos.keytab (GSSAPI), or " + _OIDC,
    "sasl.client.callback.handler.class": _OIDC,
    "sasl.login.callback.handler.class": _OIDC,
    "sasl.login.class": _OIDC,
    "sasl.login.connect.timeout.ms": "kafka.socket.timeout.ms",
    "sasl.login.read.timeout.ms": "kafka.socket.timeout.ms",
    "sasl.login.refresh.buffer.seconds": _REFRESH,
    "sasl.login.refresh.min.period.seconds": _REFRESH,
    "sasl.login.refresh.window.factor": _REFRESH,
    "sasl.login.refresh.window.jitter": _REFRESH,
    "sasl.login.retry.backoff.ms": "kafka.reconnect.backoff.ms",
    "sasl.login.retry.backoff.max.ms": "kafka.reconnect.backoff.max.ms",
    "sasl.kerberos.ticket.renew.jitter": "kafka.sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.window.factor": "kafka.sasl.kerberos.min.time.before.relogin",
    "sasl.oauthbearer.clock.skew.seconds": _BROKER_SIDE,
    "sasl.oauthbearer.expected.audience": _BROKER_SIDE,
    "sasl.oauthbearer.expected.issuer": _BROKER_SIDE,
    "sasl.oauthbearer.header.urlencode": _OIDC,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKER_SIDE,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKER_SIDE,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKER_SIDE,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKER_SIDE,
    "sasl.oauthbearer.scope.claim.name": "kafka.sasl.oauthbearer.scope",
    "security.providers": _PROVIDERS,
    "ssl.truststore.location": _CA_FILE,
    "ssl.truststore.password": "kafka.ssl.ca.location (a PEM file needs no password)",
    "ssl.truststore.type": _CA_FILE,
    "ssl.truststore.certificates": "kafka.ssl.ca.pem",
    "ssl.keystore.type": _KEYSTORE,
    "ssl.keystore.key": "kafka.ssl.key.pem",
    "ssl.keystore.certificate.chain": "kafka.ssl.certificate.pem",
    "ssl.protocol": _TLS,
    "ssl.enabled.protocols": _TLS,
    "ssl.provider": _PROVIDERS,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.engine.factory.class": "kafka.ssl.ca.location, " + _KEYSTORE,
    "sasl.oauthbearer.assertion.template.file": _TEMPLATE,
    "sasl.oauthbearer.jwt.retriever.class": _OIDC,
    "sasl.oauthbearer.jwt.validator.class": _OIDC,
    "default.api.timeout.ms": "option 'kafkaConsumer.connectTimeoutMs' (until a broker answers), "
    "'fetchOffset.numRetries' (the driver's tries after a minute) and "
    "'kafkaConsumer.pollTimeoutMs' (the tasks')",
    "fetch.max.wait.ms": "kafka.fetch.wait.max.ms",
    "receive.buffer.bytes": "kafka.socket.receive.buffer.bytes",
    "send.buffer.bytes": "kafka.socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "kafka.socket.connection.setup.timeout.ms",
    "exclude.internal.topics": "nothing: option 'subscribePattern' never means Kafka's own topics",
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "config.providers": "nothing: give each option its value, from Spark's own configuration or "
    "the environment for example",
    "share.acquire.mode": _IN_A_TASK,
    "internal.throw.on.fetch.stable.offset.unsupported": _IN_A_TASK,
    "auto.include.jmx.reporter": _METRICS,
}
"""Keys that only Kafka's Java client knows -> librdkafka's equivalent."""

_JVM_KINDS: Final = {
    re.compile(r"sasl\..*callback.*"): _OIDC,
    re.compile(r"ssl\.truststore\..*"): _CA_FILE,
    re.compile(r"ssl\.keystore\.(?!location$|password$).*"): _KEYSTORE,
}
"""The same for whole families, to cover keys of newer Java clients."""

ENGINE_OWNED: Final = {
    "auto.offset.reset": "option 'startingOffsets': the checkpoint, not the group, decides",
    "enable.auto.commit": "nothing: offsets live in Spark's checkpoint",
    "enable.auto.offset.store": "nothing: offsets live in Spark's checkpoint",
    "enable.partition.eof": "nothing: the source needs it to end a range by position",
    "key.deserializer": "option 'keyFormat', or Spark's functions on the column `key`",
    "value.deserializer": "option 'valueFormat', or Spark's functions on the column `value`",
    "interceptor.classes": "nothing: librdkafka has no interceptors",
    "request.timeout.ms": "kafka.socket.timeout.ms (librdkafka's name for it; this one is for "
    "producers there)",
    "max.poll.records": "option 'maxOffsetsPerTrigger', or 'maxRecordsPerPartition'",
    "offset.store.method": "nothing: offsets live in Spark's checkpoint",
    "offset.store.path": "nothing: offsets live in Spark's checkpoint",
    "log.queue": "nothing: librdkafka's messages are in Python's log",
    "enabled_events": "nothing: it is for programs that poll librdkafka's events themselves",
}
"""Keys that the source sets itself -> the way to what the user may have wanted."""


_LIBRARY: Final = "it would load a library into the driver and every task"
_COMMAND: Final = "it would run a command on the driver and in every task"
_CALLBACK: Final = "it would be a program's own code or memory, which an option cannot be"
_INSTALLED: Final = "have it installed where OpenSSL looks for it, by openssl.cnf on each machine"

RUNS_CODE: Final = {
    "plugin.library.paths": (_LIBRARY, "do without it: the source's own work needs no plugin"),
    "ssl.engine.location": (_LIBRARY, _INSTALLED),
    "ssl.engine.id": (_LIBRARY, _INSTALLED),
    "ssl.providers": (_LIBRARY, _INSTALLED),
    "sasl.kerberos.kinit.cmd": (
        _COMMAND,
        "leave it out: kinit is called with kafka.sasl.kerberos.principal and .keytab; or fill the "
        "ticket cache yourself and set kafka.sasl.kerberos.min.time.before.relogin to 0",
    ),
    "interceptors": (_CALLBACK, "leave it out"),
}
"""Keys that would load code or run a command -> the problem, and the next step."""

_CODE_KINDS: Final = {
    # Every callback and pointer of librdkafka's and confluent-kafka's.
    re.compile(
        r".*_cb|.*[._]callback|.*callback_data|opaque|default_topic_conf|default\.topic\.config"
        r"|ssl_key|ssl_certificate|ssl_ca|msg_order_cmp|logger|on_(?:commit|delivery)"
    ): (_CALLBACK, "leave it out"),
    re.compile(r"ssl\.engine\..*"): (_LIBRARY, _INSTALLED),
    re.compile(r"test\..*"): ("it is for librdkafka's own tests", "leave it out"),
}

_IN_A_COMMAND: Final = {
    "sasl.kerberos.principal": (
        re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@/+=:,-]*"),
        "letters, digits and _.@/+=:,- as in 'spark/host.example.org@EXAMPLE.ORG'",
    ),
    "sasl.kerberos.keytab": (
        re.compile(r"[^\x00-\x1f\"$`\\\\]*"),
        "a path without quotes, '$', backquotes and backslashes",
    ),
}
"""Keys whose values librdkafka puts into the command line of kinit -> the accepted values."""


RECORD_KEYS: Final = {
    "isolation.level": "read_committed",
    # It hides topics from a pattern.
    "topic.blacklist": "",
    # An old protocol has no headers, no record timestamps and no isolation.
    "api.version.request": "true",
    "broker.version.fallback": "0.10.0",
}
"""Keys that decide which records a stream has or what their columns contain, with their defaults.

A checkpoint keeps them. All others decide how records are fetched, or whether at all: brokers
(topics of another cluster have other ids), credentials, sizes, times, and `check.crcs`, which makes
damaged records an error.
"""


def select_record_settings(client: Mapping[str, str]) -> dict[str, str]:
    """The settings of RECORD_KEYS in librdkafka's configuration, as option name -> text.

    Those at their default are left out, except the first: a checkpoint without it is older than
    these settings.
    """
    values = {key: client.get(key, default).strip() for key, default in RECORD_KEYS.items()}
    return {
        f"kafka.{key}": value
        for key, value in values.items()
        if value != RECORD_KEYS[key] or key == "isolation.level"
    }


def read_client_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Librdkafka's configuration in `given` (lower-cased name -> text), `kafka.` stripped.

    Raises:
        OptionError: a key that librdkafka does not have or that would run code, no broker, or an
            empty group.
    """
    client = {key[6:]: value for key, value in given.items() if key.startswith("kafka.")}
    for key in client:
        _check_key(key, client[key])
    if "isolation.level" in client:
        # librdkafka takes it in any case.
        client["isolation.level"] = client["isolation.level"].strip().lower()
    if "group.id" in client and not client["group.id"].strip():
        raise OptionError(
            "kafka.group.id", "it is empty", "a group's name", "set it, or leave it out"
        )
    if not client.get("bootstrap.servers", "").strip():
        raise OptionError(
            "kafka.bootstrap.servers",
            "it must be specified",
            "host:port of one or more brokers, separated by commas",
            "set it",
        )
    return client


def _check_key(key: str, value: str) -> None:
    """Refuse a key or value that librdkafka must not get.

    Raises:
        OptionError: of `kafka.<key>`.
    """
    accepts = "librdkafka's configuration, each name after 'kafka.'"
    refused = _find_code_problem(key)
    if refused:
        problem, next_step = refused
        raise OptionError(f"kafka.{key}", problem, accepts, next_step)
    instead = _find_replacement(key)
    if key == "partition.assignment.strategy" and "." in value:
        instead = _IN_A_TASK + "; a class of Java's client means nothing to librdkafka"
    if instead:
        raise OptionError(f"kafka.{key}", "it is not supported here", accepts, f"use {instead}")
    if key in _IN_A_COMMAND:
        legal, form = _IN_A_COMMAND[key]
        if not legal.fullmatch(value):
            problem = "its value would change the command line of kinit"
            raise OptionError(f"kafka.{key}", problem, form, "correct it")


def _find_code_problem(key: str) -> tuple[str, str] | None:
    """The problem of a key that would run code, and the next step; None for all others."""
    if key in JVM_ONLY or key in ENGINE_OWNED:
        return None
    families = (why for family, why in _CODE_KINDS.items() if family.fullmatch(key))
    return RUNS_CODE.get(key) or next(families, None)


def _find_replacement(key: str) -> str | None:
    """The replacement for `key`; None if it goes to librdkafka."""
    families = (instead for family, instead in _JVM_KINDS.items() if family.fullmatch(key))
    return JVM_ONLY.get(key) or ENGINE_OWNED.get(key) or next(families, None)
