"""Requests to end streams, made by a client of Spark Connect (semantics 11.12).

A request is a file beside Spark's driver (`end_requests`), and this program may run far from it.
Spark asks a Python data source for its columns in a process beside the driver, with the driver's
environment: a source without rows makes the request there.
"""

from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_timestream.connector.spark_errors import hide_tracebacks
from pyspark_timestream.frames.end_requests import EndRequests, find_directory

__all__ = ["EndRequestSource", "ServerEndRequests"]

_FORMAT: Final = "timestream_end_request"
_MAKE, _WITHDRAW = "make", "withdraw"


@hide_tracebacks
class EndRequestSource(DataSource):
    """Makes or withdraws the request for `stream` when Spark asks for its columns; has no rows."""

    @classmethod
    def name(cls) -> str:
        """The format's name, which only this module uses."""
        return _FORMAT

    def schema(self) -> StructType:
        """Act where Spark's driver runs.

        Raises:
            OSError: as `EndRequests.make`.
        """
        requests = EndRequests(find_directory())
        act = requests.make if self.options["act"] == _MAKE else requests.withdraw
        act(self.options["stream"])
        return StructType([StructField("stream", StringType())])


class ServerEndRequests:
    """The requests beside the driver of a Spark Connect server; as `EndRequests`.

    Args:
        spark: a session of that server.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._sent = 0
        spark.dataSource.register(EndRequestSource)

    def make(self, stream: str) -> None:
        """Ask that the stream with that id ends; again is the same."""
        self._send(_MAKE, stream)

    def withdraw(self, stream: str) -> None:
        """Take the request back."""
        self._send(_WITHDRAW, stream)

    def _send(self, act: str, stream: str) -> None:
        self._sent += 1
        # No two are alike: Spark may remember the columns of a read that it has planned.
        options = {"act": act, "stream": stream, "number": str(self._sent)}
        _ = self._spark.read.format(_FORMAT).options(**options).load().schema
