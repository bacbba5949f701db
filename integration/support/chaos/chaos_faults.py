"""The faults of a campaign; each returns by what it is known to have hit, or nothing if it did not.

A fault is over when its function returns: the broker runs again, the disk has room again. How long
the chain then takes to go on is measured by the campaign.
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

from chaos_chain import Chain, is_stopped, python_workers, source_processes, wait_until
from chaos_driver import QUERIES
from confluent_kafka import KafkaException
from harness import DeltaLog, forget_batches
from kafka_process import KafkaProcess
from process_session import members

Fault = Callable[[Chain, Random], str | None]

FREEZE_S = 3.0
"""Longer than the broker's session of two seconds."""

LONG_FREEZE_S = 7.5
"""Longer than the six seconds of the topic writer's transactions."""


def in_batches(chain: Chain) -> str:
    """Which queries are in a batch now, and whether their store has it; empty if none is."""
    found = []
    for name in QUERIES:
        batch = chain.planned(name)
        if batch > chain.committed(name):
            is_stored = name != "topic" and DeltaLog(chain.stores / name).has_batch(batch)
            found.append(f"{name} in batch {batch}{', which is stored' * is_stored}")
    return "; ".join(found)


def frozen_in_a_batch(chain: Chain, chance: Random, wanted: str = "") -> str:
    """Freeze the driver while some query is in a batch; which one, empty if that was missed."""
    time.sleep(chance.uniform(0, 1))
    for _ in range(100):
        if wanted in (found := in_batches(chain)) and found:
            chain.driver.session.freeze()
            if wanted in (found := in_batches(chain)) and found:
                return found
            chain.driver.session.thaw()
        time.sleep(0.02)
    return ""


# -- processes -----------------------------------------------------------------------------------


def kill_driver(chain: Chain, chance: Random) -> str | None:
    """SIGKILL of the driver, its Java and all of its Python; the stand-by takes over."""
    chain.spare.wait_until_ready()
    found = frozen_in_a_batch(chain, chance, chance.choice(["", "which is stored"]))
    chain.driver.session.kill()
    chain.take_over()
    return found or None


def interrupt_driver(chain: Chain, chance: Random) -> str | None:
    """Ctrl-C at a terminal reaches the driver and its Java."""
    chain.spare.wait_until_ready()
    found = frozen_in_a_batch(chain, chance)
    group = [pid for pid in members(chain.driver.pid) if os.getpgid(pid) == chain.driver.pid]
    for pid in group:
        os.kill(pid, signal.SIGINT)
    chain.driver.session.thaw()
    code = chain.driver.session.wait(30)
    deadline = time.monotonic() + 15
    while (left := members(chain.driver.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    chain.driver.session.kill()
    chain.take_over()
    if not found:
        return None
    return f"{found}; exit code {code}, {len(left)} processes left after it"


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
    """SIGKILL of the broker, which is started again after up to three seconds."""
    found = in_batches(chain)
    chain.broker.stop()
    time.sleep(chance.uniform(0, 3))
    chain.broker.start()
    return found or None


def freeze_broker(chain: Chain, chance: Random) -> str | None:
    """SIGSTOP of the broker for longer than its session with the controller."""
    server = chain.broker.server
    assert isinstance(server, KafkaProcess)
    assert server._process is not None
    found = in_batches(chain)
    os.killpg(server._process.pid, signal.SIGSTOP)
    time.sleep(FREEZE_S)
    os.killpg(server._process.pid, signal.SIGCONT)
    return f"{found}; {FREEZE_S} s" if found else None


def delete_groups(chain: Chain, chance: Random) -> str | None:
    """An operator deletes the consumer groups in which the sources keep their clocks."""
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


def full(name: str) -> Fault:
    return disk_fault(name, "fill", "free", r"No space left|StorageFailed")


def read_only(name: str) -> Fault:
    return disk_fault(name, "make_read_only", "make_writable", r"[Rr]ead-only|StorageFailed")


def away(name: str) -> Fault:
    return disk_fault(
        name,
        "take_away",
        "bring_back",
        r"[Rr]ead-only|not there|no store|away|No such|not exist|StoreMismatch",
    )


def disk_fault(name: str, break_: str, mend: str, seen: str) -> Fault:
    def fault(chain: Chain, chance: Random) -> str | None:
        """Until an operator has seen an error of a query or a client that says so."""
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


# -- older copies --------------------------------------------------------------------------------


def older_store(chain: Chain, chance: Random) -> str | None:
    """A store that was put back alone is refused; the query then writes again what it lost."""
    store, kept = chain.stores / "copy", chain.place / "kept-store"
    checkpoint = chain.checkpoints / "copy"
    with set_back(chain, store, kept):
        message = refusal(chain, "HistoryChanged|older state|put back")
        if message is None:
            return None
        numbers = re.findall(r"from (?:number )?(\d+) on", message)
        assert len(numbers) == 2, message
        forget_batches(checkpoint / "commits", int(numbers[0]) - 1)
        forget_batches(checkpoint / "offsets", int(numbers[1]) - 1)
    return message


def older_checkpoint(chain: Chain, chance: Random) -> str | None:
    """A checkpoint that was put back alone is refused; the newest one goes on."""
    checkpoint, kept = chain.checkpoints / "copy", chain.place / "kept-checkpoint"
    newest = chain.place / "newest-checkpoint"
    with set_back(chain, checkpoint, kept, newest):
        message = refusal(chain, "ReplayDiffers|the checkpoint is|comes again")
        shutil.rmtree(checkpoint)
        shutil.copytree(newest, checkpoint)
        shutil.rmtree(newest)
    return message


@contextlib.contextmanager
def set_back(chain: Chain, what: Path, kept: Path, newest: Path | None = None) -> Iterator[None]:
    """Keep a copy, let the query go on for some batches, and put the copy back."""
    chain.stop_query("copy")
    shutil.copytree(what, kept)
    chain.driver.order(start=["copy"])
    batch = chain.committed("copy")
    wait_until(lambda: chain.committed("copy") > batch + 1, "two batches of copy")
    chain.stop_query("copy")
    if newest is not None:
        shutil.copytree(what, newest)
    shutil.rmtree(what)
    shutil.copytree(kept, what)
    shutil.rmtree(kept)
    yield
    chain.driver.order(start=["copy"])


def refusal(chain: Chain, pattern: str) -> str | None:
    """Start the query once; the message with which it is refused."""
    begun = time.time()
    chain.driver.order(**{"try": "copy"})

    def failed() -> str | None:
        lines = chain.driver.events.since(begun)
        found = [
            line["message"] for line in lines if line["is"] == "failed" and line["query"] == "copy"
        ]
        return found[0] if found else None

    message: str = wait_until(failed, "a refusal of copy")
    chain.stop_query("copy")
    return message if re.search(pattern, message) else None


HEAVY: dict[str, Fault] = {
    "driver killed": kill_driver,
    "driver interrupted (Ctrl-C)": interrupt_driver,
    "Python worker killed": kill_worker,
    "Python process of a source killed": kill_planner,
    "driver frozen": freeze_driver,
    "two instances of a query": two_drivers,
    "broker killed": kill_broker,
    "broker frozen": freeze_broker,
    "consumer groups deleted": delete_groups,
    "store put back alone": older_store,
    "checkpoint put back alone": older_checkpoint,
    "disk of stores full": full("stores"),
    "disk of checkpoints full": full("checkpoints"),
    "disk of stores read-only": read_only("stores"),
    "disk of checkpoints read-only": read_only("checkpoints"),
    "disk of stores away": away("stores"),
    "disk of checkpoints away": away("checkpoints"),
}
"""Faults of what all share, one after the other."""

ON_CLUSTERS = {"executor killed": kill_executor}


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
