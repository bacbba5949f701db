"""Option `timeSettings`: descriptions of topics, and what queries take (semantics 14.5)."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.builders import GIVEN

from pyspark_timestream.core.checkpoint import OFFSET_VERSION
from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.errors import CheckpointMismatch, OptionError
from pyspark_timestream.kafka.offsets.offset import check_stream_offset
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import SPECS
from pyspark_timestream.kafka.options.parsers import TIME_SETTINGS
from pyspark_timestream.kafka.topic_settings import (
    TOPIC_SETTINGS,
    load_topic_settings,
    merge_topic_settings,
    parse_settings,
    read_topic_settings,
    select_settings,
)
from pyspark_timestream.source import DefaultSource

FILE = TIME_SETTINGS.parse("/etc/times.json")
TOPIC = TIME_SETTINGS.parse("topic:times")

TIMES = [
    {},
    {"eventShape": "interval", "endTime": "field:end"},
    {"eventShape": "edge", "endTime": "field:end", "edge": "field:kind"},
    {"eventShape": "point", "startTime": "field:at", "timeUnit": "s"},
]
CTIS = [
    {"ctiFrequency": "1"},
    {"ctiFrequency": "10", "ctiDelay": "20 s"},
    {"ctiFrequency": "5 s", "ctiDelay": "-1 tick", "maxFuture": "1 h"},
    {"advanceTime": "IncreasingStartTime"},
    {"advanceTime": "StrictlyIncreasingStartTime", "violationPolicy": "adjust"},
    {"advanceTime": "UnorderedStartTime", "ctiDelay": "5 min"},
    {"ctiHeader": "cti", "writers": "a,b", "writerTimeout": "1 h"},
    {"ctiHeader": "cti", "ctiFrequency": "10", "violationPolicy": "flag"},
    {"writerFrom": "header:by", "ctiFrequency": "1", "writers": "a", "writerGrace": "1 min"},
    {"advanceTime": "IncreasingStartTime", "maxFuture": "1 h", "futurePolicy": "drop"},
]
WHOLE = st.builds(lambda times, ctis: times | ctis, st.sampled_from(TIMES), st.sampled_from(CTIS))
"""Options of time that need no others."""


def taken(own, topic_settings):
    return select_settings({name.lower(): text for name, text in own.items()}, topic_settings)


def read(found, topic="trips", place=FILE):
    return read_topic_settings(found, topic, place)


def refusal(call, *arguments):
    """The message of an option error; its shape is always the same."""
    with pytest.raises(OptionError) as refused:
        call(*arguments)
    message = str(refused.value)
    assert message.startswith("option 'timeSettings': ")
    assert "; accepted: " in message
    assert "; next step: " in message
    return message


def expected(own, topic_settings):
    """Semantics 14.5, rule by rule."""
    gone = set(own)
    if "ctiFrequency" in own:
        gone.add("advanceTime")
    if "ctiHeader" in own:
        gone.add("writerFrom")
    if "writerFrom" in own:
        gone.add("ctiHeader")
    if "advanceTime" in own:
        gone.add("ctiFrequency")
        if own["advanceTime"] != "UnorderedStartTime":
            gone.add("ctiDelay")
    if "eventShape" in own:
        gone |= {"interval": {"edge"}, "point": {"edge", "endTime"}}.get(own["eventShape"], set())
    return {name: text for name, text in topic_settings.items() if name not in gone}


@given(own=WHOLE, topic_settings=WHOLE)
def test_a_query_takes_what_it_neither_sets_nor_rules_out(own, topic_settings) -> None:
    assert taken(own, topic_settings) == expected(own, topic_settings)


@given(own=st.one_of(st.just({}), WHOLE), topic_settings=WHOLE)
def test_whole_options_over_a_whole_description_always_fit(own, topic_settings) -> None:
    options = read_kafka_options({**GIVEN, **own}, taken(own, topic_settings))
    alone = read_kafka_options({**GIVEN, **own}).settings()
    for name in own.keys() & alone.keys():
        assert options.settings()[name] == alone[name]


@given(topic_settings=WHOLE)
def test_a_described_topic_is_the_same_as_its_options_written_out(topic_settings) -> None:
    written = read_kafka_options({**GIVEN, **topic_settings})
    found = read_kafka_options(GIVEN, read(topic_settings))
    assert found.settings() == written.settings()
    assert (found.rules, found.final_cti) == (written.rules, written.final_cti)


@given(st.lists(st.sampled_from(CTIS), min_size=1, max_size=3))
def test_topics_have_one_description_or_are_refused_by_name(several) -> None:
    by_topic = {f"t{number}": read(each) for number, each in enumerate(several)}
    if all(each == several[0] for each in several):
        assert merge_topic_settings(by_topic, FILE) == read(several[0])
    else:
        assert "describes topics 't0' and 't" in refusal(merge_topic_settings, by_topic, FILE)


def test_equal_descriptions_in_other_words_are_equal() -> None:
    one = read({"startTime": "at", "CTIFREQUENCY": 10, "ctiDelay": "60 seconds"})
    two = read({"ctiDelay": "1 minute", "ctiFrequency": "10", "starttime": "field:at"})
    assert merge_topic_settings({"a": one, "b": two}, FILE) == one
    assert list(one) == ["startTime", "ctiFrequency", "ctiDelay"]


def test_topics_that_differ_are_told_the_setting_and_both_values() -> None:
    both = {"a": read({"ctiFrequency": 1}), "b": read({"ctiFrequency": 1, "ctiDelay": "5 s"})}
    said = refusal(merge_topic_settings, both, FILE)
    assert "topics 'a' and 'b' differently: 'ctiDelay' is not set and '5 s" in said
    assert "a query of its own" in said


@pytest.mark.parametrize(("place", "step"), [(TOPIC, "produce one"), (FILE, "add one")])
def test_a_topic_without_description_is_told_where_to_put_it(place, step) -> None:
    said = refusal(merge_topic_settings, {"trips": None}, place)
    assert f"'{place}' has no description of topic 'trips'" in said
    assert f"next step: {step} with the key 'trips'" in said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "is not a JSON object"),
        (None, "is not a JSON object"),
        ({"ctiDelay": None}, "cannot read 'ctiDelay': null (neither a string nor"),
        ({"ctiDelay": True}, "cannot read 'ctiDelay': true"),
        ({"ctiFrequency": 1.5}, "cannot read 'ctiFrequency': 1.5"),
        ({"ctiFrequency": 0}, "cannot read 'ctiFrequency': 0 (a count must be at least 1"),
        ({"ctiDelay": "soon"}, "cannot read 'ctiDelay': \"soon\""),
        ({"violationPolicy": "perhaps"}, f"accepted: {', '.join(map(repr, POLICIES))}"),
        ({"ctiDelay": "1 s", "CTIdelay": "2 s"}, "has 'ctiDelay' twice"),
        ({"writers": ["a"]}, "cannot read 'writers'"),
    ],
)
def test_a_wrong_description_is_refused_with_topic_place_and_setting(found, said) -> None:
    message = refusal(read, found)
    assert "the description of topic 'trips' in '/etc/times.json'" in message
    assert said in message


@pytest.mark.parametrize(
    "name",
    ["kafka.sasl.password", "finalCti", "subscribe", "timeSettings", "idleTimeout", "x" * 99],
)
def test_a_description_holds_settings_of_time_only(name) -> None:
    message = refusal(read, {name: "hunter2"})
    assert f"has '{name[:77]}" in message
    assert "hunter2" not in message
    assert "accepted: startTime, endTime" in message


def test_every_describable_setting_is_an_option_that_a_checkpoint_keeps() -> None:
    kept = {name for name in TOPIC_SETTINGS if SPECS[name].is_pinned}
    # The preset is kept as what it stands for.
    assert kept == set(TOPIC_SETTINGS) - {"advanceTime"}
    assert all(SPECS[name].effect == "both" for name in TOPIC_SETTINGS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{\x00}\x00", "is not JSON"),
        (b'{"a": {}, "a": {}}', "'a' is there twice"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_garbage_in_place_of_json_is_refused(content, said) -> None:
    assert said in refusal(parse_settings, content, "the file 'x'")


@pytest.mark.parametrize(
    ("text", "path"),
    [("times.json", "times.json"), ("file:///a/b%20c.json", "/a/b c.json"), ("file:/a%23", "/a#")],
)
def test_a_file_is_named_by_path_or_url(text, path) -> None:
    assert TIME_SETTINGS.parse(text).path == path


@pytest.mark.parametrize(
    "text", ["", "topic:", "file://host/a", "s3://b/k", "file:", "a\0b", "file:///a#b", "file:/a?b"]
)
def test_a_place_that_cannot_be_read_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"not a topic|no path|machine|%3F or %23"):
        TIME_SETTINGS.parse(text)


def test_a_file_gives_the_settings_once_to_every_process(tmp_path) -> None:
    place = tmp_path / "times.json"
    place.write_text(json.dumps({"topic": {"ctiFrequency": 1, "ctiDelay": "20 seconds"}}))
    raw = {**GIVEN, "transport": "kafka", "timeSettings": str(place)}
    source = DefaultSource(raw)
    shipped = pickle.dumps(source)
    place.unlink()
    copy = pickle.loads(shipped)
    assert [field.name for field in copy.schema().fields][-1] == source.schema().fields[-1].name
    assert "cti" in copy.schema().fieldNames()
    assert read_kafka_options(raw, copy._topic_settings).delay_us == 20_000_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read '{}' on the driver (No such file"),
        ("{", "the file '{}' is not JSON"),
        ("[]", "the file '{}' is not a JSON object of topics"),
        ('{"other": {}}', "'{}' has no description of topic 'topic'"),
    ],
)
def test_a_file_that_describes_nothing_is_refused_by_path(tmp_path, content, said) -> None:
    place = tmp_path / "times.json"
    if content is not None:
        place.write_text(content)
    message = refusal(load_topic_settings, {**GIVEN, "TIMESETTINGS": str(place)})
    assert said.format(place) in message


def test_the_topics_of_assign_are_described_too(tmp_path) -> None:
    place = tmp_path / "times.json"
    place.write_text('{"a": {"ctiFrequency": 7}, "b": {"ctiFrequency": "7"}, "c": 3}')
    raw = {"assign": '{"a": [0], "b": [1]}', "timeSettings": f"file://{place}"}
    assert load_topic_settings(raw) == {"ctiFrequency": "7"}
    assert load_topic_settings({**raw, "CTIFREQUENCY": "8"}) == {}


def test_a_pattern_of_topics_is_refused_beside_a_description() -> None:
    raw = {"kafka.bootstrap.servers": "b:1", "subscribePattern": "a.*", "timeSettings": "x.json"}
    assert load_topic_settings(raw) == {}
    assert "conflicts with option 'subscribePattern'" in refusal(read_kafka_options, raw)


def test_a_conflict_with_a_described_setting_names_both_and_where_it_is_from() -> None:
    topic_settings = {"advanceTime": "IncreasingStartTime"}
    with pytest.raises(OptionError) as refused:
        read_kafka_options({**GIVEN, "ctiDelay": "5 s"}, topic_settings)
    said = str(refused.value)
    assert said.startswith("option 'ctiDelay': '5 s' conflicts with option 'advanceTime'")
    assert said.endswith("option 'timeSettings' gives advanceTime = 'IncreasingStartTime'")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"ctiDelay": "20 s"}, {"ctiDelay": "5 min"}, "so set it to '20 s"),
        ({}, {"startTime": "field:at"}, "so set it to 'timestamp"),
        ({}, {"maxFuture": "1 h"}, "so leave 'timeSettings' out and set the other"),
    ],
)
def test_a_changed_description_is_refused_on_a_checkpoint_by_name(old, new, said) -> None:
    before, after = {"ctiFrequency": "1", **old}, {"ctiFrequency": "1", **new}
    stored = {"version": OFFSET_VERSION, "settings": read_kafka_options(GIVEN, before).settings()}
    now = read_kafka_options(GIVEN, after)
    with pytest.raises(CheckpointMismatch, match=f"now by option 'timeSettings'; .*{said}"):
        check_stream_offset(stored, now.settings(), now.topic_settings)
    # The way out: the query sets what it had, or no longer uses the description.
    own = read_kafka_options({**GIVEN, **before}, taken(before, {}))
    check_stream_offset(stored, own.settings(), own.topic_settings)
    if old:
        kept = read_kafka_options({**GIVEN, **old}, taken(old, after))
        check_stream_offset(stored, kept.settings(), kept.topic_settings)


def test_a_changed_preset_is_refused_as_what_it_stands_for() -> None:
    old = read_kafka_options(GIVEN, {"ctiFrequency": "10"}).settings()
    now = read_kafka_options(GIVEN, {"advanceTime": "IncreasingStartTime"})
    stored = {"version": OFFSET_VERSION, "settings": old}
    with pytest.raises(CheckpointMismatch, match=r"'ctiFrequency' was '10' .* 'timeSettings'"):
        check_stream_offset(stored, now.settings(), now.topic_settings)
