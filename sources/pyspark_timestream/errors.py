"""What can go wrong with a stream beyond its options, split by who is to act on it."""

from typing import Final

__all__ = [
    "LOSS_ADVICE",
    "BrokerUnreachable",
    "CheckpointMismatch",
    "CheckpointUnreadable",
    "DataLost",
    "DeliveryFailed",
    "SchemaRefused",
    "SettingRefused",
    "TimestreamError",
    "ViolationFound",
    "WrongInterpreter",
]


class TimestreamError(Exception):
    """The base of this package's run-time errors; only its leaves are raised."""

    def __init_subclass__(cls) -> None:
        """Call the error by the name that users import it by."""
        cls.__module__ = "pyspark_timestream"

    def __init__(self, message: str) -> None:
        if type(self) is TimestreamError:
            raise TypeError("raise one of the leaves of TimestreamError")
        super().__init__(message)


class CheckpointMismatch(TimestreamError):
    """The user started a checkpoint with other settings, or older code, than it was made by."""


class CheckpointUnreadable(TimestreamError):
    """The user named a place that is no checkpoint, or one that nothing can be read from."""


class SchemaRefused(TimestreamError):
    """The user asked for a column that the options do not fill, or of another type."""


class SettingRefused(TimestreamError):
    """The user's Spark session has a setting under which a helper's promise does not hold."""


class ViolationFound(TimestreamError):
    """A record breaks its stream's promise, or cannot be read, and the user wants to fail."""


LOSS_ADVICE: Final = (
    "Some data may have been lost: set option 'failOnDataLoss' to 'false' to go on with what is "
    "left, or start with a new checkpoint"
)
"""The next step that every loss of records on the way has."""


class DataLost(TimestreamError):
    """Records that the checkpoint counts on are gone from the broker."""


class BrokerUnreachable(TimestreamError):
    """The broker gave no answer, or an error that does not pass."""


class DeliveryFailed(TimestreamError):
    """The user's producer could not put a record or a mark into the log."""


class WrongInterpreter(TimestreamError):
    """Spark starts its Python workers with a Python that does not have this package."""
