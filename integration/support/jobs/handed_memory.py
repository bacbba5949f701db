"""The memory of Spark's process of a source: `handed_memory.py BOOTSTRAP TOPIC OFFSETS`.

`handed_memory.py tseries STORE EVENTS OFFSET` reads a store from an offset on. Plans batch after
batch of this many offsets or events with Spark's own function, which sends the rows of small ones
away. Prints the batches, those handed over, and by how many megabytes the process has grown.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from pyspark.serializers import read_int, write_int
from pyspark.sql.streaming import python_streaming_source_runner as spark
from pyspark.sql.types import StructType
from reading_memory import peak_mb

from pyspark_timestream.kafka.reader import KafkaTransport
from pyspark_tseries import DefaultSource


class Socket(io.RawIOBase):
    """Its other end keeps only the beginning of each message: the partition, and Spark's flag."""

    begun = b""

    def writable(self) -> bool:
        return True

    def write(self, given: Any) -> int:
        sent = memoryview(given).cast("B")
        self.begun += bytes(sent[: 100_000 - len(self.begun)])
        return len(sent)

    @property
    def flag(self) -> int:
        """The answers to Spark about the rows."""
        answer = io.BytesIO(self.begun)
        if read_int(answer) == 0:
            # The end-of-run batch has neither rows nor CTIs.
            return spark.PREFETCHED_RECORDS_NOT_FOUND
        answer.seek(read_int(answer), io.SEEK_CUR)
        return read_int(answer)


def open_reader(source: str, place: str, most: str) -> tuple[StructType, Any]:
    """The columns and the reader of a stream."""
    if source == "tseries":
        subscription = DefaultSource({"path": place, "maxEventsPerTrigger": most})
        return subscription.schema(), subscription.streamReader(subscription.schema())
    transport = KafkaTransport(
        {
            "kafka.bootstrap.servers": source,
            "subscribe": place,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": most,
        }
    )
    return transport.schema(), transport.stream_reader(transport.schema())


def main() -> None:
    """Read the topic to its end, as Spark's process of a source does."""
    schema, reader = open_reader(*sys.argv[1:4])
    reader.prepareForTriggerAvailableNow()
    start = json.loads(sys.argv[4]) if len(sys.argv) > 4 else reader.initialOffset()
    batches, handed, before = 0, 0, peak_mb()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        asked, answer = io.BytesIO(), Socket()
        for offset in (start, end):
            text = json.dumps(offset).encode()
            write_int(len(text), asked)
            asked.write(text)
        asked.seek(0)
        spark.partitions_func(reader, None, schema, 10_000, asked, answer)
        handed += answer.flag == spark.NON_EMPTY_PYARROW_RECORD_BATCHES
        batches, start = batches + 1, end
    print(batches, handed, round(peak_mb() - before))


if __name__ == "__main__":
    main()
