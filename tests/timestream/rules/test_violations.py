"""The policy table of semantics 3, cell by cell, typed here from its text."""

import pytest

from pyspark_timestream.rules.state import COUNTERS, PartitionState
from pyspark_timestream.rules.step import POLICIES, Action, Policy

D, S, E, F, G = Action.DROP, Action.MOVE_START, Action.MOVE_END, Action.FAIL, Action.FLAG

CELLS = {
    # point, interval, ended interval, start edge, end edge, malformed
    "drop": (D, D, D, D, D, D),
    "adjust": (D, S, D, S, E, D),
    "fail": (F, F, F, F, F, F),
    "flag": (G, G, G, G, G, G),
}


def test_the_table_is_that_of_the_rules():
    assert {name: tuple(policy) for name, policy in POLICIES.items()} == CELLS


@pytest.mark.parametrize("action", Action, ids=lambda action: action.name)
def test_an_action_has_a_counter_of_each_partition_unless_it_ends_the_query(action):
    assert action.counter in COUNTERS or action is Action.FAIL
    assert action is Action.FAIL or hasattr(PartitionState(), action.counter)


@pytest.mark.parametrize("action", Action, ids=lambda action: action.name)
def test_what_an_action_fills_are_columns_of_the_row(action):
    shapes = ("point", "interval", "edge")
    filled = {column for shape in shapes for column in Policy(*[action] * 6).columns(shape)}
    passes = action in (Action.FLAG, Action.MOVE_START, Action.MOVE_END)
    assert ("violation" in filled) == passes
    assert ("original_start_time" in filled) == (action.moves is not None)
