"""Produce for a long run: `long_producer.py BOOTSTRAP TOPIC BEGAN SPEED`.

`DEVICES` report every `EVERY_S` of event time, which began with `START_S` at the wall clock's BEGAN
and passes SPEED times as fast. A reading may come up to `LATEST` reports late, out of order. It
goes on until it is ended, and keeps nothing, so that its memory does not distort the run.
"""

import sys
import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Producer

DEVICES: Final = 50
EVERY_S: Final = 10
START_S: Final = 1_700_006_400
"""The event time of the first reports, 2023-11-15."""

LATEST: Final = 4
"""How many reports later a reading may come at most."""

_VALUE: Final = b'{"device":"d%02d","ts":%d,"reading":%.1f}'


def arriving(tick: int) -> Iterator[tuple[int, int]]:
    """(device, tick of the reading) of the records that come at a tick, the first being 0.

    Each reading comes once.
    """
    for late in range(LATEST + 1):
        report = tick - late
        for device in range(DEVICES):
            if report >= 0 and (report * 7 + device * 3) % (LATEST + 1) == late:
                yield device, report


def main() -> None:
    """Produce what is due, again and again."""
    bootstrap, topic, began, speed = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:5])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "log_level": 0})
    done = 0
    while True:
        due = int((time.time() - began) * speed / EVERY_S)
        for tick in range(done, due):
            for device, report in arriving(tick):
                at_ms = (START_S + report * EVERY_S) * 1000
                value = _VALUE % (device, at_ms, (report * 31 + device) % 977 / 10)
                producer.produce(topic, value, partition=device % 4, timestamp=at_ms)
            producer.poll(0)
        done = max(due, done)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
