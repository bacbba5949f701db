"""Who may make an owner's calls: compact, rebuild, repair, maintain; also of a damaged store."""

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.policy import Guard, Policy
from pyspark_tseries.model.properties import policy_of
from pyspark_tseries.model.series_index import EMPTY_NOTE, Note
from pyspark_tseries.options.values import os_user
from pyspark_tseries.storage.head_files import readable_notes
from pyspark_tseries.storage.location import Place
from pyspark_tseries.store.store import Store

__all__ = ["need_owner", "need_owner_of_damaged"]


def need_owner(store: Store, principal: str | None, to_do: str) -> None:
    """Refuses who is no owner of a store with a policy.

    Of a head that cannot be read the newest one that can counts, as it does when it is rebuilt.

    Args:
        store: the store, up to date.
        principal: who asks; None: the OS user.
        to_do: what is asked for.

    Raises:
        PermissionDenied: the principal is no owner.
    """
    try:
        policy = store.policy
    except UnusableStore:
        policy = policy_of(store.log.properties(), _newest_note(store.place))
    _need(policy, principal, to_do)


def need_owner_of_damaged(place: Place, principal: str | None, to_do: str) -> None:
    """As `need_owner`; where even the log cannot be read, by what the newest head says alone."""
    try:
        store = Store.open_damaged(place)
    except UnusableStore:
        _need(policy_of({}, _newest_note(place)), principal, to_do)
    else:
        need_owner(store, principal, to_do)


def _need(policy: Policy | None, principal: str | None, to_do: str) -> None:
    Guard(policy, os_user() if principal is None else principal).need("own", to_do)


def _newest_note(place: Place) -> Note:
    notes = readable_notes(place).values()
    return max(notes, key=lambda note: note.commit, default=EMPTY_NOTE)
