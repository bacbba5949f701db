"""What the command lines of both packages share."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_OF_A_CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""The exit code of a command whose reader went away, as shells have it."""


def end_with_its_reader(main: Callable[..., int]) -> Callable[..., int]:
    """Let a command end without a traceback when the reader of its output has (`... | head -1`)."""

    @functools.wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        try:
            code = main(arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes standard output once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _OF_A_CLOSED_PIPE
        return code

    return run
