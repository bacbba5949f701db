"""Counts of malformed values by reason: equal in any split and replay, and through JSON."""

import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at, block, options, projection

from pyspark_timestream.kafka.decode.records import RECORD_REASONS
from pyspark_timestream.kafka.diagnosis.diagnoses import NEXT_STEPS
from pyspark_timestream.kafka.driver.end_states import find_end_states
from pyspark_timestream.kafka.offsets.group_metadata import drop_clock, encode_group_metadata
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.ranges import OffsetRange, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import run_task
from pyspark_timestream.rules.clocks import PartitionClock

counts = st.dictionaries(st.sampled_from(RECORD_REASONS[1:]), st.integers(0, 2**40))
found = counts.map(MalformedPayloads.from_reasons)


def test_every_reason_has_a_next_step():
    assert sorted(NEXT_STEPS) == sorted(RECORD_REASONS[1:])


@given(st.lists(counts, max_size=5))
def test_sums_are_the_numbers_of_each_reason_and_of_all(partitions):
    added = sum(map(MalformedPayloads.from_reasons, partitions), NO_MALFORMED_PAYLOADS)
    expected = sum(map(Counter, partitions), Counter())
    assert dict(added.by_reason) == expected
    assert list(added.by_reason) == sorted(added.by_reason)
    assert added.total == expected.total()


@given(found, found)
def test_difference_is_what_was_added(before, more):
    assert before + more - before == more
    assert before - before == NO_MALFORMED_PAYLOADS


@given(found)
def test_counts_survive_json_and_are_left_out_where_there_are_none(each):
    text = json.dumps(each.to_json())
    assert MalformedPayloads.from_json(json.loads(text)) == each
    assert text == json.dumps(each.to_json(), sort_keys=True)
    assert NO_MALFORMED_PAYLOADS.to_json() == {}


RECORDS = {
    "": (b'{"n": 1}', b'{"k": 1}'),
    "syntax": (b"[1]", b'{"k": 1}'),
    "type": (b'{"n": "x"}', b"broken"),
    "key syntax": (b'{"n": 1}', b"1"),
    "key type": (None, b'{"k": true}'),
}
"""Reason -> value and key of a record that is malformed for it; the value's comes first."""

GIVEN = options(valueFormat="json", keyFormat="json", startTime="field:n", ctiFrequency="1")
WANTED = projection(GIVEN, ("n", pa.int64()), ("key.k", pa.int64()))


def count_in_task(reasons, offset, size):
    """The metadata that a task leaves which reads the batch in blocks of `size`."""
    partition_offset = offset.partitions[at(0)]
    span = OffsetRange(at(0), partition_offset.start_inclusive, partition_offset.end_exclusive)
    ended = {}

    def read(span, needs):
        for first in range(span.start_inclusive, span.end_exclusive, size):
            some = reasons[first : min(first + size, span.end_exclusive)]
            values, keys = zip(*map(RECORDS.get, some), strict=True)
            yield block(*values, first=first, keys=list(keys))

    plan = TaskPlan((TaskRange(span, partition_offset.clock),))
    for _ in run_task(GIVEN, WANTED, plan, read, ended.__setitem__):
        pass
    return encode_group_metadata(offset, at(0), *ended[at(0)])


@given(
    st.lists(st.sampled_from(list(RECORDS)), max_size=24),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans())),
)
@settings(deadline=None)
def test_counts_of_a_stream_are_those_of_its_records_in_any_split_and_replay(reasons, batches):
    """A replay leaves the same text; a clock that is too long for it is dropped, counts are not."""
    partition_offset = PartitionOffset(0, 0, PartitionClock())
    offset = StreamOffset("f00d", GIVEN.settings(), 1, {at(0): partition_offset})
    for size, block_size, is_refused in [*batches, (99, 99, False)]:
        end = min(partition_offset.end_exclusive + size, len(reasons))
        partition_offset = replace(
            partition_offset, start_inclusive=partition_offset.end_exclusive, end_exclusive=end
        )
        written = replace(offset, partitions={at(0): partition_offset}).to_json()
        offset = StreamOffset.from_json(json.loads(json.dumps(written)))
        left = {}
        if partition_offset.end_exclusive > partition_offset.start_inclusive:
            text = count_in_task(reasons, offset, block_size)
            assert text == count_in_task(reasons, offset, 10 - block_size % 10)
            left = {at(0): drop_clock(text) if is_refused else text}
        ended = find_end_states(offset, left, lambda span: PartitionClock(events=1), "ours")
        partition_offset = replace(
            partition_offset,
            clock=ended.clocks[at(0)],
            malformed_payloads=ended.malformed_payloads[at(0)],
        )
    expected = Counter(reason for reason in reasons if reason)
    found = replace(
        partition_offset.malformed_payloads,
        malformed_payload_at=None,
        malformed_event_at=None,
        early_event_at=None,
    )
    assert found == MalformedPayloads.from_reasons(expected)
    # The example is the last such record.
    wrong = [place for place, reason in enumerate(reasons) if reason]
    assert partition_offset.malformed_payloads.malformed_payload_at == (
        wrong[-1] if wrong else None
    )
