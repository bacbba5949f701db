"""Three campaigns of real faults, each from one seed: see `support/chaos`, and `make chaos`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import chaos_campaign
import pytest

pytestmark = pytest.mark.timeout(600)


def campaign(place: Path, *arguments: str) -> Counter[str]:
    """Run it in a process with mounts of its own; how often each kind of fault hit."""
    log = place / "faults.jsonl"
    line = [sys.executable, chaos_campaign.__file__, str(log), *arguments]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CHAOS_PLACE": str(place)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    faults = [json.loads(each) for each in log.read_text().splitlines()]
    return Counter(fault["kind"] for fault in faults if fault["hit"])


@pytest.mark.soak
def test_stores_and_clients_lose_and_double_nothing_in_two_campaigns(tmp_path: Path) -> None:
    hit = campaign(tmp_path, "1", "2", "--without-spark")
    assert sum(hit.values()) > 8


@pytest.mark.soak
def test_a_chain_from_topic_to_topic_loses_and_doubles_nothing_in_a_campaign(
    tmp_path: Path,
) -> None:
    hit = campaign(tmp_path, "1", "--count", "2", "--only", "er killed")
    assert any("er killed" in kind and not kind.startswith("producer") for kind in hit)
