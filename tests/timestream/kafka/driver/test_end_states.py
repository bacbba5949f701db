"""Clocks after a batch: committed to the group or read again, and the diagnoses about it."""

import re
from dataclasses import replace

import pytest
from timestream.builders import at

from pyspark_timestream.kafka.diagnosis.diagnoses import Kind, update_warnings
from pyspark_timestream.kafka.driver.end_states import find_end_states
from pyspark_timestream.kafka.offsets.group_metadata import drop_clock, encode_group_metadata
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads, PartitionOffset, StreamOffset
from pyspark_timestream.rules.clocks import PartitionClock, WriterState

THREE = MalformedPayloads.from_reasons({"syntax": 3})
START = PartitionClock(events=7)
END = PartitionClock(cti_us=5, events=9, writers=(("a", WriterState(1)), ("b", WriterState(2))))
OFFSET = StreamOffset(
    "f00df00df00d",
    {"ctiFrequency": "1"},
    1,
    {
        at(0): PartitionOffset(7, 9, START, malformed_payloads=MalformedPayloads((("type", 1),))),
        at(1): PartitionOffset(7, 7, START, malformed_payloads=THREE),
    },
)
TWO = MalformedPayloads.from_reasons({"framing": 1, "type": 1})
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def found(left, reads_again=True, offset=OFFSET):
    """The end states, and how much was read again."""
    again = []

    def read_again(span):
        again.append(span.size)
        return END

    states = find_end_states(offset, left, read_again if reads_again else None, "ours")
    return states, again


def test_committed_end_states_are_used_without_reading_again():
    states, again = found({at(0): encode_group_metadata(OFFSET, at(0), END, TWO)})
    assert (states.clocks, again) == ({at(0): END, at(1): START}, [])
    assert states.malformed_payloads == {
        at(0): MalformedPayloads((("framing", 1), ("type", 2))),
        at(1): THREE,
    }
    assert states.diagnoses == ()


@pytest.mark.parametrize("left", [{}, {at(0): ""}, {at(0): "spark"}])
def test_missing_end_state_is_restored_from_records_if_needed(left):
    states, again = found(left)
    assert (states.clocks[at(0)], again, states.diagnoses) == (END, [2], ())
    states, _ = found(left, reads_again=False)
    assert states.clocks == {at(0): START, at(1): START}
    (diagnosis,) = states.diagnoses
    assert (diagnosis.kind, diagnosis.cause) == (Kind.UNCOUNTED, "group 'ours'")
    assert "the counts in the progress leave its records out" in diagnosis.text


def test_a_group_that_another_stream_writes_to_is_named():
    other = replace(OFFSET, stream="abcdef0123", partitions={at(0): PartitionOffset(0, 1, START)})
    left = {at(0): encode_group_metadata(other, at(0), END)}
    for reads_again, cost in ((True, "read a second time"), (False, "leave its records out")):
        (diagnosis,) = found(left, reads_again)[0].diagnoses
        assert (diagnosis.kind, diagnosis.cause) == (Kind.SHARED_GROUP, "group 'ours'")
        assert "stream abcdef01 overwrites" in diagnosis.text
        assert cost in diagnosis.text
        assert "'kafka.group.id' of its own" in diagnosis.fix


def test_state_refused_by_the_broker_is_reported_with_its_length():
    left = encode_group_metadata(OFFSET, at(0), END)
    states, again = found({at(0): drop_clock(left)})
    assert (states.clocks[at(0)], again) == (END, [2])
    (diagnosis,) = states.diagnoses
    assert (diagnosis.kind, diagnosis.partitions) == (Kind.LARGE_CLOCK, {at(0)})
    said = f"with 2 writers, take {len(left) + 1} characters of the group's metadata"
    assert said in diagnosis.text
    assert f"'offset.metadata.max.bytes' to {len(left) + 1} at least" in diagnosis.fix


def test_a_setting_that_tasks_have_seen_is_named_with_its_value():
    left = encode_group_metadata(OFFSET, at(0), END, settings={POLICY: "max"})
    (diagnosis,) = found({at(0): left})[0].diagnoses
    assert (diagnosis.kind, diagnosis.cause) == (Kind.SESSION_SETTING, f"setting '{POLICY}'")
    assert re.search("runs with 'max', by which .* silently dropped", diagnosis.text)
    assert f"spark.conf.set('{POLICY}', 'min')" in diagnosis.fix


def test_batch_without_records_repeats_the_earlier_findings():
    left = encode_group_metadata(OFFSET, at(0), END, settings={POLICY: "max"})
    said = found({at(0): left})[0].diagnoses
    empty = replace(OFFSET, partitions={at(0): PartitionOffset(9, 9, END)})
    assert found({}, offset=empty)[0].diagnoses == ()
    standing = replace(empty, warnings=update_warnings((), said))
    (diagnosis,) = found({}, offset=standing)[0].diagnoses
    assert (diagnosis.kind, diagnosis.text) == (said[0].kind, said[0].text)
    over = replace(empty, warnings=update_warnings(update_warnings((), said), []))
    assert found({}, offset=over)[0].diagnoses == ()
