"""Keep a store's settings as properties of its Delta table, and check what its policy allows.

The properties keep the settings of the store's creation. A policy says what principals may do
(semantics 28). It guards against mistakes of honest clients. Anyone who can write to the store's
directory can do anything, so the access control of the storage is the real protection.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.core.instants import format_duration, parse_duration
from pyspark_timestream.errors import OptionError, compose_message
from pyspark_tseries.errors import PermissionDenied, UnusableStore
from pyspark_tseries.model.columns import is_valid_text
from pyspark_tseries.model.commits import CommitMetadata
from pyspark_tseries.model.ranges import (
    DEFAULT_INITIAL,
    DEFAULT_RANGE,
    FULL_RANGE,
    Query,
    RetainedRange,
    format_initial,
    format_range,
    parse_initial,
    parse_range,
)

PERMISSIONS: Final = ("read", "update", "edit", "edit_own", "query_obsolete", "own")

AccessPolicy = dict[str, tuple[str, ...]]
"""Principal -> permissions; a principal that is not listed has none."""


def parse_policy(mapping: Mapping[str, Iterable[str]] | Any) -> AccessPolicy:
    """Return the policy, with each principal's permissions in the order of `PERMISSIONS`.

    >>> parse_policy({"ann": {"update", "read"}})
    {'ann': ('read', 'update')}
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{mapping!r} maps no principals to permissions")
    policy: AccessPolicy = {}
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


def ensure_owner(policy: AccessPolicy, principal: str) -> AccessPolicy:
    """Return `policy`; make `principal`, who sets it, an owner if it names none.

    >>> ensure_owner({"ann": ("read",)}, "boss")
    {'ann': ('read',), 'boss': ('own',)}
    """
    if any("own" in permissions for permissions in policy.values()):
        return policy
    return {**policy, principal: (*policy.get(principal, ()), "own")}


def format_policy(policy: AccessPolicy) -> str:
    """Return `policy` as JSON; `parse_policy(json.loads(...))` reads it back."""
    return json.dumps(policy, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """The permissions of `principal` under `policy`; None allows everything."""

    policy: AccessPolicy | None
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


Properties = Mapping[str, str]

FORMAT_VERSION: Final = 1
_VERSION: Final = "tseries.formatVersion"
_RANGE: Final = "tseries.retainedRange"
_POLICY: Final = "tseries.policy"
_SUBSCRIPTION: Final = "tseries.subscriptionRange"
_MIN_RETENTION: Final = "tseries.minRetentionAge"
LOCAL_CHECKPOINT_INTERVAL: Final = 128
"""Commits from one checkpoint to the next. A thread writes a checkpoint, with the core time of six
small commits; fewer than one commit in a hundred runs beside it. A process that opens the store
reads the entries after the last checkpoint, in 0.2 ms each."""

REMOTE_CHECKPOINT_INTERVAL: Final = 10
"""In an object store, reading each of these entries takes a request."""

READERS_PROPERTIES: Final = {"delta.dataSkippingStatsColumns": "series,sequence,timestamp"}
"""Tells other readers of the table which columns have bounds in the log. Without this, some take
missing bounds to mean that a column holds only nulls."""

_DEFAULT_MIN_RETENTION_US: Final = 600_000_000


def new_properties(
    retained: RetainedRange | None = None,
    min_retention_us: int | None = None,
    subscription: RetainedRange | None = None,
    policy: AccessPolicy | None = None,
    *,
    is_local: bool = False,
) -> dict[str, str]:
    """Return the properties of a new store; None stands for the default."""
    interval = LOCAL_CHECKPOINT_INTERVAL if is_local else REMOTE_CHECKPOINT_INTERVAL
    properties = {
        "delta.checkpointInterval": str(interval),
        "delta.logRetentionDuration": "interval 1 hours",
        "delta.deletedFileRetentionDuration": "interval 1 days",
        **READERS_PROPERTIES,
        _VERSION: str(FORMAT_VERSION),
        _RANGE: format_range(retained or DEFAULT_RANGE),
    }
    if min_retention_us is not None:
        properties[_MIN_RETENTION] = format_duration(min_retention_us)
    if subscription is not None:
        properties[_SUBSCRIPTION] = format_initial(subscription)
    if policy is not None:
        properties[_POLICY] = format_policy(policy)
    return properties


def tseries_properties(properties: Properties) -> dict[str, str]:
    """Return the properties of this package, without those of Delta."""
    return {name: texts for name, texts in properties.items() if name.startswith("tseries.")}


def check_version(properties: Properties, location: str) -> None:
    """Raise UnusableStore if the table at `location` is not a store, or has another version."""
    version = properties.get(_VERSION)
    if version is None:
        raise UnusableStore(
            f"'{location}' is a Delta table but not a tseries store",
            "a path that a tseries write has created",
            "choose another path",
        )
    if version != str(FORMAT_VERSION):
        raise UnusableStore(
            f"store '{location}' has {_VERSION} {version}",
            str(FORMAT_VERSION),
            "install the version of this package that wrote it",
        )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of a store after a commit, which may have changed the first two.

    Attributes:
        retained: the retained range.
        policy: the permissions; None allows everything.
        subscription: the default range of initial events of a subscription.
        min_retention_us: how long after its commit compaction keeps an event at least.
    """

    retained: RetainedRange = DEFAULT_RANGE
    policy: AccessPolicy | None = None
    subscription: RetainedRange = DEFAULT_INITIAL
    min_retention_us: int = _DEFAULT_MIN_RETENTION_US


def read_settings(properties: Properties, metadata: CommitMetadata) -> StoreSettings:
    """Return the settings after the commit of `metadata`."""
    policy = metadata.policy or properties.get(_POLICY)
    initial = properties.get(_SUBSCRIPTION)
    age = properties.get(_MIN_RETENTION)
    return StoreSettings(
        parse_range(metadata.retained or properties.get(_RANGE) or format_range(DEFAULT_RANGE)),
        None if policy is None else parse_policy(json.loads(policy)),
        DEFAULT_INITIAL if initial is None else parse_initial(initial),
        _DEFAULT_MIN_RETENTION_US if age is None else parse_duration(age),
    )


_FIXED_AT_CREATION: Final[dict[str, tuple[Callable[[RetainedRange], str], str]]] = {
    "retainedRange": (format_range, "leave it out, or write to a new store"),
    "subscriptionRange": (format_initial, "leave it out, and set it on the subscription instead"),
}


def check_unchanged(
    option: str, requested: RetainedRange | None, stored: RetainedRange, location: str
) -> None:
    """Raise OptionError if a write's `option` differs from the one the store was created with."""
    if requested is None or requested == stored:
        return
    to_text, next_step = _FIXED_AT_CREATION[option]
    raise OptionError(
        option,
        f"'{to_text(requested)}' is not the range '{to_text(stored)}' that the store '{location}' "
        "was created with",
        f"'{to_text(stored)}'",
        next_step,
    )
