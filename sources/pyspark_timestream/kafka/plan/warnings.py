"""The warnings of a stream: each kind of mistake once, also across restarts.

The offset and its counters determine which findings hold (`mistakes`). The offset also keeps the
warnings given, so that a finding that still holds, or holds again, is not repeated unless its level
has risen. The progress report lists active warnings; only new ones are logged.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.kafka.plan.findings import Finding, Kind

__all__ = [
    "GivenWarning",
    "Warnings",
    "active_warnings",
    "add_details",
    "find_new_warnings",
    "update_warnings",
    "warnings_from_json",
    "warnings_to_json",
]


@dataclass(frozen=True, slots=True)
class GivenWarning:
    """A warning that was given.

    Attributes:
        finding: the finding, reduced to its texts and level.
        holds: the finding still holds.
    """

    finding: Finding
    holds: bool = True


Warnings = Mapping[Kind, GivenWarning]
"""The warnings that a stream has given, at most one of a kind, in the order of kinds."""

_OLDER_NAMES: Final = {"values of another type": Kind.MALFORMED_VALUES}
"""Names of kinds that earlier versions wrote."""


def find_no_detail(finding: Finding) -> str:
    """Return no detail: the records are not examined."""
    return ""


def update_warnings(
    before: Warnings, found: Iterable[Finding], detail: Callable[[Finding], str] = find_no_detail
) -> dict[Kind, GivenWarning]:
    """Return the warnings after an update.

    A warning has the newest text, with the counts of now. What its records showed is described anew
    if it holds again, for another culprit, or at a higher level.

    Args:
        before: the warnings so far.
        found: the current findings; the first of each kind counts. Their texts depend on the
            stream alone, not on the wall clock, so that an unchanged stream has equal offsets.
        detail: describes a finding by its records; called for findings that are new.
    """
    after = {kind: dataclasses.replace(given, holds=False) for kind, given in before.items()}
    for kind, finding in {each.kind: each for each in reversed(list(found))}.items():
        given = before.get(kind)
        level = max(finding.level, given.finding.level if given else 0)
        if given is not None and _is_same(given, finding, level):
            known = finding.detail or given.finding.detail
            after[kind] = GivenWarning(_strip(finding, known, level))
        else:
            after[kind] = GivenWarning(_strip(finding, finding.detail or detail(finding), level))
    return _sort_by_kind(after)


def find_new_warnings(before: Warnings, after: Warnings) -> list[Finding]:
    """Return the findings to log: kinds that are new in `after`, or whose level has risen."""
    return [
        given.finding
        for kind, given in after.items()
        if kind not in before or given.finding.level > before[kind].finding.level
    ]


def active_warnings(warnings: Warnings) -> list[Finding]:
    """Return the findings of the warnings that hold."""
    return [given.finding for given in warnings.values() if given.holds]


def add_details(findings: Iterable[Finding], warnings: Warnings) -> list[Finding]:
    """Add to `findings` the details and advice that their warnings were given with."""
    details = {kind: given.finding.detail for kind, given in warnings.items()}
    advice = {kind: given.finding.advice for kind, given in warnings.items() if given.holds}
    return [
        dataclasses.replace(
            finding,
            detail=finding.detail or details.get(finding.kind, ""),
            advice=advice.get(finding.kind) or finding.advice,
        )
        for finding in findings
    ]


def warnings_to_json(warnings: Warnings) -> dict[str, dict[str, Any]]:
    """Return a JSON object with sorted keys; empty values are left out."""
    return {
        str(kind): {
            name: value
            for name, value in (
                ("advice", given.finding.advice),
                ("culprit", given.finding.culprit),
                ("detail", given.finding.detail),
                ("holds", given.holds),
                ("level", given.finding.level),
                ("text", given.finding.text),
            )
            if value
        }
        for kind, given in sorted(warnings.items())
    }


def warnings_from_json(value: Mapping[str, Mapping[str, Any]]) -> dict[Kind, GivenWarning]:
    """Read what `warnings_to_json` wrote, without kinds unknown to this release."""
    known = {**_OLDER_NAMES, **{str(kind): kind for kind in Kind}}
    read = {
        known[name]: GivenWarning(
            Finding(
                known[name],
                entry.get("culprit", ""),
                entry.get("text", ""),
                detail=entry.get("detail", ""),
                level=entry.get("level", 0),
                advice=entry.get("advice", ""),
            ),
            entry.get("holds", False),
        )
        for name, entry in value.items()
        if name in known
    }
    return _sort_by_kind(read)


def _sort_by_kind(warnings: Warnings) -> dict[Kind, GivenWarning]:
    return {kind: warnings[kind] for kind in Kind if kind in warnings}


def _is_same(given: GivenWarning, finding: Finding, level: int) -> bool:
    entry = given.finding
    return given.holds and entry.level == level and entry.culprit == finding.culprit


def _strip(finding: Finding, detail: str, level: int) -> Finding:
    """Reduce a finding to what an offset keeps."""
    return Finding(
        finding.kind,
        finding.culprit,
        finding.text,
        detail=detail,
        level=level,
        advice=finding.advice,
    )
