"""Which time a commit may have: a wrong clock must not set the time of a store for good.

The time of commits never decreases, so one commit of the far future would date all later ones, and
every event without a timestamp of its own. Three witnesses say whether a writer's clock is right:
the time of the last commit, the clock of the storage (of another machine, where that is so), and
the next writer, whose clock says something else.

The rules are semantics 19.4.
"""

from typing import Final

from pyspark_timestream.connector.instants import clamp_instant, format_duration, format_instant
from pyspark_tseries.errors import WrongClock

__all__ = ["MOST_IDLE_US", "MOST_SKEW_US", "check_commit_time", "is_suspicious"]

MOST_SKEW_US: Final = 3_600_000_000
"""Clocks of machines differ by less than an hour."""

MOST_IDLE_US: Final = 2 * 365 * 86_400_000_000
"""After two years without a commit somebody has to say that it is so, and no clock has jumped."""

_FIRST_US: Final = 1_767_225_600_000_000
"""2026-01-01: a commit of before was made by a clock that was not set, and is no witness."""


def is_suspicious(last_us: int, now_us: int) -> bool:
    """Whether a writer's clock is so far from the last commit that the storage should be asked."""
    return abs(now_us - last_us) > MOST_SKEW_US


def check_commit_time(
    store: str, last_us: int, now_us: int, storage_us: int | None, *, same_machine: bool
) -> None:
    """Refuses a commit by a clock that is ahead, or after one that was.

    A clock that is behind does no harm: then the last commit's time is the next one's, too. A store
    that was idle goes on as if nothing were; for longer than `MOST_IDLE_US` only where the storage
    is another machine and says the same.

    Args:
        store: for people, its location.
        last_us: the time of the last commit; far in the past where there is none.
        now_us: the writer's clock.
        storage_us: the storage's clock; None where that is not known.
        same_machine: whether that may be the writer's own.

    Raises:
        WrongClock: says which clock says what, and what to do.
    """
    known_us = now_us if storage_us is None else storage_us
    said = f"this machine's clock says {_shown(now_us)}"
    if storage_us is not None:
        said += f", the storage's {_shown(storage_us)}"
    if now_us > known_us + MOST_SKEW_US:
        raise WrongClock(
            f"store '{store}': {said}; accepted: clocks less than "
            f"{format_duration(MOST_SKEW_US)} apart, or every later commit would have that time; "
            "next step: set this machine's clock. Nothing is stored"
        )
    if last_us > max(now_us, known_us) + MOST_SKEW_US:
        raise WrongClock(
            f"store '{store}': its last commit is of {_shown(last_us)}, but {said}; "
            "accepted: a last commit of the past; next step: if the clock that made it was wrong, "
            f"python -m pyspark_tseries repair {store} corrects the times of such commits; if this "
            "machine's is, set that. Nothing is stored"
        )
    idle_us = now_us - last_us
    if (storage_us is None or same_machine) and last_us >= _FIRST_US and idle_us > MOST_IDLE_US:
        raise WrongClock(
            f"store '{store}': its last commit is of {_shown(last_us)}, and {said}; "
            f"accepted: a commit within {format_duration(MOST_IDLE_US)} of the last one; next "
            "step: if this machine's clock is right, say so with: python -m pyspark_tseries repair "
            f"{store}; else set it. Nothing is stored"
        )


def _shown(us: int) -> str:
    return format_instant(clamp_instant(us))
