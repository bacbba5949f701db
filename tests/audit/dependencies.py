"""Known vulnerabilities and licences of what users install: `dependencies.py SITE PIP_AUDIT`.

Two sets are audited: the versions in an environment with all extras, and the oldest versions that
pyproject.toml allows. A package that the service does not know is not a sound one: if the
advisories cannot be reached, that is the failure, by name.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final = ("pypi", "osv")
PROBE: Final = "pyspark"
"""A service that does not know this one is out of reach."""

LICENCES: Final = re.compile(
    r"apache|\bmit\b|bsd|\bisc\b|psf|python software|python-2\.0|\bmpl\b|mozilla|unlicense"
    r"|zlib|permission is hereby granted, free of charge",
    re.IGNORECASE,
)
"""Licences that the users of a package under Apache-2.0 may mix with it."""

UNREACHABLE: Final = (
    "AdvisoriesUnreachable: none of the services ({services}) answered with what is known of "
    "'{probe}': {why}; next step: run `make audit` where https://pypi.org/pypi/{probe}/json or "
    "https://api.osv.dev can be reached"
)


class Failure(Exception):
    """The last line of `make audit`."""


def list_requirements(project: Mapping[str, Any]) -> list[Requirement]:
    """The dependencies of the package and of all of its extras."""
    extras = project["project"]["optional-dependencies"].values()
    texts = [*project["project"]["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts]


def find_oldest(requirements: Iterable[Requirement]) -> dict[str, str]:
    """The oldest version that is allowed of each, by name."""
    found: dict[str, str] = {}
    for each in requirements:
        least = [spec.version for spec in each.specifier if spec.operator == ">="]
        if least:
            found[canonicalize_name(each.name)] = least[0]
    return found


def list_installed(
    requirements: Iterable[Requirement],
    distributions: Mapping[str, importlib.metadata.Distribution],
) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that the requirements bring, and those that these bring, by name."""
    left, seen, found = [(each, "") for each in requirements], set(), {}
    while left:
        wanted, extra = left.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        held = distributions.get(name)
        if held is None or (name, *sorted(wanted.extras)) in seen:
            continue
        seen.add((name, *sorted(wanted.extras)))
        found[name] = held
        needs = [Requirement(text) for text in held.requires or ()]
        left += [(need, own) for need in needs for own in ("", *wanted.extras)]
    return found


def find_licence(held: Distribution) -> str:
    """The licence that a distribution says it has, or the start of its text; empty without one."""
    told = held.metadata
    classified = [text for text in told.get_all("Classifier") or () if text.startswith("License")]
    named = told.get("License-Expression") or "; ".join(classified) or told.get("License")
    files = [each for each in held.files or () if each.name.upper().startswith(("LICEN", "COPY"))]
    return named or "".join(each.read_text()[:300] for each in files)


def read_report(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The findings in a report of pip-audit, and the packages that it could not audit."""
    found, skipped = [], []
    for each in report["dependencies"]:
        if "skip_reason" in each:
            skipped.append(str(each["name"]))
        for known in each.get("vulns", ()):
            fixed = ", ".join(known["fix_versions"]) or "no version yet"
            names = ", ".join([known["id"], *known.get("aliases", ())])
            found.append(f"{each['name']} {each['version']}: {names}; fixed in {fixed}")
    return found, skipped


Ask = Callable[[Sequence[str]], tuple[Mapping[str, Any] | None, str]]
"""Asks pip-audit with arguments: its report, or None, and what it says on standard error."""


def audit(pins: Mapping[str, str], ask: Ask) -> list[str]:
    """The known vulnerabilities of these versions.

    Raises:
        Failure: no service can be reached.
    """
    why = "it does not know the package"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
        file.flush()
        for service in SERVICES:
            report, said = ask(["--vulnerability-service", service, "--requirement", file.name])
            if report is None:
                why = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
                continue
            found, skipped = read_report(report)
            if PROBE in skipped:
                continue
            if skipped:
                names = ", ".join(skipped)
                raise Failure(f"NotAudited: the service {service} does not know {names}")
            return found
    raise Failure(UNREACHABLE.format(services=", ".join(SERVICES), probe=PROBE, why=why))


def main(site: str, program: str) -> int:
    """Audit; return the exit code: 0 if nothing is known against any of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = list_requirements(project)
    held = {
        canonicalize_name(each.name): each for each in importlib.metadata.distributions(path=[site])
    }
    installed = list_installed(requirements, held)
    problems = []
    for name, each in sorted(installed.items()):
        licence = find_licence(each)
        if not LICENCES.search(licence):
            problems.append(f"UnknownLicence: {name} {each.version}: {licence[:80] or 'none'}")
    versions = {name: each.version for name, each in installed.items()}
    oldest = find_oldest(requirements)
    for what, pins in (("installed", versions), ("the oldest that is allowed", oldest)):
        try:
            found = audit(pins, lambda given: _ask(program, given))
        except Failure as failure:
            problems.append(str(failure))
            break
        print(f"{len(pins)} packages, {what}: {len(found)} known vulnerabilities")
        problems += [f"Vulnerable ({what}): {each}" for each in found]
    print(f"{len(installed)} packages with their licences")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _ask(program: str, arguments: Sequence[str]) -> tuple[Mapping[str, Any] | None, str]:
    given = [program, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*given, *arguments], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout), done.stderr
    except ValueError:
        return None, done.stderr


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
