"""A producer's transactions, each begun by the first record or mark after the last one's end."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.client.bounded import CallAbandoned

__all__ = ["Transaction"]

_RETRY_TIMEOUT_S: Final = 60.0
_STEP_TIMEOUT_S: Final = 10.0


class Transaction:
    """The open transaction of `client`, if any.

    Args:
        client: a producer, as a `BoundedClient`.
        topic: for messages.
        error_text: an error's text without secrets.
        wanted: transactions are in use; if not, every call does nothing.
    """

    def __init__(
        self, client: Any, topic: str, error_text: Callable[[KafkaException], str], wanted: bool
    ) -> None:
        self._client, self._topic, self._error_text, self._wanted = (
            client,
            topic,
            error_text,
            wanted,
        )
        self._ready = False
        self.is_open = False

    def begin(self) -> None:
        """Open one, unless one is open."""
        if not self._wanted or self.is_open:
            return
        if not self._ready:
            self._retry(partial(self._client.init_transactions, timeout=_STEP_TIMEOUT_S))
            self._ready = True
        self._retry(self._client.begin_transaction)
        self.is_open = True

    def commit(self) -> None:
        """Commit the open one."""
        if self.is_open:
            self._retry(partial(self._client.commit_transaction, timeout=_STEP_TIMEOUT_S))
            self.is_open = False

    def abort(self) -> None:
        """Abort the open one."""
        if self.is_open:
            self._retry(partial(self._client.abort_transaction, timeout=_STEP_TIMEOUT_S))
            self.is_open = False

    def _retry(self, step: Callable[[], None]) -> None:
        """Run one step of the protocol, and retry while the client calls the error retriable."""
        deadline = time.monotonic() + _RETRY_TIMEOUT_S
        while True:
            try:
                step()
                return
            except KafkaException as error:
                is_abandoned = isinstance(error, CallAbandoned)
                is_over = is_abandoned or time.monotonic() > deadline
                if is_over or not error.args[0].retriable():
                    anew = "produce it again with a new producer, which ends this transaction"
                    raise DeliveryFailed(
                        f"the transaction into '{self._topic}' failed: {self._error_text(error)}",
                        next_step=anew
                        if is_abandoned
                        else "abort() and produce it again; after a fatal error, with a new "
                        "producer",
                    ) from None
