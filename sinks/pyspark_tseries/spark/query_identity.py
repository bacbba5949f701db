"""The id of the query that calls a function for each batch.

Spark's classic client calls the function in the query's own thread, which knows the id. Spark
Connect calls it in a process beside the server, in a session of its own that knows no query. There
the query has a name that no other has, and is found by it among those of the session that
started it.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, is_remote
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_tseries.errors import UpdateFailed

__all__ = ["QueryIdentity"]


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The way to find a query from within one of its batches.

    Attributes:
        session: the session of Spark Connect that starts the query; None: the client is classic.
            Pickled into the server's process it is the same session there.
        name: the query's in that session.
    """

    session: Any
    name: str

    @staticmethod
    def of(rows: DataFrame) -> "QueryIdentity":
        """The identity of a query yet to be started on `rows`."""
        name = f"correct_late {secrets.token_hex(4)}"
        return QueryIdentity(rows.sparkSession if is_remote() else None, name)

    def mark(self, writer: DataStreamWriter) -> DataStreamWriter:
        """The writer, which gives its query the name by which it is found."""
        return writer if self.session is None else writer.queryName(self.name)

    def find_id(self, batch: DataFrame) -> str:
        """The id of the query that has made `batch`; it stays the same over restarts.

        Raises:
            UpdateFailed: there is no such query.
        """
        if self.session is None:
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
