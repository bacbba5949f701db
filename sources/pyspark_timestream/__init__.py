"""Application time for Spark streams: format `timestream`.

A stream carries *application time*: the time at which things happened, as the data says it, not
the time at which they are processed. Transport `time` makes such time: a simulated clock whose
*ticks* are rows. Transport `kafka` reads it from records, and adds *current time increments*
(CTIs): a CTI at `c` promises that nothing strictly before `c` will change any more.

    spark.readStream.format("timestream").option("period", "1").load()

Everything that is decided is a function of the options and of the offset in Spark's checkpoint;
clocks and brokers are asked only by the adapters, and what they said is kept in the offset.

Reading order: the README's last section, from the vocabulary (`connector.instants`,
`connector.options`, `errors`, `connector.offsets`, `kafka.decode.records`) to Spark's adapters.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark_timestream.connector.error_text import why
    from pyspark_timestream.connector.options import OptionError
    from pyspark_timestream.connector.session import configure_spark
    from pyspark_timestream.errors import (
        BrokerUnreachable,
        CheckpointMismatch,
        CheckpointUnreadable,
        DataLost,
        DeliveryFailed,
        SchemaRefused,
        SettingRefused,
        TimestreamError,
        ViolationFound,
        WrongInterpreter,
    )
    from pyspark_timestream.explain.query import explain_time
    from pyspark_timestream.frames.ordering import order_by_time
    from pyspark_timestream.frames.watermark import advance_time, await_end, import_ctis, shift_time
    from pyspark_timestream.producer.producer import PunctuatedProducer
    from pyspark_timestream.source import DefaultSource

__all__ = [
    "BrokerUnreachable",
    "CheckpointMismatch",
    "CheckpointUnreadable",
    "DataLost",
    "DefaultSource",
    "DeliveryFailed",
    "OptionError",
    "PunctuatedProducer",
    "SchemaRefused",
    "SettingRefused",
    "TimestreamError",
    "ViolationFound",
    "WrongInterpreter",
    "advance_time",
    "await_end",
    "configure_spark",
    "explain_time",
    "import_ctis",
    "order_by_time",
    "shift_time",
    "why",
]

_PLACES: Final = {
    **dict.fromkeys(["BrokerUnreachable", "CheckpointMismatch", "CheckpointUnreadable"], "errors"),
    **dict.fromkeys(["DataLost", "DeliveryFailed", "SchemaRefused", "TimestreamError"], "errors"),
    **dict.fromkeys(["SettingRefused", "ViolationFound", "WrongInterpreter"], "errors"),
    **dict.fromkeys(["advance_time", "await_end", "import_ctis", "shift_time"], "frames.watermark"),
    "DefaultSource": "source",
    "OptionError": "connector.options",
    "PunctuatedProducer": "producer.producer",
    "configure_spark": "connector.session",
    "explain_time": "explain.query",
    "order_by_time": "frames.ordering",
    "why": "connector.error_text",
}

_FOR_DRIVERS: Final = ("advance_time", "explain_time", "import_ctis", "order_by_time", "shift_time")
"""What only a driver that uses our formats asks for."""

_asked: set[str] = set()


# Lazy, because one import error in any `pyspark_*` package disables all Python formats, and
# because the pure modules are to be importable without Spark.
def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    _check_interpreter(name)
    return found


def _check_interpreter(name: str) -> None:
    """Warn a driver, once, whose Spark will not find our formats.

    `from pyspark_timestream import a, b` asks for every name once before it takes the first one:
    at a second question it is known whether `configure_spark` is among them, which sees to it.
    """
    if name in _FOR_DRIVERS and name in _asked and not _asked & {"configure_spark", "warned"}:
        _asked.add("warned")
        import_module(f"{__name__}.connector.session").warn_of_interpreter(stacklevel=3)
    _asked.add(name)
