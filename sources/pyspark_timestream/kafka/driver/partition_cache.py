"""Caches the partitions of a running query, and refreshes them in the background."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from pyspark_timestream.kafka.ranges import Partition

__all__ = ["PartitionCache"]

_REFRESH_AGE_S: Final = 1.0
"""Age after which the partitions are refreshed in the background."""

_MAX_AGE_S: Final = 2.0
"""Age after which the cache is not used: rare batches must not miss new partitions."""


class PartitionCache:
    """The partitions of a running query.

    Args:
        ask: lists the partitions, from any thread.
        clock_s: a monotonic clock.
    """

    def __init__(
        self, ask: Callable[[], list[Partition]], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock_s = ask, clock_s
        self._coming: tuple[float, Future[list[Partition]]] | None = None
        self._partitions: list[Partition] = []
        self.asked_at_s = float("-inf")
        """Time of the request that returned the cached partitions."""

    def get(self, fresh: bool = False) -> list[Partition]:
        """Return the partitions as of a moment ago, or as of now if `fresh`.

        Raises:
            BrokerUnreachable: a request was needed, and the broker did not answer.
        """
        now_s = self._clock_s()
        if self._coming is not None and self._coming[1].done():
            asked_at, answer = self._coming
            self._coming = None
            if answer.exception() is None:
                self.asked_at_s, self._partitions = asked_at, answer.result()
        if fresh or now_s - self.asked_at_s > _MAX_AGE_S:
            self._coming = None
            self.asked_at_s, self._partitions = now_s, self._ask()
        elif now_s - self.asked_at_s > _REFRESH_AGE_S and self._coming is None:
            self._coming = now_s, _ask_in_background(self._ask)
        return self._partitions


def _ask_in_background(ask: Callable[[], list[Partition]]) -> Future[list[Partition]]:
    """Call `ask` in a daemon thread, which does not keep the process alive."""
    answer: Future[list[Partition]] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return answer
