"""A task's decoding of a block."""

import pyarrow as pa
from timestream.builders import INSTANT, at, block, micros, options, projection

from pyspark_timestream.kafka.ranges import OffsetRange, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import compute_end_clock, run_task
from pyspark_timestream.rules.clocks import PartitionClock

COLUMNS = [("offset", pa.int64()), ("cti", INSTANT)]


def task(raw, *records, sizes=(99,), columns=COLUMNS):
    """(rows, end state) of `(value, headers, timestamp)` records cut into blocks of `sizes`."""
    given_options = options(**raw)
    wanted = projection(given_options, *columns)
    share, ended = TaskRange(OffsetRange(at(0), 0, len(records)), PartitionClock()), {}

    def read(span, needs):
        first = 0
        for size in [*sizes, len(records)]:
            some = records[first : first + size]
            if some:
                values, headers, stamps = zip(*some, strict=True)
                yield block(*values, first=first, headers=list(headers), timestamps_ms=list(stamps))
            first += size

    tables = list(run_task(given_options, wanted, TaskPlan((share,)), read, ended.__setitem__))
    assert compute_end_clock(given_options, share, read) == ended[at(0)].clock
    rows = pa.Table.from_batches(tables, wanted.schema)
    columns = [
        micros(rows[name].combine_chunks()) if kind == INSTANT else rows[name].to_pylist()
        for name, kind in columns
    ]
    return list(zip(*columns, strict=True)), ended[at(0)].clock
