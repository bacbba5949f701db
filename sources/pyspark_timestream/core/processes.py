"""Tools for a process, in both packages: its end, its forks, its clock, and its libraries.

- `end_quietly` ends a command without a traceback.
- `read_wall_clock` reads the clock; `leave_out_pandas` saves a process the import of pandas.
- `ProcessLock` and `begin_in_forks` start afresh in a forked process; `lazy` holds no lock at all.
- `EndRequests` asks a stream to end. Spark runs a stream's reader in a separate process beside the
  driver, and gives the program that started the query no way to reach it. Both run on one machine,
  as one user and with the driver's environment, so a request (semantics 11.12) is a file in the
  temporary directory, named after the stream's id. It is only a signal: the offset records the end.
- `load_compiled` loads what the installation compiles from C, next to its source. Without a library
  its module does the same work in Python, slower.
"""

import contextlib
import ctypes
import functools
import hashlib
import io
import logging
import os
import re
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TextIO, TypeVar, cast, overload
from weakref import WeakSet

from pyspark_timestream.errors import compose_message

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

# -- how a command ends ----------------------------------------------------------------------------

_CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""The exit code that shells give a command after its reader has gone away."""

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code that shells give a command after Ctrl-C."""


class _OutputError(BaseException):
    """Standard output cannot be written.

    Like KeyboardInterrupt it is not an Exception: else a command would blame its input or output.
    """


class _Output:
    """Standard output; it fails with `_OutputError`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        return self._call(self._stream.write, text)

    def flush(self) -> None:
        """Pass on the written text."""
        self._call(self._stream.flush)

    @staticmethod
    def _call(function: Callable[..., T], *arguments: str) -> T:
        try:
            return function(*arguments)
        except OSError as error:
            raise _OutputError from error


@contextlib.contextmanager
def _guard_output() -> Iterator[None]:
    """Write letters that the encoding lacks as escapes; write nothing where output is closed."""
    before = sys.stdout
    # Python has no such stream if its descriptor was closed before (`>&-`).
    stream = open(os.devnull, "w") if before is None else before  # noqa: SIM115
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, _Output(stream))
    try:
        yield
    finally:
        sys.stdout = before


def end_quietly(main: Callable[..., int]) -> Callable[..., int]:
    """End a command without a traceback at Ctrl-C, and when its output cannot be written.

    A reader that ends (`... | head -1`) is not worth a word.
    """

    @functools.wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        if _is_ended_by_interrupts():
            # From here on a command must clean up its work, so it needs an exception.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with _guard_output():
                code = main(arguments)
                sys.stdout.flush()
        except _OutputError as error:
            # Python flushes standard output once more at exit, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error.__cause__, BrokenPipeError):
                return _CLOSED_PIPE
            print(
                f"standard output cannot be written ({error.__cause__}): the rest of the output is "
                "lost; next step: send it to a file or a terminal that can be written",
                file=sys.stderr,
            )
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr, flush=True)
            return INTERRUPTED
        return code

    return run


def _is_ended_by_interrupts() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.SIG_DFL


# -- the wall clock, and pandas, which is left out -------------------------------------------------


def read_wall_clock() -> int:
    """Return the wall clock, in microseconds since 1970."""
    return time.time_ns() // 1_000


def leave_out_pandas() -> None:
    """Let Arrow convert values without importing pandas; for processes that run only our code.

    At the first conversion Arrow imports pandas to ask whether the value is one of pandas' own,
    which takes a quarter of a second. If that import fails, Arrow goes on without pandas until a
    call needs it, such as `to_pandas`, and imports it then.
    """
    # Imported late: a command imports this module before it knows whether it needs Arrow.
    import pyarrow as pa

    if "pandas" not in sys.modules:
        refusal = _PandasRefused()
        sys.meta_path.insert(0, refusal)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(refusal)


class _PandasRefused:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)


# -- forks and threads -----------------------------------------------------------------------------


class Inherited(Protocol):
    """An object that a forked process may use, too."""

    def begin_child(self) -> None:
        """Start afresh in a forked process: another thread of the parent may have held a lock."""


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


class ProcessLock:
    """A lock between the threads of one process; a forked child begins with a free one of its own.

    Args:
        forget: called in the child, for example to clear a cache that the lock guards.
    """

    def __init__(self, forget: Callable[[], object] | None = None) -> None:
        self._forget = forget
        self._lock = threading.Lock()
        begin_in_forks(self)

    def begin_child(self) -> None:
        """Start afresh in a forked process."""
        self._lock = threading.Lock()
        if self._forget is not None:
            self._forget()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class lazy(Generic[T]):
    """A property that is computed when it is first read, as `functools.cached_property` is.

    Up to Python 3.11 that one holds one lock for all objects of a class while it computes. Threads
    wait for each other then, for ever if the computation takes another lock. Here two threads may
    compute the same value at the same time.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
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


# -- requests to end a stream ----------------------------------------------------------------------

_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")


def find_directory(get_variable: Callable[[str], str | None] = os.environ.get) -> Path:
    """Return the temporary directory of a process with these environment variables."""
    directories = (get_variable(name) for name in _VARIABLES)
    return Path(
        next(
            (directory for directory in directories if directory and Path(directory).is_dir()),
            "/tmp",
        )
    )


class EndRequests:
    """The requests in one directory, which `find_directory` finds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self, stream: str) -> None:
        """Ask the stream with that id to end; a repeated request changes nothing.

        Raises:
            OSError: the directory is not writable, or another user owns a file of that name.
        """
        path = self._path_of(stream)
        if _is_own(path):
            return
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            if not _is_own(path):  # Another call of this user may have just made it.
                raise

    def withdraw(self, stream: str) -> None:
        """Withdraw this user's request, so that a later run of the stream does not find it."""
        path = self._path_of(stream)
        if _is_own(path):
            path.unlink(missing_ok=True)

    def take(self, stream: str, *, is_running: bool) -> bool:
        """Return whether this user asks the stream with that id to end.

        If the run has not planned its first batch yet (`is_running` is False), remove the request
        instead: a program that was killed while it waited left it behind.
        """
        # An id of another form comes from a checkpoint that this version did not begin.
        is_asked = _is_id(stream) and _is_own(self._path_of(stream))
        if is_asked and not is_running:
            self.withdraw(stream)
        return is_asked and is_running

    def _path_of(self, stream: str) -> Path:
        if not _is_id(stream):
            raise ValueError(f"'{stream}' is not the id of a stream")
        return self._directory / f"timestream-end-{stream}"


def _is_id(stream: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", stream) is not None


def _is_own(path: Path) -> bool:
    """Return whether this user owns the file: others may write to the temporary directory too."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


# -- compiled libraries ----------------------------------------------------------------------------


NATIVE_VARIABLE: Final = "TIMESTREAM_NATIVE"
"""The environment variable that lets a user choose; see `load_compiled`."""

Library = TypeVar("Library")


def load_compiled(
    library: Path, source: Path, name: str, declare: Callable[[Any], Library]
) -> Library | None:
    """Load a library; None if it was not built, comes from another source, or is disabled.

    `TIMESTREAM_NATIVE` disables it with `0` and requires it with `1`; if that is unset or empty,
    the library is used if it is available.

    Args:
        library: the compiled file.
        source: the C file that it must have been compiled from.
        name: what it is called in messages, with its article.
        declare: returns the functions of the loaded library; raises ValueError or AttributeError
            if they are not those that it knows.

    Raises:
        RuntimeError: `TIMESTREAM_NATIVE` has another value, or is `1` without a usable library.
    """
    wish = os.environ.get(NATIVE_VARIABLE) or ""
    if wish not in ("", "0", "1"):
        raise RuntimeError(
            compose_message(
                f"environment variable 'TIMESTREAM_NATIVE': '{wish}' is not a choice",
                "0 (do without native code), 1 (insist on it), or nothing",
                "set it to 0 or 1, or unset it, on the driver and the executors",
            )
        )
    if wish == "0":
        return None
    try:
        loaded = ctypes.CDLL(str(library))
        _check_digest(loaded, library, source)
        return declare(loaded)
    except (OSError, AttributeError, ValueError) as error:
        if wish == "1":
            raise RuntimeError(
                f"TIMESTREAM_NATIVE is 1, but {name} cannot be used: {error}; install "
                "timestream again where a C compiler is, or set TIMESTREAM_NATIVE to 0"
            ) from error
        if library.exists():
            _LOG.warning("going on without %s, which is slower: %s", name, error)
        return None


def declare_function(function: Any, result: Any, *arguments: Any) -> Any:
    """Set the types of a C function; return it."""
    function.restype, function.argtypes = result, arguments
    return function


def _check_digest(loaded: Any, library: Path, source: Path) -> None:
    expected = hashlib.sha256(source.read_bytes()).hexdigest().encode()
    # A library without a digest comes from another source, too.
    digest = getattr(loaded, "native_source_digest", None)
    if digest is None or declare_function(digest, ctypes.c_char_p)() != expected:
        raise ValueError(f"{library} was built from another version of {source.name}")
