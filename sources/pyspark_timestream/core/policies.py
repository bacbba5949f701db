"""The policies for events that break a promise of time, as tables (semantics 3).

Only a policy's row decides what it does, counts and fills: no other code compares its name.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple


class Action(Enum):
    """What a policy does with a violating event.

    Attributes:
        text: the words of the policy table of semantics 3.
        counter: counts late events of this action (semantics 3.7); "" if the query fails.
        moves: the time that the action sets to the CTI; the row then has the violation `adjusted`
            and keeps the original times. A store sets it to its newest original or CTI, without a
            violation. None: it moves no time.
    """

    text: str
    counter: str
    moves: Literal["start_us", "end_us"] | None

    DROP = "dropped", "dropped", None
    MOVE_START = "start moved to the CTI", "adjusted", "start_us"
    MOVE_END = "end moved to the CTI", "adjusted", "end_us"
    FAIL = "the query fails", "", None
    FLAG = "passed on, flagged", "flagged", None

    def __init__(
        self, text: str, counter: str, moves: Literal["start_us", "end_us"] | None
    ) -> None:
        self.text = text
        self.counter = counter
        self.moves = moves


class Policy(NamedTuple):
    """A row of the policy table: the action for each kind of event.

    An `ended interval` ends at or before the CTI, so moving its start would leave nothing of it.
    """

    point: Action
    interval: Action
    ended_interval: Action
    start_edge: Action
    end_edge: Action
    malformed: Action

    @property
    def flags(self) -> bool:
        """Whether late events become rows that differ from others only by `violation`."""
        return Action.FLAG in self

    @property
    def flags_all(self) -> bool:
        """Whether it passes every late event on with its own times."""
        return set(self) == {Action.FLAG}

    @property
    def fails(self) -> bool:
        """Whether a violation fails the query."""
        return Action.FAIL in self

    @property
    def moves(self) -> bool:
        """Whether late events become rows with other times."""
        return any(action.moves for action in self)

    def columns(self, shape: str) -> set[str]:
        """Return the columns that this policy fills in rows of events of `shape`."""
        actions: set[Action] = {getattr(self, kind) for kind in KINDS[shape]}
        moves = any(action.moves for action in actions)
        filled = {"violation"} if moves or Action.FLAG in actions else set()
        if moves:
            filled |= {"original_start_time"}
            filled |= set() if shape == "point" else {"original_end_time"}
        return filled


KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "point": ("point", "malformed"),
    "interval": ("interval", "ended_interval", "malformed"),
    "edge": ("start_edge", "end_edge", "malformed"),
}
"""Event shape -> the kinds of violating events, which are the columns of the policy table."""


POLICIES: Final[Mapping[str, Policy]] = {
    "drop": Policy(*[Action.DROP] * 6),
    # A point lives one microsecond, so it can never straddle a CTI: adjusting it leaves nothing.
    "adjust": Policy(
        point=Action.DROP,
        interval=Action.MOVE_START,
        ended_interval=Action.DROP,
        start_edge=Action.MOVE_START,
        end_edge=Action.MOVE_END,
        malformed=Action.DROP,
    ),
    "fail": Policy(*[Action.FAIL] * 6),
    "flag": Policy(*[Action.FLAG] * 6),
}
"""The policy table of semantics 3."""

DEFAULT_POLICY: Final = "drop"
"""The policy of a stream without the option."""

KEEP_ALL: Final = "flag"
"""The policy that loses nothing: commands that inspect a topic use it, and messages advise it."""


LATE_COUNTERS: Final = tuple({action.counter: None for action in Action if action.counter})
"""The counters of late events; each late event is counted in one of them."""

MOVED_COUNTERS: Final = tuple({action.counter: None for action in Action if action.moves})
"""Counters of late events that become rows with another time."""


def find_policy(settings: Mapping[str, str]) -> Policy:
    """Return the violation policy of a stream with the options `settings`, as text."""
    return POLICIES[settings.get("violationPolicy", DEFAULT_POLICY)]


class FuturePolicy(NamedTuple):
    """What becomes of an event in the future (semantics 3.8).

    Attributes:
        fate: what happened to such events, for messages.
        action: None: it stays as it is, flagged if the violation policy flags.
    """

    fate: str
    action: Action | None


FUTURE_POLICIES: Final[Mapping[str, FuturePolicy]] = {
    "keep": FuturePolicy("were kept", None),
    "drop": FuturePolicy("were dropped", Action.DROP),
    "fail": FuturePolicy("failed the query", Action.FAIL),
}

DEFAULT_FUTURE_POLICY: Final = "keep"
"""The policy for events in the future if the options name none."""


def find_future_policy(settings: Mapping[str, str]) -> FuturePolicy:
    """Return the policy for events in the future of a stream with the options `settings`."""
    return FUTURE_POLICIES[settings.get("futurePolicy", DEFAULT_FUTURE_POLICY)]


def name_any(names: Iterable[str]) -> str:
    """Return names for a message: each in quotes, with "or" between them."""
    return " or ".join(f"'{name}'" for name in names)
