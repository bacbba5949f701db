"""A run of a reader of ours or of confluent-kafka, in a process of its own."""

import time
from collections.abc import Mapping

from side_by_side import Done

from neighbours.readers import READERS, Topic

__all__ = ["as_done", "run_there", "sums_there"]


def run_there(name: str, topic: Topic) -> Done:
    """Read a topic, without checksums."""
    began, spent_s = time.perf_counter(), time.process_time()
    sums = READERS[name](topic).sums
    return as_done(sums, time.perf_counter() - began, time.process_time() - spent_s)


def sums_there(name: str, topic: Topic) -> Mapping[str, int]:
    """The records of a reader, with the checksums of all bytes."""
    return READERS[name](topic, contents=True).sums


def as_done(sums: Mapping[str, int], whole_s: float, core_s: float) -> Done:
    """A run's tally and its seconds, as `compare` wants them."""
    return Done(whole_s, sums, {"core s": core_s, "whole run": whole_s})
