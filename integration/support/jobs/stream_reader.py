"""The Kafka stream reader without Spark: plans and reads batches as Spark would, until a count.

`stream_reader.py BOOTSTRAP TOPIC COUNT_FILE OUTPUT`: values are whole numbers, and each one that is
read is a line of OUTPUT. It ends when it has read as many as COUNT_FILE says, once that exists.
`TIMESTREAM_NATIVE` chooses the path.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path

from pyspark_timestream.kafka.reader import KafkaTransport

POLL_S = 0.02


def read_all(bootstrap: str, topic: str, count: Path, output: Path) -> None:
    """Read until there are as many values as `count` says."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "ctiFrequency": "10",
    }
    transport = KafkaTransport(options)
    reader = transport.stream_reader(transport.schema())
    start, found = reader.initialOffset(), 0
    with output.open("w") as lines:
        while not (count.exists() and found >= int(count.read_text())):
            # Offsets are text between two batches, and tasks and the reader are pickled.
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            if end == start:
                time.sleep(POLL_S)
                continue
            for task in pickle.loads(pickle.dumps(reader.partitions(start, end))):
                for rows in reader.read(task):
                    values = [each for each in rows.column("value").to_pylist() if each is not None]
                    lines.writelines(f"{int(value)}\n" for value in values)
                    found += len(values)
            start = end


if __name__ == "__main__":
    where, name, count_file, written = sys.argv[1:]
    read_all(where, name, Path(count_file), Path(written))
