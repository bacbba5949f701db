"""What the threads of a process, and its forks, may share without waiting for each other."""

import os
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, Self, TypeVar, overload
from weakref import WeakSet

T = TypeVar("T")


class lazy(Generic[T]):
    """A property that is computed when it is first read, as `functools.cached_property` is.

    That one holds a lock of the class meanwhile until Python 3.11, which makes the threads of all
    objects wait for each other, and for ever where the computation takes another lock. Here two
    threads may compute the same value at the same time.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        """Return the value, and keep it under the property's own name, where it is found first."""
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)
        return value


class Inherited(Protocol):
    """An object that a forked process may use, too."""

    def begin_child(self) -> None:
        """Begin anew in a forked process: another thread of the parent may have held a lock."""


_INHERITED: Final[WeakSet[Inherited]] = WeakSet()


def begin_in_forks(inherited: Inherited) -> None:
    """See to it that each process that is forked from this one calls `inherited.begin_child()`.

    A fork has the locks of its parent as they were, but not the threads that would release them.
    """
    _INHERITED.add(inherited)


def _begin_child() -> None:
    for inherited in list(_INHERITED):
        inherited.begin_child()


os.register_at_fork(after_in_child=_begin_child)
