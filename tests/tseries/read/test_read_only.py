"""A read never writes: who may only read a store's directory can read it in every way."""

import ctypes
import subprocess
import sys

import pytest
from tseries.builders import batch, new_store

from pyspark_tseries.maintain.compactor import compact

READ_EVERYTHING = """
import os, sys
path = sys.argv[1]
try:
    open(os.path.join(path, "_tseries", "head", "new"), "w")
except OSError:
    pass
else:
    raise SystemExit("the directory can be written to, so this shows nothing")
from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.read.delivery import read_delivery
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.model.ranges import parse_initial
from pyspark_tseries.read.delivery import InitialEvents

def read(**options):
    source = DefaultSource({"path": path, **options})
    reader = source.reader(source.schema())
    return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))

series = TimeSeries.open(path, author="me")
print(len(series.range_query().select_from("a")))
print(len(series.range_query().for_edits().from_last(2).select_from("a")))
print(read(), read(series="a"), read(query="allEdits"), read(series="b", query="latestEdits"))
print(read(asOf="1970-01-01T00:00:02Z"), read(asOf="1970-01-01T00:00:02Z", query="allEdits"))
print(describe(path)["events"], verify(path))
follower = Subscription(path, InitialEvents(parse_initial("unlimited"), {}))
start = follower.find_start()
tasks = follower.plan_tasks(start, follower.find_end(start, None))
print(sum(rows.num_rows for task in tasks for rows in read_delivery(task)))
"""


DROP_FROM_BOUNDING_SET, DAC_OVERRIDE = 24, 1


def without_roots_rights():
    """From the next exec on root, too, may write only where it is allowed to."""
    ctypes.CDLL(None).prctl(DROP_FROM_BOUNDING_SET, DAC_OVERRIDE, 0, 0, 0)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s"
    store = new_store(path, {"limit": 100})
    for n in range(4):
        store.append(batch(("a", n), ("b", n)), clock=lambda n=n: n * 1_000_000)
    store.append(batch(edits=[("a", 0)]), clock=lambda: 5_000_000)
    compact(str(path))
    store.append(batch(("c", 9)), clock=lambda: 6_000_000)
    everything = [tmp_path, path, *path.rglob("*")]
    for file in everything:
        file.chmod(0o555 if file.is_dir() else 0o444)
    yield path
    for file in everything:
        file.chmod(0o755 if file.is_dir() else 0o644)


@pytest.mark.thorough
def test_a_store_that_may_only_be_read_answers_every_read(store):
    before = sorted(store.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", READ_EVERYTHING, str(store)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=without_roots_rights,
    )
    assert done.stdout.splitlines() == ["4", "1", "9 4 10 4", "6 6", "10 []", "10"], done.stderr
    assert sorted(store.rglob("*")) == before
