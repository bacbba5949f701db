"""A whole chain of real parts: a broker, two topics, a driver and its stand-by, stores, clients."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import chaos_driver
import chaos_parts
from broker import begin_container, started, wait_until_ready
from chaos_clock import Clock
from chaos_disks import Disk
from chaos_driver import QUERIES, Places
from confluent_kafka import IsolationLevel
from harness import latest
from kafka_cluster import KafkaCluster, kafka_cluster
from kafka_container import KafkaContainer
from kafka_process import KafkaProcess
from process_session import ProcessSession, members

LIMIT_S = 300.0
"""A part that has not gone on by then hangs."""

PRODUCERS = ("late", "broken", "transactions")


class Stuck(AssertionError):
    """A part of the chain did not go on after a fault."""


def wait_until(holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Return what `holds` returns once it is true."""
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise Stuck(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.03)
    return found


class Lines:
    """The JSON lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self.all: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def update(self) -> list[dict[str, Any]]:
        """All lines so far."""
        with self._lock:
            if self._path.exists():
                with self._path.open("rb") as file:
                    file.seek(self._read)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._read += len(whole)
                self.all += [json.loads(line) for line in whole.splitlines()]
            return self.all[:]

    def since(self, at: float) -> list[dict[str, Any]]:
        """Those from then on; they are in order."""
        return list(itertools.takewhile(lambda line: line["at"] >= at, reversed(self.update())))[
            ::-1
        ]


class Driver:
    """A driver with its session, ready or getting ready."""

    def __init__(self, places: Places, logs: Path, number: int, clock: Clock) -> None:
        self.events = Lines(logs / f"driver-{number}.events")
        command = [sys.executable, chaos_driver.__file__, json.dumps(places)]
        log = logs / f"driver-{number}.log"
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [*command, str(logs / f"driver-{number}.events")],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, **clock.environment},
            )  # fmt: skip
        self.session = ProcessSession(self._popen, log)
        self.pid = self._popen.pid

    def order(self, **order: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(order).encode() + b"\n")
        self._popen.stdin.flush()

    def wait_until_ready(self) -> None:
        wait_until(self._is_ready, f"a driver that begins\n{self.session.log}")

    def _is_ready(self) -> bool:
        if self.session.exit_code is not None:
            raise Stuck(f"a driver ended by itself:\n{self.session.tail()}")
        return any(line["is"] == "ready" for line in self.events.update())

    def begin_to_end(self) -> None:
        """Ask it to stop its queries and end."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def end(self) -> int:
        """Ask it to stop its queries and end; return its exit code."""
        self.begin_to_end()
        code = self.session.wait(60)
        self.session.kill()
        return -signal.SIGKILL if code is None else code


class Parts:
    """Stores on disks of their own, and the processes that work on them."""

    DISKS: ClassVar = {"stores": 512, "checkpoints": 512}
    """The names of disks, and how many megabytes each has."""

    def __init__(self, place: Path, stack: ExitStack, *, disks: bool) -> None:
        self.place, self.logs = place, place / "logs"
        self.logs.mkdir(parents=True)
        self.disks: dict[str, Disk] = {}
        for name, megabytes in self.DISKS.items():
            if disks:
                self.disks[name] = Disk(place / name, megabytes)
            else:
                (place / name).mkdir()
        (place / "tmp").mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
        self.stores, self.checkpoints = place / "stores", place / "checkpoints"
        chaos_driver.create_stores(self.stores)
        self.begun = time.time()
        self.parts: dict[str, int] = {}
        self.ended: dict[int, int] = {}
        self._lines: dict[str, Lines] = {}
        self._begin_zygote(stack)
        self.striking = {name: threading.Lock() for name in self.part_kinds()}

    def part_kinds(self) -> dict[str, tuple[str, list[Any]]]:
        """Each part's kind and arguments."""
        windows, rollup = str(self.stores / "windows"), str(self.stores / "rollup")
        notes = str(self.stores / "notes")
        return {
            "writer-0": ("write", [windows]),
            "editor-0": ("edit", [windows, 1]),
            "editor-1": ("edit", [windows, 2]),
            "follower-0": ("follow", [windows, str(self.place / "seen-0")]),
            "follower-1": ("follow", [windows, str(self.place / "seen-1")]),
            "appender-0": ("append", [notes]),
            "appender-1": ("append", [notes]),
            "roller-0": ("roll", [windows, rollup]),
            "compactor-0": ("maintain", [windows, rollup, notes]),
        }

    def messages(self, since: float) -> list[tuple[str, str]]:
        """The errors that operators saw since then: the place, and what `why` said."""
        return [
            (name.split("-")[0], f"{line['error']}: {line['message']}")
            for name in self.part_kinds()
            for line in self.lines(name).since(since)
            if "message" in line
        ]

    def keep_for_a_look(self) -> None:
        """Copy what is on the disks, which end with this process."""
        for name in ("stores", "checkpoints"):
            shutil.copytree(self.place / name, self.place / f"{name}-kept", dirs_exist_ok=True)

    def begin_parts(self) -> None:
        for name in self.part_kinds():
            self.begin_part(name)

    def _begin_zygote(self, stack: ExitStack) -> None:
        command = [sys.executable, chaos_parts.__file__, str(self.logs)]
        output = (self.logs / "parts.log").open("ab")
        self._zygote = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        stack.callback(self._zygote.wait)
        stack.callback(self._zygote.kill)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            told = json.loads(line)
            if "ended" in told:
                self.ended[told["ended"]] = told["code"]
            else:
                self.parts[told["begun"]] = told["pid"]

    def lines(self, name: str) -> Lines:
        return self._lines.setdefault(name, Lines(self.logs / f"{name}.log"))

    def begin_part(self, name: str) -> int:
        """Fork it; its process."""
        assert self._zygote.stdin is not None
        kind, arguments = self.part_kinds()[name]
        self.parts.pop(name, None)
        asked = {"name": name, "kind": kind, "arguments": arguments}
        self._zygote.stdin.write(json.dumps(asked).encode() + b"\n")
        self._zygote.stdin.flush()
        return int(wait_until(lambda: self.parts.get(name), f"the process of {name}"))

    def doing(self, name: str) -> str:
        """The step that a part is in, or `idle`."""
        try:
            return (self.logs / f"{name}.state").read_text().strip()
        except FileNotFoundError:
            return "idle"

    def has_gone_on(self, name: str, since: float) -> bool:
        """Whether a part has done a step without an error since then."""
        return any(
            not {"begun", "message", "tried"} & line.keys()
            for line in self.lines(name).since(since)
        )

    def end_part(self, name: str) -> None:
        """End it between two steps."""
        pid = self.parts.pop(name)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(pid), f"a frozen {name}")
            if self.doing(name) == "idle":
                break
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid in self.ended, f"the end of {name}")


class Chain(Parts):
    """The whole chain: with brokers, and a driver with its stand-by."""

    DISKS: ClassVar = {**Parts.DISKS, "spill": 256}

    def __init__(
        self, place: Path, stack: ExitStack, *, disks: bool, master: str, tier: str, lean: bool
    ) -> None:
        self._is_lean = lean
        self._begin_brokers(stack, tier)
        place.mkdir(parents=True)
        self.clock = Clock(place)
        source = self.broker.create_topic("events", chaos_parts.PARTITIONS)
        target = self.broker.create_topic("windows", 2)
        disk_places = (str(place / name) for name in ("stores", "checkpoints", "spill"))
        self.places = Places(self.broker.bootstrap, source, target, *disk_places, master)
        # Two cores are for the driver first.
        os.environ["CHAOS_PACE"] = "4"
        super().__init__(place, stack, disks=disks)
        self._drivers: list[Driver] = []
        stack.callback(self._end_drivers)
        self.driver, self.spare = self.begin_driver(), self.begin_driver()
        self.begin_parts()
        self.driver.wait_until_ready()
        self.driver.order(start=QUERIES)

    # -- brokers ---------------------------------------------------------------------------------

    def _begin_brokers(self, stack: ExitStack, tier: str) -> None:
        """One in a process or a container, or a cluster of three processes."""
        self._cluster: KafkaCluster | None = None
        self.brokers: list[KafkaProcess | KafkaContainer]
        if tier == "three":
            self._cluster = stack.enter_context(kafka_cluster())
            self.broker, self.brokers = self._cluster.broker, [*self._cluster.nodes]
        else:
            begin = {"process": KafkaProcess, "container": begin_container}[tier]
            self.broker = started(tier, begin)
            assert self.broker.server is not None
            stack.callback(self.broker.server.close)
            self.brokers = [self.broker.server]  # type: ignore[list-item]

    def wait_for_brokers(self) -> None:
        """Until all of them answer, and have all records."""
        if self._cluster is not None:
            self._cluster.wait_until_in_sync()
        else:
            wait_until_ready(self.broker.bootstrap, self.brokers[0].failure)

    # -- drivers ---------------------------------------------------------------------------------

    def begin_driver(self) -> Driver:
        self._drivers.append(Driver(self.places, self.logs, len(self._drivers), self.clock))
        return self._drivers[-1]

    def _end_drivers(self) -> None:
        for driver in self._drivers:
            driver.session.kill()

    def take_over(self) -> None:
        """Let the stand-by run the queries, and another one stand by."""
        self.spare.wait_until_ready()
        self.driver = self.spare
        self.driver.order(start=QUERIES)
        self.spare = self.begin_driver()

    def committed(self, query: str) -> int:
        return latest(self.checkpoints / query / "commits")

    def planned(self, query: str) -> int:
        return latest(self.checkpoints / query / "offsets")

    def stop_query(self, name: str) -> None:
        at = time.time()
        self.driver.order(stop=name)
        wait_until(
            lambda: any(
                line["is"] == "stopped" and line["query"] == name
                for line in self.driver.events.since(at)
            ),
            f"the end of query {name}",
        )

    def messages(self, since: float) -> list[tuple[str, str]]:
        """Those of queries first."""
        found = [
            (f"query {line['query']}", line["message"])
            for driver in self._drivers
            for line in driver.events.since(since)
            if line["is"] == "failed"
        ]
        return found + super().messages(since)

    def part_kinds(self) -> dict[str, tuple[str, list[Any]]]:
        """Producers in place of the writer."""
        send = [self.places.bootstrap, self.places.source, self.begun]
        kinds = super().part_kinds()
        del kinds["writer-0"]
        for number, kind in enumerate(PRODUCERS):
            kinds[f"producer-{kind}"] = ("produce", [*send, kind, number])
        if self._is_lean:
            wanted = ("producer", "editor-0", "follower-0")
            kinds = {name: kind for name, kind in kinds.items() if name.startswith(wanted)}
        return kinds

    def dump_threads(self, name: str) -> None:
        """Java's threads go to the driver's log, Python's to a file each if py-spy is there."""
        look = shutil.which("py-spy")
        for pid in members(self.driver.pid):
            if b"java" in command(pid).partition(b"\0")[0]:
                os.kill(pid, signal.SIGQUIT)
            elif look:
                with (self.logs / f"python-{name}-{pid}.txt").open("w") as output:
                    subprocess.run([look, "dump", "--pid", str(pid)], stdout=output, check=False)
        os.kill(self.driver.pid, signal.SIGUSR1)
        time.sleep(1)

    def keep_for_a_look(self) -> None:
        """Copy the contents of the disks, which end with this process, and print all threads."""
        self.dump_threads("last")
        super().keep_for_a_look()
        text = str(self.messages(0)[-20:])
        for topic in ("events", "windows"):
            text += f"\n{topic} ends at {self.broker.end_offsets(topic)}, committed "
            text += str(self.broker.end_offsets(topic, IsolationLevel.READ_COMMITTED))
        (self.logs / "kept.txt").write_text(text)


def is_stopped(pid: int) -> bool:
    """Frozen, or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except OSError:
        return True


def python_workers(session: int) -> list[int]:
    """The processes that run Python tasks: the forks of the daemon of workers."""
    return [pid for pid in members(session) if b"pyspark.daemon" in command(parent(pid))]


def source_processes(session: int) -> list[int]:
    """The driver's processes of Python that plan and commit for sources and sinks."""
    found = [pid for pid in members(session) if b"streaming" in command(pid)]
    return [pid for pid in found if b"pyspark.sql" in command(pid)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@contextmanager
def parts(place: Path, *, disks: bool) -> Iterator[Parts]:
    """The parts that need neither broker nor Spark."""
    with ExitStack() as stack:
        running = Parts(place, stack, disks=disks)
        running.begin_parts()
        yield running


@contextmanager
def chain(
    place: Path,
    *,
    disks: bool,
    master: str = "local[2,4]",
    tier: str = "process",
    lean: bool = False,
) -> Iterator[Chain]:
    """A chain that runs, `lean` with few parts; the end of the block removes all of it."""
    with ExitStack() as stack:
        yield Chain(place, stack, disks=disks, master=master, tier=tier, lean=lean)
