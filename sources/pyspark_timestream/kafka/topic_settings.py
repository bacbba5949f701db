"""Descriptions of topics' own time (option `timeSettings`).

A topic's settings are a JSON object of option names and texts. It says what the topic's events
mean, and nothing about a connection or a run. A query takes each setting that it does not set
itself, unless one of its own options excludes that setting (semantics 14.5).

The settings are read once, when the query is built. They travel with the query's options, so that
no task and no later process can see others.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.declarations import (
    OptionSpec,
    make_object,
    quote_setting,
    read_options,
)
from pyspark_timestream.errors import OptionError, shorten
from pyspark_timestream.kafka.client.broker import acquire_broker, find_every_range
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.options.checks import OPTIONS_BY_SHAPE
from pyspark_timestream.kafka.options.kafka_options import SPECS, KafkaOptions
from pyspark_timestream.kafka.options.keys import read_client_settings
from pyspark_timestream.kafka.options.parsers import (
    ASSIGN,
    EARLIEST,
    SUBSCRIBE,
    TIME_SETTINGS,
    SettingsSource,
)
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

_TIME_SETTINGS: Final = "timeSettings"
_SETTINGS_TEXT: Final = (
    "a JSON object for each topic, such as "
    '{"startTime": "field:at", "ctiFrequency": "1", "ctiDelay": "20 seconds"}'
)
_CORRECT_THERE: Final = f"correct it there, or leave '{_TIME_SETTINGS}' out"


TOPIC_SETTINGS: Final = (
    "startTime",
    "endTime",
    "edge",
    "eventShape",
    "timeUnit",
    "ctiFrequency",
    "ctiDelay",
    "advanceTime",
    "ctiHeader",
    "writerFrom",
    "writers",
    "writerGrace",
    "writerTimeout",
    "maxFuture",
    "futurePolicy",
    "violationPolicy",
)
"""The options that define the time of a topic, and that a description may therefore hold."""

_NEEDED: Final = ColumnSet(keys=True, values=True)
_REQUESTS: Final = (
    "kafkaConsumer.connectTimeoutMs",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
"""The options that apply to every request to a broker."""


def load_topic_settings(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, option name -> text, that the query takes from its topics' description.

    Return nothing without `timeSettings`, or if its text or the topics' names cannot be parsed: a
    later check refuses the options then.
    """
    query_options = {name.lower(): text for name, text in raw.items()}
    try:
        source = TIME_SETTINGS.parse(query_options["timesettings"])
        topics = _list_topics(query_options)
    except (KeyError, ValueError):
        return {}
    by_topic = _read_file(source) if source.path else _read_topic(source, topics, query_options)
    descriptions = {
        topic: read_topic_settings(by_topic[topic], topic, source) if topic in by_topic else None
        for topic in topics
    }
    return select_settings(query_options, merge_topic_settings(descriptions, source))


def _list_topics(query_options: Mapping[str, str]) -> list[str]:
    """Return the topics that the options name, sorted; raise a KeyError if they name none."""
    if "assign" in query_options:
        return sorted({partition.topic for partition in ASSIGN.parse(query_options["assign"])})
    return sorted(SUBSCRIBE.parse(query_options["subscribe"]))


def _read_file(source: SettingsSource) -> Mapping[str, Any]:
    try:
        content = Path(source.path or "").read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _source_error(
            f"cannot read '{source}' on the driver ({reason})",
            "create the file, or correct the path",
        ) from None
    by_topic = parse_settings(content, f"the file '{source}'")
    if not isinstance(by_topic, dict):
        raise _source_error(
            f"the file '{source}' is not a JSON object of topics",
            'write {"TOPIC": {"ctiFrequency": "1"}}',
        )
    return by_topic


def _read_topic(
    source: SettingsSource, topics: Collection[str], query_options: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the last description of each of `topics`; a record without a value removes one."""
    names = {name.lower() for name in _REQUESTS}
    requests = read_options(
        KafkaOptions, {name: query_options[name] for name in names & query_options.keys()}
    )
    options = replace(
        requests,
        client=read_client_settings(query_options),
        subscribe=(source.topic or "",),
        starting_offsets=EARLIEST,
    )
    group = f"{options.group_prefix}-time-settings"
    with acquire_broker(options, group) as broker:
        earliest, ends = find_every_range(broker, broker.partitions)
    if not ends:
        raise _source_error(f"topic '{source.topic}' does not exist", "create it, compacted")
    ranges = [
        OffsetRange(partition, earliest[partition], end) for partition, end in sorted(ends.items())
    ]
    reader = RangeReader(options, group)
    try:
        values = {
            offset_range.partition: _read_last_values(reader, offset_range, topics)
            for offset_range in ranges
        }
    finally:
        reader.close()
    return {
        topic: parse_settings(value, f"the description of topic '{topic}' in '{source}'")
        for topic, value in _merge_descriptions(source, values).items()
    }


def _merge_descriptions(
    source: SettingsSource, values: Mapping[Partition, Mapping[str, bytes]]
) -> dict[str, bytes]:
    """Return the description of each topic; partitions that have one must agree."""
    descriptions: dict[str, tuple[Partition, bytes]] = {}
    for partition, by_topic in values.items():
        for topic, value in by_topic.items():
            other, known = descriptions.setdefault(topic, (partition, value))
            if known != value:
                raise _source_error(
                    f"topic '{source.topic}' has different descriptions of topic '{topic}' in "
                    f"partitions {other.number} and {partition.number}",
                    "produce a record with that key and no value to the outdated partition",
                )
    return {topic: value for topic, (_, value) in descriptions.items()}


def _read_last_values(
    reader: RangeReader, offset_range: OffsetRange, topics: Collection[str]
) -> dict[str, bytes]:
    """Return the value of the last record with each key in `topics`, if it has a value."""
    keys = pa.array([topic.encode() for topic in topics], pa.binary())
    last_values: dict[str, bytes | None] = {}
    for block in reader.read(offset_range, _NEEDED):
        assert block.keys is not None
        assert block.values is not None
        hits = pc.is_in(block.keys, value_set=keys)
        for key, value in zip(block.keys.filter(hits), block.values.filter(hits), strict=True):
            last_values[key.as_py().decode()] = value.as_py()
    return {topic: value for topic, value in last_values.items() if value is not None}


def parse_settings(content: bytes, subject: str) -> Any:
    """Parse JSON; `subject` names it in messages.

    Raises:
        OptionError: it is not JSON in UTF-8, or an object has a name twice.
    """
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=make_object)
    except (ValueError, RecursionError) as error:
        raise _settings_error(f"{subject} is not JSON ({shorten(str(error))})") from None


def read_topic_settings(description: Any, topic: str, source: SettingsSource) -> dict[str, str]:
    """Return the description of `topic`: option name -> canonical text, ordered as the options.

    `description` is the parsed JSON from `source`.

    Raises:
        OptionError: it is not an object, it names an option of another kind, or a value cannot be
            read.
    """
    subject = f"the description of topic '{topic}' in '{source}'"
    if not isinstance(description, Mapping):
        raise _settings_error(f"{subject} is not a JSON object")
    names = {name.lower(): name for name in TOPIC_SETTINGS}
    texts: dict[str, str] = {}
    for key, value in description.items():
        name = names.get(key.lower())
        if name is None:
            raise OptionError(
                _TIME_SETTINGS,
                f"{subject} has '{shorten(key)}', which is not a setting of a topic's time",
                ", ".join(TOPIC_SETTINGS),
                "remove it there; set other options in the query",
            )
        if name in texts:
            raise _settings_error(f"{subject} has '{name}' twice")
        texts[name] = _read_setting(SPECS[name], value, subject)
    return {name: texts[name] for name in TOPIC_SETTINGS if name in texts}


def _read_setting(spec: OptionSpec, value: Any, subject: str) -> str:
    problem = "neither a string nor a whole number"
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            text = spec.text_of(spec.parser.parse(str(value)))
            if text is not None:
                return text
            problem = "it means that the option is not set"
        except ValueError as error:
            problem = str(error)
    quoted = shorten(json.dumps(value, ensure_ascii=False))
    raise OptionError(
        _TIME_SETTINGS,
        f"{subject}: cannot read '{spec.name}': {quoted} ({problem})",
        spec.parser.accepts,
        _CORRECT_THERE,
    )


def merge_topic_settings(
    settings_by_topic: Mapping[str, Mapping[str, str] | None], source: SettingsSource
) -> Mapping[str, str]:
    """Return the description that all topics of a query share.

    Raises:
        OptionError: a topic has no description, or two topics have different ones.
    """
    for topic, settings in settings_by_topic.items():
        if settings is None:
            where = f"with the key '{topic}'"
            step = f"produce one {where}" if source.topic else f"add one {where}"
            raise _settings_error(
                f"'{source}' has no description of topic '{topic}'",
                f"{step}, or leave '{_TIME_SETTINGS}' out and set the options in the query",
            )
    (first_topic, first_settings), *others = (
        (topic, settings or {}) for topic, settings in settings_by_topic.items()
    )
    for topic, settings in others:
        for name in TOPIC_SETTINGS:
            chosen_text, text = first_settings.get(name), settings.get(name)
            if chosen_text != text:
                raise _settings_error(
                    f"'{source}' describes topics '{first_topic}' and '{topic}' differently: "
                    f"'{name}' is {quote_setting(chosen_text)} and {quote_setting(text)}",
                    "read each topic in a query of its own, or make their descriptions equal",
                )
    return first_settings


def select_settings(
    query_options: Mapping[str, str], topic_settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings that a query takes from the description of its topics.

    `query_options` are the query's own options by their lower-cased names.
    """
    excluded = _find_excluded(query_options)
    return {
        name: text
        for name, text in topic_settings.items()
        if name.lower() not in query_options and name not in excluded
    }


def _find_excluded(query_options: Mapping[str, str]) -> set[str]:
    """Return the topic settings that the query's own options exclude."""
    excluded = {
        name
        for name in TOPIC_SETTINGS
        for other_name, spec in SPECS.items()
        if other_name.lower() in query_options
        and (other_name in SPECS[name].excludes or name in spec.excludes)
    }
    shape = _read_choice(query_options, "eventShape")
    if shape is not None:
        excluded |= {"endTime", "edge"}.difference(OPTIONS_BY_SHAPE[shape])
    preset = _read_choice(query_options, "advanceTime")
    if preset not in (None, "UnorderedStartTime"):
        excluded.add("ctiDelay")
    return excluded


def _read_choice(query_options: Mapping[str, str], name: str) -> str | None:
    """Return the value of one of the query's own options.

    None if it is not set, or cannot be read: a later check refuses it then.
    """
    text = query_options.get(name.lower())
    try:
        return None if text is None else SPECS[name].parser.parse(text)
    except ValueError:
        return None


def _source_error(problem: str, next_step: str) -> OptionError:
    return OptionError(_TIME_SETTINGS, problem, TIME_SETTINGS.accepts, next_step)


def _settings_error(problem: str, next_step: str = _CORRECT_THERE) -> OptionError:
    return OptionError(_TIME_SETTINGS, problem, _SETTINGS_TEXT, next_step)
