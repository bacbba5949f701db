"""Files for those who carry on: workflows, changelog, contributing, architecture and decisions."""

import ast
import importlib
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import read, section

import pyspark_timestream
from pyspark_timestream.demo.broker import KAFKA_VERSION, list_broker_properties

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RECIPES = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / "sources/pyspark_timestream", ROOT / "sinks/pyspark_tseries"]
ARCHITECTURE = "docs/explanation/architecture.md"


def jobs(workflow: str) -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())
    return dict(loaded["jobs"])


# -- workflows -------------------------------------------------------------------------------------


def commands(job: dict[str, Any]) -> list[str]:
    """The commands of a job, one for each cell of its matrix that they name."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = [step["run"] for step in job.get("steps", []) if "run" in step]
    for name, values in matrix.items():
        key = f"${{{{ matrix.{name} }}}}"
        found = [each.replace(key, str(value)) for each in found for value in values]
    return found


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_make_targets_alone(file: Path) -> None:
    for name, job in jobs(file.name).items():
        if "uses" in job:
            assert (ROOT / job["uses"]).exists()
            continue
        assert job["runs-on"], name
        for command in commands(job):
            target = re.fullmatch(r"make PYTHON=python (\S+)", command)
            assert target, command
            assert target[1] in RECIPES, command


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_write_nothing_unless_a_job_says_so(file: Path) -> None:
    assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}


def test_ci_tests_the_pythons_of_the_classifiers_and_both_sparks() -> None:
    matrix = jobs("ci.yml")["test"]["strategy"]["matrix"]
    classifiers = PROJECT["project"]["classifiers"]
    said = [each.rpartition(" :: ")[2] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert matrix == {"python": said, "target": ["test", "test-more", "test-4.2"]}
    assert PROJECT["project"]["requires-python"] == f">={said[0]}"


def test_the_service_container_is_the_broker_of_the_tests() -> None:
    kafka = jobs("ci.yml")["integration"]["services"]["kafka"]
    assert kafka["image"] == f"apache/kafka:{KAFKA_VERSION}"
    properties = list_broker_properties(":9092", "127.0.0.1:9092", ":9093", "localhost:9093")
    named = {"KAFKA_" + key.upper().replace(".", "_"): each for key, each in properties.items()}
    assert {key: each for key, each in kafka["env"].items() if key != "CLUSTER_ID"} == named


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    "marks",
    [
        (),
        ("thorough",),
        ("session",),
        ("session", "everyday"),
        ("session", "thorough"),
        ("disk",),
        ("disk", "everyday"),
        ("disk", "thorough"),
        ("outside_ci",),
        ("session", "outside_ci"),
        ("session", "everyday", "outside_ci"),
        ("disk", "thorough", "outside_ci"),
    ],
)
def test_a_test_is_in_one_of_two_targets_unless_it_is_long(
    marks: tuple[str, ...], long: bool
) -> None:
    lines = re.findall(r'^\t\S+ -m pytest tests -m "(.*?)"', read("Makefile"), re.MULTILINE)
    chosen = [line for line in lines if "everyday" in line]
    kinds = ("session", "disk", "everyday", "thorough", "outside_ci")
    names = {name: name in marks for name in kinds} | {"soak": long}
    (short,) = re.findall(
        r"^test-more integration: FEWER := \$\(if \$\(SHORT\),(.*)\)$", read("Makefile"), re.M
    )
    for fewer, left_out in (("", long), (short, long or "outside_ci" in marks)):
        found = [bool(eval(line.replace("$(FEWER)", fewer), {}, names)) for line in chosen]
        assert sum(found) == (0 if left_out else 1)
    assert len(chosen) == 2


# -- documents -------------------------------------------------------------------------------------


def test_the_changelog_keeps_its_form_and_has_this_version() -> None:
    headings = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    released = [each for each in headings if each != "[Unreleased]"]
    assert headings in (released, ["[Unreleased]", *released])
    matches = [
        re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", each) for each in released
    ]
    versions = [(tuple(map(int, match.groups()[:3])), match[4]) for match in matches if match]
    assert len(versions) == len(released)
    assert all(newer > older for newer, older in pairwise(versions))
    assert ".".join(map(str, versions[0][0])) == pyspark_timestream.__version__
    kinds = re.findall(r"^### (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_short_contributing_leads_to_files_that_are_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", read("CONTRIBUTING.md"))
    assert "docs/contributing.md" in links
    assert all((ROOT / link).exists() for link in links)


def test_every_make_target_is_explained() -> None:
    rows = section("docs/contributing.md", "## Make targets")
    explained = re.findall(r"`make ([a-z0-9.-]+)`", rows)
    assert sorted(explained) == sorted(RECIPES)


GUIDES = (
    "### An option",
    "### A key of the progress",
    "### A counter",
    "### A violation policy",
    "### A payload format",
    "### A column, property or transaction of a store",
    "### A kind of damage that is found or repaired",
    "## How to add an engine",
)


@pytest.mark.parametrize("guide", GUIDES)
def test_what_can_be_added_has_a_guide(guide: str) -> None:
    assert len(section("docs/contributing.md", guide).split()) > 50


def test_every_constant_that_contributing_names_is_in_the_code() -> None:
    code = [
        path
        for root in (*PACKAGES, ROOT / "integration", ROOT / "tests")
        for path in root.rglob("*.py")
    ]
    words = {word for path in code for word in re.findall(r"\b[A-Z][A-Z_]+\b", path.read_text())}
    named = re.findall(r"`([A-Z][A-Z_]+)(?:=\w+)?`", read("docs/contributing.md"))
    assert {"POLICIES", "KAFKA_TIER"} <= set(named)
    assert set(named) <= words


@pytest.mark.parametrize("folder", ["tests", "integration", "bench"])
def test_no_test_is_imported_by_another(folder: str) -> None:
    modules = {path: path.read_text() for path in (ROOT / folder).rglob("*.py")}
    imports = r"^ *(?:from|import) [^(\n]*(?:\([^)]*)?\btest_.*"
    found = [(path, re.findall(imports, text, re.MULTILINE)) for path, text in modules.items()]
    assert [(path, lines) for path, lines in found if lines] == []


@pytest.mark.parametrize("folder", ["integration", "bench", "docs"])
def test_what_jobs_and_benchmarks_import_of_the_packages_is_there(folder: str) -> None:
    """Nothing else in `make test` imports them, and a renamed function broke `make run`."""
    lost = [
        (path.name, node.module, each.name)
        for path in (ROOT / folder).rglob("*.py")
        if "pyspark_t" in (code := path.read_text())
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark_t")
        for each in node.names
        if not hasattr(importlib.import_module(str(node.module)), each.name)
    ]
    assert lost == []


QUESTIONS = {
    "What is a CTI?": "semantics.md#2-ctis",
    "Where does a late row meet its policy?": "`rules/step.py`",
    "Where is an offset written?": "`kafka/offsets/next_offset.py`",
    "How do I add an option?": "contributing.md#where-a-change-is-seen",
    "What is fsynced, and when?": "`store/log.py`",
}


def test_a_newcomers_questions_are_answered_with_a_place() -> None:
    rows = re.findall(r"^\| (.*\?) \| (.*) \|$", read(ARCHITECTURE), re.MULTILINE)
    assert [question for question, _ in rows] == list(QUESTIONS)
    for question, answer in rows:
        assert QUESTIONS[question] in answer


@pytest.mark.parametrize("page", [ARCHITECTURE, "docs/contributing.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([\w./]+/[\w./]*\.(?:py|c|toml|md|yml))`", prose))
    assert named
    roots = [ROOT, *PACKAGES, *(package.parent for package in PACKAGES)]
    nested = [package / folder for package in PACKAGES for folder in ("kafka/decode",)]
    lost = [file for file in named if not any((root / file).exists() for root in [*roots, *nested])]
    assert lost == []


def test_every_decision_has_a_date_and_a_reason() -> None:
    entries = re.split(r"^## ", read("docs/design/decisions.md"), flags=re.MULTILINE)[1:]
    assert len(entries) > 10
    for entry in entries:
        title, _, text = entry.partition("\n\n")
        assert re.match(r"20\d\d-\d\d-\d\d\. \*\*Decision:\*\* ", text), title
        assert "\n**Reason" in text, title
