"""Errors of a store, one class for each kind of next step.

Every message names the column, series or store, what was found, what is accepted, and the next
step. Wrong options are `OptionError`s.
"""

from typing import Self

from pyspark_timestream.errors import ReasonedError


class TseriesError(ReasonedError):
    """Base class of this package's errors; only its subclasses are raised.

    Attributes:
        kind: a word for what happened, where a class has several; None else.
        path: of the file that it is about; None else.
    """

    def __init__(
        self,
        problem: str,
        accepts: str | None = None,
        next_step: str | None = None,
        *,
        kind: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(problem, accepts, next_step)
        self.kind, self.path = kind, path

    def with_next_step(self, next_step: str) -> Self:
        """The same error with another way on: that of the caller's own interface."""
        return type(self)(self.problem, self.accepts, next_step, kind=self.kind, path=self.path)


class UpdateFailed(TseriesError):
    """A row may not be added to its series; nothing of its batch is stored."""


class OutOfOrder(UpdateFailed):
    """A row is before its series' newest event, and option `outOfOrder` is `fail`."""


class ReplayDiffers(UpdateFailed):
    """A batch lies before the last one of its query, or is that one with other rows."""


class FutureEvent(UpdateFailed):
    """A timestamp is further after the time of its commit than option `maxFuture` allows."""


class ConditionFailed(UpdateFailed):
    """The condition of an append does not hold; nothing is stored.

    Attributes:
        sequence: the highest sequence of the series that was found, -1 if it has no event; None if
            unknown.
    """

    sequence: int | None = None


class NoSuchEvent(TseriesError):
    """An edit names an event that is not an original of its series; nothing is stored."""


class IncompatibleValue(TseriesError):
    """A column does not have the name or the type of the store's, or a value does not fit it."""


class InvalidQuery(TseriesError, ValueError):
    """A range query that cannot be built, or that does not fit a series."""


class NoSuchStore(TseriesError):
    """No store exists at this path."""


class PermissionDenied(TseriesError):
    """The store's policy does not allow it; nothing is stored and nothing is read."""


class UnusableStore(TseriesError):
    """The path holds something other than a store, or a store that this version cannot open."""


class StorageFailed(TseriesError, OSError):
    """The disk, mount or file system refuses: it is full, read-only, away, or of other rights.

    See to what the message names, then do it again. A commit is stored whole or not at all.

    Attributes:
        code: the operating system's number of the failure, such as `errno.ENOSPC`; None if unknown.
    """

    code: int | None = None


class StoreBusy(TseriesError):
    """Other writers won every attempt to commit; nothing of the batch is stored."""


class WrongClock(TseriesError):
    """The clock of this machine, or of an earlier writer, is far ahead; nothing is stored."""


class StoreMismatch(TseriesError):
    """A query's checkpoint belongs to a different store; nothing is stored."""


class HistoryChanged(TseriesError):
    """The store lacks a commit that a checkpoint has seen: an older state of it was put back."""
