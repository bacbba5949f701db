"""What a store's creation fixes, as properties of its Delta table."""

import json
from collections.abc import Callable, Mapping
from typing import Final

from pyspark_timestream.connector.instants import format_duration, parse_duration
from pyspark_timestream.connector.options import OptionError
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.policy import Policy, format_policy, parse_policy
from pyspark_tseries.model.retention import DEFAULT, RetainedRange, format_range, parse_range
from pyspark_tseries.model.series_index import Note
from pyspark_tseries.subscribe.position import INITIAL_DEFAULT, format_initial, parse_initial

__all__ = [
    "check_same",
    "check_version",
    "min_retention_us",
    "new_properties",
    "own",
    "policy_of",
    "retained_of",
    "subscription_of",
]

Properties = Mapping[str, str]

FORMAT_VERSION: Final = 1
_VERSION: Final = "tseries.formatVersion"
_RANGE: Final = "tseries.retainedRange"
_POLICY: Final = "tseries.policy"
_SUBSCRIPTION: Final = "tseries.subscriptionRange"
_MIN_RETENTION: Final = "tseries.minRetentionAge"
_DEFAULT_MIN_RETENTION_US: Final = 600_000_000


def new_properties(
    retained: RetainedRange | None = None,
    min_retention_us: int | None = None,
    subscription: RetainedRange | None = None,
    policy: Policy | None = None,
) -> dict[str, str]:
    """The properties of a new store; what is None is left to its default."""
    properties = {
        "delta.checkpointInterval": "10",
        "delta.logRetentionDuration": "interval 1 hours",
        "delta.deletedFileRetentionDuration": "interval 1 days",
        _VERSION: str(FORMAT_VERSION),
        _RANGE: format_range(retained or DEFAULT),
    }
    if min_retention_us is not None:
        properties[_MIN_RETENTION] = format_duration(min_retention_us)
    if subscription is not None:
        properties[_SUBSCRIPTION] = format_initial(subscription)
    if policy is not None:
        properties[_POLICY] = format_policy(policy)
    return properties


def own(properties: Properties) -> dict[str, str]:
    """Those that say what store it is; the others say how Delta keeps it."""
    return {name: said for name, said in properties.items() if name.startswith("tseries.")}


def check_version(properties: Properties, location: str) -> None:
    """Raises UnusableStore where the table at `location` is of a newer version, or no store."""
    version = properties.get(_VERSION)
    if version is None:
        raise UnusableStore(
            f"'{location}' is a Delta table but no tseries store; accepted: a path that a "
            "tseries write has created; next step: choose another path"
        )
    if not (version.isascii() and version.isdecimal()) or int(version) > FORMAT_VERSION:
        raise UnusableStore(
            f"store '{location}' has {_VERSION} {version}; accepted: {FORMAT_VERSION} or "
            "older; next step: install a newer version of this package"
        )


def retained_of(properties: Properties, note: Note) -> RetainedRange:
    """The retained range with the head of `note`, which may have changed it."""
    return parse_range(note.retained or properties[_RANGE])


def policy_of(properties: Properties, note: Note) -> Policy | None:
    """The policy that is in force with the head of `note`; None where there is none."""
    text = note.policy or properties.get(_POLICY)
    return None if text is None else parse_policy(json.loads(text))


def min_retention_us(properties: Properties) -> int:
    """Compaction removes no event that was committed less than this ago."""
    given = properties.get(_MIN_RETENTION)
    return _DEFAULT_MIN_RETENTION_US if given is None else parse_duration(given)


def subscription_of(properties: Properties) -> RetainedRange:
    """The initial events of subscribers that do not ask for others."""
    given = properties.get(_SUBSCRIPTION)
    return INITIAL_DEFAULT if given is None else parse_initial(given)


_FIXED: Final[dict[str, tuple[Callable[[RetainedRange], str], str]]] = {
    "retainedRange": (format_range, "leave it out, or write to a new store"),
    "subscriptionRange": (format_initial, "leave it out, and set it on the subscription instead"),
}


def check_same(
    option: str, wanted: RetainedRange | None, stored: RetainedRange, location: str
) -> None:
    """Raises OptionError where a write wants `option` otherwise than the store's creation did."""
    if wanted is None or wanted == stored:
        return
    shown, next_step = _FIXED[option]
    raise OptionError(
        option,
        f"'{shown(wanted)}' is not the range '{shown(stored)}' that the store '{location}' was "
        "created with",
        f"'{shown(stored)}'",
        next_step,
    )
