"""The parts of the reference that are made from the code when the site is built.

A comment in a page asks for one, and is replaced by it:

- `<!-- options: KafkaOptions -->`: the options of a dataclass, from their declarations.
- `<!-- settings -->`: the settings that `configure_spark` gives to a session.
- `<!-- commands: pyspark_tseries -->`: the sub-commands of a package, from their help.
- `<!-- metrics -->`: what `TimeMetrics` exports.
- `<!-- ratios: kafka_source -->`: the ratios of a benchmark, from `bench/results`.
- `<!-- exactness: nexmark -->`: what contenders took, and the rows that they have wrong.
- `<!-- chart: kafka_source -->`: these ratios as a chart, and a link to their table.
- `<!-- headlines -->`: the medians of all charts of the page.
- `<!-- example of the README -->`: its first program.
- `<!-- counts: internal_consistency -->`: what a benchmark has counted, from there too.
- `<!-- faults: chaos -->`: what campaigns of faults have shown, from there too.
- `<!-- tested -->`, `<!-- oracles -->`: what the tests are, counted in them.
"""

import contextlib
import importlib
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tested
from kept_charts import chart, headlines
from kept_exactness import exactness
from kept_results import counts, faults, ratios

from pyspark_timestream.clock.time_options import TimeOptions
from pyspark_timestream.commands.metrics import METRICS
from pyspark_timestream.core.declarations import OptionSpec, option_specs
from pyspark_timestream.core.session import HOME, INTERPRETER, SETTINGS
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions
from pyspark_tseries.options import ReadOptions, SubscribeOptions, WriteOptions

__all__ = [
    "COMMANDS",
    "CONNECTORS",
    "command_names",
    "generate",
    "option_entry",
    "requests",
    "setup",
]

CONNECTORS = {
    connector.__name__: connector
    for connector in (
        TimeOptions,
        KafkaOptions,
        KafkaWriteOptions,
        WriteOptions,
        ReadOptions,
        SubscribeOptions,
    )
}
COMMANDS = ("pyspark_timestream", "pyspark_tseries")
REQUEST = re.compile(
    r"^<!-- (options|settings|commands|ratios|chart|headlines|counts|exactness|faults"
    r"|metrics|tested|oracles)(?:: (\w+))? -->$",
    re.MULTILINE,
)
QUOTED = re.compile(r"'([^']*)'")
"""Texts that an error quotes, and the reference shows as code."""
CHANGES = {
    "": "may not change",
    "value": "changes with `changeFrom`",
    "more": "gets more topics with `changeFrom`",
    "beside": "is added or left out with `changeFrom`",
}
EFFECTS = {"stream": "streams", "batch": "batch reads", "both": "streams and batch reads"}


GROUPS = {
    "KafkaOptions": {
        "Which topics": "subscribe subscribePattern assign",
        "From where to where": "startingOffsets startingTimestamp startingOffsetsByTimestamp "
        "startingOffsetsByTimestampStrategy endingOffsets endingTimestamp endingOffsetsByTimestamp",
        "How much at once": "maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay maxTasks "
        "maxDriverRecords minPartitions maxRecordsPerPartition",
        "Losses and brokers": "failOnDataLoss groupIdPrefix kafkaConsumer.connectTimeoutMs "
        "kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs",
        "Values": "valueFormat valueFraming valueSchema valueMessage readerSchema valueSubject",
        "Keys": "keyFormat keyPrefix keyFraming keySchema keyMessage keyReaderSchema keySubject",
        "Malformed payloads": "parseMode columnNameOfCorruptRecord",
        "Columns": "timeSettings includeHeaders where metadataPrefix foldWindows",
        "Event times": "eventShape startTime endTime edge timeUnit",
        "CTIs": "ctiFrequency ctiDelay finalCti advanceTime",
        "CTIs of writers": "ctiHeader writerFrom writers writerGrace writerTimeout timeWindow",
        "Late and future events": "maxFuture futurePolicy violationPolicy",
        "Quiet and lagging partitions": "idleTimeout idleAdvance maxSkew",
        "Imported CTIs, and replays between CTIs": "ctiImport changeFrom startingCti endingCti",
    },
    "WriteOptions": {
        "Columns and series": "path seriesColumn seriesName timestampColumn editOfColumn",
        "CTIs": "ctiColumn ctiDelay",
        "Authors": "authorColumn author",
        "Ranges": "retainedRange subscriptionRange",
        "Late and future rows, edits, times": "outOfOrder maxFuture futurePolicy missingOriginal "
        "clock",
        "Columns, maintenance, durability": "mergeSchema autoCompact durability",
        "Exactly once, and rights": "txnAppId txnVersion principal",
    },
}
"""The groups on pages of many options: each heading, and its options in order."""


def options(connector: str) -> str:
    """The options of a dataclass by its name, each with a heading of its own, in groups.

    Raises:
        ValueError: a declared option has no place in `GROUPS`, or the other way round.
    """
    specs = {spec.name: spec for spec in option_specs(CONNECTORS[connector]).values()}
    groups = GROUPS.get(connector, {})
    if not groups:
        return "\n\n".join(map(option_entry, specs.values()))
    if misplaced := specs.keys() ^ " ".join(groups.values()).split():
        raise ValueError(f"GROUPS of {connector} and the declared options differ by {misplaced}")
    entries = [group_entry(groups)]
    for title, names in groups.items():
        entries += [f"## {title}", *(option_entry(specs[name]) for name in names.split())]
    return "\n\n".join(entries)


def group_entry(groups: Mapping[str, str]) -> str:
    """A list of links to the groups of a page."""
    links = [f"- [{title}](#{anchor(title)})" for title in groups]
    return "\n".join(["{.option-groups}", *links])


def anchor(title: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def option_entry(spec: OptionSpec) -> str:
    """An option's heading, its description, and a line of facts."""
    text = "required" if spec.required else spec.text_of(spec.default)
    if text is not None and not spec.required:
        text = f"`{text}`" if text else "empty"
    facts = {
        "Default": text or "none",
        "Accepted": QUOTED.sub(r"`\1`", spec.parser.accepts),
        "Effect": EFFECTS[spec.effect],
        "On a checkpoint": CHANGES[spec.allowed_change] if spec.is_pinned else "may change",
    }
    line = " · ".join(f"**{name}:** {text}" for name, text in facts.items())
    return f"### `{spec.name}`\n\n{sentence(spec.description)}\n\n{{.facts}}\n{line}"


def sentence(text: str) -> str:
    """`text` with a capital letter first and a full stop last."""
    return f"{text[0].upper()}{text[1:]}".removesuffix(".") + "."


def settings() -> str:
    """The table of what `configure_spark` sets."""
    rows = [
        f"| `{each.name}` | {each.value} | {each.reason} |"
        for each in (INTERPRETER, HOME, *SETTINGS)
    ]
    return "\n".join(["| setting | set to | why |", "| --- | --- | --- |", *rows])


def commands(package: str) -> str:
    """A list of a package's sub-commands, then each with a heading and its help."""
    helps = {name: help_of(package, name) for name in command_names(package)}
    entries = [f"### `{name}`\n\n{as_text(each)}" for name, each in helps.items()]
    return "\n\n".join([as_text(help_of(package)), *entries])


def as_text(printed: str) -> str:
    """A block of text in Markdown."""
    return f"```text\n{printed}\n```"


def command_names(package: str) -> list[str]:
    """The sub-commands of `python -m PACKAGE`, as its help lists them."""
    (found,) = re.findall(r"^  \{([^}]*)\}", help_of(package), re.MULTILINE)
    return [name.strip() for name in found.split(",")]


def help_of(package: str, *command: str) -> str:
    """The output of `python -m PACKAGE COMMAND --help`, 80 columns wide."""
    main = importlib.import_module(f"{package}.__main__").main
    printed = io.StringIO()
    kept = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*command, "--help"])
    finally:
        os.environ.pop("COLUMNS") if kept is None else os.environ.update(COLUMNS=kept)
    return printed.getvalue().rstrip()


def metrics() -> str:
    """The table of what `TimeMetrics` exports."""
    rows = [
        f"| `{each.prometheus_name}` | `{each.name}` | `{each.unit}` | {each.instrument} "
        f"| {each.description} |"
        for each in METRICS
    ]
    head = [
        "| Prometheus | OpenTelemetry | unit | kind | what |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *rows])


PARTS: dict[str, Callable[..., str]] = {
    "options": options,
    "settings": settings,
    "commands": commands,
    "metrics": metrics,
    "ratios": ratios,
    "chart": chart,
    "counts": counts,
    "exactness": exactness,
    "faults": faults,
    "tested": tested.table,
    "oracles": tested.list_oracles,
}


def generate(page: str) -> str:
    """A page's text with its requests replaced."""

    def carry_out(each: re.Match[str]) -> str:
        if each[1] == "headlines":
            return headlines(page)
        return PARTS[each[1]](*filter(None, [each[2]]))

    page = page.replace("<!-- example of the README -->", first_program())
    return REQUEST.sub(carry_out, page)


README = Path(__file__).parent.parent / "README.md"
FIRST_PROGRAM = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)


def first_program() -> str:
    """The first program of the README, as a block of code."""
    found = FIRST_PROGRAM.search(README.read_text(encoding="utf-8"))
    assert found is not None
    return found[0]


def requests(page: str) -> list[tuple[str, str]]:
    """What a page asks for: (part, name or the empty string)."""
    return REQUEST.findall(page)


SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")


def mark_examples(lines: list[str]) -> list[str]:
    """A docstring's lines; indented lines outside of its sections become Python code."""
    found: list[str] = []
    heading, before = "", "text"
    for line in lines:
        if line and not line.startswith(" "):
            heading = line
        is_example = line.startswith("    ") and not before and not SECTION.match(heading)
        if is_example and not in_example(found):
            found += [".. code-block:: python", ""]
        found.append(line)
        before = line
    return found


def in_example(lines: list[str]) -> bool:
    """Whether the last line that is not blank is indented."""
    return next((line.startswith(" ") for line in reversed(lines) if line), False)


CALLED = ("PunctuatedProducer",)
"""The classes that programs call; other objects come from functions."""


def hide_constructor(
    app: Any, kind: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str | None, str | None] | None:
    """Leave out the signature of classes that a program does not construct."""
    is_called = name.rpartition(".")[2] in CALLED
    return None if is_called or kind not in ("class", "exception") else ("", None)


def replace_examples(
    app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Mark the examples of a docstring before its sections are read.

    Show only the summary of an exception: the page itself says what to do.
    """
    lines[:] = mark_examples(lines)
    if kind == "exception" and "" in lines:
        del lines[lines.index("") :]


def replace_requests(app: Any, name: str, source: list[str]) -> None:
    """Carry out the requests of a page as Sphinx reads it."""
    source[0] = generate(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", replace_requests)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-process-docstring", replace_examples, priority=400)
    return {"parallel_read_safe": True}
