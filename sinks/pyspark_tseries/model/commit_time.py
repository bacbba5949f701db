"""Checks of the time of a commit, so that one wrong clock does not spoil a store's time for good.

The time of commits never decreases. So one commit from the far future would set the time of all
later ones, and of every event without a timestamp of its own. A writer's clock is compared with
the time of the last commit and with the clock of the storage, which may be another machine's; the
clock of the next writer reveals a wrong last commit.

The rules are semantics 19.4.
"""

from typing import Final

from pyspark_timestream.connector.instants import clamp_instant, format_duration, format_instant
from pyspark_tseries.errors import WrongClock

__all__ = ["MAX_CLOCK_SKEW_US", "MAX_IDLE_US", "check_commit_time", "is_clock_suspicious"]

MAX_CLOCK_SKEW_US: Final = 3_600_000_000
"""Clocks of working machines differ by less than an hour."""

MAX_IDLE_US: Final = 2 * 365 * 86_400_000_000
"""After two idle years the user must confirm that the clock has not jumped."""

_MIN_CREDIBLE_US: Final = 1_767_225_600_000_000
"""2026-01-01: an earlier commit was made with an unset clock and proves nothing."""


def is_clock_suspicious(last_us: int, now_us: int, written_us: int | None = None) -> bool:
    """True if a writer's clock is far enough from the last commit to ask the storage's clock.

    Args:
        last_us: the time of the last commit, by its writer's clock.
        now_us: the writer's clock.
        written_us: when the storage got the last entry of the log, by its own clock; None if
            unknown. Commits that are each a little ahead of the last are seen by that.
    """
    ahead = written_us is not None and now_us - written_us > MAX_CLOCK_SKEW_US
    return ahead or abs(now_us - last_us) > MAX_CLOCK_SKEW_US


def check_commit_time(
    store: str, last_us: int, now_us: int, storage_us: int | None, *, same_machine: bool
) -> None:
    """Refuse a commit by a clock that is ahead, or after one that was.

    A clock that is behind does no harm: the next commit then has the time of the last one. A store
    that was idle longer than `MAX_IDLE_US` goes on only if another machine's storage clock agrees.

    Args:
        store: its location, for the message.
        last_us: the time of the last commit; far in the past where there is none.
        now_us: the writer's clock.
        storage_us: the storage's clock; None if unknown.
        same_machine: True if that may be the writer's own clock.

    Raises:
        WrongClock: names the clocks, their times, and the next step.
    """
    known_us = now_us if storage_us is None else storage_us
    said = f"this machine's clock says {_format_clamped(now_us)}"
    if storage_us is not None:
        said += f", the storage's {_format_clamped(storage_us)}"
    if now_us > known_us + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': {said}",
            f"clocks less than {format_duration(MAX_CLOCK_SKEW_US)} apart, or every later commit "
            "would have that time",
            "set this machine's clock. Nothing is stored",
        )
    if last_us > max(now_us, known_us) + MAX_CLOCK_SKEW_US:
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, but {said}",
            "a last commit of the past",
            f"if the clock that made it was wrong, python -m pyspark_tseries repair {store} "
            "corrects the times of such commits; if this machine's is, set that. Nothing is stored",
        )
    idle_us = now_us - last_us
    if (
        (storage_us is None or same_machine)
        and last_us >= _MIN_CREDIBLE_US
        and idle_us > MAX_IDLE_US
    ):
        raise WrongClock(
            f"store '{store}': its last commit is of {_format_clamped(last_us)}, and {said}",
            f"a commit within {format_duration(MAX_IDLE_US)} of the last one",
            "if this machine's clock is right, say so with: python -m pyspark_tseries repair "
            f"{store}; else set it. Nothing is stored",
        )


def _format_clamped(us: int) -> str:
    return format_instant(clamp_instant(us))
