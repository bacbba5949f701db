"""Topics that describe their own time (semantics 14.5) on a real broker."""

import json
from pathlib import Path
from typing import Any

import pytest
from broker import Broker, Record
from kafka_query import Stream, event
from pyspark.sql import Row, SparkSession

from pyspark_timestream import OptionError, explain_time
from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.topic_settings import load_topic_settings

pytestmark = pytest.mark.timeout(400)

DESCRIPTION = {"ctiFrequency": 1, "ctiDelay": "2 seconds", "violationPolicy": "flag"}
RECORDS = [event(second) for second in (1, 5, 2, 4, 9)]


@pytest.fixture
def described(broker: Broker):
    """Make a compacted topic of settings_by_topic: (topic, description or None, partition)."""

    def make(*records: tuple[str, object, int], partitions: int = 1) -> str:
        name = broker.create_topic(partitions=partitions, cleanup_policy="compact")
        describe(broker, name, *records)
        return name

    return make


def describe(broker: Broker, name: str, *records: tuple[str, object, int]) -> None:
    texts = [
        Record(None if each is None else json.dumps(each), topic, part)
        for topic, each, part in records
    ]
    broker.produce(name, texts)


def options(broker: Broker, topics: str, place: str, **more: str) -> dict[str, str]:
    fixed = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topics}
    return {**fixed, "timeSettings": f"topic:{place}", **more}


def test_a_described_topic_reads_as_with_its_options_written_out(
    spark: SparkSession, broker: Broker, topic, described, tmp_path: Path
) -> None:
    name = topic(1)
    broker.produce(name, RECORDS)
    place = described(("other", {"ctiFrequency": 9}, 0), (name, DESCRIPTION, 0))
    file = tmp_path / "times.json"
    file.write_text(json.dumps({name: DESCRIPTION}))

    def read(folder: str, **given: str) -> Stream:
        made = Stream(spark, broker, name, tmp_path / folder, given)
        made.run()
        return made

    written = read("written", **{key: str(each) for key, each in DESCRIPTION.items()})
    from_topic = read("topic", timeSettings=f"topic:{place}", violationPolicy="drop")
    assert from_topic.report()["timeSettings"] == {
        "from": f"topic:{place}",
        "taken": {"ctiFrequency": "1", "ctiDelay": "2 seconds"},
    }
    assert written.report()["timeSettings"] is None
    assert (
        f"'timeSettings' = 'topic:{place}': 'ctiFrequency' = '1', 'ctiDelay' = '2 seconds'"
        in str(explain_time(from_topic.query))
    )
    on_time = [shown(row) for row in written.rows() if row.violation is None]
    assert [shown(row) for row in from_topic.rows()] == on_time
    by_file = from_topic.load_batch(timeSettings=str(file), violationPolicy=None).collect()
    assert [shown(row) for row in by_file] == [shown(row) for row in written.rows()]
    # The description changes: a restart says so, and the query's own option is the way out.
    describe(broker, place, (name, {**DESCRIPTION, "ctiDelay": "3 seconds"}, 0))
    with pytest.raises(Exception, match=r"'ctiDelay' was '2 s.*is '3 s.*by option 'timeSettings'"):
        from_topic.run()
    before = from_topic.rows()
    broker.produce(name, [event(12)])
    assert len(from_topic.run(ctiDelay="2 seconds")) > len(before)


def shown(row: Row) -> tuple[Any, ...]:
    """The times of a row and the verdict on it; `drop` has no verdict."""
    fields = row.asDict()
    return fields["start_time"], fields["cti"], fields.get("violation")


def test_the_last_description_with_a_topics_key_counts(broker: Broker, described) -> None:
    place = described(
        ("trips", {"ctiFrequency": 1}, 0),
        ("rides", {"ctiFrequency": 5}, 1),
        ("trips", {"ctiFrequency": 2}, 0),
        ("gone", {"ctiFrequency": 3}, 0),
        ("gone", None, 0),
        ("junk", "no object", 0),
        partitions=2,
    )
    assert load_topic_settings(options(broker, "trips", place)) == {"ctiFrequency": "2"}
    assert load_topic_settings(options(broker, "rides", place)) == {"ctiFrequency": "5"}
    for name, said in (
        ("gone", "has no description of topic 'gone'"),
        ("junk", "the description of topic 'junk' in 'topic:.*' is not a JSON object"),
        ("trips,rides", "describes topics 'rides' and 'trips' differently"),
    ):
        with pytest.raises(OptionError, match=said):
            load_topic_settings(options(broker, name, place))


def test_a_key_in_two_partitions_is_refused_unless_both_agree(broker: Broker, described) -> None:
    place = described(
        ("trips", {"ctiFrequency": 1}, 0), ("trips", {"ctiFrequency": 1}, 1), partitions=2
    )
    assert load_topic_settings(options(broker, "trips", place)) == {"ctiFrequency": "1"}
    describe(broker, place, ("trips", {"ctiFrequency": 2}, 1))
    with pytest.raises(OptionError, match=r"different descriptions .* in partitions 0 and 1"):
        load_topic_settings(options(broker, "trips", place))
    describe(broker, place, ("trips", None, 0))
    assert load_topic_settings(options(broker, "trips", place)) == {"ctiFrequency": "2"}


def test_a_topic_of_descriptions_that_is_missing_or_out_of_reach_is_named(broker: Broker) -> None:
    with pytest.raises(OptionError, match=r"'timeSettings': topic 'not-there' does not exist"):
        load_topic_settings(options(broker, "trips", "not-there"))
    nobody = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.connectTimeoutMs": "500"}
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        load_topic_settings({**options(broker, "trips", "times"), **nobody})
