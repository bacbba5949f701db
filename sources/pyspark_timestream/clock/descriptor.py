"""FastScore's JSON stream descriptors for transport `time`; every deviation is refused by name.

{ "Transport": { "Type": "time", "Period": 2.0 },   // or "Transport": "time"
  "Schema": { "type": "long", "logicalType": "timestamp-millis" } }

The rules are semantics 12.7.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.connector.options import OptionError, Parser

__all__ = ["CARRIED_OPTIONS", "DescriptorKey", "load_descriptor", "read_descriptor"]

CARRIED_OPTIONS: Final = ("transport", "timeZero", "delay", "period", "maxCount", "overflow")
"""Options that a descriptor can carry itself, and therefore excludes."""

_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*')
_TYPES: Final = ("time", "Time")
_SCHEMA: Final = {"type": "long", "logicalType": "timestamp-millis"}
_SCHEMA_TEXT: Final = json.dumps(_SCHEMA)
_UNUSED: Final[dict[str, tuple[Any, ...]]] = {
    "Envelope": (None,),
    "Encoding": (None, "bert"),
    "Batching": (None,),
}
"""Keys without effect here -> the values that are accepted nevertheless."""


@dataclass(frozen=True, slots=True)
class DescriptorKey:
    """A key of `Transport`.

    Attributes:
        field: the field of the options that it fills.
        parser: reads that option.
        json_types: Python types that its JSON value may have; null leaves the option unset.
    """

    field: str
    parser: Parser[Any]
    json_types: tuple[type, ...]

    def accepts(self) -> str:
        """The accepted values, for an error."""
        null, number = type(None) in self.json_types, Decimal in self.json_types
        return f"{'null or ' * null}{'a number or a text: ' * number}{self.parser.accepts}"


def read_descriptor(text: str, keys: Mapping[str, DescriptorKey]) -> dict[str, Any]:
    """The values of the keys of `Transport`: field -> value, without absent and null ones.

    Args:
        text: option `descriptor`: the JSON itself, or the path of a file that holds it.
        keys: the legal keys of `Transport` besides `Type`.

    Raises:
        OptionError: the text or file is unreadable, or a key or value is not as documented.
    """
    descriptor = load_descriptor(text)
    _check_keys("", descriptor, ("Transport", "Schema", *_UNUSED))
    for key, accepted in _UNUSED.items():
        if key in descriptor and descriptor[key] not in accepted:
            raise _key_error(
                key, descriptor[key], " or ".join(["absent", *map(_to_json, accepted)])
            )
    _check_schema(descriptor)
    return _read_transport(_get_transport(descriptor), keys)


def load_descriptor(text: str) -> dict[str, Any]:
    """The JSON object of a descriptor; `//` comments are ignored, decimals stay exact.

    >>> load_descriptor('{"Transport": "time"} // the default clock')
    {'Transport': 'time'}
    """
    if not _strip_comments(text).lstrip().startswith("{"):
        text = _read_file(text)
    try:
        value = json.loads(
            _strip_comments(text),
            parse_float=Decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_duplicate_keys,
        )
    except ValueError as error:
        raise _descriptor_error(f"it is not JSON ({error})", "correct the JSON") from error
    if not isinstance(value, dict):
        raise _descriptor_error(f"{_to_json(value)} is not a JSON object", "put it into braces")
    return value


def _strip_comments(text: str) -> str:
    return _TOKEN.sub(lambda token: token[0] if token[0].startswith('"') else "", text)


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = f"cannot read the file '{path}' ({error})"
        raise _descriptor_error(problem, "give a readable path, or the JSON itself") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for index, (key, _) in enumerate(pairs):
        if key in dict(pairs[:index]):
            raise ValueError(f"key {_to_json(key)} is given twice")
    return dict(pairs)


def _get_transport(descriptor: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of `Transport`, its shorthand spelled out."""
    accepts = '"time", or an object with "Type": "time"'
    transport = descriptor.get("Transport")
    if isinstance(transport, dict):
        if transport.get("Type") not in _TYPES:
            raise _key_error("Transport.Type", transport.get("Type"), '"time" or "Time"')
        return transport
    if transport not in _TYPES:
        raise _key_error("Transport", transport, accepts)
    return {}


def _check_schema(descriptor: Mapping[str, Any]) -> None:
    schema = descriptor.get("Schema", _SCHEMA)
    if isinstance(schema, dict) and "type" not in schema:
        # FastScore's own example writes "Type" here.
        schema = {{"Type": "type"}.get(key, key): value for key, value in schema.items()}
    if schema != _SCHEMA:
        raise _key_error("Schema", schema, f"absent or {_SCHEMA_TEXT}")


def _read_transport(
    transport: Mapping[str, Any], keys: Mapping[str, DescriptorKey]
) -> dict[str, Any]:
    _check_keys("Transport.", transport, ("Type", *keys))
    return {
        key.field: value
        for name, key in keys.items()
        if name in transport and (value := _read_value(name, transport[name], key)) is not None
    }


def _read_value(name: str, value: Any, key: DescriptorKey) -> Any:
    # A JSON true is a Python int.
    if isinstance(value, bool) or not isinstance(value, key.json_types):
        raise _key_error(f"Transport.{name}", value, key.accepts())
    try:
        return None if value is None else key.parser.parse(str(value))
    except ValueError as error:
        raise _key_error(f"Transport.{name}", value, key.accepts(), f" ({error})") from error


def _check_keys(place: str, found: Iterable[str], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            # Case is what is wrong most often, and get_close_matches minds it.
            by_case = {name.lower(): name for name in known}
            near = difflib.get_close_matches(key.lower(), by_case, n=1, cutoff=0.0)
            raise OptionError(
                "descriptor",
                f"there is no key '{place}{key}'",
                ", ".join(known),
                f"did you mean '{by_case[near[0]]}'?",
            )


def _key_error(key: str, value: Any, accepts: str, reason: str = "") -> OptionError:
    problem = f"key '{key}': cannot use {_to_json(value)}{reason}"
    return OptionError("descriptor", problem, accepts, f"correct '{key}' in the descriptor")


def _descriptor_error(problem: str, next_step: str) -> OptionError:
    accepts = 'a JSON object such as {"Transport": "time"}, or the path of a file with one'
    return OptionError("descriptor", problem, accepts, next_step)


def _to_json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
