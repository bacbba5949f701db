"""Kafka -> noop and Kafka -> JSON -> one-minute windows, beside Flink's SQL on the same topic.

Both read a topic from its start to its end, again and again, Flink in a mini cluster that goes on
and ours in a session that goes on; each in a process of its own, in turns. The whole run is
compared, as its user waits for it. Windows are of a minute, released by watermarks (Flink) or CTIs
(ours) a second behind the newest event of a partition, and at the topic's end. Before that the rows
of both are compared: the records with their offsets and bytes, or the windows with what is in them.

Flink takes part where `python bench/measuring/flink.py` has installed it; without it this is
skipped.
"""

import functools
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from broker import Broker, broker
from flink import Flink, kafka_table, sink_table, takes_part
from kafka_records import filled
from kafka_source import here, timestream, timestream_windows
from pyspark.sql import DataFrame, SparkSession
from sessions import Apart
from side_by_side import Comparison, Done, compare, report
from sizes import SKIPPED, WARM_UP, records, size
from streams import finish

PARTITIONS: Final = 4
SIZES: Final = records((2_000_000,), (100_000,))
CHECKED: Final = 100_000
"""So many records, in a topic of their own, have their rows compared."""

RECORD: Final = """message_key BYTES, message BYTES,
    topic STRING METADATA VIRTUAL, part INT METADATA FROM 'partition' VIRTUAL,
    place BIGINT METADATA FROM 'offset' VIRTUAL, instant TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
    kind STRING METADATA FROM 'timestamp-type' VIRTUAL"""
RAW: Final = {
    "key_format": "raw",
    "key_fields": "message_key",
    "value_format": "raw",
    "value_fields-include": "EXCEPT_KEY",
}
READING: Final = """device BIGINT, ts BIGINT, reading DOUBLE,
    event_time AS TO_TIMESTAMP_LTZ(ts, 3),
    WATERMARK FOR event_time AS event_time - INTERVAL '1' SECOND"""
RECORDS_ROW: Final = """message_key BYTES, message BYTES, topic STRING, part INT, place BIGINT,
    instant TIMESTAMP_LTZ(3), kind STRING"""
MINUTES_ROW: Final = "device BIGINT, minute_start TIMESTAMP(3), mean DOUBLE"
MINUTES: Final = """SELECT device, window_start, AVG(reading)
    FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(event_time), INTERVAL '1' MINUTE))
    GROUP BY device, window_start, window_end"""

NOOP, WINDOW = "Kafka -> noop", "Kafka -> JSON -> window"


def flink_job(job: str, bootstrap: str, topic: str, rows: Path | None = None) -> list[str]:
    """The statements of a job that writes its rows to `rows`."""
    if job == NOOP:
        table = kafka_table("records", RECORD, bootstrap, topic, **RAW)
        return [
            *table,
            *sink_table("answer", RECORDS_ROW, rows),
            "INSERT INTO answer SELECT message_key, message, topic, part, place, instant, kind "
            "FROM records",
        ]
    table = kafka_table("readings", READING, bootstrap, topic)
    return [*table, *sink_table("answer", MINUTES_ROW, rows), f"INSERT INTO answer {MINUTES}"]


FRAMES: Final[Mapping[str, Callable[[SparkSession, Broker, str], DataFrame]]] = {
    NOOP: timestream,
    # The end of the topic releases Flink's last windows too.
    WINDOW: functools.partial(timestream_windows, finalCti="true"),
}


def our_run(job: str, bootstrap: str, topic: str) -> Done:
    """One run of ours, in its process."""
    return Done(finish(FRAMES[job](*here(bootstrap), topic)).run_s)


def flink_rows(flink: Flink, job: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """The sums of Flink's rows."""
    with tempfile.TemporaryDirectory() as place:
        flink.run(*flink_job(job, bootstrap, topic, Path(place) / "rows"))
        # Files of a bounded job are there once it has ended; hidden ones were never finished.
        files = [each for each in Path(place).rglob("part-*") if not each.name.startswith(".")]
        return sum_up(job, (json.loads(line) for file in files for line in file.open()))


def our_rows(job: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """The sums of our rows."""
    frame = FRAMES[job](*here(bootstrap), topic)
    if job == NOOP:
        frame = frame.where("cti IS NULL").selectExpr(
            "partition AS part", "offset AS place", "key AS message_key",
            "value AS message",
        )  # fmt: skip
    else:
        frame = frame.selectExpr(
            "device", "date_format(window.start, 'yyyy-MM-dd HH:mm:ss') AS minute_start",
            "`avg(reading)` AS mean",
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        writer = frame.writeStream.format("json").option("checkpointLocation", f"{place}/kept")
        writer.trigger(availableNow=True).start(f"{place}/rows").awaitTermination()
        files = Path(place, "rows").glob("part-*.json")
        return sum_up(job, (json.loads(line) for file in files for line in file.open()))


def sum_up(job: str, rows: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the rows, and add up what differs where they do."""
    if job == NOOP:
        found = [(row["part"], row["place"], row["message_key"], row["message"]) for row in rows]
    else:
        # Sums of floats depend on their order, in the last digits.
        found = [(row["device"], row["minute_start"], f"{row['mean']:.6f}") for row in rows]
    # A checksum of the rows in any order.
    return {"rows": len(found), "checksum": sum(zlib.crc32(repr(each).encode()) for each in found)}


def measure() -> Iterator[Comparison]:
    """Both jobs."""
    # A small run would be over before Flink has warmed up.
    if not takes_part(size(None, "0")):
        print(
            "beside_flink is skipped: it runs in full size where there is Flink; next step: "
            "python bench/measuring/flink.py installs it (844 MB), or BENCH_FLINK=1",
            file=sys.stderr,
        )
        raise SystemExit(SKIPPED)
    with ExitStack() as open_:
        kafka = open_.enter_context(broker(say=lambda _: None))
        flink, ours = open_.enter_context(Flink()), open_.enter_context(Apart())
        checked = filled(kafka, CHECKED, PARTITIONS)
        for count in SIZES:
            topic = filled(kafka, count, PARTITIONS)
            for job in (NOOP, WINDOW):
                of_check = (job, kafka.bootstrap, checked)
                given = (job, kafka.bootstrap, topic)
                yield compare(
                    f"{job}, flink",
                    {
                        "flink": Measured(flink, *given),
                        "timestream": ours.contender(our_run, *given),
                    },
                    count,
                    warm_up=WARM_UP,
                    checks={
                        "flink": functools.partial(flink_rows, flink, *of_check),
                        "timestream": functools.partial(ours.call, our_rows, *of_check),
                    },
                )


class Measured:
    """Flink as `compare` wants it."""

    def __init__(self, flink: Flink, job: str, bootstrap: str, topic: str) -> None:
        self.pid = flink.pid
        self._flink, self._given = flink, (job, bootstrap, topic)

    def __call__(self) -> Done:
        return Done(self._flink.run(*flink_job(*self._given)))


if __name__ == "__main__":
    report(__file__, measure())
