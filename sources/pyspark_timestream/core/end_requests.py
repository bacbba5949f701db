"""Requests to end a stream, as files that its reader looks for (semantics 11.12).

Spark runs a stream's reader in a separate process beside the driver, and gives the program that
started the query no way to reach it. Both run on one machine, as one user and with the driver's
environment, so a request to end is a file in the temporary directory, named after the stream's id.
The request is only a signal: the offset records the end.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

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
