"""Configuration and creation of librdkafka clients."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.connector.options import OptionError, hide_secrets
from pyspark_timestream.kafka.client.bounded import GRACE_S, BoundedClient, call_bounded
from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.retry import error_text
from pyspark_timestream.kafka.options.client_keys import RECORD_KEYS
from pyspark_timestream.kafka.options.options import KafkaOptions

__all__ = [
    "admin_config",
    "consumer_config",
    "create_client",
    "new_bounded_client",
    "new_logged_client",
]

T = TypeVar("T")

_REQUIRED: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # A missing position must be an error, never a silent jump.
    "auto.offset.reset": "error",
}
_DEFAULTS: Final[dict[str, Any]] = {
    "isolation.level": RECORD_KEYS["isolation.level"],
    # As Kafka's own client does; it costs nothing that can be measured.
    "check.crcs": True,
    # Fetch buffers that still fit the CPU caches make a read 10 to 20 % faster, and a smaller first
    # answer brings the first records sooner.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 2 * 1024 * 1024,
    # By default librdkafka stops fetching for a second once a queue was full.
    "fetch.queue.backoff.ms": 5,
    # A fetch past a range's end finds nothing, and the next range waits for its answer. All ranges
    # are of existing records, so waiting for new ones is never useful.
    "fetch.wait.max.ms": 5,
}
_RECONNECT_DEFAULTS: Final[dict[str, Any]] = {
    # The first connection may wait for half of it.
    "reconnect.backoff.ms": 20,
    # As in Kafka's Java client: a restarted broker is found after one second, not ten.
    "reconnect.backoff.max.ms": 1_000,
}
_CONSUMER_PREFIXES: Final = ("group.", "fetch.", "queued.", "isolation.", "session.", "heartbeat.")
_CONSUMER_KEYS: Final = ("max.poll.interval.ms", "check.crcs", "partition.assignment.strategy")


def consumer_config(options: KafkaOptions, group: str) -> dict[str, Any]:
    """Build a consumer's configuration, with `group` unless the user names one."""
    given = options.client
    return {"group.id": group, **_DEFAULTS, **_reconnect_settings(given), **given, **_REQUIRED}


def admin_config(options: KafkaOptions) -> dict[str, Any]:
    """Build an admin client's configuration: the user's, without keys that it would warn about."""
    given = {
        key: value
        for key, value in options.client.items()
        if not key.startswith(_CONSUMER_PREFIXES) and key not in _CONSUMER_KEYS
    }
    return {**_reconnect_settings(given), **given}


def _reconnect_settings(given: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the reconnect defaults, unless the user sets one of them."""
    return {} if any(name in given for name in _RECONNECT_DEFAULTS) else _RECONNECT_DEFAULTS


def create_client(options: KafkaOptions, make: Callable[[], T]) -> T:
    """Call `make`, and report a refused configuration as an option error.

    Raises:
        OptionError: librdkafka refuses the configuration; secrets are hidden.
    """
    try:
        return make()
    except KafkaException as error:
        raise OptionError(
            "kafka.*",
            hide_secrets(error_text(error), options.client),
            "librdkafka's configuration, each name after 'kafka.'",
            "correct the name or the value",
        ) from None


def new_logged_client(kind: Callable[..., T], config: Mapping[str, Any], log: ClientLog) -> T:
    """Create a confluent-kafka client whose errors and log lines go to `log` when it is polled.

    A program's own `error_cb` is called as well.

    Raises:
        KafkaException: librdkafka refuses the configuration.
    """
    theirs = config.get("error_cb")

    def note_error(error: KafkaError) -> None:
        # "All brokers down" adds nothing to the reason of each broker.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            log.note_error(error.code(), error.str())
        if theirs is not None:
            theirs(error)

    logged = {**config, "error_cb": note_error}
    # A user who sets librdkafka's own debug or logger gets its output unchanged.
    own = {} if "debug" in config or "logger" in config else {"logger": log}
    return call_bounded(lambda: kind(logged, **own), 2 * GRACE_S, "the creation of a client")


def new_bounded_client(
    kind: Callable[..., Any], config: Mapping[str, Any], log: ClientLog
) -> BoundedClient:
    """Create a client as `new_logged_client` does, whose calls return in time.

    Raises:
        KafkaException: librdkafka refuses the configuration.
    """
    return BoundedClient(new_logged_client(kind, config, log))
