"""The size of the house: its files, their length, and the files that a piece of work passes.

`python -m pytest tests/test_house.py -rP` prints the counts.
"""

import ast
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from files_passed import files_passed
from sources import ROOTS, SOURCES, text_of, tree_of

from pyspark_tseries import TimeSeries

MOST_FILES = 200
LONGEST = 900
MOST_OF_AN_APPEND = 16


def test_the_packages_have_few_files() -> None:
    lines = sum(len(text_of(path).splitlines()) for path in SOURCES)
    print(f"{len(SOURCES)} files, {lines} lines")
    assert len(SOURCES) <= MOST_FILES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_file_is_longer_than_a_sitting(path: Path) -> None:
    assert len(text_of(path).splitlines()) <= LONGEST


def test_only_the_packages_themselves_list_what_they_export() -> None:
    listing = [path for path in SOURCES if "\n__all__" in text_of(path)]
    assert listing == sorted(root / "__init__.py" for root in ROOTS)


DEFINED_TWICE = {
    "INSTANT": "Arrow's type of an instant, in the core of each package",
}
"""The constants that two modules may define, and why."""


def test_a_constant_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in sorted(constants_of(tree_of(path))):
            places.setdefault(name, []).append(f"{path.parent.name}/{path.name}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: twice[name] for name in twice if name not in DEFINED_TWICE} == {}
    assert set(DEFINED_TWICE) <= set(twice)


def constants_of(module: ast.Module) -> set[str]:
    """Return the public constants that a module defines; a type variable is none."""
    names = set()
    for statement in module.body:
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
                continue
            case ast.Assign(targets=targets):
                pass
            case ast.AnnAssign(target=target):
                targets = [target]
            case _:
                continue
        found = [name for target in targets for name in ast.walk(target)]
        names |= {name.id for name in found if isinstance(name, ast.Name)}
    return {name for name in names if re.fullmatch("[A-Z][A-Z0-9_]*", name)}


def test_an_append_to_a_store_passes_few_files(tmp_path: Path) -> None:
    series = TimeSeries.create(tmp_path / "store", {"value": pa.float64()})
    noon = datetime(2026, 11, 26, 12, tzinfo=UTC)
    series.append("sensor", 20.5, timestamp=noon)
    with files_passed() as passed:
        series.append("sensor", 21.0, timestamp=noon)
    print(*sorted(passed), sep="\n")
    assert len(passed) <= MOST_OF_AN_APPEND


COMMAND = re.compile(r"(?:python -m pyspark_\w+|chmod|kill)(?: [\w+=<>-]+)* $")
"""The end of a text with a command that needs a name or a path after it."""

MAY_ADVISE = re.compile(r"python -m|chmod|kill")


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_a_command_that_a_message_advises_quotes_what_it_names(root: Path) -> None:
    # Somebody pastes it, and a path may have a blank or an apostrophe.
    texts = [
        text
        for path in SOURCES
        if path.is_relative_to(root) and MAY_ADVISE.search(text_of(path))
        for text in ast.walk(tree_of(path))
        if isinstance(text, ast.JoinedStr)
    ]
    named = []
    for text in texts:
        before = ""
        for piece in text.values:
            if isinstance(piece, ast.Constant):
                before += str(piece.value)
            elif COMMAND.search(before):
                named.append(ast.unparse(piece))
    assert named
    assert [piece for piece in named if "shlex.quote(" not in piece] == []
