"""A new option, key, counter or format is seen in several places; one that was forgotten is red.

contributing.md has a table for each kind of change. The tests here go by the declarations, so they
need no line of their own for a new one.
"""

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from documents import ROOT, read, section, table
from generate import CONNECTORS
from timestream.builders import PASSING, at, block, leave_out, options, projection, report_progress

from pyspark_timestream.commands.explanation import SHOWN_COUNTERS
from pyspark_timestream.commands.metrics import COUNTER_METRICS
from pyspark_timestream.commands.watch.case_records import COUNTED
from pyspark_timestream.core.declarations import option_specs
from pyspark_timestream.core.policies import KEEP_ALL, LATE_COUNTERS, POLICIES, Action
from pyspark_timestream.kafka.diagnosis.mistakes import count_lost
from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_PAYLOADS,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.options.reading import FORMATS
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan, TaskRange
from pyspark_timestream.kafka.task import RangeEnd, run_task
from pyspark_timestream.rules.clocks import COUNTERS, Events, PartitionClock, TimeRules
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import step
from pyspark_tseries.errors import DAMAGES

SEMANTICS = "docs/semantics.md"
PACKAGES, TESTS = ("sources", "sinks"), ("tests", "integration")
OPTIONS = {
    (connector, field): spec
    for connector, declared in CONNECTORS.items()
    for field, spec in option_specs(declared).items()
}


@cache
def texts(*folders: str) -> list[str]:
    """The sources in these folders but this one, and texts to refuse; short ones come first."""
    left_out = (Path(__file__).name, "refused_texts.py")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted((path.read_text() for path in files if path.name not in left_out), key=len)


def find_missing(
    names: Iterable[str],
    folders: Sequence[str],
    forms: Sequence[str],
    find: Callable[..., set[str]],
) -> set[str]:
    """The names that `find` finds in no source; only one that has one of the forms is parsed."""
    missing = set(names)
    for text in texts(*folders):
        if any(form.format(name) in text for name in missing for form in forms):
            missing -= find(ast.parse(text))
    return missing


def find_attributes(source: ast.AST) -> set[str]:
    """The names behind a dot."""
    return {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}


def find_given(source: ast.AST) -> set[str]:
    """Names that a test gives as arguments, keys of dictionaries, or to `option`.

    A dictionary that it compares with, such as a report of the progress, does not count.
    """
    found = set[str]()
    nodes = [source]
    while nodes:
        node = nodes.pop()
        match node:
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Dict():
                found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
            case ast.Call(func=ast.Attribute(attr="option"), args=[ast.Constant(value=name), _]):
                found.add(name)
            case ast.Compare():
                # Only calls in it give anything: the rest is what is expected.
                nodes += [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                continue
        nodes += ast.iter_child_nodes(node)
    return found


def test_a_name_is_given_in_a_call_but_not_in_what_is_expected() -> None:
    source = "assert report(options(given='1')) == [{'expected': {'from': 1}}]"
    assert find_given(ast.parse(source)) == {"given"}


def names_in(text: str) -> set[str]:
    """The words in code style in a text."""
    return set(re.findall(r"`([^`\n]+)`", text))


# One test, not one for each option: each process of pytest would read all files first.
def test_an_option_has_an_effect() -> None:
    names = [field for _, field in OPTIONS]
    assert not find_missing(names, PACKAGES, [".{}"], find_attributes), "nothing reads the field"


def test_an_option_is_given_by_a_test() -> None:
    names = [spec.name for spec in OPTIONS.values()]
    assert not find_missing(names, TESTS, ['"{}"', "{}="], find_given)


def test_what_an_option_decides_is_passed_on() -> None:
    """The rules know no options of Kafka: one call makes them, with all of their fields."""
    calls = [
        node
        for text in texts(*PACKAGES)
        if f"{TimeRules.__name__}(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == TimeRules.__name__
    ]
    (call,) = (call for call in calls if call.args or call.keywords)
    given = [keyword.arg for keyword in call.keywords]
    assert sorted(given) == sorted(field.name for field in fields(TimeRules))


def test_an_option_that_accepts_a_few_words_describes_all_of_them() -> None:
    for spec in OPTIONS.values():
        words = re.findall(r"'([^',]+)'(?:, |$)", spec.parser.accepts)
        is_list = spec.parser.accepts == ", ".join(f"'{word}'" for word in words)
        if is_list and not spec.description.startswith("as `"):
            assert set(words) <= names_in(spec.description) | {spec.default}, spec.name


def test_an_option_that_a_checkpoint_pins_is_in_the_semantics() -> None:
    law = read(SEMANTICS)
    assert not [s.name for s in OPTIONS.values() if s.is_pinned and s.name not in law]


def progress_keys() -> list[str]:
    share = PartitionOffset(0, 5, PartitionClock())
    report = report_progress(StreamOffset("id", {}, 1, {Partition("trips", 0): share}), {})
    return [*report, *report["partitions"]["trips"]["0"]]


@pytest.mark.parametrize("key", dict.fromkeys(progress_keys()))
def test_a_key_of_the_progress_is_in_the_semantics_and_read_by_a_test(key: str) -> None:
    told = names_in(section(SEMANTICS, "### 13.5 Progress")) | {"partitions"}
    assert key in told | {row[0].strip("`") for row in table(SEMANTICS, "counters")}
    assert f'"{key}"' in "".join(texts(*TESTS))


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "binary"])
def test_a_payload_format_is_read_told_and_has_hostile_payloads(form: str) -> None:
    folder = ROOT / "sources/pyspark_timestream/kafka/decode" / form
    assert (folder / "__init__.py").exists()
    assert form in names_in(section(SEMANTICS, "### 13.6 Payload formats"))
    tests = ROOT / "tests/timestream/kafka/decode" / form
    named = " ".join(path.read_text() for path in tests.rglob("test_*.py"))
    decoder = (folder.parent / "formats.py").read_text()
    assert re.search(f'case "{form}"', decoder)
    same_rows = read("tests/timestream/kafka/test_payload_formats.py")
    assert f'"valueFormat": "{form}"' in same_rows
    assert re.search("def test_\\w*(hostile|neighbour|beside_any_others)", named)


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_counter_counts_something(counter: str) -> None:
    """Events that are on time, late, over, malformed, without a value, and in the future."""
    start, end = np.array([[50, 10, 10, 9, 30, 900], [60, 99, 20, 9, 40, 950]])
    events = Events(
        start,
        np.array([True, True, True, True, False, True]),
        end,
        record_us=np.full(len(start), 100),
        valueless=np.array([False, False, False, False, True, False]),
    )
    ignored = Marks(
        np.array([0]), np.array([1]), *np.array([[True], [True]]), pa.array([""]), np.array([False])
    )
    found = set()
    for policy in PASSING:
        for shape, given in (("interval", events), ("point", replace(events, end_us=None))):
            rules = TimeRules(shape, policy, every_events=1, max_future_us=500, from_us=60)
            counted = step(rules, PartitionClock(), given, ignored)[0].counters()
            found |= {name for name, count in counted.items() if count}
    assert counter in found


def test_a_counter_of_events_that_is_shown_has_cases() -> None:
    assert set(SHOWN_COUNTERS) - {"events"} == set(COUNTED)


@pytest.mark.parametrize("counter", LATE_COUNTERS)
def test_a_counter_of_late_events_is_shown_and_told(counter: str) -> None:
    assert counter in SHOWN_COUNTERS
    assert counter in COUNTER_METRICS["dropped"][0].description
    pages = ("monitor.md", "timestream-dashboard.json", "troubleshooting.md")
    for page in ("README.md", *(f"docs/how-to/{page}" for page in pages)):
        assert counter in read(page)
    assert f"`{counter}`" in section(SEMANTICS, "### 7.7 Replays by time")


@pytest.mark.parametrize("action", [action for action in Action if action.moves])
def test_late_events_that_an_action_moves_are_not_lost(action: Action) -> None:
    assert not count_lost(PartitionClock(**{action.counter: 5}))


OF_TASKS = {"valueFormat": "json", "startTime": "field:at"}, (b'{"at": 1}', b"no JSON")
"""Options and values that make `_count_malformed` count something for each field."""


@pytest.mark.parametrize("name", [each.name for each in fields(MalformedPayloads)])
def test_what_tasks_count_of_values_is_counted_and_reaches_the_offset(name: str) -> None:
    given, values = options(**OF_TASKS[0]), OF_TASKS[1]
    plan = TaskPlan((TaskRange(OffsetRange(at(0), 0, len(values)), PartitionClock()),))
    ended: dict[Partition, RangeEnd] = {}
    wanted = projection(given, ("n", pa.int64()))
    read = lambda _, needs: [leave_out(block(*values), needs)]  # noqa: E731
    list(run_task(given, wanted, plan, read, ended.__setitem__))
    noted = ended[at(0)].malformed_payloads
    is_counted = getattr(noted, name) != getattr(NO_MALFORMED_PAYLOADS, name)
    assert is_counted, "by `_count_malformed` of no value of OF_TASKS, or `+` loses it"
    assert MalformedPayloads.from_json(noted.to_json()) == noted
    assert noted + NO_MALFORMED_PAYLOADS == noted == NO_MALFORMED_PAYLOADS + noted
    assert noted + noted - noted == noted


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_has_a_section_and_is_told_of_late_rows(policy: str) -> None:
    assert re.search(rf"^### 3\.\d+ {policy}$", read(SEMANTICS), re.MULTILINE)
    others = re.search(r"^Other policies:.*?\n\n", read("docs/how-to/late-rows.md"), re.M | re.S)
    assert others
    assert policy == KEEP_ALL or policy in names_in(others[0])


SHOWN_BY = {
    "log entry": "test_a_damaged_entry_before_whole_ones_is_made_again_without_give_up",
    "checkpoint": "test_a_torn_checkpoint_is_named_and_loses_nothing",
    "file": "test_missing_shortened_and_unreadable_files_are_named",
    "foreign change": "test_repair_undoes_foreign_changes_and_keeps_the_tools_files",
    "unknown changes": "test_repair_accepts_changes_without_log_if_all_events_are_sound",
    "outside file": "test_a_log_entry_that_names_a_file_outside_of_the_store_is_refused",
    "bounds": "test_wrong_bounds_in_the_log_are_found_and_mended",
    "head": "test_a_lost_head_is_mended_and_no_event_is_lost",
    "clock": "test_a_store_with_commits_of_the_future_is_refused_and_repaired",
    "types": "test_a_change_that_is_killed_twice_between_types_and_files_narrows_no_writer",
    "erasure record": "test_a_lost_record_of_an_act_is_named",
    "store": "test_store_that_cannot_be_created_gives_a_one_line_error",
    "sequence": "test_each_kind_of_breakage_is_named",
    "timestamp": "test_each_kind_of_breakage_is_named",
    "commit": "test_each_kind_of_breakage_is_named",
    "edit": "test_each_kind_of_breakage_is_named",
    "state": "test_a_head_that_differs_from_the_events_is_named_by_column",
}
"""For each kind of damage, a test that makes it, and sees it named or mended."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_kind_of_damage_is_shown_by_a_test(kind: str) -> None:
    assert f"def {SHOWN_BY[kind]}(" in "".join(texts(*TESTS))
