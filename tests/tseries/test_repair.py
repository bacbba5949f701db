"""`repair` brings a damaged store back to a sound state, and says what it did."""

import shutil
import subprocess
import sys

import pytest
from tseries.builders import batch, new_store, stored

from pyspark_tseries import store as storage
from pyspark_tseries.inspection import verify
from pyspark_tseries.repair import Repaired, repair
from pyspark_tseries.store import Store


@pytest.fixture
def path(tmp_path):
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append(batch(("a", n), (f"b{n}", 1)))
    return tmp_path / "s"


def reopened(path):
    storage._OPEN.clear()
    return Store.open(str(path))


def run(path, *more):
    line = [sys.executable, "-m", "pyspark_tseries", "repair", str(path), *more]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_sound_store_needs_no_repair(path):
    before = Store.open(str(path)).version()
    assert repair(str(path)) == Repaired()
    assert reopened(path).version() == before


def test_a_lost_head_is_mended_and_no_event_is_lost(path):
    before = stored(path)
    shutil.rmtree(path / "_tseries" / "head")
    storage._OPEN.clear()
    planned = repair(str(path), dry_run=True)
    assert "is made again from the events" in planned.mended[0]
    assert any("cannot be read" in line for line in verify(str(path)))
    assert repair(str(path)) == planned
    assert verify(str(path)) == []
    assert stored(path) == before


def test_the_command_says_what_it_mended(path):
    assert run(path) == (0, "nothing to repair\n")
    shutil.rmtree(path / "_tseries" / "head")
    code, said = run(path, "--dry-run")
    assert (code, "mended: the store's head file" in said) == (1, True)
    code, said = run(path)
    assert (code, "mended: the store's head file" in said) == (0, True)
    assert run(path) == (0, "nothing to repair\n")
