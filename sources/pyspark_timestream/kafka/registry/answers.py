"""Errors of the schema registry: what it was asked, what it answered, and the next step."""

import base64
import re
import socket
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_timestream.connector.options import OptionError, hide_secrets
from pyspark_timestream.errors import SchemaRegistryError, walk_causes

__all__ = [
    "Hint",
    "check_files",
    "configuration_error",
    "late_error",
    "proto_text_error",
    "read_retry_after",
    "refusal_error",
    "shape_error",
    "transport_error",
]

_MAX_ANSWER: Final = 200
_URL: Final = "'schemaRegistry.url'"
_RESUMES: Final = "the query goes on where it stopped"

_UNKNOWN: Final = "Unknown Schema Registry Error: "
"""The text in front of an answer that is not a registry's, as confluent-kafka's client has it."""

_SUBJECT_NOT_FOUND: Final = 40401
_VERSION_NOT_FOUND: Final = 40402
_SCHEMA_NOT_FOUND: Final = 40403

_CERTIFICATE: Final = (
    "check option 'schemaRegistry.ssl.ca.location' (whom to trust) and, if the registry wants a "
    "certificate, 'schemaRegistry.ssl.certificate.location' and 'schemaRegistry.ssl.key.location'; "
    f"and that {_URL} has the name in the registry's certificate"
)
_NETWORK: Final = (
    f"check option {_URL}, that the registry runs, and the network from the driver and the "
    f"executors to it; then start the query again: {_RESUMES}"
)
_SLOW: Final = (
    f"see what keeps the registry busy, and start the query again: {_RESUMES}; options "
    "'schemaRegistry.timeout' and 'schemaRegistry.max.retries' wait longer"
)
_TOKEN: Final = "check options 'schemaRegistry.bearer.auth.*'"


_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_MAX_WAIT_S: Final = 10**6


class Hint(NamedTuple):
    """What an answer's headers say: where it points to, and the seconds until another try."""

    location: str | None = None
    wait_s: float | None = None


def check_files(settings: Mapping[str, str]) -> None:
    """Check that the files of a configuration can be read; its client does not name them.

    Raises:
        OptionError: one cannot.
    """
    for key in _FILES:
        path = settings.get(key)
        if path is None or Path(path).is_dir():
            continue
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise OptionError(
                f"schemaRegistry.{key}",
                f"cannot read '{path}' ({error.strerror or error})",
                "a PEM file at the same path on the driver and on every executor",
                "correct it, or put the file there",
            ) from None


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a header `Retry-After`, also of one with a date; None without.

    >>> read_retry_after({"retry-after": "3"})
    3.0
    """
    given = headers.get("retry-after", "").strip()
    if given.isdecimal():
        return min(float(given), _MAX_WAIT_S)
    try:
        until, now = (parsedate_to_datetime(each) for each in (given, headers.get("date", "")))
        seconds = (until - now).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(seconds, 0.0), _MAX_WAIT_S)


class _Reason(NamedTuple):
    answer: str
    next_step: str


def refusal_error(
    settings: Mapping[str, str],
    wanted: str,
    status: int,
    code: int,
    answer: str,
    hint: Hint = Hint(),  # noqa: B008 a value
) -> SchemaRegistryError:
    """Build the error of an HTTP status other than 2xx.

    Args:
        settings: the client's configuration, whose secrets are hidden.
        wanted: what was asked for.
        status: the HTTP status.
        code: the registry's error code; -1 if the answer had none.
        answer: the text that came with it.
        hint: what its headers say.
    """
    answer = answer.removeprefix(_UNKNOWN).removesuffix(".")
    said = f"it answered {status}" + (f" ({answer})" if answer not in ("", "b''") else "")
    advice = _choose_advice(status, code)
    if hint.location is not None:
        said += f", and points to {hint.location}"
        advice = f"set option {_URL} to the registry's own address: redirects are not followed"
    if hint.wait_s is not None:
        said += f", and asks to wait {hint.wait_s:.0f} s"
        advice = f"wait as long, and start the query again: {_RESUMES}"
    error = _error(settings, wanted, _Reason(said, advice))
    error.is_missing = code in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND)
    return error


def _choose_advice(status: int, code: int) -> str:
    if code == _SCHEMA_NOT_FOUND:
        return (
            f"check that {_URL} is the registry of the topic's producers; if they write no ids in "
            "front of their records, set 'valueFraming' or 'keyFraming' to 'none'"
        )
    if code in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND):
        return "check options 'valueSubject' and 'keySubject', or give the reader's schema itself"
    if status == 401:
        return (
            "check the login: option 'schemaRegistry.basic.auth.user.info', or "
            "'schemaRegistry.bearer.auth.*'"
        )
    if status == 403:
        return "let this login read the schema and its subject in the registry"
    if status >= 500 or status in (408, 429):
        return f"look into the registry's own log, and start the query again: {_RESUMES}"
    return f"check option {_URL} and its path: Confluent's registry would not answer so"


def transport_error(
    settings: Mapping[str, str], wanted: str, error: BaseException
) -> SchemaRegistryError:
    """Build the error of a request that got no answer, or none that can be read."""
    return _error(settings, wanted, _find_reason(error))


def _find_reason(error: BaseException) -> _Reason:
    chain = list(walk_causes(error))
    names = {type(each).__name__ for each in chain}
    if "OAuthTokenError" in names:
        return _Reason(f"no token could be had for it ({error})", _TOKEN)
    for each in chain:
        if isinstance(each, ssl.SSLError):
            return _Reason(f"the encrypted connection failed ({each})", _CERTIFICATE)
        if isinstance(each, ConnectionRefusedError):
            return _Reason("the connection was refused", _NETWORK)
        if isinstance(each, socket.gaierror):
            return _Reason("its name is unknown", _NETWORK)
        if isinstance(each, TimeoutError) or type(each).__name__.endswith("Timeout"):
            return _Reason("it did not answer in time", _SLOW)
    if isinstance(error, ValueError):
        return _Reason(f"its answer is not JSON ({error})", _choose_advice(200, -1))
    return _Reason(f"{error}" or type(error).__name__, _NETWORK)


def late_error(settings: Mapping[str, str], wanted: str, limit_s: float) -> SchemaRegistryError:
    """Build the error of a request that was not answered within all its tries."""
    return _error(settings, wanted, _Reason(f"no answer was complete in {limit_s:.0f} s", _SLOW))


def shape_error(settings: Mapping[str, str], wanted: str, problem: str) -> SchemaRegistryError:
    """Build the error of an answer that is not what a schema registry sends."""
    return _error(settings, wanted, _Reason(problem, _choose_advice(200, -1)))


def proto_text_error(settings: Mapping[str, str], wanted: str) -> SchemaRegistryError:
    """Build the error of a registry that sends `.proto` text, which Python cannot read."""
    reason = _Reason(
        "it sent .proto text, although it was asked for format=serialized",
        "use a registry that knows that format, such as Confluent's; or leave 'schemaRegistry.*' "
        "out, and set 'valueSchema' or 'keySchema' to a descriptor set, with 'valueFraming' or "
        "'keyFraming' = 'confluent'",
    )
    return _error(settings, wanted, reason)


def _error(settings: Mapping[str, str], wanted: str, reason: _Reason) -> SchemaRegistryError:
    answer = _hide_login(" ".join(reason.answer.split()), settings)
    answer = answer.removesuffix(".")
    answer = answer if len(answer) <= _MAX_ANSWER else f"{answer[:_MAX_ANSWER]}..."
    return SchemaRegistryError(
        f"cannot get {wanted} from the schema registry at {settings['url']}: {answer}",
        next_step=reason.next_step,
    )


def configuration_error(settings: Mapping[str, str], error: Exception) -> OptionError:
    """Build the error of a configuration that the client refuses."""
    return OptionError(
        "schemaRegistry.*",
        f"its client says: {_hide_login(str(error), settings)}",
        "the configuration of confluent-kafka's registry client, after 'schemaRegistry.'",
        "correct the value; a file must be readable on the driver and on every executor",
    )


def _hide_login(text: str, settings: Mapping[str, str]) -> str:
    """`text` with secret settings hidden, also as a header would have them."""
    login = settings.get("basic.auth.user.info", "")
    if login:
        text = text.replace(base64.b64encode(login.encode()).decode(), "[hidden]")
        password = login.partition(":")[2]
        # A short one would be found in innocent words.
        text = text.replace(password, "[hidden]") if len(password) > 3 else text
    text = hide_secrets(text, settings)
    return re.sub("://[^/ ]*@", "://[hidden]@", text)
