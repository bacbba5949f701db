"""A producer's transactions, each begun by the first record or mark after the last one's end."""

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from pyspark_timestream.errors import DeliveryFailed

__all__ = ["Transaction"]

_PATIENCE_S: Final = 60.0


class Transaction:
    """The open transaction of `client`, if there is one.

    Args:
        client: a `confluent_kafka.Producer`.
        topic: for messages.
        said: an error's text without secrets.
        wanted: whether there are transactions at all; if not, every call does nothing.
    """

    def __init__(
        self, client: Any, topic: str, said: Callable[[KafkaException], str], wanted: bool
    ) -> None:
        self._client, self._topic, self._said, self._wanted = client, topic, said, wanted
        self._ready = False
        self.is_open = False

    def begin(self) -> None:
        """Open one, unless one is open."""
        if not self._wanted or self.is_open:
            return
        if not self._ready:
            self._try(self._client.init_transactions)
            self._ready = True
        self._try(self._client.begin_transaction)
        self.is_open = True

    def commit(self) -> None:
        """Commit the open one."""
        if self.is_open:
            self._try(self._client.commit_transaction)
            self.is_open = False

    def abort(self) -> None:
        """Take the open one back."""
        if self.is_open:
            self._try(self._client.abort_transaction)
            self.is_open = False

    def _try(self, step: Callable[[], None]) -> None:
        """One step of the protocol, again while the client says that it may succeed."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                step()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise DeliveryFailed(
                        f"the transaction into '{self._topic}' failed: {self._said(error)}; next "
                        "step: abort() and produce it again; after a fatal error, with a new "
                        "producer"
                    ) from None
