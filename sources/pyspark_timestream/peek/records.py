"""A sample of a topic's records, as it was read."""

from dataclasses import dataclass

import pyarrow as pa

from pyspark_timestream.kafka.decode.columns import METADATA
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.options.payloads import Part
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["NoSample", "Sample"]


class NoSample(Exception):
    """There is nothing to look at; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest records of a topic.

    Attributes:
        topic: its name.
        partitions: how many it has.
        offsets: the offsets that it holds, an upper bound of the number of records.
        blocks: the records by partition, in offset order, with all columns.
    """

    topic: str
    partitions: int
    offsets: int
    blocks: tuple[tuple[Partition, RecordBlock], ...]

    def __len__(self) -> int:
        return sum(len(block.offsets) for _, block in self.blocks)

    def payloads(self, part: Part) -> pa.Array:
        """Return all values, or all keys."""
        return self._concat(f"{part}s", pa.binary())

    def headers(self) -> pa.Array:
        """Return the headers of all records."""
        return self._concat("headers", METADATA["headers"])

    def timestamps_ms(self) -> pa.Array:
        """Return the timestamps of all records."""
        return self._concat("timestamps_ms", pa.int64())

    def _concat(self, name: str, kind: pa.DataType) -> pa.Array:
        pieces = [getattr(block, name) for _, block in self.blocks]
        return pa.concat_arrays(pieces) if pieces else pa.array([], kind)
