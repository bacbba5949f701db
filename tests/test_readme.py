"""README.md is short, its example is the demo's, and its figures were measured."""

import json
import re
from collections import Counter
from html import escape

from documents import ROOT, blocks, read
from kafka.lagging_picture import draw, summary
from kept_results import kept, worst_jobs

from pyspark_timestream.demo.command import EXAMPLE
from pyspark_timestream.demo.data import STATIONS, TRIPS_PER_STATION, make_trips

README = read("README.md")


PICTURE = json.loads((ROOT / "bench" / "results" / "lagging_partition.json").read_text())


def test_readme_is_read_within_minutes() -> None:
    lines = README.splitlines()
    assert len(lines) <= 250
    assert "Not Amazon Timestream" in lines[1]


def test_first_example_is_what_the_demo_prints() -> None:
    assert blocks("README.md", "python")[0].text == EXAMPLE


def test_result_has_every_trip_in_its_hour() -> None:
    (printed,) = (block for block in blocks("README.md", "text") if block.is_printed)
    cells = re.findall(r"^\|2026-01-01 (\d\d):00:00\|(.*)\|$", printed.text, re.MULTILINE)
    shown = {
        (station, hour): int(count)
        for hour, counts in cells
        for station, count in zip(sorted(STATIONS), counts.split("|"), strict=True)
        if count.strip() != "NULL"
    }
    given = [json.loads(trip.value) for trip in make_trips()]
    assert shown == Counter((trip["station"], trip["departed"][11:13]) for trip in given)
    assert printed.text.endswith(f"\n{len(STATIONS) * TRIPS_PER_STATION} trips, 0 dropped\n")


def test_trips_that_are_lost_are_as_many_as_were_measured() -> None:
    found = PICTURE
    lost = {name: f"{count:,}" if count else "none" for name, count in found["lost"].items()}
    assert (
        f"Spark's watermark loses **{lost['spark']}** of {found['trips']:,} trips; "
        f"CTIs with the same delay lose **{lost['timestream']}**"
    ) in " ".join(README.split())
    for name, counted in found["counted"].items():
        assert found["lost"][name] == found["trips"] - sum(counted.values())


def test_speed_is_the_worst_that_was_measured() -> None:
    windows = {
        "kafka_source": ("Kafka -> JSON -> window, native", "whole run"),
        "beside_flink": ("Kafka -> JSON -> window, flink", ""),
    }
    found = [
        job["ratio"]["median"]
        for benchmark, wanted in windows.items()
        for _, job in worst_jobs(kept(benchmark))
        if (job["job"], job["figure"]) == wanted and job["rows"] == 2_000_000
    ]
    beside_spark, beside_flink = found
    assert (
        f"takes Spark's own source {beside_spark:.1f} times as long, "
        f"and Flink's SQL {beside_flink:.1f} times"
    ) in " ".join(README.split())


def test_latency_is_what_was_measured() -> None:
    ratios = {job["job"]: job["ratio"]["median"] for _, job in worst_jobs(kept("latency"))}
    said = f"{ratios['trigger latency p50, defaults']:.1f} times Spark's median at default settings"
    assert said in README


def test_picture_is_drawn_from_what_was_measured() -> None:
    found = PICTURE
    picture = (ROOT / "docs" / "pictures" / "lagging-partition.svg").read_text()
    assert picture == draw(found)
    assert escape(summary(found)) in picture
    for words in ("event time, UTC", "records read", "prefers-color-scheme: dark"):
        assert words in picture
