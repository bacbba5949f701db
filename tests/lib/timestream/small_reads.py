"""Limits of reading that are so small that logs of a few records reach them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pyspark_timestream.kafka import ranges
from pyspark_timestream.kafka.offsets import stream_state


@contextmanager
def small_reads(*, tasks: bool = True, alignments: bool = True) -> Iterator[None]:
    """Logs of a few records make several tasks, and are aligned too."""
    with pytest.MonkeyPatch.context() as patch:
        if alignments:
            patch.setattr(stream_state, "MIN_READ", 1)
        if tasks:
            patch.setattr(ranges, "MIN_TASK_RECORDS", 3)
        yield
