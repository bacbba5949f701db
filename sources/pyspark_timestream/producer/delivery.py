"""Delivery reports of a producer's records and marks; the first failure is raised to the user."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark_timestream.connector.options import hide_secrets
from pyspark_timestream.errors import DeliveryFailed, compose_message
from pyspark_timestream.kafka.client.client_log import ClientLog

__all__ = ["DeliveryReports", "Report"]

_RECENT_FAILURES_S: Final = 60.0

Report = Callable[[Any, Any], None]
"""Called by the client with an error, or None, and the message."""


class DeliveryReports:
    """Receives every delivery report, and keeps the first failure until it is raised.

    Args:
        writer: the writer's name.
        topic: where records go.
        config: librdkafka's configuration, whose secrets are hidden.
        log: the client's errors, which explain why nothing is delivered.

    Attributes:
        count: changes with each report.
    """

    def __init__(self, writer: str, topic: str, config: Mapping[str, Any], log: ClientLog) -> None:
        self._writer, self._topic, self._config, self._log = writer, topic, config, log
        self._failure: str | None = None
        self.count = 0

    def record_report(self, error: Any, message: Any) -> None:
        """The report of one record or mark."""
        self.count += 1
        if error is not None:
            self.fail(self.describe_failure(f"partition {message.partition()}: {error.str()}"))

    def combine_with(self, other: Report | None) -> Report:
        """A report callback that also calls `other`."""
        if other is None:
            return self.record_report

        def both(error: Any, message: Any) -> None:
            self.record_report(error, message)
            other(error, message)

        return both

    def fail(self, failure: str) -> None:
        """Keep `failure`, unless there is an earlier one."""
        self._failure = self._failure or failure

    def clear_failure(self) -> None:
        """Forget the failure: its records were rolled back on purpose."""
        self._failure = None

    def raise_failure(self) -> None:
        """Raise the failure, once.

        Raises:
            DeliveryFailed: something failed since the last call.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise DeliveryFailed(failure)

    def describe_failure(self, why: str) -> str:
        """The message for a record or mark that did not get into the log."""
        return compose_message(
            f"writer '{self._writer}' could not deliver to topic '{self._topic}', "
            f"{hide_secrets(why, self._config)}{self._describe_unreachable()}",
            next_step="produce again what is missing, before its time is noted",
        )

    def _describe_unreachable(self) -> str:
        """The brokers that could not be reached lately, in parentheses."""
        failures = self._log.recent_failures(_RECENT_FAILURES_S)
        reasons = ", ".join(
            f"{at}: {each.reason}" if at else each.reason for at, each in failures.items()
        )
        return f" ({reasons})" if reasons else ""
