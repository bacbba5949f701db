"""A running clock is changed on a real broker between kills (semantics 8.10)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from broker import Record
from flights_data import PARTITIONS, duration_us, flights
from harness import JOBS, Job, between_files_and_checkpoint, forget_batches, run_until
from kafka_query import DAY_MS, Stream, event, read_rows, seconds

from pyspark_timestream.core.instants import format_instant

pytestmark = pytest.mark.timeout(600)

CLOCKS = (
    {"ctiDelay": "30 minutes", "violationPolicy": "drop"},
    {"ctiDelay": "3 hours", "violationPolicy": "drop"},
    {"ctiDelay": "3 hours", "violationPolicy": "flag"},
)
Owner = tuple[int, int]


def departures(count: int) -> Iterator[Record]:
    """Flights in the order of their reports, stamped with the time of their departure."""
    table = flights(count)
    pairs = zip(table["partition"].to_pylist(), table["departure_us"].to_pylist(), strict=True)
    for partition, departure_us in pairs:
        if departure_us is not None:
            yield Record(b"{}", None, partition, departure_us // 1_000)


def plans(checkpoint: Path) -> dict[int, dict[str, Any]]:
    """The offsets in a checkpoint by batch."""
    entries = (checkpoint / "offsets").glob("[0-9]*")
    return {int(each.name): json.loads(each.read_text().splitlines()[-1]) for each in entries}


def judge(
    times_us: list[int], starts: list[int], clocks: Sequence[dict[str, str]] = CLOCKS
) -> tuple[dict[int, str | None], list[int]]:
    """Row -> violation, and the CTI before each of `starts`, where the next clock begins."""
    rows: dict[int, str | None] = {}
    cti, ctis = -1, []
    for place, time_us in enumerate(times_us):
        while len(ctis) < len(starts) and starts[len(ctis)] <= place:
            ctis.append(cti)
        clock = clocks[len(ctis)]
        if time_us >= cti or clock["violationPolicy"] == "flag":
            rows[place] = "late" if time_us < cti else None
        cti = max(cti, time_us - duration_us(clock["ctiDelay"]))
    return rows, [*ctis, *[cti] * (len(starts) - len(ctis))]


def keep_rows(made: Stream) -> dict[Owner, str | None]:
    """Partition and offset of each row of data, and its violation."""
    rows = [row.asDict() for row in made.rows() if row["cti"] is None]
    kept = {(row["partition"], row["offset"]): row.get("violation") for row in rows}
    assert len(kept) == len(rows)
    return kept


@pytest.mark.outside_ci
@pytest.mark.soak
def test_flights_with_a_new_delay_and_a_new_policy_between_kills_are_those_of_the_oracle(
    stream: Callable[..., Stream],
) -> None:
    records = list(departures(4_000))
    made = stream(records[:1_000], PARTITIONS, ctiFrequency="1", changeFrom="now")
    made.options["maxOffsetsPerTrigger"] = "250"
    checkpoint = made.place / "checkpoint"
    made.run(**CLOCKS[0])
    assert not plans(checkpoint)[max(plans(checkpoint))].get("changes")
    made.broker.produce(made.topic, records[1_000:])
    first = max(plans(checkpoint))

    killed = kill_in_batch(made, lambda batch: batch > first + 2, **CLOCKS[1])
    # Spark runs the killed batch again with the options of its offset, then the policy changes.
    made.run(**CLOCKS[2])
    known = plans(checkpoint)
    changes = known[max(known)]["changes"]
    assert [(each["number"], each["from"], each["to"]) for each in changes] == [
        (first + 1, {"ctiDelay": "30 minutes"}, {"ctiDelay": "3 hours"}),
        (killed + 1, {"violationPolicy": "drop"}, {"violationPolicy": "flag"}),
    ]
    assert made.report()["changes"][-1]["to"] == {"violationPolicy": "flag"}

    expected: dict[Owner, str | None] = {}
    ctis_us: list[list[int]] = []
    for number in range(PARTITIONS):
        times_us = [r.timestamp_ms * 1_000 for r in records if r.partition == number]
        starts = [known[each["number"]]["partitions"][made.topic][str(number)]["from"]
                  for each in changes]  # fmt: skip
        rows, before = judge(times_us, starts)
        expected |= {(number, place): violation for place, violation in rows.items()}
        ctis_us.append(before)
    assert [each["cti"] for each in changes] == [min(each) for each in zip(*ctis_us, strict=True)]
    found = keep_rows(made)
    assert found == expected
    assert "late" in found.values()
    assert len(found) < len(records)

    check_replays(made, (first, first + 1, killed, killed + 1), **CLOCKS[2])


def check_replays(made: Stream, batches: Iterable[int], **options: Any) -> None:
    """Replay copies of the checkpoint: Spark has lost what came after a batch, which runs again."""
    checkpoint = made.place / "checkpoint"
    for batch in batches:
        again = Stream(made.spark, made.broker, made.topic, made.place / f"again-{batch}",
                       made.options)  # fmt: skip
        shutil.copytree(checkpoint, again.place / "checkpoint")
        forget_batches(again.place / "checkpoint" / "offsets", batch)
        forget_batches(again.place / "checkpoint" / "commits", batch - 1)
        # The batch is cut as before; what follows is one more, since nobody looks at it.
        again.run(**{**options, "maxOffsetsPerTrigger": "100000"})
        shape = itemgetter("topic", "partition", "offset", "start_time", "cti")
        rows = [read_rows(each.place / f"rows/batch={batch:06d}") for each in (again, made)]
        assert list(map(shape, rows[0])) == list(map(shape, rows[1]))


def kill_in_batch(made: Stream, is_due: Callable[[int], bool], **options: Any) -> int:
    """Kill a live query between files and commit of a batch; return the last one planned."""

    def is_written(batch: int) -> bool:
        rows = made.place / "rows" / f"batch={batch:06d}"
        return is_due(batch) and (rows / "_SUCCESS").exists()

    checkpoint = made.place / "checkpoint"
    job = Job(
        JOBS / "cti_job.py",
        [made.broker.bootstrap, made.topic, str(made.place),
         json.dumps({**made.options, **options})],
        log=made.place.with_suffix(".log"),
    )  # fmt: skip
    assert run_until(job, between_files_and_checkpoint(checkpoint, is_written), timeout=240).hit
    return max(plans(checkpoint))


@pytest.mark.soak
def test_flights_with_a_delay_that_waits_for_a_cti_change_there_before_and_after_a_kill(
    stream: Callable[..., Stream],
) -> None:
    records = list(departures(3_000))
    made = stream(records[:500], PARTITIONS, ctiFrequency="1")
    made.options["maxOffsetsPerTrigger"] = "250"
    made.run(**CLOCKS[0])
    # Once 1,500 are read by the old delay, the CTI has reached this.
    newest = dict.fromkeys(range(PARTITIONS), 0)
    for record in records[:1_500]:
        newest[record.partition] = max(newest[record.partition], record.timestamp_ms * 1_000)
    named_us = min(newest.values()) - duration_us(CLOCKS[0]["ctiDelay"])
    waits = {**CLOCKS[1], "violationPolicy": "flag", "changeFrom": format_instant(named_us)}
    made.broker.produce(made.topic, records[500:])
    checkpoint = made.place / "checkpoint"
    begun = max(plans(checkpoint))

    def has_changed(batch: int) -> bool:
        return bool(plans(checkpoint)[batch].get("changes"))

    # One kill while the change waits, and one behind it.
    early = kill_in_batch(made, lambda batch: batch > begun, **waits)
    assert not has_changed(early)
    late = kill_in_batch(made, has_changed, **waits)
    made.run(**waits)
    known = plans(checkpoint)
    (change,) = known[max(known)]["changes"]
    assert early < change["number"] <= late
    assert change["from"] == {"ctiDelay": "30 minutes", "violationPolicy": "drop"}
    assert change["cti"] >= named_us
    assert all(
        known[n]["cti"] is None or known[n]["cti"] < named_us for n in range(change["number"])
    )

    expected: dict[Owner, str | None] = {}
    for number in range(PARTITIONS):
        times_us = [r.timestamp_ms * 1_000 for r in records if r.partition == number]
        start = known[change["number"]]["partitions"][made.topic][str(number)]["from"]
        rows, _ = judge(times_us, [start], (CLOCKS[0], waits))
        expected |= {(number, place): violation for place, violation in rows.items()}
    assert keep_rows(made) == expected
    assert "late" in expected.values()
    check_replays(made, (early, change["number"]), **waits)


@pytest.mark.soak
def test_an_import_is_added_and_left_out_between_kills_and_every_batch_replays(
    stream: Callable[..., Stream], topic: Callable[..., str]
) -> None:
    other = topic(1)
    imports = {"ctiImport": json.dumps({"topic": other, "frequency": 1})}
    made = stream([event(s) for s in range(40)], ctiFrequency="1", ctiDelay="10 seconds",
                  violationPolicy="flag", changeFrom="now", maxOffsetsPerTrigger=20)  # fmt: skip
    made.run()
    begun = max(plans(made.place / "checkpoint"))
    made.broker.produce(made.topic, [event(s) for s in range(40, 120)])
    made.broker.produce(other, [event(200)])
    kill_in_batch(made, lambda batch: batch > begun + 1, **imports)
    made.run(**imports)
    # The backlog was in the log before 200 was read: none of it is late.
    assert keep_rows(made) == dict.fromkeys((0, s) for s in range(120))
    made.broker.produce(made.topic, [event(150), *[event(s) for s in range(205, 264)]])
    made.broker.produce(other, [event(500)])
    left_at = max(plans(made.place / "checkpoint"))
    left = kill_in_batch(made, lambda batch: batch > left_at)
    made.broker.produce(made.topic, [event(270), event(240)])
    made.run()
    # 150 is before 200, which was promised, and 240 before 260, which the stream's own events made.
    late = [place for (_, place), violation in keep_rows(made).items() if violation]
    assert late == [120, 181]
    known = plans(made.place / "checkpoint")
    changes = known[max(known)]["changes"]
    assert [(set(each["from"]), set(each["to"])) for each in changes] == [
        (set(), {"ctiImport"}), ({"ctiImport"}, set()),
    ]  # fmt: skip
    assert known[max(known)]["cti"] == (DAY_MS + 260_000) * 1_000
    assert known[left].get("import") is None
    assert "pending" not in known[left]["partitions"][made.topic]["0"]
    check_replays(made, {begun + 1, left})


@pytest.mark.soak
def test_a_topic_is_added_between_kills_and_its_backlog_comes_once(
    stream: Callable[..., Stream], topic: Callable[..., str]
) -> None:
    other = topic(2)
    made = stream([event(s, s % 2) for s in range(40)], 2, ctiFrequency="1", changeFrom="now",
                  violationPolicy="flag", maxOffsetsPerTrigger=20)  # fmt: skip
    made.run()
    begun = max(plans(made.place / "checkpoint"))
    made.broker.produce(other, [event(s, s % 2) for s in range(80)])
    made.broker.produce(made.topic, [event(s, s % 2) for s in range(40, 80)])
    both = {"subscribe": f"{made.topic},{other}", "ctiDelay": "5 seconds"}
    killed = kill_in_batch(made, lambda batch: batch > begun + 1, **both)
    again = kill_in_batch(made, lambda batch: batch > killed, **both)
    made.run(**both)
    rows = [row.asDict() for row in made.rows() if row["cti"] is None]
    places = sorted((row["topic"], row["partition"], row["offset"]) for row in rows)
    assert places == sorted(
        (name, part, at) for name in (made.topic, other) for part in (0, 1) for at in range(40)
    )
    # Events older than the CTI when the topic was found are late, by the law of 5.5.
    known = plans(made.place / "checkpoint")
    (change,) = known[max(known)]["changes"]
    found_s = (change["cti"] // 1_000 - DAY_MS) / 1_000
    late = {
        seconds(row["start_time"]) for row in rows if row["violation"] and row["topic"] == other
    }
    assert late == {s for s in range(80) if s < found_s}
    ctis = [known[n]["cti"] for n in sorted(known) if known[n]["cti"] is not None]
    assert ctis == sorted(ctis)
    check_replays(made, {begun + 1, again}, **both)
