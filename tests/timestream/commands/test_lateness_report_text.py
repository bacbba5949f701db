"""Lateness as text and JSON."""

import json
from dataclasses import replace

import numpy as np

from pyspark_timestream.commands.lateness_report import format_report, to_json
from pyspark_timestream.commands.measure_lateness import (
    DelayResult,
    DelayTrial,
    Lateness,
    Waits,
    build_table,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import PartitionClock

MINUTE_US = 60_000_000
OPTIONS = {
    "kafka.bootstrap.servers": "b:1", "kafka.sasl.password": "hunter2", "startTime": "at",
    "timeUnit": "s", "ctiFrequency": "1",
}  # fmt: skip


def delayed(minutes: float, late: list[int], behind: int | None, waits=()) -> DelayResult:
    found = DelayResult(int(minutes * MINUTE_US))
    for number, count in enumerate(late):
        state = PartitionClock(events=5_000, flagged=count, ctis=9)
        trial = DelayTrial(state, behind, Waits().add(np.array(waits, dtype=np.int64)))
        found = found.add(Partition("trips", number), trial)
    return found


LADDER = (
    delayed(0, [2_000, 0], 4 * MINUTE_US, [1_000]),
    delayed(1, [7, 0], 3 * MINUTE_US, [61_000, 70_000]),
    delayed(5, [0, 0], None, [300_000]),
    delayed(60, [0, 0], None),
)
FINDINGS = Lateness(("trips",), LADDER, 1, 0, 90 * MINUTE_US, ("of a note",))


def shown(findings=FINDINGS, width=120, all_delays=False, **more) -> str:
    return format_report(findings, {**OPTIONS, **more}, width, all_delays=all_delays)


def test_the_picture_ends_at_the_first_delay_without_late_rows() -> None:
    lines = shown().splitlines()
    assert lines[:2] == [
        "Topic 'trips': 2 partitions, 10,000 events",
        "Their records' timestamps: 1970-01-01T00:00:00Z to 1970-01-01T01:30:00Z",
    ]
    assert lines[3:7] == [
        "ctiDelay    late           waits: half     95 %      all  none yet",
        "0 seconds  2,000  20.00 %          1 s      1 s      1 s         0  " + 30 * "#",
        "1 minute       7   0.07 %        1 min  1.2 min  1.2 min         0  #",
        "5 minutes      0   0.00 %        5 min    5 min    5 min         0",
    ]
    assert "60 minutes" not in shown()
    assert "1 hour" in shown(all_delays=True)


def test_partitions_are_listed_with_most_late_rows_first() -> None:
    text = shown(replace(FINDINGS, delays=(delayed(0, [0, 3, *range(20)], 1),)))
    lines = text[text.index("late by partition") :].splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["21", "20", "19"]
    assert lines[11] == "and 12 more partitions, with fewer late rows: see --json"


def test_the_options_to_paste_say_what_waiting_they_cost() -> None:
    text = shown()
    assert text[text.index("The latest") :].split("\n\n") == [
        "The latest event was 4 min behind: with ctiDelay = 4 minutes no row of what was read "
        "would have been late.\nOf what is still to come nothing is known.\nEach partition waits "
        "by itself: a stream's results wait for the slowest one.\nNote: of a note",
        "No late row in what was read; half of the events wait for at most 5 min, 95 % for at most "
        '5 min:\n    .option("startTime", "at")\n    .option("timeUnit", "s")\n'
        '    .option("ctiFrequency", "1")\n    .option("ctiDelay", "5 minutes")',
        "7 late (0.07 %), below 0.1 %; half of the events wait for at most 1 min, 95 % for at most "
        '1.2 min:\n    .option("startTime", "at")\n    .option("timeUnit", "s")\n'
        '    .option("ctiFrequency", "1")\n    .option("ctiDelay", "1 minute")',
    ]
    assert "hunter2" not in text


def test_the_options_to_paste_hold_all_on_which_the_counts_depend() -> None:
    given = {"writerFrom": "field:device", "writerGrace": "1 minute", "eventShape": "edge"}
    text = shown(**given)
    for name, value in given.items():
        assert f'.option("{name}", "{value}")' in text


def test_with_marks_no_least_delay_is_promised() -> None:
    assert "with ctiDelay = 4" not in shown(ctiHeader="cti")
    assert '.option("ctiHeader", "cti")' in shown(ctiHeader="cti")


def test_a_ladder_that_is_too_short_says_so() -> None:
    text = shown(replace(FINDINGS, delays=LADDER[:1]))
    assert "Each delay up to 0 ticks has late rows" not in text
    assert "Each delay up to 0 seconds has late rows: try longer ones with --delays." in text


def test_a_topic_in_order_needs_no_delay() -> None:
    text = shown(replace(FINDINGS, delays=(delayed(0, [0], None),)))
    assert "No event was behind: even without a delay no row would have been late." in text
    assert "what it costs in waiting is unknown: no CTI passed an event" in text
    assert '.option("ctiDelay", "0 seconds")' in text


def test_a_narrow_terminal_loses_columns_and_no_line_is_wider() -> None:
    tables = "\n\n".join(shown(width=70).split("\n\n")[1:3])
    assert max(map(len, tables.splitlines())) <= 70


def test_json_and_table_have_the_same_numbers() -> None:
    found = json.loads(to_json(FINDINGS))
    table = build_table(FINDINGS)
    assert [each["late"] for each in found["delays"]] == table["late"].to_pylist()
    assert found["delays"][1]["wait_median_us"] == 61_183_000
    assert found["delays"][1]["partitions"][0] == {
        "topic": "trips", "partition": 0, "events": 5_000, "malformed": 0, "late": 7, "ctis": 9,
    }  # fmt: skip
    assert found["without_late_rows"] == "5 minutes"
    assert found["below_0.1_percent"] == "1 minute"
    assert found["largest_lateness_us"] == 4 * MINUTE_US
