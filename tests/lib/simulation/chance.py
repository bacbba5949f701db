"""One seed decides everything: what happens next, how long it takes, and what dies meanwhile.

Simulated code calls `Chance.point` when it waits for somebody else: a broker, a disk, a clock.
There the clock moves, others act, and the process may be killed. So a run is a function of its seed
and of `faults`, the number of steps until nothing fails any more: the least number that still fails
makes the failure small.
"""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH_US = 1_700_000_000_000_000
_BEGIN_US = 1_000_000_000
_DEEPEST = 2
"""How many processes may be interrupted at once, each by the next."""


class Killed(BaseException):
    """The process is gone (SIGKILL): nothing that follows in it has an effect."""


class Process:
    """A process of the simulation.

    Attributes:
        is_dead: whether it was killed, or has ended.
        parent: the driver of an executor.
        executors: the executors of a driver.
    """

    def __init__(self, name: str, parent: "Process | None" = None) -> None:
        self.name, self.parent, self.is_dead = name, parent, False
        self.executors: list[Process] = []


class Job:
    """A call that a process makes beside its own work, some time later."""

    def __init__(self, chance: "Chance", call: Callable[[], Any]) -> None:
        self._chance, self._call = chance, call
        self._owner = chance.current
        self._outcome: tuple[Any, BaseException | None] | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._outcome is not None

    def run(self) -> None:
        """Make the call, unless its process has died."""
        if self._outcome is not None or (self._owner and self._owner.is_dead):
            return
        self._chance.forget(self)
        try:
            with self._chance.running(self._owner):
                self._outcome = self._call(), None
        except Exception as error:
            self._outcome = None, error
        except Killed as killed:
            self._outcome = None, killed

    def exception(self) -> BaseException | None:
        """The error that it raised, as `Future.exception`."""
        self.run()
        if self._outcome is None:
            raise Killed  # Its process died, as by a loss of power.
        error = self._outcome[1]
        if isinstance(error, Killed):
            raise error
        return error

    def result(self) -> Any:
        """Its result, as `Future.result`."""
        error = self.exception()
        if error is not None:
            raise error
        assert self._outcome is not None
        return self._outcome[0]


class Beside:
    """An executor that makes its calls at some later point."""

    def __init__(self, chance: "Chance") -> None:
        self._chance = chance

    def submit(self, call: Callable[..., Any], *given: Any) -> Job:
        """Make the call some time later; a kill of the process loses it."""
        return self._chance.later(lambda: call(*given))


class Chance:
    """The seed's decisions, its clock, and its processes.

    Args:
        seed: decides everything.
        faults: after this many steps nothing fails any more; None for no such limit.
    """

    def __init__(self, seed: int, faults: int | None = None) -> None:
        self.seed, self.faults = seed, faults
        self.random = random.Random(seed)
        self.steps = 0
        self.is_quiet = False
        """True while nothing fails and nobody interrupts."""
        self.kill_rate = self.interrupt_rate = self.fault_rate = 0.0
        self.hits: Counter[str] = Counter()
        """The events that have happened, and how often."""
        self.jobs: list[Job] = []
        self.interrupt: Callable[[], object] = lambda: None
        """Lets somebody else act."""
        self.on_switch: Callable[[Process | None], object] = lambda process: None
        """Is told of the process that goes on."""
        self.on_kill: Callable[[Process], object] = lambda process: None
        """Is told of a kill, at the moment it happens."""
        self._monotonic_us = _BEGIN_US
        self.wall_ahead_us = EPOCH_US - self._monotonic_us
        self._stack: list[Process | None] = []
        self._depth = 0
        self.thread = threading.get_ident()

    # -- decisions

    @property
    def is_faulty(self) -> bool:
        """Whether anything may fail now."""
        return not self.is_quiet and (self.faults is None or self.steps < self.faults)

    def happens(self, rate: float) -> bool:
        """Draw whether something of this probability happens; always draws."""
        return self.random.random() < rate

    def fails(self, kind: str, share: float = 1.0) -> bool:
        """Draw whether a fault happens, with `share` of the seed's rate; count it."""
        hit = self.happens(self.fault_rate * share) and self.is_faulty
        self.hits[kind] += hit
        return hit

    def pick(self, of: Sequence[T]) -> T:
        """Draw one."""
        return self.random.choice(of)

    # -- time

    def monotonic_us(self) -> int:
        """The clock that never jumps."""
        return self._monotonic_us

    def monotonic(self) -> float:
        """The clock that never jumps, in seconds."""
        return self._monotonic_us / 1e6

    def wall_us(self) -> int:
        """The clock on the wall."""
        return self._monotonic_us + self.wall_ahead_us

    @property
    def elapsed_s(self) -> float:
        """The seconds that have passed in the simulation."""
        return (self._monotonic_us - _BEGIN_US) / 1e6

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._monotonic_us += max(int(seconds * 1e6), 1)

    def sleep(self, seconds: float) -> None:
        """Wait; others act meanwhile."""
        self.advance(seconds)
        self.point("sleep")

    # -- processes

    @property
    def current(self) -> Process | None:
        """The process that runs now."""
        return self._stack[-1] if self._stack else None

    def is_running(self, process: Process) -> bool:
        """Whether it runs, or was interrupted."""
        return process in self._stack

    @contextlib.contextmanager
    def running(self, process: Process | None) -> Iterator[None]:
        """Run the block in the process."""
        self._stack.append(process)
        self.on_switch(process)
        try:
            yield
        finally:
            self._stack.pop()
            self.on_switch(self.current)

    def kill(self, process: Process, where: str) -> None:
        """Kill a process at this moment."""
        self.hits[f"kill at {where}"] += 1
        process.is_dead = True
        self.on_kill(process)

    def point(self, where: str) -> None:
        """Code that is simulated waits for somebody here."""
        process = self.current
        if process is not None and process.is_dead:
            raise Killed
        self.steps += 1
        self._monotonic_us += self.random.randrange(1, 4_000)
        die, yields = self.random.random(), self.random.random()
        if not self.is_faulty:
            return
        if process is not None and die < self.kill_rate:
            self.kill(process, where)
            raise Killed
        if yields < self.interrupt_rate and self._depth < _DEEPEST:
            self._depth += 1
            try:
                self.interrupt()
            finally:
                self._depth -= 1
            if process is not None and process.is_dead:
                raise Killed

    def later(self, call: Callable[[], Any]) -> Job:
        """Make a call of the current process some time later."""
        job = Job(self, call)
        self.jobs.append(job)
        return job

    def forget(self, job: Job) -> None:
        """Take a job off the list."""
        if job in self.jobs:
            self.jobs.remove(job)

    def run_a_job(self) -> None:
        """Run one of the calls that wait."""
        if self.jobs:
            self.pick(self.jobs).run()
