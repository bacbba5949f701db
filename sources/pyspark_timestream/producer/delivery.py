"""What became of a producer's records and marks: the first that failed is told to the user."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark_timestream.connector.options import without_secrets
from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.client.client_log import ClientLog

__all__ = ["DeliveryReports", "Report"]

_LATELY_S: Final = 60.0

Report = Callable[[Any, Any], None]
"""Called by the client with an error, or None, and the message."""


class DeliveryReports:
    """Hears of every delivery, and keeps the first failure until it is raised.

    Args:
        writer: the writer's name.
        topic: where records go.
        config: librdkafka's, whose secrets are hidden.
        log: what the client says, for why nothing is delivered.
    """

    def __init__(self, writer: str, topic: str, config: Mapping[str, Any], log: ClientLog) -> None:
        self._writer, self._topic, self._config, self._log = writer, topic, config, log
        self._failure: str | None = None

    def hear(self, error: Any, message: Any) -> None:
        """The report of one record or mark."""
        if error is not None:
            self.fail(self.undelivered(f"partition {message.partition()}: {error.str()}"))

    def heard_by(self, other: Report | None) -> Report:
        """A report that `other` hears too."""
        if other is None:
            return self.hear

        def both(error: Any, message: Any) -> None:
            self.hear(error, message)
            other(error, message)

        return both

    def fail(self, failure: str) -> None:
        """Keep `failure`, unless there is an earlier one."""
        self._failure = self._failure or failure

    def forget(self) -> None:
        """Give up what failed, because it was taken back on purpose."""
        self._failure = None

    def raise_failure(self) -> None:
        """Tell the user, once.

        Raises:
            DeliveryFailed: something failed since the last call.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise DeliveryFailed(failure)

    def undelivered(self, why: str) -> str:
        """The message for something that did not get into the log."""
        return (
            f"writer '{self._writer}' could not deliver to topic '{self._topic}', "
            f"{without_secrets(why, self._config)}{self._unreached()}; next step: produce again "
            "what is missing, before its time is noted"
        )

    def _unreached(self) -> str:
        """Which brokers could not be reached lately, in parentheses."""
        heard = self._log.complaints(_LATELY_S)
        said = ", ".join(
            f"{at}: {each.reason}" if at else each.reason for at, each in heard.items()
        )
        return f" ({said})" if said else ""
