"""Mistakes are in the driver's log, in the progress and in `explain_time`, on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker import Broker, Record
from harness import JOBS
from kafka_query import DAY_MS, Stream, event
from pyspark.sql import SparkSession

from pyspark_timestream import explain_time

pytestmark = pytest.mark.timeout(600)

COLUMNS = "second double, start_time timestamp, cti timestamp"
FIELD = {"valueFormat": "json", "startTime": "at", "timeUnit": "s", "ctiFrequency": "1"}
DAY_S = DAY_MS // 1000


class Case(NamedTuple):
    """A mistake and the expected words about it."""

    records: list[Record]
    partitions: int
    options: dict[str, str]
    schema: str | None
    kind: str
    said: str


def at(*times: Any, **more: Any) -> list[Record]:
    """Events with the `times` in their field `at`."""
    return [event(second, at=instant, **more) for second, instant in enumerate(times)]


CASES = {
    "wrong field": Case(
        [event(second, when=second) for second in range(9)], 1, FIELD, COLUMNS, "malformed events",
        "9 of 9 events have no time that can be read (option 'startTime' is 'at'); there is no "
        "field 'at', but 'second', 'when'",
    ),
    "wrong type": Case(
        at(*["13/01/2024 05:00"] * 9), 1, FIELD, COLUMNS, "malformed events",
        "one value in 'at' is a text of 16 characters that begins '13/0' and ends '5:00': a date "
        "that begins with its day or month",
    ),
    "coarse unit": Case(
        at(*[DAY_MS + second for second in range(9)]), 1, FIELD, COLUMNS, "malformed events",
        "'timeUnit' = 'ms' would fit: it is of 2024-01-01 then",
    ),
    "fine unit": Case(
        at(*[DAY_S + second for second in range(9)]), 1, {**FIELD, "timeUnit": "ms"}, COLUMNS,
        "improbable times",
        "the last event there is of 1970-01-20T17:21:07.208000Z; option 'timeUnit' is 'ms', and "
        "the time comes from option 'startTime' is 'at'; 'timeUnit' = 's' would fit: it is of "
        "2024-01-01 then",
    ),
    "a few with a zone's name": Case(
        at(*["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00[Europe/Berlin]", DAY_S] * 3),
        1, FIELD, COLUMNS, "malformed events",
        "3 of 9 events have no time that can be read (option 'startTime' is 'at'); one value in "
        "'at' is a text of 40 characters that begins '2024-0' and ends 'erlin]': a time with a "
        "zone's name in brackets",
    ),
    "tombstones": Case(
        [*at(*[DAY_S] * 5), *[Record(None, "k", 0, DAY_MS)] * 4], 1, FIELD, COLUMNS, "tombstones",
        "4 of 9 records have no value, where option 'startTime' is 'at', and become no rows",
    ),
    "two units": Case(
        at(DAY_MS, DAY_S, *[DAY_MS + 9] * 7), 1, {**FIELD, "timeUnit": "ms"}, COLUMNS,
        "improbable times", "1 of 9 events are of early 1970",
    ),
    "after 2100": Case(
        at(*["2150-01-01T00:00:00Z"] * 3), 1, FIELD, COLUMNS, "improbable times",
        "the last event there is of 2150-01-01T00:00:00Z",
    ),
    "field of another type": Case(
        at(*[DAY_S + second for second in range(9)], price="1,50"), 1, FIELD,
        f"price double, {COLUMNS}", "malformed values",
        "partition 0: 9 of 9 records have a malformed value or key (reasons: 9 type); field "
        "'price' is double in .schema(...), and one value there is a text of 4 characters that "
        "begins '1,'",
    ),
    "misspelt column": Case(
        at(*[DAY_S + second for second in range(9)], price=1.5), 1, FIELD,
        f"prcie double, {COLUMNS}", "a column without a field",
        "column 'prcie': null in the 9 newest records: there is no field 'prcie': did you mean "
        "'price'?",
    ),
    "cut": Case(
        at(*[DAY_S + second for second in range(9)], price="1,50"), 1,
        {"valueFormat": "json", "minPartitions": "3"}, "price double", "malformed values",
        "of its newest records, 9 of 9 records have a malformed value or key (reasons: 9 type)",
    ),
    "late": Case(
        [*map(event, (5, 1, 9, 3, 10, 11)), event(7, 1), event(7, 1), event(2, 1)], 2,
        {"ctiFrequency": "1"}, None, "rows dropped as late",
        "3 of 9 events arrived after a CTI later than their own time and were dropped: 2 of ",
    ),
    "latest": Case(
        [event(second) for second in range(9)], 1, {"startingOffsets": "", "ctiFrequency": "1"},
        None, "a start at the end", "9 records that are in the topics are not read",
    ),
    "empty partition": Case(
        [event(second) for second in range(9)], 2, {"ctiFrequency": "1"}, None,
        "an idle partition", "no records are left to read there, and its clock has no CTI",
    ),
}  # fmt: skip


RESTARTED = ("wrong field", "late", "latest")
BATCH = "coarse unit"
"""This one is also read as a batch."""


@pytest.fixture(scope="module")
def told(broker: Broker, tmp_path_factory: Any) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """The report of each case's query, of some also after a restart; and the driver's log."""
    place = tmp_path_factory.mktemp("warned")
    queries = []
    for number, (name, case) in enumerate(CASES.items()):
        topic = broker.create_topic(f"warned-{place.name}-{number}", case.partitions)
        broker.produce(topic, case.records)
        options = {
            "transport": "kafka", "kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic,
            "startingOffsets": "earliest", **case.options,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value}
        checkpoint = str(place / str(number))
        query = {"name": name, "options": given, "schema": case.schema, "checkpoint": checkpoint}
        queries += [query] * (2 if name in RESTARTED else 1)
        if name == BATCH:
            queries += [{key: query[key] for key in ("name", "options", "schema")}]
    job = [sys.executable, str(JOBS / "warned_job.py"), json.dumps(queries)]
    done = subprocess.run(job, check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
    return {name: [each for each in said if each["name"] == name] for name in CASES}, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_in_the_progress_and_the_headline_also_after_a_restart(told, name) -> None:
    case, said = CASES[name], told[0][name]
    assert len(said) == (2 if name in RESTARTED else 1)
    for each in said:
        (warning,) = [text for text in each["warnings"] if text.startswith(case.kind)]
        assert case.said in warning
        assert "; next step: " in warning
        # A cause that holds results back comes before some lost rows.
        holds = "an idle partition" if name == "late" else case.kind
        assert each["headline"].startswith(f"=> {holds}: ")
        assert "idleTimeout" not in warning


def test_each_mistake_is_one_warn_line_of_the_drivers_log_over_all_restarts(told) -> None:
    lines = [line for line in told[1].splitlines() if " WARN pyspark_timestream" in line]
    for name, case in CASES.items():
        found = sum(f"{case.kind}: " in line and case.said in line for line in lines)
        assert found == (2 if name == BATCH else 1), name
    assert len(lines) == len(CASES) + 1


@pytest.mark.outside_ci
def test_a_quiet_partition_is_warned_of_after_half_a_minute_until_it_has_records_again(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2)
    broker.produce(name, [event(1), event(2)])
    made = Stream(spark, broker, name, tmp_path, {"ctiFrequency": "1"})
    writer = made.load().writeStream.format("noop")
    made.query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        until(lambda: made.query.lastProgress is not None)
        began = time.monotonic()
        assert made.report()["warnings"] == []
        until(lambda: made.report()["warnings"])
        # The partition was seen at rest at most a batch before the first progress.
        assert time.monotonic() - began > 20
        (warning,) = made.report()["warnings"]
        assert warning.startswith(f"an idle partition: topic '{name}' partition 1: ")
        assert "'idleTimeout'" in warning
        assert "=> an idle partition: " in str(explain_time(made.query))
        broker.produce(name, [event(2, 1)])
        until(lambda: made.report()["warnings"] == [])
    finally:
        made.query.stop()


def until(condition: Callable[[], object], patience_s: float = 120) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came in time"
        time.sleep(0.2)


@pytest.mark.parametrize("kind", ["readStream", "read"])
def test_json_without_a_schema_is_refused_before_anything_is_asked_of_a_broker(spark, kind) -> None:
    reader = getattr(spark, kind).format("timestream").option("transport", "kafka")
    reader = reader.option("kafka.bootstrap.servers", "localhost:1").option("subscribe", "trips")
    with pytest.raises(Exception, match=r"SchemaRefused: option 'valueFormat' is 'json', and no"):
        reader.option("valueFormat", "json").load()
