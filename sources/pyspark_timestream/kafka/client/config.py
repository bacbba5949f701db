"""Configures and creates clients of librdkafka, and keeps them from task to task.

Creating a client costs more than a small task. Spark reuses its Python workers and gives them tasks
of several queries in any order, so a pool keeps a few clients of each kind, under a key that holds
everything a client was created from.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.core.options import hide_secrets
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.client.bounded import GRACE_S, BoundedClient, call_bounded
from pyspark_timestream.kafka.client.errors import ClientLog, error_text
from pyspark_timestream.kafka.options.keys import RECORD_KEYS
from pyspark_timestream.kafka.options.options import KafkaOptions

T = TypeVar("T")

_REQUIRED: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # A position that does not exist must be an error, never a silent jump.
    "auto.offset.reset": "error",
}
_DEFAULTS: Final[dict[str, Any]] = {
    "isolation.level": RECORD_KEYS["isolation.level"],
    # Kafka's Java client checks them too; the cost is not measurable.
    "check.crcs": True,
    # Fetch buffers that fit the CPU caches make a read 10 to 20 % faster, and a smaller first
    # answer brings the first records sooner.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 2 * 1024 * 1024,
    # By default librdkafka stops fetching for a second whenever a queue was full.
    "fetch.queue.backoff.ms": 5,
    # A fetch past a range's end finds nothing, and the next range waits for its answer. Ranges only
    # hold existing records, so a broker never needs to wait for new ones.
    "fetch.wait.max.ms": 5,
}
_RECONNECT_DEFAULTS: Final[dict[str, Any]] = {
    # The first connection may wait for half of this.
    "reconnect.backoff.ms": 20,
    # As in Kafka's Java client: a restarted broker is found after one second, not ten.
    "reconnect.backoff.max.ms": 1_000,
}
_CONSUMER_PREFIXES: Final = ("group.", "fetch.", "queued.", "isolation.", "session.", "heartbeat.")
_CONSUMER_KEYS: Final = ("max.poll.interval.ms", "check.crcs", "partition.assignment.strategy")


def consumer_config(options: KafkaOptions, group: str) -> dict[str, Any]:
    """Build a consumer's configuration, with `group` unless the user names another one."""
    given = options.client
    return {"group.id": group, **_DEFAULTS, **_reconnect_settings(given), **given, **_REQUIRED}


def admin_config(options: KafkaOptions) -> dict[str, Any]:
    """Build an admin client's configuration: the user's, without keys that cause warnings."""
    given = {
        key: value
        for key, value in options.client.items()
        if not key.startswith(_CONSUMER_PREFIXES) and key not in _CONSUMER_KEYS
    }
    return {**_reconnect_settings(given), **given}


def _reconnect_settings(given: Mapping[str, str]) -> Mapping[str, Any]:
    return {} if any(name in given for name in _RECONNECT_DEFAULTS) else _RECONNECT_DEFAULTS


def create_client(given: Mapping[str, Any], make: Callable[[], T], option: str = "kafka.*") -> T:
    """Call `make`, and turn the refusal of a configuration into an `OptionError` on `option`."""
    try:
        return make()
    except KafkaException as error:
        prefix = option.removesuffix("*")
        raise OptionError(
            option,
            hide_secrets(error_text(error), given),
            "librdkafka's configuration" + (f", each name after '{prefix}'" * (prefix != option)),
            "correct the name or the value",
        ) from None


def new_logged_client(kind: Callable[..., T], config: Mapping[str, Any], log: ClientLog) -> T:
    """Create a confluent-kafka client; polling it passes its errors and log lines to `log`.

    A program's own `error_cb` is called as well.
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
    log_argument = {} if "debug" in config or "logger" in config else {"logger": log}
    return call_bounded(
        lambda: kind(logged, **log_argument), 2 * GRACE_S, "the creation of a client"
    )


def open_client(
    kind: Callable[..., Any],
    config: Mapping[str, Any],
    log: ClientLog,
    *,
    grace_s: float | None = None,
    option: str = "kafka.*",
) -> BoundedClient:
    """Create a client as both functions above do, and bound the time of its calls."""
    client = create_client(config, lambda: new_logged_client(kind, config, log), option)
    return BoundedClient(client, grace_s)


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class Pool(Generic[C]):
    """Lends items to one user at a time, and keeps some of those that are returned.

    At most `most` are idle, the one returned first is closed first, and none longer than `idle_s`
    after another one is returned. A forked child must neither use nor close its parent's items: it
    shares their connections but has none of their threads.
    """

    def __init__(
        self,
        most: int,
        idle_s: float,
        now_s: Callable[[], float] = time.monotonic,
        process: Callable[[], int] = os.getpid,
    ) -> None:
        self._most = most
        self._idle_s = idle_s
        self._now_s = now_s
        self._process = process
        self._kept: dict[Hashable, tuple[C, float]] = {}
        self._owner = process()
        self._inherited: list[object] = []

    @contextlib.contextmanager
    def acquire(self, key: Hashable, make: Callable[[], C]) -> Iterator[C]:
        """Lend the item of `key`, created by `make` if there is none; close it if the block fails.

        Two users of one key get an item each; the one returned last is kept.
        """
        self._abandon_inherited()
        pooled = self._kept.pop(key, None)
        thing = make() if pooled is None else pooled[0]
        try:
            yield thing
        except BaseException:
            thing.close()
            raise
        self._abandon_inherited()
        now_s = self._now_s()
        same = self._kept.pop(key, None)
        self._kept[key] = (thing, now_s)
        for old in [*([] if same is None else [same[0]]), *self._take_expired(now_s)]:
            old.close()

    def _take_expired(self, now_s: float) -> list[C]:
        """Remove and return the items that were idle for too long, and the oldest above `most`."""
        extra = len(self._kept) - self._most
        # The items are in the order of their return, the oldest first.
        gone = [
            key
            for place, (key, (_, since_s)) in enumerate(self._kept.items())
            if place < extra or now_s - since_s > self._idle_s
        ]
        return [self._kept.pop(key)[0] for key in gone]

    def _abandon_inherited(self) -> None:
        if self._process() != self._owner:
            # Keep them for ever: freeing one would wait for threads that this process lacks.
            self._inherited.append(self._kept)
            self._kept, self._owner = {}, self._process()
