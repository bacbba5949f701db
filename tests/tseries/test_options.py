"""Every option is read in any case, and every wrong one is named with the way out."""

import ast
import re
from pathlib import Path

import pytest
import refused_texts

import pyspark_tseries
from pyspark_timestream.core.declarations import option_specs
from pyspark_timestream.core.policies import Action
from pyspark_timestream.errors import OptionError
from pyspark_tseries.model.ranges import Point, Query, Range, RetainedRange
from pyspark_tseries.options import (
    LEAVE_OUT_POLICIES,
    STORE_POLICIES,
    ReadOptions,
    SubscribeOptions,
    WriteOptions,
    name_lenient,
    parse_options,
)
from pyspark_tseries.storage.location import local_path

ROOT = Path(pyspark_tseries.__file__).parent
CLASSES = (WriteOptions, ReadOptions, SubscribeOptions)
SPECS = [(cls, spec) for cls in CLASSES for spec in option_specs(cls).values()]
IDS = [f"{cls.__name__}.{spec.name}" for cls, spec in SPECS]
LEGAL = {"path": "/s", "txnVersion": "1", "retainedRange": "limit 1", "outOfOrder": "drop"}
LEGAL |= {"every": "1 hour", "aggregate": "n mean", "timezone": "UTC", "latest": "1"}
LEGAL |= {"from": "start", "to": "start", "limit": "1"}


def refuse(cls, raw):
    with pytest.raises(OptionError) as error:
        parse_options(cls, {"path": "/s", **raw})
    message = str(error.value)
    assert "accepted: " in message
    assert "next step: " in message
    return message


FREE_TEXT = {"seriesColumn", "seriesName", "timestampColumn", "editOfColumn", "ctiColumn",
             "authorColumn", "author", "txnAppId", "principal", "fill"}  # fmt: skip


def test_only_free_text_has_no_wrong_value():
    assert {spec.name for _, spec in SPECS} - refused_texts.TSERIES.keys() == FREE_TEXT


@pytest.mark.parametrize(
    ("cls", "spec", "value"),
    [
        pytest.param(cls, spec, value, id=f"{cls.__name__}.{spec.name}={value}")
        for cls, spec in SPECS
        for value in refused_texts.TSERIES.get(spec.name, ())
    ],
)
def test_a_wrong_value_names_option_value_and_what_is_accepted(cls, spec, value):
    company = {need: LEGAL.get(need, "x") for need in spec.needs}
    message = refuse(cls, {**company, spec.name: value})
    for part in (f"'{spec.name}'", value, spec.parser.accepts, spec.next_step()):
        assert part in message


@pytest.mark.parametrize(("cls", "spec"), SPECS, ids=IDS)
def test_a_misspelt_option_is_refused_with_the_nearest_name(cls, spec):
    assert f"did you mean '{spec.name}'" in refuse(cls, {f"{spec.name}x".lower(): "1"})


@pytest.mark.parametrize(("cls", "spec"), SPECS, ids=IDS)
def test_options_in_conflict_or_without_company_are_refused_naming_both(cls, spec):
    for other in spec.excludes:
        message = refuse(cls, {spec.name: LEGAL.get(spec.name, "a"), other: LEGAL.get(other, "b")})
        assert f"'{spec.name}'" in message
        assert f"'{other}'" in message
    if spec.needs:
        message = refuse(cls, {spec.name: LEGAL.get(spec.name, "x")})
        assert f"set '{spec.needs[0]}' too" in message


@pytest.mark.parametrize("cls", CLASSES)
def test_the_path_is_required(cls):
    with pytest.raises(OptionError, match=r"'path': it is missing.*next step"):
        parse_options(cls, {})


def test_an_option_of_the_other_direction_is_refused_as_such():
    assert "belongs to spark.read" in refuse(WriteOptions, {"query": "values"})
    assert "belongs to spark.readStream" in refuse(ReadOptions, {"startingSequence": "{}"})
    assert "belongs to writes" in refuse(ReadOptions, {"outOfOrder": "drop"})


def test_a_query_is_what_the_options_say():
    raw = {"from": "SEQUENCE 3", "to": "next 1 minute", "editfrom": "last 2", "limit": "4"}
    read = parse_options(ReadOptions, {"path": "/s", "query": "latestedits", **raw})
    view = Range(Point("sequence", 3), Point("next_us", 60_000_000))
    edits = Range(Point("last_count", 2), Point("last_count", 0))
    assert read.to_query() == Query("latestEdits", view, edits, 4)
    assert parse_options(ReadOptions, {"path": "/s"}).to_query() == Query()
    timed = parse_options(ReadOptions, {"path": "/s", "to": "1970-01-01T00:00:01Z"}).to_query().view
    assert timed == Range(Point("start"), Point("time", 1_000_000))


@pytest.mark.parametrize("anchor", ["next 3", "previous 1 second", "sequence", "last", "3"])
def test_what_counts_from_an_anchor_is_none(anchor):
    assert "'sequence N'" in refuse(ReadOptions, {"from": anchor})


def test_options_are_read_in_any_case():
    read = parse_options(
        WriteOptions, {"PATH": "/s", "outoforder": "DROP", "RETAINEDRANGE": "LIMIT 3"}
    )
    assert read == WriteOptions("/s", out_of_order="drop", retained_range=RetainedRange(3))


def test_an_option_that_spark_itself_puts_in_is_accepted():
    parse_options(WriteOptions, {"path": "/s", "checkpointlocation": "/c", "queryname": "q"})


@pytest.mark.parametrize(
    ("text", "names"),
    [("a", ("a",)), ('["a", "b"]', ("a", "b")), ("[]", ()), ('["[x"]', ("[x",)), ("", ("",))],
)
def test_series_are_one_name_or_a_json_list(text, names):
    assert parse_options(ReadOptions, {"path": "/s", "series": text}).series == names


@pytest.mark.parametrize(
    ("text", "path"),
    [("/a b", "/a b"), ("file:/a%20b", "/a b"), ("file:///a", "/a"), ("a:b/c", "a:b/c")],
)
def test_a_store_is_a_local_path_or_a_file_uri(text, path):
    assert local_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "gs://b/a",
        "s3://b",
        "s3://b/a%20b",
        "s3://b/a?b",
        "s3://b/../a",
        "abfss://c@d/e",
        "hdfs://n/a",
        "file://host/a",
        "a%20",
    ],
)
def test_other_places_are_refused_by_name(text):
    assert text in refuse(WriteOptions, {"path": text})


TEXTS = sorted((path for path in ROOT.rglob("*.py") if path.name != "options.py"), key=str)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_text_lists_policies_by_hand(path):
    """Only the options describe each; all other texts take the list from the declaration."""
    names = "|".join(STORE_POLICIES)
    listed = re.compile(rf"([`'])({names})\1(,| or|, or) \1({names})\1")
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if is_text(node)]
    assert [text for text in texts if listed.search(" ".join(text.split()))] == []


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_a_message_advises_every_policy_that_does_not_fail():
    assert name_lenient(STORE_POLICIES) == "'drop' or 'adjust'"
    assert name_lenient({**STORE_POLICIES, "keep": Action.FLAG}).endswith("or 'keep'")
    assert name_lenient(LEAVE_OUT_POLICIES) == "'drop'"
