"""The policy table of semantics 3, cell by cell, typed here from its text."""

import pytest

from pyspark_timestream.rules.policies import (
    EVENT_KINDS,
    POLICIES,
    POLICY_TABLE,
    Action,
    look_up_action,
)

D, S, E, F, G = Action.DROP, Action.MOVE_START, Action.MOVE_END, Action.FAIL, Action.FLAG

CELLS = {
    # kind: drop, adjust, fail, flag
    "point": (D, D, F, G),
    "interval": (D, S, F, G),
    "ended interval": (D, D, F, G),
    "start edge": (D, S, F, G),
    "end edge": (D, E, F, G),
    "malformed": (D, D, F, G),
}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("column", "policy"), list(enumerate(("drop", "adjust", "fail", "flag"))))
def test_every_cell_is_that_of_the_rules(kind, column, policy):
    assert look_up_action(policy, kind) is CELLS[kind][column]


def test_the_table_has_no_other_cells():
    assert set(EVENT_KINDS) == set(CELLS)
    assert set(POLICY_TABLE) == {(policy, kind) for policy in POLICIES for kind in EVENT_KINDS}


def test_a_cell_that_does_not_exist_is_named():
    with pytest.raises(KeyError, match="'ignore' and kind 'point'"):
        look_up_action("ignore", "point")
