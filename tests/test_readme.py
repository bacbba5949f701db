"""The README's tables say what the code does: options against the dataclasses, policy by policy."""

import dataclasses
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from pyspark_timestream.clock.options import TimeOptions
from pyspark_timestream.connector.instants import format_duration
from pyspark_timestream.connector.options import specs
from pyspark_timestream.connector.session import INTERPRETER, SETTINGS
from pyspark_timestream.cti.policy import KINDS, POLICIES, TABLE
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.plan.findings import FIXES, Kind
from pyspark_tseries.options.values import ReadOptions, SubscribeOptions, WriteOptions

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONNECTORS = [TimeOptions, KafkaOptions, WriteOptions, ReadOptions, SubscribeOptions]


def table_after(marker: str) -> list[list[str]]:
    """The cells of the first table after `marker`, without its head."""
    _, _, rest = README.partition(marker)
    lines = rest.lstrip().splitlines()
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def shown(connector: type, field: dataclasses.Field) -> str:
    """A default as the README writes it."""
    if specs(connector)[field.name].required:
        return "required"
    if field.default is None:
        return "none"
    if field.default == "":
        return "empty"
    if field.name in ("delay_us", "max_delay_us"):
        return f"`{format_duration(field.default)}`"
    if field.name in ("starting_offsets", "ending_offsets"):
        return "`latest`"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, Fraction):
        return f"`{field.default}`"
    return f"`{field.default}`"


@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda c: c.__name__)
def test_every_option_is_in_its_table_with_its_default(connector: type) -> None:
    table = table_after(f"<!-- options: {connector.__name__} -->")
    documented = {row[0].strip("`"): row[1] for row in table}
    declared = {
        spec.name: shown(connector, field)
        for field in dataclasses.fields(connector)
        for name, spec in specs(connector).items()
        if name == field.name
    }
    assert declared == documented
    assert all(row[2] for row in table)


def test_the_session_table_is_the_codes() -> None:
    table = table_after("<!-- session settings -->")
    documented = [(row[0].strip("`"), row[1].strip("`"), row[2]) for row in table]
    declared = (INTERPRETER, *SETTINGS)
    assert documented == [(each.name, each.value, each.reason) for each in declared]


def test_every_session_of_an_example_is_configured() -> None:
    packages = [ROOT / "sources/pyspark_timestream", ROOT / "sinks/pyspark_tseries"]
    sources = [path for package in packages for path in package.rglob("*.py")]
    for text in (README, *(path.read_text() for path in sources)):
        built = [line for line in text.splitlines() if "SparkSession.builder" in line]
        assert all("configure_spark(SparkSession.builder" in line for line in built), built
    assert "import configure_spark" in README or ", configure_spark" in README


def test_the_policy_table_is_the_codes() -> None:
    table = table_after("<!-- policy table -->")
    documented = {
        (row[0].strip("`"), kind): cell
        for row in table
        for kind, cell in zip(KINDS, row[1:], strict=True)
    }
    assert documented == {cell: action.value for cell, action in TABLE.items()}
    assert [row[0].strip("`") for row in table] == list(POLICIES)


@pytest.mark.parametrize("kind", Kind)
def test_every_diagnosis_is_an_entry_of_the_troubleshooting(kind: Kind) -> None:
    _, _, rest = README.partition("## Troubleshooting\n")
    entries = " ".join(rest.partition("\n## ")[0].split()).split(" - ")
    (entry,) = [entry for entry in entries if entry.startswith(f"**{kind}**")]
    assert f"Fix: {FIXES[kind]}." in entry


def test_differences_from_sparks_kafka_source_are_those_that_tests_show() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "integration").glob("test_beside_*.py"))
    shown = re.findall(r'@pytest\.mark\.difference\("(.*)"\)', tests)
    rows = table_after("<!-- differences from Spark's Kafka source -->")
    assert sorted(row[0] for row in rows) == sorted(shown)
    # Each gives the reason.
    assert all(len(row) == 4 and all(row) for row in rows)


def test_the_troubleshooting_is_ordered_by_symptom() -> None:
    _, _, rest = README.partition("## Troubleshooting\n")
    symptoms = re.findall(r"^### (.*)$", rest.partition("\n## ")[0], re.MULTILINE)
    assert symptoms == ["No output", "Rows missing", "Lagging"]


def test_every_module_is_in_the_reading_order() -> None:
    _, _, order = README.partition("## Reading order of the code")
    named = set(re.findall(r"`([a-z_.]+)`", order))
    packages = [ROOT / "sources/pyspark_timestream", ROOT / "sinks/pyspark_tseries"]
    modules = {
        ".".join(path.relative_to(package).with_suffix("").parts)
        for package in packages
        for path in package.rglob("*.py")
        if not path.name.startswith("__")
    }
    assert modules <= named


def test_the_home_for_a_faster_start_has_all_of_spark_but_the_zip(tmp_path: Path) -> None:
    _, _, section = README.partition("\n## Low latency\n")
    (block,) = re.findall(r"```console\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    commands = [line.removeprefix("$ ") for line in block.splitlines()]
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
