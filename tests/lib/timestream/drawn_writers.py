"""Records of several writers that Hypothesis draws, through the rules of one partition."""

import itertools
import json

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from timestream.oracle import FINAL

from pyspark_timestream.core.instants import NEVER
from pyspark_timestream.rules.clocks import Events, PartitionClock, TimeRules
from pyspark_timestream.rules.step import step

instants = st.integers(0, 20)

records = st.tuples(
    st.sampled_from(["", "a", "b", "c"]),
    st.one_of(instants, instants, instants, st.none(), st.just(FINAL - 1)),
    st.none() | st.integers(0, 30),
)

rules = st.fixed_dictionaries(
    {
        "delay": st.integers(-3, 4),
        "future": st.none() | st.integers(0, 5),
        "writers": st.sampled_from([(), (), ("a",), ("a", "d")]),
        "timeout": st.none() | st.integers(1, 8),
        "grace": st.none() | st.integers(1, 12),
    }
).flatmap(
    lambda how: st.one_of(
        st.integers(1, 4).map(lambda count: {**how, "every": count}),
        st.integers(1, 6).map(lambda span: {**how, "span": span}),
    )
)


def stepped(how, some, cuts=()):
    """The result of `step` for `some` records, cut before `cuts`, in the oracle's form."""
    given_rules = TimeRules(
        "point", "drop", how.get("every"), how.get("span"), how.get("delay", 0),
        how.get("future"), how.get("writers", ()), how.get("timeout"),
        writer_grace_us=how.get("grace"), from_us=how.get("lower"), until_us=how.get("upper"),
    )  # fmt: skip
    clock, ctis, late = PartitionClock(), [], []
    for first, stop in itertools.pairwise([0, *sorted(cuts), len(some)]):
        clock = PartitionClock.from_json(json.loads(json.dumps(clock.to_json())))
        names, times, stamps = zip(*some[first:stop], strict=True) if stop > first else ((),) * 3
        readable = np.array([time is not None for time in times], dtype=np.bool_)
        events = Events(
            np.array([-777 if time is None else time for time in times], dtype=np.int64),
            readable,
            record_us=np.array([NEVER if at is None else at for at in stamps], dtype=np.int64),
            writers=pa.array(names, pa.string()),
        )
        clock, said = step(given_rules, clock, events)
        places = said.cti_index + first
        ctis += zip(places.tolist(), said.cti_us.tolist(), strict=True)
        late += (np.flatnonzero(readable & ~said.keep) + first).tolist()
    return (ctis, late, clock.cti_us), clock
