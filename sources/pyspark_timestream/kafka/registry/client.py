"""A client of the schema registry whose every request ends: with an answer, or with an error.

confluent-kafka's client waits forever unless told otherwise, and its time-out is one between two
pieces of an answer. Here a request, with its tries and the pauses between them, has a limit as a
whole.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark_timestream.errors import MissingExtra
from pyspark_timestream.kafka.registry.answers import (
    Hint,
    check_files,
    configuration_error,
    late_error,
    read_retry_after,
    refusal_error,
    shape_error,
    transport_error,
)

__all__ = ["RegistryClient", "describe_key", "open_client", "request_limit_s"]

T = TypeVar("T")

_DEFAULTS: Final = {
    "timeout": "10",
    "max.retries": "2",
    "retries.wait.ms": "500",
    "retries.max.wait.ms": "2000",
}
_SPARE_S: Final = 1.0
"""For what a try does besides waiting, so that its own error comes first."""


class RegistryClient:
    """Asks the schema registry.

    Args:
        settings: the client's configuration, as `read_registry_settings` returns it.

    Raises:
        MissingExtra: the client is not installed.
        OptionError: it refuses the configuration.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        check_files(settings)
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as error:
            library = error.name or "confluent-kafka[schemaregistry]"
            raise MissingExtra.create("a schema registry", library, "registry") from None
        self._settings = settings
        self._refusal: type[Exception] = SchemaRegistryError
        self._limit_s = request_limit_s(settings)
        self._is_late = False
        try:
            self._client = SchemaRegistryClient(_client_config(settings))
        except (ValueError, TypeError, OSError) as error:
            raise configuration_error(settings, error) from None
        self._watcher = _Watcher(int({**_DEFAULTS, **settings}["max.retries"]), self._limit_s)
        self._watcher.watch(self._client)

    def close(self) -> None:
        """Close the connections, that of a request without an answer as well."""
        if self._is_late:
            # It would wait for that request.
            threading.Thread(target=self._client.close, daemon=True).start()
        else:
            self._client.close()

    def get_schema(self, key: int | bytes, form: str | None, subject: str | None) -> Any:
        """Return confluent-kafka's `Schema` with an id or a GUID.

        Args:
            key: the id or GUID.
            form: what the registry is to make of the text; None for the text itself.
            subject: a subject in the context of the id; None for the default context.
        """
        if isinstance(key, bytes):
            return self._ask(
                describe_key(key),
                lambda: self._client.get_schema_by_guid(_format_guid(key), fmt=form),
            )
        return self._ask(
            describe_key(key),
            lambda: self._client.get_schema(key, subject_name=subject, fmt=form),
        )

    def get_version(self, subject: str, version: int | str, form: str | None) -> Any:
        """Return confluent-kafka's `RegisteredSchema` of a version, or of the version `latest`.

        A version that was deleted is returned too, since another schema may refer to it; the
        latest one is always one that was not.
        """
        is_latest = version == "latest"
        return self._ask(
            f"the {version} version of subject '{subject}'"
            if is_latest
            else f"version {version} of subject '{subject}'",
            lambda: self._client.get_version(subject, version, deleted=not is_latest, fmt=form),
        )

    def _ask(self, wanted: str, request: Callable[[], T]) -> T:
        """Return the answer to `request`.

        Raises:
            SchemaRegistryError: the registry refuses, is not reached or does not answer.
        """
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
            raise late_error(self._settings, wanted, self._limit_s)
        error = errors[0]
        if isinstance(error, self._refusal):
            status, code = getattr(error, "http_status_code", 0), getattr(error, "error_code", -1)
            text = str(getattr(error, "error_message", "") or "")
            hint = self._watcher.hint
            raise refusal_error(self._settings, wanted, status, code or -1, text, hint) from None
        if isinstance(error, (AttributeError, TypeError, KeyError)):
            problem = "its answer is JSON of another form"
            raise shape_error(self._settings, wanted, problem) from None
        raise transport_error(self._settings, wanted, error) from None


class _Watcher:
    """Watches the answers of one client: waits as they ask to, and knows where they point.

    confluent-kafka's client does neither: its pauses are its own, and it follows no redirect.
    """

    def __init__(self, retries: int, limit_s: float) -> None:
        self._retries, self._limit_s = retries, limit_s
        self.begin()

    def begin(self) -> None:
        """Begin to watch a request, with its tries."""
        self._answers, self.hint = 0, Hint()
        self._deadline_s = time.monotonic() + self._limit_s

    def watch(self, client: Any) -> None:
        """Watch the answers that `client` gets."""
        session: Any = getattr(getattr(client, "_rest_client", None), "session", None)
        hooks = getattr(session, "event_hooks", None)
        if isinstance(hooks, dict):
            # Assigned as a whole: the client's session copies what it is given.
            session.event_hooks = {**hooks, "response": [*hooks["response"], self._note]}

    def _note(self, response: Any) -> None:
        self._answers += 1
        is_last = self._answers % (self._retries + 1) == 0
        moved = response.headers.get("location") if 300 <= response.status_code < 400 else None
        wait_s = None
        if response.status_code in (429, 503):
            wait_s = read_retry_after(response.headers)
        self.hint = Hint(moved, wait_s)
        if wait_s is not None and not is_last:
            left_s = self._deadline_s - time.monotonic() - _SPARE_S
            if wait_s <= left_s:
                threading.Event().wait(wait_s)


@contextmanager
def open_client(settings: Mapping[str, str]) -> Iterator[RegistryClient]:
    """Lend a client for one schema and what that refers to.

    It is not kept: a process asks once for each id, and confluent-kafka's client remembers what it
    was answered without regard to the format.

    Raises:
        OptionError: the client is not installed, or refuses the configuration.
    """
    client = RegistryClient(settings)
    try:
        yield client
    finally:
        client.close()


def describe_key(key: int | bytes) -> str:
    """Name the schema with an id or a GUID, for messages."""
    return (
        f"the schema with id {key}"
        if isinstance(key, int)
        else (f"the schema with GUID {_format_guid(key)}")
    )


def _format_guid(guid: bytes) -> str:
    digits = guid.hex()
    return "-".join(
        digits[begin:end] for begin, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )


def request_limit_s(settings: Mapping[str, str]) -> float:
    """Return the time after which a request has failed: its tries, and the pauses between them.

    >>> request_limit_s({"url": "http://a"})
    32.5
    """
    given = {**_DEFAULTS, **settings}
    tries = int(given["max.retries"]) + 1
    first_ms, most_ms = int(given["retries.wait.ms"]), int(given["retries.max.wait.ms"])
    pauses_ms = sum(min(first_ms << min(number, 30), most_ms) for number in range(tries - 1))
    addresses = len(given["url"].split(","))
    return _SPARE_S + addresses * (tries * float(given["timeout"]) + pauses_ms / 1000)


def _client_config(settings: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {**_DEFAULTS, **settings}
    config["timeout"] = float(config["timeout"])
    for key in ("max.retries", "retries.wait.ms", "retries.max.wait.ms"):
        config[key] = int(config[key])
    return config
