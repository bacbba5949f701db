"""Each diagnosis names its cause and since when, only from the history of a stream."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from timestream.builders import at
from timestream.histories import (
    COUNT,
    DAY,
    MARKS,
    NOON,
    SECOND,
    history,
    share,
    state,
    with_writers,
)

from pyspark_timestream.commands.explanation import explain_stream, format_stream
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.kafka.diagnosis.causes import diagnose, find_warnings
from pyspark_timestream.kafka.diagnosis.diagnoses import FINAL_CTI_ADVICE, Kind, name_partitions
from pyspark_timestream.kafka.offsets.offset import (
    GivenWarning,
    ImportedPartition,
    ImportedTopic,
    MalformedPayloads,
)
from pyspark_timestream.rules.clocks import WriterState


def found(*batches, **more):
    diagnoses = diagnose(history(*batches, **more))
    return [(diagnosis.kind, diagnosis.cause) for diagnosis in diagnoses]


def only(*batches, **more):
    (diagnosis,) = diagnose(history(*batches, **more))
    return diagnosis


# -- an idle partition ----------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [state(None, events=0), state(-500)])
def test_a_partition_without_records_and_without_a_newer_cti_is_named_idle(clock):
    diagnosis = only([share(state(5)), share(clock)])
    assert (diagnosis.kind, diagnosis.cause) == (Kind.IDLE_PARTITION, "topic 'topic' partition 1")
    assert "idleTimeout" in diagnosis.fix
    assert diagnosis.partitions == {at(1)}


def test_an_idle_partition_holds_back_since_the_cti_has_stood_still():
    moments = history(
        [share(state(1), 5), share(state(1), 5)],
        [share(state(7), 5), share(state(3))],
        [share(state(9), 5), share(state(3))],
        [share(state(11)), share(state(3))],
    )
    assert diagnose(moments)[0].since_us == NOON + SECOND


def test_a_partition_that_gets_records_is_not_idle():
    assert found([share(state(5)), share(state(3), 4)]) == [(Kind.CAUGHT_UP, "nobody")]


def test_a_partition_recorded_as_idle_holds_nothing_back():
    idle = share(state(3), idle=True)
    assert found([share(state(5)), idle]) == [(Kind.CAUGHT_UP, "nobody")]
    assert "all partitions are idle" in only([idle]).text


def test_a_quiet_stream_that_follows_the_clock_says_so():
    idle = [share(state(3), idle=True)]
    ahead_us = NOON + 60 * SECOND
    (moment,) = history(idle)
    for advanced_us, says in ((ahead_us, True), (ahead_us - 1, False), (None, False)):
        offset = replace(moment.offset, cti_us=ahead_us, advanced_us=advanced_us)
        (diagnosis,) = diagnose((replace(moment, offset=offset),))
        assert diagnosis.kind is Kind.CAUGHT_UP
        assert ("the CTI follows the wall clock by 'idleAdvance'" in diagnosis.text) == says


def test_a_backlog_names_the_partitions_that_wait_by_max_skew():
    slow, fast = share(state(3), 5), share(state(900), 1, waits=True)
    diagnosis = only([slow, fast], left=70)
    assert diagnosis.kind is Kind.BACKLOG
    assert diagnosis.partitions == {at(0)}
    assert diagnosis.text.endswith(
        "; by 'maxSkew' topic 'topic' partition 1 waits for the slowest partition"
    )
    assert "maxSkew" not in only([slow, share(state(900), 1)], left=70).text


def test_many_idle_partitions_are_one_finding():
    diagnosis = only([share(state(5)), *[share(state(None, events=0))] * 5])
    assert diagnosis.cause.endswith("partition 3 and 2 more")
    assert len(diagnosis.partitions) == 5


# -- a silent writer ------------------------------------------------------------------------------


def test_the_writer_with_the_least_mark_is_named():
    diagnosis = only([share(with_writers(3, a=9, b=3))], settings=MARKS)
    assert diagnosis.kind is Kind.SILENT_WRITER
    assert diagnosis.cause == "writer 'b' of topic 'topic' partition 0"
    assert diagnosis.writers == {(at(0), "b")}
    assert "12:00:03" in diagnosis.text
    assert "writerTimeout" in diagnosis.fix


def test_a_writer_that_is_waited_for_is_named_before_any_mark():
    diagnosis = only([share(with_writers(None, a=9, b=None))], settings=MARKS)
    assert diagnosis.cause.startswith("writer 'b'")
    assert "no mark yet" in diagnosis.text


def test_a_lone_writer_is_silent_where_events_went_on():
    for last, kind in ((8, Kind.SILENT_WRITER), (3, Kind.CAUGHT_UP)):
        assert found([share(with_writers(3, last=last, a=3))], settings=MARKS)[0][0] is kind


def test_a_writer_silent_in_two_partitions_is_one_finding():
    both = [share(with_writers(3, a=9, b=3)), share(with_writers(3, a=9, b=3))]
    assert found(both, settings=MARKS) == [
        (
            Kind.SILENT_WRITER,
            "writer 'b' of topic 'topic' partition 0, topic 'topic' partition 1",
        )
    ]


def test_a_clock_that_moves_has_no_silent_writer():
    moving = [[share(with_writers(n, a=9, b=n), 5)] for n in (2, 3)]
    assert found(*moving, settings=MARKS)[0][0] is Kind.CAUGHT_UP


def test_no_writer_is_waited_for_where_events_make_ctis_too():
    assert found([share(with_writers(3, a=9, b=3))])[0][0] is Kind.CAUGHT_UP


def test_marks_without_a_writer_are_called_so():
    diagnosis = only(
        [share(state(3, writers=(("", WriterState(NOON)),), last_us=NOON + 9))], settings=MARKS
    )
    assert diagnosis.cause.startswith("the marks without a writer of topic")


def test_a_writer_whose_own_clock_is_behind_is_named_with_its_cti_and_the_fix():
    diagnosis = only(
        [share(with_writers(3, a=9, b=3))], settings={"ctiFrequency": "1", "writerFrom": "device"}
    )
    assert (diagnosis.kind, diagnosis.writers) == (Kind.SILENT_WRITER, frozenset([(at(0), "b")]))
    assert "as its last CTI" in diagnosis.text
    assert "correct its clock" in diagnosis.fix


def test_of_a_thousand_writers_without_a_cti_three_are_named_and_the_others_counted():
    waiting = tuple((f"device-{n:04d}", WriterState()) for n in range(1000))
    shares = [share(state(None, writers=waiting))]
    moments = history(shares, settings={"ctiFrequency": "9", "writerFrom": "device"})
    diagnoses = diagnose(moments)
    assert [each.kind for each in diagnoses] == [Kind.SILENT_WRITER]
    assert "999 more writers hold back as well" in diagnoses[0].text
    assert "writer 'device-0002' and 997 more of topic" in diagnoses[0].cause
    assert len(diagnoses[0].writers) == 1000
    assert "no CTI yet" in diagnoses[0].text
    table = format_stream(explain_stream(moments))
    assert "... and 990 more writers" in table
    assert table.count("writer 'device-") < 50


def test_a_partition_whose_writers_all_lag_is_behind_and_none_of_them_is_silent():
    """Ten devices a second apart, and another partition an hour ahead."""
    devices = {f"d{n}": n for n in range(10)}
    ahead = share(with_writers(3600, last=3610, **{name: 3600 + n for name, n in devices.items()}))
    slow = share(with_writers(0, last=9, **devices))
    settings = {"ctiFrequency": "1", "writerFrom": "device"}
    diagnosis = only([ahead, slow], settings=settings)
    assert (diagnosis.kind, diagnosis.partitions) == (Kind.IDLE_PARTITION, {at(1)})
    assert "1 hour ahead" in diagnosis.text
    # One device that is far behind in its partition is silent, in spite of another partition.
    lone = share(with_writers(-7200, last=9, **{**devices, "d0": -7200}))
    diagnosis = only([ahead, lone], settings=settings)
    assert (diagnosis.kind, diagnosis.writers) == (Kind.SILENT_WRITER, {(at(1), "d0")})
    assert "have gone on by 2 hours" in diagnosis.text


def test_an_option_that_is_set_is_not_proposed():
    held = [share(state(5)), share(state(3))]
    assert "set option 'idleTimeout'" in only(held).fix
    given_ = {"idleTimeout": "10 minutes"}
    assert only(held, unpinned=given_).fix.startswith("wait: by option 'idleTimeout'")
    assert "10 minutes" in only(held, unpinned=given_).fix
    bounded = only(held, unpinned=given_, bounded=True).fix
    assert bounded.startswith("run again: a run that finds it caught up")


def test_a_final_cti_that_waits_for_the_end_of_a_run_without_one_says_how_to_end_it():
    held = [share(state(5)), share(state(3))]
    nothing = [share(state(None, events=4, count=4))]
    final = {"finalCti": "true"}
    for partitions, more in (
        (held, {}),
        ([share(state(5))], {}),
        (nothing, {"settings": {}}),
        (nothing, {"settings": {"ctiFrequency": "9"}}),
    ):
        without = only(partitions, **more).fix
        fix = only(partitions, **more, unpinned=final).fix
        assert fix == f"{without}; {FINAL_CTI_ADVICE}"
        assert "end_stream(query)" in fix
        bounded = only(partitions, **more, unpinned=final, bounded=True).fix
        assert "end_stream(query)" not in bounded
    assert only(nothing, settings={}).fix.startswith("set 'ctiFrequency', or another option")


# -- an event far in the future -------------------------------------------------------------------


@pytest.mark.parametrize(
    "clock",
    [
        state(90, dropped=2, last_us=NOON),
        state(90, flagged=2, last_us=NOON),
        state(3 * 86_400),
        state(-365 * 86_400, dropped=2, last_us=NOON - 367 * DAY),
    ],
)
def test_a_cti_far_ahead_of_clock_or_events_is_named(clock):
    diagnosis = only([share(clock)])
    assert (diagnosis.kind, diagnosis.cause) == (Kind.FAR_FUTURE, "topic 'topic' partition 0")
    assert "maxFuture" in diagnosis.fix
    assert "ahead of the" in diagnosis.text


@pytest.mark.parametrize("clock", [state(90), state(50, dropped=2), state(-5, dropped=2)])
def test_a_little_ahead_is_not_far(clock):
    assert found([share(clock)])[0][0] in (Kind.CAUGHT_UP, Kind.LATE_ROWS)


def test_nobody_is_idle_for_being_behind_an_event_far_in_the_future():
    moments = history(
        [share(state(1), 5), share(state(1))],
        [share(state(5 * 86_400), 5), share(state(1))],
        [share(state(5 * 86_400, dropped=3)), share(state(1))],
    )
    (diagnosis,) = diagnose(moments)
    assert (diagnosis.cause, diagnosis.since_us) == ("topic 'topic' partition 0", NOON + SECOND)


# -- a backlog ------------------------------------------------------------------------------------


def test_records_left_after_the_last_batch_are_a_backlog_since_batches_read_records():
    moments = history([share(state(1))], [share(state(1), 5)], [share(state(2), 5)], left=30)
    (diagnosis,) = diagnose(moments)
    assert (diagnosis.kind, diagnosis.cause) == (Kind.BACKLOG, "topic 'topic' partition 0")
    assert diagnosis.since_us == NOON + SECOND
    assert "30 records" in diagnosis.text
    # It is not set, so it cannot be raised.
    assert "maxOffsetsPerTrigger" not in diagnosis.fix
    limited = history([share(state(2), 5)], left=30, unpinned={"maxOffsetsPerTrigger": "5"})
    assert "raise 'maxOffsetsPerTrigger'" in diagnose(limited)[0].fix


def test_a_checkpoint_alone_shows_a_backlog_by_a_last_batch_with_records():
    diagnosis = only([share(state(1), 5)], left=None)
    assert diagnosis.kind is Kind.BACKLOG
    assert "how many are left is not known" in diagnosis.text
    assert only([share(state(1))], left=None).kind is Kind.CAUGHT_UP


def test_a_backlog_elsewhere_is_told_after_what_holds_the_cti_back():
    moments = history([share(state(9), 5), share(state(1))], left=0)
    moments[0].readable_ends[at(0)] += 7
    assert [each.kind for each in diagnose(moments)] == [
        Kind.IDLE_PARTITION,
        Kind.BACKLOG,
    ]


# -- no CTI yet -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "settings", "said"),
    [
        (state(None, events=0), COUNT, "no event has been read yet"),
        (state(None, events=4, count=3), COUNT, "3 events count so far, and 'ctiFrequency' is 10"),
        (
            state(None, base_us=NOON, last_us=NOON + SECOND),
            {"ctiFrequency": "5 seconds"},
            "the last event is 1 second after the first, 'ctiFrequency' is 5 seconds",
        ),
        (state(None, events=4), {"ctiHeader": "now"}, "none of 4 records had a readable header"),
        (state(None, events=4), {}, "no option makes CTIs"),
    ],
)
def test_what_is_missing_for_a_first_cti_is_said(clock, settings, said):
    diagnosis = only([share(clock)], settings=settings)
    assert (diagnosis.kind, diagnosis.cause) == (Kind.NO_CTI, "topic 'topic' partition 0")
    assert said in diagnosis.text


@pytest.mark.parametrize("settings", [COUNT, {"ctiFrequency": "5 seconds"}])
def test_events_without_a_time_that_no_counter_names_are_not_waited_for(settings):
    clock = state(None, events=9, last_us=None)
    settings = {**settings, "startTime": "field:at"}
    diagnosis = only([share(clock)], settings=settings)
    assert diagnosis.kind is Kind.NO_CTI
    assert "none of 9 events has a time that can be read (option 'startTime' is 'field:at')" in (
        diagnosis.text
    )
    assert "'startTime'" in diagnosis.fix
    assert "records arrive" not in diagnosis.fix


def test_a_first_batch_that_has_just_read_is_not_judged_by_the_state_before_it():
    diagnosis = only([share(state(None, events=0), 9)])
    assert diagnosis.kind is Kind.CAUGHT_UP
    assert "the last batch read 9 records" in diagnosis.text


# -- a late import --------------------------------------------------------------------------------


def imported(cti_us):
    return ImportedTopic({at(0, "slow"): ImportedPartition(3, cti_us=cti_us)}, cti_us)


@pytest.mark.parametrize(("clock", "cti_us"), [(None, None), (3, NOON + 3 * SECOND)])
def test_an_import_without_news_is_named(clock, cti_us):
    waiting = share(state(clock, last_us=NOON + 8 * SECOND))
    settings = {"ctiImport": "slow"}
    diagnosis = only([waiting], settings=settings, imported=imported(cti_us))
    assert (diagnosis.kind, diagnosis.cause) == (
        Kind.LATE_IMPORT,
        "the import of topic 'slow' partition 0",
    )
    assert diagnosis.partitions == {at(0)}
    assert "ctiImport" in diagnosis.fix


def test_an_imported_partition_that_is_idle_is_not_the_one_that_is_waited_for():
    idle = ImportedPartition(0, idle=True)
    told_us = NOON + 3 * SECOND
    both = ImportedTopic({**imported(told_us).partitions, at(1, "slow"): idle}, told_us)
    waiting = share(state(3, last_us=NOON + 8 * SECOND))
    diagnosis = only([waiting], settings={"ctiImport": "slow"}, imported=both)
    assert diagnosis.cause == "the import of topic 'slow' partition 0"
    assert "'idleTimeout'" in diagnosis.fix


def test_an_import_that_waits_for_a_backlog_says_until_where():
    waiting = share(state(None), 5, pending=((400, NOON + 9 * SECOND),))
    first, second = diagnose(history([waiting], imported=imported(NOON), left=9))
    assert (first.kind, second.kind) == (Kind.LATE_IMPORT, Kind.BACKLOG)
    assert "12:00:09Z takes effect once offset 400 has been read" in first.text


def test_an_import_that_the_events_have_not_passed_is_not_late():
    there = share(state(3, last_us=NOON))
    assert found([there], imported=imported(NOON + 3 * SECOND))[0][0] is Kind.CAUGHT_UP


def test_an_import_beside_a_clock_of_its_own_is_not_late():
    there = share(state(3, last_us=NOON + 8 * SECOND))
    assert found([there], imported=imported(NOON))[0][0] is Kind.CAUGHT_UP


def test_an_import_topic_without_partitions_names_the_option():
    diagnosis = only([share(state(None))], imported=ImportedTopic())
    assert diagnosis.cause == "option 'ctiImport'"


# -- everything dropped ---------------------------------------------------------------------------


@pytest.mark.parametrize("counter", ["dropped", "flagged"])
def test_a_partition_that_loses_half_its_events_is_named(counter):
    clock = state(9, events=4, last_us=NOON, **{counter: 2})
    diagnosis = only([share(state(9, events=4))], [share(clock)])
    assert (diagnosis.kind, diagnosis.cause) == (
        Kind.EVERYTHING_DROPPED,
        "topic 'topic' partition 0",
    )
    assert diagnosis.since_us == NOON + SECOND
    assert "ctiDelay" in diagnosis.fix
    assert "the last event is 9 seconds before the CTI" in diagnosis.text


def test_a_partition_that_loses_lately_what_it_did_not_before_is_named():
    before, now = state(1, events=1000, dropped=1), state(1, events=1010, dropped=9)
    assert found([share(before)], [share(now)])[0][0] is Kind.EVERYTHING_DROPPED
    assert found([share(now)])[0][0] is Kind.LATE_ROWS


# -- malformed events, improbable times, malformed values -----------------------------------------

AT = {"startTime": "at", "timeUnit": "s", **COUNT}


def test_only_malformed_events_point_at_the_start_time_and_not_at_the_frequency():
    diagnosis = only([share(state(None, events=4, malformed=4))], settings=AT)
    assert (diagnosis.kind, diagnosis.cause) == (Kind.MALFORMED, "topic 'topic' partition 0")
    assert diagnosis.text.startswith("4 of 4 events have no time that can be read")
    assert "option 'startTime' is 'at'" in diagnosis.text
    assert "ctiDelay" not in diagnosis.fix


def test_malformed_events_are_the_headline_also_of_a_stream_that_has_ended():
    broken = share(state(None, events=4, malformed=4))
    first, last = diagnose(history([broken], settings=AT, final=True, end_of_run=True))
    assert (first.kind, last.kind) == (Kind.MALFORMED, Kind.FINAL_CTI)
    assert "nothing is wrong" not in last.cause


def test_one_malformed_event_of_many_is_told_and_its_level_rises_with_each_doubling():
    levels = []
    for count in (1, 2, 3, 4, 7, 8):
        diagnosis = only([share(state(1, events=999, malformed=count))], settings=AT)
        assert diagnosis.kind is Kind.MALFORMED
        assert diagnosis.text.startswith(f"{count} of 999 events have no time that can be read")
        assert diagnosis.fix.startswith("correct the producers")
        levels.append(diagnosis.level)
    assert levels == [1, 2, 2, 3, 3, 4]


def test_tombstones_are_told_apart_from_malformed_events():
    diagnosis = only([share(state(1, events=120, tombstones=47))], settings=AT)
    assert diagnosis.kind is Kind.TOMBSTONES
    assert diagnosis.text.startswith("47 of 120 records have no value")
    assert "become no rows" in diagnosis.text
    assert diagnosis.fix.startswith("nothing to fix")
    both = [share(state(1, events=120, tombstones=47, malformed=1))]
    assert [kind for kind, _ in found(both, settings=AT)] == [Kind.MALFORMED, Kind.TOMBSTONES]
    flagged = only([share(state(1, tombstones=1))], settings={**AT, "violationPolicy": "flag"})
    assert "are passed on" in flagged.text
    assert "violationPolicy" not in flagged.fix


def test_a_topic_of_tombstones_alone_says_why_it_has_no_cti():
    diagnosis = only([share(state(None, events=9, tombstones=9))], settings=AT)
    assert diagnosis.kind is Kind.TOMBSTONES
    assert "there is no CTI in topic 'topic' partition 0" in diagnosis.text


@pytest.mark.parametrize(
    "last", ["1970-01-21T14:52:00Z", "1969-12-31T23:59:59Z", "2100-01-01T00:00:00Z"]
)
def test_an_event_near_1970_or_after_2100_is_told_with_the_unit_that_was_set(last):
    there = share(state(1, last_us=parse_instant(last)))
    diagnosis = diagnose(history([there], settings=AT))[0]
    assert (diagnosis.kind, diagnosis.cause) == (
        Kind.IMPROBABLE_TIMES,
        "topic 'topic' partition 0",
    )
    assert last in diagnosis.text
    assert "option 'timeUnit' is 's'" in diagnosis.text


@pytest.mark.parametrize("last", ["1970-04-01T00:00:00Z", "2099-12-31T23:59:59Z"])
def test_a_time_in_between_is_probable(last):
    there = share(state(1, last_us=parse_instant(last)))
    assert Kind.IMPROBABLE_TIMES not in dict(found([there], settings=AT))


def test_who_asks_for_no_event_times_is_not_told_of_them():
    there = share(state(None, events=4, malformed=4, last_us=0))
    assert {Kind.MALFORMED, Kind.IMPROBABLE_TIMES}.isdisjoint(dict(found([there], settings={})))


def test_records_most_of_which_are_malformed_are_reported_by_reason():
    half = MalformedPayloads.from_reasons({"key type": 1, "framing": 3})
    diagnosis = only(
        [share(state(1, events=4))], [share(state(1, events=8), malformed_payloads=half)]
    )
    assert (diagnosis.kind, diagnosis.cause) == (Kind.MALFORMED_VALUES, "topic 'topic' partition 0")
    assert diagnosis.text == (
        "4 of 8 records have a malformed value or key (reasons: 3 framing, 1 key type)"
    )
    assert diagnosis.since_us == NOON + SECOND


def test_one_malformed_value_of_many_is_told_and_its_level_rises_with_each_doubling():
    levels = []
    for count in (1, 2, 3, 4):
        few = MalformedPayloads.from_reasons({"type": count})
        diagnosis = only([share(state(1, events=999), malformed_payloads=few)])
        assert diagnosis.kind is Kind.MALFORMED_VALUES
        levels.append(diagnosis.level)
    assert levels == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("counts", "option"),
    [
        ({"framing": 5, "type": 4}, "'valueFraming'"),
        ({"syntax": 5, "type": 4}, "'valueFormat'"),
        ({"framing": 1, "type": 8}, ".schema(...)"),
        ({"framing": 4, "key framing": 5}, "'keyFraming'"),
        ({"key syntax": 5, "key type": 4}, "'keyFormat'"),
        ({"a reason of a later version": 9}, Kind.MALFORMED_VALUES.fix),
    ],
)
def test_fix_of_malformed_values_is_that_of_the_most_frequent_reason(counts, option):
    malformed = MalformedPayloads.from_reasons(counts)
    assert option in only([share(state(1, events=9), malformed_payloads=malformed)]).fix


# -- rows dropped as late -------------------------------------------------------------------------


def test_late_rows_are_told_with_counts_by_partition_the_most_first():
    some = [share(state(1, events=99, dropped=count)) for count in (1, 0, 5)]
    diagnosis = only(some)
    assert (diagnosis.kind, diagnosis.partitions) == (Kind.LATE_ROWS, {at(0), at(2)})
    assert diagnosis.text.startswith("6 of 297 events")
    assert diagnosis.text.endswith("5 of topic 'topic' partition 2, 1 of topic 'topic' partition 0")


def test_of_many_partitions_with_late_rows_the_rest_is_summed_up():
    diagnosis = only([share(state(1, events=99, dropped=2))] * 13)
    assert diagnosis.text.count("partition ") == 10
    assert diagnosis.text.endswith(", 6 of 3 more partitions")


def test_events_in_the_future_are_told_with_option_counts_and_fate():
    settings = {"ctiFrequency": "1", "maxFuture": "1 minute", "futurePolicy": "drop"}
    some = [share(state(1, events=99, future=count)) for count in (1, 0, 5)]
    diagnosis = next(
        each
        for each in diagnose(history(some, settings=settings))
        if each.kind is Kind.FUTURE_EVENTS
    )
    assert "6 of 297 events" in diagnosis.text
    assert "'maxFuture' ('1 minute') and were dropped" in diagnosis.text
    assert diagnosis.text.endswith("5 of topic 'topic' partition 2, 1 of topic 'topic' partition 0")
    assert diagnosis.partitions == {at(0), at(2)}
    assert "'futurePolicy'" not in diagnosis.fix


def test_the_level_of_late_rows_rises_with_each_doubling():
    levels = [only([share(state(1, events=99, dropped=n))]).level for n in (1, 2, 3, 4, 7, 8)]
    assert levels == [1, 2, 2, 3, 3, 4]


def test_late_rows_behind_an_event_far_in_the_future_are_told_once():
    assert [kind for kind, _ in found([share(state(90, dropped=2, last_us=NOON))])] == [
        Kind.FAR_FUTURE
    ]


# -- what was warned of ---------------------------------------------------------------------------


def warning(kind, **more):
    return (GivenWarning(kind, "cause", "seen then", **more),)


def test_a_warning_that_no_rule_finds_again_is_told_while_it_holds():
    given_then = warning(Kind.START_AT_END)
    assert found([share(state(1))], warnings=given_then) == [(Kind.START_AT_END, "cause")]
    over = tuple(replace(each, holds=False) for each in given_then)
    assert found([share(state(1))], warnings=over)[0][0] is Kind.CAUGHT_UP


def test_what_was_warned_of_is_told_first_of_what_loses_some_rows():
    shares = [share(state(5, dropped=1, future=1))]
    kinds = [Kind.FUTURE_EVENTS, Kind.LATE_ROWS]
    assert [kind for kind, _ in found(shares)] == kinds
    assert [kind for kind, _ in found(shares, warnings=warning(Kind.LATE_ROWS))] == kinds[::-1]


def test_what_holds_all_results_back_is_told_before_some_lost_rows_that_were_warned_of():
    shares = [share(state(5, dropped=1)), share(state(3))]
    for warned in ((), warning(Kind.LATE_ROWS)):
        kinds = [kind for kind, _ in found(shares, warnings=warned)]
        assert kinds == [Kind.IDLE_PARTITION, Kind.LATE_ROWS]


def test_what_a_warning_turned_out_to_be_is_told_once():
    half = share(state(9, events=4, dropped=2, last_us=NOON))
    assert [kind for kind, _ in found([half], warnings=warning(Kind.LATE_ROWS))] == [
        Kind.EVERYTHING_DROPPED
    ]


def test_what_the_records_said_then_is_told_with_what_holds_now():
    broken = share(state(None, events=4, malformed=4))
    given_then = warning(Kind.MALFORMED, detail="one begins with '13/01'")
    diagnosis = only([broken], settings=AT, warnings=given_then)
    assert "4 of 4 events" in diagnosis.text
    assert diagnosis.full_text == f"{diagnosis.text}; one begins with '13/01'"


# -- what a driver warns of -----------------------------------------------------------------------


def quiet(clock, seconds):
    return share(clock, caught_up_since_us=NOON - seconds * SECOND)


def warned_of(*shares, **more):
    return [each.kind for each in find_warnings(history(shares, **more), NOON)]


@pytest.mark.parametrize("clock", [state(None, events=0), state(-5)])
def test_a_partition_that_has_held_the_cti_for_half_a_minute_is_warned_of(clock):
    assert warned_of(quiet(state(5), 99), quiet(clock, 30)) == [Kind.IDLE_PARTITION]
    assert warned_of(quiet(state(5), 99), quiet(clock, 29)) == []
    assert warned_of(share(state(5)), quiet(clock, 30), left=1) == []


def test_a_quiet_partition_with_too_few_events_for_a_cti_is_warned_of():
    assert warned_of(quiet(state(5), 99), quiet(state(None, events=3), 30)) == [Kind.IDLE_PARTITION]


def test_a_stream_without_ctis_has_no_partition_that_holds_anything_back():
    empty = quiet(state(None, events=0), 99)
    assert warned_of(quiet(state(None), 99), empty, settings={}) == []
    kinds = dict(found([share(state(None)), share(state(None, events=0))], settings={}))
    assert kinds.keys() == {Kind.NO_CTI}


def test_a_quiet_partition_that_waits_for_an_import_is_not_to_blame():
    waits = share(state(-5), caught_up_since_us=NOON - 99 * SECOND, pending=((7, NOON),))
    assert warned_of(quiet(state(5), 99), waits) == []


def test_a_partition_that_stands_where_all_stand_is_not_warned_of():
    assert warned_of(quiet(state(5), 99), quiet(state(5), 99)) == []


def test_a_bounded_run_warns_of_an_empty_partition_when_everything_is_read():
    empty = share(state(None, events=0))
    (diagnosis,) = find_warnings(history([share(state(5)), empty], bounded=True), NOON)
    assert diagnosis.kind is Kind.IDLE_PARTITION
    assert "idleTimeout" not in diagnosis.line
    assert "finalCti" in diagnosis.fix
    assert warned_of(share(state(5)), empty, bounded=True, left=1) == []
    assert warned_of(share(state(5)), share(state(4)), bounded=True) == []


def test_a_bounded_run_is_never_told_to_wait_for_an_idle_partition():
    shares = [share(state(5)), share(state(None, events=0))]
    (diagnosis,) = diagnose(history(shares, bounded=True))
    assert diagnosis.kind is Kind.IDLE_PARTITION
    assert "idleTimeout" not in diagnosis.fix


@pytest.mark.parametrize(
    ("clock", "kind"),
    [
        (state(None, events=4, malformed=4), Kind.MALFORMED),
        (state(1, last_us=0), Kind.IMPROBABLE_TIMES),
        (state(1, dropped=1), Kind.LATE_ROWS),
    ],
)
def test_a_driver_warns_of_every_mistake_that_counters_show(clock, kind):
    assert warned_of(share(clock), settings=AT) == [kind]


# -- the end, and nothing -------------------------------------------------------------------------


def test_a_stream_that_ended_well_has_nothing_wrong():
    diagnosis = only([share(state(1))], [share(state(None))], final=True, end_of_run=True)
    assert (diagnosis.kind, diagnosis.cause) == (Kind.ENDED, "nothing is wrong")
    assert diagnosis.since_us == NOON


def test_a_final_cti_that_dropped_rows_or_has_records_behind_it_is_no_good_end():
    late = diagnose(history([share(state(1, dropped=1))], final=True, end_of_run=True))
    assert [each.kind for each in late] == [Kind.LATE_ROWS, Kind.FINAL_CTI]
    behind_it = diagnose(history([share(state(1))], final=True, end_of_run=True, left=3))
    assert [each.kind for each in behind_it] == [Kind.FINAL_CTI]
    assert "finalCti" in behind_it[0].fix
    (refused,) = diagnose(history([share(state(1))], final=True, end_of_run=True), failed=True)
    assert refused.kind is Kind.FINAL_CTI


def test_a_bounded_run_that_read_everything_is_caught_up():
    diagnosis = only([share(state(1))], end_of_run=True)
    assert diagnosis.kind is Kind.CAUGHT_UP
    assert "bounded run" in diagnosis.text


def test_a_stream_without_partitions_says_so():
    assert "no partitions" in only([]).text


def test_names_are_few():
    assert name_partitions([at(1)]) == "topic 'topic' partition 1"


# -- for any history ------------------------------------------------------------------------------

SECONDS = st.none() | st.integers(-9, 9)
CLOCKS = st.builds(
    lambda second, last, events, lost, marks: (
        with_writers(second, last, **{name: marks[name] for name in marks})
        if marks
        else state(second, events=events, dropped=min(lost, events), last_us=NOON + last * SECOND)
    ),
    SECONDS,
    st.integers(-9, 9),
    st.integers(0, 5),
    st.integers(0, 5),
    st.dictionaries(st.sampled_from("ab"), SECONDS, max_size=2),
)
SHARES = st.builds(
    lambda clock, size, idle: share(clock, 0 if idle else size, idle=idle),
    CLOCKS,
    st.sampled_from([0, 0, 4]),
    st.booleans(),
)


@examples(max_examples=200)
@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(SHARES, min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([COUNT, MARKS]),
)
def test_something_is_found_in_any_history_and_who_holds_the_cti_back_is_at_the_minimum(
    batches, left, given_settings
):
    moments = history(*batches, left=left, settings=given_settings)
    diagnoses = diagnose(moments)
    assert diagnoses
    assert len({(diagnosis.kind, diagnosis.cause) for diagnosis in diagnoses}) == len(diagnoses)
    clocks = {at(n): s.clock.cti_us for n, s in enumerate(batches[-1]) if not s.idle}
    for diagnosis in diagnoses:
        assert diagnosis.text
        assert diagnosis.since_us is None or NOON <= diagnosis.since_us <= moments[-1].planned_us
        if diagnosis.kind in (Kind.IDLE_PARTITION, Kind.SILENT_WRITER, Kind.NO_CTI):
            held = {clocks[part] for part in diagnosis.partitions}
            assert held == ({None} if None in clocks.values() else {min(clocks.values())})
