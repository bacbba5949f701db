"""A store of random steps beside a model that never compacts."""

import pytest
from hypothesis import strategies as st
from tseries.builders import batch, forget_stores
from tseries.limits import set_limits

from pyspark_tseries.maintain.compactor import (
    compact,
    merge_file_groups,
)
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.ranges import parse_range
from pyspark_tseries.store.admin_commits import set_retained_range

RANGES = ["limit 1", "limit 3", "last 2MS", "limit 2 last 1MS", "unlimited"]

STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)))),
    st.tuples(st.just("edit"), st.tuples(st.sampled_from("ab"), st.integers(0, 3))),
    st.tuples(st.just("compact"), st.just(0)),
    st.tuples(st.just("merge"), st.just(0)),
    st.tuples(st.just("rebuild"), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0)),
    st.tuples(st.just("range"), st.sampled_from(RANGES)),
)


class Model:
    """A store: per series a list of (timestamp, edited sequence or None), and a window."""

    def __init__(self, retained):
        self.series, self.retained, self.gone, self.now = {}, retained, set(), 0

    def last_us(self, name):
        return max((us for us, edited in self.series[name] if edited is None), default=0)

    def visible(self, name):
        events, keep = self.series.get(name, []), parse_range(self.retained)
        for sequence, (us, _) in enumerate(events):
            old = keep.limit is not None and sequence < len(events) - keep.limit
            if old or (keep.last_us is not None and us < self.last_us(name) - keep.last_us):
                continue
            if (name, sequence) not in self.gone:
                yield sequence

    def change(self, retained):
        for name in self.series:
            seen = set(self.visible(name))
            self.gone |= {(name, n) for n in range(len(self.series[name])) if n not in seen}
        self.retained = retained


def run(path, store, model, kind, what):
    now = model.now
    if kind == "append" and what:
        rows = [(name, max(now - 1000 * ago, _newest(model, name))) for name, ago in sorted(what)]
        rows.sort(key=lambda row: (row[0], row[1]))
        store.append(batch(*rows), clock=lambda: now)
        for name, us in rows:
            model.series.setdefault(name, []).append((us, None))
    elif kind == "edit":
        name, sequence = what
        events = model.series.get(name, [])
        there = sequence in list(model.visible(name)) and events[sequence][1] is None
        rows = batch(edits=[(name, sequence)], missing="drop")
        store.append(rows, clock=lambda: now)
        if there:
            events.append((max(now, max(us for us, _ in events)), sequence))
    elif kind == "compact":
        compact(str(path), now)
    elif kind == "merge":
        with pytest.MonkeyPatch.context() as few:
            set_limits(few, groups_to_merge=2)
            merge_file_groups(store, now, everything=False)
    elif kind == "rebuild":
        rebuild(str(path))
    elif kind == "reopen":
        forget_stores()
    elif kind == "range":
        set_retained_range(store, parse_range(what), now, "me")
        model.change(what)


def _newest(model, name):
    return model.last_us(name) if name in model.series else 0
