"""Options `schemaRegistry.*`: passed on to confluent-kafka's registry client, or refused.

The names are those of that client's configuration. It would accept a program's own function as a
source of tokens and caches of its own; both are refused here. A login in the address becomes
`basic.auth.user.info`, so that the address can be shown.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from pyspark_timestream.connector.options import OptionError

__all__ = ["FOREIGN_PREFIX", "PREFIX", "REGISTRY_KEYS", "read_registry_settings"]

PREFIX: Final = "schemaRegistry."
FOREIGN_PREFIX: Final = "schema.registry."
"""How Confluent's serializers write the prefix."""

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
"""The names that the client takes, without the prefix."""

_CACHE: Final = "nothing: a schema is kept under its id, which never means another one"
_CODE: Final = "it would be a program's own code, which an option cannot be"
_LOGIN: Final = "schemaRegistry.basic.auth.user.info (user:password)"
_CA_FILE: Final = "schemaRegistry.ssl.ca.location (a PEM file, made by keytool -exportcert -rfc)"
_KEYSTORE: Final = (
    "schemaRegistry.ssl.certificate.location and schemaRegistry.ssl.key.location (PEM files)"
)
_INSTEAD: Final = {
    "cache.capacity": _CACHE,
    "cache.latest.ttl.sec": _CACHE,
    "max.schemas.per.subject": _CACHE,
    "basic.auth.credentials.source": _LOGIN,
    "ssl.truststore.location": _CA_FILE,
    "ssl.truststore.password": _CA_FILE,
    "ssl.truststore.type": _CA_FILE,
    "ssl.keystore.location": _KEYSTORE,
    "ssl.keystore.password": _KEYSTORE,
    "ssl.keystore.type": _KEYSTORE,
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
"""Names of other clients -> what there is here."""

_ADDRESS: Final = "http:// or https:// addresses of one registry, separated by commas"
_ACCEPTS: Final = "the configuration of confluent-kafka's registry client, after 'schemaRegistry.'"


def read_registry_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The registry client's configuration in `given` (lower-cased name -> text), prefix stripped.

    Raises:
        OptionError: a name that the client does not have or that would run code, a number that is
            none, or an address or login that cannot be one.
    """
    for key in given:
        if key.startswith(FOREIGN_PREFIX):
            name = key.removeprefix(FOREIGN_PREFIX)
            raise _error(key, "it is not supported here", _ACCEPTS, f"use 'schemaRegistry.{name}'")
    prefix = PREFIX.lower()
    settings = {key[len(prefix) :]: text for key, text in given.items() if key.startswith(prefix)}
    if not settings:
        return {}
    for key in settings:
        _check_key(key)
    for key in _NUMBERS:
        if key in settings:
            settings[key] = _check_number(key, settings[key])
    if not settings.get("url", "").strip():
        raise _named_error("url", "it is missing", _ADDRESS, "set it")
    return _complete_bearer(_move_login(settings))


def _check_key(key: str) -> None:
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
        ", ".join(f"{PREFIX}{each}" for each in sorted(REGISTRY_KEYS)),
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
    for each in settings["url"].split(","):
        try:
            parts = urlsplit(each.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or parts.scheme not in ("http", "https"):
            raise _named_error("url", "an address in it cannot be read", _ADDRESS, "correct it")
        if parts.username is not None:
            logins.add(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
        place = f"[{host}]" if ":" in host else host
        place = place if port is None else f"{place}:{port}"
        addresses.append(urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")))
    moved = {**settings, "url": ",".join(addresses)}
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
    return {**moved, "basic.auth.user.info": logins.pop()} if logins else moved


def _complete_bearer(settings: dict[str, str]) -> dict[str, str]:
    """Add what the client insists on, although a token is enough."""
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
        # Not shown: a token in the wrong place would be.
        raise _named_error(_SOURCE, "its value is none of them", ", ".join(_SOURCES), "correct it")
    return {"bearer.auth.logical.cluster": "", **settings, _SOURCE: source}


def _named_error(key: str, problem: str, accepts: str, next_step: str) -> OptionError:
    return _error(f"{PREFIX}{key}", problem, accepts, next_step)


def _error(name: str, problem: str, accepts: str, next_step: str) -> OptionError:
    return OptionError(name, problem, accepts, next_step)
