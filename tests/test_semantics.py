"""`docs/semantics.md` is the law: what is cited exists, and its tables say what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_timestream.clock.time_options import read_time_options
from pyspark_timestream.core.policies import POLICIES, Policy
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.keys import RECORD_KEYS
from pyspark_timestream.rules.clocks import COUNTERS
from pyspark_tseries.model.properties import PERMISSIONS

ROOT = Path(__file__).parent.parent
LAW = (ROOT / "docs/semantics.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^(##|###) ([0-9.]+) (.+)$", LAW, re.MULTILINE)
SECTIONS = {number for _, number, _ in HEADINGS}

PLACES = ("sources", "sinks", "tests", "integration", "bench", "docs")
READ = {".py", ".c", ".md", ".cfg"}
FILES = ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "hatch_build.py", ".ci/run")

ELSEWHERE = re.compile(r"contract|\bshared/|\bfacts/", re.IGNORECASE)
IMPORT_RULES = re.compile(r"import-?linter|import contracts", re.IGNORECASE)
"""Its contracts are rules about imports."""

NUMBER = r"[0-9]{1,2}(?:\.[0-9]{1,2})?"
CITATION = re.compile(rf"\bsemantics (?:sections? )?({NUMBER}(?:(?:, | and | to ){NUMBER})*)", re.I)


def texts() -> Iterator[tuple[str, list[str]]]:
    """The path and the lines of every file of the repository that may cite."""
    found = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in READ]
    for path in [*found, *(ROOT / name for name in FILES)]:
        if path != Path(__file__):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8").splitlines()


def joined(lines: list[str]) -> str:
    """Lines as one, without what marks a comment."""
    return " ".join(line.strip(" #*/") for line in lines)


def cited(text: str) -> list[str]:
    """The sections that `text` cites, such as "semantics 3.2" or "semantics 2.3 and 2.4"."""
    return [number for some in CITATION.findall(text) for number in re.findall(NUMBER, some)]


def after(marker: str) -> str:
    """The first block of text after `marker`."""
    return LAW.partition(f"<!-- {marker} -->\n\n")[2].partition("\n\n")[0]


def rows(marker: str) -> list[list[str]]:
    """The cells of the table after `marker`, without its head."""
    lines = after(marker).splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines]


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("the rule (semantics 3.2).", ["3.2"]),
        ("Semantics 2.3 and 2.4, over columns", ["2.3", "2.4"]),
        ("see semantics 5.1, 5.2 and 12", ["5.1", "5.2", "12"]),
        ("semantics of windows", []),
    ],
)
def test_a_citation_is_found_in_prose(text: str, numbers: list[str]) -> None:
    assert cited(text) == numbers


def test_every_cited_section_exists() -> None:
    unknown = {
        path: missing
        for path, lines in texts()
        if (missing := [number for number in cited(joined(lines)) if number not in SECTIONS])
    }
    assert not unknown


@pytest.mark.parametrize("line", ["the contract's table", "see shared/facts", "contract 3.4"])
def test_a_reference_to_a_law_elsewhere_is_found(line: str) -> None:
    assert ELSEWHERE.search(line)


def test_nothing_refers_to_a_law_outside_of_the_repository() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, lines in texts()
        for number, line in enumerate(lines, 1)
        if ELSEWHERE.search(line) and not IMPORT_RULES.search(line)
    ]
    assert not found


def test_sections_are_numbered_without_gaps_and_have_anchors_of_their_own() -> None:
    expected, major, minor = [], 0, 0
    for level, _, _ in HEADINGS:
        major, minor = (major + 1, 0) if level == "##" else (major, minor + 1)
        expected.append(f"{major}.{minor}" if minor else str(major))
    assert [number for _, number, _ in HEADINGS] == expected
    anchors = [slug(f"{number} {title}") for _, number, title in HEADINGS]
    assert len(set(anchors)) == len(anchors)
    assert slug("3.2 adjust") in anchors


def test_the_laws_references_to_itself_exist() -> None:
    prose = re.sub(r"`[^`]*`", "", LAW)
    assert set(re.findall(r"\b[0-9]+\.[0-9]+\b", prose)) <= SECTIONS
    for some in re.findall(rf"\bsections? ({NUMBER}(?: (?:to|and) {NUMBER})*)", prose, re.I):
        assert set(re.findall(NUMBER, some)) <= SECTIONS


def test_the_policy_table_is_the_codes() -> None:
    kinds = " | ".join(kind.replace("_", " ") for kind in Policy._fields)
    assert after("policy table").splitlines()[0] == f"| policy | {kinds} |"
    written = {name: cells for name, *cells in rows("policy table")}
    assert written == {name: [each.text for each in policy] for name, policy in POLICIES.items()}


def test_the_counters_are_the_codes() -> None:
    assert [row[0] for row in rows("counters")] == list(COUNTERS)


def test_the_rights_are_the_codes() -> None:
    assert [row[0] for row in rows("rights")] == list(PERMISSIONS)


def test_the_pinned_options_are_the_codes() -> None:
    kafka, time = (re.findall("`([^`]+)`", part) for part in after("pinned options").split(";\n"))
    marks = {"ctiHeader": "cti", "writers": "a", "writerTimeout": "1 s", "maxFuture": "1 s"}
    marks |= {"futurePolicy": "drop"}
    edges = {"eventShape": "edge", "startTime": "s", "endTime": "e", "edge": "k"}
    times = {"timeUnit": "s", "ctiFrequency": "1", "ctiDelay": "1 s", "ctiImport": "fast"}
    client = {f"kafka.{key}": f"not {value}" for key, value in RECORD_KEYS.items()}
    client |= {"kafka.bootstrap.servers": "b", "kafka.isolation.level": "read_uncommitted"}
    common = marks | edges | times | client | {"violationPolicy": "drop"}
    common |= {"writerGrace": "1 s"}
    topics = ({"subscribe": "a"}, {"subscribePattern": "a"}, {"assign": '{"a": [0]}'})
    pinned = {name for each in topics for name in read_kafka_options(common | each).settings()}
    clocks = {"subscribe": "a", "ctiFrequency": "1", "writerFrom": "header:w"}
    pinned |= read_kafka_options(clocks | client).settings().keys()
    span = {"startingCti": "2024-01-01T00:00:00Z", "endingCti": "2024-01-02T00:00:00Z"}
    by_partition = '{"a": {"0": 5}}'
    ends = {"endingTimestamp": "5", "endingOffsetsByTimestamp": by_partition}
    for more in (span, {"endingOffsets": "latest", **ends}):
        generated = {"kafka.bootstrap.servers": "b", "subscribe": "a", "ctiFrequency": "1", **more}
        pinned |= read_kafka_options(generated).settings().keys()
    assert set(kafka) - {"kafka"} == pinned
    clock = {"timeZero": "2026-01-01T00:00:00Z", "maxCount": "1"}
    assert set(time) - {"time"} == set(read_time_options(clock).settings())
