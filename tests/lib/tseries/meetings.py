"""Writers that meet: of several hosts, at the moment when one of them publishes its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from pyspark_tseries.storage.snapshot import LastIndex
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.store import RetryPolicy, Store


def without_pause(attempt: int) -> None:
    """A writer's pause between two attempts, if nobody has to wait."""


class Meeting(Store):
    """A store with a writer that meets others, on other hosts.

    Args:
        store: the same store.
        before: what happens just before its first publication, its second, and so on.
        after: what happens just after each.
        before_lock: what happens just before it is the only writer of its host, time by time.
    """

    def __init__(
        self,
        store: Store,
        *,
        before: Iterable[Callable[[], Any]] = (),
        after: Iterable[Callable[[], Any]] = (),
        before_lock: Iterable[Callable[[], Any]] = (),
        commits: int = 200,
    ) -> None:
        self._before, self._after, self._waits = iter(before), iter(after), iter(before_lock)
        super().__init__(
            store.location,
            load_table(store.location),
            host_lock=self._wait_for_lock,
            retrying=RetryPolicy(commits, pause=without_pause),
        )

    def commit_prepared(self, *given: Any, **named: Any) -> None:
        """As a store does, with the others around it."""
        _next(self._before)
        super().commit_prepared(*given, **named)
        try:
            _next(self._after)
        except Exception:
            # The answer was lost: the writer does not know that it has committed.
            self._last = LastIndex(self.location)
            raise

    def _wait_for_lock(self, location: object) -> nullcontext[None]:
        _next(self._waits)
        return nullcontext()


def _next(steps: Iterable[Callable[[], Any]]) -> None:
    for step in steps:
        step()
        break


def fail(error: BaseException) -> None:
    """Raise `error`, as a step of a meeting."""
    raise error


def rival(store: Store) -> Store:
    """The same store in a process of another host."""
    return Meeting(store)
