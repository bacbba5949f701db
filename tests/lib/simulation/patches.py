"""Puts the simulated cluster, clocks and threads in place of the real ones."""

import contextlib
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# Loaded at their first use, these would draw ids, and change the run of a seed.
import pandas  # noqa: F401
import pytest
import sqlglot  # noqa: F401
from simulation.chance import Beside, Chance
from simulation.cluster import Client, Cluster, SimulatedConsumer

from pyspark_timestream.core import adapters
from pyspark_timestream.kafka import ranges
from pyspark_timestream.kafka.client import broker, consumer, errors, range_reader
from pyspark_timestream.kafka.driver import driver, trackers


def _in_this_thread(chance: Chance, ours: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Leave the threads of the test run their own clock."""
    return lambda *given: ours(*given) if threading.get_ident() == chance.thread else real(*given)


def _set_defaults(patch: pytest.MonkeyPatch, function: Any, **named: Any) -> None:
    """Change defaults of keyword-only arguments."""
    patch.setattr(function, "__kwdefaults__", {**function.__kwdefaults__, **named})


@contextlib.contextmanager
def patched(
    chance: Chance, cluster: Cluster, min_task_records: int
) -> Iterator[pytest.MonkeyPatch]:
    """Run the block over the cluster and the seed's clock; one thread does everything."""
    before = random.getstate()
    random.seed(chance.seed)
    with pytest.MonkeyPatch.context() as patch:
        _patch_clocks(patch, chance)
        _patch_chance(patch, chance)
        _patch_kafka(patch, chance, cluster)
        patch.setattr(ranges, "MIN_TASK_RECORDS", min_task_records)
        try:
            yield patch
        finally:
            random.setstate(before)
            range_reader.get_compression_stats.cache_clear()


def _patch_clocks(patch: pytest.MonkeyPatch, chance: Chance) -> None:
    clocks: dict[str, Callable[..., Any]] = {
        "time": lambda: chance.wall_us() / 1e6,
        "time_ns": lambda: chance.wall_us() * 1_000,
        "monotonic": chance.monotonic,
        "monotonic_ns": lambda: chance.monotonic_us() * 1_000,
        "sleep": chance.sleep,
    }
    for name, ours in clocks.items():
        patch.setattr(time, name, _in_this_thread(chance, ours, getattr(time, name)))
    # Defaults were bound when the modules were loaded.
    patch.setattr(
        errors.RetryBudget.__init__, "__defaults__", (0.1, chance.monotonic, chance.sleep)
    )
    _set_defaults(patch, range_reader.RangeReader.__init__, clock=chance.monotonic)


def _patch_chance(patch: pytest.MonkeyPatch, chance: Chance) -> None:
    patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=chance.random.getrandbits(128), version=4))
    patch.setattr(
        secrets, "token_hex", lambda n=32: f"{chance.random.getrandbits(8 * n):0{2 * n}x}"
    )
    patch.setattr(secrets, "randbits", chance.random.getrandbits)


def _patch_kafka(patch: pytest.MonkeyPatch, chance: Chance, cluster: Cluster) -> None:
    range_reader.get_compression_stats.cache_clear()
    patch.setattr(broker, "open_client", lambda kind, settings, *_, **__: Client(cluster, settings))
    _set_defaults(
        patch,
        range_reader.RangeReader.__init__,
        create_consumer=lambda options, settings, log: SimulatedConsumer(cluster, settings),
    )
    patch.setattr(range_reader, "_POOL", consumer.Pool(max_idle=4, idle_s=300))
    patch.setattr(driver, "ThreadPoolExecutor", lambda *_: Beside(chance))
    patch.setattr(adapters, "ThreadPoolExecutor", lambda *_: Beside(chance))
    patch.setattr(trackers, "_ask_in_background", chance.later)
    patch.setattr(range_reader, "_fetch_ranges", partial(_fetch_some, chance, cluster))


def _fetch_some(
    chance: Chance, cluster: Cluster, options: Any, group: str, spans: Any, needs: Any
) -> dict[Any, Any]:
    """Read some of these ranges ahead; the others did not arrive in time."""
    own = range_reader.RangeReader(options, group)
    return {span: list(own.read(span, needs)) for span in spans if chance.happens(0.7)}
