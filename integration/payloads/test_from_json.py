"""JSON columns against Spark's own `from_json`: alike, but for what the documents list."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from json_literals import IN_FIELDS, LITERALS, OF_DOCUMENTS, PLAIN_DOCUMENTS, TYPES
from pyspark.sql import functions as F

from pyspark_timestream.kafka.decode.json.by_block import (
    MAX_SINGLE_VALUES,
    parse_json,
    parse_unscanned,
)
from pyspark_timestream.kafka.decode.records import DecodedBlock, RequestedFields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs/explanation/from-json.md"
CORRUPT = "_corrupt_record"
Row = tuple[Any, ...]


def plain(scalar: Any) -> Any:
    """A value that equals only itself, in any range."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.TimestampScalar | pa.Date32Scalar):
        return scalar.value
    if isinstance(scalar, pa.StructScalar):
        names = [scalar.type.field(place).name for place in range(scalar.type.num_fields)]
        return {name: plain(scalar[name]) for name in names}
    if isinstance(scalar, pa.MapScalar):
        return [(plain(pair["key"]), plain(pair["value"])) for pair in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [plain(item) for item in scalar.values]
    value = scalar.as_py()
    return repr(value) if isinstance(value, float) else value


def rows_of(columns: Iterable[pa.Array], malformed: Iterable[bool]) -> list[Row]:
    return list(zip(*([plain(v) for v in column] for column in columns), malformed, strict=True))


def spark_reads(
    spark: SparkSession, documents: list[bytes | None], schemas: list[str]
) -> list[tuple[pa.Schema, list[Row]]]:
    """Per schema its Arrow types and what `from_json` makes of each document, in one job."""
    numbered = [(i, None if d is None else bytearray(d)) for i, d in enumerate(documents)]
    frame = spark.createDataFrame(numbered, "i int, value binary")
    text = F.col("value").cast("string")
    parsed = [
        F.from_json(text, f"{schema}, {CORRUPT} string", {"mode": "PERMISSIVE"}).alias(f"s{i}")
        for i, schema in enumerate(schemas)
    ]
    table = frame.select("i", *parsed).toArrow().sort_by("i")
    found = []
    for place in range(len(schemas)):
        struct = table[f"s{place}"].combine_chunks()
        kinds = [field for field in struct.type if field.name != CORRUPT]
        bad = struct.field(CORRUPT).is_valid().to_pylist()
        columns = dict(zip(struct.type.names, struct.flatten(), strict=True))
        found.append((pa.schema(kinds), rows_of([columns[f.name] for f in kinds], bad)))
    return found


def we_read(
    documents: list[bytes | None],
    schema: pa.Schema,
    max_singles: int = MAX_SINGLE_VALUES,
    parse: Callable[..., DecodedBlock] = parse_json,
) -> list[Row]:
    values = pa.array(documents, pa.binary())
    block = parse(RequestedFields(schema), values, max_singles)
    return rows_of(block.columns, block.malformed.tolist())


def in_arrow_alone(documents: list[bytes | None], schema: pa.Schema) -> list[Row]:
    """Each document twice, so that Arrow's parser reads it if it can."""
    return [we_read([each, each], schema, 1, parse_unscanned)[0] for each in documents]


def by_scanner_alone(documents: list[bytes | None], schema: pa.Schema) -> list[Row]:
    """Each document twice, so that the compiled scanner reads it if it can."""
    return [we_read([each, each], schema, 1)[0] for each in documents]


@pytest.mark.outside_ci
@pytest.mark.timeout(300)
def test_what_is_listed_differs_from_from_json_and_nothing_else_does(spark: SparkSession) -> None:
    documents = [f'{{"v":{literal},"w":7}}'.encode() for literal in LITERALS]
    schemas = [f"v {kind}, w long" for kind in TYPES]
    found = set()
    for kind, (schema, theirs) in zip(TYPES, spark_reads(spark, documents, schemas), strict=True):
        ours = we_read(documents, schema)
        assert by_scanner_alone(documents, schema) == ours
        found |= {
            (literal, kind) for literal, a, b in zip(LITERALS, ours, theirs, strict=True) if a != b
        }
    about = {
        name: {(literal, kind) for literal in LITERALS for kind in TYPES if is_about(literal, kind)}
        for name, is_about in IN_FIELDS.items()
    }
    assert all(about.values())
    assert found == set().union(*about.values())


@pytest.mark.timeout(300)
def test_odd_documents_are_read_as_from_json_does_but_for_those_listed(spark: SparkSession) -> None:
    listed = [document for those in OF_DOCUMENTS.values() for document in those]
    documents = [*PLAIN_DOCUMENTS, *listed]
    ((schema, theirs),) = spark_reads(spark, documents, ["v string, w long"])
    ours = we_read(documents, schema)
    assert by_scanner_alone(documents, schema) == ours
    differ = [d for d, a, b in zip(documents, ours, theirs, strict=True) if a != b]
    assert differ == listed


FLAT = (
    "byte", "short", "int", "long", "float", "double", "decimal(5,2)", "decimal(38,18)", "boolean",
    "string", "binary", "timestamp", "timestamp_ntz", "date",
)  # fmt: skip
PLACE = "struct<x:int,seen:timestamp,tags:array<string>>"
NESTED = (PLACE, "array<long>", "array<timestamp>", f"array<{PLACE}>", "struct<at:struct<d:date>>")
MAPS = ("map<string,long>", f"map<string,{PLACE}>", "array<map<string,string>>")


COLUMNS = {f"c{i}": kind for i, kind in enumerate((*FLAT, *NESTED, *MAPS))}
BROKEN = (b"", b",", b'"', b"\\", b":", b"\n", b"e9", b"-")


@functools.cache
def literals_for(kind: str) -> tuple[list[str], list[str]]:
    """Literals that both read alike as `kind`: those that any column can hold, and all."""
    listed = {each for each in LITERALS for about in IN_FIELDS.values() if about(each, kind)}
    alike = [literal for literal in LITERALS if literal not in listed]
    return [literal for literal in alike if _is_json(literal)], alike


def _is_json(literal: str) -> bool:
    try:
        json.loads(literal)
    except ValueError:
        return False
    return True


def value_for(chance: random.Random, kind: str, nested: bool = False) -> str:
    """JSON of the shape of `kind`, with many leaves that are not of their type."""
    if chance.random() < 0.1:
        return "null"
    if kind.startswith("array<"):
        items = (value_for(chance, kind[6:-1], True) for _ in range(chance.randrange(4)))
        return "[" + ",".join(items) + "]"
    if kind.startswith("map<string,"):
        names = chance.sample("abc", chance.randrange(3))
        return object_of({name: value_for(chance, kind[11:-1], True) for name in names})
    if kind.startswith("struct<"):
        inner = re.findall(r"(\w+):((?:\w+<[^>]*>+|\w+))", kind[7:-1])
        chosen = chance.sample(inner, chance.randrange(len(inner) + 1))
        return object_of({name: value_for(chance, field, True) for name, field in chosen})
    fine, alike = literals_for(kind)
    # What is broken inside of a nested value is among what is listed.
    return chance.choice(fine if nested or chance.random() < 0.98 else alike)


def object_of(pairs: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in pairs.items()) + "}"


def document(chance: random.Random) -> bytes:
    """An object with some of the columns, in any order, here and there damaged."""
    names = chance.sample([*COLUMNS, "other"], chance.randrange(9))
    pairs = {name: value_for(chance, COLUMNS.get(name, "string")) for name in names}
    text = object_of(pairs).encode()
    # What is broken inside of a nested value is among what is listed.
    if chance.random() < 0.7 or re.search(rb"[\[{]", text[1:]):
        return text
    # The last brace stays the last: what is behind an object is among what is listed.
    place = chance.randrange(1, len(text))
    damaged = text[:place] + chance.choice(BROKEN) + text[place:-1] + b"}"
    # Half a surrogate pair is among what is listed as well.
    return text if re.search(rb"\\ud83d(?!\\ude00)", damaged) else damaged


def many_documents(count: int) -> list[bytes]:
    """So many, the same in every run."""
    chance = random.Random(20261122)
    return [document(chance) for _ in range(count)]


def differing(
    documents: list[bytes | None], schema: pa.Schema, ours: list[Row], theirs: list[Row]
) -> Iterator[str]:
    names = [*schema.names, "malformed"]
    for document, mine, other in zip(documents, ours, theirs, strict=True):
        for name, a, b in zip(names, mine, other, strict=True):
            if a != b:
                yield f"{document!r}: {name} {COLUMNS.get(name)} is {a!r}, from_json has {b!r}"


@pytest.mark.outside_ci
@pytest.mark.timeout(300)
def test_random_documents_become_what_from_json_makes_of_them(spark: SparkSession) -> None:
    given_: list[bytes | None] = [*many_documents(3_000)]
    in_columns = {name: kind for name, kind in COLUMNS.items() if kind not in MAPS}
    schemas = [", ".join(f"{n} {k}" for n, k in each.items()) for each in (in_columns, COLUMNS)]
    read = spark_reads(spark, given_, schemas)
    for schema, theirs in read:
        assert not list(differing(given_, schema, we_read(given_, schema), theirs))
    schema, theirs = read[0]
    some = given_[:800]
    assert not list(differing(some, schema, in_arrow_alone(some, schema), theirs[:800]))


def test_the_list_of_differences_is_the_page_s() -> None:
    lines = PAGE.read_text().splitlines()
    cells = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    rows = [cell for line, cell in zip(lines, cells, strict=True) if line[:2] == "| "]
    assert rows[2:] == [*IN_FIELDS, *OF_DOCUMENTS]
