"""A sample has the records that were counted, and nothing that may be a secret."""

import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.builders import at
from timestream.histories import NOON, SECOND

from pyspark_timestream.commands.watch import case_records
from pyspark_timestream.commands.watch.case_records import read_case, search_records
from pyspark_timestream.commands.watch.follow import Case
from pyspark_timestream.commands.watch.live import LivePage
from pyspark_timestream.commands.watch.page import render_case
from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.rules.clocks import PartitionClock

RAW = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "topic"}
JSON = {"valueFormat": "json", "startTime": "at", "ctiFrequency": "1", "timeUnit": "s"}


def case(counter, counted, end, settings=JSON, clock=None, start=0):
    return Case(counter, counted, at(0), start, end, 3, clock or PartitionClock(), settings)


def reading(values, step, stamps=None):
    """Read these values in blocks of `step` records."""

    def read(span, columns):
        first, end = span.start_inclusive, span.end_exclusive
        for begin in range(first, end, step):
            rows = range(begin, min(begin + step, end))
            yield RecordBlock(
                pa.array(rows, pa.int64()),
                pa.array([(stamps or {}).get(row, 1_000) for row in rows], pa.int64()),
                pa.array([0 for _ in rows], pa.int32()),
                pa.array([b"k" for _ in rows], pa.binary()),
                pa.array([values[row] for row in rows], pa.binary()),
                pa.array(
                    [[] for _ in rows],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
            )

    return read


def event(second):
    return None if second is None else json.dumps({"at": second}).encode()


def find(counter, counted, values, step=4, settings=JSON, **more):
    options = read_kafka_options({**RAW, **settings})
    one = case(counter, counted, len(values), settings, **more)
    return search_records(one, options, reading(values, step))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 7), st.integers(0, 9))
def test_a_sample_has_the_events_that_were_late_however_they_are_read(times, step, before):
    greatest, late = before, []
    for offset, time in enumerate(times):
        late += [offset] if time < greatest else []
        greatest = max(greatest, time)
    clock = PartitionClock(cti_us=before * SECOND)
    found = find("dropped", len(late), [event(t) for t in times], step, clock=clock)
    assert [int(row[0]) for row in found.rows] == late[: case_records.MAX_SHOWN]
    assert found.notes == ()


def test_each_counter_finds_its_records():
    values = [event(5), b"no json", None, event(1), event(10**6)]
    assert [row[0] for row in find("malformed", 1, values).rows] == ["1"]
    assert [row[0] for row in find("tombstones", 1, values).rows] == ["2"]
    assert [row[0] for row in find("dropped", 1, values).rows] == ["3"]
    flag = {**JSON, "violationPolicy": "flag", "maxFuture": "1 hour"}
    assert [row[0] for row in find("flagged", 1, values, settings=flag).rows] == ["3"]
    assert [row[0] for row in find("future", 1, values, settings=flag).rows] == ["4"]
    adjust = {**JSON, "violationPolicy": "adjust", "eventShape": "interval", "endTime": "end"}
    spans = [
        json.dumps({"at": first, "end": last}).encode() for first, last in ((5, 6), (1, 9), (6, 7))
    ]
    assert [row[0] for row in find("adjusted", 1, spans, settings=adjust).rows] == ["1"]


def test_an_event_is_shown_with_its_time_and_the_cti_that_it_came_after():
    (row,) = find("dropped", 1, [event(5), event(1)]).rows
    assert row == (
        "1", "1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z", "1970-01-01T00:00:05Z", "k",
        '{"at": 1}',
    )  # fmt: skip


def test_records_that_are_gone_are_said_to_be():
    found = find("dropped", 3, [event(5), event(1)])
    assert len(found.rows) == 1
    assert found.notes == ("2 of 3 are not in the topic any more",)


def test_no_more_records_are_read_than_a_page_may_cost(monkeypatch):
    monkeypatch.setattr(case_records, "MAX_READ", 100)
    found = find("dropped", 1, [event(5)] * 1_000 + [event(1)], step=50)
    assert found.rows == ()
    assert found.notes == ("only the first 100 records of 1,001 offsets were searched",)


def test_without_the_rules_the_first_records_are_shown_and_told_to_be():
    values = [event(n) for n in range(50)]
    found = search_records(case("dropped", 1, 50), None, reading(values, 7), "a reason")
    assert [row[0] for row in found.rows] == [str(n) for n in range(10)]
    assert "a reason" in found.notes[0]


SECRETS = [
    b'{"at": 1, "password": "hunter2"}',
    b'{"at": 1, "user": {"apiKey": "hunter2"}}',
    b"password=hunter2",
]


@pytest.mark.parametrize("value", SECRETS)
def test_what_may_be_a_secret_is_not_shown(value):
    found = find("malformed", 1, [value], settings={**JSON, "startTime": "none"})
    assert found.rows
    assert "hunter2" not in repr(found)


@given(st.binary(max_size=60))
def test_hostile_bytes_are_text_and_nothing_else(value):
    found = find("malformed", 1, [value])
    html = render_case(found.case, found, "/")
    assert "<script" not in html
    assert "\x1b" not in html
    for row in found.rows:
        assert all(cell.isprintable() for cell in row)


def test_each_cell_of_a_record_names_its_column_for_phones_which_show_no_head():
    found = find("malformed", 1, [b"{"])
    html = render_case(found.case, found, "/")
    assert re.findall(r'<td data-name="([^"]+)">', html) == [*case_records.CASE_COLUMNS] * len(
        found.rows
    )


def test_brokers_that_do_not_answer_are_told_on_the_page():
    page, one = make_page(lambda _: fail())
    answer = page.answer("/sample", f"query=0&case={one.key}")
    assert "nobody is there" in answer.text


def fail():
    raise BrokerUnreachable("nobody is there")


def make_page(read):
    from dataclasses import replace

    from timestream.commands_watch import view_of
    from timestream.histories import share, state

    one = case("dropped", 1, 2)
    view = view_of([share(state(5))])
    view = replace(view, streams=(replace(view.streams[0], cases=(one,)),))
    page = LivePage("t", lambda: NOON, lambda: [view], read_case=read)
    assert "show records" in page.answer("/sections", "").text
    return page, one


@pytest.mark.parametrize(
    "asked", ["", "query=0", "case=x", "query=1&case={}", "query=-9&case={}", "query=0&case=../x"]
)
def test_only_a_case_that_is_shown_has_a_sample(asked):
    page, one = make_page(lambda _: fail())
    assert page.answer("/sample", asked.format(one.key)) is None


def test_a_schema_of_a_registry_is_not_guessed_at(monkeypatch):
    settings = {**JSON, "valueFormat": "avro"}
    from pyspark_timestream.commands.watch.case_records import _read_options

    options, why = _read_options(case("dropped", 1, 2, settings), {k: RAW[k] for k in RAW})
    assert options.subscribe == ("topic",)
    assert why


def test_reading_needs_the_brokers_and_says_so(monkeypatch):
    from pyspark_timestream.kafka.client import range_reader

    class Gone:
        def __init__(self, options, group):
            assert group == "timestream-watch"

        def read(self, span, columns):
            fail()

        def close(self):
            closed.append(1)

    closed = []
    monkeypatch.setattr(range_reader, "RangeReader", Gone)
    raw = {"kafka.bootstrap.servers": "nowhere:1"}
    with pytest.raises(BrokerUnreachable):
        read_case(case("dropped", 1, 2), raw)
    assert closed == [1]
