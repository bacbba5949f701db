"""Who may do what in a store that carries a policy (semantics 28).

The policy guards honest clients: whoever can write to the store's directory can do anything, so the
storage's own access control is the real guard.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_tseries.errors import PermissionDenied
from pyspark_tseries.model.query import EVERYTHING, Query
from pyspark_tseries.model.valid_text import is_text

__all__ = ["PERMISSIONS", "Guard", "Policy", "format_policy", "parse_policy", "with_owner"]

PERMISSIONS: Final = ("read", "update", "edit", "edit_own", "query_obsolete", "own")

Policy = dict[str, tuple[str, ...]]
"""Principal -> what it may; who is not in it may nothing."""


def parse_policy(given: Mapping[str, Iterable[str]] | Any) -> Policy:
    """`given`, each principal's permissions in the order of `PERMISSIONS`.

    Raises:
        ValueError: no mapping of names to permissions.

    >>> parse_policy({"ann": {"update", "read"}})
    {'ann': ('read', 'update')}
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{given!r} maps no principals to permissions")
    policy: Policy = {}
    for principal, permissions in given.items():
        listed = isinstance(permissions, Iterable) and not isinstance(permissions, str)
        if not is_text(principal) or not listed:
            raise ValueError(f"{principal!r}: {permissions!r} is no name with a set of permissions")
        mine = set(permissions)
        unknown = sorted(set(map(str, mine)) - set(PERMISSIONS))
        if unknown:
            raise ValueError(
                f"'{unknown[0]}' of principal '{principal}' is no permission; accepted: "
                f"{', '.join(PERMISSIONS)}"
            )
        policy[principal] = tuple(name for name in PERMISSIONS if name in mine)
    return policy


def with_owner(policy: Policy, principal: str) -> Policy:
    """`policy`, in which `principal`, who sets it, is an owner where it names none.

    >>> with_owner({"ann": ("read",)}, "boss")
    {'ann': ('read',), 'boss': ('own',)}
    """
    if any("own" in permissions for permissions in policy.values()):
        return policy
    return {**policy, principal: (*policy.get(principal, ()), "own")}


def _owns(policy: Policy, principal: str) -> bool:
    """Whether `principal` may do what asks for `own`.

    A policy of before that right was known names no owner: then whoever may update is one, where
    nobody may do that either, whoever is named, and of a policy that names nobody, everybody.
    """
    for right in ("own", "update"):
        owners = {name for name, permissions in policy.items() if right in permissions}
        if owners:
            return principal in owners
    return not policy or principal in policy


def format_policy(policy: Policy) -> str:
    """`policy` as JSON; reads back with `parse_policy(json.loads(...))`."""
    return json.dumps(policy, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Guard:
    """What `principal` may do under `policy`; everything where there is none."""

    policy: Policy | None
    principal: str

    def may(self, permission: str) -> bool:
        """Whether the principal has `permission`."""
        if self.policy is None:
            return True
        if permission == "own":
            return _owns(self.policy, self.principal)
        return permission in self.policy.get(self.principal, ())

    def need(self, permission: str, to_do: str) -> None:
        """Raises PermissionDenied where the principal lacks `permission`."""
        if not self.may(permission):
            raise PermissionDenied(
                f"principal '{self.principal}' may not {to_do}: the store's policy does not give "
                f"it '{permission}'; accepted: a principal that has it; next step: name another "
                "principal, or have the policy changed with TimeSeries.set_policy"
            )

    def need_query(self, query: Query) -> None:
        """Raises PermissionDenied where the principal may not ask `query`."""
        self.need("read", "read the store")
        if query.kind != "values":
            self.need("query_obsolete", f"ask for {query.kind}, which shows overridden values")
        elif query.edits != EVERYTHING:
            self.need("query_obsolete", "set an edit range, which shows overridden values")

    def need_authors(self, authors: Iterable[str]) -> None:
        """Raises PermissionDenied where, under a policy, an author is not the principal."""
        others = sorted(set(authors) - {self.principal})
        if self.policy is not None and others:
            raise PermissionDenied(
                f"principal '{self.principal}' may not write in the name of '{others[0]}': under a "
                f"policy the author is the principal; accepted: '{self.principal}'; next step: "
                "leave the author out, or name another principal"
            )

    def need_edits(self, original_authors: Iterable[str]) -> None:
        """Raises PermissionDenied where the principal may not edit events of these authors."""
        if self.may("edit"):
            return
        self.need("edit_own", "edit events")
        others = sorted(set(original_authors) - {self.principal})
        if others:
            raise PermissionDenied(
                f"principal '{self.principal}' may not edit an event of '{others[0]}': it has "
                "'edit_own' only; accepted: originals of its own authorship, or a principal that "
                "has 'edit'; next step: name another principal, or have the policy changed"
            )
