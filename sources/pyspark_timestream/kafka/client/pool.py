"""What a process keeps from task to task, since making it costs more than a small task.

Spark reuses its Python workers, but hands them tasks of several queries in no order: so there are
a few things of each kind, found by a key that says all that they were made of.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["Stock"]


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class Stock(Generic[T]):
    """Lends things out, one borrower at a time, and keeps some of those that come back.

    Args:
        most: how many are kept; the ones that came back first are closed first.
        idle_s: what was not borrowed for so long is closed, when something else comes back.
        now_s: a clock that does not jump.
        process: the id of this process. A forked child must neither use nor close what its parent
            has: their threads are not in the child, and their connections are the parent's.
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
        self._of_parents: list[object] = []

    @contextlib.contextmanager
    def borrowed(self, key: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """What is kept under `key`, else what `make` makes; closed where the block fails.

        Two borrowers of one key get one each; of these the one that comes back last is kept.
        """
        self._disown()
        found = self._kept.pop(key, None)
        thing = make() if found is None else found[0]
        try:
            yield thing
        except BaseException:
            thing.close()
            raise
        self._disown()
        now_s = self._now_s()
        same = self._kept.pop(key, None)
        self._kept[key] = (thing, now_s)
        for old in [*([] if same is None else [same[0]]), *self._too_many(now_s)]:
            old.close()

    def _too_many(self, now_s: float) -> list[T]:
        """Taken out: what has waited too long, and the oldest of what is above the limit."""
        extra = len(self._kept) - self._most
        # In the order in which they came back, so that the oldest are first.
        gone = [
            key
            for place, (key, (_, since_s)) in enumerate(self._kept.items())
            if place < extra or now_s - since_s > self._idle_s
        ]
        return [self._kept.pop(key)[0] for key in gone]

    def _disown(self) -> None:
        if self._process() != self._owner:
            # Kept alive for ever: to free a client is to wait for threads that are not here.
            self._of_parents.append(self._kept)
            self._kept, self._owner = {}, self._process()
