"""Events, marks and rules that Hypothesis draws, through the rules of one partition."""

import numpy as np
from hypothesis import strategies as st
from timestream.oracle import Event

from pyspark_timestream.rules.clocks import Events

times = st.integers(0, 12)

maybe = st.none() | times

KINDS = {
    "point": st.builds(Event, st.just("point"), st.one_of(times, times, maybe), st.none()),
    "interval": st.builds(Event, st.just("interval"), st.one_of(times, times, maybe), maybe),
    "edge": st.builds(
        Event,
        st.sampled_from(["start", "end", "start", "end", "??"]),
        st.one_of(times, maybe),
        maybe,
    ),
}

frequencies = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"every": st.integers(1, 4)}),
    st.fixed_dictionaries({"span": st.integers(1, 5)}),
)

delays = st.integers(-3, 4)


def columns(shape, events):
    """Events as a payload reader hands them over: readable where every needed time is."""
    start = np.array([e.start if e.start is not None else 777 for e in events], dtype=np.int64)
    end = np.array([e.end if e.end is not None else -777 for e in events], dtype=np.int64)
    needs_end = ("interval", "end")
    readable = np.array(
        [
            e.start is not None
            and e.kind != "??"
            and (e.kind not in needs_end or e.end is not None)
            for e in events
        ],
        dtype=np.bool_,
    )
    if shape == "point":
        return Events(start, readable)
    if shape == "interval":
        return Events(start, readable, end)
    return Events(start, readable, end, np.array([e.kind == "end" for e in events], dtype=np.bool_))
