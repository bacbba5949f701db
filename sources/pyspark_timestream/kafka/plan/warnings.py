"""What a stream has warned of: each kind of mistake once, also over restarts.

Which findings hold follows from the offset and the counters in it (`mistakes`). What was said is
kept in the offset, so that a finding that still holds, or holds again, is not said a second time
unless its level has risen. A query's progress lists what holds, a log gets what is new.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_timestream.kafka.plan.findings import Finding, Kind

__all__ = [
    "Warned",
    "Warnings",
    "new_warnings",
    "standing_warnings",
    "warned",
    "warnings_from_json",
    "warnings_to_json",
    "with_details",
]


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning that was given.

    Attributes:
        finding: what was said, in words and level alone.
        holds: it is still so.
    """

    finding: Finding
    holds: bool = True


Warnings = Mapping[Kind, Warned]
"""The warnings that a stream has given, at most one of a kind, in the order of kinds."""


def no_detail(finding: Finding) -> str:
    """Nothing: the records are not looked at."""
    return ""


def warned(
    before: Warnings, found: Iterable[Finding], detail: Callable[[Finding], str] = no_detail
) -> dict[Kind, Warned]:
    """The warnings after another look.

    A warning keeps its text while it holds for the same culprit, so that a stream that stands still
    has equal offsets; one that holds again, or for another culprit, has the newest text.

    Args:
        before: the warnings before.
        found: what was found; of several findings of a kind the first counts.
        detail: what the records say about a finding; asked for findings whose text is kept.
    """
    after = {kind: dataclasses.replace(given, holds=False) for kind, given in before.items()}
    for kind, finding in {each.kind: each for each in reversed(list(found))}.items():
        given = before.get(kind)
        level = max(finding.level, given.finding.level if given else 0)
        if given is not None and _is_same(given, finding, level):
            after[kind] = given
        else:
            after[kind] = Warned(_words(finding, finding.detail or detail(finding), level))
    return _in_order(after)


def new_warnings(before: Warnings, after: Warnings) -> list[Finding]:
    """What is to be said: the kinds that are new in `after`, or whose level has risen."""
    return [
        given.finding
        for kind, given in after.items()
        if kind not in before or given.finding.level > before[kind].finding.level
    ]


def standing_warnings(warnings: Warnings) -> list[Finding]:
    """The warnings that hold."""
    return [given.finding for given in warnings.values() if given.holds]


def with_details(findings: Iterable[Finding], warnings: Warnings) -> list[Finding]:
    """`findings`, with what the records said, and who knows the options advised, at a warning."""
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
    """A JSON object with sorted keys; what is empty is left out."""
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


def warnings_from_json(value: Mapping[str, Mapping[str, Any]]) -> dict[Kind, Warned]:
    """The warnings that `warnings_to_json` wrote, without kinds that this release lacks."""
    known = {str(kind): kind for kind in Kind}
    read = {
        known[name]: Warned(
            Finding(
                known[name],
                said.get("culprit", ""),
                said.get("text", ""),
                detail=said.get("detail", ""),
                level=said.get("level", 0),
                advice=said.get("advice", ""),
            ),
            said.get("holds", False),
        )
        for name, said in value.items()
        if name in known
    }
    return _in_order(read)


def _in_order(warnings: Warnings) -> dict[Kind, Warned]:
    return {kind: warnings[kind] for kind in Kind if kind in warnings}


def _is_same(given: Warned, finding: Finding, level: int) -> bool:
    said = given.finding
    return given.holds and said.level == level and said.culprit == finding.culprit


def _words(finding: Finding, detail: str, level: int) -> Finding:
    """What an offset keeps of a finding."""
    return Finding(
        finding.kind,
        finding.culprit,
        finding.text,
        detail=detail,
        level=level,
        advice=finding.advice,
    )
