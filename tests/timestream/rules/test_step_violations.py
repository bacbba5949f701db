"""The policy table of semantics 3, cell by cell, typed here from its text."""

import pytest

from pyspark_timestream.core.policies import KEEP_ALL, KINDS, POLICIES, Action, Policy
from pyspark_timestream.rules.clocks import COUNTERS, PartitionClock

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


def test_the_policy_that_messages_advise_keeps_every_event():
    assert POLICIES[KEEP_ALL].flags_all


@pytest.mark.parametrize("action", Action, ids=lambda action: action.name)
def test_an_action_has_a_counter_of_each_partition_unless_it_ends_the_query(action):
    assert action.counter in COUNTERS or action is Action.FAIL
    assert action is Action.FAIL or hasattr(PartitionClock(), action.counter)


@pytest.mark.parametrize("action", Action, ids=lambda action: action.name)
def test_what_an_action_fills_are_columns_of_the_row(action):
    filled = {column for shape in KINDS for column in Policy(*[action] * 6).columns(shape)}
    passes = action is Action.FLAG or action.moves is not None
    assert ("violation" in filled) == passes
    assert ("original_start_time" in filled) == (action.moves is not None)


@pytest.mark.parametrize("kind", Policy._fields)
def test_a_policy_fills_columns_of_the_shapes_whose_events_it_passes_on(kind):
    moves = POLICIES["drop"]._replace(**{kind: Action.MOVE_START})
    filled = {shape: moves.columns(shape) for shape in KINDS}
    assert {shape for shape in KINDS if filled[shape]} == {
        shape for shape, kinds in KINDS.items() if kind in kinds
    }
    assert "original_end_time" not in filled["point"]
