"""Views of queries for tests of the live page."""

import dataclasses
import json
import os

from timestream.histories import NOON, SECOND, history, share, state

from pyspark_timestream.commands.watch.follow import QueryLog
from pyspark_timestream.kafka.diagnosis.history import BatchReport


def view_of(shares, topic="topic", query="q", batches=3, **more):
    """The view of a query with these shares in each batch; `more` is in its offset."""
    log = QueryLog(query)
    for moment in history(*[shares] * batches, **more):
        offset = moment.offset.to_json()
        offset["partitions"] = {topic: next(iter(offset["partitions"].values()))}
        log.add(
            moment.offset.number,
            BatchReport(moment.planned_us, (offset,)),
            moment.planned_us + SECOND,
        )
    return log.view(NOON + batches * SECOND, runs=True)


def look(follower, now_us):
    """The page's present view of a checkpoint."""
    follower.read()
    return follower.view(now_us)


def write_large_batch(root, number, partitions):
    """Plan a batch of this many partitions, one of them holding back, and finish it."""
    shares = [share(state(number if n != 7 else 1), 10, 10 * number) for n in range(partitions)]
    (moment,) = history(shares)
    offset = dataclasses.replace(moment.offset, number=number)
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": NOON // 1_000 + number * 1_000}
    written = root / "offsets" / ".new"
    written.write_text("\n".join(["v1", json.dumps(metadata), json.dumps(offset.to_json())]))
    written.rename(root / "offsets" / str(number))
    (root / "commits" / str(number)).write_text("v1\n{}")


def write(root, moments, *, finished=None):
    """Write batches into a checkpoint; all are finished unless told."""
    for name in ("offsets", "commits"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for moment in moments:
        number = moment.offset.number
        note = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": moment.planned_us // 1000})
        lines = ["v1", note, json.dumps(moment.offset.to_json())]
        (root / "offsets" / str(number)).write_text("\n".join(lines))
        if finished is None or number in finished:
            path = root / "commits" / str(number)
            path.write_text("v1\n{}")
            done_s = (moment.planned_us + SECOND // 2) / SECOND
            os.utime(path, (done_s, done_s))


def running(count, *, late=0):
    """Batches of two partitions; the second one drops `late` rows a batch."""
    return history(
        *(
            [
                share(state(n, events=10 * n), 10, 10 * n),
                share(state(n, events=10 * n, dropped=late * n), 10, 10 * n),
            ]
            for n in range(count)
        ),
        left=None,
    )
