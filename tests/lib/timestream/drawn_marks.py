"""Marks that Hypothesis draws, through the rules of one partition."""

import itertools
import json

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from timestream.drawn_rules import KINDS, columns, delays, frequencies
from timestream.oracle import Event, Failed, Record

from pyspark_timestream.core.instants import NEVER
from pyspark_timestream.core.policies import FUTURE_POLICIES, POLICIES
from pyspark_timestream.rules.clocks import PartitionClock, TimeRules
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import VIOLATIONS, step

NAMES = ("", "a", "b", "c")

instants = st.integers(0, 14)


@st.composite
def records(draw, shape):
    """A record that is an event, a punctuation, or both."""
    event = draw(st.none() | KINDS[shape])
    mark = draw(st.none() | instants | instants | st.just("?"))
    close = draw(st.sampled_from([False, False, True]))
    if mark is None and not close and event is None:
        event = draw(KINDS[shape])
    writer = draw(st.sampled_from(NAMES)) if mark is not None or close else ""
    return Record(event, mark, writer, close, draw(st.none() | st.integers(0, 20)))


@st.composite
def topics(draw, max_size=16):
    """(shape, policy, settings of the oracle, records)."""
    shape = draw(st.sampled_from(sorted(KINDS)))
    how = {
        **draw(frequencies),
        "delay": draw(delays),
        "future": draw(st.none() | st.integers(0, 5)),
        "ahead": draw(st.sampled_from(["keep", *FUTURE_POLICIES])),
        "timeout": draw(st.none() | st.integers(1, 6)),
        "writers": draw(st.sampled_from([(), (), ("a",), ("a", "b")])),
    }
    policy = draw(st.sampled_from(["drop", *POLICIES]))
    return shape, policy, how, draw(st.lists(records(shape), max_size=max_size))


def marks(some):
    """The punctuations of `some` records, as a payload reader hands them over."""
    punctuations = [(i, r) for i, r in enumerate(some) if r.mark is not None or r.close]
    values = [r.mark if isinstance(r.mark, int) else -999 for _, r in punctuations]
    return Marks(
        np.array([i for i, _ in punctuations], dtype=np.int64),
        np.array(values, dtype=np.int64),
        np.array([r.mark is not None for _, r in punctuations], dtype=np.bool_),
        np.array([isinstance(r.mark, int) for _, r in punctuations], dtype=np.bool_),
        pa.array([r.writer for _, r in punctuations], pa.string()),
        np.array([r.close for _, r in punctuations], dtype=np.bool_),
    )


def stepped(shape, policy, how, topic, cuts=()):
    """The result of `step` for `topic`, cut into batches before `cuts`, in the oracle's form."""
    rules = TimeRules(
        shape, policy, how.get("every"), how.get("span"), how.get("delay", 0), how.get("future"),
        how.get("writers", ()), how.get("timeout"), time_window=True,
        future_policy=how.get("ahead", "keep"),
        from_us=how.get("lower"), until_us=how.get("upper"),
    )  # fmt: skip
    nothing = Event("interval" if shape == "interval" else "point", None)
    clock, out, windows = PartitionClock(), [], []
    for first, stop in itertools.pairwise([0, *sorted(cuts), len(topic)]):
        clock = PartitionClock.from_json(json.loads(json.dumps(clock.to_json())))
        some = topic[first:stop]
        block = columns(shape, [r.event or nothing for r in some])
        block = type(block)(
            block.start_us,
            block.readable,
            block.end_us,
            block.is_end,
            np.array([r.event is not None for r in some], dtype=np.bool_),
            np.array([NEVER if r.stamp is None else r.stamp for r in some], dtype=np.int64),
        )
        clock, said = step(rules, clock, block, marks(some))
        if said.failure is not None:
            fail = said.failure
            time = None if fail.kind in ("malformed", "mark") else fail.event_us
            raise Failed(first + fail.index, fail.kind, time, fail.cti_us)
        ctis = list(zip(said.cti_index.tolist(), said.cti_us.tolist(), strict=True))
        out += [("cti", us) for index, us in ctis if index < 0]
        for i, record in enumerate(some):
            if said.keep[i]:
                event, code = record.event, said.violation[i]
                start = int(said.start_us[i]) if event.start is not None or code == 2 else None
                known = event.end is not None and said.end_us is not None
                end = int(said.end_us[i]) if known else event.end
                out.append(("row", first + i, start, end, VIOLATIONS[code]))
            out += [("cti", us) for index, us in ctis if index == i]
        bounds = zip(
            said.time_windows.lower_us.tolist(), said.time_windows.upper_us.tolist(), strict=True
        )
        windows += [tuple(None if us == NEVER else us for us in both) for both in bounds]
    return out, clock, windows


def mark(time, writer="", **more):
    """A punctuation without a value."""
    return Record(None, time, writer, **more)
