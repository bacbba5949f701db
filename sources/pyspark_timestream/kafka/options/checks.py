"""Reads the options of transport `kafka`, and refuses what conflicts or has no effect.

Batch reads, streams with an ending option, and replays start at earliest by default. A batch read
ignores the options of streams.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pyspark_timestream.clock.time_options import TimeOptions
from pyspark_timestream.core.declarations import (
    option_specs,
    read_options,
)
from pyspark_timestream.core.instants import TICK_US, format_instant
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.kafka_options import SPECS, KafkaOptions
from pyspark_timestream.kafka.options.keys import (
    FOREIGN_PREFIX,
    PREFIX,
    read_client_settings,
    read_registry_settings,
)
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST, Frequency
from pyspark_timestream.kafka.options.reading import (
    FORMATS,
    LATEST_SCHEMA,
    SCHEMA_FORMATS,
    PayloadOptions,
    PayloadRules,
)

_URL = "schemaRegistry.url"


def _check_payloads(options: PayloadOptions, texts: Mapping[str, str]) -> None:
    """Check the options about payloads; `texts` (lower-cased name -> text) are set options.

    Raises:
        OptionError: they conflict, have no effect, or need others that are missing.
    """
    if options.registry and not any(rules.has_registry for rules in options.payload_rules):
        raise OptionError(
            _URL,
            "it has no effect: no option asks for the ids of schemas",
            "it with 'valueFormat' or 'keyFormat' = 'avro', 'protobuf' or 'json', and with "
            "'valueFraming' or 'keyFraming' = 'confluent' or 'header'",
            "set 'valueFormat' or 'keyFormat', or leave all 'schemaRegistry.*' out",
        )
    for rules in options.payload_rules:
        _check_effect(rules, texts)
        _check_framing(rules, has_url=bool(options.registry))
        if rules.format in SCHEMA_FORMATS:
            _check_schema(rules)
    if "keyprefix" in texts and options.key_format == "binary":
        raise OptionError(
            "keyPrefix",
            "it has no effect: option 'keyFormat' is 'binary'",
            "it with another 'keyFormat'",
            "set 'keyFormat' too, or leave it out",
        )


def _check_effect(rules: PayloadRules, texts: Mapping[str, str]) -> None:
    """Refuse options that have no effect with the format or without a registry."""
    format_name = rules.option_name("format")
    for attribute in dict.fromkeys(each for form in FORMATS.values() for each in form.uses):
        formats = tuple(form for form in FORMATS if attribute in FORMATS[form].uses)
        name = rules.option_name(attribute)
        if attribute == "reader_schema" and _asks_for_latest(rules, texts):
            formats = SCHEMA_FORMATS
        if name.lower() in texts and rules.format not in formats:
            raise OptionError(
                name,
                f"it has no effect: option '{format_name}' is '{rules.format}'",
                f"it with '{format_name}' = " + " or ".join(f"'{form}'" for form in formats),
                f"set '{format_name}', or leave it out",
            )
    subject = rules.option_name("subject")
    if subject.lower() in texts and not rules.has_registry:
        raise _needs_registry(rules, subject, "it")
    reader = rules.option_name("reader_schema")
    if _asks_for_latest(rules, texts) and not rules.has_registry:
        raise _needs_registry(rules, reader, f"'{LATEST_SCHEMA}'")


def _asks_for_latest(rules: PayloadRules, texts: Mapping[str, str]) -> bool:
    text = texts.get(rules.option_name("reader_schema").lower(), "")
    return text.strip().lower() == LATEST_SCHEMA


def _needs_registry(rules: PayloadRules, name: str, subject: str) -> OptionError:
    framing = rules.option_name("framing")
    return OptionError(
        name,
        f"{subject} has no effect without a registry",
        f"it with '{_URL}' and '{framing}' = 'confluent' or 'header'",
        f"set '{_URL}', or leave it out",
    )


def _check_framing(rules: PayloadRules, *, has_url: bool) -> None:
    if rules.framing == "header" and not has_url:
        raise OptionError(
            rules.option_name("framing"),
            "'header' has no effect: without a registry nothing is known of the ids in headers",
            f"it with '{_URL}'",
            f"set '{_URL}', or set it to 'none'",
        )


def _check_schema(rules: PayloadRules) -> None:
    """Check that the writers' schemas have one source, and that message and subject are known."""
    schema, framing = rules.option_name("schema"), rules.option_name("framing")
    accepts = SPECS[schema].parser.accepts
    if rules.has_registry and rules.schema is not None:
        raise OptionError(
            schema,
            f"it conflicts with option '{_URL}': the registry has the schemas that were written "
            "with",
            f"it without a registry, or with '{framing}' = 'none'",
            f"set '{rules.option_name('reader_schema')}' to it instead"
            if rules.format == "avro"
            else "leave it out",
        )
    if rules.has_registry:
        _check_subject(rules)
    elif rules.schema is None:
        format_name = rules.option_name("format")
        raise OptionError(
            schema,
            f"it is missing: '{format_name}' = '{rules.format}' needs a schema, and no registry is "
            f"asked for it ('{framing}' is '{rules.framing}')",
            accepts,
            f"set it, or set '{_URL}' with '{framing}' = 'confluent' or 'header'",
        )
    elif rules.format == "protobuf" and rules.message is None:
        message = rules.option_name("message")
        raise OptionError(
            message,
            f"it is missing, and a descriptor set in '{schema}' may have several messages",
            "the full name of a message, such as 'shop.Order'",
            "set it",
        )


def _check_subject(rules: PayloadRules) -> None:
    if rules.needs_latest and rules.subject is None:
        name = rules.option_name("subject")
        reader = rules.option_name("reader_schema")
        raise OptionError(
            name,
            "it is missing, and its default is the name of the one topic that is read, with "
            f"'-{rules.side}': here there are, or may be, several topics",
            "a subject of the registry",
            "set it to the subject with the reader's schema"
            + (f", or set '{reader}'" if rules.format == "avro" else ""),
        )


OPTIONS_BY_SHAPE: Final[Mapping[str, tuple[str, ...]]] = {
    "point": (),
    "interval": ("endTime",),
    "edge": ("endTime", "edge"),
}
"""Shape of events -> the options that it needs; events of other shapes have none of them."""

_FOREIGN: Final = {
    **dict.fromkeys(
        (spec.name for spec in option_specs(TimeOptions).values()),
        "belongs to transport 'time' and conflicts with option 'transport' ('kafka')",
    ),
    "useDeprecatedOffsetFetching": "chooses how Spark's own source asks for offsets, and this one "
    "asks as that does with 'false': without joining a group",
}

_PREFIXES: Final = ("kafka.", PREFIX.lower(), FOREIGN_PREFIX)
"""The prefixes of options that go to client libraries."""

_SETTINGS: Final = ("kafka.bootstrap.servers", f"{PREFIX}url", f"{PREFIX}basic.auth.user.info")


def read_kafka_options(
    raw: Mapping[str, str], topic_settings: Mapping[str, str] | None = None
) -> KafkaOptions:
    """Read the options of transport `kafka` from Spark's string map.

    `topic_settings` are the options taken from the description of the query's topics, by name.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """
    if not topic_settings:
        return _read_options(raw)
    try:
        return replace(_read_options({**raw, **topic_settings}), topic_settings=topic_settings)
    except OptionError as error:
        topic_texts = ", ".join(f"{name} = '{text}'" for name, text in topic_settings.items())
        error.args = (f"{error}; option 'timeSettings' gives {topic_texts}",)
        raise


def _read_options(raw: Mapping[str, str]) -> KafkaOptions:
    texts = {key.lower(): value for key, value in raw.items()}
    plain = {key: value for key, value in texts.items() if not key.startswith(_PREFIXES)}
    plain.pop("transport", None)
    # This check comes first: a misspelt option is often why another one is missing.
    options = read_options(KafkaOptions, plain, foreign=_FOREIGN, settings=_SETTINGS)
    client = read_client_settings(texts)
    starts = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
    ends = {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
    options = replace(
        options,
        client=client,
        registry=read_registry_settings(texts),
        starts_by_default=starts.isdisjoint(plain),
        ends_by_default=ends.isdisjoint(plain),
    )
    _check_topics(options)
    _check_limits(options)
    _check_replay_window(options)
    _check_shape(options, plain)
    options = _apply_preset(options, plain)
    _check_policy(options, plain)
    _check_payloads(options, plain)
    return options


def _check_policy(options: KafkaOptions, plain: Mapping[str, str]) -> None:
    """Refuse a policy if nothing makes CTIs to compare events with."""
    policy = plain.get("violationpolicy")
    if policy is not None and not options.has_ctis:
        raise OptionError(
            "violationPolicy",
            f"'{policy}' has no effect: option 'finalCti' is 'false' and nothing else makes CTIs",
            "it together with a source of CTIs",
            "set 'ctiFrequency', 'advanceTime' or 'ctiHeader' too, or leave it out",
        )


def _check_topics(options: KafkaOptions) -> None:
    if (options.subscribe, options.subscribe_pattern, options.assign) == (None, None, None):
        raise OptionError(
            "subscribe",
            "neither it nor option 'subscribePattern' nor 'assign' was given",
            "topic names separated by commas",
            "set one of the three",
        )


def _check_limits(options: KafkaOptions) -> None:
    min_offsets, max_offsets = options.min_offsets, options.max_offsets
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError(
            "minOffsetsPerTrigger",
            f"'{min_offsets}' conflicts with option 'maxOffsetsPerTrigger' ('{max_offsets}'): it "
            "is higher",
            "at most as many as 'maxOffsetsPerTrigger'",
            "lower it, or raise 'maxOffsetsPerTrigger'",
        )


def _check_replay_window(options: KafkaOptions) -> None:
    first_us, last_us = options.starting_cti_us, options.ending_cti_us
    if first_us is not None and last_us is not None and first_us >= last_us:
        raise OptionError(
            "endingCti",
            f"'{format_instant(last_us)}' conflicts with option 'startingCti' "
            f"('{format_instant(first_us)}'): nothing lies between them",
            "an instant after 'startingCti'",
            "choose a later one, or an earlier 'startingCti'",
        )


def _check_shape(options: KafkaOptions, plain: Mapping[str, str]) -> None:
    """Check that an interval has an end time, an edge also its kind, and a point neither."""
    needs = OPTIONS_BY_SHAPE[options.shape]
    for name in ("endTime", "edge"):
        value = plain.get(name.lower())
        if name in needs and value is None:
            raise OptionError(
                name,
                f"it is missing, and option 'eventShape' is '{options.shape}'",
                SPECS[name].parser.accepts,
                f"set it, or set 'eventShape' to '{'point' if name == 'endTime' else 'interval'}'",
            )
        if name not in needs and value is not None:
            raise OptionError(
                name,
                f"'{value}' conflicts with option 'eventShape' ('{options.shape}')",
                "it with 'eventShape' = " + ("'edge'" if name == "edge" else "'interval', 'edge'"),
                f"set 'eventShape', or leave '{name}' out",
            )


def _apply_preset(options: KafkaOptions, plain: Mapping[str, str]) -> KafkaOptions:
    """Replace a preset by the options that it stands for (semantics 2.7)."""
    preset = options.advance_time
    if preset is None:
        return options
    delayed = "ctidelay" in plain
    if delayed != (preset == "UnorderedStartTime"):
        raise OptionError(
            "ctiDelay",
            f"'{plain['ctidelay']}' conflicts with option 'advanceTime' ('{preset}')"
            if delayed
            else f"it is missing, and option 'advanceTime' is '{preset}'",
            "a duration with 'UnorderedStartTime' or 'ctiFrequency'",
            f"leave it out with '{preset}'" if delayed else "set it",
        )
    return replace(
        options,
        frequency=Frequency(events=1),
        delay_us=-TICK_US if preset == "StrictlyIncreasingStartTime" else options.delay_us,
        final_cti=options.final_cti or ("finalcti" not in plain and options.ending_cti_us is None),
    )


_CUTS: Final = ("minPartitions", "maxRecordsPerPartition")
_REPLAY_WINDOW: Final = frozenset({"startingcti", "endingcti"})


def adapt_to_stream(options: KafkaOptions, set_names: Collection[str]) -> KafkaOptions:
    """Return `options` as a stream uses them; `set_names` are the lower-cased names that were set.

    Raises:
        OptionError: the stream has an end and would start there, or an option cuts partitions
            although their order matters.
    """
    if not options.ends_by_default:
        options = _start_before_end(options, set_names, "stream with an end")
    elif "startingoffsets" not in set_names and not _REPLAY_WINDOW.isdisjoint(set_names):
        options = replace(options, starting_offsets=EARLIEST)
    for name in _CUTS:
        if name.lower() in set_names and options.has_ctis:
            raise OptionError(
                name,
                "it was given to a stream with a column 'cti'",
                "it in batch reads and in streams without a source of CTIs",
                "leave it out: a partition is one ordered stream there, which one task reads",
            )
    return options


def adapt_to_batch(options: KafkaOptions, set_names: Collection[str]) -> KafkaOptions:
    """Return `options` as a batch read uses them; `set_names` as in `adapt_to_stream`.

    Raises:
        OptionError: the read would start where it ends.
    """
    return _start_before_end(options, set_names, "batch read")


def _start_before_end(options: KafkaOptions, set_names: Collection[str], kind: str) -> KafkaOptions:
    """Make `earliest` the default start of a read that ends, and refuse `latest`."""
    if "startingoffsets" not in set_names:
        return replace(options, starting_offsets=EARLIEST)
    starts = options.starting_offsets
    has_latest = starts == LATEST or (isinstance(starts, Mapping) and LATEST in starts.values())
    by_time = (options.starting_timestamp_ms, options.starting_timestamps_ms) != (None, None)
    if has_latest and not by_time:
        raise OptionError(
            "startingOffsets",
            f"'latest' (-1) was given to a {kind}, which would always be empty",
            "'earliest', or JSON with offsets or -2",
            "name where to start, or leave it out",
        )
    return options


def list_ignored_in_batch(set_names: Collection[str]) -> list[str]:
    """Return the options that have no effect in a batch read, among the lower-cased `set_names`."""
    names = (name for name, spec in SPECS.items() if spec.effect == "stream")
    return [name for name in names if name.lower() in set_names]
