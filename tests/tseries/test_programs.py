"""Any program of writes and maintenance gives what a model of the rules in memory gives.

Batches of timed and untimed rows and edits, under every policy, refused ones included, compactions,
restarts, erased values and changes of the retained range; then queries of every kind, as of any
moment, and a subscriber that came in the middle.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import VALUE, batch, forget_stores, sight_as_of, sight_now, stored
from tseries.limits import set_limits
from tseries.queries import QUERIES, oracle
from tseries.subscriber import Client

from pyspark_tseries import NoSuchEvent, UpdateFailed
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.maintain.compactor import compact, merge_file_groups
from pyspark_tseries.maintain.erase import erase
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import NO_EVENTS, Point, Query, Range, RetainedRange
from pyspark_tseries.options import LEAVE_OUT_POLICIES, STORE_POLICIES
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.store import Store

MS = 1000
NAMES = st.sampled_from("ab")
RANGES = st.builds(
    RetainedRange,
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 9).map(lambda ms: ms * MS),
)
BATCHES = st.fixed_dictionaries(
    {
        "rows": st.lists(st.tuples(NAMES, st.none() | st.integers(0, 25)), max_size=3),
        "edits": st.lists(st.tuples(NAMES, st.integers(0, 6)), max_size=2),
        "policy": st.sampled_from(list(STORE_POLICIES)),
        "missing": st.sampled_from(list(LEAVE_OUT_POLICIES)),
        "clock": st.sampled_from(["wall", "event"]),
    }
).filter(lambda given: given["rows"] or given["edits"])
STEPS = st.one_of(
    *[BATCHES] * 4,
    RANGES,
    st.tuples(st.just("erase"), NAMES, st.integers(0, 6)),
    st.sampled_from(["compact", "merge", "reopen", "rebuild", "poll", "subscribe"]),
)


class RefusedError(Exception):
    """Nothing of the batch is stored."""


@dataclass
class Model:
    """The rules: per series events (time, what it edits or None, the commit's time).

    `gone` is what is out of range for good, `erased` what has no value any more.
    """

    retained: RetainedRange
    series: dict = field(default_factory=dict)
    gone: set = field(default_factory=set)
    erased: set = field(default_factory=set)
    past: list = field(default_factory=list)

    def counted(self, name, events):
        """The events that are not erased, with their sequences."""
        return [(n, *event) for n, event in enumerate(events) if (name, n) not in self.erased]

    def originals(self, name, events=None):
        """The sequences of the originals inside the retained range."""
        events, keep = self.series.get(name, []) if events is None else events, self.retained
        newest = max((us for _, us, of, _ in self.counted(name, events) if of is None), default=0)
        for sequence, (us, of, _) in enumerate(events):
            late = keep.limit is not None and sequence < len(events) - keep.limit
            old = keep.last_us is not None and us < newest - keep.last_us
            if of is None and not late and not old and (name, sequence) not in self.gone:
                yield sequence

    def seen(self, name, count=None):
        """The first `count` events as the oracle of queries takes them."""
        events = self.series.get(name, [])[:count]
        kept = set(self.originals(name, events))
        return [
            (n, us, -1 if of is None else of, (name, n) in self.erased)
            for n, (us, of, _) in enumerate(events)
            if {n, of} & kept
        ]

    def add(self, rows, edits, policy, missing, clock, now):
        new = {name: list(events) for name, events in self.series.items()}
        kept = {name: set(self.originals(name)) for name in "ab"}

        def assigned(name):
            there = self.counted(name, new.get(name, []))
            newest = max(
                (us if of is None else min(us, at) for _, us, of, at in there), default=None
            )
            if newest is None and clock == "event":
                raise RefusedError
            return max(filter(None, [newest, now * (clock == "wall")]), default=0)

        for name, ms in sorted(rows, key=lambda row: (row[1] is None, row[1] or 0)):
            there = self.counted(name, self.series.get(name, []))
            before = max((us for _, us, of, _ in there if of is None), default=0)
            us = assigned(name) if ms is None else ms * MS
            if ms is not None and us < before:
                if policy == "fail":
                    raise RefusedError
                us = before
            if ms is None or us == ms * MS or policy == "adjust":
                new.setdefault(name, []).append((us, None, now))
        for name, target in edits:
            events, old = new.get(name, []), len(self.series.get(name, []))
            there = target in kept[name] if target < old else target < len(events)
            if there and events[target][1] is None and (name, target) not in self.erased:
                events.append((assigned(name), target, now))
            elif missing == "fail":
                raise RefusedError
        self.series = new

    def erase(self, name, sequence, stored):
        """Erases an event and its edits; `stored` are the events that are there still."""
        events = self.series[name]
        edits = {(name, n) for n, (_, of, _) in enumerate(events) if of == sequence}
        self.erased |= edits | {(name, sequence)}
        removed = [n for n in range(len(events)) if (name, n) not in stored]
        left = [n for n, _, of, _ in self.counted(name, events) if of is None]
        hidden = [n for n in left[-1:] if (name, n) in self.gone]
        self.gone |= {(name, n) for n in range(max([*removed, *hidden], default=-1) + 1)}

    def narrow(self, retained):
        kept = {(name, n) for name in self.series for n in self.originals(name)}
        there = {(name, n) for name, events in self.series.items() for n in range(len(events))}
        self.gone, self.retained = self.gone | (there - kept), retained

    def count(self):
        return sum(map(len, self.series.values()))

    def remember(self, now):
        self.past.append((now, {name: len(self.series.get(name, [])) for name in "ab"}))


def carry_out(path, model, step, now):
    """Does `step` to the store and to the model; whether it limits how far asOf looks back."""
    store = Store.open(path)
    if isinstance(step, dict):
        rows = [(name, None if ms is None else ms * MS) for name, ms in step["rows"]]
        try:
            model.add(**step, now=now)
        except RefusedError:
            with pytest.raises((UpdateFailed, NoSuchEvent)):
                store.append(batch(*rows, **_edits(step)), lambda: now)
        else:
            store.append(batch(*rows, **_edits(step)), lambda: now)
    elif isinstance(step, RetainedRange):
        changed = step != model.retained
        set_retained_range(store, step, now, "me")
        if changed:
            model.narrow(step)
        return changed
    elif step[0] == "erase":
        _, name, sequence = step
        if sequence < len(model.series.get(name, [])):
            was = {(name, sequence)} <= model.erased
            act = erase(Store.open(path), name, sequence, "test", clock=lambda: now)
            assert act is not None or was
            model.erase(name, sequence, set(stored(path, "series", "sequence")))
        else:
            with pytest.raises(NoSuchEvent, match="has no event"):
                erase(Store.open(path), name, sequence, "test", clock=lambda: now)
    elif step == "compact":
        return bool(compact(path, now).removed_events)
    elif step == "merge":
        with pytest.MonkeyPatch.context() as few:
            set_limits(few, groups_to_merge=2)
            return bool(merge_file_groups(store, now, everything=False).removed_events)
    elif step == "reopen":
        forget_stores()
    elif step == "rebuild":
        rebuild(path)
        return True
    return False


def _edits(step):
    return {key: step[key] for key in ("edits", "policy", "missing", "clock")}


def scaled(query):
    """`query` with its times and durations in the model's milliseconds."""

    def point(given):
        timed = given.kind == "time" or given.kind.endswith("_us")
        return Point(given.kind, given.value * MS if timed else given.value)

    view, edits = (
        Range(point(wanted.anchor), point(wanted.span)) for wanted in (query.view, query.edits)
    )
    return Query(query.kind, view, edits, query.limit)


def check(sight, query, seen):
    for name, events in seen.items():
        try:
            expected = oracle(events, query) if events else ([], 0)
        except InvalidQuery:
            with pytest.raises(InvalidQuery):
                run_query(Scope(*sight, [name]), query)
            continue
        found = run_query(Scope(*sight, [name]), query)
        assert (found.table["sequence"].to_pylist(), found.selected) == expected


ASKED = st.lists(st.tuples(QUERIES, st.integers(0, 12)), min_size=2, max_size=4)


@settings(max_examples=60)
@given(RANGES, st.lists(STEPS, min_size=3, max_size=12), ASKED)
def test_any_program_equals_the_model(tmp_path_factory, retained, steps, asked):
    path = str(tmp_path_factory.mktemp("program") / "s")
    Store.create(path, [VALUE], retained, min_retention_us=0)
    model, client, oldest, waits, before = Model(retained), None, 0, False, {}
    model.remember(0)
    for number, step in enumerate(steps):
        now, events = (number + 1) * 3 * MS, model.count()
        if step == "subscribe" and client is None:
            client = Client(path, NO_EVENTS)
            before = {name: len(events) for name, events in model.series.items()}
        elif step == "poll" and client is not None:
            client.poll(2)
        elif step not in ("subscribe", "poll"):
            limits = carry_out(path, model, step, now)
            # Times are known from rows: asOf looks back to the first ones after this change.
            oldest = now if limits or (waits and model.count() > events) else oldest
            waits = limits or (waits and model.count() == events)
        model.remember(now)
    assert verify(path) == []
    for name, sequence, value in stored(path, "series", "sequence", "value"):
        assert (value is None) == ((name, sequence) in model.erased)
    for query, moment in asked:
        now_seen = {name: model.seen(name) for name in "ab"}
        check(sight_now(Store.open(path)), scaled(query), now_seen)
        us, counts = model.past[min(moment, len(steps))]
        seen = {name: model.seen(name, count) for name, count in counts.items()}
        try:
            sight = sight_as_of(Store.open(path), us)
        except InvalidQuery:
            assert us < (Store.open(path).index().metadata.commit_us if waits else oldest)
        else:
            check(sight, scaled(query), seen)
    if client is not None:
        got, series = client.drain(3), model.series.items()
        new = [
            (name, n) for name, events in series for n in range(before.get(name, 0), len(events))
        ]
        assert len(set(got)) == len(got)
        assert set(got) <= set(new)
        assert len(got) + client.position.missed == len(new)
        assert oldest or not client.position.missed
        for name in "ab":
            mine = [sequence for series, sequence in got if series == name]
            assert mine == sorted(mine)
