"""README.md and the pages of docs/ say what the code does: tables, links, folders, symptoms."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from codeop import compile_command
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from types import ModuleType

import draw_chart
import pytest
from documents import PASTED, ROOT, blocks, pages, read, section, table
from generate import (
    COMMANDS,
    CONNECTORS,
    GROUPS,
    anchor,
    command_names,
    first_program,
    generate,
    option_entry,
    requests,
)
from kept_results import RESULTS, kept
from timestream.builders import report_progress
from timestream.oracle import Event, run

import pyspark_timestream
import pyspark_tseries
from pyspark_timestream.core.declarations import OptionSpec, Parser, option_specs
from pyspark_timestream.core.session import INTERPRETER, SETTINGS
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import PartitionClock
from pyspark_tseries.model.properties import LOCAL_CHECKPOINT_INTERVAL

PAGES = {
    "TimeOptions": "docs/reference/options-clock.md",
    "KafkaOptions": "docs/reference/options-kafka.md",
    "KafkaWriteOptions": "docs/reference/options-kafka-write.md",
    "WriteOptions": "docs/reference/options-store.md",
    "ReadOptions": "docs/reference/options-store.md",
    "SubscribeOptions": "docs/reference/options-store.md",
}
PERFORMANCE = "docs/explanation/performance.md"
FIGURES = "docs/explanation/figures.md"
TROUBLESHOOTING = "docs/how-to/troubleshooting.md"


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(path: Path, *, is_built: bool) -> set[str]:
    """Those of all headings of a page, as written or, with those that are generated, as built."""
    text = path.read_text()
    return set(
        map(slug, re.findall("^#+ (.*)$", generate(text) if is_built else text, re.MULTILINE))
    )


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", read(page), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match("[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        # To build a page takes seconds where its tables count all tests.
        kinds = (anchors(found.resolve(), is_built=each) for each in (False, True) if anchor)
        assert not anchor or any(anchor in each for each in kinds), target


def test_links_of_the_changelog_work_on_github_and_in_the_documents() -> None:
    # The documents include it from another folder, so what is relative works in one of them only.
    links = re.findall(r"\]\(([^)]*)\)", read("CHANGELOG.md"))
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_every_test_that_a_page_names_is_there() -> None:
    folders = (ROOT / "tests", ROOT / "integration")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    there = {path.stem for path in files}
    for path in files:
        there |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    # The tools behind a decision may be gone by now.
    for page in (page for page in pages() if not page.startswith("docs/design/")):
        named = set(re.findall(r"`(test_\w+)`", read(page)))
        assert not named - there, page


MUTATED = "tests/mutation/setup.cfg"
OF_A_READER = {"transformations/rides.py"}
"""Files that a page has its reader write."""


def test_every_file_that_a_page_or_a_docstring_names_is_there() -> None:
    folders = ("sources", "sinks", "tests", "integration", "bench", "docs")
    files = [
        *ROOT.glob("*.py"),
        *(path for name in folders for path in (ROOT / name).rglob("*.py")),
    ]
    there = [f"/{path.relative_to(ROOT)}" for path in files]
    code = [path for path in there if path.startswith(("/sources/", "/sinks/"))]
    # The tools behind a decision may be gone by now.
    texts = [read(page) for page in pages() if not page.startswith("docs/design/")]
    texts += [read(path[1:]) for path in code]
    named = {name for text in texts for name in re.findall(r"`([\w/]+\.py)`", text)} - OF_A_READER
    named |= set(re.findall(r"(?:tests|pyspark_timestream)/[\w/]+\.py", read(MUTATED)))
    assert len(named) > 50
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in there)} == set()


@pytest.mark.parametrize("page", pages())
def test_every_block_names_its_language_and_why_it_is_not_run(page: str) -> None:
    assert read(page).count("\n```") == 2 * len(blocks(page))
    for block in blocks(page):
        assert block.language, block.text
        assert block.comment != "not run:", block.text
        assert not block.not_run or block.language in PASTED, block.text


@pytest.mark.parametrize("page", pages())
def test_a_block_can_be_pasted_into_the_prompt_of_python(page: str) -> None:
    """Before Python 3.13 a prompt takes line by line: an empty line ends a loop or a function."""
    for block in blocks(page, "python"):
        lines: list[str] = []
        for line in [*block.text.splitlines(), ""]:
            lines.append(line)
            if compile_command("\n".join(lines)) is not None:
                lines.clear()
        assert not lines, block.text


NOT_RUN = 9
"""Blocks that nothing runs. Raise it only where a reader's machine has what no test has."""


@pytest.mark.parametrize("page", pages())
def test_code_means_the_same_in_the_time_zone_of_any_session(page: str) -> None:
    """Spark reads a text without a zone, and moves times by days, by the session's clock."""
    code = "\n".join(block.text for block in blocks(page) if block.language in ("python", "sql"))
    in_sql = r"'\d{4}-\d\d-\d\d(?:[ T][\d:.]+)?'"
    assert re.findall(rf"(?:where|filter|expr|TIMESTAMP)\b.*{in_sql}", code, re.IGNORECASE) == []
    assert re.findall(r"expr\(.*[-+] INTERVAL.*", code) == []


def test_blocks_that_are_not_run_are_few_and_counted() -> None:
    every = [block for page in pages() for block in blocks(page) if block.language in PASTED]
    assert len([block for block in every if block.not_run]) == NOT_RUN


def test_no_page_that_is_run_needs_sparks_kafka_connector() -> None:
    for page in pages():
        for block in blocks(page):
            assert block.not_run or 'format("kafka")' not in block.text, page


@pytest.mark.parametrize("connector", GROUPS)
def test_every_option_is_under_a_heading_that_is_linked(connector: str) -> None:
    generated = generate(read(PAGES[connector]))
    for title in GROUPS[connector]:
        assert f"\n## {title}\n" in generated
        assert f"- [{title}](#{anchor(title)})" in generated


def test_home_page_has_the_picture_and_the_program_of_the_readme() -> None:
    home, program = generate(read("docs/index.md")), first_program()
    assert program in home
    assert program in read("README.md")
    assert "pictures/lagging-partition.svg" in home


def test_site_asks_no_foreign_host_for_its_pictures() -> None:
    for page in pages():
        assert "```mermaid" not in read(page)
        assert not re.search(r"!\[[^]]*\]\(https?:", read(page))


@pytest.mark.parametrize("connector", PAGES)
def test_every_option_of_a_format_is_on_its_page(connector: str) -> None:
    assert ("options", connector) in requests(read(PAGES[connector]))
    generated = generate(read(PAGES[connector]))
    for spec in option_specs(CONNECTORS[connector]).values():
        assert f"### `{spec.name}`\n" in generated


@pytest.mark.parametrize(
    ("default", "shown"),
    [(None, "none"), (MISSING, "required"), ("", "empty"), ("last 2", "`last 2`")],
)
def test_an_option_shows_all_that_is_declared_of_it(default: object, shown: str) -> None:
    parser = Parser(str, "'last N' or a number")
    spec = OptionSpec("limit", parser, default, "at most this many events", effect="batch")
    assert option_entry(spec) == (
        "### `limit`\n\nAt most this many events.\n\n{.facts}\n"
        f"**Default:** {shown} · **Accepted:** `last N` or a number · "
        "**Effect:** batch reads · **On a checkpoint:** may change"
    )


def test_every_benchmark_s_results_are_on_the_page() -> None:
    machines = [path for path in RESULTS.iterdir() if path.is_dir()]
    every = {path.stem for machine in machines for path in machine.glob("*.json")}
    asked = {name: part for part, name in requests(read(FIGURES))}
    page, charts = generate(read(FIGURES)), generate(read(PERFORMANCE))
    for name in every:
        for measured in kept(name).values():
            # Mechanisms are figures of decisions.md, and faults of what-happens-when.md.
            assert (name in asked) == (not {"mechanisms", "faults"} & measured.keys())
            for job in measured.get("jobs", []):
                assert f"| {job['job'].strip()} |" in page
        assert name not in asked or f"figures.md#{name}" in charts
    assert len(machines) > 0


MEASURED = re.compile(
    r"\b\d[\d.,]*(?: to \d[\d.,]*)?(?:-| )?(?:µs|ns|ms|x|times|percent|per cent)(?!\w)|\d ?%"
)


@pytest.mark.parametrize("page", ["README.md", PERFORMANCE, "docs/how-to/low-latency.md"])
def test_no_measured_figure_is_written_by_hand(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    assert set(MEASURED.findall(prose)) == FIGURES_OF_TESTS.get(page, set())


FIGURES_OF_TESTS = {
    # tests/test_readme.py compares it with what is kept.
    "README.md": {"1.0 times", "1.5 times", "1.9 times"},
    # A setting.
    "docs/how-to/low-latency.md": {"5 ms"},
}
"""Figures in prose, each for its reason."""


def test_the_progress_page_has_every_key() -> None:
    page = "docs/reference/progress.md"
    part = PartitionOffset(0, 5, PartitionClock())
    report = report_progress(StreamOffset("id", {}, 1, {Partition("trips", 0): part}), {})
    for marker, keys in [
        ("progress of a stream", report),
        ("progress of a partition", report["partitions"]["trips"]["0"]),
    ]:
        cells = [row[0] for row in table(page, marker)]
        assert sorted(re.findall("`([^`]+)`", " ".join(cells))) == sorted(keys)


def test_the_worked_example_is_what_the_rules_do() -> None:
    rows = table("docs/explanation/application-time.md", "worked example")
    times = [int(row[0][:2]) * 60 + int(row[0][3:]) for row in rows]
    cti = None
    for number, (_, before, verdict, after) in enumerate(rows, 1):
        out, *_ = run([Event("point", time) for time in times[:number]], every=1, delay=5)
        assert before == (cti or "none")
        assert ("*late*" in verdict) == (("row", number - 1) not in [each[:2] for each in out])
        raised = [time for kind, time, *_ in out if kind == "cti"]
        cti = f"{raised[-1] // 60:02}:{raised[-1] % 60:02}"
        assert after == cti


def test_the_chart_of_the_page_is_what_its_block_draws() -> None:
    assert draw_chart.PICTURE.read_text("utf-8") == draw_chart.draw(), "python docs/draw_chart.py"


def test_the_extras_are_those_that_pip_installs() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    told = {row[0].strip("`"): row[2] for row in table("docs/reference/index.md", "extras")}
    assert told.keys() == project["optional-dependencies"].keys()
    for name, needs in project["optional-dependencies"].items():
        assert all(re.split(r"[\[<>=]", each)[0] in told[name] for each in needs), name


def test_the_session_page_has_every_setting_with_its_reason() -> None:
    page = generate(read("docs/reference/session.md"))
    for each in (INTERPRETER, *SETTINGS):
        assert f"| `{each.name}` | {each.value} | {each.reason} |" in page


@pytest.mark.parametrize("package", [pyspark_timestream, pyspark_tseries], ids=lambda p: p.__name__)
def test_every_public_name_is_in_the_reference(package: ModuleType) -> None:
    pages_ = sorted((ROOT / "docs/reference").glob("*.md"))
    documented = "".join(path.read_text() for path in pages_)
    for name in package.__all__:
        assert re.search(rf"(auto\w+:: |`){package.__name__}\.{name}\b", documented), name


@pytest.mark.parametrize("package", [pyspark_timestream, pyspark_tseries], ids=lambda p: p.__name__)
def test_every_exception_has_an_entry_that_names_the_next_step(package: ModuleType) -> None:
    names = [name for name in package.__all__ if is_exception(getattr(package, name))]
    entries = section("docs/reference/errors.md", f"## `{package.__name__}`")
    found = re.findall(r"autoexception:: \w+\.(\w+)\n.*\n\n   \*What to do:\* \S", entries)
    assert sorted(found) == sorted(names)


def is_exception(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)


@pytest.mark.parametrize("package", COMMANDS)
def test_every_command_is_on_the_page_with_its_help(package: str) -> None:
    page = generate(read("docs/reference/command-line.md"))
    assert command_names(package)
    for name in command_names(package):
        assert f"### `{name}`\n\n```text\nusage: python -m {package} {name} " in page


def test_every_session_of_an_example_is_configured() -> None:
    packages = [ROOT / "sources/pyspark_timestream", ROOT / "sinks/pyspark_tseries"]
    sources = [path for package in packages for path in package.rglob("*.py")]
    documents = [read(page) for page in pages()]
    for text in (*documents, *(path.read_text() for path in sources)):
        built = [line for line in text.splitlines() if "SparkSession.builder" in line]
        assert all("configure_spark(SparkSession.builder" in line for line in built), built
    assert re.search("import .*configure_spark", read("README.md"))


@pytest.mark.parametrize("kind", Kind)
def test_every_diagnosis_is_an_entry_of_the_troubleshooting(kind: Kind) -> None:
    entries = " ".join(read(TROUBLESHOOTING).split()).split(" - ")
    (entry,) = [entry for entry in entries if entry.startswith(f"**{kind}**")]
    assert f"Fix: {kind.fix}." in entry


def test_differences_from_sparks_kafka_source_are_those_that_tests_show() -> None:
    tests = "".join(
        path.read_text() for path in (ROOT / "integration/spark").glob("test_beside_*.py")
    )
    shown = re.findall(r'@pytest\.mark\.difference\("(.*)"\)', tests)
    rows = table("docs/how-to/migrate-from-kafka.md", "differences from Spark's Kafka source")
    assert sorted(row[0] for row in rows) == sorted(shown)
    # Each gives the reason.
    assert all(len(row) == 4 and all(row) for row in rows)


def test_the_troubleshooting_is_ordered_by_symptom() -> None:
    symptoms = re.findall(r"^## (.*)$", read(TROUBLESHOOTING), re.MULTILINE)
    assert symptoms == ["No output", "Rows missing", "Lagging"]


def test_every_folder_is_in_the_tour_with_its_purpose() -> None:
    tour = section("docs/explanation/architecture.md", "## Tour of the code")
    rows = re.findall(r"^\| `([a-z_/]+)` \| (.*) \|$", tour, re.MULTILINE)
    told = {folder: purpose for folder, purpose in rows if purpose != "what is in it"}
    found = {}
    for root in (ROOT / "sources/pyspark_timestream", ROOT / "sinks/pyspark_tseries"):
        for place in root.rglob("*/__init__.py"):
            docstring = ast.get_docstring(ast.parse(place.read_text()))
            found[str(place.parent.relative_to(root))] = docstring
    assert told == found


def test_the_home_for_a_faster_start_has_all_of_spark_but_the_zip(tmp_path: Path) -> None:
    (block,) = blocks("docs/how-to/low-latency.md", "console")
    commands = [line.removeprefix("$ ") for line in block.text.splitlines()]
    python = str(Path(sys.executable).parent)
    environment = {"HOME": str(tmp_path), "PATH": f"{python}:{os.environ['PATH']}"}
    # Twice: a reader may paste it into every shell.
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-ec", "\n".join([*commands, 'echo "$SPARK_HOME $PYSPARK_PYTHON"'])],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    home, interpreter = map(Path, done.stdout.split())
    assert home.is_relative_to(tmp_path)
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert {path.name for path in home.iterdir()} == {"bin", "jars"}
    assert interpreter.samefile(sys.executable)


def test_the_page_of_the_commit_has_the_interval_of_checkpoints() -> None:
    sentence = f"a checkpoint is due {LOCAL_CHECKPOINT_INTERVAL} entries after the last one"
    assert sentence in read("docs/explanation/atomic-commit.md")
