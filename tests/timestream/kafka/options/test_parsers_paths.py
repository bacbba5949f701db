"""Paths of fields: their text, the options that take them, and what a checkpoint keeps of them."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from timestream.builders import GIVEN, options

from pyspark_timestream.core.checkpoint import OFFSET_VERSION
from pyspark_timestream.errors import NEW_CHECKPOINT, CheckpointMismatch, OptionError
from pyspark_timestream.kafka.driver.cti_importer import derive_import_options
from pyspark_timestream.kafka.offsets.offset import check_stream_offset
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.parsers import TimeFrom, descend, format_path, parse_path

names = st.text(st.sampled_from("a.` :é\n")) | st.sampled_from(["timestamp", "header:x", "field:"])
paths = st.lists(names, min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("payload.after.ts_ms", ("payload", "after", "ts_ms")),
        ("`a.b`", ("a.b",)),
        ("payload.`a.b`.c", ("payload", "a.b", "c")),
        ("`a``b`", ("a`b",)),
        ("`a`", ("a",)),
        ("``", ("",)),
        (" a. b ", (" a", " b ")),
        ("@timestamp", ("@timestamp",)),
    ],
)
def test_a_path_is_names_with_dots_between_and_backquotes_are_literal(text, path):
    assert parse_path(text) == path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the name is empty"),
        ("  ", "the name is empty"),
        ("a.", "a name in it is empty"),
        (".a", "a name in it is empty"),
        ("a..b", "a name in it is empty"),
        ("`a", "not closed"),
        ("`a``", "not closed"),
        ("`a`b", "must end before a dot"),
        ("a`b`", "a backquote is inside"),
    ],
)
def test_a_text_that_is_no_path_says_why(text, said):
    with pytest.raises(ValueError, match=said):
        parse_path(text)


@given(paths)
@example(("a.b", "`", ""))
@settings(deadline=None)
def test_every_path_reads_back_from_its_text(path):
    assert parse_path(format_path(path)) == path


def walk(value, path):
    """The value at the path, or None; and whether the walk ran into what is not an object."""
    for name in path:
        if value is None:
            return None, False
        if type(value) is not dict:
            return None, True
        value = value.get(name)
    return value, False


@given(
    st.recursive(
        st.none() | st.integers(0, 1) | st.lists(st.none(), max_size=1),
        lambda inner: st.dictionaries(st.sampled_from("ab"), inner),
        max_leaves=6,
    ),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(tuple),
)
@settings(deadline=None)
def test_a_walk_ends_in_the_value_in_nothing_or_where_no_object_is(value, path):
    found = descend(value, path)
    assert (found.value, found.blocked) == walk(value, path)
    assert descend(value, path[: found.depth])[1:] == (found.depth, False)


# -- options for times -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source", "kept"),
    [
        ("timestamp", TimeFrom("timestamp"), "timestamp"),
        ("TimeStamp", TimeFrom("timestamp"), "timestamp"),
        ("Record:timestamp", TimeFrom("timestamp"), "timestamp"),
        ("at", TimeFrom("field", "at"), "at"),
        ("field:at", TimeFrom("field", "at"), "at"),
        ("FIELD:at", TimeFrom("field", "at"), "at"),
        ("`at`", TimeFrom("field", "at"), "at"),
        ("field:timestamp", TimeFrom("field", "timestamp"), "field:timestamp"),
        ("`Timestamp`", TimeFrom("field", "Timestamp"), "field:Timestamp"),
        ("field:record:timestamp", TimeFrom("field", "record:timestamp"), "field:record:timestamp"),
        ("field:header:x", TimeFrom("field", "header:x"), "field:header:x"),
        ("header:field:x", TimeFrom("header", "field:x"), "header:field:x"),
        ("field:field:x", TimeFrom("field", "field:x"), "field:field:x"),
        ("record:x", TimeFrom("field", "record:x"), "record:x"),
        ("field:payload.ts_ms", TimeFrom("field", "payload.ts_ms"), "field:payload.ts_ms"),
        ("payload.ts_ms", TimeFrom("field", "payload.ts_ms"), "field:payload.ts_ms"),
        ("field:`a.b`", TimeFrom("field", "`a.b`"), "field:`a.b`"),
        ("header", TimeFrom("field", "header"), "header"),
        ("header:a.b", TimeFrom("header", "a.b"), "header:a.b"),
    ],
)
def test_a_time_names_the_record_a_header_or_a_field_by_its_path(text, source, kept):
    found = options(startTime=text)
    assert found.start_time == source
    assert found.settings()["startTime"] == kept
    assert options(startTime=kept).start_time == source


@given(paths)
@settings(deadline=None)
def test_every_field_can_be_named_and_its_setting_reads_back(path):
    found = options(startTime=f"field:{format_path(path)}")
    assert (found.start_time.kind, found.start_time.path) == ("field", path)
    again = options(startTime=found.settings()["startTime"])
    assert again.start_time == found.start_time


@pytest.mark.parametrize("name", ["startTime", "endTime", "edge"])
@pytest.mark.parametrize("text", ["field:", "header:", "field:a..b", "a.", "`a", "field: "])
def test_a_name_that_leads_nowhere_is_refused_with_what_is_accepted(name, text):
    given = {"eventShape": "edge", "endTime": "e", "edge": "k", name: text}
    with pytest.raises(OptionError) as refused:
        read_kafka_options({**GIVEN, **given})
    assert str(refused.value).startswith(f"option '{name}': cannot read '{text}' (")
    assert "'field:PATH'" in str(refused.value)


def test_an_edge_may_be_a_field_named_timestamp():
    given = options(eventShape="edge", endTime="payload.to", edge="field:timestamp")
    assert (given.end_time.path, given.edge.path) == (("payload", "to"), ("timestamp",))


@pytest.mark.parametrize("text", ["record:timestamp", "Timestamp"])
def test_an_edge_is_not_the_record_s_timestamp_however_that_is_written(text):
    with pytest.raises(OptionError, match="names no edge"):
        options(eventShape="edge", endTime="e", edge=text)


def test_an_import_reads_its_time_like_the_stream_itself():
    text = json.dumps({"topic": "fast", "frequency": 1, "startTime": "payload.`ts.ms`"})
    given = options(ctiImport=text)
    imported = derive_import_options(given)
    assert imported is not None
    assert imported.start_time.path == ("payload", "ts.ms")
    kept = given.settings()["ctiImport"]
    assert json.loads(kept)["startTime"] == "field:payload.`ts.ms`"
    assert options(ctiImport=kept).cti_import == given.cti_import
    with pytest.raises(OptionError, match="a name in it is empty"):
        options(ctiImport=json.dumps({"topic": "fast", "frequency": 1, "startTime": "a."}))


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("departed", "departed"),
        ("departed", "field:departed"),
        ("header:at", "header:at"),
        ("timestamp", "record:timestamp"),
        ("event.created", "field:event.created"),
        ("`a``b`", "field:`a``b`"),
    ],
)
def test_another_spelling_of_the_same_field_is_accepted_on_a_checkpoint(old, new):
    def given(text):
        imported = {"topic": "fast", "frequency": "1", "startTime": text}
        return options(startTime=text, ctiImport=json.dumps(imported)).settings()

    check_stream_offset({"version": OFFSET_VERSION, "settings": given(old)}, given(new))


def test_a_name_in_backquotes_is_another_field_than_a_path():
    then, now = (
        options(startTime=text).settings() for text in ("`event.created`", "event.created")
    )
    with pytest.raises(CheckpointMismatch) as refused:
        check_stream_offset({"version": OFFSET_VERSION, "settings": then}, now)
    assert str(refused.value) == (
        "option 'startTime' was 'field:`event.created`' when this checkpoint was made and is "
        "'field:event.created' now; it defines the stream's time or rows, so set it back to "
        f"'field:`event.created`' or {NEW_CHECKPOINT}"
    )
