"""SQL sees what range queries see, of one commit, and can change nothing."""

import dataclasses
import subprocess
import sys
import threading
from datetime import timedelta

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import VALUE, batch
from tseries.limits import set_limits
from tseries.rewriting import in_milliseconds, rewritten, rewritten_by_spark

from pyspark_tseries import InvalidQuery, NoSuchEvent, PermissionDenied, TimeSeries, UpdateFailed
from pyspark_tseries.client import sql
from pyspark_tseries.maintain import compactor
from pyspark_tseries.maintain.compactor import compact, merge_file_groups
from pyspark_tseries.maintain.erase import erase
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.columns import file_schema, result_schema
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.read.view import View
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.store import Store

MS = 1000
NAMES = ["a", "b", "\u00e9'\"\n%", "\U00020bb7"]
CURRENT = "FROM events ORDER BY series, coalesce(original_sequence, sequence)"
AUDIT = "FROM all_events ORDER BY series, sequence"


def opened(path):
    return TimeSeries.open(str(path), "me", auto_compact=False)


def arrow(relation, schema):
    """The rows of a relation in the store's types; only unsigned or shorter ones would differ."""
    return relation.to_arrow_table().cast(schema)


def current(client):
    return client.range_query().select_from().to_arrow()


def shown(client, connection=None):
    relation = client.sql(CURRENT) if connection is None else connection.sql(CURRENT)
    return arrow(relation, current(client).schema)


def delivered(path, values):
    """Every stored event as a Delta reader sees it."""
    names = file_schema(values).names
    rows = DeltaTable(str(path)).to_pyarrow_table()
    if "erasure" not in rows.column_names:
        rows = rows.append_column("erasure", pa.nulls(rows.num_rows, pa.string()))
    order = [("series", "ascending"), ("sequence", "ascending")]
    return rows.select(names).cast(file_schema(values)).sort_by(order)


RANGES = st.builds(
    RetainedRange,
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 9).map(lambda ms: ms * MS),
)
NAME = st.sampled_from(NAMES)
STEPS = st.one_of(
    *[st.tuples(st.just("append"), st.lists(st.tuples(NAME, st.integers(0, 3)), min_size=1))] * 3,
    *[st.tuples(st.just("edit"), st.lists(st.tuples(NAME, st.integers(0, 6)), min_size=1))] * 2,
    st.tuples(st.just("range"), RANGES),
    st.tuples(st.just("erase"), st.tuples(NAME, st.integers(0, 6))),
    st.tuples(st.sampled_from(["compact", "merge", "optimize", "rebuild", "reopen"]), st.none()),
)


class Program:
    """A store that steps change."""

    def __init__(self, path, retained):
        self.path, self.newest_us = str(path), dict.fromkeys(NAMES, 0)
        self.store = Store.create(self.path, [VALUE], retained, min_retention_us=0)

    def step(self, number, act, what):
        now = (number + 1) * 3 * MS
        if act == "append":
            rows = []
            for at, (name, ahead) in enumerate(what):
                self.newest_us[name] += ahead * MS
                rows.append((name, self.newest_us[name], number + at / 100))
            self.store.append(batch(*rows), lambda: now)
        elif act == "edit":
            edits = [(name, sequence, -float(number)) for name, sequence in what]
            self.store.append(batch(edits=edits, missing="drop"), lambda: now)
        elif act == "range":
            set_retained_range(self.store, what, now, "me")
        elif act == "erase":
            try:
                erase(self.path, *what, "test", clock=lambda: now)
            except NoSuchEvent:
                return
        elif act == "compact":
            compact(self.path, now)
        elif act == "merge":
            with pytest.MonkeyPatch.context() as few:
                few.setattr(compactor, "MIN_GROUPS_TO_MERGE", 2)
                merge_file_groups(self.store, now, everything=False)
        elif act == "optimize":
            DeltaTable(self.path).optimize.compact()
        elif act == "rebuild":
            rebuild(self.path)
        else:
            Store.forget_all()
            self.store = Store.open(self.path)


@settings(max_examples=40)
@given(RANGES, st.lists(STEPS, max_size=9), st.integers(0, 9))
def test_after_any_program_sql_gives_what_queries_give(tmp_path_factory, retained, steps, seen):
    """Asked in the middle, too, so that what is kept from commit to commit is shown right."""
    program = Program(tmp_path_factory.mktemp("program") / "s", retained)
    connection = opened(program.path).connect()
    for number, (act, what) in enumerate(steps):
        program.step(number, act, what)
        if number == seen:
            client = opened(program.path)
            assert shown(client).equals(current(client))
            client.refresh(connection)
    client = opened(program.path)
    assert shown(client).equals(current(client))
    assert arrow(client.sql(AUDIT), file_schema([VALUE])).equals(delivered(program.path, [VALUE]))
    client.refresh(connection)
    assert shown(client, connection).equals(current(client))
    connection.close()
