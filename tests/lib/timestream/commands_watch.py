"""Views of queries for tests of the live page."""

from timestream.histories import NOON, SECOND, history

from pyspark_timestream.commands.watch.follow import QueryLog
from pyspark_timestream.kafka.diagnosis.history import Batch


def view_of(shares, topic="topic", query="q", batches=3):
    """The view of a query whose stream has these shares in each batch."""
    log = QueryLog(query)
    for moment in history(*[shares] * batches):
        offset = moment.offset.to_json()
        offset["partitions"] = {topic: next(iter(offset["partitions"].values()))}
        log.add(
            moment.offset.number, Batch(moment.planned_us, (offset,)), moment.planned_us + SECOND
        )
    return log.view(NOON + batches * SECOND, runs=True)
