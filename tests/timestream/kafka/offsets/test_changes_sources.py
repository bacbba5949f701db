"""Sources of CTIs and topics come and go while a clock runs (8.10)."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timestream.builders import at
from timestream.changing import SECOND, Changing, Logs, judge_marks, put

POLICY = {"startTime": "header:t", "violationPolicy": "flag"}
SOURCES = {
    "frequency": {"ctiFrequency": "1", "ctiDelay": "2 s"},
    "header": {"ctiHeader": "c"},
    "import": {"ctiImport": json.dumps({"topic": "fast", "frequency": 1, "startTime": "header:t"})},
}


def ask(sources):
    """Options with these sources of CTIs, and none of the others."""
    return (
        POLICY
        | {"ctiFrequency": None}
        | {name: text for source in sources for name, text in SOURCES[source].items()}
    )


def only_rows(batches):
    return [row for rows in batches for row in rows if isinstance(row, tuple)]


def check_ctis(query):
    """The stream's CTI never goes back."""
    known = [query.offset(place).cti_us for place in range(1, len(query.offsets))]
    known = known[sum(cti is None for cti in known) :]
    assert None not in known
    assert known == sorted(known)


def replay(query, data):
    """Every batch comes again with its rows, and joined ones with the rows of data."""
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        assert only_rows([query.run(first, last)]) == only_rows(query.rows[first:last])


def judge_sources(segments):
    """Violation of each record (time, mark), by sources `frequency` and `header`; the last CTI."""
    found, cti, marked = [], None, None
    for sources, records in segments:
        marked = marked if "header" in sources else None
        for time, mark in records:
            found.append("late" if cti is not None and time < cti else None)
            marked = max(mark, marked or 0) if "header" in sources else None
            generated = [time - 2] if "frequency" in sources else []
            known = [each for each in (cti, marked, *generated) if each is not None]
            cti = max(known, default=None)
    return found, cti


some = st.sets(st.sampled_from(["frequency", "header"]), min_size=1)
timed = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6)


@given(st.lists(st.tuples(some, timed), min_size=1, max_size=5), st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_with_sources_that_come_and_go_gives_the_rows_of_the_oracle_and_replays(
    segments, data
):
    logs, query = Logs("topic"), None
    for sources, records in segments:
        query = query or Changing(logs, **ask(sources))
        query.restart(**ask(sources))
        query.batch(1)
        logs.records[at(0)] += [
            (1000, {"t": str(time * 1000), "c": str(mark * 1000)}) for time, mark in records
        ]
        while query.batch(data.draw(st.integers(1, 4))):
            if data.draw(st.booleans()):
                query.restart(**ask(sources))
    query.drain()
    found, cti = judge_sources(segments)
    assert [violation for *_, violation in only_rows(query.rows)] == found
    cti_us = query.offset().partitions[at(0)].clock.cti_us
    assert cti_us == (None if cti is None else cti * SECOND)
    replay(query, data)


any_of_three = st.sets(st.sampled_from(list(SOURCES)), min_size=1)
mixed = st.lists(
    st.tuples(st.sampled_from(["topic", "fast"]), st.integers(0, 12), st.integers(0, 12)),
    max_size=6,
)


@given(st.lists(st.tuples(any_of_three, mixed), min_size=2, max_size=5), st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_import_that_comes_and_goes_loses_no_row_moves_no_cti_back_and_replays(segments, data):
    logs, query = Logs("topic", "fast"), None
    for sources, records in segments:
        query = query or Changing(logs, **ask(sources))
        query.restart(**ask(sources))
        query.batch(1)
        for topic, time, mark in records:
            logs.records[at(0, topic)].append(
                (1000, {"t": str(time * 1000), "c": str(mark * 1000)})
            )
        while query.batch(data.draw(st.integers(1, 4))):
            if data.draw(st.booleans()):
                query.restart(**ask(sources))
        offset = query.offset()
        assert (offset.imported is not None) == ("import" in sources)
        assert "import" in sources or not offset.partitions[at(0)].pending
    query.drain()
    rows = only_rows(query.rows)
    assert [row[2] for row in rows] == list(range(len(logs.records[at(0)])))
    check_ctis(query)
    replay(query, data)


def test_an_import_that_is_left_out_counts_no_more_and_what_it_promised_stays():
    logs = Logs("topic", "fast")
    query = Changing(logs, **ask(["frequency", "import"]))
    put(logs, "topic", [(1, 1)])
    put(logs, "fast", [(9, 9)])
    query.drain()
    assert query.offset().cti_us == 9 * SECOND
    query.restart(**ask(["frequency"]))
    put(logs, "fast", [(30, 30)])
    put(logs, "topic", [(8, 8), (13, 13)])
    query.drain()
    assert [row[3] for row in only_rows(query.rows)] == [None, "late", None]
    assert query.offset().cti_us == 11 * SECOND
    (change,) = query.offset().changes
    assert (set(change.old), set(change.new)) == ({"ctiImport"}, set())
    query.restart(**ask(["frequency", "import"]))
    query.drain()
    assert query.offset().cti_us == 30 * SECOND


def test_another_source_may_take_over_in_one_restart():
    logs = Logs("topic")
    query = Changing(logs, **ask(["frequency"]))
    put(logs, "topic", [(5, 5)])
    query.drain()
    query.restart(**ask(["header"]))
    logs.records[at(0)] += [(0, {"t": "20000"}), (0, {"t": "2000", "c": "4000"})]
    query.drain()
    assert query.offset().cti_us == 4 * SECOND
    assert "ctiDelay" not in query.offset().settings


def test_writers_of_a_header_that_is_left_out_hold_nothing_back_when_it_is_there_again():
    logs = Logs("topic")
    query = Changing(logs, **ask(["frequency", "header"]))
    mark = {"t": "0", "c": "1000"}
    logs.records[at(0)] += [(0, mark | {"c-writer": "gone"}), (0, mark | {"c-writer": "stays"})]
    query.drain()
    query.restart(**ask(["frequency"]))
    query.drain()
    assert query.offset().partitions[at(0)].clock.writers == ()
    query.restart(**ask(["header"]))
    logs.records[at(0)].append((0, {"t": "0", "c": "7000", "c-writer": "stays"}))
    query.drain()
    assert query.offset().cti_us == 7 * SECOND


@pytest.mark.parametrize("added", [True, False])
def test_an_import_whose_header_follows_the_streams_waits_for_no_writer_of_the_header_before(added):
    """Just a topic's name means marks under `ctiHeader`, or else under `cti` (6.1)."""
    logs = Logs("topic", "fast")
    without = {**ask(["frequency"]), "ctiDelay": "20 s", "ctiImport": "fast"}
    first, then = (without, {**without, "ctiHeader": "c"})[:: 1 if added else -1]
    before, after = ("cti", "c") if added else ("c", "cti")
    query = Changing(logs, **first)
    put(logs, "topic", [(1, 1)])
    logs.records[at(0, "fast")].append((0, {before: "3000", f"{before}-writer": "gone"}))
    query.drain()
    assert query.offset().cti_us == 3 * SECOND
    query.restart(**then)
    query.drain()
    logs.records[at(0, "fast")].append((0, {after: "9000", f"{after}-writer": "stays"}))
    query.drain()
    assert query.offset().cti_us == 9 * SECOND
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]


names = st.sampled_from(["a", "b"])
marked = st.lists(st.tuples(names, st.integers(0, 9), st.integers(0, 9)), max_size=5)
segments_of_marks = st.tuples(
    st.none() | st.lists(names, unique=True, max_size=2),
    st.none() | st.integers(1, 4),
    st.none() | st.just(3),
    marked,
)


@given(st.lists(segments_of_marks, min_size=2, max_size=5), st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_with_a_header_that_comes_and_goes_forgets_its_writers(segments, data):
    logs, query, made = Logs("topic"), None, []
    for writers, timeout, grace, records in segments:
        # A count that is never reached: the other source beside the header.
        asked = {"ctiFrequency": "1000", "violationPolicy": "flag"}
        if writers is None:
            timeout = grace = None
        else:
            asked |= {"ctiHeader": "c"}
        asked |= {"writers": ",".join(writers)} if writers else {}
        asked |= {} if timeout is None else {"writerTimeout": f"{timeout} s"}
        asked |= {} if grace is None else {"writerGrace": f"{grace} s"}
        made.append((writers, timeout, grace, records))
        query = query or Changing(logs, **asked)
        query.restart(**asked)
        query.batch(1)
        logs.records[at(0)] += [
            (stamp * 1000, {"c": str(mark * 1000), "c-writer": writer})
            for writer, mark, stamp in records
        ]
        while query.batch(data.draw(st.integers(1, 4))):
            pass
    query.drain()
    late, cti = judge_marks(made)
    assert [row[3] == "late" for row in only_rows(query.rows)] == late
    cti_us = query.offset().partitions[at(0)].clock.cti_us
    assert cti_us == (None if cti is None else cti * SECOND)
    replay(query, data)


topics = st.lists(st.sampled_from(["b", "c"]), unique=True, max_size=2)


@given(st.lists(st.tuples(topics, mixed), min_size=2, max_size=4), st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_added_topics_lose_no_row_in_any_split_and_replay(segments, data):
    logs, query, asked = Logs("topic", "b", "c"), None, ["topic"]
    for added, records in segments:
        asked += [topic for topic in added if topic not in asked]
        given_ = {**ask(["frequency"]), "subscribe": ",".join(asked)}
        query = query or Changing(logs, **given_)
        query.restart(**given_)
        query.batch(1)
        for _, time, place in records:
            put(logs, asked[place % len(asked)] if place % 5 else "c", [(time, time)])
        while query.batch(data.draw(st.integers(1, 4))):
            if data.draw(st.booleans()):
                query.restart(**given_)
    query.drain()
    rows = only_rows(query.rows)
    for topic in ("topic", "b", "c"):
        whole = len(logs.records[at(0, topic)]) if topic in asked else 0
        assert [row[2] for row in rows if row[0] == topic] == list(range(whole))
    check_ctis(query)
    for last in range(1, len(query.offsets)):
        assert query.run(last - 1, last) == query.rows[last - 1]
        first = data.draw(st.integers(0, last - 1))
        joined = sorted(only_rows([query.run(first, last)]), key=str)
        assert joined == sorted(only_rows(query.rows[first:last]), key=str)
