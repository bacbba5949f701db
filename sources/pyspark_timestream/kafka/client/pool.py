"""A pool of clients that a process keeps from task to task.

Creating a client costs more than a small task. Spark reuses its Python workers and gives them tasks
of several queries in any order, so a pool keeps a few clients of each kind. The key holds
everything that a client was created from.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["Pool"]


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class Pool(Generic[T]):
    """Lends items to one user at a time, and keeps some of those that are returned.

    Args:
        most: maximum number of idle items; the one returned first is closed first.
        idle_s: an item idle for longer is closed when another one is returned.
        now_s: a monotonic clock.
        process: returns the id of this process. A forked child must neither use nor close its
            parent's items: it has none of their threads, and shares their connections.
    """

    def __init__(
        self,
        most: int,
        idle_s: float,
        now_s: Callable[[], float] = time.monotonic,
        process: Callable[[], int] = os.getpid,
    ) -> None:
        self._most = most
        self._idle_s = idle_s
        self._now_s = now_s
        self._process = process
        self._kept: dict[Hashable, tuple[T, float]] = {}
        self._owner = process()
        self._inherited: list[object] = []

    @contextlib.contextmanager
    def acquire(self, key: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """Lend the item of `key`, creating it with `make` if needed; close it if the block fails.

        Two users of one key get an item each; the one that is returned last is kept.
        """
        self._abandon_inherited()
        found = self._kept.pop(key, None)
        thing = make() if found is None else found[0]
        try:
            yield thing
        except BaseException:
            thing.close()
            raise
        self._abandon_inherited()
        now_s = self._now_s()
        same = self._kept.pop(key, None)
        self._kept[key] = (thing, now_s)
        for old in [*([] if same is None else [same[0]]), *self._take_expired(now_s)]:
            old.close()

    def _take_expired(self, now_s: float) -> list[T]:
        """Remove and return the items idle for too long, and the oldest above the limit."""
        extra = len(self._kept) - self._most
        # In the order of their return, so that the oldest come first.
        gone = [
            key
            for place, (key, (_, since_s)) in enumerate(self._kept.items())
            if place < extra or now_s - since_s > self._idle_s
        ]
        return [self._kept.pop(key)[0] for key in gone]

    def _abandon_inherited(self) -> None:
        if self._process() != self._owner:
            # Never freed: that would wait for threads that do not exist in this process.
            self._inherited.append(self._kept)
            self._kept, self._owner = {}, self._process()
