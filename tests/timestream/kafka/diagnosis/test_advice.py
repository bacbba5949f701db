"""Every advice on late rows is taken, in the stream that it was given for, and helps."""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest
from timestream.builders import at, block, options

from pyspark_timestream.core.declarations import option_specs
from pyspark_timestream.core.instants import format_instant, parse_instant
from pyspark_timestream.kafka.decode.payload import read_payload
from pyspark_timestream.kafka.diagnosis.causes import diagnose, find_warnings
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind
from pyspark_timestream.kafka.diagnosis.history import BatchRecord
from pyspark_timestream.kafka.diagnosis.samples import describe_malformed
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_timestream.rules.step import step

NOON = parse_instant("2026-11-26T12:00:00Z")
SECOND, MINUTE, DAY = 1_000_000, 60_000_000, 86_400_000_000
GIVEN = {"valueFormat": "json", "startTime": "at", "ctiFrequency": "1", "ctiDelay": "5 minutes"}


class Sent(NamedTuple):
    """An event: its device, its own time, the timestamp of its record."""

    device: str
    time_us: int
    stamp_us: int


def honest(count=120):
    return [Sent("good", NOON + n * MINUTE, NOON + n * MINUTE + SECOND) for n in range(count)]


def one_ahead(by_us, stamped=False):
    """120 honest events a minute apart, after the 30th one that is ahead, as its record may be."""
    some = honest()
    time_us = NOON + 30 * MINUTE + by_us
    some.insert(31, Sent("bad", time_us, time_us if stamped else NOON + 30 * MINUTE))
    return some


def device_ahead(by_us, stamped=False, every=5):
    """As honest, with a device that is ahead in every fifth event."""
    some = []
    for n, each in enumerate(honest()):
        some.append(each)
        if n % every == 3:
            time_us = each.time_us + by_us
            some.append(Sent("bad", time_us, time_us if stamped else each.stamp_us))
    return some


def disordered():
    """Every third event is seven minutes late."""
    return [
        each._replace(time_us=each.time_us - 7 * MINUTE * (n % 3 == 2))
        for n, each in enumerate(honest())
    ]


def run(sent: Iterable[Sent], **more: str) -> tuple[PartitionClock, int, BatchRecord]:
    """The end state, how many honest events were kept unflagged, and what an offset knows."""
    given, some = options(**{**GIVEN, **more}), list(sent)
    values = [
        json.dumps({"device": each.device, "at": format_instant(each.time_us)}).encode()
        for each in some
    ]
    stamps = [each.stamp_us // 1000 for each in some]
    payload = read_payload(given, None, block(*values, timestamps_ms=stamps))
    clock, result = step(given.rules, PartitionClock(), payload.events, payload.marks)
    kept = result.keep & (result.violation == 0)
    is_good = np.array([each.device == "good" for each in some])
    share = PartitionOffset(len(some), len(some), clock)
    offset = StreamOffset("me", given.settings(), 1, {at(0): share}, cti_us=clock.cti_us)
    record = BatchRecord(NOON + 120 * MINUTE, offset, {at(0): len(some)})
    return clock, int(np.count_nonzero(kept & is_good)), record


def take(fix: str) -> dict[str, str]:
    """The options that an advice names with values, and the writers of this stream."""
    found = dict(re.findall(r"'(\w+)' = '([^']+)'", fix))
    found.pop("violationPolicy", None)
    return found


LATER = 300 * DAY


@pytest.mark.parametrize("later_us", [0, LATER], ids=["live", "an archive"])
@pytest.mark.parametrize(
    ("sent", "more"),
    [
        (one_ahead(DAY), {}),
        (one_ahead(DAY), {"violationPolicy": "flag"}),
        (one_ahead(365 * DAY), {}),
        (device_ahead(DAY), {}),
        (device_ahead(3_600 * SECOND), {}),
        (device_ahead(DAY), {"ctiFrequency": "30 seconds"}),
        (device_ahead(59 * MINUTE), {"maxFuture": "1 hour"}),
        (one_ahead(59 * MINUTE), {"maxFuture": "1 hour"}),
        (one_ahead(DAY), {"ctiDelay": "0 seconds"}),
    ],
)
def test_a_clock_ahead_of_its_records_is_named_and_the_advice_keeps_every_honest_event(
    sent, more, later_us
):
    _, before, record = run(sent, **more)
    assert before < 120
    record = record.__class__(record.planned_us + later_us, record.offset, record.readable_ends)
    for diagnosis in (diagnose((record,))[0], find_warnings((record,), record.planned_us)[0]):
        assert diagnosis.kind is Kind.FAR_FUTURE
        assert "ctiDelay" not in take(diagnosis.fix)
        _, kept, _ = run(sent, **{**more, **take(diagnosis.fix)})
        assert kept == 120


@pytest.mark.parametrize("later_us", [0, LATER], ids=["live", "an archive"])
@pytest.mark.parametrize(
    ("make", "by_us"), [(one_ahead, DAY), (device_ahead, DAY), (device_ahead, 3 * 3600 * SECOND)]
)
def test_a_clock_that_stamps_its_records_too_is_named_with_the_two_ways_out(make, by_us, later_us):
    sent = make(by_us, stamped=True)
    _, before, record = run(sent)
    assert before < 120
    record = record.__class__(record.planned_us + later_us, record.offset, record.readable_ends)
    (diagnosis,) = diagnose((record,))
    assert diagnosis.kind is Kind.FAR_FUTURE
    assert "'LogAppendTime'" in diagnosis.fix
    assert "'writerFrom'" in diagnosis.fix
    ways = take(diagnosis.fix)
    # maxFuture cannot help: the record is as wrong.
    assert run(sent, **ways)[1] == before
    assert run(make(by_us), **ways)[1] == 120
    assert run(sent, writerFrom="field:device")[1] == 120


@pytest.mark.parametrize("limit", ["5 minutes", "1 hour", "23 hours"])
@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_an_event_a_day_ahead_costs_no_honest_event_under_any_max_future(limit, policy):
    clock, kept, record = run(one_ahead(DAY), maxFuture=limit, futurePolicy=policy)
    assert (kept, clock.future, clock.dropped) == (120, 1, 0)
    (diagnosis,) = diagnose((record,))
    assert diagnosis.kind is Kind.FUTURE_EVENTS
    assert ("'futurePolicy'" in diagnosis.fix) == (policy == "keep")


def test_disorder_is_named_so_and_the_proposed_delay_keeps_every_event():
    _, before, record = run(disordered())
    assert before == 80
    (diagnosis,) = diagnose((record,))
    assert diagnosis.kind is Kind.LATE_ROWS
    assert take(diagnosis.fix) == {"ctiDelay": "6 minutes"}
    assert run(disordered(), ctiDelay="6 minutes")[1] == 120
    assert run(disordered(), ctiDelay="359 seconds")[1] < 120


def test_everything_dropped_by_disorder_names_the_delay_that_keeps_every_event():
    sent = [
        each._replace(time_us=each.time_us - 9 * MINUTE * (n % 4 > 0))
        for n, each in enumerate(honest())
    ]
    _, before, record = run(sent)
    (diagnosis,) = diagnose((record,))
    assert (diagnosis.kind, before < 60) == (Kind.EVERYTHING_DROPPED, True)
    assert run(sent, **take(diagnosis.fix))[1] == 120


def test_a_device_that_uploads_its_day_later_is_no_clock_ahead():
    uploaded = [Sent("good", NOON - DAY + n * MINUTE, NOON + 120 * MINUTE) for n in range(40)]
    sent = [*honest(), *uploaded, *[Sent("good", NOON + 121 * MINUTE, NOON + 121 * MINUTE)]]
    _, kept, record = run(sent)
    (diagnosis,) = diagnose((record,))
    assert (diagnosis.kind, kept) == (Kind.LATE_ROWS, 121)
    assert run(sent, **take(diagnosis.fix))[1] == len(sent)


def test_a_partition_of_future_events_alone_is_told_to_have_no_cti():
    sent = [each._replace(time_us=each.time_us + DAY) for each in honest()]
    _, _, record = run(sent, maxFuture="1 hour")
    diagnosis = diagnose((record,))[0]
    assert diagnosis.kind is Kind.FUTURE_EVENTS
    assert "there is no CTI in topic 'topic' partition 0" in diagnosis.text
    assert "raise 'maxFuture'" in diagnosis.fix
    clock, kept, _ = run(sent, maxFuture="25 hours")
    assert (kept, clock.cti_us is None) == (120, False)


def test_the_way_out_of_marks_ahead_does_not_name_options_of_generated_ctis():
    clock = PartitionClock(cti_us=NOON + 9 * DAY, dropped=3, events=9, last_us=NOON)
    shares = {at(0): PartitionOffset(9, 9, clock)}
    offset = StreamOffset("me", {"ctiHeader": "cti"}, 1, shares, cti_us=NOON)
    (diagnosis,) = diagnose((BatchRecord(NOON, offset, {at(0): 9}),))
    assert diagnosis.kind is Kind.FAR_FUTURE
    assert "maxFuture" not in diagnosis.fix


# -- times in several units -----------------------------------------------------------------------

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ORDERS = {
    "alternating": [True, False] * 30,
    "the last is right": [False, True] * 30,
    "wrong first": [False] * 29 + [True] * 31,
    "wrong last": [True] * 31 + [False] * 29,
    "one wrong": [True] * 20 + [False] + [True] * 39,
}


def numbers(order, unit, other):
    """A minute's steps as numbers, in `unit` where the order says so, else in `other`."""
    return [
        json.dumps({"at": (NOON // SECOND + 60 * n) * UNITS[unit if right else other]}).encode()
        for n, right in enumerate(order)
    ]


def read(values, **more):
    given = options(**{**GIVEN, **more})
    payload = read_payload(
        given, None, block(*values, timestamps_ms=[NOON // 1000 + 3_600_000] * len(values))
    )
    clock, result = step(given.rules, PartitionClock(), payload.events, payload.marks)
    share = PartitionOffset(len(values), len(values), clock)
    offset = StreamOffset("me", given.settings(), 1, {at(0): share}, cti_us=clock.cti_us)
    record = BatchRecord(NOON + 120 * MINUTE, offset, {at(0): len(values)})
    return clock, int(np.count_nonzero(result.keep)), record


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize(("unit", "other"), [("ms", "s"), ("us", "ms"), ("us", "s"), ("ns", "s")])
def test_a_smaller_unit_among_the_right_one_is_named_whichever_event_has_it(order, unit, other):
    wrong = order.count(False)
    clock, kept, record = read(numbers(order, unit, other), timeUnit=unit)
    assert clock.dropped + kept == 60
    for found in (diagnose((record,)), find_warnings((record,), record.planned_us)):
        assert [each.kind for each in found] == [Kind.IMPROBABLE_TIMES]
        assert f"{wrong} of 60 events are of early 1970" in found[0].text
        assert "ctiDelay" not in found[0].fix
    # The advice: one unit.
    clock, kept, _ = read(numbers([True] * 60, unit, other), timeUnit=unit)
    assert (kept, clock.clues.early) == (60, 0)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize(("unit", "other"), [("s", "ms"), ("ms", "us"), ("s", "ns")])
def test_a_larger_unit_among_the_right_one_is_malformed_and_its_unit_named(order, unit, other):
    values = numbers(order, unit, other)
    clock, _, record = read(values, timeUnit=unit)
    assert clock.malformed == order.count(False)
    assert [each.kind for each in diagnose((record,))] == [Kind.MALFORMED]
    given = options(**{**GIVEN, "timeUnit": unit})
    assert f"'timeUnit' = '{other}' would fit" in describe_malformed(given, None, block(*values))


@pytest.mark.parametrize(
    "at_ms", [0, -1, -1000, 12_345], ids=["0", "-1 ms", "-1 s", "after a boot"]
)
def test_times_of_clocks_that_were_never_set_are_named_among_good_ones(at_ms):
    values = [*numbers([True] * 30, "ms", "s"), json.dumps({"at": at_ms}).encode()]
    values += numbers([True] * 60, "ms", "s")[30:]
    _, kept, record = read(values)
    (diagnosis,) = diagnose((record,))
    assert (diagnosis.kind, kept) == (Kind.IMPROBABLE_TIMES, 60)
    assert "1 of 61 events are of early 1970" in diagnosis.text
    assert "clocks that were never set" in diagnosis.text


@pytest.mark.parametrize("first", ["1950-01-01T00:00:00Z", "1970-01-01T00:00:00Z"])
def test_an_archive_that_goes_through_1970_has_no_other_unit(first):
    day, start = DAY // 1000, parse_instant(first) // 1000
    values = [json.dumps({"at": start + day * n}).encode() for n in range(0, 20_000, 5)]
    clock, _, record = read(values)
    assert clock.clues.early > 0
    assert [each.kind for each in diagnose((record,))] == [Kind.CAUGHT_UP]


def test_late_rows_beside_another_unit_are_told_too():
    values = numbers(ORDERS["alternating"], "ms", "s")
    late = json.dumps({"at": (NOON - 120 * MINUTE) // 1000}).encode()
    _, _, record = read([*values, *[late] * 9])
    kinds = [each.kind for each in diagnose((record,))]
    assert kinds == [Kind.IMPROBABLE_TIMES, Kind.LATE_ROWS]


NEED_A_NEW_CHECKPOINT = {Kind.MALFORMED, Kind.TOMBSTONES, Kind.FAR_FUTURE}
"""The times of these are elsewhere, or a CTI is too great: no change of a running clock helps."""


@pytest.mark.parametrize("kind", sorted(set(Kind) - NEED_A_NEW_CHECKPOINT))
def test_an_advice_to_change_a_running_clock_names_the_option_for_it(kind: Kind) -> None:
    changes = {spec.name for spec in option_specs(KafkaOptions).values() if spec.allowed_change}
    named = changes & set(re.findall(r"'(\w+)'", kind.fix))
    assert not named or "new checkpoint" not in kind.fix or "changeFrom" in kind.fix
