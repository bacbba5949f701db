"""Range queries that Hypothesis draws, and their results by plain loops."""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.downsampling import Downsampling
from pyspark_tseries.model.ranges import NO_LIMIT, Point, Query, Range
from pyspark_tseries.read.downsample import finish
from pyspark_tseries.read.select import SeriesEvents
from pyspark_tseries.read.states import Folding

ANCHORS = ["start", "sequence", "time", "last_count", "last_us"]

POINTS = st.builds(Point, st.sampled_from(ANCHORS), st.integers(0, 12))

SPANS = st.builds(
    Point,
    st.sampled_from([*ANCHORS, "next_count", "next_us", "previous_count", "previous_us"]),
    st.integers(0, 12),
)

RANGES = st.just(Range()) | st.builds(Range, POINTS, SPANS)

KINDS = st.sampled_from(["values", "allEdits", "latestEdits"])

QUERIES = st.builds(Query, KINDS, RANGES, RANGES, st.just(NO_LIMIT) | st.integers(0, 6))


@st.composite
def histories(draw):
    """Events of one series: (sequence, time, what it edits or -1, erased).

    The first `gone` are discarded. An erased original may be later than those after it.
    """
    events, us = [], 0
    erases = draw(st.booleans())
    for sequence in range(draw(st.integers(1, 12))):
        originals = [event for event in events if event[2] < 0]
        if originals and draw(st.booleans()):
            target = draw(st.sampled_from(originals))[0]
            newest = max([us, *(e[1] for e in events if not e[3])]) + draw(st.integers(0, 3))
            gone = any(e[0] == target and e[3] for e in events)
            erased = gone or (erases and draw(st.sampled_from([False, False, True])))
            events.append((sequence, newest, target, erased))
        elif erases and draw(st.sampled_from([False, False, True])):
            events.append((sequence, us + draw(st.integers(0, 9)), -1, True))
        else:
            us += draw(st.integers(0, 2))
            events.append((sequence, us, -1, False))
    gone = draw(st.integers(0, 3))
    kept = {event[0] for event in events if event[2] < 0 and event[0] >= gone}
    return [event for event in events if event[0] in kept or event[2] in kept]


def inside(events, wanted, values, end_us):
    """The events of `wanted`, read off the definition; `last DURATION` counts from `end_us`."""
    slots = [event for event in events if event[2] < 0 or not values]
    size = len(slots)

    def at(i):  # The sequence of slot i, or right before it; beyond the ends of the slots.
        return slots[i][0] if 0 <= i < size else (-9e9 if i < 0 else 9e9)

    def gap(i):
        return -9e9 if i <= 0 else at(i) - 0.5

    def fixed(point):
        match point.kind:
            case "sequence" | "time":
                return point.kind, point.value
            case "last_us":
                return "time", end_us - point.value
            case "last_count":
                return "sequence", gap(size - point.value)
        return "sequence", gap(0)

    def place(anchor, forward):  # (the slot it stands on, or None; the slot it stands before)
        kind, value = fixed(anchor)
        column = 0 if kind == "sequence" else 1
        if anchor.kind == "last_count":
            return None, size - anchor.value
        found = [i for i in range(size) if kind == "sequence" or not slots[i][3]]
        hits = [i for i in found if slots[i][column] == value]
        after = [i for i in found if slots[i][column] >= value]
        before = [i for i in found if slots[i][column] <= value]
        if forward or kind == "sequence":
            first = after[0] if after else size
            return (first if first in hits else None), first
        last = before[-1] if before else -1
        return (last, last) if last in hits else (None, last + 1)

    def between(low, high):
        def value(event, point):
            return event[0] if point[0] == "sequence" else event[1]

        return [e for e in events if value(e, low) >= low[1] and value(e, high) <= high[1]]

    anchor, (word, _, unit) = fixed(wanted.anchor), wanted.span.kind.partition("_")
    if word not in ("next", "previous"):
        end = fixed(wanted.span)
        return between(anchor, end) or between(end, anchor)
    forward = word == "next"
    amount = wanted.span.value if forward else -wanted.span.value
    on, before = place(wanted.anchor, forward)
    if unit == "count":
        end = "sequence", gap(before + amount) if on is None else at(on + amount)
    elif anchor[0] == "time":
        end = "time", anchor[1] + amount
    else:
        i = on if on is not None else before if forward else before - 1
        if not 0 <= i < size:
            raise InvalidQuery("no timestamp")
        end = "time", slots[i][1] + amount
    return between(anchor, end) if forward else between(end, anchor)


def last_us(events):
    """The time of the last event that is not erased, else of the last one."""
    timed = [event for event in events if not event[3]] or events
    return timed[-1][1]


def oracle(events, query):
    values = query.kind == "values"
    originals = [e for e in events if e[2] < 0]
    view = {e[0] for e in inside(events, query.view, values, last_us(originals)) if e[2] < 0}
    edits = inside(events, query.edits, values, last_us(events))
    found = [e for e in edits if (e[0] if e[2] < 0 else e[2]) in view]
    latest = {e[0] if e[2] < 0 else e[2]: e for e in found}
    if values:
        found = [latest[original] for original in sorted(latest)]
    elif query.kind == "latestEdits":
        found = [e for e in found if e[2] < 0 or latest[e[2]] == e]
    return [e[0] for e in found[max(len(found) - query.limit, 0) :]], len(found)


def columns(*histories):
    rows = [(i, *event) for i, history in enumerate(histories) for event in history]
    codes, sequence, us, original, erased = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    names = pa.array([f"s{i}" for i in range(len(histories))])
    flags = erased.astype(bool) if erased.any() else None
    return SeriesEvents(names, codes, sequence, us, original, flags)


def aggregate(
    events: pa.Table,
    schema: pa.Schema,
    wanted: Downsampling,
    ends_us: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """Return the result of `finish` for the events of a `values` query, sorted by series."""
    folding = Folding(schema, wanted)
    return finish(folding.merge([folding.fold(events)]), schema, wanted, ends_us)
