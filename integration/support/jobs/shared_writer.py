"""A process that `test_shared_commits` kills: `STORE ACKNOWLEDGED NAME THREADS`.

Its threads append to a shared series and to one of their own, and note each acknowledged event in
one write. Every fifth event is late: it must be refused, and no other.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from datetime import UTC, datetime

from pyspark_tseries import TimeSeries, UpdateFailed

LATE = datetime(1970, 1, 1, tzinfo=UTC)


def main() -> None:
    """Append until killed."""
    path, acknowledged, name, threads = sys.argv[1:]
    series = TimeSeries.open(path, author="me")
    notes = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(thread: int) -> None:
        for number in itertools.count():
            value = f"{name}-{thread}-{number}"
            for target in ("all", f"{name}-{thread}"):
                sequence = series.append(target, value).sequence
                os.write(notes, f"{target} {sequence} {value}\n".encode())
            if number % 5 == 0:
                try:
                    series.append("all", f"late {value}", LATE)
                except UpdateFailed:
                    os.write(notes, b"refused\n")

    for thread in range(int(threads)):
        threading.Thread(target=write, args=[thread]).start()


if __name__ == "__main__":
    main()
