"""Reads the options of transport `kafka` from Spark's string map, and refuses what conflicts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark_timestream.clock.options import TimeOptions
from pyspark_timestream.connector.instants import TICK_US, format_instant
from pyspark_timestream.connector.options import OptionError, option_specs, read_options
from pyspark_timestream.kafka.options.client_keys import read_client_settings
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import Frequency
from pyspark_timestream.kafka.options.payload_checks import check_payloads
from pyspark_timestream.kafka.options.registry_keys import (
    FOREIGN_PREFIX,
    PREFIX,
    read_registry_settings,
)

__all__ = ["read_kafka_options"]

_FOREIGN: Final = {
    **dict.fromkeys(
        (spec.name for spec in option_specs(TimeOptions).values()),
        "belongs to transport 'time' and conflicts with option 'transport' ('kafka')",
    ),
    "useDeprecatedOffsetFetching": "chooses how Spark's own source asks for offsets, and this one "
    "asks as that does with 'false': without joining a group",
}

_PREFIXES: Final = ("kafka.", PREFIX.lower(), FOREIGN_PREFIX)
"""The prefixes of options that are passed on to clients."""

_SETTINGS: Final = ("kafka.bootstrap.servers", f"{PREFIX}url", f"{PREFIX}basic.auth.user.info")


def read_kafka_options(
    raw: Mapping[str, str], described: Mapping[str, str] | None = None
) -> KafkaOptions:
    """The options of transport `kafka` in Spark's string map.

    Args:
        raw: the query's own options.
        described: those that it takes from the description of its topics, by name.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """
    if not described:
        return _read_options(raw)
    try:
        return replace(_read_options({**raw, **described}), described=described)
    except OptionError as error:
        taken = ", ".join(f"{name} = '{text}'" for name, text in described.items())
        error.args = (f"{error}; option 'timeSettings' gives {taken}",)
        raise


def _read_options(raw: Mapping[str, str]) -> KafkaOptions:
    given = {key.lower(): value for key, value in raw.items()}
    plain = {key: value for key, value in given.items() if not key.startswith(_PREFIXES)}
    plain.pop("transport", None)
    # First, since a misspelt option is often why another one is missing.
    options = read_options(KafkaOptions, plain, foreign=_FOREIGN, settings=_SETTINGS)
    client = read_client_settings(given)
    starts = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
    ends = {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
    options = replace(
        options,
        client=client,
        registry=read_registry_settings(given),
        starts_by_default=starts.isdisjoint(plain),
        ends_by_default=ends.isdisjoint(plain),
    )
    _check_topics(options)
    _check_limits(options)
    _check_span(options)
    _check_shape(options, plain)
    options = _apply_preset(options, plain)
    _check_policy(options, plain)
    check_payloads(options, plain)
    return options


def _check_policy(options: KafkaOptions, plain: Mapping[str, str]) -> None:
    """A policy needs CTIs to judge by; `finalCti` = `false` makes none."""
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
    least, most = options.min_offsets, options.max_offsets
    if least is not None and most is not None and least > most:
        raise OptionError(
            "minOffsetsPerTrigger",
            f"'{least}' conflicts with option 'maxOffsetsPerTrigger' ('{most}'): it is higher",
            "at most as many as 'maxOffsetsPerTrigger'",
            "lower it, or raise 'maxOffsetsPerTrigger'",
        )


def _check_span(options: KafkaOptions) -> None:
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
    """An interval has an end, an edge also a kind, and a point has neither."""
    needs = {"point": (), "interval": ("endTime",), "edge": ("endTime", "edge")}[options.shape]
    for name in ("endTime", "edge"):
        value = plain.get(name.lower())
        if name in needs and value is None:
            raise OptionError(
                name,
                f"it is missing, and option 'eventShape' is '{options.shape}'",
                option_specs(KafkaOptions)[
                    "end_time" if name == "endTime" else "edge"
                ].parser.accepts,
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
    """Replace a preset by its options (semantics 2.7)."""
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
