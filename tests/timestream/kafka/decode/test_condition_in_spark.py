"""Option `where` beside Spark's own filter, in sessions of several settings."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from timestream.conditions import random_condition, random_table

from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.decode.condition import resolve_condition
from pyspark_timestream.kafka.options.where import WHERE

pytestmark = pytest.mark.spark

ROWS, CONDITIONS = 200, 50
SESSIONS = [
    {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"},
    {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "America/New_York"},
]


def draw_conditions(chance: random.Random, table: pa.Table) -> dict[str, list[int]]:
    """Conditions that are not refused, with the rows that each finds."""
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    found: dict[str, list[int]] = {}
    while len(found) < CONDITIONS:
        text = random_condition(chance)
        try:
            condition = resolve_condition(WHERE.parse(text), kinds, {})
        except (OptionError, ValueError):
            continue
        wanted = condition.find(lambda name: table[name].combine_chunks(), ROWS)
        found[text] = np.flatnonzero(wanted).tolist()
    return found


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=12)
def test_a_condition_finds_the_rows_that_sparks_filter_finds(spark, seed):
    chance = random.Random(seed)
    table = random_table(chance, ROWS)
    found = draw_conditions(chance, table)
    names = [f"`{number}`" for number in range(len(found))]
    for session in SESSIONS:
        before = {name: spark.conf.get(name) for name in session}
        for name, text in session.items():
            spark.conf.set(name, text)
        try:
            columns = [f"({text}) AS {name}" for text, name in zip(found, names, strict=True)]
            frame = spark.createDataFrame(table.append_column("row", pa.array(range(ROWS))))
            result = frame.coalesce(1).selectExpr(*columns).toArrow()
            for column, (text, rows) in zip(result.columns, found.items(), strict=True):
                truths = [place for place, truth in enumerate(column.to_pylist()) if truth is True]
                if truths != rows:
                    # Only the filter has the last word, not one of many columns of a projection.
                    kept = frame.where(text).select("row").toArrow()["row"].to_pylist()
                    assert sorted(kept) == rows, (text, session)
        finally:
            for name, text in before.items():
                spark.conf.set(name, text)


ODD = pa.table(
    {
        "row": range(4),
        "a": pa.array([1, 2, 0, None], pa.int32()),
        "b": pa.array([True, False, None, False]),
        "c": pa.array([None, False, None, True]),
        "s": ["5", "5.0", "", None],
    }
)
MORE = [
    *("is null", "is not null", "isnull", "notnull", "not null", "is true", "is not false"),
    *("= 1", "= c", "<=> c", "<> null", "between 0 and 1", "not between 1 and 2", "in (1, null)"),
    *("like '5%'", "not like '5' escape '!'", "is distinct from c", "! in (1)", "~ 1", "~~ '5'"),
    *("xor b", "&& b", "|| b", ";", "c", "as c", "!> 1", "^= 1", "is unknown", "rlike '5'"),
]
BEFORE = [
    "a",
    "b",
    "s",
    "not b",
    "! b",
    "+ s",
    "+a",
    "- a",
    "(b)",
    "not a = 1 and b",
    "a = 1",
    "b or",
]


@pytest.mark.outside_ci
def test_an_odd_text_is_refused_or_read_as_spark_reads_it(spark):
    """sqlglot takes more than Spark does, and a later one may take more."""
    kinds = dict(zip(ODD.schema.names, ODD.schema.types, strict=True))
    frame, taken = spark.createDataFrame(ODD).coalesce(1), 0
    for text in [f"{before} {more}" for before in BEFORE for more in MORE]:
        try:
            condition = resolve_condition(WHERE.parse(text), kinds, {})
        except (OptionError, ValueError):
            continue
        taken += 1
        found = condition.find(lambda name: ODD[name].combine_chunks(), len(ODD))
        try:
            kept = [row[0] for row in frame.where(text).select("row").collect()]
        except (PySparkException, Py4JError) as error:
            kept = str(error)
        assert kept == np.flatnonzero(found).tolist(), text
    assert taken > 60
