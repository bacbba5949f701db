"""Reads the descriptions of topics for option `timeSettings`, from a file or a compacted topic.

The driver reads them once, when the query is built. The settings that it takes travel with the
query's options, so that no task and no later process can see another description (semantics 14.5).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.options import option_specs, read_options
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.client.broker import acquire_broker
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.options.keys import read_client_settings
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import ASSIGN, EARLIEST, SUBSCRIBE
from pyspark_timestream.kafka.options.topic_settings import (
    TIME_SETTINGS,
    SettingsPlace,
    merge_topic_settings,
    parse_json,
    read_topic_settings,
    select_settings,
)
from pyspark_timestream.kafka.ranges import Partition, Range

_NEEDED: Final = ColumnSet(keys=True, values=True)
_REQUESTS: Final = (
    "kafkaConsumer.connectTimeoutMs",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
"""The options that apply to every request to a broker."""


def read_time_settings(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the query takes from its topics' description, option name -> text.

    Return nothing without `timeSettings`, or if its text or the topics' names cannot be parsed: a
    later check refuses the options then.
    """
    query_options = {name.lower(): text for name, text in raw.items()}
    try:
        place = TIME_SETTINGS.parse(query_options["timesettings"])
        topics = _name_topics(query_options)
    except (KeyError, ValueError):
        return {}
    specs = {spec.name: spec for spec in option_specs(KafkaOptions).values()}
    by_topic = _read_file(place) if place.path else _read_topic(place, topics, query_options)
    described = {
        topic: read_topic_settings(by_topic[topic], topic, place, specs)
        if topic in by_topic
        else None
        for topic in topics
    }
    return select_settings(query_options, merge_topic_settings(described, place), specs)


def _name_topics(query_options: Mapping[str, str]) -> list[str]:
    """Return the topics that the options name, sorted; raise a KeyError if they name none."""
    if "assign" in query_options:
        return sorted({partition.topic for partition in ASSIGN.parse(query_options["assign"])})
    return sorted(SUBSCRIBE.parse(query_options["subscribe"]))


def _read_file(place: SettingsPlace) -> Mapping[str, Any]:
    try:
        content = Path(place.path or "").read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(
            f"cannot read '{place}' on the driver ({reason})",
            "create the file, or correct the path",
        ) from None
    by_topic = parse_json(content, f"the file '{place}'")
    if not isinstance(by_topic, dict):
        raise _error(
            f"the file '{place}' is not a JSON object of topics",
            'write {"TOPIC": {"ctiFrequency": "1"}}',
        )
    return by_topic


def _read_topic(
    place: SettingsPlace, topics: Collection[str], query_options: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the last description of each of `topics`; a record without a value removes one."""
    names = {name.lower() for name in _REQUESTS}
    requests = read_options(
        KafkaOptions, {name: query_options[name] for name in names & query_options.keys()}
    )
    options = replace(
        requests,
        client=read_client_settings(query_options),
        subscribe=(place.topic or "",),
        starting_offsets=EARLIEST,
    )
    group = f"{options.group_prefix}-time-settings"
    with acquire_broker(options, group) as broker:
        listed = broker.partitions()
        if not listed:
            raise _error(f"topic '{place.topic}' does not exist", "create it, compacted")
        ends = broker.ends(listed)
        earliest = broker.earliest(ends)
    reader = RangeReader(options, group)
    descriptions: dict[str, tuple[Partition, bytes]] = {}
    try:
        for partition, end in sorted(ends.items()):
            span = Range(partition, earliest.get(partition, end), end)
            for topic, value in _read_last_values(reader, span, topics).items():
                if topic in descriptions and descriptions[topic][1] != value:
                    raise _error(
                        f"topic '{place.topic}' has different descriptions of topic '{topic}' in "
                        f"partitions {descriptions[topic][0].number} and {partition.number}",
                        "produce a record with that key and no value to the outdated partition",
                    )
                descriptions[topic] = partition, value
    finally:
        reader.close()
    return {
        topic: parse_json(value, f"the description of topic '{topic}' in '{place}'")
        for topic, (_, value) in descriptions.items()
    }


def _read_last_values(
    reader: RangeReader, span: Range, topics: Collection[str]
) -> dict[str, bytes]:
    """Return the value of the last record with each key in `topics`, if it has a value."""
    keys = pa.array([topic.encode() for topic in topics], pa.binary())
    last: dict[str, bytes | None] = {}
    for block in reader.read(span, _NEEDED):
        assert block.keys is not None
        assert block.values is not None
        hits = pc.is_in(block.keys, value_set=keys)
        for key, value in zip(block.keys.filter(hits), block.values.filter(hits), strict=True):
            last[key.as_py().decode()] = value.as_py()
    return {topic: value for topic, value in last.items() if value is not None}


def _error(problem: str, next_step: str) -> OptionError:
    return OptionError("timeSettings", problem, TIME_SETTINGS.accepts, next_step)
