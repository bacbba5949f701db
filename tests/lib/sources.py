"""The sources of both packages, each read and parsed once in a process of pytest."""

import ast
from functools import cache
from pathlib import Path

import pyspark_timestream
import pyspark_tseries

ROOTS = [Path(each.__file__).parent for each in (pyspark_timestream, pyspark_tseries)]
SOURCES = sorted(path for root in ROOTS for path in root.rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    """The text of a source."""
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax of a source."""
    return ast.parse(text_of(path), path)
