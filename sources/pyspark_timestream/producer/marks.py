"""The marks that a producer puts among its records, and the checks of its arguments.

A mark is a record without key and value; its headers name a time and its writer. Semantics 4.1 to
4.5 define its effect on readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark_timestream.core.instants import (
    check_instant,
    format_instant,
    from_datetime,
    parse_instant,
)
from pyspark_timestream.errors import OptionError, compose_message

Headers = list[tuple[str, bytes]]

_FALSE: Final = ("false", "0", "f")


def is_idempotent(config: Mapping[str, Any]) -> bool:
    """Return whether librdkafka's configuration leaves idempotence on."""
    return str(config.get("enable.idempotence", True)).strip().lower() not in _FALSE


def is_writer_name(name: str) -> bool:
    """Return whether a name fits into the comma list of the reader's option `writers`."""
    return bool(name) and "," not in name and name == name.strip()


@dataclass(frozen=True, slots=True)
class Writer:
    """The name of a writer of marks, and the header it uses.

    Attributes:
        name: the writer, as the reader's option `writers` would list it.
        header: the header of the reader's option `ctiHeader`.

    Raises:
        OptionError: the name does not fit into a comma list, or the header is empty.
    """

    name: str
    header: str

    def __post_init__(self) -> None:
        if not is_writer_name(self.name):
            raise OptionError(
                "writer_id",
                repr(self.name),
                "a name without commas and without blanks at its ends",
                "give each writer a name of its own that stays the same over restarts",
            )
        if not self.header:
            raise OptionError(
                "cti_header", "''", "the name of a record header", "leave it out for 'cti'"
            )

    def mark(self, time_us: int) -> Headers:
        """Return the headers of this writer's mark at `time_us`.

        >>> Writer("a", "cti").mark(0)
        [('cti', b'1970-01-01T00:00:00Z'), ('cti-writer', b'a')]
        """
        return [(self.header, format_instant(time_us).encode()), *self._writer_headers()]

    def close_mark(self, time_us: int | None) -> Headers:
        """Return the headers that end this writer; `time_us` is the last time it noted, if any."""
        headers = self.mark(time_us) if time_us is not None else self._writer_headers()
        return [*headers, (f"{self.header}-close", b"true")]

    def _writer_headers(self) -> Headers:
        return [(f"{self.header}-writer", self.name.encode())]


def parse_mark_time(time: datetime | str) -> int:
    """Return the instant that a user notes, in microseconds.

    Args:
        time: a datetime with a zone, or ISO-8601 text (without a zone it is UTC).

    Raises:
        ValueError: `time` is neither, or outside the years 1 to 9999.
    """
    if isinstance(time, str):
        return parse_instant(time)
    if not isinstance(time, datetime):
        raise ValueError(
            compose_message(
                f"{time!r} is not a time",
                "a datetime with a zone, or ISO-8601 text",
                "note_time(datetime.now(UTC))",
            )
        )
    if time.tzinfo is None:
        raise ValueError(
            compose_message(
                f"{time!r} has no zone, and this machine's must not decide",
                "a datetime with a zone",
                "add tzinfo=UTC",
            )
        )
    return check_instant(from_datetime(time))


def require_idempotence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Switch idempotence on in the user's configuration, so that retries keep the order.

    Raises:
        OptionError: the user turned idempotence off.
    """
    if not is_idempotent(config):
        raise OptionError(
            "enable.idempotence",
            f"'{config['enable.idempotence']}'",
            "true: without it a retried record can land behind a mark",
            "leave it out",
        )
    return {**config, "enable.idempotence": True}
