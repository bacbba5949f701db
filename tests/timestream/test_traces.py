"""Every worked trace, as one task reads it in one block, and record by record."""

from __future__ import annotations

import pyarrow as pa
import pytest
from timestream.builders import at, block, options, projection
from timestream.worked_traces import (
    NAMES,
    as_written,
    headers_of,
    timestamp_ms,
    trace,
    value_of,
)

from pyspark_timestream.kafka.ranges import OffsetRange, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import run_task
from pyspark_timestream.rules.clocks import PartitionClock


def test_there_are_ten_traces() -> None:
    assert len(NAMES) == 10


@pytest.mark.parametrize("size", [99, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_worked_trace_gives_its_rows_ctis_and_counters(name: str, size: int) -> None:
    told = trace(name)
    records = told["records"]
    given = options(**told["options"])

    def read(span, needs):
        for first in range(0, len(records), size):
            some = records[first : first + size]
            yield block(
                *map(value_of, some),
                first=first,
                timestamps_ms=[timestamp_ms(record) for record in some],
                headers=[
                    [{"key": key, "value": value} for key, value in headers_of(record)]
                    for record in some
                ],
            )

    ended = {}
    plan = TaskPlan((TaskRange(OffsetRange(at(0), 0, len(records)), PartitionClock()),))
    wanted = projection(given)
    batches = run_task(given, wanted, plan, read, ended.__setitem__)
    rows = pa.Table.from_batches(list(batches), wanted.schema).to_pylist()
    assert as_written(rows) == told["expected"]
    counted = {name: count for name, count in ended[at(0)].clock.counters().items() if count}
    assert counted == told["counters"]
