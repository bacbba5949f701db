"""What Kafka's client library says: why each broker cannot be reached, and lines for the log.

librdkafka tells of a broker that does not answer four times a second, for as long as it is so. Here
each reason is kept under the broker's address, for the error that ends the query, and a line that
repeats is logged once a minute.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyspark_timestream.connector.options import without_secrets

__all__ = ["ClientLog", "Complaint", "RepeatFilter"]

_LOG: Final = logging.getLogger(__name__)

_EVERY_S: Final = 60.0
_MAX_LINES: Final = 1_000
"""How many different lines are remembered; a line that was forgotten is logged again."""

_THREAD: Final = re.compile(r"^\[thrd:[^\]]*\]: ")
_BROKER: Final = re.compile(
    r"^(?:(?:\w+://)?(?P<address>[^\s/]+:\d+)/\w+|GroupCoordinator(?:/\w+)?: (?P<node>[^\s/]+:\d+))"
    r": (?P<reason>.*)$",
    re.DOTALL,
)
_STATE: Final = re.compile(r" \(after \d+ms in state .*\)$")
_NUMBER: Final = re.compile(r"\d+")

_WARNING: Final = 4
"""syslog's; greater is less."""

_FAILED: Final = "FAIL"
"""librdkafka's facility for the end of a connection."""

_NO_CODE: Final = 0
_TOLD_ONCE_S: Final = 900.0


class Complaint(NamedTuple):
    """Why a broker could not be reached.

    Attributes:
        code: librdkafka's; 0: it was only in a line of its log.
        reason: in its words.
        at_s: when it was said last.
    """

    code: int
    reason: str
    at_s: float


class RepeatFilter:
    """Lets a line pass once a minute, with the number of those that were held back.

    Args:
        now_s: a clock that does not jump.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._passed: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def pass_on(self, address: str, line: str) -> str | None:
        """The line to log, if any; lines of an address that differ in numbers only are the same."""
        key, now_s = f"{address} {_NUMBER.sub('#', line)}", self._now_s()
        with self._lock:
            since_s, held = self._passed.get(key, (float("-inf"), 0))
            if now_s - since_s < _EVERY_S:
                self._passed[key] = since_s, held + 1
                return None
            self._passed.pop(key, None)
            self._passed[key] = now_s, 0
            while len(self._passed) > _MAX_LINES:
                self._passed.pop(next(iter(self._passed)))
        return f"{line} ({held} more like it since)" if held else line


_REPEATS: Final = RepeatFilter()
"""Of all clients of this process: they say the same of the same broker."""


class ClientLog:
    """Hears what one or several clients of one configuration say.

    Args:
        config: librdkafka's configuration, whose secrets are hidden.
        repeats: decides what is logged.
        now_s: a clock that does not jump.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        repeats: RepeatFilter = _REPEATS,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._repeats, self._now_s = config, repeats, now_s
        self._complaints: dict[str, Complaint] = {}

    def note_error(self, code: int, text: str) -> None:
        """Keep an error of the client itself, under the address of the broker that it names."""
        address, reason = self._parts(text)
        self._complaints[address] = Complaint(code, reason, self._now_s())

    def log(self, level: int, form: str, *values: Any) -> None:
        """Log a line of confluent-kafka's, which calls this as `logging.Logger.log`."""
        # Its values are the facility, the client's name, and the line.
        self._emit(level, *((str(values[0]), str(values[-1])) if values else ("", form)))

    def log_syslog(self, level: int, facility: str, line: str) -> None:
        """Log a line of librdkafka's own, whose levels are syslog's."""
        self._emit(logging.WARNING if level <= _WARNING else logging.INFO, facility, line)

    def complaints(self, within_s: float) -> dict[str, Complaint]:
        """The last reason of each broker of the last `within_s`, by address; "" for none.

        What is about no broker, such as a token that cannot be had, librdkafka tells once, however
        long it lasts: it counts for longer.
        """
        now_s = self._now_s()
        limits = {"": max(within_s, _TOLD_ONCE_S)}
        return {
            at: each
            for at, each in list(self._complaints.items())
            if now_s - each.at_s <= limits.get(at, within_s)
        }

    def _emit(self, level: int, facility: str, line: str) -> None:
        address, reason = self._parts(line)
        if address and facility == _FAILED:
            # Of a connection that a broker ends, librdkafka makes no error.
            known = self._complaints.get(address)
            code = known.code if known and known.reason == reason else _NO_CODE
            self._complaints[address] = Complaint(code, reason, self._now_s())
        passed = self._repeats.pass_on(address, reason)
        if passed is not None:
            where = f"{address}: " if address else ""
            _LOG.log(min(level, logging.WARNING), "Kafka client: %s%s", where, passed)

    def _parts(self, text: str) -> tuple[str, str]:
        """The broker's address in a text, or "", and the text without it, secrets hidden."""
        text = _STATE.sub("", _THREAD.sub("", without_secrets(text, self._config)))
        found = _BROKER.match(text)
        if not found:
            return "", text
        return found["address"] or found["node"], found["reason"]
