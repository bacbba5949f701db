"""A backquoted lower-case word in a docstring of a package names something that is there.

It is a parameter, local or attribute of the function or class, or of one that the code there names;
a name or text of its module; or a word of a list here, which is derived from the declarations.
"""

import ast
import builtins
import keyword
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import duckdb
from sources import ROOTS, SOURCES, tree_of

import pyspark_timestream
import pyspark_tseries
from pyspark_timestream.clock.time_options import TimeOptions
from pyspark_timestream.core.declarations import option_specs
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions
from pyspark_timestream.report import PAGE_COLOURS
from pyspark_tseries import __main__ as command_line
from pyspark_tseries.chart.figure import USUAL
from pyspark_tseries.client import convert
from pyspark_tseries.client.results import LOCAL
from pyspark_tseries.client.sql import VIEWS
from pyspark_tseries.errors import DAMAGES
from pyspark_tseries.model.columns import EDIT_TIME, ERASURE_FIELD, file_schema
from pyspark_tseries.model.downsampling import FILLS, FUNCTIONS
from pyspark_tseries.model.properties import PERMISSIONS
from pyspark_tseries.model.ranges import QUERY_KINDS
from pyspark_tseries.options import STORE_POLICIES, ReadOptions, SubscribeOptions, WriteOptions
from pyspark_tseries.read.downsample import GAP_FIELDS
from pyspark_tseries.read.view import ERASED_FIELDS, SERIES_SCHEMA
from pyspark_tseries.store.log_entries import INFO_KEY
from pyspark_tseries.write.rows import EDIT_OF

ROOT = Path(__file__).parent.parent
STORE = [path for path in SOURCES if path.is_relative_to(ROOTS[1])]
WORD = re.compile(r"(?<!`)`([a-z_][a-z0-9_]*)(?:\(\))?`(?!`)")
Scope = ast.FunctionDef | ast.ClassDef

COLUMNS = {field.name for field in (*file_schema([]), ERASURE_FIELD, EDIT_TIME, EDIT_OF)}
OPTIONS = {
    spec.name
    for options in (ReadOptions, SubscribeOptions, WriteOptions)
    for spec in option_specs(options).values()
}
PARTITIONS = {"event", "edit"}
KNOWN = {
    *(COLUMNS | OPTIONS | PARTITIONS | {INFO_KEY}),
    *(*command_line.COMMANDS, *DAMAGES, *QUERY_KINDS, *PERMISSIONS, *STORE_POLICIES),
    *(*keyword.kwlist, *dir(builtins)),
}

RESULTS = {*SERIES_SCHEMA.names, *GAP_FIELDS.names, *(field.name for field in ERASED_FIELDS)}
RANGES = {"last", "limit", "next", "previous", "unlimited"}
"""The words of a range, which its parser splits into texts."""

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PUBLIC = {
    member
    for name in pyspark_tseries.__all__
    for member in (name, *dir(getattr(pyspark_tseries, name)))
}
DUCKDB = {*dir(duckdb.DuckDBPyRelation), *dir(duckdb.DuckDBPyConnection)}
FACING = {
    *(*RESULTS, *RANGES, *EXTRAS, *PUBLIC, *DUCKDB, *FUNCTIONS, *FILLS, *VIEWS, *PAGE_COLOURS),
    *(USUAL, LOCAL, convert._EDIT_OF),
}
"""The words of users; inside the package they are the names of something else, such as `last`."""


STREAM_OPTIONS = {
    spec.name
    for options in (KafkaOptions, KafkaWriteOptions, TimeOptions)
    for spec in option_specs(options).values()
}
STREAM_WORDS = {
    *(STREAM_OPTIONS | {*dir(pyspark_timestream)}),
    # Formats, transports, commands and their shells.
    *("timestream", "time", "demo", "explain", "peek", "watch"),
    # Values and keys of records, reasons of malformed ones, and the values of options.
    *(
        "value",
        "key",
        "group",
        "name",
        "framing",
        "interval",
        "flag",
        "earliest",
        "error",
        "false",
        "once",
    ),
    # Spark's methods and functions, Arrow's, and fields of Spark's and Avro's.
    *("from_json", "isnull", "load", "partitions", "flatten", "to_pandas", "start", "duration"),
    # C's structs and functions, suffixes of metrics, and words of secrets and scopes.
    *("block", "field", "rd_kafka_offset_reset_op_cb", "_total", "cardinality", "lately"),
    # The letters of formulas and examples.
    *("a", "b", "c", "e", "now"),
}


@cache
def names_in(node: ast.AST) -> set[str]:
    """All names of parameters, locals and attributes in the code of `node`."""
    names: set[str] = set()
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names |= {other or name, *name.split(".")}
            case ast.keyword(arg=str(name)):
                names.add(name)
    return names


def members_of(node: ast.ClassDef) -> set[str]:
    """The methods and attributes of a class, without its bases."""
    names: set[str] = set()
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                names.add(name)
    return names


def docstrings(tree: ast.Module) -> Iterator[tuple[list[Scope], ast.Constant]]:
    """All docstrings, those of constants as well, each after the scopes that it is in."""

    def visit(node: ast.AST, scopes: list[Scope]) -> Iterator[tuple[list[Scope], ast.Constant]]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield scopes, text
                case ast.FunctionDef() | ast.ClassDef():
                    yield from visit(child, [*scopes, child])
                case ast.If() | ast.With() | ast.Try():
                    yield from visit(child, scopes)

    return visit(tree, [])


@cache
def classes() -> dict[str, set[str]]:
    """The members of all classes of both packages."""
    nodes = (node for path in SOURCES for node in tree_of(path).body)
    return {node.name: members_of(node) for node in nodes if isinstance(node, ast.ClassDef)}


@cache
def defined() -> set[str]:
    """The modules of both packages, and what they define."""
    nodes = (node for path in SOURCES for node in tree_of(path).body)
    return {path.stem for path in SOURCES} | {
        node.name for node in nodes if isinstance(node, Scope)
    }


def stale_words(tree: ast.Module, known: set[str]) -> list[str]:
    """The words that name nothing, after the line of each."""
    texts = list(docstrings(tree))
    skipped = {id(text) for _, text in texts}
    known = known | {
        child.value
        for child in ast.walk(tree)
        if isinstance(child, ast.Constant)
        and isinstance(child.value, str)
        and id(child) not in skipped
    }
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name):
                known.add(name)
            case ast.ClassDef(name=name):
                known |= {name, *members_of(node)}
            case _:
                known |= names_in(node)
    found = []
    for scopes, text in texts:
        unknown = [word for word in WORD.finditer(text.value) if word[1] not in known]
        if not unknown:
            continue
        names = names_in(scopes[0] if scopes else tree)  # It has those of all within.
        own = names.union(*(classes().get(name, ()) for name in names))
        found += [
            f"{text.lineno + text.value[: word.start()].count(chr(10))}: {word[1]}"
            for word in unknown
            if word[1] not in own
        ]
    return found


# One test, not one for each file: each process of pytest would read all files first.
def test_a_word_of_a_docstring_names_something_that_is_there() -> None:
    stale = {}
    for path in SOURCES:
        known = KNOWN | defined()
        if path not in STORE:
            known |= STREAM_WORDS
        elif path.parent.name in ("client", "model", "spark", ROOTS[1].name):
            known |= FACING
        stale[f"{path.parent.name}/{path.name}"] = stale_words(tree_of(path), known)
    assert {name: words for name, words in stale.items() if words} == {}


def test_a_word_that_names_nothing_is_found() -> None:
    code = '''
def cut(text, width):
    """Cut `text` after `width` letters, at most `most` of `series`."""
    return text[:width]
'''
    assert stale_words(ast.parse(code), KNOWN) == ["3: most"]
