"""`make audit` names what is known against a dependency, and never takes silence for soundness."""

import importlib.metadata
import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location("deps", ROOT / "tests/audit/dependencies.py")
dependencies = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(dependencies)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = {"pyspark": "4.2.0", "numpy": "2"}


def report(*skipped, **vulnerable):
    found = [{"name": name, "skip_reason": "not found"} for name in skipped]
    found += [
        {"name": name, "version": "1", "vulns": [{"id": known, "aliases": [], "fix_versions": []}]}
        for name, known in vulnerable.items()
    ]
    return {"dependencies": found}


def test_what_is_known_is_named():
    found = dependencies.audit(PINS, lambda _: (report(numpy="CVE-1"), ""))
    assert found == ["numpy 1: CVE-1; fixed in no version yet"]


def test_a_service_that_knows_no_package_is_out_of_reach_and_the_next_one_is_asked():
    asked = []

    def ask(arguments):
        asked.append(arguments[1])
        return (report("pyspark", "numpy") if arguments[1] == "pypi" else report(), "")

    assert dependencies.audit(PINS, ask) == []
    assert asked == ["pypi", "osv"]


@pytest.mark.parametrize("answer", [(None, "no route to osv"), (report("pyspark", "numpy"), "")])
def test_advisories_out_of_reach_are_a_failure_by_name(answer):
    with pytest.raises(dependencies.Failure, match=r"AdvisoriesUnreachable: .*next step"):
        dependencies.audit(PINS, lambda _: answer)


def test_one_package_that_is_not_known_is_a_failure_by_name():
    with pytest.raises(dependencies.Failure, match=r"NotAudited.*numpy"):
        dependencies.audit(PINS, lambda _: (report("numpy"), ""))


def test_each_dependency_and_extra_is_audited_as_installed_and_at_its_oldest():
    requirements = dependencies.list_requirements(PROJECT)
    oldest = dependencies.find_oldest(requirements)
    assert {"pyspark", "deltalake", "duckdb", "fastavro", "sqlglot", "ptars"} <= oldest.keys()
    held = {
        dependencies.canonicalize_name(each.name): each
        for each in importlib.metadata.distributions()
    }
    installed = dependencies.list_installed(requirements, held)
    # py4j comes with Spark, and authlib with the registry's client.
    assert {*oldest, "py4j", "authlib"} <= installed.keys()
    assert not [n for n in ("pytest", "moto") if n in installed]
    for name, each in installed.items():
        assert dependencies.LICENCES.search(dependencies.find_licence(each)), name


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "SSPL", "", "Proprietary"])
def test_other_licences_are_named(licence):
    assert not dependencies.LICENCES.search(licence)
