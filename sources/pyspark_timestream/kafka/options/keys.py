"""Checks the options that are passed on to client libraries: `kafka.*` and `schemaRegistry.*`.

Users of Spark's own source know Kafka's Java client. A setting that librdkafka lacks is refused,
and the message names librdkafka's equivalent. Keys that would load code or run a command in the
driver and in every task are refused too: someone who may set options, in SQL for example, may not
therefore run programs there. librdkafka checks the other keys.

`schemaRegistry.*` takes the names of confluent-kafka's registry client, but neither its callbacks
for tokens nor its cache settings. A login in the registry's address moves to
`basic.auth.user.info`, so that messages can show the address.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from pyspark_timestream.errors import OptionError

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
"""The same for families of keys, so that keys of newer Java clients are covered."""

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
"""Keys that the source sets itself -> what to use instead."""


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
    # All callbacks and pointers of librdkafka and confluent-kafka.
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
"""Keys with values that librdkafka puts into the command line of kinit -> the accepted values."""


RECORD_KEYS: Final = {
    "isolation.level": "read_committed",
    # It hides topics from `subscribePattern`.
    "topic.blacklist": "",
    # An old protocol has no headers, no record timestamps and no isolation.
    "api.version.request": "true",
    "broker.version.fallback": "0.10.0",
}
"""Keys that decide which records a stream has or what their columns contain, with their defaults.

A checkpoint keeps them. All other keys decide how records are fetched: brokers (topics of another
cluster have other ids), credentials, sizes, times, and `check.crcs`, so damaged records fail.
"""


_FALSE_WORDS: Final = ("false", "0", "f")


def is_idempotent(config: Mapping[str, Any]) -> bool:
    """Return whether librdkafka's configuration leaves idempotence on."""
    return str(config.get("enable.idempotence", True)).strip().lower() not in _FALSE_WORDS


def select_record_settings(client: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of RECORD_KEYS in librdkafka's configuration, as option name -> text.

    Leave out those at their defaults, except `isolation.level`, which users often set, so that the
    refusal of a changed one names both values.
    """
    values = {key: client.get(key, default).strip() for key, default in RECORD_KEYS.items()}
    return {
        f"kafka.{key}": value
        for key, value in values.items()
        if value != RECORD_KEYS[key] or key == "isolation.level"
    }


def read_client_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's configuration in `texts` (lower-cased name -> text), `kafka.` stripped.

    Raises:
        OptionError: a key that librdkafka does not have or that would run code, no broker, or an
            empty group.
    """
    client = {key[6:]: value for key, value in texts.items() if key.startswith("kafka.")}
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
    """Raise an `OptionError` if librdkafka must not get the key or value."""
    accepts = "librdkafka's configuration, each name after 'kafka.'"
    code_problem = _find_code_problem(key)
    if code_problem:
        problem, next_step = code_problem
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
    """Return the problem of a key that would run code, and the next step; None for other keys."""
    if key in JVM_ONLY or key in ENGINE_OWNED:
        return None
    families = (why for family, why in _CODE_KINDS.items() if family.fullmatch(key))
    return RUNS_CODE.get(key) or next(families, None)


def _find_replacement(key: str) -> str | None:
    """Return what to use instead of `key`; None if `key` goes to librdkafka."""
    families = (instead for family, instead in _JVM_KINDS.items() if family.fullmatch(key))
    return JVM_ONLY.get(key) or ENGINE_OWNED.get(key) or next(families, None)


PREFIX: Final = "schemaRegistry."
FOREIGN_PREFIX: Final = "schema.registry."
"""The prefix as Confluent's serializers write it; refused, with ours in the message."""

_BEARER: Final = "bearer.auth."
_SOURCE: Final = "bearer.auth.credentials.source"
_SOURCES: Final = ("STATIC_TOKEN", "OAUTHBEARER", "OAUTHBEARER_AZURE_IMDS")
_NUMBERS: Final = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms")

REGISTRY_KEYS: Final = (
    "url",
    "basic.auth.user.info",
    _SOURCE,
    "bearer.auth.token",
    "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.issuer.endpoint.query",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "proxy",
    *_NUMBERS,
)
"""The names that the registry client takes, without the prefix."""

_CACHE: Final = "nothing: a schema is kept under its id, which never means another one"
_CODE: Final = "it would be a program's own code, which an option cannot be"
_LOGIN: Final = "schemaRegistry.basic.auth.user.info (user:password)"
_REGISTRY_CA_FILE: Final = (
    "schemaRegistry.ssl.ca.location (a PEM file, made by keytool -exportcert -rfc)"
)
_REGISTRY_KEYSTORE: Final = (
    "schemaRegistry.ssl.certificate.location and schemaRegistry.ssl.key.location (PEM files)"
)
_INSTEAD: Final = {
    "cache.capacity": _CACHE,
    "cache.latest.ttl.sec": _CACHE,
    "max.schemas.per.subject": _CACHE,
    "basic.auth.credentials.source": _LOGIN,
    "ssl.truststore.location": _REGISTRY_CA_FILE,
    "ssl.truststore.password": _REGISTRY_CA_FILE,
    "ssl.truststore.type": _REGISTRY_CA_FILE,
    "ssl.keystore.location": _REGISTRY_KEYSTORE,
    "ssl.keystore.password": _REGISTRY_KEYSTORE,
    "ssl.keystore.type": _REGISTRY_KEYSTORE,
    "request.timeout.ms": "schemaRegistry.timeout (seconds)",
    "http.connect.timeout.ms": "schemaRegistry.timeout (seconds)",
    "http.read.timeout.ms": "schemaRegistry.timeout (seconds)",
    "subject": "option 'valueSubject' or 'keySubject'",
    "subject.name.strategy": "option 'valueSubject' or 'keySubject'",
    "value.subject.name.strategy": "option 'valueSubject'",
    "key.subject.name.strategy": "option 'keySubject'",
    "auto.register.schemas": "nothing: a source registers no schemas",
    "use.latest.version": "nothing: a record's own id names the schema that it was written with",
}
"""Names of other clients -> what to use instead."""

_ADDRESS: Final = "http:// or https:// addresses of one registry, separated by commas"
_ACCEPTS: Final = "the configuration of confluent-kafka's registry client, after 'schemaRegistry.'"


def read_registry_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the registry client's configuration in `texts` (lower-cased name -> text).

    The names come without their prefix.

    Raises:
        OptionError: the client does not have a name, a name would run code, or a number, address
            or login cannot be read.
    """
    for key in texts:
        if key.startswith(FOREIGN_PREFIX):
            instead = f"use 'schemaRegistry.{key.removeprefix(FOREIGN_PREFIX)}'"
            raise OptionError(key, "it is not supported here", _ACCEPTS, instead)
    prefix = PREFIX.lower()
    settings = {key[len(prefix) :]: text for key, text in texts.items() if key.startswith(prefix)}
    if not settings:
        return {}
    for key in settings:
        _check_registry_key(key)
    for key in _NUMBERS:
        if key in settings:
            settings[key] = _check_number(key, settings[key])
    if not settings.get("url", "").strip():
        raise _named_error("url", "it is missing", _ADDRESS, "set it")
    return _complete_bearer(_move_login(settings))


def _check_registry_key(key: str) -> None:
    if key in REGISTRY_KEYS:
        return
    if key.startswith("bearer.auth.custom."):
        raise _named_error(
            key, _CODE, _ACCEPTS, f"use '{PREFIX}bearer.auth.token', or leave it out"
        )
    if key in _INSTEAD:
        raise _named_error(key, "it is not supported here", _ACCEPTS, f"use {_INSTEAD[key]}")
    near = difflib.get_close_matches(key, REGISTRY_KEYS, n=1, cutoff=0.0)
    meant = f": did you mean '{PREFIX}{near[0]}'?" if near else ""
    raise OptionError(
        f"{PREFIX}{key}",
        f"there is no such option{meant}",
        ", ".join(f"{PREFIX}{name}" for name in sorted(REGISTRY_KEYS)),
        "correct the name, or leave it out",
        list_last=True,
    )


def _check_number(key: str, text: str) -> str:
    is_seconds = key == "timeout"
    pattern = r"[0-9]{1,6}([.][0-9]{1,3})?" if is_seconds else r"[0-9]{1,6}"
    if not re.fullmatch(pattern, text.strip()) or (is_seconds and float(text) == 0):
        accepts = "seconds, above 0" if is_seconds else "a whole number, below a million"
        raise _named_error(
            key, "its value is not such a number", accepts, "correct it, or leave it out"
        )
    return text.strip()


def _move_login(settings: Mapping[str, str]) -> dict[str, str]:
    """Move a login from the addresses to `basic.auth.user.info`."""
    addresses, logins = [], set()
    for address in settings["url"].split(","):
        try:
            url = urlsplit(address.strip())
            host, port = url.hostname, url.port
        except ValueError:
            host, port = None, None
        if host is None or url.scheme not in ("http", "https"):
            raise _named_error("url", "an address in it cannot be read", _ADDRESS, "correct it")
        if url.username is not None:
            logins.add(f"{unquote(url.username)}:{unquote(url.password or '')}")
        netloc = f"[{host}]" if ":" in host else host
        netloc = netloc if port is None else f"{netloc}:{port}"
        addresses.append(urlunsplit((url.scheme, netloc, url.path.rstrip("/"), "", "")))
    without_logins = {**settings, "url": ",".join(addresses)}
    login = settings.get("basic.auth.user.info")
    if login is not None and ":" not in login:
        raise _named_error(
            "basic.auth.user.info", "it lacks a ':'", "user:password", "correct it, or leave it out"
        )
    logins |= {login} if login is not None else set()
    if len(logins) > 1:
        raise _named_error(
            "url",
            "it has another login than another address or 'schemaRegistry.basic.auth.user.info'",
            "one login for all addresses",
            "take the login out of the address, or leave the option out",
        )
    return {**without_logins, "basic.auth.user.info": logins.pop()} if logins else without_logins


def _complete_bearer(settings: dict[str, str]) -> dict[str, str]:
    """Add the settings that the client insists on, although the registry needs only a token."""
    bearer = sorted(key for key in settings if key.startswith(_BEARER))
    if not bearer:
        return settings
    if "basic.auth.user.info" in settings:
        raise _named_error(
            bearer[0],
            "it conflicts with a login, 'schemaRegistry.basic.auth.user.info' or in the address",
            "either a login or a token",
            "leave one of the two out",
        )
    if _SOURCE not in settings and "bearer.auth.token" not in settings:
        raise _named_error(
            _SOURCE, "it is missing, and there is no token either", ", ".join(_SOURCES), "set it"
        )
    source = settings.get(_SOURCE, _SOURCES[0]).strip().upper()
    if source not in _SOURCES:
        # The value is not shown: it may be a token in the wrong place.
        raise _named_error(_SOURCE, "its value is none of them", ", ".join(_SOURCES), "correct it")
    return {"bearer.auth.logical.cluster": "", **settings, _SOURCE: source}


def _named_error(key: str, problem: str, accepts: str, next_step: str) -> OptionError:
    return OptionError(f"{PREFIX}{key}", problem, accepts, next_step)
