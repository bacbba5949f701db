"""Application time for Spark streams: format `timestream`.

A stream carries *application time*: the time when things happened according to the data, not the
time when they are processed. Transport `time` is a simulated clock whose *ticks* are rows.
Transport `kafka` reads times from records and adds *current time increments* (CTIs): a CTI at `c`
promises that nothing strictly before `c` will change any more.

    spark.readStream.format("timestream").option("period", "1").load()

Every decision is a function of the options and of the offset in Spark's checkpoint. Only adapters
ask clocks and brokers, and the offset keeps the answers.

Each folder's docstring says what is in it; docs/explanation/architecture.md follows one record.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark_timestream.commands.explain_query import explain_time
    from pyspark_timestream.commands.measure_lateness import measure_lateness
    from pyspark_timestream.commands.metrics_export import TimeMetrics
    from pyspark_timestream.core.session import configure_spark, spark_settings
    from pyspark_timestream.core.why import why
    from pyspark_timestream.errors import (
        BrokerUnreachable,
        CheckpointMismatch,
        CheckpointUnreadable,
        DataLost,
        DeliveryFailed,
        MissingExtra,
        OptionError,
        ReplayDiffers,
        SchemaRefused,
        SchemaRegistryError,
        SettingRefused,
        TimestreamError,
        ViolationFound,
        WrongInterpreter,
    )
    from pyspark_timestream.frames.aggregates import aggregate_windows
    from pyspark_timestream.frames.end import await_end, end_stream
    from pyspark_timestream.frames.transforms import (
        advance_time,
        alter_lifetime,
        import_ctis,
        order_by_time,
        shift_time,
    )
    from pyspark_timestream.producer.producer import PunctuatedProducer
    from pyspark_timestream.source import DefaultSource

__all__ = [
    "BrokerUnreachable",
    "CheckpointMismatch",
    "CheckpointUnreadable",
    "DataLost",
    "DefaultSource",
    "DeliveryFailed",
    "MissingExtra",
    "OptionError",
    "PunctuatedProducer",
    "ReplayDiffers",
    "SchemaRefused",
    "SchemaRegistryError",
    "SettingRefused",
    "TimeMetrics",
    "TimestreamError",
    "ViolationFound",
    "WrongInterpreter",
    "__version__",
    "advance_time",
    "aggregate_windows",
    "alter_lifetime",
    "await_end",
    "configure_spark",
    "end_stream",
    "explain_time",
    "import_ctis",
    "measure_lateness",
    "order_by_time",
    "shift_time",
    "spark_settings",
    "why",
]

__version__ = "0.2.0"
"""The version of the distribution, which holds both packages; a release bumps both."""

_MODULES: Final = {
    **dict.fromkeys(
        ["advance_time", "alter_lifetime", "import_ctis", "order_by_time", "shift_time"],
        "frames.transforms",
    ),
    "DefaultSource": "source",
    "aggregate_windows": "frames.aggregates",
    **dict.fromkeys(["await_end", "end_stream"], "frames.end"),
    "PunctuatedProducer": "producer.producer",
    "TimeMetrics": "commands.metrics_export",
    "configure_spark": "core.session",
    "spark_settings": "core.session",
    "explain_time": "commands.explain_query",
    "measure_lateness": "commands.measure_lateness",
    "why": "core.why",
}
"""The module of each public name that is not an error."""

_FOR_DRIVERS: Final = (
    "advance_time",
    "aggregate_windows",
    "alter_lifetime",
    "explain_time",
    "import_ctis",
    "order_by_time",
    "shift_time",
)
"""Names that only a driver that uses these formats imports."""

_asked: set[str] = set()


# Lazy, because one import error in any `pyspark_*` package disables all Python formats, and
# because the pure modules are to be importable without Spark.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    _check_interpreter(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _check_interpreter(name: str) -> None:
    """Warn once, in a driver whose Spark will not find these formats.

    `from pyspark_timestream import a, b` looks up every name before it binds the first one, so at
    a second lookup it is known whether `configure_spark`, which cures this, is among them.
    """
    if name in _FOR_DRIVERS and name in _asked and not _asked & {"configure_spark", "warned"}:
        _asked.add("warned")
        import_module(f"{__name__}.core.session").warn_of_interpreter(stacklevel=3)
    _asked.add(name)
