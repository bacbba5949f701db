"""The metrics of queries: newest batch, bounds, who holds back; an oracle reads the progress."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from timestream.histories import DAY, MARKS, NOON, SECOND, share, state
from timestream.progress_events import event, offset_of, parse_page, values

from pyspark_timestream.commands import metrics
from pyspark_timestream.commands.metrics import (
    COUNTER_METRICS,
    MetricsState,
    list_samples,
    record_end,
    record_progress,
    record_start,
)
from pyspark_timestream.commands.metrics_export import render_page
from pyspark_timestream.core.instants import FINAL_US, parse_instant
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind
from pyspark_timestream.kafka.offsets.changes import ClockChange
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import COUNTERS, WriterState

EMPTY = MetricsState()
NOW = NOON + DAY


def page_of(state_, now_us=NOW):
    return parse_page(render_page(list_samples(state_, now_us)))


def page_after(*events, now_us=NOW, folded=EMPTY):
    for each in events:
        folded = record_progress(folded, each, now_us)
    return page_of(folded, now_us)


def one(page, name, **labels):
    (found,) = values(page, name, **labels)
    return found


def test_every_counter_of_the_progress_has_a_metric():
    assert set(COUNTER_METRICS) == set(COUNTERS)


# -- the numbers of a stream ----------------------------------------------------------------------

CLOCKS = st.builds(
    lambda second, counts, idle, first, bad: share(
        state(second, **dict(zip(["events", "dropped", "flagged"], counts, strict=True))),
        first=first, idle=idle, malformed_payloads=MalformedPayloads.from_reasons({"type": bad}),
    ),
    st.none() | st.integers(-9, 9), st.tuples(*[st.integers(0, 99)] * 3), st.booleans(),
    st.integers(0, 9), st.integers(0, 3),
)  # fmt: skip
BATCHES = st.lists(st.lists(CLOCKS, min_size=1, max_size=4), min_size=1, max_size=5)


@given(BATCHES)
@examples(deadline=None)
def test_page_has_the_numbers_of_the_progress_report(batches):
    events = [event(offset_of(each, n), batch=n) for n, each in enumerate(batches)]
    page = page_after(*events)
    report = json.loads(events[-1]["sources"][0]["latestOffset"])
    for number, entry in report["partitions"]["trips"].items():
        place = {"query_name": "rides", "source": "0", "topic": "trips", "partition": number}
        ctis = [] if entry["cti"] is None else [parse_instant(entry["cti"])]
        ages = [(NOW - cti) / SECOND for cti in ctis]
        assert values(page, "timestream_partition_cti_time_seconds", **place) == [
            cti / SECOND for cti in ctis
        ]
        assert values(page, "timestream_partition_cti_age_seconds", **place) == ages
        assert one(page, "timestream_partition_lag", **place) == entry["lag"]
        assert one(page, "timestream_partition_idle", **place) == entry["idle"]
        late = "timestream_partition_events_late_total"
        assert one(page, "timestream_partition_events_total", **place) == entry["events"]
        assert one(page, late, outcome="dropped", **place) == entry["dropped"]
        assert one(page, late, outcome="flagged", **place) == entry["flagged"]
        bad = one(page, "timestream_partition_values_malformed_total", **place)
        assert bad == entry["malformedValues"]["total"]
    by_reason = one(page, "timestream_stream_values_malformed_total", reason="type")
    assert by_reason == report["malformedValues"].get("type", 0)
    ctis = [each.clock.cti_us for each in batches[-1] if not each.idle]
    least = min(ctis) if ctis and None not in ctis else None
    ahead = [each.clock.cti_us for each in batches[-1] if each.clock.cti_us is not None]
    for number, each in enumerate(batches[-1]):
        own = each.clock.cti_us
        is_least = own is None or (least is not None and own == least and max(ahead) > own)
        assert one(page, "timestream_partition_blocking", partition=str(number)) == (
            not each.idle and is_least
        )


@given(BATCHES, st.data())
@examples(deadline=None)
def test_order_of_progress_events_does_not_matter(batches, data):
    events = [event(offset_of(each, n), batch=n) for n, each in enumerate(batches)]
    shuffled = data.draw(st.permutations(events))
    again = data.draw(st.lists(st.sampled_from(events), max_size=3))
    assert page_after(*shuffled, *again) == page_after(*events)


def test_partition_that_holds_back_is_named_with_its_reason():
    held = offset_of([share(state(5)), share(state(1))])
    page = page_after(event(held, left=0))
    labels = {"reason": str(Kind.IDLE_PARTITION), "topic": "trips", "partition": "1"}
    assert one(page, "timestream_stream_finding", **labels) == 1
    assert one(page, "timestream_stream_cti_spread_seconds") == 4
    assert one(page, "timestream_partition_event_age_seconds", partition="1") == 86_399
    assert [one(page, "timestream_partition_blocking", partition=n) for n in "01"] == [0, 1]


def test_silent_writer_is_named_even_without_a_name():
    writers = (("", WriterState(NOON)), ("b", WriterState(NOON + SECOND)))
    moments = [offset_of([share(state(0, writers=writers))], n, given=MARKS) for n in range(2)]
    page = page_after(*[event(each, batch=each.number, left=0) for each in moments])
    assert one(page, "timestream_stream_finding", reason="a silent writer", writer="") == 1


def test_final_cti_is_no_time_and_holds_nothing_back():
    last = offset_of([share(state(None, cti_us=FINAL_US)), share(state(1))], end_of_run=True)
    page = page_after(event(replace(last, cti_us=FINAL_US)))
    assert values(page, "timestream_stream_cti_time_seconds") == []
    assert one(page, "timestream_stream_ended") == 1
    assert values(page, "timestream_partition_cti_time_seconds", partition="0") == []
    assert values(page, "timestream_partition_cti_age_seconds", partition="0") == []
    assert values(page, "timestream_partition_blocking") == [0, 0]


def test_warnings_that_are_active_are_counted():
    report = json.loads(event(offset_of([share(state(1))]))["sources"][0]["latestOffset"])
    page = page_after(event({**report, "warnings": ["late rows: 5", "malformed values: 3"]}))
    assert one(page, "timestream_stream_warnings") == 2


def test_each_option_of_a_change_is_a_sample_with_batch_cti_and_both_values():
    changes = (
        ClockChange(3, None, {}, {"writers": 'a,"b'}),
        ClockChange(7, NOON, {"ctiDelay": "1 s", "writers": "a"}, {"ctiDelay": "2 s"}),
        ClockChange(9, NOON, {"ctiDelay": "2 s"}, {"ctiDelay": "1 s"}),
        ClockChange(11, NOON, {"ctiDelay": "1 s"}, {"ctiDelay": "2 s"}),
    )
    page = page_after(event(offset_of([share(state(1))], 11, changes=changes)))
    found = [dict(labels) for name, labels in page if name == "timestream_stream_change"]
    keys = ("batch", "cti", "option", "from", "to")
    noon = "2024-01-01T12:00:00Z"
    assert sorted(tuple(each[key] for key in keys) for each in found) == [
        ("11", noon, "ctiDelay", "1 s", "2 s"),
        ("3", "", "writers", "", 'a,"b'),
        ("7", noon, "ctiDelay", "1 s", "2 s"),
        ("7", noon, "writers", "a", ""),
        ("9", noon, "ctiDelay", "2 s", "1 s"),
    ]
    assert values(page, "timestream_stream_change") == [1] * 5


# -- other sources --------------------------------------------------------------------------------


def test_clock_and_subscription_have_numbers_of_their_own():
    clock = {
        "cti": "2024-01-01T12:00:00Z", "endOfStream": False, "maxCount": None, "nextTick": 7,
        "simulatedTime": "2024-01-01T12:00:01Z", "skipped": 2, "ticksBehind": 3,
    }  # fmt: skip
    page = page_after(event(clock, {"commit": 9, "initial": False, "missed": 4}))
    assert one(page, "timestream_stream_cti_age_seconds", source="0") == 86_400
    assert one(page, "timestream_clock_ticks_behind", source="0") == 3
    assert one(page, "timestream_clock_ticks_skipped_total", source="0") == 2
    assert one(page, "tseries_subscription_commit", source="1") == 9
    assert one(page, "tseries_subscription_events_missed_total", source="1") == 4


def test_a_source_beside_another_has_the_labels_that_it_has_alone():
    offset = offset_of([share(state(1))])
    alone, both = page_after(event(offset)), page_after(event(offset, offset))
    of_source = {(name, labels) for name, labels in alone if ("source", "0") in labels}
    for source in ("0", "1"):
        expected = {
            (name, frozenset({*labels - {("source", "0")}, ("source", source)}))
            for name, labels in of_source
        }
        assert {(n, labels) for n, labels in both if ("source", source) in labels} == expected


@pytest.mark.parametrize("report", [None, {"trips": {"0": 5}}, 17, "no JSON {", [1]])
def test_source_of_others_has_no_numbers(report):
    names = {name for name, _ in page_after(event(report))}
    assert names == {
        "timestream_listener_failures_total", "timestream_query_active",
        "timestream_query_report_age_seconds",
    }  # fmt: skip


def test_source_without_a_report_keeps_its_last_numbers():
    page = page_after(event(offset_of([share(state(1))])), event(None, batch=1))
    assert one(page, "timestream_partition_events_total") == 20


def test_state_and_watermark_of_operators_are_shown():
    operators = [
        {"operatorName": "stateStoreSave", "numRowsTotal": 12, "memoryUsedBytes": 900},
        {"operatorName": "stateStoreSave", "numRowsTotal": 3, "memoryUsedBytes": 100},
    ]
    watermark = {"watermark": "2024-01-01T12:00:00.000Z"}
    page = page_after(event(stateOperators=operators, eventTime=watermark))
    rows = "timestream_query_state_rows"
    assert one(page, rows, operator="0 stateStoreSave") == 12
    assert one(page, rows, operator="1 stateStoreSave") == 3
    assert values(page, "timestream_query_state_memory_bytes") == [900, 100]
    assert one(page, "timestream_query_watermark_time_seconds") == NOON / SECOND


def test_watermark_that_has_not_begun_is_left_out():
    begun = {"watermark": "1970-01-01T00:00:00.000Z"}
    assert (
        values(page_after(event(eventTime=begun)), "timestream_query_watermark_time_seconds") == []
    )


# -- queries and their ends -----------------------------------------------------------------------


def test_query_that_ends_is_shown_for_a_while_and_forgotten():
    folded = record_progress(EMPTY, event(offset_of([share(state(1))])), NOW)
    folded = record_end(folded, "q", "r", NOW)
    page = page_of(folded, NOW + 59 * SECOND)
    assert one(page, "timestream_query_active") == 0
    assert one(page, "timestream_partition_events_total") == 20
    assert values(page, "timestream_stream_cti_age_seconds") == []
    assert values(page, "timestream_query_report_age_seconds") == []
    assert len(page_of(folded, NOW + 60 * SECOND)) == 1
    # Not only hidden.
    assert not record_start(folded, "p", "s", None, NOW + DAY).queries.keys() - {"p"}


def test_report_after_its_runs_end_brings_nothing_back():
    folded = record_start(EMPTY, "q", "r", None, NOW)
    folded = record_end(folded, "q", "r", NOW)
    later = NOW + DAY
    folded = record_start(folded, "q", "r", None, later)
    folded = record_progress(folded, event(offset_of([share(state(1))])), later)
    assert folded.queries == {}


def test_restart_is_told_before_the_end_of_the_earlier_run():
    first = record_progress(EMPTY, event(offset_of([share(state(1))])), NOW)
    folded = record_start(first, "q", "second", "rides", NOW)
    late = event(offset_of([share(state(2))], 1), batch=1)
    folded = record_progress(folded, late, NOW)
    folded = record_end(folded, "q", "r", NOW)
    page = page_of(folded)
    assert one(page, "timestream_query_active") == 1
    # The counters go on from the checkpoint, and meanwhile stay.
    assert one(page, "timestream_partition_events_total") == 20


def test_ended_runs_and_batches_are_bounded():
    folded = EMPTY
    for number in range(300):
        folded = record_start(folded, "q", str(number), None, NOW)
        batch = event(offset_of([share(state(1))], number), batch=number, run=str(number))
        folded = record_progress(folded, batch, NOW)
        folded = record_end(folded, "q", str(number), NOW)
    assert len(folded.ended_runs) <= metrics._MAX_ENDED_RUNS
    assert len(folded.queries["q"].batches) <= metrics._KEPT_BATCHES


def test_age_of_the_report_grows_until_the_query_says_that_it_lives():
    folded = record_start(EMPTY, "q", "r", None, NOW)
    name = "timestream_query_report_age_seconds"
    assert one(page_of(folded, NOW + 9 * SECOND), name) == 9
    folded = record_start(folded, "q", "r", None, NOW + 9 * SECOND)
    page = page_of(folded, NOW + 9 * SECOND)
    assert one(page, name) == 0
    assert ("query_name", "rides") not in set(itertools.chain(*(labels for _, labels in page)))


# -- limits ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 6))
@examples(deadline=None)
def test_partitions_past_the_limit_are_one_and_no_count_is_lost(sizes, most):
    folded, shown = MetricsState(most, 0), frozenset[Partition]()
    for batch, size in enumerate(itertools.accumulate(sizes)):
        shares = [share(state(n, events=n + batch), first=n) for n in range(size)]
        folded = record_progress(folded, event(offset_of(shares, batch), batch=batch), NOW)
        page = page_of(folded)
        assert shown <= folded.queries["q"].exported[0]
        shown = folded.queries["q"].exported[0]
        assert len(shown) == min(size, most) or len(shown) == most
        named = values(page, "timestream_partition_events_total")
        assert len(named) <= most + 1
        assert sum(named) == sum(each.clock.events for each in shares)
        assert one(page, "timestream_stream_partitions_aggregated") == size - len(shown)
        rest = values(page, "timestream_partition_cti_time_seconds", partition=metrics.OTHERS)
        others = [n for n in range(size) if Partition("trips", n) not in shown]
        assert rest == [(NOON + min(others) * SECOND) / SECOND for _ in others[:1]]
        assert values(page, "timestream_partition_blocking", partition=metrics.OTHERS) == (
            [float(min(others) == 0 and size > 1)] if others else []
        )


def test_idle_partition_among_the_others_does_not_hold_them_back():
    shares = [share(state(9)), share(state(1), idle=True), share(state(5))]
    page = page_after(event(offset_of(shares)), folded=MetricsState(1, 0))
    rest = {"topic": metrics.OTHERS}
    cti = (NOON + 5 * SECOND) / SECOND
    assert one(page, "timestream_partition_cti_time_seconds", **rest) == cti
    assert one(page, "timestream_partition_idle", **rest) == 0


def test_causes_past_the_limit_are_one():
    shares = [share(state(9)), *[share(state(1))] * (metrics.MAX_NAMED + 5)]
    page = page_after(event(offset_of(shares), left=0))
    assert len(values(page, "timestream_stream_finding")) == metrics.MAX_NAMED + 1
    assert values(page, "timestream_stream_finding", partition=metrics.OTHERS) == [1]


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [{"version": 99}, {"partitions": {"trips": {"0": {}}}}])
def test_offset_that_cannot_be_read_costs_the_findings_alone(damage):
    broken = event(offset_of([share(state(1))]))
    source = broken["sources"][0]
    source["endOffset"] = json.dumps({**json.loads(source["endOffset"]), **damage})
    with pytest.raises(Exception, match=r"format version 99|is damaged"):
        record_progress(EMPTY, broken, NOW)
    folded = record_progress(EMPTY, broken, NOW, explains=False)
    assert one(page_of(folded), "timestream_partition_events_total") == 20
