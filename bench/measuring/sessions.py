"""Contenders in processes of their own, so that each has its session, workers and environment.

    with Apart(TIMESTREAM_NATIVE="0") as apart:
        compare("a job", {"peer": theirs, "timestream": apart.contender(run, "a job")})

So no contender profits from another one's warm JVM, or suffers from its heap. The processes live
all the time and take turns. A job is a function of the script, and its arguments can be pickled.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memory import workers_with
from side_by_side import Done

__all__ = ["Apart", "Fresh", "path_taken"]


class Apart:
    """A process with an environment; it ends with the `with` block."""

    def __init__(self, **environment: str) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(environment,),
        )
        self.pid = self.call(os.getpid)

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            # Its present work is not wanted any more, and may take for ever.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._pool.shutdown(cancel_futures=True)

    def call(self, job: Callable[..., Any], *given: Any) -> Any:
        """The result of `job` there.

        Raises:
            RuntimeError: it has raised something; the message is its traceback.
        """
        return self._pool.submit(_told, job, *given).result()

    def contender(self, job: Callable[..., Done], *given: Any) -> "There":
        """`job` as `compare` wants it."""
        return There(self, job, given)


def _told(job: Callable[..., Any], *given: Any) -> Any:
    # Many of Spark's exceptions cannot be pickled, and would not tell what happened.
    try:
        return job(*given)
    except Exception:
        raise RuntimeError(traceback.format_exc()) from None


def _begin(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)


@dataclass(frozen=True)
class There:
    """A contender that runs in another process; the memory of that process counts."""

    apart: Apart
    job: Callable[..., Done]
    given: tuple[Any, ...]

    def __call__(self) -> Done:
        done: Done = self.apart.call(self.job, *self.given)
        return done

    @property
    def pid(self) -> int:
        """The id of that process."""
        return self.apart.pid


class Fresh:
    """A contender with a new process for each run.

    The process of a run stays until the next one begins, or the `with` block ends, so that what it
    has spent can be read after the run.
    """

    def __init__(self, job: Callable[..., Done], *given: Any) -> None:
        self._job, self._given = job, given
        self._apart: Apart | None = None

    def __enter__(self) -> "Fresh":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._apart is not None:
            self._apart.__exit__(*error)
            self._apart = None

    @property
    def pid(self) -> int:
        """The id of the process of the next run; asking for it starts the process."""
        self.__exit__(None, None, None)
        self._apart = Apart()
        return self._apart.pid

    def __call__(self) -> Done:
        if self._apart is None:
            raise RuntimeError("pid begins the process of a run: ask for it first")
        done: Done = self._apart.call(self._job, *self._given)
        return done


def path_taken() -> str:
    """How the Python workers of this process have read Kafka, by the code they have loaded."""
    return "native" if workers_with(os.getpid(), "/native_reader.so") else "python"
