"""Every option of transport `kafka`: its refusals, the presets, and secrets that stay secret."""

import dataclasses
import json

import pytest
import refused_texts
from timestream.builders import GIVEN, at, options

from pyspark_timestream.core.declarations import MEANT, OF_OTHERS, option_specs
from pyspark_timestream.core.instants import parse_duration
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.driver.cti_importer import derive_import_options
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.keys import RECORD_KEYS
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST, Frequency, TimeFrom
from pyspark_timestream.rules.clocks import TimeRules
from pyspark_timestream.source import DefaultSource
from pyspark_tseries.options import ReadOptions, WriteOptions

DECLARED = list(option_specs(KafkaOptions).values())
BROKER = {"kafka.bootstrap.servers": "broker:9092"}
LEGAL = {
    "subscribe": "a",
    "subscribePattern": "a.*",
    "assign": '{"a": [0]}',
    "startingOffsetsByTimestampStrategy": "latest",
    "maxTriggerDelay": "1 minute",
    "minPartitions": "4",
    "maxRecordsPerPartition": "100",
    "maxTasks": "2",
    "maxDriverRecords": "500",
    "ctiFrequency": "1",
    "ctiDelay": "1 s",
    "advanceTime": "IncreasingStartTime",
    "violationPolicy": "flag",
    "finalCti": "true",
    "writers": "a",
    "writerTimeout": "1 s",
    "timeWindow": "true",
    "maxFuture": "1 s",
    "futurePolicy": "drop",
    "ctiHeader": "cti",
    "writerFrom": "header:w",
    "writerGrace": "1 s",
    "ctiImport": "fast",
    "idleTimeout": "30 seconds",
    "idleAdvance": "2 minutes",
    "maxSkew": "10 minutes",
    "startingCti": "2024-01-01T00:00:00Z",
    "endingCti": "2024-02-01T00:00:00Z",
    "endingOffsets": "latest",
    "endingTimestamp": "1700000000000",
    "endingOffsetsByTimestamp": '{"a": {"0": 1700000000000}}',
    "timeSettings": "topic:times",
}


def refusal(**raw):
    """The message that refuses options; its shape is always the same."""
    with pytest.raises(OptionError) as refused:
        read_kafka_options(raw)
    message = str(refused.value)
    assert message.startswith(f"option '{refused.value.name}': ")
    assert "; accepted: " in message
    assert "; next step: " in message
    return message


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param(spec, value, id=f"{spec.name}={value}")
        for spec in DECLARED
        for value in refused_texts.KAFKA.get(spec.name, ())
    ],
)
def test_an_illegal_value_is_refused_with_option_value_accepted_and_next_step(spec, value):
    message = refusal(**{**GIVEN, spec.name: value})
    assert message.startswith(f"option '{spec.name}': ")
    assert f"'{value}'" in message
    assert f"accepted: {spec.parser.accepts}; next step: {spec.next_step()}" in message


def test_only_free_text_has_no_illegal_value():
    free = {spec.name for spec in DECLARED} - refused_texts.KAFKA.keys()
    assert free == {"metadataPrefix"}


@pytest.mark.parametrize("spec", DECLARED, ids=lambda spec: spec.name)
def test_a_misspelt_option_is_refused_with_the_nearest_name(spec):
    misspelt = spec.name[:2] + "x" + spec.name[2:]
    message = refusal(**{**GIVEN, misspelt: "1"})
    assert message.startswith(f"option '{misspelt.lower()}': there is no such option")
    assert f"did you mean '{spec.name}'?" in message


def test_a_misspelt_option_is_named_first_and_the_list_of_names_last():
    message = refusal(**{**GIVEN, "ctiFrequncy": "10"})
    names = ", ".join(sorted(spec.name for spec in DECLARED))
    assert message == (
        "option 'ctifrequncy': there is no such option: did you mean 'ctiFrequency'? (its value "
        f"was '10'); next step: correct the name, or leave it out; accepted: {names}"
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("bootstrapServers", "kafka.bootstrap.servers"),
        ("kafkaBootstrapServers", "kafka.bootstrap.servers"),
        ("security.protocol", "kafka.security.protocol"),
        ("schemaRegistryUrl", "schemaRegistry.url"),
    ],
)
def test_setting_of_a_client_without_its_prefix_is_told_the_prefix(name, meant):
    assert f"did you mean '{meant}'?" in refusal(**{**GIVEN, name: "s3cret"})
    assert "s3cret" not in refusal(**{**GIVEN, name: "s3cret"})


def test_option_like_none_is_not_told_another():
    message = refusal(**{**GIVEN, "zzzzzz": "1"})
    assert "there is no such option (its value" in message


@pytest.mark.parametrize("spec", DECLARED, ids=lambda spec: spec.name)
def test_declared_conflicts_name_both_options(spec):
    for other in spec.excludes:
        given = (
            GIVEN if other in ("maxTasks", "minPartitions", "maxRecordsPerPartition") else BROKER
        )
        given = {**given, "ctiFrequency": "1"} if spec.name == "maxSkew" else given
        if spec.name == "endingCti":
            given = {**given, "ctiFrequency": "1", "idleTimeout": "1 s"}
        message = refusal(**{**given, spec.name: LEGAL[spec.name], other: LEGAL[other]})
        assert message.startswith(f"option '{spec.name}': '{LEGAL[spec.name]}' conflicts")
        assert f"option '{other}' ('{LEGAL[other]}')" in message


@pytest.mark.parametrize("spec", [s for s in DECLARED if s.needs], ids=lambda spec: spec.name)
def test_an_option_that_has_no_effect_alone_names_what_it_needs(spec):
    message = refusal(**{**GIVEN, spec.name: LEGAL[spec.name]})
    assert message.startswith(f"option '{spec.name}': '{LEGAL[spec.name]}' has no effect alone")
    assert all(f"'{need}'" in message for need in spec.needs)


def test_the_conflicts_between_options_are_declared():
    declared = {spec.name: spec for spec in DECLARED}
    assert declared["subscribe"].excludes == ("subscribePattern", "assign")
    assert declared["subscribePattern"].excludes == ("assign",)
    assert declared["minPartitions"].excludes == ("maxTasks",)
    assert declared["maxRecordsPerPartition"].excludes == ("maxTasks",)
    assert declared["ctiFrequency"].excludes == ("advanceTime",)
    assert {name for name, spec in declared.items() if spec.needs} == {
        "ctiDelay",
        "futurePolicy",
        "endingCti",
        "maxFuture",
        "startingCti",
        "timeWindow",
        "idleAdvance",
        "idleTimeout",
        "maxSkew",
        "maxTriggerDelay",
        "startingOffsetsByTimestampStrategy",
        "violationPolicy",
        "writerFrom",
        "writerGrace",
        "writerTimeout",
        "writers",
    }


@pytest.mark.parametrize("last", ["2024-01-01T00:00:00Z", "2023-12-31T23:59:59Z"])
def test_a_span_that_ends_where_it_starts_or_before_is_refused(last):
    given = {**GIVEN, "ctiFrequency": "1", "startingCti": LEGAL["startingCti"]}
    message = refusal(**given, endingCti=last)
    assert f"option 'endingCti': '{last}' conflicts with option 'startingCti'" in message


def test_a_preset_with_an_ending_cti_sends_no_final_cti_unless_told():
    replay = {"advanceTime": "IncreasingStartTime", "endingCti": LEGAL["endingCti"]}
    assert not options(**replay).final_cti
    assert options(**replay, finalCti="true").final_cti


def test_a_checkpoint_pins_ends_and_span_of_a_stream_that_has_them():
    names = {"endingOffsets", "endingTimestamp", "startingCti", "endingCti"}
    assert not names & options().settings().keys()
    assert options(endingOffsets="latest").settings()["endingOffsets"] == "latest"
    assert options(endingTimestamp="7").settings()["endingTimestamp"] == "7"
    span = options(ctiFrequency="1", startingCti="2024-01-01 00:00Z", endingCti="20240201T0000Z")
    assert span.settings()["startingCti"] == LEGAL["startingCti"]
    assert span.settings()["endingCti"] == LEGAL["endingCti"]


def test_without_more_than_a_topic_the_defaults_are_sparks_and_the_rules():
    given = options()
    assert given.client == {"bootstrap.servers": "broker:9092"}
    assert given.subscribe == ("topic",)
    assert given.starting_offsets == LATEST
    assert (given.fail_on_data_loss, given.include_headers) == (True, False)
    assert (given.group_prefix, given.poll_timeout_ms) == ("timestream", 120_000)
    assert (given.starting_timestamp_ms, given.starting_timestamps_ms) == (None, None)
    assert (given.starting_strategy, given.ending_offsets) == ("error", LATEST)
    assert (given.min_offsets, given.max_delay_us) == (None, 15 * 60 * 1_000_000)
    assert (given.cuts_partitions, given.is_ordered) == (False, False)
    assert (given.retries, given.retry_interval_ms) == (3, 10)
    assert (given.value_format, given.parse_mode) == ("binary", "PERMISSIVE")
    assert (given.start_time, given.time_unit) == (TimeFrom("timestamp"), "ms")
    assert (given.has_ctis, given.final_cti, given.policy) == (False, False, "drop")
    # Without CTIs there is nothing to drop by.
    assert given.rules == TimeRules("point", "flag", None, None, 0)
    assert options(ctiFrequency="1").rules == TimeRules("point", "drop", 1, None, 0)


def test_every_option_is_read_in_any_case():
    raw = {
        "KAFKA.Bootstrap.Servers": "b:1",
        "SUBSCRIBE": " b, a ,b",
        "startingoffsets": '{"a": {"0": 5, "1": -2}, "b": {"0": -1}}',
        "STARTTIME": "header:When",
        "endtime": "end",
        "Edge": "edgeKind",
        "EVENTSHAPE": "EDGE",
        "ctifrequency": "5 seconds",
        "CTIDELAY": "-1 tick",
        "violationpolicy": "FLAG",
        "transport": "kafka",
        "queryName": "q",
    }
    given = read_kafka_options(raw)
    assert given.client == {"bootstrap.servers": "b:1"}
    assert given.subscribe == ("a", "b")
    assert given.starting_offsets == {at(0, "a"): 5, at(1, "a"): EARLIEST, at(0, "b"): LATEST}
    assert given.start_time == TimeFrom("header", "When")
    assert given.edge == TimeFrom("field", "edgeKind")
    assert given.rules == TimeRules("edge", "flag", None, 5_000_000, -1)


@pytest.mark.parametrize(
    ("preset", "more", "rules", "final"),
    [
        ("IncreasingStartTime", {}, TimeRules(every_events=1), True),
        ("StrictlyIncreasingStartTime", {}, TimeRules(every_events=1, delay_us=-1), True),
        (
            "UnorderedStartTime",
            {"ctiDelay": "5 seconds"},
            TimeRules(every_events=1, delay_us=5_000_000),
            True,
        ),
        ("increasingstarttime", {"finalCti": "false"}, TimeRules(every_events=1), False),
        (
            "IncreasingStartTime",
            {"violationPolicy": "flag", "finalCti": "TRUE"},
            TimeRules(policy="flag", every_events=1),
            True,
        ),
    ],
)
def test_a_preset_stands_for_its_settings(preset, more, rules, final):
    given = options(advanceTime=preset, **more)
    assert (given.rules, given.final_cti, given.has_ctis) == (rules, final, True)


@pytest.mark.parametrize("preset", ["IncreasingStartTime", "StrictlyIncreasingStartTime"])
def test_only_the_unordered_preset_takes_a_delay_and_it_needs_one(preset):
    message = refusal(**GIVEN, advanceTime=preset, ctiDelay="1 s")
    assert "'1 s' conflicts with option 'advanceTime'" in message
    assert preset in message
    assert "option 'ctiDelay': it is missing" in refusal(**GIVEN, advanceTime="UnorderedStartTime")


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"eventShape": "interval"}, "endTime"),
        ({"eventShape": "edge"}, "endTime"),
        ({"eventShape": "edge", "endTime": "e"}, "edge"),
        ({"endTime": "e"}, "endTime"),
        ({"edge": "e"}, "edge"),
        ({"eventShape": "interval", "endTime": "e", "edge": "k"}, "edge"),
    ],
)
def test_a_shape_has_just_the_times_that_it_needs(more, name):
    message = refusal(**GIVEN, **more)
    assert message.startswith(f"option '{name}': ")
    assert f"'eventShape' {'is' if name not in more else ''}".strip() in message
    assert more.get("eventShape", "point") in message


def test_each_shape_reads_with_what_it_needs():
    assert options(eventShape="interval", endTime="e").end_time == TimeFrom("field", "e")
    edge = options(eventShape="edge", endTime="header:e", edge="header:k")
    assert (edge.end_time, edge.edge) == (TimeFrom("header", "e"), TimeFrom("header", "k"))


def test_a_record_timestamp_is_no_edge():
    assert "names no edge" in refusal(**GIVEN, eventShape="edge", endTime="e", edge="timestamp")


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers"),
        ({"subscribe": "t", "kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers"),
        (BROKER, "subscribe"),
    ],
)
def test_a_broker_and_a_topic_are_needed(raw, name):
    assert refusal(**raw).startswith(f"option '{name}': ")


@pytest.mark.parametrize(
    "key",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.pasword",
    ],
)
def test_a_secret_of_the_client_is_in_no_repr_and_no_settings(key):
    given = read_kafka_options({**GIVEN, f"kafka.{key}": "hunter2"})
    assert given.client[key] == "hunter2"
    assert "hunter2" not in f"{given!r} {given} {given.settings()}"


@pytest.mark.parametrize(
    "key", ["sasl.password", "ssl.key.pem", "kafkasasl.password", "kafka_sasl_password"]
)
def test_a_secret_under_a_misspelt_name_is_not_shown(key):
    message = refusal(**{**GIVEN, key: "hunter2"})
    assert message.startswith(f"option '{key}': there is no such option")
    assert "hunter2" not in message


def test_a_secret_beside_a_wrong_option_is_not_shown_either():
    for wrong in ({"startTme": "x"}, {"maxTasks": "0"}, {"idleTimeout": "0 s"}, {"subscribe": "/"}):
        assert "hunter2" not in refusal(**{**GIVEN, "kafka.sasl.password": "hunter2", **wrong})


def test_settings_hold_what_defines_time_and_no_limits():
    limits = {"maxOffsetsPerTrigger": "5", "maxTasks": "2", "failOnDataLoss": "false"}
    assert options(**limits).settings() == {
        "eventShape": "point",
        "startTime": "timestamp",
        "timeUnit": "ms",
        "violationPolicy": "drop",
        "subscribe": "topic",
        "kafka.isolation.level": "read_committed",
    }


CHANGES = {
    "startTime": {"startTime": "header:t"},
    "eventShape": {"eventShape": "interval", "endTime": "e"},
    "endTime": {"eventShape": "interval", "endTime": "e"},
    "edge": {"eventShape": "edge", "endTime": "e", "edge": "k"},
    "ctiFrequency": {"ctiFrequency": "2"},
    "ctiDelay": {"ctiFrequency": "2", "ctiDelay": "1 s"},
    "violationPolicy": {"ctiFrequency": "2", "violationPolicy": "flag"},
    "timeUnit": {"timeUnit": "s"},
    "ctiHeader": {"ctiHeader": "c"},
    "writers": {"ctiHeader": "c", "writers": "a"},
    "writerTimeout": {"ctiHeader": "c", "writerTimeout": "1 s"},
    "maxFuture": {"ctiFrequency": "1", "maxFuture": "1 s"},
    "futurePolicy": {"ctiFrequency": "1", "maxFuture": "1 s", "futurePolicy": "drop"},
    "writerFrom": {"ctiFrequency": "1", "writerFrom": "header:w"},
    "writerGrace": {"ctiHeader": "c", "writerGrace": "1 s"},
    "ctiImport": {"ctiImport": "fast"},
    "subscribe": {"subscribe": "other"},
    "subscribePattern": {"subscribe": None, "subscribePattern": "other.*"},
    "kafka.isolation.level": {"kafka.isolation.level": "read_uncommitted"},
    "kafka.topic.blacklist": {"kafka.topic.blacklist": "^topic"},
    "kafka.api.version.request": {"kafka.api.version.request": "false"},
    "kafka.broker.version.fallback": {"kafka.broker.version.fallback": "0.9.0"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_change_with_every_option_that_defines_time(name):
    assert options(**CHANGES[name]).settings().get(name) != options().settings().get(name)


def test_every_client_setting_that_decides_which_records_there_are_is_kept():
    assert {f"kafka.{key}" for key in RECORD_KEYS} == {
        key for key in CHANGES if key[:6] == "kafka."
    }


def test_other_client_settings_may_change_on_a_checkpoint():
    other = {"kafka.check.crcs": "false", "kafka.client.rack": "b", "kafka.sasl.username": "u"}
    other |= {"kafka.bootstrap.servers": "elsewhere:1", "kafka.fetch.max.bytes": "9"}
    assert options(**other).settings() == options().settings()


def test_settings_are_canonical_so_that_another_spelling_is_no_change():
    spelt = {"subscribe": "b,a", "ctiFrequency": "60 seconds", "ctiDelay": "0.5 s"}
    other = {"subscribe": "a, b", "ctiFrequency": "1 minute", "ctiDelay": "500 ms"}
    assert options(**spelt).settings() == options(**other).settings()
    stated = {"kafka.isolation.level": " READ_committed", "kafka.topic.blacklist": ""}
    assert options(**stated).settings() == options().settings()
    preset = options(advanceTime="StrictlyIncreasingStartTime").settings()
    assert preset == options(ctiFrequency="1", ctiDelay="-1 tick").settings()


@pytest.mark.parametrize(
    "value",
    [
        "fast",
        '{"topic": "fast", "header": "h"}',
        '{"topic": "fast", "frequency": 10, "delay": "60 s", "startTime": "header:t"}',
        '{"topic": "fast", "frequency": "1 minute", "header": "h"}',
    ],
)
def test_an_import_reads_back_from_its_text(value):
    source = options(ctiImport=value).cti_import
    assert options(ctiImport=str(source)).cti_import == source


def test_an_import_in_other_words_is_no_change():
    spelt = '{"frequency": "60 seconds", "topic": "fast"}'
    other = '{"topic": "fast", "frequency": "1 minute", "delay": "0 s", "startTime": "timestamp"}'
    assert options(ctiImport=spelt).settings() == options(ctiImport=other).settings()
    assert options(ctiImport='{"topic": "fast"}').settings()["ctiImport"] == "fast"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a/b", "'a/b' is not a topic name"),
        ("{", "Expecting property name"),
        ('{"frequency": "1"}', "the key 'topic' is missing"),
        (
            '{"topic": "a", "frequncy": "1"}',
            "unknown key 'frequncy'; the keys are topic",
        ),
        ('{"topic": "a", "delay": "1 s"}', "the key 'delay' has no effect without 'frequency'"),
        ('{"topic": "a", "startTime": "t"}', "'startTime' has no effect without 'frequency'"),
        ('{"topic": "a", "header": ""}', "the name is empty"),
        ('{"topic": "a", "header": true}', "the value of 'header' must be a string"),
    ],
)
def test_an_import_that_cannot_be_is_refused(value, said):
    assert said in refusal(**GIVEN, ctiImport=value)


def test_an_import_is_a_source_of_ctis():
    given = options(ctiImport="fast", violationPolicy="flag", idleTimeout="1 s")
    assert given.has_ctis
    assert not options(idleTimeout="1 s", finalCti="true").frequency


def test_settings_of_assign_read_back():
    given = read_kafka_options({**BROKER, "assign": '{"b": [1], "a": [2, 0]}'})
    assert given.assign == (at(0, "a"), at(2, "a"), at(1, "b"))
    text = given.settings()["assign"]
    assert read_kafka_options({**BROKER, "assign": text}).assign == given.assign


@pytest.mark.parametrize("value", ["1 tick", "5 seconds", "1 minute 30 seconds", "7"])
def test_a_frequency_reads_back_from_its_text(value):
    frequency = options(ctiFrequency=value).frequency
    assert options(ctiFrequency=str(frequency)).frequency == frequency


@pytest.mark.parametrize("value", ["0", "-1", "0 seconds", "-5 s", "2147483648", "5 parsecs", ""])
def test_a_frequency_must_be_positive(value):
    assert f"'{value}'" in refusal(**GIVEN, ctiFrequency=value)


def test_a_frequency_of_digits_counts_and_of_a_unit_spans():
    assert options(ctiFrequency="5").frequency == Frequency(events=5)
    assert options(ctiFrequency="5 s").frequency == Frequency(interval_us=parse_duration("5 s"))


@pytest.mark.parametrize(
    "value",
    ['{"a": 5}', '{"a": {"x": 1}}', '{"a": {"0": -3}}', '{"a": {"0": true}}', "[]", "{", "5"],
)
def test_starting_offsets_must_be_words_or_offsets_by_partition(value):
    assert refusal(**GIVEN, startingOffsets=value).startswith("option 'startingOffsets': cannot")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("startingOffsets", '{"a": {"0": 5, "0": 9}}', "'0' is there twice"),
        ("startingOffsets", '{"a": {"0": 5}, "a": {"1": 9}}', "'a' is there twice"),
        ("startingOffsets", '{"a": {"0": 5, "00": 9}}', "a partition is there twice"),
        ("endingOffsetsByTimestamp", '{"a": {"0": 5, "0": 9}}', "'0' is there twice"),
        ("assign", '{"a": [0], "a": [1]}', "'a' is there twice"),
        ("ctiImport", '{"topic": "b", "header": "x", "topic": "c"}', "'topic' is there twice"),
    ],
)
def test_what_an_option_says_twice_is_refused_since_one_would_be_lost(name, value, problem):
    other = {"assign": value} if name == "assign" else {**GIVEN, name: value}
    assert refusal(**other).startswith(f"option '{name}': cannot read '{value}' ({problem}")


@pytest.mark.parametrize("name", ["subscribe", "subscribePattern", "assign"])
def test_no_default_is_advised_where_there_is_none(name):
    said = refusal(**{name: " "})
    assert said.endswith("next step: correct it"), said


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "x" * 250])
def test_a_name_that_no_topic_has_is_refused_by_its_option(topic):
    said = refusal(assign=json.dumps({topic: [0]}))
    assert said.startswith(f"option 'assign': cannot read '{{\"{topic}\": [0]}}'")
    assert f"('{topic}' is not a topic name)" in said


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsetsByTimestamp", "ctiImport"])
def test_json_that_is_nested_too_deeply_is_refused_by_its_option(name):
    said = refusal(**GIVEN, **{name: '{"a": ' * 100_000})
    assert said.startswith(f"option '{name}': cannot read '{{\"a\": ")
    assert "nested too deeply" in said
    assert len(said) < 500


@pytest.mark.parametrize("value", ["earliest", '{"a": {"0": -2}}', '{"a": {"0": -3}}', "[]"])
def test_a_read_cannot_end_at_the_earliest_offset(value):
    assert refusal(**GIVEN, endingOffsets=value).startswith("option 'endingOffsets': cannot read")


@pytest.mark.parametrize("name", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
@pytest.mark.parametrize("value", ['{"a": {"0": -1}}', '{"a": {"0": "1"}}', '{"a": 1}', "17"])
def test_timestamps_by_partition_are_whole_milliseconds(name, value):
    assert refusal(**GIVEN, **{name: value}).startswith(f"option '{name}': cannot read")


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize("value", ["-1", "2024-01-01T00:00:00Z", "1.5", ""])
def test_a_timestamp_is_whole_milliseconds(name, value):
    message = refusal(**GIVEN, **{name: value})
    assert "accepted: a whole number of milliseconds since 1970-01-01T00:00:00Z" in message


@pytest.mark.parametrize(
    ("value", "us"),
    [("15m", 900_000_000), ("1500", 1_500_000), ("0", 0), ("2 minutes", 120_000_000)],
)
def test_a_trigger_delay_is_read_as_spark_reads_it(value, us):
    assert options(minOffsetsPerTrigger="9", maxTriggerDelay=value).max_delay_us == us


def test_a_batch_cannot_wait_for_more_than_it_may_take():
    message = refusal(**GIVEN, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8")
    assert message.startswith("option 'minOffsetsPerTrigger': '9' conflicts with option 'maxOff")
    assert options(minOffsetsPerTrigger="8", maxOffsetsPerTrigger="8").min_offsets == 8


@pytest.mark.parametrize(
    ("more", "is_ordered"),
    [
        ({}, False),
        ({"finalCti": "true"}, False),
        ({"startTime": "header:t"}, False),
        ({"ctiFrequency": "1"}, True),
        ({"ctiHeader": "c"}, True),
        ({"advanceTime": "IncreasingStartTime"}, True),
    ],
)
def test_order_matters_where_ctis_are_made(more, is_ordered):
    assert options(**more).is_ordered == is_ordered


@pytest.mark.parametrize("value", ['{"a": 0}', '{"a": ["0"]}', '{"a": [[0]]}', "{}", '{"a": []}'])
def test_assigned_partitions_must_be_numbers(value):
    assert refusal(**{**BROKER, "assign": value}).startswith("option 'assign': cannot read")


@pytest.mark.parametrize("name", ["groupIdPrefix", "columnNameOfCorruptRecord"])
def test_a_name_is_taken_as_it_stands(name):
    field = {"groupIdPrefix": "group_prefix", "columnNameOfCorruptRecord": "corrupt_column"}[name]
    assert getattr(options(**{name: "header:x"}), field) == "header:x"


def test_in_band_ctis_are_a_source_of_ctis():
    given = options(ctiHeader="mark", writers=" b, a,b", violationPolicy="flag", timeWindow="true")
    assert given.has_ctis
    assert given.rules == TimeRules(policy="flag", writers=("a", "b"), time_window=True)
    given = options(ctiHeader="mark", writerTimeout="2 s", ctiFrequency="1", maxFuture="0 s")
    assert (given.rules.writer_timeout_us, given.rules.max_future_us) == (2_000_000, 0)


@pytest.mark.parametrize("source", ["fast", '{"topic": "fast", "frequency": "1"}'])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("maxFuture", "max_future_us"),
        ("writerTimeout", "writer_timeout_us"),
        ("idleTimeout", "idle_timeout_us"),
    ],
)
def test_what_holds_for_an_import_is_accepted_with_an_import_alone(name, field, source):
    given = options(ctiImport=source, **{name: "2 s"})
    assert getattr(derive_import_options(given), field) == 2_000_000


def test_options_cannot_be_changed_after_they_were_read():
    with pytest.raises(dataclasses.FrozenInstanceError):
        options().policy = "flag"


def test_a_policy_needs_a_source_of_ctis_that_is_on() -> None:
    with pytest.raises(OptionError, match="'violationPolicy': 'fail' has no effect"):
        options(violationPolicy="fail", finalCti="false")
    assert options(violationPolicy="fail", finalCti="true").has_ctis


def test_a_misspelt_secret_without_its_prefix_is_not_shown() -> None:
    with pytest.raises(OptionError, match="there is no such option") as failure:
        options(**{"sasl.pasword": "hunter2"})
    assert "hunter2" not in str(failure.value)


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'kafka.group.id': it is empty"):
        options(**{"kafka.group.id": " "})


@pytest.mark.parametrize("name", [spec.name for spec in DECLARED])
@pytest.mark.parametrize("given", [{}, {"transport": "time"}], ids=["none", "time"])
def test_an_option_of_this_transport_without_it_is_refused_by_name(name, given) -> None:
    with pytest.raises(OptionError, match="belongs to transport 'kafka'"):
        DefaultSource({name.lower(): "1", **given}).schema()


def test_a_misspelt_option_is_said_before_one_that_is_missing():
    with pytest.raises(OptionError, match="there is no such option: did you mean 'ctiFrequency'"):
        read_kafka_options({"ctiFrequncy": "10"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [("topic", "subscribe"), ("topics", "subscribe"), ("format", "valueFormat"),
     ("framing", "valueFraming"), ("watermark", "ctiDelay")],
)  # fmt: skip
def test_a_name_that_an_option_has_elsewhere_is_told_the_one_that_is_meant(key, meant):
    with pytest.raises(OptionError, match=f"no such option: did you mean '{meant}'"):
        read_kafka_options({**BROKER, "subscribe": "a", key: "x"})


def test_an_option_of_something_else_is_told_where_it_belongs():
    stores = {spec.name.lower() for spec in option_specs(WriteOptions).values()}
    sources = {spec.name.lower() for spec in DECLARED}
    for key, step in OF_OTHERS.items():
        if ".trigger(" in step:
            assert key not in stores | sources
        else:
            assert key in (stores if "tseries" in step else sources)
        if key not in sources:
            with pytest.raises(OptionError) as refused:
                read_kafka_options({**BROKER, "subscribe": "a", key: "x"})
            assert refused.value.next_step == step
            assert "did you mean" not in refused.value.problem
    reads = {spec.name.lower() for spec in option_specs(ReadOptions).values()}
    assert set(MEANT.values()) <= sources | reads
