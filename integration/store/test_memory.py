"""A store is asked and followed in much less memory than its events take (semantics 31 to 34)."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from lengths import with_rest_outside_ci

from pyspark_tseries import TimeSeries

ROWS, SERIES, NOTE = 1_000_000, 500, 600
"""Events of the huge series, and of all others together; the bytes of a note."""

LIMIT = 800 * 1024 * 1024
"""The memory that a question may take beyond the open client; the events take 1.4 GB."""

BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A huge series, and many others in order of time, as they come; and the position before."""
    path = tmp_path_factory.mktemp("memory") / "s"
    schema = {"note": pa.string(), "value": pa.float64()}
    store = TimeSeries.create(path, schema, "unlimited", "me", auto_compact=False)
    before = store.follow(start="none").position
    for part in range(4):
        at = np.arange(ROWS // 2)
        which = np.where(at % 2, SERIES, at // 2 % SERIES)
        names = pa.array([*(f"s{n:03}" for n in range(SERIES)), "huge"]).take(pa.array(which))
        us = BEGIN + (part * ROWS // 2 + at) * 1_000_000
        numbers = np.char.zfill((part * ROWS // 2 + at).astype(f"S{NOTE}"), NOTE)
        table = {
            "series": names,
            "timestamp": pa.array(us).cast(pa.timestamp("us", "UTC")),
            "note": pa.array(numbers).cast(pa.string()),
            "value": pa.array(at % 7 / 2),
        }
        store.append_many(pa.table(table))
    store.edit("huge", 5, {"value": 1.0})
    return path, before


QUESTIONS = {
    "stream_from": "sum(batch.num_rows for batch in store.range_query().stream_from())",
    "stream_from a series": "sum(b.num_rows for b in store.range_query().stream_from('huge'))",
    "stream_from between times": """sum(
        b.num_rows for b in store.range_query().from_(begin).next(timedelta(days=20)).stream_from())
        and 2 * rows""",
    "every": """sum(store.range_query().every("1 day").aggregate(
        n=("*", "count"), m=("value", "mean"), p=("value", 0.9), note=("note", "max"),
        ).select_from().to_arrow()["n"].to_pylist())""",
    "every of a series": """sum(store.range_query().every("1 hour").aggregate(
        n=("*", "count"), m=("value", "time_weighted_mean"), note=("note", "last"),
        ).select_from("huge").to_arrow()["n"].to_pylist())""",
    "every by a tag": """sum(store.range_query().every("1 day").aggregate(n=("*", "count")).by(
        "value").select_from().to_arrow()["n"].to_pylist())""",
    "gaps": "store.range_query().gaps(timedelta(days=99)).select_from().num_rows or 2 * rows",
    "latest": "len(store.latest()) and 2 * rows",
    "latest at": "len(store.latest(at=begin + timedelta(days=3))) and 2 * rows",
    "series": "sum(store.series()['events'].to_pylist())",
    "sql": """store.sql(
        "SELECT count(*), max(note), avg(value) FROM events WHERE value >= 0").fetchall()[0][0]""",
    "sql by series": """sum(row[1] for row in store.sql(
        "SELECT series, count(*), max(note) FROM events GROUP BY series").fetchall())""",
    "history": "len(store.history('huge', 5)) and 2 * rows",
    "as_of": "sum(batch.num_rows for batch in store.as_of(3).range_query().stream_from())",
    # The rest of a follower's events is more of the same.
    "follow": "sum(1 for _ in islice(store.follow(position=before, timeout=0), 400_000)) * 5",
    "follow series": """sum(1 for _ in islice(
        store.follow(prefix="s", start="unlimited", timeout=0), 250_000)) * 4""",
}
ASK = f"""
import resource, sys
from itertools import islice
from datetime import UTC, datetime, timedelta
import duckdb, pyarrow, pyarrow.parquet, numpy
from pyspark_tseries import TimeSeries
path, before, question, limit = sys.argv[1:]
begin, rows = datetime(2026, 1, 1, tzinfo=UTC), {ROWS}
store = TimeSeries.open(path, "me", auto_compact=False)
taken = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData")]
limit = int(taken[0]) * 1024 + int(limit)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print(eval(question))
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(f"{{int(peak[0]) // 1024}} MB", file=sys.stderr)
"""


def ask(store, question, limit=LIMIT):
    path, before = store
    command = [sys.executable, "-c", ASK, str(path), before, " ".join(question.split()), str(limit)]
    # Arrow's own allocator reserves a gigabyte of addresses, even if it uses few.
    allocators = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    environment = {**os.environ, **allocators}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


IN_CI = ("every by a tag", "stream_from a series", "latest", "sql")
"""Each reads in a way of its own, and few rows are enough to see whether it holds them all."""


@pytest.mark.parametrize("question", with_rest_outside_ci(QUESTIONS, IN_CI))
def test_a_question_needs_a_part_of_the_memory_of_a_store(store, question):
    done = ask(store, QUESTIONS[question])
    print(question, done.stderr[-2000:])
    assert done.returncode == 0, done.stderr[-2000:]
    whole = "series" not in question or question in ("series", "sql by series")
    assert int(done.stdout) == (2 * ROWS if whole else ROWS)


def test_the_limit_is_one(store):
    """A holder of the whole answer exceeds it."""
    done = ask(store, "len(store.range_query().select_from())")
    assert done.returncode != 0
    assert "llo" in done.stderr  # malloc, bad_alloc, allocate
