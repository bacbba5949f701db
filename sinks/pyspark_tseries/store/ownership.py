"""Checks of the calls reserved to owners: compact, rebuild, repair, maintain."""

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.policy import AccessCheck, Policy
from pyspark_tseries.model.properties import current_policy
from pyspark_tseries.model.series_index import NO_COMMIT, CommitMetadata
from pyspark_tseries.options import os_user
from pyspark_tseries.storage.head_files import readable_metadata
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.store import Store

__all__ = ["require_owner", "require_owner_of_damaged"]


def require_owner(store: Store, principal: str | None, to_do: str) -> None:
    """Refuse a principal that is not an owner of a store with a policy.

    If the head cannot be read, the newest readable one counts, as when it is rebuilt.

    Args:
        store: the store, up to date.
        principal: the one who calls; None: the OS user.
        to_do: the call, for the message.

    Raises:
        PermissionDenied: the principal is not an owner.
    """
    try:
        policy = store.policy
    except UnusableStore:
        policy = current_policy(store.log.properties(), _newest_metadata(store.location))
    _require_ownership(policy, principal, to_do)


def require_owner_of_damaged(location: Location, principal: str | None, to_do: str) -> None:
    """As `require_owner`; if even the log cannot be read, the newest readable head decides."""
    try:
        store = Store.open_damaged(location)
    except UnusableStore:
        _require_ownership(current_policy({}, _newest_metadata(location)), principal, to_do)
    else:
        require_owner(store, principal, to_do)


def _require_ownership(policy: Policy | None, principal: str | None, to_do: str) -> None:
    AccessCheck(policy, os_user() if principal is None else principal).require("own", to_do)


def _newest_metadata(location: Location) -> CommitMetadata:
    found = readable_metadata(location).values()
    return max(found, key=lambda metadata: metadata.commit, default=NO_COMMIT)
