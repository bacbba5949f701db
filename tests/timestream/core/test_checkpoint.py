"""Spark's plan of a batch, from the checkpoint (semantics 29.2 and 30.1)."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from urllib.parse import quote

import pytest

from pyspark_timestream.core.checkpoint import (
    LogEntry,
    batch_entry_path,
    build_frozen,
    find_mistake,
    read_batch_entry,
    resolve_directory,
)
from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.rules.clocks import PartitionClock


def entry(*lines, version="v1", metadata='{"batchTimestampMs": 7}'):
    return "\n".join([version, metadata, *lines])


@pytest.mark.parametrize("name", ["a b", "a%20b", "run#2", "a?b=c", "a#b%20c"])
@pytest.mark.parametrize("scheme", ["file:", "file://", "file://localhost"])
def test_a_uri_names_the_directory_that_spark_made_or_that_its_escapes_mean(tmp_path, name, scheme):
    written, other = tmp_path / name, tmp_path / "other"
    written.mkdir()
    texts = [quote(str(written))] + [str(written)] * (scheme != "file://localhost")
    for text in texts:
        assert resolve_directory(scheme + text) == written
    assert resolve_directory(str(written)) == written
    assert resolve_directory(f"{scheme}{other}") == other


def test_a_log_entry_is_its_time_and_an_offset_a_source():
    read = LogEntry(entry('{"from": 1}', "-"))
    assert (read.planned_us, read.offsets) == (7000, ({"from": 1}, None))


@pytest.mark.parametrize("names", [["trips", "b_2"], ["0", "1"]])
def test_a_log_entry_of_version_2_is_that_of_version_1(names):
    lines = ['{"from": 1}', "-"]
    named = [":".join(pair) for pair in zip(names, lines, strict=True)]
    assert LogEntry(entry(*named, version="v2")).offsets == LogEntry(entry(*lines)).offsets


def test_sources_without_names_are_in_their_order_in_any_order_of_lines():
    assert LogEntry(entry("10:10", "2:2", "0:0", version="v2")).offsets == (0, 2, 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing"),
        ("v3\n{}\n{}", "'v3'"),
        (entry('{"from": 1}', version="v2"), "not with a source's name"),
        (entry("trips", version="v2"), "not with a source's name"),
        (entry(), "before the first source"),
        (entry("{}", metadata="[]"), "batchTimestampMs"),
        (entry("{}", metadata='{"batchTimestampMs": "x"}'), "batchTimestampMs"),
        (entry("{}", metadata='{"batchTimestampMs": true}'), "batchTimestampMs"),
        (entry("{}", metadata='{"batchTimestampMs": 9007199254740993}'), "years 1 to 9999"),
        (entry('{"from'), "."),
        ("\x00\x00", "begins with"),
    ],
)
def test_what_is_no_log_entry_is_refused_with_the_reason(text, said):
    with pytest.raises(ValueError, match=said):
        _ = LogEntry(text).planned_us, LogEntry(text).offsets


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("watermark_ms", "us"),
    [
        (0, None),
        (1500, 1_500_000),
        (FINAL_US // 1000 - 2, FINAL_US - 2_000),
        (FINAL_US // 1000 - 1, FINAL_US),
        (FINAL_US // 1000, FINAL_US),
    ],
)
def test_a_watermark_is_read_unless_1970_and_the_last_one_is_final(
    tmp_path, version, watermark_ms, us
):
    metadata = json.dumps({"batchWatermarkMs": watermark_ms, "conf": {}})
    batch_entry_path(tmp_path, 3).parent.mkdir()
    batch_entry_path(tmp_path, 3).write_text(entry("no JSON", version=version, metadata=metadata))
    assert read_batch_entry(tmp_path, 3).watermark_us == us


@pytest.mark.parametrize(
    "text", ['v1\n{"batchWatermarkMs":"1"}\n', "v1\n{}\n", "v1\n[]\n", "v1\n{torn", "v1", "", None]
)
def test_an_entry_without_a_watermark_is_refused(tmp_path, text):
    batch_entry_path(tmp_path, 3).parent.mkdir()
    if text is not None:
        batch_entry_path(tmp_path, 3).write_text(text)
    with pytest.raises((OSError, ValueError)):
        _ = read_batch_entry(tmp_path, 3).watermark_us


def test_a_frozen_value_is_the_same_however_it_was_built_and_has_only_what_was_given():
    built, made = build_frozen(PartitionClock, {"events": 4}), PartitionClock(events=4)
    assert vars(built) == {"events": 4}
    assert (built, hash(built), repr(built)) == (made, hash(made), repr(made))
    assert pickle.loads(pickle.dumps(built)) == made
    assert replace(built, count=1) == replace(made, count=1)
    with pytest.raises(FrozenInstanceError):
        built.events = 5


@pytest.mark.parametrize("name", ["place", "counters", "__class__", ""])
def test_a_value_is_not_built_of_a_field_that_its_class_does_not_have(name):
    with pytest.raises(TypeError, match=f"PartitionClock has no field '{name}'"):
        build_frozen(PartitionClock, {"events": 4, name: 1})


@pytest.mark.parametrize(
    "field", [{"events": "4"}, {"events": None}, {"cti_us": 4.0}, {"begun": 0}, {"cti_us": 2**62}]
)
def test_a_wrong_field_is_found_however_the_value_was_built(field):
    ((name, _),) = field.items()
    built, made = build_frozen(PartitionClock, field), PartitionClock(**field)
    assert find_mistake(built) == find_mistake(made)
    assert find_mistake(built).startswith(f"{name} is ")
