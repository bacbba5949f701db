"""Options about payloads: what needs what, what has no effect, and what a checkpoint keeps."""

import pytest
from timestream.builders import GIVEN, options

from pyspark_timestream import OptionError
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.reading import PAYLOAD_SETTINGS, PayloadRules
from pyspark_timestream.kafka.schemas import fingerprint_schema

URL = {"schemaRegistry.url": "http://registry:8081"}
LONG = '{"type": "long"}'
FILE = "trips.desc"

NAMES = {
    "format": ("valueFormat", "keyFormat"),
    "framing": ("valueFraming", "keyFraming"),
    "schema": ("valueSchema", "keySchema"),
    "message": ("valueMessage", "keyMessage"),
    "reader_schema": ("readerSchema", "keyReaderSchema"),
    "subject": ("valueSubject", "keySubject"),
}
SIDES = ("value", "key")


def given(side, **attributes):
    """Options of one side by their attributes: `format` is `valueFormat` or `keyFormat`."""
    return {NAMES[name][SIDES.index(side)]: text for name, text in attributes.items()}


def test_the_keys_framing_is_their_own():
    found = options(keyFormat="avro", keyFraming="header", **URL)
    assert (found.key_rules.framing, found.value_rules.framing) == ("header", "none")


def rules(side, **raw):
    found = options(**raw)
    return found.value_rules if side == "value" else found.key_rules


def refusal(**raw):
    with pytest.raises(OptionError) as refused:
        read_kafka_options({key: text for key, text in {**GIVEN, **raw}.items() if text})
    message = str(refused.value)
    assert message.startswith(f"option '{refused.value.name}': ")
    assert "; accepted: " in message
    assert "; next step: " in message
    return refused.value.name, message


@pytest.mark.parametrize("attribute", NAMES)
def test_attributes_and_options_have_corresponding_names(attribute):
    for side, name in zip(SIDES, NAMES[attribute], strict=True):
        empty = PayloadRules(side, "binary", "none", False, None, None, None, None)
        assert empty.option_name(attribute) == name


@pytest.mark.parametrize("side", SIDES)
def test_by_default_a_side_is_binary_without_framing(side):
    assert rules(side) == PayloadRules(side, "binary", "none", False, None, None, None, None)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("raw", "framing", "has_registry"),
    [
        ({"format": "json"}, "none", False),
        ({"format": "avro", "schema": LONG}, "none", False),
        ({"format": "avro", "schema": LONG, "framing": "CONFLUENT"}, "confluent", False),
        ({"format": "json", "url": True}, "confluent", True),
        ({"format": "avro", "url": True}, "confluent", True),
        ({"format": "protobuf", "url": True}, "confluent", True),
        ({"format": "avro", "url": True, "framing": "header"}, "header", True),
        ({"format": "json", "url": True, "framing": "header"}, "header", True),
    ],
)
def test_framing_is_confluents_with_a_registry_and_none_without(side, raw, framing, has_registry):
    raw = dict(raw)
    url = URL if raw.pop("url", False) else {}
    found = rules(side, **given(side, **raw), **url)
    assert (found.format, found.framing, found.has_registry) == (
        raw["format"],
        framing,
        has_registry,
    )


def test_value_without_ids_and_key_with_them_use_a_registry_apart():
    found = options(
        valueFormat="json", valueFraming="none", keyFormat="avro", keyPrefix="k_", **URL
    )
    assert (found.value_rules.has_registry, found.key_rules.has_registry) == (False, True)
    assert found.key_prefix == "k_"
    assert options().key_prefix == "key."


@pytest.mark.parametrize("side", SIDES)
def test_subject_is_by_default_the_one_topic_with_the_side(side):
    raw = {**given(side, format="avro"), **URL}
    assert rules(side, **raw).subject == f"topic-{side}"
    assigned = {**raw, "subscribe": None, "assign": '{"other": [0, 1]}'}
    assert rules(side, **assigned).subject == f"other-{side}"
    assert rules(side, **raw, **given(side, subject="s")).subject == "s"
    # Nothing is asked for by subject.
    assert rules(side, **raw, **given(side, reader_schema=LONG)).subject is None


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "topics",
    [
        {"subscribe": "a,b"},
        {"subscribe": None, "subscribePattern": "a"},
        {"subscribe": None, "assign": '{"a": [0], "b": [0]}'},
    ],
)
def test_subject_is_required_where_there_may_be_several_topics(side, topics):
    raw = {**given(side, format="avro"), **URL, **topics}
    name, message = refusal(**raw)
    assert name == NAMES["subject"][SIDES.index(side)]
    assert "the one topic" in message
    assert f"'{NAMES['reader_schema'][SIDES.index(side)]}'" in message
    assert rules(side, **raw, **given(side, subject="s")).needs_latest
    assert not rules(side, **raw, **given(side, reader_schema=LONG)).needs_latest
    # Schemas of framed JSON are looked up only by id.
    assert rules(side, **{**raw, **given(side, format="json")}).subject is None


@pytest.mark.parametrize("side", SIDES)
def test_latest_is_the_default_of_a_readers_schema(side):
    raw = {**given(side, format="avro"), **URL}
    for found in (raw, {**raw, **given(side, reader_schema=" Latest ")}):
        assert rules(side, **found).needs_latest
        assert rules(side, **found).reader_schema is None
    proto = given(side, format="protobuf", reader_schema="latest")
    assert rules(side, **proto, **URL).needs_latest


REFUSED = [
    # Options that the format does not use.
    ({"framing": "confluent"}, "framing", "'binary'"),
    ({"schema": LONG}, "schema", "'binary'"),
    ({"message": "a.B"}, "message", "'binary'"),
    ({"reader_schema": LONG}, "reader_schema", "'binary'"),
    ({"subject": "s"}, "subject", "'binary'"),
    ({"format": "json", "schema": LONG}, "schema", "'json'"),
    ({"format": "json", "message": "a.B"}, "message", "'json'"),
    ({"format": "json", "reader_schema": "latest", "url": True}, "reader_schema", "'json'"),
    ({"format": "json", "subject": "s", "url": True}, "subject", "'json'"),
    (
        {"format": "protobuf", "schema": FILE, "message": "a.B", "reader_schema": LONG},
        "reader_schema",
        "'protobuf'",
    ),
    # Options that lack a registry.
    ({"format": "avro", "schema": LONG, "subject": "s"}, "subject", "without a registry"),
    (
        {"format": "avro", "schema": LONG, "reader_schema": "latest"},
        "reader_schema",
        "'latest' has no effect without a registry",
    ),
    ({"format": "avro", "schema": LONG, "framing": "header"}, "framing", "'header'"),
    ({"format": "json", "framing": "header"}, "framing", "'header'"),
    # Too few schemas, or too many.
    ({"format": "avro"}, "schema", "needs a schema"),
    ({"format": "avro", "reader_schema": LONG}, "schema", "needs a schema"),
    ({"format": "avro", "framing": "confluent"}, "schema", "'confluent'"),
    ({"format": "protobuf"}, "schema", "needs a schema"),
    ({"format": "protobuf", "schema": FILE}, "message", "may have several messages"),
    ({"format": "avro", "schema": LONG, "url": True}, "schema", "it conflicts with option"),
    ({"format": "protobuf", "schema": FILE, "url": True}, "schema", "it conflicts with option"),
]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("raw", "attribute", "said"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_cannot_be_is_refused_by_name(side, raw, attribute, said):
    raw = dict(raw)
    url = URL if raw.pop("url", False) else {}
    name, message = refusal(**given(side, **raw), **url)
    assert name == NAMES[attribute][SIDES.index(side)]
    assert said in message
    # Every option that the message names is one of this side.
    others = {names[1 - SIDES.index(side)] for names in NAMES.values()}
    assert not [other for other in others if f"'{other}'" in message]


@pytest.mark.parametrize("side", SIDES)
def test_a_schema_that_conflicts_with_the_registry_says_where_it_belongs(side):
    _, message = refusal(**given(side, format="avro", schema=LONG), **URL)
    reader = NAMES["reader_schema"][SIDES.index(side)]
    assert f"next step: set '{reader}' to it instead" in message
    assert rules(side, **given(side, format="avro", reader_schema=LONG), **URL).schema is None


def test_a_registry_that_nothing_uses_is_refused():
    for raw in ({}, {"valueFormat": "json", "valueFraming": "none"}):
        name, message = refusal(**raw, **URL)
        assert name == "schemaRegistry.url"
        assert "no option asks for the ids of schemas" in message


def test_a_schema_for_none_framing_beside_a_registry_for_keys_is_read():
    found = options(
        valueFormat="avro", valueFraming="none", valueSchema=LONG, keyFormat="avro", **URL
    )
    assert found.value_rules.schema == LONG
    assert found.key_rules.needs_latest


def test_a_prefix_without_fields_of_the_key_is_refused():
    name, message = refusal(keyPrefix="k_")
    assert name == "keyPrefix"
    assert "option 'keyFormat' is 'binary'" in message


# -- what a checkpoint keeps -----------------------------------------------------------------------


def kept(**raw):
    found = options(**raw)
    return {name: text for name, text in found.settings().items() if name in PAYLOAD_SETTINGS}


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"valueFormat": "binary"},
        {"valueFormat": "json"},
        {"valueFormat": "json", "valueFraming": "none"},
        {"keyFormat": "json"},
    ],
)
def test_a_checkpoint_from_before_these_options_goes_on(raw):
    assert kept(**raw) == {}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ({"format": "avro", "url": True}, {"format": "avro", "framing": "confluent"}),
        ({"format": "protobuf", "url": True}, {"format": "protobuf", "framing": "confluent"}),
        ({"format": "json", "framing": "confluent"}, {"framing": "confluent"}),
        ({"format": "json", "url": True}, {"framing": "confluent"}),
        (
            {"format": "avro", "schema": LONG},
            {"format": "avro", "framing": "none", "schema": fingerprint_schema(LONG)},
        ),
        (
            {"format": "avro", "url": True, "framing": "header", "reader_schema": LONG},
            {"format": "avro", "framing": "header", "reader_schema": fingerprint_schema(LONG)},
        ),
        (
            {"format": "protobuf", "url": True, "message": "a.B"},
            {"format": "protobuf", "framing": "confluent", "message": "a.B"},
        ),
    ],
    ids=str,
)
def test_a_checkpoint_keeps_what_decides_the_rows(side, raw, wanted):
    raw = dict(raw)
    url = URL if raw.pop("url", False) else {}
    assert kept(**given(side, **raw), **url) == given(side, **wanted)


def test_another_spelling_is_no_change_to_a_checkpoint():
    first = kept(valueFormat="avro", valueSchema=LONG)
    assert first == kept(valueFormat="AVRO", valueFraming="None", valueSchema='{"type":"long"}')
    assert kept(valueFormat="avro", **URL) == kept(
        valueFormat="avro", valueSubject="topic-value", readerSchema="latest", **URL
    )
