"""Follow a store without Spark: initial events, then each later one as it is stored (semantics 34).

    with store.follow("kitchen", position=saved) as events:
        for event in events:
            handle(event)
            save(events.position)

A follower is a subscription that one process reads. It reads new events in batches, at most
`MAX_HELD_EVENTS` after the initial ones, and gives them one by one. Between two events its position
is a point in the batch, so a follower that begins there gets exactly the remaining events. While
nothing is new, it only checks whether the log has another entry.
"""

import asyncio
import functools
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from pyspark_timestream.core.processes import begin_in_forks
from pyspark_timestream.errors import show_value
from pyspark_tseries.client.results import Event, QueryResult
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery, UnusableStore
from pyspark_tseries.model.columns import type_name
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import (
    NO_EVENTS,
    Point,
    SeriesChoice,
    format_initial,
    parse_choice,
    parse_initial,
    parse_name,
    to_whole,
)
from pyspark_tseries.read.delivery import InitialEvents, Position, find_positions, read_in_order
from pyspark_tseries.read.subscription import Subscription, Wording
from pyspark_tseries.storage.failures import explained_failures
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.snapshot import Snapshot
from pyspark_tseries.store.store import Store

MAX_HELD_EVENTS: Final = 50_000
"""A follower holds at most this many events, or the initial events of one series."""

CATCH_UP_BYTES: Final = 32 * 1024 * 1024
CATCH_UP_BATCHES: Final = 20
"""A follower that catches up holds this many bytes, or, if less, this many times `MAX_HELD_EVENTS`.

Each batch reads all files with missing events once, so small batches would take longer.
"""

CONVERTED_AT_ONCE: Final = 1000
"""Convert this many rows of a batch to Python objects at once."""

LOCAL_POLL_S: Final = 0.05
REMOTE_POLL_S: Final = 1.0
"""The time between two checks of the log; in an object store each is a request."""

_VERSION: Final = 1

_WORDING: Final = Wording(
    "the position",
    "follow without a position",
    "this position",
    "begin at a position that was saved with the same backup",
    "follow without a position, which gives the initial events and all that follows",
)


@dataclass(frozen=True, slots=True)
class _EventBatch:
    """The batch that a follower gives; `position_after` finds the position after some events."""

    end: Position
    table: pa.Table
    position_after: Callable[[int], Position]


class _Progress(NamedTuple):
    """A batch, and how many of its events were delivered."""

    batch: _EventBatch
    delivered: int

    @property
    def position(self) -> Position:
        """The position after the delivered events."""
        return self.batch.position_after(self.delivered)


class Follower:
    """The events of a store as they are stored, for `for` and `async for`; `TimeSeries.follow`.

    Commits come in their order, and the events of one commit in the order of (series, sequence).
    Give a follower to one loop at a time; `close` may be called from anywhere.

    Iteration ends after `close`, and after `timeout` seconds without an event; then another loop
    continues after the last event.
    """

    def __init__(
        self,
        store: Store,
        author: str,
        choice: SeriesChoice,
        start: str | None,
        starting_sequence: Mapping[str, int] | None,
        *,
        values: bool,
        position: str | None,
        timeout: float | timedelta | None,
        poll: float | timedelta | None,
    ) -> None:
        starts = _parse_starts(starting_sequence)
        self._timeout_s = _parse_wait("timeout", timeout, 0)
        usual_s = LOCAL_POLL_S if store.location.is_local else REMOTE_POLL_S
        self._poll_s = _parse_wait("poll", poll, 0.001) or usual_s
        self._location: Location = store.location
        snapshot = store.snapshot()
        self._values = snapshot.values
        self._gives_values = values
        initial = _parse_start(start, starts, snapshot, values=values)
        saved = None
        if position is not None:
            saved, saved_choice, initial = _parse_position(position)
            if not choice.is_all and choice != saved_choice:
                raise _other_choice_error(choice, saved_choice)
            choice = saved_choice
        _check_starts(initial.starts, choice, snapshot, author)
        self._request = {**_describe_choice(choice), "start": format_initial(initial.retained)}
        if initial.starts:
            self._request["starting_sequence"] = dict(initial.starts)
        check = functools.partial(_check_store, snapshot.values, author)
        self._subscription = Subscription(store.location, initial, check, choice, _WORDING)
        check(snapshot)
        if saved is None:
            saved = self._find_start(initial)
        else:
            self._subscription.find_end(saved, 1)  # Refuse a position of another store now.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ready: deque[Event] = deque()
        table = read_in_order([], [])
        batch = _EventBatch(saved, table, find_positions(saved, saved, table))
        # Replaced as a whole, so that `position` needs no lock.
        self._progress = _Progress(batch, 0)
        self._is_drained = False
        begin_in_forks(self)

    def _find_start(self, initial: InitialEvents) -> Position:
        start = self._subscription.find_start()
        if initial.retained == NO_EVENTS and not initial.starts:
            return replace(start, initial=False)
        return self._subscription.count_due(start) if start.initial else start

    def begin_child(self) -> None:
        """Start afresh in a forked process: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        was_closed = self._closed.is_set()
        self._closed = threading.Event()
        if was_closed:
            self._closed.set()
        self._ready.clear()  # Events that were not given yet are decoded again.

    @property
    def position(self) -> str:
        """The position after the last event, as JSON; `follow(position=...)` goes on there."""
        progress = self._progress
        with explained_failures(self._location):
            position = self._subscription.with_commit_id(progress.position, progress.batch.end)
        saved = {"version": _VERSION, **self._request, "position": position.to_json()}
        return json.dumps(saved, ensure_ascii=False)

    @property
    def missed(self) -> int:
        """The number of events that compaction removed before they were given (semantics 23.4)."""
        return self._progress.position.missed

    def close(self) -> None:
        """End the iteration, even of a thread that waits; no further events are delivered."""
        self._closed.set()

    def __enter__(self) -> Self:
        """Return the follower itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Return the follower itself: a second loop goes on where the first one ended."""
        return self

    def __next__(self) -> Any:
        """Return the next event; wait for it."""
        deadline_s = self._find_deadline()
        while not self._closed.is_set():
            if self._ready or self._read_more():
                return self._take()
            wait_s = self._compute_wait(deadline_s)
            if wait_s <= 0:
                break
            self._closed.wait(wait_s)
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return the follower itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the next event; wait for it, and let other tasks run. It may be cancelled."""
        deadline_s = self._find_deadline()
        while not self._closed.is_set():
            # A task that is cancelled here loses nothing: events that were read stay ready.
            if not self._ready:
                await asyncio.to_thread(self._read_more)
            if self._ready:
                return self._take()
            wait_s = self._compute_wait(deadline_s)
            if wait_s <= 0:
                break
            await asyncio.sleep(wait_s)
        raise StopAsyncIteration

    def __repr__(self) -> str:
        """Name the store and the last commit that was given completely."""
        return f"Follower('{self._location.root}', commit {self._progress.position.commit})"

    def _find_deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _compute_wait(self, deadline_s: float | None) -> float:
        remaining_s = self._poll_s if deadline_s is None else deadline_s - time.monotonic()
        return min(remaining_s, self._poll_s)

    def _take(self) -> Any:
        event = self._ready.popleft()
        batch, delivered = self._progress
        self._progress = _Progress(batch, delivered + 1)
        return (event.series, event.value) if self._gives_values else event

    def _read_more(self) -> bool:
        """Make new events of the store ready; return whether there are any."""
        with self._lock, explained_failures(self._location):
            while not self._ready and not self._closed.is_set():
                batch, delivered = self._progress
                if delivered < batch.table.num_rows:
                    rows = batch.table.slice(delivered, CONVERTED_AT_ONCE).drop_columns(["commit"])
                    self._ready.extend(QueryResult(rows, rows.num_rows, "allEdits").events)
                    break
                if self._is_drained and self._subscription.is_current():
                    break
                end = self._subscription.find_end(batch.end, _limit_after(batch.table))
                self._is_drained = end == batch.end
                if not self._is_drained:
                    tasks = self._subscription.plan_tasks(batch.end, end)
                    table = read_in_order(tasks, self._values)
                    position_of = find_positions(batch.end, end, table)
                    self._progress = _Progress(_EventBatch(end, table, position_of), 0)
        return bool(self._ready)


def _limit_after(batch: pa.Table) -> int:
    """Return the number of events that the batch after `batch` may have."""
    if batch.num_rows < MAX_HELD_EVENTS:
        return MAX_HELD_EVENTS
    fitting = CATCH_UP_BYTES * batch.num_rows // max(int(batch.nbytes), 1)
    return int(max(MAX_HELD_EVENTS, min(fitting, CATCH_UP_BATCHES * MAX_HELD_EVENTS)))


def _check_store(values: list[pa.Field], author: str, snapshot: Snapshot) -> None:
    """Refuse a store if its policy or columns have changed since the follower began (23.6)."""
    AccessCheck(snapshot.settings.policy, author).require("read", "follow the store")
    if snapshot.values == values:
        return
    changed = [field for field in snapshot.values if field not in values]
    columns = ", ".join(f"'{field.name}' {type_name(field.type)}" for field in changed)
    raise IncompatibleValue(
        f"columns of the store '{snapshot.root}' were added or changed after this follower began, "
        f"and it would not give them: {columns}",
        "a follower that has begun since",
        "follow again with position=..., from the position of this one: it then gives the columns "
        "from the first event that has them",
    )


def _parse_start(
    start: str | None, starts: Mapping[str, int] | None, snapshot: Snapshot, *, values: bool
) -> InitialEvents:
    if start is None:
        is_live = values or starts is not None
        return InitialEvents(NO_EVENTS if is_live else snapshot.settings.subscription, starts or {})
    try:
        return InitialEvents(parse_initial(start), starts or {})
    except ValueError:
        raise InvalidQuery(
            f"start {show_value(start)} is not a range of initial events",
            "limit N, last DURATION, both, unlimited, or none",
            "correct it, such as 'limit 1' or 'last 1H'",
        ) from None


def _parse_starts(starts: Mapping[str, int] | None) -> dict[str, int] | None:
    if starts is None:
        return None
    if not isinstance(starts, Mapping):
        raise InvalidQuery(
            f"starting_sequence {show_value(starts)} is not a mapping",
            "series -> sequence, such as {'kitchen': 17}",
            "correct it",
        )
    # A `Point` has the bounds of a sequence.
    return {
        parse_name(name): Point("sequence", to_whole(number)).value
        for name, number in starts.items()
    }


def _check_starts(
    starts: Mapping[str, int], choice: SeriesChoice, snapshot: Snapshot, author: str
) -> None:
    if not starts:
        return
    policy = AccessCheck(snapshot.settings.policy, author)
    policy.require("query_obsolete", "set starting_sequence, which shows overridden values")
    not_followed = set(starts).difference(choice.pick(list(starts)))
    if not_followed:
        raise InvalidQuery(
            f"starting_sequence names series '{min(not_followed)}', which is not followed",
            f"series of {_describe_choice(choice)}",
            "follow it too, or leave it out",
        )


def _parse_wait(name: str, wait: float | timedelta | None, minimum: float) -> float | None:
    if wait is None:
        return None
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not minimum <= seconds <= threading.TIMEOUT_MAX:
        raise InvalidQuery(
            f"{name} {show_value(wait)} is not a time to wait",
            f"seconds or a timedelta, at least {minimum:g}",
            "correct it, or leave it out",
        )
    return float(seconds)


def _describe_choice(choice: SeriesChoice) -> dict[str, Any]:
    names = None if choice.names is None else list(choice.names)
    chosen = {"series": names, "prefix": choice.prefix or None, "pattern": choice.pattern}
    return {name: value for name, value in chosen.items() if value is not None}


def _parse_position(text: str) -> tuple[Position, SeriesChoice, InitialEvents]:
    """Parse the text of `Follower.position`: the position, its series and its initial events."""
    try:
        saved = json.loads(text)
        version, start = saved["version"], saved["start"]
        position = saved["position"]
        chosen = parse_choice(*(saved.get(name) for name in ("series", "prefix", "pattern")))
        initial = InitialEvents(parse_initial(start), saved.get("starting_sequence") or {})
        if version == _VERSION:
            return Position.from_json(position), chosen, initial
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, UnusableStore):
        quoted = show_value(text)
        raise InvalidQuery(
            f"{quoted if len(quoted) < 200 else quoted[:200] + '...'} is not a valid position",
            "a text that Follower.position gave",
            "give such a text as it was, or None to begin with the initial events",
        ) from None
    raise InvalidQuery(
        f"the position has format version {version}",
        str(_VERSION),
        "go on with the version of this package that wrote it",
    )


def _other_choice_error(requested: SeriesChoice, saved: SeriesChoice) -> InvalidQuery:
    return InvalidQuery(
        f"the position belongs to a follower of {_describe_choice(saved) or 'all series'}, and "
        f"{_describe_choice(requested)} is asked for",
        "the same series",
        "name the same series or none; to follow others, begin without a position",
    )
