"""A campaign: a chain of real parts under faults drawn from a seed, and what must hold after it.

`python chaos_campaign.py OUT SEED...` runs one chain for each seed, and adds a line to OUT for each
fault: `make chaos SEEDS=20`. It ends with an error if a promise was broken, or if the chain did not
go on after a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from chaos_chain import Chain, Parts, chain, parts, wait_until
from chaos_checks import check, check_parts, check_written, leftovers, unknown_groups
from chaos_disks import own_mounts
from chaos_driver import QUERIES
from chaos_faults import HEAVY, ON_CLUSTERS, strike_part

HOWS = ("killed", "killed", "killed", "frozen", "interrupted (Ctrl-C)")


STRIKERS = 2
"""Threads that each strike one part at a time."""


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
        self, running: Parts, log: Log, seed: int, kinds: list[str], pause_s: float = 0
    ) -> None:
        self._chain, self._log, self._kinds = running, log, kinds
        self._seed, self._pause_s = seed, pause_s
        self._ends = threading.Event()
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """All heavy faults one after the other, and those of parts beside them."""
        self._wait_until_all_go_on("the first batches")
        threads = [
            threading.Thread(target=self._strike_parts, args=[n])
            for n in range(STRIKERS if isinstance(self._chain, Chain) else 2 * STRIKERS)
        ]
        for thread in threads:
            thread.start()
        try:
            chance = random.Random(self._seed)
            # Without the right to mount, or a query, there are faults of parts alone.
            for kind in self._kinds or [""] * 6:
                if kind:
                    self._strike(kind, chance)
                time.sleep(self._pause_s)
                self._raise()
        finally:
            self._ends.set()
            for thread in threads:
                thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _strike(self, kind: str, chance: random.Random) -> None:
        running, begun = self._chain, time.time()
        evidence = {**HEAVY, **ON_CLUSTERS}[kind](running, chance)
        over = time.time()
        self._wait_until_all_go_on(kind)
        self._log.add(
            kind=kind, hit=evidence is not None, evidence=evidence or "",
            lasted_s=round(over - begun, 2), went_on_s=round(time.time() - over, 2),
            told=self._told(begun),
        )  # fmt: skip
        print(f"{kind}: {evidence}, {over - begun:.1f} s + {time.time() - over:.1f} s", flush=True)

    def _wait_until_all_go_on(self, what: str) -> None:
        """Every query ends another batch; without queries every part another step."""
        running, since = self._chain, time.time()
        recent = running.messages(since - 60)[-3:]
        if isinstance(running, Chain):
            before = {name: running.committed(name) for name in QUERIES}
            for name, batch in before.items():
                told = f"another batch of {name} after: {what}; {recent}"
                wait_until(lambda name=name, batch=batch: running.committed(name) > batch, told)  # type: ignore[misc]
            return
        for name in running.part_kinds():
            told = f"another step of {name} after: {what}; {recent}"
            wait_until(lambda name=name: running.has_gone_on(name, since), told)  # type: ignore[misc]

    def _told(self, since: float) -> list[list[str]]:
        """What operators saw, each text once."""
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
                evidence=evidence or "", lasted_s=round(over - begun, 2),
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


def run_seed(
    seed: int,
    out: Path,
    kinds: list[str],
    pause_s: float,
    *,
    disks: bool,
    cluster: bool,
    spark: bool = True,
) -> Log:
    """One campaign; its log. What is left of a failed one stays for a look."""
    place = Path(os.environ.get("CHAOS_PLACE", ".work/chaos")).resolve() / f"seed-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    log = Log(out, seed)
    master = "local-cluster[2,1,1024]" if cluster else "local[2,4]"
    with (
        chain(place, disks=disks, master=master) if spark else parts(place, disks=disks) as running
    ):
        try:
            Campaign(running, log, seed, kinds, pause_s).run()
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
    seed: int, rounds: int, *, disks: bool, cluster: bool, spark: bool = True, only: str = ""
) -> list[str]:
    """Each kind once a round, in an order of the seed's."""
    chance = random.Random(f"kinds {seed}")
    known = [*HEAVY, *(ON_CLUSTERS if cluster else [])]
    known = [kind for kind in known if (disks or not kind.startswith("disk")) and only in kind]
    if not spark:
        known = [kind for kind in known if kind.startswith("disk of stores")]
    drawn = []
    for _ in range(rounds):
        chance.shuffle(known)
        drawn += known
    return drawn


def main() -> None:
    """Run the campaigns that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="the most heavy faults of a seed")
    parser.add_argument("--only", default="", help="the faults whose names have this in them")
    parser.add_argument("--pause", type=float, default=1, help="seconds between two heavy faults")
    parser.add_argument("--without-spark", action="store_true", help="stores and clients alone")
    given = parser.parse_args()
    disks = own_mounts()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for seed in given.seeds:
        cluster = seed % 5 == 4
        how = {"disks": disks, "cluster": cluster, "spark": not given.without_spark}
        kinds = draw_kinds(seed, given.rounds, only=given.only, **how)
        try:
            run_seed(seed, given.out, kinds[: given.count], given.pause, **how)
        except Exception:
            traceback.print_exc()
            failed.append(seed)
    if failed:
        sys.exit(f"seeds {failed} failed")


if __name__ == "__main__":
    main()
