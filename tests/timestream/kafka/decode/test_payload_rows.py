"""Processed records and CTIs as rows."""

from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT, at, block, micros, options, projection

from pyspark_timestream.kafka.decode import payload as rows
from pyspark_timestream.kafka.decode.payload import (
    ProcessedBlock,
    build_cti_rows,
    interleave_ctis,
    read_payload,
)
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_timestream.rules.step import step

PLAIN = options(ctiFrequency="1")
WANTED = projection(PLAIN, ("offset", pa.int64()), ("cti", INSTANT), ("topic", pa.string()))


@given(st.data())
@settings(deadline=None)
def test_cti_row_directly_follows_its_record_despite_drops(data):
    count = data.draw(st.integers(0, 8))
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    after = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    marks = 100 + np.arange(len(after), dtype=np.int64)
    records = block(*[None] * count, first=50)
    payload = read_payload(PLAIN, WANTED, records)
    _, result = step(PLAIN.rules, PartitionClock(), payload.events)
    processed = ProcessedBlock(at(3), records, payload, result)
    # Few CTIs for a block's rows cut it into slices, many have every row taken.
    rows_a_cut = data.draw(st.sampled_from([0.01, 400]))
    with mock.patch.object(rows, "_ROWS_A_CUT", rows_a_cut):
        woven = interleave_ctis(WANTED, processed, keep, after, marks)
    expected = []
    cti_of = dict(zip(after.tolist(), marks.tolist(), strict=True))
    for i in range(count):
        expected += [(50 + i, None, "topic")] if keep[i] else []
        expected += [(None, cti_of[i], None)] if i in cti_of else []
    columns = woven["offset"].to_pylist(), micros(woven["cti"]), woven["topic"].to_pylist()
    assert list(zip(*columns, strict=True)) == expected
    assert woven.schema == WANTED.schema


def test_a_cti_row_is_null_in_every_other_column():
    given_options = options(
        ctiFrequency="1",
        violationPolicy="adjust",
        eventShape="edge",
        endTime="e",
        edge="k",
        includeHeaders="true",
    )
    wanted = projection(given_options)
    rows = build_cti_rows(wanted, np.array([5, 7]))
    assert rows.schema == wanted.schema
    assert micros(rows["cti"]) == [5, 7]
    assert all(rows[name].null_count == 2 for name in wanted.schema.names if name != "cti")


def woven(raw, *values, columns):
    """(rows of `columns`) of JSON values under options `raw`, all in one block."""
    given_options = options(ctiFrequency="1", startTime="s", timeUnit="us", **raw)
    wanted = projection(given_options, *[(name, kind) for name, kind in columns])
    records = block(*values)
    payload = read_payload(given_options, wanted, records)
    _, said = step(given_options.rules, PartitionClock(), payload.events)
    none = np.empty(0, dtype=np.int64)
    table = interleave_ctis(
        wanted, ProcessedBlock(at(0), records, payload, said), said.keep, none, none
    )
    read = [micros(table[n]) if t == INSTANT else table[n].to_pylist() for n, t in columns]
    return list(zip(*read, strict=True))


TIMES = [("start_time", INSTANT), ("end_time", INSTANT), ("violation", pa.string())]
ORIGINALS = [("original_start_time", INSTANT), ("original_end_time", INSTANT)]


def test_an_adjusted_interval_keeps_its_received_times():
    rows = woven(
        {"eventShape": "interval", "endTime": "e", "violationPolicy": "adjust"},
        b'{"s": 10, "e": 20}',
        b'{"s": 3, "e": 15}',
        b'{"s": 3, "e": 10}',
        columns=[*TIMES, *ORIGINALS],
    )
    assert rows == [(10, 20, None, None, None), (10, 15, "adjusted", 3, 15)]


def test_adjusted_edges_keep_their_received_times():
    rows = woven(
        {"eventShape": "edge", "endTime": "e", "edge": "k", "violationPolicy": "adjust"},
        b'{"s": 10, "k": "start"}',
        b'{"s": 3, "k": "start"}',
        b'{"s": 2, "e": 4, "k": "end"}',
        b'{"s": 2, "k": "end"}',
        b'{"s": 2, "e": 4, "k": "middle"}',
        columns=[*TIMES, *ORIGINALS, ("edge", pa.string())],
    )
    assert rows == [
        (10, None, None, None, None, "start"),
        (10, None, "adjusted", 3, None, "start"),
        (2, 10, "adjusted", 2, 4, "end"),
    ]


def test_a_flagged_row_is_passed_on_unchanged_with_what_could_be_read():
    rows = woven(
        {"eventShape": "interval", "endTime": "e", "violationPolicy": "flag"},
        b'{"s": 10, "e": 20}',
        b'{"s": 3, "e": 15}',
        b'{"s": 12, "e": 12}',
        b'{"s": 12}',
        b'{"e": 12}',
        b"nonsense",
        None,
        columns=TIMES,
    )
    assert rows == [
        (10, 20, None),
        (3, 15, "late"),
        (12, 12, "malformed"),
        (12, None, "malformed"),
        (None, 12, "malformed"),
        (None, None, "malformed"),
        (None, None, "malformed"),
    ]


def test_an_unreadable_end_is_not_taken_for_1970():
    flagged = {"endTime": "e", "violationPolicy": "flag"}
    assert woven({"eventShape": "interval", **flagged}, b'{"s": -9}', columns=TIMES) == [
        (-9, None, "malformed")
    ]
    edge = {"eventShape": "edge", "edge": "k", **flagged}
    both = b'{"s": -9, "k": "end"}', b'{"s": -9, "k": "start"}'
    assert woven(edge, *both, columns=TIMES) == [(-9, None, "malformed"), (-9, None, None)]


def test_metadata_carries_what_the_record_had():
    given_options = options(includeHeaders="true")
    wanted = projection(given_options)
    records = block(
        b"v",
        None,
        first=7,
        timestamps_ms=[5, -1],
        keys=[None, b"k"],
        headers=[[("h", b"1"), ("h", None)], None],
    )
    payload = read_payload(given_options, wanted, records)
    _, said = step(given_options.rules, PartitionClock(), payload.events)
    none = np.empty(0, dtype=np.int64)
    everything = np.array([True, True])
    table = interleave_ctis(
        wanted, ProcessedBlock(at(3), records, payload, said), everything, none, none
    )
    assert (micros(table["timestamp"]), micros(table["start_time"])) == (
        [5000, -1000],
        [5000, None],
    )
    assert table.drop_columns(["timestamp", "start_time"]).to_pylist() == [
        {
            "key": None,
            "value": b"v",
            "topic": "topic",
            "partition": 3,
            "offset": 7,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {
            "key": b"k",
            "value": None,
            "topic": "topic",
            "partition": 3,
            "offset": 8,
            "timestampType": 0,
            "headers": None,
        },
    ]
