"""Several delays in one pass over blocks against a task of a query with each of them."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at, block, options

from pyspark_timestream.commands.measure_lateness import DelayTrial, follow_partition
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.ranges import OffsetRange, TaskRange
from pyspark_timestream.kafka.task import compute_end_clock
from pyspark_timestream.rules.clocks import PartitionClock

DELAYS_US = (0, 1_000, 3_000, 8_000)
MARKED = {"ctiHeader": "cti", "writers": "a", "writerTimeout": "6 ms"}
times = st.integers(0, 12)
headers = st.dictionaries(
    st.sampled_from(["cti", "cti-close"]), st.integers(0, 12).map(lambda ms: str(ms).encode())
)
records = st.lists(
    st.tuples(st.none() | times, st.none() | times, headers, st.sampled_from([b"a", b"b"])),
    max_size=20,
)
hows = st.fixed_dictionaries(
    {"ctiFrequency": st.sampled_from(["1", "2", "3 ms"])},
    optional={"maxFuture": st.just("2 ms"), "marks": st.just("")},
)
splits = st.lists(st.integers(0, 20), max_size=3)


def build(given) -> RecordBlock:
    return block(
        *(None if time is None else json.dumps({"t": time}).encode() for time, *_ in given),
        timestamps_ms=[-1 if stamp is None else stamp for _, stamp, *_ in given],
        headers=[
            [*more.items(), ("cti-writer", writer)] if more else None for *_, more, writer in given
        ],
    )


def cut(whole: RecordBlock, cuts) -> list[RecordBlock]:
    rows = len(whole.offsets)
    bounds = sorted({0, rows, *(min(each, rows) for each in cuts)})
    return [
        RecordBlock(*(column.slice(first, stop - first) for column in whole))
        for first, stop in itertools.pairwise(bounds)
    ]


def given_options(how, **more):
    fixed = {name: text for name, text in how.items() if name != "marks"}
    return options(**fixed, **(MARKED if "marks" in how else {}), startTime="field:t", **more)


def seen(trial: DelayTrial):
    return (
        trial.clock, trial.most_late_us, trial.waits.counts.tolist(), trial.waits.greatest_ms,
        trial.count_waiting(), trial.record_us,
    )  # fmt: skip


@settings(deadline=None)
@given(records, hows, splits)
def test_each_delay_ends_as_a_query_with_it_and_any_split_is_the_same(given, how, cuts) -> None:
    blocks = cut(build(given), cuts)
    found = follow_partition(given_options(how), DELAYS_US, 1, blocks)
    whole = follow_partition(given_options(how), DELAYS_US, 1, [build(given)])
    assert list(map(seen, found.trials)) == list(map(seen, whole.trials))
    assert (found.first_us, found.last_us) == (whole.first_us, whole.last_us)
    task = TaskRange(OffsetRange(at(0), 0, len(given)), PartitionClock())
    for delay_us, trial in zip(DELAYS_US, found.trials, strict=True):
        query = given_options(how, ctiDelay=f"{delay_us} us", violationPolicy="flag")
        assert trial.clock == compute_end_clock(query, task, lambda span, needs: blocks)


def test_timestamps_that_are_missing_widen_nothing() -> None:
    none = block(b"{}", b"{}", timestamps_ms=[-1, -1])
    some = block(b"{}", timestamps_ms=[7])
    found = follow_partition(given_options({"ctiFrequency": "1"}), (0,), 1, [none, some, none])
    assert (found.first_us, found.last_us) == (7_000, 7_000)
    assert found.trials[0].clock.malformed == 5


def test_a_mark_in_the_record_of_a_late_event_makes_it_no_later() -> None:
    values = [b'{"t": 10}', b'{"t": 4}']
    marked = block(*values, timestamps_ms=[0, 1], headers=[None, [("cti", b"30")]])
    how = options(startTime="field:t", ctiFrequency="1", ctiHeader="cti")
    (trial,) = follow_partition(how, (0,), 1, [marked]).trials
    assert (trial.clock.flagged, trial.most_late_us, trial.clock.cti_us) == (1, 6_000, 30_000)


@pytest.mark.parametrize("cuts", [[], [4], [1, 2, 3, 4]])
def test_a_silence_passes_events_right_after_the_record_before_it(cuts) -> None:
    def mark(us: bytes, writer: bytes):
        return [("cti", us), ("cti-writer", writer)]

    whole = block(
        None, None, b'{"t": 5}', None, b'{"t": 20}', timestamps_ms=[0, 1, 2, 4, 8],
        headers=[mark(b"1", b"a"), mark(b"9", b"b"), None, mark(b"9", b"b"), None],
    )  # fmt: skip
    how = given_options({"ctiFrequency": "100", "marks": ""})
    (trial,) = follow_partition(how, (0,), 1, cut(whole, cuts)).trials
    # At 8 ms writer a has been silent for too long: the CTI of b, 9, comes right after 4 ms.
    assert (trial.clock.cti_us, trial.waits.greatest_ms, trial.count_waiting()) == (9_000, 2, 1)
