"""Small makers of records, blocks, options and offsets of the Kafka transport."""

from dataclasses import replace

import pyarrow as pa

from pyspark_timestream.core.policies import POLICIES, Action
from pyspark_timestream.kafka.decode.columns import build_default_schema, project
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.diagnosis.history import build_progress
from pyspark_timestream.kafka.offsets.next_offset import (
    NO_TIME_INDEX,
    plan_first_offset,
    plan_next_offset,
)
from pyspark_timestream.kafka.offsets.stream_state import (
    BrokerSnapshot,
    RunContext,
    StreamState,
    compute_alignment,
)
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
INSTANT = pa.timestamp("us", tz="UTC")
NO_OPTIONS, NOTHING_SEEN = KafkaOptions(), BrokerSnapshot()
PASSING = sorted(name for name, policy in POLICIES.items() if not policy.fails)
"""The policies under which a late event ends no query."""


def late_word(policy):
    """The text of `violation` for a late point; None if it becomes no row (semantics 3)."""
    action = POLICIES[policy].point
    return "adjusted" if action.moves else "late" if action is Action.FLAG else None


def run_context(options=NO_OPTIONS, **more):
    """A run that goes on without limits, unless told otherwise."""
    limits = {"max_offsets": None, "min_offsets": None, "bounded": False, "new_start": False}
    rest = {"final_cti": False, "committed_batch": -1, "change": None}
    return RunContext(options, **{**limits, **rest, **more})


RUN = run_context()


def report_progress(offset, ends, options=NO_OPTIONS, warnings=()):
    """The progress of a stream without warnings, unless told otherwise."""
    return build_progress(offset, ends, options, warnings)


GIVEN = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "topic"}


def at(number, topic="topic"):
    """A partition."""
    return Partition(topic, number)


def options(**raw):
    """Options over a broker and a topic, unless told otherwise; None leaves one out."""
    given = {**GIVEN, **raw}
    return read_kafka_options({name: text for name, text in given.items() if text is not None})


def projection(given, *columns):
    """`(name, type)` columns, or the default ones, as `given` options fill them."""
    return project(given, pa.schema(columns) if columns else build_default_schema(given))


def block(*values, first=0, timestamps_ms=None, headers=None, keys=None):
    """Records with these values (bytes or None) at consecutive offsets."""
    n = len(values)
    return RecordBlock(
        offsets=pa.array(range(first, first + n), pa.int64()),
        timestamps_ms=pa.array(timestamps_ms or [0] * n, pa.int64()),
        timestamp_types=pa.array([0] * n, pa.int32()),
        keys=pa.array(keys or [None] * n, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=pa.array(headers or [None] * n, HEADERS),
    )


COLUMN_SETS = {
    "timestamps": ("timestamps_ms", "timestamp_types"),
    "keys": ("keys",),
    "values": ("values",),
    "headers": ("headers",),
}
"""What a task may need -> the columns of a block."""


def leave_out(records, needs):
    """A block as a reader makes it, with only the columns that the task needs."""
    left_out = [name for name in COLUMN_SETS if not getattr(needs, name)]
    return records._replace(**{each: None for name in left_out for each in COLUMN_SETS[name]})


def micros(column):
    """Instants of a timestamp column as integers, null as None."""
    return column.cast(pa.int64()).to_pylist()


def stream_state(previous, clocks, positions, ends, run=RUN, seen=NOTHING_SEEN):
    """The stream after the batch `previous`, with this and `more` that was seen."""
    snapshot = replace(seen, positions=positions, ends=ends)
    return StreamState(previous, clocks, snapshot, run)


def instants_to_look_up(previous, clocks, positions, ends, run):
    """The timestamps, in ms, that aligned reading asks the time index for."""
    return compute_alignment(
        stream_state(previous, clocks, positions, ends, run), ends
    ).list_instants_ms()


def next_offset(*known, time_index=NO_TIME_INDEX):
    """The offset that is planned for a `stream_state`."""
    return plan_next_offset(stream_state(*known), time_index=time_index)


def first_offset(stream, settings, starts, ends, run=RUN, seen=NOTHING_SEEN):
    """The offset of a query's first batch."""
    snapshot = replace(seen, positions=starts, ends=ends)
    return plan_first_offset(stream, settings, snapshot, run)
