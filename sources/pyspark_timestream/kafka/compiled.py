"""Loads the optional libraries that the installation compiles from C, next to their sources.

Without a library its module does the same work in Python, slower. With the environment variable
`TIMESTREAM_NATIVE` a user can disable these libraries, or require them.
"""

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark_timestream.errors import compose_message

_LOG: Final = logging.getLogger(__name__)

CHOICE: Final = "TIMESTREAM_NATIVE"
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
    wish = os.environ.get(CHOICE) or ""
    if wish not in ("", "0", "1"):
        raise RuntimeError(
            compose_message(
                f"environment variable 'TIMESTREAM_NATIVE': '{wish}' is not a choice",
                "0 (do without the native reader), 1 (insist on it), or nothing",
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
    # The first libraries had no digest.
    digest = getattr(loaded, "native_source_digest", None)
    if digest is None or declare_function(digest, ctypes.c_char_p)() != expected:
        raise ValueError(f"{library} was built from another version of {source.name}")
