"""Shared by all fast tests: which of them are in `make test`, and how many examples they try."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings
from lengths import FULL_LENGTH, IN_CI

from pyspark_timestream.core.session import use_installed_pyspark

use_installed_pyspark(os.environ)

# The machine's other work may slow an example.
settings.register_profile("timestream", settings.default, deadline=None)
settings.load_profile("timestream")

# CI tries a quarter of the examples, other ones each time, and `make test` of a developer a tenth;
# `make soak` tries them all.
EXAMPLES_SHARE = 4 if IN_CI else 10
MIN_EXAMPLES = 30 // EXAMPLES_SHARE
# Fixtures that start a process of many seconds: a session of Spark, an S3 server.
SESSIONS = {"spark", "bucket"}


STORES = Path(__file__).parent / "tseries"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_sessions(items)
    mark_reruns(items)
    mark_disks(items)
    limit_examples(items)


def mark_sessions(items: list[pytest.Item]) -> None:
    """Mark what uses a session of Spark or of a server, and run it first.

    A worker then begins with all of it, and the others, which take tests from the end of that
    one's list, start no session of their own for the few tests of `make test`.
    """
    for item in items:
        if SESSIONS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("session")
    items.sort(key=lambda item: item.get_closest_marker("session") is None)


def mark_reruns(items: list[pytest.Item]) -> None:
    """Let Spark try again to start a Python worker.

    It gives a worker ten seconds to connect back, which a loaded machine may exceed: that error by
    name, and no other, gets a second try, and the summary says so. Other tests get none, since
    pytest-rerunfailures then waits for up to 40 milliseconds before each.
    """
    again = pytest.mark.flaky(reruns=2, only_rerun="Python worker failed to connect back")
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("session"):
            item.add_marker(again)


def mark_disks(items: list[pytest.Item]) -> None:
    """Mark what writes stores to a disk; the first such test of a module is an everyday one.

    A module tests a promise of the store, so each of them has a round trip in `make test`.
    """
    seen = set()
    for item in items:
        others = any(map(item.get_closest_marker, ("session", "thorough", "outside_ci", "soak")))
        on_disk = "tmp_path" in getattr(item, "fixturenames", ())
        if others or not on_disk or STORES not in item.path.parents:
            continue
        item.add_marker("disk")
        if item.path not in seen:
            item.add_marker("everyday")
        seen.add(item.path)


def limit_examples(items: list[pytest.Item]) -> None:
    """Leave most examples to `make soak`."""
    if FULL_LENGTH:
        return
    seen = set()
    for item in items:
        test = getattr(item, "obj", None)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is None or test in seen:
            continue
        seen.add(test)
        fewer = max(own.max_examples // EXAMPLES_SHARE, MIN_EXAMPLES)
        test._hypothesis_internal_use_settings = settings(own, max_examples=fewer)


def pytest_unconfigure() -> None:
    """Let Python collect in the end what tests of a worker's memory have frozen.

    Libraries that are bound by nanobind (DuckDB) would report it as leaked, in forty lines.
    """
    gc.unfreeze()
