"""The progress report, key by key (semantics 13.5)."""

from dataclasses import replace

from timestream.builders import at, report_progress

from pyspark_timestream.kafka.offsets.changes import ClockChange
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads, PartitionOffset, StreamOffset
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import SettingsSource
from pyspark_timestream.rules.clocks import PartitionClock

BUSY = PartitionClock(
    cti_us=1_500_000,
    count=1,
    events=20,
    dropped=1,
    adjusted=2,
    flagged=3,
    malformed=4,
    ctis=5,
    ignored_ctis=6,
    future=7,
    tombstones=8,
)
OFFSET = StreamOffset(
    "me",
    {},
    1,
    {
        at(0): PartitionOffset(
            20, 25, BUSY, malformed_payloads=MalformedPayloads((("key type", 1), ("type", 5)))
        ),
        at(1): PartitionOffset(0, 0, PartitionClock()),
        at(0, "other"): PartitionOffset(
            7,
            9,
            PartitionClock(events=2, ctis=1, cti_us=0),
            malformed_payloads=MalformedPayloads.from_reasons({"framing": 2, "type": 3}),
        ),
    },
    cti_us=0,
)


def test_progress_reports_offset_lag_cti_and_counters_per_partition():
    report = report_progress(OFFSET, {at(0): 31, at(1): 0, at(0, "other"): 9})
    assert list(report["partitions"]) == ["other", "topic"]
    assert report["partitions"]["topic"]["0"] == {
        "offset": 20,
        "lag": 11,
        "cti": "1970-01-01T00:00:01.500000Z",
        "idle": False,
        "events": 20,
        "dropped": 1,
        "adjusted": 2,
        "flagged": 3,
        "malformed": 4,
        "tombstones": 8,
        "future": 7,
        "ctis": 5,
        "ignoredCtis": 6,
        "outside": 0,
        "malformedValues": {"total": 6, "key type": 1, "type": 5},
        "waits": False,
    }
    assert report["partitions"]["topic"]["1"]["cti"] is None
    assert report["partitions"]["topic"]["1"]["malformedValues"] == {"total": 0}


def test_the_stream_reports_its_cti_its_end_and_the_sums():
    report = report_progress(OFFSET, {})
    totals = {
        name: report[name] for name in report if name not in ("partitions", "cti", "warnings")
    }
    assert report["cti"] == "1970-01-01T00:00:00Z"
    assert totals == {
        "endOfStream": False,
        "events": 22,
        "dropped": 1,
        "adjusted": 2,
        "flagged": 3,
        "malformed": 4,
        "tombstones": 8,
        "future": 7,
        "ctis": 6,
        "ignoredCtis": 6,
        "outside": 0,
        "malformedValues": {"total": 11, "framing": 2, "key type": 1, "type": 8},
        "timeSettings": None,
        "changes": [],
    }


def test_progress_reports_each_change_with_its_batch_cti_and_values() -> None:
    change = ClockChange(
        7, 1_500_000, {"ctiDelay": "1 hour"}, {"ctiDelay": "2 hours", "writers": "a"}
    )
    assert report_progress(replace(OFFSET, changes=(change,)), {})["changes"] == [
        {
            "batch": 7,
            "cti": "1970-01-01T00:00:01.500000Z",
            "from": {"ctiDelay": "1 hour"},
            "to": {"ctiDelay": "2 hours", "writers": "a"},
        }
    ]


def test_a_closing_batch_is_the_end_of_the_stream():
    closing = StreamOffset("me", {}, 1, {}, end_of_run=True)
    assert report_progress(closing, {})["endOfStream"]
    assert report_progress(closing, {})["cti"] is None


def test_a_log_that_is_shorter_than_was_read_has_no_negative_lag():
    assert report_progress(OFFSET, {at(0): 3})["partitions"]["topic"]["0"]["lag"] == 0


def test_the_lag_counts_up_to_the_streams_own_end():
    fixed = replace(OFFSET, fixed_ends={at(0): 25})
    assert report_progress(fixed, {at(0): 31})["partitions"]["topic"]["0"]["lag"] == 5
    partitions = report_progress(
        OFFSET, {at(0): 3_000, at(1): 7}, KafkaOptions(ending_cti_us=1_500_000)
    )["partitions"]["topic"]
    # Partition 0 has reached the end with what the batch reads; partition 1 has no CTI yet.
    assert (partitions["0"]["lag"], partitions["1"]["lag"] > 0) == (5, True)


def test_the_warnings_that_hold_are_listed_as_texts():
    report = report_progress(OFFSET, {}, warnings=["3 rows", "one"])
    assert report["warnings"] == ["3 rows", "one"]
    assert report_progress(OFFSET, {})["warnings"] == []


def test_what_a_topic_declared_is_reported_with_its_place():
    described = KafkaOptions(
        time_settings=SettingsSource("topic:times", topic="times"),
        topic_settings={"ctiDelay": "20 s"},
    )
    report = report_progress(OFFSET, {}, described)
    assert report["timeSettings"] == {"from": "topic:times", "taken": {"ctiDelay": "20 s"}}
