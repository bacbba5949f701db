"""A writer beside the watched one: its name as argument, `[STORE, COMMITS]` a line.

For each line it makes this many commits, to a series of its own and to a shared one, and answers
with the store's reply to each, as JSON.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

from pyspark_tseries import TimeSeries

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Writers:
    """Two other processes that write where and when they are told."""

    def __init__(self):
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for writer in self.started:
            writer.kill()
            writer.communicate()

    def begin(self, path, commits):
        while len(self.started) < 2:
            line = [sys.executable, __file__, f"writer {len(self.started)}"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.started.append(subprocess.Popen(line, **pipes, text=True))
        for writer in self.started:
            writer.stdin.write(json.dumps([str(path), commits]) + "\n")
            writer.stdin.flush()

    def end(self):
        """The events that were written: series, sequence, time, value, author."""
        answers = [json.loads(writer.stdout.readline()) for writer in self.started]
        return [(*event, f"writer {n}") for n, answer in enumerate(answers) for event in answer]


def main() -> None:
    """Answers line by line."""
    (name,) = sys.argv[1:]
    for line in sys.stdin:
        path, commits = json.loads(line)
        series = TimeSeries.open(path, name, auto_compact=False)
        made = []
        for number in range(commits):
            target = (name, "shared")[number % 2]
            value = float(number)
            event = series.append(target, value)
            us = (event.timestamp - EPOCH) // timedelta(microseconds=1)
            made.append((target, event.sequence, us, value))
        print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
