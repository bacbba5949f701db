"""A tally of records, which every reader of a topic must agree on.

It is imported in environments that have nothing but pyarrow.
"""

import zlib

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Tally"]


class Tally:
    """Counts records and adds up their fields; with `contents` also checksums of their bytes.

    Attributes:
        sums: `records`, and the sums of `offsets`, of `timestamps` in ms, and of the lengths of
            keys and values (`key_bytes`, `value_bytes`); with `contents` the CRC-32 of `keys` and
            `values`, which takes longer than reading.
    """

    def __init__(self, contents: bool = False) -> None:
        names = ["records", "offsets", "timestamps", "key_bytes", "value_bytes"]
        self.sums = dict.fromkeys([*names, *(["keys", "values"] if contents else [])], 0)
        self._contents = contents

    def add_one(self, offset: int, timestamp_ms: int, key: bytes, value: bytes) -> None:
        """Add a record."""
        sums = self.sums
        sums["records"] += 1
        sums["offsets"] += offset
        sums["timestamps"] += timestamp_ms
        sums["key_bytes"] += len(key)
        sums["value_bytes"] += len(value)
        if self._contents:
            sums["keys"] += zlib.crc32(key)
            sums["values"] += zlib.crc32(value)

    def add(
        self, offsets: pa.Array, timestamps_ms: pa.Array, keys: pa.Array, values: pa.Array
    ) -> None:
        """Add n records, as columns."""
        sums = self.sums
        sums["records"] += len(offsets)
        sums["offsets"] += _sum(offsets)
        sums["timestamps"] += _sum(timestamps_ms.cast(pa.int64()))
        sums["key_bytes"] += _sum(pc.binary_length(keys))
        sums["value_bytes"] += _sum(pc.binary_length(values))
        if self._contents:
            sums["keys"] += sum(map(zlib.crc32, keys.to_pylist()))
            sums["values"] += sum(map(zlib.crc32, values.to_pylist()))


def _sum(column: pa.Array) -> int:
    return pc.sum(column, min_count=0).as_py()
