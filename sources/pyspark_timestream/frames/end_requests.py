"""Requests to end a running stream, also from clients of Spark Connect (semantics 11.12).

Spark runs a stream's reader in a separate process beside the driver, and gives the program that
started the query no way to reach it. Both run on one machine, as one user and with the driver's
environment, so the request is a file in the temporary directory, named after the stream's id. The
request is only a signal: the offset records the end.

A client of Spark Connect may run far from the driver. But Spark asks a Python data source for its
columns in a process beside the driver, with the driver's environment. So a source without rows
makes the request there.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_timestream.core.worker import hide_tracebacks

_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")


def find_directory(get_variable: Callable[[str], str | None] = os.environ.get) -> Path:
    """Return the temporary directory of a process with these environment variables."""
    given = (get_variable(name) for name in _VARIABLES)
    return Path(next((each for each in given if each and Path(each).is_dir()), "/tmp"))


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
        if not _is_own(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def withdraw(self, stream: str) -> None:
        """Withdraw the request, so that a later run of the stream does not find it."""
        self._path_of(stream).unlink(missing_ok=True)

    def take(self, stream: str, is_running: bool) -> bool:
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


_FORMAT: Final = "timestream_end_request"
_MAKE, _WITHDRAW = "make", "withdraw"


@hide_tracebacks
class EndRequestSource(DataSource):
    """Makes or withdraws the request for `stream` when Spark asks for its columns; has no rows."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name, which only this module uses."""
        return _FORMAT

    def schema(self) -> StructType:
        """Make or withdraw the request, on the driver's machine."""
        requests = EndRequests(find_directory())
        act = requests.make if self.options["act"] == _MAKE else requests.withdraw
        act(self.options["stream"])
        return StructType([StructField("stream", StringType())])


class ServerEndRequests:
    """Like `EndRequests`, but beside the driver of the Spark Connect server of a session."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._sent = 0
        spark.dataSource.register(EndRequestSource)

    def make(self, stream: str) -> None:
        """Ask the stream with that id to end; a repeated request changes nothing."""
        self._send(_MAKE, stream)

    def withdraw(self, stream: str) -> None:
        """Withdraw the request."""
        self._send(_WITHDRAW, stream)

    def _send(self, act: str, stream: str) -> None:
        self._sent += 1
        # The number makes each read differ: Spark may cache the columns of one that it has planned.
        options = {"act": act, "stream": stream, "number": str(self._sent)}
        _ = self._spark.read.format(_FORMAT).options(**options).load().schema
