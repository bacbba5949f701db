"""What can go wrong with a store, split by who is to act on it.

Every message names the column, series or store, what was found, what is accepted, and the next
step. Wrong options are `OptionError`s.
"""

__all__ = [
    "IncompatibleValue",
    "InvalidQuery",
    "NoSuchEvent",
    "NoSuchStore",
    "OutOfOrder",
    "PermissionDenied",
    "StoreBusy",
    "StoreMismatch",
    "TseriesError",
    "UnusableStore",
    "UpdateFailed",
    "WrongClock",
]


class TseriesError(Exception):
    """The base of this package's errors; only its leaves are raised."""

    def __init_subclass__(cls) -> None:
        """Call the error by the name that users import it by."""
        cls.__module__ = "pyspark_tseries"

    def __init__(self, message: str) -> None:
        if type(self) is TseriesError:
            raise TypeError("raise one of the leaves of TseriesError")
        super().__init__(message)


class UpdateFailed(TseriesError):
    """A row may not be added to its series; nothing of its batch is stored."""


class OutOfOrder(UpdateFailed):
    """A row is before its series' newest event, and option `outOfOrder` is `fail`."""


class NoSuchEvent(TseriesError):
    """An edit names no original of its series; nothing of its batch is stored."""


class IncompatibleValue(TseriesError):
    """A column is not of the type, or not of the name, that the store was created with."""


class InvalidQuery(TseriesError, ValueError):
    """A range query that cannot be built, or that does not fit a series."""


class NoSuchStore(TseriesError):
    """There is no store at this path."""


class PermissionDenied(TseriesError):
    """The store's policy does not allow it; nothing is stored and nothing is read."""


class UnusableStore(TseriesError):
    """What is at this path is no store, or one that this version cannot work with."""


class StoreBusy(TseriesError):
    """Other writers won every attempt to commit; nothing of the batch is stored."""


class WrongClock(TseriesError):
    """A clock is far ahead, of this machine or of one that wrote before; nothing is stored."""


class StoreMismatch(TseriesError):
    """A query goes on with another store than its checkpoint has written to; nothing is stored."""
