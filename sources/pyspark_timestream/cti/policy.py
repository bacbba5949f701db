"""What happens to an event that breaks its stream's promise: one table, policy by kind of event.

The table is that of semantics 3. A *late* event has a time strictly before the CTI in force; a
*malformed* one has no readable time, an unknown edge, or an end that is not after its start.
"""

from enum import Enum
from typing import Final

__all__ = ["KINDS", "POLICIES", "TABLE", "Action", "action"]


class Action(Enum):
    """What is done to one event."""

    DROP = "dropped"
    MOVE_START = "start moved to the CTI"
    MOVE_END = "end moved to the CTI"
    FAIL = "the query fails"
    FLAG = "passed on, flagged"


POLICIES: Final = ("drop", "adjust", "fail", "flag")

KINDS: Final = ("point", "interval", "ended interval", "start edge", "end edge", "malformed")
"""An `ended interval` is one whose end is at or before the CTI: nothing of it would be left."""

TABLE: Final[dict[tuple[str, str], Action]] = {
    ("drop", "point"): Action.DROP,
    ("drop", "interval"): Action.DROP,
    ("drop", "ended interval"): Action.DROP,
    ("drop", "start edge"): Action.DROP,
    ("drop", "end edge"): Action.DROP,
    ("drop", "malformed"): Action.DROP,
    # A point lives one tick, so it can never straddle a CTI: adjusting it leaves nothing.
    ("adjust", "point"): Action.DROP,
    ("adjust", "interval"): Action.MOVE_START,
    ("adjust", "ended interval"): Action.DROP,
    ("adjust", "start edge"): Action.MOVE_START,
    ("adjust", "end edge"): Action.MOVE_END,
    ("adjust", "malformed"): Action.DROP,
    ("fail", "point"): Action.FAIL,
    ("fail", "interval"): Action.FAIL,
    ("fail", "ended interval"): Action.FAIL,
    ("fail", "start edge"): Action.FAIL,
    ("fail", "end edge"): Action.FAIL,
    ("fail", "malformed"): Action.FAIL,
    ("flag", "point"): Action.FLAG,
    ("flag", "interval"): Action.FLAG,
    ("flag", "ended interval"): Action.FLAG,
    ("flag", "start edge"): Action.FLAG,
    ("flag", "end edge"): Action.FLAG,
    ("flag", "malformed"): Action.FLAG,
}


def action(policy: str, kind: str) -> Action:
    """The cell of the table.

    Raises:
        KeyError: there is no such cell; the message names policy and kind.
    """
    try:
        return TABLE[policy, kind]
    except KeyError:
        raise KeyError(f"no action for policy '{policy}' and kind '{kind}'") from None
