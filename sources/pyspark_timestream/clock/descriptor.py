"""FastScore's JSON stream descriptors for the time transport, with every deviation named.

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

from pyspark_timestream.connector.options import OptionError, Reader

__all__ = ["CARRIES", "DescriptorKey", "load_descriptor", "read_descriptor"]

CARRIES: Final = ("transport", "timeZero", "delay", "period", "maxCount", "overflow")
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
"""Keys without effect here -> the values that ask for no more than that."""


@dataclass(frozen=True, slots=True)
class DescriptorKey:
    """A key of `Transport`.

    Attributes:
        field: the option's field that it fills.
        reader: reads that option.
        json_types: Python types that its JSON value may have; null leaves the option unset.
    """

    field: str
    reader: Reader[Any]
    json_types: tuple[type, ...]

    def accepts(self) -> str:
        """What is accepted, as an error says it."""
        null, number = type(None) in self.json_types, Decimal in self.json_types
        return f"{'null or ' * null}{'a number or a text: ' * number}{self.reader.accepts}"


def read_descriptor(text: str, keys: Mapping[str, DescriptorKey]) -> dict[str, Any]:
    """What the keys of `Transport` say: field -> value, absent and null ones left out.

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
            raise _error(key, descriptor[key], " or ".join(["absent", *map(_json, accepted)]))
    _check_schema(descriptor)
    return _read_transport(_transport(descriptor), keys)


def load_descriptor(text: str) -> dict[str, Any]:
    """The JSON object of a descriptor; `//` comments are passed over, decimals stay exact.

    >>> load_descriptor('{"Transport": "time"} // the default clock')
    {'Transport': 'time'}
    """
    if not _without_comments(text).lstrip().startswith("{"):
        text = _file_text(text)
    try:
        value = json.loads(
            _without_comments(text),
            parse_float=Decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
    except ValueError as error:
        raise _whole_error(f"it is no JSON ({error})", "correct the JSON") from error
    if not isinstance(value, dict):
        raise _whole_error(f"{_json(value)} is no JSON object", "put it into braces")
    return value


def _without_comments(text: str) -> str:
    return _TOKEN.sub(lambda token: token[0] if token[0].startswith('"') else "", text)


def _file_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = f"cannot read the file '{path}' ({error})"
        raise _whole_error(problem, "give a readable path, or the JSON itself") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for index, (key, _) in enumerate(pairs):
        if key in dict(pairs[:index]):
            raise ValueError(f"key {_json(key)} is given twice")
    return dict(pairs)


def _transport(descriptor: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of `Transport`, its shorthand spelled out."""
    accepts = '"time", or an object with "Type": "time"'
    transport = descriptor.get("Transport")
    if isinstance(transport, dict):
        if transport.get("Type") not in _TYPES:
            raise _error("Transport.Type", transport.get("Type"), '"time" or "Time"')
        return transport
    if transport not in _TYPES:
        raise _error("Transport", transport, accepts)
    return {}


def _check_schema(descriptor: Mapping[str, Any]) -> None:
    schema = descriptor.get("Schema", _SCHEMA)
    if isinstance(schema, dict) and "type" not in schema:
        # FastScore's own example writes "Type" here.
        schema = {{"Type": "type"}.get(key, key): value for key, value in schema.items()}
    if schema != _SCHEMA:
        raise _error("Schema", schema, f"absent or {_SCHEMA_TEXT}")


def _read_transport(
    transport: Mapping[str, Any], keys: Mapping[str, DescriptorKey]
) -> dict[str, Any]:
    _check_keys("Transport.", transport, ("Type", *keys))
    return {
        key.field: value
        for name, key in keys.items()
        if name in transport and (value := _read(name, transport[name], key)) is not None
    }


def _read(name: str, value: Any, key: DescriptorKey) -> Any:
    # A JSON true is a Python int.
    if isinstance(value, bool) or not isinstance(value, key.json_types):
        raise _error(f"Transport.{name}", value, key.accepts())
    try:
        return None if value is None else key.reader.parse(str(value))
    except ValueError as error:
        raise _error(f"Transport.{name}", value, key.accepts(), f" ({error})") from error


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


def _error(key: str, value: Any, accepts: str, reason: str = "") -> OptionError:
    problem = f"key '{key}': cannot use {_json(value)}{reason}"
    return OptionError("descriptor", problem, accepts, f"correct '{key}' in the descriptor")


def _whole_error(problem: str, next_step: str) -> OptionError:
    accepts = 'a JSON object such as {"Transport": "time"}, or the path of a file with one'
    return OptionError("descriptor", problem, accepts, next_step)


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
