"""A running clock is changed: each batch is read by the options of its offset (8.10)."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timestream.builders import at
from timestream.changing import COLUMNS, Changing, Logs

from pyspark_timestream.errors import CheckpointMismatch, CheckpointUnreadable

SECOND = 1_000_000

clocks = st.fixed_dictionaries(
    {
        "ctiFrequency": st.sampled_from(["1", "2", "3", "2 seconds", "5 seconds"]),
        "ctiDelay": st.sampled_from(["0 s", "2 s", "4 s", "-1 s"]),
        "violationPolicy": st.sampled_from(["drop", "flag"]),
    },
    optional={"maxFuture": st.sampled_from(["1 s", "6 s"])},
)
records = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8)


def oracle(segments):
    """Rows and CTIs of one partition, a record at a time, in seconds."""
    out, cti, count, base, frequency = [], None, 0, None, None
    for asked, times in segments:
        every, _, is_span = asked["ctiFrequency"].partition(" ")
        if asked["ctiFrequency"] != frequency:
            count, base, frequency = 0, None, asked["ctiFrequency"]
        for time, stamp in times:
            late = cti is not None and time < cti
            far = "maxFuture" in asked and time > stamp + int(asked["maxFuture"][0])
            flag = asked["violationPolicy"] == "flag"
            if flag or not late:
                out.append(("late" if late else "future" if far and flag else None, time))
            if not far:
                count, base = count + 1, time if base is None else base
                if time - base >= int(every) if is_span else count == int(every):
                    count, base, due = 0, time, time - int(asked["ctiDelay"].split()[0])
                    if cti is None or due > cti:
                        cti = due
                        out.append(cti)
    return out


def put(logs, topic, times):
    logs.records[at(0, topic)] += [(stamp * 1000, {"t": str(time * 1000)}) for time, stamp in times]


def told(logs, rows, ctis):
    """Rows as the oracle has them; `ctis`: with those CTI rows that rise."""
    out, last = [], None
    for row in rows:
        if isinstance(row, tuple):
            topic, number, offset, violation = row
            out.append((violation, int(logs.records[at(number, topic)][offset][1]["t"]) // 1000))
        elif ctis and (last is None or row > last):
            last = row
            out.append(row // SECOND)
    return out


@given(st.lists(st.tuples(clocks, records), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_with_changes_between_gives_the_rows_of_the_oracle_and_replays(segments, data):
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", **segments[0][0])
    for place, (asked, times) in enumerate(segments):
        if place:
            query.restart(startTime="header:t", **asked)
            query.batch(1)
        put(logs, "topic", times)
        while query.batch(data.draw(st.integers(1, 5))):
            if data.draw(st.booleans()):
                query.restart(startTime="header:t", **asked)
    single = [row for rows in query.rows for row in rows]
    assert told(logs, single, ctis=True) == oracle(segments)
    # Spark runs each batch again with the last options, and any batches as one.
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        joined = [row for rows in query.rows[first:last] for row in rows]
        assert told(logs, query.run(first, last), False) == told(logs, joined, False)


names = st.sampled_from(["a", "b", "c"])
lists = st.lists(names, unique=True, max_size=2)
marked = st.lists(st.tuples(names, st.integers(0, 9), st.integers(0, 9)), max_size=6)


def marks_oracle(segments):
    """Late or not, by place, for records (writer, mark, stamp), and the CTI at the end."""
    late, live, heard, clock, cti, listed, before = [], {}, {}, None, None, [], None

    def least():
        known = [-1 if cti is None else cti, min(live.values())] if all_marked() else [cti]
        return max(each for each in known if each is not None) if known != [None] else None

    def all_marked():
        return live and None not in live.values()

    for writers, timeout, records in segments:
        gone = {name for name in listed if name not in writers and live.get(name, 0) is None}
        live = {name: live[name] for name in live if name not in gone}
        live |= {name: live.get(name) for name in writers if name not in listed}
        if (timeout is None) != (before is None):
            clock, heard = None, {}
        cti = least() if gone else cti
        listed, before = writers, timeout
        for writer, mark, stamp in records:
            clock = stamp if clock is None else max(clock, stamp)
            if timeout is not None:
                heard |= {name: clock for name in live if name not in heard}
                live = {name: live[name] for name in live if clock - heard[name] <= timeout}
                heard = {name: heard[name] for name in live}
                cti = least()
            late.append(cti is not None and stamp < cti)
            live[writer] = max(mark, -1 if live.get(writer) is None else live[writer])
            heard[writer], cti = clock, least()
    return late, cti


@given(
    st.lists(st.tuples(lists, st.none() | st.integers(1, 4), marked), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_with_changes_of_writers_gives_what_the_oracle_gives_and_replays(segments, data):
    logs, query = Logs("topic"), None
    for writers, timeout, records in segments:
        asked = {"ctiHeader": "c", "violationPolicy": "flag"}
        asked |= {"writers": ",".join(writers)} if writers else {}
        asked |= {} if timeout is None else {"writerTimeout": f"{timeout} s"}
        if query is None:
            query = Changing(logs, **asked)
        query.restart(**asked)
        query.batch(1)
        logs.records[at(0)] += [
            (stamp * 1000, {"c": str(mark * 1000), "c-writer": writer})
            for writer, mark, stamp in records
        ]
        while query.batch(data.draw(st.integers(1, 5))):
            pass
    query.drain()
    rows = [row for rows in query.rows for row in rows if isinstance(row, tuple)]
    late, cti = marks_oracle(segments)
    assert [violation == "late" for *_, violation in rows] == late
    told_us = query.offset().partitions[at(0)].state.cti_us
    assert told_us == (None if cti is None else cti * SECOND)
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        joined = [row for rows in query.rows[first:last] for row in rows if isinstance(row, tuple)]
        assert [row for row in query.run(first, last) if isinstance(row, tuple)] == joined


def test_a_smaller_delay_raises_the_clock_and_a_larger_one_holds_it_until_events_pass():
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", ctiDelay="5 s")
    for delay, time, cti in (("5 s", 10, 5), ("1 s", 10, 9), ("5 s", 11, 9), ("5 s", 15, 10)):
        query.restart(startTime="header:t", ctiFrequency="1", ctiDelay=delay)
        put(logs, "topic", [(time, time)])
        query.drain()
        assert query.offset().partitions[at(0)].state.cti_us == cti * SECOND
    assert [
        (change.cti_us, dict(change.old), dict(change.new)) for change in query.offset().changes
    ] == [
        (5 * SECOND, {"ctiDelay": "5 seconds"}, {"ctiDelay": "1 second"}),
        (9 * SECOND, {"ctiDelay": "1 second"}, {"ctiDelay": "5 seconds"}),
    ]


def test_the_next_step_of_the_refusal_is_changefrom_and_taking_it_changes_the_clock():
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", ctiDelay="5 s", violationPolicy="flag")
    query.batch()
    query.restart(ctiFrequency="1", ctiDelay="7 s", violationPolicy="flag", changeFrom=None)
    with pytest.raises(CheckpointMismatch) as refused:
        query.batch()
    assert str(refused.value) == (
        "option 'ctiDelay' was '5 seconds' when this checkpoint was made and is '7 seconds' now; "
        "it defines the stream's time or rows, so set it back to '5 seconds', or set option "
        "'changeFrom' to 'now' to change it from here on, or start with a new checkpoint"
    )
    query.restart(ctiFrequency="1", ctiDelay="7 s", violationPolicy="flag", changeFrom="now")
    assert query.batch()
    assert query.offset().settings["ctiDelay"] == "7 seconds"


def test_changefrom_without_a_difference_does_nothing():
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", idleTimeout="5 s")
    query.batch()
    query.restart(ctiFrequency="1", idleTimeout="5 s")
    query.batch()
    assert query.offset().changes == ()
    assert "changes" not in query.offset().to_json()


def test_the_idle_timeout_changes_without_changefrom_and_is_recorded():
    query = Changing(
        Logs("topic"), ctiFrequency="1", idleTimeout="5 s", violationPolicy="flag", changeFrom=None
    )
    query.batch()
    query.restart(ctiFrequency="1", idleTimeout="9 s", violationPolicy="flag", changeFrom=None)
    query.batch()
    (change,) = query.offset().changes
    assert change.describe() == "'idleTimeout' from '5 seconds' to '9 seconds'"
    assert "idleTimeout" not in query.offset().settings


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({"timeUnit": "ms"}, {"timeUnit": "s"}, "'timeUnit' .* 'changeFrom' does not change it"),
        ({}, {"startTime": "header:t"}, "'startTime' .* 'changeFrom' does not change it"),
        ({}, {"eventShape": "interval", "endTime": "header:t"}, "'changeFrom' does not change it"),
        ({}, {"writerFrom": "header:w"}, "'writerFrom' .* 'changeFrom' does not change it"),
        ({"ctiHeader": "c"}, {"ctiHeader": "d"}, "only adds it"),
        ({"ctiHeader": "c"}, {}, "leaves no source of CTIs out"),
        ({"ctiHeader": "c"}, {"ctiHeader": "c", "ctiFrequency": None}, "leaves no source of CTIs"),
        ({"ctiFrequency": None, "finalCti": "true"}, {"ctiHeader": "c"}, "only beside another"),
        ({"subscribe": "topic,more"}, {"subscribe": "topic"}, "'subscribe' .* only adds topics"),
        ({}, {"subscribe": None, "subscribePattern": "topic"}, "only adds topics|does not change"),
        ({"endingOffsets": "latest"}, {"endingOffsets": "latest", "subscribe": "topic,more"},
         "adds no topics to a stream with an end"),
    ],
)  # fmt: skip
def test_what_never_changes_is_refused_by_name_with_the_way_to_go(first, then, said):
    query = Changing(Logs("topic", "more"), **{"ctiFrequency": "1", **first})
    query.batch()
    query.restart(**{"ctiFrequency": "1", **then})
    with pytest.raises(CheckpointMismatch, match=said) as refused:
        query.batch()
    assert "since 'changeFrom'" in str(refused.value)
    assert str(refused.value).endswith("or start with a new checkpoint")


def test_an_added_topic_is_read_from_its_start_and_raised_to_the_stream():
    logs = Logs("topic", "more")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", violationPolicy="flag")
    put(logs, "topic", [(1, 1), (9, 9)])
    put(logs, "more", [(3, 3), (12, 12)])
    query.drain()
    query.restart(startTime="header:t", ctiFrequency="1", violationPolicy="flag",
                  subscribe="topic,more")  # fmt: skip
    query.drain()
    assert [row for rows in query.rows for row in rows if isinstance(row, tuple)] == [
        ("topic", 0, 0, None), ("topic", 0, 1, None), ("more", 0, 0, "late"), ("more", 0, 1, None),
    ]  # fmt: skip
    assert query.offset().changes[-1].new == {"subscribe": "more,topic"}
    joined = query.run(0, -1)
    assert ("more", 0, 0, "late") in joined


def test_a_source_that_is_added_counts_from_the_change_on():
    logs = Logs("topic")
    query = Changing(logs, startTime="header:t", ctiFrequency="1", ctiDelay="5 s")
    logs.records[at(0)] += [(1000, {"t": "1000", "c": "90000"}), (2000, {"t": "2000"})]
    query.drain()
    query.restart(startTime="header:t", ctiFrequency="1", ctiDelay="5 s", ctiHeader="c")
    query.drain()
    assert query.offset().cti_us == -3 * SECOND
    logs.records[at(0)] += [(3000, {"t": "3000", "c": "3000"})]
    query.drain()
    assert query.offset().cti_us == 3 * SECOND
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]


def test_a_replayed_batch_that_flags_needs_the_column_violation(monkeypatch):
    logs = Logs("topic")
    query = Changing(logs, ctiFrequency="1", violationPolicy="flag")
    query.batch()
    columns = [each for each in COLUMNS if each[0] != "violation"]
    monkeypatch.setattr("timestream.changing.COLUMNS", columns)
    query.restart(ctiFrequency="1", violationPolicy="drop")
    with pytest.raises(CheckpointMismatch, match="start once more with that policy and schema"):
        query.run(0, 1)


def test_many_changes_keep_the_offset_small_and_the_last_ones_are_there():
    query = Changing(Logs("topic"), ctiFrequency="1", ctiDelay="0 s")
    for delay in range(1, 40):
        query.restart(ctiFrequency="1", ctiDelay=f"{delay} s")
        query.batch()
        query.reader.commit(json.loads(query.offsets[-1]))
        query.logs.records[at(0)].append((delay * 1000, {}))
        query.batch()
    assert [change.new["ctiDelay"] for change in query.offset().changes][-2:] == [
        "38 seconds", "39 seconds"
    ]  # fmt: skip
    assert len(query.offset().changes) == 16
    assert len(query.offset().partitions[at(0)].change_points) <= 1


@pytest.mark.parametrize("text", ["garbage", 7, None])
def test_a_checkpoint_whose_settings_are_damaged_is_refused_by_name(text):
    query = Changing(Logs("topic"), ctiFrequency="1", ctiDelay="5 s")
    query.batch()
    offset = json.loads(query.offsets[-1])
    offset["settings"]["ctiDelay"] = text
    query.offsets[-1] = json.dumps(offset)
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    with pytest.raises((CheckpointMismatch, CheckpointUnreadable), match=r"damaged|settings"):
        query.batch()


def test_a_checkpoint_whose_changes_are_damaged_is_refused_by_name():
    query = Changing(Logs("topic"), ctiFrequency="1", ctiDelay="5 s")
    query.batch()
    query.restart(ctiFrequency="1", ctiDelay="7 s")
    query.batch()
    for changes in ([{"number": 1}], [{"number": "1", "cti": None, "from": {}, "to": {}}], "no"):
        offset = json.loads(query.offsets[-1])
        offset["changes"] = changes
        query.offsets[-1] = json.dumps(offset)
        query.restart(ctiFrequency="1", ctiDelay="7 s")
        with pytest.raises(CheckpointUnreadable):
            query.batch()
