"""Later collections pass over what a worker's first task has left."""

import subprocess
import sys

CODE = """
import gc
from pyspark_timestream.core.adapters import freeze_objects

before = len(gc.get_objects())
freeze_objects()
frozen = gc.get_freeze_count()
assert frozen >= before // 2 > 0, (frozen, before)
assert len(gc.get_objects()) < before // 10
kept = [[] for _ in range(1000)]
freeze_objects()
assert gc.get_freeze_count() <= frozen
"""


def test_what_a_process_has_is_frozen_once() -> None:
    # In a process of its own: freezing this one would hide what other tests leave behind.
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
