"""How much of a large batch is in memory: what the limits say, however large it is."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = str(Path(__file__).parents[2] / "lib")
BATCH = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, pyarrow as pa
from tseries.builders import staged
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.write.batch import Batch, CommitContext
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.write.task_output import OptimisticNumber, SpillLimits, write_task_output

schema, limits = staged(("a", 1)).schema, SpillLimits(memory=2_000_000)
location, pool, size = parse_location(sys.argv[2]), pa.default_memory_pool(), 0

def parts(seed):
    global size
    chance = np.random.default_rng(seed)
    names = pa.array([f"series {i}" for i in range(10_000)])
    for _ in range(20):
        series = names.take(pa.array(chance.integers(0, 10_000, 10_000)))
        us = pa.array(chance.integers(0, 10**6, 10_000)).cast(schema.field("timestamp").type)
        none = [pa.nulls(10_000, schema.field(i).type) for i in (2, 3)]
        columns = [series, us, *none, pa.array(chance.random(10_000))]
        part = pa.RecordBatch.from_arrays(columns, schema=schema)
        size += part.nbytes
        yield part

outputs = [
    write_task_output(
        location,
        parts(n),
        schema,
        OptimisticNumber(None, 0, 0),
        "me",
        unique_name=str(n),
        limits=limits,
    )
    for n in range(2)
]
assert all(output.file is not None for output in outputs)
batch = Batch(schema.empty_table(), "fail", "me", tasks=tuple(outputs), limits=limits)
attempt = batch.prepare(CommitContext(location, None, SeriesIndex(), 0, 1))
assert len(attempt.written) == 1
sequences = attempt.index.lookup(attempt.index.ids.names())["last_sequence"]
assert (sequences + 1).sum() == 400_000
print(size, pool.max_memory())
"""


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_neither_tasks_nor_the_commit_hold_a_large_batch_in_memory(tmp_path):
    # A process of its own, with only the batch's memory.
    (tmp_path / "s").mkdir()
    command = [sys.executable, "-c", BATCH, TESTS, str(tmp_path / "s")]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    size, most = map(int, done.stdout.split())
    assert size > 8 * 2_000_000
    assert most < 6 * 2_000_000
