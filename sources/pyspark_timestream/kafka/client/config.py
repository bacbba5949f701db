"""How this package configures librdkafka, creates its clients and closes them."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.connector.options import OptionError, without_secrets
from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.retry import answer_text
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.client_keys import RECORD_KEYS

__all__ = [
    "admin_config",
    "consumer_config",
    "let_go",
    "logged_client",
    "made",
]

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0
"""What closing a client takes at most, unless it waits for itself."""

_ENGINE: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # A position that the broker does not have must be an error, never a silent jump.
    "auto.offset.reset": "error",
}
_DEFAULTS: Final[dict[str, Any]] = {
    "isolation.level": RECORD_KEYS["isolation.level"],
    # As Kafka's own client does; it costs nothing that can be measured.
    "check.crcs": True,
    # Fetched memory that is used again while it is in the caches is worth 10 to 20 % of a read's
    # speed; and the first records come as soon as the first, smaller, answer.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 2 * 1024 * 1024,
    # librdkafka's default leaves a queue that was full for a moment without fetches for a second.
    "fetch.queue.backoff.ms": 5,
    # What is fetched past a range's end finds nothing, and the next range waits for its answer:
    # all ranges are of records that are there, so nobody has to wait for new ones.
    "fetch.wait.max.ms": 5,
}
_CONNECTING: Final[dict[str, Any]] = {
    # A client's first connection may wait for half of it.
    "reconnect.backoff.ms": 20,
    # As Kafka's own client; a broker that was restarted is found again after a second, not ten.
    "reconnect.backoff.max.ms": 1_000,
}
_CONSUMER_ONLY: Final = ("group.", "fetch.", "queued.", "isolation.", "session.", "heartbeat.")
_CONSUMER_ALONE: Final = ("max.poll.interval.ms", "check.crcs", "partition.assignment.strategy")


def consumer_config(options: KafkaOptions, group: str) -> dict[str, Any]:
    """A consumer's configuration; `group` unless the user names one."""
    given = options.client
    return {"group.id": group, **_DEFAULTS, **_connecting(given), **given, **_ENGINE}


def admin_config(options: KafkaOptions) -> dict[str, Any]:
    """The user's configuration without what an admin client would warn of."""
    given = {
        key: value
        for key, value in options.client.items()
        if not key.startswith(_CONSUMER_ONLY) and key not in _CONSUMER_ALONE
    }
    return {**_connecting(given), **given}


def _connecting(given: Mapping[str, str]) -> Mapping[str, Any]:
    """How soon to connect again; a user who says one of the two says both."""
    return {} if any(name in given for name in _CONNECTING) else _CONNECTING


def made(options: KafkaOptions, make: Callable[[], T]) -> T:
    """What `make` makes of the configuration.

    Raises:
        OptionError: librdkafka refuses it; the message has no secret.
    """
    try:
        return make()
    except KafkaException as error:
        raise OptionError(
            "kafka.*",
            without_secrets(answer_text(error), options.client),
            "librdkafka's configuration, each name after 'kafka.'",
            "correct the name or the value",
        ) from None


def logged_client(kind: Callable[..., T], config: Mapping[str, Any], log: ClientLog) -> T:
    """A client of confluent-kafka's whose errors and log lines go to `log`, when it is polled.

    A program's own `error_cb` hears the errors as well.

    Raises:
        KafkaException: librdkafka refuses the configuration.
    """
    theirs = config.get("error_cb")

    def note_error(error: KafkaError) -> None:
        # That all brokers are down is said beside what each of them said.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            log.note_error(error.code(), error.str())
        if theirs is not None:
            theirs(error)

    heard = {**config, "error_cb": note_error}
    # Who asks for librdkafka's own trace, or for its lines, gets all of them, where they come out.
    return kind(heard) if "debug" in config or "logger" in config else kind(heard, logger=log)


def let_go(close: Callable[[], object], patience_s: float = _CLOSING_S) -> None:
    """Close a client by `close`, and wait for that no longer than `patience_s`.

    librdkafka 2.16 may wait for itself for ever where it is closed while it is about to tell of an
    offset that it cannot read (`rd_kafka_offset_reset_op_cb`): its threads and connections are
    then left behind, rather than the task that closes it.
    """
    closing = threading.Thread(target=close, name="timestream-closing", daemon=True)
    try:
        closing.start()
    except RuntimeError:
        # Python ends, and starts no threads any more.
        close()
        return
    closing.join(patience_s)
    if closing.is_alive():
        _LOG.warning("a Kafka client did not close in %.0f s: it is left behind", patience_s)
