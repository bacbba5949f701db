"""Who may produce when: many threads at a time their records, or one its marks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Gate"]


class Gate:
    """Open for all who produce; closed while one marks, who does not wait behind the others.

    Producers that never pause would starve a plain lock; so whoever wants to mark says so first,
    and producers then wait.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition(threading.RLock())
        self._count = threading.Lock()
        self._wanted = 0
        self._holder: int | None = None

    @contextmanager
    def passing(self) -> Iterator[None]:
        """For one record. A delivery callback of the marking thread itself does not wait."""
        with self._turn:
            while self._wanted and self._holder != threading.get_ident():
                self._turn.wait()
            yield

    @contextmanager
    def closed(self) -> Iterator[None]:
        """For a mark: nobody produces until it is done."""
        with self._count:
            self._wanted += 1
        with self._turn:
            outer, self._holder = self._holder, threading.get_ident()
            try:
                yield
            finally:
                self._holder = outer
                with self._count:
                    self._wanted -= 1
                self._turn.notify_all()
