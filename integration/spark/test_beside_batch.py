"""Batch cases of Spark's own suite (KafkaRelationSuite), by both sources over the same topics.

Facts, not code, of its tests; what is internal to Spark's source (V1 and V2 relations) is left out.
The marker `difference` names the row of the table in docs/how-to/migrate-from-kafka.md that a
test is about. Long tests, and further ones of a kind, run only under `make beside-spark`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from both_sources import (
    REFUSED,
    Both,
    Source,
    Topic,
    alike,
    differ,
    numbers,
    outcome,
    per_partition,
    send,
    transactional,
    values,
)
from broker import Broker, Record
from kafka_query import DAY_MS
from lengths import outside_ci

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def filled(broker: Broker, topic: Topic) -> str:
    """Three partitions: 0 to 9, 10 to 19, and only 20."""
    name = topic(3)
    parts = enumerate((range(10), range(10, 20), range(20, 21)))
    broker.produce(name, [record for part, each in parts for record in numbers(each, part)])
    return name


@pytest.fixture
def timed(broker: Broker, topic: Topic) -> str:
    """Three partitions with every third of ten numbers a second, for three seconds."""
    name = topic(3)
    for second in range(3):
        ten = range(10 * second, 10 * second + 10)
        records = [numbers([n for n in ten if n % 3 == p], p, at(second)) for p in range(3)]
        broker.produce(name, [record for each in records for record in each])
    return name


def at(second: int) -> int:
    return DAY_MS + 1_000 * second


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.outside_ci
def test_earliest_to_latest_is_the_default_and_binds_late(
    both: Both, broker: Broker, filled: str
) -> None:
    frames = [
        source.read(subscribe=filled, **options)
        for source in both
        for options in ({}, {"startingOffsets": "earliest", "endingOffsets": "latest"})
    ]
    assert [values(frame) for frame in frames] == [list(range(21))] * 4
    broker.produce(filled, numbers(range(21, 30), 2))
    assert [values(frame) for frame in frames] == [list(range(30))] * 4


@pytest.mark.soak
def test_offsets_of_partitions_bind_late_where_they_are_the_latest(
    both: Both, broker: Broker, filled: str
) -> None:
    begin, end = per_partition(filled, [-2, -2, 0]), per_partition(filled, [-1, -1, 1])
    frames = [s.read(subscribe=filled, startingOffsets=begin, endingOffsets=end) for s in both]
    assert [values(frame) for frame in frames] == [list(range(21))] * 2
    broker.produce(filled, numbers(range(31, 40), 2))
    assert [values(frame) for frame in frames] == [list(range(21))] * 2
    broker.produce(filled, numbers(range(21, 31), 1))
    assert [values(frame) for frame in frames] == [list(range(31))] * 2


@pytest.mark.soak
def test_earliest_binds_late_after_records_were_deleted(
    both: Both, broker: Broker, topic: Topic
) -> None:
    name = topic()
    broker.produce(name, numbers(range(10), 0))
    frames = [source.read(subscribe=name) for source in both]
    assert [values(frame) for frame in frames] == [list(range(10))] * 2
    broker.delete_records(name, {0: 10})
    broker.produce(name, numbers(range(10, 20), 0))
    assert [values(frame) for frame in frames] == [list(range(10, 20))] * 2


@pytest.mark.soak
def test_a_frame_used_twice_reads_twice(both: Both, filled: str) -> None:
    def case(source: Source) -> list[int]:
        frame = source.read(subscribe=filled)
        return values(frame.union(frame))

    alike(both, case, sorted([*range(21), *range(21)]))


# -- timestamps ------------------------------------------------------------------------------------


def starting(topic: str, *seconds: int) -> dict[str, Any]:
    return {"startingOffsetsByTimestamp": per_partition(topic, [at(second) for second in seconds])}


def ending(topic: str, *seconds: int) -> dict[str, Any]:
    return {"endingOffsetsByTimestamp": per_partition(topic, [at(second) for second in seconds])}


NEVER = 9_000_000
SECOND_2 = [n for n in range(30) if n % 3 == 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (lambda t: starting(t, 1, 1, 1) | ending(t, 2, 2, 2), list(range(10, 20))),
        (
            lambda t: ending(t, 1, 1, NEVER),
            sorted([*range(10), *(n for n in SECOND_2 if n >= 10)]),
        ),
        (lambda t: starting(t, 1, 1, NEVER), REFUSED),
        *outside_ci(
            (
                lambda t: starting(t, 0, 0, 0) | {"endingOffsets": per_partition(t, [-1, -1, 1])},
                sorted([2, *(n for n in range(30) if n % 3 != 2)]),
            ),
            (
                lambda t: {"startingOffsets": per_partition(t, [-2, -2, 0])} | ending(t, 2, 2, 2),
                list(range(20)),
            ),
            (lambda t: starting(t, 1, 1, 1), list(range(10, 30))),
            (lambda t: ending(t, 2, 2, 2), list(range(20))),
            (lambda _: {"startingTimestamp": at(1), "endingTimestamp": at(2)}, list(range(10, 20))),
            (
                lambda t: {"startingTimestamp": at(2), "startingOffsets": "earliest"}
                | starting(t, 1, 1, 1),
                list(range(20, 30)),
            ),
            (lambda t: {"startingOffsets": "earliest"} | starting(t, 1, 1, 1), list(range(10, 30))),
        ),
    ],
    ids=[
        "both", "no record at the end", "no record at the start", "starting and ending offsets",
        "starting offsets and ending", "starting", "ending", "global", "global goes first",
        "by partition goes before offsets",
    ],
)  # fmt: skip
def test_timestamps_choose_the_same_records(
    both: Both, timed: str, options: Callable[[str], dict[str, Any]], expected: Any
) -> None:
    alike(both, lambda s: values(s.read(subscribe=timed, **options(timed))), expected)


# -- columns ---------------------------------------------------------------------------------------

SPARKS = "key binary,value binary,topic string,partition int,offset bigint,timestamp timestamp"
SPARKS_SCHEMA = f"struct<{SPARKS.replace(' ', ':')},timestampType:int>"


@pytest.mark.difference("the column `start_time`")
def test_columns_are_sparks_and_the_time_of_the_event(both: Both, filled: str) -> None:
    def case(source: Source) -> str:
        return source.read(subscribe=filled).schema.simpleString()

    ours = f"{SPARKS_SCHEMA[:-1]},start_time:timestamp>"
    differ(both, case, SPARKS_SCHEMA, ours)
    # Asked for by name they are the same.
    alike(both, lambda s: s.read(subscribe=filled).drop("start_time").schema, both[0].read(
        subscribe=filled).schema)  # fmt: skip


@pytest.mark.soak
def test_headers_are_null_or_all_there_in_order(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(3)
    pairs = [("a", b"b"), ("c", b"d")], [("e", b"f"), ("e", b"g")]
    records = [
        Record("1", None, 0),
        *(Record(str(p + 1), None, p, None, pairs[p - 1]) for p in (1, 2)),
    ]
    broker.produce(name, records)

    def case(source: Source) -> list[Any]:
        frame = source.read(subscribe=name, includeHeaders="true").orderBy("partition")
        found = [row.headers for row in frame.select("headers").collect()]
        return [each and [(h.key, bytes(h.value)) for h in each] for each in found]

    alike(both, case, [None, *pairs])


def test_rows_are_equal_in_every_column(both: Both, broker: Broker, topic: Topic) -> None:
    name = topic(2)
    records = [("k", "v"), (None, "v"), ("k", None), (None, None)]
    broker.produce(name, [Record(v, k, p, at(p)) for p in (0, 1) for k, v in records])
    found = [
        source.read(subscribe=name).drop("start_time").orderBy("partition", "offset").collect()
        for source in both
    ]
    assert len(found[0]) == 8
    assert found[0] == found[1]


# -- transactions ----------------------------------------------------------------------------------


@pytest.mark.soak
def test_committed_records_alone_are_read_late_bound(
    both: Both, broker: Broker, topic: Topic
) -> None:
    name = topic()
    frames = [s.read(subscribe=name, kafka__isolation__level="read_committed") for s in both]
    producer = transactional(broker)
    producer.begin_transaction()
    send(producer, name, range(1, 6))
    assert [values(frame) for frame in frames] == [[], []]
    producer.commit_transaction()
    broker.wait_for_markers(name)
    assert [values(frame) for frame in frames] == [list(range(1, 6))] * 2
    for numbered, end in ((range(6, 11), "abort"), (range(11, 16), "commit")):
        producer.begin_transaction()
        send(producer, name, numbered)
        getattr(producer, f"{end}_transaction")()
    broker.wait_for_markers(name)
    assert [values(frame) for frame in frames] == [[*range(1, 6), *range(11, 16)]] * 2


@pytest.mark.difference("`kafka.isolation.level` by default")
def test_uncommitted_records_are_read_where_they_are_asked_for(
    both: Both, broker: Broker, topic: Topic
) -> None:
    name = topic()
    producer = transactional(broker)
    producer.begin_transaction()
    send(producer, name, range(1, 6))

    def asked(source: Source) -> list[int]:
        return values(source.read(subscribe=name, kafka__isolation__level="read_uncommitted"))

    alike(both, asked, list(range(1, 6)))
    differ(both, lambda s: values(s.read(subscribe=name)), list(range(1, 6)), [])
    producer.abort_transaction()
    broker.wait_for_markers(name)
    alike(both, asked, list(range(1, 6)))
    differ(both, lambda s: values(s.read(subscribe=name)), list(range(1, 6)), [])


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.soak
def test_partitions_are_cut_into_more_tasks(both: Both, broker: Broker, filled: str) -> None:
    frames = {s.name: s.read(subscribe=filled, minPartitions="6") for s in both}
    rdds = {name: frame.rdd for name, frame in frames.items()}
    for name, rdd in rdds.items():
        assert rdd.getNumPartitions() >= 6, name
        assert sorted(int(row.value) for row in rdd.collect()) == list(range(21)), name
    broker.produce(filled, numbers(range(21, 30), 0))
    assert [values(frame) for frame in frames.values()] == [list(range(30))] * 2
    # A frame made of a frame binds late as well.
    again = [sorted(int(row.value) for row in rdd.collect()) for rdd in rdds.values()]
    assert again == [list(range(30))] * 2


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.soak
def test_starts_and_ends_that_do_not_fit_are_refused(both: Both, filled: str, topic: Topic) -> None:
    empty = topic(3)
    for name, begin, end in (
        (filled, [1, 1, 1], [0, 0]),
        (filled, [1, 1, 1], [0, 0, 0]),
        (filled, [0, 0], None),
        (empty, [1, 1, 1], None),
    ):
        options = {"startingOffsets": per_partition(name, begin)}
        if end is not None:
            options["endingOffsets"] = per_partition(name, end)
        alike(both, lambda s, n=name, o=options: s.read(subscribe=n, **o).collect(), REFUSED)


@pytest.mark.soak
def test_start_behind_an_end_that_a_timestamp_gives_is_refused(both: Both, timed: str) -> None:
    options = {"startingOffsets": per_partition(timed, [5, 5, 5]), **ending(timed, 1, 1, 1)}
    alike(both, lambda s: s.read(subscribe=timed, **options).collect(), REFUSED)


@pytest.mark.difference("unknown options")
def test_misspelt_option_is_refused_by_one_of_them(both: Both, filled: str) -> None:
    def case(source: Source) -> int:
        return source.read(subscribe=filled, startingOfsets="latest").count()

    differ(both, case, 21, REFUSED)


@pytest.mark.difference("names of `kafka.*` settings")
@pytest.mark.parametrize(
    ("setting", "kafka", "timestream"),
    [
        # Java's name, librdkafka's name, and what both have.
        ("kafka.max.poll.records", 21, REFUSED),
        *outside_ci(("kafka.fetch.wait.max.ms", 21, 21), ("kafka.fetch.max.bytes", 21, 21)),
    ],
)
def test_settings_of_the_client_have_the_clients_names(
    both: Both, filled: str, setting: str, kafka: Any, timestream: Any
) -> None:
    value = "5000000" if setting.endswith("bytes") else "50"
    differ(both, lambda s: s.read(subscribe=filled, **{setting: value}).count(), kafka, timestream)


@pytest.mark.soak
@pytest.mark.difference("`subscribePattern`")
def test_pattern_is_pythons_and_matches_whole_names(
    both: Both, broker: Broker, topic: Topic
) -> None:
    name = topic()
    broker.produce(name, numbers(range(3), 0))

    def read(pattern: str) -> Callable[[Source], Any]:
        return lambda source: values(source.read(subscribePattern=pattern))

    alike(both, read(f"{name[:-3]}.*"), [0, 1, 2])
    # A possessive quantifier of Java; a named group of Python.
    differ(both, read(f"{name[:-3]}(?P<rest>.*)"), REFUSED, [0, 1, 2])


@pytest.mark.soak
def test_words_are_read_in_any_case(both: Both, filled: str) -> None:
    options = {"STARTINGOFFSETS": "eArLiEst", "endingoffsets": "laTest"}
    alike(both, lambda s: values(s.read(SUBSCRIBE=filled, **options)), list(range(21)))


def write(source: Source, columns: str, **options: str) -> None:
    rows = source.spark.sql(f"SELECT {columns}").write.format(source.name)
    rows.options(**source.own).option("kafka.bootstrap.servers", source.broker.bootstrap).options(
        **options
    ).mode("append").save()


@pytest.mark.soak
def test_rows_are_written_to_the_option_topic_or_to_the_column_topic(
    both: Both, topic: Topic
) -> None:
    column, option = topic(), topic()
    text = f"'k' AS key, 'v' AS value, '{column}' AS topic"

    def case(source: Source) -> tuple[int, int]:
        before = source.read(subscribe=column).count(), source.read(subscribe=option).count()
        write(source, text)
        write(source, text, topic=option)
        after = source.read(subscribe=column).count(), source.read(subscribe=option).count()
        return after[0] - before[0], after[1] - before[1]

    alike(both, case, (1, 1))


@pytest.mark.difference("writing")
def test_a_column_that_is_no_part_of_a_record_is_refused_by_ours(both: Both, topic: Topic) -> None:
    name = topic()

    def case(source: Source) -> int:
        write(source, "'a' AS value, 'b' AS kye", topic=name)
        return source.read(subscribe=name).count()

    differ(both, case, 1, REFUSED)


@pytest.mark.soak
def test_assigned_partitions_are_read_alone(both: Both, filled: str) -> None:
    alike(both, lambda s: values(s.read(assign={filled: [0, 2]})), [*range(10), 20])


@pytest.mark.difference("a record timestamp that Spark cannot hold")
def test_record_timestamp_beyond_all_time_is_delivered(
    both: Both, broker: Broker, topic: Topic
) -> None:
    name = topic(message_timestamp_after_max_ms=2**62)
    broker.produce(name, numbers([1], 0, 1_712_345_678_123_456_789))
    found = {s.name: outcome(lambda s=s: values(s.read(subscribe=name))) for s in both}
    assert found == {"kafka": REFUSED, "timestream": [1]}
