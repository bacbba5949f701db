"""The faults of a campaign; each returns the proof that it hit, or nothing if it did not.

A fault is over when its function returns: the broker runs again, the disk has room again. The
campaign measures how long the chain then takes to go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from chaos_chain import Chain, command, is_stopped, python_workers, source_processes, wait_until
from chaos_clock import true_time
from chaos_driver import QUERIES
from confluent_kafka import KafkaException
from harness import DeltaLog, forget_batches
from process_session import members

Fault = Callable[[Chain, Random], str | None]

FREEZE_S = 3.0
"""Longer than the broker's session of two seconds."""

LONG_FREEZE_S = 7.5
"""Longer than the six seconds of the topic writer's transactions, and of a cluster's sessions."""

SEARCH_S = 12.0
"""How long a fault looks for the moment that it is to hit."""


STORED = "which is stored"


def in_batches(chain: Chain) -> str:
    """The queries in a batch now, and whether their store has it; empty if there is none."""
    found = []
    for name in QUERIES:
        batch = chain.planned(name)
        if batch > chain.committed(name):
            is_stored = name != "topic" and DeltaLog(chain.stores / name).has_batch(batch)
            found.append(f"{name} in batch {batch}{f', {STORED}' * is_stored}")
    return "; ".join(found)


def frozen_in_a_batch(chain: Chain, chance: Random, wanted: str = "") -> str:
    """Freeze the driver while some query is in a batch; return which, empty if it was too late."""
    time.sleep(chance.uniform(0, 1))
    return frozen_when(chain, lambda: found if wanted in (found := in_batches(chain)) else "")


def frozen_when(chain: Chain, looks: Callable[[], str], pause_s: float = 0.005) -> str:
    """Freeze the driver as soon as `looks` tells something, and still does when it is frozen."""
    deadline = time.monotonic() + SEARCH_S
    while time.monotonic() < deadline:
        if looks():
            chain.driver.session.freeze()
            if found := looks():
                return found
            chain.driver.session.thaw()
        time.sleep(pause_s)
    return ""


# -- the driver, at each phase -------------------------------------------------------------------


def in_a_batch(chain: Chain, chance: Random) -> str:
    """Frozen in the middle of some batch."""
    return frozen_in_a_batch(chain, chance)


def behind_the_store(chain: Chain, chance: Random) -> str:
    """Frozen after a store has a batch, and before the checkpoint says so."""
    return frozen_in_a_batch(chain, chance, STORED)


def between_batches(chain: Chain, chance: Random) -> str:
    """Frozen after some query has ended a batch, and before it plans another one."""
    time.sleep(chance.uniform(0, 1))
    name = chance.choice(QUERIES)

    def looks() -> str:
        batch = chain.committed(name)
        return f"{name} had ended batch {batch}" if batch == chain.planned(name) else ""

    return frozen_when(chain, looks)


def as_queries_start(chain: Chain, chance: Random) -> str:
    """Frozen after an order to start all queries, and before each has ended a batch."""
    for name in QUERIES:
        chain.stop_query(name)
    before, begun = {name: chain.committed(name) for name in QUERIES}, time.time()
    chain.driver.order(start=QUERIES)
    wanted, deadline = chance.randrange(len(QUERIES) + 1), time.monotonic() + 10

    def started() -> int:
        lines = chain.driver.events.since(begun)
        return sum(line["is"] == "started" for line in lines)

    while started() < wanted and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.5))
    chain.driver.session.freeze()
    waiting = [name for name in QUERIES if chain.committed(name) == before[name]]
    told = f"{started()} of {len(QUERIES)} queries were started, {len(waiting)} had ended no batch"
    return told if waiting else ""


def as_it_ends(chain: Chain, chance: Random) -> str:
    """Frozen while it stops its queries, because it was asked to end."""
    chain.driver.begin_to_end()
    time.sleep(chance.uniform(0, 1.5))
    chain.driver.session.freeze()
    return "" if chain.driver.session.exit_code is not None else "it was stopping its queries"


Phase = Callable[[Chain, Random], str]

PHASES: dict[str, Phase] = {
    "in a batch": in_a_batch,
    "between store and checkpoint": behind_the_store,
    "between two batches": between_batches,
    "as its queries start": as_queries_start,
    "as it ends": as_it_ends,
}


def reach(phase: Phase, chain: Chain, chance: Random) -> tuple[str | None, bool]:
    """Wait for the stand-by and the phase; return what the phase found, and whether it missed.

    A driver that missed the phase is not touched.
    """
    chain.spare.wait_until_ready()
    found = phase(chain, chance)
    goes_on = not found and chain.driver.session.exit_code is None
    if goes_on:
        chain.driver.session.thaw()
    return found, goes_on


def kill_driver(phase: Phase) -> Fault:
    def fault(chain: Chain, chance: Random) -> str | None:
        """SIGKILL of the driver, its Java and all of its Python; the stand-by takes over."""
        found, goes_on = reach(phase, chain, chance)
        if goes_on:
            return None
        chain.driver.session.kill()
        chain.take_over()
        return found or None

    return fault


def interrupt_driver(phase: Phase) -> Fault:
    def fault(chain: Chain, chance: Random) -> str | None:
        """Ctrl-C at a terminal reaches the driver and its Java."""
        found, goes_on = reach(phase, chain, chance)
        if goes_on:
            return None
        group = [pid for pid in members(chain.driver.pid) if os.getpgid(pid) == chain.driver.pid]
        for pid in group:
            os.kill(pid, signal.SIGINT)
        chain.driver.session.thaw()
        code = chain.driver.session.wait(30)
        deadline = time.monotonic() + 15
        while (left := members(chain.driver.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        commands = [command(pid).replace(b"\0", b" ").decode()[:80] for pid in left]
        chain.driver.session.kill()
        chain.take_over()
        if not found:
            return None
        return f"{found}; exit code {code}, {len(left)} processes left after it {commands or ''}"

    return fault


# -- its processes -------------------------------------------------------------------------------


def kill_worker(chain: Chain, chance: Random) -> str | None:
    """SIGKILL of a process of Python that runs tasks, in a batch."""
    return kill_one(chain, chance, python_workers)


def kill_planner(chain: Chain, chance: Random) -> str | None:
    """SIGKILL of the driver's process of Python that plans a source's batches."""
    return kill_one(chain, chance, source_processes)


def kill_one(chain: Chain, chance: Random, which: Callable[[int], list[int]]) -> str | None:
    found = frozen_in_a_batch(chain, chance)
    processes = which(chain.driver.pid)
    pid = chance.choice(processes) if found and processes else None
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    chain.driver.session.thaw()
    return None if pid is None else f"process {pid}; {found}"


def kill_executor(chain: Chain, chance: Random) -> str | None:
    """SIGKILL of an executor, a Java with its Python, of a local cluster."""
    return kill_one(chain, chance, executors)


def executors(session: int) -> list[int]:
    """The executors of a local cluster."""
    return [
        pid for pid in members(session)
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip


def freeze_worker(chain: Chain, chance: Random) -> str | None:
    """SIGSTOP of one process of Python that runs tasks, while the rest of the driver goes on."""
    found = frozen_in_a_batch(chain, chance)
    processes = python_workers(chain.driver.pid)
    pid = chance.choice(processes) if found and processes else None
    for each in members(chain.driver.pid):
        if each != pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
    if pid is None:
        return None
    time.sleep(LONG_FREEZE_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    return f"process {pid}; {found}; {LONG_FREEZE_S} s"


def freeze_driver(chain: Chain, chance: Random) -> str | None:
    """SIGSTOP of driver, Java and Python, for longer than a transaction may stay open."""
    found = frozen_in_a_batch(chain, chance)
    if found:
        time.sleep(LONG_FREEZE_S)
    chain.driver.session.thaw()
    return f"{found}; {LONG_FREEZE_S} s" if found else None


def two_drivers(chain: Chain, chance: Random) -> str | None:
    """The stand-by starts a query that runs, on the same checkpoint."""
    chain.spare.wait_until_ready()
    name = chance.choice(QUERIES)
    begun = time.time()
    chain.spare.order(start=[name])

    def refused() -> str | None:
        for which, driver in (("second", chain.spare), ("first", chain.driver)):
            for line in driver.events.since(begun):
                if line["is"] == "failed" and line["query"] == name:
                    return f"the {which} instance of {name} was ended"
        return None

    found: str | None = None
    with contextlib.suppress(AssertionError):
        found = wait_until(refused, "an instance that is ended", 120)
    chain.spare.order(stop=name)
    wait_until(
        lambda: any(line["is"] == "stopped" for line in chain.spare.events.since(begun)),
        "the end of the second instance",
    )
    return found


# -- the broker ----------------------------------------------------------------------------------


def kill_broker(chain: Chain, chance: Random) -> str | None:
    """SIGKILL of a broker; it is started again after up to three seconds."""
    return without_broker(chain, chance, lambda broker: broker.kill())


def stop_broker(chain: Chain, chance: Random) -> str | None:
    """An operator stops a broker, after it has handed over its partitions, and starts it again."""
    return without_broker(chain, chance, lambda broker: broker.stop())


def without_broker(chain: Chain, chance: Random, end: Callable[[Any], object]) -> str | None:
    found, number = in_batches(chain), chance.randrange(len(chain.brokers))
    end(chain.brokers[number])
    time.sleep(chance.uniform(0, 3))
    chain.brokers[number].start()
    chain.wait_for_brokers()
    return f"broker {number + 1}; {found}" if found else None


def freeze_broker(chain: Chain, chance: Random) -> str | None:
    """SIGSTOP of a broker for longer than its session with the controller."""
    seconds = FREEZE_S if len(chain.brokers) == 1 else LONG_FREEZE_S
    broker = chance.choice(chain.brokers)
    found = in_batches(chain)
    broker.freeze()
    time.sleep(seconds)
    broker.thaw()
    chain.wait_for_brokers()
    return f"{found}; {seconds} s" if found else None


def delete_groups(chain: Chain, chance: Random) -> str | None:
    """An operator deletes the consumer groups where the sources keep their clocks."""
    deleted = []
    for name in ("windows", "copy"):
        newest = chain.checkpoints / name / "offsets" / str(chain.planned(name))
        with contextlib.suppress(OSError, ValueError, IndexError):
            stream = json.loads(newest.read_text().splitlines()[-1])["stream"]
            try:
                chain.broker._admin.delete_consumer_groups([f"timestream-{stream}"])[
                    f"timestream-{stream}"
                ].result(10)
            except KafkaException:
                continue
            deleted.append(name)
    return f"the groups of {' and '.join(deleted)}" if deleted else None


# -- disks ---------------------------------------------------------------------------------------


DISKS = ("stores", "checkpoints", "spill")


def full(name: str) -> Fault:
    return disk_fault(name, "fill", "free", r"No space left|StorageFailed")


def read_only(name: str) -> Fault:
    return disk_fault(name, "make_read_only", "make_writable", r"[Rr]ead-only|StorageFailed")


def away(name: str) -> Fault:
    return disk_fault(
        name,
        "take_away",
        "bring_back",
        r"[Rr]ead-only|not there|no store|away|No ?[Ss]uch|not exist|StoreMismatch|local dir",
    )


def disk_fault(name: str, break_: str, mend: str, seen: str) -> Fault:
    def fault(chain: Chain, chance: Random) -> str | None:
        """Wait until an operator has seen an error of a query or a client that says so."""
        disk, begun = chain.disks[name], time.time()
        deadline = begun + 20
        hit = None
        getattr(disk, break_)()
        try:
            while hit is None and time.time() < deadline:
                told = [where for where, text in chain.messages(begun) if re.search(seen, text)]
                if any(where.startswith("query") for where in told) or len(set(told)) > 2:
                    hit = "told by " + ", ".join(sorted(set(told)))
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 0.5))
        finally:
            getattr(disk, mend)()
        return hit

    return fault


# -- the clock of the driver ---------------------------------------------------------------------


def move_clock(seconds: int) -> Fault:
    def fault(chain: Chain, chance: Random) -> str | None:
        """Wait until each query has run a batch by the moved clock, or has told what is wrong."""
        before = {name: chain.planned(name) for name in QUERIES}
        begun = true_time()
        chain.clock.move(seconds)
        told: dict[str, str] = {}
        deadline = time.monotonic() + 30
        try:
            while len(told) < len(QUERIES) and time.monotonic() < deadline:
                for name in QUERIES:
                    if name not in told and (seen := seen_by(chain, name, begun, before[name])):
                        told[name] = seen
                time.sleep(0.05)
        finally:
            chain.clock.move(0)
        return "; ".join(f"{name} {seen}" for name, seen in told.items()) or None

    def seen_by(chain: Chain, name: str, begun: float, before: int) -> str:
        for line in chain.driver.events.since(begun):
            if line["is"] == "failed" and line["query"] == name:
                return f"was refused: {line['message'].partition(':')[0][:80]}"
        if chain.committed(name) > before + 1:
            entry = chain.checkpoints / name / "offsets" / str(before + 2)
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                stamp = json.loads(entry.read_text().splitlines()[1])["batchTimestampMs"] / 1000
                if abs(stamp - true_time() - seconds) < abs(seconds) / 2:
                    return f"ran batch {before + 2} at {seconds:+} s"
        return ""

    return fault


# -- older copies --------------------------------------------------------------------------------


def older_store(chain: Chain, chance: Random) -> str | None:
    """A store put back by itself is refused; the query then writes again what it lost."""
    store, kept = chain.stores / "copy", chain.place / "kept-store"
    checkpoint = chain.checkpoints / "copy"
    with set_back(chain, "copy", {store: kept}):
        message = refusal(chain, "copy", "HistoryChanged|older state|put back")
        if message is None:
            return None
        numbers = re.findall(r"from (?:number )?(\d+) on", message)
        assert len(numbers) == 2, message
        forget_batches(checkpoint / "commits", int(numbers[0]) - 1)
        forget_batches(checkpoint / "offsets", int(numbers[1]) - 1)
    return message


def older_checkpoint(name: str) -> Fault:
    def fault(chain: Chain, chance: Random) -> str | None:
        """A checkpoint put back by itself is refused; the newest one goes on."""
        checkpoint, kept = chain.checkpoints / name, chain.place / "kept-checkpoint"
        newest = chain.place / "newest-checkpoint"
        with set_back(chain, name, {checkpoint: kept}, newest):
            message = refusal(
                chain, name, "ReplayDiffers|the checkpoint is|comes again|newer state"
            )
            shutil.rmtree(checkpoint)
            shutil.copytree(newest, checkpoint)
            shutil.rmtree(newest)
        return message

    return fault


def older_pair(chain: Chain, chance: Random) -> str | None:
    """A store and its checkpoint of one backup simply go on."""
    store, checkpoint = chain.stores / "copy", chain.checkpoints / "copy"
    copies = {store: chain.place / "kept-store", checkpoint: chain.place / "kept-checkpoint"}
    with set_back(chain, "copy", copies):
        batch = chain.committed("copy")
    wait_until(lambda: chain.committed("copy") > batch + 1, "two batches after the restore")
    return f"copy went on from batch {batch}"


@contextlib.contextmanager
def set_back(
    chain: Chain, name: str, copies: dict[Path, Path], newest: Path | None = None
) -> Iterator[None]:
    """Keep copies, let the query go on for some batches, and put the copies back.

    `newest` gets the first one's state before that.
    """
    chain.stop_query(name)
    for what, kept in copies.items():
        shutil.copytree(what, kept)
    chain.driver.order(start=[name])
    batch = chain.committed(name)
    wait_until(lambda: chain.committed(name) > batch + 1, f"two batches of {name}")
    chain.stop_query(name)
    for what, kept in copies.items():
        if newest is not None:
            shutil.copytree(what, newest)
        shutil.rmtree(what)
        shutil.copytree(kept, what)
        shutil.rmtree(kept)
    yield
    chain.driver.order(start=[name])


def refusal(chain: Chain, name: str, pattern: str) -> str | None:
    """Start the query once; return the message that refuses it."""
    begun = time.time()
    chain.driver.order(**{"try": name})

    def failed() -> str | None:
        lines = chain.driver.events.since(begun)
        found = [
            line["message"] for line in lines if line["is"] == "failed" and line["query"] == name
        ]
        return found[0] if found else None

    message: str = wait_until(failed, f"a refusal of {name}")
    chain.stop_query(name)
    return message if re.search(pattern, message) else None


class Kind(NamedTuple):
    """A fault of a shared part, and what a chain must have for it."""

    fault: Fault
    needs: str = ""
    """`disks`, `executors`, a tier of brokers, `clock`; or nothing, also on one broker."""


SHARED: dict[str, Kind] = {
    **{f"driver killed {when}": Kind(kill_driver(phase)) for when, phase in PHASES.items()},
    **{
        f"driver interrupted (Ctrl-C) {when}": Kind(interrupt_driver(phase))
        for when, phase in PHASES.items()
    },
    "driver frozen": Kind(freeze_driver),
    "driver's clock half an hour back": Kind(move_clock(-1800), "clock"),
    "driver's clock half an hour ahead": Kind(move_clock(1800), "clock"),
    "driver's clock two hours ahead": Kind(move_clock(7200), "clock"),
    "Python worker killed": Kind(kill_worker),
    "Python worker frozen": Kind(freeze_worker),
    "Python process of a source killed": Kind(kill_planner),
    "executor killed": Kind(kill_executor, "executors"),
    "two instances of a query": Kind(two_drivers),
    "broker killed": Kind(kill_broker, "process"),
    "broker frozen": Kind(freeze_broker, "process"),
    "one of three brokers killed": Kind(kill_broker, "three"),
    "one of three brokers frozen": Kind(freeze_broker, "three"),
    "one of three brokers stopped and started": Kind(stop_broker, "three"),
    "broker in a container killed": Kind(kill_broker, "container"),
    "broker in a container frozen": Kind(freeze_broker, "container"),
    "consumer groups deleted": Kind(delete_groups),
    "store put back alone": Kind(older_store),
    "store and checkpoint put back together": Kind(older_pair),
    "checkpoint put back alone (topic to store)": Kind(older_checkpoint("copy")),
    "checkpoint put back alone (windows to store)": Kind(older_checkpoint("windows")),
    "checkpoint put back alone (store to topic)": Kind(older_checkpoint("topic")),
    **{f"disk of {name} full": Kind(full(name), "disks") for name in DISKS},
    **{f"disk of {name} read-only": Kind(read_only(name), "disks") for name in DISKS},
    **{f"disk of {name} away": Kind(away(name), "disks") for name in DISKS},
}
"""Faults of what all share, one after the other."""


# -- faults of one part --------------------------------------------------------------------------


def strike_part(chain: Chain, name: str, how: str, chance: Random) -> str | None:
    """Kill, freeze or interrupt a part in the middle of a step, and start it again."""
    pid = chain.parts[name]
    step = ""
    for _ in range(60):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid), f"a frozen {name}")
        if pid in chain.ended:
            break
        step = chain.doing(name)
        if step != "idle":
            break
        os.kill(pid, signal.SIGCONT)
        time.sleep(chance.uniform(0.001, 0.03))
    if how == "frozen":
        time.sleep(chance.uniform(0.5, 2))
        os.kill(pid, signal.SIGCONT)
        return None if step == "idle" else f"in step {step}"
    number = signal.SIGKILL if how == "killed" else signal.SIGINT
    os.kill(pid, number)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    code = wait_until(lambda: pid in chain.ended and [chain.ended[pid]], f"the end of {name}")[0]
    chain.begin_part(name)
    expected = -signal.SIGKILL if how == "killed" else 130
    return f"in step {step}, exit code {code}" if step != "idle" and code == expected else None
