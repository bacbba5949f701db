"""Execute a notebook of docs/ as CI does; run as a script, `notebooks.py PATH`, keep its outputs.

Files under `/data`, where the notebook has its own, go to a directory that is removed.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]
LIMIT_S = 240
"""Seconds for a cell; the first batch of a session takes seconds, on a loaded machine many."""


def execute(notebook: nbformat.NotebookNode, place: Path) -> nbformat.NotebookNode:
    """A copy of `notebook` with the outputs of a run; the files are under `place`."""
    given = copy.deepcopy(notebook)
    _replace(given, "/data/", f"{place}/")
    NotebookClient(given, timeout=LIMIT_S, resources={"metadata": {"path": place}}).execute()
    _replace(given, f"{place}/", "/data/")
    for cell in given.cells:
        # When each cell began and ended.
        cell.metadata.pop("execution", None)
    return given


def without_logs(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without what Spark's JVM logs."""
    given = copy.deepcopy(notebook)
    for cell in given.cells:
        if "outputs" in cell:
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return given


def logs(notebook: nbformat.NotebookNode) -> str:
    """The standard error of a run."""
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    return "".join(each.text for each in outputs if each.get("name") == "stderr")


def _replace(notebook: nbformat.NotebookNode, old: str, new: str) -> None:
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
        for output in cell.get("outputs", []):
            for holder in (output, output.get("data", {})):
                for key, value in holder.items():
                    if isinstance(value, str):
                        holder[key] = value.replace(old, new)


def main(path: str) -> None:
    """Execute the notebook at `path`, and keep its outputs there."""
    with tempfile.TemporaryDirectory() as place:
        done = execute(nbformat.read(path, as_version=4), Path(place))
    nbformat.write(without_logs(done), path)


if __name__ == "__main__":
    main(sys.argv[1])
