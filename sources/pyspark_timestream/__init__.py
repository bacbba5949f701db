"""Application time for Spark streams: format `timestream`.

A stream carries *application time*: the time at which things happened, as the data says it, not
the time at which they are processed. Transport `time` makes such time: a simulated clock whose
*ticks* are rows. Transport `kafka` reads it from records, and adds *current time increments*
(CTIs): a CTI at `c` promises that nothing strictly before `c` will change any more.

    spark.readStream.format("timestream").option("period", "1").load()

Everything that is decided is a function of the options and of the offset in Spark's checkpoint;
clocks and brokers are asked only by the adapters, and what they said is kept in the offset.

Reading order: the README's last section, from the vocabulary (`instants`, `option_fields`,
`errors`, `offsets`, `records`) to Spark's adapters.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark_timestream.source import TimestreamSource as DefaultSource

__all__ = [
    "DefaultSource",
    "PunctuatedProducer",
    "advance_time",
    "await_end",
    "configure_spark",
    "explain_time",
    "import_ctis",
    "order_by_time",
    "shift_time",
]

_PLACES: Final = {
    "DefaultSource": ("source", "TimestreamSource"),
    "PunctuatedProducer": ("producer", "PunctuatedProducer"),
    "advance_time": ("frames", "advance_time"),
    "await_end": ("frames", "await_end"),
    "configure_spark": ("session_settings", "configure_spark"),
    "explain_time": ("query_explanation", "explain_time"),
    "import_ctis": ("frames", "import_ctis"),
    "order_by_time": ("frame_order", "order_by_time"),
    "shift_time": ("frames", "shift_time"),
}


_FOR_DRIVERS: Final = ("advance_time", "explain_time", "import_ctis", "order_by_time", "shift_time")
"""What only a driver that uses our formats asks for."""

_asked: set[str] = set()


# Lazy, because one import error in any `pyspark_*` package disables all Python formats, and
# because the pure modules are to be importable without Spark.
def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    _check_interpreter(name)
    return found


def _check_interpreter(name: str) -> None:
    """Warn a driver, once, whose Spark will not find our formats.

    `from pyspark_timestream import a, b` asks for every name once before it takes the first one:
    at a second question it is known whether `configure_spark` is among them, which sees to it.
    """
    if name in _FOR_DRIVERS and name in _asked and not _asked & {"configure_spark", "warned"}:
        _asked.add("warned")
        import_module(f"{__name__}.session_settings").warn_of_interpreter(stacklevel=3)
    _asked.add(name)
