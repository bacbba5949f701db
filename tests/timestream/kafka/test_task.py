"""The rows of one task: parse modes, columns read, and failures that name the record."""

import json

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT, PASSING, at, block, leave_out, micros, options, projection

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.errors import ViolationFound
from pyspark_timestream.kafka.decode.payload import list_required_columns
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.driver.cti_importer import derive_import_options
from pyspark_timestream.kafka.ranges import OffsetRange, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import compute_end_clock, run_task
from pyspark_timestream.rules.clocks import PartitionClock

NUMBER = [("offset", pa.int64()), ("n", pa.int64())]
CTI = ("cti", INSTANT)
FLAG = ("violation", pa.string())


def delivered(raw, columns, *values, sizes=(99,), plan=None, **more):
    """(rows, end state) of a task over one partition with these values from offset 0."""
    given_options = options(**raw)
    wanted = projection(given_options, *columns)
    partition_offset = TaskRange(OffsetRange(at(0), 0, len(values)), PartitionClock())
    ended = {}

    def read(span, needs):
        first = 0
        for size in [*sizes, len(values)]:
            some = values[first : first + size]
            if some:
                stamps = more.get("timestamps_ms", [0] * len(values))[first : first + size]
                yield leave_out(block(*some, first=first, timestamps_ms=stamps), needs)
            first += size

    plan = plan or TaskPlan((partition_offset,))
    tables = list(run_task(given_options, wanted, plan, read, ended.__setitem__))
    assert compute_end_clock(given_options, partition_offset, read) == ended[at(0)].clock
    table = pa.Table.from_batches(tables, wanted.schema)
    return table, ended[at(0)].clock


VALUES = [b'{"n": 1, "t": 5}', b"broken", None, b'{"n": "x", "t": 6}', b'{"n": 2, "t": 4}']


def test_permissive_gives_nulls_and_the_malformed_text():
    columns = [*NUMBER, ("_corrupt_record", pa.string())]
    table, clock = delivered({"valueFormat": "json"}, columns, *VALUES)
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (0, 1, None),
        (1, None, "broken"),
        (2, None, None),
        (3, None, '{"n": "x", "t": 6}'),
        (4, 2, None),
    ]
    assert clock.events == 5


def test_dropmalformed_drops_malformed_values_and_keeps_nulls():
    raw = {"valueFormat": "json", "parseMode": "dropmalformed"}
    table, _ = delivered(raw, NUMBER, *VALUES)
    assert table["offset"].to_pylist() == [0, 2, 4]


def test_failfast_fails_at_the_first_malformed_value():
    with pytest.raises(ViolationFound, match="topic 'topic' partition 0 offset 1: the value"):
        delivered({"valueFormat": "json", "parseMode": "FAILFAST"}, NUMBER, *VALUES)


@given(st.lists(st.sampled_from(VALUES), max_size=8), st.sampled_from([(1,), (2, 1), (99,)]))
@settings(deadline=None, max_examples=40)
def test_the_parse_mode_never_affects_counting(values, sizes):
    raw = {"valueFormat": "json", "startTime": "t", "ctiFrequency": "1", "violationPolicy": "flag"}
    found = []
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        for columns in ([*NUMBER, FLAG, CTI], [FLAG, CTI], [CTI, FLAG]):
            table, clock = delivered({**raw, "parseMode": mode}, columns, *values, sizes=sizes)
            ctis = [cti for cti in micros(table["cti"].combine_chunks()) if cti is not None]
            found.append((ctis, clock))
    assert all(one == found[0] for one in found)


def test_an_event_that_policy_dropped_is_not_failed_on_by_the_parse_mode():
    raw = {"valueFormat": "json", "startTime": "t", "ctiFrequency": "1", "parseMode": "FAILFAST"}
    table, clock = delivered(raw, NUMBER, b"broken", b'{"n": 1, "t": 5}')
    assert table["offset"].to_pylist() == [1]
    assert clock.malformed == 1


def test_invalid_utf8_in_a_malformed_value_does_not_stop_the_stream():
    columns = [*NUMBER, ("_corrupt_record", pa.string())]
    table, _ = delivered({"valueFormat": "json"}, columns, b"a\xff", b'{"n": 1}', b"")
    table.validate(full=True)
    assert table["n"].to_pylist() == [None, 1, None]
    assert table["_corrupt_record"].to_pylist() == ["a\N{REPLACEMENT CHARACTER}", None, ""]


def test_parse_mode_does_not_restore_dropped_rows():
    raw = {"valueFormat": "json", "startTime": "t", "ctiFrequency": "1"}
    for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
        late = b'{"n": 1, "t": 5}', b'{"n": 2, "t": 4}'
        table, _ = delivered({**raw, "parseMode": mode}, NUMBER, *late)
        assert table["n"].to_pylist() == [1]


FINAL_MS = FINAL_US // 1000
ODD_STAMPS = [-1, -5000, -(2**40), 0, 7, FINAL_MS, FINAL_MS + 1, 10**15, 2**63 - 1, -(2**63)]
"""Record timestamps in ms: negative ones are none, and some lie after the end of time."""

SHOWN = [ms * 1000 if abs(ms) < 2**53 else None for ms in ODD_STAMPS]
"""As Spark's own source shows them; it fails where 64 bits do not hold the microseconds."""

STARTS = [us if us is not None and 0 <= us <= FINAL_US else None for us in SHOWN]
STAMPED = [("offset", pa.int64()), ("timestamp", INSTANT), ("start_time", INSTANT)]


def stamped(raw, *more, sizes=(99,)):
    """The rows of records with the odd timestamps, and the end state."""
    records = [None] * len(ODD_STAMPS)
    columns = [*STAMPED, *more]
    table, clock = delivered(raw, columns, *records, sizes=sizes, timestamps_ms=ODD_STAMPS)
    read = [table["offset"], *(table[name].cast(pa.int64()) for name, _ in STAMPED[1:])]
    rows = zip(*(column.to_pylist() for column in [*read, *table.columns[3:]]), strict=True)
    return list(rows), clock


@pytest.mark.parametrize("sizes", [(99,), (1, 2, 3), (1,) * 9])
def test_every_record_is_delivered_at_any_timestamp(sizes):
    rows, clock = stamped({}, sizes=sizes)
    assert rows == list(zip(range(len(ODD_STAMPS)), SHOWN, STARTS, strict=True))
    assert (clock.events, clock.malformed) == (len(ODD_STAMPS), STARTS.count(None))


@pytest.mark.parametrize("policy", PASSING)
def test_with_ctis_a_record_timestamp_that_is_no_time_meets_the_policy(policy):
    raw = {"ctiHeader": "cti", "violationPolicy": policy}
    rows, clock = stamped(raw, *([FLAG] if POLICIES[policy].flags else []))
    expected = list(zip(range(len(ODD_STAMPS)), SHOWN, STARTS, strict=True))
    if POLICIES[policy].flags:
        expected = [(*row, None if row[-1] is not None else "malformed") for row in expected]
    else:
        expected = [row for row in expected if row[-1] is not None]
    assert rows == expected
    assert (clock.malformed, clock.dropped, clock.flagged) == (STARTS.count(None), 0, 0)


def test_policy_fail_names_the_record_whose_timestamp_is_no_time():
    with pytest.raises(ViolationFound, match="offset 0: the event is malformed"):
        stamped({"ctiHeader": "cti", "violationPolicy": "fail"})


def test_future_policy_fail_names_the_record_and_the_option():
    raw = {"valueFormat": "json", "startTime": "t", "ctiFrequency": "1", "maxFuture": "1 s"}
    values = [b'{"n": 1, "t": 1000}', b'{"n": 1, "t": 1001}']
    with pytest.raises(
        ViolationFound, match=r"offset 1: .*'maxFuture' allows.*'keep' or 'drop' to"
    ):
        delivered({**raw, "futurePolicy": "fail"}, NUMBER, *values, timestamps_ms=[0, 0])


@pytest.mark.parametrize("raw", [{}, {"startTime": "header:t"}, {"startTime": "t"}])
def test_without_a_source_of_ctis_no_malformed_event_is_dropped(raw):
    values = [b"nonsense", None, b'{"t": "never"}', b'{"t": 5}']
    table, clock = delivered({"valueFormat": "json", **raw}, STAMPED, *values)
    assert table["offset"].to_pylist() == [0, 1, 2, 3]
    assert (clock.events, clock.dropped) == (4, 0)
    assert clock.malformed + clock.tombstones == table["start_time"].null_count


@pytest.mark.parametrize("policy", PASSING)
def test_tombstones_are_counted_apart_where_the_value_has_the_time_and_nowhere_else(policy):
    values = [b'{"t": "never"}', None, b'{"t": 5}', None]
    raw = {"valueFormat": "json", "ctiFrequency": "1", "violationPolicy": policy}
    columns = [*STAMPED, FLAG] if POLICIES[policy].columns("point") else STAMPED
    _, clock = delivered({**raw, "startTime": "t"}, columns, *values)
    assert (clock.events, clock.malformed, clock.tombstones) == (4, 1, 2)
    _, clock = delivered(raw, columns, *values)
    assert (clock.events, clock.malformed, clock.tombstones) == (4, 0, 0)


FAIL = {"ctiFrequency": "1", "violationPolicy": "fail", "startTime": "t", "valueFormat": "json"}


def test_fail_names_topic_partition_offset_event_time_and_cti():
    with pytest.raises(ViolationFound) as failed:
        delivered(FAIL, NUMBER, b'{"t": 5000}', b'{"t": 4000}', sizes=(1, 1))
    message = str(failed.value)
    assert message.startswith("topic 'topic' partition 0 offset 1: ")
    assert "1970-01-01T00:00:04Z" in message
    assert "the CTI in force is 1970-01-01T00:00:05Z" in message
    assert "'violationPolicy'" in message


@pytest.mark.parametrize("value", [b"{}", b"nonsense", None, b'{"t": "soon"}', b'{"t": true}'])
def test_fail_names_the_malformed_event_and_the_expectation(value):
    with pytest.raises(ViolationFound) as failed:
        delivered(FAIL, NUMBER, b'{"t": 5000}', value)
    message = str(failed.value)
    assert message.startswith("topic 'topic' partition 0 offset 1: the event is malformed")
    assert "a readable time in 't'" in message


def test_fail_names_a_nested_time_by_its_path():
    with pytest.raises(ViolationFound, match=r"expected a readable time in 'field:p\.t'\)"):
        delivered({**FAIL, "startTime": "p.t"}, NUMBER, b'{"p": {"t": 5000}}', b'{"p": 5}')


NESTED = {
    "valueFormat": "json", "startTime": "payload.ts", "ctiFrequency": "1", "ctiDelay": "2 ms",
    "violationPolicy": "flag",
}  # fmt: skip
ids = st.sampled_from([None, 1, "one", {"id": 1}, {"id": None}, {"id": "one"}, [1]])
changes = st.fixed_dictionaries({"ts": st.sampled_from([None, 5, 6, 9, "soon"]), "after": ids})
payloads = st.none() | st.just(b"broken") | st.builds(
    lambda payload: json.dumps({"payload": payload}).encode(), changes | st.just(7)
)  # fmt: skip


@given(st.lists(payloads, max_size=6), st.lists(st.integers(1, 3), max_size=4), st.integers(0, 40))
@settings(deadline=None)
def test_rows_of_nested_fields_do_not_depend_on_the_split_into_blocks(values, sizes, repeated):
    values = [*values, *[b'{"payload": {"ts": 7, "after": {"id": 2}}}'] * repeated]
    columns = [NUMBER[0], ("payload.after.id", pa.int64()), ("start_time", INSTANT), FLAG, CTI]
    columns.append(("_corrupt_record", pa.string()))
    whole = delivered(NESTED, columns, *values)
    assert delivered(NESTED, columns, *values, sizes=sizes) == whole
    rows = [row for row in whole[0].to_pylist() if row["cti"] is None]
    for row, value in zip(rows, values, strict=True):
        payload = json.loads(value or b"{}").get("payload") if value != b"broken" else None
        after = payload.get("after") if isinstance(payload, dict) else None
        found = after.get("id") if isinstance(after, dict) else None
        assert row["payload.after.id"] == (found if type(found) is int else None)
        objects = all(isinstance(each, dict | None) for each in (payload, after))
        fits = objects and type(found) in (int, type(None)) and value != b"broken"
        assert (row["_corrupt_record"] is None) == fits


def test_an_import_takes_its_ctis_from_nested_fields():
    source = {"topic": "fast", "frequency": 1, "delay": "1 ms", "startTime": "payload.`ts.ms`"}
    imported = derive_import_options(options(ctiImport=json.dumps(source)))
    values = [b'{"payload": {"ts.ms": 5}}', b'{"payload": {"ts.ms": 7}}', b'{"payload": null}']
    partition_offset = TaskRange(OffsetRange(at(0, "fast"), 0, 3), PartitionClock())
    end = compute_end_clock(imported, partition_offset, lambda *_: [block(*values)])
    assert (end.cti_us, end.malformed) == (6000, 1)


def test_without_a_cti_column_there_are_no_cti_rows_and_the_clock_still_runs():
    raw = {"ctiFrequency": "1"}
    stamps = [5, 7, 6]
    table, clock = delivered(raw, NUMBER[:1], b"", b"", b"", timestamps_ms=stamps)
    assert table["offset"].to_pylist() == [0, 1]
    assert (clock.cti_us, clock.ctis, clock.dropped) == (7000, 2, 1)


def test_opening_and_closing_rows_surround_the_records():
    partition_offset = TaskRange(OffsetRange(at(0), 0, 1), PartitionClock(cti_us=3000))
    plan = TaskPlan((partition_offset,), (), 3000, first_cti_us=3000, last_cti_us=9000)
    given_options = options(ctiFrequency="1")
    wanted = projection(given_options, NUMBER[0], CTI)

    def read(span, needs):
        yield block(b"", timestamps_ms=[4])

    tables = list(run_task(given_options, wanted, plan, read, lambda partition, clock: None))
    table = pa.Table.from_batches(tables)
    assert table["offset"].to_pylist() == [None, 0, None, None]
    assert micros(table["cti"].combine_chunks()) == [3000, None, 4000, 9000]


def test_end_state_is_kept_for_every_partition_even_if_empty():
    partition_offsets = tuple(
        TaskRange(OffsetRange(at(i), 4, 9), PartitionClock(cti_us=i)) for i in range(2)
    )
    left = []
    tables = run_task(
        options(ctiFrequency="1"),
        projection(options(ctiFrequency="1")),
        TaskPlan(partition_offsets),
        lambda span, needs: iter(()),
        lambda partition, end: left.append((partition, end.clock)),
    )
    assert list(tables) == []
    assert left == [(at(i), PartitionClock(cti_us=i)) for i in range(2)]


@pytest.mark.parametrize(
    ("raw", "columns", "needs"),
    [
        ({}, [("offset", pa.int64())], ColumnSet(timestamps=True)),
        ({}, [("key", pa.binary())], ColumnSet(timestamps=True, keys=True)),
        ({"startTime": "header:t"}, [("offset", pa.int64())], ColumnSet(headers=True)),
        ({"startTime": "t"}, [("offset", pa.int64())], ColumnSet(values=True)),
        ({"startTime": "t"}, [("timestamp", INSTANT)], ColumnSet(timestamps=True, values=True)),
        ({"startTime": "t", "valueFormat": "json"}, [("n", pa.int64())], ColumnSet(values=True)),
        (
            {"startTime": "header:t", "valueFormat": "json"},
            [("_corrupt_record", pa.string())],
            ColumnSet(values=True, headers=True),
        ),
    ],
)
def test_only_what_is_needed_is_read(raw, columns, needs):
    given_options = options(**raw)
    assert list_required_columns(given_options, projection(given_options, *columns)) == needs


def test_times_come_from_headers_of_which_the_last_wins():
    given_options = options(startTime="header:t", timeUnit="s")
    wanted = projection(given_options, ("start_time", INSTANT))
    pairs = [[("t", b"1"), ("t", b"2")], [("t", b"1970-01-01T00:00:03")], [("t", b"\xff")], None]

    def read(span, needs):
        yield block(*[None] * 4, headers=pairs)

    plan = TaskPlan((TaskRange(OffsetRange(at(0), 0, 4), PartitionClock()),))
    (table,) = run_task(given_options, wanted, plan, read, lambda partition, clock: None)
    assert micros(table["start_time"]) == [2_000_000, 3_000_000, None, None]


@given(
    st.lists(
        st.sampled_from([5, 1999, 1999.0, 2.5, "7", "1970-01-01T00:00:00.000004Z", None, True, {}]),
        max_size=7,
    ),
    st.sampled_from(["ns", "us", "ms", "s"]),
    st.lists(st.integers(1, 3), max_size=4),
)
@settings(deadline=None, max_examples=60)
def test_event_times_do_not_depend_on_how_records_are_blocked(fields, unit, sizes):
    raw = {"startTime": "t", "timeUnit": unit, "violationPolicy": "flag", "ctiFrequency": "1"}
    values = [json.dumps({"t": field}).encode() for field in fields]
    columns = [("start_time", INSTANT), ("violation", pa.string()), CTI]
    whole, clock = delivered(raw, columns, *values)
    cut, other = delivered(raw, columns, *values, sizes=sizes)
    assert cut.to_pylist() == whole.to_pylist()
    assert other == clock


SPAN = {"startingCti": "1970-01-01T00:00:00.005Z", "endingCti": "1970-01-01T00:00:00.008Z"}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
@settings(deadline=None, max_examples=30)
def test_a_replay_neither_fails_on_nor_counts_values_outside_its_span(sizes):
    raw = {"valueFormat": "json", "startTime": "t", "ctiFrequency": "1", **SPAN}
    bad = b'{"n": "x", "t": %d}'
    values = [bad % 1, bad % 4, b'{"n": 5, "t": 5}', b'{"n": 7, "t": 7}', bad % 8, bad % 9]
    table, clock = delivered({**raw, "parseMode": "FAILFAST"}, [*NUMBER, CTI], *values, sizes=sizes)
    assert table["n"].to_pylist() == [5, None, 7, None, None]
    assert micros(table["cti"].combine_chunks()) == [None, 5000, None, 7000, 8000]
    assert (clock.events, clock.outside) == (5, 3)
    ended = {}
    given_options = options(**raw)
    wanted = projection(given_options, *NUMBER)
    partition_offset = TaskRange(OffsetRange(at(0), 0, 3), PartitionClock())
    some = [bad % 1, b'{"n": 5, "t": 5}', bad % 6]
    read = lambda span, needs: iter([block(*some)])  # noqa: E731
    for _ in run_task(
        given_options, wanted, TaskPlan((partition_offset,)), read, ended.__setitem__
    ):
        pass
    assert ended[at(0)].malformed_payloads.total == 1


def test_a_replay_reads_nothing_behind_its_end():
    given_options = options(ctiFrequency="1", **SPAN)
    read = []

    def pieces(span, needs):
        for first in range(span.start_inclusive, span.end_exclusive):
            read.append(first)
            yield block(b"v", first=first, timestamps_ms=[first])

    partition_offset = TaskRange(OffsetRange(at(0), 0, 99), PartitionClock())
    wanted = projection(given_options, ("offset", pa.int64()))
    rows = list(
        run_task(given_options, wanted, TaskPlan((partition_offset,)), pieces, lambda *_: None)
    )
    assert read == list(range(9))
    assert pa.Table.from_batches(rows)["offset"].to_pylist() == [5, 6, 7]
    after = compute_end_clock(given_options, partition_offset, pieces)
    ended = TaskRange(OffsetRange(at(0), 99, 999), after)
    assert compute_end_clock(given_options, ended, pieces) == after
    assert len(read) == 18


WHERE_COLUMNS = [*NUMBER, ("start_time", INSTANT), FLAG, ("_corrupt_record", pa.string()), CTI]
wheres = st.sampled_from(
    [
        ("n > 1", lambda row: row["n"] is not None and row["n"] > 1),
        ("not n > 1", lambda row: row["n"] is not None and not row["n"] > 1),
        (
            "n <> 1 or violation is not null",
            lambda row: row["violation"] or row["n"] not in (1, None),
        ),
        ("violation = 'late'", lambda row: row["violation"] == "late"),
        ("_corrupt_record is not null", lambda row: row["_corrupt_record"] is not None),
        ("partition = 0 and start_time < '1970-01-01T00:00:00.006Z'",
         lambda row: row["start_time"] is not None and row["start_time"].microsecond < 6000),
        ("false", lambda row: False),
        ("true", lambda row: True),
    ]
)  # fmt: skip
noted = st.builds(
    lambda n, t: json.dumps({"n": n, "t": t}).encode(),
    st.sampled_from([None, 0, 1, 2, 3, "x"]),
    st.sampled_from([1, 4, 5, 6, 9, None, "soon"]),
)


@given(
    st.lists(noted | st.sampled_from([None, b"broken"]), max_size=12),
    st.lists(st.integers(1, 3), max_size=6),
    wheres,
    st.sampled_from(PASSING),
    st.sampled_from(["PERMISSIVE", "DROPMALFORMED"]),
    st.sampled_from([{}, {"startingCti": SPAN["startingCti"]}]),
)
@settings(deadline=None, max_examples=200)
def test_where_is_a_filter_behind_the_policies_in_any_split(
    values, sizes, where, policy, mode, window
):
    """The oracle filters the rows of the plain task; CTIs and the end state come from it."""
    text, is_wanted = where
    is_told = bool(POLICIES[policy].columns("point"))
    columns = [each for each in WHERE_COLUMNS if is_told or each != FLAG]
    raw = {
        "valueFormat": "json", "startTime": "t", "ctiFrequency": "2", "parseMode": mode,
        "violationPolicy": policy, **window,
    }  # fmt: skip
    assume(is_told or "violation" not in text)
    plain, clock = delivered(raw, columns, *values)
    expected = [
        row
        for row in plain.to_pylist()
        if row["cti"] is not None or is_wanted({"violation": None, **row})
    ]
    table, end = delivered({**raw, "where": text}, columns, *values, sizes=sizes)
    assert table.to_pylist() == expected
    assert end == clock


@pytest.mark.parametrize("size", [70, 1500])
def test_where_with_many_ctis_and_few_rows_keeps_their_order(size):
    """Blocks with few CTIs are cut, and others taken row by row: both are filtered."""
    values = [b'{"n": %d, "t": %d}' % (number % 7, number) for number in range(1500)]
    for every in ("1", "700"):
        raw = {"valueFormat": "json", "startTime": "t", "ctiFrequency": every}
        plain, _ = delivered(raw, [*NUMBER, CTI], *values)
        rows = [r for r in plain.to_pylist() if r["cti"] is not None or r["n"] == 3]
        sizes = [size] * 30
        table, _ = delivered({**raw, "where": "n = 3"}, [*NUMBER, CTI], *values, sizes=sizes)
        assert table.to_pylist() == rows


def test_failfast_judges_rows_that_where_would_not_want():
    raw = {"valueFormat": "json", "parseMode": "FAILFAST", "where": "n = 1"}
    with pytest.raises(ViolationFound, match="offset 1: the value"):
        delivered(raw, NUMBER, b'{"n": 1}', b"broken")


def test_metadata_that_only_the_condition_names_is_read():
    given_options = options(where="headers is null and key is null and timestamp is not null")
    needs = list_required_columns(given_options, projection(given_options, NUMBER[0]))
    assert needs == ColumnSet(timestamps=True, keys=True, headers=True)
    table, _ = delivered(
        {"where": "timestamp > '1970-01-01T00:00:00Z'"}, NUMBER[:1], b"", b"", timestamps_ms=[0, 1]
    )
    assert table["offset"].to_pylist() == [1]
