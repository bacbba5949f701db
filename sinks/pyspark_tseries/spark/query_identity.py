"""The id of the query that calls a function for each batch.

Spark's classic client calls the function in the query's own thread, which knows the id. Spark
Connect calls it in a process beside the server, in a session of its own that knows no query. There
the query has a name that no other has, and is found by it among those of the session that
started it.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, is_remote
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_tseries.errors import UpdateFailed
from pyspark_tseries.spark.checkpoint_store import checkpoint_path
from pyspark_tseries.spark.late_checks import JudgedStream, read_checkpoint, read_streams

__all__ = ["QueryIdentity"]


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The way to find a query from within one of its batches.

    Attributes:
        session: the session that starts the query. One of Spark Connect is the same session when it
            is pickled into the server's process; a classic one is never pickled.
        name: the query's in a session of Spark Connect; None: the client is classic.
    """

    session: Any
    name: str | None

    @staticmethod
    def of(rows: DataFrame) -> "QueryIdentity":
        """The identity of a query yet to be started on `rows`."""
        name = f"correct_late {secrets.token_hex(4)}"
        return QueryIdentity(rows.sparkSession, name if is_remote() else None)

    def mark(self, writer: DataStreamWriter) -> DataStreamWriter:
        """The writer, which gives its query the name by which it is found."""
        return writer if self.name is None else writer.queryName(self.name)

    def find_id(self, batch: DataFrame) -> str:
        """The id of the query that has made `batch`; it stays the same over restarts.

        Raises:
            UpdateFailed: there is no such query.
        """
        if self.name is None:
            context = batch.sparkSession.sparkContext
            found = context.getLocalProperty("sql.streaming.queryId")
            next_step = "start the writer that correct_late returns"
        else:
            active = self.session.streams.active
            found = next((each.id for each in active if each.name == self.name), None)
            next_step = "leave queryName(...) out, since the query is found by its name here"
        if not found:
            raise UpdateFailed(
                "Spark did not say which query it runs (sql.streaming.queryId)",
                "a streaming query",
                next_step,
            )
        return str(found)

    def find_streams(self, query_id: str, number: int) -> Sequence[JudgedStream] | None:
        """How the query's streams are judged: none if unknown; None if it is not known yet.

        The checkpoint says it at once. A session of Spark Connect does not know that, and its
        query's progress says it from the second batch of a run on.
        """
        if self.name is None:
            running: Any = self.session.streams.get(query_id)
            if running is None:
                return ()
            root = str(running._jsq.streamingQuery().resolvedCheckpointRoot())
            return read_checkpoint(checkpoint_path(root), number)
        (query,) = (each for each in self.session.streams.active if each.name == self.name)
        if not query.recentProgress:
            return None
        # The first batch of the first run has the starts of all partitions.
        progress = json.loads(query.recentProgress[0].json)
        ends = [source["endOffset"] for source in progress["sources"]]
        offsets = [json.loads(end) if isinstance(end, str) else end for end in ends]
        return read_streams(offsets, progress["batchId"])
