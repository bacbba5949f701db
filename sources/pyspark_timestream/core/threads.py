"""What the threads of a process may share without waiting for each other."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

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
    def __get__(self, thing: None, owner: type) -> Self: ...
    @overload
    def __get__(self, thing: object, owner: type) -> T: ...
    def __get__(self, thing: object | None, owner: type) -> Self | T:
        """Return the value, and keep it under the property's own name, where it is found first."""
        if thing is None:
            return self
        value = vars(thing)[self._name] = self._compute(thing)
        return value
