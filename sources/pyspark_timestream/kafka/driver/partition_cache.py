"""Which partitions there are: known to every batch, and asked for again beside the batches."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from pyspark_timestream.kafka.ranges import Partition

__all__ = ["Listing"]

_AGAIN_S: Final = 1.0
"""From this age on a listing is renewed in the background."""

_STALE_S: Final = 2.0
"""Above this age it is not used: a query with rare batches must not miss what is new."""


class Listing:
    """The partitions of a running query.

    Args:
        ask: asks the broker, from any thread.
        clock_s: a clock that never jumps.
    """

    def __init__(
        self, ask: Callable[[], list[Partition]], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock_s = ask, clock_s
        self._coming: tuple[float, Future[list[Partition]]] | None = None
        self._partitions: list[Partition] = []
        self.asked_at = float("-inf")
        """When the broker was asked for what is known now."""

    def known(self, fresh: bool = False) -> list[Partition]:
        """The partitions as they were a moment ago; as they are now where `fresh`.

        Raises:
            BrokerUnreachable: the broker had to be asked at once, and did not answer.
        """
        now_s = self._clock_s()
        if self._coming is not None and self._coming[1].done():
            asked_at, answer = self._coming
            self._coming = None
            if answer.exception() is None:
                self.asked_at, self._partitions = asked_at, answer.result()
        if fresh or now_s - self.asked_at > _STALE_S:
            self._coming = None
            self.asked_at, self._partitions = now_s, self._ask()
        elif now_s - self.asked_at > _AGAIN_S and self._coming is None:
            self._coming = now_s, _begun(self._ask)
        return self._partitions


def _begun(ask: Callable[[], list[Partition]]) -> Future[list[Partition]]:
    """The answer, when it is there; the thread that waits for it keeps no process alive."""
    answer: Future[list[Partition]] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return answer
