"""The notebook of the tutorial: a run of it shows what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from notebooks import ROOT, execute, logs, without_logs

NOTEBOOK = ROOT / "docs" / "tutorial" / "first-notebook.ipynb"

CLOSED_IDLE = re.compile(
    r"Traceback [^\n]*\n(  [^\n]*\n)*?  [^\n]*daemon\.py[^\n]*\n"
    r"(  [^\n]*\n)*BrokenPipeError: [^\n]*\n"
)
"""Printed by Spark where it closes a Python worker that was idle for a minute: a loaded machine."""


def shown(notebook: nbformat.NotebookNode) -> list[tuple[str, Any]]:
    """Each cell's source and outputs."""
    return [(cell.source, cell.get("outputs")) for cell in notebook.cells]


@pytest.mark.outside_ci
@pytest.mark.timeout(600)
def test_the_notebook_runs_without_a_traceback_and_shows_what_it_showed(tmp_path: Path) -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    done = execute(stored, tmp_path)
    script = "integration/support/sessions/notebooks.py"
    keep = f"if the new outputs are right: python {script} {NOTEBOOK}"
    assert shown(without_logs(done)) == shown(stored), keep
    assert "Traceback" not in CLOSED_IDLE.sub("", logs(done))


def test_the_notebook_shows_a_chart_with_axes_and_a_store_in_a_line() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [output for cell in stored.cells for output in cell.get("outputs", [])]
    data = [output["data"] for output in outputs if "data" in output]
    (chart,) = [each["text/html"] for each in data if "<svg" in each.get("text/html", "")]
    assert ">celsius</text>" in chart
    assert "UTC" in chart
    assert any(each["text/plain"].startswith("TimeSeries('/data/climate'") for each in data)
