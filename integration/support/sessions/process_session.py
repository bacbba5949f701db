"""A command in a Unix session of its own, so that all it started can be ended by one id.

PySpark's worker daemons leave their parent's process *group* (`os.setpgid(0, 0)`), but nothing of
Spark or Kafka leaves the *session*. Ending by session therefore reaches the driver, its JVM and
every Python worker, and never anything that we did not start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ProcessSession:
    """A running command and all its descendants."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self._popen = popen
        self.id = popen.pid
        self.log = log

    @classmethod
    def begin(
        cls, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> ProcessSession:
        """Start `command`; what it prints is appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        return cls(popen, log)

    @property
    def exit_code(self) -> int | None:
        """The command's own exit code; None while it runs."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Send a signal to every living member."""
        for pid in members(self.id):
            _send(pid, number)

    def freeze(self, timeout: float = 1.0) -> bool:
        """Stop every thread of every member; True when none of them can write any more.

        False is possible: a thread that waits in the kernel for a child it has just spawned cannot
        be stopped while that child is. Then check the important files after the kill.
        """
        return _until(self._frozen, timeout)

    def _frozen(self) -> bool:
        # Again and again, for processes forked after the last look.
        moving = [pid for pid in members(self.id) if not _is_frozen(pid)]
        for pid in moving:
            _send(pid, signal.SIGSTOP)
        return not moving

    def thaw(self) -> None:
        """Let frozen members go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL everything, and processes forked meanwhile, until nothing is left."""
        if not _until(self._killed, timeout=10.0):
            raise TimeoutError(f"session {self.id} survived SIGKILL: {members(self.id)}")
        self._popen.wait()

    def _killed(self) -> bool:
        self.signal(signal.SIGKILL)
        self._popen.poll()
        return not members(self.id)

    def end(self, grace: float = 10.0) -> None:
        """Ask politely, then kill."""
        self.signal(signal.SIGTERM)
        self.wait(grace)
        self.kill()

    def wait(self, timeout: float) -> int | None:
        """The command's exit code, or None if it still runs after `timeout` seconds."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, lines: int = 30) -> str:
        """The end of what was printed, for error messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def members(session: int) -> list[int]:
    """The living processes of a session."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in pids if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    """None when the process is gone, or dead and only waiting for its parent."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return None if fields is None or fields[0] in "ZX" else int(fields[3])


def _is_frozen(pid: int) -> bool:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    states = (_stat(thread / "stat") for thread in threads)
    return all(fields is None or fields[0] in "TtZX" for fields in states)


def _stat(path: Path) -> list[str] | None:
    """State, parent, group, session, ...: the fields after the name in parentheses."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def answers(address: str) -> bool:
    """Whether somebody listens at `host:port`."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, int(port))) == 0


def ends(what: Callable[[], object]) -> bool:
    """Whether `what` is no longer true within half a minute."""
    deadline = time.monotonic() + 30
    while what() and time.monotonic() < deadline:
        time.sleep(0.2)
    return not what()
