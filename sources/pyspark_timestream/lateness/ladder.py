"""The delays that are tried: the user's, or a ladder from none to one day."""

from collections.abc import Sequence
from typing import Final

from pyspark_timestream.connector.instants import format_duration, parse_duration
from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.kafka.options.parsers import CTI_DELAY

__all__ = ["LADDER_US", "parse_delays", "parse_last"]

LADDER_US: Final = tuple(
    map(
        parse_duration,
        (
            *("0 seconds", "100 ms", "1 second", "2 seconds", "5 seconds", "10 seconds"),
            *("20 seconds", "1 minute", "2 minutes", "5 minutes", "10 minutes", "20 minutes"),
            *("1 hour", "2 hours", "6 hours", "12 hours", "1 day"),
        ),
    )
)
"""The delays that are tried unless the user names some; fixed, so that one pass is enough."""

_MAX_DELAYS: Final = 50


def parse_delays(texts: Sequence[str]) -> tuple[int, ...]:
    """Return the delays in microseconds, in order, each once, with 0 in front.

    Raises:
        OptionError: there is none, one cannot be read or is negative, or there are more than 50.
    """
    accepts = "durations that are not negative, such as '20 seconds,5 minutes'"
    if not texts:
        raise OptionError("delays", "there is none", accepts, "name one, or leave it out")
    found = {0}
    for text in texts:
        try:
            us = CTI_DELAY.parse(text)
        except ValueError as error:
            raise OptionError(
                "delays", f"cannot read '{text}' ({error})", accepts, "correct it"
            ) from error
        if us < 0:
            raise OptionError(
                "delays",
                f"'{text}' is negative: with it each event makes the next of its time late",
                accepts,
                "leave it out; 0 is always tried",
            )
        found.add(us)
    if len(found) > _MAX_DELAYS:
        raise OptionError(
            "delays", f"there are {len(found)}", f"at most {_MAX_DELAYS}", "leave some out"
        )
    return tuple(sorted(found))


def parse_last(text: str) -> int:
    """Return how much of a topic is read, in microseconds.

    Raises:
        OptionError: the text is not a duration above 0.
    """
    accepts = "a duration above 0, such as '6 hours'"
    try:
        us = CTI_DELAY.parse(text)
    except ValueError as error:
        raise OptionError(
            "last", f"cannot read '{text}' ({error})", accepts, "correct it"
        ) from error
    if us <= 0:
        problem = f"'{text}' ({format_duration(us)}) leaves nothing to read"
        raise OptionError("last", problem, accepts, "correct it, or leave it out")
    return us
