"""Shows what a step does, how long it has taken, and about how long it takes in all.

A terminal gets a progress bar that is redrawn in place; a log gets a line at the beginning, one at
the end, and one every ten seconds. As a script this file does the same for another command, and
shows the command's output only if it fails; any Python 3 runs it without further packages:

    python3 sources/pyspark_timestream/demo/progress.py "Installing the packages" 90 pip install ...
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_WIDTH = 30
_LOG_SECONDS = 10.0


class Progress:
    """The progress of a step.

    Attributes:
        done: the fraction done, from 0 to 1; None: unknown, so it is estimated from the time.
        detail: what the step does right now.
        outcome: the word printed at the end.
    """

    def __init__(self, action: str, seconds: float) -> None:
        self._action = action
        self._seconds = seconds
        self._began = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._shown_s = 0.0
        self._longest = 0
        self.done: float | None = None
        self.detail = ""
        self.outcome = "done"

    @property
    def elapsed_s(self) -> float:
        """The seconds since the step began."""
        return time.monotonic() - self._began

    def begin(self) -> None:
        """Print what the step does."""
        if not self._terminal:
            print(f"{self._action} (about {self._seconds:.0f} s)", flush=True)

    def show(self) -> None:
        """Show the progress."""
        if self._terminal:
            self._draw(self.line())
        elif self.elapsed_s - self._shown_s >= _LOG_SECONDS:
            self._shown_s = self.elapsed_s
            print(f"  {self.line()}", flush=True)

    def end(self) -> None:
        """Print the outcome and the time taken."""
        result = f"{self.outcome} after {self.elapsed_s:.0f} s"
        if self._terminal:
            self._draw(f"{self._action}: {result}")
            print()
        else:
            print(f"  {result}", flush=True)

    def line(self) -> str:
        """Return the bar, the time, and what the step does."""
        # The time is only an estimate, so it must not make the bar look complete.
        done = min(self.elapsed_s / self._seconds, 0.95) if self.done is None else self.done
        bar = ("#" * round(_WIDTH * min(done, 1.0))).ljust(_WIDTH, ".")
        timing = f"{self.elapsed_s:3.0f} s of about {self._seconds:.0f} s"
        time_shown = timing if self.done is None else f"{done:4.0%} after {self.elapsed_s:.0f} s"
        return f"[{bar}] {time_shown}  {self.detail or self._action}"

    def _draw(self, line: str) -> None:
        # A line that wraps could not be redrawn in place.
        line = line[: shutil.get_terminal_size().columns - 1]
        self._longest = max(self._longest, len(line))
        print(f"\r{line.ljust(self._longest)}", end="", flush=True)


@contextmanager
def show_progress(action: str, seconds: float) -> Iterator[Progress]:
    """Show the progress of the block, which does `action` and takes about `seconds`."""
    doing = Progress(action, seconds)
    over = threading.Event()

    def show() -> None:
        while not over.wait(0.25):
            doing.show()

    shower = threading.Thread(target=show, daemon=True)
    doing.begin()
    shower.start()
    try:
        yield doing
    except BaseException:
        doing.outcome = "stopped"
        raise
    finally:
        over.set()
        shower.join()
        doing.end()


def run_with_output(command: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run a command, pass on each line that it prints, and return its exit code."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                on_line(line)
        except BaseException:
            process.kill()
            raise
    return process.returncode


def run(action: str, seconds: float, command: Sequence[str]) -> int:
    """Run a command as a step and return its exit code; show its output if it fails."""
    lines: list[str] = []
    with show_progress(action, seconds) as doing:

        def keep(line: str) -> None:
            lines.append(line)
            doing.detail = f"{action}: {line.strip()[:60]}" if line.strip() else doing.detail

        code = run_with_output(command, keep)
        if code:
            doing.outcome = "failed"
    if code:
        print("".join(lines), end="", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
