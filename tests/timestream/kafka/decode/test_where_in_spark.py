"""Option `where` beside Spark's own filter, in sessions of several settings."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.conditions import random_condition, random_table

from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.decode.where import resolve
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
            condition = resolve(WHERE.parse(text), kinds, {})
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
                    # The filter alone has the last word, not one of many columns of a projection.
                    kept = frame.where(text).select("row").toArrow()["row"].to_pylist()
                    assert sorted(kept) == rows, (text, session)
        finally:
            for name, text in before.items():
                spark.conf.set(name, text)
