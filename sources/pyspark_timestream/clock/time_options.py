"""The options of the simulated clock, from Spark's map or from a descriptor (semantics 12.7).

A descriptor is FastScore's, JSON with comments:

    { "Transport": { "Type": "time", "Period": 2.0 },   // or "Transport": "time"
      "Schema": { "type": "long", "logicalType": "timestamp-millis" } }
"""

import dataclasses
import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.core.declarations import (
    TEXT,
    Parser,
    choice,
    make_object,
    option,
    option_specs,
    pinned_settings,
    quote_value,
    read_options,
    whole_number,
)
from pyspark_timestream.core.instants import (
    format_instant,
    parse_fraction,
    parse_instant,
)
from pyspark_timestream.errors import OptionError
from pyspark_timestream.rules.ticks import MAX_PERIOD_DENOMINATOR, Clock, fits_calendar

# -- the descriptor --------------------------------------------------------------------------------

CARRIED_OPTIONS: Final = ("transport", "timeZero", "delay", "period", "maxCount", "overflow")
"""A descriptor can carry these options, so they conflict with option `descriptor`."""

_NULL: Final = type(None)
JSON_TYPES: Final = {
    "TimeZero": (str, _NULL),
    "Delay": (int, Decimal, str),
    "Period": (int, Decimal, str),
    "MaxCount": (int, _NULL),
    "Overflow": (str,),
}
"""The keys of `Transport`, each an option's name -> the types of its value; null leaves it out."""

_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*')
_TYPES: Final = ("time", "Time")
_SCHEMA: Final = {"type": "long", "logicalType": "timestamp-millis"}
_SCHEMA_TEXT: Final = json.dumps(_SCHEMA)
_UNUSED: Final[dict[str, tuple[Any, ...]]] = {
    "Envelope": (None,),
    "Encoding": (None, "bert"),
    "Batching": (None,),
}
"""Keys without effect here -> the values accepted for them."""


def _read_descriptor(text: str) -> dict[str, Any]:
    """Return the options in a descriptor, field -> value; absent and null ones left out.

    Args:
        text: option `descriptor`: the JSON itself, or the path of a file that contains it.

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
    transport = _get_transport(descriptor)
    fields = {f"{spec.name[0].upper()}{spec.name[1:]}": name for name, spec in _SPECS.items()}
    keys = {key: fields[key] for key in JSON_TYPES}
    _check_keys("Transport.", transport, ("Type", *keys))
    values = {
        field: _read_value(key, transport[key], _SPECS[field].parser)
        for key, field in keys.items()
        if key in transport
    }
    return {field: value for field, value in values.items() if value is not None}


def load_descriptor(text: str) -> dict[str, Any]:
    """Return the JSON object of a descriptor; ignore `//` comments, keep decimals exact.

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
            object_pairs_hook=make_object,
        )
    except (ValueError, RecursionError) as error:
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


def _get_transport(descriptor: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of `Transport`; the shorthand has none."""
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


def _read_value(key: str, value: Any, parser: Parser[Any]) -> Any:
    null, number = _NULL in JSON_TYPES[key], Decimal in JSON_TYPES[key]
    accepts = f"{'null or ' * null}{'a number or a text: ' * number}{parser.accepts}"
    # A JSON true is a Python int.
    if isinstance(value, bool) or not isinstance(value, JSON_TYPES[key]):
        raise _key_error(f"Transport.{key}", value, accepts)
    try:
        return None if value is None else parser.parse(str(value))
    except ValueError as error:
        raise _key_error(f"Transport.{key}", value, accepts, f" ({error})") from error


def _check_keys(prefix: str, names: Iterable[str], accepted: tuple[str, ...]) -> None:
    for key in names:
        if key not in accepted:
            # Wrong case is the usual mistake, and get_close_matches is case-sensitive.
            by_case = {name.lower(): name for name in accepted}
            near = difflib.get_close_matches(key.lower(), by_case, n=1, cutoff=0.0)
            raise OptionError(
                "descriptor",
                f"there is no key '{prefix}{key}'",
                ", ".join(accepted),
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


# -- the options -----------------------------------------------------------------------------------

_MAX_EXPONENT: Final = 30


def _parse_exact(value: str) -> Fraction:
    try:
        # A Fraction of 1e999999999 would expand to a billion digits.
        if abs(Decimal(value.strip()).adjusted()) > _MAX_EXPONENT:
            raise ValueError(f"has more than {_MAX_EXPONENT} digits before or after the point")
    except InvalidOperation:
        pass
    return parse_fraction(value)


def _parse_delay(value: str) -> Fraction:
    delay = _parse_exact(value)
    if delay < 0:
        raise ValueError("must be at least 0")
    return delay


def _parse_period(value: str) -> Fraction:
    period = _parse_exact(value)
    if period <= 0:
        raise ValueError("must be greater than 0")
    if period.denominator > MAX_PERIOD_DENOMINATOR:
        raise ValueError(f"its denominator must be at most {MAX_PERIOD_DENOMINATOR:,}")
    return period


def _parse_rate(value: str) -> Fraction | None:
    if value.strip().lower() == "max":
        return None
    rate = _parse_exact(value)
    if rate <= 0:
        raise ValueError("must be greater than 0")
    return rate


def format_fraction(value: Fraction) -> str:
    """Write a decimal if it is exact and short, otherwise a fraction; it reads back as `value`.

    >>> format_fraction(Fraction(1, 1000)), format_fraction(Fraction(1, 3))
    ('0.001', '1/3')
    """
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


_EXACT_NUMBER: Final = "an exact decimal such as 0.001 or a fraction such as 1/3"
_ISO_INSTANT: Final = Parser(
    parse_instant,
    "an ISO-8601 instant such as 2026-01-01T00:00:00Z",
    format=format_instant,
)
_DELAY: Final = Parser(
    _parse_delay,
    f"{_EXACT_NUMBER}, in seconds, at least 0",
    format=format_fraction,
)
_PERIOD: Final = Parser(
    _parse_period,
    f"{_EXACT_NUMBER}, in seconds, greater than 0",
    format=format_fraction,
)
_RATE: Final = Parser(
    _parse_rate,
    f"{_EXACT_NUMBER}, greater than 0, or 'max'",
    format=format_fraction,
    none_text="max",
)


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """The options of a simulated clock; as values, a rate of None is unpaced."""

    transport: str = option(
        "transport",
        choice("time"),
        "time",
        description="`time` or `kafka`",
        effect="stream",
        is_pinned=True,
    )
    descriptor: str | None = option(
        "descriptor",
        dataclasses.replace(TEXT, accepts="a JSON stream descriptor, or the path of a file"),
        None,
        description=(
            "a JSON stream descriptor, inline or a file's path, in place of the options that it "
            "carries"
        ),
        effect="stream",
        excludes=CARRIED_OPTIONS,
    )
    zero_us: int | None = option(
        "timeZero",
        _ISO_INSTANT,
        None,
        description="ISO-8601 start of simulated time; none: the clock at the query's first start",
        effect="stream",
        is_pinned=True,
    )
    delay: Fraction = option(
        "delay",
        _DELAY,
        Fraction(0),
        description=(
            "seconds before the first timestamp: an exact decimal or a fraction, as `period`"
        ),
        effect="stream",
        is_pinned=True,
    )
    period: Fraction = option(
        "period",
        _PERIOD,
        Fraction(1),
        description="seconds between timestamps: an exact decimal (`0.001`) or a fraction (`1/3`)",
        effect="stream",
        is_pinned=True,
    )
    max_count: int | None = option(
        "maxCount",
        whole_number(),
        None,
        description="only ticks below this number exist; then the stream ends",
        effect="stream",
        is_pinned=True,
    )
    overflow: str = option(
        "overflow",
        choice("all", "skip"),
        "all",
        description=(
            "`all`: every timestamp is delivered, however late; `skip`: of those overdue at a "
            "batch only the newest is, and a warning says how many were skipped"
        ),
        effect="stream",
        is_pinned=True,
    )
    rate: Fraction | None = option(
        "rate",
        _RATE,
        Fraction(1),
        description="simulated seconds per real second; `max`: unpaced (needs `maxCount`)",
        effect="stream",
        is_pinned=True,
    )
    max_ticks_per_trigger: int | None = option(
        "maxTicksPerTrigger",
        whole_number(1),
        None,
        description="at most this many ticks a batch",
        effect="stream",
    )
    partitions: int = option(
        "numPartitions", whole_number(1), 1, description="tasks per batch", effect="stream"
    )

    def clock(self, zero_us: int, started_us: int) -> Clock:
        """Return the clock of a stream with these options that first started at `started_us`.

        Raises:
            OptionError: a requested tick lies beyond the year 9999.
        """
        skips = self.overflow == "skip"
        clock = Clock(
            zero_us=zero_us,
            started_us=started_us,
            delay=self.delay,
            period=self.period,
            rate=self.rate,
            max_count=self.max_count,
            skips=skips,
        )
        if not fits_calendar(clock):
            raise _option_error(
                "maxCount",
                f"'{self.max_count}' ticks, {format_fraction(self.period)} s apart from "
                f"{format_instant(zero_us)} + {format_fraction(self.delay)} s on, pass the year "
                "9999",
                "lower 'maxCount', 'period' or 'delay'",
            )
        return clock

    def settings(self) -> dict[str, str]:
        """Return the options that define time, as an offset keeps them; unset ones left out."""
        return pinned_settings(self)


_SPECS: Final = option_specs(TimeOptions)


def read_time_options(raw: Mapping[str, str], kafka_options: Collection[str] = ()) -> TimeOptions:
    """Read the options of a stream, including those in its descriptor.

    Args:
        raw: option name in any case -> text, as Spark passes it.
        kafka_options: names of the other transport's options, for errors that name the conflict.

    Raises:
        OptionError: an option or descriptor key is unknown, unreadable, foreign or conflicting.
    """
    foreign = [*kafka_options, *(name for name in raw if name.lower().startswith("kafka."))]
    _check_transport(raw, {name.lower() for name in foreign})
    remark = "belongs to transport 'kafka' and conflicts with option 'transport' ('time')"
    options = read_options(TimeOptions, raw, foreign=dict.fromkeys(foreign, remark))
    if options.descriptor is not None:
        carried = _read_descriptor(options.descriptor)
        options = dataclasses.replace(options, **carried)
    _check_pace(options)
    if options.zero_us is not None:
        options.clock(options.zero_us, options.zero_us)
    return options


def _check_transport(raw: Mapping[str, str], kafka_options: Collection[str]) -> None:
    """Refuse options of transport `kafka` if no transport is given at all."""
    if any(name.lower() == "transport" for name in raw):
        return
    for name, value in raw.items():
        if name.lower() in kafka_options:
            raise _option_error(
                "transport",
                f"it was not given, and is 'time' then, but option '{name}' "
                f"({quote_value(name, value)}) belongs to transport 'kafka'",
                "set option 'transport' to 'kafka'",
                "'time' or 'kafka'",
            )


def _check_pace(options: TimeOptions) -> None:
    if options.rate is not None:
        return
    if options.max_count is None:
        raise _option_error(
            "rate", "'max' needs option 'maxCount'", "set 'maxCount', or a number as rate"
        )
    if options.overflow == "skip":
        raise _option_error(
            "rate",
            "'max' conflicts with option 'overflow' ('skip'): without a pace nothing is overdue",
            "leave one of the two out",
        )


def _option_error(
    name: str, problem: str, next_step: str, accepts: str | None = None
) -> OptionError:
    spec = next(spec for spec in _SPECS.values() if spec.name == name)
    return OptionError(name, problem, accepts or spec.parser.accepts, next_step)
