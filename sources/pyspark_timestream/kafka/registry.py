"""Asks the schema registry.

confluent-kafka's client waits forever by default, and its time-out only limits the wait for the
next piece of an answer. Here a request has one limit for all its tries and the pauses between them.

A schema never changes under its id, so a process keeps each one. A running query goes on while the
registry is down, until a record names an id that is new to the process. The latest schema of a
subject is asked for each time.
"""

import base64
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from pyspark_timestream.core.declarations import hide_secrets
from pyspark_timestream.core.processes import ProcessLock
from pyspark_timestream.errors import (
    MissingExtra,
    OptionError,
    SchemaRegistryError,
    walk_causes,
)
from pyspark_timestream.kafka.schemas import (
    AVRO,
    PROTOBUF,
    RegisteredSchema,
    SchemaReference,
)

_MAX_ANSWER: Final = 200
_URL: Final = "'schemaRegistry.url'"
_RESUMES: Final = "the query goes on where it stopped"

_UNKNOWN: Final = "Unknown Schema Registry Error: "
"""confluent-kafka's client puts this in front of an answer that is not a registry's."""

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
_NO_REGISTRY: Final = f"check option {_URL} and its path: Confluent's registry would not answer so"

_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_MAX_WAIT_S: Final = 10**6


def _check_files(settings: Mapping[str, str]) -> None:
    """Check that a configuration's files can be read; the client's own errors do not name them."""
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
    """Return the seconds that a header `Retry-After` asks for, also by a date; None without one.

    >>> read_retry_after({"retry-after": "3"})
    3.0
    """
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return min(float(value), _MAX_WAIT_S)
    try:
        until, now = (parsedate_to_datetime(text) for text in (value, headers.get("date", "")))
        seconds = (until - now).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(seconds, 0.0), _MAX_WAIT_S)


class _Hint(NamedTuple):
    """The hints in an answer's headers: the target of a redirect, and the seconds to wait."""

    location: str | None = None
    wait_s: float | None = None


class _Reason(NamedTuple):
    answer: str
    next_step: str
    is_missing: bool = False


def _explain_status(status: int, code: int, answer: str, hint: _Hint) -> _Reason:
    """Explain an HTTP status other than 2xx; `code` is -1 if the answer had no error code."""
    answer = answer.removeprefix(_UNKNOWN).removesuffix(".")
    status_line = f"it answered {status}" + (f" ({answer})" if answer not in ("", "b''") else "")
    advice = _choose_advice(status, code)
    if hint.location is not None:
        status_line += f", and points to {hint.location}"
        advice = f"set option {_URL} to the registry's own address: redirects are not followed"
    if hint.wait_s is not None:
        status_line += f", and asks to wait {hint.wait_s:.0f} s"
        advice = f"wait as long, and start the query again: {_RESUMES}"
    missing = (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND)
    return _Reason(status_line, advice, code in missing)


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
    return _NO_REGISTRY


def _explain_no_answer(error: BaseException) -> _Reason:
    chain = list(walk_causes(error))
    names = {type(cause).__name__ for cause in chain}
    if "OAuthTokenError" in names:
        return _Reason(f"no token could be had for it ({error})", _TOKEN)
    for cause in chain:
        if isinstance(cause, ssl.SSLError):
            return _Reason(f"the encrypted connection failed ({cause})", _CERTIFICATE)
        if isinstance(cause, ConnectionRefusedError):
            return _Reason("the connection was refused", _NETWORK)
        if isinstance(cause, socket.gaierror):
            return _Reason("its name is unknown", _NETWORK)
        if isinstance(cause, TimeoutError) or type(cause).__name__.endswith("Timeout"):
            return _Reason("it did not answer in time", _SLOW)
    if isinstance(error, ValueError):
        return _Reason(f"its answer is not JSON ({error})", _NO_REGISTRY)
    return _Reason(f"{error}" or type(error).__name__, _NETWORK)


_PROTO_TEXT: Final = _Reason(
    "it sent .proto text, although it was asked for format=serialized",
    "use a registry that knows that format, such as Confluent's; or leave 'schemaRegistry.*' out, "
    "and set 'valueSchema' or 'keySchema' to a descriptor set, with 'valueFraming' or "
    "'keyFraming' = 'confluent'",
)


def _hide_login(text: str, settings: Mapping[str, str]) -> str:
    """Hide secret settings in `text`, also in the form that a header gives them."""
    login = settings.get("basic.auth.user.info", "")
    if login:
        text = text.replace(base64.b64encode(login.encode()).decode(), "[hidden]")
        password = login.partition(":")[2]
        # A short password would match parts of innocent words.
        text = text.replace(password, "[hidden]") if len(password) > 3 else text
    text = hide_secrets(text, settings)
    return re.sub("://[^/ ]*@", "://[hidden]@", text)


T = TypeVar("T")

_DEFAULTS: Final = {
    "timeout": "10",
    "max.retries": "2",
    "retries.wait.ms": "500",
    "retries.max.wait.ms": "2000",
}
_SPARE_S: Final = 1.0
"""Time for a try's work besides waiting, so that its own error comes before the limit's."""


_FORMS: Final = {"protobuf": "serialized"}
"""Format -> the form of the text to ask the registry for; others are asked for the text itself."""


_OAUTH: Final = "authlib.integrations.httpx_client"
"""The module that confluent-kafka's client takes its two classes for OAuth from."""


@contextmanager
def _defer_oauth() -> Iterator[None]:
    """Within the block, let confluent-kafka's client be imported without OAuth.

    OAuth takes two thirds of the client's import, 0.4 s in each process that asks a registry. The
    first client with a login by OAuth imports it.
    """
    is_imported = _OAUTH in sys.modules or "confluent_kafka.schema_registry" in sys.modules
    if is_imported or find_spec("authlib") is None:
        yield
        return

    def find_class(name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **settings: getattr(import_module(_OAUTH), name)(*args, **settings)

    stand_in = ModuleType(_OAUTH)
    stand_in.__dict__["__getattr__"] = find_class
    sys.modules[_OAUTH] = stand_in
    try:
        yield
    finally:
        del sys.modules[_OAUTH]


def _import_client() -> tuple[Any, type[Exception]]:
    """Return confluent-kafka's client and its error."""

    def import_now() -> tuple[Any, type[Exception]]:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.error import SchemaRegistryError as ClientError

        return SchemaRegistryClient, ClientError

    # Another version of the client may need OAuth's classes at once.
    with suppress(Exception), _defer_oauth():
        return import_now()
    return import_now()


class _Client:
    """Asks the schema registry for one schema and its references.

    Each request creates a new client: a process asks only once for each id, and confluent-kafka's
    client caches answers without regard to their format.

    Raises:
        MissingExtra: confluent-kafka's client is not installed.
        OptionError: it refuses the configuration.
    """

    def __init__(self, settings: Mapping[str, str], format: str = "") -> None:
        _check_files(settings)
        try:
            SchemaRegistryClient, ClientError = _import_client()
        except ImportError as error:
            library = error.name or "confluent-kafka[schemaregistry]"
            raise MissingExtra.create("a schema registry", library, "registry") from None
        self._settings = settings
        self._form = _FORMS.get(format)
        self._refusal: type[Exception] = ClientError
        self._limit_s = request_limit_s(settings)
        self._is_late = False
        try:
            self._client = SchemaRegistryClient(_client_config(settings))
        except (ValueError, TypeError, OSError) as error:
            raise OptionError(
                "schemaRegistry.*",
                f"its client says: {_hide_login(str(error), settings)}",
                "the configuration of confluent-kafka's registry client, after 'schemaRegistry.'",
                "correct the value; a file must be readable on the driver and on every executor",
            ) from None
        self._watcher = _Watcher(int({**_DEFAULTS, **settings}["max.retries"]), self._limit_s)
        self._watcher.watch(self._client)

    def close(self) -> None:
        """Close the connections, even that of a request without an answer."""
        if self._is_late:
            # Closing waits for the unanswered request, so a thread does it.
            threading.Thread(target=self._client.close, daemon=True).start()
        else:
            self._client.close()

    def get_schema(self, key: int | bytes, subject: str | None) -> Any:
        """Return confluent-kafka's `Schema` for an id or a GUID.

        `subject` is a subject in the context of the id; None for the default context.
        """
        if isinstance(key, bytes):
            guid = _format_guid(key)
            return self._ask(
                _describe_key(key), lambda: self._client.get_schema_by_guid(guid, fmt=self._form)
            )
        return self._ask(
            _describe_key(key),
            lambda: self._client.get_schema(key, subject_name=subject, fmt=self._form),
        )

    def get_version(self, subject: str, version: int | str) -> Any:
        """Return confluent-kafka's `RegisteredSchema` for a version, or for `latest`.

        A numbered version is returned even if it was deleted, because another schema may refer to
        it; `latest` ignores deleted ones.
        """
        deleted = version != "latest"
        return self._ask(
            _describe_version(subject, version),
            lambda: self._client.get_version(subject, version, deleted=deleted, fmt=self._form),
        )

    def _ask(self, target: str, request: Callable[[], T]) -> T:
        self._watcher.begin()
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(request())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="timestream-registry", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if answers:
            return answers[0]
        if not errors:
            self._is_late = True
            late = _Reason(f"no answer was complete in {self._limit_s:.0f} s", _SLOW)
            raise self.error(target, late)
        error = errors[0]
        if isinstance(error, self._refusal):
            status, code = getattr(error, "http_status_code", 0), getattr(error, "error_code", -1)
            text = str(getattr(error, "error_message", "") or "")
            reason = _explain_status(status, code or -1, text, self._watcher.hint)
        elif isinstance(error, (AttributeError, TypeError, KeyError)):
            reason = _Reason("its answer is JSON of another form", _NO_REGISTRY)
        else:
            reason = _explain_no_answer(error)
        raise self.error(target, reason) from None

    def check_text(self, schema: Any, schema_type: str, target: str) -> None:
        """Check that an answer has the text of a schema, in the form that was asked for."""
        text = schema.schema_str
        if not isinstance(text, str):
            raise self.error(target, _Reason("its answer lacks a schema", _NO_REGISTRY))
        if schema_type == PROTOBUF and self._form is not None:
            try:
                base64.b64decode(text, validate=True)
            except ValueError:
                raise self.error(target, _PROTO_TEXT) from None

    def error(self, target: str, reason: _Reason) -> SchemaRegistryError:
        """Build the error for a request, without secrets."""
        answer = _hide_login(" ".join(reason.answer.split()), self._settings).removesuffix(".")
        answer = answer if len(answer) <= _MAX_ANSWER else f"{answer[:_MAX_ANSWER]}..."
        error = SchemaRegistryError(
            f"cannot get {target} from the schema registry at {self._settings['url']}: {answer}",
            next_step=reason.next_step,
        )
        error.is_missing = reason.is_missing
        return error


class _Watcher:
    """Watches the answers to one client: waits for the time that they ask for, and notes redirects.

    confluent-kafka's client does neither: it chooses its own pauses and ignores redirects.
    """

    def __init__(self, retries: int, limit_s: float) -> None:
        self._retries = retries
        self._limit_s = limit_s
        self.begin()

    def begin(self) -> None:
        self._answers = 0
        self.hint = _Hint()
        self._deadline_s = time.monotonic() + self._limit_s

    def watch(self, client: Any) -> None:
        session: Any = getattr(getattr(client, "_rest_client", None), "session", None)
        hooks = getattr(session, "event_hooks", None)
        if isinstance(hooks, dict):
            # Assign a new dictionary: the session copies the hooks on assignment.
            session.event_hooks = {**hooks, "response": [*hooks["response"], self._note]}

    def _note(self, response: Any) -> None:
        self._answers += 1
        is_last = self._answers % (self._retries + 1) == 0
        location = response.headers.get("location") if 300 <= response.status_code < 400 else None
        wait_s = None
        if response.status_code in (429, 503):
            wait_s = read_retry_after(response.headers)
        self.hint = _Hint(location, wait_s)
        if wait_s is not None and not is_last:
            left_s = self._deadline_s - time.monotonic() - _SPARE_S
            if wait_s <= left_s:
                threading.Event().wait(wait_s)


def _describe_key(key: int | bytes) -> str:
    return f"the schema with {f'id {key}' if isinstance(key, int) else f'GUID {_format_guid(key)}'}"


def _describe_version(subject: str, version: int | str) -> str:
    which = "the latest version" if version == "latest" else f"version {version}"
    return f"{which} of subject '{subject}'"


def _format_guid(guid: bytes) -> str:
    digits = guid.hex()
    return "-".join(
        digits[begin:end] for begin, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )


def request_limit_s(settings: Mapping[str, str]) -> float:
    """Return the time limit of a request with all its tries and the pauses between them.

    >>> request_limit_s({"url": "http://a"})
    32.5
    """
    config = {**_DEFAULTS, **settings}
    tries = int(config["max.retries"]) + 1
    first_ms, max_ms = int(config["retries.wait.ms"]), int(config["retries.max.wait.ms"])
    pauses_ms = sum(min(first_ms << min(number, 30), max_ms) for number in range(tries - 1))
    addresses = len(config["url"].split(","))
    return _SPARE_S + addresses * (tries * float(config["timeout"]) + pauses_ms / 1000)


def _client_config(settings: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {**_DEFAULTS, **settings}
    config["timeout"] = float(config["timeout"])
    for key in ("max.retries", "retries.wait.ms", "retries.max.wait.ms"):
        config[key] = int(config[key])
    return config


_CONTEXT: Final = re.compile(r":\.[^:]+:")
"""The beginning of a subject in a context; each context has ids of its own."""

_MAX_REFERENCES: Final = 1_000

_SCHEMAS: Final[dict[tuple[object, ...], RegisteredSchema]] = {}
"""The schemas that this process has fetched; a registered schema never changes."""
_LOCK: Final = ProcessLock()
"""Held during a fetch, so that the threads of a process fetch a schema once."""


def find_context(subject: str | None) -> str:
    """Return the context that a subject's ids are valid in; empty for the default context.

    >>> [find_context(name) for name in (":.staging:trips-value", ":.:trips-value", "a:b")]
    [':.staging:', '', '']
    """
    match = _CONTEXT.match(subject or "")
    return match[0] if match else ""


class SchemaRegistry:
    """Fetches schemas; can be pickled, so that it can go to tasks.

    Args:
        settings: the client's configuration, as `read_registry_settings` returns it.
        schemas: (format, context, id) -> a schema that need not be fetched, such as the reader's.
            This helps new workers, which have none: Spark replaces a worker after an idle minute.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        schemas: Mapping[tuple[str, str, int | bytes], RegisteredSchema] | None = None,
    ) -> None:
        self._settings = dict(settings)
        self._schemas = dict(schemas or {})

    def __repr__(self) -> str:
        """Show only the address, because other settings are secret."""
        return f"SchemaRegistry({self._settings['url']!r})"

    def fetch_schema(
        self, key: int | bytes, format: str, subject: str | None = None
    ) -> RegisteredSchema:
        """Return the schema with an id, or with a GUID of 16 bytes, and its references.

        `subject` matters only if it names a context (`:.context:subject`).

        Raises:
            SchemaRegistryError: the registry refuses, cannot be reached, does not answer, or lacks
                the schema.
        """
        context = find_context(subject)
        if (format, context, key) in self._schemas:
            return self._schemas[format, context, key]
        cache_key = (*sorted(self._settings.items()), format, context, key)
        with _LOCK:
            if cache_key not in _SCHEMAS:
                with closing(_Client(self._settings, format)) as client:
                    registered = client.get_schema(key, subject if context else None)
                    _SCHEMAS[cache_key] = _read_schema(client, key, registered, _describe_key(key))
            return _SCHEMAS[cache_key]

    def fetch_latest(self, subject: str, format: str) -> RegisteredSchema:
        """Ask for the latest schema of `subject`, and return it with its id as `key`.

        Raises:
            SchemaRegistryError: as for `fetch_schema`, or the registry lacks the subject.
        """
        with closing(_Client(self._settings, format)) as client:
            latest = client.get_version(subject, "latest")
            target = _describe_version(subject, "latest")
            if not isinstance(latest.schema_id, int):
                raise client.error(target, _Reason("its answer lacks an id", _NO_REGISTRY))
            schema = _read_schema(client, latest.schema_id, latest.schema, target)
        return schema._replace(subject=subject, version=latest.version)


def _read_schema(client: _Client, key: int | bytes, schema: Any, target: str) -> RegisteredSchema:
    """Check an answer, and fetch its references, each after its own references."""
    schema_type = schema.schema_type or AVRO
    client.check_text(schema, schema_type, target)
    references: dict[str, SchemaReference] = {}
    visited: set[tuple[str, str, int]] = set()

    def collect(outer: Any) -> None:
        for reference in outer.references or ():
            reference_key = (reference.name, reference.subject, reference.version)
            if reference_key in visited:
                continue
            visited.add(reference_key)
            target = _describe_version(reference.subject, reference.version)
            if len(visited) > _MAX_REFERENCES:
                problem = f"it is one of more than {_MAX_REFERENCES} references of a schema"
                raise client.error(target, _Reason(problem, _NO_REGISTRY))
            inner = client.get_version(reference.subject, reference.version).schema
            client.check_text(inner, schema_type, target)
            collect(inner)
            references.setdefault(reference.name, SchemaReference(reference.name, inner.schema_str))

    collect(schema)
    return RegisteredSchema(key, schema_type, schema.schema_str, tuple(references.values()))
