"""The parts of a chain that need no Spark, each a process of its own that a campaign kills.

One process imports everything and then forks a part for each line that it is given, so a part that
was killed is back within milliseconds. A part does the same again and again; it notes its step,
each acknowledgement, and each error with its next step.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from confluent_kafka import Producer

from pyspark_timestream.core.why import why
from pyspark_tseries import TimeSeries

DAY_S = 1_704_067_200
"""2024-01-01, where the time of the events begins."""

SPEED = 10
"""Seconds of the events in a second of the campaign."""

SERIES = 6
PARTITIONS = 3
AGGREGATES = {"total": ("total", "sum"), "events": ("*", "count")}
PACE = float(os.environ.get("CHAOS_PACE", "1"))
"""How many times longer than without Spark parts rest between two steps."""

IDLE = b"idle".ljust(16)


class Part:
    """A part's notes: in `NAME.state` its step, in `NAME.log` the result of each."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self._state = os.open(place / f"{name}.state", os.O_RDWR | os.O_CREAT)
        self._log = os.open(place / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.pwrite(self._state, IDLE, 0)

    @contextlib.contextmanager
    def doing(self, step: str) -> Iterator[None]:
        """Say that this step is being done, for a campaign that kills this process."""
        os.pwrite(self._state, step.encode().ljust(16), 0)
        try:
            yield
        finally:
            os.pwrite(self._state, IDLE, 0)

    def note(self, **facts: Any) -> None:
        """Add a line in one write, so that a kill leaves all of it or nothing."""
        os.write(self._log, json.dumps({"at": time.time(), **facts}).encode() + b"\n")

    def repeat(self, act: Callable[[], object]) -> NoReturn:
        """Act for ever; an error is noted as an operator sees it, and the part goes on."""
        while True:
            try:
                act()
            except Exception as error:
                self.note(error=type(error).__name__, message=explained(error))
                time.sleep(0.1 * PACE)


def explained(error: BaseException) -> str:
    """The text of `why` for an error."""
    import io

    text = io.StringIO()
    why(error, file=text)
    return text.getvalue().strip()


def edit(part: Part, store: str, seed: int) -> NoReturn:
    """Edit the newest windows; each value is given once, and noted before and after its commit."""
    chance = random.Random(seed)
    number = seed * 1_000_000 + int(time.time() * 1000) % 1_000_000
    client: list[TimeSeries] = []

    def once() -> None:
        nonlocal number
        if not client:
            client.append(TimeSeries.open(store, author="editor"))
        newest = client[0].latest().to_arrow().to_pylist()
        if not newest:
            time.sleep(0.1 * PACE)
            return
        row = chance.choice(newest)
        sequence = row.get("original_sequence")
        sequence = row["sequence"] if sequence is None else sequence
        number += 1
        part.note(tried=number, series=row["series"], original=sequence)
        with part.doing("edit"):
            done = client[0].edit(row["series"], sequence, {"total": -number, "rows": 0})
        part.note(edited=number, sequence=done.sequence)
        time.sleep(0.1 * PACE)

    part.repeat(once)


def append(part: Part, store: str) -> NoReturn:
    """Append numbers to a series of its own, a few at once, until the store has them."""
    number = -1

    def once() -> None:
        nonlocal number
        client = TimeSeries.open(store, author=part.name)
        if number < 0:
            found = client.latest(part.name).to_arrow().to_pylist()
            number = found[0]["number"] + 1 if found else 0
        rows = [{"series": part.name, "number": number + each} for each in range(3)]
        try:
            with part.doing("append"):
                client.append_many(rows)
        except Exception:
            number = -1
            raise
        number += len(rows)
        part.note(appended=number)
        time.sleep(0.1 * PACE)

    part.repeat(once)


def write_windows(part: Part, store: str) -> NoReturn:
    """Append windows as the query of a chain does, where there is no Spark."""
    number = -1

    def once() -> None:
        nonlocal number
        client = TimeSeries.open(store, author=part.name)
        if number < 0:
            newest = client.latest().to_arrow()["timestamp"].cast(pa.int64()).to_pylist()
            number = max(newest, default=10**6 * (DAY_S - 10)) // 10**7 - DAY_S // 10 + 1
        at = [datetime.fromtimestamp(DAY_S + 10 * (number + n), UTC) for n in range(2)]
        rows = [
            {"series": f"s{n}", "timestamp": each, "total": int(each.timestamp()), "rows": 1}
            for n in range(SERIES)
            for each in at
        ]
        try:
            with part.doing("append"):
                client.append_many(rows)
        except Exception:
            number = -1
            raise
        number += 2
        part.note(written=number)
        time.sleep(0.2 * PACE)

    part.repeat(once)


def follow(part: Part, store: str, seen: str) -> NoReturn:
    """Note each event once, with the position behind it, in one write."""
    file = os.open(seen, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def loop() -> None:
        position = last_position(seen)
        client = TimeSeries.open(store)
        with client.follow(
            position=position, start="unlimited" if position is None else None
        ) as events:
            for event in events:
                with part.doing("take an event"):
                    line = [event.series, event.sequence, event.is_edit, events.position]
                    os.write(file, json.dumps(line).encode() + b"\n")
                    time.sleep(0.01)
                part.note(followed=event.sequence)

    part.repeat(loop)


def last_position(seen: str) -> str | None:
    """Of the last whole line."""
    lines = Path(seen).read_bytes().splitlines(keepends=True)
    while lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    return json.loads(lines[-1])[3] if lines else None


def roll(part: Part, store: str, rollup: str) -> NoReturn:
    """Bring the rollup up to date."""

    def once() -> None:
        client = TimeSeries.open(store, author="roller")
        with part.doing("rollup"):
            done = client.rollup(rollup, "1 minute", AGGREGATES)
        part.note(added=done.added, edited=done.edited)
        time.sleep(0.3 * PACE)

    part.repeat(once)


def maintain(part: Part, store: str, *others: str) -> NoReturn:
    """Compact the stores, one after the other."""

    def once() -> None:
        for path in (store, *others):
            if os.path.exists(path):
                with part.doing("compaction"):
                    TimeSeries.open(path).compact()
                part.note(compacted=path)
        time.sleep(0.3 * PACE)

    part.repeat(once)


def produce(part: Part, bootstrap: str, topic: str, begun: float, kind: str, seed: int) -> NoReturn:
    """Produce present events, up to 35 seconds late; broken ones; transactions."""
    chance = random.Random(seed ^ int(time.time() * 1000))
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5}
    settings["message.timeout.ms"] = 4_000
    if kind == "transactions":
        settings |= {"transactional.id": f"{topic}-{part.name}", "transaction.timeout.ms": 4_000}
    made: list[Producer] = []

    def once() -> None:
        if not made:
            producer = Producer(settings)
            if kind == "transactions":
                producer.init_transactions(10)
            made.append(producer)
        try:
            with part.doing("produce"):
                send(made[0], topic, begun, kind, chance)
        except Exception:
            made.clear()
            raise
        part.note(produced=True)
        time.sleep(0.3 * PACE)

    part.repeat(once)


def send(producer: Producer, topic: str, begun: float, kind: str, chance: random.Random) -> None:
    """A few records to each partition, in one transaction that may be aborted."""
    if kind == "transactions":
        producer.begin_transaction()
    failed: list[Any] = []
    now = SPEED * (time.time() - begun)
    for number in range(2 * PARTITIONS):
        late = 35 * chance.random() ** 2 if kind == "late" else 8 * chance.random()
        value: bytes | None = event(now - late, chance)
        if kind == "broken" and chance.random() < 0.4:
            value = chance.choice([None, b"", b"{", b"\xff\x00", b'{"n": 1}', b'{"at": "noon"}'])
        producer.produce(
            topic, value, partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    if kind != "transactions":
        producer.flush(6)
    elif chance.random() < 0.3:
        producer.abort_transaction(6)
        failed.clear()  # Queued records are purged.
    else:
        producer.commit_transaction(6)
    if failed:
        raise OSError(f"{len(failed)} records were not delivered: {failed[0].str()}")


def event(second: float, chance: random.Random) -> bytes:
    """An event at a second of the campaign's day."""
    at_ms = int(1000 * (DAY_S + max(0.0, second)))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms // 1000))
    value = {"series": f"s{chance.randrange(SERIES)}", "n": chance.randrange(1000)}
    return json.dumps({**value, "at": f"{stamp}.{at_ms % 1000:03}Z"}).encode()


PARTS: dict[str, Callable[..., NoReturn]] = {
    "append": append,
    "edit": edit,
    "follow": follow,
    "maintain": maintain,
    "produce": produce,
    "roll": roll,
    "write": write_windows,
}


def main() -> None:
    """Fork a part for each line of input: `{"name": ..., "kind": ..., "arguments": [...]}`."""
    place = Path(sys.argv[1])
    os.nice(5)  # Parts that begin again and again must not starve the driver.
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    assert pa.__version__
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            be(asked, place)
        say(begun=asked["name"], pid=pid)


def reap() -> None:
    """Say which parts have ended, and why."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            say(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def be(asked: dict[str, Any], place: Path) -> NoReturn:
    """Be a part, which ends with the process that forked it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(place / f"{asked['name']}.out", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        part = Part(asked["name"], place)
        part.note(begun=os.getpid())
        PARTS[asked["kind"]](part, *asked["arguments"])
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
