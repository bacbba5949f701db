"""The state of a partition's clock survives JSON, and an import or a resumption raises it."""

import dataclasses
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.rules.clocks import Clues, PartitionClock, WriterState, raise_cti

instants = st.none() | st.integers(-(2**62), 2**62)
counts = st.integers(0, 2**62)
writers = st.dictionaries(
    st.text(max_size=3), st.builds(WriterState, instants, instants), max_size=3
)
FIELDS = {
    "writers": writers.map(lambda found: tuple(sorted(found.items()))),
    "begun": st.booleans(),
    "clues": st.builds(Clues, instants, counts, instants, counts, counts, counts, counts),
    **dict.fromkeys(("cti_us", "base_us", "last_us", "noted_us", "record_us"), instants),
}
clocks = st.builds(
    PartitionClock,
    **{f.name: FIELDS.get(f.name, counts) for f in dataclasses.fields(PartitionClock)},
)


@given(clocks)
@settings(deadline=None)
def test_a_state_survives_json_with_its_defaults_left_out(clock):
    stored = json.loads(json.dumps(clock.to_json()))
    assert PartitionClock.from_json(stored) == clock
    assert list(stored) == sorted(stored)
    assert PartitionClock().to_json() == {}


def test_a_state_that_an_earlier_version_wrote_is_read():
    old = {"base_us": 3, "count": 1, "cti_us": 7, "events": 9, "ignored_ctis": 2}
    assert PartitionClock.from_json(old) == PartitionClock(7, 1, 3, events=9, ignored_ctis=2)


@given(clocks, st.integers(-(2**62), 2**62))
@settings(deadline=None)
def test_raising_moves_the_cti_up_and_nothing_else(clock, cti_us):
    after = raise_cti(clock, cti_us)
    assert after.cti_us == (cti_us if clock.cti_us is None else max(cti_us, clock.cti_us))
    if after == clock:
        return
    # No event made the CTI.
    assert after.clues == clock.clues._replace(lead_us=None)
    assert dataclasses.replace(after, cti_us=clock.cti_us, clues=clock.clues) == clock
