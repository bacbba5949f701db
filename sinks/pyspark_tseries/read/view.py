"""Ask one commit of a store: every question is asked of such a view (semantics 31).

A view never changes, so all that is asked of it belongs together. The client, rollups and followers
open views; what they ask are pure functions of the snapshot, its index and the chosen series.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyspark_timestream.errors import wrap_methods
from pyspark_tseries.model.arrays import NO_SEQUENCE
from pyspark_tseries.model.policy import AccessCheck
from pyspark_tseries.model.ranges import Query
from pyspark_tseries.model.series_choice import SeriesChoice
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.scan import Answer, run_query
from pyspark_tseries.storage.failures import explain_failure
from pyspark_tseries.storage.snapshot import Snapshot


@dataclass(frozen=True)
@wrap_methods(lambda view, error: explain_failure(view.snapshot.location, error))
class View:
    """One commit of a store, and who asks.

    Attributes:
        snapshot: the store as of the commit.
        principal: whose rights count where the store has a policy.
    """

    snapshot: Snapshot
    principal: str

    @property
    def access(self) -> AccessCheck:
        """What the principal may do."""
        return AccessCheck(self.snapshot.settings.policy, self.principal)

    def choose(self, choice: SeriesChoice) -> tuple[SeriesIndex, list[str] | None]:
        """Return the index, at least of the chosen series, and their names; None for all.

        Series that were chosen by name may be unknown. Names are sorted and distinct.
        """
        if choice.names is not None:
            return self.snapshot.index(choice.names), list(choice.names)
        index = self.snapshot.index()
        return index, None if choice.is_all else choice.pick(known_series(index))

    def select(
        self, query: Query, choice: SeriesChoice, columns: Sequence[str] | None = None
    ) -> Answer:
        """Run `query` on the chosen series, in the order of their names; see `run_query`.

        Raises:
            PermissionDenied: the principal may not ask this.
            InvalidQuery: as `run_query`.
        """
        self.access.require_query(query)
        index, names = self.choose(choice)
        return run_query(self.snapshot, index, query, names, columns=columns)


def known_series(index: SeriesIndex) -> list[str]:
    """Return the names of all series that have events, in the order of the index."""
    names = index.ids.names()
    there = np.flatnonzero(index.columns["last_sequence"] != NO_SEQUENCE)
    return (
        names[: len(there)]
        if len(there) == index.columns.rows
        else [names[row] for row in there.tolist()]
    )
