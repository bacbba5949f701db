"""A campaign: a chain of real parts under faults drawn from a seed, and checks after it.

`python chaos_campaign.py OUT SEED...` runs one chain for each seed, and adds a line to OUT for each
fault: `make chaos SEEDS=20`. It ends with an error if a promise was broken, or if the chain did not
go on after a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_chain import Chain, Parts, Stuck, chain, parts, wait_until
from chaos_checks import check, check_parts, check_written, leftovers, unknown_groups
from chaos_disks import own_mounts
from chaos_driver import QUERIES
from chaos_faults import SHARED, strike_part
from kafka_container import docker_answers

HOWS = ("killed", "killed", "killed", "frozen", "interrupted (Ctrl-C)")

SUSPICIOUS_S = 90.0
"""A query that ends no batch in this time may hang, or may be slow."""

TRIES = 3
"""How often a seed strikes again what has hit nothing."""


class Log:
    """The faults, a line each."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        self._lock = threading.Lock()
        self.count = 0
        self.hits = 0

    def add(self, **facts: Any) -> None:
        with self._lock:
            self.count += 1
            self.hits += facts["hit"]
            line = {"seed": self._seed, "number": self.count, **facts}
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


class Campaign:
    """One seed's faults on one chain."""

    def __init__(
        self, running: Parts, log: Log, seed: int, kinds: list[str], given: argparse.Namespace
    ) -> None:
        self._chain, self._log, self._kinds = running, log, kinds
        self._seed, self._pause_s, self._strikers = seed, given.pause, given.strikers
        self._until = time.monotonic() + 60 * given.minutes
        self._ends = threading.Event()
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """All shared faults one after the other, and faults of parts beside them."""
        self._wait_until_all_go_on("the first batches")
        threads = [
            threading.Thread(target=self._strike_parts, args=[n])
            for n in range(self._strikers * (1 if isinstance(self._chain, Chain) else 2))
        ]
        for thread in threads:
            thread.start()
        try:
            chance = random.Random(self._seed)
            # Without the right to mount, or a query, only parts have faults.
            for kind in self._kinds or [""] * 6:
                if time.monotonic() > self._until:
                    break
                for _ in range(TRIES):
                    hit = not kind or self._strike(kind, chance)
                    time.sleep(self._pause_s)
                    self._raise()
                    if hit:
                        break
        finally:
            self._ends.set()
            for thread in threads:
                thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _strike(self, kind: str, chance: random.Random) -> bool:
        running, begun = self._chain, time.time()
        evidence = SHARED[kind].fault(running, chance)  # type: ignore[arg-type]
        over = time.time()
        self._wait_until_all_go_on(kind)
        self._log.add(
            kind=kind, hit=evidence is not None, evidence=readable(evidence or "", running.place),
            lasted_s=round(over - begun, 2), went_on_s=round(time.time() - over, 2),
            told=self._told(begun),
        )  # fmt: skip
        print(f"{kind}: {evidence}, {over - begun:.1f} s + {time.time() - over:.1f} s", flush=True)
        return evidence is not None

    def _wait_until_all_go_on(self, what: str) -> None:
        """Every query ends another batch; without queries every part another step."""
        running, since = self._chain, time.time()
        recent = running.messages(since - 60)[-3:]
        if isinstance(running, Chain):
            before = {name: running.committed(name) for name in QUERIES}
            for name, batch in before.items():
                told = f"another batch of {name} after: {what}; {recent}"
                self._wait_for_batch(running, name, batch, told)
            return
        for name in running.part_kinds():
            told = f"another step of {name} after: {what}; {recent}"
            wait_until(lambda name=name: running.has_gone_on(name, since), told)  # type: ignore[misc]

    @staticmethod
    def _wait_for_batch(running: Chain, name: str, batch: int, told: str) -> None:
        """Wait, and look at what every thread does if it takes suspiciously long."""
        with contextlib.suppress(Stuck):
            wait_until(lambda: running.committed(name) > batch, told, SUSPICIOUS_S)
            return
        running.dump_threads(f"at-{time.time():.0f}")
        wait_until(lambda: running.committed(name) > batch, told)

    def _told(self, since: float) -> list[list[str]]:
        """The messages that operators saw, each text once."""
        found = {}
        for where, text in self._chain.messages(since):
            text = readable(text, self._chain.place)
            found.setdefault((where, re.sub(r"\d+", "0", text)[:80]), [where, text])
        return list(found.values())

    def _strike_parts(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        names = list(self._chain.part_kinds())
        try:
            while not self._ends.wait(chance.uniform(0.05, 0.5)):
                name, how = chance.choice(names), chance.choice(HOWS)
                # Confluent's client swallows a Ctrl-C in its own calls.
                if not (name.startswith("producer") and how.startswith("interrupted")):
                    self._strike_part(name, how, chance)
        except BaseException as error:
            self._failures.append(error)

    def _strike_part(self, name: str, how: str, chance: random.Random) -> None:
        running = self._chain
        if not running.striking[name].acquire(blocking=False):
            return
        try:
            begun = time.time()
            evidence = strike_part(running, name, how.split(" ")[0], chance)
            over = time.time()
            wait_until(
                lambda: running.has_gone_on(name, over),
                f"{name} going on after it was {how}; {running.lines(name).update()[-2:]}",
                240,
            )
            self._log.add(
                kind=f"{name.split('-')[0]} {how}", part=name, hit=evidence is not None,
                evidence=readable(evidence or "", running.place), lasted_s=round(over - begun, 2),
                went_on_s=round(time.time() - over, 2), told=[],
            )  # fmt: skip
        finally:
            running.striking[name].release()


def readable(text: str, place: Path) -> str:
    """Without what differs from run to run."""
    text = text.replace(str(place), "/data")
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text)[:600]


def settle(running: Parts) -> None:
    """No more events and edits; the rest goes on to its end."""
    for name in [*running.part_kinds()]:
        if name.startswith(("producer", "writer", "editor", "roller", "compactor", "appender")):
            running.end_part(name)


@dataclass(frozen=True)
class Setting:
    """The setting of a campaign."""

    disks: bool
    spark: bool = True
    executors: bool = False
    tier: str = "process"

    @classmethod
    def of_seed(cls, seed: int, given: argparse.Namespace, *, disks: bool) -> Setting:
        """Each fifth seed on a cluster of executors, on three brokers, on one in a container."""
        drawn = {4: "executors", 3: "three", 2: "container"}.get(seed % 5, "process")
        wanted = given.on or drawn
        if wanted == "container" and not given.on and not docker_answers():
            wanted = "process"
        tier = "process" if wanted == "executors" else wanted
        return cls(disks, not given.without_spark, wanted == "executors", tier)

    def has(self, kind: str) -> bool:
        """Whether it has what the kind of fault needs."""
        if not self.spark:
            return kind.startswith("disk of stores") and self.disks
        there = {
            "": True, "clock": shutil.which("cc") is not None, "disks": self.disks,
            "executors": self.executors, self.tier: True,
        }  # fmt: skip
        return there.get(SHARED[kind].needs, False)


def run_seed(seed: int, kinds: list[str], setting: Setting, given: argparse.Namespace) -> Log:
    """One campaign; return its log. The files of a failed one stay for a look."""
    place = Path(os.environ.get("CHAOS_PLACE", ".work/chaos")).resolve() / f"seed-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    out = given.out
    log = Log(out, seed)
    master = "local-cluster[2,1,1024]" if setting.executors else "local[2,4]"
    running: Parts
    with (
        chain(
            place, disks=setting.disks, master=master, tier=setting.tier, lean=given.strikers == 0
        )
        if setting.spark
        else parts(place, disks=setting.disks)
    ) as running:
        try:
            Campaign(running, log, seed, kinds, given).run()
            settle(running)
            if isinstance(running, Chain):
                counts = check(running)
                assert running.driver.end() == 0
                assert (unknown := unknown_groups(running)) == [], unknown
            else:
                check_written(running)
                counts = check_parts(running)
            assert (left := leftovers(running)) == [], left
        except Exception:
            running.keep_for_a_look()
            raise
        print(f"seed {seed}: {log.hits} of {log.count} faults hit; {counts}", flush=True)
        with out.with_suffix(".checked").open("a") as file:
            file.write(json.dumps({"seed": seed, "hits": log.hits, "checked": counts}) + "\n")
    shutil.rmtree(place, ignore_errors=True)
    return log


def draw_kinds(
    seed: int, rounds: int, setting: Setting, only: str, hits: Counter[str]
) -> list[str]:
    """Each kind that the setting has, once a round, the rarest hits so far first.

    Among equals the seed decides.
    """
    chance = random.Random(f"kinds {seed}")
    known = [kind for kind in SHARED if setting.has(kind) and re.search(only, kind)]
    drawn = []
    for number in range(rounds):
        chance.shuffle(known)
        drawn += sorted(known, key=lambda kind: 0 if number else hits[kind])
    return drawn


def hits_so_far(out: Path, kept: Path | None) -> Counter[str]:
    """How often each kind has hit: in the faults of `out`, and in kept results."""
    found: Counter[str] = Counter()
    if kept is not None and kept.exists():
        for kind in json.loads(kept.read_text())["kinds"]:
            found[kind["kind"]] += kind["hit"]
    if out.exists():
        lines = (json.loads(line) for line in out.read_text().splitlines())
        found.update(line["kind"] for line in lines if line["hit"])
    return found


def main() -> None:
    """Run the campaigns that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=1, help="how often a seed strikes each kind")
    parser.add_argument(
        "--count", type=int, default=1000, help="the most kinds that a seed strikes"
    )
    parser.add_argument("--minutes", type=float, default=60, help="a seed begins no fault after it")
    parser.add_argument("--only", default="", help="the faults whose names this pattern finds")
    parser.add_argument("--kept", type=Path, help="results; what hit least comes first")
    parser.add_argument("--pause", type=float, default=1, help="seconds between two shared faults")
    parser.add_argument(
        "--strikers",
        type=int,
        default=2,
        help="threads that strike one part each; 0: a lean chain, with few parts",
    )
    parser.add_argument("--on", choices=["process", "executors", "three", "container"])
    parser.add_argument("--without-spark", action="store_true", help="stores and clients alone")
    given = parser.parse_args()
    # A shell lets its background processes ignore Ctrl-C, and all parts would inherit that: none of
    # them would ever end by one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    disks = own_mounts()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for seed in given.seeds:
        setting = Setting.of_seed(seed, given, disks=disks)
        hits = hits_so_far(given.out, given.kept)
        kinds = draw_kinds(seed, given.rounds, setting, given.only, hits)[: given.count]
        print(f"seed {seed} on {setting}: {kinds}", flush=True)
        try:
            run_seed(seed, kinds, setting, given)
        except Exception:
            traceback.print_exc()
            failed.append(seed)
    if failed:
        sys.exit(f"seeds {failed} failed")


if __name__ == "__main__":
    main()
