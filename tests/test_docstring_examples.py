"""The examples in docstrings give the results that they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "sources", ROOT / "sinks")
MODULES = [
    ".".join(path.relative_to(root).with_suffix("").parts)
    for root in PACKAGES
    for path in sorted(root.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_example_gives_what_it_shows(name: str) -> None:
    results = doctest.testmod(import_module(name))
    assert results.attempted
    assert not results.failed
