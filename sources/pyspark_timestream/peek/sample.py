"""Reads the newest records of a topic, without a group and without Spark."""

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.peek.records import NoSample, Sample

__all__ = ["read_sample"]

_GROUP: Final = "timestream-peek"
"""A name that a consumer must have; nothing is committed to it, and nobody joins it."""

_SPANS: Final = (1, 20, 500)
"""How many offsets are read for each record that is wanted, until there are enough records.

Markers of transactions and compaction leave gaps.
"""

_MAX_PARTITIONS: Final = 32
_ALL: Final = ColumnSet(timestamps=True, keys=True, values=True, headers=True)


class _Place(NamedTuple):
    timestamp_ms: int
    partition: Partition
    row: int


def read_sample(options: KafkaOptions, topic: str, count: int) -> Sample:
    """Read the `count` newest records of a topic, by their timestamps.

    Raises:
        NoSample: the topic does not exist.
        BrokerUnreachable: no broker answers, or it refuses.
    """
    broker = Broker(options, _GROUP)
    try:
        partitions = broker.partitions()
        if not partitions:
            brokers = options.client["bootstrap.servers"]
            raise NoSample(f"topic '{topic}' does not exist at {brokers}")
        firsts, ends = broker.earliest(partitions), broker.ends(partitions)
    finally:
        broker.close()
    sizes = {part: end - firsts[part] for part, end in ends.items() if part in firsts}
    filled = [part for part in sorted(sizes) if sizes[part] > 0]
    reader = RangeReader(options, _GROUP)
    try:
        read = {
            part: _read_newest(reader, part, firsts[part], ends[part], count)
            for part in islice(filled, _MAX_PARTITIONS)
        }
    finally:
        reader.close()
    blocks = {part: block for part, block in read.items() if block is not None}
    return Sample(topic, len(partitions), sum(sizes.values()), _select_newest(blocks, count))


def _read_newest(
    reader: RangeReader, partition: Partition, first: int, end: int, count: int
) -> RecordBlock | None:
    """Read the last records of one partition; None if there are none within reach."""
    found: list[RecordBlock] = []
    for span in _SPANS:
        start = max(first, end - count * span)
        found = list(reader.read(Range(partition, start, end), _ALL))
        if start == first or sum(len(block.offsets) for block in found) >= count:
            break
    if not found:
        return None
    columns = (pa.concat_arrays(column) for column in zip(*found, strict=True))
    whole = RecordBlock(*columns)
    return _slice(whole, np.arange(max(0, len(whole.offsets) - count), len(whole.offsets)))


def _select_newest(
    blocks: dict[Partition, RecordBlock], count: int
) -> tuple[tuple[Partition, RecordBlock], ...]:
    newest = sorted(_list_places(blocks))[-count:]
    chosen: dict[Partition, list[int]] = {}
    for place in newest:
        chosen.setdefault(place.partition, []).append(place.row)
    return tuple(
        (part, _slice(blocks[part], np.array(sorted(rows))))
        for part, rows in sorted(chosen.items())
    )


def _list_places(blocks: dict[Partition, RecordBlock]) -> Iterator[_Place]:
    for part, block in blocks.items():
        assert block.timestamps_ms is not None, "all columns are read"
        for row, ms in enumerate(block.timestamps_ms.to_pylist()):
            yield _Place(ms, part, row)


def _slice(block: RecordBlock, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> RecordBlock:
    places = pa.array(rows, pa.int64())
    return RecordBlock(*(column.take(places) for column in block if column is not None))
