"""The options of transport `time`, from Spark's string map or from a descriptor."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

from pyspark_timestream.clock.descriptor import CARRIES, DescriptorKey, read_descriptor
from pyspark_timestream.clock.ticks import MAX_PERIOD_DENOMINATOR, Clock, fits
from pyspark_timestream.connector.instants import format_instant, parse_fraction, parse_instant
from pyspark_timestream.connector.options import (
    OptionError,
    Reader,
    choice,
    option,
    read_options,
    shown,
    specs,
    text,
    whole_number,
)

__all__ = ["DESCRIPTOR_KEYS", "KAFKA_OPTIONS", "TimeOptions", "read_time_options"]

# fmt: off
KAFKA_OPTIONS: Final = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "includeHeaders", "groupIdPrefix",
    "kafkaConsumer.connectTimeoutMs", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "minPartitions", "maxRecordsPerPartition", "metadataPrefix", "valueFormat", "parseMode",
    "columnNameOfCorruptRecord", "eventShape", "startTime", "timeUnit", "endTime", "edge",
    "ctiFrequency", "ctiDelay", "finalCti", "advanceTime", "ctiHeader", "ctiImport",
    "violationPolicy", "idleTimeout", "maxFuture", "maxTasks", "timeWindow", "writers",
    "writerTimeout",
)
# fmt: on
"""Options of the other transport, so that giving one here names the conflict."""

_MOST_EXPONENT: Final = 30


def _parse_exact(value: str) -> Fraction:
    try:
        # 1e999999999 would be expanded digit by digit.
        if abs(Decimal(value.strip()).adjusted()) > _MOST_EXPONENT:
            raise ValueError(f"has more than {_MOST_EXPONENT} digits before or after the point")
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


_EXACT: Final = "an exact decimal such as 0.001 or a fraction such as 1/3"
_instant: Final = Reader(
    parse_instant,
    "an ISO-8601 instant such as 2026-01-01T00:00:00Z",
    wrong_type="yesterday",
    out_of_range="0000-01-01T00:00:00Z",
)
_delay: Final = Reader(
    _parse_delay, f"{_EXACT}, in seconds, at least 0", wrong_type="soon", out_of_range="-1"
)
_period: Final = Reader(
    _parse_period, f"{_EXACT}, in seconds, greater than 0", wrong_type="often", out_of_range="0"
)
_rate: Final = Reader(
    _parse_rate, f"{_EXACT}, greater than 0, or 'max'", wrong_type="fast", out_of_range="0"
)


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """What the user asks of a simulated clock.

    Attributes:
        transport: always `time` here.
        descriptor: where the settings were read from, or None.
        zero_us: simulated instant from which delay and period count; None: the first start.
        delay: seconds before the first timestamp, at least 0.
        period: seconds between timestamps, above 0.
        max_count: only ticks k below it exist; None: no end.
        overflow: `all` or `skip`.
        rate: simulated seconds per real second, above 0; None: unpaced.
        max_ticks_per_trigger: most ticks of a batch, at least 1; None: no limit.
        partitions: most tasks of a batch, at least 1.
    """

    transport: str = option("transport", choice("time"), "time")
    descriptor: str | None = option(
        "descriptor",
        dataclasses.replace(text, accepts="a JSON stream descriptor, or the path of a file"),
        None,
        excludes=CARRIES,
    )
    zero_us: int | None = option("timeZero", _instant, None)
    delay: Fraction = option("delay", _delay, Fraction(0))
    period: Fraction = option("period", _period, Fraction(1))
    max_count: int | None = option("maxCount", whole_number(), None)
    overflow: str = option("overflow", choice("all", "skip"), "all")
    rate: Fraction | None = option("rate", _rate, Fraction(1))
    max_ticks_per_trigger: int | None = option("maxTicksPerTrigger", whole_number(1), None)
    partitions: int = option("numPartitions", whole_number(1), 1)

    def clock(self, zero_us: int, started_us: int) -> Clock:
        """The clock that these options make of a stream first started at `started_us`.

        Raises:
            OptionError: a tick that was asked for lies beyond the year 9999.
        """
        skips = self.overflow == "skip"
        clock = Clock(
            zero_us, started_us, self.delay, self.period, self.rate, self.max_count, skips
        )
        if not fits(clock):
            raise _error(
                "maxCount",
                f"'{self.max_count}' ticks, {exact_text(self.period)} s apart from "
                f"{format_instant(zero_us)} + {exact_text(self.delay)} s on, pass the year 9999",
                "lower 'maxCount', 'period' or 'delay'",
            )
        return clock

    def settings(self) -> dict[str, str]:
        """The options that define time, by name, as an offset keeps them; unset ones left out."""
        given = {
            "transport": self.transport,
            "timeZero": None if self.zero_us is None else format_instant(self.zero_us),
            "delay": exact_text(self.delay),
            "period": exact_text(self.period),
            "maxCount": None if self.max_count is None else str(self.max_count),
            "overflow": self.overflow,
            "rate": "max" if self.rate is None else exact_text(self.rate),
        }
        return {name: value for name, value in given.items() if value is not None}


_SPECS: Final = specs(TimeOptions)
_NULL: Final = type(None)
DESCRIPTOR_KEYS: Final = {
    "TimeZero": DescriptorKey("zero_us", _instant, (str, _NULL)),
    "Delay": DescriptorKey("delay", _delay, (int, Decimal, str)),
    "Period": DescriptorKey("period", _period, (int, Decimal, str)),
    "MaxCount": DescriptorKey("max_count", whole_number(), (int, _NULL)),
    "Overflow": DescriptorKey("overflow", choice("all", "skip"), (str,)),
}
"""Keys of a descriptor's `Transport` besides `Type`."""


def read_time_options(raw: Mapping[str, str]) -> TimeOptions:
    """The options of a stream, those of its descriptor included.

    Args:
        raw: option name in any case -> text, as Spark hands it over.

    Raises:
        OptionError: an unknown, unreadable, foreign or conflicting option or descriptor key.
    """
    _check_transport(raw)
    options = read_options(TimeOptions, raw, foreign=_foreign(raw))
    if options.descriptor is not None:
        carried = read_descriptor(options.descriptor, DESCRIPTOR_KEYS)
        options = dataclasses.replace(options, **carried)
    _check_pace(options)
    if options.zero_us is not None:
        options.clock(options.zero_us, options.zero_us)
    return options


def _check_transport(raw: Mapping[str, str]) -> None:
    """Refuse options of transport `kafka` where no transport was named at all."""
    kafka = {name.lower() for name in KAFKA_OPTIONS}
    if any(name.lower() == "transport" for name in raw):
        return
    for name, value in raw.items():
        if name.lower() in kafka or name.lower().startswith("kafka."):
            raise _error(
                "transport",
                f"it was not given, and is 'time' then, but option '{name}' "
                f"({shown(name, value)}) belongs to transport 'kafka'",
                "set option 'transport' to 'kafka'",
                "'time' or 'kafka'",
            )


def _foreign(raw: Mapping[str, str]) -> dict[str, str]:
    names = [*KAFKA_OPTIONS, *(name for name in raw if name.lower().startswith("kafka."))]
    place = "belongs to transport 'kafka' and conflicts with option 'transport' ('time')"
    return dict.fromkeys(names, place)


def _check_pace(options: TimeOptions) -> None:
    if options.rate is not None:
        return
    if options.max_count is None:
        raise _error("rate", "'max' needs option 'maxCount'", "set 'maxCount', or a number as rate")
    if options.overflow == "skip":
        raise _error(
            "rate",
            "'max' conflicts with option 'overflow' ('skip'): without a pace nothing is overdue",
            "leave one of the two out",
        )


def _error(name: str, problem: str, next_step: str, accepts: str | None = None) -> OptionError:
    spec = next(spec for spec in _SPECS.values() if spec.name == name)
    return OptionError(name, problem, accepts or spec.reader.accepts, next_step)


def exact_text(value: Fraction) -> str:
    """A decimal where one is exact and short, otherwise a fraction; reads back as `value`.

    >>> exact_text(Fraction(1, 1000)), exact_text(Fraction(1, 3))
    ('0.001', '1/3')
    """
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)
