"""Kill a Spark job with SIGKILL where it hurts, start it again, and say what was hit.

A kill point says where. The harness watches the job's files without a pause, freezes the whole job
(every thread of driver, JVM and Python workers) as soon as the point seems reached, looks again
while nothing can move, and only then kills; a false alarm lets the job go on. After the kill it
looks once more, so a hit is a fact about the files that the next start finds, and never a guess.

    result = run_killed(job, between_sink_and_checkpoint(checkpoint, store), kills=5)
    assert result.hits == 5 and result.exit_code == 0
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from process_session import ProcessSession

# Short against the time that Spark takes between two files, long enough to leave it a core.
_LOOK_SECONDS = 0.001

JOBS = Path(__file__).parents[1] / "jobs"
"""Programs that tests start, and kill."""


@dataclass(frozen=True)
class Job:
    """A Python script or module and its arguments; the same command resumes from its checkpoint."""

    target: str | Path
    arguments: Sequence[str] = ()
    log: Path = Path(".work/job.log")
    environment: Mapping[str, str] = field(default_factory=dict)

    def begin(self) -> ProcessSession:
        """Start it in a session of its own."""
        is_script = str(self.target).endswith(".py")
        run = [str(self.target)] if is_script else ["-m", str(self.target)]
        command = [sys.executable, *run, *self.arguments]
        environment = {"PYSPARK_PYTHON": sys.executable, **self.environment}
        return ProcessSession.begin(command, log=self.log, env=environment)


class KillPoint(Protocol):
    """Where to kill; armed again for every start, so that each kill is in another place."""

    def arm(self) -> None:
        """Forget what was before this start."""

    def reached(self) -> bool:
        """Whether to freeze the job now; asked about every millisecond."""

    def holds(self) -> bool:
        """Whether the point is really hit; asked while frozen, and again when dead."""


class Attempt(NamedTuple):
    """One start of the job and how it ended."""

    hit: bool
    seconds: float
    false_alarms: int
    exit_code: int | None
    """None when it was killed."""


@dataclass(frozen=True)
class KilledRuns:
    """The result of `run_killed`."""

    attempts: tuple[Attempt, ...]

    @property
    def hits(self) -> int:
        """Kills that were really where they should be."""
        return sum(attempt.hit for attempt in self.attempts)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last start, which was left to finish; 0 is success."""
        return self.attempts[-1].exit_code


class JobFailed(Exception):
    """The job ended with an error of its own; the text has the end of its log."""


def run_killed(job: Job, point: KillPoint, kills: int = 5, timeout: float = 300.0) -> KilledRuns:
    """Start, kill at the point and start again until `kills` kills hit; then let it finish.

    The job may finish before that: then `hits` is smaller, which a test has to assert.

    Args:
        job: The same command for every start.
        point: Where to kill.
        kills: How many hits are wanted.
        timeout: For all starts together.

    Raises:
        JobFailed: The job itself failed.
        TimeoutError: It did not finish in time; what runs is killed first.
    """
    deadline = time.monotonic() + timeout
    attempts: list[Attempt] = []
    while sum(attempt.hit for attempt in attempts) < kills:
        attempts.append(run_until(job, point, deadline - time.monotonic()))
        if attempts[-1].exit_code is not None:
            return KilledRuns(tuple(attempts))
    attempts.append(run_to_end(job, deadline - time.monotonic()))
    return KilledRuns(tuple(attempts))


def run_until(job: Job, point: KillPoint, timeout: float = 120.0) -> Attempt:
    """Start the job once and kill it at the point, unless it ends before."""
    point.arm()
    began = time.monotonic()
    session = job.begin()
    false_alarms = 0
    try:
        while _watch(session, point, began + timeout):
            session.freeze()
            if point.holds():
                session.kill()
                return Attempt(point.holds(), time.monotonic() - began, false_alarms, None)
            false_alarms += 1
            session.thaw()
        return Attempt(False, time.monotonic() - began, false_alarms, _ended(session))
    finally:
        session.kill()


def run_to_end(job: Job, timeout: float = 120.0) -> Attempt:
    """Start the job once and let it finish."""
    began = time.monotonic()
    session = job.begin()
    try:
        if session.wait(timeout) is None:
            raise TimeoutError(f"{job.target} still runs after {timeout:.0f} s:\n{session.tail()}")
        return Attempt(False, time.monotonic() - began, 0, _ended(session))
    finally:
        session.kill()


def _watch(session: ProcessSession, point: KillPoint, deadline: float) -> bool:
    """True when the point is reached, False when the job ended first."""
    while not point.reached():
        if session.exit_code is not None:
            return False
        if time.monotonic() > deadline:
            raise TimeoutError(f"the kill point was not reached in time:\n{session.tail()}")
        time.sleep(_LOOK_SECONDS)
    return session.exit_code is None


def _ended(session: ProcessSession) -> int:
    code = session.exit_code
    assert code is not None
    if code != 0:
        raise JobFailed(f"exit code {code}:\n{session.tail()}")
    return code


# -- kill points --------------------------------------------------------------------------------


@dataclass
class AfterSeconds:
    """This long after each start: the moment of a crash in production."""

    seconds: float

    def arm(self) -> None:
        self._due = time.monotonic() + self.seconds

    def reached(self) -> bool:
        return time.monotonic() >= self._due

    def holds(self) -> bool:
        return True


@dataclass
class When:
    """When a condition holds, and for the hit still holds when nothing moves any more."""

    condition: Callable[[], bool]

    def arm(self) -> None:
        pass

    def reached(self) -> bool:
        return self.condition()

    def holds(self) -> bool:
        return self.condition()


@dataclass
class InBatch:
    """A batch is planned (`offsets/N`) and not complete (no `commits/N`).

    Every start kills a later batch than the one before, or the batch `only`.

    Attributes:
        checkpoint: The query's checkpoint directory.
        only: Kill in this batch and no other.
        then: A further condition, given the batch; true by default.
    """

    checkpoint: Path
    only: int | None = None
    then: Callable[[int], bool] = lambda _: True

    def arm(self) -> None:
        self._before = latest(self.checkpoint / "offsets")

    def reached(self) -> bool:
        batch = latest(self.checkpoint / "offsets")
        if batch <= self._before or self.only not in (None, batch):
            return False
        return not (self.checkpoint / "commits" / str(batch)).exists() and self.then(batch)

    def holds(self) -> bool:
        return self.reached()


def between_sink_and_checkpoint(
    checkpoint: Path, store: Path, app_id: str = "", only: int | None = None
) -> InBatch:
    """The sink has committed batch N to its Delta table, Spark has not yet noted it.

    Args:
        checkpoint: The query's checkpoint directory.
        store: The Delta table.
        app_id: A part of the `appId` of the batch's `txn` action; its version is the batch id.
        only: Kill in this batch and no other.
    """
    return InBatch(checkpoint, only, DeltaLog(store, app_id).has_batch)


def between_files_and_checkpoint(
    checkpoint: Path, written: Callable[[int], bool], only: int | None = None
) -> InBatch:
    """The same for any other sink; `written` says whether the sink's own files have a batch."""
    return InBatch(checkpoint, only, written)


def latest(log: Path) -> int:
    """The newest batch in a checkpoint's `offsets` or `commits`; -1 without any."""
    try:
        names = os.listdir(log)
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def forget_batches(log: Path, after: int) -> None:
    """Leave a checkpoint's `offsets` or `commits` as a crash behind batch `after` does."""
    for entry in log.iterdir():
        number = entry.name.strip(".").removesuffix(".crc")
        if number.isdigit() and int(number) > after:
            entry.unlink()


class DeltaLog:
    """The batches in a Delta table's log; reads each entry once."""

    def __init__(self, table: Path, app_id: str = "") -> None:
        self._log = table / "_delta_log"
        self._app_id = app_id
        self._seen: set[str] = set()
        self._batches: set[int] = set()

    def has_batch(self, batch: int) -> bool:
        """Whether a commit with this transaction version is in the log."""
        for name in self._new_entries():
            self._batches.update(txn_versions(self._log / name, self._app_id))
        return batch in self._batches

    def _new_entries(self) -> Iterator[str]:
        try:
            names = set(os.listdir(self._log)) - self._seen
        except FileNotFoundError:
            return
        # A hidden or temporary name becomes an entry by a rename.
        for name in sorted(names):
            if name.endswith(".json") and name[:-5].isdigit():
                self._seen.add(name)
                yield name


def txn_versions(entry: Path, app_id: str = "") -> list[int]:
    """The versions of a log entry's `txn` actions that have `app_id` in their `appId`."""
    actions: list[dict[str, Any]] = [json.loads(line) for line in entry.read_text().splitlines()]
    txns = [action["txn"] for action in actions if "txn" in action]
    return [int(txn["version"]) for txn in txns if app_id in txn["appId"]]
