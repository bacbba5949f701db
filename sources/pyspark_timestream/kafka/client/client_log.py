"""Collect the errors and log lines of Kafka's client library.

librdkafka reports an unreachable broker four times a second for as long as the outage lasts. Here
the latest reason is kept under the broker's address, for the error that may end the query, and a
repeated line is logged once a minute.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyspark_timestream.connector.options import hide_secrets

__all__ = ["BrokerFailure", "ClientLog", "RepeatFilter"]

_LOG: Final = logging.getLogger(__name__)

_REPEAT_INTERVAL_S: Final = 60.0
_MAX_REMEMBERED_LINES: Final = 1_000
"""Distinct lines that are remembered; a forgotten line is logged again."""

_THREAD_PREFIX: Final = re.compile(r"^\[thrd:[^\]]*\]: ")
_BROKER: Final = re.compile(
    r"^(?:(?:\w+://)?(?P<address>[^\s/]+:\d+)/\w+|GroupCoordinator(?:/\w+)?: (?P<node>[^\s/]+:\d+))"
    r": (?P<reason>.*)$",
    re.DOTALL,
)
_STATE_SUFFIX: Final = re.compile(r" \(after \d+ms in state .*\)$")
_NUMBER: Final = re.compile(r"\d+")

_SYSLOG_WARNING: Final = 4
"""The syslog level; greater levels are less severe."""

_FAIL_FACILITY: Final = "FAIL"
"""librdkafka's log facility for a lost connection."""

_NO_CODE: Final = 0
_CLIENT_FAILURE_WINDOW_S: Final = 900.0


class BrokerFailure(NamedTuple):
    """The reason why a broker could not be reached.

    Attributes:
        code: librdkafka's error code; 0 if the reason only appeared in its log.
        reason: librdkafka's text.
        at_s: when it was reported last.
    """

    code: int
    reason: str
    at_s: float


class RepeatFilter:
    """Passes each line once a minute, with the number of repeats in between.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._passed: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, address: str, line: str) -> str | None:
        """Return the line to log, or None; lines that differ only in numbers are repeats."""
        key, now_s = f"{address} {_NUMBER.sub('#', line)}", self._now_s()
        with self._lock:
            since_s, held = self._passed.get(key, (float("-inf"), 0))
            if now_s - since_s < _REPEAT_INTERVAL_S:
                self._passed[key] = since_s, held + 1
                return None
            self._passed.pop(key, None)
            self._passed[key] = now_s, 0
            while len(self._passed) > _MAX_REMEMBERED_LINES:
                self._passed.pop(next(iter(self._passed)))
        return f"{line} ({held} more like it since)" if held else line


_REPEATS: Final = RepeatFilter()
"""Shared by all clients of this process, which report the same about the same broker."""


class ClientLog:
    """Collects errors and log lines from clients of one configuration.

    Args:
        config: librdkafka's configuration, whose secrets are hidden.
        repeats: the filter for repeated lines.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        repeats: RepeatFilter = _REPEATS,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._repeats, self._now_s = config, repeats, now_s
        self._failures: dict[str, BrokerFailure] = {}

    def note_error(self, code: int, text: str) -> None:
        """Keep an error of the client itself, under the address of the broker that it names."""
        address, reason = self._split_address(text)
        self._failures[address] = BrokerFailure(code, reason, self._now_s())

    def log(self, level: int, form: str, *values: Any) -> None:
        """Log a line from confluent-kafka, which calls this like `logging.Logger.log`."""
        # The values are the facility, the client's name, and the line.
        self._emit(level, *((str(values[0]), str(values[-1])) if values else ("", form)))

    def log_syslog(self, level: int, facility: str, line: str) -> None:
        """Log a line from librdkafka, which uses syslog levels."""
        self._emit(logging.WARNING if level <= _SYSLOG_WARNING else logging.INFO, facility, line)

    def recent_failures(self, within_s: float) -> dict[str, BrokerFailure]:
        """Return the latest failure of each broker within the last `within_s`, by address.

        Failures of the client itself, such as a token that it cannot obtain, have the address "".
        librdkafka reports these only once, so they count for longer.
        """
        now_s = self._now_s()
        limits = {"": max(within_s, _CLIENT_FAILURE_WINDOW_S)}
        return {
            at: each
            for at, each in list(self._failures.items())
            if now_s - each.at_s <= limits.get(at, within_s)
        }

    def _emit(self, level: int, facility: str, line: str) -> None:
        address, reason = self._split_address(line)
        if address and facility == _FAIL_FACILITY:
            # librdkafka raises no error when a broker closes the connection.
            known = self._failures.get(address)
            code = known.code if known and known.reason == reason else _NO_CODE
            self._failures[address] = BrokerFailure(code, reason, self._now_s())
        passed = self._repeats.filter(address, reason)
        if passed is not None:
            where = f"{address}: " if address else ""
            _LOG.log(min(level, logging.WARNING), "Kafka client: %s%s", where, passed)

    def _split_address(self, text: str) -> tuple[str, str]:
        """Split a text into the broker's address (or "") and the rest, with secrets hidden."""
        text = _STATE_SUFFIX.sub("", _THREAD_PREFIX.sub("", hide_secrets(text, self._config)))
        found = _BROKER.match(text)
        if not found:
            return "", text
        return found["address"] or found["node"], found["reason"]
