"""`Questions`: what one can ask of a store, of its last commit or of an earlier one."""

from abc import ABC, abstractmethod

from pyspark_tseries.client.range_query import RangeQuery
from pyspark_tseries.read.view import View


class Questions(ABC):
    """The questions of an open store; each is answered by one commit."""

    @abstractmethod
    def _view(self) -> View:
        """Return the commit that a question asked now is about."""

    def range_query(self) -> RangeQuery:
        """Begin a query for all values; its methods narrow it step by step."""
        return RangeQuery(open_view=self._view)
