"""Option `timeSettings`: a topic describes its own time, and a query takes settings from it.

A description is a JSON object of option names and texts. It defines what the events of a topic mean
(StreamInsight's settings of an adapter), and holds nothing about a connection or a run. A query
takes each setting that it does not set itself, unless one of its own options excludes that setting
(semantics 14.5).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark_timestream.core.options import OptionSpec, Parser
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.parsers import parse_topic

_NAME: Final = "timeSettings"
_TOPIC_PREFIX: Final = "topic:"
_ACCEPTS: Final = (
    "a JSON object for each topic, such as "
    '{"startTime": "field:at", "ctiFrequency": "1", "ctiDelay": "20 seconds"}'
)
_CORRECT: Final = f"correct it there, or leave '{_NAME}' out"
_SHAPES: Final = {"point": (), "interval": ("endTime",), "edge": ("endTime", "edge")}

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


@dataclass(frozen=True, slots=True)
class SettingsPlace:
    """Where the descriptions are: in a topic, or in a file on the driver.

    Attributes:
        text: the option's text.
        topic: the topic; None for a file.
        path: the file; None for a topic.
    """

    text: str
    topic: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        """Return the option's text."""
        return self.text


def _parse_place(value: str) -> SettingsPlace:
    text = value.strip()
    if text.startswith(_TOPIC_PREFIX):
        topic = text[len(_TOPIC_PREFIX) :]
        return SettingsPlace(text, topic=parse_topic(topic))
    if text.lower().startswith("file:"):
        url = urlsplit(text)
        if url.netloc not in ("", "localhost"):
            raise ValueError(f"'{url.netloc}' is another machine")
        text_path = unquote(url.path)
    elif re.match("[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise ValueError("only files of the driver's machine can be read")
    else:
        text_path = text
    if not text_path or "\0" in text_path:
        raise ValueError("there is no path")
    return SettingsPlace(text, path=text_path)


TIME_SETTINGS: Final = Parser(
    _parse_place,
    "the path of a JSON file on the driver, or 'topic:NAME'",
)


def parse_json(content: bytes, what: str) -> Any:
    """Parse JSON; `what` names it in messages.

    Raises:
        OptionError: it is not JSON in UTF-8, or an object has a name twice.
    """
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_make_object)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"{what} is not JSON ({_shorten(str(error))})") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"'{_shorten(name)}' is there twice")
        entries[name] = value
    return entries


def read_topic_settings(
    description: Any, topic: str, place: SettingsPlace, specs: Mapping[str, OptionSpec]
) -> dict[str, str]:
    """Return the description of `topic`: option name -> canonical text, ordered as the options.

    `description` is the parsed JSON from `place`; `specs` are the declarations of all options.

    Raises:
        OptionError: it is not an object, it names an option of another kind, or a value cannot be
            read.
    """
    what = f"the description of topic '{topic}' in '{place}'"
    if not isinstance(description, Mapping):
        raise _refusal(f"{what} is not a JSON object")
    names = {name.lower(): name for name in TOPIC_SETTINGS}
    texts: dict[str, str] = {}
    for key, value in description.items():
        name = names.get(key.lower())
        if name is None:
            raise OptionError(
                _NAME,
                f"{what} has '{_shorten(key)}', which is not a setting of a topic's time",
                ", ".join(TOPIC_SETTINGS),
                "remove it there; set other options in the query",
            )
        if name in texts:
            raise _refusal(f"{what} has '{name}' twice")
        texts[name] = _read_text(specs[name], value, what)
    return {name: texts[name] for name in TOPIC_SETTINGS if name in texts}


def _read_text(spec: OptionSpec, value: Any, what: str) -> str:
    problem = "neither a string nor a whole number"
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            text = spec.text_of(spec.parser.parse(str(value)))
            if text is not None:
                return text
            problem = "it means that the option is not set"
        except ValueError as error:
            problem = str(error)
    shown = _shorten(json.dumps(value, ensure_ascii=False))
    raise OptionError(
        _NAME,
        f"{what}: cannot read '{spec.name}': {shown} ({problem})",
        spec.parser.accepts,
        _CORRECT,
    )


def merge_topic_settings(
    settings_by_topic: Mapping[str, Mapping[str, str] | None], place: SettingsPlace
) -> Mapping[str, str]:
    """Return the description that all topics of a query share.

    Raises:
        OptionError: a topic has no description, or two topics have different ones.
    """
    for topic, settings in settings_by_topic.items():
        if settings is None:
            where = f"with the key '{topic}'"
            step = f"produce one {where}" if place.topic else f"add one {where}"
            raise _refusal(
                f"'{place}' has no description of topic '{topic}'",
                f"{step}, or leave '{_NAME}' out and set the options in the query",
            )
    (first, chosen), *others = (
        (topic, settings or {}) for topic, settings in settings_by_topic.items()
    )
    for topic, settings in others:
        for name in TOPIC_SETTINGS:
            one, two = chosen.get(name), settings.get(name)
            if one != two:
                raise _refusal(
                    f"'{place}' describes topics '{first}' and '{topic}' differently: '{name}' is "
                    f"{_quote(one)} and {_quote(two)}",
                    "read each topic in a query of its own, or make their descriptions equal",
                )
    return chosen


def select_settings(
    query_options: Mapping[str, str],
    topic_settings: Mapping[str, str],
    specs: Mapping[str, OptionSpec],
) -> dict[str, str]:
    """Return the settings that a query takes from the description of its topics.

    `query_options` are the query's own options by their lower-cased names.
    """
    excluded = _find_excluded(query_options, specs)
    return {
        name: text
        for name, text in topic_settings.items()
        if name.lower() not in query_options and name not in excluded
    }


def _find_excluded(query_options: Mapping[str, str], specs: Mapping[str, OptionSpec]) -> set[str]:
    """Return the topic settings that the query's own options exclude."""
    excluded = {
        name
        for name in TOPIC_SETTINGS
        for other, spec in specs.items()
        if other.lower() in query_options
        and (other in specs[name].excludes or name in spec.excludes)
    }
    shape = _read_choice(query_options, "eventShape", specs)
    if shape is not None:
        excluded |= {"endTime", "edge"}.difference(_SHAPES[shape])
    preset = _read_choice(query_options, "advanceTime", specs)
    if preset not in (None, "UnorderedStartTime"):
        excluded.add("ctiDelay")
    return excluded


def _read_choice(
    query_options: Mapping[str, str], name: str, specs: Mapping[str, OptionSpec]
) -> str | None:
    """Return the value of one of the query's own options.

    None if it is not set, or cannot be read: a later check refuses it then.
    """
    try:
        return (
            None
            if name.lower() not in query_options
            else specs[name].parser.parse(query_options[name.lower()])
        )
    except ValueError:
        return None


def _refusal(problem: str, next_step: str = _CORRECT) -> OptionError:
    return OptionError(_NAME, problem, _ACCEPTS, next_step)


def _quote(text: str | None) -> str:
    return "not set" if text is None else f"'{text}'"


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
