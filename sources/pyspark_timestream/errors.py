"""What can go wrong while a stream runs, split by who is to act on it."""

__all__ = ["CheckpointMismatch", "DataLost", "TimestreamError", "ViolationFound"]


class TimestreamError(Exception):
    """The base of this package's run-time errors; only its leaves are raised."""

    def __init__(self, message: str) -> None:
        if type(self) is TimestreamError:
            raise TypeError("raise one of the leaves of TimestreamError")
        super().__init__(message)


class CheckpointMismatch(TimestreamError):
    """The user started a checkpoint with other settings, or with older code, than it was made by."""


class ViolationFound(TimestreamError):
    """A record breaks its stream's promise and the policy is `fail`."""


class DataLost(TimestreamError):
    """Records that the checkpoint counts on are gone from the broker."""
