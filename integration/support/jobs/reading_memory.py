"""The memory of a task: `reading_memory.py BOOTSTRAP TOPIC` reads all of a topic as tasks do.

Prints the records, the bytes of their values, and by how many megabytes the process has grown.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.compute as pc

from pyspark_timestream.kafka.reader import KafkaTransport


def peak_mb() -> float:
    """The most memory that this process has had, in MB; `getrusage` counts its parent's, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    bootstrap, topic = sys.argv[1:]
    transport = KafkaTransport(
        {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            # All partitions in one task, as small ranges are in a stream.
            "maxTasks": "1",
        }
    )
    reader = transport.stream_reader(transport.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    before, rows, size = peak_mb(), 0, 0
    for task in tasks:
        for batch in reader.read(task):
            rows += batch.num_rows
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
    print(len(tasks), rows, size, round(peak_mb() - before))


if __name__ == "__main__":
    main()
