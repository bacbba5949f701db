"""Check what principals may do in a store that has a policy (semantics 28).

The policy guards against mistakes of honest clients. Anyone who can write to the store's directory
can do anything, so the access control of the storage is the real protection.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.errors import compose_message
from pyspark_tseries.errors import PermissionDenied
from pyspark_tseries.model.columns import is_valid_text
from pyspark_tseries.model.ranges import FULL_RANGE, Query

PERMISSIONS: Final = ("read", "update", "edit", "edit_own", "query_obsolete", "own")

Policy = dict[str, tuple[str, ...]]
"""Principal -> permissions; a principal that is not listed has none."""


def parse_policy(mapping: Mapping[str, Iterable[str]] | Any) -> Policy:
    """Return the policy, with each principal's permissions in the order of `PERMISSIONS`.

    >>> parse_policy({"ann": {"update", "read"}})
    {'ann': ('read', 'update')}
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{mapping!r} maps no principals to permissions")
    policy: Policy = {}
    for principal, permissions in mapping.items():
        listed = isinstance(permissions, Iterable) and not isinstance(permissions, str)
        if not is_valid_text(principal) or not listed:
            raise ValueError(
                f"{principal!r}: {permissions!r} is not a name with a set of permissions"
            )
        mine = set(permissions)
        unknown = sorted(set(map(str, mine)) - set(PERMISSIONS))
        if unknown:
            raise ValueError(
                compose_message(
                    f"'{unknown[0]}' of principal '{principal}' is not a permission",
                    ", ".join(PERMISSIONS),
                )
            )
        policy[principal] = tuple(name for name in PERMISSIONS if name in mine)
    return policy


def ensure_owner(policy: Policy, principal: str) -> Policy:
    """Return `policy`; make `principal`, who sets it, an owner if it names none.

    >>> ensure_owner({"ann": ("read",)}, "boss")
    {'ann': ('read',), 'boss': ('own',)}
    """
    if any("own" in permissions for permissions in policy.values()):
        return policy
    return {**policy, principal: (*policy.get(principal, ()), "own")}


def format_policy(policy: Policy) -> str:
    """Return `policy` as JSON; `parse_policy(json.loads(...))` reads it back."""
    return json.dumps(policy, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """The permissions of `principal` under `policy`; None allows everything."""

    policy: Policy | None
    principal: str

    def may(self, permission: str) -> bool:
        """Return whether the principal has `permission`."""
        return self.policy is None or permission in self.policy.get(self.principal, ())

    def require(self, permission: str, to_do: str) -> None:
        """Raise PermissionDenied if the principal lacks `permission`."""
        if not self.may(permission):
            raise PermissionDenied(
                f"principal '{self.principal}' may not {to_do}: the store's policy does not give "
                f"it '{permission}'",
                "a principal that has it",
                "act as another principal (option 'principal', in TimeSeries 'author'), or have "
                "the policy changed with TimeSeries.set_policy",
            )

    def require_query(self, query: Query) -> None:
        """Raise PermissionDenied if the principal may not run `query`."""
        self.require("read", "read the store")
        if query.kind != "values":
            self.require("query_obsolete", f"ask for {query.kind}, which shows overridden values")
        elif query.edits != FULL_RANGE:
            self.require("query_obsolete", "set an edit range, which shows overridden values")

    def require_authors(self, authors: Iterable[str]) -> None:
        """Raise PermissionDenied if, under a policy, an author is not the principal."""
        others = sorted(set(authors) - {self.principal})
        if self.policy is not None and others:
            raise PermissionDenied(
                f"principal '{self.principal}' may not write in the name of '{others[0]}': under "
                "a policy the author is the principal",
                f"'{self.principal}'",
                "leave the author out, or act as another principal",
            )

    def require_edits(self, original_authors: Iterable[str]) -> None:
        """Raise PermissionDenied if the principal may not edit events of these authors."""
        if self.may("edit"):
            return
        self.require("edit_own", "edit events")
        others = sorted(set(original_authors) - {self.principal})
        if others:
            raise PermissionDenied(
                f"principal '{self.principal}' may not edit an event of '{others[0]}': it has "
                "'edit_own' only",
                "originals of its own authorship, or a principal that has 'edit'",
                "act as another principal, or have the policy changed",
            )
