"""How much of a large batch is in memory: what the limits say, however large it is."""

import subprocess
import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[2])
BATCH = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, pyarrow as pa
from tseries.builders import staged
from pyspark_tseries.model.series_index import Head
from pyspark_tseries.write.large_batch import LargeBatch
from pyspark_tseries.storage.location import place_of
from pyspark_tseries.write.task_output import Forecast, Limits, take_share

schema, limits = staged(("a", 1)).schema, Limits(memory=2_000_000)
place, pool, size = place_of(sys.argv[2]), pa.default_memory_pool(), 0

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

shares = [
    take_share(place, parts(n), schema, Forecast(None, 0, 0), "me", str(n), limits)
    for n in range(2)
]
assert all(share.file is not None for share in shares)
batch = LargeBatch(tuple(shares), schema, "fail", "me", "commit", limits=limits)
attempt = batch.prepare(place, None, Head(), 0, 1, None, None)
assert len(attempt.written) == 1
sequences = attempt.head.of(attempt.head.ids.names())["last_sequence"]
assert (sequences + 1).sum() == 400_000
print(size, pool.max_memory())
"""


def test_neither_tasks_nor_the_commit_hold_a_large_batch_in_memory(tmp_path):
    # A process of its own, whose memory is that of the batch.
    command = [sys.executable, "-c", BATCH, TESTS, str(tmp_path / "s")]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    size, most = map(int, done.stdout.split())
    assert size > 8 * 2_000_000
    assert most < 6 * 2_000_000
